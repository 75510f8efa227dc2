"""Average over the agents that pass a test of equal means (Marienwald et al., 2021)."""

from __future__ import annotations

import numpy as np

from kinfed.validation import nonnegative
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def similarity_test(geometry: Geometry, zeta: float = 1.0, extra_self: float = 0.0) -> Weights:
    r"""Agent k is kin of t iff :math:`U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k \le \zeta s_t`; kin weigh by their size.

    :math:`U_{tk}` is unbiased for the squared distance of the true means, and joining k pays while that distance is below
    the error :math:`s_t` of being alone.

    Parameters
    ----------
    zeta : float
        How much farther than its own error a target looks.
    extra_self : float
        Share of the weight a target keeps for itself on top of its part in the average, from 0 to 1.

    References
    ----------
    Marienwald, Fermanian and Blanchard, High-dimensional multi-task averaging and application to kernel mean embedding,
    AISTATS 2021.
    """
    zeta = nonnegative(zeta, "zeta")
    extra = min(nonnegative(extra_self, "extra_self"), 1.0)
    targets = geometry.targets
    own = geometry.scatter[targets][:, None]
    unbiased = geometry.squared_distances - own - geometry.scatter
    kin = unbiased <= zeta * own
    kin[np.arange(len(targets)), targets] = True
    averages = kin * geometry.sizes.astype(float)
    averages /= averages.sum(axis=1, keepdims=True)
    alone = np.eye(len(geometry))[targets]
    return weights_of(geometry, "similarity-test", (1 - extra) * averages + extra * alone)
