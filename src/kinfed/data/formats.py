"""The one door to federations in files; NumPy archives and LEAF JSON are read here, tables in `kinfed.data.tables`.

An archive holds ``X``, ``agent`` and what may come with them, and is read without pickles. LEAF's files hold ``users``,
``num_samples`` and ``user_data[user] = {"x": [rows], "y": [targets]}``, all users in one file or in several.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.columns import Roles, agent_labels
from kinfed.data.tables import read_folder, read_one_table
from kinfed.data.text_tables import AUTO, TABLE_SUFFIXES, suffix_of
from kinfed.errors import InputError, naming
from kinfed.federation import Federation, assemble
from kinfed.validation import Array, unknown

SUFFIXES = (*TABLE_SUFFIXES, ".json", ".npz")
ARRAYS = ("X", "y", "agent", "agent_names", "feature_names", "target_names", "groups", "dup")
"""The arrays that are read; an archive may hold others."""
_BEGINNING = 1 << 20
"""How many characters of a file are searched for the names of its users before all of it is read."""


def read_federation(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    agent: str | None = None,
    leave_out: Collection[str] = (),
    group_by: str | None = None,
    time: str | None = None,
    sample_weight: str | None = None,
    encoding: str = AUTO,
) -> Federation:
    """Read a federation from a file or a folder.

    ============================================  =====================================================================
    what `path` is                                agents
    ============================================  =====================================================================
    a table: .csv, .tsv (also .gz), .parquet      the labels in the column `agent`
    a folder of such tables                       one per file, named after it; or the labels in `agent` if given
    LEAF JSON: a .json file, or a folder of them  its users; the target is their y
    a NumPy archive: .npz                         ``agent``, or ``agent_names[agent]``; see `kinfed.data.formats`
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
    group_by : str, optional
        Column whose labels, such as patients, keep their rows on one side of every split; it is no feature.
    time : str, optional
        Column that tells when a row was, in numbers or dates: the latest are tested on; it is no feature.
    sample_weight : str, optional
        Column that tells how much a row counts in training; it is no feature.
    encoding : str
        How text files are written, such as "latin-1"; "auto" takes UTF-8, else Windows-1252, and notes that.

    Returns
    -------
    Federation
        Text and missing values are kept as they are, for `kinfed.data.Preparation`. In text files an empty cell, NA,
        NaN, NULL, None and ? are missing, agents' labels are text (007 stays 007), a first column without a name is taken
        for row names and left out, and cells may be separated by semicolons, tabs or bars. Numbers may be written as people
        do ("39%", "1.234,5", "12 €"); rows without an agent or without an outcome are left out. What was done is in the
        `notes` of the federation.

    Raises
    ------
    InputError
        If anything is wrong; the message names the file and the agent, column or line. Lines count as in the file.
    """
    source = Path(path).expanduser()
    skipped = (leave_out,) if isinstance(leave_out, str) else tuple(leave_out)
    if not source.exists():
        raise InputError(f"{source} does not exist; give the path of a file or folder")
    roles = Roles(agent, target, group_by, time, sample_weight)
    if source.is_dir():
        return _read_folder(source, roles, skipped, encoding)
    suffix = suffix_of(source)
    if suffix in TABLE_SUFFIXES:
        return read_one_table(source, roles, skipped, encoding)
    if suffix == ".json":
        _refuse_options(source, "a LEAF file", target, agent, (*skipped, *roles.beside.values()))
        return read_leaf(source, [source])
    if suffix == ".npz":
        _refuse_options(source, "a NumPy archive", None, None if agent == "agent" else agent, ())
        return read_archive(source, target, skipped, roles=roles)
    raise InputError(f"{source}: files of type {suffix or 'unknown'} are not read; give one of {', '.join(SUFFIXES)}")


def _read_folder(folder: Path, roles: Roles, leave_out: tuple[str, ...], encoding: str) -> Federation:
    files = [path for path in visible(folder) if path.is_file()]
    tables = [path for path in files if suffix_of(path) in TABLE_SUFFIXES]
    leaf = [path for path in files if suffix_of(path) == ".json"]
    if tables and leaf:
        raise InputError(
            f"{folder} holds tables ({tables[0].name}) and LEAF files ({leaf[0].name}); keep them in folders of their own"
        )
    if tables:
        return read_folder(folder, tables, roles, leave_out, encoding)
    if leaf:
        _refuse_options(folder, "LEAF data", roles.target, roles.agent, (*leave_out, *roles.beside.values()))
        return read_leaf(folder, leaf)
    raise InputError(f"{folder} holds no tables or LEAF files; give a folder of {', '.join(SUFFIXES[:-1])} files")


def _refuse_options(source: Path, what: str, target: str | None, agent: str | None, named: tuple[str, ...]) -> None:
    if target not in (None, "y"):
        raise InputError(f"{source} is {what}, whose target is y; leave target={target!r} out")
    if agent is not None:
        raise InputError(f"{source} is {what}, which names its own agents; leave agent={agent!r} out")
    if named:
        raise InputError(f"{source} is {what}, whose columns have no names; there is no column {named[0]!r} in it")


def read_archive(
    path: Path,
    target: str | None,
    leave_out: Collection[str],
    choose: Callable[[Collection[str]], Collection[str]] | None = None,
    roles: Roles | None = None,
) -> Federation:
    """Federation of an ``.npz`` archive.

    ``X`` (n, d) and ``agent`` (n,) are needed; ``agent`` holds labels, or indices into ``agent_names`` if that is there.
    Optional: ``y`` (n,), or (n, several) with ``target_names`` of which `target` picks one; ``feature_names`` (d,);
    ``groups``, one label per agent in the order of ``agent_names``, else of first appearance; ``dup`` (n,), rows to drop.
    With `choose` only the agents it returns of all their names are kept. Features that have `roles` beside the features
    are taken out of them.
    """
    arrays = _load(path)
    for key in ("X", "agent"):
        if key not in arrays:
            raise InputError(f"{path} has no array {key!r}; an archive needs X and agent, and y if there is a target")
    if arrays["X"].ndim != 2:
        raise InputError(f"{path}: X has shape {arrays['X'].shape}; reshape it to (n, d)")
    n, d = arrays["X"].shape
    for key in ("agent", "y", "dup"):
        if key in arrays and (arrays[key].ndim == 0 or len(arrays[key]) != n):
            raise InputError(f"{path}: {key} has shape {arrays[key].shape}, but X has {n} rows; give one entry per row")
    columns = arrays["feature_names"].astype(str).tolist() if "feature_names" in arrays else [f"x{j}" for j in range(d)]
    if len(columns) != d:
        raise InputError(f"{path}: there are {len(columns)} feature_names for {d} columns of X")
    beside = {} if roles is None else roles.beside
    for column in (*leave_out, *beside.values()):
        if column not in columns:
            raise InputError(f"{path}: {unknown('column', column, columns)}")
    y, name = _target(path, arrays, target)
    kept = ~arrays["dup"].astype(bool) if "dup" in arrays else np.ones(n, dtype=bool)
    used = [j for j, column in enumerate(columns) if column not in (*leave_out, *beside.values())]
    with naming(path):
        labels, groups = _agents(arrays, kept)
        if choose is not None:
            chosen = set(choose(set(labels.tolist())))
            kept[kept] = [label in chosen for label in labels]
            labels, groups = _agents(arrays, kept)
        rows = np.flatnonzero(kept)
        return assemble(
            arrays["X"][kept] if len(used) == d else arrays["X"][kept][:, used],
            None if y is None else y[kept],
            labels,
            lambda row: f"agent {labels[row]}, row {rows[row]}",
            groups=groups,
            columns=[columns[j] for j in used],
            target=name,
            beside={what: arrays["X"][kept, columns.index(column)] for what, column in beside.items()},
        )


def visible(folder: Path, *hidden: str) -> list[Path]:
    """What is in a folder, sorted, without names that start with a point, an underscore, or one of these."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_", *hidden)))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror or error})") from None


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open(path, "rb") as file:  # NumPy itself leaves a file open that turns out to be no archive
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                with loaded as archive:
                    return {key: _plain(archive[key], key) for key in ARRAYS if key in archive.files}
    except Exception as error:  # a damaged file can raise anything: TokenError and SystemError have been seen
        raise InputError(f"{path} is not a NumPy archive of plain arrays or is damaged ({error}); write it again") from None
    raise InputError(f"{path} is a single array; an archive made with numpy.savez is needed")


def _plain(array: Any, key: str) -> NDArray[Any]:
    """An array of numbers or text; NumPy hands out bytes if an entry's first bytes are damaged."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufUS":
        raise TypeError(f"{key} is not an array of numbers or text")
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        code_points = np.frombuffer(array.tobytes(), dtype=np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if code_points.max() > sys.maxunicode:
            raise ValueError(f"{key} holds characters that do not exist")
    return array


def _target(path: Path, arrays: dict[str, NDArray[Any]], target: str | None) -> tuple[NDArray[Any] | None, str | None]:
    """The target and its name: y, or the column of y that `target` names."""
    y = arrays.get("y")
    if y is None:
        if target is not None:
            raise InputError(f"{path} has no array y, so no target {target!r}; leave target out")
        return None, None
    names = arrays["target_names"].astype(str).tolist() if "target_names" in arrays else ["y"]
    if y.ndim == 1:
        if target not in (None, "y", names[0]):
            raise InputError(f"{path}: {unknown('target', target, names)}")
        return y, names[0]
    if y.ndim != 2 or len(names) != y.shape[1]:
        raise InputError(f"{path}: y has shape {y.shape}; give one value per row, or name its columns in target_names")
    if target is None:
        raise InputError(f"{path} has several targets; choose one with target=... ({', '.join(names)})")
    if target not in names:
        raise InputError(f"{path}: {unknown('target', target, names)}")
    return y[:, names.index(target)], target


def _agents(arrays: dict[str, NDArray[Any]], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], dict[str, Any] | None]:
    """Label of every kept row, and the groups by agent."""
    agent, groups = arrays["agent"], arrays.get("groups")
    if "agent_names" in arrays:
        names = arrays["agent_names"].astype(str)
        if agent.dtype.kind not in "iu" or (len(agent) and not 0 <= agent.min() <= agent.max() < len(names)):
            raise InputError(f"agent must hold indices from 0 to {len(names) - 1} into agent_names")
        labels = agent_labels(names[agent[kept]])
        order = names.tolist()
    else:
        labels = agent_labels(agent[kept])
        order = list(dict.fromkeys(agent_labels(agent).tolist()))
    if groups is None:
        return labels, None
    if len(groups) != len(order):
        raise InputError(f"there are {len(groups)} groups for {len(order)} agents; give one label per agent")
    present = set(labels.tolist())
    return labels, {name: label for name, label in zip(order, groups.tolist(), strict=True) if name in present}


def read_leaf(source: Path, paths: Sequence[Path]) -> Federation:
    """Federation of the users of all files; `source` is what the caller named."""
    users: list[str] = []
    features: list[Array] = []
    targets: list[Any] = []
    for path, user, X, y in leaf_samples(source, paths):
        if features and X.shape[1] != features[0].shape[1]:
            raise InputError(
                f"{path}: the rows of user {user} have length {X.shape[1]}, those of user {users[0]} have "
                f"{features[0].shape[1]}; all users must share the same features"
            )
        users.append(user)
        features.append(X)
        targets.extend(y)
    sizes = [len(X) for X in features]
    labels = np.repeat(np.array(users, dtype=object), sizes)
    starts = np.cumsum([0, *sizes[:-1]])

    def place(row: int) -> str:
        return f"user {labels[row]}, row {row - starts[users.index(labels[row])]}"

    with naming(source):
        return assemble(np.concatenate(features), targets, labels, place, target="y")


def leaf_samples(
    source: Path, paths: Sequence[Path], chosen: Collection[str] | None = None
) -> Iterator[tuple[Path, str, Array, list[Any]]]:
    """The file, name, rows x and targets y of one user after the other; of those in `chosen` alone if that is given."""
    owner: dict[str, Path] = {}
    for path in paths:
        content = _content(path)
        for user, claimed in zip(content["users"], content["num_samples"], strict=True):
            if user in owner:
                raise InputError(
                    f"user {user} is in {owner[user].name} and in {path.name} of {source}; "
                    "read training and test files apart, or keep one of them"
                )
            owner[user] = path
            if chosen is None or user in chosen:
                yield path, user, *_samples(path, user, content["user_data"], claimed)
    if not owner:
        raise InputError(f"{source} names no users; give LEAF files with data")


def leaf_users(path: Path) -> list[str]:
    """Names of the users of a file, from its beginning alone if it starts with them, as the files LEAF writes do."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            beginning = file.read(_BEGINNING)
        if opening := re.match(r'\s*\{\s*"users"\s*:\s*(?=\[)', beginning):
            return [str(user) for user in json.JSONDecoder().raw_decode(beginning, opening.end())[0]]
    except (ValueError, RecursionError, OSError):
        pass  # the list is longer than the beginning, or something is wrong: reading all of the file tells which
    return list(_content(path)["users"])


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON or is damaged ({error}); download or write it again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise InputError(f"{path} is not a LEAF file: it has no {kind.__name__} {key!r}; LEAF needs {', '.join(kinds)}")
    if len(content["users"]) != len(content["num_samples"]):
        raise InputError(
            f"{path} names {len(content['users'])} users, but gives {len(content['num_samples'])} values of num_samples"
        )
    content["users"] = [str(user) for user in content["users"]]
    return content


def _samples(path: Path, user: str, user_data: dict[str, Any], claimed: Any) -> tuple[Array, list[Any]]:
    data = user_data.get(user)
    if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
        raise InputError(f"{path}: user {user} has no lists x and y in user_data")
    x, y = data["x"], data["y"]
    if not (len(x) == len(y) == claimed):
        raise InputError(f"{path}: user {user} has {len(x)} rows x and {len(y)} values y, but num_samples says {claimed}")
    if not x:
        raise InputError(f"{path}: user {user} has no samples; an agent without data cannot take part")
    try:
        rows = np.asarray(x, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{path}: user {user}, {_first_bad_row(x)}") from None
    return rows.reshape(len(rows), -1), y


def _first_bad_row(x: list[Any]) -> str:
    """Why the rows cannot form a table of numbers, in words."""
    for row, values in enumerate(x):
        try:
            np.asarray(values, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            return f"row {row}: x is not a list of numbers; turn text into numbers first"
    row = next(row for row, values in enumerate(x) if np.shape(values) != np.shape(x[0]))
    return f"row {row}: x has shape {np.shape(x[row])}, but {np.shape(x[0])} in row 0; all rows need one length"
