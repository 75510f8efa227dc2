r"""Minimise a convex quadratic plus a pull towards a prior, :math:`f_t(w) + \tau_t \mathrm{KL}(w \| p)`, on the simplex.

Mirror descent on the smooth part with the entropy kept exact, for all targets at once. With D the Kullback-Leibler
divergence, :math:`(v - w)' Q (v - w) \le L\, D(v, w)` for L the largest squared distance between two vertices, so f is
smooth relative to D, and the pull makes the sum strongly convex relative to D: convergence is linear. Steps are tried
longer than L allows and taken back where the inequality fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_STEPS = 20_000
OPTIMAL = "optimal: no other weights are better by more than the gap"


class Quadratic(Protocol):
    """A convex quadratic function on the simplex for every row."""

    @property
    def alone(self) -> Array:
        """Its value at the target alone, the scale on which gaps are judged."""
        ...

    @property
    def smoothness(self) -> Array:
        """L: the curvature of a step v - w is at most L times the divergence of v and w."""
        ...

    def rows(self, chosen: NDArray[np.int64]) -> Quadratic:
        """The same functions for some of the rows."""
        ...

    def value(self, weights: Array) -> Array:
        """Values, row by row."""
        ...

    def gradient(self, weights: Array) -> Array:
        """Gradients, row by row."""
        ...

    def curvature(self, steps: Array) -> Array:
        """The quadratic part at a step, row by row."""
        ...


class Minimum(NamedTuple):
    """Weights (T, B), the values of f plus pull, certified gaps to the minimum, and why the solver stopped."""

    weights: Array
    value: Array
    gap: Array
    stop: list[str]


def stacked_minima(parts: Sequence[Minimum]) -> Minimum:
    """The minima of several groups of targets as one."""
    return Minimum(
        np.vstack([part.weights for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.gap for part in parts]),
        [stop for part in parts for stop in part.stop],
    )


def mirror_descent(
    problem: Quadratic, targets: NDArray[np.int64], log_prior: Array, pull: Array, relative_gap: float = 1e-8
) -> Minimum:
    r"""Weights that minimise :math:`f_t(w) + \tau_t \mathrm{KL}(w \| p)` for every row t.

    Parameters
    ----------
    problem : Quadratic
    targets : array of shape (T,)
        The agent of each row: the solution where there is no pull.
    log_prior : array of shape (B,)
        :math:`\log p`, where all rows start.
    pull : array of shape (T,)
        :math:`\tau_t \ge 0`. Rows without a pull belong to targets without any error of their own.
    relative_gap : float
        A row is done once its gap is below this share of the value of being alone.
    """
    count, n_agents = len(targets), len(log_prior)
    weights, log_weights = np.tile(np.exp(log_prior), (count, 1)), np.tile(log_prior, (count, 1))
    gap, stop = np.zeros(count), [OPTIMAL] * count
    exact = pull <= 0
    weights[exact] = np.eye(n_agents)[targets[exact]]
    smoothness = problem.smoothness
    inverse_step = smoothness / 8
    floor = 64 * np.finfo(float).eps * (pull + smoothness + np.abs(problem.alone))
    live = np.flatnonzero(~exact)
    part = problem.rows(live)
    for _ in range(_MOST_STEPS):
        if not len(live):
            break
        slopes = part.gradient(weights[live])
        gap[live] = _gap(slopes, weights[live], log_weights[live], log_prior, pull[live])
        going = np.flatnonzero(gap[live] > np.maximum(relative_gap * part.alone, floor[live]))
        if len(going) < len(live):
            live, part, slopes = live[going], part.rows(going), slopes[going]
            if not len(live):
                break
        tau, smooth = pull[live][:, None], inverse_step[live][:, None]
        proposal = (smooth * log_weights[live] + tau * log_prior - slopes) / (smooth + tau)
        proposal -= proposal.max(axis=1, keepdims=True)
        moved = np.exp(proposal)
        total = moved.sum(axis=1, keepdims=True)
        proposal -= np.log(total)
        moved /= total
        # f(moved) <= f(w) + g'step + L D(moved, w) is what a step of this length needs.
        curvature = part.curvature(moved - weights[live])
        divergence = np.einsum("tk,tk->t", moved, proposal - log_weights[live])
        accepted = (curvature <= inverse_step[live] * divergence) | (inverse_step[live] >= smoothness[live])
        inverse_step[live] = np.minimum(inverse_step[live] * np.where(accepted, 0.8, 2.0), smoothness[live])
        taken = live[accepted]
        weights[taken], log_weights[taken] = moved[accepted], proposal[accepted]
    for t in live:
        stop[t] = f"stopped after {_MOST_STEPS} steps: the gap says how far the optimum may be"
    divergence = np.einsum("tk,tk->t", weights, np.where(weights > 0, log_weights - log_prior, 0.0))
    return Minimum(weights, problem.value(weights) + pull * divergence, gap, stop)


def _gap(slopes: Array, weights: Array, log_weights: Array, log_prior: Array, pull: Array) -> Array:
    """The value g'w + tau KL(w | p) minus its minimum over all v on the simplex, -tau log sum p exp(-g / tau)."""
    tau = pull[:, None]
    exponents = log_prior - (slopes - slopes.min(axis=1, keepdims=True)) / tau
    least = slopes.min(axis=1) - pull * np.log(np.exp(exponents).sum(axis=1))
    current = np.einsum("tk,tk->t", weights, slopes + tau * (log_weights - log_prior))
    return np.asarray(np.maximum(current - least, 0.0))
