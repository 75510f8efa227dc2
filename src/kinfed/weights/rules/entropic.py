r"""Q-aggregation with a pull towards the grand mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinfed.moments import squared_distances
from kinfed.validation import positive
from kinfed.weights.geometry import Geometry
from kinfed.weights.objective import SimplexProblem, gradient, objective, q_aggregation_problem
from kinfed.weights.result import Weights, weights_of

Array = NDArray[np.float64]

_RELATIVE_GAP = 1e-8
_MOST_STEPS = 20_000


def entropic(geometry: Geometry, strength: float = 0.1, c_q: float = 1.0, c_p: float = 0.0) -> Weights:
    r"""Minimise :math:`f_t(w) + \tau s_t \mathrm{KL}(w \| p)` with :math:`p_k = n_k / \sum_l n_l`.

    The pull keeps every agent in play with a weight that fades as it grows unlike the target: :math:`\tau \to \infty` gives
    the grand mean, :math:`\tau \to 0` the exact minimum of :math:`f_t`. The certificate is the gap to the minimum of the
    linearised problem, which has a closed form.

    Parameters
    ----------
    strength : float
        :math:`\tau`, in units of the target's own error :math:`s_t`.
    c_q, c_p : float
        Constants of :math:`f_t`. The pull already guards against chance, so they are smaller than the paper's.
    """
    strength = positive(strength, "strength")
    problem = q_aggregation_problem(geometry, c_q, c_p)
    prior = geometry.sizes / geometry.sizes.sum()
    pull = strength * geometry.scatter[geometry.targets]
    matrix, values, gap, stop = _solve(problem, np.log(prior), pull)
    return weights_of(geometry, "entropic", matrix, values, gap, stop)


def _solve(problem: SimplexProblem, log_prior: Array, pull: Array) -> tuple[Array, Array, Array, list[str]]:
    r"""Mirror descent on the smooth part with the entropy kept exact, and a step length that adapts by itself.

    With D the Kullback-Leibler divergence, :math:`(v - w)' G (v - w) \le L\, D(v, w)` for L the largest squared distance
    between two means, so f is smooth relative to D, and the pull makes the sum strongly convex relative to D: convergence
    is linear. Steps are tried longer than L allows and taken back where the inequality fails.
    """
    count, n_agents = problem.linear.shape
    targets = problem.targets
    weights = np.tile(np.exp(log_prior), (count, 1))
    gap, stop = np.zeros(count), ["optimal: no other weights are better by more than the gap"] * count
    # A target without any spread is exact already; the pull has no strength there and the target alone is optimal.
    exact = pull <= 0
    weights[exact] = np.eye(n_agents)[targets[exact]]
    live = np.flatnonzero(~exact)
    largest = float(squared_distances(problem.gram).max())
    inverse_step = np.full(count, largest / 2)
    floor = 64 * np.finfo(float).eps * (pull + np.abs(problem.gram).max() + np.abs(problem.linear).max(axis=1))
    log_weights = np.tile(log_prior, (count, 1))
    for _ in range(_MOST_STEPS):
        if not len(live):
            break
        part = problem.rows(live)
        slopes = gradient(part, weights[live])
        tau = pull[live][:, None]
        gap[live] = _gap(slopes, weights[live], log_weights[live], log_prior, pull[live])
        going = gap[live] > np.maximum(_RELATIVE_GAP * part.alone, floor[live])
        live, part, slopes, tau = live[going], part.rows(going), slopes[going], tau[going]
        if not len(live):
            break
        smooth = inverse_step[live][:, None]
        proposal = (smooth * log_weights[live] + tau * log_prior - slopes) / (smooth + tau)
        proposal -= proposal.max(axis=1, keepdims=True)
        proposal -= np.log(np.exp(proposal).sum(axis=1, keepdims=True))
        moved = np.exp(proposal)
        step = moved - weights[live]
        # f(moved) <= f(w) + g'step + L D(moved, w) is what a step of this length needs.
        curvature = np.einsum("tk,tk->t", step @ problem.gram, step)
        divergence = np.einsum("tk,tk->t", moved, proposal - log_weights[live])
        accepted = (curvature <= inverse_step[live] * divergence) | (inverse_step[live] >= largest)
        inverse_step[live] = np.minimum(inverse_step[live] * np.where(accepted, 0.9, 2.0), largest)
        taken = live[accepted]
        weights[taken], log_weights[taken] = moved[accepted], proposal[accepted]
    for t in live:
        stop[t] = f"stopped after {_MOST_STEPS} steps: the gap says how far the optimum may be"
    safe = np.where(weights > 0, log_weights - log_prior, 0.0)
    values = objective(problem, weights) + pull * np.einsum("tk,tk->t", weights, safe)
    return weights, values, gap, stop


def _gap(slopes: Array, weights: Array, log_weights: Array, log_prior: Array, pull: Array) -> Array:
    """The value g'w + tau KL(w | p) minus its minimum over all v on the simplex, -tau log sum p exp(-g / tau)."""
    tau = pull[:, None]
    exponents = log_prior - (slopes - slopes.min(axis=1, keepdims=True)) / tau
    least = slopes.min(axis=1) - pull * np.log(np.exp(exponents).sum(axis=1))
    current = np.einsum("tk,tk->t", weights, slopes + tau * (log_weights - log_prior))
    return np.asarray(np.maximum(current - least, 0.0))
