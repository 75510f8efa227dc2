"""Agents that come late: one sketch, weights and a model, and nobody else's model changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, AgentsLostError
from kinfed.backends.audit import Absence
from kinfed.errors import InputError, KinfedError
from kinfed.learners.base import Learner, Models, fit_planned
from kinfed.markup import card, table
from kinfed.methods import Evaluation
from kinfed.model import NO_RUN, PersonalModel, RunStamp
from kinfed.validation import Array
from kinfed.weights import Weights
from kinfed.weights.weighing import weigh_agents, without_agents


@dataclass(frozen=True, eq=False)
class Newcomer:
    """An agent that came later: its weights, its model, and its test scores by metric."""

    name: str
    weights: Weights
    model: PersonalModel
    scores: Mapping[str, float]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predictions for raw rows."""
        return np.asarray(self.model.predict(X))

    def _repr_html_(self) -> str:
        return card(f"Newcomer {self.name}", table(self.weights.why(self.name), "Whom it listens to, and why"))


def onboard(
    agents: Agents,
    newcomer: Any,
    learner: Learner,
    weights: Weights,
    options: Mapping[str, Any],
    stamp: RunStamp = NO_RUN,
) -> Newcomer:
    """Weights and a model for an agent that comes later.

    Parameters
    ----------
    agents : Agents
        Those that are there already.
    newcomer : what `Agents.joined` takes
    learner : Learner
    weights : Weights
        Of the others: their rule is the newcomer's, and where it was calibrated, so is its mixture.
    options : mapping
        Of the rule; group labels are those of all agents and then of the newcomer.
    stamp : RunStamp
        Of the run it joins.
    """
    joined, own = agents.joined(newcomer), np.array([len(agents.spec.names)])
    training, name = joined.in_training(), joined.spec.names[-1]
    before = 0 if joined.audit is None else len(joined.audit.absences)
    rows: list[Weights] = []
    models: Models | None = None

    def again() -> Array:
        lost = training.left_out
        if int(own[0]) in lost:
            raise KinfedError(f"agent {name} {lost[int(own[0])]}, so it gets no model; it is asked again in the next run")
        there, chosen = joined.leaving_out(lost), weights.calibration
        rows.append(without_agents(weigh_agents(there, weights.rule, learner, options, targets=own, known=chosen), lost))
        return rows[-1].matrix

    while models is None:
        with suppress(AgentsLostError):  # of a learner that does not go on by itself; it begins again without them
            labelled = training.labelled("training of a newcomer", again)
            models = fit_planned(learner, labelled, again(), weights.plan, targets=own)
    row = rows[-1]
    for one in () if joined.audit is None else joined.audit.absences[before:]:
        if one.agent == name:  # what it did not tell, its weights do not know
            raise KinfedError(f"it missed {one.phase}")
    evaluation = Evaluation(learner, {"personalized": ("weighted", models)}, own, row.matrix, stamp.run, quorum=0.0)
    found = joined.ask(evaluation)
    scores = {metric: float(values[0]) for metric, values in found["personalized"].values.items()} if found else {}
    if joined.audit is not None:
        joined.audit.note(f"agent {name} came late and has weights and a model")
    if joined.preparation is None:
        raise InputError(f"agent {name} cannot be prepared as the others were: their rows were numbers from the start")
    heard = {joined.spec.names[k]: float(row.matrix[0, k]) for k in np.flatnonzero(row.matrix[0] > 0)}
    model = PersonalModel(name, "weighted", learner, models, 0, joined.preparation, joined.spec, heard, stamp)
    return Newcomer(name, row, model, scores)


def welcome(
    newcomers: Mapping[str, Any],
    agents: Agents,
    learner: Learner,
    options_of: Callable[[tuple[str, ...]], Mapping[str, Any]],
    weights: Weights,
    stamp: RunStamp,
) -> dict[str, Newcomer]:
    """Weights and a model for agents that came late, by name; `options_of` gives the rule's options for some agents."""
    joined = {}
    for name, newcomer in newcomers.items():
        try:
            options = options_of((*agents.spec.names, name))
            joined[name] = onboard(agents, newcomer, learner, weights, options, stamp)
        except Exception as error:  # the federation's own work is done, and must not be lost to a newcomer
            if agents.audit is not None:
                agents.audit.missed(Absence(name, "onboarding", f"{type(error).__name__}: {error}"))
    return joined
