r"""What the rules know of the agents: inner products between mean embeddings.

Three ways lead to the same numbers: explicit features, any kernel through Gram blocks, and the polynomial kernel of
degree 2 through means and second moments (both in `kernel_geometry`). A fourth, from sketches, is the federated form of
the first: a target holds its own points and everybody's sketch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Places, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.sketches import SketchStack
from kinfed.backends.wire import Message
from kinfed.embedding import (
    FeatureMap,
    Sketch,
    check_stacked,
    common_recipe,
    features_from_recipe,
    operator_norm,
    squared_distances,
)
from kinfed.errors import InputError, SketchError
from kinfed.parallel import map_on_cores
from kinfed.validation import Array, FloatArray, agents_points, points_array, positive, target_indices

# Features in single precision may pass their bound by this share of it.
BOUND_SLACK = 2e-6
# Entries of the differences of means taken at once (32 MB).
_PAIR_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class HeldOut:
    r"""Targets that know themselves by a part of their rows, while everybody else is known by all of them.

    A target may stand for itself several times, with other rows held out each time. Its own mean is then
    :math:`\nu_t + \delta_t` in place of :math:`\nu_t`, wherever it appears.

    Attributes
    ----------
    moved : array of shape (T, B)
        :math:`\langle \nu_k - \bar\nu, \delta_t \rangle`.
    squared : array of shape (T,)
        :math:`|\delta_t|^2`.
    sizes, mean_variance : arrays of shape (T,)
        :math:`n_t` and :math:`s_t` of the rows that are left.
    """

    moved: Array
    squared: Array
    sizes: NDArray[np.int64]
    mean_variance: Array


@dataclass(frozen=True, eq=False)
class Geometry:
    r"""Inner products between the agents' mean embeddings, and the spread of each agent.

    All rules depend on differences of means alone, so the Gram matrix is taken about the mean of the means: the part all
    agents share would only cost digits.

    Attributes
    ----------
    gram : array of shape (B, B)
        :math:`G_{kl} = \langle \nu_k - \bar\nu, \nu_l - \bar\nu \rangle`.
    mean_variance : array of shape (B,)
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
    held_out : HeldOut, optional
        Where targets hold rows out, what they know of themselves; `directional`, `squared_distances` and `operator_norms`
        are then of the rows that are left.
    """

    gram: Array
    mean_variance: Array
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]
    directional: Array
    squared_distances: Array
    operator_norms: Array
    norm_bound: float
    names: tuple[str, ...]
    held_out: HeldOut | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def __post_init__(self) -> None:
        for values in (self.gram, self.mean_variance, self.directional, self.squared_distances, self.operator_norms):
            if not np.isfinite(values).all():
                raise InputError("the points are too large or too far apart for double precision; rescale them")

    @property
    def own_sizes(self) -> NDArray[np.int64]:
        """How many rows each target knows itself by."""
        return self.sizes[self.targets] if self.held_out is None else self.held_out.sizes

    @property
    def own_variance(self) -> Array:
        """The expected squared error of the mean each target knows itself by."""
        return self.mean_variance[self.targets] if self.held_out is None else self.held_out.mean_variance

    @property
    def target_sizes(self) -> Array:
        """Rows of every agent as each target knows them, of shape (T, B)."""
        known = np.tile(self.sizes.astype(np.float64), (len(self.targets), 1))
        known[np.arange(len(self.targets)), self.targets] = self.own_sizes
        return known

    @property
    def effective_dimensions(self) -> Array:
        r""":math:`d^e_t = \mathrm{tr}\,\Sigma_t / |\Sigma_t|_{op}` of the targets; 1 where all points coincide."""
        traces = (self.mean_variance * self.sizes)[self.targets]
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
    if max(norms) > bound * (1 + BOUND_SLACK):
        worst = int(np.argmax(norms))
        raise InputError(f"agent {names[worst]} has a point of norm {norms[worst]:.8g}, above norm_bound {bound:.8g}")
    # About its first point, an agent whose points all coincide has its exact mean and exactly no spread.
    spreads = [array.astype(np.float64) - array[0] for array in arrays]
    means = np.array([array[0] + spread.mean(axis=0) for array, spread in zip(arrays, spreads, strict=True)])
    mean_variance = np.array([spread.var(axis=0, ddof=1).sum() / len(spread) for spread in spreads])
    own = {int(t): arrays[t] for t in chosen}
    return geometry_of_means(names, means, mean_variance, [len(array) for array in arrays], own, chosen, bound)


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


def geometry_of_means(
    names: tuple[str, ...],
    means: Array,
    mean_variance: Array,
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
    rows = list(map_on_cores(row, targets.tolist(), operations))
    gram = centred @ centred.T
    return Geometry(
        gram=gram,
        mean_variance=mean_variance,
        sizes=np.array(sizes, dtype=np.int64),
        targets=targets,
        directional=np.array([variances for variances, _ in rows]),
        squared_distances=pairwise_distances(centred, gram, targets),
        operator_norms=np.array([norm for _, norm in rows]),
        norm_bound=norm_bound,
        names=names,
    )


def held_out_geometry(
    names: tuple[str, ...],
    means: Array,
    mean_variance: Array,
    sizes: NDArray[np.int64],
    parts: Sequence[FloatArray],
    targets: NDArray[np.int64],
    norm_bound: float,
) -> Geometry:
    """Geometry of all agents' means, as seen by targets that hold rows out.

    Parameters
    ----------
    names, means, mean_variance, sizes
        Of all agents, from all their rows.
    parts : sequence of arrays of shape (n, D)
        For each target its embedded points without those it holds out.
    targets : array of shape (T,)
        The same agent may stand here several times.
    norm_bound : float
    """
    centre = means.mean(axis=0)
    centred = means - centre

    def row(case: int) -> tuple[Array, Array, float, float]:
        t, points = int(targets[case]), parts[case].astype(np.float64)
        mean = points.mean(axis=0)
        apart = mean - centre - centred[t]
        onto = (points - mean) @ (centred - (mean - centre)).T
        onto[:, t] = 0.0
        variances = np.square(onto).sum(axis=0) / (len(points) - 1)
        variance = float(points.var(axis=0, ddof=1).sum()) / len(points)
        return variances, centred @ apart, float(apart @ apart), variance

    operations = 2.0 * means.size * sum(len(part) for part in parts)
    rows = list(map_on_cores(row, range(len(targets)), operations))
    moved, squared = np.array([one[1] for one in rows]), np.array([one[2] for one in rows])
    gram, each = centred @ centred.T, np.arange(len(targets))
    # |nu_k - nu_t - delta|^2, and zero from a target to itself.
    distances = pairwise_distances(centred, gram, targets) - 2 * (moved - moved[each, targets][:, None]) + squared[:, None]
    distances[each, targets] = 0.0
    return Geometry(
        gram=gram,
        mean_variance=mean_variance,
        sizes=sizes,
        targets=targets,
        directional=np.array([one[0] for one in rows]),
        squared_distances=np.maximum(distances, 0.0),
        operator_norms=np.zeros(len(targets)),
        norm_bound=norm_bound,
        names=names,
        held_out=HeldOut(moved, squared, np.array([len(part) for part in parts]), np.array([one[3] for one in rows])),
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


def pooled_geometry(agents: PooledAgents, view: int, targets: Places) -> Geometry:
    """Geometry of points that are all here, made once."""
    key = ("geometry", view, targets.tobytes())
    if key not in agents.made:
        points = dict(zip(agents.spec.names, agents.points(view), strict=True))
        bound = agents.embeddings[view].norm_bound
        agents.made[key] = explicit_geometry(points, norm_bound=bound, targets=targets.tolist())
    found: Geometry = agents.made[key]
    return found


def sketch_messages(
    spec: TrainingSpec, stack: SketchStack, targets: Places, views: Sequence[int], settings: Mapping[str, Any]
) -> dict[int, Message]:
    """One question to every target that has sent its own sketch, with everybody's in some views."""
    told = {
        **settings,
        "absent": np.setdiff1d(np.arange(len(spec.names)), stack.present).tolist(),
        "norm bounds": {str(view): stack.norm_bounds[view] for view in views},
    }
    means = {f"mean {view}": stack.means[view] for view in views}
    message = Message(told, means | {f"trace {view}": stack.traces[view] for view in views})
    return dict.fromkeys(np.intersect1d(targets, stack.present).tolist(), message)


def geometry_at(site: SiteView, asked: Message, view: int) -> Geometry:
    """How the agents lie to each other as one site sees it, from everybody's sketches and its own points."""
    embedding, present = site.spec.embeddings[view], present_at(site, asked)
    return stacked_geometry(
        embedding.features,
        asked.arrays[f"mean {view}"],
        site.spec.sizes[present],
        asked.arrays[f"trace {view}"],
        tuple(site.spec.names[k] for k in present),
        {present.index(site.place): embedding.raw_points(site.agent)},
        norm_bound=asked.settings["norm bounds"][str(view)],
    )


def present_at(site: SiteView, asked: Message) -> list[int]:
    """The agents whose sketches are in the question."""
    absent = set(asked.settings["absent"])
    return [k for k in range(len(site.spec.names)) if k not in absent]
