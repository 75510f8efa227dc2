r"""Minimise :math:`\sum_k w_{tk} \hat R_k(\theta_t)` for all targets: full batches, or batches drawn from the mixture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfed.learners.neural.blocks import Block, MixtureChunk, mixture_chunks
from kinfed.learners.neural.methods import Problem, State
from kinfed.learners.neural.optimisers import Optimiser
from kinfed.learners.neural.sampling import Stream, generator, mixture_rows, stratified_uniforms
from kinfed.learners.neural.stacked import Lanes

# Gathered points up to this many numbers are kept from epoch to epoch.
_KEPT = 2**26


@dataclass(frozen=True, eq=False)
class _FullChunk:
    place: slice
    lanes: Lanes
    rows: MixtureChunk
    blocks: tuple[Block, ...] | None


class FullBatch:
    """One step per epoch, along the gradient of the whole weighted risk."""

    def __init__(self, problem: Problem, optimiser: Optimiser) -> None:
        self._problem = problem
        self._optimiser = optimiser
        self._chunks: list[_FullChunk] = []
        self.moments = optimiser.moments

    def prepare(self, state: State) -> None:
        """Group the lanes by the agents they listen to."""
        problem = self._problem
        chunks = mixture_chunks(problem.pool, problem.weights, problem.own, np.sort(state.lanes), problem.size)
        state.order(np.concatenate([chunk.lanes for chunk in chunks]))
        self._chunks, start, kept = [], 0, 0
        for chunk in chunks:
            place = slice(start, start + len(chunk.lanes))
            kept += chunk.n_rows * problem.pool.X.shape[1]
            blocks = tuple(chunk.blocks(problem.pool, problem.size)) if kept <= _KEPT else None
            self._chunks.append(_FullChunk(place, Lanes(problem.stacked, state.parameters[place]), chunk, blocks))
            start = place.stop

    def advance(self, state: State, epoch: int) -> Tensor:
        """Take one step."""
        problem, risks = self._problem, torch.zeros(len(state.lanes), dtype=state.parameters.dtype)
        state.steps += 1
        for chunk in self._chunks:
            risk = risks[chunk.place]
            for number, block in enumerate(chunk.blocks or chunk.rows.blocks(problem.pool, problem.size)):
                risk[: len(block.X)] += chunk.lanes.add_gradient(block.X, block.y, block.weights, fresh=number == 0)
            moments = [moment[chunk.place] for moment in state.moments]
            self._optimiser.step(chunk.lanes.parameters, chunk.lanes.gradient, moments, state.steps)
        return risks


@dataclass(frozen=True, eq=False)
class _MiniChunk:
    place: slice
    lanes: Lanes
    weights: Tensor
    own: Tensor


class MiniBatch:
    r"""`steps_per_epoch` steps per epoch, each on `batch_size` rows that a lane draws from its mixture of agents.

    A row of agent k is drawn with probability :math:`w_{tk} / n_k`, so the mean loss over the batch is an unbiased estimate
    of the weighted risk. The loss of an epoch is the mean over its steps.
    """

    def __init__(self, problem: Problem, optimiser: Optimiser, batch_size: int, steps_per_epoch: int) -> None:
        self._problem = problem
        self._optimiser = optimiser
        self._batch_size = batch_size
        self._steps = steps_per_epoch
        self._chunks: list[_MiniChunk] = []
        self.moments = optimiser.moments

    def prepare(self, state: State) -> None:
        """Divide the lanes into chunks that fit the cache."""
        problem = self._problem
        state.order(np.sort(state.lanes))
        at_once = problem.size.lanes_at_once(self._batch_size)
        self._chunks = []
        for start in range(0, len(state.lanes), at_once):
            place = slice(start, min(start + at_once, len(state.lanes)))
            lanes = state.lanes[place]
            weights, own = torch.from_numpy(problem.weights[lanes]), torch.from_numpy(problem.own[lanes])
            self._chunks.append(_MiniChunk(place, Lanes(problem.stacked, state.parameters[place]), weights, own))

    def advance(self, state: State, epoch: int) -> Tensor:
        """Take the steps of one epoch."""
        problem, batch = self._problem, self._batch_size
        pool, dtype = problem.pool, state.parameters.dtype
        rng = generator(problem.seed, Stream.MIXTURE, epoch)
        uniforms = torch.from_numpy(stratified_uniforms(rng, self._steps * batch))
        losses = torch.zeros(len(state.lanes), dtype=dtype)
        for chunk in self._chunks:
            count = chunk.place.stop - chunk.place.start
            drawn = mixture_rows(uniforms, chunk.weights, chunk.own, pool)
            by_step = drawn.view(count, self._steps, batch).transpose(0, 1).reshape(self._steps, count * batch)
            moments = [moment[chunk.place] for moment in state.moments]
            equal = torch.full((count, batch), 1 / batch, dtype=dtype)
            for step, rows in enumerate(by_step):
                X = pool.X.index_select(0, rows).view(count, batch, -1)
                y = pool.y.index_select(0, rows).view(count, batch)
                losses[chunk.place] += chunk.lanes.add_gradient(X, y, equal, fresh=True)
                self._optimiser.step(chunk.lanes.parameters, chunk.lanes.gradient, moments, state.steps + step + 1)
        state.steps += self._steps
        return losses / self._steps
