"""What is made of one column, and the aggregates that decide it.

Each agent answers with a `TableSummary`: how many values each column misses, the sums of its numeric columns
(`kinfed.data.ColumnSums`), the counts of the categories of the others, and how well each predicts the outcome by itself.
Rules follow from the added-up answers. Names, identifiers and free text are no categories: of a column with many different
values an agent says only that it is crowded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from kinfed.columns import categories, column_kind
from kinfed.data.column_types import CATEGORY, LIKE_AN_IDENTIFIER, ColumnReading, column_of
from kinfed.data.leaks import errors_by_category, errors_by_numbers, errors_without
from kinfed.data.scales import ColumnShapes, CommonScales, column_shapes
from kinfed.data.standardisation import ColumnSums
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.validation import Array, FloatArray, Integers

MOST_CATEGORIES = 100
"""Different values a column of categories may have."""

GIVES_AWAY = {False: 0.99, True: 0.98}
"""Share of the errors of predicting a numeric outcome, or classes, that a column alone must save to be left out for it."""

SUSPECT = {False: 0.95, True: 0.9}
"""Share from which people are asked to make sure that the column is known before the outcome is."""

_MOST_NUMERIC_CATEGORIES = 10  # numbers that may be told one by one, as codes of categories
_FEWEST_ROWS, _FEWEST_ERRORS = 30, 10  # cells, and wrong classes without the column, before anything is said of leaks
_EXCLUSIVE, _ROWS_EACH = 0.99, 5  # share of rows whose category is of one agent alone, and rows per category, in names


@dataclass(frozen=True)
class NumericRule:
    """A numeric column: missing values become the mean.

    Attributes
    ----------
    column : str
    mean, scale : float
        Over the training values of all agents that are not missing.
    missing : int
        How many training values are missing.
    base, centre, unit : float
        How far a value is from the others (`kinfed.data.scales`).
    limit : float, optional
        Units from the centre beyond which values are held in what others learn; None where none are.
    """

    column: str
    mean: float
    scale: float
    missing: int
    base: float = 0.0
    centre: float = 0.0
    unit: float = 1.0
    limit: float | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns it makes."""
        return (self.column,)

    @property
    def means(self) -> tuple[float, ...]:
        """Training means of the columns it makes."""
        return (self.mean,)

    @property
    def scales(self) -> tuple[float, ...]:
        """Training standard deviations of the columns it makes."""
        return (self.scale,)

    def describe(self) -> str | None:
        """What is done to the column, unless nothing is."""
        if not self.missing:
            return None
        return f"column {self.column}: {_missing_values(self.missing)} replaced by the mean {self.mean:.4g}"


@dataclass(frozen=True)
class CategoryRule:
    """A column of categories: a column of zeros and ones for each; a category unseen in training is all zeros.

    Attributes
    ----------
    column : str
    counts : dict from str to int
        Training counts of the categories over all agents, in sorted order of the categories. Spellings that differ by case
        or spaces around them are one category, in the most frequent spelling.
    missing : int
        How many training values are missing; they become the most frequent category, the first of equals.
    """

    column: str
    counts: dict[str, int]
    missing: int

    @property
    def most_frequent(self) -> str:
        """The category that stands in for missing values."""
        return max(self.counts, key=lambda category: self.counts[category])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns it makes."""
        return tuple(f"{self.column}={category}" for category in self.counts)

    @property
    def means(self) -> tuple[float, ...]:
        """Shares p of the categories, missing values replaced."""
        n = sum(self.counts.values()) + self.missing
        filled = {**self.counts, self.most_frequent: self.counts[self.most_frequent] + self.missing}
        return tuple(count / n for count in filled.values())

    @property
    def scales(self) -> tuple[float, ...]:
        """Standard deviations sqrt(p (1 - p)) of the columns it makes."""
        return tuple(math.sqrt(share * (1 - share)) for share in self.means)

    def encode(self, values: pd.Series[Any]) -> Array:
        """The column as an (n, number of categories) array of zeros and ones."""
        codes, found = categories(values)
        one_hot = dict(zip(map(_spelling, self.counts), np.eye(len(self.counts)), strict=True))
        unseen = np.zeros(len(self.counts))
        # Missing values have code -1, which picks the last row.
        rows = [*(one_hot.get(_spelling(category), unseen) for category in found), one_hot[_spelling(self.most_frequent)]]
        return np.array(rows)[codes]

    def unseen(self, values: pd.Series[Any]) -> Counter[str]:
        """How often each category occurs that training never saw."""
        known = set(map(_spelling, self.counts))
        return Counter({one: count for one, count in _counted(values).items() if _spelling(one) not in known})

    def describe(self) -> str:
        """What is done to the column."""
        sentence = f"column {self.column}: one-hot encoded as {', '.join(self.counts)}"
        if self.missing:
            sentence += f"; {_missing_values(self.missing)} replaced by the most frequent, {self.most_frequent}"
        return sentence


@dataclass(frozen=True, eq=False)
class TableSummary:
    """All that leaves an agent about its columns; answers of several agents add up with ``+`` and `sum`.

    Attributes
    ----------
    missing : array of shape (d,)
        Numbers of missing values, and of those that cannot be read.
    sums : ColumnSums
        Of the d columns; a column of categories counts no values there.
    shapes : ColumnShapes, or None for several agents together
        What the sums are made of, and after the d columns the outcome, if it is a number.
    counts : dict from str to Counter
        How often each category occurs, for every column of categories; nothing for a crowded one.
    crowded : frozenset of str
        Columns of categories with too many different values to name.
    errors : array of shape (d,)
        Of predicting the outcome by that column alone (`kinfed.data.leaks`); zero where nobody looked.
    error_without : float
        Of predicting it without any.
    """

    missing: Integers
    sums: ColumnSums
    shapes: ColumnShapes | None
    counts: dict[str, Counter[str]]
    crowded: frozenset[str] = frozenset()
    errors: Array = field(default_factory=lambda: np.zeros(0))
    error_without: float = 0.0

    def __add__(self, other: TableSummary) -> TableSummary:
        if not isinstance(other, TableSummary):
            return NotImplemented
        counts = {column: self.counts[column] + other.counts[column] for column in self.counts}
        return TableSummary(
            self.missing + other.missing,
            self.sums + other.sums,
            None,
            counts,
            self.crowded | other.crowded,
            self.errors + other.errors,
            self.error_without + other.error_without,
        )

    def __radd__(self, other: int) -> TableSummary:
        return self if other == 0 else NotImplemented  # sum() starts from 0


def summarise(
    agent: Agent,
    readings: Sequence[ColumnReading],
    labels: bool | None = None,
    most_categories: int | None = MOST_CATEGORIES,
    outcome: bool = False,
) -> TableSummary:
    """One agent's answer.

    Parameters
    ----------
    agent : Agent
    readings : sequence of ColumnReading
        What its columns are.
    labels : bool, optional
        Whether the outcome are classes; without it, or without an outcome, nobody looks for columns that give it away.
    most_categories : int or None
        A column with more different values is only said to be crowded. None counts all of them, which is for data that
        stay in one place.
    outcome : bool
        Whether the outcome is a number, whose scale is to be told too.
    """
    d = len(readings)
    if isinstance(agent.X, np.ndarray) and labels is None and all(one.is_numeric for one in readings):
        shapes = _shapes(agent.X, agent if outcome else None)
        return TableSummary(
            np.isnan(agent.X).sum(axis=0, dtype=np.int64), shapes.select(slice(d)).sums, shapes, {}, errors=np.zeros(d)
        )
    numbers, errors = np.full((len(agent), d), np.nan), np.zeros(d)
    missing = np.zeros(d, dtype=np.int64)
    counts: dict[str, Counter[str]] = {}
    crowded: set[str] = set()
    y = None if labels is None else agent.y
    for j, reading in enumerate(readings):
        values = column_of(agent.X, j)
        missing[j] = values.isna().sum()
        if reading.is_numeric:
            numbers[:, j] = reading.numbers(values)
            missing[j] = np.isnan(numbers[:, j]).sum()
        elif reading.kind == CATEGORY:
            counts[reading.column] = _counted(values)
            many = most_categories is not None and len(counts[reading.column]) > most_categories
            if many or _holds_numbers(values, counts[reading.column]):
                crowded.add(reading.column)
                counts[reading.column] = Counter()
            elif y is not None:
                errors[j] = errors_by_category(values, y, bool(labels))
    numeric = [j for j, reading in enumerate(readings) if reading.is_numeric]
    if y is not None:
        errors[numeric] = errors_by_numbers(numbers[:, numeric], y, bool(labels))
    without = 0.0 if y is None else errors_without(y, bool(labels))
    shapes = _shapes(numbers, agent if outcome else None)
    return TableSummary(missing, shapes.select(slice(d)).sums, shapes, counts, frozenset(crowded), errors, without)


def _shapes(numbers: FloatArray, judged: Agent | None) -> ColumnShapes:
    """What is told of the scale of columns, and of the outcome of an agent."""
    found = column_shapes(numbers)
    return found if judged is None else found.beside(column_shapes(np.asarray(judged.y, dtype=np.float64)))


def _holds_numbers(values: pd.Series[Any], counts: Mapping[str, int]) -> bool:
    """Whether a column of categories holds numbers at this agent, which would be told one by one; a few codes may be."""
    return column_kind(values) == "numeric" and (
        len(counts) > _MOST_NUMERIC_CATEGORIES or not all(float(value).is_integer() for value in values.dropna())
    )


def fit_rule(
    j: int,
    reading: ColumnReading,
    total: TableSummary,
    answers: Mapping[str, TableSummary],
    most_categories: int,
    labels: bool | None,
    scales: CommonScales,
) -> NumericRule | CategoryRule | str:
    """The rule of column j, or the reason why the column is left out."""
    column, missing = reading.column, int(total.missing[j])
    if not reading.is_used:
        return reading.why
    judged = reading.is_judged and not reading.chosen
    if column in total.crowded:
        return _too_many(reading, most_categories)
    if reading.kind == CATEGORY:
        counts = _merged(total.counts[column])
        if len(counts) < 2:
            return "constant" if counts else "no values"
        if len(counts) > most_categories:
            return _too_many(reading, most_categories)
        if judged and _names_agents([one.counts[column] for one in answers.values()]):
            return "its values occur at one agent each: it names the agent"
        found: NumericRule | CategoryRule = CategoryRule(column, counts, missing)
    else:
        if not total.sums.count[j]:
            return "no values"
        if not np.isfinite(scales.scale[j]):
            raise InputError(f"column {column} holds values too large to standardise; rescale it or leave it out")
        if total.sums.is_constant[j]:
            return "constant"
        if judged and reading.is_whole and _numbers_agents(j, [one.sums for one in answers.values()]):
            return "a whole number of its own for every agent: it names the agent"
        found = NumericRule(column, missing=missing, **scales.of_column(j))
    share = explained_share(j, reading, total, labels)
    if judged and labels is not None and share >= GIVES_AWAY[labels]:
        return f"it gives the outcome away: by itself it saves {share:.1%} of the errors of predicting it"
    return found


def _too_many(reading: ColumnReading, most_categories: int) -> str:
    """Why a column of texts is left out that has too many different ones, and what else it may be good for."""
    told = f"more than {most_categories} different text values"
    if reading.why != "text":
        told += ", or numbers at some agents and text at others"
    if LIKE_AN_IDENTIFIER.search(reading.column):
        told += "; if rows of one value belong together, such as a patient's, give it as group_by"
    return told


def explained_share(j: int, reading: ColumnReading, total: TableSummary, labels: bool | None) -> float:
    """The share of the errors of predicting the outcome that column j alone saves; 0 where too little is known."""
    enough = total.error_without >= _FEWEST_ERRORS if labels else total.error_without > 0
    if labels is None or not enough or reading.present + reading.missing < _FEWEST_ROWS:
        return 0.0
    return 1 - float(total.errors[j]) / total.error_without


def _names_agents(counts: Sequence[Mapping[str, int]]) -> bool:
    """Whether nearly every value is that of one agent alone, and stands for many of its rows."""
    there = [_merged(one) for one in counts if one]
    owners = Counter(_spelling(category) for one in there for category in one)
    rows = sum(sum(one.values()) for one in there)
    own = sum(count for one in there for category, count in one.items() if owners[_spelling(category)] == 1)
    if len(there) < 2:
        return False
    if all(len(one) == 1 and sum(one.values()) > 1 for one in there) and own == rows:
        return True
    return len(there) > 2 and own >= _EXCLUSIVE * rows and rows >= _ROWS_EACH * len(owners)


def _numbers_agents(j: int, sums: Sequence[ColumnSums]) -> bool:
    """Whether a column is one number within every agent, and another at each."""
    there = [one for one in sums if one.count[j] > 0]
    means = {float(one.mean[j]) for one in there}
    return len(there) > 2 and len(means) == len(there) and all(one.is_constant[j] and one.count[j] > 1 for one in there)


def _merged(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by category, in sorted order, spellings that differ by case or spaces together under the most frequent."""
    spellings: dict[str, Counter[str]] = {}
    for category, count in counts.items():
        if count:
            spellings.setdefault(_spelling(category), Counter())[category] += count
    shown = {min(one, key=lambda name, one=one: (-one[name], name)): one.total() for one in spellings.values()}  # type: ignore[misc]
    return dict(sorted(shown.items()))


def _spelling(category: str) -> str:
    return category.strip().casefold()


def _counted(values: pd.Series[Any]) -> Counter[str]:
    """How often each category occurs."""
    codes, found = categories(values)
    return Counter(np.array(found, dtype=object)[codes[codes >= 0]].tolist())


def _missing_values(count: int) -> str:
    return "1 missing value" if count == 1 else f"{count} missing values"
