"""The epochs, or rounds: train, look at held-out rows, keep the best, tell whoever looks on, save the state.

How an epoch moves the models is a `TrainingMethod`: on rows that are here, or by an exchange with sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.checkpoint import Kept, Store
from kinfed.errors import InputError
from kinfed.learners.neural.build import Pull, seeded_layers
from kinfed.learners.neural.model_stack import ModelStack, StackedModule
from kinfed.learners.neural.models import History
from kinfed.learners.neural.rows import Pool, Stream, interval_blocks, torch_seed

_PIECE = "training"


@dataclass(frozen=True, eq=False)
class StackedProblem:
    """What is minimised, the same in every epoch.

    Attributes
    ----------
    stacked : StackedModule
    names : tuple of str
        Of the B agents.
    weights : array of shape (U, B)
        Row u on the simplex: the risk of model u.
    own : array of shape (U,)
        The agent model u holds rows out of, to tell when to stop; -1 for none.
    seed : int
    pull : Pull, optional
        Of all U models.
    """

    stacked: StackedModule
    names: tuple[str, ...]
    weights: NDArray[np.float64]
    own: NDArray[np.int64]
    seed: int
    pull: Pull | None = None

    def pull_on(self, models: NDArray[np.int64]) -> Pull | None:
        """The pull on the models of these numbers."""
        return None if self.pull is None else self.pull.on(models)


@dataclass(eq=False)
class TrainingState:
    """What changes from epoch to epoch.

    Attributes
    ----------
    models : array of shape (A,)
        The models still in training; row a of the arrays below belongs to ``models[a]``.
    parameters : tensor of shape (A, width)
    moments : list of tensors of shape (A, width)
        Running averages of the optimiser.
    steps : array of shape (A,)
        Steps each model has taken; one that hears nobody takes none.
    """

    models: NDArray[np.int64]
    parameters: Tensor
    moments: list[Tensor]
    steps: NDArray[np.int64]

    @classmethod
    def at(cls, parameters: Tensor, moments: int = 0) -> TrainingState:
        """All models before their first step."""
        return cls(
            models=np.arange(len(parameters)),
            parameters=parameters,
            moments=[torch.zeros_like(parameters) for _ in range(moments)],
            steps=np.zeros(len(parameters), dtype=np.int64),
        )

    def select(self, places: Sequence[int] | NDArray[np.int64]) -> None:
        """Keep the rows at these places, in this order."""
        chosen = torch.as_tensor(np.asarray(places, dtype=np.int64))
        self.models, self.steps = self.models[chosen.numpy()], self.steps[chosen.numpy()]
        self.parameters = self.parameters[chosen]
        self.moments = [moment[chosen] for moment in self.moments]

    def order(self, models: NDArray[np.int64]) -> None:
        """Put the rows into the order of `models`, a permutation of `TrainingState.models`."""
        place = {int(model): position for position, model in enumerate(self.models)}
        self.select([place[int(model)] for model in models])


class TrainingMethod(Protocol):
    """A way to train all models; each epoch depends on its number and the state alone, so that a run can be resumed."""

    @property
    def moments(self) -> int:
        """How many running averages the state must hold."""

    @property
    def asks_sites(self) -> bool:
        """Whether an epoch is an exchange with sites: it is dear, and whatever is drawn at random is drawn there."""

    def prepare(self, state: TrainingState) -> None:
        """Get ready for the models of this state, and order them: before the first epoch and whenever a model stops."""

    def advance(self, state: TrainingState, epoch: int) -> Tensor:
        """Train for one epoch, counted from zero; return the training loss of every model, in the state's order."""


@dataclass(frozen=True, eq=False)
class EarlyStopping:
    """A model stops after `patience` epochs without a smaller loss on held-out rows, and gets its best parameters back."""

    patience: int
    pool: Pool

    @property
    def held_out(self) -> NDArray[np.int64]:
        """How many rows each agent holds out."""
        return np.asarray((self.pool.sizes - self.pool.kept).numpy())

    def losses(self, problem: StackedProblem, state: TrainingState) -> NDArray[np.float64]:
        """The mean loss of every model of the state on the held-out rows of its own agent."""
        own, pool = torch.from_numpy(problem.own[state.models]), self.pool
        problem.stacked.module.eval()
        losses = mean_losses(
            problem.stacked, pool, state.parameters, pool.first[own] + pool.kept[own], pool.sizes[own] - pool.kept[own]
        )
        problem.stacked.module.train()
        return np.asarray(losses.numpy(), dtype=np.float64)


class Training:
    """A run of one method on one problem.

    Parameters
    ----------
    problem : StackedProblem
    method : TrainingMethod
    start : tensor of shape (U, width)
        Parameters to start from.
    epochs : int
        Epochs, or rounds.
    store : Store
        Where the state is kept, and found again.
    stopping : EarlyStopping, optional
    """

    def __init__(
        self,
        problem: StackedProblem,
        method: TrainingMethod,
        start: Tensor,
        epochs: int,
        store: Store,
        stopping: EarlyStopping | None = None,
    ) -> None:
        count = len(start)
        self.done = 0
        self._problem, self._method, self._epochs, self._store, self._stopping = problem, method, epochs, store, stopping
        self._state = TrainingState.at(start.clone(), method.moments)
        self._loss = np.full((epochs, count), np.nan)
        self._validation = np.full((epochs + 1, count), np.nan)
        self._best = start.clone()
        self._best_epoch = np.zeros(count, dtype=np.int64)
        if not self._resume():
            if stopping is not None:
                self._validation[0] = stopping.losses(problem, self._state)
            self._save()
        if len(self._state.models):
            method.prepare(self._state)

    def taken_up(
        self, models: NDArray[np.int64], problem: StackedProblem, method: TrainingMethod, store: Store
    ) -> Training:
        """A training of another problem that goes on from here: its model u from where ``models[u]`` of this one is."""
        chosen, state = torch.from_numpy(models), self._state
        new = Training(problem, method, self.parameters[chosen], self._epochs, store)
        if new.done < self.done:  # not resumed from a state that is further
            new.done, new._loss[: self.done] = self.done, self._loss[: self.done, models]
            new._state.steps = state.steps[models]
            new._state.moments = [moment[chosen] for moment in state.moments]
            new._save()
        return new

    def run(self) -> Iterator[int]:
        """Train to the end; after each epoch the number of those done."""
        while not self.is_over:
            state, method = self._state, self._method
            before = state.steps.copy()
            seed = torch_seed(self._problem.seed, Stream.LAYERS, self.done)
            with nullcontext() if method.asks_sites else seeded_layers(seed):
                losses = method.advance(state, self.done).numpy()
            moved = state.steps > before
            self._record(losses[moved], state.models[moved])
            self.done += 1
            if self._stopping is not None:
                self._stop_models(self._stopping)
            # Whoever looks on first: a run resumed from a state that was saved before would never tell of this epoch.
            yield self.done
            if method.asks_sites or self._store.is_due:
                self._save()
        self._save()

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left."""
        return self.done == self._epochs or not len(self._state.models)

    @property
    def parameters(self) -> Tensor:
        """A copy of the parameters (U, width): the best so far with early stopping, else the present ones."""
        parameters = self._best.clone()
        if self._stopping is None:
            parameters[torch.from_numpy(self._state.models)] = self._state.parameters
        return parameters

    def history(self, model_of: NDArray[np.int64]) -> History:
        """The history so far, a column for each entry of `model_of`."""
        loss = self._loss[: self.done, model_of]
        if self._stopping is None:
            return History(loss)
        return History(loss, self._validation[: self.done + 1, model_of], self._best_epoch[model_of])

    def _record(self, losses: NDArray[Any], models: NDArray[np.int64]) -> None:
        """Keep the losses of models that moved; raise `InputError` if one is not finite."""
        self._loss[self.done, models] = losses
        bad = np.flatnonzero(~np.isfinite(losses))
        if len(bad):
            heaviest = self._problem.names[int(self._problem.weights[models[bad[0]]].argmax())]
            raise InputError(
                f"training diverged in epoch {self.done + 1}: the loss of {len(bad)} of {len(losses)} models is not finite "
                f"(the first listens most to agent {heaviest}); lower learning_rate or standardise the data"
            )

    def _stop_models(self, stopping: EarlyStopping) -> None:
        """Keep the best parameters, and let models go that did not improve for a while."""
        state, models = self._state, self._state.models
        losses = stopping.losses(self._problem, state)
        self._validation[self.done, models] = losses
        better = losses < self._validation[self._best_epoch[models], models]
        self._best_epoch[models[better]] = self.done
        improved = torch.from_numpy(better)
        self._best[torch.from_numpy(models)[improved]] = state.parameters[improved]
        goes_on = self.done - self._best_epoch[models] < stopping.patience
        if not goes_on.all():
            state.select(np.flatnonzero(goes_on))
            if len(state.models):
                self._method.prepare(state)

    def _save(self) -> None:
        state = self._state
        arrays: dict[str, NDArray[Any]] = {
            "models": state.models,
            "steps": state.steps,
            "parameters": state.parameters.numpy(),
            "loss": self._loss[: self.done],
            "validation": self._validation[: self.done + 1],
            "best_epoch": self._best_epoch,
            **{f"moment {number}": moment.numpy() for number, moment in enumerate(state.moments)},
        }
        if self._stopping is not None:
            arrays["best"] = self._best.numpy()
        self._store.save(_PIECE, Kept({"done": self.done}, arrays))

    def _resume(self) -> bool:
        kept = self._store.load(_PIECE)
        if kept is None:
            return False
        arrays, self.done = kept.arrays, int(kept.settings["done"])
        self._loss[: self.done] = arrays["loss"]
        self._validation[: self.done + 1] = arrays["validation"]
        self._best_epoch = arrays["best_epoch"]
        if self._stopping is not None:
            self._best = torch.from_numpy(arrays["best"])
        self._state = TrainingState(
            models=arrays["models"],
            parameters=torch.from_numpy(arrays["parameters"]),
            moments=[torch.from_numpy(arrays[f"moment {number}"]) for number in range(len(self._state.moments))],
            steps=arrays["steps"],
        )
        return True


def mean_losses(
    stacked: StackedModule,
    pool: Pool,
    parameters: Tensor,
    first: Tensor,
    counts: Tensor,
    gradient: Tensor | None = None,
) -> Tensor:
    """Mean losses (L,) of models, each on adjacent rows of the pool.

    Parameters
    ----------
    stacked : StackedModule
    pool : Pool
    parameters : tensor of shape (L, width)
    first, counts : tensors of shape (L,), int64
        Model l looks at the rows ``first[l]`` to ``first[l] + counts[l] - 1``.
    gradient : tensor of shape (L, width), optional
        Filled with the gradients of these losses.
    """
    losses = torch.zeros(len(counts), dtype=parameters.dtype)
    order = torch.argsort(counts, descending=True, stable=True)
    for chosen in torch.split(order, stacked.cost.models_at_once(int(counts.max()))):
        models, found = ModelStack(stacked, parameters[chosen]), torch.zeros(len(chosen), dtype=losses.dtype)
        for number, block in enumerate(interval_blocks(pool, first[chosen], counts[chosen], stacked.cost)):
            loss = models.evaluate(*block) if gradient is None else models.add_gradient(*block, fresh=number == 0)
            found[: len(loss)] += loss
        losses[chosen] = found
        if gradient is not None:
            gradient[chosen] = models.gradient
    return losses
