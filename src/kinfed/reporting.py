"""From a result to what its report and its figures tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from kinfed.analysis import comparisons, diagnosis_of, gain_of
from kinfed.analysis.ties import Ties
from kinfed.backends.pooled import PooledAgents
from kinfed.data.description import columns_table
from kinfed.methods import REFERENCES
from kinfed.progress import Progress
from kinfed.report import MANY_AGENTS, ReportData
from kinfed.result import Personalization, Weighting
from kinfed.run_setup import ordered_options
from kinfed.settings import PERSONALIZE, WEIGHTS
from kinfed.weights import RULES
from kinfed.weights.geometry import pooled_geometry
from kinfed.weights.result import evidence_of

_LOSSES = {"regression": "squared error", "classification": "log loss"}


def report_data(
    result: Weighting,
    *,
    title: str | None = None,
    settings: Mapping[str, str] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> ReportData:
    """What the report tells: who counts for whom, how agents differ, what is predicted, what models reached, what crossed.

    Parameters
    ----------
    result : Weighting or Personalization
    title, settings, command, progress
        As in `Weighting.report`.
    """
    weighed, stacking, here = result.weighed, result.stacking, isinstance(result.agents, PooledAgents)
    if here:
        _look_at_rows(result, progress)
    trained = result if isinstance(result, Personalization) else None
    exchange = None if trained is None else trained.exchange
    return ReportData(
        title=title or f"Who helps whom among {len(result.known.names)} agents",
        names=result.known.names,
        sizes=np.asarray(result.known.sizes),
        how=f"method {result.settings.method}" if weighed is None else f"rule {weighed.rule}",
        ties=ties_of(result),
        scored={} if trained is None else trained.scored,
        comparisons={} if trained is None else comparisons(trained.counted, REFERENCES, result.seed),
        predicted=result.found.get("predicted"),
        diagnosis=result.found.get("diagnosis"),
        choices=tuple(result.choices),
        sketch_sizes=() if weighed is None else tuple(one.features.n_features for one in result.embeddings),
        norm_bound=result.embeddings[0].norm_bound if result.embeddings else None,
        traffic=None if exchange is None else exchange.traffic,
        attendance=None if exchange is None else exchange.attendance,
        settings=settings or result.settings.shown(WEIGHTS if trained is None else PERSONALIZE),
        seed=result.seed,
        command=command or (_call(result) if here else None),
        calibration=None if weighed is None else weighed.calibration,
        stacking=stacking,
        expected=None if stacking is None else stacking.expected,
        loss=_LOSSES.get(result.learner.task, "loss"),
        groups=result.found.get("groups"),
        withheld={} if trained is None else trained.withheld,
        asked=None if trained is None else trained.asked,
        columns=columns_table(result.preparation) if any(one.is_judged for one in result.preparation.readings) else None,
        screening=result.known.screening,
        beside={}
        if trained is None or not trained.scored
        else {one: comparisons(trained.counted, REFERENCES, result.seed, metric=one) for one in trained.metrics[1:]},
    )


def ties_of(result: Weighting) -> Ties | None:
    """Who counts how much in whose model: by weights, or by influence; None for a method that tells neither.

    Influence comes with the distances between the agents' data where the rows are here; they are made once, and kept with
    the result.
    """
    known, weighed, stacking = result.known, result.weighed, result.stacking
    if weighed is not None:
        return Ties.of_weights(weighed)
    if stacking is None:
        return None
    here, found = result.agents, result.found
    if "evidence" not in found and isinstance(here, PooledAgents):
        found["evidence"] = evidence_of(pooled_geometry(here, 0, np.arange(len(known.names))))
    ties = Ties("influence", known.names, np.asarray(known.sizes), stacking.influence, found.get("evidence"))
    lost = result.withheld if isinstance(result, Personalization) else {}
    return ties.without(np.array([known.names.index(name) for name in lost], dtype=np.int64))


def _look_at_rows(result: Weighting, progress: Progress | None) -> None:
    """What a report tells of the rows themselves; made once, and kept with the result."""
    here, found = result.agents, result.found
    assert isinstance(here, PooledAgents)
    if "diagnosis" not in found:
        found["diagnosis"] = diagnosis_of(here.whole, result.learner.task, result.seed, progress=progress)
    rule = None if result.weighed is None else result.weighed.rule
    # Every fold of a prediction weighs all agents again: for many that takes minutes.
    few = len(result.known.names) <= MANY_AGENTS
    if rule is not None and "predicted" not in found and not RULES[rule].trains and few:
        options = ordered_options(result.settings, result.known.names)
        found["predicted"] = gain_of(here, rule, options, progress=progress)
    if here.whole.groups is not None:
        found["groups"] = tuple(map(str, here.whole.groups))


def _call(result: Weighting) -> str:
    """The call that made this, where no other command did: every choice that is not the usual one."""
    settings, usual = result.settings, type(result.settings)()
    # A rule selects the weighted method by itself.
    by_rule = settings.method == "weighted" or not isinstance(result, Personalization)
    told: dict[str, Any] = {"rule": settings.rule} if by_rule else {"method": settings.method}
    told |= {"learner": result.learner, "seed": settings.seed}
    for one in fields(settings):
        value = dict(settings.shown_options) if one.name == "options" else getattr(settings, one.name)
        if one.name not in ("learner", "learner_options", "rule", "method") and value != getattr(usual, one.name):
            told[one.name] = value
    return f"kinfed.{result.maker}(train, {', '.join(f'{name}={value!r}' for name, value in told.items())})"
