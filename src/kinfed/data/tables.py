"""Tables in files: one CSV, TSV or Parquet file with an agent column, or a folder of one file per agent.

A site that sketches a file larger than its memory reads columns of numbers of it piece by piece: `numeric_batches`.
"""

from __future__ import annotations

import csv
import gzip
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfed.columns import Roles, agent_labels, column_kind
from kinfed.errors import InputError, MissingExtraError, naming
from kinfed.federation import Federation, assemble
from kinfed.progress import Progress
from kinfed.validation import Array, first_repeated, unknown

TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-NaN", "-nan", "<NA>", "NULL", "null", "None", "?")
"""What stands for a missing value in a text file, in every column but the agent's."""
_ROWS = 50_000  # of a piece


def suffix_of(path: Path) -> str:
    """The ending that tells the format, in lower case: ".csv", ".csv.gz", ".parquet"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def read_one_table(path: Path, roles: Roles, leave_out: Collection[str]) -> Federation:
    """Federation of the rows of one file."""
    frame = read_table(path, roles.agent, _labels(roles))
    if roles.agent is None:
        listed = ", ".join(frame.columns[:12]) + (", ..." if len(frame.columns) > 12 else "")
        raise InputError(
            f"{path} is one table; say which column tells its agents apart with agent=... (its columns are {listed})"
        )
    return _federation(path, {path: frame}, roles, leave_out)


def read_folder(folder: Path, paths: Sequence[Path], roles: Roles, leave_out: Collection[str]) -> Federation:
    """Federation of several files: one agent each, named after its file, or rows by the column `agent` if that is given."""
    stems, agent = [_stem(path) for path in paths], roles.agent
    if agent is None and (repeated := first_repeated(stems)) is not None:
        twice = [path.name for path, stem in zip(paths, stems, strict=True) if stem == repeated]
        raise InputError(f"{folder}: {twice[0]} and {twice[1]} are both agent {repeated!r}; keep one of them")
    frames = {path: read_table(path, agent, _labels(roles)) for path in paths}
    _check_same_columns(frames, roles.target)
    if disagreeing := _numbers_here_text_there(frames):
        # A column that is text at one agent is text for all; reading it so keeps 007 from turning into 7.
        frames = {path: read_table(path, agent, (*_labels(roles), *disagreeing)) for path in paths}
    return _federation(folder, frames, roles, leave_out)


def _labels(roles: Roles) -> tuple[str, ...]:
    """Columns of labels, which are text even if they look like numbers."""
    return () if roles.group_by is None else (roles.group_by,)


def read_table(path: Path, agent: str | None = None, as_text: Sequence[str] = ()) -> pd.DataFrame:
    """One file as a table; of a text file, the columns `agent` and `as_text` are text even if they look like numbers."""
    frame = _read_parquet(path) if suffix_of(path) == ".parquet" else _read_text(path, agent, as_text)
    if frame.empty:
        raise InputError(f"{path} has no rows; an agent without data cannot take part, so leave the file out")
    return frame


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


def _read_text(path: Path, agent: str | None, as_text: Sequence[str]) -> pd.DataFrame:
    with readable(path):
        header, separator = table_header(path)
        names = [name or f"column {j}" for j, name in enumerate(header)]
        if (repeated := first_repeated(names)) is not None:
            raise InputError(f"{path}: two columns are named {repeated!r}; rename one of them")
        with warnings.catch_warnings():
            # pandas only warns where a line has more cells than the header, and drops the rest.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                sep=separator,
                header=0,
                names=names,
                index_col=False,
                dtype={name: str for name in (agent, *as_text) if name in names},
                na_values={name: [""] if name == agent else list(MISSING) for name in names},
                keep_default_na=False,
                skipinitialspace=True,
                low_memory=False,
                encoding="utf-8-sig",
            )
    if separator == ";":  # the cells are separated so because commas are decimal
        frame = frame.assign(**{name: _decimal_commas(frame[name]) for name in names if name not in (agent, *as_text)})
    # An unnamed first column holds the row names that pandas and R write: no property of the rows.
    return frame.drop(columns=names[0]) if header[0] == "" and len(names) > 1 else frame


def _decimal_commas(values: pd.Series[Any]) -> pd.Series[Any]:
    """The column as numbers if every value of it is one, written with a comma or without."""
    texts = values.dropna()
    if column_kind(values) != "text" or not texts.str.fullmatch(r"\s*[-+]?\d+(,\d+)?\s*").all():
        return values
    return pd.to_numeric(texts.str.replace(",", ".")).reindex(values.index)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what can go wrong while a text file is read into an `InputError` that names it."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it again with that encoding") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, csv.Error) as error:
        raise InputError(
            f"{path} is not a regular table ({first_sentence(error)}); give every line the same cells"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({first_sentence(error)})") from None


def table_header(path: Path) -> tuple[list[str], str]:
    """Names in the first line that is not empty, and what separates them: tab in a TSV, else comma or semicolon."""
    open_text: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with open_text(path, "rt", encoding="utf-8-sig", newline="") as text:
        first = next((line for line in text if line.strip()), "")
        if not first:
            raise InputError(f"{path} is empty; an agent without data cannot take part, so leave the file out")
        separator = "\t" if ".tsv" in suffix_of(path) else ";" if ";" in first and "," not in first else ","
        text.seek(0)
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        return [name.strip() for name in next(row for row in rows if any(row))], separator


def _federation(source: Path, frames: Mapping[Path, pd.DataFrame], roles: Roles, leave_out: Collection[str]) -> Federation:
    target, agent = roles.target, roles.agent
    paths, tables = list(frames), list(frames.values())
    columns = list(tables[0].columns)
    for column in (*roles.columns, *leave_out):
        if column not in columns:
            numbers = pd.to_numeric(pd.Series(columns, dtype=object), errors="coerce").notna().all()
            hint = " (the first line holds only numbers: does the file lack its header?)" if numbers else ""
            if column == agent and len(paths) > 1:
                hint = " (every file is an agent here: leave out agent=...)"
            raise InputError(f"{source}: {unknown('column', column, columns)}{hint}")
    with naming(source):
        roles.check()
    sizes = [len(table) for table in tables]
    starts = np.cumsum([0, *sizes[:-1]])
    frame = pd.concat([table[columns] for table in tables], ignore_index=True)

    def place(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        within = f"row {row - starts[file]}"
        return f"{paths[file].name}, {within}" if len(paths) > 1 or agent is None else f"agent {labels[row]}, {within}"

    with naming(source):
        labels = np.repeat([_stem(path) for path in paths], sizes) if agent is None else agent_labels(frame[agent])
        y = None if target is None else frame[target]
        if y is not None and column_kind(y) in ("text", "mixed") and not isinstance(y.dtype, pd.CategoricalDtype):
            _refuse_mixture(y, place)
        kept = [column for column in columns if column not in (*roles.columns, *leave_out)]
        beside = {what: frame[column] for what, column in roles.beside.items()}
        return assemble(frame[kept], y, labels, place, target=target, beside=beside)


def _check_same_columns(frames: Mapping[Path, pd.DataFrame], target: str | None) -> None:
    first_path, first = next(iter(frames.items()))
    for path, frame in frames.items():
        if target is not None and target not in frame.columns and any(target in other.columns for other in frames.values()):
            raise InputError(f"{path} has no target column {target!r}, but other files have; add it or leave the file out")
        missing = [column for column in first.columns if column not in frame.columns]
        added = [column for column in frame.columns if column not in first.columns]
        if missing or added:
            having, lacking = (first_path, path) if missing else (path, first_path)
            raise InputError(
                f"{lacking} has no column {(missing or added)[0]!r}, but {having.name} has; all agents must share the same "
                "columns"
            )


def _numbers_here_text_there(frames: Mapping[Path, pd.DataFrame]) -> list[str]:
    """Columns that are numbers in one file and text in another; only text files may disagree so."""
    found = []
    for column in next(iter(frames.values())).columns:
        kinds = {path: column_kind(frame[column]) for path, frame in frames.items() if frame[column].notna().any()}
        numeric = [path for path, kind in kinds.items() if kind == "numeric"]
        others = [path for path, kind in kinds.items() if kind != "numeric"]
        if numeric and others:
            if any(suffix_of(path) == ".parquet" for path in kinds):
                raise InputError(
                    f"column {column!r} holds numbers in {numeric[0]}, but not in {others[0].name}; use one type for all"
                )
            found.append(column)
    return found


def _refuse_mixture(y: pd.Series[Any], place: Any) -> None:
    """Refuse a target of numbers mixed with text, or with a decimal comma: neither a regression nor classes."""
    texts = y.dropna().astype(str)
    numbers = pd.to_numeric(texts, errors="coerce").notna()
    commas = texts.str.fullmatch(r"\s*[-+]?\d+,\d+\s*")
    if commas.any():
        row = int(texts.index[commas][0])
        raise InputError(f"{place(row)}: target {y.name!r} is {texts[row]!r}; write numbers with a point, without commas")
    if numbers.any() and not numbers.all():
        row = int(texts.index[~numbers][0])
        raise InputError(
            f"{place(row)}: target {y.name!r} is {texts[row]!r}, but other rows hold numbers; "
            "correct it, or turn all labels into words if these are classes"
        )


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


def first_sentence(error: BaseException) -> str:
    """The first line of an error from elsewhere, to stand inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


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
    with readable(path):
        header, _ = table_header(path)
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
            encoding="utf-8-sig",
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
