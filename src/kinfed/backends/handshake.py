"""What a site answers before there is a spec: who it is, what is in its columns, and their scale.

It decides itself what it tells, whatever it is asked: how many cells are numbers, dates and the like, of text no more than
the counts of a few categories, and numbers are never counted one by one. What the server makes of it is in `agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas

from kinfed.backends.agents import UndecidedLearner, learner_for_task
from kinfed.backends.spec import (
    PROTOCOL,
    label_settings,
    learner_text,
    read_preparation,
)
from kinfed.backends.wire import Message, Request
from kinfed.data import summarise
from kinfed.data.column_types import ColumnReading, column_of, table_counts
from kinfed.embedding import own_scale
from kinfed.federation import Agent, Federation
from kinfed.outcomes import outcome_as, outcome_kind
from kinfed.splitting import FOLDS, deal_rows


@dataclass(frozen=True, eq=False)
class OwnTable:
    """What a site brings to the handshake: its raw rows, what it would train, and where it stands among all."""

    train: Federation
    test_rows: int
    place: int
    learner: Any
    least_rows: int


def describe(own: OwnTable, request: Request) -> Message:
    """Who is there: name, place, number of rows, columns, and counts of what is in them (`kinfed.data.column_types`)."""
    agent = own.train[0]
    undecided = isinstance(own.learner, UndecidedLearner)
    return Message(
        {
            "protocol": PROTOCOL,
            "kinfed": version("kinfed"),
            "name": agent.name,
            "place": own.place,
            "rows": len(agent),
            "test rows": own.test_rows,
            "least rows": own.least_rows,
            "columns": list(own.train.columns),
            "target": "none" if agent.y is None else agent.y.dtype.kind,
            "learner": learner_text(own.learner),
            **({"outcome": outcome_kind(agent.y)} if undecided else {"task": own.learner.task}),
        },
        {"counts": table_counts(agent, own.train.columns, own.train.is_table)},
    )


def columns(own: OwnTable, request: Request) -> Message:
    """What a site tells of columns that are known: `kinfed.data.TableSummary`.

    Numbers of gaps, what the scale of numbers follows from, and of an outcome that is a number too
    (`kinfed.data.scales.ColumnShapes`), counts of categories, and how well each predicts the outcome by itself.
    """
    readings = tuple(ColumnReading(**one) for one in request.settings["readings"])
    agent, task = ordered(own.train, tuple(one.column for one in readings)), request.settings["task"]
    labels = None if task == "unsupervised" or not own.train.is_table else task == "classification"
    summary = summarise(agent, readings, labels, outcome=task == "regression")
    if summary.shapes is None:
        raise AssertionError("one agent tells of the shapes of its columns")
    return Message(
        {
            "counts": {column: dict(counts) for column, counts in summary.counts.items()},
            "crowded": sorted(summary.crowded),
        },
        {
            "missing": summary.missing,
            **summary.shapes.arrays,
            "errors": summary.errors,
            "error without": np.array([summary.error_without]),
        },
    )


def scale(own: OwnTable, request: Request) -> Message:
    """The median distance between own points, far cells, classes of the target, and sizes of folds of whole groups."""
    preparation, task = read_preparation(request.settings["preparation"]), request.settings["task"]
    learner, agent = learner_for_task(own.learner, task), own.train[0]
    if learner is not own.learner:
        agent = replace(agent, y=outcome_as(agent.y, task, agent.name))
    found = own_scale(preparation.transform(replace(own.train, agents=(agent,)))[0], learner.task == "classification")
    settings: dict[str, Any] = {"median": None if np.isnan(found.median) else found.median}
    if agent.group is not None:
        how = FOLDS, int(request.settings["seed"]), 0, own.least_rows, agent.group
        dealt = deal_rows(agent.name, len(agent), agent.y, *how)
        settings["aside"] = np.bincount(dealt[dealt >= 0], minlength=FOLDS).tolist()
    if isinstance(found.target, np.ndarray) and getattr(learner, "class_weight", None) == "balanced":
        settings["counts"] = [int((agent.y == label).sum()) for label in found.target]
    if isinstance(found.target, np.ndarray):
        settings["classes"] = label_settings(found.target)
    return Message(settings, {"far": preparation.far(agent, own.train.columns)} if preparation.robust else {})


HANDSHAKE: Mapping[str, Callable[[OwnTable, Request], Message]] = {"describe": describe, "columns": columns, "scale": scale}
"""What a site answers before there is a spec."""


def ordered(rows: Federation, columns: tuple[str, ...]) -> Agent:
    """The rows with the agreed columns in their order; one that this site does not have holds nothing here."""
    agent = rows[0]
    if rows.columns == columns:
        return agent
    position = {column: j for j, column in enumerate(rows.columns)}
    nothing = pandas.Series(np.full(len(agent), np.nan))
    found = {name: column_of(agent.X, position[name]) if name in position else nothing for name in columns}
    return replace(agent, X=pandas.DataFrame(found))
