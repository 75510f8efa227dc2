r"""Geometry of raw points under a kernel: through Gram blocks for any, from means and second moments for degree 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.embedding import Kernel, Polynomial, check_kernel, largest_eigenvalue, operator_norm, squared_distances
from kinfed.errors import InputError
from kinfed.parallel import map_on_cores
from kinfed.validation import Array, agents_points, points_array, positive, target_indices, without_rounding
from kinfed.weights.geometry import BOUND_SLACK, Geometry, directional_variances, pairwise_distances


def kernel_geometry(
    points: Mapping[Any, ArrayLike] | Sequence[ArrayLike],
    kernel: Kernel,
    *,
    norm_bound: float | None = None,
    targets: int | Iterable[int] | None = None,
) -> Geometry:
    r"""Geometry of raw points under any kernel, through Gram blocks: exact, but all points must be in one place.

    One block of rows of the Gram matrix gives :math:`\langle \Phi_i^{(t)}, \nu_k \rangle = n_k^{-1} \sum_j k(z_i^{(t)},
    z_j^{(k)})`, and these inner products give everything else.
    """
    check_kernel(kernel)
    names, arrays = agents_points(points)
    chosen = target_indices(targets, len(arrays))
    pooled = np.vstack(arrays)
    sizes = np.array([len(array) for array in arrays], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    diagonals = [kernel.diagonal(array) for array in arrays]
    bound = kernel_norm_bound(kernel, norm_bound, max(float(values.max()) for values in diagonals))
    wanted = set(chosen.tolist())

    def row(k: int) -> tuple[Array, float, Array, float]:
        block = kernel(arrays[k], pooled)
        onto_means = np.add.reduceat(block, starts, axis=1) / sizes
        gram_row = onto_means.mean(axis=0)
        spread = float(diagonals[k].sum() - sizes[k] * gram_row[k]) / (sizes[k] - 1)
        trace = without_rounding(spread, float(diagonals[k].max()))
        if k not in wanted or trace == 0:
            return gram_row, trace, np.zeros(len(arrays)), 0.0
        own = block[:, starts[k] : starts[k] + sizes[k]]
        centred = own - own.mean(axis=0) - own.mean(axis=1)[:, None] + own.mean()
        return (
            gram_row,
            trace,
            directional_variances(onto_means - gram_row, k),
            largest_eigenvalue(centred) / (sizes[k] - 1),
        )

    rows = list(map_on_cores(row, range(len(arrays)), 50.0 * len(pooled) ** 2))
    gram = _positive_part(_about_the_mean(np.array([gram_row for gram_row, _, _, _ in rows])))
    distances = squared_distances(gram)[chosen]
    # Without the means themselves, a distance at the level of rounding cannot be told from zero.
    distances[distances <= 64 * np.finfo(float).eps * max(float(values.max()) for values in diagonals)] = 0.0
    return Geometry(
        gram=gram,
        mean_variance=np.array([trace for _, trace, _, _ in rows]) / sizes,
        sizes=sizes,
        targets=chosen,
        directional=np.array([rows[t][2] for t in chosen]),
        squared_distances=distances,
        operator_norms=np.array([rows[t][3] for t in chosen]),
        norm_bound=bound,
        names=names,
    )


@dataclass(frozen=True, eq=False)
class SecondMoments:
    r"""All a site shares under the polynomial kernel of degree 2.

    Attributes
    ----------
    n : int
    mean : array of shape (d,)
        :math:`\bar z = n^{-1} \sum_i z_i`.
    second : array of shape (d, d)
        :math:`\bar C = n^{-1} \sum_i z_i z_i'`.
    trace : float
        tr Sigma of the embedded points.
    largest : float
        The largest norm :math:`\sqrt{k(z, z)}` among the points.
    offset : float
        c of the kernel the trace and the largest norm are for.
    """

    n: int
    mean: Array
    second: Array
    trace: float
    largest: float
    offset: float


def second_moments(Z: ArrayLike, kernel: Polynomial) -> SecondMoments:
    """Mean and second moment of one agent's raw points: an exact, finite form of its polynomial embedding."""
    _check_degree(kernel)
    points = points_array(Z, "second_moments").astype(np.float64)
    n = len(points)
    if n < 2:
        raise InputError(f"second_moments needs at least two points, got {n}: a covariance is undefined for fewer")
    mean, second = points.mean(axis=0), points.T @ points / n
    squared_norm = kernel.offset**2 + float(np.sum(_flattened(kernel, mean[None], second[None]) ** 2))
    diagonal = kernel.diagonal(points)
    trace = without_rounding(float(diagonal.sum() - n * squared_norm) / (n - 1), float(diagonal.max()))
    return SecondMoments(n, mean, second, trace, float(np.sqrt(diagonal.max())), kernel.offset)


def moment_geometry(
    moments: Sequence[SecondMoments],
    own_points: Mapping[int, ArrayLike],
    kernel: Polynomial | None = None,
    *,
    norm_bound: float | None = None,
) -> Geometry:
    r"""Geometry under the polynomial kernel of degree 2 from means and second moments: federated and exact.

    Up to a constant :math:`\langle\nu_k, \nu_l\rangle = 2c \langle\bar z_k, \bar z_l\rangle + \mathrm{tr}\,\bar C_k \bar
    C_l` and :math:`\langle\Phi(z), \nu_k\rangle = 2c \langle z, \bar z_k\rangle + z' \bar C_k z`: the target needs its own
    points and the others' moments, never a feature vector.

    Parameters
    ----------
    moments : one `SecondMoments` per agent
    own_points : mapping from a target's index to its raw points (n_t, d)
    kernel : Polynomial of degree 2
    norm_bound : float, optional
        Defaults to the largest norm any agent reports.
    """
    kernel = Polynomial() if kernel is None else kernel
    moments = list(moments)
    _check_degree(kernel)
    if not moments:
        raise InputError("there are no agents: give one SecondMoments per agent")
    dim = len(moments[0].mean)
    for k, one in enumerate(moments):
        if one.mean.shape != (dim,) or one.second.shape != (dim, dim):
            shapes = f"{one.mean.shape} and {one.second.shape}"
            raise InputError(f"agent {k} has moments of shapes {shapes}, not ({dim},) and ({dim}, {dim}) as agent 0")
        finite = np.isfinite(one.mean).all() and np.isfinite(one.second).all() and np.isfinite(one.largest)
        if not finite or one.n < 2 or not one.trace >= 0:
            raise InputError(f"agent {k} has moments that no data can have; ask it to make them again")
        if one.offset != kernel.offset:
            raise InputError(f"agent {k} made its moments for offset {one.offset:g}, but the kernel has {kernel.offset:g}")
    names = tuple(str(k) for k in range(len(moments)))
    chosen = target_indices(list(own_points), len(moments))
    means = np.array([one.mean for one in moments])
    seconds = np.array([one.second for one in moments])
    means, seconds = means - means.mean(axis=0), seconds - seconds.mean(axis=0)

    def row(t: int) -> tuple[Array, float]:
        Z = points_array(own_points[t], f"agent {t}", dim).astype(np.float64)
        if len(Z) != moments[t].n:
            raise InputError(f"agent {t} gives {len(Z)} points, but its moments were made of {moments[t].n}")
        quadratic = np.einsum("ikd,id->ik", np.tensordot(Z, seconds, axes=([1], [1])), Z)
        if moments[t].trace == 0:
            return np.zeros(len(moments)), 0.0
        return directional_variances(2 * kernel.offset * Z @ means.T + quadratic, t), operator_norm(Z, kernel)

    operations = 2.0 * dim**2 * len(moments) * sum(moments[t].n for t in chosen)
    rows = list(map_on_cores(row, chosen.tolist(), operations))
    flat = _flattened(kernel, means, seconds)
    gram = flat @ flat.T
    sizes = np.array([one.n for one in moments], dtype=np.int64)
    return Geometry(
        gram=gram,
        mean_variance=np.array([one.trace for one in moments]) / sizes,
        sizes=sizes,
        targets=chosen,
        directional=np.array([variances for variances, _ in rows]),
        squared_distances=pairwise_distances(flat, gram, chosen),
        operator_norms=np.array([norm for _, norm in rows]),
        norm_bound=kernel_norm_bound(kernel, norm_bound, max(one.largest for one in moments) ** 2),
        names=names,
    )


def _flattened(kernel: Polynomial, means: Array, seconds: Array) -> Array:
    """Rows whose inner products are those of the embeddings, up to the constant c^2."""
    return np.hstack([np.sqrt(2 * kernel.offset) * means, seconds.reshape(len(seconds), -1)])


def _check_degree(kernel: Polynomial) -> None:
    if not isinstance(kernel, Polynomial) or kernel.degree != 2:
        raise InputError(f"moments describe the polynomial kernel of degree 2 only, got {kernel!r}"[:200])


def _about_the_mean(gram: Array) -> Array:
    gram = (gram + gram.T) / 2
    row_means = gram.mean(axis=0)
    return np.asarray(gram - row_means - row_means[:, None] + gram.mean())


def _positive_part(gram: Array) -> Array:
    """The nearest positive semidefinite matrix: rounding can leave a kernel's Gram matrix slightly indefinite."""
    eigenvalues, vectors = np.linalg.eigh(gram)
    if eigenvalues[0] >= 0:
        return gram
    return np.asarray((vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T)


def kernel_norm_bound(kernel: Kernel, given: float | None, largest_diagonal: float) -> float:
    """M of a kernel: as given, else what the kernel guarantees, else the largest norm seen."""
    if given is not None:
        if positive(given, "norm_bound") * (1 + BOUND_SLACK) < np.sqrt(largest_diagonal):
            raise InputError(f"a point has norm {np.sqrt(largest_diagonal):.8g}, above norm_bound {given:.8g}")
        return float(given)
    bound = kernel.diagonal_bound
    return float(np.sqrt(bound if np.isfinite(bound) else largest_diagonal))
