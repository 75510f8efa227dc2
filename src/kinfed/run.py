"""The story once: prepare, embed, weigh, train, score, and welcome whoever comes late.

`personalize` gives one model per agent, beside learning alone and learning one common model; `run` is what it does,
wherever the rows are. `kinfed.weighting` stops before training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from kinfed.analysis import Scores, headline_metrics, mean_scores
from kinfed.backends.agents import Agents, AgentsLostError
from kinfed.backends.audit import Absence
from kinfed.backends.flower import QUIET
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.server import connected
from kinfed.backends.site import InProcess, Site, sites_of
from kinfed.backends.wire import Channel
from kinfed.checkpoint import Kept, Store
from kinfed.errors import InputError, MissingExtraError
from kinfed.federation import Federation
from kinfed.learners import Learner, Models
from kinfed.learners.base import AUTO, site_learner
from kinfed.learners.inputs import without_lost
from kinfed.methods import (
    BASELINES,
    METHODS,
    Evaluation,
    MethodContext,
    delivered,
)
from kinfed.model import RunStamp
from kinfed.onboarding import welcome
from kinfed.progress import Progress
from kinfed.result import Personalization
from kinfed.result_files import RECORDS
from kinfed.run_setup import (
    chosen_settings,
    comparing,
    divided_table,
    method_context,
    ordered_options,
    pooled_agents,
    together,
)
from kinfed.settings import Settings
from kinfed.splitting import LEAST_PART, derived_seed
from kinfed.weights import Weights
from kinfed.weights.weighing import without_agents

NOBODY: Mapping[int, str] = MappingProxyType({})


def personalize(
    train: Federation | Any,
    learner: str | Learner | Any = AUTO,
    rule: str = AUTO,
    test: Federation | None = None,
    seed: int = 0,
    backend: str = "pooled",
    *,
    groups: ArrayLike | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    audit: str | Path | None = None,
    **choices: Any,
) -> Personalization:
    """One model per agent that learns from those who help it, beside the two baselines.

    Parameters
    ----------
    train : Federation, or a table that `Federation.from_table` takes
        Training data. Missing values, categories and scales are dealt with by encoders fitted on it. Of a table, whose
        columns ``target`` and ``agent`` are to be named, ``test_size`` of every agent's rows are set aside to test on.
    learner : str, Learner or scikit-learn estimator
        "auto", which is logistic regression where the outcome has classes, or exactly two values that are whole numbers,
        and else ridge; "ridge", "logistic", "torch", or anything `kinfed.make_learner` takes.
    rule : str
        Given, agents are weighed by that rule, a key of `kinfed.RULES`, and models trained on the weighted risk: the
        paper's way, ``method="weighted"``. By default the method is "stacked" (`kinfed.METHODS`).
    groups : sequence, optional
        As in `collaboration_weights`.
    test : Federation, optional
        Test data of the same agents in the same order; without it nothing is scored.
    seed : int
        Equal seeds give equal results.
    backend : {"pooled", "sites", "flower"}
        Where the rows are. "pooled" works on all agents' rows at once, the fastest way. The others make every agent a
        site of its own that answers questions (`kinfed.backends`), in this process: "sites" by function calls, "flower"
        by the messages of the Flower framework, as a deployed run does. All give the same models, up to rounding.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    checkpoint : path, optional
        A folder; a run that was interrupted, or killed, and is started again with it goes on where it stopped, and ends
        with the same numbers. At most one part of a calibration, or one round, is done again.
    audit : path, optional
        A file to which every message between server and agents is written, where agents are sites of their own.
    **choices
        Any other field of `kinfed.settings.Settings`: ``method``, ``options`` of the rule, ``kernel``, ``shift``,
        ``n_features``, ``sampling``, ``standardise``, ``baselines``, ``metric`` of the headline, ``repeats`` and so on.
        With ``repeats`` above one the rows of `train` and `test` are split again, by the same shares, and all is done
        again; scores are means over the splits, their intervals cover agents and splits, and models are those of the first.

    Returns
    -------
    Personalization

    Examples
    --------
    >>> import kinfed
    >>> generated = kinfed.concept_shift(n_agents=20, n=15, dim=5, spread=0.0, seed=0)
    >>> result = kinfed.personalize(generated.train, test=generated.test(200, seed=1))
    >>> list(result.scores.columns)
    ['floor', 'local', 'grand-mean', 'personalized']
    """
    if not isinstance(train, Federation):
        train, test = divided_table(train, test, seed, choices)
    settings, chosen, train = chosen_settings(
        train, learner, groups, {"rule": rule, "seed": seed, "backend": backend, **choices}
    )
    if chosen.task != "unsupervised" and not train.has_target:
        raise InputError("the federation has no target to learn; name its column when reading it, as target=...")
    if test is not None and test.names != train.names:
        raise InputError("train and test must hold the same agents in the same order; use Federation.split")
    if settings.repeats > 1 and test is None:
        raise InputError("rows are split again for every repeat, so there must be test rows: give test=..., or --test-size")
    if settings.repeats > 1 and any(agent.time is not None for agent in train):
        raise InputError("rows that are split by time have one split only; leave out repeats, or the time")
    folder, log = (None if path is None else Path(path) for path in (checkpoint, audit))
    if settings.backend == "pooled" and log is not None:
        raise InputError("nothing crosses where all rows are here, so there is no audit; use backend='sites'")
    if settings.backend != "pooled":
        site_learner(chosen)
    result = _personalized(train, test, chosen, settings, folder, log, progress)
    if test is None or settings.repeats == 1 or not result.scored:
        return result
    again = [
        _repeated(train, test, chosen, settings, folder, progress, number) for number in range(2, settings.repeats + 1)
    ]
    return replace(result, scored=mean_scores([result.scored, *again], result.known.sizes))


def _personalized(
    train: Federation,
    test: Federation | None,
    learner: Learner,
    settings: Settings,
    folder: Path | None,
    log: Path | None,
    progress: Progress | None,
) -> Personalization:
    """One run on one split, on the backend that was asked for."""
    data = "" if folder is None else "".join(one.digest() for one in (train, test) if one is not None)
    store = Store(folder, {} if folder is None else {**settings.telling(learner), "data": data})
    if settings.backend == "pooled":
        return run(pooled_agents(train, test, learner, settings, store), learner, settings, store, progress)
    sites = sites_of(train, test, learner, store.below("sites"))
    with connected(
        _flower(sites) if settings.backend == "flower" else InProcess(sites),
        learner,
        comparing(settings),
        store,
        standardise=settings.standardise,
        robust=settings.robust,
        trust=settings.trust,
        columns=settings.columns,
        seed=settings.seed,
        agents=len(sites),
        log=log,
        data=data,
    ) as agents:
        found = run(agents, learner, settings, store, progress)
    # The rows are here after all: what can be told from them, and newcomers, need no messages.
    there = train.select([train.names.index(name) for name in agents.spec.names])
    raw, screening = there.in_order(), agents.spec.screening
    own = agents.preparation.transform(raw)
    rows = agents.preparation.held(raw, own, screening, LEAST_PART)
    known = (rows, learner.task, settings.seed, agents.spec.embeddings, learner)
    here = PooledAgents(*known, preparation=agents.preparation, own=own, screening=screening)
    notes = agents.preparation.notes(there)
    return replace(found, agents=here, found={**found.found, "notes": notes})


def _repeated(
    train: Federation,
    test: Federation,
    learner: Learner,
    settings: Settings,
    folder: Path | None,
    progress: Progress | None,
    number: int,
) -> dict[str, Scores]:
    """Scores of a run on another split of the same rows: every agent tests on as many as before; the seed is derived."""
    seed = int(derived_seed(settings.seed, "repeat", number).generate_state(1)[0])
    shares = test.sizes / np.maximum(train.sizes + test.sizes, 1)
    own, held = together(train, test).split_by(shares.tolist(), seed)
    told = None if progress is None else partial(_labelled, progress, f"repeat {number} of {settings.repeats}")
    alike, place = replace(settings, seed=seed, repeats=1), None if folder is None else folder / f"repeat-{number}"
    return dict(_personalized(own, held, learner, alike, place, None, told).scored)


def run(
    agents: Agents,
    learner: Learner,
    settings: Settings,
    store: Store,
    progress: Progress | None = None,
    on_result: Callable[[Personalization], None] | None = None,
) -> Personalization:
    """Weigh, train, score, and welcome whoever comes late, wherever the rows are.

    Parameters
    ----------
    agents : Agents
        With their rows as numbers, and the ways to compare them.
    learner : Learner
    settings : Settings
    store : Store
        Every finished step is kept there, and a run that was killed goes on from it.
    progress : callable, optional
    on_result : callable, optional
        Given the result of all that took part, before anybody who came late is asked for anything.
    """
    leading = headline_metrics(settings.metric, learner.task)
    context, stamp = method_context(agents, learner, settings, progress), _stamp(store)
    asked = _weigh(context, settings, store)
    models, weights = _train(context, settings, store, asked)
    told = Told(stamp.run, weights, None if weights is asked else asked)
    scored = _score(context, settings, store, models, told)
    result = Personalization(
        weighed=weights,
        learner=learner,
        settings=settings,
        agents=agents,
        models=models["personalized"],
        baselines={name: models[name] for name in BASELINES if name in models},
        scored={name: replace(one, leading=leading) for name, one in scored.items()},
        exchange=agents.audit,
        stamp=stamp,
        asked=told.asked,
        found={**context.found, **({} if agents.rows is None else {"notes": agents.rows.notes})},
    )
    if on_result is not None:
        on_result(result)
    late, joined = agents.newcomers(), {}
    if late and METHODS[settings.method].onboards:
        options = partial(ordered_options, settings)
        joined = welcome(late, agents, learner, options, settings.method, weights, context.found, stamp)
    elif agents.audit is not None:
        for one in late:
            agents.audit.missed(Absence(one, "onboarding", f"method {settings.method} takes nobody in later"))
    return replace(result, joined=joined)


class Told(NamedTuple):
    """What agents are told of their models: the run, the weights that were used, and those asked for where they differ."""

    run: str
    weights: Weights | None
    asked: Weights | None


def _stamp(store: Store) -> RunStamp:
    """What tells this run from all others; one that goes on keeps it."""
    kept = store.load("run")
    if kept is not None:
        return RunStamp(**kept.settings)
    stamp = RunStamp(uuid4().hex[:16], datetime.now(UTC).isoformat(timespec="seconds"))
    store.save("run", Kept(stamp._asdict()))
    return stamp


def _weigh(context: MethodContext, settings: Settings, store: Store, without: Mapping[int, str] = NOBODY) -> Weights | None:
    """Weights of all agents, or of all but some, once they are lost: what was chosen `before` stays."""
    piece = " ".join(["weights", *(["without"] if without else []), *map(str, sorted(without))])
    kept = store.load(piece)
    if kept is not None:
        found: Weights = RECORDS.unpack(kept)
        return found
    own = replace(context, checkpoint=store.below(piece.replace("weights", "weighing", 1)))
    weights = METHODS[settings.method].weigh(own)
    weights = None if weights is None else without_agents(weights, without)
    if weights is not None and store.folder is not None:
        store.save(piece, RECORDS.pack(weights))
    return weights


def _train(
    context: MethodContext, settings: Settings, store: Store, asked: Weights | None
) -> tuple[dict[str, Models], Weights | None]:
    """Models of every method, and the weights that were used; where exchanges are slow questions travel together.

    Agents that are lost on the way have no model: the others' weights are solved again without them, and training goes on.
    """
    methods = {name: name for name in BASELINES if settings.baselines} | {"personalized": settings.method}
    trained: dict[str, Models] = {}
    left_out: dict[str, Mapping[int, str]] = {}
    solved: dict[tuple[int, ...], Weights | None] = {(): asked}

    def weights_without(lost: Mapping[int, str]) -> Weights | None:
        places = tuple(sorted(lost))
        if places not in solved:
            there = replace(context, agents=context.agents.leaving_out(lost), before=asked)
            solved[places] = None if asked is None else _weigh(there, settings, store, lost)
        return solved[places]

    def train(name: str) -> None:
        progress = None if context.progress is None else partial(_labelled, context.progress, name)
        agents, own = context.agents.in_training(), name not in BASELINES
        found = context.found if own else {}
        how = replace(
            context, agents=agents, progress=progress, found=found, again=lambda: weights_without(agents.left_out)
        )
        while name not in trained:
            place = replace(how, checkpoint=without_lost(store.below(name), agents))
            weights = weights_without(agents.left_out) if own else asked
            with suppress(AgentsLostError):  # of a learner that does not go on by itself; it begins again without them
                trained[name] = METHODS[methods[name]].train(place, weights)
        left_out[name] = agents.left_out

    for job in context.agents.side_by_side([partial(train, name) for name in methods]):
        job()
    spec, learner = context.agents.spec, context.learner
    models = {name: delivered(method, learner, trained[name], spec, left_out[name]) for name, method in methods.items()}
    used, lost = weights_without(left_out["personalized"]), list(left_out["personalized"])
    if used is not None and lost:
        used = replace(used, matrix=np.where(np.isin(used.targets, lost)[:, None], 0.0, used.matrix))
    return models, used


def _score(
    context: MethodContext, settings: Settings, store: Store, models: Mapping[str, Models], told: Told
) -> dict[str, Scores]:
    """Scores of every method, by every agent on its own test rows."""
    kept = store.load("scores")
    if kept is not None:
        known: dict[str, Scores] = RECORDS.unpack(kept)
        return known
    named = {name: (name if name in BASELINES else settings.method, one) for name, one in models.items()}
    used, asked = (None if one is None else one.matrix for one in (told.weights, told.asked))
    everybody = np.arange(len(context.agents.spec.names))
    scored = context.agents.ask(Evaluation(context.learner, named, everybody, used, told.run, asked))
    if store.folder is not None:
        store.save("scores", RECORDS.pack(scored))
    return scored


def require_flower() -> None:
    """Make sure that Flower is installed, and quiet when it is imported next; what the user has set stays."""
    if find_spec("flwr") is None:
        raise MissingExtraError("the Flower backend needs Flower, which is not installed: pip install 'kinfed[flower]'")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def _flower(sites: Sequence[Site]) -> Channel:
    require_flower()
    from kinfed.backends.flower.channel import InProcessFlower

    return InProcessFlower(sites)


def _labelled(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)
