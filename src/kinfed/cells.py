"""What cells of text mean: numbers in the ways people write them, yes and no in words, and dates.

A table is read by what is in it alone: where a comma or a point could be either mark, the column decides, else the other
columns of the table, else how its cells are separated. So a site reads its own file without asking anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from kinfed.validation import Array

TRUE_WORDS = frozenset({"yes", "y", "true", "t", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "sì", "vero"})
FALSE_WORDS = frozenset({"no", "n", "false", "f", "nein", "falsch", "non", "faux", "falso"})

DATE_ORDERS = ("ymd", "dmy", "mdy")
"""Which of year, month and day comes first, second and last in a date."""

POINT, COMMA = ".", ","

_CURRENCY = r"(?:[$€£¥]|EUR|USD|GBP|CHF)"
_NUMBER = re.compile(
    rf"({_CURRENCY}\s*)?([-+\u2212]?)\s*({_CURRENCY}\s*)?(\d[\d.,'\u2019\u00a0\u202f ]*|[.,]\d+)((?:[eE][-+]?\d+)?)"
    rf"\s*(%|{_CURRENCY}|(?<=\s)[a-zA-Zµ]{{1,8}}(?:/[a-zA-Zµ]{{1,8}})?|°[CFK]?)?",
    re.ASCII,
)
_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?P<mark>[.,'\u2019\u00a0\u202f ])\d{3}(?:(?P=mark)\d{3})*")
_NUMERIC_DATE = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})(?:[T ,]+(\d{1,2}):(\d{2})(?::\d{2}(?:\.\d+)?)?.*)?")
_COMPACT_DATE = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?:\.0)?")
_WORDY_DATE = re.compile(r"(\d{1,2})\.?[ -]([^\W\d_]{3,9})\.?[ ,-]+(\d{4})|([^\W\d_]{3,9})\.? (\d{1,2}),? (\d{4})")
_MONTHS = (
    ("jan",),
    ("feb", "fév"),
    ("mar", "mär"),
    ("apr", "avr"),
    ("may", "mai"),
    ("jun", "juin"),
    ("jul", "juil"),
    ("aug", "aoû"),
    ("sep",),
    ("oct", "okt"),
    ("nov",),
    ("dec", "dez", "déc"),
)
"""How the names of the twelve months begin, in English, German and French."""


class Marks(NamedTuple):
    """How many cells can only have a decimal point, and how many only a decimal comma."""

    point: int = 0
    comma: int = 0

    @property
    def decimal(self) -> str | None:
        """The decimal mark that more of the cells have; None where nothing tells."""
        return None if self.point == self.comma else COMMA if self.comma > self.point else POINT


def _parts(text: str) -> tuple[str, str, str, str] | None:
    """Sign, digits with their marks, exponent and unit of a cell that may be a number."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    front, sign, inner, body, exponent, back = found.groups()
    return "-" if sign in ("-", "\u2212") else "", body.rstrip(), exponent, (front or inner or back or "").strip()


def _value(body: str, decimal: str) -> tuple[str | None, str | None]:
    """The digits as Python writes them, or None; and the decimal mark they can only have, if one is certain."""
    for mark in (POINT, COMMA):
        whole, _, fraction = body.rpartition(mark)
        grouped = _GROUPED.fullmatch(whole)
        if grouped is not None and grouped["mark"] != mark and fraction.isdigit():  # 1,234.5
            return f"{_digits(whole)}.{fraction}", mark
    grouped = _GROUPED.fullmatch(body)
    if grouped is not None:
        mark = grouped["mark"]
        other = {POINT: COMMA, COMMA: POINT}.get(mark)
        if other is None or body.count(mark) > 1:  # 1 234 or 1.234.567
            return _digits(body), other
        if body[0] != "0":  # 1.234 or 1,234: either
            return (_digits(body), None) if decimal == other else (body.replace(mark, POINT), None)
    if body.isdigit():
        return body, None
    for mark in (POINT, COMMA):
        whole, found, fraction = body.partition(mark)
        if found and (whole + fraction).isdigit():
            return f"{whole or '0'}.{fraction or '0'}", mark
    return None, None


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def marks_of(texts: Iterable[str]) -> Marks:
    """Which decimal marks cells can only have; of cells that are no numbers nothing is told."""
    counts = {POINT: 0, COMMA: 0}
    for text in texts:
        parts = _parts(text)
        mark = None if parts is None else _value(parts[1], POINT)[1]
        if mark is not None:
            counts[mark] += 1
    return Marks(counts[POINT], counts[COMMA])


def plain_number(text: str, decimal: str = POINT) -> tuple[str, str] | None:
    """A cell as Python writes the number, and its unit, such as "%", "€" or "kg"; None where it is no number.

    Parameters
    ----------
    text : str
    decimal : {".", ","}
        What is taken for the decimal mark where the cell itself leaves it open, as 1,234 does.

    Examples
    --------
    >>> plain_number("1.234,5 €"), plain_number("39%"), plain_number("1,234"), plain_number("unknown")
    (('1234.5', '€'), ('39', '%'), ('1234', ''), None)
    """
    parts = _parts(text)
    if parts is None:
        return None
    sign, body, exponent, unit = parts
    found, _ = _value(body, decimal)
    if found is None:
        return None
    # The code 01 is the number 1 where a column holds nothing but numbers; it is the same here.
    digits = found.lstrip("0") or "0" if found.isdigit() else found
    return f"{sign}{digits}{exponent}", unit


def numbers_of(values: pd.Series[Any]) -> Array:
    """A column as floats; NaN where a cell is missing, or is no number in plain digits."""
    if types.is_numeric_dtype(values.dtype) and not types.is_complex_dtype(values.dtype):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return _mapped(values, lambda text: float(text) if _PLAIN.fullmatch(text) else np.nan)


def truths_of(values: pd.Series[Any]) -> Array:
    """A column of yes and no in words, or of 1 and 0, as floats; NaN for anything else."""

    def truth(text: str) -> float:
        word = text.casefold()
        return 1.0 if word in TRUE_WORDS or word in ("1", "1.0") else 0.0 if word in FALSE_WORDS | {"0", "0.0"} else np.nan

    return _mapped(values, truth)


def years_of(values: pd.Series[Any], order: str) -> Array:
    """A column of dates as years with decimals, 2024.5 being the middle of 2024; NaN for what is no date in that order."""
    return _mapped(values, lambda text: _years(text, order))


def _years(text: str, order: str) -> float:
    fields, share = None, 0.0
    if numeric := _NUMERIC_DATE.fullmatch(text):
        first, _, second, third, hours, minutes = numeric.groups()
        year, last = (first, third) if order == "ymd" else (third, first)
        if len(last) > 2 or len(year) not in ((4,) if order == "ymd" else (2, 4)):
            return np.nan
        fields = dict(zip(order, (int(first), int(second), int(third)), strict=True))
        if order != "ymd" and len(third) == 2:
            fields["y"] += 2000 if fields["y"] <= 30 else 1900
        share = 0.0 if hours is None else (int(hours) * 60 + int(minutes)) / 1440
    elif wordy := _WORDY_DATE.fullmatch(text):
        day, name, year = wordy.group(1, 2, 3) if wordy[1] else wordy.group(5, 4, 6)
        month = next((number for number, names in enumerate(_MONTHS, 1) if name.casefold().startswith(names)), None)
        fields = None if month is None else {"y": int(year), "m": month, "d": int(day)}
    elif order == "ymd" and (compact := _COMPACT_DATE.fullmatch(text)):
        fields = dict(zip("ymd", map(int, compact.groups()), strict=True))
    if fields is None:
        return np.nan
    try:
        found = date(fields["y"], fields["m"], fields["d"])
        beginning, end = date(found.year, 1, 1).toordinal(), date(found.year, 12, 31).toordinal() + 1
    except ValueError:
        return np.nan
    return found.year + (found.toordinal() - beginning + share) / (end - beginning)


def _mapped(values: pd.Series[Any], meaning: Callable[[str], float]) -> Array:
    """The meaning of every cell, asked once for each that is different; NaN where it is missing."""
    codes, found = pd.factorize(values)
    meanings = np.array([*(meaning(_text(one)) for one in found), np.nan])
    return meanings[codes]


def _text(value: Any) -> str:
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()


class Settled(NamedTuple):
    """A column whose numbers are written plainly, and what had to be read for it, in words; empty where nothing had."""

    values: pd.Series[Any]
    told: str = ""


def settled_table(
    frame: pd.DataFrame, kept: Sequence[str] = (), semicolons: bool = False
) -> tuple[pd.DataFrame, list[str]]:
    """A table whose numbers are written plainly, and sentences about what was read so.

    Parameters
    ----------
    frame : DataFrame
        Columns that are numbers already stay as they are.
    kept : sequence of str
        Columns that are left alone, such as the agents' labels.
    semicolons : bool
        Whether its cells are separated by semicolons, as where commas are decimal.
    """
    texts = {name: frame[name] for name in frame.columns if name not in kept and _is_text(frame[name])}
    marks = {name: marks_of(map(str, one.dropna().unique())) for name, one in texts.items()}
    total = Marks(sum(one.point for one in marks.values()), sum(one.comma for one in marks.values()))
    usual = total.decimal or (COMMA if semicolons else POINT)
    made = {name: settled(one, marks[name].decimal or usual) for name, one in texts.items()}
    told = [f"column {name}: {one.told}" for name, one in made.items() if one.told]
    dates = {
        name: Settled(frame[name].dt.strftime("%Y-%m-%dT%H:%M"))
        for name in frame.columns
        if types.is_datetime64_any_dtype(frame[name].dtype)
    }
    changed = {name: one.values for name, one in {**made, **dates}.items()}
    return (frame.assign(**changed) if changed else frame), told


def settled(values: pd.Series[Any], decimal: str) -> Settled:
    """A column of text as numbers if all of it is; else with those that are numbers written plainly, if most are."""
    codes, found = pd.factorize(values)
    cells = [str(one).strip() for one in found]
    plain = [plain_number(cell, decimal) for cell in cells]
    if not cells:
        return Settled(values)
    counts = np.bincount(codes[codes >= 0], minlength=len(cells))
    read = np.array([one is not None for one in plain])
    if not read.any() or 2 * counts[read].sum() < counts.sum():
        return Settled(_of_codes(values, codes, cells))
    units = {one[1] for one in plain if one is not None}
    if len(units - {"", "%"}) > 1:
        told = f"its cells have different units ({', '.join(sorted(units - {''})[:3])}), so they are not read as numbers"
        return Settled(_of_codes(values, codes, cells), told)
    shares = "%" in units and "" in units and all(abs(float(one[0])) <= 1 for one in plain if one and not one[1])
    numbers = [None if one is None else repr(float(one[0]) / 100) if shares and one[1] == "%" else one[0] for one in plain]
    odd = [k for k, one in enumerate(numbers) if one is not None and not _same(cells[k], one)]
    told = ""
    if odd:
        rows, meant = int(counts[odd].sum()), plain[odd[0]]
        unit = "" if meant is None or shares else {"%": "percent"}.get(meant[1], meant[1])
        told = (
            f"{rows} {'cell' if rows == 1 else 'cells'} such as {cells[odd[0]]!r} read as {numbers[odd[0]]} {unit}".rstrip()
        )
    if read.all():
        return Settled(pd.to_numeric(_of_codes(values, codes, [str(one) for one in numbers])), told)
    mixed = [cell if one is None else one for cell, one in zip(cells, numbers, strict=True)]
    return Settled(_of_codes(values, codes, mixed), told)


def _same(cell: str, number: str) -> bool:
    return bool(_PLAIN.fullmatch(cell)) and float(cell) == float(number)


def _of_codes(values: pd.Series[Any], codes: NDArray[np.intp], cells: Sequence[str]) -> pd.Series[Any]:
    made = np.array([*cells, None], dtype=object)[codes]
    return pd.Series(made, index=values.index, name=values.name)


def _is_text(values: pd.Series[Any]) -> bool:
    if isinstance(values.dtype, pd.CategoricalDtype) or types.is_bool_dtype(values.dtype):
        return False
    if types.is_object_dtype(values.dtype):
        return types.infer_dtype(values, skipna=True) == "string"
    return types.is_string_dtype(values.dtype)


def quoted(cells: Mapping[str, int], most: int = 3) -> str:
    """Cells and how often they occur, the most frequent first."""
    ranked = sorted(cells.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{cell!r}" + (f" ({count} times)" if count > 1 else "") for cell, count in ranked[:most])
    return shown + (f" and {len(ranked) - most} more" if len(ranked) > most else "")
