"""Several splits: means over them, intervals that cover them, the models of the first, and runs that go on."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed import run as story
from kinfed.analysis import mean_scores
from kinfed.errors import InputError
from kinfed.settings import FLOWER, options_of
from score_tables import scores_in

METRIC = "mean squared error"


def federation(n_agents=6, n=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_agents * n, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X))
    return kinfed.Federation.from_arrays(X, y, np.repeat([f"site {k}" for k in range(n_agents)], n))


@pytest.fixture(scope="module")
def halves():
    return federation().split(test_size=0.4, seed=3)


@pytest.fixture(scope="module")
def found(halves):
    train, test = halves
    return kinfed.personalize(train, rule="similarity-test", test=test, seed=3, repeats=3)


def test_scores_are_means_over_splits_and_models_those_of_the_first(halves, found):
    train, test = halves
    once = kinfed.personalize(train, rule="similarity-test", test=test, seed=3)
    np.testing.assert_array_equal(found.models.coefficients, once.models.coefficients)
    for method, scores in found.scored.items():
        table = scores.table(METRIC)
        assert table.shape == (3, 6)
        np.testing.assert_array_equal(table[0], once.scored[method][METRIC])
        np.testing.assert_allclose(scores[METRIC], table.mean(axis=0))
        assert (np.ptp(table, axis=0) > 0).all()
    assert (found.compare("local").splits, once.compare("local").splits) == (3, 1)
    assert "over 6 agents and 3 splits" in str(found)


def test_every_repeat_is_a_run_on_another_split_of_the_same_rows(halves, found):
    train, test = halves
    rows = story.together(train, test)
    assert rows.digest() == federation().digest()
    seed = int(story.derived_seed(3, "repeat", 2).generate_state(1)[0])
    own, held = rows.split(test_size=0.4, seed=seed)
    again = kinfed.personalize(own, rule="similarity-test", test=held, seed=seed)
    np.testing.assert_allclose(found.scored["personalized"].table(METRIC)[1], again.scores["personalized"], rtol=1e-12)


@pytest.mark.parametrize("backend", ["sites", "flower"])
def test_sites_give_the_same(halves, found, backend):
    train, test = halves
    there = kinfed.personalize(train, rule="similarity-test", test=test, seed=3, repeats=3, backend=backend)
    for method, scores in found.scored.items():
        np.testing.assert_allclose(there.scored[method].table(METRIC), scores.table(METRIC), atol=1e-6)
        np.testing.assert_allclose(there.scored[method].error(METRIC), scores.error(METRIC), atol=1e-6)


def test_standard_errors_cover_rows_and_splits():
    """Agents whose rows are drawn anew, judged by their mean: the error told is the spread over such draws."""
    spread, told = [], []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        y, n = rng.normal(size=40), 12
        values, errors = [], []
        for _ in range(4):
            chosen = y[rng.permutation(40)[:n]] ** 2
            values.append(chosen.mean())
            errors.append(chosen.std(ddof=1) / np.sqrt(n))
        one = [
            {"local": kinfed.Scores("regression", ("a",), np.array([n]), {METRIC: np.array([v])}, {METRIC: np.array([e])})}
            for v, e in zip(values, errors, strict=True)
        ]
        merged = mean_scores(one, np.array([40 - n]))["local"]
        spread.append(merged[METRIC][0])
        told.append(merged.error(METRIC)[0])
    assert np.sqrt(np.mean(np.square(told))) == pytest.approx(np.std(spread), rel=0.2)


def test_a_run_that_is_killed_goes_on_with_the_repeat_it_was_at(halves, found, tmp_path, monkeypatch):
    train, test = halves
    whole, calls = story.run, []

    def dying(*arguments, **options):
        calls.append(len(calls))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(story, "run", dying)
    with pytest.raises(KeyboardInterrupt):
        kinfed.personalize(train, rule="similarity-test", test=test, seed=3, repeats=3, checkpoint=tmp_path)
    assert (tmp_path / "repeat-2" / "scores.npz").exists()
    monkeypatch.setattr(story, "run", whole)
    again = kinfed.personalize(train, rule="similarity-test", test=test, seed=3, repeats=3, checkpoint=tmp_path)
    for method, scores in found.scored.items():
        np.testing.assert_array_equal(again.scored[method].table(METRIC), scores.table(METRIC))


def test_progress_names_the_repeat(halves):
    train, test = halves
    seen = []
    kinfed.personalize(
        train, test=test, options={"folds": 2}, repeats=2, progress=lambda what, done, total: seen.append(what)
    )
    assert any(what.startswith("repeat 2 of 2: ") for what in seen)


def test_repeats_survive_files_and_are_in_the_report(found, tmp_path):
    found.save(tmp_path / "kept")
    again = kinfed.load(tmp_path / "kept")
    assert again.compare("floor").interval == found.compare("floor").interval
    assert again.settings.repeats == 3
    page = found.report(tmp_path / "page").read_text()
    assert "Scores are means over 3 splits, and intervals cover agents and splits." in page


def test_repeats_are_an_option_of_the_command(tmp_path, monkeypatch):
    from cli_runs import in_this_process

    rows = federation()
    table = pd.concat([pd.DataFrame(one.X, columns=list("abc")).assign(y=one.y, site=one.name) for one in rows])
    table.to_csv(tmp_path / "t.csv", index=False)
    about = ("personalize", "t.csv", "--target", "y", "--agent", "site", "--rule", "local")
    done = in_this_process(*about, "--repeats", 2, "--metric", "mae", "--metric", "r2", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The mean absolute error is" in done.stdout
    assert "The R2 is" in done.stdout
    assert list(scores_in(tmp_path / "o")) == ["floor", "local", "grand-mean", "personalized"]
    assert not (tmp_path / "o" / "checkpoint").exists()
    for wrong, told in (
        (("--metric", "accuracy"), "metric 'accuracy' is for classification, and this is a regression"),
        (("--metric", "rmse"), "there is no metric 'rmse'"),
        (("--repeats", 2, "--test-size", 0), "there must be test rows"),
    ):
        done = in_this_process(*about, *wrong, "--out", "p", cwd=tmp_path)
        assert done.returncode != 0
        assert told in done.stderr
        assert not (tmp_path / "p").exists()


def test_deployed_sites_are_not_asked_to_repeat(halves):
    assert "repeats" not in options_of(FLOWER)
    assert "metric" in options_of(FLOWER)
    with pytest.raises(InputError, match="must be test rows"):
        kinfed.personalize(halves[0], repeats=2)
    with pytest.raises(InputError, match="repeats"):
        kinfed.personalize(halves[0], test=halves[1], repeats=0)


def test_what_rows_have_beside_stays_with_them_and_a_time_leaves_one_split(halves):
    train, test = halves

    def marked(federation, **beside):
        agents = tuple(
            replace(one, **{name: np.full(len(one), value) for name, value in beside.items()}) for one in federation
        )
        return replace(federation, agents=agents)

    both = story.together(marked(train, weight=1.0), marked(test, weight=2.0))
    assert [agent.weight.tolist() for agent in both] == [[1.0] * 18 + [2.0] * 12] * 6
    with pytest.raises(InputError, match="split by time have one split only"):
        kinfed.personalize(marked(train, time=0.0), test=marked(test, time=1.0), repeats=2)
