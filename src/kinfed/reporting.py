"""From a result to what its report tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from kinfed.analysis import comparisons, diagnosis_of, gain_of
from kinfed.backends.pooled import PooledAgents
from kinfed.data.description import columns_table
from kinfed.methods import REFERENCES
from kinfed.progress import Progress
from kinfed.report import MANY_AGENTS, ReportData
from kinfed.result import Personalization, Weighting
from kinfed.run_setup import ordered_options
from kinfed.settings import PERSONALIZE, WEIGHTS
from kinfed.weights import RULES


def report_data(
    result: Weighting,
    *,
    title: str | None = None,
    settings: Mapping[str, str] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> ReportData:
    """What the report tells: the weights, how agents differ, what is predicted, what the models reached, what crossed.

    Parameters
    ----------
    result : Weighting or Personalization
    title, settings, command, progress
        As in `Weighting.report`.
    """
    weights, here = result.weights, isinstance(result.agents, PooledAgents)
    if here:
        _look_at_rows(result, progress)
    trained = result if isinstance(result, Personalization) else None
    exchange = None if trained is None else trained.exchange
    return ReportData(
        title=title or f"Who helps whom among {len(result.known.names)} agents",
        weights=weights,
        scored={} if trained is None else trained.scored,
        comparisons={} if trained is None else comparisons(trained.counted, REFERENCES, result.seed),
        predicted=result.found.get("predicted"),
        diagnosis=result.found.get("diagnosis"),
        choices=tuple(result.choices),
        sketch_sizes=tuple(one.features.n_features for one in result.embeddings),
        norm_bound=result.embeddings[0].norm_bound,
        traffic=None if exchange is None else exchange.traffic,
        attendance=None if exchange is None else exchange.attendance,
        settings=settings or result.settings.shown(WEIGHTS if trained is None else PERSONALIZE),
        seed=result.seed,
        command=command or (_call(result) if here else None),
        groups=result.found.get("groups"),
        withheld={} if trained is None else trained.withheld,
        asked=None if trained is None else trained.asked,
        columns=columns_table(result.preparation) if any(one.is_judged for one in result.preparation.readings) else None,
        screening=result.known.screening,
        beside={}
        if trained is None or not trained.scored
        else {one: comparisons(trained.counted, REFERENCES, result.seed, metric=one) for one in trained.metrics[1:]},
    )


def _look_at_rows(result: Weighting, progress: Progress | None) -> None:
    """What a report tells of the rows themselves; made once, and kept with the result."""
    here, rule, found = result.agents, result.weights.rule, result.found
    assert isinstance(here, PooledAgents)
    if "diagnosis" not in found:
        found["diagnosis"] = diagnosis_of(here.whole, result.learner.task, result.seed, progress=progress)
    # Every fold of a prediction weighs all agents again: for many that takes minutes.
    if "predicted" not in found and not RULES[rule].trains and len(result.known.names) <= MANY_AGENTS:
        options = ordered_options(result.settings, result.known.names)
        found["predicted"] = gain_of(here, rule, options, progress=progress)
    if here.whole.groups is not None:
        found["groups"] = tuple(map(str, here.whole.groups))


def _call(result: Weighting) -> str:
    """The call that made this, where no other command did: every choice that is not the usual one."""
    settings, usual = result.settings, type(result.settings)()
    told = {"rule": settings.rule, "learner": result.learner, "seed": settings.seed}
    for one in fields(settings):
        value = dict(settings.shown_options) if one.name == "options" else getattr(settings, one.name)
        if one.name not in ("learner", "learner_options") and value != getattr(usual, one.name):
            told[one.name] = value
    return f"kinfed.{result.maker}(train, {', '.join(f'{name}={value!r}' for name, value in told.items())})"
