"""The losses of one agent's rows at many models, which it keeps to itself, and what it tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Task, TrainingSpec
from kinfed.backends.wire import ArraySpec, Message
from kinfed.federation import Agent
from kinfed.learners.base import Models
from kinfed.validation import Array, whole_number
from kinfed.weights.calibration.choice import AgentScores
from kinfed.weights.gradient_problem import class_residuals

MOST_BRIER = 3.0
"""The Brier score of a point is at most 2, and 1 more for a class that training never saw."""


def judged_losses(models: Models, rows: Sequence[int], agent: Agent, spec: TrainingSpec, weights: Array | None) -> Array:
    """`point_losses` of an agent's rows, each times its weight where rows count differently."""
    losses = point_losses(models, rows, agent.X, agent.y, spec.task)
    return losses if weights is None else losses * weights[:, None]


def point_losses(models: Models, rows: Sequence[int], X: NDArray[Any], y: NDArray[Any] | None, task: Task) -> Array:
    """Losses (n, R) of points at R models: squared error, squared error of the probabilities (Brier), or minus the score.

    The Brier score judges probabilities as the log loss does, but one sure mistake cannot outweigh everything else.
    """
    if task == "unsupervised" or y is None:
        one_by_one: Any = models
        return np.array([[-float(one_by_one.score(row, X[i : i + 1])) for row in rows] for i in range(len(X))])
    if task == "regression":
        truth = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        # Many models of one agent: linear ones answer together.
        together = getattr(models, "predict_rows", None)
        predicted = together(rows, X) if together else np.array([models.predict(row, X) for row in rows])
        return np.asarray(np.square(predicted.reshape(len(rows), *truth.shape) - truth).mean(axis=2).T)
    residuals = [class_residuals(models, row, np.asarray(X), np.asarray(y)) for row in rows]
    known: Any = models
    # A class that training never saw had probability zero.
    unseen = ~(np.asarray(y)[:, None] == known.classes).any(axis=1)
    return np.column_stack([np.square(one).sum(axis=1) for one in residuals]) + unseen[:, None]


@dataclass(frozen=True, eq=False)
class KeptLosses:
    """The losses of one agent's points, which it keeps to itself.

    Attributes
    ----------
    values : array of shape (R, n, M)
        By repeat, point and candidate; NaN where nothing was judged. One array, so that an agent can put it away between
        two questions. Candidates are named by their columns.
    """

    values: Array

    @classmethod
    def nothing(cls, n: int) -> KeptLosses:
        """Of an agent of n points that has judged nothing yet."""
        return cls(np.full((0, n, 0), np.nan))

    def keep(self, repeat: int, aside: NDArray[np.bool_], columns: Sequence[int], losses: Array) -> KeptLosses:
        """With the losses (number aside, number of columns) of points set aside in a repeat, in place of older ones."""
        repeats, n, count = self.values.shape
        values = np.full((max(repeats, repeat + 1), n, max(count, *(column + 1 for column in columns))), np.nan)
        values[:repeats, :, :count] = self.values
        values[repeat][np.ix_(aside, np.asarray(columns))] = losses
        return KeptLosses(values)

    def covers(self, repeat: int, aside: NDArray[np.bool_], columns: Sequence[int]) -> bool:
        """Whether all points set aside in a repeat were judged at these columns."""
        repeats, _, count = self.values.shape
        known = repeat < repeats and all(column < count for column in columns)
        return known and not np.isnan(self.values[repeat][np.ix_(aside, np.asarray(columns))]).any()

    def scores(self, columns: Sequence[int]) -> AgentScores:
        """What the agent tells of these candidates; losses of a point that several repeats judged are averaged first."""
        repeats, n, count = self.values.shape
        values = np.full((repeats, n, len(columns)), np.nan)
        known = [place for place, column in enumerate(columns) if column < count]
        values[:, :, known] = self.values[:, :, [columns[place] for place in known]]
        judged = ~np.isnan(values).all(axis=2)
        times = judged.sum(axis=0)
        totals = np.where(judged[:, :, None], values, 0.0).sum(axis=0)
        return AgentScores.of_losses(totals[times > 0] / times[times > 0][:, None])


def told_scores(found: AgentScores) -> Message:
    """What an agent answers of its scores: of the covariances, which are symmetric, the upper half."""
    upper = np.triu_indices(len(found.mean))
    return Message({"rows": found.n}, {"mean": found.mean, "covariance": found.covariance[upper]})


def read_scores(answer: Message) -> AgentScores:
    """The scores an agent told."""
    mean = answer.arrays["mean"]
    upper, covariance = np.triu_indices(len(mean)), np.empty((len(mean), len(mean)))
    covariance[upper] = covariance.T[upper] = answer.arrays["covariance"]
    return AgentScores(int(answer.settings["rows"]), mean, covariance)


def scores_form(count: int) -> dict[str, ArraySpec]:
    """The form of `told_scores` of that many candidates."""
    return {"mean": ArraySpec((count,), gaps=True), "covariance": ArraySpec((count * (count + 1) // 2,), gaps=True)}


def scores_fault(answer: Message, spec: TrainingSpec, place: int, judged: NDArray[np.bool_]) -> str | None:
    """What is wrong with told scores: they must be of what was judged, and could be those of losses."""
    rows = whole_number(answer.settings["rows"], "the number of rows")
    if not 0 < rows <= spec.sizes[place]:
        return "it has lost the losses it was to sum up"
    return _impossible(read_scores(answer), judged, spec.task)


def _impossible(scores: AgentScores, judged: NDArray[np.bool_], task: Task) -> str | None:
    """What is wrong with means and covariances of losses; candidates that were not judged have none."""
    mean, covariance = scores.mean[judged], scores.covariance[np.ix_(judged, judged)]
    if not np.isfinite(mean).all() or not np.isfinite(covariance).all() or np.isfinite(scores.mean[~judged]).any():
        return "it does not tell of the candidates it was to judge"
    if task != "unsupervised" and (mean < 0).any():
        return "a mean loss is negative"
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if (np.abs(covariance) > np.outer(spread, spread) * (1 + 1e-6) + 1e-300).any():
        return "its covariances are impossible"
    return "a loss is too large" if task == "classification" and (mean > MOST_BRIER).any() else None
