r"""The paper's Algorithm 3: exponential gradient with the prox step of Nemirovski, for all targets at once.

From the uniform start each step moves twice from the same w: a proxy :math:`w' \propto w\, e^{-\eta \nabla f(w)}`, then
:math:`w \propto w\, e^{-\eta \nabla f(w')}`, with :math:`\eta_t = c / (2 |A_t|_{op} + |b_t|_\infty)` and :math:`A_t` the
Gram matrix of :math:`\nu_k - \nu_t`. After T steps the result is far from the minimum: the early stop is part of the
estimator. A constant added to a gradient cancels when the weights are normalised, so the shared Gram matrix takes the
place of every :math:`A_t`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from kinfed.errors import InputError
from kinfed.parallel import available_cores, map_on_cores
from kinfed.validation import positive, positive_integer
from kinfed.weights.objective import SimplexProblem

Array = NDArray[np.float64]

# Targets advanced together: enough for an efficient matrix product, few enough to stay in cache.
_TARGETS_AT_ONCE = 80
_BISECTIONS = 64
# One step multiplies a weight by up to e^(2 c); far beyond this the weights would overflow.
_LARGEST_STEP = 100.0


class _Half(NamedTuple):
    """Buffers of one chunk of targets, so that the 2 T half-steps allocate nothing."""

    slope: Array
    exponent: Array


def exponential_gradient(
    problem: SimplexProblem, steps: int = 1000, step_scale: float = 0.5, checkpoints: Sequence[int] = ()
) -> tuple[Array, dict[int, Array]]:
    """Weights after `steps` steps from the uniform start, and those read off the path at each of `checkpoints`.

    Parameters
    ----------
    problem : SimplexProblem
    steps : int
        T.
    step_scale : float
        c.
    checkpoints : sequence of int
        Numbers of steps, at most T, after which the weights are kept too.
    """
    steps = positive_integer(steps, "steps")
    step_scale = positive(step_scale, "step_scale")
    if step_scale > _LARGEST_STEP:
        raise InputError(f"step_scale must be at most {_LARGEST_STEP:g}, got {step_scale:g}; the paper takes 0.5")
    kept = sorted({positive_integer(step, "checkpoint") for step in checkpoints if step <= steps})
    largest = 2 * shifted_operator_norms(problem.gram)[problem.targets] + np.abs(problem.linear).max(axis=1)
    # A problem that is zero everywhere has no scale: every step size leaves the weights where they are.
    sizes = step_scale / np.where(largest > 1e-200, largest, 1.0)
    count = len(problem.targets)
    chunks = max(min(count, available_cores()), -(-count // _TARGETS_AT_ONCE))
    parts = map_on_cores(
        lambda rows: _path(problem.rows(rows), sizes[rows], steps, kept),
        np.array_split(np.arange(count), chunks),
        operations=4.0 * steps * problem.linear.size * len(problem.gram),
    )
    path = {step: np.vstack([part[1][i] for part in parts]) for i, step in enumerate(kept)}
    return np.vstack([part[0] for part in parts]), path


def shifted_operator_norms(gram: Array) -> Array:
    r""":math:`|A_t|_{op}` for every t, where :math:`A_t` is the Gram matrix of :math:`\nu_k - \nu_t`.

    Let G be the Gram matrix about the mean of the means, with eigenvalues :math:`\lambda_i` and eigenvectors Q. The nonzero
    eigenvalues of :math:`A_t` are those of :math:`\sum_k (\nu_k - \nu_t)(\nu_k - \nu_t)' = \sum_k \nu_k \nu_k' + B\,
    \nu_t \nu_t'`: a rank-one change, whose largest eigenvalue is the root beyond :math:`\lambda_{max}` of the secular
    equation :math:`1 = B \sum_i \lambda_i Q_{ti}^2 / (\mu - \lambda_i)`. One eigendecomposition serves all targets.
    """
    means = gram.mean(axis=0)
    centred = gram - means - means[:, None] + gram.mean()
    eigenvalues, vectors = eigh(centred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    top = eigenvalues[-1]
    strengths = len(gram) * eigenvalues * vectors**2
    # The root lies between lambda_max and lambda_max + B |nu_t|^2; bisect on the excess over lambda_max.
    low, high = np.zeros(len(gram)), np.maximum(strengths.sum(axis=1), 1e-300)
    distances = top - eigenvalues
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = (strengths / (distances + middle[:, None])).sum(axis=1) > 1
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(top + high)


def _path(problem: SimplexProblem, sizes: Array, steps: int, kept: list[int]) -> tuple[Array, list[Array]]:
    """Run one chunk of targets; the rows are carried as -2 eta_t w, so that a product with G is an exponent."""
    gram, n_agents = problem.gram, problem.gram.shape[0]
    totals = -2 * sizes
    slope = -sizes[:, None] * (problem.linear - 2 * gram[problem.targets])
    scaled = np.repeat(totals[:, None] / n_agents, n_agents, axis=1)
    proxy, buffers = np.empty_like(scaled), _Half(slope, np.empty_like(scaled))
    path = []
    for step in range(1, steps + 1):
        _half_step(scaled, scaled, gram, totals, buffers, out=proxy)
        _half_step(scaled, proxy, gram, totals, buffers, out=scaled)
        if step in kept:
            path.append(scaled / totals[:, None])
    return scaled / totals[:, None], path


def _half_step(scaled: Array, at: Array, gram: Array, totals: Array, buffers: _Half, out: Array) -> None:
    """Move from `scaled` along the gradient taken at `at`."""
    exponent = buffers.exponent
    np.matmul(at, gram, out=exponent)
    np.add(exponent, buffers.slope, out=exponent)
    np.exp(exponent, out=exponent)
    np.multiply(scaled, exponent, out=out)
    np.multiply(out, (totals / out.sum(axis=1))[:, None], out=out)
