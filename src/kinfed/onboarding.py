"""Agents that come late: one sketch, weights and a model, and nobody else's model changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, AgentsLostError, Question, SiteState, SiteView
from kinfed.backends.audit import Absence
from kinfed.backends.spec import FederationSpec
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent
from kinfed.learners.base import Learner, Models, fit_planned
from kinfed.markup import card, table
from kinfed.methods import METHODS, Evaluation
from kinfed.methods.tuning import with_ratio
from kinfed.model import NO_RUN, PersonalModel, RunStamp
from kinfed.validation import Array
from kinfed.weights import Weights
from kinfed.weights.weighing import weigh_agents, without_agents


@dataclass(frozen=True, eq=False)
class Newcomer:
    """An agent that came later: its weights, if the method has any, its model, and its test scores by metric."""

    name: str
    weights: Weights | None
    model: PersonalModel
    scores: Mapping[str, float]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predictions for raw rows."""
        return np.asarray(self.model.predict(X))

    def _repr_html_(self) -> str:
        told = () if self.weights is None else (table(self.weights.why(self.name), "Whom it listens to, and why"),)
        return card(f"Newcomer {self.name}", *told)


def onboard(
    agents: Agents,
    newcomer: Any,
    learner: Learner,
    method: str,
    weights: Weights | None,
    found: Mapping[str, Any],
    options: Mapping[str, Any],
    stamp: RunStamp = NO_RUN,
) -> Newcomer:
    """Weights, where the method has any, and a model for an agent that comes later.

    Parameters
    ----------
    agents : Agents
        Those that are there already.
    newcomer : what `Agents.joined` takes
    learner : Learner
    method : str
    weights : Weights, optional
        Of the others: their rule is the newcomer's, and where it was calibrated, so is its mixture.
    found : mapping
        What the run found on the way, such as priors or a penalty.
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

    def there() -> Agents:
        lost = training.left_out
        if int(own[0]) in lost:
            raise KinfedError(f"agent {name} {lost[int(own[0])]}, so it gets no model; it is asked again in the next run")
        return joined.leaving_out(lost)

    def again(before: Weights) -> Array:
        weighed = weigh_agents(there(), before.rule, learner, options, targets=own, known=before.calibration)
        rows.append(without_agents(weighed, training.left_out))
        return rows[-1].matrix

    while models is None:
        with suppress(AgentsLostError):  # of a learner that does not go on by itself; it begins again without them
            if weights is None:
                there()
                labelled = training.labelled("training of a newcomer")
                models = METHODS[method].newcomer(labelled.spec, labelled.ask, learner, found)
            else:
                labelled = training.labelled("training of a newcomer", partial(again, weights))
                tuned = with_ratio(learner, found)
                models = fit_planned(tuned, labelled, again(weights), weights.plan, targets=own)
    row = rows[-1] if rows else None
    for one in () if joined.audit is None else joined.audit.absences[before:]:
        if one.agent == name:  # what it did not tell, its weights do not know
            raise KinfedError(f"it missed {one.phase}")
    matrix = None if row is None else row.matrix
    evaluation = Evaluation(learner, {"personalized": (method, models)}, own, matrix, stamp.run, quorum=0.0)
    scored = joined.ask(evaluation)
    scores = {metric: float(values[0]) for metric, values in scored["personalized"].values.items()} if scored else {}
    if joined.audit is not None:
        joined.audit.note(f"agent {name} came late and has {'' if row is None else 'weights and '}a model")
    if joined.preparation is None:
        raise InputError(f"agent {name} cannot be prepared as the others were: their rows were numbers from the start")
    heard = {} if row is None else {joined.spec.names[k]: float(row.matrix[0, k]) for k in np.flatnonzero(row.matrix[0])}
    model = PersonalModel(name, method, learner, models, 0, joined.preparation, joined.spec, heard, stamp)
    return Newcomer(name, row, model, scores)


def onboard_here(
    known: FederationSpec, newcomer: Agent, learner: Learner, method: str, found: Mapping[str, Any], stamp: RunStamp
) -> Newcomer:
    """A model for an agent whose prepared rows are here, by a method that needs nobody else's for it."""
    spec, place = known.training(), len(known.names)
    spec = replace(spec, names=(*spec.names, newcomer.name), sizes=np.append(spec.sizes, len(newcomer)))
    nobody = np.zeros(len(newcomer), dtype=bool)
    rows = (newcomer, newcomer, newcomer.rows(nobody), nobody)
    site = SiteView(*rows, None, place, spec, None, learner, SiteState(), known.preparation)

    def ask(question: Question[Any]) -> Any:
        return question.combine(spec, {place: question.answer(site, question.messages(spec)[place])})

    models = METHODS[method].newcomer(spec, ask, learner, found)
    model = PersonalModel(newcomer.name, method, learner, models, 0, known.preparation, spec, {}, stamp)
    return Newcomer(newcomer.name, None, model, {})


def welcome(
    newcomers: Mapping[str, Any],
    agents: Agents,
    learner: Learner,
    options_of: Callable[[tuple[str, ...]], Mapping[str, Any]],
    method: str,
    weights: Weights | None,
    found: Mapping[str, Any],
    stamp: RunStamp,
) -> dict[str, Newcomer]:
    """Models for agents that came late, by name, as `onboard` makes them.

    `options_of` gives the rule's options for some agents.
    """
    joined = {}
    for name, newcomer in newcomers.items():
        try:
            options = options_of((*agents.spec.names, name))
            joined[name] = onboard(agents, newcomer, learner, method, weights, found, options, stamp)
        except Exception as error:  # the federation's own work is done, and must not be lost to a newcomer
            if agents.audit is not None:
                agents.audit.missed(Absence(name, "onboarding", f"{type(error).__name__}: {error}"))
    return joined
