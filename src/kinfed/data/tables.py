"""Tables in files: one CSV, TSV or Parquet file with an agent column, or a folder of one file per agent."""

from __future__ import annotations

import csv
import gzip
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfed.columns import agent_labels, column_kind, first_repeated, unknown
from kinfed.errors import InputError, MissingExtraError
from kinfed.federation import Federation, assemble

TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-NaN", "-nan", "<NA>", "NULL", "null", "None", "?")
"""What stands for a missing value in a text file, in every column but the agent's."""


def suffix_of(path: Path) -> str:
    """The ending that tells the format, in lower case: ".csv", ".csv.gz", ".parquet"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def read_one_table(path: Path, target: str | None, agent: str | None, leave_out: Collection[str]) -> Federation:
    """Federation of the rows of one file."""
    frame = read_table(path, agent)
    if agent is None:
        listed = ", ".join(frame.columns[:12]) + (", ..." if len(frame.columns) > 12 else "")
        raise InputError(
            f"{path} is one table; say which column tells its agents apart with agent=... (its columns are {listed})"
        )
    return _federation(path, {path: frame}, target, agent, leave_out)


def read_folder(
    folder: Path, paths: Sequence[Path], target: str | None, agent: str | None, leave_out: Collection[str]
) -> Federation:
    """Federation of several files: one agent each, named after its file, or rows by the column `agent` if that is given."""
    stems = [_stem(path) for path in paths]
    repeated = first_repeated(stems)
    if agent is None and repeated is not None:
        twice = [path.name for path, stem in zip(paths, stems, strict=True) if stem == repeated]
        raise InputError(f"{folder}: {twice[0]} and {twice[1]} are both agent {repeated!r}; keep one of them")
    frames = {path: read_table(path, agent) for path in paths}
    _check_same_columns(frames, target)
    disagreeing = _numbers_here_text_there(frames)
    if disagreeing:
        # A column that is text at one agent is text for all; reading it so keeps 007 from turning into 7.
        frames = {path: read_table(path, agent, disagreeing) for path in paths}
    return _federation(folder, frames, target, agent, leave_out)


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
    try:
        header, separator = table_header(path)
        names = [name or f"column {j}" for j, name in enumerate(header)]
        repeated = first_repeated(names)
        if repeated is not None:
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
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it again with that encoding") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise InputError(
            f"{path} is not a regular table ({first_sentence(error)}); give every line the same cells"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({first_sentence(error)})") from None
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


def _federation(
    source: Path, frames: Mapping[Path, pd.DataFrame], target: str | None, agent: str | None, leave_out: Collection[str]
) -> Federation:
    paths, tables = list(frames), list(frames.values())
    columns = list(tables[0].columns)
    for column in (agent, target, *leave_out):
        if column is not None and column not in columns:
            hint = " (every file is an agent here: leave out agent=...)" if column == agent and len(paths) > 1 else ""
            raise InputError(f"{source}: {unknown('column', column, columns)}{hint or _header_hint(columns)}")
    if agent is not None and agent == target:
        raise InputError(f"{source}: column {agent!r} cannot be both the agent and the target")
    sizes = [len(table) for table in tables]
    starts = np.cumsum([0, *sizes[:-1]])
    frame = pd.concat([table[columns] for table in tables], ignore_index=True)

    def place(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        within = f"row {row - starts[file]}"
        return f"{paths[file].name}, {within}" if len(paths) > 1 or agent is None else f"agent {labels[row]}, {within}"

    try:
        labels = np.repeat([_stem(path) for path in paths], sizes) if agent is None else agent_labels(frame[agent])
        y = None if target is None else frame[target]
        if y is not None and column_kind(y) in ("text", "mixed") and not isinstance(y.dtype, pd.CategoricalDtype):
            _refuse_mixture(y, place)
        used = {column for column in (agent, target, *leave_out) if column is not None}
        return assemble(frame.drop(columns=list(used)), y, labels, place, target=target)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


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


def _header_hint(columns: Sequence[str]) -> str:
    numbers = pd.to_numeric(pd.Series(columns, dtype=object), errors="coerce").notna().all()
    return " (the first line holds only numbers: does the file lack its header?)" if numbers else ""


def _stem(path: Path) -> str:
    """The agent that a file is named after."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        shown = path.name.encode(errors="backslashreplace").decode()
        raise InputError(f"the name of the file {shown} is not UTF-8 text; rename it, as its agent is named so") from None
    return path.name[: -len(suffix_of(path))]


def first_sentence(error: BaseException) -> str:
    """The first line of an error from elsewhere, to stand inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
