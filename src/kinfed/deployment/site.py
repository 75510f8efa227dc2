"""An agent's data, from the configuration of its node.

==============  ======================================================================================================
node config     meaning
==============  ======================================================================================================
data            file of this one agent: a table, LEAF JSON or ``.npz``; in a simulation the run's ``data`` holds all
name            the agent's name; by default from the agent column, else the file's name
partition-id    where the agent stands among all, 0 first; agents of equal places are ordered by name
test            file with rows to test on; by default the run's ``test-size`` of the rows are set aside
out             folder the agent's own model and its log are written to, and while a run is on what it keeps for itself
least-rows      with fewer rows to train on the agent answers nothing, 10 unless set; in a simulation 2, since the data are
                in one place
==============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context

from kinfed.backends.agents import Task
from kinfed.backends.audit import AUDIT, SiteAudit
from kinfed.backends.flower.nodes import configured_name
from kinfed.backends.redaction import discreet, nameless
from kinfed.backends.site import Site
from kinfed.columns import Roles
from kinfed.data import read_federation
from kinfed.data.tables import read_folder, read_one_table, read_table
from kinfed.data.text_tables import TABLE_SUFFIXES, suffix_of
from kinfed.deployment.options import MakeLearner, deployed_learner, path_or_none, read_settings, site_learner_of
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.learners.base import AUTO
from kinfed.model import keep_model
from kinfed.outcomes import outcome_as
from kinfed.settings import Settings

NODE_OPTIONS = ("data", "name", "partition-id", "num-partitions", "test", "out", "least-rows")

TOLD_OPTIONS = ("target", "agent", "group-by", "time", "sample-weight", "task", "learner")
"""Options of the run whose values the server may hear in an error: it set them."""

LEAST_ROWS = 10
"""Rows a site of its own trains on at least, unless its node says otherwise."""


def site_from_context(context: Context, make_learner: MakeLearner | None = None) -> Site:
    """The site of a node; an error is raised as the server may hear it, from the whole one.

    Parameters
    ----------
    context : Context
        With the configurations of the node and of the run.
    make_learner : callable, optional
        Called as ``make_learner(name, task)``; by default the learner of that name.
    """
    try:
        return _site(context.node_config, read_settings(context.run_config), make_learner, _audit(context))
    except Exception as error:
        told = _told(error, context.node_config, context.run_config)
        with suppress(InputError):  # without a log there is one thing more to mend
            audit = _audit(context)
            if audit is not None:
                audit.missed(configured_name(context), "setting up this site", str(told))
        raise told from error


def _told(error: Exception, node: Mapping[str, Any], run: Mapping[str, Any]) -> KinfedError:
    """What the server may hear of an error."""
    if isinstance(error, KinfedError):
        asked = [_text(node, "name"), *(_text(run, key) for key in TOLD_OPTIONS)]
        paths = [Path(path) for path in (_text(node, "data"), _text(node, "test"), _text(run, "data")) if path]
        hidden = [text for path in paths for text in (str(path), str(path.expanduser()), path.name)]
        return discreet(error, (*node, *run, *asked), hidden)
    return nameless(error, "setting up this site")


def _audit(context: Context) -> SiteAudit | None:
    out = path_or_none(_text(context.node_config, "out"))
    return None if out is None else SiteAudit(out / AUDIT, str(context.run_id))


def _site(node: Mapping[str, Any], options: Settings, make_learner: MakeLearner | None, audit: SiteAudit | None) -> Site:
    for key in node:
        if key not in NODE_OPTIONS:
            raise InputError(f"there is no option {key!r} in a node's configuration; there are {', '.join(NODE_OPTIONS)}")
    place = node.get("partition-id", 0)
    if not isinstance(place, int) or isinstance(place, bool) or place < 0:
        raise InputError(f"partition-id of a node must be a whole number of at least 0, got {place!r}")
    name = _text(node, "name")
    own = path_or_none(_text(node, "data"))
    rows = _typed(_from_pool(options, place, node) if own is None else read_agent(own, name, options), options.task)
    train, test = _divided(rows, path_or_none(_text(node, "test")), options)
    undecided = options.learner == AUTO and train[0].y is not None
    learner: Any = (
        deployed_learner(options, make_learner)
        if undecided
        else site_learner_of(options, _task(train[0], options), make_learner)
    )
    least = node.get("least-rows", 2 if own is None else LEAST_ROWS)
    if not isinstance(least, int) or isinstance(least, bool) or least < 2:
        raise InputError(f"least-rows of a node must be a whole number of at least 2, got {least!r}")
    out = path_or_none(_text(node, "out"))
    keep = None if out is None else partial(keep_model, out)
    return Site(train, test, place, learner, keep, least, None if out is None else out / "state", audit)


def read_agent(path: Path, name: str, options: Settings) -> Federation:
    """The federation of one agent in a file of its own.

    Without an agent column the whole file is the agent, named after it. With one there must be one label in it, or `name`
    must be among them.
    """
    read = _read_agent_table(path, options) if suffix_of(path) in TABLE_SUFFIXES else _read(path, options)
    if len(read) > 1:
        if not name:
            raise InputError(f"{path} holds {len(read)} agents; say which is this node's, as name=... in its node config")
        return _alone(read, read.names.index(read[name].name))
    return _alone(read, 0, name)


def _read_agent_table(path: Path, options: Settings) -> Federation:
    if not path.is_file():
        raise InputError(f"{path} does not exist; give this node the path of its data, as data=... in its node config")
    with_agent = options.agent and options.agent in read_table(path, options.agent, encoding=options.encoding).columns
    roles, unused = replace(options.roles, agent=options.agent if with_agent else None), options.leave_out
    if with_agent:
        return read_one_table(path, roles, unused, options.encoding)
    return read_folder(path, [path], roles, unused, options.encoding)


def _from_pool(options: Settings, place: int, node: Mapping[str, Any]) -> Federation:
    if not options.data:
        raise InputError("this node has no data; name them as data=... in its node config, or in a simulation in the run's")
    stamp = _stamp(Path(options.data).expanduser())
    pool = _pool(options.data, options.roles, options.leave_out, stamp)
    expected = node.get("num-partitions", len(pool))
    if expected != len(pool):
        raise InputError(
            f"{options.data} holds {len(pool)} agents, but there are {expected} nodes; start as many as agents"
        )
    if place >= len(pool):
        raise InputError(f"there is no agent {place} in {options.data}, which holds {len(pool)}, 0 to {len(pool) - 1}")
    return _alone(pool, place)


# A process of a simulation stands for many nodes; all of them read the same files.
@lru_cache(maxsize=1)
def _pool(data: str, roles: Roles, unused: tuple[str, ...], stamp: tuple[tuple[str, int], ...]) -> Federation:
    return read_federation(Path(data), **asdict(roles), leave_out=unused)


def _stamp(path: Path) -> tuple[tuple[str, int], ...]:
    """What changes when the data do."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    return tuple((str(file), file.stat().st_mtime_ns) for file in files)


def _read(path: Path, options: Settings) -> Federation:
    return read_federation(path, **asdict(options.roles), leave_out=options.leave_out)


def _divided(rows: Federation, test_path: Path | None, options: Settings) -> tuple[Federation, Federation | None]:
    if test_path is not None:
        test = _typed(read_agent(test_path, rows.names[0], options), options.task)
        if set(test.columns) != set(rows.columns):
            odd = sorted(set(test.columns) ^ set(rows.columns))
            raise InputError(f"{test_path} and the training data of agent {rows.names[0]} differ in column {odd[0]!r}")
        return rows, test
    if options.test_size == 0:
        return rows, None
    return rows.split(options.test_size, options.seed)


def _typed(rows: Federation, task: str) -> Federation:
    """The target as the task says: a site that by chance holds whole numbers only has numbers all the same."""
    agent = rows[0]
    return replace(rows, agents=(replace(agent, y=outcome_as(agent.y, task, agent.name)),))


def _task(agent: Agent, options: Settings) -> Task:
    if agent.y is None:
        return "unsupervised"
    if options.task == "regression" or (options.task == "auto" and agent.y.dtype.kind == "f"):
        return "regression"
    return "classification"


def _alone(federation: Federation, k: int, name: str = "") -> Federation:
    agent = federation[k]
    return replace(federation, agents=(replace(agent, name=name or agent.name),), groups=None)


def _text(config: Mapping[str, Any], key: str) -> str:
    # A name such as 007 or 12 is read as a number by Flower unless it is quoted.
    return str(config.get(key, ""))
