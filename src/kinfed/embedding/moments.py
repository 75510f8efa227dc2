r"""Moments of embedded data: how spread out an agent is, and how far apart two agents are.

Every function takes points already embedded, or raw points and a kernel; both go through inner products alone.
With :math:`K` the Gram matrix of n points and H the centring matrix, the covariance (divisor n - 1) has the nonzero
eigenvalues of :math:`H K H / (n - 1)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.embedding.kernels import Kernel, operator_norm, squared_distances, two_or_more
from kinfed.validation import Array, agents_points, without_rounding


def trace_covariance(points: ArrayLike, kernel: Kernel | None = None) -> float:
    r"""Trace of the covariance, :math:`\mathrm{tr}\,\Sigma = \frac{1}{n-1}\sum_i |\Phi_i - \nu|^2`.

    The mean of n points has expected squared error tr Sigma / n.
    """
    array = two_or_more(points, "trace_covariance")
    n = len(array)
    if kernel is None:
        return float(np.var(array, axis=0, ddof=1).sum())
    diagonal = kernel.diagonal(array)
    return without_rounding(float(diagonal.sum() - kernel(array, array).sum() / n) / (n - 1), float(diagonal.max()))


def effective_dimension(points: ArrayLike, kernel: Kernel | None = None) -> float:
    r"""Effective dimension :math:`d^e = \mathrm{tr}\,\Sigma / |\Sigma|_{op}`; 1 for points that all coincide."""
    trace, norm = trace_covariance(points, kernel), operator_norm(points, kernel)
    return max(1.0, trace / norm) if trace > 0 and norm > 0 else 1.0


def mmd2(first: ArrayLike, second: ArrayLike, kernel: Kernel | None = None, *, unbiased: bool = True) -> float:
    r"""Squared maximum mean discrepancy between two samples.

    The biased form is :math:`|\nu_1 - \nu_2|^2`; the unbiased one subtracts :math:`\mathrm{tr}\,\Sigma_1/n_1 +
    \mathrm{tr}\,\Sigma_2/n_2`, its expectation between equal distributions, and can be negative.
    """
    return float(pairwise_mmd2([first, second], kernel, unbiased=unbiased)[0, 1])


def pairwise_mmd2(
    points: Mapping[Any, ArrayLike] | Sequence[ArrayLike], kernel: Kernel | None = None, *, unbiased: bool = True
) -> Array:
    r"""Matrix of squared MMD between all pairs of agents; the diagonal is zero in both forms (see `mmd2`)."""
    _, arrays = agents_points(points)
    if kernel is None:
        means = np.array([array.mean(axis=0, dtype=np.float64) for array in arrays])
        means -= means.mean(axis=0)
        gram = means @ means.T
    else:
        gram = np.empty((len(arrays), len(arrays)))
        for k, array in enumerate(arrays):
            for other in range(k, len(arrays)):
                gram[k, other] = gram[other, k] = kernel(array, arrays[other]).mean()
    distances = squared_distances(gram)
    if unbiased:
        mean_variance = np.array([trace_covariance(array, kernel) / len(array) for array in arrays])
        distances -= mean_variance[:, None] + mean_variance
        np.fill_diagonal(distances, 0.0)
    return distances
