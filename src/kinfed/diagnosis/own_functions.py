r"""How much of what a common model leaves open is explained by functions that agents have of their own.

If :math:`e_i = g_k(x_i) + \varepsilon_i` where the :math:`g_k` are independent between agents and have the covariance
:math:`\sum_a \sigma_a^2 \kappa_a(x, x')`, then :math:`E \langle e_i, e_j \rangle = \sum_a \sigma_a^2 \kappa_a(x_i, x_j)`
for two rows of one agent. So the :math:`\sigma_a^2` come from a regression of products of residuals on kernels, over pairs
of rows (Haseman and Elston, 1972). A constant, a linear and a Gaussian kernel stand for offsets, slopes and curves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]


def share_of_own_functions(residuals: Array, kernels: Sequence[Array], starts: NDArray[np.int64]) -> float:
    r""":math:`\sum_a \sigma_a^2 / E |e|^2`, with :math:`\sigma_a^2 \ge 0`, for kernels whose mean of k(x, x) is one.

    Parameters
    ----------
    residuals : array of shape (N, q)
    kernels : one array of shape (N, D_a) each
        Features whose inner products are the kernel.
    starts : array of shape (B,)
        Where the rows of every agent start; pairs of agent k have the weight :math:`1 / n_k`.
    """
    energy = np.sum(residuals**2, axis=1)
    if not energy.any():
        return 0.0
    diagonals = [np.sum(kernel**2, axis=1) for kernel in kernels]
    normal, answer = np.zeros((len(kernels), len(kernels))), np.zeros(len(kernels))
    for rows in np.split(np.arange(len(residuals)), starts[1:]):
        own = [kernel[rows] for kernel in kernels]
        for a, one in enumerate(own):
            answer[a] += (np.sum((residuals[rows].T @ one) ** 2) - energy[rows] @ diagonals[a][rows]) / len(rows)
            for b, other in enumerate(own):
                normal[a, b] += (np.sum((one.T @ other) ** 2) - diagonals[a][rows] @ diagonals[b][rows]) / len(rows)
    if not np.diag(normal).any():  # no agent has two rows
        return 0.0
    variances, _ = nnls(normal, answer)
    return float(min(variances.sum() / energy.mean(), 1.0))
