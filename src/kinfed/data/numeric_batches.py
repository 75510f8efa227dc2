"""Columns of numbers of one table, piece by piece: what a site needs that sketches a file larger than its memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfed.columns import column_kind, unknown
from kinfed.data.tables import MISSING, TABLE_SUFFIXES, first_sentence, read_table, suffix_of, table_header
from kinfed.errors import InputError
from kinfed.progress import Progress

_ROWS = 50_000  # of a piece


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
) -> Iterator[NDArray[np.float64]]:
    """Yield arrays (at most `rows`, number of columns) of the table in `path`, in its order.

    Raises
    ------
    InputError
        At text or a missing value, naming the file, the column and the row. Rows count from 0.
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
    try:
        header, _ = table_header(path)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it again with that encoding") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    # An unnamed first column holds the row names that pandas and R write.
    return header[1:] if header[0] == "" and len(header) > 1 else header


def _pieces(path: Path, rows: int, progress: Progress | None) -> Iterator[pd.DataFrame]:
    """The table as data frames of at most `rows` rows."""
    if suffix_of(path) == ".parquet":
        whole = read_table(path)
        yield from (whole.iloc[start : start + rows] for start in range(0, len(whole), rows))
        return
    header, separator = table_header(path)
    size = path.stat().st_size
    with open(path, "rb") as file:
        text: Any = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
        try:
            reader = pd.read_csv(
                text,
                sep=separator,
                header=0,
                names=[name or f"column {j}" for j, name in enumerate(header)],
                index_col=False,
                na_values=list(MISSING),
                keep_default_na=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
                chunksize=rows,
            )
            for piece in reader:
                if progress is not None:
                    progress("reading", file.tell(), size)
                yield piece if separator != ";" else piece.apply(_with_points)
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text; save it again with that encoding") from None
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            raise InputError(
                f"{path} is not a regular table ({first_sentence(error)}); give every line the same cells"
            ) from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({error})") from None


def _with_points(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column of texts with decimal commas, as in tables whose cells are separated by semicolons, with points instead."""
    return values.str.replace(",", ".") if column_kind(values) == "text" else values


def _numbers(path: Path, values: pd.Series[Any], start: int) -> NDArray[np.float64]:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        row, name = start + int(wrong[0]), values.name
        if bool(values.isna().iloc[wrong[0]]):
            raise InputError(
                f"{path}: column {name!r} has no value in row {row}; fill it in, drop the row, or use --leave-out {name}"
            )
        raise InputError(
            f"{path}: column {name!r} holds {str(values.iloc[wrong[0]])!r} in row {row}, which is no number; turn it into "
            f"numbers, or use --leave-out {name}"
        )
    return numbers
