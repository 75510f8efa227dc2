"""How good models are, agent by agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas
from numpy.typing import ArrayLike

from kinfed.analysis.metrics import HEADLINE, METRICS, JudgedRows, metrics_of
from kinfed.backends.agents import Task
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners.base import Models
from kinfed.markup import card, paragraph, table
from kinfed.plotting.evaluation import ScoresPlots
from kinfed.validation import Array, Integers, one_of, target_indices

LEAST_TEST_ROWS = 10
"""Test rows of an agent that stands by itself in a headline; agents with fewer are pooled there, and marked."""

FLOOR = "floor"
"""What scores call the agent's own mean, or its class shares: a model must beat them to be worth anything."""


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
        NaN for agents without test points; metrics of probabilities are NaN for models without them. Means over the splits
        where there were several.
    errors : mapping from metric to array of shape (T,)
        Standard errors of the values, over test rows and over splits; NaN where there is none.
    splits : mapping from metric to array of shape (R, T)
        The values of every split, where there were several; empty otherwise.
    versus_local : mapping from metric to array of shape (T,)
        Standard errors of the difference to learning alone, paired row by row, for metrics that are means over rows. Only
        personal models that were tested beside it have them.
    leading : tuple of str
        The metrics of the headline, the leading one first; those of the task by default.
    """

    task: Task
    names: tuple[str, ...]
    sizes: Integers
    values: Mapping[str, Array]
    errors: Mapping[str, Array] = field(default_factory=dict)
    splits: Mapping[str, Array] = field(default_factory=dict)
    versus_local: Mapping[str, Array] = field(default_factory=dict)
    leading: tuple[str, ...] = ()

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics of the headline that there are: a model without probabilities has no log loss."""
        asked = [one for one in self.leading or HEADLINE[self.task] if one in self.values]
        there = tuple(one for one in asked if not np.isnan(self.values[one]).all())
        return there or tuple(asked) or tuple(self.values)[:1]

    @property
    def metric(self) -> str:
        """The leading metric."""
        return self.headline[0]

    def without(self, names: Collection[str]) -> Scores:
        """The same without the scores of some agents, which do not count then."""
        out = np.isin(self.names, list(names))

        def left(of: Mapping[str, Array]) -> dict[str, Array]:
            return {metric: np.where(out, np.nan, values) for metric, values in of.items()}

        parts = left(self.values), left(self.errors), left(self.splits), left(self.versus_local)
        return Scores(self.task, self.names, self.sizes, *parts, leading=self.leading) if out.any() else self

    def __getitem__(self, metric: str) -> Array:
        return self.values[one_of(metric, self.values, "metric")]

    def table(self, metric: str) -> Array:
        """The values of every split, shape (R, T)."""
        return self.splits[metric] if metric in self.splits else self[metric][None]

    def error(self, metric: str) -> Array:
        """Standard errors of a metric; NaN where there is none."""
        return self.errors.get(metric, np.full(len(self.names), np.nan))

    def mean(self, metric: str | None = None) -> float:
        """Mean over the agents that have test points; NaN if none has."""
        values = self[metric or self.metric]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    def rows_mean(self, metric: str | None = None) -> float:
        """Mean over test rows: agents count as often as they have rows; NaN if none has any."""
        return rows_mean(self[metric or self.metric], self.sizes)

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
            f"worst decile {worst_decile(values, higher_is_better=METRICS[metric].higher_is_better):.4g}"
            for metric, values in self.values.items()
            if not np.isnan(values).all()
        ]
        return f"{len(self.names)} agents: " + ("; ".join(parts) or "no test points")

    def _repr_html_(self) -> str:
        return card("Scores", paragraph(str(self)), table(self.to_frame(), "Scores of every agent"))


def score_models(
    models: Models,
    federation: Federation,
    task: Task,
    targets: int | Sequence[int] | Integers | None = None,
    *,
    train: Federation | None = None,
    metrics: Sequence[str] | None = None,
) -> Scores:
    """Test each model on the data of its agent.

    Parameters
    ----------
    models : Models
        One per target.
    federation : Federation
        Test data.
    task : {"regression", "classification", "unsupervised"}
        Which metrics there are (`kinfed.analysis.metrics`); models without a target have their own score per point.
    targets : array of shape (T,), optional
        The agent each model is for; all agents in order by default.
    train : Federation, optional
        Training data of the same agents; R2 is NaN without.
    metrics : sequence of str, optional
        Some metrics of the task, where others would take their time; all by default.
    """
    one_of(task, HEADLINE, "task")
    chosen = target_indices(targets, len(federation))
    if len(models) != len(chosen):
        raise InputError(
            f"there are {len(models)} models for {len(chosen)} agents; give the agent of each model as targets"
        )
    asked = [one for one in metrics_of(task) if metrics is None or one.name in metrics]
    values, errors = np.full((2, len(asked), len(chosen)), np.nan)
    for row, k in enumerate(chosen.tolist()):
        agent = federation[k]
        if len(agent.X) == 0:
            continue
        if task == "unsupervised":
            values[:, row] = method_of(models, "score", "an unsupervised task")(row, agent.X)
            continue
        if agent.y is None:
            raise InputError(f"agent {federation.names[k]} has no target to test predictions against")
        rows = judged_rows(models, row, agent.X, agent.y, task, None if train is None else train[k].y)
        values[:, row], errors[:, row] = np.transpose([metric(rows) for metric in asked])
    names, sizes = tuple(federation.names[k] for k in chosen), federation.sizes[chosen]
    found, unsure = ({one.name: table[j].copy() for j, one in enumerate(asked)} for table in (values, errors))
    return Scores(task, names, sizes, found, unsure)


def judged_rows(models: Models, row: int, X: Any, y: Any, task: Task, trained_on: Any = None) -> JudgedRows:
    """What the model of a row says of an agent's test rows.

    Parameters
    ----------
    models : Models
    row : int
    X, y
        Test rows.
    task : {"regression", "classification"}
    trained_on : array, optional
        The agent's own outcome in training.
    """
    if task == "regression":
        centre = float("nan") if trained_on is None else float(np.mean(np.asarray(trained_on, dtype=np.float64)))
        predicted = np.asarray(models.predict(row, X), dtype=np.float64)
        return JudgedRows(np.asarray(y, dtype=np.float64), predicted, None, centre)
    if not (hasattr(models, "predict_proba") and getattr(models, "has_probabilities", True)):
        labels, predicted = np.asarray(y).tolist(), np.asarray(models.predict(row, X)).tolist()
        place = {label: index for index, label in enumerate(sorted({*labels, *predicted}))}
        return JudgedRows(np.array([place[one] for one in labels]), np.array([place[one] for one in predicted]))
    probabilities = np.asarray(models.predict_proba(row, X), dtype=np.float64)
    classes = np.asarray(method_of(models, "classes", "a classification task"))
    place = {label: index for index, label in enumerate(classes.tolist())}
    # A label the whole training federation never had is a miss of floor probability.
    codes = np.array([place.get(label, -1) for label in np.asarray(y).tolist()], dtype=np.int64)
    return JudgedRows(codes, probabilities.argmax(axis=1), probabilities)


def long_table(scored: Mapping[str, Scores]) -> pandas.DataFrame:
    """All scores, a row for each agent, method and metric: value, test rows and standard error."""
    parts = [
        pandas.DataFrame(
            {
                "agent": list(one.names),
                "method": method,
                "metric": metric,
                "value": values,
                "test_rows": one.sizes,
                "standard_error": one.error(metric),
            }
        )
        for method, one in scored.items()
        for metric, values in one.values.items()
    ]
    return pandas.concat(parts, ignore_index=True)


def rows_mean(values: ArrayLike, sizes: ArrayLike) -> float:
    """Mean of agents' values, each as often as it has rows; NaN values are left out."""
    known, rows = np.asarray(values, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    there = ~np.isnan(known) & (rows > 0)
    return float(np.average(known[there], weights=rows[there])) if there.any() else float("nan")


def worst_decile(values: ArrayLike, *, higher_is_better: bool) -> float:
    """The value that nine in ten agents reach or surpass; NaN values are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.quantile(known, 0.1 if higher_is_better else 0.9)) if len(known) else float("nan")


def method_of(models: Models, name: str, purpose: str) -> Any:
    """What models must have for a purpose; raise if they have not."""
    if not hasattr(models, name):
        raise InputError(f"{type(models).__name__} has no {name}, which {purpose} needs")
    return getattr(models, name)
