"""What a learner's settings stand for in torch: the network in many lanes, its optimiser, its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kinfed.learners.neural.modules import check_module, make_module, perceptron
from kinfed.learners.neural.optimisers import OPTIMISERS, Optimiser
from kinfed.learners.neural.sampling import Stream, torch_seed
from kinfed.learners.neural.stacked import StackedModule, check_loss, check_stacking, cross_entropy, squared_error

if TYPE_CHECKING:
    from kinfed.learners.neural.learner import TorchLearner

TYPES = {"float32": torch.float32, "float64": torch.float64}


def stacked_module(learner: TorchLearner, X: Tensor, y: Tensor, outputs: int | None, seed: int) -> StackedModule:
    """The learner's network, drawn from the seed and tried on a few rows.

    Parameters
    ----------
    learner : TorchLearner
    X, y : tensors of shape (n, d) and (n,)
        Rows to try it on, as in `Pool`.
    outputs : int or None
        The number of classes; None for a regression.
    seed : int
    """
    factory = learner.module or (lambda: perceptron(X.shape[1], learner.hidden, outputs or 1))
    module = make_module(factory, torch_seed(seed, Stream.START), TYPES[learner.dtype])
    check_module(module, X, outputs)
    loss = learner.loss or (squared_error if outputs is None else cross_entropy)
    stacked = StackedModule(module, loss, scalar=outputs is None)
    check_stacking(stacked, X)
    check_loss(stacked, X, y)
    return stacked


def make_optimiser(learner: TorchLearner) -> Optimiser:
    """The learner's optimiser."""
    return OPTIMISERS[learner.optimiser](float(learner.learning_rate), float(learner.weight_decay))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads, and give it back what it had afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
