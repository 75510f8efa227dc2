r"""Who speaks in whose model: how much an agent's fitted values follow everybody's outcomes.

With spread, noise, memberships and shares as they were found, coefficients are linear in all outcomes. In the coordinates
of `kinfed.priors.normal.RowMoments`, in which agent k's outcomes are :math:`z_k`,

.. math:: \theta_t = \sum_m w_m \Bigl( \sum_c q_{tmc} (I - S_m F_t' K_{tm}^{-1} F_t) \mu_{mc}
    + S_m F_t' K_{tm}^{-1} z_t \Bigr), \qquad \mu_{mc} = \sum_k G_{mck} z_k ,

and the influence of k on t is :math:`|F_t \, \partial \theta_t / \partial z_k|_F^2`, divided by its sum over k. It is 1
on the diagonal for agents that learn alone, and each agent's share of the rows where all have one model of equal columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kinfed.priors.normal import Priors, RowMoments
from kinfed.validation import Array

PROBES = 8
"""Random directions of the outcomes in which derivatives are taken where more rows would be needed."""


class Sources(NamedTuple):
    """What a member's centres are made of.

    Attributes
    ----------
    covariance : array of shape (C, p, p)
        Of the centres, relative to the noise.
    belongs : array of shape (B, C)
        What every agent counts in each.
    spread : array of shape (p, p)
        S with which agents' rows are weighed; zero for a common model.
    """

    covariance: Array
    belongs: Array
    spread: Array


def influence(
    evidence: RowMoments,
    priors: Priors,
    sources: Sequence[Sources | None],
    shares: Array,
    responsibilities: Array,
    seed: int = 0,
) -> Array:
    """Influence (B, B) of every agent on every agent's fitted values.

    Parameters
    ----------
    evidence : RowMoments
        Of all agents.
    priors : Priors
        M members, fitted on all agents.
    sources : sequence of Sources, or None for a member that knows nothing of others
    shares : array of shape (B, M)
        Of every agent's model.
    responsibilities : array of shape (B, M, C)
    seed : int
    """
    count, rank, _ = evidence.root.shape
    few = rank <= PROBES
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(count, rank, PROBES))
    probes = np.tile(np.eye(rank), (count, 1, 1)) if few else signs / np.sqrt(PROBES)
    total = np.zeros((count, count))
    pieces: list[tuple[Array, Array]] = []  # of targets (B, r, p), and of sources (B, p, J)
    own = np.zeros((count, rank, probes.shape[2]))
    spreads = priors.spread
    for m, source in enumerate(sources):
        if not shares[:, m].any():
            continue
        inverse = _inverse(evidence.root, spreads[m])
        shrunk = evidence.root @ spreads[m] @ evidence.root.swapaxes(1, 2) @ inverse  # F S F' K^-1
        own += shares[:, m, None, None] * (shrunk @ probes)
        if source is None:
            continue
        moved = evidence.root - shrunk @ evidence.root
        weighed = evidence.root.swapaxes(1, 2) @ (_inverse(evidence.root, source.spread) @ probes)
        for c in range(source.belongs.shape[1]):
            target = (shares[:, m] * responsibilities[:, m, c])[:, None, None] * moved
            pieces.append((target, source.covariance[c] @ (source.belongs[:, c, None, None] * weighed)))
    for t in range(count):
        speaks = np.zeros((count, rank, probes.shape[2]))
        for target, origin in pieces:
            speaks += target[t] @ origin
        speaks[t] += own[t]
        total[t] = np.square(speaks).sum(axis=(1, 2))
    return np.asarray(total / np.maximum(total.sum(axis=1, keepdims=True), 1e-300))


def _inverse(root: Array, spread: Array) -> Array:
    """:math:`(I + F S F')^{-1}`, of shape (B, r, r)."""
    matrix = root @ spread @ root.swapaxes(1, 2)
    each = np.arange(matrix.shape[1])
    matrix[:, each, each] += 1.0
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
