"""Tables in files: one CSV, TSV or Parquet file with an agent column, or a folder of one file per agent.

A site that sketches a file larger than its memory reads columns of numbers of it piece by piece: `numeric_batches`.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfed.cells import settled_table
from kinfed.columns import Roles, column_kind
from kinfed.data.text_tables import (
    AUTO,
    MISSING,
    TABLE_SUFFIXES,
    line_of,
    read_text_table,
    readable,
    suffix_of,
    table_header,
    text_encoding,
)
from kinfed.errors import InputError, naming
from kinfed.federation import Federation
from kinfed.progress import Progress
from kinfed.tabular import SourceTable
from kinfed.validation import Array, first_repeated, unknown

_ROWS = 50_000  # of a piece


def read_one_table(path: Path, roles: Roles, leave_out: Collection[str], encoding: str = AUTO) -> Federation:
    """Federation of the rows of one file."""
    part = _part(path, None, roles, encoding)
    if roles.agent is None:
        listed = ", ".join(part.frame.columns[:12]) + (", ..." if len(part.frame.columns) > 12 else "")
        raise InputError(
            f"{path} is one table; say which column tells its agents apart with agent=... (its columns are {listed})"
        )
    return _federation(path, [part], roles, leave_out)


def read_folder(
    folder: Path, paths: Sequence[Path], roles: Roles, leave_out: Collection[str], encoding: str = AUTO
) -> Federation:
    """Federation of several files: one agent each, named after its file, or rows by the column `agent` if that is given.

    A column that some of the files lack holds nothing there.
    """
    stems = [_stem(path) for path in paths]
    if roles.agent is None and (repeated := first_repeated(stems)) is not None:
        twice = [path.name for path, stem in zip(paths, stems, strict=True) if stem == repeated]
        raise InputError(f"{folder}: {twice[0]} and {twice[1]} are both agent {repeated!r}; keep one of them")
    parts = [_part(path, stem, roles, encoding) for path, stem in zip(paths, stems, strict=True)]
    for path, part in zip(paths, parts, strict=True):
        for column in roles.columns:
            if column not in part.frame.columns and any(column in other.frame.columns for other in parts):
                what = "target column" if column == roles.target else "column"
                raise InputError(f"{path} has no {what} {column!r}, but other files have; add it or leave the file out")
    return _federation(folder, parts, roles, leave_out)


def _part(path: Path, agent: str | None, roles: Roles, encoding: str) -> SourceTable:
    """One file, ready to be put together with others."""
    table = read_text_table(path, _labels(roles), encoding)
    named = f"{path.name}, " if agent is not None else ""

    def place(row: int) -> str:
        return f"{named}line {line_of(path, row, table.encoding)}"

    return SourceTable(table.frame, agent, place, table.semicolons, table.told)


def _labels(roles: Roles) -> tuple[str, ...]:
    """Columns of labels, which are text even if they look like numbers."""
    return tuple(column for column in (roles.agent, roles.group_by) if column is not None)


def _federation(source: Path, parts: Sequence[SourceTable], roles: Roles, leave_out: Collection[str]) -> Federation:
    columns = list(dict.fromkeys(column for part in parts for column in part.frame.columns))
    for column in (*roles.columns, *leave_out):
        if column not in columns:
            numbers = pd.to_numeric(pd.Series(columns, dtype=object), errors="coerce").notna().all()
            hint = " (the first line holds only numbers: does the file lack its header?)" if numbers else ""
            if column == roles.agent and len(parts) > 1:
                hint = " (every file is an agent here: leave out agent=...)"
            raise InputError(f"{source}: {unknown('column', column, columns)}{hint}")
    with naming(source):
        return Federation.from_parts(parts, roles, leave_out)


def read_table(path: Path, agent: str | None = None, as_text: Sequence[str] = (), encoding: str = AUTO) -> pd.DataFrame:
    """One file as a table whose numbers are written plainly; columns `agent` and `as_text` are text in any case."""
    labels = [name for name in (agent, *as_text) if name is not None]
    table = read_text_table(path, labels, encoding)
    return settled_table(table.frame, labels, table.semicolons)[0]


def _stem(path: Path) -> str:
    """The agent that a file is named after."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the name of the file {path.name.encode(errors='backslashreplace').decode()} is not UTF-8 text; rename it, as "
            "its agent is named so"
        ) from None
    return path.name[: -len(suffix_of(path))]


def chosen_columns(path: Path, columns: Sequence[str] = (), leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns to use: those named, in that order, or all of the table but those left out."""
    present = _columns(path)
    for name in (*columns, *leave_out):
        if name not in present:
            raise InputError(f"{path}: {unknown('column', name, present)}")
    kept = tuple(name for name in columns or present if name not in leave_out)
    if not kept:
        raise InputError(f"{path}: every column is left out; keep at least one")
    return kept


def numeric_batches(
    path: Path, columns: Sequence[str], *, rows: int = _ROWS, progress: Progress | None = None
) -> Iterator[Array]:
    """Yield arrays (at most `rows`, number of columns) of the table in `path`, in its order.

    Raises
    ------
    InputError
        At text or a missing value, naming the file, the column and the line.
    """
    start = 0
    for piece in _pieces(path, rows, progress):
        yield np.column_stack([_numbers(path, piece[name], start) for name in columns])
        start += len(piece)
    if not start:
        raise InputError(f"{path} has no rows; there is nothing to sketch")


def _columns(path: Path) -> list[str]:
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; give the path of a table")
    if suffix_of(path) not in TABLE_SUFFIXES:
        raise InputError(f"{path} is not a table; give one of {', '.join(TABLE_SUFFIXES)}")
    if suffix_of(path) == ".parquet":
        return list(read_table(path).columns)
    with readable(path):
        header, _ = table_header(path, text_encoding(path)[0])
    # An unnamed first column holds the row names that pandas and R write.
    return header[1:] if header[0] == "" and len(header) > 1 else header


def _pieces(path: Path, rows: int, progress: Progress | None) -> Iterator[pd.DataFrame]:
    """The table as data frames of at most `rows` rows."""
    if suffix_of(path) == ".parquet":
        whole = read_table(path)
        yield from (whole.iloc[start : start + rows] for start in range(0, len(whole), rows))
        return
    codec, _ = text_encoding(path)
    header, separator = table_header(path, codec)
    size = path.stat().st_size
    with open(path, "rb") as file, readable(path):
        text: Any = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
        reader = pd.read_csv(
            text,
            sep=separator,
            header=0,
            names=[name or f"column {j}" for j, name in enumerate(header)],
            index_col=False,
            na_values=list(MISSING),
            keep_default_na=False,
            skipinitialspace=True,
            encoding=codec,
            chunksize=rows,
        )
        for piece in reader:
            if progress is not None:
                progress("reading", file.tell(), size)
            yield piece if separator != ";" else piece.apply(_with_points)


def _with_points(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column of texts with decimal commas, as in tables whose cells are separated by semicolons, with points instead."""
    return values.str.replace(",", ".") if column_kind(values) == "text" else values


def _numbers(path: Path, values: pd.Series[Any], start: int) -> Array:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        line, name = line_of(path, start + int(wrong[0]), text_encoding(path)[0]), values.name
        if bool(values.isna().iloc[wrong[0]]):
            raise InputError(
                f"{path}: column {name!r} has no value in line {line}; fill it in, drop the row, or use --leave-out {name}"
            )
        raise InputError(
            f"{path}: column {name!r} holds {str(values.iloc[wrong[0]])!r} in line {line}, which is no number; turn it "
            f"into numbers, or use --leave-out {name}"
        )
    return numbers
