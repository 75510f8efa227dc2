"""Share data within clusters of agents that look alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from kinfed.moments import squared_distances
from kinfed.validation import positive_integer
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def clusters(geometry: Geometry, count: int = 2) -> Weights:
    r"""The grand mean within each of `count` clusters of the mean embeddings, by Ward's linkage.

    Ward's method joins the two clusters whose union adds least to :math:`\sum_k |\nu_k - \bar\nu_{c(k)}|^2`; averaging
    within clusters shrinks noise that single comparisons of two agents cannot see through.

    Parameters
    ----------
    count : int
        How many clusters; at most one per agent.

    References
    ----------
    Ward, Hierarchical grouping to optimize an objective function, JASA 1963.
    """
    distances = np.sqrt(squared_distances(geometry.gram))
    labels = ward_labels(squareform(distances, checks=False), positive_integer(count, "count"), len(geometry))
    return weights_of(geometry, "clusters", within(labels, geometry.targets, geometry.sizes))


def ward_labels(distances: NDArray[np.float64], count: int, n_agents: int) -> NDArray[np.int64]:
    """A label per agent, from the condensed distances between all pairs."""
    if min(count, n_agents) == 1:
        return np.zeros(n_agents, dtype=np.int64)
    return np.asarray(fcluster(linkage(distances, "ward"), min(count, n_agents), criterion="maxclust"), dtype=np.int64)


def within(labels: NDArray[np.int64], targets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights of the targets: the grand mean of all agents with their label."""
    together = (labels[targets][:, None] == labels) * sizes.astype(float)
    return np.asarray(together / together.sum(axis=1, keepdims=True))
