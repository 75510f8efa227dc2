r"""What the rules know of the agents: inner products between mean embeddings.

Three ways lead to the same numbers: explicit features, any kernel through Gram blocks, and the polynomial kernel of
degree 2 through means and second moments. A fourth, from sketches, is the federated form of the first: a target holds its
own points and everybody's sketch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError, SketchError
from kinfed.features import features_from_recipe
from kinfed.kernels import Kernel, Polynomial
from kinfed.moments import largest_eigenvalue, operator_norm, squared_distances
from kinfed.parallel import map_on_cores
from kinfed.sketch import Sketch, check_sketch, common_recipe
from kinfed.validation import FloatArray, agents_points, points_array, positive, target_indices

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Geometry:
    r"""Inner products between the agents' mean embeddings, and the spread of each agent.

    All rules depend on differences of means alone, so the Gram matrix is taken about the mean of the means: the part all
    agents share would only cost digits.

    Attributes
    ----------
    gram : array of shape (B, B)
        :math:`G_{kl} = \langle \nu_k - \bar\nu, \nu_l - \bar\nu \rangle`.
    scatter : array of shape (B,)
        :math:`s_k = \mathrm{tr}\,\Sigma_k / n_k`, the expected squared error of :math:`\nu_k`.
    sizes : array of shape (B,)
        :math:`n_k`.
    targets : array of shape (T,)
        The agents weights are wanted for.
    directional : array of shape (T, B)
        :math:`q_{tk} = \frac{1}{n_t - 1} \sum_i \langle \Phi_i^{(t)} - \nu_t, \nu_k - \nu_t \rangle^2`, the variance of
        target t in the direction of agent k.
    operator_norms : array of shape (T,)
        :math:`|\Sigma_t|_{op}` of the targets.
    norm_bound : float
        M, a bound on the norm of every embedded point.
    names : tuple of str
    """

    gram: Array
    scatter: Array
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]
    directional: Array
    operator_norms: Array
    norm_bound: float
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def squared_distances(self) -> Array:
        r""":math:`|\nu_t - \nu_k|^2` for every target t and agent k."""
        return squared_distances(self.gram)[self.targets]

    @property
    def effective_dimensions(self) -> Array:
        r""":math:`d^e_t = \mathrm{tr}\,\Sigma_t / |\Sigma_t|_{op}` of the targets; 1 where all points coincide."""
        traces = (self.scatter * self.sizes)[self.targets]
        spread = self.operator_norms > 0
        return np.where(spread, traces / np.where(spread, self.operator_norms, 1.0), 1.0)


def explicit_geometry(
    points: Mapping[Any, ArrayLike] | Sequence[ArrayLike],
    *,
    norm_bound: float | None = None,
    targets: int | Iterable[int] | None = None,
) -> Geometry:
    """Geometry of points that are already embedded, one (n_k, D) array per agent.

    `norm_bound` defaults to the largest norm among the points.
    """
    names, arrays = agents_points(points)
    chosen = target_indices(targets, len(arrays))
    norms = [float(np.sqrt(np.einsum("ij,ij->i", array, array).max())) for array in arrays]
    bound = max(norms) if norm_bound is None else positive(norm_bound, "norm_bound")
    if max(norms) > bound * (1 + 1e-6):
        worst = int(np.argmax(norms))
        raise InputError(f"agent {names[worst]} has a point of norm {norms[worst]:.6g}, above norm_bound {bound:.6g}")
    # About its first point, an agent whose points all coincide has its exact mean and exactly no spread.
    spreads = [array.astype(np.float64) - array[0] for array in arrays]
    means = np.array([array[0] + spread.mean(axis=0) for array, spread in zip(arrays, spreads, strict=True)])
    scatter = np.array([spread.var(axis=0, ddof=1).sum() / len(spread) for spread in spreads])
    own = {int(t): arrays[t] for t in chosen}
    return _geometry_of_means(names, means, scatter, [len(array) for array in arrays], own, chosen, bound)


def sketch_geometry(sketches: Mapping[Any, Sketch] | Sequence[Sketch], own_points: Mapping[int, ArrayLike]) -> Geometry:
    """Geometry as a target sees it: everybody's sketch and its own raw points.

    Parameters
    ----------
    sketches : one `Sketch` per agent, all of one recipe
    own_points : mapping from a target's index to its raw points (n_t, d)
        The points each sketch was made of; a site gives its own alone.
    """
    names = tuple(str(name) for name in (sketches if isinstance(sketches, Mapping) else range(len(sketches))))
    received = list(sketches.values()) if isinstance(sketches, Mapping) else list(sketches)
    features = features_from_recipe(common_recipe(received, names))
    for name, one in zip(names, received, strict=True):
        if one.n < 2:
            raise InputError(f"agent {name} has one point, so its covariance is undefined; leave it out")
        try:
            check_sketch(one)
        except SketchError as error:
            raise SketchError(f"the sketch of agent {name}: {error}") from None
    chosen = target_indices(list(own_points), len(received))
    own = {int(t): features(points_array(own_points[int(t)], f"agent {names[t]}")) for t in chosen}
    for t, array in own.items():
        if len(array) != received[t].n:
            raise InputError(f"agent {names[t]} gives {len(array)} points, but its sketch was made of {received[t].n}")
    bound = features.norm_bound
    if not np.isfinite(bound):
        bound = max(float(np.sqrt(np.einsum("ij,ij->i", array, array).max())) for array in own.values())
    means = np.array([one.mean for one in received])
    sizes = [one.n for one in received]
    scatter = np.array([one.trace / one.n for one in received])
    return _geometry_of_means(names, means, scatter, sizes, own, chosen, bound)


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
    names, arrays = agents_points(points)
    chosen = target_indices(targets, len(arrays))
    pooled = np.vstack(arrays)
    sizes = np.array([len(array) for array in arrays], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    diagonals = [kernel.diagonal(array) for array in arrays]
    bound = _kernel_norm_bound(kernel, norm_bound, max(float(values.max()) for values in diagonals))
    wanted = set(chosen.tolist())

    def row(k: int) -> tuple[Array, float, Array | None, float]:
        block = kernel(arrays[k], pooled)
        onto_means = np.add.reduceat(block, starts, axis=1) / sizes
        gram_row = onto_means.mean(axis=0)
        trace = max(0.0, float(diagonals[k].sum() - sizes[k] * gram_row[k]) / (sizes[k] - 1))
        if k not in wanted:
            return gram_row, trace, None, 0.0
        own = block[:, starts[k] : starts[k] + sizes[k]]
        centred = own - own.mean(axis=0) - own.mean(axis=1)[:, None] + own.mean()
        return gram_row, trace, _variances(onto_means - gram_row, k), largest_eigenvalue(centred) / (sizes[k] - 1)

    rows = map_on_cores(row, range(len(arrays)), 50.0 * len(pooled) ** 2)
    gram = np.array([gram_row for gram_row, _, _, _ in rows])
    return Geometry(
        gram=_about_the_mean((gram + gram.T) / 2),
        scatter=np.array([trace for _, trace, _, _ in rows]) / sizes,
        sizes=sizes,
        targets=chosen,
        directional=np.array([rows[t][2] for t in chosen]),
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
    """

    n: int
    mean: Array
    second: Array
    trace: float
    largest: float


def second_moments(Z: ArrayLike, kernel: Polynomial) -> SecondMoments:
    """Mean and second moment of one agent's raw points: an exact, finite form of its polynomial embedding."""
    points = points_array(Z, "second_moments").astype(np.float64)
    n = len(points)
    if n < 2:
        raise InputError(f"second_moments needs at least two points, got {n}: a covariance is undefined for fewer")
    mean, second = points.mean(axis=0), points.T @ points / n
    squared_norm = _polynomial_embedding_products(kernel, mean[None], second[None])[0, 0]
    diagonal = kernel.diagonal(points)
    trace = max(0.0, float(diagonal.sum() - n * squared_norm) / (n - 1))
    return SecondMoments(n, mean, second, trace, float(np.sqrt(diagonal.max())))


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
    if kernel.degree != 2:
        raise InputError(f"moments describe the polynomial kernel of degree 2 only, got degree {kernel.degree}")
    if not moments:
        raise InputError("there are no agents: give one SecondMoments per agent")
    dim = len(moments[0].mean)
    for k, one in enumerate(moments):
        if one.mean.shape != (dim,) or one.second.shape != (dim, dim):
            raise InputError(f"agent {k} has moments of dimension {len(one.mean)}, but agent 0 has {dim}")
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
        return _variances(2 * kernel.offset * Z @ means.T + quadratic, t), operator_norm(Z, kernel)

    operations = 2.0 * dim**2 * len(moments) * sum(moments[t].n for t in chosen)
    rows = map_on_cores(row, chosen.tolist(), operations)
    sizes = np.array([one.n for one in moments], dtype=np.int64)
    return Geometry(
        gram=_polynomial_embedding_products(kernel, means, seconds) - kernel.offset**2,
        scatter=np.array([one.trace for one in moments]) / sizes,
        sizes=sizes,
        targets=chosen,
        directional=np.array([variances for variances, _ in rows]),
        operator_norms=np.array([norm for _, norm in rows]),
        norm_bound=_kernel_norm_bound(kernel, norm_bound, max(one.largest for one in moments) ** 2),
        names=names,
    )


def _geometry_of_means(
    names: tuple[str, ...],
    means: Array,
    scatter: Array,
    sizes: Sequence[int],
    own: Mapping[int, FloatArray],
    targets: NDArray[np.int64],
    norm_bound: float,
) -> Geometry:
    centred = means - means.mean(axis=0)

    def row(t: int) -> tuple[Array, float]:
        spread = own[t].astype(np.float64) - means[t]
        return _variances(spread @ centred.T, t), operator_norm(spread)

    operations = 2.0 * means.size * sum(len(array) for array in own.values())
    rows = map_on_cores(row, targets.tolist(), operations)
    return Geometry(
        gram=centred @ centred.T,
        scatter=scatter,
        sizes=np.array(sizes, dtype=np.int64),
        targets=targets,
        directional=np.array([variances for variances, _ in rows]),
        operator_norms=np.array([norm for _, norm in rows]),
        norm_bound=norm_bound,
        names=names,
    )


def _variances(onto_means: Array, target: int) -> Array:
    """q_t: the variance over i (divisor n - 1) of <Phi_i, nu_k - nu_t>, from the (n_t, B) inner products."""
    return np.asarray(np.var(onto_means - onto_means[:, [target]], axis=0, ddof=1))


def _about_the_mean(gram: Array) -> Array:
    row_means = gram.mean(axis=0)
    return np.asarray(gram - row_means - row_means[:, None] + gram.mean())


def _polynomial_embedding_products(kernel: Polynomial, means: Array, seconds: Array) -> Array:
    flat = seconds.reshape(len(seconds), -1)
    return np.asarray(kernel.offset**2 + 2 * kernel.offset * means @ means.T + flat @ flat.T)


def _kernel_norm_bound(kernel: Kernel, given: float | None, largest_diagonal: float) -> float:
    if given is not None:
        return positive(given, "norm_bound")
    bound = kernel.diagonal_bound
    return float(np.sqrt(bound if np.isfinite(bound) else largest_diagonal))
