"""One bad site does not hurt the others: errors, own models, messages, and the same numbers wherever the rows are."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kinfed
from kinfed.cli import app
from kinfed.data import Preparation
from kinfed.learners import Ridge
from kinfed.model import UnusualRowsWarning

SITES, ROWS = 12, 30


def draw(seed, rows=None):
    """Training rows of all sites, or as many other rows: four columns, one of them skewed, and a linear outcome.

    Coefficients differ a little from site to site.
    """
    rng = np.random.default_rng(seed)
    sites = [(0.2 * rng.standard_normal(4), 1 + 0.2 * rng.standard_normal(4)) for _ in range(SITES)]
    rng, parts = np.random.default_rng([seed, rows or 0]), []
    for shift, coefficients in sites:
        z = rng.standard_normal((rows or ROWS, 4)) + shift
        X = np.column_stack([70 + 10 * z[:, 0], z[:, 1], np.exp(0.5 * z[:, 2]), 5 + z[:, 3]])
        parts.append((X, 20 + 3 * z @ coefficients + rng.standard_normal(len(z))))
    return parts


def federation(parts, names=None):
    names = names or [f"site {k}" for k in range(len(parts))]
    X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    labels = np.repeat(names, [len(part[1]) for part in parts])
    return kinfed.Federation.from_arrays(X, y, labels, columns=["weight", "score", "income", "age"])


def grams(X, y):
    X[:, 0] *= 1000


def typing_error(X, y):
    X[3, 1] = 1e6


def shifted_outcome(X, y):
    y += 500


def outcome_in_thousands(X, y):
    y *= 1000


def shifted_column(X, y):
    X[:, 1] += 100


def random_cells(X, y):
    rng = np.random.default_rng(0)
    wrong = rng.random(X.shape) < 0.05
    X[wrong] = 1000 * rng.standard_normal(wrong.sum())


SLIPS = (grams, typing_error, shifted_outcome, outcome_in_thousands, shifted_column, random_cells)


def slipped(parts, change, site=0):
    changed = [(X.copy(), y.copy()) for X, y in parts]
    change(*changed[site])
    return changed


def others_error(parts, test, without=(), **how):
    """Mean test error of all sites but the first, trained with or without it."""
    kept = [k for k in range(len(parts)) if k not in without]
    names = [f"site {k}" for k in kept]
    tests = federation([test[k] for k in kept], names)
    result = kinfed.personalize(federation([parts[k] for k in kept], names), test=tests, **how)
    return result.scores.loc[[name for name in names if name != "site 0"]]


# Means of three seeds of twelve sites; the errors of others must not rise by more than three percent.
@pytest.mark.slow
@pytest.mark.parametrize("change", SLIPS)
@pytest.mark.parametrize("rule", ["entropic", "similarity-test", "auto"])
def test_the_others_do_as_well_as_without_the_bad_site(change, rule):
    ratios = []
    for seed in range(3):
        parts, test = draw(seed), draw(seed, rows=200)
        bad = others_error(slipped(parts, change), test, rule=rule)
        ratios.append(bad.mean() / others_error(parts, test, without=[0], rule=rule).mean())
    assert np.mean(ratios, axis=0).max() <= 1.03


@pytest.mark.slow
def test_the_default_rule_is_not_hurt_and_plain_standardisation_is():
    parts, test = draw(0), draw(0, rows=200)
    clean = others_error(parts, test, without=[0])["personalized"].mean()
    bad = slipped(parts, outcome_in_thousands)
    assert others_error(bad, test)["personalized"].mean() <= 1.03 * clean
    cell = slipped(parts, typing_error)
    assert others_error(cell, test)["local"].mean() <= 1.01 * others_error(parts, test, without=[0])["local"].mean()
    assert (
        others_error(cell, test, robust=False, rule="entropic")["local"].mean()
        > 1.03 * others_error(parts, test, without=[0], rule="entropic")["local"].mean()
    )


@pytest.mark.parametrize("change", SLIPS)
def test_what_happened_is_named(change):
    preparation, screening = Preparation.fit_screened(federation(slipped(draw(1), change)), labels=False)
    told = " ".join(screening.about("site 0"))
    column = {grams: "weight", typing_error: "score", shifted_column: "score", random_cells: "score"}.get(
        change, "the outcome"
    )
    assert column in told
    assert not [name for name in [*screening.aside, *screening.held] if name != "site 0"]
    assert bool(screening.aside) == (change in (grams, outcome_in_thousands))
    assert preparation.robust


@pytest.mark.parametrize("change", [grams, typing_error, random_cells, shifted_outcome])
def test_own_models_are_made_of_own_rows_as_they_are(change):
    parts = slipped(draw(2), change)
    train = federation(parts)
    result = kinfed.personalize(train, rule="local", learner=Ridge(0.1))
    own = result.agents.own[0]
    centred = own.X - own.X.mean(axis=0)
    slopes = np.linalg.solve(
        centred.T @ centred / len(own) + 0.1 * np.eye(4), centred.T @ (own.y - own.y.mean()) / len(own)
    )
    np.testing.assert_allclose(result.models.coefficients[0, :-1], slopes, rtol=1e-8)
    # At prediction nothing is held: the model of raw rows is linear all the way.
    far = np.array([[1e9, 1e9, 1e9, 1e9]])
    weights, constant = result.models.coefficients[0, :-1], result.models.coefficients[0, -1]
    expected = (far - result.preparation.mean) / result.preparation.scale @ weights + constant
    with pytest.warns(UnusualRowsWarning):
        predicted = result.predict("site 0", pd.DataFrame(far, columns=train.columns))
    np.testing.assert_allclose(predicted, expected, rtol=1e-8)


def test_an_agent_that_is_set_aside_learns_alone_and_nobody_listens():
    train = federation(slipped(draw(3), grams))
    result = kinfed.personalize(train, rule="grand-mean")
    np.testing.assert_array_equal(result.weights.matrix[0], np.eye(SITES)[0])
    assert not result.weights.matrix[1:, 0].any()
    np.testing.assert_allclose(result.weights.matrix.sum(axis=1), 1)
    without = kinfed.personalize(train.without("site 0"), rule="grand-mean")
    np.testing.assert_allclose(result.models.coefficients[1:], without.models.coefficients, rtol=1e-6)
    assert "it is set aside, learns alone, and does not count in the means" in str(result)
    assert any("grams for kilograms" in one for one in result.choices)
    ridge = kinfed.make_learner("ridge", penalty=0.01)
    together, alone = (kinfed.personalize(train, ridge, rule).models for rule in ("grand-mean", "local"))
    np.testing.assert_allclose(together.coefficients[0], alone.coefficients[0])


def test_whoever_is_trusted_is_taken_in_as_it_is():
    train = federation(slipped(draw(3), grams))
    trusted = kinfed.personalize(train, rule="grand-mean", trust=("site 0",))
    assert trusted.weights.matrix[1:, 0].all()
    assert "site 0" not in trusted.known.screening.held
    with pytest.raises(kinfed.KinfedError, match="no agent 'sight 0'; the nearest is 'site 0'"):
        kinfed.personalize(train, rule="grand-mean", trust=("sight 0",))


def test_without_robustness_nothing_is_held_and_standardisation_is_plain():
    train = federation(slipped(draw(3), grams))
    result = kinfed.personalize(train, rule="grand-mean", robust=False)
    X = np.concatenate([agent.X for agent in train])
    np.testing.assert_allclose(result.preparation.scale, X.std(axis=0))
    np.testing.assert_allclose(result.preparation.mean, X.mean(axis=0))
    assert result.weights.matrix[1:, 0].all()


def equal_results(one, other, tolerance):
    np.testing.assert_allclose(one.weights.matrix, other.weights.matrix, atol=tolerance)
    np.testing.assert_allclose(one.scores.to_numpy(), other.scores.to_numpy(), rtol=max(tolerance, 1e-9))
    assert one.known.screening == other.known.screening


@pytest.mark.parametrize("change", [grams, typing_error, shifted_outcome, random_cells])
@pytest.mark.parametrize("rule", ["entropic", "gradient-clusters", "q-aggregation"])
def test_sites_give_the_numbers_of_pooled_rows(change, rule):
    train, test = federation(slipped(draw(4), change)), federation(draw(4, rows=20))
    results = [kinfed.personalize(train, test=test, rule=rule, backend=backend) for backend in ("pooled", "sites")]
    equal_results(*results, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("change", [grams, typing_error])
@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_calibration_at_sites_is_that_of_pooled_rows(change, learner):
    parts, test = slipped(draw(5), change), draw(5, rows=20)
    if learner == "logistic":
        middle = np.median(np.concatenate([y for _, y in parts]))
        parts, test = ([(X, (y > middle).astype(int)) for X, y in some] for some in (parts, test))
    both = [
        kinfed.personalize(federation(parts), learner, "calibrated", federation(test), backend=backend)
        for backend in ("pooled", "sites")
    ]
    equal_results(*both, 1e-7)


@pytest.mark.server
def test_flower_gives_the_numbers_of_pooled_rows():
    train, test = federation(slipped(draw(4), typing_error)), federation(draw(4, rows=20))
    how = {"rule": "q-aggregation", "test": test}
    equal_results(kinfed.personalize(train, **how), kinfed.personalize(train, backend="flower", **how), 1e-10)


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fedavg", "weighted-risk"])
def test_networks_at_sites_are_those_of_pooled_rows(method):
    train, test = federation(slipped(draw(6), random_cells)), federation(draw(6, rows=20))
    options = {"method": method, "hidden": (4,), "task": "regression", "epochs": 5, "rounds": 3, "learning_rate": 0.01}
    how = {"learner": "torch", "learner_options": options, "rule": "entropic", "test": test}
    pooled, sites = (kinfed.personalize(train, backend=backend, **how) for backend in ("pooled", "sites"))
    np.testing.assert_allclose(pooled.scores.to_numpy(), sites.scores.to_numpy(), rtol=1e-4)


def test_describe_names_the_culprit(tmp_path):
    parts = slipped(draw(7), grams)
    frames = [pd.DataFrame(X, columns=["weight", "score", "income", "age"]).assign(stay=y) for X, y in parts]
    table = pd.concat([frame.assign(clinic=f"clinic {k}") for k, frame in enumerate(frames)])
    table.to_csv(tmp_path / "clinics.csv", index=False)
    told = CliRunner().invoke(
        app, ["data", "describe", str(tmp_path / "clinics.csv"), "--target", "stay", "--agent", "clinic"]
    )
    assert "clinic 0: weight is 1000 times that of the others: grams for kilograms?" in " ".join(told.output.split())


def test_the_report_says_who_is_set_aside(tmp_path):
    result = kinfed.personalize(federation(slipped(draw(3), grams)), rule="entropic")
    page = result.report(tmp_path).read_text(encoding="utf-8")
    assert "One agent is set aside" in page
    assert "Grams for kilograms?" in page
    clean = kinfed.personalize(federation(draw(3)), rule="entropic").report(tmp_path / "clean").read_text(encoding="utf-8")
    assert "set aside:" not in clean


def test_a_saved_result_knows_who_was_set_aside(tmp_path):
    parts = slipped(slipped(draw(3), grams), shifted_outcome, site=5)  # one that is explained, and one that is not
    result = kinfed.personalize(federation(parts), rule="entropic")
    assert len(result.known.screening.findings) == 2
    result.save(tmp_path / "result")
    assert kinfed.load(tmp_path / "result").known.screening == result.known.screening
    result.model("site 1").save(tmp_path / "model")
    text = " ".join(path.read_text(errors="ignore") for path in (tmp_path / "model").iterdir())
    assert "grams" not in text  # one agent's model tells nothing of another


def test_whoever_learns_alone_does_not_count_in_means():
    def tested(change):
        parts, test = slipped(draw(3), change), slipped(draw(3, rows=20), change)
        return kinfed.personalize(federation(parts), test=federation(test), rule="entropic")

    clean = kinfed.personalize(federation(draw(3)[1:]), test=federation(draw(3, rows=20)[1:]), rule="entropic")
    for result in map(tested, (outcome_in_thousands, shifted_outcome)):
        assert len(result.scores) == SITES
        assert result.compare().first_mean == pytest.approx(clean.compare().first_mean, rel=0.02)
        assert result.scores.loc["site 0"].notna().all()
