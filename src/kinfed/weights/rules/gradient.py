r"""Gradient Q-aggregation: who would change my model the way my own data would (the paper's outlook)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from kinfed.errors import InputError
from kinfed.learners.base import Learner, Models, Task
from kinfed.learners.gradients import PointGradients, has_gradients, point_gradients
from kinfed.learners.plan import common_model
from kinfed.validation import nonnegative, positive, positive_integer
from kinfed.weights.geometry import Geometry
from kinfed.weights.gradient_problem import (
    Answers,
    Directions,
    Projection,
    gradient_problem,
    mean_gradients,
    true_directions,
)
from kinfed.weights.mirror_descent import OPTIMAL, Minimum, mirror_descent
from kinfed.weights.result import Weights, weights_of
from kinfed.weights.rules.clusters import ward_labels, within

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

# Tuned once on the concept-shift generator (docs/calibration.md).
ROUNDS, CAUTION, PULL = 4, 4.0, 0.1
# Numbers of one block of targets' differences (256 MB).
_BLOCK = 2**25
# A target is never left to nobody: this share of its collaborators' weight is spread over all.
_SPREAD = 0.02


def gradient(
    geometry: Geometry,
    federation: Federation,
    learner: Learner,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    n_features: int = 500,
    relative_gap: float = 1e-6,
    seed: int = 0,
) -> Weights:
    r"""Weigh, train on the others, compare loss gradients, and again.

    Each round trains a model for every target on the data of its collaborators *without its own* (so that its own points
    are fresh to the model), asks every agent for its mean loss gradient there, and solves the aggregation problem of
    `kinfed.weights.gradient_problem` with a pull :math:`\tau s_t \mathrm{KL}(w \| n_k / N)`. As models improve the
    residuals shrink and kin become easier to tell. It starts from the grand mean.

    In a round a target sends its model, and every agent answers with :math:`p + 1` numbers for each target, p being the
    number of coefficients of the last linear step or `n_features`, whichever is less.

    Parameters
    ----------
    federation : Federation
        Numeric training data, columns standardised.
    learner : Learner
        What is trained; its task must have a target.
    rounds : int
    c_q : float
        :math:`C_Q`, the caution towards agents the target cannot see well; 2 to 8 do about as well.
    strength : float
        :math:`\tau`, in units of the target's own error.
    n_features : int
        D, the length above which gradients are projected at random.
    relative_gap : float
    seed : int
        Of the learner and the projection.
    """
    found = gradient_rounds(
        geometry.sizes,
        geometry.targets,
        federation,
        learner,
        rounds=rounds,
        c_q=c_q,
        strength=strength,
        n_features=n_features,
        relative_gap=relative_gap,
        seed=seed,
    )
    return weights_of(geometry, "gradient", found.weights, found.value, found.gap, found.stop)


def gradient_clusters(
    geometry: Geometry, federation: Federation, learner: Learner, count: int = 2, seed: int = 0
) -> Weights:
    """The grand mean within clusters of agents who listen to the same others by the gradient rule.

    Parameters
    ----------
    federation, learner, seed
        As in `gradient`, with its default options.
    count : int
        How many clusters.
    """
    everyone = np.arange(len(geometry))
    found = gradient_rounds(geometry.sizes, everyone, federation, learner, seed=seed)
    return weights_of(geometry, "gradient-clusters", within(listening_clusters(found.weights, count), geometry))


def listening_clusters(matrix: Array, count: int) -> NDArray[np.int64]:
    """Labels of all agents by whom they listen to: Ward's linkage of the square roots of the weight rows (B, B).

    The rows of kin agree on many agents, so they are far easier to tell than the two agents' own means; between square
    roots of weights the distance is Hellinger's.
    """
    return ward_labels(pdist(np.sqrt(np.maximum(matrix, 0.0))), positive_integer(count, "count"), len(matrix))


def gradient_rounds(
    sizes: NDArray[np.int64],
    targets: NDArray[np.int64],
    federation: Federation,
    learner: Learner,
    *,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    n_features: int = 500,
    relative_gap: float = 1e-6,
    seed: int = 0,
    common: bool = False,
    start: Array | None = None,
) -> Minimum:
    """The rounds of `gradient` for some targets.

    Parameters
    ----------
    common : bool
        Compare gradients at one common model, trained on everybody, instead of one for each target. A single round then
        costs one model, so it serves learners that are slow to train; own points are a small part of what it has seen.
    start : array of shape (T, B), optional
        Weights to begin with in place of the grand mean.
    """
    if not has_gradients(learner.task):
        raise InputError("the gradient rule needs a learner with a target; choose a rule that compares the agents' points")
    rounds, c_q = positive_integer(rounds, "rounds"), nonnegative(c_q, "c_q")
    n_features = positive_integer(n_features, "n_features")
    strength, relative_gap = positive(strength, "strength"), positive(relative_gap, "relative_gap")
    shares = sizes / sizes.sum()
    if len(sizes) == 1:
        return Minimum(np.ones((len(targets), 1)), np.zeros(len(targets)), np.zeros(len(targets)), [OPTIMAL] * len(targets))
    matrix = np.tile(shares, (len(targets), 1)) if start is None else start
    for _ in range(1 if common else rounds):
        if common:
            models = common_model(learner, federation, seed=seed)
        else:
            models = learner.fit(federation, without_own(matrix, targets, shares), targets=targets, seed=seed)
        exchange = Exchange(models, federation, learner.task, n_features, seed)
        found = aggregate(exchange, sizes, targets, c_q, strength, relative_gap)
        matrix = found.weights
    return found


def without_own(matrix: Array, targets: NDArray[np.int64], shares: Array) -> Array:
    """The rows with the target's own weight given to its collaborators, and a little to everybody."""
    own = np.arange(len(targets)), targets
    everybody, others = np.tile(shares, (len(targets), 1)), matrix.copy()
    everybody[own] = others[own] = 0.0
    everybody /= everybody.sum(axis=1, keepdims=True)
    total = others.sum(axis=1, keepdims=True)
    listening = total > 1e-9
    others = np.where(listening, others / np.where(listening, total, 1.0), everybody)
    return np.asarray((1 - _SPREAD) * others + _SPREAD * everybody)


class Exchange:
    """The agents' answers at the models of some targets; targets of one common model ask once.

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
        few = point_gradients(models, 0, self._X[:2], self._y[:2], task)
        self._projection = Projection.draw(few.residuals.shape[1], few.inputs.shape[1], n_features, seed)
        self.length = self._projection(few).residuals.shape[1] * self._projection(few).inputs.shape[1]
        self._at = cache(self._at_model) if len(models) == 1 else self._at_model

    def _at_model(self, row: int) -> tuple[PointGradients, Array, Array, Directions]:
        points = self._projection(point_gradients(self._models, row, self._X, self._y, self._task))
        means, scatter = mean_gradients(points, self._starts, self._sizes)
        return points, means, scatter, true_directions(means, scatter, self._sizes / self._sizes.sum())

    def __call__(self, row: int, target: int) -> Answers:
        """What everybody answers to one target."""
        points, means, scatter, directions = self._at(0 if len(self._models) == 1 else row)
        mine = slice(self._starts[target], self._starts[target] + self._sizes[target])
        residuals, inputs = points.residuals[mine], points.inputs[mine]
        own = (residuals[:, :, None] * inputs[:, None, :]).reshape(len(residuals), -1)
        return Answers(means, scatter, directions, own)


def aggregate(
    exchange: Exchange,
    sizes: NDArray[np.int64],
    targets: NDArray[np.int64],
    c_q: float,
    strength: float,
    relative_gap: float,
) -> Minimum:
    """One round: the weights that the agents' answers lead to."""
    log_prior = np.log(sizes / sizes.sum())
    step = max(1, _BLOCK // (len(sizes) * min(len(sizes), exchange.length)))
    parts = []
    for start in range(0, len(targets), step):
        chosen = targets[start : start + step]
        answers = (exchange(start + row, int(target)) for row, target in enumerate(chosen))
        problem = gradient_problem(answers, chosen, sizes, c_q)
        parts.append(mirror_descent(problem, chosen, log_prior, strength * problem.scatter, relative_gap))
    return Minimum(
        np.vstack([part.weights for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.gap for part in parts]),
        [stop for part in parts for stop in part.stop],
    )
