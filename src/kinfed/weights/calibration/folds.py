"""Which of its points every agent sets aside, and when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinfed.federation import Agent, Federation
from kinfed.splitting import derived_seed

SMALLEST = 5
"""An agent of fewer points judges nothing: it keeps all of them for training and takes what the others chose."""


def deal_folds(federation: Federation, folds: int, seed: int, repeat: int = 0) -> list[NDArray[np.int64]]:
    """The fold in which each point of each agent is set aside; -1 for never.

    Points of one class, or of neighbouring values of a numeric target, go to different folds, so every fold of an agent
    resembles the whole, and a class is missing from training only where the agent has it once.
    """
    return [
        _deal(agent, folds, np.random.default_rng(derived_seed(seed, "folds", repeat, agent.name))) for agent in federation
    ]


def without_fold(federation: Federation, dealt: list[NDArray[np.int64]], fold: int) -> Federation:
    """What everybody trains on while that fold is set aside."""
    agents = tuple(_chosen(agent, mine != fold) for agent, mine in zip(federation, dealt, strict=True))
    return Federation(agents, federation.columns, target=federation.target)


def _chosen(agent: Agent, rows: NDArray[np.bool_]) -> Agent:
    return Agent(agent.name, agent.X[rows], None if agent.y is None else agent.y[rows])


def _deal(agent: Agent, folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    n = len(agent.X)
    if n < SMALLEST:
        return np.full(n, -1, dtype=np.int64)
    shuffled = rng.permutation(n)
    if agent.y is not None and np.ndim(agent.y) == 1:
        shuffled = shuffled[np.argsort(np.asarray(agent.y)[shuffled], kind="stable")]
    dealt = np.empty(n, dtype=np.int64)
    # Blocks of neighbours are dealt in random order, so that no fold always holds the smaller of two.
    for start in range(0, n, folds):
        block = shuffled[start : start + folds]
        dealt[block] = rng.permutation(folds)[: len(block)]
    return dealt
