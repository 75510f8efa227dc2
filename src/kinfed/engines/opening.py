"""What an agent answers before there is an agreement: who it is, its columns, its scale.

The agent itself decides what it tells of its columns, whatever it is asked: of text no more than the counts of a few
categories, and numbers are never counted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import numpy as np

from kinfed.columns import column_kind
from kinfed.data.rules import column_of, refuse_numbers_as_categories, summarise
from kinfed.embedding import own_scale
from kinfed.engines.agreement import PROTOCOL, label_settings, learner_text, read_preparation
from kinfed.engines.messages import Reply, Request
from kinfed.engines.site import Site, ordered


def describe(site: Site, request: Request) -> Reply:
    """Who is there: name, place, number of rows, columns and what kinds they are."""
    agent = site.train[0]
    text = [
        column
        for j, column in enumerate(site.train.columns)
        if not isinstance(agent.X, np.ndarray) and column_kind(column_of(agent.X, j)) != "numeric"
    ]
    # At once: a mistyped number would make every agent count the column, value by value.
    refuse_numbers_as_categories(agent, site.train.columns, frozenset(text))
    return Reply(
        {
            "protocol": PROTOCOL,
            "kinfed": version("kinfed"),
            "name": site.name,
            "place": site.place,
            "rows": len(agent),
            "test rows": 0 if site.test is None else len(site.test[0]),
            "columns": list(site.train.columns),
            "text columns": text,
            "target": "none" if agent.y is None else agent.y.dtype.kind,
            "learner": learner_text(site.learner),
            "task": site.learner.task,
        }
    )


def columns(site: Site, request: Request) -> Reply:
    """Counts, means and sums of squares of numeric columns, counts of categories: `kinfed.data.TableSummary`."""
    names, categorical = tuple(request.settings["columns"]), frozenset(request.settings["categorical"])
    agent = ordered(site.train, names)
    refuse_numbers_as_categories(agent, names, categorical)
    summary = summarise(agent, names, categorical)
    return Reply(
        {
            "counts": {column: dict(counts) for column, counts in summary.counts.items()},
            "crowded": sorted(summary.crowded),
        },
        {
            "missing": summary.missing,
            "count": summary.sums.count,
            "mean": summary.sums.mean,
            "squares": summary.sums.squares,
        },
    )


def scale(site: Site, request: Request) -> Reply:
    """The median distance between own points, and sums of the target or its classes."""
    preparation = read_preparation(request.settings["preparation"])
    labels = site.learner.task == "classification"
    found = own_scale(preparation.transform(site.train)[0], labels)
    settings: dict[str, Any] = {"median": None if np.isnan(found.median) else found.median}
    if isinstance(found.target, np.ndarray):
        return Reply({**settings, "classes": label_settings(found.target)})
    if found.target is None:
        return Reply(settings)
    sums = found.target
    return Reply(settings, {"count": sums.count, "mean": sums.mean, "squares": sums.squares})


BEFORE_AGREEMENT: Mapping[str, Callable[[Site, Request], Reply]] = MappingProxyType(
    {"describe": describe, "columns": columns, "scale": scale}
)
"""Tasks that lead to an agreement."""
