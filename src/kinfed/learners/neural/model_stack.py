r"""A stack of models: one module with many sets of parameters, entry l of every tensor one target's.

The parameters of L models are one matrix (L, width), a row per model. The models do not meet, so the gradient of the *sum*
of their losses is every model's own gradient, and one backward pass serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kinfed.errors import InputError

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Losses of single rows: (m, outputs) scores, or (m,) predictions, and (m,) targets give (m,) losses."""

# Layers that treat every number alone and so work on stacked tensors as they are.
_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity, nn.Dropout)

# Every model starts on a cache line: its numbers then do not depend on its place among the others.
_ALIGNMENT = 16

# Numbers worked on at once: parameters of the models of a chunk, and activations of a block. Some megabytes stay in cache,
# and products of a few hundred rows are efficient already.
_PARAMETERS_AT_ONCE = 2**20
_ACTIVATIONS_AT_ONCE = 2**23
_EFFICIENT_ROWS = 512


@dataclass(frozen=True)
class Cost:
    """What one model costs: numbers per set of parameters, and per row between forward and backward."""

    parameters: int
    activations: int

    def models_at_once(self, rows: int) -> int:
        """How many models fit into a chunk if each looks at up to `rows` rows."""
        rows = min(rows, _EFFICIENT_ROWS)
        return max(1, min(_PARAMETERS_AT_ONCE // self.parameters, _ACTIVATIONS_AT_ONCE // (self.activations * rows)))

    def rows_at_once(self, models: int) -> int:
        """How many rows of each of `models` models fit into a block."""
        return max(16, _ACTIVATIONS_AT_ONCE // (self.activations * models))


class Layout:
    """Where each trainable parameter of a module lies in a model's row of numbers."""

    def __init__(self, module: nn.Module) -> None:
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.names = tuple(trained)
        self.shapes = tuple(tuple(value.shape) for value in trained.values())
        edges = [0, *accumulate(value.numel() for value in trained.values())]
        self.spans = tuple(pairwise(edges))
        self.width = _ALIGNMENT * math.ceil(edges[-1] / _ALIGNMENT)

    def views(self, stack: Tensor) -> list[Tensor]:
        """The parameters inside the matrix (L, width), each of shape (L, ...), sharing its memory."""
        return [
            stack[:, start:stop].view(len(stack), *shape)
            for (start, stop), shape in zip(self.spans, self.shapes, strict=True)
        ]

    def start(self, module: nn.Module) -> Tensor:
        """The module's own parameters as a matrix of one row."""
        values = dict(module.named_parameters())
        stack = torch.zeros(1, self.width, dtype=values[self.names[0]].dtype)
        for name, view in zip(self.names, self.views(stack), strict=True):
            view.copy_(values[name].detach().unsqueeze(0))
        return stack

    def pack(self, parameters: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
        """Stacked arrays (L, ...) by name as one matrix (L, width); raise `InputError` if one does not fit."""
        if set(parameters) != set(self.names):
            given = ", ".join(map(str, parameters)) or "none"
            raise InputError(f"warm_start has the parameters {given}, but the module has {', '.join(self.names)}")
        arrays = [np.asarray(parameters[name]) for name in self.names]
        stack = torch.zeros(len(arrays[0]) if arrays[0].ndim else 0, self.width, dtype=dtype)
        for name, shape, array, view in zip(self.names, self.shapes, arrays, self.views(stack), strict=True):
            if array.shape != (len(stack), *shape):
                raise InputError(
                    f"warm_start: {name} has shape {array.shape}; (rows, {', '.join(map(str, shape))}) is expected, with "
                    "the same number of rows for all parameters"
                )
            view.copy_(torch.as_tensor(array))
        if not bool(torch.isfinite(stack).all()):
            raise InputError("warm_start holds NaN or infinite parameters; start from a model that did not diverge")
        return stack

    def unpack(self, stack: Tensor) -> dict[str, NDArray[Any]]:
        """Arrays (L, ...) by name, sharing no memory with the matrix."""
        return {name: view.numpy().copy() for name, view in zip(self.names, self.views(stack), strict=True)}


class StackedModule:
    """A module applied with many sets of parameters at once.

    Parameters
    ----------
    module : nn.Module
        Its structure, its constant buffers and its frozen parameters serve all models.
    loss : callable
        See `RowLoss`.
    scalar : bool
        The module gives one number per row, not a score per class.
    activations : int
        How many numbers one row of one model keeps in memory between forward and backward.
    """

    def __init__(self, module: nn.Module, loss: RowLoss, scalar: bool, activations: int = 1) -> None:
        self.module, self.loss, self.scalar = module, loss, scalar
        self.layout = Layout(module)
        self.cost = Cost(self.layout.width, activations)
        self._layers = _plain_layers(module)

    def outputs(self, parameters: Sequence[Tensor], X: Tensor) -> Tensor:
        """Outputs (L, n, classes) or (L, n) of model l on ``X[l]``, for X of shape (L, n, d)."""
        stacked = self._by_layers(parameters, X) if self._layers is not None else self._by_vmap(parameters, X)
        return stacked.reshape(X.shape[:2]) if self.scalar else stacked

    def losses(self, parameters: Sequence[Tensor], X: Tensor, y: Tensor) -> Tensor:
        """Losses (L, n) of every row."""
        return self.loss(self.outputs(parameters, X).flatten(0, 1), y.flatten()).view(X.shape[:2])

    def _by_layers(self, parameters: Sequence[Tensor], X: Tensor) -> Tensor:
        # Batched products by hand: what vmap would do, at a fraction of its overhead.
        values = iter(parameters)
        for layer in self._layers or ():
            if isinstance(layer, nn.Linear):
                weight = next(values).transpose(1, 2)
                X = torch.bmm(X, weight) if layer.bias is None else torch.baddbmm(next(values).unsqueeze(1), X, weight)
            else:
                X = layer(X)
        return X

    def _by_vmap(self, parameters: Sequence[Tensor], X: Tensor) -> Tensor:
        def one(values: dict[str, Tensor], rows: Tensor) -> Tensor:
            return functional_call(self.module, values, (rows,))

        by_name = dict(zip(self.layout.names, parameters, strict=True))
        return vmap(one, in_dims=(0, 0), randomness="different")(by_name, X)


class ModelStack:
    """Parameters of some models with their gradient.

    Parameters
    ----------
    stacked : StackedModule
    parameters : tensor of shape (L, width)
        Changed in place by whoever steps along `gradient`.
    """

    def __init__(self, stacked: StackedModule, parameters: Tensor) -> None:
        self.parameters = parameters
        self.gradient = torch.zeros_like(parameters)
        self._stacked = stacked
        self._leaves: dict[int, list[Tensor]] = {}
        self._slopes = stacked.layout.views(self.gradient)

    def add_gradient(self, X: Tensor, y: Tensor, weights: Tensor, fresh: bool) -> Tensor:
        r"""Add the gradient of :math:`\sum_i a_{li} \ell(\theta_l; x_{li}, y_{li})` for the first models; return the sums.

        Parameters
        ----------
        X : tensor of shape (L', n, d)
            Rows of the first L' models.
        y, weights : tensors of shape (L', n)
        fresh : bool
            Replace the gradient of these models instead of adding to it.
        """
        leaves = self._first(len(X))
        losses = (self._stacked.losses(leaves, X, y) * weights).sum(1)
        # A parameter the module does not use in training has no slope.
        slopes: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        for target, slope in zip(self._slopes, slopes, strict=True):
            if slope is not None and fresh:
                target[: len(X)].copy_(slope)
            elif slope is not None:
                target[: len(X)].add_(slope)
            elif fresh:
                target[: len(X)].zero_()
        return losses.detach()

    def evaluate(self, X: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """The same losses without gradients; the module should be in evaluation mode."""
        with torch.no_grad():
            return (self._stacked.losses(self._first(len(X)), X, y) * weights).sum(1)

    def _first(self, count: int) -> list[Tensor]:
        if count not in self._leaves:
            views = self._stacked.layout.views(self.parameters[:count])
            self._leaves[count] = [view.detach().requires_grad_() for view in views]
        return self._leaves[count]


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    r""":math:`-\log p_y` with p the softmax of the outputs (m, classes)."""
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    r"""The loss :math:`(f(x) - y)^2` of every point."""
    return (outputs - y).square()


def _plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain perceptron, or None where only vmap will do."""
    if type(module) is not nn.Sequential or any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
        return None
    layers, parameters = list(module), list(module.parameters())
    plain = all(type(layer) in (nn.Linear, *_ELEMENTWISE) for layer in layers)
    trained = all(parameter.requires_grad for parameter in parameters)
    # Where a layer or a parameter is used twice, the layers have more of them than the module.
    once = sum(len(list(layer.parameters())) for layer in layers) == len(parameters)
    return layers if plain and trained and once else None


def check_stacking(stacked: StackedModule, X: Tensor) -> None:
    """Try the module with two sets of parameters on a few rows (n, d); raise `InputError` if torch cannot batch it."""
    stack = stacked.layout.start(stacked.module).expand(2, -1).contiguous()
    stacked.module.eval()
    try:
        with torch.no_grad():
            stacked.outputs(stacked.layout.views(stack), X.expand(2, *X.shape))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"the module cannot be applied to many targets at once (torch.func.vmap: {str(error).splitlines()[0]}); "
            "avoid branches that depend on the data, in-place updates and layers without a batching rule"
        ) from None
    finally:
        stacked.module.train()


def check_loss(stacked: StackedModule, X: Tensor, y: Tensor) -> Tensor:
    """Losses of a few rows (n, d) at the module's own parameters; raise `InputError` if they are not one per row."""
    stacked.module.eval()
    with torch.no_grad():
        outputs = stacked.module(X)
        losses = stacked.loss(outputs.reshape(len(X)) if stacked.scalar else outputs, y)
    stacked.module.train()
    if not isinstance(losses, Tensor) or losses.shape != y.shape:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(f"the loss gives {shape} for {len(X)} rows; it must give one loss per row (reduction='none')")
    return losses
