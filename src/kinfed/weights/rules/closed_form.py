"""Rules in closed form: alone, together, known groups, clusters, tests of equal means, and shrinkage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from kinfed.embedding import squared_distances
from kinfed.errors import InputError
from kinfed.validation import nonnegative, positive_integer
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def local(geometry: Geometry) -> Weights:
    r"""Every agent alone: :math:`w_t = e_t`."""
    return weights_of(geometry, "local", np.eye(len(geometry))[geometry.targets])


def grand_mean(geometry: Geometry) -> Weights:
    r"""One model for all: :math:`w_{tk} = n_k / \sum_l n_l`."""
    shares = geometry.sizes / geometry.sizes.sum()
    return weights_of(geometry, "grand-mean", np.tile(shares, (len(geometry.targets), 1)))


def oracle(geometry: Geometry, groups: Sequence[Any]) -> Weights:
    r"""The grand mean within each known group.

    Parameters
    ----------
    groups : sequence of length B
        A label per agent; agents with equal labels share their data.
    """
    labels = np.empty(len(geometry), dtype=object)  # objects keep the label 1 apart from the label "1"
    given = list(groups)
    if len(given) != len(geometry) or any(np.ndim(label) for label in given):
        raise InputError(f"groups must hold one label for each of the {len(geometry)} agents, got {len(given)}")
    if any(label != label for label in given):
        raise InputError(f"the group of agent {geometry.names[[x != x for x in given].index(True)]} is missing (NaN)")
    labels[:] = given
    together = (labels[geometry.targets][:, None] == labels) * geometry.sizes.astype(float)
    return weights_of(geometry, "oracle", together / together.sum(axis=1, keepdims=True))


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
    labels = ward_labels(squareform(distances, checks=False), positive_integer(count, "count"))
    return weights_of(geometry, "clusters", within(labels, geometry.targets, geometry.sizes))


def ward_labels(distances: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """A label per agent, from the condensed distances between all pairs."""
    return tree_labels(ward_tree(distances), count)


def ward_tree(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ward's linkage, from the condensed distances between all pairs; without any for a single agent."""
    return np.asarray(linkage(distances, "ward")) if len(distances) else np.zeros((0, 4))


def tree_labels(tree: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """A label per agent, for that many clusters, or one for each agent if there are fewer."""
    n_agents = len(tree) + 1
    if min(count, n_agents) == 1:
        return np.zeros(n_agents, dtype=np.int64)
    return np.asarray(fcluster(tree, min(count, n_agents), criterion="maxclust"), dtype=np.int64)


def within(labels: NDArray[np.int64], targets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights of the targets: the grand mean of all agents with their label."""
    together = (labels[targets][:, None] == labels) * sizes.astype(float)
    return np.asarray(together / together.sum(axis=1, keepdims=True))


def similarity_test(geometry: Geometry, zeta: float = 1.0, extra_self: float = 0.0) -> Weights:
    r"""Agent k is kin of t iff :math:`U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k \le \zeta s_t`; kin weigh by their size.

    :math:`U_{tk}` is unbiased for the squared distance of the true means, and joining k pays while that distance is below
    the error :math:`s_t` of being alone.

    Parameters
    ----------
    zeta : float
        How much farther than its own error a target looks.
    extra_self : float
        Share of the weight a target keeps for itself on top of its part in the average, from 0 to 1.

    References
    ----------
    Marienwald, Fermanian and Blanchard, High-dimensional multi-task averaging and application to kernel mean embedding,
    AISTATS 2021.
    """
    zeta = nonnegative(zeta, "zeta")
    extra = min(nonnegative(extra_self, "extra_self"), 1.0)
    alone = np.eye(len(geometry))[geometry.targets]
    return weights_of(geometry, "similarity-test", (1 - extra) * similar_kin(geometry, zeta) + extra * alone)


def similar_kin(geometry: Geometry, zeta: float) -> NDArray[np.float64]:
    """Rows (T, B) of the similarity test alone."""
    own = geometry.own_variance[:, None]
    kin = geometry.squared_distances - own - geometry.mean_variance <= zeta * own
    kin[np.arange(len(kin)), geometry.targets] = True
    averages = kin * geometry.target_sizes
    return np.asarray(averages / averages.sum(axis=1, keepdims=True))


def james_stein(geometry: Geometry) -> Weights:
    r"""Positive-part James-Stein towards :math:`m = B^{-1} \sum_k \nu_k`, with the effective dimension.

    Row t is :math:`c_t e_t + (1 - c_t) 1/B` with :math:`c_t = \bigl(1 - s_t (1 - 2/d_t) / |\nu_t - m|^2\bigr)_+`. An
    effective dimension :math:`d_t \le 2` gives :math:`c_t = 1`: in two dimensions the mean cannot be improved on.

    References
    ----------
    James and Stein, Estimation with quadratic loss, Berkeley Symposium 1961.
    """
    targets, n_agents = geometry.targets, len(geometry)
    # The Gram matrix is about the mean of the means, so its diagonal is the squared distance to m.
    distances = np.maximum(np.diag(geometry.gram)[targets], 0.0)
    shrinkage = geometry.mean_variance[targets] * np.maximum(1 - 2 / np.maximum(geometry.effective_dimensions, 1.0), 0.0)
    apart = distances > shrinkage
    kept = np.where(apart, 1 - shrinkage / np.where(apart, distances, 1.0), 0.0)
    kept[shrinkage == 0] = 1.0
    return weights_of(geometry, "james-stein", kept[:, None] * np.eye(n_agents)[targets] + (1 - kept[:, None]) / n_agents)


def multi_task_averaging(geometry: Geometry) -> Weights:
    r"""Multi-task averaging with the constant similarity :math:`a = 2 / \mathrm{mean}_{k \ne l} |\nu_k - \nu_l|^2`.

    :math:`W = (I + \frac{a}{B} \mathrm{diag}(s) (B I - 1 1'))^{-1}`. With :math:`D = I + a\,\mathrm{diag}(s)` the matrix to
    invert is :math:`D - \frac{a}{B} s 1'`, a rank-one change of a diagonal, so W has a closed form with nonnegative
    entries and rows that sum to one.

    References
    ----------
    Feldman, Gupta and Frigyik, Revisiting Stein's paradox: multi-task averaging, JMLR 2014.
    """
    n_agents, mean_variance = len(geometry), geometry.mean_variance
    total = squared_distances(geometry.gram).sum()
    if n_agents == 1:
        matrix = np.ones((1, 1))
    elif total <= np.finfo(float).tiny or not mean_variance.any():
        # Equal means: the limit of a -> infinity weighs by precision; without any spread all are equally exact.
        precision = 1 / mean_variance if mean_variance.all() else (mean_variance == 0).astype(float)
        matrix = np.tile(precision / precision.sum(), (n_agents, 1))
    else:
        similarity = 2 * n_agents * (n_agents - 1) / total
        diagonal = 1 + similarity * mean_variance
        column = (similarity / n_agents) * mean_variance / diagonal
        # 1 - sum(column) is the mean of 1 / D, written so that nothing cancels.
        matrix = np.diag(1 / diagonal) + np.outer(column, 1 / diagonal) / np.mean(1 / diagonal)
        matrix /= matrix.sum(axis=1, keepdims=True)
    return weights_of(geometry, "multi-task-averaging", matrix[geometry.targets])
