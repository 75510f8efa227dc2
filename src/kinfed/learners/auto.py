"""The learner that follows from the outcome: what is trained where nobody says what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Task
from kinfed.federation import Federation
from kinfed.learners.base import AUTO, Learner, make_learner
from kinfed.outcomes import outcome_kind

_BY_TASK: Mapping[Task, str] = {"classification": "logistic"}


@dataclass(frozen=True)
class AutoLearner:
    """Ridge or logistic regression, once it is known what kind of outcome all sites together have.

    Attributes
    ----------
    options : mapping
        Of the learner it will be.
    make : callable, optional
        Called as ``make(task)``: another way to make it.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Task], Learner] | None = field(default=None, repr=False)

    def for_task(self, task: Task) -> Learner:
        """Logistic regression for classes, else ridge."""
        if self.make is not None:
            return self.make(task)
        return make_learner(_BY_TASK.get(task, "ridge"), **self.options)


def learner_for(train: Federation, learner: str | Learner | Any, **options: Any) -> Learner:
    """The learner for a federation: one that is asked for by name may follow from its outcome.

    "auto" is logistic regression where the outcome is text, boolean, or has exactly two values that are whole numbers, and
    else ridge. A network predicts numbers where the outcome is floating point, else classes.
    """
    if isinstance(learner, str) and learner == AUTO:
        return AutoLearner(options).for_task(auto_task(train))
    y = train[0].y
    if isinstance(learner, str) and learner == "torch" and y is not None and y.dtype.kind == "f":
        options = {"task": "regression", **options}
    return make_learner(learner, **options)


def auto_task(train: Federation) -> Task:
    """What the outcome of a federation asks for; a regression where there is none."""
    outcomes = [agent.y for agent in train if agent.y is not None]
    kinds = {outcome_kind(y) for y in outcomes}
    if not kinds or "decimals" in kinds or "whole numbers" in kinds:
        return "classification" if "text" in kinds else "regression"
    several = kinds & {"text", "boolean"} or len(np.unique(np.concatenate(outcomes))) == 2
    return "classification" if several else "regression"


def auto_sentence(target: str | None, classes: NDArray[Any] | None) -> str:
    """What was decided for the learner "auto", and why."""
    outcome = "the outcome" if target is None else f"the outcome {target}"
    if classes is None:
        return f"learner ridge: {outcome} is a number (choose with --learner)"
    shown = ", ".join(map(str, classes[:5].tolist())) + (f", ... ({len(classes)})" if len(classes) > 5 else "")
    other = "; --learner ridge would treat it as a number" if classes.dtype.kind in "fiub" else ""
    return f"learner logistic: {outcome} has the classes {shown}{other}"
