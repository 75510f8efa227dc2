"""How a learner is put to work: from scratch or from a common model, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.learners.base import Learner, Models
from kinfed.progress import Progress

if TYPE_CHECKING:
    from kinfed.federation import Federation


@dataclass(frozen=True)
class Plan:
    """A plan of training.

    Attributes
    ----------
    warm : bool
        Start from one common model, trained on everybody's data first, instead of from scratch.
    share : float
        Share of the learner's own number of steps.
    """

    warm: bool = False
    share: float = 1.0

    def __str__(self) -> str:
        start = "from a common model" if self.warm else "from scratch"
        return f"{start}, {self.share:.0%} of the steps"


USUAL_PLAN = Plan()


@runtime_checkable
class StepwiseLearner(Learner, Protocol):
    """A learner that approaches its minimum step by step, so that start and length of training are choices too."""

    @property
    def length(self) -> int:
        """Epochs, or rounds, of a whole training."""
        ...

    def trained_for(self, share: float, start: Models | None = None) -> StepwiseLearner:
        """The same learner for a share of its length, from other parameters, and never shorter than that."""
        ...

    def fit(
        self,
        federation: Federation,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        monitor: Callable[[int, Any], None] | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train; `monitor` is shown the models every so many epochs, and may end the training by an error of its own."""
        ...


def fit_planned(
    learner: Learner,
    federation: Federation,
    weights: NDArray[np.float64],
    plan: Plan,
    *,
    targets: NDArray[np.int64] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> Models:
    """Train one model per row of `weights` as planned; see `Learner.fit`."""
    chosen = learner
    if plan != USUAL_PLAN:
        if not isinstance(learner, StepwiseLearner):
            raise InputError(f"{learner!r} has no steps to share out; train it without a plan")
        start = None
        if plan.warm:
            folder = None if checkpoint is None else checkpoint / "common"
            start = common_model(learner, federation, seed=seed, checkpoint=folder)
        chosen = learner.trained_for(plan.share, start)
    folder = None if checkpoint is None else checkpoint / "personal" if plan.warm else checkpoint
    return chosen.fit(federation, weights, targets=targets, seed=seed, progress=progress, checkpoint=folder)


def common_model(learner: Learner, federation: Federation, *, seed: int, checkpoint: Path | None = None) -> Models:
    """One model of everybody's data, agents weighted by their size."""
    shares = federation.sizes / federation.sizes.sum()
    # A common model belongs to nobody, so nobody's points can tell when to stop.
    whole = learner.trained_for(1.0) if isinstance(learner, StepwiseLearner) else learner
    return whole.fit(federation, shares[None], seed=seed, checkpoint=checkpoint)
