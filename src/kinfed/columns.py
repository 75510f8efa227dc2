"""Columns that come in: what they hold, and whether they can be used.

Features become float arrays or tables of categories, targets numbers or labels, and every mistake is named with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api import types

from kinfed.cells import settled_table
from kinfed.errors import InputError
from kinfed.validation import FloatArray, first_repeated, unknown

Place = Callable[[int], str]
"""Says where a row of the input stands, for messages: ``place(3)`` is "agent a, row 3" or "a.csv, row 3"."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are no features, and what they are instead.

    Attributes
    ----------
    agent : str, optional
        Tells agents apart.
    target : str, optional
        What is to be predicted.
    group_by : str, optional
        Rows of one label stay on one side of every split.
    time : str, optional
        The latest rows are tested on.
    sample_weight : str, optional
        How much a row counts in training.
    """

    agent: str | None = None
    target: str | None = None
    group_by: str | None = None
    time: str | None = None
    sample_weight: str | None = None

    @property
    def beside(self) -> dict[str, str]:
        """The columns of what rows have beside features and outcome, by what it is to an agent."""
        found = {"group": self.group_by, "time": self.time, "weight": self.sample_weight}
        return {what: column for what, column in found.items() if column is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that have a role."""
        return tuple(column for column in (self.agent, self.target, *self.beside.values()) if column is not None)

    def check(self) -> None:
        """Raise if a column has two roles."""
        named = {"agent": self.agent, "target": self.target, **self.beside}
        repeated = first_repeated(self.columns)
        if repeated is not None:
            first, second = [what for what, column in named.items() if column == repeated][:2]
            raise InputError(f"column {repeated!r} cannot be both the {first} and the {second}")


def agent_labels(agent: ArrayLike) -> NDArray[Any]:
    """The agent of every row, as text."""
    return _labels(_vector(agent, "agent"), "agent", lambda row: f"row {row}")


def row_groups(group: ArrayLike, n: int, place: Place) -> NDArray[Any]:
    """The group of every row, as text."""
    return _labels(_beside(group, "group", n), "group", place)


def row_times(time: ArrayLike, n: int, place: Place) -> FloatArray:
    """When every row was, as numbers; dates are days since 1970."""
    values = _beside(time, "time", n)
    _refuse_missing(values, "time", place)
    if column_kind(values) == "numeric":
        return _finite(values, "time", place)
    dates = pd.to_datetime(values, format="ISO8601", utc=True, errors="coerce")
    wrong = np.flatnonzero(dates.isna())
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"{place(row)}: the time {str(values.iloc[row])!r} is neither a number nor a date; write it as 2024-01-31"
        )
    days: FloatArray = ((dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)
    return days


def row_weights(weight: ArrayLike, n: int, place: Place) -> FloatArray:
    """How much every row counts: numbers above zero."""
    values = _beside(weight, "sample weight", n)
    _refuse_missing(values, "sample weight", place)
    if column_kind(values) not in ("numeric", "boolean"):
        raise InputError(f"the sample weights are not numbers (their type is {values.dtype}); turn them into numbers")
    weights = _finite(values, "sample weight", place)
    wrong = np.flatnonzero(~(weights > 0))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(f"{place(row)}: the sample weight is {weights[row]:g}; give a number above zero or drop the row")
    return weights


def _beside(values: ArrayLike, what: str, n: int) -> pd.Series[Any]:
    found = _vector(values, what)
    if len(found) != n:
        raise InputError(f"{what} has {len(found)} values for {n} rows of X; give one per row")
    return found


def _refuse_missing(values: pd.Series[Any], what: str, place: Place) -> None:
    missing = np.flatnonzero(values.isna())
    if missing.size:
        raise InputError(f"{place(int(missing[0]))} has no {what}; fill it in or drop the row")


def _finite(values: pd.Series[Any], what: str, place: Place) -> FloatArray:
    numbers = _numbers(values).astype(np.float64, copy=False)
    infinite = np.flatnonzero(~np.isfinite(numbers))
    if infinite.size:
        raise InputError(f"{place(int(infinite[0]))}: the {what} is infinite; correct it or drop the row")
    return numbers


def _labels(labels: pd.Series[Any], what: str, place: Place) -> NDArray[Any]:
    """Labels as text, one per row."""
    _refuse_missing(labels, f"{what} label", place)
    codes, found = pd.factorize(labels.astype(object))
    # A table with gaps turns the labels 1, 2 into 1.0, 2.0; names should not change with that.
    texts = [str(int(label)) if isinstance(label, float) and label.is_integer() else str(label) for label in found]
    repeated = first_repeated(texts)
    if repeated is not None:
        raise InputError(f"two different {what} labels read {repeated!r}, as number and as text; use one type for all")
    return np.array(texts, dtype=object)[codes]


def group_labels(groups: Mapping[Any, Any] | Sequence[Any] | None, names: Sequence[str]) -> tuple[Any, ...] | None:
    """One label per agent, in the agents' order, from a mapping or a sequence."""
    if groups is None:
        return None
    if not isinstance(groups, Mapping):
        return tuple(np.asarray(groups).tolist())
    by_name = {str(name): label for name, label in groups.items()}
    for name in by_name:
        if name not in names:
            raise unknown("agent", name, names)
    for name in names:
        if name not in by_name:
            raise InputError(f"groups has no label for agent {name}; give one per agent")
    return tuple(by_name[name] for name in names)


def feature_columns(
    X: ArrayLike | pd.DataFrame, columns: Sequence[str] | None, place: Place
) -> tuple[tuple[str, ...], FloatArray | Any]:
    """Names of the columns, and X as a float array, or as a table if a column is not numeric."""
    if not isinstance(X, pd.DataFrame):
        array = _array(X)
        names = tuple(f"x{j}" for j in range(array.shape[1])) if columns is None else tuple(map(str, columns))
        if len(names) != array.shape[1]:
            raise InputError(f"columns has {len(names)} names, but X has {array.shape[1]} columns")
        if array.dtype != object:
            _check_shape(array, names)
            infinite = np.argwhere(np.isinf(array))
            if infinite.size:
                row, column = infinite[0]
                raise _infinite(place(row), names[column])
            return names, array
        X = pd.DataFrame(array, columns=list(names))
    elif columns is not None:
        raise InputError("columns names the columns of an array, but X is a table with names of its own; leave it out")
    names = tuple(str(column) for column in X.columns)
    _check_shape(X, names)
    X = settled_table(X.set_axis(list(names), axis=1))[0]
    cleaned = {name: _column(X.iloc[:, j], name, place) for j, name in enumerate(names)}
    if all(isinstance(column, np.ndarray) for column in cleaned.values()):
        return names, np.column_stack(list(cleaned.values()))
    return names, pd.DataFrame(cleaned)


def _array(X: ArrayLike) -> NDArray[Any]:
    """X as a two-dimensional array of floats, or of objects."""
    if hasattr(X, "toarray"):
        raise InputError("X is a sparse matrix; give a dense array, such as X.toarray()")
    try:
        array = np.asarray(X)
    except ValueError:
        raise InputError("the rows of X differ in length; every row needs the same columns") from None
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise InputError(f"X must be a table of shape (n, d), got shape {array.shape}; reshape it first")
    if array.dtype.kind in "fiub":
        exact = array.dtype == np.float32 or array.dtype.itemsize == 1
        return array.astype(np.float32 if exact else np.float64, copy=False)
    if array.dtype != object:
        raise InputError(f"X is an array of type {array.dtype}; give numbers, or a pandas DataFrame with typed columns")
    return array


def check_names(columns: Iterable[str]) -> None:
    """Raise if two columns share a name."""
    repeated = first_repeated(columns)
    if repeated is not None:
        raise InputError(f"two columns are named {repeated!r}; every column needs a name of its own")


def _check_shape(X: Any, names: tuple[str, ...]) -> None:
    check_names(names)
    if 0 in X.shape:
        raise InputError(f"X has {X.shape[0]} rows and {X.shape[1]} columns; at least one of each is needed")


def _column(series: pd.Series[Any], name: str, place: Place) -> Any:
    """A feature column: a float array if it is numeric, else a series of categories."""
    kind = column_kind(series)
    if kind == "numeric":
        numbers = _numbers(series)
        infinite = np.flatnonzero(np.isinf(numbers))
        if infinite.size:
            raise _infinite(place(int(infinite[0])), name)
        return numbers
    if kind == "other":
        raise InputError(
            f"column {name!r} holds neither numbers nor text (its type is {series.dtype}); "
            "turn it into numbers or leave it out"
        )
    return series.reset_index(drop=True)


def _vector(values: ArrayLike, what: str) -> pd.Series[Any]:
    """One value per row, as a series; a table of one column will do."""
    if isinstance(values, pd.Series):
        return values.reset_index(drop=True)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
            array = np.asarray(values, dtype=object)  # else NumPy writes a missing label out as the text "nan"
    except ValueError:
        raise InputError(f"{what} must hold one value per row, but its entries differ in length") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{what} must hold one value per row, got shape {array.shape}")
    return pd.Series(array)


def target_values(y: ArrayLike, n: int, place: Place, name: str | None) -> NDArray[Any]:
    """The target as numbers, booleans or text, without missing values."""
    what = "y" if name is None else f"target {name!r}"
    values = _vector(y, what)
    if len(values) != n:
        raise InputError(f"{what} has {len(values)} values for {n} rows of X; give one per row")
    missing = np.flatnonzero(values.isna())
    if missing.size:
        raise InputError(f"{place(int(missing[0]))}: {what} is missing; fill it in or drop the row")
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    kind = column_kind(values)
    if kind == "numeric":
        numbers = _numbers(values)
        infinite = np.flatnonzero(np.isinf(numbers))
        if infinite.size:
            raise InputError(f"{place(int(infinite[0]))}: {what} is infinite; correct it or drop the row")
        whole = types.is_integer_dtype(values.dtype) or types.infer_dtype(values) == "integer"
        return values.to_numpy(dtype=np.int64) if whole else numbers.astype(np.float64, copy=False)
    if kind == "boolean":
        return values.to_numpy(dtype=bool)
    if kind == "text":
        return np.array([str(value) for value in values])
    raise InputError(
        f"{what} mixes numbers with text; make all of it numbers, or all of it labels"
        if kind == "mixed"
        else f"{what} holds neither numbers nor text (its type is {values.dtype}); turn it into one of them"
    )


def column_kind(series: pd.Series[Any]) -> str:
    """What a column holds: numeric, boolean, text, mixed (several of these) or other."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "text"
    if types.is_bool_dtype(dtype):
        return "boolean"
    if types.is_numeric_dtype(dtype):
        return "other" if types.is_complex_dtype(dtype) else "numeric"
    if not types.is_object_dtype(dtype):
        return "text" if types.is_string_dtype(dtype) else "other"
    inferred = types.infer_dtype(series, skipna=True)
    if inferred in ("integer", "floating", "mixed-integer-float", "decimal", "empty"):
        return "numeric"
    if inferred in ("boolean", "string"):
        return "text" if inferred == "string" else "boolean"
    plain = all(isinstance(value, str | Number | np.bool_) for value in series.dropna())
    return "mixed" if plain else "other"


def categories(values: pd.Series[Any]) -> tuple[NDArray[np.intp], list[str]]:
    """Codes of the values, -1 for missing, and the text of the category behind each code."""
    if types.is_object_dtype(values.dtype) and types.infer_dtype(values, skipna=True).startswith("mixed"):
        values = values.map(_category, na_action="ignore")  # else True is the number 1 where that comes first
    codes, found = pd.factorize(values)
    return codes, [_category(value) for value in found]


def _category(value: Any) -> str:
    # Category 1 is read as 1.0 where a table holds nothing but numbers in that column; it is the same category.
    return str(int(value)) if isinstance(value, float | np.floating) and float(value).is_integer() else str(value)


def _numbers(series: pd.Series[Any]) -> FloatArray:
    """A numeric column as floats, NaN where it is missing; float32 stays float32."""
    numbers = series.to_numpy(dtype=np.float32 if series.dtype == np.float32 else np.float64, na_value=np.nan)
    return np.asarray(numbers)


def _infinite(where: str, column: str) -> InputError:
    return InputError(f"{where}: column {column} is infinite; correct it, or leave the value out as missing")
