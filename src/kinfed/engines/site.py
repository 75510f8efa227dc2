"""A site: one agent's data, and its desk under an agreement, where raw rows have become points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.agreement import Agreement, learner_text
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners import Learner
from kinfed.learners.remote import RemoteLearner, Terms, remote_learner
from kinfed.weights.calibration.folds import deal_agent, fold_counts
from kinfed.weights.calibration.trials import Split

MOST_SPLITS = 10
"""Splits a desk keeps at hand; a few of them are worked on side by side."""


@dataclass(frozen=True, eq=False)
class Site:
    """All an agent works with; nothing of it leaves but by an answer in `kinfed.engines.tasks`.

    Attributes
    ----------
    train : Federation
        Of this one agent; raw tables are welcome.
    test : Federation, or None
        Rows of the same agent, set aside to test models on.
    place : int
        Where it stands among the agents; sites of equal places are ordered by name.
    learner : Learner
        What will be trained; the same at every site.
    out : path, optional
        Folder its own model is written to.
    least_rows : int
        With fewer rows to train on it answers nothing: few rows can be computed from aggregates of them.
    """

    train: Federation
    test: Federation | None
    place: int
    learner: Learner
    out: Path | None = None
    least_rows: int = 2
    _desks: dict[str, Desk] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.train) != 1 or (self.test is not None and self.test.names != self.train.names):
            raise InputError("a site holds the data of one agent, for training and for testing")

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.train.names[0]

    def desk(self, text: str) -> Desk:
        """The desk under an agreement; it is set up once for each."""
        if text not in self._desks:
            self._desks.clear()  # one agreement at a time
            self._desks[text] = Desk(self, _agreement(text))
        return self._desks[text]


class Desk:
    """One agent's prepared data under an agreement."""

    def __init__(self, site: Site, agreement: Agreement) -> None:
        if site.name not in agreement.names:
            raise InputError(f"agent {site.name} is not part of this agreement; it joins as a newcomer")
        if learner_text(site.learner) != agreement.learner:
            raise InputError(
                f"agent {site.name} would train {learner_text(site.learner)}, but the federation trains "
                f"{agreement.learner}; use the same learner at every site"
            )
        self.site, self.agreement = site, agreement
        self.place = agreement.names.index(site.name)
        if len(site.train[0]) != agreement.sizes[self.place]:
            raise InputError(
                f"agent {site.name} has {len(site.train[0])} rows, but had {agreement.sizes[self.place]} when it was first "
                "asked; start the run again after data have changed"
            )
        self._parts: dict[Split | None, tuple[Agent, Agent]] = {}
        self._terms: dict[tuple[Split | None, tuple[int, ...] | None], Terms] = {}

    @cached_property
    def agent(self) -> Agent:
        """The training data as numbers."""
        return self._prepared(self.site.train)

    @cached_property
    def test(self) -> Federation | None:
        """The test data as numbers."""
        return None if self.site.test is None else self.agreement.preparation.transform(self.site.test)

    @cached_property
    def remote(self) -> RemoteLearner:
        """The learner in its remote form."""
        return remote_learner(self.site.learner)

    def terms(self, split: Split | None, classes: Sequence[int] | None = None) -> Terms:
        """What training in a split has to know; `classes` are the places of those that are left in it."""
        key = split, None if classes is None else tuple(classes)
        if key not in self._terms:
            if len(self._terms) > MOST_SPLITS:
                self._terms.clear()
            self._terms[key] = split_terms(self.agreement.terms, split, classes)
        return self._terms[key]

    def parts(self, split: Split | None) -> tuple[Agent, Agent]:
        """The points to train on, and those set aside, in a split; all and none without one."""
        if split not in self._parts:
            X, y = self.agent.X, self.agent.y
            aside = np.zeros(len(X), dtype=bool) if split is None else self.aside(split)
            train, held = (Agent(self.agent.name, X[rows], None if y is None else y[rows]) for rows in (~aside, aside))
            if len(self._parts) > MOST_SPLITS:
                self._parts.clear()
            self._parts[split] = train, held
        return self._parts[split]

    def aside(self, split: Split) -> NDArray[np.bool_]:
        """Which of its points a split sets aside."""
        return deal_agent(self.agent, split.folds, self.agreement.seed, split.repeat) == split.fold

    def _prepared(self, rows: Federation) -> Agent:
        return self.agreement.preparation.transform(rows)[0]


@lru_cache(maxsize=2)
def _agreement(text: str) -> Agreement:
    """The agreement, read once by all sites of a process: it holds the features, and the names of everybody."""
    return Agreement.from_text(text)


@lru_cache(maxsize=64)
def _counts_aside(names: tuple[str, ...], sizes: tuple[int, ...], seed: int, split: Split) -> NDArray[np.int64]:
    """How many points everybody sets aside in a split: worked out once by all sites of a process."""
    counts = [
        fold_counts(name, n, split.folds, seed, split.repeat)[split.fold] for name, n in zip(names, sizes, strict=True)
    ]
    return np.array(counts, dtype=np.int64)


def split_terms(whole: Terms, split: Split | None, classes: Sequence[int] | None = None) -> Terms:
    """What training in a split has to know: everybody sets aside as many points as its name and size tell."""
    sizes = whole.sizes
    if split is not None:
        sizes = sizes - _counts_aside(whole.names, tuple(sizes.tolist()), whole.seed, split)
    left = whole.classes if whole.classes is None or classes is None else whole.classes[list(classes)]
    return replace(whole, sizes=sizes, classes=left)


def ordered(rows: Federation, columns: tuple[str, ...]) -> Any:
    """The rows with their columns in the agreed order; a column that is missing is named."""
    for column in columns:
        if column not in rows.columns:
            raise InputError(f"agent {rows.names[0]} has no column {column!r}; all sites need the same columns")
    extra = [column for column in rows.columns if column not in columns]
    if extra:
        raise InputError(f"agent {rows.names[0]} has a column {extra[0]!r} that others lack; leave it out at every site")
    position = [rows.columns.index(column) for column in columns]
    agent = rows[0]
    X = agent.X.iloc[:, position] if hasattr(agent.X, "iloc") else agent.X[:, position]
    return replace(agent, X=X)
