r"""The agent's side of neural training: questions about models, answered from its own rows.

The agent's rows are a pool of their own, on which the code of pooled training runs as it is: federated averaging with one
agent of weight one gives :math:`\theta_k - \theta`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.neural.blocks import Size
from kinfed.learners.neural.fedavg import FederatedAveraging
from kinfed.learners.neural.learner import TorchLearner
from kinfed.learners.neural.methods import Problem, State
from kinfed.learners.neural.modules import activations_per_row, seeded_layers
from kinfed.learners.neural.pool import Pool, pool_agent
from kinfed.learners.neural.sampling import Stream, torch_seed
from kinfed.learners.neural.setting import TYPES, make_optimiser, stacked_module, torch_threads
from kinfed.learners.neural.stacked import Lanes, StackedModule
from kinfed.learners.remote.base import Question, Terms
from kinfed.learners.remote.neural_terms import known_classes, quantity, refuse_batches, tensor_of


@dataclass(frozen=True, eq=False)
class _Network:
    made_for: tuple[Any, ...]
    stacked: StackedModule
    size: Size


@dataclass(frozen=True, eq=False)
class _Desk:
    """What an agent keeps from question to question.

    `averaging` is by the number of models, on which it depends beside the rows.
    """

    made_for: tuple[Any, ...]
    pool: Pool
    network: _Network
    averaging: dict[int, FederatedAveraging] = field(default_factory=dict)


class AgentSide:
    """Answers for the agents of this process; each finds its desk as it left it.

    Parameters
    ----------
    learner : TorchLearner
    """

    def __init__(self, learner: TorchLearner) -> None:
        refuse_batches(learner)  # here, where the rows are: whatever a server asks, single rows are not answered about
        self._learner = learner
        self._network: _Network | None = None
        self._desks: WeakKeyDictionary[Agent, _Desk] = WeakKeyDictionary()
        # Torch's generator, its threads and a module while vmap works on it belong to the process: one answer at a time.
        self._lock = Lock()

    def answer(self, agent: Agent, place: int, terms: Terms, question: Question) -> dict[str, NDArray[Any]]:
        """See `RemoteLearner.answer`."""
        epoch = int(question.settings["epoch"])
        seed = torch_seed(terms.seed, Stream.LAYERS, epoch, place)
        with self._lock, torch_threads(self._learner.threads), seeded_layers(seed):
            desk = self._desk(agent, place, terms)
            theta = tensor_of(question.arrays["theta"], self._learner)
            width = desk.network.stacked.layout.width
            if theta.ndim != 2 or theta.shape[1] != width:
                raise InputError(
                    f"agent {agent.name} was sent models of shape {tuple(theta.shape)}, but its network takes "
                    f"(models, {width}); give server and agents the same learner"
                )
            if self._learner.method == "fedavg":
                found, loss = self._changes(desk, theta, terms.seed, epoch)
            else:
                found, loss = self._mean_gradients(desk, theta)
        return {quantity(self._learner): found.numpy(), "loss": loss.numpy()}

    def _changes(self, desk: _Desk, theta: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Train every model on the agent's rows; how far each moved, and its losses on the way."""
        state, learner, count = State(np.arange(len(theta)), theta, []), self._learner, len(theta)
        if count not in desk.averaging:
            weights, nobody = np.ones((count, 1)), np.full(count, -1)
            problem = Problem(desk.network.stacked, desk.pool, weights, nobody, desk.network.size, seed)
            averaging = FederatedAveraging(problem, make_optimiser(learner), learner.local_epochs, learner.batch_size)
            averaging.prepare(state)
            desk.averaging.clear()  # another training has begun, with other weights
            desk.averaging[count] = averaging
        return desk.averaging[count].average(state, epoch)

    def _mean_gradients(self, desk: _Desk, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and value of the agent's mean loss at every model."""
        pool, network, rows = desk.pool, desk.network, len(desk.pool.X)
        gradient, losses = torch.zeros_like(theta), torch.zeros(len(theta), dtype=theta.dtype)
        for chosen in torch.split(torch.arange(len(theta)), network.size.lanes_at_once(rows)):
            lanes = Lanes(network.stacked, theta[chosen])
            step = network.size.rows_at_once(len(chosen))
            for start in range(0, rows, step):
                X, y = pool.X[start : start + step], pool.y[start : start + step]
                mean = torch.full((len(chosen), len(X)), 1 / rows, dtype=theta.dtype)
                stacked = X.expand(len(chosen), *X.shape), y.expand(len(chosen), len(y))
                losses[chosen] += lanes.add_gradient(*stacked, mean, fresh=start == 0)
            gradient[chosen] = lanes.gradient
        return gradient, losses

    def _desk(self, agent: Agent, place: int, terms: Terms) -> _Desk:
        classes = known_classes(self._learner, terms)
        labels = None if classes is None else tuple(classes.tolist())
        rows_before = int(terms.sizes[:place].sum())
        made_for = (terms.dim, terms.seed, labels, rows_before)
        desk = self._desks.get(agent)
        if desk is None or desk.made_for != made_for:
            if len(agent) != terms.sizes[place]:
                raise InputError(
                    f"agent {agent.name} has {len(agent)} rows, but {terms.sizes[place]} were agreed on; describe it again"
                )
            dtype = TYPES[self._learner.dtype]
            pool = pool_agent(agent, self._learner.task, dtype, terms.dim, classes, rows_before)
            desk = self._desks[agent] = _Desk(made_for, pool, self._network_for(made_for[:3], pool))
        return desk

    def _network_for(self, made_for: tuple[Any, ...], pool: Pool) -> _Network:
        """The network all agents of the process share; tried on the rows of the first of them."""
        if self._network is None or self._network.made_for != made_for:
            _, seed, labels = made_for
            outputs = None if labels is None else len(labels)
            stacked = stacked_module(self._learner, pool.X[:3], pool.y[:3], outputs, seed)
            size = Size(stacked.layout.width, activations_per_row(stacked.module, pool.X))
            self._network = _Network(made_for, stacked, size)
        return self._network
