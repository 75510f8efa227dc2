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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.blocks import interval_blocks
from kinfed.learners.neural.methods import Problem, State
from kinfed.learners.neural.optimisers import Optimiser
from kinfed.learners.neural.sampling import Stream, generator, shuffled_rows
from kinfed.learners.neural.stacked import Lanes

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
    problem : Problem
    optimiser : Optimiser
    local_epochs : int
    batch_size : int or None
        Rows per local step; an agent shuffles its rows in every local epoch and the last batch may be smaller. None takes
        one step on all its rows.
    """

    def __init__(self, problem: Problem, optimiser: Optimiser, local_epochs: int, batch_size: int | None) -> None:
        self._problem = problem
        self._optimiser = optimiser
        self._local_epochs = local_epochs
        self._batch_size = batch_size
        self._chunks: list[_Pairs] = []
        self.moments = 0

    def prepare(self, state: State) -> None:
        """List the pairs of target and agent with a weight above zero."""
        state.order(np.sort(state.lanes))
        self._chunks = list(self._pairs(state.lanes))

    def advance(self, state: State, epoch: int) -> Tensor:
        """Run one round."""
        change, losses = self.average(state, epoch)
        state.parameters += change
        return losses

    def average(self, state: State, epoch: int) -> tuple[Tensor, Tensor]:
        r"""What a round adds to the parameters, :math:`\sum_k w_{tk} (\theta_{tk} - \theta_t)`, and its training losses."""
        problem, losses = self._problem, torch.zeros(len(state.lanes), dtype=state.parameters.dtype)
        change = torch.zeros_like(state.parameters)
        orders = self._orders(epoch) if self._batch_size is not None else None
        for pairs in self._chunks:
            start = state.parameters[pairs.place]
            lanes = Lanes(problem.stacked, start.clone())
            loss = self._whole_steps(pairs, lanes) if orders is None else self._batch_steps(pairs, lanes, orders)
            change.index_add_(0, pairs.place, (lanes.parameters - start).mul_(pairs.weight[:, None]))
            losses.index_add_(0, pairs.place, loss * pairs.weight)
        return change, losses

    def _whole_steps(self, pairs: _Pairs, lanes: Lanes) -> Tensor:
        problem, moments = self._problem, self._fresh_moments(lanes)
        losses = torch.zeros(len(pairs.place), dtype=lanes.parameters.dtype)
        for epoch in range(self._local_epochs):
            for number, block in enumerate(interval_blocks(problem.pool, pairs.first, pairs.count, problem.size)):
                losses[: len(block.X)] += lanes.add_gradient(block.X, block.y, block.weights, fresh=number == 0)
            self._optimiser.step(lanes.parameters, lanes.gradient, moments, epoch + 1)
        return losses / self._local_epochs

    def _batch_steps(self, pairs: _Pairs, lanes: Lanes, orders: Tensor) -> Tensor:
        pool, batch = self._problem.pool, int(self._batch_size or 0)
        moments = self._fresh_moments(lanes)
        losses = torch.zeros(len(pairs.place), dtype=lanes.parameters.dtype)
        steps = (pairs.count + batch - 1) // batch
        for step in range(self._local_epochs * int(steps[0])):
            # Lanes with fewer rows finish first and stand last, so those at work are the first ones.
            active = int((steps * self._local_epochs > step).sum())
            first, count, per_epoch = pairs.first[:active], pairs.count[:active], steps[:active]
            begin = step % per_epoch * batch
            places = begin[:, None] + torch.arange(batch)
            order = (step // per_epoch * 2 + pairs.is_own[:active]) * len(pool.agents)
            rows = orders[order[:, None] + first[:, None] + torch.minimum(places, count[:, None] - 1)].view(-1)
            X = pool.X.index_select(0, rows).view(active, batch, -1)
            y = pool.y.index_select(0, rows).view(active, batch)
            inside = (places < count[:, None]).to(losses.dtype)
            weights = inside / inside.sum(1, keepdim=True)
            losses[:active] += lanes.add_gradient(X, y, weights, fresh=True)
            self._optimiser.step(
                lanes.parameters[:active], lanes.gradient[:active], [moment[:active] for moment in moments], step + 1
            )
        return losses / (steps * self._local_epochs)

    def _fresh_moments(self, lanes: Lanes) -> list[Tensor]:
        return [torch.zeros_like(lanes.parameters) for _ in range(self._optimiser.moments)]

    def _orders(self, epoch: int) -> Tensor:
        """For every local epoch the pool's rows, shuffled within agents: mixed, then with held-out rows last."""
        problem = self._problem
        orders: list[Tensor] = []
        for local_epoch in range(self._local_epochs):
            orders += shuffled_rows(generator(problem.seed, Stream.SHUFFLE, epoch, local_epoch), problem.pool)
        return torch.cat(orders)

    def _pairs(self, lanes: NDArray[np.int64]) -> Iterator[_Pairs]:
        problem, pool = self._problem, self._problem.pool
        weights = problem.weights[lanes]
        place, agent = np.nonzero(weights > 0)
        is_own = problem.own[lanes][place] == agent
        count = np.where(is_own, pool.kept.numpy()[agent], pool.sizes.numpy()[agent])
        order = np.lexsort((place, agent, -count))
        place, agent, is_own, count = place[order], agent[order], is_own[order], count[order]
        weight = (weights / weights.sum(axis=1, keepdims=True))[place, agent]
        # Batches are gathered lane by lane; only whole agents can be shared.
        source = agent * 2 + is_own if self._batch_size is None else np.zeros_like(agent)
        for start, stop in _chunk_bounds(source, problem.size.lanes_at_once(self._batch_size or int(count[0]))):
            chosen = slice(start, stop)
            yield _Pairs(
                place=torch.from_numpy(place[chosen]),
                weight=torch.from_numpy(weight[chosen]).to(pool.X.dtype),
                first=pool.first[torch.from_numpy(agent[chosen])],
                count=torch.from_numpy(count[chosen]),
                is_own=torch.from_numpy(is_own[chosen]),
            )


def _chunk_bounds(source: NDArray[np.int64], at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `at_once` pairs; many neighbours with the same source of rows share no chunk with others."""
    changes = np.flatnonzero(np.diff(source)) + 1
    edges = np.concatenate([[0], changes, [len(source)]])
    cuts = {0, len(source)}
    for begin, end in pairwise(edges.tolist()):
        if end - begin >= _TARGETS_TO_SHARE:
            cuts |= {begin, end}
    for begin, end in pairwise(sorted(cuts)):
        for start in range(begin, end, at_once):
            yield start, min(start + at_once, end)
