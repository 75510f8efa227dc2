r"""An exact solver for the simplex problem with a certificate, for all targets at once.

Optimal weights are sparse: a target listens to a few dozen agents even among thousands. So each target keeps a working
set. A round prices all agents with one matrix product, which also certifies the targets that are done, and gives every
other target its support and the most promising newcomers. On that small set a Newton step in the manner of Lawson and
Hanson goes to the minimum or to the first weight that would turn negative, which leaves the set. Every step lowers
:math:`f_t`, so up to rounding no working set returns and the method ends; where rounding stops it first, the best weights
seen are returned and the stop reason says so. A gap cannot be smaller than rounding in the gradients, about 1e-16 times
the largest squared distance between two means.

The Newton step solves :math:`(2 G_{SS} + \rho I)\, \delta = -g_S + \lambda 1` with :math:`1'\delta = 0`. The tiny proximal
:math:`\rho` makes the matrix regular where agents are duplicates or more numerous than dimensions: along a flat
direction that still descends the step becomes very long and ends where a weight reaches zero, as it should. Since steps
are increments from the current weights, rounding in one is corrected by the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinfed.validation import Array
from kinfed.weights.objective import SimplexProblem, duality_gap

OPTIMAL = "optimal: no other weights are better by more than the gap"
ROUNDING = "stopped by rounding: the gap is as small as double precision allows"
STALLED = "stopped without progress, most likely by rounding: the gap says how far the optimum may be"
ROUNDS = "stopped after the last round allowed: the gap says how far the optimum may be"

# A target is done when its gap is below this share of the value of learning alone.
_RELATIVE_GAP = 1e-13
_PROXIMAL = 1e-11
_NEWCOMERS = 8
_MOST_ROUNDS = 500
_MOST_STALLED = 20
# Entries of the stacked matrices 2 G_SS a batch of targets may hold (128 MB).
_BATCH_ENTRIES = 1 << 24


def active_set(problem: SimplexProblem) -> tuple[Array, Array, tuple[str, ...]]:
    """Optimal weights, their duality gaps, and for each target why the solver stopped."""
    count, n_agents = problem.linear.shape
    weights = np.zeros((count, n_agents))
    weights[np.arange(count), problem.targets] = 1.0
    best, best_gap, stalled = weights.copy(), np.full(count, np.inf), np.zeros(count, dtype=int)
    stops = np.full(count, ROUNDS, dtype=object)
    scale = np.abs(problem.gram).max() + np.abs(problem.linear).max(axis=1)
    floor = 4 * np.finfo(float).eps * scale
    live = np.arange(count)
    for _ in range(_MOST_ROUNDS):
        gradients = problem.rows(live).gradient(weights[live])
        gap = duality_gap(gradients, weights[live])
        better = live[gap < best_gap[live]]
        best[better] = weights[better]
        # Progress may pause while a working set grows, so only many rounds without any end a target early.
        stalled[live] = np.where(gap < 0.5 * best_gap[live], 0, stalled[live] + 1)
        best_gap[live] = np.minimum(gap, best_gap[live])
        optimal = gap <= _RELATIVE_GAP * problem.alone[live]
        exhausted = ~optimal & (stalled[live] >= np.where(gap <= floor[live], 3, _MOST_STALLED))
        stops[live[optimal]] = OPTIMAL
        stops[live[exhausted]] = np.where(gap[exhausted] <= floor[live[exhausted]], ROUNDING, STALLED)
        going = ~(optimal | exhausted)
        live, gradients = live[going], gradients[going]
        if not len(live):
            break
        for batch in _batches(weights[live]):
            rows = live[batch]
            weights[rows] = _improve(problem, weights[rows], gradients[batch], _PROXIMAL * scale[rows])
    return best, best_gap, tuple(stops)


def _batches(weights: Array) -> list[NDArray[np.int64]]:
    """Split targets so that working sets of like size are solved together and fit in memory."""
    sizes = _working_set_size((weights > 0).sum(axis=1), weights.shape[1])
    order, batches, start = np.argsort(sizes, kind="stable"), [], 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * int(sizes[order[stop]]) ** 2 <= _BATCH_ENTRIES:
            stop += 1
        batches.append(order[start:stop])
        start = stop
    return batches


def _working_set_size(support: NDArray[np.int64], n_agents: int) -> NDArray[np.int64]:
    return np.asarray(np.minimum(n_agents, support + np.maximum(_NEWCOMERS, support)))


def _improve(problem: SimplexProblem, weights: Array, gradients: Array, proximal: Array) -> Array:
    """One round for a batch of targets: choose working sets, then minimise over them."""
    support = weights > 0
    size = int(_working_set_size(support.sum(axis=1), weights.shape[1]).max())
    price = gradients - np.einsum("tk,tk->t", gradients, weights)[:, None]
    # The support comes first, then agents in the order of their promise; those that promise nothing stay fixed at zero.
    order = np.where(support, -np.inf, price)
    working = np.argpartition(order, min(size, order.shape[1] - 1), axis=1)[:, :size]
    free = np.take_along_axis(order, working, axis=1) < 0
    hessians = 2 * problem.gram[working[:, :, None], working[:, None, :]]
    improved = np.zeros_like(weights)
    np.put_along_axis(
        improved,
        working,
        _minimise_on_working_sets(
            hessians,
            np.take_along_axis(weights, working, axis=1),
            np.take_along_axis(price, working, axis=1),
            free,
            proximal,
        ),
        axis=1,
    )
    return improved


def _minimise_on_working_sets(
    hessians: Array, weights: Array, gradients: Array, free: NDArray[np.bool_], proximal: Array
) -> Array:
    """Newton steps with a ratio test until no weight of any working set is stopped at zero."""
    going = np.arange(len(weights))
    for _ in range(weights.shape[1] + 1):
        current, slopes, movable = weights[going], gradients[going], free[going]
        step = _newton_step(hessians[going], slopes, movable, proximal[going])
        falling = movable & (current + step < 0)
        lengths = np.where(falling, -current / np.where(falling, step, -1.0), np.inf)
        length = np.minimum(1.0, lengths.min(axis=1))
        moved = np.maximum(current + length[:, None] * step, 0.0)
        stopped = falling & (lengths <= length[:, None])
        moved[stopped] = 0.0
        moved /= moved.sum(axis=1, keepdims=True)
        gradients[going] = slopes + np.einsum("tij,tj->ti", hessians[going], moved - current)
        weights[going], free[going] = moved, movable & ~stopped
        going = going[length < 1.0]
        if not len(going):
            break
    return weights


def _newton_step(hessians: Array, gradients: Array, free: NDArray[np.bool_], proximal: Array) -> Array:
    """Minimise the quadratic over the free weights, keeping their sum; weights that are not free do not move."""
    mask = free.astype(float)
    matrices = hessians * mask[:, :, None] * mask[:, None, :]
    diagonal = np.arange(mask.shape[1])
    matrices[:, diagonal, diagonal] += np.where(free, proximal[:, None], 1.0)
    solved = np.linalg.solve(matrices, np.stack([-gradients * mask, mask], axis=-1))
    downhill, constant = solved[..., 0], solved[..., 1]
    # The multiplier of the sum constraint takes out of the step what would change the sum.
    return np.asarray(downhill - (downhill.sum(axis=1) / constant.sum(axis=1))[:, None] * constant)
