"""What both sides of `benchmarks.against_release` run, each in the interpreter of its own kinfed.

It is started by path and imports nothing of this repository but the kinfed that its interpreter finds.
It keeps to public names, and to settings that are all given, so that a changed default is not taken for a changed number.
`Adapter` holds the few calls that are spelled differently in different versions.

    release_runs.py orders FILE                    the order in which this kinfed uses the rows of all data
    release_runs.py numbers FOLDER FILE [TEXT]     every run whose name holds TEXT, on rows in that order; arrays to
                                                   numbers.npz, the rest to numbers.json
    release_runs.py speed                          times what it is asked for, a name and its answer a line at a time
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import kinfed

Array = np.ndarray[Any, Any]

EXACT, TIGHT = 0.0, 1e-9
ALLOWED = {"ridge": TIGHT, "scikit-learn": TIGHT, "logistic": 1e-6, "torch": 1e-4}
"""How far numbers that come of a trained model may differ, by learner; weights of data alone may by `TIGHT`."""

LEARNING_RULES = ("gradient", "gradient-clusters", "calibrated")


class Adapter:
    """Calls whose spelling depends on the version."""

    OLD_BACKENDS: Mapping[str, str] = {"pooled": "in-process"}

    @staticmethod
    def personalize(train: Any, backend: str, **settings: Any) -> Any:
        """`kinfed.personalize` with the agents' rows in that place."""
        if "engine" in inspect.signature(kinfed.personalize).parameters:
            return kinfed.personalize(train, engine=Adapter.OLD_BACKENDS.get(backend, backend), **settings)
        return kinfed.personalize(train, backend=backend, **settings)

    @staticmethod
    def probabilities(result: Any, name: str, X: Any) -> Array:
        """Probabilities of the classes of raw rows, by the model of one agent."""
        if hasattr(result, "predict_proba"):
            return np.asarray(result.predict_proba(name, X))
        columns = None if hasattr(X, "columns") else result.preparation.source
        rows = kinfed.Federation.from_arrays(X, None, [name] * len(X), columns=columns)
        row = list(result.train.names).index(name)
        return np.asarray(result.models.predict_proba(row, result.preparation.transform(rows)[0].X))

    @staticmethod
    def personal_choices(weights: Any) -> list[str]:
        """What every target uses, in words."""
        if hasattr(weights.calibration, "personal"):
            return [weights.calibration.personal(int(target)) for target in weights.targets]
        told = weights.explanation
        return list(told["candidate" if "candidate" in told else "member"])


# ---------------------------------------------------------------- data


@dataclass(frozen=True)
class Data:
    """A federation, its test rows, and an agent that comes later with test rows of its own."""

    train: Any
    test: Any
    newcomer: tuple[Any, Any]
    newcomer_test: Any
    groups: tuple[Any, ...] | None = None


def together(agents: Sequence[Any]) -> Any:
    """A federation of these agents."""
    names = np.repeat([agent.name for agent in agents], [len(agent.X) for agent in agents])
    y = None if agents[0].y is None else np.concatenate([agent.y for agent in agents])
    return kinfed.Federation.from_arrays(np.concatenate([agent.X for agent in agents]), y, names)


def synthetic(generated: Any, with_target: bool = True) -> Data:
    """A synthetic federation; its last agent comes later."""
    train, test = list(generated.train), list(generated.test(20, seed=1))
    if not with_target:
        train, test = ([type(one)(one.name, one.X, None) for one in agents] for agents in (train, test))
    groups = generated.train.groups
    last = train[-1]
    return Data(together(train[:-1]), together(test[:-1]), (last.X, last.y), test[-1].X, groups)


def labelled(generated: Any) -> Data:
    """A regression made a question of yes or no: is y above zero?"""
    agents = [
        [type(one)(one.name, one.X, np.where(one.y > 0, "yes", "no")) for one in part]
        for part in (generated.train, generated.test(20, seed=1))
    ]
    train, test = agents
    return Data(together(train[:-1]), together(test[:-1]), (train[-1].X, train[-1].y), test[-1].X)


def messy(target: str, seed: int = 0) -> Data:
    """A table as they come: gaps, text, categories, truth values, a constant, identifiers, other scales, a tiny agent."""
    rng = np.random.default_rng(seed)
    sizes = [40, 25, 30, 22, 35, 28, 4, 30]
    site = np.repeat(["north", "south", "east", "west", "hill", "lake", "tiny", "late"], sizes)
    n, kind = len(site), np.repeat([0, 1, 0, 1, 0, 1, 0, 1], sizes)
    age, dose = rng.normal(50 + 5 * kind, 10), rng.gamma(2.0, 1.0, n)
    ward = rng.choice(["surgery", "stroke", "eye"], n)
    slope = np.where(kind == 0, 1.0, -0.5)
    y = 0.1 * age + slope * dose + (ward == "eye") + rng.normal(size=n)
    table = pd.DataFrame(
        {
            "site": site,
            "age": np.where(rng.random(n) < 0.1, np.nan, age),
            "dose": dose,
            "income": 1e4 * rng.lognormal(0.3 * kind, 0.5),
            "visits": rng.poisson(3, n),
            "ward": np.where(rng.random(n) < 0.05, None, ward),
            "sex": pd.Categorical(rng.choice(["f", "m"], n)),
            "smokes": rng.random(n) < 0.3,
            "unit": 1.0,
            "patient": [f"p{row}" for row in range(n)],
            "outcome": y if target == "number" else np.where(y > 6.5, "high", np.where(y > 5, "middle", "low")),
        }
    )
    late, tested = table["site"] == "late", table.groupby("site").cumcount() % 4 == 3  # versions split differently
    train, test = (
        kinfed.Federation.from_table(table[~late & part].reset_index(drop=True), target="outcome", agent="site")
        for part in (~tested, tested)
    )
    rows = table[late].drop(columns="site").reset_index(drop=True)
    first = (rows[:20].drop(columns="outcome"), rows["outcome"][:20].to_numpy())
    return Data(train, test, first, rows[20:].drop(columns="outcome").reset_index(drop=True))


DATA: Mapping[str, Callable[[], Data]] = {
    "concept": lambda: synthetic(kinfed.concept_shift(n_agents=13, n=(12, 40), dim=4, spread=0.1, seed=1)),
    "concept, equal sizes": lambda: synthetic(kinfed.concept_shift(n_agents=11, n=25, dim=5, spread=0.0, groups=3, seed=2)),
    "covariate": lambda: synthetic(kinfed.covariate_shift(sizes=(4, 4, 4), n=(15, 30), dim=3, seed=3)),
    "rotation": lambda: synthetic(kinfed.feature_rotation(n_agents=13, n=20, dim=4, groups=3, seed=4)),
    "alike": lambda: synthetic(kinfed.no_structure(n_agents=10, n=(8, 30), dim=4, agents="same", seed=5)),
    "strangers": lambda: synthetic(
        kinfed.no_structure(n_agents=9, n=(30, 60), dim=4, agents="unrelated", noise_variance=0.1, seed=10)
    ),
    "labels": lambda: synthetic(kinfed.label_shift(n_agents=9, n=(20, 40), dim=3, classes=3, seed=6)),
    "grouped labels": lambda: synthetic(kinfed.label_shift(n_agents=9, n=30, dim=3, classes=4, groups=2, seed=7)),
    "yes or no": lambda: labelled(kinfed.concept_shift(n_agents=9, n=(20, 40), dim=3, spread=0.1, seed=8)),
    "no target": lambda: synthetic(kinfed.covariate_shift(sizes=(3, 3, 3), n=20, dim=3, seed=9), with_target=False),
    "messy": lambda: messy("number"),
    "messy classes": lambda: messy("classes", seed=1),
}

ORDERS: dict[str, Array] = {}
"""The order of rows, by data, part and agent: 0.1.0 deals folds and batches of them as they come, later versions do not."""


def parts_of(name: str, data: Data) -> list[tuple[str, Any, Any, Sequence[str]]]:
    """All rows of some data: what they are, X, y and columns."""
    parts = [
        (f"{name}, {part}, {agent.name}", agent.X, agent.y, federation.columns)
        for part, federation in (("training", data.train), ("testing", data.test))
        for agent in federation
    ]
    return [*parts, (f"{name}, newcomer", *data.newcomer, data.train.columns)]


def ordered(name: str) -> Data:
    """Some data, with the rows in `ORDERS`."""
    data = DATA[name]()
    found = []
    for what, X, y, _ in parts_of(name, data):
        rows = ORDERS[what]
        ours = X.iloc[rows].reset_index(drop=True) if hasattr(X, "iloc") else X[rows]
        found.append((ours, None if y is None else y[rows]))
    agents = [type(one)(one.name, *rows) for one, rows in zip([*data.train, *data.test], found, strict=False)]
    train, test = agents[: len(data.train)], agents[len(data.train) :]
    return replace(
        data,
        train=replace(data.train, agents=tuple(train)),
        test=replace(data.test, agents=tuple(test)),
        newcomer=found[-1],
    )


def write_orders(path: Path) -> None:
    """Write down the order in which the kinfed here uses the rows of all data."""
    from kinfed.rows import row_order

    np.savez(path, **{what: row_order(*rows) for name in DATA for what, *rows in parts_of(name, DATA[name]())})


# ---------------------------------------------------------------- what is written down


@dataclass
class Record:
    """What one run found: arrays, with how far each may differ, and decisions, which must not."""

    arrays: dict[str, Array] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    decisions: dict[str, list[str]] = field(default_factory=dict)

    def number(self, what: str, values: Any, allowed: float) -> None:
        self.arrays[what], self.allowed[what] = np.asarray(values, dtype=np.float64), allowed

    def decision(self, what: str, texts: Sequence[Any]) -> None:
        self.decisions[what] = [str(one) for one in texts]

    def data(self, data: Data) -> None:
        """The rows themselves: where they differ, everything does."""
        for part, federation in (("training rows", data.train), ("test rows", data.test)):
            self.decision(f"agents of the {part}", federation.names)
            tables = [
                agent.X if isinstance(agent.X, np.ndarray) else agent.X.select_dtypes("number") for agent in federation
            ]
            self.number(part, np.vstack(tables), EXACT)
            if federation[0].y is not None:
                y = np.concatenate([agent.y for agent in federation])
                if y.dtype.kind in "fiub":
                    self.number(f"outcomes of the {part}", y, EXACT)
                else:
                    self.decision(f"outcomes of the {part}", y)

    def weights(self, weights: Any, allowed: float, scores_allowed: float = TIGHT) -> None:
        """Weights and what is certified of them; where they were calibrated, the choice and its table."""
        self.number("weights", weights.matrix, allowed)
        for name in ("objective", "gap", "risk"):
            self.number(name, getattr(weights, name), allowed)
        self.number("squared distances", weights.evidence.squared_distances, TIGHT)
        self.number("null quantiles", weights.evidence.null_quantiles, TIGHT)
        self.decision("who differs", weights.evidence.differ.ravel())
        if weights.calibration is not None:
            table = weights.calibration.table.sort_index()
            self.decision("members", table.index)
            self.decision("chosen member", [weights.calibration.chosen])
            self.number("shares", table["share"], TIGHT)
            self.number("calibration scores", table["score"], scores_allowed)
            self.number("their standard errors", table["standard error"], scores_allowed)
            self.decision("members taken by agents", table["own choice of"])
            self.decision("personal choices", Adapter.personal_choices(weights))
            self.decision("advice", weights.advice)


# ---------------------------------------------------------------- runs through personalize


@dataclass(frozen=True)
class Run:
    """One call of `kinfed.personalize` with all settings given, and an agent that is onboarded afterwards."""

    data: str
    rule: str
    learner: str = "ridge"
    backend: str = "pooled"
    seed: int = 0
    kernel: Callable[[], Any] = lambda: "auto"
    shift: str = "auto"
    n_features: int = 100
    sampling: str = "iid"
    options: Mapping[str, Any] = field(default_factory=dict)
    standardise: bool = True

    @property
    def name(self) -> str:
        options = "".join(f" {name}={value:g}" for name, value in self.options.items())
        return f"{self.rule}{options}, {self.learner}, {self.backend}, {self.data}, seed {self.seed}"

    @property
    def kind(self) -> str:
        return "scikit-learn" if self.learner.startswith("scikit-learn") else self.learner.split()[0]

    def __call__(self) -> Record:
        data, record, allowed = ordered(self.data), Record(), ALLOWED[self.kind]
        record.data(data)
        settings: dict[str, Any] = {
            "learner": LEARNERS[self.learner](),
            "rule": self.rule,
            "seed": self.seed,
            "kernel": self.kernel(),
            "shift": self.shift,
            "n_features": self.n_features,
            "sampling": self.sampling,
            "options": dict(self.options),
            "standardise": self.standardise,
        }
        groups = data.groups if self.rule == "oracle" else None
        if groups is not None:
            settings["groups"] = groups[:-1]
        result = Adapter.personalize(data.train, self.backend, test=data.test, **settings)
        of_weights = allowed if self.rule in LEARNING_RULES else TIGHT
        record.weights(result.weights, of_weights, allowed)
        for column in ("local", "grand-mean", "personalized"):
            record.number(f"scores, {column}", result.scores[column], allowed)
        y = data.train[0].y
        classes = y is not None and y.dtype.kind != "f"
        rows = {agent.name: agent.X for agent in data.test}
        if classes:
            found = [Adapter.probabilities(result, name, X) for name, X in rows.items()]
        else:
            found = [np.asarray(result.predict(name, X)) for name, X in rows.items()]
        record.number("probabilities" if classes else "predictions", np.concatenate(found), allowed)
        if hasattr(result.models, "coefficients"):
            record.number("coefficients", result.models.coefficients, allowed)
        joined = result.onboard(*data.newcomer, name="newcomer", **({} if groups is None else {"groups": groups}))
        record.number("newcomer's weights", joined.weights.matrix, of_weights)
        predicted = np.asarray(joined.predict(data.newcomer_test))
        if classes:
            record.decision("newcomer's predictions", predicted)
        else:
            record.number("newcomer's predictions", predicted, allowed)
        return record


def scikit(name: str, module: str, **options: Any) -> Any:
    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)


LEARNERS: Mapping[str, Callable[[], Any]] = {
    "ridge": lambda: kinfed.make_learner("ridge", penalty=0.01, intercept=True),
    "logistic": lambda: kinfed.make_learner("logistic", penalty=0.01, tolerance=1e-9),
    "torch fedavg": lambda: kinfed.make_learner(
        "torch",
        hidden=(8,),
        task="regression",
        method="fedavg",
        rounds=4,
        local_epochs=1,
        batch_size=8,
        optimiser="adam",
        learning_rate=0.01,
        threads=1,
    ),
    "torch fedavg classes": lambda: kinfed.make_learner(
        "torch",
        hidden=(8,),
        task="classification",
        method="fedavg",
        rounds=4,
        local_epochs=2,
        batch_size=8,
        optimiser="sgd",
        learning_rate=0.1,
        threads=1,
    ),
    "torch weighted-risk": lambda: kinfed.make_learner(
        "torch",
        hidden=(8,),
        task="regression",
        method="weighted-risk",
        epochs=10,
        batch_size=8,
        optimiser="adam",
        learning_rate=0.01,
        threads=1,
    ),
    "torch weighted-risk whole batches": lambda: kinfed.make_learner(
        "torch",
        hidden=(8,),
        task="classification",
        method="weighted-risk",
        epochs=15,
        optimiser="adam",
        learning_rate=0.01,
        threads=1,
    ),
    "torch weighted-risk early stop": lambda: kinfed.make_learner(
        "torch",
        hidden=(8,),
        task="classification",
        method="weighted-risk",
        epochs=30,
        batch_size=8,
        optimiser="adam",
        learning_rate=0.02,
        patience=3,
        validation_share=0.25,
        threads=1,
    ),
    "scikit-learn Ridge": lambda: scikit("Ridge", "linear_model", alpha=1.0),
    "scikit-learn GaussianNB": lambda: scikit("GaussianNB", "naive_bayes"),
    "scikit-learn KMeans": lambda: scikit("KMeans", "cluster", n_clusters=2, n_init=2),
}


def gaussian() -> Any:
    return kinfed.Gaussian(2.0)


def polynomial() -> Any:
    return kinfed.Polynomial(degree=2, offset=1.0)


PERSONALIZED = (
    # every rule, all rows in one place
    Run("concept", "local"),
    Run("concept", "grand-mean", seed=1),
    Run("concept", "oracle"),
    Run("concept", "q-aggregation", options={"steps": 300, "step_scale": 0.5}),
    Run("concept, equal sizes", "q-aggregation", seed=2, kernel=polynomial),
    Run("covariate", "q-aggregation-exact", kernel=gaussian, options={"c_q": 0.1, "c_p": 0.0}),
    Run("rotation", "similarity-test", sampling="orthogonal"),
    Run("rotation", "clusters", seed=3, options={"count": 3}),
    Run("alike", "james-stein"),
    Run("covariate", "multi-task-averaging", standardise=False),
    Run("covariate", "entropic", shift="covariate", sampling="sobol", options={"strength": 0.5}),
    Run("concept, equal sizes", "gradient", seed=1, options={"rounds": 3}),
    Run("concept, equal sizes", "gradient-clusters", options={"count": 3}),
    Run("concept", "calibrated", options={"folds": 5}),
    Run("covariate", "calibrated", seed=3, options={"folds": 4}),
    Run("alike", "calibrated", seed=1, kernel=gaussian),
    Run("strangers", "calibrated", seed=2, options={"folds": 3}),
    # classes
    Run("labels", "q-aggregation", "logistic"),
    Run("grouped labels", "oracle", "logistic", seed=2),
    Run("yes or no", "entropic", "logistic", options={"strength": 0.1}),
    Run("labels", "gradient", "logistic", options={"rounds": 2}),
    Run("yes or no", "calibrated", "logistic", options={"folds": 3}),
    Run("labels", "calibrated", "logistic", seed=4, kernel=gaussian, options={"folds": 2}),
    # networks and scikit-learn
    Run("covariate", "q-aggregation", "torch fedavg"),
    Run("covariate", "entropic", "torch weighted-risk", seed=1),
    Run("labels", "similarity-test", "torch weighted-risk whole batches"),
    Run("labels", "q-aggregation", "torch weighted-risk early stop", seed=2),
    Run("covariate", "calibrated", "torch weighted-risk"),
    Run("concept", "q-aggregation", "scikit-learn Ridge"),
    Run("labels", "clusters", "scikit-learn GaussianNB", seed=1),
    Run("concept, equal sizes", "calibrated", "scikit-learn Ridge", seed=2),
    Run("no target", "q-aggregation", "scikit-learn KMeans"),
    # a table as they come
    Run("messy", "q-aggregation"),
    Run("messy", "calibrated", options={"folds": 3}),
    Run("messy classes", "entropic", "logistic"),
    Run("messy", "similarity-test", backend="sites"),
    Run("messy classes", "q-aggregation", "logistic", backend="flower"),
    # every agent a site
    Run("concept", "oracle", backend="sites"),
    Run("concept", "q-aggregation", backend="sites", seed=1),
    Run("concept, equal sizes", "q-aggregation", backend="sites", kernel=polynomial),
    Run("covariate", "entropic", backend="sites", sampling="orthogonal"),
    Run("alike", "james-stein", backend="sites"),
    Run("covariate", "q-aggregation-exact", backend="sites", kernel=gaussian, options={"c_q": 0.1, "c_p": 0.0}),
    Run("covariate", "multi-task-averaging", backend="sites", standardise=False),
    Run("concept, equal sizes", "gradient", backend="sites", options={"rounds": 3}),
    Run("concept, equal sizes", "gradient-clusters", backend="sites", options={"count": 3}),
    Run("concept", "calibrated", backend="sites", seed=1, options={"folds": 3}),
    Run("labels", "similarity-test", "logistic", backend="sites"),
    Run("yes or no", "q-aggregation", "logistic", backend="sites", seed=3),
    Run("covariate", "q-aggregation", "torch fedavg", backend="sites"),
    Run("labels", "similarity-test", "torch weighted-risk whole batches", backend="sites"),
    Run("covariate", "calibrated", "torch fedavg", backend="sites"),
    Run("alike", "local", backend="flower"),
    Run("alike", "grand-mean", backend="flower"),
    Run("concept", "q-aggregation", backend="flower"),
    Run("rotation", "clusters", backend="flower", options={"count": 3}),
    Run("concept, equal sizes", "gradient", backend="flower", options={"rounds": 2}),
    Run("concept, equal sizes", "calibrated", backend="flower", options={"folds": 2}),
    Run("yes or no", "entropic", "logistic", backend="flower"),
    Run("labels", "q-aggregation", "torch fedavg classes", backend="flower", seed=1),
)

# ---------------------------------------------------------------- other doors


def weights_alone() -> Record:
    """`kinfed.collaboration_weights`, without training."""
    data, record = ordered("concept"), Record()
    weights = kinfed.collaboration_weights(
        data.train,
        rule="entropic",
        kernel=kinfed.Matern(1.5, 1.5),
        learner="ridge",
        seed=5,
        shift="auto",
        n_features=80,
        sampling="iid",
        options={"strength": 0.3},
    )
    record.weights(weights, TIGHT)
    return record


def of_points(**settings: Any) -> Callable[[], Record]:
    """`kinfed.q_aggregation` of points."""

    def run() -> Record:
        record, made = Record(), {name: value() if callable(value) else value for name, value in settings.items()}
        record.weights(kinfed.q_aggregation(three_groups(20, 8, seed=3), **made), TIGHT)
        return record

    return run


def sketches() -> Record:
    """Sketches by every way to draw features, in one piece and in batches."""
    record, Z = Record(), np.random.default_rng(0).standard_normal((500, 4))
    for sampling in ("iid", "orthogonal", "sobol"):
        features = kinfed.FourierFeatures(kinfed.Gaussian(1.5), n_features=64, dim=4, seed=3, sampling=sampling)
        found = kinfed.sketch(iter([Z[:123], Z[123:]]), features)
        record.number(f"mean, {sampling}", found.mean, TIGHT)
        record.number(f"trace, {sampling}", found.trace, TIGHT)
    found = kinfed.sketch(Z, kinfed.FourierFeatures(kinfed.Laplace(1.5), n_features=64, dim=4, seed=3, sampling="iid"))
    record.number("mean, Laplace", found.mean, TIGHT)
    return record


def regressor(rule: str, learner: str) -> Callable[[], Record]:
    """`kinfed.PersonalizedRegressor`."""

    def run() -> Record:
        data, record, allowed = ordered("concept"), Record(), ALLOWED["ridge"]
        (X, y, agent), (X_test, _, agent_test) = rows_of(data.train), rows_of(data.test)
        model = kinfed.PersonalizedRegressor(LEARNERS[learner](), rule=rule, n_features=100, random_state=2)
        model.fit(X, y, agent=agent)
        record.weights(model.weights_, TIGHT, allowed)
        record.number("predictions", model.predict(X_test, agent=agent_test), allowed)
        return record

    return run


def classifier(rule: str, learner: str) -> Callable[[], Record]:
    """`kinfed.PersonalizedClassifier`."""

    def run() -> Record:
        data, record = ordered("labels"), Record()
        allowed = ALLOWED["logistic" if learner == "logistic" else "scikit-learn"]
        (X, y, agent), (X_test, _, agent_test) = rows_of(data.train), rows_of(data.test)
        model = kinfed.PersonalizedClassifier(LEARNERS[learner](), rule=rule, n_features=100, random_state=1)
        model.fit(pd.DataFrame(X, columns=list("abc")), np.array(["red", "green", "blue"])[y], agent=agent)
        table = pd.DataFrame(X_test, columns=list("abc"))
        record.weights(model.weights_, allowed if rule in LEARNING_RULES else TIGHT, allowed)
        record.decision("classes", model.classes_)
        record.number("probabilities", model.predict_proba(table, agent=agent_test), allowed)
        record.decision("predictions", model.predict(table, agent=agent_test))
        return record

    return run


def rows_of(federation: Any) -> tuple[Array, Array, Array]:
    """All rows, outcomes, and the agent of each row."""
    names = np.repeat([agent.name for agent in federation], [len(agent.X) for agent in federation])
    return np.concatenate([agent.X for agent in federation]), np.concatenate([agent.y for agent in federation]), names


def three_groups(n_agents: int, dim: int, n: int = 20, seed: int = 0) -> list[Array]:
    """Points of agents with one of three means."""
    rng = np.random.default_rng(seed)
    means = (0.3 * rng.standard_normal((3, dim)) / np.sqrt(dim))[rng.integers(0, 3, n_agents)]
    return list(means[:, None] + rng.standard_normal((n_agents, n, dim)) / np.sqrt(dim))


RUNS: Mapping[str, Callable[[], Record]] = {
    "sketches": sketches,
    "q_aggregation, Algorithm 3": of_points(steps=500, solver="exponential-gradient"),
    "q_aggregation, exact": of_points(c_q=0.3, c_p=0.1, solver="exact"),
    "q_aggregation, kernel, some targets": of_points(kernel=gaussian, c_q=0.2, c_p=0.0, solver="exact", targets=(1, 4, 7)),
    "collaboration_weights, entropic": weights_alone,
    "PersonalizedRegressor, q-aggregation": regressor("q-aggregation", "ridge"),
    "PersonalizedRegressor, calibrated": regressor("calibrated", "ridge"),
    "PersonalizedRegressor, scikit-learn Ridge": regressor("james-stein", "scikit-learn Ridge"),
    "PersonalizedClassifier, entropic": classifier("entropic", "logistic"),
    "PersonalizedClassifier, gradient": classifier("gradient", "logistic"),
    "PersonalizedClassifier, GaussianNB": classifier("similarity-test", "scikit-learn GaussianNB"),
} | {run.name: run for run in PERSONALIZED}


def numbers(folder: Path, orders: Path, only: str = "") -> None:
    """Run them all and write down what came out."""
    with np.load(orders) as found:
        ORDERS.update(found)
    arrays: dict[str, Array] = {}
    told: dict[str, Any] = {}
    for name, run in RUNS.items():
        if only not in name:
            continue
        began, record, error = time.perf_counter(), Record(), None
        try:
            record = run()
        except Exception as problem:  # the other runs are worth having all the same
            traceback.print_exc()
            error = f"{type(problem).__name__}: {problem}"
        arrays |= {f"{name} | {what}": values for what, values in record.arrays.items()}
        told[name] = {
            "error": error,
            "seconds": time.perf_counter() - began,
            "allowed": record.allowed,
            "decisions": record.decisions,
        }
    np.savez(folder / "numbers.npz", **arrays)
    (folder / "numbers.json").write_text(json.dumps(told))


# ---------------------------------------------------------------- speed


def regression(n_agents: int, n: int, dim: int) -> Any:
    return kinfed.concept_shift(n_agents=n_agents, n=n, dim=dim, spread=0.1, seed=0).train


def classes(n_agents: int, n: int, dim: int) -> Any:
    return kinfed.label_shift(n_agents=n_agents, n=n, dim=dim, classes=3, seed=0).train


def timed_sketch() -> Callable[[], Any]:
    Z = np.random.default_rng(0).standard_normal((100_000, 64))
    features = kinfed.FourierFeatures(kinfed.Gaussian(8.0), n_features=1000, dim=64, seed=0, sampling="iid")
    return lambda: kinfed.sketch(Z, features)


def timed_points(n_agents: int, **settings: Any) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        points = three_groups(n_agents, 500)
        return lambda: kinfed.q_aggregation(points, c_q=1.0, c_p=1.0, **settings)

    return prepare


def timed_calibration(make: Callable[[], Any], learner: str, folds: int) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        train, chosen = make(), LEARNERS[learner]()
        return lambda: kinfed.collaboration_weights(
            train, rule="calibrated", kernel="auto", learner=chosen, seed=0, n_features=200, options={"folds": folds}
        )

    return prepare


def timed_run(
    make: Callable[[], Any], rule: str, learner: Callable[[], Any], backend: str = "pooled", **options: Any
) -> Callable[[], Callable[[], Any]]:
    """The whole of `kinfed.personalize`, the two baselines included."""

    def prepare() -> Callable[[], Any]:
        train, chosen = make(), learner()
        return lambda: Adapter.personalize(
            train, backend, learner=chosen, rule=rule, seed=0, n_features=200, options=options, test=train
        )

    return prepare


def network(**settings: Any) -> Callable[[], Any]:
    return lambda: kinfed.make_learner(
        "torch", hidden=(32,), task="regression", batch_size=10, optimiser="adam", learning_rate=1e-3, threads=1, **settings
    )


TIMED: Mapping[str, Callable[[], Callable[[], Any]]] = {
    "sketch of 100,000 rows": timed_sketch,
    "exact weights, 300 agents": timed_points(300, solver="exact"),
    "exact weights, 1000 agents": timed_points(1000, solver="exact"),
    "Algorithm 3, 300 agents, 400 steps": timed_points(300, solver="exponential-gradient", steps=400),
    "calibrated ridge, 60 agents": timed_calibration(lambda: regression(60, 20, 5), "ridge", 3),
    "calibrated logistic, 8 agents": timed_calibration(lambda: classes(8, 75, 3), "logistic", 2),
    "ridge models of 400 agents": timed_run(lambda: regression(400, 30, 30), "james-stein", LEARNERS["ridge"]),
    "logistic models of 60 agents": timed_run(lambda: classes(60, 30, 5), "james-stein", LEARNERS["logistic"]),
    "torch fedavg, 30 agents": timed_run(
        lambda: regression(30, 30, 10), "similarity-test", network(method="fedavg", rounds=10, local_epochs=1)
    ),
    "torch weighted-risk, 50 agents": timed_run(
        lambda: regression(50, 30, 10), "james-stein", network(method="weighted-risk", epochs=100)
    ),
    "sites, ridge, 40 agents": timed_run(lambda: regression(40, 30, 10), "q-aggregation", LEARNERS["ridge"], "sites"),
    "sites, logistic, 20 agents": timed_run(lambda: classes(20, 30, 5), "similarity-test", LEARNERS["logistic"], "sites"),
    "sites, calibrated ridge, 6 agents": timed_run(
        lambda: regression(6, 120, 5), "calibrated", LEARNERS["ridge"], "sites", folds=2
    ),
    "flower, ridge, 40 agents": timed_run(lambda: regression(40, 30, 10), "q-aggregation", LEARNERS["ridge"], "flower"),
}


def speed() -> None:
    """Answer every name that comes in with the seconds it took; the first time there is one call more, to warm up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    name, work = "", lambda: None
    for line in sys.stdin:
        try:
            if line.strip() != name:
                name, work = "", TIMED[line.strip()]()
                work()
                name = line.strip()
            wall, processor = time.perf_counter(), time.process_time()
            work()
            answer = f"{time.perf_counter() - wall} {time.process_time() - processor}"
        except Exception as problem:  # the other items are worth having all the same
            traceback.print_exc()
            answer = f"failed: {type(problem).__name__}: {problem}".replace("\n", " ")
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "numbers":
        numbers(Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
    elif sys.argv[1] == "orders":
        write_orders(Path(sys.argv[2]))
    else:
        speed()
