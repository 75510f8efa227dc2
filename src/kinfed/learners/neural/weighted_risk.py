r"""Minimise :math:`\sum_k w_{tk} \hat R_k(\theta_t)` for all targets: full batches, or batches drawn from the mixture.

Full batches come in blocks that fit the cache and hold no row of an agent of weight zero. Models whose agents are the same
share their rows and nothing is copied. Others gather theirs side by side, padded with rows of their own at weight zero, the
model with most rows first: a block then concerns the first models of its chunk only.

For batches all targets read the *same* uniform numbers, each through its own mixture of agents. A model therefore does not
depend on which other targets are trained beside it, and two rules are compared on common random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.build import Optimiser, Pull
from kinfed.learners.neural.model_stack import Cost, ModelStack
from kinfed.learners.neural.rows import Block, Pool, Stream, generator, padded
from kinfed.learners.neural.training import StackedProblem, TrainingState

# From this many models with the same agents on, sharing rows is worth a chunk of its own.
_MODELS_TO_SHARE = 8

# Gathered points up to this many numbers are kept from epoch to epoch.
_KEPT = 2**26


class FullBatch:
    """One step per epoch, along the gradient of the whole weighted risk."""

    asks_sites = False

    def __init__(self, problem: StackedProblem, pool: Pool, optimiser: Optimiser) -> None:
        self._problem, self._pool, self._optimiser = problem, pool, optimiser
        self._chunks: list[tuple[slice, ModelStack, Pull | None, MixtureChunk, tuple[Block, ...] | None]] = []
        self.moments = optimiser.moments

    def prepare(self, state: TrainingState) -> None:
        """Group the models by the agents they listen to."""
        stacked, pool = self._problem.stacked, self._pool
        chunks = mixture_chunks(pool, self._problem, np.sort(state.models))
        state.order(np.concatenate([chunk.models for chunk in chunks]))
        self._chunks, start, kept = [], 0, 0
        for chunk in chunks:
            place = slice(start, start + len(chunk.models))
            kept += chunk.n_rows * pool.X.shape[1]
            blocks = tuple(chunk.blocks(pool, stacked.cost)) if kept <= _KEPT else None
            models = ModelStack(stacked, state.parameters[place])
            self._chunks.append((place, models, self._problem.pull_on(chunk.models), chunk, blocks))
            start = place.stop

    def advance(self, state: TrainingState, epoch: int) -> Tensor:
        """Take one step on the weighted risk of every model, over all rows."""
        risks = torch.zeros(len(state.models), dtype=state.parameters.dtype)
        state.steps += 1
        for place, models, pull, chunk, kept in self._chunks:
            for number, block in enumerate(kept or chunk.blocks(self._pool, self._problem.stacked.cost)):
                risks[place][: len(block.X)] += models.add_gradient(*block, fresh=number == 0)
            moments = [moment[place] for moment in state.moments]
            self._optimiser.step(models.parameters, models.gradient, moments, int(state.steps[0]), pull)
        return risks


class MiniBatch:
    r"""`steps_per_epoch` steps per epoch, each on `batch_size` rows that a model draws from its mixture of agents.

    A row of agent k is drawn with probability :math:`w_{tk} / n_k`, so the mean loss over the batch is an unbiased estimate
    of the weighted risk. The loss of an epoch is the mean over its steps.
    """

    asks_sites = False

    def __init__(
        self, problem: StackedProblem, pool: Pool, optimiser: Optimiser, batch_size: int, steps_per_epoch: int
    ) -> None:
        self._problem, self._pool, self._optimiser = problem, pool, optimiser
        self._batch_size, self._steps = batch_size, steps_per_epoch
        self._chunks: list[tuple[slice, ModelStack]] = []
        self.moments = optimiser.moments

    def prepare(self, state: TrainingState) -> None:
        """Divide the models into chunks that fit the cache."""
        state.order(np.sort(state.models))
        at_once = self._problem.stacked.cost.models_at_once(self._batch_size)
        places = [slice(start, start + at_once) for start in range(0, len(state.models), at_once)]
        self._chunks = [(place, ModelStack(self._problem.stacked, state.parameters[place])) for place in places]

    def advance(self, state: TrainingState, epoch: int) -> Tensor:
        """Take the steps of one epoch."""
        problem, pool, batch, dtype = self._problem, self._pool, self._batch_size, state.parameters.dtype
        rng = generator(problem.seed, Stream.MIXTURE, epoch)
        uniforms = torch.from_numpy(stratified_uniforms(rng, self._steps * batch))
        losses, before = torch.zeros(len(state.models), dtype=dtype), int(state.steps[0])
        for place, models in self._chunks:
            chosen = state.models[place]
            weights, own = torch.from_numpy(problem.weights[chosen]), torch.from_numpy(problem.own[chosen])
            drawn = mixture_rows(uniforms, weights, own, pool).view(len(chosen), self._steps, batch)
            moments, pull = [moment[place] for moment in state.moments], problem.pull_on(chosen)
            equal = torch.full((len(chosen), batch), 1 / batch, dtype=dtype)
            for step, rows in enumerate(drawn.transpose(0, 1).contiguous()):
                losses[place] += models.add_gradient(*Block.of(pool, rows, equal), fresh=True)
                self._optimiser.step(models.parameters, models.gradient, moments, before + step + 1, pull)
        state.steps += self._steps
        return losses / self._steps


@dataclass(frozen=True, eq=False)
class MixtureChunk:
    """Models trained together, and the weights of their rows.

    Attributes
    ----------
    models : array of int
        Their numbers, those with many rows first.
    weights : tensor of shape (L, 2 B)
        Weight of one row of agent k in column k; of a row that its own agent holds out in column B + k.
    counts : tensor of shape (L,), int64
        How many rows have a weight above zero.
    share : bool
        The models listen to the same agents.
    """

    models: NDArray[np.int64]
    weights: Tensor
    counts: Tensor
    share: bool

    @property
    def n_rows(self) -> int:
        """Rows that its blocks hold, padding included."""
        return int(self.counts[0]) * (1 if self.share else len(self.models))

    def blocks(self, pool: Pool, cost: Cost) -> Iterator[Block]:
        """All rows of weight above zero once, in blocks that fit into memory."""
        step = cost.rows_at_once(len(self.models))
        columns = pool.agents + len(pool.sizes) * pool.held_out
        if self.share:
            # Rows held out from some models train others: they stay, at weight zero where they are held out.
            for rows in torch.split((self.weights.sum(0) > 0)[columns].nonzero()[:, 0], step):
                yield Block.of(pool, rows[None], self.weights[:, columns[rows]])
            return
        # Found again each time: kept, the rows of many models could fill the memory.
        together = torch.cat([(weights > 0)[columns].nonzero()[:, 0] for weights in self.weights])
        first = self.counts.cumsum(0) - self.counts
        for start in range(0, int(self.counts[0]), step):
            models = int((self.counts > start).sum())
            places = torch.arange(start, min(start + step, int(self.counts[0])))
            rows = together[padded(first, self.counts, models, places)]
            weights = self.weights[:models].gather(1, columns[rows])
            yield Block.of(pool, rows, weights * (places < self.counts[:models, None]))


def mixture_chunks(pool: Pool, problem: StackedProblem, models: NDArray[np.int64]) -> list[MixtureChunk]:
    """Divide the models of these numbers into chunks."""
    sizes, weights = pool.sizes.numpy(), problem.weights
    support = weights[models] > 0
    _, group, members = np.unique(np.packbits(support, axis=1), axis=0, return_inverse=True, return_counts=True)
    shared = members >= _MODELS_TO_SHARE
    parts = [(models[group == number], True) for number in np.flatnonzero(shared)]
    alone = models[~shared[group]]
    parts.append((alone[np.argsort(-((weights[alone] > 0) @ sizes), kind="stable")], False))
    at_once = problem.stacked.cost.models_at_once(int((support @ sizes).max()))
    return [
        _mixture_chunk(pool, problem, part[start : start + at_once], share)
        for part, share in parts
        for start in range(0, len(part), at_once)
    ]


def _mixture_chunk(pool: Pool, problem: StackedProblem, models: NDArray[np.int64], share: bool) -> MixtureChunk:
    sizes, kept, weights = pool.sizes.numpy(), pool.kept.numpy(), problem.weights[models]
    is_own = problem.own[models, None] == np.arange(len(sizes))
    trained = weights / np.where(is_own, kept, sizes)
    held_out = np.where(is_own, 0.0, weights / sizes)
    # Counted after the cast, where the smallest weights may have become zero.
    by_column = torch.from_numpy(np.concatenate([trained, held_out], axis=1)).to(pool.X.dtype)
    counts = ((by_column > 0) * torch.cat([pool.kept, pool.sizes - pool.kept])).sum(1)
    order = torch.argsort(counts, descending=True, stable=True)
    return MixtureChunk(models[order.numpy()], by_column[order], counts[order], share)


def stratified_uniforms(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    r"""`count` uniform numbers, one in each of the strata :math:`[i/S, (i+1)/S)`, in random order.

    Each number alone is uniform on [0, 1), so every batch is an unbiased draw; together they are spread evenly, so an agent
    of weight w is drawn w S times up to one, and an agent trained alone on S = n rows sees each of them once.
    """
    return np.minimum((rng.permutation(count) + rng.random(count)) / count, np.nextafter(1.0, 0.0))


def mixture_rows(uniforms: Tensor, weights: Tensor, own: Tensor, pool: Pool) -> Tensor:
    r"""Rows of the pool drawn from every model's mixture: agent k with probability :math:`w_k`, then a row uniformly.

    One uniform number gives both: it falls into the agent's interval of the cumulated weights, and its place within that
    interval, again uniform, gives the row.

    Parameters
    ----------
    uniforms : tensor of shape (S,), float64
    weights : tensor of shape (L, B), float64
        Rows on the simplex.
    own : tensor of shape (L,), int64
        The agent whose held-out rows a model must not see; -1 for none.
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
    lower = torch.where(agents > 0, cumulated.gather(1, (agents - 1).clamp_(min=0)), 0.0)
    sizes = torch.where(agents == own[:, None], pool.kept[agents], pool.sizes[agents])
    places = ((drawn - lower) / (cumulated.gather(1, agents) - lower) * sizes).long()
    return pool.first[agents] + torch.minimum(places, sizes - 1)
