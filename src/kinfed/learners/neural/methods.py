"""What a method of training is, and the state it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learners.neural.blocks import Size
from kinfed.learners.neural.pool import Pool
from kinfed.learners.neural.stacked import StackedModule


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that is the same in every epoch.

    Attributes
    ----------
    stacked : StackedModule
    pool : Pool
    weights : array of shape (U, B)
        Row u on the simplex: the risk of lane u.
    own : array of shape (U,)
        The agent lane u holds rows out of, to tell when to stop; -1 for none.
    size : Size
    seed : int
    """

    stacked: StackedModule
    pool: Pool
    weights: NDArray[np.float64]
    own: NDArray[np.int64]
    size: Size
    seed: int


@dataclass(eq=False)
class State:
    """What changes from epoch to epoch.

    Attributes
    ----------
    lanes : array of shape (A,)
        The lanes still in training; row a of the tensors below belongs to ``lanes[a]``.
    parameters : tensor of shape (A, width)
    moments : list of tensors of shape (A, width)
        Running averages of the optimiser.
    steps : int
        Steps taken so far.
    """

    lanes: NDArray[np.int64]
    parameters: Tensor
    moments: list[Tensor]
    steps: int = 0

    def select(self, places: Sequence[int] | NDArray[np.int64]) -> None:
        """Keep the rows at these places, in this order."""
        chosen = torch.as_tensor(np.asarray(places, dtype=np.int64))
        self.lanes = self.lanes[chosen.numpy()]
        self.parameters = self.parameters[chosen]
        self.moments = [moment[chosen] for moment in self.moments]

    def order(self, lanes: NDArray[np.int64]) -> None:
        """Put the rows into the order of `lanes`, a permutation of `State.lanes`."""
        place = {int(lane): position for position, lane in enumerate(self.lanes)}
        self.select([place[int(lane)] for lane in lanes])


class Method(Protocol):
    """A way to train all lanes; each epoch depends on its number and the state alone, so that a run can be resumed."""

    @property
    def moments(self) -> int:
        """How many running averages the state must hold."""
        ...

    def prepare(self, state: State) -> None:
        """Get ready for the lanes of this state, and order them: before the first epoch and whenever a lane stops."""
        ...

    def advance(self, state: State, epoch: int) -> Tensor:
        """Train for one epoch, counted from zero; return the training loss of every lane, in the state's order."""
        ...
