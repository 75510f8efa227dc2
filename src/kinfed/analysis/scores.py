"""How good models are, agent by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Task
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners.base import Models
from kinfed.markup import card, paragraph, table
from kinfed.plotting.evaluation import ScoresPlots
from kinfed.validation import Array, Integers, one_of, target_indices

HIGHER_IS_BETTER: Mapping[str, bool] = MappingProxyType(
    {"mean squared error": False, "accuracy": True, "log loss": False, "score": True}
)
"""The metrics, and which way they are read."""

METRICS: Mapping[Task, tuple[str, ...]] = MappingProxyType(
    {"regression": ("mean squared error",), "classification": ("accuracy", "log loss"), "unsupervised": ("score",)}
)
"""The metrics of each task, the leading one first."""

PROBABILITY_FLOOR = 1e-6
"""Least probability the log loss takes a class to have: a class a model never saw costs 13.8, not infinity."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one model per agent.

    Attributes
    ----------
    task : {"regression", "classification", "unsupervised"}
    names : tuple of str
        The T agents the models were tested on.
    sizes : array of int of shape (T,)
        Numbers of test points.
    values : mapping from metric to array of shape (T,)
        NaN for agents without test points; the log loss is NaN for models without probabilities.
    """

    task: Task
    names: tuple[str, ...]
    sizes: Integers
    values: Mapping[str, Array]

    @property
    def metric(self) -> str:
        """The leading metric of the task."""
        return METRICS[self.task][0]

    def __getitem__(self, metric: str) -> Array:
        return self.values[one_of(metric, self.values, "metric")]

    def mean(self, metric: str | None = None) -> float:
        """Mean over the agents that have test points; NaN if none has."""
        values = self[metric or self.metric]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    def to_frame(self) -> pandas.DataFrame:
        """A row per agent, a column per metric."""
        return pandas.DataFrame(dict(self.values), index=pandas.Index(self.names, name="agent"))

    @property
    def plot(self) -> ScoresPlots:
        """What can be drawn: ``plot.agents()``."""
        return ScoresPlots(self)

    def __str__(self) -> str:
        parts = [
            f"mean {metric} {self.mean(metric):.4g}, "
            f"worst decile {worst_decile(values, higher_is_better=HIGHER_IS_BETTER[metric]):.4g}"
            for metric, values in self.values.items()
            if not np.isnan(values).all()
        ]
        return f"{len(self.names)} agents: " + ("; ".join(parts) or "no test points")

    def _repr_html_(self) -> str:
        return card("Scores", paragraph(str(self)), table(self.to_frame(), "Scores of every agent"))


def score_models(
    models: Models, federation: Federation, task: Task, targets: int | Sequence[int] | Integers | None = None
) -> Scores:
    """Test each model on the data of its agent.

    Parameters
    ----------
    models : Models
        One per target.
    federation : Federation
        Test data.
    task : {"regression", "classification", "unsupervised"}
        Regression is scored by the mean squared error, classification by accuracy and log loss, and models without a
        target by their own score per point.
    targets : array of shape (T,), optional
        The agent each model is for; all agents in order by default.
    """
    one_of(task, METRICS, "task")
    chosen = target_indices(targets, len(federation))
    if len(models) != len(chosen):
        raise InputError(
            f"there are {len(models)} models for {len(chosen)} agents; give the agent of each model as targets"
        )
    values = np.full((len(chosen), len(METRICS[task])), np.nan)
    for row, k in enumerate(chosen.tolist()):
        agent = federation[k]
        if len(agent.X) == 0:
            continue
        if task == "unsupervised":
            values[row] = _method(models, "score", "an unsupervised task")(row, agent.X)
        elif agent.y is None:
            raise InputError(f"agent {federation.names[k]} has no target to test predictions against")
        elif task == "regression":
            values[row] = np.mean((np.asarray(models.predict(row, agent.X)) - np.asarray(agent.y, dtype=np.float64)) ** 2)
        else:
            values[row] = _classification(models, row, agent.X, np.asarray(agent.y))
    columns = {metric: np.ascontiguousarray(values[:, column]) for column, metric in enumerate(METRICS[task])}
    return Scores(task, tuple(federation.names[k] for k in chosen), federation.sizes[chosen], columns)


def worst_decile(values: ArrayLike, *, higher_is_better: bool) -> float:
    """The value that nine in ten agents reach or surpass; NaN values are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.quantile(known, 0.1 if higher_is_better else 0.9)) if len(known) else float("nan")


def _classification(models: Models, row: int, X: Any, y: NDArray[Any]) -> tuple[float, float]:
    """Accuracy and log loss of one model."""
    if not (hasattr(models, "predict_proba") and getattr(models, "has_probabilities", True)):
        return float(np.mean(np.asarray(models.predict(row, X)) == y)), float("nan")
    probabilities = np.asarray(models.predict_proba(row, X))
    classes = np.asarray(_method(models, "classes", "a classification task"))
    place = {label: index for index, label in enumerate(classes.tolist())}
    codes = np.array([place.get(label, -1) for label in y.tolist()])
    # A label the whole training federation never had is a miss of floor probability.
    given = np.where(codes >= 0, probabilities[np.arange(len(y)), codes], 0.0)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == codes))
    return accuracy, float(-np.log(np.clip(given, PROBABILITY_FLOOR, 1.0)).mean())


def _method(models: Models, name: str, purpose: str) -> Any:
    if not hasattr(models, name):
        raise InputError(f"{type(models).__name__} has no {name}, which {purpose} needs")
    return getattr(models, name)
