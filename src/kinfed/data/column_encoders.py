"""What is done to one column, and the aggregates that decide it.

Each agent answers with a `TableSummary`: how many values each column misses, the sums of its numeric columns
(`kinfed.data.ColumnSums`) and the counts of the categories of the others. Rules follow from the added-up answers. Names,
identifiers and free text are no categories: of a column with many different values an agent says only that it is crowded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kinfed.columns import categories, column_kind
from kinfed.data.standardisation import ColumnSums, column_sums
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.validation import Array, Integers

MOST_CATEGORIES = 100
"""Different values a column of categories may have."""

# A text column whose values are mostly numbers, more different ones than this, is a numeric column with mistakes in it.
_MOST_NUMERIC_CATEGORIES = 10


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
    """

    column: str
    mean: float
    scale: float
    missing: int

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
        Training counts of the categories over all agents, in sorted order of the categories.
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
        one_hot = dict(zip(self.counts, np.eye(len(self.counts)), strict=True))
        unseen = np.zeros(len(self.counts))
        # Missing values have code -1, which picks the last row.
        rows = [*(one_hot.get(category, unseen) for category in found), one_hot[self.most_frequent]]
        return np.array(rows)[codes]

    def unseen(self, values: pd.Series[Any]) -> Counter[str]:
        """How often each category occurs that training never saw."""
        return Counter({category: count for category, count in _counted(values).items() if category not in self.counts})

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
        Numbers of missing values.
    sums : ColumnSums
        Of the d columns; a column of categories counts no values there.
    counts : dict from str to Counter
        How often each category occurs, for every column of categories; nothing for a crowded one.
    crowded : frozenset of str
        Columns of categories with too many different values to name.
    """

    missing: Integers
    sums: ColumnSums
    counts: dict[str, Counter[str]]
    crowded: frozenset[str] = frozenset()

    def __add__(self, other: TableSummary) -> TableSummary:
        if not isinstance(other, TableSummary):
            return NotImplemented
        counts = {column: self.counts[column] + other.counts[column] for column in self.counts}
        return TableSummary(self.missing + other.missing, self.sums + other.sums, counts, self.crowded | other.crowded)

    def __radd__(self, other: int) -> TableSummary:
        return self if other == 0 else NotImplemented  # sum() starts from 0


def summarise(
    agent: Agent, columns: Sequence[str], categorical: frozenset[str], most_categories: int | None = MOST_CATEGORIES
) -> TableSummary:
    """One agent's answer.

    Parameters
    ----------
    agent : Agent
    columns : sequence of str
    categorical : frozenset of str
        Of the columns, those to be counted; the others are summed.
    most_categories : int or None
        A column with more different values is only said to be crowded. None counts all of them, which is for data that
        stay in one place.
    """
    if isinstance(agent.X, np.ndarray) and not categorical:
        return TableSummary(np.isnan(agent.X).sum(axis=0, dtype=np.int64), column_sums(agent.X), {})
    numbers = np.full((len(agent), len(columns)), np.nan)
    missing = np.zeros(len(columns), dtype=np.int64)
    counts: dict[str, Counter[str]] = {}
    crowded: set[str] = set()
    for j, column in enumerate(columns):
        values = column_of(agent.X, j)
        missing[j] = values.isna().sum()
        if column in categorical:
            counts[column] = _counted(values)
            if most_categories is not None and len(counts[column]) > most_categories:
                crowded.add(column)
                counts[column] = Counter()
        else:
            numbers[:, j] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return TableSummary(missing, column_sums(numbers), counts, frozenset(crowded))


def refuse_numbers_as_categories(agent: Agent, columns: Sequence[str], categorical: frozenset[str]) -> None:
    """Raise if one of the columns to be counted holds numbers at this agent, which would be told one by one.

    Either some of its cells are mistyped here, or they are text at another agent. Whole numbers are codes of categories if
    they are few.
    """
    for j, column in enumerate(columns):
        if column not in categorical:
            continue
        values = column_of(agent.X, j)
        counts = _counted(values)
        if column_kind(values) != "numeric":
            _refuse_mistyped_numbers(column, counts, lambda _: agent.name)
        elif len(counts) > _MOST_NUMERIC_CATEGORIES or not all(float(value).is_integer() for value in values.dropna()):
            raise InputError(
                f"agent {agent.name}: column {column} holds numbers here and text at another agent; "
                "correct it there, or leave the column out everywhere"
            )


def fit_rule(
    j: int, column: str, total: TableSummary, answers: Mapping[str, TableSummary], most_categories: int
) -> NumericRule | CategoryRule | str:
    """The rule of column j, or the reason why the column is left out."""
    missing, too_many = int(total.missing[j]), f"more than {most_categories} different text values"
    if column in total.crowded:
        return too_many
    if column in total.counts:
        counts = {category: count for category, count in sorted(total.counts[column].items()) if count}
        if not counts:
            return "no values"
        _refuse_mistyped_numbers(
            column, counts, lambda text: next(name for name, answer in answers.items() if answer.counts[column][text])
        )
        if len(counts) == 1:
            return "constant"
        if len(counts) > most_categories:
            return too_many
        return CategoryRule(column, counts, missing)
    if not total.sums.count[j]:
        return "no values"
    if not np.isfinite(total.sums.squares[j]):
        raise InputError(f"column {column} holds values too large to standardise; rescale it or leave it out")
    if total.sums.is_constant[j]:
        return "constant"
    return NumericRule(column, float(total.sums.mean[j]), float(total.sums.scale[j]), missing)


def column_of(X: Any, j: int) -> pd.Series[Any]:
    """Column j of an array or a table, as a series."""
    return X.iloc[:, j] if isinstance(X, pd.DataFrame) else pd.Series(X[:, j])


def _counted(values: pd.Series[Any]) -> Counter[str]:
    """How often each category occurs."""
    codes, found = categories(values)
    return Counter(np.array(found, dtype=object)[codes[codes >= 0]].tolist())


def _refuse_mistyped_numbers(column: str, counts: Mapping[str, int], owner: Callable[[str], str]) -> None:
    """A column of numbers in which a few cells are text would be taken for categories, one for each number."""
    commas = [category for category in counts if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", category)]
    if 2 * len(commas) > len(counts):
        raise InputError(f"column {column} holds {commas[0]!r}; write numbers with a point, without commas")
    text = [category for category in counts if not _is_number(category)]
    mostly_numbers = 2 * sum(counts[category] for category in text) < sum(counts.values())
    if text and mostly_numbers and len(counts) - len(text) > _MOST_NUMERIC_CATEGORIES:
        raise InputError(
            f"agent {owner(text[0])}: column {column} holds {text[0]!r}, but most of its values are numbers; "
            "correct it or leave it empty"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _missing_values(count: int) -> str:
    return "1 missing value" if count == 1 else f"{count} missing values"
