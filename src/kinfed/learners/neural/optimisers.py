"""Steps on stacked parameters; every operation is elementwise, so lanes never mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimiser(Protocol):
    """A rule that moves parameters along a gradient, in place."""

    @property
    def moments(self) -> int:
        """How many running averages it keeps for each parameter."""
        ...

    def step(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        """Take step `number`, counted from one; `gradient` may be overwritten."""
        ...


@dataclass(frozen=True)
class GradientDescent:
    r""":math:`\theta \leftarrow \theta - \eta (g + \lambda \theta)`, as `torch.optim.SGD` does it."""

    learning_rate: float
    weight_decay: float = 0.0
    moments: int = 0

    def step(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        """Take one step."""
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        parameters.add_(gradient, alpha=-self.learning_rate)


@dataclass(frozen=True)
class Adam:
    """Adam with the defaults of `torch.optim.Adam`; `weight_decay` is the L2 term in the gradient, as there."""

    learning_rate: float
    weight_decay: float = 0.0
    moments: int = 2

    def step(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        """Take one step."""
        mean, square = moments
        # The fused kernel passes over the memory once; it adds one to the count it is given.
        adam(
            [parameters],
            [gradient],
            [mean],
            [square],
            [],
            [torch.tensor(float(number - 1))],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


OPTIMISERS: dict[str, Callable[[float, float], Optimiser]] = {"adam": Adam, "sgd": GradientDescent}
