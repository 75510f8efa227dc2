"""The epochs: train, look at held-out rows, keep the best, tell the observers, save the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.learners.neural.blocks import interval_blocks
from kinfed.learners.neural.checkpoint import CheckpointFolder
from kinfed.learners.neural.methods import Method, Problem, State
from kinfed.learners.neural.models import History
from kinfed.learners.neural.modules import seeded_layers
from kinfed.learners.neural.sampling import Stream, torch_seed
from kinfed.learners.neural.stacked import Lanes

Observer = Callable[[int, "Training"], None]
"""Called after an epoch with the number of epochs done."""


class Training:
    """A run of one method on one problem.

    Parameters
    ----------
    problem : Problem
    method : Method
    start : tensor of shape (U, width)
        Parameters to start from.
    epochs : int
        Epochs, or rounds.
    patience : int or None
        A lane stops after this many epochs without a smaller loss on its held-out rows, and gets its best parameters back.
    folder : CheckpointFolder or None
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        start: Tensor,
        epochs: int,
        patience: int | None = None,
        folder: CheckpointFolder | None = None,
    ) -> None:
        count = len(start)
        self.done = 0
        self._problem, self._method, self._epochs, self._patience, self._folder = problem, method, epochs, patience, folder
        self._state = State(np.arange(count), start.clone(), [torch.zeros_like(start) for _ in range(method.moments)])
        self._loss = np.full((epochs, count), np.nan)
        self._validation = np.full((epochs + 1, count), np.nan)
        self._best = start.clone()
        self._best_epoch = np.zeros(count, dtype=np.int64)
        if not self._resume():
            if patience is not None:
                self._validation[0] = self._validate()
            self._save()
        if len(self._state.lanes):
            method.prepare(self._state)

    def run(self, observers: Sequence[Observer] = ()) -> None:
        """Train to the end."""
        while self.done < self._epochs and len(self._state.lanes):
            seed = torch_seed(self._problem.seed, Stream.LAYERS, self.done)
            with seeded_layers(seed):
                losses = self._method.advance(self._state, self.done)
            self._loss[self.done, self._state.lanes] = losses.numpy()
            self._check_finite(losses)
            self.done += 1
            if self._patience is not None:
                self._stop_lanes(self._patience)
            # Observers first: a run resumed from a state that was saved before them would never tell them of this epoch.
            for observer in observers:
                observer(self.done, self)
            if self._folder is not None and self._folder.is_due():
                self._save()
        self._save()

    @property
    def epochs(self) -> int:
        """Epochs the run has at most."""
        return self._epochs

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left."""
        return self.done == self._epochs or not len(self._state.lanes)

    @property
    def parameters(self) -> Tensor:
        """A copy of the parameters (U, width): the best so far with early stopping, else the present ones."""
        parameters = self._best.clone()
        if self._patience is None:
            parameters[torch.from_numpy(self._state.lanes)] = self._state.parameters
        return parameters

    def history(self, lane: NDArray[np.int64]) -> History:
        """The history so far, a column for each entry of `lane`."""
        loss = self._loss[: self.done, lane]
        if self._patience is None:
            return History(loss)
        return History(loss, self._validation[: self.done + 1, lane], self._best_epoch[lane])

    def _check_finite(self, losses: Tensor) -> None:
        bad = np.flatnonzero(~torch.isfinite(losses).numpy())
        if len(bad):
            lane = int(self._state.lanes[bad[0]])
            heaviest = self._problem.pool.names[int(self._problem.weights[lane].argmax())]
            raise InputError(
                f"training diverged in epoch {self.done + 1}: the loss of {len(bad)} of {len(losses)} models is not finite "
                f"(the first listens most to agent {heaviest}); lower learning_rate or standardise the data"
            )

    def _stop_lanes(self, patience: int) -> None:
        """Keep the best parameters, and let lanes go that did not improve for `patience` epochs."""
        state, lanes = self._state, self._state.lanes
        losses = self._validate()
        self._validation[self.done, lanes] = losses
        better = losses < self._validation[self._best_epoch[lanes], lanes]
        self._best_epoch[lanes[better]] = self.done
        improved = torch.from_numpy(better)
        self._best[torch.from_numpy(lanes)[improved]] = state.parameters[improved]
        goes_on = self.done - self._best_epoch[lanes] < patience
        if not goes_on.all():
            state.select(np.flatnonzero(goes_on))
            if len(state.lanes):
                self._method.prepare(state)

    def _validate(self) -> NDArray[np.float64]:
        """The mean loss of every lane of the state on the held-out rows of its own agent."""
        problem, pool, state = self._problem, self._problem.pool, self._state
        own = torch.from_numpy(problem.own[state.lanes])
        counts = pool.sizes[own] - pool.kept[own]
        order = torch.argsort(counts, descending=True, stable=True)
        losses = torch.zeros(len(own), dtype=state.parameters.dtype)
        problem.stacked.module.eval()
        for chosen in torch.split(order, problem.size.lanes_at_once(int(counts.max()))):
            lanes = Lanes(problem.stacked, state.parameters[chosen])
            found = torch.zeros(len(chosen), dtype=losses.dtype)
            first = pool.first[own[chosen]] + pool.kept[own[chosen]]
            for block in interval_blocks(pool, first, counts[chosen], problem.size):
                found[: len(block.X)] += lanes.evaluate(block.X, block.y, block.weights)
            losses[chosen] = found
        problem.stacked.module.train()
        return np.asarray(losses.numpy(), dtype=np.float64)

    def _save(self) -> None:
        if self._folder is None:
            return
        state = self._state
        content: dict[str, NDArray[Any]] = {
            "done": np.array(self.done),
            "steps": np.array(state.steps),
            "lanes": state.lanes,
            "parameters": state.parameters.numpy(),
            "loss": self._loss[: self.done],
            "validation": self._validation[: self.done + 1],
            "best_epoch": self._best_epoch,
        }
        if self._patience is not None:
            content["best"] = self._best.numpy()
        for number, moment in enumerate(state.moments):
            content[f"moment_{number}"] = moment.numpy()
        self._folder.save(content)

    def _resume(self) -> bool:
        content = self._folder.load() if self._folder is not None else None
        if content is None:
            return False
        self.done = int(content["done"])
        self._loss[: self.done] = content["loss"]
        self._validation[: self.done + 1] = content["validation"]
        self._best_epoch = content["best_epoch"]
        if self._patience is not None:
            self._best = torch.from_numpy(content["best"])
        moments = [torch.from_numpy(content[f"moment_{number}"]) for number in range(len(self._state.moments))]
        parameters = torch.from_numpy(content["parameters"])
        self._state = State(content["lanes"], parameters, moments, int(content["steps"]))
        return True
