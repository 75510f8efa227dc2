"""What every member is worth to every agent, on points its models have not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.embedding import Embedding
from kinfed.learners.base import Learner, Models, Task
from kinfed.learners.gradients import class_residuals
from kinfed.validation import FloatArray
from kinfed.weights.calibration.family import Member, base_weights
from kinfed.weights.calibration.folds import deal_folds, without_fold
from kinfed.weights.geometry import Geometry, explicit_geometry

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

ENOUGH_POINTS = 600
"""Small federations deal their folds again, with other points together, until about this many were scored."""
MOST_REPEATS = 5
_WEIGHTS_AT_ONCE = 2**25  # numbers of the weight rows trained together (256 MB)


@dataclass(frozen=True, eq=False)
class EmbeddedAgents:
    """The agents as one embedding shows them; points are embedded when first asked for, and once.

    Attributes
    ----------
    federation : Federation
    embedding : Embedding
    """

    federation: Federation
    embedding: Embedding

    @cached_property
    def points(self) -> list[FloatArray]:
        """One (n_k, D) array per agent."""
        return [self.embedding(agent) for agent in self.federation]

    def geometry(self, kept: Sequence[NDArray[np.bool_]] | None = None, targets: Iterable[int] | None = None) -> Geometry:
        """Geometry of the points, or of those that are kept."""
        points = self.points if kept is None else [mine[rows] for mine, rows in zip(self.points, kept, strict=True)]
        named = dict(zip(self.federation.names, points, strict=True))
        return explicit_geometry(named, norm_bound=self.embedding.norm_bound, targets=targets)


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


def cross_validate(
    federation: Federation,
    learner: Learner,
    views: Sequence[EmbeddedAgents],
    members: Sequence[Member],
    *,
    folds: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[Array]:
    """Losses (n_t, M) of every agent's points at the models of all members; no rows for agents of too few points.

    In every fold all agents set points aside at once. Weights and models are made of the rest by the same steps that make
    the final ones; the embedded points, which do not change, are made once.
    """
    sizes = federation.sizes
    repeats = int(np.clip(-(-ENOUGH_POINTS // int(sizes.sum())), 1, MOST_REPEATS))
    totals = [np.zeros((n, len(members))) for n in sizes]
    counts = [np.zeros(n) for n in sizes]
    done = 0
    for repeat in range(repeats):
        dealt = deal_folds(federation, folds, seed, repeat)
        for fold in range(folds):
            kept = [mine != fold for mine in dealt]
            train = without_fold(federation, dealt, fold)
            if not all(rows.all() for rows in kept) and can_train(train, learner.task):
                found = _score(federation, train, kept, learner, views, members, seed)
                for t, mine in found.items():
                    totals[t][~kept[t]] += mine
                    counts[t][~kept[t]] += 1
            done += 1
            progress(done, repeats * folds)
    return [total[count > 0] / count[count > 0][:, None] for total, count in zip(totals, counts, strict=True)]


def can_train(train: Federation, task: Task) -> bool:
    """A classifier needs two classes; with so few labels that a fold takes one away, that fold is left out."""
    return task != "classification" or len(np.unique(np.concatenate([np.asarray(agent.y) for agent in train]))) > 1


def _score(
    federation: Federation,
    train: Federation,
    kept: Sequence[NDArray[np.bool_]],
    learner: Learner,
    views: Sequence[EmbeddedAgents],
    members: Sequence[Member],
    seed: int,
) -> dict[int, Array]:
    """Losses of the points set aside, at models of the others."""
    names = federation.names
    wanted = {member.base for member in members}
    used = sorted({base.view for base in wanted if base.view is not None}) or [0]
    geometries = {view: views[view].geometry(kept) for view in used}
    bases = base_weights(wanted, geometries, train, learner, seed)
    judges = np.array([t for t, rows in enumerate(kept) if not rows.all()], dtype=np.int64)
    found: dict[int, list[Array]] = {t: [] for t in judges.tolist()}
    step = max(1, _WEIGHTS_AT_ONCE // (len(judges) * len(names)))
    for some in (members[start : start + step] for start in range(0, len(members), step)):
        stacked = np.vstack(
            [member.matrix(bases[member.base], np.arange(len(names)), train.sizes)[judges] for member in some]
        )
        models = learner.fit(train, stacked, targets=np.tile(judges, len(some)), seed=seed)
        for place, t in enumerate(judges.tolist()):
            X, y = federation[t].X[~kept[t]], federation[t].y
            answers = None if y is None else np.asarray(y)[~kept[t]]
            rows = [m * len(judges) + place for m in range(len(some))]
            found[t].append(point_losses(models, rows, X, answers, learner.task))
    return {t: np.hstack(parts) for t, parts in found.items()}
