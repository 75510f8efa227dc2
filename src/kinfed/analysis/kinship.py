r"""Who is kin to whom, for the eye: an order, groups and outliers, a map, and a network.

Everything here starts from two matrices that a result has anyway: the weights W, where row t says how much target t listens
to every agent, and the squared distances between mean embeddings beside those that chance explains. Nothing here decides
anything; the rules do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    from kinfed.weights.result import Evidence


LARGEST_NETWORK = 200
"""Agents of a network that can still be read."""

_ORDERED_UP_TO = 300  # agents for which the best order of the leaves is found in about a second
_FARTHEST = 1e6  # squared distance of two agents at most, in units of their error
_TIE_BREAK = 0.05  # share of the distances in an order that follows the weights
_LAYOUT_STEPS = 200


def kin_order(matrix: Array, squared_distances: Array) -> Integers:
    r"""An order of the agents in which those who listen to each other stand together.

    The leaves of an average linkage with distance :math:`1 - a_{tk} / \max a`, where :math:`a_{tk} = (w_{tk} + w_{kt}) / 2`
    is how much two agents listen to each other; agents that do not are ordered by their embeddings.

    Parameters
    ----------
    matrix : array of shape (B, B)
        The weights.
    squared_distances : array of shape (B, B)
        Between the mean embeddings.
    """
    if len(matrix) < 3:
        return np.arange(len(matrix))
    affinity = (matrix + matrix.T) / 2
    np.fill_diagonal(affinity, 0.0)
    apart = np.sqrt(_symmetric(squared_distances))
    distance = (1 - affinity / _positive(affinity.max())) + _TIE_BREAK * apart / _positive(apart.max())
    np.fill_diagonal(distance, 0.0)
    condensed = squareform(distance, checks=False)
    tree = linkage(condensed, "average")
    if len(matrix) <= _ORDERED_UP_TO:
        tree = optimal_leaf_ordering(tree, condensed)
    return np.asarray(leaves_list(tree), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Groups:
    """Agents that look alike.

    Attributes
    ----------
    labels : array of int of shape (B,)
        0 for the largest group, 1 for the next, and so on; -1 for an agent that is in no group.
    sizes : tuple of int
    """

    labels: Integers
    sizes: tuple[int, ...]

    @property
    def outliers(self) -> Integers:
        """Agents that are in no group while others are."""
        return np.flatnonzero(self.labels < 0) if self.sizes else np.empty(0, dtype=np.int64)


def kin_groups(evidence: Evidence) -> Groups:
    r"""Groups of agents, as few as chance allows, and agents that are unlike all others.

    Ward's linkage of the mean embeddings, each in units of its own error: squared distances :math:`2 |\nu_t - \nu_k|^2 /
    (s_t + s_k)`. A union is undone if it is higher than the highest one of agents of one distribution, in 95 % of simulated
    federations of as many agents, whose means have isotropic noise in as many dimensions as the agents have in the median
    (:math:`d^e`, which errs on the low side, so that groups are not found too easily). An agent that differs by more than
    chance from every other is in no group.
    """
    distances, expected = _symmetric(evidence.squared_distances), _symmetric(evidence.null_means)
    count = len(distances)
    if count < 2:
        return Groups(np.full(count, -1), ())
    # An agent whose points coincide has no error: it differs from others like it by anything, but not infinitely.
    farthest = np.where(distances > 0, _FARTHEST, 0.0)
    apart = np.minimum(np.divide(2 * distances, expected, out=farthest, where=expected > 0), _FARTHEST)
    np.fill_diagonal(apart, 0.0)
    dimension = max(1, round(float(np.nanmedian(evidence.effective_dimension))))
    tree = linkage(np.sqrt(squareform(apart, checks=False)), "ward")
    found = fcluster(tree, _highest_union(count, dimension), criterion="distance") - 1
    unlike = (evidence.differ | evidence.differ.T).sum(axis=1) == count - 1
    members = np.bincount(found[~unlike], minlength=found.max() + 1)
    kept = [label for label in np.argsort(-members, kind="stable") if members[label] > 1]
    place = np.full(len(members), -1)
    place[kept] = np.arange(len(kept))
    return Groups(np.where(unlike, -1, place[found]), tuple(int(members[label]) for label in kept))


def _highest_union(count: int, dimension: int) -> float:
    """The height of Ward's last union that is surpassed in 5 % of federations of one distribution."""
    repetitions = 100 if count <= _ORDERED_UP_TO else 20
    # A fixed stream: the groups of a result are always the same.
    noise = np.random.default_rng(0).standard_normal((repetitions, count, dimension)) / np.sqrt(dimension)
    return float(np.quantile([linkage(one, "ward")[-1, 2] for one in noise], 0.95))


@dataclass(frozen=True, eq=False)
class AgentMap:
    """Agents in the plane.

    Attributes
    ----------
    coordinates : array of shape (B, 2)
        Distances between them come as near to the distances of the mean embeddings as a plane allows.
    explained : float
        The share of the squared distances about the centre that the plane shows.
    """

    coordinates: Array
    explained: float


def agent_map(squared_distances: Array) -> AgentMap:
    r"""Classical scaling: the two leading eigenvectors of :math:`-\frac{1}{2} H D H`, H the centring matrix."""
    distances = _symmetric(squared_distances)
    centred = distances - distances.mean(axis=0) - distances.mean(axis=1)[:, None] + distances.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    total = float(np.maximum(values, 0.0).sum())
    leading = np.maximum(values[::-1][:2], 0.0)
    axes = vectors[:, ::-1][:, :2] * np.sqrt(leading)
    # An eigenvector has no sign: the agent that lies farthest out is put on the positive side.
    farthest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0)
    coordinates = np.zeros((len(distances), 2))
    coordinates[:, : axes.shape[1]] = axes * np.where(farthest < 0, -1.0, 1.0)
    return AgentMap(coordinates, float(leading.sum()) / total if total > 0 else 1.0)


@dataclass(frozen=True, eq=False)
class Network:
    """Agents as nodes, the strongest weights between them as edges.

    Attributes
    ----------
    source, target : array of int of shape (E,)
        Target listens to source.
    weight : array of shape (E,)
    coordinates : array of shape (B, 2)
        In the unit square; agents that listen to each other are near.
    """

    source: Integers
    target: Integers
    weight: Array
    coordinates: Array


def kin_network(matrix: Array, start: Array, most: int = 3) -> Network:
    """For every agent the `most` others it listens to most, if it listens to them more than to the average agent.

    Parameters
    ----------
    matrix : array of shape (B, B)
        The weights.
    start : array of shape (B, 2)
        Where the layout starts, such as `AgentMap.coordinates`.
    most : int
        Edges per agent.
    """
    count = len(matrix)
    others = matrix.copy()
    np.fill_diagonal(others, 0.0)
    # In a row without a favourite every edge would be arbitrary.
    least = 1.5 * others.sum(axis=1, keepdims=True) / max(count - 1, 1) if count > 3 else 0.0
    heaviest = np.argsort(-others, axis=1, kind="stable")[:, : min(most, count - 1)]
    chosen = np.zeros(others.shape, dtype=bool)
    np.put_along_axis(chosen, heaviest, True, axis=1)
    target, source = np.nonzero(chosen & (others > least))
    weight = others[target, source]
    return Network(source, target, weight, _layout(count, source, target, weight, start))


def _layout(count: int, source: Integers, target: Integers, weight: Array, start: Array) -> Array:
    """Springs along edges and repulsion between all agents (Fruchterman and Reingold), cooling down; in the unit square."""
    place = _in_unit_square(start)
    if count < 2:
        return place
    # Agents that start in one place must not stay there.
    place = place + 1e-3 * np.random.default_rng(0).standard_normal(place.shape)
    spring = np.zeros((count, count))
    np.add.at(spring, (source, target), weight / _positive(weight.max(initial=0.0)))
    spring = np.sqrt(spring + spring.T)
    ideal = 1 / np.sqrt(count)
    for step in range(_LAYOUT_STEPS):
        apart = place[:, None] - place
        length = np.maximum(np.linalg.norm(apart, axis=2), 1e-4)
        force = ideal**2 / length**2 - spring * length / ideal
        move = (apart * force[:, :, None]).sum(axis=1) - 0.3 * (place - place.mean(axis=0))
        size = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-12)
        place = place + move / size * np.minimum(size, 0.1 * (1 - step / _LAYOUT_STEPS))
    return _in_unit_square(place)


def _symmetric(values: Array) -> Array:
    """What two agents tell of each other, averaged; as large as any where neither has answered."""
    both = np.stack([values, values.T])
    told = np.isfinite(both)
    mean = np.where(told, both, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    mean = np.where(told.any(axis=0), mean, mean.max(initial=0.0))
    np.fill_diagonal(mean, np.where(np.isfinite(np.diag(values)), np.diag(values), 0.0))
    return np.maximum(mean, 0.0)


def _in_unit_square(place: Array) -> Array:
    low, high = place.min(axis=0), place.max(axis=0)
    return np.asarray((place - (low + high) / 2) / _positive(float((high - low).max())) + 0.5)


def _positive(value: float) -> float:
    return value if value > 0 else 1.0
