"""The paper's way, a rule's weights and then the weighted risk; and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kinfed.checkpoint import Store
from kinfed.learners.base import USUAL_PLAN, Models, fit_planned
from kinfed.methods.base import Method, MethodContext
from kinfed.methods.tuning import tuned_learner
from kinfed.validation import Array
from kinfed.weights import Weights
from kinfed.weights.weighing import weigh_agents


class Weighted(Method):
    """The paper's way: a rule's weights, then the weighted risk."""

    onboards = True

    def weigh(self, context: MethodContext) -> Weights:
        """By the rule that was asked for; what calibration chose before stays."""
        known = None if context.before is None else context.before.calibration
        how = {"progress": context.progress, "known": known, "store": Store(context.checkpoint)}
        found = weigh_agents(context.agents, context.rule, context.learner, context.options, **how)  # type: ignore[arg-type]
        return found if known is None else replace(found, calibration=known)

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """On these weights, as calibration planned where it did."""
        if weights is None:
            raise AssertionError("the weighted method trains on weights")
        return _fit(context, weights.matrix, weights)


class Local(Method):
    """Learning alone: every agent has a model of its own rows."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """Train every model on the rows of its agent."""
        return _fit(context, np.eye(len(context.agents.spec.names)))


class GrandMean(Method):
    """One common model, agents weighted by their size."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """Train one model on everybody's rows, and give it to every agent."""
        spec = context.agents.spec
        shares = spec.heard(spec.sizes[None] / spec.sizes.sum())
        return _fit(context, np.tile(shares, (len(spec.names), 1)), common=True)


def _fit(context: MethodContext, matrix: Array, weights: Weights | None = None, common: bool = False) -> Models:
    def again() -> Array:
        found = weights if context.again is None else context.again()
        return matrix if found is None else found.matrix

    agents = context.agents.labelled("training", None if weights is None else again)
    how: dict[str, Any] = {"progress": context.progress, "checkpoint": context.checkpoint}
    if common:  # nobody's own: all rows as others learn from them
        return context.learner.fit(agents, matrix, targets=np.arange(len(matrix)), **how)
    plan = USUAL_PLAN if weights is None else weights.plan
    learner = tuned_learner(context, matrix)
    return fit_planned(learner, agents, matrix, plan, targets=np.arange(len(matrix)), **how)
