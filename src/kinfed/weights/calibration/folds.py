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
    return [deal_agent(agent, folds, seed, repeat) for agent in federation]


def without_fold(federation: Federation, dealt: list[NDArray[np.int64]], fold: int) -> Federation:
    """What everybody trains on while that fold is set aside."""
    agents = tuple(some_points(agent, mine != fold) for agent, mine in zip(federation, dealt, strict=True))
    return Federation(agents, federation.columns, target=federation.target)


def some_points(agent: Agent, rows: NDArray[np.bool_]) -> Agent:
    """The agent with those of its points alone."""
    return Agent(agent.name, agent.X[rows], None if agent.y is None else agent.y[rows])


def deal_agent(agent: Agent, folds: int, seed: int, repeat: int = 0) -> NDArray[np.int64]:
    """The same for one agent: its folds depend on its name and its points, never on who else takes part."""
    n = len(agent.X)
    if n < SMALLEST:
        return np.full(n, -1, dtype=np.int64)
    rng = np.random.default_rng(derived_seed(seed, "folds", repeat, agent.name))
    shuffled = rng.permutation(n)
    if agent.y is not None and np.ndim(agent.y) == 1:
        shuffled = shuffled[np.argsort(np.asarray(agent.y)[shuffled], kind="stable")]
    dealt = np.empty(n, dtype=np.int64)
    # Blocks of neighbours are dealt in random order, so that no fold always holds the smaller of two.
    whole = n - n % folds
    for start in range(0, whole, folds):
        dealt[shuffled[start : start + folds]] = rng.permutation(folds)
    dealt[shuffled[whole:]] = _folds_of_the_rest(agent.name, n, folds, seed, repeat)
    return dealt


def fold_counts(name: str, n: int, folds: int, seed: int, repeat: int = 0) -> NDArray[np.int64]:
    """How many of its n points the agent of that name sets aside in each fold: known without seeing them."""
    if n < SMALLEST:
        return np.zeros(folds, dtype=np.int64)
    counts = np.full(folds, n // folds, dtype=np.int64)
    counts[_folds_of_the_rest(name, n, folds, seed, repeat)] += 1
    return counts


def _folds_of_the_rest(name: str, n: int, folds: int, seed: int, repeat: int) -> NDArray[np.int64]:
    """The folds of the points that make no whole block; drawn by themselves, so that counts need no dealing."""
    rng = np.random.default_rng(derived_seed(seed, "folds of the rest", repeat, name))
    return rng.permutation(folds)[: n % folds]
