r"""The paper's corollary in loss units: what a linear model can lose by a mixture that is not the target's distribution.

With :math:`\tilde z = (x, 1, y)` the kernel :math:`\kappa(z, z') = (\langle z, z' \rangle + 1)^2` on z = (x, y) is
:math:`\langle \tilde z, \tilde z' \rangle^2`. The mean embedding of a distribution P is its matrix of second moments,
:math:`\mu_P = E\, \tilde z \tilde z'`, with the inner product of Frobenius, and the squared error of the model
:math:`\theta = (a, c)` lies in that space:

.. math::

    \ell_\theta(z) = (y - a'x - c)^2 = \langle v v', \tilde z \tilde z' \rangle, \quad v = (a, c, -1), \qquad
    |\ell_\theta|_H = |v v'|_F = 1 + |\theta|^2.

Over all models with :math:`|\theta| \le r` the constant of the corollary is :math:`R_\Theta = 1 + r^2`; without a bound on
:math:`\theta` it is infinite. Let :math:`\hat\theta` minimise the risk of the mixture plus :math:`\lambda |a|^2`, as
`kinfed.learners.ridge.Ridge` does, let :math:`\hat\mu = \sum_k w_k \nu_k`, and let :math:`\theta^*` minimise the target's
risk R. As :math:`\hat\theta` is the better of the two on the mixture, with :math:`p = \lambda (|a^*|^2 - |\hat a|^2)`

.. math::

    R(\hat\theta) - R(\theta^*)
    &\le \langle \ell_{\hat\theta} - \ell_{\theta^*}, \mu - \hat\mu \rangle + p \\
    &\le |\ell_{\hat\theta} - \ell_{\theta^*}|\, |\mu - \hat\mu| + p  \qquad \text{(by the difference)} \\
    &\le (|\ell_{\hat\theta}| + |\ell_{\theta^*}|)\, |\mu - \hat\mu| + p  \qquad \text{(by the norms)} \\
    &\le 2 (1 + r^2)\, |\mu - \hat\mu| + \lambda r^2  \qquad \text{(the corollary)}

for every sample and all weights, however they were found, and so in expectation too. The paper counts the penalty as loss,
and bounds the excess of both together; here the risk is the squared error alone, and what the penalty may cost is added.

Two words of the paper do not hold as printed. The corollary's right side is at most the root of the theorem's bound *times*
:math:`2 R_\Theta`. And the theorem is for bounded kernels, which this one is not on unbounded data: so the distance itself
is taken here, not the theorem's bound on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import ArrayLike

from kinfed.errors import InputError
from kinfed.learners.regression_moments import RegressionMoments
from kinfed.learners.ridge import ridge_coefficients
from kinfed.validation import Array, nonnegative, points_array, positive


@dataclass(frozen=True, eq=False)
class ExcessRisk:
    r"""What models lose to the best linear ones, and what bounds it, an entry per target; the truth is known.

    All of it but `mmd` and `radius` is in units of the loss. Each step is at least the one before:
    ``excess <= by_difference <= by_norms <= corollary``.

    Attributes
    ----------
    mmd : array of shape (T,)
        :math:`|\mu - \hat\mu|`, from the mixture to the target's distribution.
    radius : float
        r, for columns and outcome as they were given.
    excess : array of shape (T,)
        :math:`R(\hat\theta) - R(\theta^*)`, exact.
    by_difference, by_norms, corollary : arrays of shape (T,)
        The three bounds.
    """

    mmd: Array
    radius: float
    excess: Array
    by_difference: Array
    by_norms: Array
    corollary: Array

    @property
    def looseness(self) -> float:
        """How many times the mean of the corollary's bounds is above the mean excess risk; infinite where there is none."""
        excess = float(self.excess.mean())
        return float(self.corollary.mean()) / excess if excess > 0 else np.inf


def augmented_moments(X: ArrayLike, y: ArrayLike) -> Array:
    r""":math:`n^{-1} \sum_i \tilde z_i \tilde z_i'` of rows x and outcomes y, of shape (d + 2, d + 2); zero without rows.

    Examples
    --------
    >>> augmented_moments([[2.0], [4.0]], [1.0, 3.0])
    array([[10.,  3.,  7.],
           [ 3.,  1.,  2.],
           [ 7.,  2.,  5.]])
    """
    rows = points_array(X, "augmented_moments").astype(np.float64)
    extended = np.column_stack([rows, np.ones(len(rows)), np.asarray(y, dtype=np.float64)])
    return np.asarray(extended.T @ extended / max(len(rows), 1))


def loss_norm(coefficients: Array) -> Array:
    r""":math:`|\ell_\theta|_H = 1 + |\theta|^2` of linear models (..., d + 1), slopes and then the intercept."""
    return np.asarray(1 + np.sum(coefficients**2, axis=-1))


def linear_risk(coefficients: Array, moments: Array) -> Array:
    """Mean squared errors v'Sv of linear models (..., d + 1) where the second moments are S (..., d + 2, d + 2)."""
    v = _loss_vector(coefficients)
    return np.einsum("...i,...ij,...j->...", v, moments, v)


def ridge_models(moments: Array, penalty: float) -> Array:
    """Models (T, d + 1) of least risk plus penalty under these second moments; without a penalty those of least norm."""
    points = np.delete(np.arange(moments.shape[-1]), -2)
    mean = moments[:, points, -2]
    comoment = moments[:, points[:, None], points] - mean[:, :, None] * mean[:, None, :]
    return ridge_coefficients(RegressionMoments(np.ones(len(moments)), mean, comoment, ()), penalty)


def mixtures(weights: Array, moments: Array) -> Array:
    """Second moments (T, p, p) of the mixtures of agents (B, p, p) by rows of weights (T, B)."""
    return np.tensordot(weights, moments, axes=1)


def excess_risk_of(
    mixed: Array, truth: Array, penalty: float, *, radius: float | None = None, unit: float = 1.0
) -> ExcessRisk:
    r"""Excess risks of ridge models and the bounds on them, where the truth is known.

    Parameters
    ----------
    mixed : array of shape (T, d + 2, d + 2)
        :math:`\hat\mu` of every target: second moments of :math:`\tilde z` under the mixture that its model is trained on.
    truth : array of shape (T, d + 2, d + 2)
        :math:`\mu`, those of its own distribution.
    penalty : float
        :math:`\lambda`.
    radius : float, optional
        r; by default the largest norm of all :math:`\hat\theta` and :math:`\theta^*`, and never less.
    unit : float
        What one is worth in the loss: the variance that the outcome was divided by.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20, 2))
    >>> sample = augmented_moments(X, X[:, 0] + rng.standard_normal(20))
    >>> truth = np.array([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 2]])
    >>> found = excess_risk_of(sample[None], truth[None], penalty=0.01)
    >>> bool(0 < found.excess[0] < found.by_difference[0] < found.by_norms[0] < found.corollary[0])
    True
    """
    strength, worth = nonnegative(penalty, "penalty"), positive(unit, "unit")
    if mixed.shape != truth.shape or mixed.ndim != 3:
        raise InputError(f"mixed and truth must be (T, d + 2, d + 2) alike, got shapes {mixed.shape} and {truth.shape}")
    learned, best = ridge_models(mixed, strength), ridge_models(truth, 0.0)
    largest = max(float(np.sqrt(loss_norm(models).max() - 1)) for models in (learned, best))
    r = largest if radius is None else nonnegative(radius, "radius")
    if r < largest:
        raise InputError(f"radius must be at least the norm of every model, {largest:.6g}, got {r:.6g}")
    mmd = np.linalg.norm(mixed - truth, axis=(1, 2))
    price = strength * np.sum(best[:, :-1] ** 2 - learned[:, :-1] ** 2, axis=1)
    first, second = _loss_vector(learned), _loss_vector(best)
    apart = np.linalg.norm(first[:, :, None] * first[:, None] - second[:, :, None] * second[:, None], axis=(1, 2))
    # R(theta) - R(theta*) is the quadratic form of the difference: no risks that are almost equal are subtracted.
    away = learned - best
    return ExcessRisk(
        mmd=mmd,
        radius=r,
        excess=worth * np.einsum("ti,tij,tj->t", away, truth[:, :-1, :-1], away),
        by_difference=worth * (apart * mmd + price),
        by_norms=worth * ((loss_norm(learned) + loss_norm(best)) * mmd + price),
        corollary=worth * (2 * (1 + r**2) * mmd + strength * r**2),
    )


def compared_excess_risks(
    weights: Mapping[str, Array], samples: Array, truth: Array, penalty: float, *, unit: float = 1.0
) -> dict[str, ExcessRisk]:
    """Excess risks under several weight matrices, with one radius for all of them.

    Parameters
    ----------
    weights : mapping from name to array of shape (B, B)
    samples, truth : arrays of shape (B, d + 2, d + 2)
        Second moments of every agent's rows, and of its distribution.
    penalty, unit
        As in `excess_risk_of`.
    """
    mixed = {name: mixtures(matrix, samples) for name, matrix in weights.items()}
    radius = max(excess_risk_of(one, truth, penalty).radius for one in mixed.values())
    return {name: excess_risk_of(one, truth, penalty, radius=radius, unit=unit) for name, one in mixed.items()}


def excess_risk_table(found: Mapping[str, ExcessRisk], alone: str = "local") -> pandas.DataFrame:
    """A row per name, means over targets: bounds, excess risk, what is gained over `alone`, how loose the corollary is."""
    columns = {
        "corollary": [one.corollary.mean() for one in found.values()],
        "by_norms": [one.by_norms.mean() for one in found.values()],
        "by_difference": [one.by_difference.mean() for one in found.values()],
        "excess_risk": [one.excess.mean() for one in found.values()],
        "gain": [found[alone].excess.mean() - one.excess.mean() for one in found.values()],
        "looseness": [one.looseness for one in found.values()],
    }
    return pandas.DataFrame(columns, index=pandas.Index(found, name="weights"))


def _loss_vector(coefficients: Array) -> Array:
    """The vector v = (a, c, -1) of every model."""
    return np.concatenate([coefficients, np.full((*coefficients.shape[:-1], 1), -1.0)], axis=-1)
