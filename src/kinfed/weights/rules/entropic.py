"""Q-aggregation with a pull towards the grand mean."""

from __future__ import annotations

import numpy as np

from kinfed.validation import positive
from kinfed.weights.geometry import Geometry
from kinfed.weights.mirror_descent import mirror_descent
from kinfed.weights.objective import q_aggregation_problem
from kinfed.weights.result import Weights, weights_of


def entropic(
    geometry: Geometry, strength: float = 0.1, c_q: float = 1.0, c_p: float = 0.0, relative_gap: float = 1e-8
) -> Weights:
    r"""Minimise :math:`f_t(w) + \tau s_t \mathrm{KL}(w \| p)` with :math:`p_k = n_k / \sum_l n_l`.

    The pull keeps every agent in play with a weight that fades as it grows unlike the target: :math:`\tau \to \infty` gives
    the grand mean, :math:`\tau \to 0` the exact minimum of :math:`f_t`. The certificate is the gap to the minimum of the
    linearised problem, which has a closed form.

    Parameters
    ----------
    strength : float
        :math:`\tau`, in units of the target's own error :math:`s_t`.
    c_q, c_p : float
        Constants of :math:`f_t`. The pull already guards against chance, so they are smaller than the paper's.
    relative_gap : float
        Accuracy: the certified gap, relative to the value of being alone.
    """
    strength = positive(strength, "strength")
    problem = q_aggregation_problem(geometry, c_q, c_p)
    log_prior = np.log(geometry.sizes / geometry.sizes.sum())
    pull = strength * geometry.scatter[geometry.targets]
    found = mirror_descent(problem, geometry.targets, log_prior, pull, positive(relative_gap, "relative_gap"))
    return weights_of(geometry, "entropic", found.weights, found.value, found.gap, found.stop)
