"""From raw tables to numbers: rules fitted on training data, from per-column aggregates alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from kinfed.data.plausibility import implausible
from kinfed.data.scales import HOPELESS, AgentScales, CommonScales, Yardstick, far_counts
from kinfed.data.screening import Screening, screened
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.parallel import map_on_cores
from kinfed.tabular import whose
from kinfed.validation import Array, Integers, positive_integer, unknown

OUTCOME = "the outcome"
"""What the outcome is called among columns."""

LARGEST = 1e100
"""Scales from the mean beyond which squares cannot be summed."""

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
    outcome : NumericRule, optional
        The scale of an outcome that is a number; what is predicted is never changed.
    robust : bool
        Whether scales are those that one agent cannot move (`kinfed.data.scales`), and far cells are held for others.

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
    outcome: NumericRule | None = None
    robust: bool = True

    @classmethod
    def fit(cls, train: Federation, standardise: bool = True, **how: Any) -> Preparation:
        """Fit the rules on a training federation; see `fit_screened`."""
        return cls.fit_screened(train, standardise, **how)[0]

    @classmethod
    def fit_screened(
        cls,
        train: Federation,
        standardise: bool = True,
        *,
        most_categories: int = MOST_CATEGORIES,
        chosen: Mapping[str, str] | None = None,
        labels: bool | None = None,
        robust: bool = True,
        trusted: Collection[str] = (),
    ) -> tuple[Preparation, Screening]:
        """Fit the rules on a training federation, and look at its agents beside each other.

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
        robust : bool
            Use scales that one agent cannot move, and hold cells that are too far from everybody's for others.
        trusted : collection of str
            Agents that are taken in as they are, whatever is found.
        """
        counts = map_on_cores(lambda agent: table_counts(agent, train.columns, train.is_table), train)
        told = dict(zip(train.names, counts, strict=True))
        readings = readings_of(train.columns, told, train.sizes.tolist(), chosen or {})
        judged = labels if train.is_table else None
        numbers = labels is False and all(agent.y is not None and agent.y.ndim == 1 for agent in train)
        # Nothing leaves this place, so all values may be counted.
        summaries = map_on_cores(lambda agent: summarise(agent, readings, judged, None, numbers), train)
        answers = dict(zip(train.names, summaries, strict=True))
        found = cls.from_summaries(
            readings,
            answers,
            standardise,
            most_categories=most_categories,
            labels=judged,
            robust=robust,
        )
        far = {}
        if robust:
            far = dict(zip(train.names, map_on_cores(lambda agent: found.far(agent, train.columns), train), strict=True))
        return screened(found, answers, far, trusted)

    @classmethod
    def from_summaries(
        cls,
        readings: Sequence[ColumnReading],
        answers: Mapping[str, TableSummary],
        standardise: bool = True,
        *,
        most_categories: int = MOST_CATEGORIES,
        labels: bool | None = None,
        robust: bool = True,
    ) -> Preparation:
        """Fit the rules from the agents' answers alone (`kinfed.data.summarise`), given by agent name.

        Agents must not have been held to fewer categories than `most_categories`.
        """
        most = positive_integer(most_categories, "most_categories")
        total = sum(answers.values())
        if not isinstance(total, TableSummary):
            raise InputError("there are no agents to prepare by; give the answer of at least one")
        scales = _scales(list(answers.items()), readings, total, robust)
        fitted = {one.column: fit_rule(j, one, total, answers, most, labels, scales) for j, one in enumerate(readings)}
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
        outcome = None
        if len(scales.mean) > len(readings):
            outcome = NumericRule(OUTCOME, missing=0, **scales.of_column(-1))
        return cls(source, rules, left_out, made, mean, scale, bool(standardise), known, outcome, robust)

    @property
    def measured(self) -> tuple[NumericRule, ...]:
        """The rules of numeric columns, and of the outcome if it is a number: those that have a limit."""
        numeric = tuple(rule for rule in self.rules if isinstance(rule, NumericRule))
        return numeric if self.outcome is None else (*numeric, self.outcome)

    def with_limits(self, measured: Sequence[NumericRule]) -> Preparation:
        """The same with other rules for what is `measured`."""
        fresh = iter(measured)
        rules = tuple(next(fresh) if isinstance(rule, NumericRule) else rule for rule in self.rules)
        return replace(self, rules=rules, outcome=next(fresh, None))

    def far(self, agent: Agent, columns: Sequence[str]) -> Integers:
        """How many cells of raw rows are beyond each edge of the grid, for every rule that is `measured`."""
        return far_counts(self._yardstick.distances(self._raw(agent, {name: j for j, name in enumerate(columns)})))

    def held(self, raw: Federation, prepared: Federation, screening: Screening, least: int) -> Federation:
        """Prepared rows as others may learn from them: cells that are too far from everybody's are held at the limit.

        Parameters
        ----------
        raw : Federation
        prepared : Federation
            What `transform` made of it; agents without such cells are returned as they are.
        screening : Screening
            Those it trusts are, too.
        least : int
            Rows that differ at least, where any do.
        """
        position = {column: j for j, column in enumerate(raw.columns)}
        numeric = self._places(NumericRule)
        agents = []
        for rows, own in zip(raw, prepared, strict=True):
            if own.name in screening.trusted or not screening.held.get(own.name):
                agents.append(own)
                continue
            values = self._raw(rows, position)
            near = self._yardstick.held(values, least)
            filled = np.where(np.isnan(near), [rule.mean for rule in self.measured], near)
            X = np.array(own.X, dtype=np.float64)
            moved = near != values  # missing cells differ from themselves, and are filled as ever
            changed = (filled[:, : len(numeric)] - np.array(self.mean)[numeric]) / np.array(self.scale)[numeric]
            X[:, numeric] = np.where(moved[:, : len(numeric)], changed, X[:, numeric])
            y = own.y if self.outcome is None else near[:, -1]
            agents.append(replace(own, X=X, y=y))
        return replace(prepared, agents=tuple(agents))

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

    def _places(self, kind: type[NumericRule] | type[CategoryRule]) -> list[int]:
        """Where the columns begin that rules of a kind make."""
        starts = np.cumsum([0, *(len(rule.outputs) for rule in self.rules)]).tolist()
        return [start for start, rule in zip(starts, self.rules, strict=False) if isinstance(rule, kind)]

    def _encode(self, agent: Agent, position: Mapping[str, int]) -> Array:
        encoded = np.empty((len(agent), len(self.columns)))
        categories = [rule for rule in self.rules if isinstance(rule, CategoryRule)]
        for start, rule in zip(self._places(CategoryRule), categories, strict=True):
            encoded[:, start : start + len(rule.counts)] = rule.encode(self._cells(agent, rule.column, position))
        numeric = [rule for rule in self.rules if isinstance(rule, NumericRule)]
        values = self._numbers(agent, numeric, position)
        encoded[:, self._places(NumericRule)] = np.where(np.isnan(values), [rule.mean for rule in numeric], values)
        encoded -= self.mean
        encoded /= self.scale
        if (large := (np.abs(encoded) > LARGEST).any(axis=0)).any():
            column = self.columns[int(large.argmax())]
            raise InputError(
                f"column {column} holds values too large to standardise at agent {agent.name}; mend them, or leave it out"
            )
        return encoded

    def _raw(self, agent: Agent, position: Mapping[str, int]) -> Array:
        """The numbers that are `measured`, as they are, one column each; NaN where a cell is missing."""
        numeric = [rule for rule in self.rules if isinstance(rule, NumericRule)]
        values = self._numbers(agent, numeric, position)
        return values if self.outcome is None else np.column_stack([values, np.asarray(agent.y, dtype=np.float64)])

    def _numbers(self, agent: Agent, rules: Sequence[NumericRule], position: Mapping[str, int]) -> Array:
        readings = self._reading
        plain = all(readings[rule.column].kind == NUMBER and rule.column in position for rule in rules)
        if isinstance(agent.X, np.ndarray) and plain:
            return np.asarray(agent.X[:, [position[rule.column] for rule in rules]], dtype=np.float64)
        values = np.empty((len(agent), len(rules)))
        for place, rule in enumerate(rules):
            values[:, place] = readings[rule.column].numbers(self._cells(agent, rule.column, position))
        return values

    def _cells(self, agent: Agent, column: str, position: Mapping[str, int]) -> pd.Series[Any]:
        """The cells of a column; nothing where an agent does not have it."""
        return column_of(agent.X, position[column]) if column in position else pd.Series(np.full(len(agent), np.nan))

    @cached_property
    def _yardstick(self) -> Yardstick:
        """What is far, in the columns that are `measured`; an outcome is held, however far it is."""
        rules = self.measured
        limit = np.array([np.inf if rule.limit is None else rule.limit for rule in rules])
        hopeless = np.where([rule is self.outcome for rule in rules], np.inf, HOPELESS * limit)
        base, centre, unit = (np.array([getattr(rule, what) for rule in rules]) for what in ("base", "centre", "unit"))
        return Yardstick(base, centre, unit, limit, hopeless)


def _scales(
    answers: Sequence[tuple[str, TableSummary]], readings: Sequence[ColumnReading], total: TableSummary, robust: bool
) -> CommonScales:
    """The scales of all columns and then of the outcome, if agents told of it."""
    shapes = [one.shapes for _, one in answers if one.shapes is not None]
    if not robust:
        return CommonScales.plain(sum(one.sums for one in shapes))  # type: ignore[arg-type]
    columns = [one.column for one in readings]
    columns += [OUTCOME] * (len(shapes[0].base) - len(columns))
    _, odd = implausible(shapes, [name for name, _ in answers], columns)
    return AgentScales.of(shapes).without(odd).common()


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
