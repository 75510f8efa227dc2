"""The leaderboard: which federations take part, how rules are ranked, and one run of it from end to end."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli_runs import in_this_process
from kinfed.data.catalogue import CATALOGUE
from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.experiment import COLUMNS
from kinfed.experiments.leaderboard import APPLICABLE, Leaderboard, heat_map, losses, ratios, standings
from kinfed.experiments.leaderboard_data import MOST_CELLS, contests, holds_classes
from kinfed.federation import Federation
from kinfed.weights import RULES

pytestmark = pytest.mark.slow

FAST = ("local", "grand-mean", "q-aggregation", "similarity-test", "calibrated")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "cache"))


def table(path, agents=6, n=20, classes=False, seed=0):
    rng = np.random.default_rng(seed)
    site = np.arange(agents * n) % agents
    x = rng.normal(size=agents * n)
    y = x * np.where(site % 2, 1.0, -1.0) + 0.3 * rng.normal(size=agents * n)
    pd.DataFrame({"site": site, "x": x, "y": (y > 0).astype(int) if classes else y}).to_csv(path, index=False)
    return path


def archive(path, rows=40, columns=2, **arrays):
    rng = np.random.default_rng(0)
    content = {"X": rng.normal(size=(rows, columns)), "y": rng.normal(size=rows), "agent": np.arange(rows) % 3}
    np.savez(path, **{**content, **arrays})
    return path


def test_names_paths_and_folders_take_part(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    archive(folder / "one.npz")
    y = np.random.default_rng(0).normal(size=(40, 2))
    archive(folder / "two.npz", y=y, target_names=np.array(["E", "T"]))
    np.savez_compressed(folder / "images.npz", X=np.zeros((MOST_CELLS // 784 + 1, 784), dtype=np.uint8))
    own = table(tmp_path / "own.csv")
    found, too_large = contests(["medicare", f"{own}:y:site", str(folder)])
    assert [one.name for one in found] == ["medicare", "own", "one", "two-E", "two-T"]
    assert too_large == ["images"]
    assert (found[0].target, found[0].agent) == ("died", "provnum")
    federation, classes = found[1].read()
    assert (len(federation), classes) == (6, False)
    (single,), _ = contests([f"{folder / 'two.npz'}:T"])
    np.testing.assert_array_equal(single.read()[0][0].y, y[np.arange(40) % 3 == 0, 1])


def test_a_changed_file_has_another_key(tmp_path):
    own = table(tmp_path / "own.csv")
    before = contests([f"{own}:y:site"])[0][0].key
    assert contests([f"{own}:y:site"])[0][0].key == before
    assert contests([f"{own}:x:site"])[0][0].key != before
    table(own, seed=1)
    assert contests([f"{own}:y:site"])[0][0].key != before


@pytest.mark.parametrize(
    "y, classes",
    [
        ([0, 1, 1, 0], True),
        ([0.0, 1.0, 1.0, 0.0], True),
        (["a", "b", "b", "a"], True),
        ([True, False, True, True], True),
        ([0.5, 1.0, 1.0, 0.0], False),
        (list(range(11)), False),
        (list(range(10)), True),
    ],
)
def test_what_is_a_class(y, classes):
    federation = Federation.from_arrays(np.zeros((len(y), 1)), y, np.arange(len(y)) % 2)
    assert holds_classes(federation) is classes


def test_small_agents_are_left_out_and_classes_are_whole_numbers(tmp_path):
    frame = pd.DataFrame({"site": ["a"] * 9 + ["b"] * 8 + ["c"] * 7, "x": 0.5, "y": [0.0, 1.0] * 12})
    frame.to_csv(tmp_path / "t.csv", index=False)
    federation, classes = contests([f"{tmp_path / 't.csv'}:y:site"])[0][0].read()
    assert federation.names == ("a", "b")
    assert classes
    assert federation[0].y.dtype == np.int64


@pytest.mark.parametrize(
    "given, words",
    [
        (["nowhere.csv:y:site"], "is neither a path nor one of hsb82"),
        (["medicare", "medicare"], "value twice"),
        (["own.csv:y:site", "deep/own.csv:y:site"], "two federations of --data are called 'own'"),
        (["own.csv"], "say which column tells its agents apart"),
        (["own.csv:z:site"], "no column 'z'"),
        (["bad"], "not an archive of a federation"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    for folder in ("deep", "bad"):
        (tmp_path / folder).mkdir()
    table(tmp_path / "own.csv")
    table(tmp_path / "deep" / "own.csv")
    (tmp_path / "bad" / "x.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=words) as mistake:
        read_all(given)
    assert "\n" not in str(mistake.value)


def read_all(given):
    return [part.options[0].read() for part in Leaderboard(data=tuple(given), rules=("local", "grand-mean")).parts()]


def test_settings_are_checked():
    with pytest.raises(InputError, match="--rules must hold local"):
        Leaderboard(rules=("grand-mean",))
    with pytest.raises(InputError, match="oracle"):
        Leaderboard(rules=("local", "oracle"))
    with pytest.raises(InputError, match="--test-size"):
        Leaderboard(test_size=1.0)


def test_every_rule_that_needs_no_groups_takes_part():
    assert set(RULES) - set(APPLICABLE) == {"oracle"}
    assert EXPERIMENTS["leaderboard"] is Leaderboard
    assert set(Leaderboard().data) <= set(CATALOGUE)


def results(errors):
    """Tidy results of {federation: {rule: errors by repetition}}, the same for two agents, about a mean of their own."""
    rows = [
        ("leaderboard", f"federation={name}, learner=ridge", rule, r, agent, "loss", value + wobble)
        for name, rules in errors.items()
        for rule, values in rules.items()
        for r, value in enumerate(values)
        for agent, wobble in (("a", 0.1), ("b", -0.1))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_standings_by_hand():
    errors = {
        "one": {"local": [2.0, 4.0], "best": [1.0, 2.0], "other": [3.0, 3.0]},
        "two": {"local": [1.0, 1.0], "best": [2.0, 0.5], "other": [1.0, 1.0]},
    }
    table = losses(results(errors), ("loss",))
    found = standings(table, "local")
    assert list(found.index) == ["best", "local", "other"]
    # Means: one (3, 1.5, 3), two (1, 1.25, 1); local and other share ranks 2.5 and 1.5, best has 1 and 3.
    assert found["mean rank"].tolist() == ["2.0", "2.0", "2.0"]
    assert found["wins"].tolist() == [1, 1, 1]
    assert found["worst"].tolist() == ["1.250", "2.000", "2.000"]
    # Logarithms of best over local: split 0: (log .5 + log 2) / 2 = 0; split 1: (log .5 + log .5) / 2 = log .5.
    value = np.exp(np.log(0.5) / 2)
    error = value * np.std([0, np.log(0.5)], ddof=1) / np.sqrt(2)
    assert found.loc["best", "error over that of local"] == f"{value:.3f} ± {error:.3f}"
    assert ratios(table, "local")["federation=one, learner=ridge"]["best"][0] == pytest.approx(0.5)
    figure = heat_map(table, "local")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("-50.0") == 1
    assert texts.count("+25.0") == 1


def test_a_run_from_end_to_end_and_again(tmp_path):
    own = table(tmp_path / "numbers.csv", n=24)
    chosen = Leaderboard(data=(f"{own}:y:site",), rules=FAST, repetitions=2, features=50, folds=2)
    summary = run_experiment(chosen, tmp_path / "out", workers=1).read_text()
    assert summary.count("calibrated is within 3% of the best rule") == 2
    assert "on every federation" in summary
    assert (tmp_path / "out" / "leaderboard.png").exists()
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(found.columns) == list(COLUMNS)
    assert set(found["method"]) == set(FAST)
    assert set(found["metric"]) == {"mean squared error"}
    assert set(found.groupby("method").size()) == {2 * 6}  # splits times agents
    # Sites of odd and of even number have opposite slopes: one common model is useless, kin are not.
    means = found.groupby("method")["value"].mean()
    assert means["calibrated"] < 0.5 * means["grand-mean"]
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").glob("*repetition*.npz")}
    assert len(parts) == 2
    longer = Leaderboard(data=chosen.data, rules=FAST, repetitions=3, features=50, folds=2)
    run_experiment(longer, tmp_path / "out", workers=1)
    assert all(path.stat().st_mtime_ns == made for path, made in parts.items())
    again = pd.read_csv(tmp_path / "out" / "results.csv")
    pd.testing.assert_frame_equal(
        again[again["repetition"] < 2].sort_values(list(COLUMNS[:6])).reset_index(drop=True),
        found.sort_values(list(COLUMNS[:6])).reset_index(drop=True),
    )


def test_classes_are_scored_by_log_loss_and_error_rate(tmp_path):
    own, labels = table(tmp_path / "numbers.csv"), table(tmp_path / "labels.csv", classes=True)
    chosen = Leaderboard(data=(f"{own}:y:site", f"{labels}:y:site"), rules=("local", "grand-mean"), repetitions=1)
    summary = run_experiment(chosen, tmp_path / "out", workers=1).read_text()
    assert "None was judged" in summary  # the calibrated rule does not take part
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    metrics = found.groupby("setting")["metric"].unique().map(sorted).to_dict()
    assert metrics == {
        "federation=labels, learner=logistic": ["error rate", "log loss"],
        "federation=numbers, learner=ridge": ["mean squared error"],
    }
    rates = found[found["metric"] == "error rate"].groupby("method")["value"].mean()
    assert rates["local"] < 0.3 < rates["grand-mean"]  # opposite slopes again


def test_the_command_is_the_experiment(tmp_path):
    own = table(tmp_path / "numbers.csv")
    arguments = ["--data", f"{own.name}:y:site", "--rules", "local", "--rules", "grand-mean", "--repetitions", "1"]
    for command, out in ((["leaderboard"], "one"), (["reproduce", "leaderboard"], "two")):
        done = in_this_process(*command, *arguments, "--out", out, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["experiment"] == "leaderboard"
    assert Path(tmp_path / "one" / "results.csv").read_bytes() == Path(tmp_path / "two" / "results.csv").read_bytes()
