"""What every member is worth to every agent, on points its models have not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.learners.base import Learner, Models, Task
from kinfed.learners.gradients import class_residuals
from kinfed.weights.calibration.family import Member
from kinfed.weights.calibration.trials import AgentScores, Split, Trials

Array = NDArray[np.float64]

ENOUGH_POINTS = 600
"""Small federations deal their folds again, with other points together, until about this many were scored."""
MOST_REPEATS = 5
_WEIGHTS_AT_ONCE = 2**25  # numbers of the weight rows trained together (256 MB)


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


def cross_validate(
    trials: Trials,
    learner: Learner,
    members: Sequence[Member],
    *,
    folds: int,
    progress: Callable[[int, int], None],
) -> list[AgentScores]:
    """Scores of all members by every agent; n = 0 for agents of too few points.

    In every fold all agents set points aside at once. Weights and models are made of the rest by the same steps that make
    the final ones.
    """
    repeats = int(np.clip(-(-ENOUGH_POINTS // int(trials.sizes.sum())), 1, MOST_REPEATS))
    splits = [Split(repeat, fold, folds) for repeat in range(repeats) for fold in range(folds)]

    def judge(split: Split) -> None:
        judges = trials.judges(split)
        if len(judges) and trials.can_train(split):
            _score(trials, split, learner, members, judges)

    progress(0, len(splits))
    trials.each(splits, judge, progress)
    return trials.tally(members)


def _score(trials: Trials, split: Split, learner: Learner, members: Sequence[Member], judges: NDArray[np.int64]) -> None:
    """Let the judges of one split score all members."""
    sizes = trials.training_sizes(split)
    bases = trials.bases(split, learner, [member.base for member in members], judges, thrifty=False)
    step = max(1, _WEIGHTS_AT_ONCE // (len(judges) * len(sizes)))
    for some in (members[start : start + step] for start in range(0, len(members), step)):
        stacked = np.vstack([member.matrix(bases[member.base], judges, sizes) for member in some])
        models = trials.fit(split, learner, stacked, np.tile(judges, len(some)))
        trials.score(split, models, some, judges)
