r"""Two nulls: how far agents would lie apart if rows, or residuals of rows that are near each other, were dealt at random.

Every agent k has a statistic :math:`T_k` of its own, and :math:`T = \sum_k T_k`. A p-value is the share of the
permutations, the data themselves among them, whose statistic is at least as large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from kinfed.validation import Array, FloatArray, Integers

Step = Callable[[int], None]
"""Called with the number of permutations done."""

# Equal statistics are sums of the same numbers in another order, so in single precision they agree up to this.
_TIE = 1e-5
# Permutations are handled together up to this many numbers: enough for an efficient product, few enough for memory.
_BLOCK_NUMBERS = 4e6


@dataclass(frozen=True, eq=False)
class Permuted:
    """The statistic of the data beside those of its permutations.

    Attributes
    ----------
    statistic : float
        T.
    null_mean : float
        Mean of T over the permutations.
    p_value : float
    own_p_values : array of shape (B,)
        Of every :math:`T_k`.
    """

    statistic: float
    null_mean: float
    p_value: float
    own_p_values: Array


def deal_rows(points: FloatArray, agent: Integers, permutations: int, rng: np.random.Generator, step: Step) -> Permuted:
    r"""Deal rows to agents at random: :math:`T_k = n_k |\nu_k - \nu|^2`; exact for features that do not know the agents.

    Parameters
    ----------
    points : array of shape (N, D)
        Centred, so that :math:`\nu = 0`.
    agent : array of shape (N,)
        The agent 0, 1, ... of every row, in ascending order; each has one.
    """
    sizes, ends = _sizes(agent)
    rows = points.astype(np.float32)
    ones = np.ones(len(rows), dtype=np.float32)

    def own(order: Integers) -> Array:
        sums = csr_array((ones, order, ends), shape=(len(sizes), len(rows))) @ rows
        return np.asarray(np.einsum("kd,kd->k", sums, sums) / sizes, dtype=np.float64)

    count = _Count(own(np.arange(len(rows))), np.full(len(sizes), float(np.mean(rows**2) * rows.shape[1])))
    for done in range(1, permutations + 1):
        count.add(own(rng.permutation(len(rows)))[None])
        step(done)
    return count.result()


def exchange_within_cells(
    residuals: Array,
    points: Array,
    agent: Integers,
    cell: Integers,
    permutations: int,
    rng: np.random.Generator,
    step: Step,
) -> Permuted:
    r"""Exchange residuals :math:`e_i` between rows of one cell, for what residuals of one agent have in common.

    .. math:: T_k = \frac{1}{n_k} \sum_{i \ne j \in k} \langle e_i, e_j \rangle \langle \varphi_i, \varphi_j \rangle
                  = \frac{1}{n_k} \Big( \big| \sum_{i \in k} e_i \otimes \varphi_i \big|^2
                    - \sum_{i \in k} |e_i|^2 |\varphi_i|^2 \Big)

    Without its diagonal the sum is zero on average even where residuals are larger at some inputs than at others.

    Parameters
    ----------
    residuals : array of shape (N, q)
    points : array of shape (N, D)
        :math:`\varphi_i`.
    agent, cell : array of shape (N,)
        The agent, in ascending order, and the cell 0, 1, ... of every row.
    """
    sizes, ends = _sizes(agent)
    values, rows = residuals.astype(np.float32), points.astype(np.float32)
    energy, norms = np.einsum("nq,nq->n", values, values), np.einsum("nd,nd->n", rows, rows)
    spans = [slice(start, end) for start, end in pairwise(ends)]
    # Of every agent the points or, if it is smaller, their Gram matrix: the one that is square.
    matrices = [one @ one.T if len(one) <= one.shape[1] else one for one in (rows[span] for span in spans)]

    def own(orders: Integers) -> Array:
        dealt = values[orders].transpose(0, 2, 1)  # permutations, outputs, rows
        squares = [_squared_sums(dealt[:, :, span], one) for span, one in zip(spans, matrices, strict=True)]
        return (np.column_stack(squares) - _by_agent(energy[orders] * norms, ends)) / sizes

    count = _Count(own(np.arange(len(rows))[None])[0], _by_agent((energy * norms)[None], ends)[0] / sizes)
    by_cell = np.argsort(cell, kind="stable")
    block = max(1, int(_BLOCK_NUMBERS / values.size))
    for start in range(0, permutations, block):
        orders = np.empty((min(block, permutations - start), len(rows)), dtype=np.int64)
        # Random numbers within a cell, whole numbers between cells: sorting shuffles every cell on its own.
        orders[:, by_cell] = np.argsort(cell + rng.random(orders.shape), axis=1)
        count.add(own(orders))
        step(start + len(orders))
    return count.result()


def _squared_sums(residuals: NDArray[np.float32], matrix: NDArray[np.float32]) -> Array:
    r""":math:`|\sum_i e_i \otimes \varphi_i|^2` of one agent, a number per permutation.

    Parameters
    ----------
    residuals : array of shape (permutations, outputs, n)
    matrix : array of shape (n, D) or (n, n)
        The points :math:`\varphi_i` of more than D rows, or the Gram matrix of those of fewer.
    """
    flat = np.ascontiguousarray(residuals).reshape(-1, residuals.shape[2])
    product = flat @ matrix
    sums = np.einsum("nd,nd->n", product, flat if flat.shape == product.shape else product)
    return np.asarray(sums.reshape(residuals.shape[:2]).sum(axis=1), dtype=np.float64)


class _Count:
    """How often permutations reach the statistics of the data; `scale` is the unit in which two of them are equal."""

    def __init__(self, observed: Array, scale: Array) -> None:
        self._observed = observed
        self._least_own, self._least = observed - _TIE * scale, observed.sum() - _TIE * scale.sum()
        self._reached_own, self._reached, self._total, self._seen = np.ones(len(observed)), 1, 0.0, 0

    def add(self, own: Array) -> None:
        """Count the statistics (permutations, agents) that reach those of the data."""
        totals = own.sum(axis=1)
        self._reached_own += (own >= self._least_own).sum(axis=0)
        self._reached += int((totals >= self._least).sum())
        self._total += float(totals.sum())
        self._seen += len(own)

    def result(self) -> Permuted:
        """The p-values of everything that was added so far."""
        return Permuted(
            statistic=float(self._observed.sum()),
            null_mean=self._total / self._seen,
            p_value=self._reached / (self._seen + 1),
            own_p_values=self._reached_own / (self._seen + 1),
        )


def _sizes(agent: Integers) -> tuple[Integers, Integers]:
    """Rows per agent, and where each agent's rows start and the last one's end."""
    sizes = np.bincount(agent)
    return sizes, np.concatenate([[0], np.cumsum(sizes)])


def _by_agent(values: FloatArray, ends: Integers) -> Array:
    """Sums (permutations, agents) of values (permutations, rows)."""
    return np.add.reduceat(values.astype(np.float64), ends[:-1], axis=1)
