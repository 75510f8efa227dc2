"""Regularise all means towards each other with one similarity (Feldman et al., 2014)."""

from __future__ import annotations

import numpy as np

from kinfed.moments import squared_distances
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def multi_task_averaging(geometry: Geometry) -> Weights:
    r"""Multi-task averaging with the constant similarity :math:`a = 2 / \mathrm{mean}_{k \ne l} |\nu_k - \nu_l|^2`.

    :math:`W = (I + \frac{a}{B} \mathrm{diag}(s) (B I - 1 1'))^{-1}`. With :math:`D = I + a\,\mathrm{diag}(s)` the matrix to
    invert is :math:`D - \frac{a}{B} s 1'`, a rank-one change of a diagonal, so W has a closed form with nonnegative
    entries and rows that sum to one.

    References
    ----------
    Feldman, Gupta and Frigyik, Revisiting Stein's paradox: multi-task averaging, JMLR 2014.
    """
    n_agents, scatter = len(geometry), geometry.scatter
    total = squared_distances(geometry.gram).sum()
    if n_agents == 1:
        matrix = np.ones((1, 1))
    elif total <= np.finfo(float).tiny or not scatter.any():
        # Equal means: the limit of a -> infinity weighs by precision; without any spread all are equally exact.
        precision = 1 / scatter if scatter.all() else (scatter == 0).astype(float)
        matrix = np.tile(precision / precision.sum(), (n_agents, 1))
    else:
        similarity = 2 * n_agents * (n_agents - 1) / total
        diagonal = 1 + similarity * scatter
        column = (similarity / n_agents) * scatter / diagonal
        # 1 - sum(column) is the mean of 1 / D, written so that nothing cancels.
        matrix = np.diag(1 / diagonal) + np.outer(column, 1 / diagonal) / np.mean(1 / diagonal)
        matrix /= matrix.sum(axis=1, keepdims=True)
    return weights_of(geometry, "multi-task-averaging", matrix[geometry.targets])
