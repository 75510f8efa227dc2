"""Groups of rows stay on one side of splits and folds; a split by time tests on what came last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinfed
from cli_runs import in_this_process
from kinfed.backends.agents import Fold
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.site import answer, sites_of
from kinfed.backends.spec import preparation_settings
from kinfed.backends.wire import Request
from kinfed.data import Preparation
from kinfed.federation import Agent, Federation
from kinfed.splitting import FOLDS, SMALLEST, deal_rows
from kinfed.weights.calibration.cross_fitting import Dealing

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def grouped(sizes: list[int], seed: int, kind: str = "numbers", time: bool = False, name: str = "a") -> Federation:
    """One agent with groups of these sizes, rows in any order."""
    rng = np.random.default_rng(seed)
    group = np.repeat([f"patient {number}" for number in range(len(sizes))], sizes)[rng.permutation(sum(sizes))]
    n = len(group)
    outcomes: dict[str, Any] = {"numbers": rng.normal(size=n), "classes": rng.integers(0, 2, n), "none": None}
    times = rng.integers(0, max(2, n // 2), n) if time else None
    return Federation.from_arrays(rng.normal(size=(n, 2)), outcomes[kind], [name] * n, group=group, time=times)


def parts(federation: Federation, test_size: float, seed: int = 0) -> tuple[Agent, Agent]:
    train, test = federation.split(test_size, seed)
    return train[0], test[0]


@settings(max_examples=60)
@given(SIZES, st.floats(0.05, 0.9), st.integers(0, 2**30), st.sampled_from(["numbers", "classes", "none"]), st.booleans())
def test_no_group_is_parted_and_one_is_left_to_train_on(
    sizes: list[int], test_size: float, seed: int, kind: str, time: bool
) -> None:
    train, test = parts(grouped(sizes, seed, kind, time), test_size, seed)
    assert not set(train.group) & set(test.group)
    assert len(train) + len(test) == sum(sizes)
    assert len(train)
    assert len(sizes) > 1 or not len(test)


@settings(max_examples=40)
@given(SIZES, st.floats(0.05, 0.9), st.integers(0, 2**30))
def test_whole_groups_come_as_near_to_the_share_as_half_a_group(sizes: list[int], test_size: float, seed: int) -> None:
    train, test = parts(grouped(sizes, seed), test_size, seed)
    if len(set(train.group)) > 1:
        assert abs(len(test) - test_size * sum(sizes)) <= max(sizes) / 2


@settings(max_examples=30)
@given(SIZES, st.integers(0, 2**30), st.sampled_from(["numbers", "classes"]), st.booleans())
def test_the_split_follows_from_labels_and_times_and_not_from_the_order(
    sizes: list[int], seed: int, kind: str, time: bool
) -> None:
    federation = grouped(sizes, seed, kind, time)
    order = np.random.default_rng(seed + 1).permutation(sum(sizes))
    first, second = (parts(one, 0.3, 5)[1] for one in (federation, federation.rows([order])))
    assert sorted(first.X[:, 0]) == sorted(second.X[:, 0])


def test_another_seed_holds_out_other_groups_and_classes_keep_their_shares() -> None:
    rng = np.random.default_rng(0)
    label = np.repeat(rng.random(400) < 0.3, 3)  # an outcome of patients: all rows of one agree
    group = np.repeat(np.arange(400), 3)
    federation = Federation.from_arrays(rng.normal(size=(1200, 1)), label, ["a"] * 1200, group=group)
    found = [parts(federation, 0.25, seed)[1] for seed in (0, 1)]
    assert set(found[0].group) != set(found[1].group)
    for test in found:
        assert abs(len(test) - 300) <= 1.5
        assert abs(test.y.sum() - 0.25 * label.sum()) <= 1.5


def test_the_latest_rows_are_tested_on_and_ties_stay_in_training() -> None:
    time = np.array([5.0, 1, 2, 3, 4, 4, 4, 9, 0, 2])
    federation = Federation.from_arrays(np.arange(10.0), None, ["a"] * 10, time=time)
    assert sorted(parts(federation, 0.2)[1].time) == [5, 9]
    assert sorted(parts(federation, 0.3)[1].time) == [5, 9]  # one of three rows of time 4 would be the third
    assert sorted(parts(federation, 0.5)[1].time) == [4, 4, 4, 5, 9]
    dates = pd.date_range("2024-01-01", periods=10).astype(str)[::-1]
    dated = Federation.from_arrays(np.arange(10.0), None, ["a"] * 10, time=dates)
    assert sorted(parts(dated, 0.2)[1].X.ravel()) == [0, 1]
    still = Federation.from_arrays(np.arange(4.0), None, ["a"] * 4, time=np.ones(4))
    assert len(parts(still, 0.5)[1]) == 0


@settings(max_examples=40)
@given(SIZES, st.floats(0.05, 0.9), st.integers(0, 2**30))
def test_with_both_no_group_that_was_there_later_is_trained_on(sizes: list[int], test_size: float, seed: int) -> None:
    train, test = parts(grouped(sizes, seed, time=True), test_size)
    if len(test):
        last = pd.Series(train.time).groupby(train.group).max()
        assert last.max() < pd.Series(test.time).groupby(test.group).max().min()


@settings(max_examples=60)
@given(SIZES, st.integers(0, 2**30), st.integers(2, 7), st.integers(1, 6), st.sampled_from(["numbers", "classes", "none"]))
def test_folds_deal_whole_groups(sizes: list[int], seed: int, folds: int, least: int, kind: str) -> None:
    agent = grouped(sizes, seed, kind)[0]
    dealt = deal_rows("a", len(agent), agent.y, folds, seed, 0, least, agent.group)
    assert (pd.Series(dealt).groupby(agent.group).nunique() == 1).all()
    counts = np.bincount(dealt[dealt >= 0], minlength=folds)
    assert len(counts) == folds
    assert (np.diff(np.sign(counts)) <= 0).all()  # the first folds are those that are used
    assert (counts[counts > 0] >= least).all()
    assert (len(agent) - counts[counts > 0] >= SMALLEST - 1).all()
    if len(agent) < SMALLEST or len(sizes) == 1:
        assert (dealt == -1).all()


def test_many_groups_fill_folds_evenly_and_classes_too() -> None:
    agent = grouped([1, 2, 3, 4] * 25, 0, "classes")[0]
    for repeat in (0, 1):
        dealt = deal_rows("a", len(agent), agent.y, 5, 0, repeat, 1, agent.group)
        counts = np.array([[((dealt == fold) & (agent.y == label)).sum() for label in (0, 1)] for fold in range(5)])
        assert counts.sum(axis=1).min() >= 45  # of 50
        assert np.ptp(counts, axis=0).max() <= 6
    assert (dealt != deal_rows("a", len(agent), agent.y, 5, 0, 0, 1, agent.group)).any()


def test_folds_of_the_rule_calibrated_keep_groups_together() -> None:
    federation = Federation(tuple(grouped([3, 4, 5, 2, 6], seed, name=str(seed))[0] for seed in range(4)), ("x0", "x1"))
    for agent in federation:
        held = Dealing(5, 2, 0).held_out(agent)
        assert held
        for _, aside in held:
            assert not set(agent.group[aside]) & set(agent.group[~aside])
    agents = PooledAgents(federation, "regression")
    for fold in range(FOLDS):
        view = agents.without(Fold(0, fold, FOLDS)).site(1)
        assert not set(view.agent.group) & set(view.aside.group)


def federated(kind: str, groups: int = 6) -> tuple[Federation, Federation]:
    """Agents of groups, and one whose rows are a single group, so that it judges nothing."""
    rng = np.random.default_rng(1)
    agents = []
    for k in range(5):
        sizes = [30] if k == 4 else rng.integers(4, 9, groups).tolist()
        group = np.repeat([f"{k}-{number}" for number in range(len(sizes))], sizes)
        X = rng.normal(size=(len(group), 3))
        score = X @ [1.0, -1.0, 0.5] + 0.3 * k * X[:, 0] + rng.normal(size=len(group))
        agents.append(Agent(f"site {k}", X, (score > 0).astype(np.int64) if kind == "logistic" else score, group))
    return Federation(tuple(agents), ("a", "b", "c"), target="y").split(0.25, 2)


@pytest.mark.parametrize("kind", ["ridge", "logistic", pytest.param("torch", marks=pytest.mark.torch)])
def test_sites_deal_groups_as_one_place_does(kind: str) -> None:
    learner: Any = kinfed.make_learner(kind) if kind != "torch" else None
    if kind == "torch":
        pytest.importorskip("torch")
        from kinfed.learners.neural import TorchLearner

        learner = TorchLearner(hidden=(3,), task="regression", method="fedavg", rounds=4, threads=1)
    train, test = federated(kind)
    assert len(test["site 4"]) == 0
    pooled, sites = (
        kinfed.personalize(train, learner, "calibrated", test, backend=backend) for backend in ("pooled", "sites")
    )
    np.testing.assert_allclose(pooled.weights.matrix, sites.weights.matrix, atol=1e-6)
    np.testing.assert_allclose(pooled.scores, sites.scores, rtol=1e-5)
    assert not sites.exchange.absences


def test_groups_make_the_judgement_honest() -> None:
    """Rows of a group that are nearly copies judge each other far too well; without their kin they do not."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(12), 5)
    X = rng.normal(size=(12, 20))[group] + 0.01 * rng.normal(size=(60, 20))
    y = rng.normal(size=12)[group]
    found = {}
    for name, labels in (("rows", None), ("groups", group.astype(str))):
        agent = Agent("a", X, y, labels)
        errors = []
        for _, aside in Dealing(5, 1, 0).held_out(agent):
            left = agent.rows(~aside)
            theta = np.linalg.solve(left.X.T @ left.X + 0.1 * np.eye(20), left.X.T @ left.y)
            errors.append(np.square(agent.y[aside] - X[aside] @ theta).mean())
        found[name] = np.mean(errors)
    assert found["rows"] < 0.1 * found["groups"]


def visits(path: Path) -> pd.DataFrame:
    """Patients of several visits at four hospitals."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(60), 3)
    frame = pd.DataFrame({"hospital": patient % 4, "patient": patient, "age": rng.normal(size=60)[patient]})
    frame["day"] = rng.permutation(180)
    frame["outcome"] = frame["age"] * np.where(frame["hospital"] % 2, 1, -1) + 0.1 * rng.normal(size=180)
    frame.to_csv(path, index=False)
    return frame


def test_the_command_splits_by_group_and_by_time(tmp_path: Path) -> None:
    frame = visits(tmp_path / "visits.csv")
    ask = ("personalize", "visits.csv", "--target", "outcome", "--agent", "hospital", "--rule", "local", "--json")
    for more in (("--group-by", "patient"), ("--group-by", "patient", "--time", "day")):
        done = in_this_process(*ask, *more, "--out", more[-1], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        model = kinfed.load(tmp_path / more[-1]).model("0")
        assert "patient" not in model.preparation.source
        assert ("day" in model.preparation.source) == ("day" not in more)
    # Every hospital has 15 patients of three visits, of which three are a fifth.
    whole = Federation.from_table(frame, "outcome", "hospital", group_by="patient")
    assert set(whole.split(0.2)[1].sizes) == {9}
    twice = in_this_process(*ask, "--group-by", "patient", "--leave-out", "patient", "--out", "no", cwd=tmp_path)
    assert "column 'patient' is needed as --group-by and cannot be left out" in twice.stderr


def test_a_deployed_site_splits_at_home(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict

    from kinfed.deployment.site import site_from_context

    frame = visits(tmp_path / "all.csv")
    frame[frame["hospital"] == 1].drop(columns="hospital").to_csv(tmp_path / "north.csv", index=False)
    run = {"target": "outcome", "learner": "ridge", "group-by": "patient", "time": "day", "test-size": 0.2}
    site = site_from_context(Context(1, 2, {"data": str(tmp_path / "north.csv")}, RecordDict(), run))
    assert site.train.columns == ("age",)
    assert not set(site.train[0].group) & set(site.test[0].group)
    assert len(site.test[0]) == 9
    whole = Federation.from_table(frame, "outcome", "hospital", group_by="patient", time="day")
    assert set(site.test[0].group) == set(whole.split(0.2)[1]["1"].group)


def test_of_groups_nothing_leaves_but_sizes_of_folds() -> None:
    train, _ = federated("ridge")
    (site,) = [one for one in sites_of(train, None, kinfed.make_learner("ridge")) if one.name == "site 1"]
    preparation = preparation_settings(Preparation.fit(train))
    asked = Request("scale", {"preparation": preparation, "seed": 0, "task": "regression"})
    told, _ = answer(site, asked, {})
    assert set(told.settings) == {"median", "aside"}
    dealt = deal_rows("site 1", len(site.train[0]), site.train[0].y, FOLDS, 0, 0, 2, site.train[0].group)
    assert told.settings["aside"] == [int((dealt == fold).sum()) for fold in range(FOLDS)]
