"""The rows each lane's risk runs over, in blocks that fit the cache and hold no row of an agent of weight zero.

Lanes whose agents are the same share their rows and nothing is copied. Other lanes gather theirs side by side, padded with
rows of their own at weight zero, the longest lane first: a block then concerns the first lanes of its chunk only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.pool import Pool

# Numbers worked on at once: parameters of the lanes of a chunk, and activations of a block. Some megabytes stay in cache,
# and products of a few hundred rows are efficient already.
PARAMETERS_AT_ONCE = 2**20
ACTIVATIONS_AT_ONCE = 2**23
EFFICIENT_ROWS = 512

# From this many lanes with the same agents on, sharing rows is worth a chunk of its own.
_LANES_TO_SHARE = 8


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of the first lanes of a chunk: X (L', n, d), y and weights (L', n)."""

    X: Tensor
    y: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Size:
    """What one lane costs: numbers per set of parameters, and per row between forward and backward."""

    parameters: int
    activations: int

    def lanes_at_once(self, rows: int) -> int:
        """How many lanes fit into a chunk if each looks at up to `rows` rows."""
        rows = min(rows, EFFICIENT_ROWS)
        return max(1, min(PARAMETERS_AT_ONCE // self.parameters, ACTIVATIONS_AT_ONCE // (self.activations * rows)))

    def rows_at_once(self, lanes: int) -> int:
        """How many rows of each of `lanes` lanes fit into a block."""
        return max(16, ACTIVATIONS_AT_ONCE // (self.activations * lanes))


def interval_blocks(pool: Pool, first: Tensor, counts: Tensor, size: Size) -> Iterator[Block]:
    """Blocks of lanes whose rows are adjacent in the pool, each row of weight 1 / count.

    Parameters
    ----------
    pool : Pool
    first, counts : tensors of shape (L,), int64
        Lane l has the rows ``first[l]`` to ``first[l] + counts[l] - 1``; counts do not increase.
    size : Size
    """
    step = size.rows_at_once(len(first))
    shared = bool((first == first[0]).all() and (counts == counts[0]).all())
    for start in range(0, int(counts[0]), step):
        lanes = int((counts > start).sum())
        places = torch.arange(start, min(start + step, int(counts[0])))
        rows = first[:1, None] + places if shared else _padded(first, counts, lanes, places)
        weights = (places < counts[:lanes, None]) / counts[:lanes, None]
        yield _block(pool, rows, weights.to(pool.X.dtype))


@dataclass(frozen=True, eq=False)
class MixtureChunk:
    """Lanes trained together, and the weights of their rows.

    Attributes
    ----------
    lanes : array of int
        Their numbers, those with many rows first.
    weights : tensor of shape (L, 2 B)
        Weight of one row of agent k in column k; of a row that its own agent holds out in column B + k.
    counts : tensor of shape (L,), int64
        How many rows have a weight above zero.
    share : bool
        The lanes listen to the same agents.
    """

    lanes: NDArray[np.int64]
    weights: Tensor
    counts: Tensor
    share: bool

    @property
    def n_rows(self) -> int:
        """Rows that its blocks hold, padding included."""
        return int(self.counts[0]) * (1 if self.share else len(self.lanes))

    def blocks(self, pool: Pool, size: Size) -> Iterator[Block]:
        """All rows once."""
        step = size.rows_at_once(len(self.lanes))
        columns = pool.agents + len(pool.sizes) * pool.held_out
        if self.share:
            # Rows held out from some lanes train others: they stay, at weight zero where they are held out.
            for rows in torch.split((self.weights.sum(0) > 0)[columns].nonzero()[:, 0], step):
                yield _block(pool, rows[None], self.weights[:, columns[rows]])
            return
        # Found again each time: kept, the rows of many lanes could fill the memory.
        together = torch.cat([(weights > 0)[columns].nonzero()[:, 0] for weights in self.weights])
        first = self.counts.cumsum(0) - self.counts
        for start in range(0, int(self.counts[0]), step):
            lanes = int((self.counts > start).sum())
            places = torch.arange(start, min(start + step, int(self.counts[0])))
            rows = together[_padded(first, self.counts, lanes, places)]
            weights = self.weights[:lanes].gather(1, columns[rows])
            yield _block(pool, rows, weights * (places < self.counts[:lanes, None]))


def mixture_chunks(
    pool: Pool, weights: NDArray[np.float64], own: NDArray[np.int64], lanes: NDArray[np.int64], size: Size
) -> list[MixtureChunk]:
    """Divide `lanes` into chunks.

    Parameters
    ----------
    pool : Pool
    weights : array of shape (U, B)
        The weights of all lanes.
    own : array of shape (U,)
        The agent whose held-out rows a lane must not see; -1 for none.
    lanes : array of int
        The lanes to place.
    size : Size
    """
    support = weights[lanes] > 0
    _, group, members = np.unique(np.packbits(support, axis=1), axis=0, return_inverse=True, return_counts=True)
    shared = members >= _LANES_TO_SHARE
    parts = [(lanes[group == number], True) for number in np.flatnonzero(shared)]
    alone = lanes[~shared[group]]
    lengths = (weights[alone] > 0) @ pool.sizes.numpy()
    parts.append((alone[np.argsort(-lengths, kind="stable")], False))
    at_once = size.lanes_at_once(int((support @ pool.sizes.numpy()).max()))
    return [
        _mixture_chunk(pool, weights, own, part[start : start + at_once], share)
        for part, share in parts
        for start in range(0, len(part), at_once)
    ]


def _mixture_chunk(
    pool: Pool, weights: NDArray[np.float64], own: NDArray[np.int64], lanes: NDArray[np.int64], share: bool
) -> MixtureChunk:
    sizes, kept = pool.sizes.numpy(), pool.kept.numpy()
    is_own = own[lanes, None] == np.arange(len(sizes))
    trained = weights[lanes] / np.where(is_own, kept, sizes)
    held_out = np.where(is_own, 0.0, weights[lanes] / sizes)
    # Counted after the cast, where the smallest weights may have become zero.
    by_column = torch.from_numpy(np.concatenate([trained, held_out], axis=1)).to(pool.X.dtype)
    counts = ((by_column > 0) * torch.cat([pool.kept, pool.sizes - pool.kept])).sum(1)
    order = torch.argsort(counts, descending=True, stable=True)
    return MixtureChunk(lanes[order.numpy()], by_column[order], counts[order], share)


def _padded(first: Tensor, counts: Tensor, lanes: int, places: Tensor) -> Tensor:
    """Rows (lanes, n) at the given places; beyond a lane's end, its last row."""
    return first[:lanes, None] + torch.minimum(places, counts[:lanes, None] - 1)


def _block(pool: Pool, rows: Tensor, weights: Tensor) -> Block:
    lanes, count = weights.shape
    X = pool.X.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)
    return Block(X.expand(lanes, count, -1), pool.y[rows].expand(lanes, count), weights)
