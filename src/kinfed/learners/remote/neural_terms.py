"""What server and agents of a neural training both know: what is not trained, the network, the names of answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.learners.neural.learner import TorchLearner
from kinfed.learners.neural.setting import TYPES, stacked_module
from kinfed.learners.neural.stacked import StackedModule
from kinfed.learners.remote.base import Terms


def refuse_batches(learner: TorchLearner) -> None:
    """Refuse batches that models draw from all agents: an agent's part of one is often a single row."""
    if learner.method == "weighted-risk" and learner.batch_size is not None:
        raise InputError(
            "batches of method 'weighted-risk' would send gradients of single rows, from which the rows can be read; "
            "use method='fedavg', or leave batch_size out"
        )


def quantity(learner: TorchLearner) -> str:
    """What an agent answers about each model: its "change" by local training, or its "gradient"."""
    return "change" if learner.method == "fedavg" else "gradient"


def known_classes(learner: TorchLearner, terms: Terms) -> NDArray[Any] | None:
    """The labels in order; None for a regression."""
    if learner.task == "regression":
        return None
    if terms.classes is None or len(terms.classes) < 2:
        raise InputError("a classifier needs the labels of the whole federation, two at least; give classes in the terms")
    return terms.classes


def untried_network(learner: TorchLearner, terms: Terms) -> StackedModule:
    """The network drawn from the seed, where there are no rows to try it on: zeros are valid for any module."""
    classes = known_classes(learner, terms)
    X = torch.zeros(3, terms.dim, dtype=TYPES[learner.dtype])
    y = torch.zeros(3, dtype=X.dtype if classes is None else torch.int64)
    return stacked_module(learner, X, y, None if classes is None else len(classes), terms.seed)


def tensor_of(array: NDArray[Any], learner: TorchLearner) -> Tensor:
    """The array in the learner's type, sharing its memory where it can."""
    fitting = np.ascontiguousarray(array, dtype=learner.dtype)
    # Torch warns of memory that must not be written to, as messages often are.
    return torch.from_numpy(fitting if fitting.flags.writeable else fitting.copy())
