"""From a federation that lies here to sites, and from what a run across sites found back to one result."""

from __future__ import annotations

from dataclasses import replace

from kinfed.engines.outcome import Outcome
from kinfed.engines.site import Site
from kinfed.engines.wishes import Wishes
from kinfed.federation import Federation
from kinfed.learners import Learner
from kinfed.personalization import BASELINES, Personalization


def sites_of(train: Federation, test: Federation | None, learner: Learner) -> list[Site]:
    """One site per agent, in the federation's order."""
    return [Site(_alone(train, k), None if test is None else _alone(test, k), k, learner) for k in range(len(train))]


def personalization_of(outcome: Outcome, train: Federation, wishes: Wishes) -> Personalization:
    """The result as `kinfed.personalize` gives it; agents that could not take part are left out."""
    agreement = outcome.agreement
    there = train.select(train.names.index(name) for name in agreement.names)
    return Personalization(
        weights=outcome.weights,
        models=outcome.methods["personalized"],
        baselines={name: outcome.methods[name] for name in BASELINES if name in outcome.methods},
        scored=outcome.scored,
        learner=outcome.learner,
        train=agreement.preparation.transform(there),
        preparation=agreement.preparation,
        embeddings=agreement.embeddings,
        rule_options=wishes.shown_options,
        seed=agreement.seed,
        exchange=outcome.audit,
    )


def _alone(federation: Federation, k: int) -> Federation:
    return replace(federation.select([k]), groups=None)
