"""Shrink every agent towards the mean of all (James and Stein, 1961)."""

from __future__ import annotations

import numpy as np

from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def james_stein(geometry: Geometry) -> Weights:
    r"""Positive-part James-Stein towards :math:`m = B^{-1} \sum_k \nu_k`, with the effective dimension.

    Row t is :math:`c_t e_t + (1 - c_t) 1/B` with :math:`c_t = \bigl(1 - s_t (1 - 2/d_t) / |\nu_t - m|^2\bigr)_+`. An
    effective dimension :math:`d_t \le 2` gives :math:`c_t = 1`: in two dimensions the mean cannot be improved on.

    References
    ----------
    James and Stein, Estimation with quadratic loss, Berkeley Symposium 1961.
    """
    targets, n_agents = geometry.targets, len(geometry)
    # The Gram matrix is about the mean of the means, so its diagonal is the squared distance to m.
    distances = np.maximum(np.diag(geometry.gram)[targets], 0.0)
    shrinkage = geometry.scatter[targets] * np.maximum(1 - 2 / np.maximum(geometry.effective_dimensions, 1.0), 0.0)
    apart = distances > shrinkage
    kept = np.where(apart, 1 - shrinkage / np.where(apart, distances, 1.0), 0.0)
    kept[shrinkage == 0] = 1.0
    return weights_of(geometry, "james-stein", kept[:, None] * np.eye(n_agents)[targets] + (1 - kept[:, None]) / n_agents)
