r"""The likelihood of random coefficients, with all that EM needs of it: rows whitened by a spread, and centres that follow.

With :math:`K_k = I + F_k S F_k'` agent k's outcomes are normal about :math:`F_k \mu_c`, with covariance
:math:`\sigma^2 K_k`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri

from kinfed.priors.normal import RowMoments, probabilities
from kinfed.validation import Array

_SMALL = 16  # rows of a triangular matrix


@dataclass(frozen=True, eq=False)
class Whitened:
    """Everybody's rows in units in which outcomes are independent, given the spread: :math:`K^{-1/2}` times all."""

    root: Array
    seen: Array
    inverse: Array
    log_determinant: Array

    @classmethod
    def of(cls, evidence: RowMoments, spread: Array) -> Whitened:
        """Under a spread (p, p), or one that is diagonal (p,)."""
        columns = evidence.root * spread if spread.ndim == 1 else evidence.root @ spread
        matrix = columns @ evidence.root.swapaxes(1, 2)
        each = np.arange(matrix.shape[1])
        matrix[:, each, each] += 1.0
        factor = np.linalg.cholesky(matrix)
        inverse = triangular_inverse(factor)
        determinant = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        return cls(inverse @ evidence.root, (inverse @ evidence.seen[..., None])[..., 0], inverse, determinant)

    def residuals(self, centres: Array) -> Array:
        """Of shape (B, C, r)."""
        return np.asarray(self.seen[:, None] - centres @ self.root.swapaxes(1, 2))


def triangular_inverse(factors: NDArray[np.floating[Any]]) -> Array:
    """Of lower triangular matrices (B, r, r): of small ones row by row, all at once, of large ones one after another."""
    size = factors.shape[1]
    found = np.zeros(factors.shape)
    if size > _SMALL:
        for k, factor in enumerate(factors):  # transposed, as Fortran has them, nothing is copied
            found[k] = dtrtri(factor.T, lower=0)[0].T
        return found
    for row in range(size):
        scale = 1.0 / factors[:, row, row]
        found[:, row, row] = scale
        if row:
            before = np.einsum("bj,bjk->bk", factors[:, row, :row], found[:, :row, :row])
            found[:, row, :row] = -scale[:, None] * before
    return found


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known of the agents, given spread, noise and shares: responsibilities (B, C), and centres that follow."""

    white: Whitened
    logarithms: Array
    belongs: Array
    centres: Array
    uncertainty: Array
    log_likelihood: float
    value: float

    @classmethod
    def of(
        cls,
        spread: Array,
        variance: float,
        shares: Array,
        centres: Array,
        least: Array,
        *,
        evidence: RowMoments,
        counts: Array,
        known: bool,
        restricted: bool,
    ) -> Expected:
        r"""With centres of before, and those of generalised least squares.

        `value` is what iterations raise: the log likelihood, or the restricted one. The integral over a centre of prior
        :math:`N(0, \sigma^2 \Lambda^{-1})` and posterior :math:`N(\mu, \sigma^2 U)` adds :math:`\tfrac12 (\log |\Lambda U|
        - \mu' \Lambda \mu / \sigma^2)`. Without the terms of :math:`\Lambda`, which is found too, it would fall where that
        grows, and EM would stop before it has begun.
        """
        white = Whitened.of(evidence, spread)
        logarithms = log_density(white, evidence, centres, variance, known=known) + np.log(shares)
        belongs = counts[:, None] * probabilities(logarithms)
        new, uncertainty = generalised_least_squares(white, belongs, least)
        found = value = _total(logarithms, counts)
        if restricted:
            value = _total(log_density(white, evidence, new, variance, known=known) + np.log(shares), counts)
            value += float(np.linalg.slogdet(uncertainty)[1].sum() + len(new) * np.log(least).sum()) / 2
            value -= float((least * np.square(new)).sum()) / (2 * variance)
        return cls(white, logarithms, belongs, new, uncertainty, found, value)


def _total(logarithms: Array, counts: Array) -> float:
    """The log likelihood of all agents, from that (B, C) of every component."""
    top = logarithms.max(axis=1)
    return float(counts @ (top + np.log(np.exp(logarithms - top[:, None]).sum(axis=1))))


def generalised_least_squares(white: Whitened, belongs: Array, least: Array) -> tuple[Array, Array]:
    """Generalised least squares of every component, and the covariances relative to the noise.

    `least` (p,) is the precision of their prior.
    """
    precision = white.root.swapaxes(1, 2) @ white.root
    width = precision.shape[1]
    cross = (white.root.swapaxes(1, 2) @ white.seen[..., None])[..., 0]
    matrix = (belongs.T @ precision.reshape(len(precision), -1)).reshape(-1, width, width)
    inverse: Array = np.asarray(np.linalg.inv(matrix + np.diag(least)), dtype=np.float64)
    return (inverse @ (belongs.T @ cross)[..., None])[..., 0], inverse


def uncertainty_of_centres(white: Whitened, belongs: Array, uncertainty: Array, spread: Array) -> tuple[Array, float]:
    r"""What uncertain centres add to the sums of squared deviations, and of squared errors relative to the noise.

    With :math:`P_k = F_k' K_k^{-1} F_k` the deviation of an agent follows its centre by :math:`-S P_k`, and its fitted
    values by :math:`K_k^{-1} F_k`. With these terms the variances are those of restricted maximum likelihood.
    """
    width = len(spread)
    # P C P = R' (R C R') R with R of as many rows as an agent has, which may be far fewer than columns.
    mixed = (belongs @ uncertainty.reshape(len(uncertainty), -1)).reshape(-1, width, width)
    fitted = white.root @ mixed @ white.root.swapaxes(1, 2)
    moved = fitted @ white.root
    if spread.ndim == 1:
        total = spread**2 * np.einsum("brp,brp->p", white.root, moved)
    else:
        total = spread @ (white.root.reshape(-1, width).T @ moved.reshape(-1, width)) @ spread
    return total, float((fitted * (white.inverse @ white.inverse.swapaxes(1, 2))).sum())


def log_density(white: Whitened, evidence: RowMoments, centres: Array, variance: float, known: bool) -> Array:
    """Log p(y_k | c), of shape (B, C)."""
    quadratic = np.square(white.residuals(centres)).sum(axis=2) + evidence.unseen[:, None]
    constant = 0.0 if known else evidence.n * np.log(2 * np.pi * variance)
    return -((constant + white.log_determinant)[:, None] + quadratic / variance) / 2
