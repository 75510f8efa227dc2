"""The one door to federations in files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from kinfed.data.archive import read_archive
from kinfed.data.leaf import read_leaf
from kinfed.data.tables import TABLE_SUFFIXES, read_folder, read_one_table, suffix_of
from kinfed.errors import InputError
from kinfed.federation import Federation

SUFFIXES = (*TABLE_SUFFIXES, ".json", ".npz")


def read_federation(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    agent: str | None = None,
    leave_out: Collection[str] = (),
) -> Federation:
    """Read a federation from a file or a folder.

    ============================================  =====================================================================
    what `path` is                                agents
    ============================================  =====================================================================
    a table: .csv, .tsv (also .gz), .parquet      the labels in the column `agent`
    a folder of such tables                       one per file, named after it; or the labels in `agent` if given
    LEAF JSON: a .json file, or a folder of them  its users; the target is their y
    a NumPy archive: .npz                         ``agent``, or ``agent_names[agent]``; see `kinfed.data.archive`
    ============================================  =====================================================================

    Parameters
    ----------
    path : path
    target : str, optional
        Column of a table to predict; without it there is none. An archive with several targets needs it too.
    agent : str, optional
        Column of a table that tells agents apart.
    leave_out : collection of str
        Columns not to use: identifiers, say.

    Returns
    -------
    Federation
        Text and missing values are kept as they are, for `kinfed.data.Preparation`. In text files an empty cell, NA,
        NaN, NULL, None and ? are missing, agents' labels are text (007 stays 007), a first column without a name is taken
        for row names and left out, and cells may be separated by semicolons, with commas in the numbers.

    Raises
    ------
    InputError
        If anything is wrong; the message names the file and the agent, column or row. Rows count from 0.
    """
    source = Path(path).expanduser()
    skipped = (leave_out,) if isinstance(leave_out, str) else tuple(leave_out)
    if not source.exists():
        raise InputError(f"{source} does not exist; give the path of a file or folder")
    if source.is_dir():
        return _read_folder(source, target, agent, skipped)
    suffix = suffix_of(source)
    if suffix in TABLE_SUFFIXES:
        return read_one_table(source, target, agent, skipped)
    if suffix == ".json":
        _refuse_options(source, "a LEAF file", target, agent, skipped)
        return read_leaf(source, [source])
    if suffix == ".npz":
        _refuse_options(source, "a NumPy archive", None, None if agent == "agent" else agent, ())
        return read_archive(source, target, skipped)
    raise InputError(f"{source}: files of type {suffix or 'unknown'} are not read; give one of {', '.join(SUFFIXES)}")


def _read_folder(folder: Path, target: str | None, agent: str | None, leave_out: tuple[str, ...]) -> Federation:
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith((".", "_")))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror or error})") from None
    tables = [path for path in files if suffix_of(path) in TABLE_SUFFIXES]
    leaf = [path for path in files if suffix_of(path) == ".json"]
    if tables and leaf:
        raise InputError(
            f"{folder} holds tables ({tables[0].name}) and LEAF files ({leaf[0].name}); keep them in folders of their own"
        )
    if tables:
        return read_folder(folder, tables, target, agent, leave_out)
    if leaf:
        _refuse_options(folder, "LEAF data", target, agent, leave_out)
        return read_leaf(folder, leaf)
    known = ", ".join((*TABLE_SUFFIXES, ".json"))
    raise InputError(f"{folder} holds no tables or LEAF files; give a folder of {known} files")


def _refuse_options(source: Path, what: str, target: str | None, agent: str | None, leave_out: tuple[str, ...]) -> None:
    if target not in (None, "y"):
        raise InputError(f"{source} is {what}, whose target is y; leave target={target!r} out")
    if agent is not None:
        raise InputError(f"{source} is {what}, which names its own agents; leave agent={agent!r} out")
    if leave_out:
        raise InputError(f"{source} is {what}, whose columns have no names; leave_out cannot be used with it")
