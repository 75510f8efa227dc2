r"""Why an agent is listened to: how far its mean embedding is, beside how far it would be by chance alone.

For two agents of one distribution the squared distance :math:`|\nu_t - \nu_k|^2` of their mean embeddings (the biased
estimate of their squared MMD) has mean :math:`s_t + s_k` and is a weighted sum of chi squares with one weight per direction
of the covariance. With :math:`d^e` equal weights it would be :math:`(s_t + s_k) \chi^2_{d} / d`; since the effective
dimension :math:`d^e = \mathrm{tr}\,\Sigma / |\Sigma|_{op}` counts the fewest directions that are
consistent with the covariance, the quantile

.. math:: (s_t + s_k) \, \chi^2_{d^e, \, 0.95} / d^e

is on the safe side: a larger distance is evidence that the two differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from kinfed.weights.geometry import Geometry

Array = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Evidence:
    """Squared distances between mean embeddings, and what chance explains of them.

    Attributes
    ----------
    squared_distances : array of shape (T, B)
        Squared MMD of every target and agent (biased estimate).
    null_means : array of shape (T, B)
        Mean :math:`s_t + s_k` of that distance between agents of one distribution.
    freedom : array of shape (T,)
        Effective dimension :math:`d^e` of every target.
    """

    squared_distances: Array
    null_means: Array
    freedom: Array

    @cached_property
    def null_quantiles(self) -> Array:
        """Quantile at `LEVEL` of the distance between agents of one distribution, shape (T, B)."""
        quantiles = 2 * gammaincinv(self.freedom / 2, LEVEL)  # of chi squared with that many degrees of freedom
        return np.asarray(self.null_means * (quantiles / self.freedom)[:, None])

    @property
    def differ(self) -> NDArray[np.bool_]:
        """Whether a target and an agent are farther apart than chance explains."""
        return self.squared_distances > self.null_quantiles


def evidence_of(geometry: Geometry) -> Evidence:
    """Evidence for and against kinship of every pair of target and agent."""
    means = geometry.scatter[geometry.targets][:, None] + geometry.scatter
    return Evidence(geometry.squared_distances, means, geometry.effective_dimensions)
