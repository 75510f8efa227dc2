"""What a neural learner returns: one network per row of the weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call

from kinfed.errors import InputError
from kinfed.learners.neural.stacked import Layout
from kinfed.validation import points_array

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class History:
    """How training went; NaN where a row's training had stopped already.

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
    lane : array of shape (T,)
        The row of `stack` that holds the model of each row: rows of equal weights have one model.
    classes : array
        The labels in order; empty for a regression.
    n_inputs : int
        The number of columns of X.
    history : History
    """

    module: nn.Module
    stack: Tensor
    lane: NDArray[np.int64]
    classes: NDArray[Any]
    n_inputs: int
    history: History

    def __len__(self) -> int:
        return len(self.lane)

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if len(self.classes) else "regression"
        return f"TorchModels({len(self)} rows, {len(self.stack)} different models, {kind})"

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """Trained parameters by name, stacked: each of shape (T, ...)."""
        return {name: array[self.lane] for name, array in Layout(self.module).unpack(self.stack).items()}

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
        scores = torch.from_numpy(self._outputs(row, X)).double()
        return np.asarray(torch.softmax(scores, dim=1).numpy())

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
        layout, lane = Layout(self.module), int(self.lane[row])
        views = layout.views(self.stack[lane : lane + 1])
        return {name: view[0] for name, view in zip(layout.names, views, strict=True)}
