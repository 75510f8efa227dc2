r"""Standardisation the federated way: only counts, means and sums of squares per column leave an agent.

Agent k answers with :math:`n_{kj}`, :math:`m_{kj}` and :math:`S_{kj} = \sum_i (x_{ij} - m_{kj})^2` for every column j, over
the values that are not missing. Two answers merge without loss [1]_,

.. math::
    m = m_1 + \delta \frac{n_2}{n_1 + n_2}, \qquad S = S_1 + S_2 + \delta^2 \frac{n_1 n_2}{n_1 + n_2},
    \qquad \delta = m_2 - m_1,

which is the same information as the sum and the sum of squares, but does not cancel when the mean is large beside the
spread. An agent with a single point answers with that point: leave it out where that matters.

References
----------
.. [1] Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", COMPSTAT 1982.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.validation import Array, Integers


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """What one agent, or several together, say of their columns; answers add up with ``+`` and `sum`.

    Attributes
    ----------
    count : array of shape (d,)
        How many values are not missing.
    mean : array of shape (d,)
        Their mean; 0 where there is none.
    squares : array of shape (d,)
        Their sum of squared deviations from that mean.
    """

    count: Integers
    mean: Array
    squares: Array

    def __add__(self, other: ColumnSums) -> ColumnSums:
        if not isinstance(other, ColumnSums):
            return NotImplemented
        if self.count.shape != other.count.shape:
            raise InputError(f"answers about {len(self.count)} and about {len(other.count)} columns cannot be added")
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.where((self.count > 0) & (other.count > 0), delta**2 * self.count * share, 0.0)
            squares = self.squares + other.squares + apart
        return ColumnSums(count, self.mean + delta * share, squares)

    def __radd__(self, other: int) -> ColumnSums:
        return self if other == 0 else NotImplemented  # sum() starts from 0

    @property
    def variance(self) -> Array:
        """Variance of every column, with divisor n; 0 for a column without values."""
        return self.squares / np.maximum(self.count, 1)

    @cached_property
    def is_constant(self) -> NDArray[np.bool_]:
        """Whether all values of a column are equal, up to the last digits of a float64."""
        return np.sqrt(self.variance) <= 8 * np.finfo(np.float64).eps * np.abs(self.mean)

    @cached_property
    def scale(self) -> Array:
        """Standard deviation of every column; 1 where it is constant, so that dividing by it does no harm."""
        return np.where(self.is_constant, 1.0, np.sqrt(self.variance))


def column_sums(X: ArrayLike) -> ColumnSums:
    """One agent's answer: count, mean and sum of squared deviations of every column of (n, d) `X`, NaN left out.

    A vector counts as one column.
    """
    values = np.asarray(X, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    present = ~np.isnan(values)
    count = present.sum(axis=0, dtype=np.int64)
    if not len(values):
        return ColumnSums(count, np.zeros(values.shape[1]), np.zeros(values.shape[1]))
    # Measured from a value of the column itself, a constant column has deviations, mean and squares that are exact.
    origin = np.where(count > 0, values[present.argmax(axis=0), np.arange(values.shape[1])], 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = np.where(present, values - origin, 0.0)
        shift = deviation.sum(axis=0) / np.maximum(count, 1)
        squares = np.sum((deviation - shift) ** 2, axis=0, where=present)
    return ColumnSums(count, origin + shift, squares)


@dataclass(frozen=True, eq=False)
class Standardisation:
    r"""The map :math:`x \mapsto (x - m) / s` of every column, and its inverse.

    Attributes
    ----------
    mean, scale : arrays of shape (d,)

    Examples
    --------
    >>> import numpy as np
    >>> from kinfed.data import Standardisation, column_sums
    >>> rng = np.random.default_rng(0)
    >>> sites = [rng.normal(5, 3, (n, 2)) for n in (10, 200)]
    >>> rule = Standardisation.from_sums(sum(column_sums(X) for X in sites))
    >>> pooled = rule.transform(np.concatenate(sites))
    >>> bool(np.allclose(pooled.mean(axis=0), 0)), bool(np.allclose(pooled.std(axis=0), 1))
    (True, True)
    """

    mean: Array
    scale: Array

    @classmethod
    def from_sums(cls, sums: ColumnSums | int) -> Standardisation:
        """The map that gives the columns behind `sums` mean 0 and variance 1."""
        if not isinstance(sums, ColumnSums):
            raise InputError("there are no agents to standardise by; add up the column sums of at least one")
        return cls(sums.mean, sums.scale)

    def transform(self, X: ArrayLike) -> Array:
        """Standardised values, of the same shape: a vector counts as one column."""
        values = np.asarray(X, dtype=np.float64)
        return (values - self._like(values, self.mean)) / self._like(values, self.scale)

    def inverse(self, X: ArrayLike) -> Array:
        """Values on the original scale, of the same shape."""
        values = np.asarray(X, dtype=np.float64)
        return values * self._like(values, self.scale) + self._like(values, self.mean)

    def _like(self, values: Array, parameter: Array) -> Array:
        d = 1 if values.ndim == 1 else values.shape[-1]
        if d != len(parameter):
            raise InputError(f"the standardisation is for {len(parameter)} columns, but the values have {d}")
        return parameter
