r"""Networks trained where the rows never meet: models are sent to those they listen to, and move by what is answered.

In every exchange agent k answers :math:`a_{tk}` about each model t it was sent: with "fedavg" how far the model moves in
local training, with "weighted-risk" the gradient of its mean loss over all rows of the agent. The models move by
:math:`\sum_k s_{tk} a_{tk}`, with shares s over those who answered: it is added to them ("fedavg"), or handed to the
optimiser as their gradient.

Random numbers are those of training on pooled rows, each agent drawing its own part of them, and so are the results up to
rounding. Dropout is the exception: each agent draws its own. Batches of "weighted-risk" are refused: an agent would send
gradients of single rows, from which the rows can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.backends.agents import Agents, Question, SiteView, TrainingSpec
from kinfed.backends.wire import ArraySpec, Message
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.neural.build import (
    TYPES,
    Optimiser,
    Pull,
    build_network,
    make_optimiser,
    seeded_layers,
    torch_threads,
)
from kinfed.learners.neural.fedavg import FederatedAveraging
from kinfed.learners.neural.model_stack import StackedModule
from kinfed.learners.neural.rows import Pool, Stream, known_classes, pool_rows, torch_seed
from kinfed.learners.neural.training import StackedProblem, TrainingState, mean_losses

if TYPE_CHECKING:
    from kinfed.learners.neural.learner import TorchLearner

IN_FLIGHT = 2**27
"""Bytes of models that are sent to agents at once; agents beyond are asked when those have answered."""

# What an agent answers about each model.
_ANSWERS = {"fedavg": "change", "weighted-risk": "gradient"}

# A model that moves further than this many times its own length in one round has diverged, or is no honest answer.
_FURTHEST = 1e3


def refuse_batches(learner: TorchLearner) -> None:
    """Refuse batches that models draw from all agents: an agent's part of one is often a single row."""
    if learner.method == "weighted-risk" and learner.batch_size is not None:
        raise InputError(
            "batches of method 'weighted-risk' would send gradients of single rows, from which the rows can be read; "
            "use method='fedavg', or leave batch_size out"
        )


@dataclass(frozen=True, eq=False)
class AnswerSums:
    r"""Answers about U models, added up over the agents that were asked so far.

    Attributes
    ----------
    total : tensor of shape (U, width)
        :math:`\sum_k s_{tk} a_{tk}`.
    loss : tensor of shape (U,)
        The losses of those agents, added up with the same shares.
    heard : array of shape (U,)
        The sum of the shares of those who answered.
    missed : array of bool of shape (U,)
        Whether somebody the model listens to did not answer.
    """

    total: Tensor
    loss: Tensor
    heard: NDArray[np.float64]
    missed: NDArray[np.bool_]

    @classmethod
    def nothing(cls, parameters: Tensor) -> AnswerSums:
        """Before anybody was asked about these models (U, width)."""
        count = len(parameters)
        return cls(
            total=torch.zeros_like(parameters),
            loss=torch.zeros(count, dtype=parameters.dtype),
            heard=np.zeros(count),
            missed=np.zeros(count, dtype=bool),
        )

    def means(self) -> tuple[Tensor, Tensor]:
        """Total and loss divided by the shares that were heard; sums of everybody stay as they are to the last digit."""
        part = torch.from_numpy(np.where(self.missed & (self.heard > 0), self.heard, 1.0)).to(self.total.dtype)
        return self.total / part[:, None], self.loss / part


@dataclass(frozen=True, eq=False)
class LocalTraining(Question[AnswerSums]):
    """How far the rows of some agents move the models that listen to them, or the gradients of their mean losses.

    Attributes
    ----------
    method : {"fedavg", "weighted-risk"}
    parameters : tensor of shape (U, width)
        The models; an agent is sent those that listen to it, and no others.
    shares : array of shape (U, B)
        Weights whose rows have the sum one.
    epoch : int
        Counted from zero.
    places : tuple of int
        The agents that are asked, in the order in which their answers are added up.
    before : AnswerSums
        What others have answered in this epoch.
    pull : Pull, optional
        On the models in local training.
    decay : float
        Weight decay of local training.
    """

    method: str
    parameters: Tensor
    shares: NDArray[np.float64]
    epoch: int
    places: tuple[int, ...]
    before: AnswerSums
    pull: Pull | None = None
    decay: float = 0.0

    name = "local-training"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """The number of the epoch, models, and what they are pulled to."""
        settings: dict[str, Any] = {"epoch": self.epoch}
        # Copies: an agent that is late may still read them when the models have moved on.
        sent = {"theta": self.parameters.numpy().copy()}
        if self.pull is not None:
            settings["pull"], sent["anchors"] = self.pull.strength, self.pull.anchors.numpy()
        if self.decay:
            settings["decay"] = self.decay
        listening = {place: self.shares[:, place] > 0 for place in self.places}
        return {
            place: Message(settings, {name: whole if models.all() else whole[models] for name, whole in sent.items()})
            for place, models in listening.items()
        }

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Changes or gradients of the models, and their losses, on the agent's own rows."""
        learner: TorchLearner = site.learner
        refuse_batches(learner)  # here, where the rows are: whatever a server asks, single rows are not answered about
        epoch = int(asked.settings["epoch"])
        seed = torch_seed(site.spec.seed, Stream.LAYERS, epoch, site.place)
        with learner.site_memory.lock, torch_threads(learner.threads), seeded_layers(seed):
            pool, stacked = learner.site_memory.recall(site)
            theta = torch.tensor(asked.arrays["theta"], dtype=TYPES[learner.dtype])
            if theta.ndim != 2 or theta.shape[1] != stacked.layout.width:
                raise InputError(
                    f"agent {site.agent.name} was sent models of shape {tuple(theta.shape)}, but its network takes "
                    f"(models, {stacked.layout.width}); give server and agents the same learner"
                )
            count = len(theta)
            if learner.method == "fedavg":
                # The agent's rows are a pool of their own: averaging over one agent of weight one gives its change.
                names, weights, nobody = (site.agent.name,), np.ones((count, 1)), np.full(count, -1)
                alone = StackedProblem(stacked, names, weights, nobody, site.spec.seed, pull_asked(asked, theta))
                optimiser = replace(make_optimiser(learner), weight_decay=float(asked.settings.get("decay", 0.0)))
                averaging = FederatedAveraging(alone, pool, optimiser, learner.local_epochs, learner.batch_size)
                state = TrainingState.at(theta)
                averaging.prepare(state)
                found, loss = averaging.average(state, epoch)
            else:
                found, rows = torch.zeros_like(theta), torch.full((count,), len(pool.X))
                loss = mean_losses(stacked, pool, theta, torch.zeros_like(rows), rows, found)
        return Message(arrays={_ANSWERS[learner.method]: found.numpy(), "loss": loss.numpy()})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A change, or a gradient, and a loss for each model that was sent."""
        theta = asked.arrays["theta"]
        bound = _FURTHEST * (1 + float(np.linalg.norm(theta))) if self.method == "fedavg" else np.inf
        return {
            _ANSWERS[self.method]: ArraySpec(theta.shape, theta.dtype.name, bound),
            "loss": ArraySpec(theta.shape[:1], theta.dtype.name),
        }

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Training that diverged, or a model that moved too far."""
        found = answer.arrays[_ANSWERS[self.method]]
        if not (np.isfinite(found).all() and np.isfinite(answer.arrays["loss"]).all()):
            return "training diverged there: lower learning_rate or standardise the data"
        if self.method == "fedavg":
            moved = np.linalg.norm(found, axis=1)
            if (moved > _FURTHEST * (1 + np.linalg.norm(asked.arrays["theta"], axis=1))).any():
                return f"a model moved by {moved.max():.3g} in one round, which is too far"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> AnswerSums:
        """The sums before, and these answers, each times its share."""
        total, loss = self.before.total.clone(), self.before.loss.clone()
        heard, missed = self.before.heard.copy(), self.before.missed.copy()
        for place in self.places:
            listening = np.flatnonzero(self.shares[:, place] > 0)
            if place not in answers:
                missed[listening] = True
                continue
            told, models = answers[place].arrays, torch.from_numpy(listening)
            share = torch.from_numpy(self.shares[listening, place]).to(total.dtype)
            total.index_add_(0, models, torch.tensor(told[_ANSWERS[self.method]]).mul_(share[:, None]))
            loss.index_add_(0, models, torch.tensor(told["loss"]).mul_(share))
            heard += self.shares[:, place]
        return AnswerSums(total, loss, heard, missed)


def pull_asked(asked: Message, theta: Tensor) -> Pull | None:
    """What models (L, width) are pulled to while an agent trains them; None for nothing."""
    if "pull" not in asked.settings:
        return None
    anchors = torch.tensor(asked.arrays["anchors"], dtype=theta.dtype)
    if anchors.shape != theta.shape:
        raise InputError(f"models of shape {tuple(theta.shape)} cannot be pulled to those of {tuple(anchors.shape)}")
    return Pull(float(asked.settings["pull"]), anchors)


class SiteExchange:
    """An exchange per epoch; models that hear nobody stay as they are.

    Parameters
    ----------
    problem : StackedProblem
    agents : Agents
    optimiser : Optimiser
        Of the models here, for "weighted-risk".
    method : {"fedavg", "weighted-risk"}
    """

    asks_sites = True

    def __init__(self, problem: StackedProblem, agents: Agents, optimiser: Optimiser, method: str) -> None:
        self._problem, self._agents, self._optimiser, self._method = problem, agents, optimiser, method
        self.moments = 0 if method == "fedavg" else optimiser.moments
        # Divided by their sum, as in pooled training: where all answer, sums round alike.
        self._shares = problem.weights / problem.weights.sum(axis=1, keepdims=True)
        self._groups: list[list[int]] = []

    def prepare(self, state: TrainingState) -> None:
        """Put the agents into groups whose models fit into memory, questions and answers together; mostly one group."""
        sizes = state.parameters[0].nbytes * np.count_nonzero(self._shares, axis=0)
        self._groups, size = [], np.inf
        # The order in which pooled training adds up agents, so that sums round alike.
        for place in np.argsort(-self._agents.spec.sizes, kind="stable").tolist():
            if sizes[place] == 0:
                continue
            if size + sizes[place] > IN_FLIGHT:
                self._groups.append([])
                size = 0
            self._groups[-1].append(place)
            size += sizes[place]

    def advance(self, state: TrainingState, epoch: int) -> Tensor:
        """Ask everybody of weight above zero, once, and move every model that heard somebody."""
        sums, pull = AnswerSums.nothing(state.parameters), self._problem.pull_on(state.models)
        # Where sites train, they pull and decay; where they tell gradients, it is done here.
        asked = (self._method, state.parameters, self._shares, epoch)
        there = (pull, self._optimiser.weight_decay) if self._method == "fedavg" else ()
        for group in self._groups:
            sums = self._agents.ask(LocalTraining(*asked, tuple(group), sums, *there))
        mean, loss = sums.means()
        moving = sums.heard > 0
        if self._method == "fedavg":
            state.parameters += mean
        else:
            # Each model takes the step that is next for it: those that missed an exchange are behind.
            for number in np.unique(state.steps[moving]).tolist():
                places = np.flatnonzero(moving & (state.steps == number))
                chosen = torch.from_numpy(places)
                parameters, moments = state.parameters[chosen], [moment[chosen] for moment in state.moments]
                self._optimiser.step(
                    parameters, mean[chosen], moments, number + 1, None if pull is None else pull.on(places)
                )
                for whole, moved in zip([state.parameters, *state.moments], [parameters, *moments], strict=True):
                    whole[chosen] = moved
        state.steps += moving
        return loss


class SiteMemory:
    """What a process keeps for its agents from question to question: their rows as tensors, and a network they share.

    Attributes
    ----------
    lock : Lock
        Torch's generator, its threads and a module while vmap works on it belong to the process: one answer at a time.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self._network: tuple[tuple[Any, ...], StackedModule] | None = None
        self._kept: WeakKeyDictionary[Agent, tuple[tuple[Any, ...], Pool, StackedModule]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[SiteMemory], tuple[()]]:
        return SiteMemory, ()  # of no use in another process

    def recall(self, site: SiteView) -> tuple[Pool, StackedModule]:
        """The agent's rows, and the learner's network; made anew where what everybody knows has changed."""
        learner, spec, agent = site.learner, site.spec, site.agent
        rows_before = int(spec.sizes[: site.place].sum())
        made_for = (spec.dim, spec.seed, tuple(known_classes(spec, learner.task).tolist()))
        kept = self._kept.get(agent)
        if kept is None or kept[0] != (*made_for, rows_before):
            if len(agent) != spec.sizes[site.place]:
                raise InputError(
                    f"agent {agent.name} has {len(agent)} rows, but {spec.sizes[site.place]} were agreed on; "
                    "describe it again"
                )
            pool = pool_rows([agent], spec, learner.task, learner.dtype, rows_before=rows_before)
            if self._network is None or self._network[0] != made_for:
                self._network = made_for, build_network(learner, spec, pool)  # tried on the rows of the first agent
            kept = self._kept[agent] = (*made_for, rows_before), pool, self._network[1]
        return kept[1], kept[2]
