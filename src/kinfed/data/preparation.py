"""From raw tables to numbers: rules fitted on training data, from per-column aggregates alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from kinfed.cells import quoted
from kinfed.data.column_encoders import (
    MOST_CATEGORIES,
    SUSPECT,
    CategoryRule,
    NumericRule,
    TableSummary,
    explained_share,
    fit_rule,
    summarise,
)
from kinfed.data.column_types import (
    BOOLEAN,
    DATE,
    NUMBER,
    ColumnReading,
    column_of,
    readings_of,
    table_counts,
)
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.parallel import map_on_cores
from kinfed.tabular import whose
from kinfed.validation import Array, positive_integer, unknown

FAR = 10.0
"""Standard deviations from the training mean beyond which a number is unlike anything a model has learned from."""


class NoColumnLeftError(InputError):
    """There is nothing in the columns to learn from."""


@dataclass(frozen=True)
class Preparation:
    """Rules that turn raw federations into numeric ones.

    What a column is, is decided first (`kinfed.data.column_types`). Columns of numbers, of yes and no (1 and 0) and of
    dates (years) have missing values replaced by the mean; columns of categories become a column of zeros and ones per
    category, missing ones counting as the most frequent; columns that are constant, identify rows, name the agent or give
    the outcome away are left out; then every column is standardised. All of it is fitted on training data, and only counts,
    means, sums of squares and errors leave an agent for it.

    Attributes
    ----------
    source : tuple of str
        The columns it expects.
    rules : tuple of NumericRule or CategoryRule
        One per column that is kept, in the order of `source`.
    left_out : dict from str to str
        The columns that are not kept, and why.
    columns : tuple of str
        The columns it makes.
    mean, scale : tuple of float
        What standardisation takes off and divides by; 0 and 1 without it.
    standardise : bool
    readings : tuple of ColumnReading
        What each column of `source` is, and why.

    Examples
    --------
    >>> import pandas as pd
    >>> from kinfed.data import Preparation
    >>> from kinfed.federation import Federation
    >>> table = pd.DataFrame({"site": list("aabb"), "age": [50, None, 60, 70], "sex": list("fmff"), "unit": 1})
    >>> train = Federation.from_table(table, agent="site")
    >>> preparation = Preparation.fit(train, standardise=False)
    >>> preparation.describe()[:2]
    ['column age: 1 missing value replaced by the mean 60', 'column sex: one-hot encoded as f, m']
    >>> preparation.transform(train)["a"].X
    array([[50.,  1.,  0.],
           [60.,  0.,  1.]])
    """

    source: tuple[str, ...]
    rules: tuple[NumericRule | CategoryRule, ...]
    left_out: dict[str, str]
    columns: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    standardise: bool
    readings: tuple[ColumnReading, ...]

    @classmethod
    def fit(
        cls,
        train: Federation,
        standardise: bool = True,
        *,
        most_categories: int = MOST_CATEGORIES,
        chosen: Mapping[str, str] | None = None,
        labels: bool | None = None,
    ) -> Preparation:
        """Fit the rules on a training federation.

        Parameters
        ----------
        train : Federation
            Raw or numeric.
        standardise : bool
            Give every column mean 0 and variance 1 over the training values of all agents that are not missing.
        most_categories : int
            A column of text with more different values than this is left out.
        chosen : mapping from column to str, optional
            What columns are, by hand: "number", "category", "date", "boolean" or "ignore".
        labels : bool, optional
            Whether the outcome are classes. Columns that give it away are looked for only in tables, and if this is given.
        """
        counts = map_on_cores(lambda agent: table_counts(agent, train.columns, train.is_table), train)
        told = dict(zip(train.names, counts, strict=True))
        readings = readings_of(train.columns, told, train.sizes.tolist(), chosen or {})
        judged = labels if train.is_table else None
        # Nothing leaves this place, so all values may be counted.
        answers = map_on_cores(lambda agent: summarise(agent, readings, judged, most_categories=None), train)
        return cls.from_summaries(
            readings,
            dict(zip(train.names, answers, strict=True)),
            standardise,
            most_categories=most_categories,
            labels=judged,
        )

    @classmethod
    def from_summaries(
        cls,
        readings: Sequence[ColumnReading],
        answers: Mapping[str, TableSummary],
        standardise: bool = True,
        *,
        most_categories: int = MOST_CATEGORIES,
        labels: bool | None = None,
    ) -> Preparation:
        """Fit the rules from the agents' answers alone (`kinfed.data.summarise`), given by agent name.

        Agents must not have been held to fewer categories than `most_categories`.
        """
        most = positive_integer(most_categories, "most_categories")
        total = sum(answers.values())
        if not isinstance(total, TableSummary):
            raise InputError("there are no agents to prepare by; give the answer of at least one")
        fitted = {one.column: fit_rule(j, one, total, answers, most, labels) for j, one in enumerate(readings)}
        rules = tuple(rule for rule in fitted.values() if not isinstance(rule, str))
        left_out = {column: reason for column, reason in fitted.items() if isinstance(reason, str)}
        if not rules:
            reasons = ", ".join(f"{column} ({reason})" for column, reason in left_out.items())
            raise NoColumnLeftError(
                f"no column is left to learn from: {reasons}; give columns that vary in the training data, or say what "
                "they are, as columns={'name': 'number'}"
            )
        made = _distinct(name for rule in rules for name in rule.outputs)
        mean = tuple(value for rule in rules for value in rule.means) if standardise else (0.0,) * len(made)
        scale = tuple(value for rule in rules for value in rule.scales) if standardise else (1.0,) * len(made)
        known = tuple(
            _suspected(one, explained_share(j, one, total, labels), labels) if one.column not in left_out else one
            for j, one in enumerate(readings)
        )
        source = tuple(one.column for one in readings)
        return cls(source, rules, left_out, made, mean, scale, bool(standardise), known)

    def transform(self, federation: Federation) -> Federation:
        """The federation with the rules applied: float64 arrays without missing values; y and groups stay.

        Columns are found by their names. Those that training left out, or never saw, are not looked at.
        """
        position = {column: j for j, column in enumerate(federation.columns)}
        readings = self._reading
        # Where an agent was trained for without the column, rows without it are rows with gaps.
        absent = [rule.column for rule in self.rules if not (rule.column in position or readings[rule.column].absent)]
        if absent:
            more = f" (and {len(absent) - 1} more: {', '.join(absent[1:6])})" if len(absent) > 1 else ""
            raise InputError(f"{unknown('column', absent[0], federation.columns)}{more}; the model was trained on it")
        encoded = map_on_cores(lambda agent: self._encode(agent, position), federation)
        agents = tuple(replace(agent, X=X) for agent, X in zip(federation, encoded, strict=True))
        return replace(federation, agents=agents, columns=self.columns)

    def rows(self, name: str, X: ArrayLike, y: ArrayLike | None = None) -> Agent:
        """Raw rows of one agent as an agent ready for a model.

        A table has its columns found by name, in any order; an array must hold all columns of the training data, in their
        order there (`source`), since nothing in it tells them apart.
        """
        return self.transform(self.alone(name, X, y))[0]

    def unusual(self, name: str, X: ArrayLike) -> list[str]:
        """What in raw rows is unlike anything in training, counted by column, in sentences.

        Categories never seen count as none of those known, and numbers more than `FAR` standard deviations from the
        training mean lie where no model has learned anything.
        """
        federation = self.alone(name, X, None)
        rows, position = federation[0], {column: j for j, column in enumerate(federation.columns)}
        found = []
        for rule in self.rules:
            if rule.column not in position:
                continue
            values, reading = column_of(rows.X, position[rule.column]), self._reading[rule.column]
            if unread := reading.unread(values):
                found.append(f"column {rule.column}: {quoted(unread)}, which is no {reading.kind}, counts as missing")
            if isinstance(rule, CategoryRule):
                new = rule.unseen(values)
                if new:
                    shown = ", ".join(map(repr, list(new)[:3]))
                    found.append(f"column {rule.column}: categories never seen in {sum(new.values())} rows ({shown})")
                continue
            far = int((np.abs(reading.numbers(values) - rule.mean) > FAR * rule.scale).sum())
            if far:
                told = f"more than {FAR:g} standard deviations from the training mean {rule.mean:.4g} in {far} rows"
                found.append(f"column {rule.column}: {told}")
        return found

    def alone(self, name: str, X: ArrayLike, y: ArrayLike | None) -> Federation:
        """Raw rows as the federation of one agent."""
        if hasattr(X, "columns"):
            return Federation.from_arrays(X, y, [name] * len(X))  # type: ignore[arg-type]
        array = np.asarray(X)
        if array.ndim != 2 or array.shape[1] != len(self.source):
            raise InputError(
                f"agent {name}: rows of the {len(self.source)} columns {', '.join(self.source[:5])}"
                f"{', ...' if len(self.source) > 5 else ''} are expected in this order, got shape {array.shape}"
            )
        return Federation.from_arrays(array, y, [name] * len(array), columns=self.source)

    def notes(self, federation: Federation) -> tuple[str, ...]:
        """What was done when raw rows were read, quoting the cells that mean nothing; for those who hold the rows."""
        told = list(federation.notes)
        for j, column in enumerate(federation.columns):
            reading = self._reading.get(column)
            if reading is None or not reading.is_numeric or not reading.unreadable:
                continue
            cells: Counter[str] = Counter()
            owners: list[str] = []
            for agent in federation:
                unread = reading.unread(column_of(agent.X, j))
                cells.update(unread)
                owners += [agent.name] * sum(unread.values())
            if cells:
                named = whose(np.array(owners, dtype=object)) if len(federation) > 1 else ""
                told.append(f"column {column}: {quoted(cells)} cannot be read as {reading.kind}{named}")
        return tuple(told)

    def describe(self) -> list[str]:
        """One sentence for each thing done, in the order of the columns."""
        by_column = {rule.column: "; ".join(self._done(rule)) or None for rule in self.rules}
        by_reason: dict[str, list[str]] = {}
        for column, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(column)
        for reason, columns in by_reason.items():
            if len(columns) <= 5:
                by_column |= {column: f"column {column}: {reason}, left out" for column in columns}
            else:  # an image has hundreds of constant pixels
                by_column[columns[0]] = f"{len(columns)} columns ({', '.join(columns[:3])}, ...): {reason}, left out"
        sentences = [sentence for column in self.source if (sentence := by_column.get(column)) is not None]
        if self.standardise:
            sentences.append("all columns standardised to mean 0 and variance 1 over the training values of all agents")
        return sentences

    def _done(self, rule: NumericRule | CategoryRule) -> Iterable[str]:
        """What was read in a column that is kept, and what is done to it."""
        reading = self._reading[rule.column]
        told, done = [], rule.describe()
        if reading.kind == BOOLEAN:
            told.append("yes and no read as 1 and 0")
        if reading.kind == DATE:
            told.append(f"{reading.why}, read as years")
        if reading.unreadable and reading.is_numeric:
            cells = "1 cell" if reading.unreadable == 1 else f"{reading.unreadable} cells"
            told.append(f"{cells} that cannot be read as {reading.kind} count as missing")
        if done is not None:
            told.append(done.removeprefix(f"column {rule.column}: "))
        if "make sure" in reading.why:
            told.append(reading.why.partition("; ")[2])
        return [f"column {rule.column}: {told[0]}", *told[1:]] if told else []

    @cached_property
    def _reading(self) -> dict[str, ColumnReading]:
        return {one.column: one for one in self.readings}

    def _encode(self, agent: Agent, position: Mapping[str, int]) -> Array:
        encoded = np.empty((len(agent), len(self.columns)))
        starts = np.cumsum([0, *(len(rule.outputs) for rule in self.rules)]).tolist()
        nothing, readings = pd.Series(np.full(len(agent), np.nan)), self._reading

        def column(rule: NumericRule | CategoryRule) -> pd.Series[Any]:
            return column_of(agent.X, position[rule.column]) if rule.column in position else nothing

        for start, rule in zip(starts, self.rules, strict=False):
            if isinstance(rule, CategoryRule):
                encoded[:, start : start + len(rule.counts)] = rule.encode(column(rule))
        numeric = {start: rule for start, rule in zip(starts, self.rules, strict=False) if isinstance(rule, NumericRule)}
        plain = all(readings[rule.column].kind == NUMBER and rule.column in position for rule in numeric.values())
        if isinstance(agent.X, np.ndarray) and plain:
            values = agent.X[:, [position[rule.column] for rule in numeric.values()]].astype(np.float64)
        else:
            values = np.empty((len(agent), len(numeric)))
            for place, rule in enumerate(numeric.values()):
                values[:, place] = readings[rule.column].numbers(column(rule))
        encoded[:, list(numeric)] = np.where(np.isnan(values), [rule.mean for rule in numeric.values()], values)
        encoded -= self.mean
        encoded /= self.scale
        return encoded


def _suspected(reading: ColumnReading, share: float, labels: bool | None) -> ColumnReading:
    """The reading, with a warning if the column alone saves suspiciously many errors."""
    if labels is None or share < SUSPECT[labels]:
        return reading
    warning = f"it saves {share:.0%} of the errors by itself: make sure that it is known before the outcome is"
    return replace(reading, why=f"{reading.why}; {warning}")


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names, with (2), (3) ... after those taken already: column "a=b" beside category b of column a."""
    taken: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name} ({number})"
        taken[candidate] = None
    return tuple(taken)
