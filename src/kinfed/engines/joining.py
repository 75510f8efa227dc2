"""Agents that come late: one sketch, weights and a model, and nobody else's model changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kinfed.engines.audit import Absence
from kinfed.engines.gathering import Introduction, introductions
from kinfed.engines.judging import models_to_test, score_check
from kinfed.engines.outcome import Joined
from kinfed.engines.weighing import weigh_across
from kinfed.engines.wishes import Wishes
from kinfed.engines.workshop import Workshop
from kinfed.evaluation import METRICS
from kinfed.weights import Weights


def welcome(
    workshop: Workshop, wishes: Wishes, weights: Weights, strangers: Mapping[str, Introduction]
) -> dict[str, Joined]:
    """Weights and a model for agents that came late; nobody else's model changes."""
    late = {**strangers, **introductions(workshop.conversation, workshop.learner)}
    joined = {}
    for name, one in late.items():
        if name in workshop.agreement.names:
            continue
        try:
            joined[name] = _join(workshop, wishes, weights, one)
        except Exception as error:  # the federation's own work is done, and must not be lost to a newcomer
            workshop.conversation.audit.missed(Absence(name, "joining", f"{type(error).__name__}: {error}"))
    return joined


def _join(workshop: Workshop, wishes: Wishes, weights: Weights, newcomer: Introduction) -> Joined:
    """One sketch of the newcomer, its own row of weights, and a training of its model alone."""
    agreement, views = workshop.agreement, range(len(workshop.agreement.embeddings))
    wider = replace(
        agreement,
        names=(*agreement.names, newcomer.name),
        sizes=np.append(agreement.sizes, newcomer.rows),
    )
    joining, own = Workshop(workshop.conversation, wider, workshop.learner), len(agreement.names)
    sent = joining.sketches(None, views, agents=[own])
    joining.known[None] = workshop.known[None].joined(sent)
    options = wishes.rule_options(wider)
    if weights.calibration is not None:
        options["mixture"] = weights.calibration.mixture  # the federation has chosen already
    row = weigh_across(joining, wishes.rule, options, targets=np.array([own]))
    models = joining.fit_planned("training of a newcomer", joining.learner, row.matrix, weights.plan, lambda _: None)
    request = models_to_test(joining, [models], 0, row.matrix[0])
    metrics = METRICS[agreement.task]
    reply = joining.ask("evaluation", {own: request}, score_check(1, len(metrics)), quorum=0.0).get(own)
    scores = {} if reply is None else dict(zip(metrics, reply.arrays["values"][0].tolist(), strict=True))
    workshop.conversation.audit.note(f"agent {newcomer.name} came late and has weights and a model")
    return Joined(newcomer.name, row, models, scores)
