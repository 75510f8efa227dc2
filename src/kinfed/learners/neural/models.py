"""What a neural learner returns, one network per row of the weights; which rows are one model, and where models start."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call

from kinfed.errors import InputError
from kinfed.learners.inputs import unique_rows
from kinfed.learners.neural.model_stack import Layout, StackedModule
from kinfed.validation import points_array, target_indices

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class History:
    """How training went; NaN where a row's training had stopped already, or where it heard nobody.

    Attributes
    ----------
    loss : array of shape (E, T)
        The training loss of each row in each epoch, or round: the mean over the epoch's steps, each before it was taken.
    validation : array of shape (E + 1, T), or None
        With early stopping, the loss on the target's held-out rows: first at the start, then after every epoch.
    best_epoch : array of shape (T,), or None
        With early stopping, after how many epochs the parameters that are returned were reached.
    """

    loss: NDArray[np.float64]
    validation: NDArray[np.float64] | None = None
    best_epoch: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class TorchModels:
    """Trained networks, one per row of the weights.

    Attributes
    ----------
    module : nn.Module
        The network in evaluation mode; every row has parameters of its own for it.
    stack : tensor of shape (U, width)
        The parameters of the different models.
    model_of : array of shape (T,)
        The row of `stack` that holds the model of each row: rows of equal weights have one model.
    classes : array
        The labels in order; empty for a regression.
    n_inputs : int
        The number of columns of X.
    history : History
    """

    module: nn.Module
    stack: Tensor
    model_of: NDArray[np.int64]
    classes: NDArray[Any]
    n_inputs: int
    history: History

    def __len__(self) -> int:
        return len(self.model_of)

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if len(self.classes) else "regression"
        return f"TorchModels({len(self)} rows, {len(self.stack)} different models, {kind})"

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """Trained parameters by name, stacked: each of shape (T, ...)."""
        return {name: array[self.model_of] for name, array in Layout(self.module).unpack(self.stack).items()}

    def module_for(self, row: int) -> nn.Module:
        """A copy of the network with the parameters of that row, in evaluation mode."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self._row(row), strict=False)
        return module

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of that row's model: numbers, or labels for a classifier."""
        outputs = self._outputs(row, X)
        if len(self.classes):
            return self.classes[outputs.argmax(axis=1)]
        return outputs.reshape(len(outputs)).astype(np.float64)

    def predict_proba(self, row: int, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities (n, number of classes) of that row's model, in the order of `classes`."""
        if not len(self.classes):
            raise InputError("a regression has no probabilities; use predict, or train with task='classification'")
        return np.asarray(torch.softmax(torch.from_numpy(self._outputs(row, X)).double(), dim=1).numpy())

    def last_inputs(self, row: int, X: ArrayLike) -> NDArray[np.float64]:
        """What the last linear layer of that row's model sees, (n, width); X itself where there is no such layer."""
        points = torch.as_tensor(points_array(X, "X", self.n_inputs), dtype=self.stack.dtype)
        module = self.module_for(row)
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            return np.asarray(points.numpy(), dtype=np.float64)
        seen: list[Tensor] = []
        layers[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        with torch.no_grad():
            for rows in torch.split(points, _ROWS_AT_ONCE):
                module(rows)
        inputs = torch.cat(seen) if seen else points
        # A layer that is applied several times, or to sequences, has no one input per row.
        plain = inputs.ndim == 2 and len(inputs) == len(points)
        return np.asarray((inputs if plain else points).double().numpy())

    def _outputs(self, row: int, X: ArrayLike) -> NDArray[Any]:
        points = torch.as_tensor(points_array(X, "X", self.n_inputs), dtype=self.stack.dtype)
        parameters = self._row(row)
        with torch.no_grad():
            parts = [functional_call(self.module, parameters, (rows,)) for rows in torch.split(points, _ROWS_AT_ONCE)]
        return np.asarray(torch.cat(parts).numpy())

    def _row(self, row: int) -> dict[str, Tensor]:
        if not 0 <= row < len(self):
            raise InputError(f"row {row} is out of range: there are {len(self)} models, 0 to {len(self) - 1}")
        layout, place = Layout(self.module), int(self.model_of[row])
        return {name: view[0] for name, view in zip(layout.names, layout.views(self.stack[place : place + 1]), strict=True)}


def start_parameters(
    warm_start: Mapping[str, Any] | TorchModels | None,
    stacked: StackedModule,
    n_rows: int,
    classes: NDArray[Any],
) -> Tensor:
    """Parameters to start from: one set for all rows, or one for each of the `n_rows` rows of the weights."""
    layout, dtype = stacked.layout, next(stacked.module.parameters()).dtype
    if warm_start is None:
        return layout.start(stacked.module)
    if isinstance(warm_start, TorchModels):
        if not np.array_equal(warm_start.classes, classes):
            raise InputError("warm_start was trained on other classes than those of this federation")
        warm_start = warm_start.parameters
    start = layout.pack(warm_start, dtype)
    if len(start) not in (1, n_rows):
        raise InputError(f"warm_start has {len(start)} rows; one is expected, or one for each of the {n_rows} weight rows")
    return start


def distinct_models(
    matrix: NDArray[np.float64], start: Tensor, own: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the different problems: rows equal in weights, start and (for early stopping) own agent are one.

    Returns
    -------
    model_of : array of shape (T,)
        The problem of each row.
    rows : array of shape (U,)
        The first row with each problem, in order.
    """
    starts = start.numpy() if len(start) > 1 else np.zeros((len(matrix), 0))
    _, model_of = unique_rows(np.column_stack([matrix, starts, own]))
    return model_of, np.unique(model_of, return_index=True)[1]


def own_agents(
    targets: ArrayLike | None, n_rows: int, names: Sequence[str], held_out: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """The agent each of the `n_rows` rows holds rows out of; -1 for none, without early stopping.

    Parameters
    ----------
    targets : array of shape (n_rows,), optional
        The agent each row is for.
    n_rows : int
    names : sequence of str
        Of the agents.
    held_out : array of shape (B,), optional
        How many rows each agent holds out, with early stopping.
    """
    own = np.arange(n_rows)
    if targets is not None:
        own = target_indices(np.asarray(targets).tolist(), len(names))
        if len(own) != n_rows:
            raise InputError(f"there are {len(own)} targets for {n_rows} rows of weights; give one for each row")
    if held_out is None:
        return np.full(n_rows, -1, dtype=np.int64)
    if targets is None and n_rows != len(names):
        raise InputError("early stopping needs to know the agent of each row; give targets")
    if (held_out[own] == 0).any():
        raise InputError(
            f"agent {names[int(own[held_out[own] == 0][0])]} has one row and cannot hold any out; "
            "train without patience or leave it out"
        )
    return own
