r"""Which rows a step looks at: draws that depend on the seed, the epoch and the weights, and on nothing else.

All targets read the *same* uniform numbers, each through its own mixture of agents. A model therefore does not depend on
which other targets are trained beside it, two rules are compared on common random numbers, and no generator has a state
that would have to be kept: the number of the epoch is enough.
"""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.pool import Pool


class Stream(IntEnum):
    """What random numbers are for; every purpose has a stream of its own."""

    START = 0
    HOLD_OUT = 1
    MIXTURE = 2
    SHUFFLE = 3
    LAYERS = 4


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """The generator of one purpose in one epoch."""
    return np.random.default_rng([seed, int(stream), *numbers])


def torch_seed(seed: int, stream: Stream, *numbers: int) -> int:
    """A seed for torch's own generator."""
    return int(generator(seed, stream, *numbers).integers(2**63))


def stratified_uniforms(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    r"""`count` uniform numbers, one in each of the strata :math:`[i/S, (i+1)/S)`, in random order.

    Each number alone is uniform on [0, 1), so every batch is an unbiased draw; together they are spread evenly, so an agent
    of weight w is drawn w S times up to one, and an agent trained alone on S = n rows sees each of them once.
    """
    uniforms = (rng.permutation(count) + rng.random(count)) / count
    return np.minimum(uniforms, np.nextafter(1.0, 0.0))


def mixture_rows(uniforms: Tensor, weights: Tensor, own: Tensor, pool: Pool) -> Tensor:
    r"""Rows of the pool drawn from every lane's mixture: agent k with probability :math:`w_k`, then a row uniformly.

    One uniform number gives both: it falls into the agent's interval of the cumulated weights, and its place within that
    interval, again uniform, gives the row.

    Parameters
    ----------
    uniforms : tensor of shape (S,), float64
    weights : tensor of shape (L, B), float64
        Rows on the simplex.
    own : tensor of shape (L,), int64
        The agent whose held-out rows a lane must not see; -1 for none.
    pool : Pool

    Returns
    -------
    tensor of shape (L, S), int64
    """
    cumulated = weights.cumsum(1)
    cumulated /= cumulated[:, -1:].clone()
    drawn = uniforms.expand(len(weights), -1).contiguous()
    # The first boundary above the number: an interval of width zero is never first, so no agent of weight zero is drawn.
    agents = torch.searchsorted(cumulated, drawn, right=True).clamp_(max=weights.shape[1] - 1)
    upper = cumulated.gather(1, agents)
    lower = torch.where(agents > 0, cumulated.gather(1, (agents - 1).clamp_(min=0)), 0.0)
    sizes = torch.where(agents == own[:, None], pool.kept[agents], pool.sizes[agents])
    places = ((drawn - lower) / (upper - lower) * sizes).long()
    return pool.first[agents] + torch.minimum(places, sizes - 1)


def shuffled_rows(rng: np.random.Generator, pool: Pool) -> tuple[Tensor, Tensor]:
    """The pool's row numbers with every agent's rows in random order, twice: all its rows mixed, and held-out rows last."""
    if pool.rows_before:
        # Everybody's keys are one stream; whoever holds a part of the rows skips what belongs to the rows before them.
        cast(np.random.PCG64, rng.bit_generator).advance(pool.rows_before)
    keys, agents = rng.random(len(pool.agents)), pool.agents.numpy()
    mixed = np.lexsort((keys, agents))
    kept_first = np.lexsort((keys, pool.held_out.numpy(), agents))
    return torch.from_numpy(mixed), torch.from_numpy(kept_first)
