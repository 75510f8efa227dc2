r"""Normal priors of an agent's coefficients, and what its own rows make of them.

A *member* says what the federation knows of the coefficients of an agent before its rows are seen, a mixture

.. math:: \theta \sim \sum_c \pi_c N(\mu_c, \sigma^2 S), \qquad S = \operatorname{diag}(s) + UU' ,

whose components share their spread S, which is relative to the variance :math:`\sigma^2` of the noise. Learning alone
with a ridge penalty, one common model, a pull towards the common model, random coefficients and clusters are all of this
kind.

Rows enter by second moments alone. With :math:`A = \sum_i x_i x_i' = F'F` and :math:`F'z = \sum_i x_i y_i`, the posterior
mean under component c is

.. math:: m_c = \mu_c + S F' K^{-1} (z - F\mu_c), \qquad K = I + F S F' ,

which needs no inverse of S and works on as many rows of F as A has rank; and the components are told apart by

.. math:: \log p(y | c) = -\tfrac12 \bigl( \log |K| + |K^{-1/2} (z - F \mu_c)|^2 / \sigma^2 \bigr) + \text{const.}

For log losses A and F'z are those of a quadratic expansion (`kinfed.learners.quadratics`), and :math:`\sigma^2 = 1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.validation import Array

_RANK = 1e-10  # eigenvalues of A below this share of the largest are rounding
_FIELDS = ("shares", "centres", "variances", "factors", "noise")


@dataclass(frozen=True, eq=False)
class RowMoments:
    r"""Second moments of the rows of T agents, or of T parts of an agent's rows, as factors.

    Attributes
    ----------
    n : array of shape (T,)
        Rows.
    root : array of shape (T, r, p)
        :math:`F`, rows of zeros where an A has smaller rank.
    seen : array of shape (T, r)
        :math:`z`.
    unseen : array of shape (T,)
        :math:`\sum_i y_i^2 - |z|^2`: what no coefficients explain; zero for log losses.
    """

    n: Array
    root: Array
    seen: Array
    unseen: Array

    @classmethod
    def of(cls, n: Array, matrix: Array, cross: Array, squares: Array) -> RowMoments:
        """From A (T, p, p), sums of x y (T, p) and of squares of y (T,); NaN for log losses."""
        values, vectors = np.linalg.eigh(matrix)
        kept = values > _RANK * np.maximum(values[:, -1:], 1e-300)
        root = np.sqrt(np.where(kept, values, 0.0))
        seen = np.where(kept, (vectors.swapaxes(1, 2) @ cross[..., None])[..., 0] / np.where(kept, root, 1.0), 0.0)
        rank = max(int(kept.sum(axis=1).max(initial=0)), 1)
        unseen = np.maximum(np.where(np.isnan(squares), 0.0, squares - np.square(seen).sum(axis=1)), 0.0)
        return cls(n, (root[..., None] * vectors.swapaxes(1, 2))[:, -rank:], seen[:, -rank:], unseen)

    def __len__(self) -> int:
        return len(self.n)

    def select(self, places: NDArray[Any]) -> RowMoments:
        """That of some."""
        return RowMoments(self.n[places], self.root[places], self.seen[places], self.unseen[places])


@dataclass(frozen=True, eq=False)
class Priors:
    r"""What M members say of coefficients before rows are seen.

    Attributes
    ----------
    shares : array of shape (M, C)
        :math:`\pi`; zero for components that a member does not have.
    centres : array of shape (M, C, p)
        :math:`\mu`.
    variances : array of shape (M, p)
        s.
    factors : array of shape (M, p, q)
        U; zero where a member needs none.
    noise : array of shape (M,)
        :math:`\sigma^2`.
    """

    shares: Array
    centres: Array
    variances: Array
    factors: Array
    noise: Array

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays, to be sent."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]]) -> Priors:
        """Those that were sent."""
        return cls(*(np.asarray(arrays[name], dtype=np.float64) for name in _FIELDS))

    @classmethod
    def together(cls, parts: Sequence[Priors]) -> Priors:
        """All members of all parts, in order."""
        count = max(one.shares.shape[1] for one in parts)
        rank = max(one.factors.shape[2] for one in parts)
        more = [(0, count - one.shares.shape[1]) for one in parts]
        return cls(
            np.concatenate([np.pad(one.shares, ((0, 0), add)) for one, add in zip(parts, more, strict=True)]),
            np.concatenate([np.pad(one.centres, ((0, 0), add, (0, 0))) for one, add in zip(parts, more, strict=True)]),
            np.concatenate([one.variances for one in parts]),
            np.concatenate([np.pad(one.factors, ((0, 0), (0, 0), (0, rank - one.factors.shape[2]))) for one in parts]),
            np.concatenate([one.noise for one in parts]),
        )

    def select(self, places: NDArray[Any]) -> Priors:
        """Some of the members."""
        return Priors(*(getattr(self, name)[places] for name in _FIELDS))

    def without(self, members: NDArray[np.bool_], component: int) -> Priors:
        """The same, some members without one of their components, unless they have no other."""
        shares = self.shares.copy()
        shares[members, component] = 0.0
        left = shares.sum(axis=1, keepdims=True)
        return replace(self, shares=np.where(left > 0, shares / np.where(left > 0, left, 1.0), self.shares))

    @property
    def spread(self) -> Array:
        """S, of shape (M, p, p)."""
        found = self.factors @ self.factors.swapaxes(1, 2)
        each = np.arange(found.shape[1])
        found[:, each, each] += self.variances
        return np.asarray(found)

    def spread_times(self, columns: Array) -> Array:
        """S times columns (..., M, p, r)."""
        found = self.variances[..., None] * columns
        return found + self.factors @ (self.factors.swapaxes(1, 2) @ columns) if self.factors.shape[2] else found


@dataclass(frozen=True, eq=False)
class Posteriors:
    r"""What T pieces of evidence make of M members.

    Attributes
    ----------
    mean : array of shape (T, M, C, p)
        Under every component.
    log_evidence : array of shape (T, M, C)
        log of the share and of the density of the outcomes, up to what is the same for all components of a member.
    shrunk : array of shape (T, M, r, p)
        :math:`K^{-1/2} F S`: the posterior covariance is :math:`\sigma^2 (S - \text{shrunk}' \text{shrunk})`.
    """

    mean: Array
    log_evidence: Array
    shrunk: Array

    @property
    def responsibilities(self) -> Array:
        """Probabilities (T, M, C) of the components."""
        return probabilities(self.log_evidence)

    @property
    def coefficients(self) -> Array:
        """Posterior means (T, M, p)."""
        return np.asarray(np.einsum("tmc,tmcp->tmp", self.responsibilities, self.mean))

    def within(self, priors: Priors) -> Array:
        """Posterior covariances (T, M, p, p) within components."""
        return np.asarray(priors.noise[:, None, None] * (priors.spread - self.shrunk.swapaxes(2, 3) @ self.shrunk))

    @property
    def between(self) -> Array:
        """Posterior covariances (T, M, p, p) between components."""
        apart = self.mean - self.coefficients[:, :, None]
        return np.asarray(np.einsum("tmc,tmcp,tmcq->tmpq", self.responsibilities, apart, apart))


def posteriors(priors: Priors, evidence: RowMoments) -> Posteriors:
    """Of every member for every piece of evidence."""
    root = evidence.root[:, None]
    spread = priors.spread_times(np.broadcast_to(root, (len(root), len(priors), *root.shape[2:])).swapaxes(2, 3))
    matrix = root @ spread  # K, of shape (T, M, r, r)
    each = np.arange(matrix.shape[-1])
    matrix[..., each, each] += 1.0
    factor = np.linalg.cholesky(matrix)
    residual = evidence.seen[:, None, None] - priors.centres @ evidence.root[:, None].swapaxes(2, 3)  # (T, M, C, r)
    solved = np.linalg.solve(factor, np.concatenate([residual.swapaxes(2, 3), spread.swapaxes(2, 3)], axis=3))
    count = priors.shares.shape[1]
    white, shrunk = solved[..., :count], solved[..., count:]
    mean = priors.centres + white.swapaxes(2, 3) @ shrunk
    with np.errstate(divide="ignore"):
        shares = np.log(priors.shares)
    determinant = np.log(np.diagonal(factor, axis1=2, axis2=3)).sum(axis=2)
    fit = np.square(white).sum(axis=2) / priors.noise[:, None]
    return Posteriors(mean, shares - determinant[..., None] - fit / 2, shrunk)


def probabilities(logarithms: Array) -> Array:
    """What sums to one over the last axis, from logarithms up to a constant."""
    found = np.exp(logarithms - logarithms.max(axis=-1, keepdims=True))
    return np.asarray(found / found.sum(axis=-1, keepdims=True))
