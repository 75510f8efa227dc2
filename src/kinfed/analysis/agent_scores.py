"""What one agent finds on its own test rows: models beside its floor, which needs no model; and over several splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.analysis.metrics import LEAST_TOLD, mean_error, metrics_of
from kinfed.analysis.scores import Scores, judged_rows, method_of
from kinfed.backends.agents import Task
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.base import Models
from kinfed.validation import Array, Integers


@dataclass(frozen=True, eq=False)
class FloorModels:
    """Every agent's own training mean, or the shares of its classes, as models.

    Attributes
    ----------
    centres : array of shape (T,)
        Means of the outcome; NaN for classes.
    shares : array of shape (T, classes)
        Every class has half a row more than the agent has, :math:`(n_c + 1/2) / (n + C/2)`, so that one the agent never had
        has a chance, and the log loss is finite.
    classes : array of shape (classes,), or None
    """

    centres: Array
    shares: Array
    classes: NDArray[Any] | None

    @classmethod
    def of(cls, outcomes: Sequence[Any], classes: NDArray[Any] | None) -> FloorModels:
        """The floor of agents with these outcomes in training; of classes where there are any."""
        if classes is None:
            means = np.array([np.mean(np.asarray(y, dtype=np.float64)) if len(y) else np.nan for y in outcomes])
            return cls(means, np.zeros((len(means), 0)), None)
        counts = np.array([[np.count_nonzero(np.asarray(y) == one) for one in classes] for y in outcomes]) + 0.5
        return cls(np.full(len(counts), np.nan), counts / counts.sum(axis=1, keepdims=True), classes)

    def __len__(self) -> int:
        return len(self.centres)

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """The mean, or the most frequent class, for every row."""
        told = self.centres[row] if self.classes is None else self.classes[self.shares[row].argmax()]
        return np.full(len(np.asarray(X)), told)

    def predict_proba(self, row: int, X: ArrayLike) -> Array:
        """The shares of the classes for every row."""
        return np.tile(self.shares[row], (len(np.asarray(X)), 1))


class OwnScores(NamedTuple):
    """What an agent finds on its own test rows: the floor first, then models, a column for each metric.

    Attributes
    ----------
    values, errors : array of shape (1 + models, metrics)
    versus_local : array of shape (metrics,)
        Standard errors of the difference between the last model and learning alone.
    """

    values: Array
    errors: Array
    versus_local: Array

    @classmethod
    def nothing(cls, models: int, task: Task) -> OwnScores:
        """Of an agent that tests nothing."""
        shape = 1 + models, len(metrics_of(task))
        return cls(np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape[1], np.nan))


def own_scores(
    models: Sequence[tuple[Models, int] | None],
    test: Agent,
    trained_on: Any,
    task: Task,
    classes: NDArray[Any] | None,
    local: int | None,
) -> OwnScores:
    """Test models on the rows of one agent, beside its floor.

    Parameters
    ----------
    models : sequence of models, each with the row of the agent, or None
        Where the last is None nothing is scored, the floor neither.
    test : Agent
    trained_on : array, or None
        The agent's own outcome in training: its mean, or the shares of its classes, are the floor.
    task : {"regression", "classification", "unsupervised"}
    classes : array, or None
        All labels that somebody trains on.
    local : int, optional
        Which of the models is learning alone.
    """
    found, metrics = OwnScores.nothing(len(models), task), metrics_of(task)
    if not len(test) or models[-1] is None:
        return found
    if task == "unsupervised":
        for place, one in enumerate(models):
            found.values[1 + place] = (
                np.nan if one is None else method_of(one[0], "score", "an unsupervised task")(one[1], test.X)
            )
        return found
    if test.y is None:
        raise InputError(f"agent {test.name} has no target to test predictions against")
    floor = (FloorModels.of([trained_on], classes), 0) if len(test) >= LEAST_TOLD else None
    judged = [None if one is None else judged_rows(*one, test.X, test.y, task, trained_on) for one in (floor, *models)]
    for place, rows in enumerate(judged):
        if rows is not None:
            found.values[place], found.errors[place] = np.transpose([metric(rows) for metric in metrics])
    last, alone = judged[-1], None if local is None else judged[1 + local]
    if last is not None and alone is not None:
        pairs = [(metric.row_losses(last), metric.row_losses(alone)) for metric in metrics]
        found.versus_local[:] = [np.nan if one is None or two is None else mean_error(one - two) for one, two in pairs]
    return found


def federation_scores(task: Task, names: tuple[str, ...], sizes: Integers, own: Sequence[OwnScores]) -> list[Scores]:
    """Scores of the floor and of every model, over all agents; those of the last one have errors against learning alone."""
    metrics = [one.name for one in metrics_of(task)]
    values, errors = (np.array([getattr(one, what) for one in own]) for what in ("values", "errors"))
    versus = {metric: np.array([one.versus_local[j] for one in own]) for j, metric in enumerate(metrics)}
    places = values.shape[1]

    def by_metric(tables: Array, place: int) -> dict[str, Array]:
        return {metric: tables[:, place, j].copy() for j, metric in enumerate(metrics)}

    return [
        Scores(
            task,
            names,
            sizes,
            by_metric(values, place),
            by_metric(errors, place),
            versus_local=versus if place == places - 1 else {},
        )
        for place in range(places)
    ]


def mean_scores(found: Sequence[Mapping[str, Scores]], trained_on: Integers) -> dict[str, Scores]:
    """Scores of every method over several splits of the same agents.

    Parameters
    ----------
    found : sequence of scores by method
        Those of each split.
    trained_on : array of shape (T,)
        Rows every agent trains on.

    Returns
    -------
    scores by method
        Means over the splits, the values of each, and standard errors over rows and splits.
    """
    first = found[0]
    if len(found) == 1:
        return dict(first)
    sizes = next(iter(first.values())).sizes
    share = sizes / np.maximum(sizes + trained_on, 1)
    means = {}
    for method, one in first.items():
        splits = {metric: np.array([each[method][metric] for each in found]) for metric in one.values}
        rows = {metric: np.array([each[method].error(metric) for each in found]) for metric in one.values}
        versus = {}
        for metric in one.versus_local:
            apart = splits[metric] - np.array([each["local"][metric] for each in found])
            versus[metric] = _error(apart, np.array([each[method].versus_local[metric] for each in found]), share)
        means[method] = replace(
            one,
            values={metric: _mean(values) for metric, values in splits.items()},
            errors={metric: _error(values, rows[metric], share) for metric, values in splits.items()},
            splits=splits,
            versus_local=versus,
        )
    return means


def _error(values: Array, errors: Array, share: Array) -> Array:
    r"""Standard errors of means over R splits (R, T) of an agent's rows, a share f of which is tested in each.

    With :math:`\sigma^2` the variance of a value over test rows (the mean of the squared errors), means over R random parts
    of the same rows have the variance :math:`f \sigma^2 + (1 - f) \sigma^2 / R`: the first term is that of having these
    rows and no others. What the values vary from split to split, :math:`s^2`, has the second :math:`(1 - f) \sigma^2` in
    it, and what training on other rows adds. So the squared error is :math:`f \sigma^2 + \max(s^2, (1 - f) \sigma^2) / R`;
    where :math:`\sigma^2` is not known, :math:`s^2 / (1 - f)` stands for it, as Nadeau and Bengio (2003) have it.
    """
    known = np.sum(~np.isnan(values), axis=0)
    centred = values - _mean(values)
    between = np.where(known > 1, np.nansum(centred**2, axis=0) / np.maximum(known - 1, 1), np.nan)
    rows = _mean(errors**2)
    rows = np.where(np.isnan(rows), between / (1 - share), rows)
    return np.asarray(np.sqrt(share * rows + np.fmax(between, (1 - share) * rows) / np.maximum(known, 1)))


def _mean(values: Array) -> Array:
    """Means over splits of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    return np.where(known.any(axis=0), np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1), np.nan)
