r"""The exact, finite feature map of the polynomial kernel of degree 2."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from kinfed.embedding.kernels import Polynomial
from kinfed.embedding.recipe import Recipe, kernel_parameters
from kinfed.errors import InputError
from kinfed.validation import Array, FloatArray, points_array, positive_integer


@dataclass(frozen=True)
class PolynomialFeatures:
    r"""Map z in R^d to the D = 1 + d + d (d + 1) / 2 monomials with :math:`\langle\Phi(z), \Phi(z')\rangle = k(z, z')`.

    The coordinates are :math:`c`, :math:`\sqrt{2c}\, z_j`, :math:`z_j^2` and :math:`\sqrt 2\, z_i z_j` for i < j. Their
    mean is a mean and a second moment of the data, so this sketch is the one exchange that closed-form ridge needs too.

    Parameters
    ----------
    kernel : Polynomial
        Of degree 2.
    dim : int
        Dimension d of the points.

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> kernel = kinfed.Polynomial(degree=2, offset=1.0)
    >>> features = kinfed.PolynomialFeatures(kernel, dim=2)
    >>> Z = np.array([[1.0, 2.0], [0.5, -1.0]])
    >>> bool(np.allclose(features(Z) @ features(Z).T, kernel(Z, Z)))
    True
    """

    kernel: Polynomial
    dim: int = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Polynomial) or self.kernel.degree != 2:
            raise InputError("PolynomialFeatures needs a Polynomial kernel of degree 2")
        object.__setattr__(self, "dim", positive_integer(self.dim, "dim"))

    @property
    def n_features(self) -> int:
        """D = 1 + d + d (d + 1) / 2."""
        return 1 + self.dim + self.dim * (self.dim + 1) // 2

    @property
    def norm_bound(self) -> float:
        """Infinite: the monomials grow with the points."""
        return self.recipe.norm_bound

    @property
    def recipe(self) -> Recipe:
        """Everything another site needs to rebuild this map."""
        return Recipe(*kernel_parameters(self.kernel), self.dim, self.n_features, "exact", None)

    def __call__(self, Z: ArrayLike) -> FloatArray:
        """Features (n, D) of the rows of `Z`, in double precision: squares of large numbers leave no digits to spare."""
        points = points_array(Z, "features", self.dim).astype(np.float64)
        first, second = np.triu_indices(self.dim, k=1)
        offset = self.kernel.offset
        return np.hstack(
            [
                np.full((len(points), 1), offset),
                math.sqrt(2 * offset) * points,
                points**2,
                math.sqrt(2) * points[:, first] * points[:, second],
            ]
        )

    def totals(self, points: FloatArray) -> tuple[Array, float]:
        """Sums in float64 over checked points: of Phi(z), and of |Phi(z)|^2."""
        # The sums of all monomials are those of z and of z z', so no feature vector is ever made.
        exact = points.astype(np.float64)
        total, second = exact.sum(axis=0), exact.T @ exact
        first, other = np.triu_indices(self.dim, k=1)
        offset = self.kernel.offset
        sums = [[offset * len(exact)], math.sqrt(2 * offset) * total, np.diag(second), math.sqrt(2) * second[first, other]]
        return np.concatenate(sums), float(self.kernel.diagonal(exact).sum())
