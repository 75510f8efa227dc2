r"""The quadratic problem behind the weights, for many targets at once.

For target t and w on the simplex the paper minimises

.. math::

    f_t(w) = |\textstyle\sum_k w_k \nu_k - \nu_t|^2 + 2 w_t s_t
           + \sum_{k \ne t} w_k \Bigl( C_Q \sqrt{q_{tk} / n_t} + C_P \tfrac{M}{n_t} |\nu_k - \nu_t| \Bigr).

**One Gram matrix serves all targets.** Since the weights sum to one, :math:`\sum_k w_k \nu_k - \nu_t = \sum_k (w - e_t)_k
\nu_k`, so with :math:`b_t` the coefficients that are linear in w,

.. math:: f_t(w) = (w - e_t)' G (w - e_t) + b_t' w, \qquad \nabla f_t(w) = 2 G (w - e_t) + b_t.

The T problems differ in :math:`e_t` and :math:`b_t` alone, and their gradients are the rows of one matrix product. At
:math:`w = e_t` the quadratic part is zero to the last bit, so learning alone is certified without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kinfed.embedding import squared_distances
from kinfed.validation import Array, nonnegative
from kinfed.weights.geometry import Geometry


@dataclass(frozen=True, eq=False)
class SimplexProblem:
    r"""Minimise :math:`(w - e_t)' G (w - e_t) + b_t' w` over the simplex, for every target t.

    Attributes
    ----------
    gram : array of shape (B, B)
        G.
    linear : array of shape (T, B)
        :math:`b_t`, a row per target.
    targets : array of shape (T,)
    moved : array of shape (T, B), optional
        Where targets hold rows out (`kinfed.weights.geometry.HeldOut`): row and column t of G change by it, for target t.
    squared : array of shape (T,), optional
    """

    gram: Array
    linear: Array
    targets: NDArray[np.int64]
    moved: Array | None = None
    squared: Array | None = None

    @property
    def alone(self) -> Array:
        """f_t(e_t): the value of learning alone, the scale on which gaps are judged."""
        return self.linear[np.arange(len(self.targets)), self.targets]

    @cached_property
    def smoothness(self) -> Array:
        """For each target the largest squared distance between two means, which bounds the curvature."""
        apart = squared_distances(self.gram)
        if self.moved is None or self.squared is None:
            return np.full(len(self.targets), float(apart.max()))
        # Where a target's mean was before it moved must not count: the largest distance in every row, or the second.
        ordered = np.sort(apart, axis=1)
        others = np.where(apart.argmax(axis=1) == self.targets[:, None], ordered[:, [-2]].T, ordered[:, [-1]].T)
        own = np.arange(len(self.targets)), self.targets
        others[own] = 0.0
        to_own = apart[self.targets] - 2 * (self.moved - self.moved[own][:, None]) + self.squared[:, None]
        to_own[own] = 0.0
        return np.asarray(np.maximum(others.max(axis=1), to_own.max(axis=1)))

    def rows(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> SimplexProblem:
        """The same problem for some of the targets."""
        moved = None if self.moved is None else self.moved[chosen]
        squared = None if self.squared is None else self.squared[chosen]
        return SimplexProblem(self.gram, self.linear[chosen], self.targets[chosen], moved, squared)

    def value(self, weights: Array) -> Array:
        """The objective f_t(w) of every row at its weights."""
        return self.curvature(from_target(self.targets, weights)) + np.einsum("tk,tk->t", self.linear, weights)

    def gradient(self, weights: Array) -> Array:
        """The gradients 2 G (w - e_t) + b_t, row by row."""
        return np.asarray(2 * self.product(from_target(self.targets, weights)) + self.linear)

    def curvature(self, steps: Array) -> Array:
        """The quadratic form v' G v of every row v."""
        return np.asarray(np.einsum("tk,tk->t", self.product(steps), steps))

    def product(self, rows: Array) -> Array:
        """G v for every row v, with the G of its target."""
        found = rows @ self.gram
        self.add_moved(rows, found)
        return np.asarray(found)

    def add_moved(self, rows: Array, found: Array) -> None:
        """Add to `found` what the rows held out change in G v."""
        if self.moved is not None and self.squared is not None:
            own = np.arange(len(rows)), self.targets
            share = rows[own]
            found[own] += np.einsum("tk,tk->t", self.moved, rows) + self.squared * share
            found += share[:, None] * self.moved


def default_constants(n_agents: int) -> tuple[float, float]:
    """The paper's untuned constants (C_Q, C_P), from C_Q^2 = C_P = log B."""
    log_agents = float(np.log(n_agents))
    return float(np.sqrt(log_agents)), log_agents


def q_aggregation_problem(geometry: Geometry, c_q: float | None = None, c_p: float | None = None) -> SimplexProblem:
    """The paper's problem (Algorithm 1) with constants C_Q and C_P; both default to `default_constants`."""
    default_q, default_p = default_constants(len(geometry))
    c_q = default_q if c_q is None else nonnegative(c_q, "c_q")
    c_p = default_p if c_p is None else nonnegative(c_p, "c_p")
    targets = geometry.targets
    n = geometry.own_sizes[:, None]
    linear = c_q * np.sqrt(geometry.directional / n)
    linear += c_p * geometry.norm_bound / n * np.sqrt(geometry.squared_distances)
    linear[np.arange(len(targets)), targets] = 2 * geometry.own_variance
    held_out = geometry.held_out
    if held_out is None:
        return SimplexProblem(geometry.gram, linear, targets)
    return SimplexProblem(geometry.gram, linear, targets, held_out.moved, held_out.squared)


def from_target(targets: NDArray[np.int64], weights: Array) -> Array:
    """The rows w - e_t."""
    displacement = weights.copy()
    displacement[np.arange(len(weights)), targets] -= 1.0
    return displacement


def duality_gap(gradients: Array, weights: Array) -> Array:
    r"""The certificate :math:`g' w - \min_k g_k`: no point of the simplex is better than w by more than this.

    By convexity :math:`f(v) \ge f(w) + g'(v - w)` for every v, and the right side is smallest at a vertex.
    """
    # Differences first: g'w and min g may share many digits.
    excess = gradients - gradients.min(axis=1, keepdims=True)
    return np.asarray(np.einsum("tk,tk->t", excess, weights))
