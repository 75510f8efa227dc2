r"""Empirical Bayes over agents: what each found for itself, drawn towards what all found as far as its noise demands.

Agent t observes :math:`x_t = \theta_t + N(0, v_t)` with known :math:`v_t`, and :math:`\theta_t \sim N(\mu, \tau^2)`. With
:math:`\tau^2` of largest restricted likelihood and :math:`\mu` known no better than agents tell it, the posterior is

.. math:: \hat\mu + \rho_t (x_t - \hat\mu) \;\pm\; \sqrt{\rho_t v_t + (1 - \rho_t)^2 \mathrm{Var}(\hat\mu)}, \qquad
          \rho_t = \frac{\tau^2}{\tau^2 + v_t} .

The more an agent knows itself, the less it follows the others and the surer it is: of two agents with equal findings
the one with less noise never has the larger deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfed.validation import Array

_RATIOS = np.concatenate([[0.0], np.geomspace(1e-3, 1e2, 60)])  # of tau^2 to a typical noise


@dataclass(frozen=True, eq=False)
class Shrunken:
    r"""Posteriors of B agents, and of one that was not seen.

    Attributes
    ----------
    mean, variance : arrays of shape (B,)
    centre, centre_variance : float
        Of :math:`\mu`.
    between : float
        :math:`\tau^2`.
    """

    mean: Array
    variance: Array
    centre: float
    centre_variance: float
    between: float


def shrunken(found: Array, noise: Array) -> Shrunken:
    """Posteriors of what agents found (B,), whose noise has these variances (B,); of one agent or more."""
    typical = float(np.median(noise))
    if len(found) < 2 or typical <= 0:  # one agent says nothing of how agents differ
        between = float(np.var(found)) if len(found) > 1 else 0.0
    else:
        choices = typical * _RATIOS[:, None]
        precision = 1.0 / (noise + choices)
        total = precision.sum(axis=1, keepdims=True)
        centre = (precision @ found)[:, None] / total
        fit = (precision * np.square(found - centre) - np.log(precision)).sum(axis=1) + np.log(total[:, 0])
        between = float(choices[np.argmin(fit), 0])
    precision = 1.0 / np.maximum(noise + between, 1e-300)
    total = float(precision.sum())
    mean, kept = float(precision @ found) / total, between * precision
    return Shrunken(mean + kept * (found - mean), kept * noise + np.square(1 - kept) / total, mean, 1.0 / total, between)
