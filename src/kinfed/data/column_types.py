r"""What a column is, decided for the whole federation from counts alone, with a reason that is shown.

Every agent counts, for each of its columns, how many cells read as numbers, as yes or no, as dates, how many differ, and
the like (`table_counts`); no cell is told. The counts of all agents decide (`reading_of`): so a column is the same thing
at every agent, wherever the rows are. What was chosen by hand (``--column name=number``) goes before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from kinfed.cells import DATE_ORDERS, FALSE_WORDS, TRUE_WORDS, numbers_of, truths_of, years_of
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.validation import Array, FloatArray, Integers, unknown

NUMBER, BOOLEAN, DATE, CATEGORY = "number", "boolean", "date", "category"
IGNORE, IDENTIFIER, FREE_TEXT, EMPTY = "ignore", "identifier", "free text", "empty"

KINDS = (NUMBER, CATEGORY, DATE, BOOLEAN, IGNORE)
"""What a column can be made by hand."""

COUNTS = (
    *("present", "numbers", "whole", "ones", "true", "false", *DATE_ORDERS),
    *("distinct", "unique", "long", "expected", "words"),
)
"""What an agent tells of a column.

Cells that are there; that are numbers, whole numbers, 1 or 0, true and false in words, dates in each order; how many
differ; 1 if all do; 1 if all are whole numbers of as many digits, six or more; a thousand times the pairs of equal whole
numbers to be expected if they were drawn at random between the smallest and the largest; words of texts.
"""

_MOSTLY, _HALF = 0.9, 0.5  # shares of readable cells that make a column numbers, dates or booleans
_FEW_NUMBERS = 10  # as many different ones may be codes of categories where other cells are text
_JUDGED = 20  # cells before anything is called an identifier because all differ
_UNLIKELY_PAIRS = 5.0  # no two equal numbers where so many pairs are expected: they were given out one by one
_LONG = 6  # digits of a number that is given out
LIKE_AN_IDENTIFIER = re.compile(
    r"(^|[\W_])(id|ids|uid|uuid|guid|pid|mrn|key|nr|no|num|number|nummer|index|row|case|fall|record|patient|subject|"
    r"pseudonym)($|[\W_])|[a-zäöü]id$|(ID|Id|Nr|No)$"
)
"""How people name columns that tell rows or patients apart."""


@dataclass(frozen=True)
class ColumnReading:
    """What a column is, and why.

    Attributes
    ----------
    column : str
    kind : str
        One of `KINDS`, or why it cannot be used: "identifier", "free text", "empty".
    why : str
        In words.
    order : str
        Of a date, such as "dmy"; else empty.
    present, missing, unreadable, distinct : int
        Cells over all agents: those that are there, are not, are there but are no number or date; the most that differ at
        one agent.
    absent, agents : int
        Agents without any value, of how many.
    chosen : bool
        Whether it was made so by hand.
    is_whole, is_judged : bool
        Whether all of it are whole numbers; whether anybody looked for more than numbers in it, as in a table.
    """

    column: str
    kind: str
    why: str = ""
    order: str = ""
    present: int = 0
    missing: int = 0
    unreadable: int = 0
    distinct: int = 0
    absent: int = 0
    agents: int = 0
    chosen: bool = False
    is_whole: bool = False
    is_judged: bool = False

    @property
    def is_numeric(self) -> bool:
        """Whether its cells become numbers."""
        return self.kind in (NUMBER, BOOLEAN, DATE)

    @property
    def is_used(self) -> bool:
        """Whether anything is made of it."""
        return self.is_numeric or self.kind == CATEGORY

    def numbers(self, values: pd.Series[Any]) -> Array:
        """The cells as floats, NaN where they are missing or cannot be read."""
        if self.kind == DATE:
            return years_of(values, self.order)
        return truths_of(values) if self.kind == BOOLEAN else numbers_of(values)

    def unread(self, values: pd.Series[Any]) -> dict[str, int]:
        """The cells that are there but cannot be read, and how often each occurs. They are for those who hold the table."""
        if not self.is_numeric:
            return {}
        cells = values[np.isnan(self.numbers(values)) & values.notna().to_numpy()]
        return {str(cell): int(count) for cell, count in cells.value_counts().items()}


def column_of(X: Any, j: int) -> pd.Series[Any]:
    """Column j of an array or a table, as a series."""
    return X.iloc[:, j] if isinstance(X, pd.DataFrame) else pd.Series(X[:, j])


def table_counts(agent: Agent, columns: Sequence[str], table: bool) -> Integers:
    """What an agent tells of its columns, of shape (d, number of `COUNTS`).

    Parameters
    ----------
    agent : Agent
    columns : sequence of d str
    table : bool
        Whether anybody has to find out what they are; the columns of an array are numbers, and no more is said of them.
    """
    if isinstance(agent.X, np.ndarray):
        return _number_counts(agent.X, table)
    counts = np.zeros((len(columns), len(COUNTS)), dtype=np.int64)
    plain = [j for j in range(len(columns)) if types.is_numeric_dtype(agent.X.dtypes.iloc[j])]
    if plain:
        counts[plain] = _number_counts(np.column_stack([numbers_of(agent.X.iloc[:, j]) for j in plain]), table)
    for j in set(range(len(columns))) - set(plain):
        counts[j] = _text_counts(agent.X.iloc[:, j], table)
    return counts


def _number_counts(X: FloatArray, table: bool) -> Integers:
    """The counts of columns (n, d) that hold nothing but numbers and gaps."""
    values = np.asarray(X, dtype=np.float64)
    there = ~np.isnan(values)
    told = dict.fromkeys(COUNTS, np.zeros(values.shape[1], dtype=np.int64))
    present = told["present"] = told["numbers"] = there.sum(axis=0)
    if not table or not len(values):
        return np.column_stack(list(told.values())).astype(np.int64)
    whole = (values == np.round(values)) & (np.abs(values) < 2**53)  # beyond, every float is whole
    told["whole"] = whole.sum(axis=0)
    told["ones"] = ((values == 0) | (values == 1)).sum(axis=0)
    told["distinct"] = np.sum(np.diff(np.sort(values, axis=0), axis=0) > 0, axis=0) + (present > 0)
    told["unique"] = (present > 1) & (told["distinct"] == present)
    given = (present > 0) & (told["whole"] == present)
    low, high = (pick(np.where(there, values, other), axis=0) for pick, other in ((np.min, np.inf), (np.max, -np.inf)))
    spread = np.where(given, high - low, 0.0) + 1
    told["expected"] = np.where(given, np.minimum(1000 * present * (present - 1) / 2 / spread, 10**9), 0)
    size = np.abs(np.where(there & given, values, 0.0))
    least, most = (pick(np.where(there, size, other), axis=0) for pick, other in ((np.min, np.inf), (np.max, 0.0)))
    told["long"] = given & (least >= 10.0 ** (_LONG - 1)) & (_digits(least) == _digits(most))
    dated = np.flatnonzero(given & (low >= 19_000_101) & (high <= 20_991_231))
    told["ymd"] = np.zeros(len(present), dtype=np.int64)
    told["ymd"][dated] = [int((~np.isnan(years_of(pd.Series(values[:, j]), "ymd"))).sum()) for j in dated]
    return np.column_stack(list(told.values())).astype(np.int64)


def _digits(values: Array) -> Array:
    """How many digits whole numbers have."""
    return np.floor(np.log10(np.where((values >= 1) & np.isfinite(values), values, 1.0)))


def _text_counts(values: pd.Series[Any], table: bool) -> Integers:
    """The counts of a column of texts, or of texts beside numbers."""
    cells = values.dropna()
    numbers = numbers_of(cells)
    there = numbers[~np.isnan(numbers)]
    told = dict.fromkeys(COUNTS, 0) | {"present": len(cells), "numbers": len(there)}
    if table and len(cells):
        texts = cells.astype(str).str.strip()
        words = texts.str.casefold()
        distinct = int(cells.nunique())
        told |= {
            "whole": int((there == np.round(there)).sum()),
            "ones": int(((there == 0) | (there == 1)).sum()),
            "true": int(words.isin(TRUE_WORDS).sum()),
            "false": int(words.isin(FALSE_WORDS).sum()),
            **{order: int((~np.isnan(years_of(texts, order))).sum()) for order in DATE_ORDERS},
            "distinct": distinct,
            "unique": int(1 < len(cells) == distinct),
            "words": int(texts.str.count(r"\s+").sum()) + len(texts),
        }
    return np.array(list(told.values()), dtype=np.int64)


def counts_fault(counts: NDArray[np.int64], rows: int) -> str | None:
    """What is wrong with the counts of an agent of so many rows; None if nothing is."""
    present = counts[:, 0]
    if (counts < 0).any() or (present > rows).any():
        return f"the counts of a column do not fit {rows} rows"
    parts = [COUNTS.index(name) for name in ("numbers", "whole", "ones", "true", "false", *DATE_ORDERS, "distinct")]
    return "the counts of a column contradict each other" if (counts[:, parts] > present[:, None]).any() else None


def readings_of(
    columns: Sequence[str], counts: Mapping[str, NDArray[np.int64]], sizes: Sequence[int], chosen: Mapping[str, str]
) -> tuple[ColumnReading, ...]:
    """What every column is, from the counts (d, number of `COUNTS`) of all agents, by name, and their numbers of rows.

    `chosen` has what columns were made by hand.
    """
    for name, kind in chosen.items():
        if name not in columns:
            raise unknown("column", name, columns)
        if kind not in KINDS:
            raise InputError(f"column {name}: {unknown('type', kind, KINDS)} (one of {', '.join(KINDS)})")
    stacked = np.array(list(counts.values()), dtype=np.int64).reshape(len(counts), len(columns), len(COUNTS))
    return tuple(
        reading_of(column, stacked[:, j], np.asarray(sizes, dtype=np.int64), chosen.get(column))
        for j, column in enumerate(columns)
    )


def reading_of(column: str, counts: NDArray[np.int64], sizes: Integers, chosen: str | None = None) -> ColumnReading:
    """What one column is, from the agents' counts (B, number of `COUNTS`) of it."""
    total = dict(zip(COUNTS, counts.sum(axis=0).tolist(), strict=True))
    known, holding = total["present"], int((counts[:, 0] > 0).sum())
    told = ColumnReading(
        column,
        EMPTY,
        present=known,
        missing=int(sizes.sum()) - known,
        distinct=int(counts[:, COUNTS.index("distinct")].max(initial=0)),
        absent=int((sizes > 0).sum()) - holding,
        agents=int((sizes > 0).sum()),
        chosen=chosen is not None,
        is_whole=0 < known == total["whole"],
        is_judged=total["distinct"] > 0,
    )
    order = max(DATE_ORDERS, key=lambda one: total[one])
    as_kind = {NUMBER: total["numbers"], DATE: total[order], BOOLEAN: total["true"] + total["false"] + total["ones"]}
    if chosen is not None:
        unread = known - as_kind.get(chosen, known)
        return replace(told, kind=chosen, why="chosen by hand", order=order if chosen == DATE else "", unreadable=unread)
    if not known:
        return replace(told, why="no values")
    if 2 * told.absent > told.agents:
        return replace(told, why=f"no values at {told.absent} of {told.agents} agents")
    kind, why = _kind(column, total, counts, as_kind)
    if kind == DATE and order != "ymd":
        both = total["dmy"] == total["mdy"]
        why += " with the day first" if order == "dmy" else " with the month first"
        why += " (nothing tells the day from the month)" if both else ""
    unread = known - as_kind.get(kind, known)
    return replace(told, kind=kind, why=why, order=order if kind == DATE else "", unreadable=unread)


def _kind(column: str, total: Mapping[str, int], counts: NDArray[np.int64], as_kind: Mapping[str, int]) -> tuple[str, str]:
    """What a column with values is, and why."""
    known, numbers = total["present"], total["numbers"]
    if total["true"] and total["false"] and as_kind[BOOLEAN] >= _MOSTLY * known:
        return BOOLEAN, "yes and no in words"
    if as_kind[DATE] >= _MOSTLY * known and (numbers < known or as_kind[DATE] == known):
        return DATE, "dates"
    distinct = counts[:, COUNTS.index("distinct")]
    if numbers >= _MOSTLY * known or (numbers >= _HALF * known and distinct.max() > _FEW_NUMBERS):
        if _is_given_out(column, total, counts):
            return IDENTIFIER, "a number of its own for every row: an identifier"
        return NUMBER, "numbers" if numbers == known else f"{numbers / known:.1%} of its cells are numbers"
    differing = distinct.sum() / known
    if total["words"] >= 3 * known and differing > _HALF:
        return FREE_TEXT, "free text"
    if known >= _JUDGED and differing >= _MOSTLY:
        return IDENTIFIER, "a text of its own for nearly every row: an identifier"
    return CATEGORY, "text" if not numbers else f"text, and {numbers / known:.0%} numbers"


def _is_given_out(column: str, total: Mapping[str, int], counts: NDArray[np.int64]) -> bool:
    """Whether whole numbers are labels that were given out, one for every row, rather than measured."""
    several = counts[:, 0] > 1
    if total["whole"] < total["present"] or not several.any() or not counts[several, COUNTS.index("unique")].all():
        return False
    if total["present"] < _JUDGED:
        return False
    return (
        bool(LIKE_AN_IDENTIFIER.search(column))
        or total["expected"] / 1000 >= _UNLIKELY_PAIRS
        or bool(counts[several, COUNTS.index("long")].all())
    )
