r"""Gradient Q-aggregation: who would change my model the way my own data would (the paper's outlook)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from kinfed.backends.agents import Agents
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.errors import InputError
from kinfed.learners.base import Learner, common_model
from kinfed.validation import Array, nonnegative, positive, positive_integer
from kinfed.weights.calibration.family import CAUTION
from kinfed.weights.gradient_problem import has_gradients
from kinfed.weights.gradient_rows import GRADIENT_FEATURES, Caution, gradient_rows
from kinfed.weights.mirror_descent import OPTIMAL, Minimum
from kinfed.weights.result import Weights
from kinfed.weights.rules.closed_form import ward_labels, within
from kinfed.weights.weighing import RuleContext

# Tuned once on the concept-shift generator (docs/calibration.md).
ROUNDS, PULL = 4, 0.1
# A target is never left to nobody: this share of its collaborators' weight is spread over all.
_SPREAD = 0.02


def gradient(
    context: RuleContext,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    n_features: int = GRADIENT_FEATURES,
    relative_gap: float = 1e-6,
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
    context : RuleContext
        With a learner whose task has an outcome.
    rounds : int
    c_q : float
        :math:`C_Q`, the caution towards agents the target cannot see well; 2 to 8 do about as well.
    strength : float
        :math:`\tau`, in units of the target's own error.
    n_features : int
        D, the length above which gradients are projected at random.
    relative_gap : float
    """
    found = gradient_rounds(
        context.agents,
        context.learner,
        context.targets,
        rounds=rounds,
        c_q=c_q,
        strength=strength,
        n_features=n_features,
        relative_gap=relative_gap,
        store=context.store,
    )
    return context.weights(found.weights, found.value, found.gap, found.stop)


def gradient_clusters(context: RuleContext, count: int = 2) -> Weights:
    """The grand mean within clusters of agents who listen to the same others by the gradient rule.

    Parameters
    ----------
    context : RuleContext
        As in `gradient`, with its default options.
    count : int
        How many clusters.
    """
    spec = context.agents.spec
    there = np.flatnonzero(spec.sizes > 0)
    found = gradient_rounds(context.agents, context.learner, there, store=context.store)
    labels = listening_clusters(found.weights[:, there], count)
    matrix = np.zeros((len(context.targets), len(spec.names)))
    matrix[:, there] = within(labels, np.searchsorted(there, context.targets), spec.sizes[there])
    return context.weights(matrix)


def listening_clusters(matrix: Array, count: int) -> NDArray[np.int64]:
    """Labels of all agents by whom they listen to: Ward's linkage of the square roots of the weight rows (B, B).

    The rows of kin agree on many agents, so they are far easier to tell than the two agents' own means; between square
    roots of weights the distance is Hellinger's.
    """
    return ward_labels(listening_distances(matrix), positive_integer(count, "count"))


def listening_distances(matrix: Array) -> Array:
    """Condensed distances between the square roots of weight rows (B, B)."""
    return np.asarray(pdist(np.sqrt(np.maximum(matrix, 0.0))))


def gradient_rounds(
    agents: Agents,
    learner: Learner,
    targets: NDArray[np.int64],
    *,
    rounds: int = ROUNDS,
    c_q: float = CAUTION,
    strength: float = PULL,
    n_features: int = GRADIENT_FEATURES,
    relative_gap: float = 1e-6,
    common: bool = False,
    start: Array | None = None,
    store: Store = NOWHERE,
) -> Minimum:
    """The rounds of `gradient` for some targets.

    Parameters
    ----------
    common : bool
        Compare gradients at one common model, trained on everybody, instead of one for each target. A single round then
        costs one model, so it serves learners that are slow to train; own points are a small part of what it has seen.
    start : array of shape (T, B), optional
        Weights to begin with in place of the grand mean.
    store : Store
        Every finished round is kept there, under its C_Q.
    """
    if not has_gradients(learner.task):
        raise InputError("the gradient rule needs a learner with a target; choose a rule that compares the agents' points")
    rounds, n_features = positive_integer(rounds, "rounds"), positive_integer(n_features, "n_features")
    caution = Caution(nonnegative(c_q, "c_q"), positive(strength, "strength"), positive(relative_gap, "relative_gap"))
    shares = agents.spec.sizes / agents.spec.sizes.sum()
    if len(shares) == 1:
        return Minimum(np.ones((len(targets), 1)), np.zeros(len(targets)), np.zeros(len(targets)), [OPTIMAL] * len(targets))
    matrix = np.tile(shares, (len(targets), 1)) if start is None else start
    training = agents.labelled("gradient models")
    piece = f"gradient {caution.c_q:g}"
    kept = store.load(piece)
    if kept is not None:
        found = Minimum(**kept.arrays, stop=kept.settings["stop"])
        matrix = found.weights
    for done in range(0 if kept is None else kept.settings["done"], 1 if common else rounds):
        if common:
            models = common_model(learner, agents, checkpoint=store.below("common model"))
        else:
            models = learner.fit(training, agents.spec.heard(without_own(matrix, targets, shares)), targets=targets)
        found = gradient_rows(agents, learner, models, targets, caution, n_features)
        matrix = found.weights
        arrays = {"weights": matrix, "value": found.value, "gap": found.gap}
        store.save(piece, Kept({"done": done + 1, "stop": list(found.stop)}, arrays))
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
