"""From options, which are text, to what the library takes: a federation, a kernel, a learner, options of a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pandas

from kinfed.cli.config import pair
from kinfed.cli.options import KERNELS, MEDIAN
from kinfed.collaboration import learner_for
from kinfed.columns import unknown
from kinfed.data import Preparation, read_federation
from kinfed.embedding import TARGET_BANDWIDTH, common_scale, federated_median, own_scale
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, make_learner
from kinfed.weights import RULES

# What a rule is given by the library, never by a user.
_GIVEN_TO_RULES = {"geometry", "federation", "learner", "embeddings", "groups", "seed", "progress", "mixture"}


def read_data(
    data: Path, target: str | None, agent: str | None, groups: str | None, leave_out: Sequence[str] | None
) -> Federation:
    """The federation in a file or folder, its known groups taken from a column."""
    skipped = tuple(leave_out or ())
    for column, option in ((target, "--target"), (agent, "--agent")):
        if column is not None and column in skipped:
            raise InputError(f"column {column!r} is needed as {option} and cannot be left out; take it off --leave-out")
    if groups is not None and groups in (target, agent, *skipped):
        raise InputError(f"column {groups!r} cannot be the groups and something else too; give --groups another column")
    federation = read_federation(data, target=target, agent=agent, leave_out=skipped)
    try:
        return federation if groups is None else with_groups(federation, groups)
    except InputError as error:
        raise InputError(f"{data}: {error}") from None


def with_groups(federation: Federation, column: str) -> Federation:
    """The federation with the labels of a column as groups of its agents; the column is no feature any more."""
    if column not in federation.columns:
        raise unknown("column", column, federation.columns)
    place = federation.columns.index(column)
    kept = [j for j in range(federation.dim) if j != place]
    if not kept:
        raise InputError(f"there is no column beside the groups in {column!r}; agents need at least one feature")
    agents, labels = [], []
    for agent in federation:
        values = agent.X.iloc[:, place] if isinstance(agent.X, pandas.DataFrame) else pandas.Series(agent.X[:, place])
        found = values.dropna().unique()
        if len(found) != 1 or values.isna().any():
            what = f"{len(found)} labels" if len(found) > 1 else "a missing label"
            raise InputError(
                f"agent {agent.name} has {what} in the groups column {column!r}; give all its rows the same one"
            )
        labels.append(found[0])
        X = agent.X.iloc[:, kept] if isinstance(agent.X, pandas.DataFrame) else agent.X[:, kept]
        agents.append(Agent(agent.name, X, agent.y))
    columns = tuple(federation.columns[j] for j in kept)
    return replace(federation, agents=tuple(agents), columns=columns, groups=tuple(labels))


def chosen_kernel(
    train: Federation,
    learner: Learner,
    name: str,
    bandwidth: str | float,
    options: Mapping[str, Any],
    shift: str,
    standardise: bool,
) -> Kernel | str:
    """The kernel of that name; the median bandwidth is that of the usual kernel, for x and for y.

    The median over agents of the median distance within an agent is taken of the prepared rows, so agents answer with one
    number each.
    """
    if name == "auto":
        if bandwidth != MEDIAN or options:
            raise InputError("--bandwidth and --kernel-option need a kernel that is named, such as --kernel gaussian")
        return "auto"
    constructor = KERNELS[name]
    # Features are there for polynomials of degree 2 alone.
    _check_names(f"{name} kernel option", options, set(signature(constructor).parameters) - {"bandwidth", "degree"})
    if name == "polynomial":
        if bandwidth != MEDIAN:
            raise InputError("the polynomial kernel has no bandwidth; leave --bandwidth out")
        return constructor(**options)
    if bandwidth != MEDIAN:
        return constructor(bandwidth, **options)
    prepared = Preparation.fit(train, standardise=standardise).transform(train)
    scale = common_scale(prepared.dim, [own_scale(agent, learner.task == "classification") for agent in prepared])
    width = 0 if scale.target is None or shift == "covariate" else scale.target.width
    return constructor((federated_median(prepared),) * scale.dim + (TARGET_BANDWIDTH,) * width, **options)


def chosen_learner(train: Federation, name: str, given: Sequence[str] | None) -> Learner:
    """The learner of that name with these options; a network learns what the target asks for."""
    usual, options = learner_for(train, name), pairs(given)
    if not options:
        return usual
    _check_names(f"{name} option", options, set(signature(type(usual)).parameters))
    # A list is what a command line can write for a tuple, such as the widths of layers.
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    task = {"task": usual.task} if "task" in signature(type(usual)).parameters else {}
    return make_learner(name, **{**task, **plain})


def chosen_rule_options(rule: str, given: Sequence[str] | None) -> dict[str, Any]:
    """Options of a rule, whose names are checked."""
    options = pairs(given)
    _check_names(f"{rule} option", options, set(signature(RULES[rule].weigh).parameters) - _GIVEN_TO_RULES)
    return options


def pairs(given: Sequence[str] | None) -> dict[str, Any]:
    """All of NAME=VALUE, where no name may come twice."""
    found: dict[str, Any] = {}
    for name, value in map(pair, given or ()):
        if name in found:
            raise InputError(f"option {name!r} is given twice; give it once")
        found[name] = value
    return found


def _check_names(kind: str, options: Mapping[str, Any], valid: set[str]) -> None:
    for name in options:
        if name not in valid:
            raise unknown(kind, name, sorted(valid)) if valid else InputError(f"there is no {kind}; leave {name!r} out")
