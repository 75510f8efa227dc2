r"""Federated averaging, proper: agents train, targets average.

In a round every agent k that target t listens to starts from :math:`\theta_t`, trains for some epochs on its own rows with
a fresh optimiser, and sends :math:`\theta_{tk}`; the target moves to
:math:`\theta_t + \sum_k w_{tk} (\theta_{tk} - \theta_t)`. With one full-batch gradient step per round that is gradient
descent on the weighted risk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.build import Optimiser, Pull
from kinfed.learners.neural.model_stack import ModelStack
from kinfed.learners.neural.rows import Block, Pool, Stream, generator, interval_blocks, padded
from kinfed.learners.neural.training import StackedProblem, TrainingState

# From this many targets of one agent on, the agent gets a chunk of its own and its rows are not copied.
_TARGETS_TO_SHARE = 16


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Targets and the agents that train for them, those with many rows first; all of shape (L,).

    `place` is the target's row in the state, `is_own` says whether the agent is the target itself.
    """

    place: Tensor
    weight: Tensor
    first: Tensor
    count: Tensor
    is_own: Tensor


class FederatedAveraging:
    """A round per epoch.

    Parameters
    ----------
    problem : StackedProblem
    pool : Pool
    optimiser : Optimiser
    local_epochs : int
    batch_size : int or None
        Rows per local step; an agent shuffles its rows in every local epoch and the last batch may be smaller. None takes
        one step on all its rows.
    """

    moments = 0  # local optimisers start afresh
    asks_sites = False

    def __init__(
        self, problem: StackedProblem, pool: Pool, optimiser: Optimiser, local_epochs: int, batch_size: int | None
    ) -> None:
        self._problem, self._pool, self._optimiser = problem, pool, optimiser
        self._local_epochs, self._batch_size = local_epochs, batch_size
        self._chunks: list[_Pairs] = []

    def prepare(self, state: TrainingState) -> None:
        """List the pairs of target and agent with a weight above zero."""
        state.order(np.sort(state.models))
        self._chunks = list(self._pairs(state.models))

    def advance(self, state: TrainingState, epoch: int) -> Tensor:
        """Run one round: everybody trains on its own rows, and targets take weighted means."""
        change, losses = self.average(state, epoch)
        state.parameters += change
        state.steps += 1
        return losses

    def average(self, state: TrainingState, epoch: int) -> tuple[Tensor, Tensor]:
        r"""What a round adds to the parameters, :math:`\sum_k w_{tk} (\theta_{tk} - \theta_t)`, and its training losses."""
        losses = torch.zeros(len(state.models), dtype=state.parameters.dtype)
        change = torch.zeros_like(state.parameters)
        orders = self._orders(epoch) if self._batch_size is not None else None
        for pairs in self._chunks:
            start = state.parameters[pairs.place]
            models = ModelStack(self._problem.stacked, start.clone())
            pull = self._problem.pull_on(state.models[pairs.place.numpy()])
            if orders is None:
                loss = self._whole_steps(pairs, models, pull)
            else:
                loss = self._batch_steps(pairs, models, orders, pull)
            change.index_add_(0, pairs.place, (models.parameters - start).mul_(pairs.weight[:, None]))
            losses.index_add_(0, pairs.place, loss * pairs.weight)
        return change, losses

    def _whole_steps(self, pairs: _Pairs, models: ModelStack, pull: Pull | None) -> Tensor:
        cost, moments = self._problem.stacked.cost, self._fresh_moments(models)
        losses = torch.zeros(len(pairs.place), dtype=models.parameters.dtype)
        for epoch in range(self._local_epochs):
            for number, block in enumerate(interval_blocks(self._pool, pairs.first, pairs.count, cost)):
                losses[: len(block.X)] += models.add_gradient(*block, fresh=number == 0)
            self._optimiser.step(models.parameters, models.gradient, moments, epoch + 1, pull)
        return losses / self._local_epochs

    def _batch_steps(self, pairs: _Pairs, models: ModelStack, orders: Tensor, pull: Pull | None) -> Tensor:
        pool, batch = self._pool, int(self._batch_size or 0)
        moments = self._fresh_moments(models)
        losses = torch.zeros(len(pairs.place), dtype=models.parameters.dtype)
        steps = (pairs.count + batch - 1) // batch
        for step in range(self._local_epochs * int(steps[0])):
            # Models with fewer rows finish first and stand last, so those at work are the first ones.
            active = int((steps * self._local_epochs > step).sum())
            per_epoch = steps[:active]
            places = (step % per_epoch * batch)[:, None] + torch.arange(batch)
            order = (step // per_epoch * 2 + pairs.is_own[:active]) * len(pool.agents)
            rows = orders[order[:, None] + padded(pairs.first, pairs.count, active, places)]
            inside = (places < pairs.count[:active, None]).to(losses.dtype)
            block = Block.of(pool, rows, inside / inside.sum(1, keepdim=True))
            losses[:active] += models.add_gradient(*block, fresh=True)
            at_work = slice(active)
            self._optimiser.step(
                models.parameters[at_work],
                models.gradient[at_work],
                [moment[at_work] for moment in moments],
                step + 1,
                None if pull is None else pull.on(at_work),
            )
        return losses / (steps * self._local_epochs)

    def _fresh_moments(self, models: ModelStack) -> list[Tensor]:
        return [torch.zeros_like(models.parameters) for _ in range(self._optimiser.moments)]

    def _orders(self, epoch: int) -> Tensor:
        """For every local epoch the pool's rows, shuffled within agents: mixed, then with held-out rows last."""
        rngs = (generator(self._problem.seed, Stream.SHUFFLE, epoch, local) for local in range(self._local_epochs))
        return torch.cat([order for rng in rngs for order in shuffled_rows(rng, self._pool)])

    def _pairs(self, models: NDArray[np.int64]) -> Iterator[_Pairs]:
        problem, pool = self._problem, self._pool
        weights = problem.weights[models]
        place, agent = np.nonzero(weights > 0)
        is_own = problem.own[models][place] == agent
        count = np.where(is_own, pool.kept.numpy()[agent], pool.sizes.numpy()[agent])
        order = np.lexsort((place, agent, -count))
        place, agent, is_own, count = place[order], agent[order], is_own[order], count[order]
        weight = (weights / weights.sum(axis=1, keepdims=True))[place, agent]
        # Batches are gathered model by model; only whole agents can be shared.
        source = agent * 2 + is_own if self._batch_size is None else np.zeros_like(agent)
        for chosen in _chunks(source, problem.stacked.cost.models_at_once(self._batch_size or int(count[0]))):
            yield _Pairs(
                place=torch.from_numpy(place[chosen]),
                weight=torch.from_numpy(weight[chosen]).to(pool.X.dtype),
                first=pool.first[torch.from_numpy(agent[chosen])],
                count=torch.from_numpy(count[chosen]),
                is_own=torch.from_numpy(is_own[chosen]),
            )


def _chunks(source: NDArray[np.int64], at_once: int) -> Iterator[slice]:
    """Ranges of at most `at_once` pairs; many neighbours with the same source of rows share no chunk with others."""
    edges = [0, *(np.flatnonzero(np.diff(source)) + 1).tolist(), len(source)]
    many = [edge for begin, end in pairwise(edges) if end - begin >= _TARGETS_TO_SHARE for edge in (begin, end)]
    for begin, end in pairwise(sorted({0, *many, len(source)})):
        for start in range(begin, end, at_once):
            yield slice(start, min(start + at_once, end))


def shuffled_rows(rng: np.random.Generator, pool: Pool) -> tuple[Tensor, Tensor]:
    """The pool's row numbers with every agent's rows in random order, twice: all its rows mixed, and held-out rows last."""
    if pool.rows_before:
        # Everybody's keys are one stream; whoever holds a part of the rows skips what belongs to the rows before them.
        cast(np.random.PCG64, rng.bit_generator).advance(pool.rows_before)
    keys, agents = rng.random(len(pool.agents)), pool.agents.numpy()
    mixed, kept_first = np.lexsort((keys, agents)), np.lexsort((keys, pool.held_out.numpy(), agents))
    return torch.from_numpy(mixed), torch.from_numpy(kept_first)
