"""The network every target trains: made once, checked once, the same start for all targets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kinfed.errors import InputError

ModuleFactory = Callable[[], nn.Module]

# How far two evaluations of one row may differ by rounding alone.
_ROUNDING = 1e-3


@contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Seed torch's own generator for initialisation and dropout, and give its state back afterwards."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def perceptron(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with a ReLU after each but the last; no hidden layer gives a linear model."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def make_module(factory: ModuleFactory, seed: int, dtype: torch.dtype) -> nn.Module:
    """One module in training mode, initialised from `seed` whatever was drawn before."""
    with seeded_layers(seed):
        module = factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"module must make a torch.nn.Module when called, it made a {type(module).__name__}")
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in module.parameters()):
        raise InputError("the module has lazy layers, whose shapes are not known yet; give them their input widths")
    # A copy, so that a factory which returns the same object twice never sees it change.
    module = copy.deepcopy(module).to(device="cpu", dtype=dtype).train()
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError("the module has no parameters to train; give it at least one layer with requires_grad")
    return module


def check_module(module: nn.Module, X: Tensor, outputs: int | None) -> None:
    """Raise `InputError` if the module cannot be trained for many targets at once.

    Parameters
    ----------
    module : nn.Module
        In training mode.
    X : tensor of shape (n, d)
        A few rows to try it on.
    outputs : int or None
        The number of classes; None for one number per row.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"layer {name or 'one'} is a {type(layer).__name__}, whose statistics mix the rows of a batch "
                "and cannot be kept apart for many targets; use GroupNorm or LayerNorm"
            )
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        tried = _try(module, X, seed=0)
        fitting = [(len(X), outputs)] if outputs else [(len(X), 1), (len(X),)]
        if tuple(tried.shape) not in fitting:
            what = f"a score for each of the {outputs} classes" if outputs else "one number for each row"
            raise InputError(
                f"the module turns {len(X)} rows into shape {tuple(tried.shape)}; "
                f"{' or '.join(map(str, fitting))} is expected, {what}"
            )
        again = _try(module, X, seed=1)
        alone = _try(module, X[:1], seed=0)
    for name, buffer in module.named_buffers():
        if not torch.equal(before[name], buffer):
            raise InputError(
                f"buffer {name} of the module changes while training and cannot be kept apart for many targets; "
                "use layers without running statistics, such as GroupNorm or LayerNorm"
            )
    is_random = not torch.equal(tried, again)
    if not is_random and not torch.allclose(tried[:1], alone, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
        raise InputError(
            "the module's output for one row depends on the other rows of its batch; each row must stand alone"
        )


def activations_per_row(module: nn.Module, X: Tensor) -> int:
    """How many numbers one row of one target keeps in memory between forward and backward, its input included."""

    def kept(rows: int) -> int:
        total = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            _try(module, X[:1].expand(rows, -1), seed=0)
        return total

    few, more = 1, 5
    return X.shape[1] + max(0, kept(more) - kept(few)) // (more - few)


def _try(module: nn.Module, X: Tensor, seed: int) -> Tensor:
    with seeded_layers(seed):
        try:
            return module(X)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(f"the module cannot be applied to rows of {X.shape[1]} columns: {error}") from None
