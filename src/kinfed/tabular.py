"""From tables as people have them to rows that agents can hold, saying what was done on the way.

Everything here is decided from one table alone, so a site does it by itself: how numbers are written, which rows have no
agent or no outcome, what the outcome is. What a *column* is, all agents decide together (`kinfed.data.column_types`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from kinfed.cells import DATE_ORDERS, FALSE_WORDS, TRUE_WORDS, numbers_of, quoted, settled_table, years_of
from kinfed.columns import Place, Roles, agent_labels, check_names, column_kind
from kinfed.errors import InputError
from kinfed.validation import unknown

_NUMERIC = 0.8  # share of an outcome's cells that are numbers, for the others to be mistakes
_MOST_LABELS = 20  # different labels of an outcome where some of them look like numbers


class SourceTable(NamedTuple):
    """One table of those that make up a federation.

    Attributes
    ----------
    frame : DataFrame
    agent : str or None
        The agent whose rows all of them are; None where a column tells.
    place : callable
        Says where a row of it stands, for messages.
    semicolons : bool
        Whether its cells are separated by semicolons, as where commas are decimal.
    told : tuple of str
        What was guessed when it was read.
    """

    frame: pd.DataFrame
    agent: str | None
    place: Place
    semicolons: bool = False
    told: tuple[str, ...] = ()


class Gathered(NamedTuple):
    """Rows of tables, as `kinfed.federation.assemble` takes them.

    Attributes
    ----------
    features : DataFrame
    outcome : Series or None
    labels : array
        The agent of every row.
    place : callable
        Where a row stood.
    beside : mapping
        Groups, times and weights of the rows, as far as there are any.
    notes : tuple of str
        What was done, in sentences.
    """

    features: pd.DataFrame
    outcome: pd.Series[Any] | None
    labels: NDArray[Any]
    place: Place
    beside: dict[str, Any]
    notes: tuple[str, ...]


def gathered(parts: Sequence[SourceTable], roles: Roles, leave_out: Collection[str] = ()) -> Gathered:
    """The rows of one or several tables.

    Parameters
    ----------
    parts : sequence of SourceTable
    roles : Roles
        Columns that are no features. The agent's is not needed where every part is an agent.
    leave_out : collection of str
        Columns that are not used.
    """
    roles.check()
    columns = list(dict.fromkeys(column for part in parts for column in part.frame.columns))
    for column in (*roles.columns, *leave_out):
        if column not in columns:
            raise unknown("column", column, columns)
    notes: list[str] = []
    labels_of = [name for name in (roles.agent, roles.group_by) if name is not None]
    frames, by_column = [], dict[str, list[str]]()
    for part in parts:
        unused = [column for column in leave_out if column in part.frame.columns]
        frame, told = settled_table(part.frame.drop(columns=unused), labels_of, part.semicolons)
        for name in frame.columns:
            if types.is_float_dtype(frame[name].dtype) and (infinite := np.isinf(frame[name].to_numpy(np.float64))).any():
                frame = frame.assign(**{name: frame[name].mask(infinite)})
                told.append(f"column {name}: {int(infinite.sum())} infinite values count as missing")
        notes += part.told
        owned = f" (agent {part.agent}" if part.agent is not None and len(parts) > 1 else ""
        for one in told:
            by_column.setdefault(one.partition(": ")[0], []).append(f"{one}{owned}")
        frames.append(frame)
    for found in by_column.values():  # the same was done in many files: said once
        more = f", and alike at {len(found) - 1} more" if len(found) > 1 else ""
        notes.append(f"{found[0]}{more}" + (")" if " (agent " in found[0] else ""))
    rows = np.concatenate([np.arange(len(frame)) for frame in frames])
    owner = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0].reset_index(drop=True)
    stems = np.array([str(part.agent) for part in parts], dtype=object)
    names = None if roles.agent is not None else stems[owner]

    def kept(mask: NDArray[np.bool_], what: str) -> None:
        """Go on with these rows, and say how many have no such thing."""
        nonlocal frame, rows, owner, names
        if mask.all():
            return
        if not mask.any():
            raise InputError(f"no row has {what}; fill the column in")
        gone = int((~mask).sum())
        where = whose(names[~mask] if names is not None else None)
        notes.append(f"{gone} {'row' if gone == 1 else 'rows'} without {what} left out{where}")
        frame, rows, owner = frame[mask].reset_index(drop=True), rows[mask], owner[mask]
        names = None if names is None else names[mask]

    if roles.agent is not None:
        kept(frame[roles.agent].notna().to_numpy(), f"an agent in column {roles.agent}")
        names = agent_labels(frame[roles.agent])
    assert names is not None
    notes += _alike_names(list(dict.fromkeys(names.tolist())))

    def place(row: int) -> str:
        where = parts[owner[row]].place(int(rows[row]))
        return where if roles.agent is None else f"agent {names[row]}, {where}"

    if roles.target is not None:
        outcome, told = read_outcome(frame[roles.target], roles.target)
        notes += told
        frame = frame.assign(**{roles.target: outcome})
        had_gaps = bool(outcome.isna().any())
        kept(outcome.notna().to_numpy(), f"an outcome in column {roles.target}")
        frame = frame.assign(**{roles.target: _without_gaps(frame[roles.target]) if had_gaps else frame[roles.target]})
    if roles.time is not None:
        frame = frame.assign(**{roles.time: _read_times(frame[roles.time])})
    features = [column for column in frame.columns if column not in roles.columns]
    y = None if roles.target is None else frame[roles.target]
    beside = {what: frame[column] for what, column in roles.beside.items()}
    return Gathered(frame[features], y, names, place, beside, tuple(notes))


def read_outcome(values: pd.Series[Any], name: str) -> tuple[pd.Series[Any], list[str]]:
    """The outcome as numbers or labels, missing where it cannot be read, and what was done.

    Labels that differ by case or spaces around them are one, in the most frequent spelling; yes and no in any of the known
    words are "yes" and "no", so that sites with words of their own agree.
    """
    if column_kind(values) != "text" or isinstance(values.dtype, pd.CategoricalDtype):
        return values, []
    texts = values.dropna().astype(str).str.strip()
    numbers = pd.Series(numbers_of(texts), index=texts.index)
    readable = numbers.notna()
    if readable.mean() >= _NUMERIC and numbers.nunique() > 2:
        cells = quoted(Counter(texts[~readable].tolist()))
        return numbers.reindex(values.index), [f"outcome {name}: {cells} are no numbers and count as missing"]
    if readable.any() and not readable.all() and texts.nunique() > _MOST_LABELS:
        raise InputError(
            f"outcome {name!r} holds {texts[~readable].iloc[0]!r}, but other rows hold numbers; correct it, or turn all "
            "labels into words if these are classes"
        )
    words = texts.str.casefold()
    if len(texts) and words.isin(TRUE_WORDS | FALSE_WORDS).all():
        found, what = words.isin(TRUE_WORDS).map({True: "yes", False: "no"}), "yes and no"
    else:
        spellings = {spelling: one.value_counts().index[0] for spelling, one in texts.groupby(words)}
        found, what = words.map(spellings), "the usual spellings of these classes"
    odd = Counter(texts[found != texts].tolist())
    return found.reindex(values.index), [f"outcome {name}: {quoted(odd)} read as {what}"] if odd else []


def _read_times(values: pd.Series[Any]) -> pd.Series[Any]:
    """Dates with the day or the month first as years; those with the year first, and anything else, stay as they are."""
    if column_kind(values) != "text":
        return values
    read = {order: years_of(values, order) for order in DATE_ORDERS}
    order = max(DATE_ORDERS, key=lambda one: int((~np.isnan(read[one])).sum()))
    unread = bool(np.isnan(read[order][values.notna().to_numpy()]).any())
    return values if order == "ymd" or unread else pd.Series(read[order], index=values.index)


def _without_gaps(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column that was not whole numbers, or truths, only because of its gaps."""
    if types.is_float_dtype(values.dtype) and bool((values == values.round()).all()):
        return values.astype(np.int64)
    return values.astype(bool) if types.infer_dtype(values) == "boolean" else values


def whose(names: NDArray[Any] | None, most: int = 5) -> str:
    """Whose rows some are, and how many of each, as a sentence goes on."""
    if names is None:
        return ""
    counts = Counter(names.tolist()).most_common()
    shown = ", ".join(f"{name} {count}" for name, count in counts[:most])
    others = len(counts) - most
    return f" ({shown}{f' and {others} more agent' + 's' * (others > 1) if others > 0 else ''})"


def _alike_names(names: Sequence[str]) -> list[str]:
    """Sentences about agents whose names differ by case or spaces alone."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    return [
        f"agents {', '.join(map(repr, same))} differ by case or spaces alone and count as different agents; correct them "
        "if they are one"
        for same in alike.values()
        if len(same) > 1
    ]


def pandas_table(table: Any) -> pd.DataFrame:
    """Any table that narwhals knows (pandas, Polars, Arrow and others) as one of pandas, its columns named by text."""
    if not isinstance(table, pd.DataFrame):
        import narwhals

        try:
            eager = narwhals.from_native(table, eager_only=True)
        except TypeError:
            raise InputError(
                f"{type(table).__name__} is no table; give a Federation, or a table of pandas, Polars or Arrow"
            ) from None
        table = pd.DataFrame({name: _column(eager[name]) for name in eager.columns})
    columns = [str(column).strip() for column in table.columns]
    check_names(columns)
    named: pd.DataFrame = table.set_axis(columns, axis=1)
    # An index with a name holds data, often the agents; one without only numbers the rows.
    return named.reset_index(drop=all(name is None for name in named.index.names))


def _column(values: Any) -> pd.Series[Any]:
    """A column of another library: numbers as floats or integers, anything else as objects."""
    numeric = values.dtype.is_numeric() and not values.dtype.is_decimal()
    if numeric and not values.is_null().any():
        return pd.Series(values.to_numpy())
    cells = [np.nan if one is None else float(one) if values.dtype.is_numeric() else one for one in values.to_list()]
    return pd.Series(cells, dtype=np.float64 if values.dtype.is_numeric() else object).infer_objects()
