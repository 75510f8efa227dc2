"""The learner follows from the outcome of all agents together, wherever they are; and estimators by import path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

import kinfed
from cli_runs import in_this_process
from kinfed.backends.agreement import Introduction, _agreed_task
from kinfed.backends.site import InProcess, Site, answer
from kinfed.backends.wire import Request
from kinfed.deployment.options import read_settings, server_learner_of, usual_learner
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge
from kinfed.learners.auto import AutoLearner, auto_task, learner_for
from kinfed.learners.scikit import ScikitLearner
from kinfed.outcomes import outcome_as, outcome_kind
from site_runs import run
from test_what_leaves import Recording

OUTCOMES: list[tuple[Any, str, str]] = [
    (np.array(["no", "yes", "no"]), "text", "classification"),
    (np.array(["a", "b", "c"]), "text", "classification"),
    (np.array([True, False, True]), "boolean", "classification"),
    (np.array([0, 1, 1]), "zero-one", "classification"),
    (np.array([0.0, 1.0, 1.0]), "zero-one", "classification"),
    (np.array([1, 2, 1]), "two numbers", "classification"),
    (np.array([-1.0, 1.0, 1.0]), "two numbers", "classification"),
    (np.array([0, 1, 2]), "whole numbers", "regression"),
    (np.array([0.5, 1.0, 2.0]), "decimals", "regression"),
    (np.array([0.25, 0.75, 0.25]), "decimals", "regression"),
    (np.array([3, 3, 3]), "two numbers", "regression"),
    (np.array([0, 0, 0]), "zero-one", "regression"),
    (None, "none", "regression"),
]


@pytest.mark.parametrize("y, kind, task", OUTCOMES)
def test_the_outcome_decides(y: Any, kind: str, task: str) -> None:
    federation = Federation((Agent("a", np.eye(3), y), Agent("b", np.eye(3), y)), ("u", "v", "w"))
    assert outcome_kind(y) == kind
    assert auto_task(federation) == task
    assert type(learner_for(federation, "auto")) is (Logistic if task == "classification" else Ridge)


def test_all_agents_decide_together() -> None:
    def both(first: Any, second: Any) -> str:
        agents = Agent("a", np.eye(2), np.array(first)), Agent("b", np.eye(2), np.array(second))
        return auto_task(Federation(agents, ("u", "v")))

    assert both([0, 1], [1, 1]) == "classification"
    assert both([0, 1], [1, 2]) == "regression"
    assert both([0.0, 1.0], [0.5, 1.0]) == "regression"
    assert both([1, 2], [3, 4]) == "regression"
    assert both([1, 1], [2, 2]) == "classification"
    labelled = Federation((Agent("a", np.eye(2), np.array([0, 1])),), ("u", "v"))
    assert learner_for(labelled, "auto", penalty=0.5) == Logistic(0.5)


def test_labels_are_integers_and_mistakes_are_named() -> None:
    found = outcome_as(np.array([0.0, 1.0]), "classification", "a")
    assert found is not None
    assert found.dtype == np.int64
    with pytest.raises(kinfed.InputError, match="agent a has decimals, but the task is classification"):
        outcome_as(np.array([0.5]), "classification", "a")
    with pytest.raises(kinfed.InputError, match="agent a is not a number, but the task is regression"):
        outcome_as(np.array(["x"]), "regression", "a")
    with pytest.raises(kinfed.InputError, match="'auto' follows from the outcome"):
        kinfed.make_learner("auto")


def federated(outcome: str, n: int = 40, n_agents: int = 4) -> Federation:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n * n_agents, 3))
    score = X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X))
    kinds: dict[str, Any] = {
        "number": score,
        "words": np.where(score > 0, "yes", "no"),
        "0/1": (score > 0).astype(np.int64),
        "0.0/1.0": (score > 0).astype(np.float64),
    }
    frame = pd.DataFrame(X, columns=["u", "v", "w"]).assign(site=np.arange(len(X)) % n_agents, outcome=kinds[outcome])
    return Federation.from_table(frame, "outcome", "site")


TOLD = {
    "number": "learner ridge: the outcome outcome is a number (choose with --learner)",
    "words": "learner logistic: the outcome outcome has the classes no, yes",
    "0/1": "learner logistic: the outcome outcome has the classes 0, 1; --learner ridge would treat it as a number",
    "0.0/1.0": "learner logistic: the outcome outcome has the classes 0, 1; --learner ridge would treat it as a number",
}


@pytest.mark.parametrize("outcome", TOLD)
def test_it_is_the_default_and_says_what_it_chose(outcome: str, tmp_path: Path) -> None:
    train, test = federated(outcome).split(0.25)
    result = kinfed.personalize(train, rule="q-aggregation", test=test)
    assert TOLD[outcome] in result.choices
    result.save(tmp_path / "kept")
    unnamed = TOLD[outcome].replace("the outcome outcome", "the outcome")
    assert unnamed in kinfed.load(tmp_path / "kept").choices
    named = kinfed.personalize(train, "ridge" if outcome == "number" else "logistic", "q-aggregation", test)
    np.testing.assert_array_equal(named.scores, result.scores)
    assert not any("choose with" in one or "would treat" in one for one in named.choices)
    assert kinfed.weighting(train, "q-aggregation").learner == result.learner
    kinfed.diagnose(train, permutations=19)


def sites(federation: Federation, learner: Any) -> list[Site]:
    parts = [federation.select([k]) for k in range(len(federation))]
    tests = [part.split(0.25) for part in parts]
    return [Site(train, test, k, learner) for k, (train, test) in enumerate(tests)]


@pytest.mark.parametrize("outcome", TOLD)
def test_sites_reach_the_decision_of_one_place(outcome: str) -> None:
    federation, learner = federated(outcome), AutoLearner()
    channel = Recording(sites(federation, learner))
    from kinfed.backends.server import connected
    from kinfed.checkpoint import NOWHERE
    from kinfed.run import run as run_agents
    from kinfed.run_setup import comparing
    from kinfed.settings import Settings

    settings = Settings(rule="q-aggregation", target="outcome", n_features=50)
    with connected(channel, learner, comparing(settings), NOWHERE, agents=4) as agents:
        found = run_agents(agents, agents.learner, settings, NOWHERE)
    train, test = federated(outcome).split(0.25)
    pooled = kinfed.personalize(train, rule="q-aggregation", test=test, n_features=50)
    assert found.learner == pooled.learner
    np.testing.assert_allclose(found.scores, pooled.scores, rtol=1e-5)
    assert TOLD[outcome] in found.choices
    told = [reply.settings for _, request, reply in channel.crossed if request.question == "describe"]
    kinds = {"number": "decimals", "words": "text", "0/1": "zero-one", "0.0/1.0": "zero-one"}
    assert {one["outcome"] for one in told} == {kinds[outcome]}


def told_of(outcome: str) -> Introduction:
    return Introduction("a", 0, 9, 0, 2, ("x",), frozenset(), "i", outcome)


@pytest.mark.parametrize(
    "outcomes, task",
    [
        (["zero-one", "zero-one"], "classification"),
        (["zero-one", "boolean"], "classification"),
        (["text"], "classification"),
        (["zero-one", "whole numbers"], "regression"),
        (["zero-one", "decimals"], "regression"),
        (["two numbers", "whole numbers"], "regression"),
    ],
)
def test_the_server_decides_for_all(outcomes: list[str], task: str) -> None:
    assert _agreed_task([told_of(one) for one in outcomes], AutoLearner()) == task


def test_what_only_values_could_tell_is_asked_for() -> None:
    with pytest.raises(kinfed.InputError, match='set task = "classification" or "regression"'):
        _agreed_task([told_of("two numbers"), told_of("zero-one")], AutoLearner())


def test_a_site_of_another_kind_is_left_out() -> None:
    whole = federated("words")
    odd = Federation((Agent("odd", np.ones((9, 3)), np.arange(9.0)),), ("u", "v", "w"))
    everybody = [*sites(whole, Logistic()), Site(odd, None, 9, Logistic())]
    found = run(InProcess(everybody), Logistic())
    assert [one.agent for one in found.exchange.absences] == ["odd"]
    everybody = [*sites(whole, AutoLearner()), Site(odd, None, 9, AutoLearner())]
    from kinfed.backends.server import connected
    from kinfed.checkpoint import NOWHERE
    from kinfed.run_setup import comparing
    from kinfed.settings import Settings

    with connected(InProcess(everybody), AutoLearner(), comparing(Settings()), NOWHERE, agents=5) as agents:
        assert "odd" not in agents.spec.names
        assert agents.learner == Logistic()


def test_what_is_decided_is_told_nowhere_else() -> None:
    site = sites(federated("0/1"), Ridge())[0]
    told, _ = answer(site, Request("describe", {}), {})
    assert "outcome" not in told.settings


def test_a_deployed_run_decides_by_the_outcome_unless_it_is_told(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict

    from kinfed.deployment.site import site_from_context

    assert isinstance(server_learner_of(read_settings({})), AutoLearner)
    assert server_learner_of(read_settings({"task": "classification"})) == Logistic()
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20) % 2})
    frame.to_csv(tmp_path / "north.csv", index=False)
    node = {"data": str(tmp_path / "north.csv")}
    undecided = site_from_context(Context(1, 2, node, RecordDict(), {"target": "y"})).learner
    assert repr(undecided) == repr(server_learner_of(read_settings({})))
    assert undecided.for_task("classification") == Logistic()
    told = site_from_context(Context(1, 2, node, RecordDict(), {"target": "y", "task": "regression"})).learner
    assert told == Ridge()


# ---------------------------------------------------------------- estimators by import path


def test_a_path_makes_an_estimator() -> None:
    found = kinfed.make_learner("sklearn.ensemble.RandomForestClassifier", max_depth=3)
    assert isinstance(found, ScikitLearner)
    assert isinstance(found.estimator, RandomForestClassifier)
    assert found.estimator.max_depth == 3


@pytest.mark.parametrize(
    "path, options, told",
    [
        ("sklearn.ensemble.RandomForrest", {}, "cannot be imported"),
        ("no_such_package.Model", {}, "the learner no_such_package.Model cannot be imported"),
        ("os.path.join", {}, "is no scikit-learn estimator: it is not a class with fit and get_params"),
        ("sklearn.ensemble.RandomForestClassifier", {"depth": 3}, "no RandomForestClassifier option 'depth'.*max_depth"),
        ("sklearn.neighbors.KNeighborsClassifier", {}, "does not take sample_weight"),
    ],
)
def test_a_mistaken_path_is_one_sentence(path: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(kinfed.InputError, match=told):
        kinfed.make_learner(path, **options)


def test_sites_import_nothing_that_a_server_names() -> None:
    path = "sklearn.ensemble.RandomForestClassifier"
    with pytest.raises(kinfed.InputError, match="needs all points in one place; across sites use ridge"):
        usual_learner(path, "classification")
    with pytest.raises(kinfed.InputError, match="needs all points in one place"):
        kinfed.personalize(federated("0/1"), path, "local", backend="sites")


def test_the_command_line_decides_says_so_and_takes_a_path(tmp_path: Path) -> None:
    federation = federated("0.0/1.0")
    X, y, index = federation.pooled()
    frame = pd.DataFrame(X, columns=list(federation.columns)).assign(site=index, readmitted=y)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ask = ("personalize", "rows.csv", "--target", "readmitted", "--agent", "site", "--rule", "local")
    said = "learner logistic: the outcome readmitted has the classes 0, 1; --learner ridge would treat it as a number"
    plain = in_this_process(*ask, "--out", "first", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert said in " ".join(plain.stdout.split())
    assert "outcome readmitted has the classes 0, 1" in (tmp_path / "first" / "index.html").read_text(encoding="utf-8")
    told = in_this_process(*ask, "--json", "--out", "second", cwd=tmp_path)
    assert said in json.loads(told.stdout)["choices"]
    forest = ("--learner", "sklearn.ensemble.RandomForestClassifier", "--learner-option", "n_estimators=5")
    small = in_this_process(*ask, *forest, "--learner-option", "max_depth=3", "--out", "small", cwd=tmp_path)
    assert "set --allow-rows to write them all the same" in small.stderr
    anyway = ("--learner-option", "max_depth=3", "--out", "small", "--allow-rows")
    assert in_this_process(*ask, *forest, *anyway, cwd=tmp_path).returncode == 0
    done = in_this_process(*ask, *forest, "--learner-option", "min_samples_leaf=10", "--out", "third", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predict = ("predict", "third", "rows.csv", "--agent", "site", "--out", "predictions.csv")
    predicted = in_this_process(*predict, cwd=tmp_path)
    if predicted.returncode:  # types of trees are trusted by name only
        assert "sklearn.tree" in predicted.stderr
        predicted = in_this_process(*predict, "--trusted", "sklearn.tree._tree.Tree", cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == len(frame)
    wrong = in_this_process(*ask, "--learner", "sklearn.ensemble.Forest", "--out", "no", cwd=tmp_path)
    assert wrong.returncode == 1
    assert "the learner sklearn.ensemble.Forest cannot be imported" in wrong.stderr
