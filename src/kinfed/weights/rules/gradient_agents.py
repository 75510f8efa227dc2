"""The agents of the gradient rule: what they answer about a model, and how a target weighs the answers.

In a round every target has a model, every agent answers about it with its mean gradient and the error of that mean, and
the target solves for its weights. What one agent computes is a pure function here; `GradientAgents` is the round as the
rule sees it, and `PooledGradientAgents` plays it where all points are in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.learners.base import Learner, Models, Task
from kinfed.learners.gradients import PointGradients, has_gradients, point_gradients
from kinfed.learners.plan import common_model
from kinfed.validation import positive_integer
from kinfed.weights.gradient_problem import (
    Answers,
    Directions,
    Projection,
    gradient_problem,
    mean_gradients,
    true_directions,
)
from kinfed.weights.mirror_descent import Minimum, mirror_descent, stacked_minima

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

GRADIENT_FEATURES = 500
"""D, the length above which gradients are projected at random."""

# Numbers of one block of targets' differences (256 MB).
_BLOCK = 2**25


class GradientAgents(Protocol):
    """One round of the gradient rule, wherever the points are."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many points each agent trains on, (B,)."""
        ...

    def fit(self, rows: Array, targets: NDArray[np.int64]) -> Models:
        """Train one model per weight row."""
        ...

    def common(self) -> Models:
        """One common model of everybody's data."""
        ...

    def solve(
        self, models: Models, targets: NDArray[np.int64], *, c_q: float, strength: float, relative_gap: float
    ) -> Minimum:
        """Weights of the targets from all agents' answers about their models: one per target, or one for all."""
        ...


# What one agent computes


def projection_of(
    models: Models, X: NDArray[Any], y: NDArray[Any], task: Task, n_features: int = GRADIENT_FEATURES, seed: int = 0
) -> Projection:
    """The projection of gradients at these models; any agent's points lead to the same one."""
    few = point_gradients(models, 0, X[:2], y[:2], task)
    return Projection.draw(few.residuals.shape[1], few.inputs.shape[1], n_features, seed)


def gradient_answer(
    models: Models, row: int, X: NDArray[Any], y: NDArray[Any], task: Task, projection: Projection
) -> tuple[Array, float]:
    """What an agent answers about one model: its mean gradient (p,), and the expected squared error of that mean."""
    points = projection(point_gradients(models, row, X, y, task))
    means, scatter = mean_gradients(points, np.zeros(1, dtype=np.int64), np.array([len(X)]))
    return means[0], float(scatter[0])


def own_gradients(models: Models, row: int, X: NDArray[Any], y: NDArray[Any], task: Task, projection: Projection) -> Array:
    """Gradients (n, p) of an agent's own points at its model; they never leave it."""
    return products(projection(point_gradients(models, row, X, y, task)))


def products(points: PointGradients) -> Array:
    """The gradients (n, p) themselves, out of their factors."""
    return np.asarray((points.residuals[:, :, None] * points.inputs[:, None, :]).reshape(len(points.residuals), -1))


def own_gradient_row(
    means: Array,
    scatter: Array,
    own: Array,
    sizes: NDArray[np.int64],
    target: int,
    *,
    c_q: float,
    strength: float,
    relative_gap: float,
) -> Minimum:
    r"""One target's weights, from what everybody answered about its model and its own gradients.

    Parameters
    ----------
    means : array of shape (B, p)
        Mean gradients of all agents, the target's own among them.
    scatter : array of shape (B,)
        The expected squared error of each mean.
    own : array of shape (n_t, p)
        The target's own gradients, point by point.
    sizes : array of shape (B,)
    target : int
    c_q : float
        :math:`C_Q`.
    strength : float
        :math:`\tau`, in units of the target's own error.
    relative_gap : float
    """
    directions = true_directions(means, scatter, sizes / sizes.sum())
    answers = Answers(means, scatter, directions, own)
    return weigh_answers([answers], np.array([target], dtype=np.int64), sizes, c_q, strength, relative_gap)


def weigh_answers(
    answers: Iterable[Answers],
    targets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    c_q: float,
    strength: float,
    relative_gap: float,
) -> Minimum:
    """The weights that everybody's answers to some targets lead to."""
    problem = gradient_problem(answers, targets, sizes, c_q)
    return mirror_descent(problem, targets, np.log(sizes / sizes.sum()), strength * problem.scatter, relative_gap)


# All agents in one place


class PooledGradientAgents:
    """The agents of a federation whose points are in one place.

    Parameters
    ----------
    federation : Federation
        Numeric training data.
    learner : Learner
        What is trained; its task must have a target.
    n_features : int
        D, the length above which gradients are projected.
    seed : int
        Of the learner and the projection.
    """

    def __init__(
        self, federation: Federation, learner: Learner, *, n_features: int = GRADIENT_FEATURES, seed: int = 0
    ) -> None:
        if not has_gradients(learner.task):
            raise InputError(
                "the gradient rule needs a learner with a target; choose a rule that compares the agents' points"
            )
        self._federation, self._learner, self._seed = federation, learner, seed
        self._n_features = positive_integer(n_features, "n_features")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many points each agent trains on."""
        return self._federation.sizes

    def fit(self, rows: Array, targets: NDArray[np.int64]) -> Models:
        """Train one model per weight row."""
        return self._learner.fit(self._federation, rows, targets=targets, seed=self._seed)

    def common(self) -> Models:
        """One common model of everybody's data."""
        return common_model(self._learner, self._federation, seed=self._seed)

    def solve(
        self, models: Models, targets: NDArray[np.int64], *, c_q: float, strength: float, relative_gap: float
    ) -> Minimum:
        """Weights of the targets, block by block."""
        exchange = Exchange(models, self._federation, self._learner.task, self._n_features, self._seed)
        sizes = self.sizes
        step = max(1, _BLOCK // (len(sizes) * min(len(sizes), exchange.length)))
        parts = []
        for start in range(0, len(targets), step):
            chosen = targets[start : start + step]
            answers = (exchange(start + row, int(target)) for row, target in enumerate(chosen))
            parts.append(weigh_answers(answers, chosen, sizes, c_q, strength, relative_gap))
        return stacked_minima(parts)


class Exchange:
    """The answers of agents in one place at the models of some targets; targets of one common model ask once.

    Parameters
    ----------
    models : Models
        One per target, or one for all.
    federation : Federation
    task : {"regression", "classification"}
    n_features : int
        D, the length above which gradients are projected.
    seed : int
    """

    def __init__(self, models: Models, federation: Federation, task: Task, n_features: int, seed: int) -> None:
        self._models, self._task, self._sizes = models, task, federation.sizes
        self._X, y, _ = federation.pooled()
        self._y = np.asarray(y)  # a task with gradients has a target
        self._starts = np.cumsum(federation.sizes) - federation.sizes
        self._projection = projection_of(models, self._X, self._y, task, n_features, seed)
        few = self._projection(point_gradients(models, 0, self._X[:2], self._y[:2], task))
        self.length = few.residuals.shape[1] * few.inputs.shape[1]
        self._at = cache(self._at_model) if len(models) == 1 else self._at_model

    def _at_model(self, row: int) -> tuple[PointGradients, Array, Array, Directions]:
        points = self._projection(point_gradients(self._models, row, self._X, self._y, self._task))
        means, scatter = mean_gradients(points, self._starts, self._sizes)
        return points, means, scatter, true_directions(means, scatter, self._sizes / self._sizes.sum())

    def __call__(self, row: int, target: int) -> Answers:
        """What everybody answers to one target."""
        points, means, scatter, directions = self._at(0 if len(self._models) == 1 else row)
        mine = slice(self._starts[target], self._starts[target] + self._sizes[target])
        return Answers(means, scatter, directions, products(PointGradients(points.residuals[mine], points.inputs[mine])))
