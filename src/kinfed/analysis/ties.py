r"""Who counts how much in whose model: weights of the weighted risk, or influence of one agent's outcomes on another.

Both are a matrix with a row for every agent's model. Pictures need an order of the agents, groups, a map and a network.
Where the distances between mean embeddings are known these say who is alike. Elsewhere agents are alike if the same others
speak in their models. With :math:`p_t` row t of the matrix, in which the agent's own entry is made as large as that of the
other it hears most, so that agents which hear each other are alike, the *overlap* of two agents is

.. math:: o_{tk} = \sum_j \sqrt{p_{tj} p_{kj}} ,

1 if the same agents speak in both models, by equal shares, and 0 if nobody speaks in both; :math:`1 - o` is the squared
Hellinger distance, which is Euclidean, so that it has a map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from kinfed.analysis.kinship import (
    LARGEST_NETWORK,
    AgentMap,
    Groups,
    Network,
    agent_map,
    kin_groups,
    kin_network,
    kin_order,
)
from kinfed.errors import InputError
from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    from kinfed.weights.result import Evidence, Weights

Kind = Literal["weights", "influence"]

SAME_SPEAKERS = 0.5
"""Mean overlap above which agents form a group."""


@dataclass(frozen=True, eq=False)
class Ties:
    """Who counts how much in whose model.

    Attributes
    ----------
    kind : {"weights", "influence"}
        What the matrix is.
    names : tuple of str
        The B agents.
    sizes : array of shape (B,)
        Their rows.
    matrix : array of shape (B, B)
        Row t, which sums to one, says how much everybody counts in the model of agent t; zeros for one without a model.
    evidence : Evidence, optional
        How far agents' data are from each other, and how far they would be by chance; None where nobody compared them.
    effective : array of shape (B,), optional
        Effective sample sizes, which weights have.
    """

    kind: Kind
    names: tuple[str, ...]
    sizes: Integers
    matrix: Array
    evidence: Evidence | None = None
    effective: Array | None = None

    @classmethod
    def of_weights(cls, weights: Weights) -> Ties:
        """From the weights of all agents, in order."""
        if not np.array_equal(weights.targets, np.arange(len(weights.names))):
            raise InputError("a report needs the weights of all agents in order; leave out targets=...")
        return cls("weights", weights.names, weights.sizes, weights.matrix, weights.evidence, weights.effective_sample_size)

    def without(self, lost: Integers) -> Ties:
        """The same where some agents have no model."""
        kept = np.where(np.isin(np.arange(len(self.names)), lost)[:, None], 0.0, self.matrix)
        return replace(self, matrix=kept)

    @cached_property
    def own(self) -> Array:
        """What every agent counts in its own model; NaN for one without a model."""
        return np.where(self.matrix.any(axis=1), np.diagonal(self.matrix), np.nan)

    @cached_property
    def others(self) -> Array:
        """The matrix without its diagonal."""
        return np.asarray(self.matrix * (1 - np.eye(len(self.names))))

    @cached_property
    def squared_distances(self) -> Array:
        """Of the agents' data where they are known, else of who speaks in their models."""
        return 1.0 - overlaps(self.matrix) if self.evidence is None else self.evidence.squared_distances

    @cached_property
    def order(self) -> Integers:
        """The agents, kin beside kin."""
        return kin_order(self.matrix, self.squared_distances)

    @cached_property
    def groups(self) -> Groups:
        """Agents that are alike, and outliers."""
        return overlap_groups(self.matrix) if self.evidence is None else kin_groups(self.evidence)

    @cached_property
    def chart(self) -> AgentMap:
        """The agents in the plane."""
        return agent_map(self.squared_distances)

    @cached_property
    def network(self) -> Network | None:
        """Who counts most for whom; None for more than `LARGEST_NETWORK` agents."""
        return kin_network(self.matrix, self.chart.coordinates) if len(self.names) <= LARGEST_NETWORK else None

    def heard(self, agent: int, most: int) -> list[int]:
        """The others that count most in an agent's model, the heaviest first."""
        row = self.others[agent]
        return [k for k in np.argsort(-row, kind="stable")[:most].tolist() if row[k] > 0]


def overlaps(matrix: Array) -> Array:
    """Overlap (B, B) of who speaks in the models of every two agents."""
    others = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(others, 0.0)
    loudest = others.max(axis=1, initial=0.0)
    np.fill_diagonal(others, np.where(loudest > 0, loudest, 1.0))
    roots = np.sqrt(others / others.sum(axis=1, keepdims=True))
    found = np.clip(roots @ roots.T, 0.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def overlap_groups(matrix: Array) -> Groups:
    """Groups of agents in whose models the same others speak: unions of an average linkage above `SAME_SPEAKERS`."""
    count = len(matrix)
    if count < 2:
        return Groups(np.full(count, -1), ())
    tree = linkage(squareform(1.0 - overlaps(matrix), checks=False), "average")
    found = fcluster(tree, 1.0 - SAME_SPEAKERS, criterion="distance") - 1
    members = np.bincount(found)
    kept = [label for label in np.argsort(-members, kind="stable") if members[label] > 1]
    place = np.full(len(members), -1)
    place[kept] = np.arange(len(kept))
    return Groups(place[found], tuple(int(members[label]) for label in kept))
