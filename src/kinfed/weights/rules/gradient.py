r"""Gradient Q-aggregation: who would change my model the way my own data would (the paper's outlook)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from kinfed.learners.base import Learner
from kinfed.validation import nonnegative, positive, positive_integer
from kinfed.weights.geometry import Geometry
from kinfed.weights.mirror_descent import OPTIMAL, Minimum
from kinfed.weights.result import Weights, weights_of
from kinfed.weights.rules.clusters import ward_labels, within
from kinfed.weights.rules.gradient_agents import GRADIENT_FEATURES, GradientAgents, PooledGradientAgents

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

# Tuned once on the concept-shift generator (docs/calibration.md).
ROUNDS, CAUTION, PULL = 4, 4.0, 0.1
# A target is never left to nobody: this share of its collaborators' weight is spread over all.
_SPREAD = 0.02


def gradient(
    geometry: Geometry,
    federation: Federation,
    learner: Learner,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    n_features: int = GRADIENT_FEATURES,
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
    agents = PooledGradientAgents(federation, learner, n_features=n_features, seed=seed)
    found = gradient_rounds(agents, geometry.targets, rounds=rounds, c_q=c_q, strength=strength, relative_gap=relative_gap)
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
    found = gradient_rounds(PooledGradientAgents(federation, learner, seed=seed), np.arange(len(geometry)))
    labels = listening_clusters(found.weights, count)
    return weights_of(geometry, "gradient-clusters", within(labels, geometry.targets, geometry.sizes))


def listening_clusters(matrix: Array, count: int) -> NDArray[np.int64]:
    """Labels of all agents by whom they listen to: Ward's linkage of the square roots of the weight rows (B, B).

    The rows of kin agree on many agents, so they are far easier to tell than the two agents' own means; between square
    roots of weights the distance is Hellinger's.
    """
    return ward_labels(pdist(np.sqrt(np.maximum(matrix, 0.0))), positive_integer(count, "count"), len(matrix))


def gradient_rounds(
    agents: GradientAgents,
    targets: NDArray[np.int64],
    *,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    relative_gap: float = 1e-6,
    common: bool = False,
    start: Array | None = None,
) -> Minimum:
    """The rounds of `gradient` for some targets.

    Parameters
    ----------
    agents : GradientAgents
        Whoever trains, answers and solves.
    common : bool
        Compare gradients at one common model, trained on everybody, instead of one for each target. A single round then
        costs one model, so it serves learners that are slow to train; own points are a small part of what it has seen.
    start : array of shape (T, B), optional
        Weights to begin with in place of the grand mean.
    """
    rounds, c_q = positive_integer(rounds, "rounds"), nonnegative(c_q, "c_q")
    strength, relative_gap = positive(strength, "strength"), positive(relative_gap, "relative_gap")
    sizes = agents.sizes
    shares = sizes / sizes.sum()
    if len(sizes) == 1:
        return Minimum(np.ones((len(targets), 1)), np.zeros(len(targets)), np.zeros(len(targets)), [OPTIMAL] * len(targets))
    matrix = np.tile(shares, (len(targets), 1)) if start is None else start
    for _ in range(1 if common else rounds):
        models = agents.common() if common else agents.fit(without_own(matrix, targets, shares), targets)
        found = agents.solve(models, targets, c_q=c_q, strength=strength, relative_gap=relative_gap)
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
