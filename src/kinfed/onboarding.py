"""Agents that come late: one sketch, weights and a model, and nobody else's model changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents
from kinfed.backends.audit import Absence
from kinfed.data import Preparation
from kinfed.learners.base import Learner, Models, fit_planned
from kinfed.markup import card, table
from kinfed.methods import Evaluation, ordered_options
from kinfed.settings import Settings
from kinfed.weights import Weights
from kinfed.weights.weighing import weigh_agents


@dataclass(frozen=True, eq=False)
class Newcomer:
    """An agent that came later: its weights, its model as the only row, and its test scores by metric."""

    name: str
    weights: Weights
    models: Models
    preparation: Preparation | None
    scores: Mapping[str, float]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict for rows as the newcomer holds them, before any preparation."""
        if self.preparation is None:
            return self.models.predict(0, X)
        return self.models.predict(0, self.preparation.rows(self.name, X).X)

    def _repr_html_(self) -> str:
        return card(f"Newcomer {self.name}", table(self.weights.why(self.name), "Whom it listens to, and why"))


def onboard(
    agents: Agents,
    newcomer: Any,
    learner: Learner,
    weights: Weights,
    options: Mapping[str, Any],
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
    """
    joined, own = agents.joined(newcomer), np.array([len(agents.spec.names)])
    row = weigh_agents(joined, weights.rule, learner, options, targets=own, known=weights.calibration)
    training = joined.labelled("training of a newcomer")
    models = fit_planned(learner, training, row.matrix, weights.plan, targets=own)
    evaluation = Evaluation(learner, {"personalized": ("weighted", models)}, own, row.matrix, quorum=0.0)
    scores = {
        metric: float(values[0]) for scored in joined.ask(evaluation).values() for metric, values in scored.values.items()
    }
    name = joined.spec.names[-1]
    if joined.audit is not None:
        joined.audit.note(f"agent {name} came late and has weights and a model")
    return Newcomer(name, row, models, joined.preparation, scores)


def welcome(
    newcomers: Mapping[str, Any], agents: Agents, learner: Learner, settings: Settings, weights: Weights
) -> dict[str, Newcomer]:
    """Weights and a model for agents that came late, by name."""
    joined = {}
    for name, newcomer in newcomers.items():
        try:
            options = ordered_options(settings, (*agents.spec.names, name))
            joined[name] = onboard(agents, newcomer, learner, weights, options)
        except Exception as error:  # the federation's own work is done, and must not be lost to a newcomer
            if agents.audit is not None:
                agents.audit.missed(Absence(name, "joining", f"{type(error).__name__}: {error}"))
    return joined
