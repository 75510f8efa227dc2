r"""What the rules know of the agents: inner products between mean embeddings.

Three ways lead to the same numbers: explicit features, any kernel through Gram blocks, and the polynomial kernel of
degree 2 through means and second moments (`moment_geometry`). A fourth, from sketches, is the federated form of the first:
a target holds its own points and everybody's sketch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError, SketchError
from kinfed.features import FeatureMap, features_from_recipe
from kinfed.kernels import Kernel, check_kernel
from kinfed.moments import largest_eigenvalue, operator_norm, squared_distances
from kinfed.parallel import map_on_cores
from kinfed.sketch import Sketch, check_stacked, common_recipe
from kinfed.validation import FloatArray, agents_points, points_array, positive, target_indices, without_rounding

Array = NDArray[np.float64]

# Features in single precision may pass their bound by this share of it.
_BOUND_SLACK = 2e-6
# Entries of the differences of means taken at once (32 MB).
_PAIR_ENTRIES = 1 << 22


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
    squared_distances : array of shape (T, B)
        :math:`|\nu_t - \nu_k|^2`.
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
    squared_distances: Array
    operator_norms: Array
    norm_bound: float
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def __post_init__(self) -> None:
        for values in (self.gram, self.scatter, self.directional, self.squared_distances, self.operator_norms):
            if not np.isfinite(values).all():
                raise InputError("the points are too large or too far apart for double precision; rescale them")

    @property
    def effective_dimensions(self) -> Array:
        r""":math:`d^e_t = \mathrm{tr}\,\Sigma_t / |\Sigma_t|_{op}` of the targets; 1 where all points coincide."""
        traces = (self.scatter * self.sizes)[self.targets]
        spread = (self.operator_norms > 0) & (traces > 0)
        return np.where(spread, np.maximum(traces / np.where(spread, self.operator_norms, 1.0), 1.0), 1.0)


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
    norms = [float(np.linalg.norm(array.astype(np.float64), axis=1).max()) for array in arrays]
    bound = max(norms) if norm_bound is None else positive(norm_bound, "norm_bound")
    if max(norms) > bound * (1 + _BOUND_SLACK):
        worst = int(np.argmax(norms))
        raise InputError(f"agent {names[worst]} has a point of norm {norms[worst]:.8g}, above norm_bound {bound:.8g}")
    # About its first point, an agent whose points all coincide has its exact mean and exactly no spread.
    spreads = [array.astype(np.float64) - array[0] for array in arrays]
    means = np.array([array[0] + spread.mean(axis=0) for array, spread in zip(arrays, spreads, strict=True)])
    scatter = np.array([spread.var(axis=0, ddof=1).sum() / len(spread) for spread in spreads])
    own = {int(t): arrays[t] for t in chosen}
    return geometry_of_means(names, means, scatter, [len(array) for array in arrays], own, chosen, bound)


def sketch_geometry(
    sketches: Mapping[Any, Sketch] | Sequence[Sketch],
    own_points: Mapping[int, ArrayLike],
    *,
    norm_bound: float | None = None,
) -> Geometry:
    """Geometry as a target sees it: everybody's sketch and its own raw points.

    Parameters
    ----------
    sketches : one `Sketch` per agent, all of one recipe
    own_points : mapping from a target's index to its raw points (n_t, d)
        The points each sketch was made of; a site gives its own alone.
    norm_bound : float, optional
        Needed for features without a bound of their own (`PolynomialFeatures`): one all agents agree on.
    """
    names = tuple(str(name) for name in (sketches if isinstance(sketches, Mapping) else range(len(sketches))))
    received = list(sketches.values()) if isinstance(sketches, Mapping) else list(sketches)
    for name, one in zip(names, received, strict=True):
        if not isinstance(one, Sketch):
            raise InputError(f"agent {name} gives no sketch but {type(one).__name__}; read files with load_sketch")
    recipe = common_recipe(received, names)
    for name, one in zip(names, received, strict=True):
        if one.mean.shape != (recipe.n_features,):
            raise SketchError(
                f"the sketch of agent {name}: its mean has shape {one.mean.shape}, not ({recipe.n_features},)"
            )
    return stacked_geometry(
        features_from_recipe(recipe),
        np.array([one.mean for one in received]),
        np.array([one.n for one in received], dtype=np.int64),
        np.array([one.trace for one in received]),
        names,
        own_points,
        norm_bound=norm_bound,
    )


def stacked_geometry(
    features: FeatureMap,
    means: Array,
    sizes: NDArray[np.int64],
    traces: Array,
    names: tuple[str, ...],
    own_points: Mapping[int, ArrayLike],
    *,
    norm_bound: float | None = None,
) -> Geometry:
    """Geometry of sketches of one feature map, given as means (B, D), sizes (B,) and traces (B,); see `sketch_geometry`."""
    if (sizes < 2).any():
        name = names[int(np.flatnonzero(sizes < 2)[0])]
        raise InputError(f"agent {name} has one point, so its covariance is undefined; leave it out")
    check_stacked(features.recipe, means, sizes, traces, names)
    chosen = target_indices(list(own_points), len(means))
    raw = {int(t): points_array(own_points[int(t)], f"agent {names[t]}", features.dim) for t in chosen}
    if norm_bound is None and not np.isfinite(features.norm_bound):
        raise InputError("these features have no bound of their own; pass norm_bound=..., the same at every site")
    own = {t: features(points) for t, points in raw.items()}
    for t, array in own.items():
        if len(array) != sizes[t]:
            raise InputError(f"agent {names[t]} gives {len(array)} points, but its sketch was made of {sizes[t]}")
        if not np.allclose(array.mean(axis=0, dtype=np.float64), means[t], rtol=1e-4, atol=1e-5):
            raise InputError(f"agent {names[t]} gives other points than those its sketch was made of")
    bound = features.norm_bound if norm_bound is None else positive(norm_bound, "norm_bound")
    return geometry_of_means(names, means, traces / sizes, sizes.tolist(), own, chosen, bound)


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

    rows = map_on_cores(row, range(len(arrays)), 50.0 * len(pooled) ** 2)
    gram = _positive_part(_about_the_mean(np.array([gram_row for gram_row, _, _, _ in rows])))
    distances = squared_distances(gram)[chosen]
    # Without the means themselves, a distance at the level of rounding cannot be told from zero.
    distances[distances <= 64 * np.finfo(float).eps * max(float(values.max()) for values in diagonals)] = 0.0
    return Geometry(
        gram=gram,
        scatter=np.array([trace for _, trace, _, _ in rows]) / sizes,
        sizes=sizes,
        targets=chosen,
        directional=np.array([rows[t][2] for t in chosen]),
        squared_distances=distances,
        operator_norms=np.array([rows[t][3] for t in chosen]),
        norm_bound=bound,
        names=names,
    )


def geometry_of_means(
    names: tuple[str, ...],
    means: Array,
    scatter: Array,
    sizes: Sequence[int],
    own: Mapping[int, FloatArray],
    targets: NDArray[np.int64],
    norm_bound: float,
) -> Geometry:
    """Geometry from all means and the targets' own embedded points."""
    centred = means - means.mean(axis=0)

    def row(t: int) -> tuple[Array, float]:
        spread = own[t].astype(np.float64) - means[t]
        return directional_variances(spread @ centred.T, t), operator_norm(spread)

    operations = 2.0 * means.size * sum(len(array) for array in own.values())
    rows = map_on_cores(row, targets.tolist(), operations)
    gram = centred @ centred.T
    return Geometry(
        gram=gram,
        scatter=scatter,
        sizes=np.array(sizes, dtype=np.int64),
        targets=targets,
        directional=np.array([variances for variances, _ in rows]),
        squared_distances=pairwise_distances(centred, gram, targets),
        operator_norms=np.array([norm for _, norm in rows]),
        norm_bound=norm_bound,
        names=names,
    )


def directional_variances(onto_means: Array, target: int) -> Array:
    """q_t: the variance over i (divisor n - 1) of <Phi_i, nu_k - nu_t>, from the (n_t, B) inner products."""
    return np.asarray(np.var(onto_means - onto_means[:, [target]], axis=0, ddof=1))


def pairwise_distances(means: Array, gram: Array, targets: NDArray[np.int64]) -> Array:
    """Squared distances of the targets' means to all means, exact to the last digits for means that nearly coincide.

    The Gram matrix gives them at once, but where two means share most of their digits the difference is taken first.
    """
    distances = squared_distances(gram)[targets]
    diagonal = np.diag(gram)
    rows, columns = np.nonzero(distances < 1e-4 * (diagonal[targets][:, None] + diagonal))
    step = max(1, _PAIR_ENTRIES // means.shape[1])
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        apart = means[targets[rows[some]]] - means[columns[some]]
        distances[rows[some], columns[some]] = np.einsum("ij,ij->i", apart, apart)
    return distances


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
        if positive(given, "norm_bound") * (1 + _BOUND_SLACK) < np.sqrt(largest_diagonal):
            raise InputError(f"a point has norm {np.sqrt(largest_diagonal):.8g}, above norm_bound {given:.8g}")
        return float(given)
    bound = kernel.diagonal_bound
    return float(np.sqrt(bound if np.isfinite(bound) else largest_diagonal))
