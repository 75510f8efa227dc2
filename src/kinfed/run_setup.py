"""What a run starts from: rows to train and to test on, settings that were checked, the learner, and the agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas
from numpy.typing import ArrayLike

from kinfed.analysis import headline_metrics
from kinfed.backends.agents import Agents, ChooseEmbeddings
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.spec import learner_text
from kinfed.checkpoint import NOWHERE, Store
from kinfed.columns import group_labels
from kinfed.embedding import chosen_embeddings
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import Learner
from kinfed.learners.auto import learner_for
from kinfed.learners.base import AUTO
from kinfed.learners.inputs import check_outcome
from kinfed.methods import METHODS, MethodContext
from kinfed.outcomes import outcome_as
from kinfed.progress import Progress
from kinfed.settings import BACKENDS, Settings
from kinfed.validation import one_of, positive_integer, unknown
from kinfed.weights import RULES


def divided_table(table: Any, test: Any, seed: int, choices: Mapping[str, Any]) -> tuple[Federation, Federation | None]:
    """The federations of a table, for training and for testing, as the settings say."""
    named = {one.name: choices[one.name] for one in fields(Settings) if one.name in choices}
    settings = Settings(**named)
    if settings.agent is None or settings.target is None:
        raise InputError("say which columns of the table are the agent and the outcome: agent=..., target=...")
    if test is not None:
        raise InputError("rows to test on are taken from the table itself; leave test out, or give two federations")
    whole = Federation.from_table(table, **asdict(settings.roles), leave_out=settings.leave_out)
    return whole.split(settings.test_size, seed) if settings.test_size > 0 else (whole, None)


def together(train: Federation, test: Federation) -> Federation:
    """Training and test rows of every agent, as one federation."""
    agents = []
    for own, held in zip(train, test, strict=True):
        table = isinstance(own.X, pandas.DataFrame)
        X = pandas.concat([own.X, held.X], ignore_index=True) if table else np.concatenate([own.X, held.X])
        y = None if own.y is None or held.y is None else np.concatenate([own.y, held.y])
        beside: dict[str, Any] = {name: np.concatenate([values, held.beside[name]]) for name, values in own.beside.items()}
        agents.append(replace(own, X=X, y=y, **beside))
    return replace(train, agents=tuple(agents))


def chosen_settings(
    train: Federation, learner: str | Learner | Any, groups: ArrayLike | None, choices: Mapping[str, Any]
) -> tuple[Settings, Learner, Federation]:
    """What was asked for, the learner, and the federation with its groups; a mistake is named before anything is made."""
    known = {one.name for one in fields(Settings)}
    for name in choices:
        if name not in known:
            raise unknown("argument", name, known)
    given = {name: value for name, value in choices.items() if value is not None}  # None is the usual
    chosen = learner_for(train, learner, **given.get("learner_options", {}))
    settings = Settings(**given, learner=learner if isinstance(learner, str) else learner_text(chosen))
    one_of(settings.backend, BACKENDS, "backend")
    positive_integer(settings.repeats, "repeats")
    METHODS[settings.method]  # an unknown name is named
    if settings.metric:  # and so is a metric of another task
        settings = replace(settings, metric=headline_metrics(settings.metric, chosen.task))
    own = train if groups is None else replace(train, groups=group_labels(groups, train.names))  # type: ignore[arg-type]
    if settings.learner == AUTO:
        own = replace(own, agents=tuple(replace(one, y=outcome_as(one.y, chosen.task, one.name)) for one in own))
    check_outcome(own, chosen.task)
    if "groups" in RULES[settings.rule].needs and "groups" not in settings.options and own.groups is not None:
        labels = dict(zip(own.names, own.groups, strict=True))
        settings = replace(settings, options={**settings.options, "groups": labels})
    return settings, chosen, own


def comparing(settings: Settings) -> ChooseEmbeddings:
    """How agents are compared, given their scale; in several ways for a rule that chooses among them."""
    return partial(
        chosen_embeddings,
        several="embeddings" in RULES[settings.rule].needs,
        kernel=settings.kernel,
        bandwidth=settings.bandwidth,
        kernel_options=settings.kernel_options,
        shift=settings.shift,
        n_features=settings.n_features,
        sampling=settings.sampling,
        seed=settings.seed,
    )


def ordered_options(settings: Settings, names: tuple[str, ...]) -> dict[str, Any]:
    """The rule's options, with group labels, which are given by agent name, in the agents' order."""
    options, rule = dict(settings.options), settings.rule
    if "groups" not in RULES[rule].needs:
        return options
    groups = options.get("groups")
    if groups is None:
        raise InputError(f"rule {rule!r} needs groups; pass groups=... or give the federation groups")
    if not isinstance(groups, Mapping):
        raise InputError("labels of groups are given by agent name, or as groups=... in the agents' order")
    for name in names:
        if name not in groups:
            raise InputError(f"groups has no label for agent {name}; give one per agent")
    return {**options, "groups": [groups[name] for name in names]}


def pooled_agents(
    train: Federation, test: Federation | None, learner: Learner, settings: Settings, store: Store = NOWHERE
) -> PooledAgents:
    """The agents of a federation whose rows are here."""
    how = {"standardise": settings.standardise, "columns": settings.columns, "seed": settings.seed, "store": store}
    how |= {"robust": settings.robust, "trust": settings.trust}
    return PooledAgents.prepared(train, test, learner, comparing(settings), **how)  # type: ignore[arg-type]


def method_context(agents: Agents, learner: Learner, settings: Settings, progress: Progress | None) -> MethodContext:
    """What a method is given: agents, learner, rule, its options and progress."""
    return MethodContext(agents, learner, settings.rule, ordered_options(settings, agents.spec.names), progress)
