"""Files as tables, as they are written: how they are encoded, what separates their cells, which line is which.

What the cells mean is for others (`kinfed.cells`); columns that hold nothing but plain numbers are numbers already.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kinfed.cells import marks_of
from kinfed.columns import column_kind
from kinfed.errors import InputError, MissingExtraError
from kinfed.validation import first_repeated

TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-NaN", "-nan", "<NA>", "NULL", "null", "None", "?")
"""What stands for a missing value in a text file, in every column but those of labels."""

AUTO, UTF8, WINDOWS = "auto", "utf-8-sig", "cp1252"
"""Encodings: to be found out, and those that are looked for."""

_BLOCK = 1 << 20  # bytes looked at together
_LOOKED_AT = 1000  # different cells of a column that tell how it is written


def suffix_of(path: Path) -> str:
    """The ending that tells the format, in lower case: ".csv", ".csv.gz", ".parquet"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


class TextTable(NamedTuple):
    """A file as a table, and how it was read.

    Attributes
    ----------
    frame : DataFrame
    encoding : str
    semicolons : bool
        Whether cells are separated so.
    told : tuple of str
        What had to be guessed, in sentences.
    """

    frame: pd.DataFrame
    encoding: str = UTF8
    semicolons: bool = False
    told: tuple[str, ...] = ()


def read_text_table(path: Path, labels: Sequence[str] = (), encoding: str = AUTO) -> TextTable:
    """One file as it is written; columns of labels are text even if they look like numbers."""
    is_parquet = suffix_of(path) == ".parquet"
    table = TextTable(_read_parquet(path)) if is_parquet else _read_text(path, labels, encoding)
    if table.frame.empty:
        raise InputError(f"{path} has no rows; an agent without data cannot take part, so leave the file out")
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise MissingExtraError(f"{path} is a Parquet file; to read it run: pip install pyarrow") from None
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path} is not a Parquet file or is damaged ({first_sentence(error)}); write it again") from None
    # A named index holds data, often the agents; an unnamed one only numbers the rows.
    frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    return frame.set_axis([str(column) for column in frame.columns], axis=1)


def _read_text(path: Path, labels: Sequence[str], encoding: str) -> TextTable:
    codec, told = text_encoding(path, encoding)
    with readable(path):
        header, separator = table_header(path, codec)
        names = [name or f"column {j}" for j, name in enumerate(header)]
        if (repeated := first_repeated(names)) is not None:
            raise InputError(f"{path}: two columns are named {repeated!r}; rename one of them")

        def read(as_text: Sequence[str]) -> pd.DataFrame:
            with warnings.catch_warnings():
                # pandas only warns where a line has more cells than the header, and drops the rest.
                warnings.simplefilter("error", pd.errors.ParserWarning)
                return pd.read_csv(
                    path,
                    sep=separator,
                    header=0,
                    names=names,
                    index_col=False,
                    dtype={name: str for name in as_text if name in names},
                    na_values={name: [""] if name in labels else list(MISSING) for name in names},
                    keep_default_na=False,
                    skipinitialspace=True,
                    low_memory=False,
                    encoding=codec,
                )

        frame, semicolons = read(labels), separator == ";"
        # Where commas are decimal, 1.234 is no number with a point: such columns are looked at as they are written.
        doubtful = [name for name in names if _may_be_thousands(frame[name])] if _has_commas(frame, semicolons) else []
        frame = read((*labels, *doubtful)) if doubtful else frame
    # An unnamed first column holds the row names that pandas and R write: no property of the rows.
    frame = frame.drop(columns=names[0]) if header[0] == "" and len(names) > 1 else frame
    return TextTable(frame, codec, semicolons, told)


def text_encoding(path: Path, encoding: str = AUTO) -> tuple[str, tuple[str, ...]]:
    """How a text file is written, and a sentence if that was guessed; UTF-8, UTF-16 with its mark, else Windows-1252."""
    if encoding != AUTO:
        try:
            return codecs.lookup(encoding).name, ()
        except LookupError:
            raise InputError(f"there is no encoding {encoding!r}; give one such as utf-8, latin-1 or cp1252") from None
    open_bytes: Any = gzip.open if path.suffix.lower() == ".gz" else open
    decoder = codecs.getincrementaldecoder("utf-8")()
    with readable(path), open_bytes(path, "rb") as file:
        start = file.read(_BLOCK)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", ()
        block = start
        try:
            while block:
                decoder.decode(block)
                block = file.read(_BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            if b"\0" in start:
                raise InputError(f"{path} is not text; give a table as CSV, TSV or Parquet") from None
            return WINDOWS, (f"{path.name} is not UTF-8 and was read as Windows-1252 (name its encoding to change that)",)
    return UTF8, ()


def _has_commas(frame: pd.DataFrame, semicolons: bool) -> bool:
    """Whether a table writes numbers with decimal commas."""
    texts = [frame[name] for name in frame.columns if column_kind(frame[name]) == "text"]
    marks = [marks_of(map(str, one.dropna().unique()[:_LOOKED_AT])) for one in texts]
    points, commas = (sum(one[place] for one in marks) for place in (0, 1))
    return commas > points or (semicolons and commas == points)


def _may_be_thousands(values: pd.Series[Any]) -> bool:
    """Whether numbers that were read with a point could have been written in thousands, as 1.234 is."""
    if values.dtype != np.float64:
        return False
    numbers = values.dropna().to_numpy()
    return bool(len(numbers)) and bool((np.abs(numbers) >= 1).all() and (np.abs(numbers) < 1000).all())


def line_of(path: Path, row: int, encoding: str) -> int:
    """The line of a text file, counted from 1 as an editor does, in which a row begins."""
    if suffix_of(path) == ".parquet":
        return row + 1
    _, separator = table_header(path, encoding)
    with _open_text(path, encoding) as text:
        reader = csv.reader(text, delimiter=separator, skipinitialspace=True)
        before = 0
        for cells in reader:
            if any(cells):
                row -= 1
            if row < -1:
                return before + 1
            before = reader.line_num
    return before + 1


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what can go wrong while a text file is read into an `InputError` that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in {error.encoding}; say how it is written with encoding=...") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, csv.Error) as error:
        raise InputError(
            f"{path} is not a regular table ({first_sentence(error)}); give every line the same cells"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({first_sentence(error)})") from None


def _open_text(path: Path, encoding: str) -> Any:
    open_text: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return open_text(path, "rt", encoding=encoding, newline="")


def table_header(path: Path, encoding: str = UTF8) -> tuple[list[str], str]:
    """Names in the first line that is not empty, and what separates them: tab in a TSV, else what most often does."""
    with _open_text(path, encoding) as text:
        first = next((line for line in text if line.strip()), "")
        if not first:
            raise InputError(f"{path} is empty; an agent without data cannot take part, so leave the file out")
        unquoted = re.sub(r'"[^"]*"', "", first)
        separator = "\t" if ".tsv" in suffix_of(path) else max(",;\t|", key=unquoted.count)
        text.seek(0)
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        return [name.strip() for name in next(row for row in rows if any(row))], separator


def first_sentence(error: BaseException) -> str:
    """The first line of an error from elsewhere, to stand inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
