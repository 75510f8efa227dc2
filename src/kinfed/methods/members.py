"""Learners that know no priors: models on calibrated weights, and for networks the mean of a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from kinfed.learners.base import Models, StepwiseLearner
from kinfed.methods.base import MethodContext
from kinfed.methods.weighted import Weighted
from kinfed.weights import Weights
from kinfed.weights.calibration.family import Calibration
from kinfed.weights.weighing import without_agents


@runtime_checkable
class AveragingLearner(StepwiseLearner, Protocol):
    """A learner whose models can be averaged."""

    def averaged(self, several: Sequence[Any]) -> Models:
        """Models whose predictions, or classes' scores, are the mean of those of several."""


def train_members(context: MethodContext, weights: Weights | None) -> Models:
    """Models on calibrated weights; where others were about as good, the mean of their predictions and these.

    Every member has the weights and the plan that were judged; see `Calibration.members`.
    """
    first = Weighted().train(context, weights)
    calibration = None if weights is None else weights.calibration
    if weights is None or calibration is None or not isinstance(context.learner, AveragingLearner):
        return first
    others = calibration.members[1:]
    if not others:
        return first
    described = [calibration.candidates[place].describe(calibration.views) for place in calibration.members]
    context.found["members"] = tuple(described)
    more = [_member(context, weights, calibration.taking(place), number) for number, place in enumerate(others, 2)]
    return context.learner.averaged([first, *more])


def _member(context: MethodContext, weights: Weights, calibration: Calibration, number: int) -> Models:
    """Models of one more member."""
    before, folder = replace(weights, calibration=calibration), context.checkpoint
    own = replace(context, before=before, checkpoint=None if folder is None else folder / f"member {number}")

    def solved() -> Weights:
        lost = context.agents.left_out
        return without_agents(Weighted().weigh(replace(own, agents=context.agents.leaving_out(lost))), lost)

    return Weighted().train(replace(own, again=solved), solved())
