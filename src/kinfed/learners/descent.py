r"""Minimisers of many smooth convex functions at once: damped Newton, and L-BFGS.

All functions move together and each stops on its own: function t has converged once :math:`|g_t| \le \tau \max(1,
|g_t^0|)`, where :math:`g_t^0` is its gradient at the start. Decisions about one function never depend on the values of
another, so leaving one out changes nothing for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinfed.validation import Array

MEMORY = 12
"""Pairs of steps and gradient changes L-BFGS remembers."""

LARGEST_BOUND = 256
"""Columns up to which L-BFGS starts from the matrix bound on the curvature; beyond, from its diagonal."""

_SUFFICIENT = 1e-4  # share of the decrease predicted by the slope that a step has to reach
_HALVINGS = 40


class Risks(Protocol):
    """Smooth convex functions of K x p coefficients each; `kinfed.learners.softmax.SoftmaxRisk` explains the methods."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (T, K, p) of all coefficients: T functions of K x p of them."""

    def value_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Values (T,) and gradients (T, K, p) at theta."""

    def hessian(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Positive definite Hessians (len(rows), K p, K p) of the functions `rows`; only Newton's method asks for them."""


class BoundedRisks(Risks, Protocol):
    """Such functions with a bound on their curvature that holds everywhere, from which L-BFGS starts."""

    def bound(self) -> Array:
        """Matrices (T, p, p) above the curvature of each row of coefficients everywhere."""

    def bound_diagonal(self) -> Array:
        """The diagonals (T, p) of the curvature bounds."""


@dataclass(frozen=True, eq=False)
class Descent:
    """Where the descent ended.

    Attributes
    ----------
    theta : array of shape (T, K, p)
    gradient_norm : array of shape (T,)
        The certificate: the function is convex, so a small gradient means a minimum.
    iterations : array of int of shape (T,)
    converged : array of bool of shape (T,)
    """

    theta: Array
    gradient_norm: Array
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Iterates:
    """Iterates of all functions, with their values and gradients."""

    theta: Array
    value: Array
    gradient: Array


def newton(risk: Risks, start: Array, tolerance: float, max_iterations: int) -> Descent:
    """Damped Newton: few iterations, each with one Hessian of K p columns per function."""

    def direction(state: Iterates, moving: NDArray[np.int64]) -> Array:
        gradient = state.gradient[moving].reshape(len(moving), -1)
        step = np.linalg.solve(risk.hessian(state.theta, moving), gradient[..., None])
        return -np.asarray(step).reshape(len(moving), *state.theta.shape[1:])

    return _descend(risk, start, direction, tolerance, max_iterations)


def lbfgs(risk: BoundedRisks, start: Array, tolerance: float, max_iterations: int) -> Descent:
    """L-BFGS started from a bound on the curvature that holds everywhere: many cheap iterations."""
    return _descend(risk, start, _History(_curvature_inverse(risk)).direction, tolerance, max_iterations)


def _descend(
    risk: Risks,
    start: Array,
    direction: Callable[[Iterates, NDArray[np.int64]], Array],
    tolerance: float,
    max_iterations: int,
) -> Descent:
    """Steps along `direction`, which gives one for each of the functions that still move."""
    state = Iterates(start, *risk.value_and_gradient(start))
    norm = _norms(state.gradient)
    goal = tolerance * np.maximum(1.0, norm)
    iterations = np.zeros(len(start), dtype=np.int64)
    stuck = np.zeros(len(start), dtype=bool)
    for _ in range(max_iterations):
        moving = np.flatnonzero((norm > goal) & ~stuck)
        if len(moving) == 0:
            break
        state, moved = _line_search(risk, state, moving, direction(state, moving))
        stuck[moving] = ~moved
        iterations[moving] += 1
        norm = _norms(state.gradient)
    return Descent(state.theta, norm, iterations, norm <= goal)


def _line_search(
    risk: Risks, state: Iterates, moving: NDArray[np.int64], step: Array
) -> tuple[Iterates, NDArray[np.bool_]]:
    """Halve each step until the value decreases enough; also return which functions found such a step."""
    slope = np.einsum("tkp,tkp->t", state.gradient[moving], step)
    # Near the minimum the decrease is below the rounding of the value, and must not be asked for.
    rounding = 16 * np.finfo(float).eps * (1.0 + np.abs(state.value[moving]))
    theta, value, gradient = state.theta.copy(), state.value.copy(), state.gradient.copy()
    moved = np.zeros(len(moving), dtype=bool)
    length = np.ones(len(moving))
    for _ in range(_HALVINGS):
        candidate = theta.copy()
        candidate[moving] += np.where(moved, 0.0, length)[:, None, None] * step
        new_value, new_gradient = risk.value_and_gradient(candidate)
        enough = new_value[moving] <= state.value[moving] + _SUFFICIENT * length * slope + rounding
        newly = moving[enough & ~moved]
        theta[newly], value[newly], gradient[newly] = candidate[newly], new_value[newly], new_gradient[newly]
        moved |= enough
        if moved.all():
            break
        length *= 0.5
    return Iterates(theta, value, gradient), moved


class _History:
    """The last pairs (step, change of gradient) of every function, and the direction they give."""

    def __init__(self, curvature_inverse: Callable[[Array, NDArray[np.int64]], Array]) -> None:
        self._precondition = curvature_inverse
        # With each pair 1 / <step, change>, zero where a function did not move.
        self._pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=MEMORY)
        self._last: Iterates | None = None

    def direction(self, state: Iterates, moving: NDArray[np.int64]) -> Array:
        """Two-loop recursion: minus the inverse Hessian estimate times the gradient."""
        if self._last is not None:
            self._remember(state.theta - self._last.theta, state.gradient - self._last.gradient)
        self._last = state
        pairs = [(step[moving], change[moving], inverse[moving]) for step, change, inverse in self._pairs]
        vector = state.gradient[moving].copy()
        factors = []
        for step, change, inverse in reversed(pairs):
            factor = inverse * _inner(step, vector)
            vector -= factor[:, None, None] * change
            factors.append(factor)
        vector = self._precondition(vector, moving)
        if pairs:
            vector *= self._scale(*pairs[-1][1:], moving)[:, None, None]
        for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
            vector += (factor - inverse * _inner(change, vector))[:, None, None] * step
        return -vector

    def _remember(self, step: Array, change: Array) -> None:
        product = _inner(step, change)
        useful = product > 1e-14 * np.sqrt(_inner(step, step) * _inner(change, change))
        self._pairs.append((step, change, np.where(useful, 1.0 / np.where(useful, product, 1.0), 0.0)))

    def _scale(self, change: Array, inverse: Array, moving: NDArray[np.int64]) -> Array:
        """<step, change> / <change, P change> of a pair: how far the bound P lies above the true curvature."""
        spread = _inner(change, self._precondition(change, moving))
        useful = (inverse > 0) & (spread > 0)
        return np.where(useful, 1.0 / np.where(useful, inverse * spread, 1.0), 1.0)


def _curvature_inverse(risk: BoundedRisks) -> Callable[[Array, NDArray[np.int64]], Array]:
    if risk.shape[2] <= LARGEST_BOUND:
        bound = risk.bound()
        # Columns that are constant and unpenalised have no curvature; they do not move either.
        columns = np.arange(bound.shape[1])
        bound[:, columns, columns] += 1e-12 * np.maximum(bound[:, columns, columns].max(axis=1), 1e-300)[:, None]
        inverse = np.linalg.inv(bound)
        return lambda vector, moving: vector @ inverse[moving]
    diagonal = np.maximum(risk.bound_diagonal(), 1e-300)
    return lambda vector, moving: vector / diagonal[moving][:, None, :]


def _inner(first: Array, second: Array) -> Array:
    return np.asarray(np.einsum("tkp,tkp->t", first, second))


def _norms(gradient: Array) -> Array:
    return np.sqrt(_inner(gradient, gradient))
