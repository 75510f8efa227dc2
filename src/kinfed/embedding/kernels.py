r"""Kernels: what makes two points alike.

A kernel is a frozen record that can be called on two tables of points for their Gram matrix. Translation-invariant
kernels also know their spectral law, from which `kinfed.FourierFeatures` draws frequencies. Distances and eigenvalues
behind a Gram matrix stand at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from scipy.spatial.distance import cdist, pdist
from scipy.special import gammaincinv, ndtr

from kinfed.errors import InputError
from kinfed.validation import (
    Array,
    FloatArray,
    check_options,
    nonnegative,
    one_of,
    points_array,
    positive,
    positive_integer,
    whole_number,
)

# Beyond this size one eigenvalue is found faster by iteration than by reducing the whole matrix.
_DENSE_UP_TO = 150

Bandwidth = float | tuple[float, ...]


@runtime_checkable
class Kernel(Protocol):
    """A positive definite function k(z, z') on points of R^d."""

    def __call__(self, Z1: ArrayLike, Z2: ArrayLike) -> Array:
        """Gram matrix (k(z, z')) over the rows z of `Z1` and z' of `Z2`."""

    def diagonal(self, Z: ArrayLike) -> Array:
        """The values k(z, z) over the rows of `Z`, without the Gram matrix."""

    @property
    def diagonal_bound(self) -> float:
        """sup_z k(z, z); infinite for a kernel without bound."""


@dataclass(frozen=True)
class _TranslationInvariant:
    """Shared by kernels k(z, z') = kappa((z - z') / bandwidth) with kappa(0) = 1."""

    bandwidth: Bandwidth

    diagonal_bound: ClassVar[float] = 1.0
    """sup_z k(z, z) = 1."""

    _metric: ClassVar[Any] = "euclidean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", _bandwidth(self.bandwidth))

    def __call__(self, Z1: ArrayLike, Z2: ArrayLike) -> Array:
        """Gram matrix over the rows of `Z1` and `Z2`."""
        first, second = _same_dimension(Z1, Z2)
        return self._profile(cdist(self._scaled(first), self._scaled(second), self._metric))

    def diagonal(self, Z: ArrayLike) -> Array:
        """The values k(z, z) = 1."""
        return np.ones(len(self._scaled(Z)))

    def frequencies(self, normals: FloatArray, uniforms: FloatArray) -> Array:
        """Turn rows of N(0, I_d) and one uniform per row into draws from the kernel's spectral law."""
        return self._spectral(normals, uniforms) / np.asarray(self.bandwidth)

    def check_dimension(self, dim: int) -> None:
        """Raise unless points of dimension `dim` fit the bandwidth."""
        if isinstance(self.bandwidth, tuple) and len(self.bandwidth) != dim:
            raise InputError(
                f"the kernel has {len(self.bandwidth)} bandwidths but the points have dimension {dim}; "
                "give one bandwidth per coordinate, or a single number"
            )

    def _scaled(self, Z: ArrayLike) -> FloatArray:
        array = points_array(Z, "kernel")
        self.check_dimension(array.shape[1])
        return array.astype(np.float64) / np.asarray(self.bandwidth)

    def _profile(self, distance: Array) -> Array:
        raise NotImplementedError

    def _spectral(self, normals: FloatArray, uniforms: FloatArray) -> FloatArray:
        raise NotImplementedError


@dataclass(frozen=True)
class Gaussian(_TranslationInvariant):
    r"""Gaussian kernel :math:`k(z, z') = \exp(-\sum_j (z_j - z'_j)^2 / (2 h_j^2))`.

    Parameters
    ----------
    bandwidth : float or sequence of float
        h, in the units of the points: one number, or one per coordinate so that x and y can be weighted apart.

    Examples
    --------
    >>> import kinfed
    >>> round(float(kinfed.Gaussian(2.0)([[0.0]], [[2.0]])[0, 0]), 4)
    0.6065
    """

    _metric: ClassVar[Any] = "sqeuclidean"

    def _profile(self, distance: Array) -> Array:
        return np.exp(-0.5 * distance)

    def _spectral(self, normals: FloatArray, uniforms: FloatArray) -> FloatArray:
        return normals


@dataclass(frozen=True)
class Laplace(_TranslationInvariant):
    r"""Laplace kernel :math:`k(z, z') = \exp(-\sum_j |z_j - z'_j| / h_j)`, whose frequencies are Cauchy."""

    _metric: ClassVar[Any] = "cityblock"

    def _profile(self, distance: Array) -> Array:
        return np.exp(-distance)

    def _spectral(self, normals: FloatArray, uniforms: FloatArray) -> FloatArray:
        # Phi maps a normal to a uniform and the Cauchy quantile maps that on: coordinates stay independent. Starting from
        # the smaller tail keeps all digits where the quantile is large.
        return np.sign(normals) / np.tan(math.pi * ndtr(-np.abs(normals)))


@dataclass(frozen=True)
class Matern(_TranslationInvariant):
    r"""Matern kernel of smoothness nu in {1/2, 3/2, 5/2}.

    With :math:`r = |(z - z') / h|` the kernel is :math:`e^{-r}`, :math:`(1 + \sqrt3 r) e^{-\sqrt3 r}` or
    :math:`(1 + \sqrt5 r + 5 r^2 / 3) e^{-\sqrt5 r}`; its frequencies follow a Student law with 2 nu degrees of freedom.
    """

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if positive(self.nu, "nu") not in (0.5, 1.5, 2.5):
            raise InputError(f"Matern nu must be 0.5, 1.5 or 2.5, got {self.nu!r}")
        object.__setattr__(self, "nu", float(self.nu))

    def _profile(self, distance: Array) -> Array:
        r = math.sqrt(2 * self.nu) * distance
        return {0.5: 1.0, 1.5: 1.0 + r, 2.5: 1.0 + r + r**2 / 3}[self.nu] * np.exp(-r)

    def _spectral(self, normals: FloatArray, uniforms: FloatArray) -> FloatArray:
        # A chi-square variable with 2 nu degrees of freedom is twice a Gamma(nu) one: sqrt(2 nu / chi2) = sqrt(nu / gamma).
        return normals * np.sqrt(self.nu / gammaincinv(self.nu, uniforms))[:, None]


@dataclass(frozen=True)
class Polynomial:
    r"""Polynomial kernel :math:`k(z, z') = (\langle z, z' \rangle + c)^p`.

    Degree 2 on z = (x, y) contains the squared loss of every linear model, and its mean embedding is a mean and a
    second moment: `kinfed.PolynomialFeatures` and `kinfed.weights.moment_geometry` use that.

    Parameters
    ----------
    degree : int
        p.
    offset : float
        c, at least zero.
    """

    degree: int = 2
    offset: float = 1.0

    diagonal_bound: ClassVar[float] = math.inf
    """Infinite: the kernel grows with the points."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", positive_integer(self.degree, "degree"))
        object.__setattr__(self, "offset", nonnegative(self.offset, "offset"))

    def __call__(self, Z1: ArrayLike, Z2: ArrayLike) -> Array:
        """Gram matrix over the rows of `Z1` and `Z2`."""
        first, second = _same_dimension(Z1, Z2)
        return np.asarray((first.astype(np.float64) @ second.astype(np.float64).T + self.offset) ** self.degree)

    def diagonal(self, Z: ArrayLike) -> Array:
        """The values k(z, z) = (|z|^2 + c)^p."""
        array = points_array(Z, "kernel").astype(np.float64)
        return np.asarray((np.einsum("ij,ij->i", array, array) + self.offset) ** self.degree)


def median_bandwidth(Z: ArrayLike, *, max_points: int = 1000, seed: int = 0) -> float:
    """Median heuristic: the median distance between two points of `Z`.

    Parameters
    ----------
    Z : array of shape (n, d)
    max_points : int
        At most this many points, drawn with `seed`, enter the n (n - 1) / 2 distances.
    seed : int

    Returns
    -------
    float
        A bandwidth for `Gaussian`, `Laplace` or `Matern`.
    """
    points = points_array(Z, "median_bandwidth").astype(np.float64)
    if len(points) < 2:
        raise InputError(f"median_bandwidth needs at least two points, got {len(points)}")
    if positive_integer(max_points, "max_points") < 2:
        raise InputError("max_points must be at least 2")
    if len(points) > max_points:
        rng = np.random.default_rng(whole_number(seed, "seed"))
        points = points[rng.choice(len(points), max_points, replace=False)]
    median = float(np.median(pdist(points)))
    if median == 0.0:
        raise InputError("at least half of the points coincide, so the median distance is zero; give a bandwidth")
    return median


def _bandwidth(value: float | Sequence[float] | FloatArray) -> Bandwidth:
    try:
        values = np.asarray(value)
    except ValueError:
        values = np.empty((0, 0))
    if values.ndim == 0:
        return positive(values.item(), "bandwidth")
    if values.ndim > 1 or not len(values):
        raise InputError("bandwidth must be one number, or a list with one number per coordinate")
    return tuple(positive(h, f"bandwidth of coordinate {j}") for j, h in enumerate(values.tolist()))


def check_kernel(kernel: Any) -> None:
    """Raise unless `kernel` is a kernel that has been made."""
    if isinstance(kernel, type) or not isinstance(kernel, Kernel):
        raise InputError(f"kernel must be a kernel such as Gaussian(1.0), got {kernel!r}"[:200])


def _same_dimension(Z1: ArrayLike, Z2: ArrayLike) -> tuple[FloatArray, FloatArray]:
    first, second = points_array(Z1, "kernel"), points_array(Z2, "kernel")
    if first.shape[1] != second.shape[1]:
        raise InputError(f"the kernel compares points of one dimension, got {first.shape[1]} and {second.shape[1]}")
    return first, second


def operator_norm(points: ArrayLike, kernel: Kernel | None = None) -> float:
    r"""Largest eigenvalue of the covariance, :math:`|\Sigma|_{op}`."""
    array = two_or_more(points, "operator_norm")
    n = len(array)
    if kernel is None:
        centred = array - array.mean(axis=0)
        covariance = centred @ centred.T if n <= centred.shape[1] else centred.T @ centred
    else:
        gram = kernel(array, array)
        covariance = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    return largest_eigenvalue(covariance) / (n - 1)


def squared_distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Squared distances :math:`G_{kk} + G_{ll} - 2 G_{kl}` behind a Gram matrix, never negative."""
    diagonal = np.diag(gram)
    distances = np.maximum(diagonal[:, None] + diagonal - 2 * gram, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def largest_eigenvalue(matrix: NDArray[np.floating[Any]]) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite matrix."""
    last = len(matrix) - 1
    if last > _DENSE_UP_TO:
        with suppress(ArpackNoConvergence):
            start = np.ones(len(matrix)) + np.linspace(0, 1, len(matrix))  # any fixed start makes the result repeatable
            return max(0.0, float(eigsh(matrix, k=1, which="LA", v0=start, tol=1e-12, return_eigenvectors=False)[0]))
    return max(0.0, float(eigvalsh(matrix, subset_by_index=[last, last])[0]))


def two_or_more(points: ArrayLike, who: str) -> FloatArray:
    """Points of which a covariance can be taken."""
    array = points_array(points, who).astype(np.float64)
    if len(array) < 2:
        raise InputError(f"{who} needs at least two points, got {len(array)}: a covariance is undefined for fewer")
    return array


KERNELS: dict[str, type[Any]] = {"gaussian": Gaussian, "laplace": Laplace, "matern": Matern, "polynomial": Polynomial}

MEDIAN = "median"
"""The bandwidth that is the median distance within agents."""


def named_kernel(name: str, bandwidth: float | str, options: Mapping[str, Any], usual: tuple[float, ...]) -> Kernel:
    """The kernel of a name, with a bandwidth, or the `usual` ones of every coordinate, and options of its own."""
    constructor = KERNELS[one_of(name, KERNELS, "kernel")]
    # The bandwidth has an option of its own, and features are there for polynomials of degree 2 alone.
    check_options(f"{name} kernel", constructor, options, given=1)
    if constructor is Polynomial:
        if bandwidth != MEDIAN:
            raise InputError("the polynomial kernel has no bandwidth; leave bandwidth=... out")
        return constructor(**options)
    if bandwidth == MEDIAN and not np.isfinite(usual).all():
        raise InputError("no agent has two different points, so there is no median distance; give bandwidth=...")
    return constructor(usual if bandwidth == MEDIAN else bandwidth, **options)
