r"""The server's side of neural training: send models to those who are listened to, add up what they answer, move.

In every exchange agent k answers :math:`a_{tk}` about each model t it was sent. The server forms
:math:`\sum_k s_{tk} a_{tk}` with shares s over those who answered, and either adds it to the model ("fedavg") or hands it
to the optimiser as gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.learners.inputs import simplex_rows
from kinfed.learners.neural.lanes import group_rows, start_parameters
from kinfed.learners.neural.learner import TorchLearner
from kinfed.learners.neural.models import History, TorchModels
from kinfed.learners.neural.optimisers import Optimiser
from kinfed.learners.neural.setting import make_optimiser, torch_threads
from kinfed.learners.remote.base import Arrays, Ask, Memory, Monitor, Question, Terms
from kinfed.learners.remote.neural_terms import known_classes, quantity, tensor_of, untried_network
from kinfed.progress import Progress
from kinfed.validation import positive_integer

IN_FLIGHT = 2**27
"""Bytes of models that are sent to agents at once; agents beyond are asked when those have answered."""


def train(
    learner: TorchLearner,
    ask: Ask,
    terms: Terms,
    weights: NDArray[np.float64],
    progress: Progress | None,
    memory: Memory | None,
    monitor: Monitor | None,
    monitor_every: int,
) -> TorchModels:
    """Train one model per row of `weights` (T, B); see `RemoteLearner.fit`."""
    every, total = positive_integer(monitor_every, "monitor_every"), learner.length
    with torch_threads(learner.threads):
        matrix = simplex_rows(weights, terms.names, terms.sizes.tolist())
        network, classes = untried_network(learner, terms), known_classes(learner, terms)
        start = start_parameters(learner.warm_start, network, len(matrix), classes)
        lane, rows = group_rows(matrix, start, np.full(len(matrix), -1))
        begin = start[rows] if len(start) > 1 else start.expand(len(rows), -1)
        run = _Run(learner, terms, matrix[rows], begin, memory)
        finished = copy.deepcopy(network.module).eval()
        labels = classes if classes is not None else np.array([])

        def models() -> TorchModels:
            return TorchModels(finished, run.parameters.clone(), lane, labels, terms.dim, History(run.losses()[:, lane]))

        while run.done < total:
            run.exchange(ask)
            # Observers first: a run resumed from a state that was kept before them would never tell them of this epoch.
            if progress is not None:
                progress("training", run.done, total)
            if monitor is not None and (run.done % every == 0 or run.done == total):
                monitor(run.done, models())
            run.keep()
        return models()


class _Run:
    """The models of one training, and how they move.

    Parameters
    ----------
    learner : TorchLearner
    terms : Terms
    weights : array of shape (U, B)
        Rows on the simplex, all different.
    start : tensor of shape (U, width)
    memory : Memory or None
    """

    def __init__(
        self, learner: TorchLearner, terms: Terms, weights: NDArray[np.float64], start: Tensor, memory: Memory | None
    ) -> None:
        self._learner, self._terms, self._weights, self._memory = learner, terms, weights, memory
        self._optimiser: Optimiser = make_optimiser(learner)
        moments = 0 if learner.method == "fedavg" else self._optimiser.moments
        self.parameters = start.clone()
        self._moments = [torch.zeros_like(self.parameters) for _ in range(moments)]
        # Steps of the optimiser each model has taken: one that hears nobody takes none.
        self._taken = np.zeros(len(start), dtype=np.int64)
        self._loss = np.full((learner.length, len(start)), np.nan)
        self.done = 0  # epochs, or rounds, that are over
        # The order in which pooled training adds up agents, so that sums round alike.
        self._order = np.lexsort((np.arange(len(terms.sizes)), -terms.sizes)).tolist()
        self._resume()

    def losses(self) -> NDArray[np.float64]:
        """The mean loss (epochs done, U) of every epoch; NaN where a model heard nobody."""
        return self._loss[: self.done].copy()

    def exchange(self, ask: Ask) -> None:
        """Ask everybody of weight above zero, once, and move every model that heard somebody."""
        listened = self._weights > 0
        asked = {place: np.flatnonzero(listened[:, place]) for place in self._order if listened[:, place].any()}
        # Divided by their sum, as in pooled training: where all answer, sums round alike.
        shares = self._weights / self._weights.sum(axis=1, keepdims=True)
        total, losses = torch.zeros_like(self.parameters), torch.zeros(len(shares), dtype=self.parameters.dtype)
        heard = np.zeros(len(shares))
        answered: set[int] = set()
        for group in self._groups(asked):
            answers = ask(self._questions(group))
            self._add_up(answers, group, shares, total, losses)
            for place in answers:
                heard += shares[:, place]
            answered |= answers.keys()
        moving = heard > 0
        if len(answered) < len(asked):
            missed = np.flatnonzero(
                moving & listened[:, [place not in answered for place in range(len(shares.T))]].any(axis=1)
            )
            part = torch.from_numpy(heard[missed]).to(total.dtype)
            total[missed] /= part[:, None]
            losses[missed] /= part
        self._check_finite(losses, moving)
        if self._learner.method == "fedavg":
            self.parameters += total
        else:
            self._step(total, moving)
        self._loss[self.done, moving] = losses.numpy()[moving]
        self.done += 1

    def _groups(self, asked: Mapping[int, NDArray[np.int64]]) -> Iterator[dict[int, NDArray[np.int64]]]:
        """The agents in groups whose models fit into memory, questions and answers together; mostly one group."""
        width = self.parameters.shape[1] * self.parameters.element_size()
        group: dict[int, NDArray[np.int64]] = {}
        size = 0
        for place, lanes in asked.items():
            if group and size + len(lanes) * width > IN_FLIGHT:
                yield group
                group, size = {}, 0
            group[place] = lanes
            size += len(lanes) * width
        if group:
            yield group

    def keep(self) -> None:
        """Keep the state in the memory, if there is one."""
        if self._memory is None:
            return
        state: dict[str, NDArray[Any]] = {
            "done": np.array(self.done),
            "taken": self._taken.copy(),
            "parameters": self.parameters.numpy().copy(),
            "loss": self.losses(),
        }
        self._memory.save(state | {f"moment_{i}": moment.numpy().copy() for i, moment in enumerate(self._moments)})

    def _resume(self) -> None:
        state = self._memory.load() if self._memory is not None else None
        if state is None:
            return
        shape = tuple(self.parameters.shape)
        moments = [f"moment_{i}" for i in range(len(self._moments))]
        fits = {"done", "taken", "loss", "parameters", *moments} <= set(state) and (
            all(state[name].shape == shape for name in ("parameters", *moments))
            and state["loss"].shape == (int(state["done"]), shape[0])
            and int(state["done"]) <= len(self._loss)
        )
        if not fits:
            raise InputError("the state that was kept is of another training; remove it to start from the beginning")
        self.done = int(state["done"])
        self._loss[: self.done] = state["loss"]
        self._taken = state["taken"].copy()
        self.parameters = tensor_of(state["parameters"], self._learner).clone()
        self._moments = [tensor_of(state[name], self._learner).clone() for name in moments]

    def _questions(self, asked: Mapping[int, NDArray[np.int64]]) -> dict[int, Question]:
        # Copies: an agent that is late may still read them when the models have moved on.
        whole = self.parameters.numpy().copy()
        return {
            place: Question({"epoch": self.done}, {"theta": whole if len(lanes) == len(whole) else whole[lanes]})
            for place, lanes in asked.items()
        }

    def _add_up(
        self,
        answers: Mapping[int, Arrays],
        asked: Mapping[int, NDArray[np.int64]],
        shares: NDArray[np.float64],
        total: Tensor,
        losses: Tensor,
    ) -> None:
        """Add the answers, each times its share, to the sums over all groups."""
        for place, lanes in asked.items():
            if place not in answers:
                continue
            share = torch.from_numpy(shares[lanes, place]).to(total.dtype)
            found = tensor_of(answers[place][quantity(self._learner)], self._learner)
            total.index_add_(0, torch.from_numpy(lanes), found * share[:, None])
            losses.index_add_(0, torch.from_numpy(lanes), tensor_of(answers[place]["loss"], self._learner) * share)

    def _step(self, gradient: Tensor, moving: NDArray[np.bool_]) -> None:
        """Let the optimiser move the models that heard somebody, each by the step that is next for it."""
        if moving.all() and (self._taken == self._taken[0]).all():
            self._optimiser.step(self.parameters, gradient, self._moments, int(self._taken[0]) + 1)
        else:
            for number in np.unique(self._taken[moving]).tolist():
                chosen = torch.from_numpy(np.flatnonzero(moving & (self._taken == number)))
                parameters, moments = self.parameters[chosen], [moment[chosen] for moment in self._moments]
                self._optimiser.step(parameters, gradient[chosen], moments, number + 1)
                self.parameters[chosen] = parameters
                for moment, moved in zip(self._moments, moments, strict=True):
                    moment[chosen] = moved
        self._taken += moving

    def _check_finite(self, losses: Tensor, moving: NDArray[np.bool_]) -> None:
        bad = np.flatnonzero(~torch.isfinite(losses).numpy() & moving)
        if len(bad):
            heaviest = self._terms.names[int(self._weights[bad[0]].argmax())]
            raise InputError(
                f"training diverged in epoch {self.done + 1}: the loss of {len(bad)} of {len(losses)} models is not finite "
                f"(the first listens most to agent {heaviest}); lower learning_rate or standardise the data"
            )
