r"""Squared MMD between agents, with its standard error, from inner products alone.

With :math:`\delta = \mu_k - \mu_t` and :math:`e_k = \nu_k - \mu_k` the errors of the empirical means,

.. math::

    U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k, \qquad
    U_{tk} - |\delta|^2 = 2 \langle \delta, e_k - e_t \rangle + \bigl( |e_k - e_t|^2 - s_t - s_k \bigr),

so U is unbiased and its variance is

.. math::

    4 \delta' \Bigl( \frac{\Sigma_t}{n_t} + \frac{\Sigma_k}{n_k} \Bigr) \delta
    + 2\, \mathrm{tr} \Bigl( \frac{\Sigma_t}{n_t} + \frac{\Sigma_k}{n_k} \Bigr)^2 + \text{smaller terms}.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinfed.weights.geometry import Geometry

Array = NDArray[np.float64]


def unbiased_squared_mmd(geometry: Geometry) -> Array:
    r""":math:`U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k`, (T, B), unbiased for the squared MMD; zero for a target itself."""
    own = geometry.scatter[geometry.targets][:, None]
    estimate = geometry.squared_distances - own - geometry.scatter
    estimate[np.arange(len(geometry.targets)), geometry.targets] = 0.0
    return np.asarray(estimate)


def squared_mmd_errors(geometry: Geometry) -> Array:
    r"""Standard errors (T, B) of `unbiased_squared_mmd`.

    .. math:: \mathrm{se}_{tk}^2 = \frac{4 q_{tk}}{n_t} \Bigl( 1 + \frac{s_k}{s_t} \Bigr).

    The variance :math:`q_{tk}` of target t towards agent k holds the noise of both means: its expectation is
    :math:`\delta' \Sigma_t \delta + \mathrm{tr}\,\Sigma_t \Sigma_k / n_k + \mathrm{tr}\,\Sigma_t^2 / n_t`. The part that is
    due to agent k is scaled from the target's by the traces, since agents close in MMD have nearly equal covariances;
    so nothing is needed that the target does not know. The second part of the variance counts twice: between equal
    distributions the standard error is too large by up to :math:`\sqrt 2`, which makes good for the few points it is
    usually estimated from.
    """
    own = geometry.scatter[geometry.targets][:, None]
    spread = own > 0
    shares = geometry.scatter / np.where(spread, own, 1.0)
    variances = 4 * geometry.directional / geometry.sizes[geometry.targets][:, None] * (1 + shares)
    # A target whose points coincide knows nothing of the shape of the others: delta' Sigma delta <= |delta|^2 tr Sigma.
    return np.sqrt(np.where(spread, variances, 4 * geometry.scatter * geometry.squared_distances))
