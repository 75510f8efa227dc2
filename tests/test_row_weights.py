"""Rows and classes that count more: against scikit-learn, against rows that are there twice, and the same at sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as ScikitRidge
from sklearn.utils.class_weight import compute_class_weight

import kinfed
from cli_runs import in_this_process
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.site import sites_of
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge
from kinfed.learners.inputs import relative_weights
from site_runs import run
from test_what_leaves import Recording

PENALTY = 0.05


def made(kind: str, n_agents: int = 5, classes: int = 2, seed: int = 0, weighted: bool = True) -> Federation:
    """Agents of 20 to 40 rows with weights, classes in unequal shares."""
    rng = np.random.default_rng(seed)
    agents = []
    for k in range(n_agents):
        n = int(rng.integers(20, 41))
        X = rng.normal(size=(n, 3)) + 0.3 * k
        score = X @ [1.0, -0.5, 0.2] + 0.2 * k * X[:, 0] + rng.normal(size=n)
        labels = np.digitize(score, np.linspace(0.8, 1.6, classes - 1))
        labels[:classes] = np.arange(classes)
        weight = rng.uniform(0.2, 5, n) if weighted else None
        agents.append(Agent(f"a{k}", X, score if kind == "regression" else labels, weight=weight))
    return Federation(tuple(agents), ("u", "v", "w"), target="y")


def alone(federation: Federation, learner: Any, place: int = 0) -> Any:
    agents = PooledAgents(federation, learner.task, learner=learner)
    return learner.fit(agents, np.eye(len(federation))[[place]])


def test_weights_have_mean_one_and_take_classes_into_account() -> None:
    federation = made("classification")
    spec = PooledAgents(federation, "classification", learner=Logistic(class_weight={"0": 2.0, 1: 6})).spec
    agent = federation[1]
    weights = relative_weights(agent, spec)
    raw = agent.weight * np.where(agent.y == 0, 2.0, 6.0)
    np.testing.assert_allclose(weights, raw / raw.mean())
    assert relative_weights(replace(agent, weight=None), replace(spec, class_weights=None)) is None


@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_of_one_agent_is_that_of_scikit_learn(intercept: bool) -> None:
    federation = made("regression")
    agent = federation[2]
    found = alone(federation, Ridge(PENALTY, intercept), 2)
    total = agent.weight.sum()
    oracle = ScikitRidge(alpha=PENALTY * total, fit_intercept=intercept).fit(agent.X, agent.y, agent.weight)
    np.testing.assert_allclose(found.coefficients[0, :-1], oracle.coef_, rtol=1e-8)
    np.testing.assert_allclose(found.coefficients[0, -1], oracle.intercept_, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1.0, 1: 4.0}])
@pytest.mark.parametrize("solver", ["newton", "l-bfgs"])
def test_logistic_of_one_agent_is_that_of_scikit_learn(classes: int, class_weight: Any, solver: str) -> None:
    federation = made("classification", n_agents=1, classes=classes)
    agent = federation[0]
    labels = np.unique(agent.y)
    by_class = {None: np.ones(classes), "balanced": compute_class_weight("balanced", classes=labels, y=agent.y)}
    given = [class_weight.get(label, 1.0) for label in labels] if isinstance(class_weight, dict) else by_class[class_weight]
    row = agent.weight * np.asarray(given)[agent.y]
    found = alone(federation, Logistic(PENALTY, class_weight=class_weight, solver=solver, tolerance=1e-10))
    oracle = LogisticRegression(C=1 / (2 * PENALTY * row.sum()), tol=1e-10, max_iter=10_000).fit(agent.X, agent.y, row)
    np.testing.assert_allclose(found.predict_proba(0, agent.X), oracle.predict_proba(agent.X), atol=1e-5)


def test_an_estimator_gets_the_weights_too() -> None:
    federation = made("classification", n_agents=1)
    agent = federation[0]
    learner = kinfed.make_learner(LogisticRegression(C=2.0, tol=1e-10, class_weight="balanced"))
    found = alone(federation, learner)
    row = agent.weight / agent.weight.mean()
    oracle = LogisticRegression(C=2.0, tol=1e-10, class_weight="balanced").fit(agent.X, agent.y, row)
    np.testing.assert_allclose(found.predict_proba(0, agent.X), oracle.predict_proba(agent.X), atol=1e-6)


def twice(agent: Agent) -> tuple[Agent, Agent]:
    """An agent some of whose rows count double, and one that has those rows twice."""
    double = np.arange(len(agent)) % 3 == 0
    counted = replace(agent, weight=np.where(double, 2.0, 1.0))
    return counted, replace(agent.rows(np.repeat(np.arange(len(agent)), 1 + double)), weight=None)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_a_row_that_counts_double_is_a_row_that_is_there_twice(kind: str) -> None:
    pairs = [twice(agent) for agent in made(kind, weighted=False)]
    weights = np.random.default_rng(0).dirichlet(np.ones(len(pairs)), 4)
    learner: Any = Ridge() if kind == "regression" else Logistic(tolerance=1e-10)
    found = []
    for number in (0, 1):
        rows = Federation(tuple(pair[number] for pair in pairs), ("u", "v", "w"))
        agents = PooledAgents(rows, learner.task, learner=learner)
        at_home = learner.fit_at_home(learner.quadratics(agents), weights, 1, rows[1], agents.spec)
        found.append((learner.fit(agents, weights).coefficients, at_home.coefficients))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    # An expansion stands about a model with a prior that knows the number of rows, so it is another one by a little.
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-8 if kind == "regression" else 0.05, atol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fedavg", "weighted-risk"])
def test_networks_count_rows_too(method: str) -> None:
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    learner = TorchLearner(
        hidden=(), method=method, optimiser="sgd", rounds=3, epochs=3, dtype="float64", learning_rate=0.5
    )
    pairs = [twice(agent) for agent in made("classification", weighted=False)]
    weights = np.random.default_rng(0).dirichlet(np.ones(len(pairs)), 2)
    found = []
    for number in (0, 1):
        rows = Federation(tuple(pair[number] for pair in pairs), ("u", "v", "w"))
        found.append(learner.fit(PooledAgents(rows, "classification", learner=learner), weights).stack.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)
    heavy = replace(learner, class_weight={1: 20.0})
    rows = Federation(tuple(pair[0] for pair in pairs), ("u", "v", "w"))
    moved = heavy.fit(PooledAgents(rows, "classification", learner=heavy), weights)
    X = np.vstack([agent.X for agent in rows])
    usual = learner.fit(PooledAgents(rows, "classification", learner=learner), weights)
    assert moved.predict_proba(0, X)[:, 1].mean() > usual.predict_proba(0, X)[:, 1].mean()
    with pytest.raises(kinfed.InputError, match="class_weight is for a classification"):
        TorchLearner(task="regression", class_weight="balanced")


RUNS = [
    ("ridge", "regression", "calibrated"),
    ("ridge", "regression", "gradient"),
    ("logistic", "classification", "calibrated"),
    ("logistic", "classification", "gradient"),
    pytest.param("torch", "classification", "calibrated", marks=pytest.mark.torch),
]


@pytest.mark.parametrize("name, kind, rule", RUNS)
def test_sites_count_rows_as_one_place_does(name: str, kind: str, rule: str) -> None:
    learner: Any = Ridge() if name == "ridge" else Logistic(class_weight="balanced")
    if name == "torch":
        pytest.importorskip("torch")
        from kinfed.learners.neural import TorchLearner

        learner = TorchLearner(hidden=(3,), method="fedavg", rounds=4, batch_size=8, class_weight="balanced")
    train, test = made(kind, classes=3, n_agents=4).split(0.25, 1)
    pooled, sites = (kinfed.personalize(train, learner, rule, test, backend=one) for one in ("pooled", "sites"))
    np.testing.assert_allclose(pooled.weights.matrix, sites.weights.matrix, atol=1e-6)
    np.testing.assert_allclose(pooled.scores, sites.scores, rtol=1e-5)
    assert not sites.exchange.absences
    plain = replace(train, agents=tuple(replace(agent, weight=None) for agent in train))
    unweighted = kinfed.personalize(plain, learner, rule, test)
    ours, theirs = (learner.pack(one.baselines["local"], np.arange(4)) for one in (pooled, unweighted))
    assert any(not np.allclose(ours[part], theirs[part], rtol=1e-4) for part in ours)


def test_balanced_is_the_same_everywhere_and_tells_counts_only_where_it_is_asked_for() -> None:
    train = made("classification", classes=3)
    counts = np.bincount(np.concatenate([agent.y for agent in train]))
    told = {}
    for wanted in ("balanced", None, {0: 2.0}):
        learner = Logistic(class_weight=wanted)
        channel = Recording(sites_of(train, None, learner))
        found = run(channel, learner)
        told[str(wanted)] = [reply.settings.keys() for _, request, reply in channel.crossed if request.question == "scale"]
        if wanted == "balanced":
            np.testing.assert_allclose(found.agents.spec.class_weights, counts.sum() / (3 * counts))
            np.testing.assert_allclose(
                PooledAgents(train, "classification", learner=learner).spec.class_weights, found.agents.spec.class_weights
            )
    assert all("counts" in one for one in told["balanced"])
    assert not any("counts" in one for name in ("None", "{0: 2.0}") for one in told[name])


def test_a_result_remembers_the_weights_of_classes(tmp_path: Path) -> None:
    train = made("classification")
    for wanted in ("balanced", {0: 1.0, 1: 3.0}):
        kinfed.personalize(train, Logistic(class_weight=wanted), "local").save(tmp_path / str(len(str(wanted))))
        again = kinfed.load(tmp_path / str(len(str(wanted))))
        assert again.learner.class_weight == (wanted if isinstance(wanted, str) else {"0": 1.0, "1": 3.0})


@pytest.mark.parametrize(
    "wanted, told",
    [
        ("fair", "class_weight must be 'balanced', or weights by class, got 'fair'"),
        ({0: -1.0}, "class_weight of 0 must be"),
        ({"yes": 1.0}, "class_weight: there is no class 'yes'"),
    ],
)
def test_a_mistaken_weight_is_named(wanted: Any, told: str) -> None:
    with pytest.raises(kinfed.InputError, match=told):
        alone(made("classification"), Logistic(class_weight=wanted))


def test_the_command_takes_both(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.arange(120) % 3, "x": rng.normal(size=120), "counts": rng.uniform(1, 9, 120)})
    frame["y"] = np.where(frame["x"] + rng.normal(size=120) > 1, "yes", "no")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ask = ("personalize", "rows.csv", "--target", "y", "--agent", "site", "--learner", "logistic", "--rule", "local")
    for number, weight in enumerate(("balanced", "{ yes = 3.0 }")):
        more = ("--sample-weight", "counts", "--learner-option", f"class_weight={weight}", "--out", f"run {number}")
        done = in_this_process(*ask, *more, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        result = kinfed.load(tmp_path / f"run {number}")
        assert result.preparation.source == ("x",)
