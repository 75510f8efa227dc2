"""LEAF JSON: ``users``, ``num_samples`` and ``user_data[user] = {"x": [rows], "y": [targets]}``, in one file or several."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.federation import Federation, assemble

_BEGINNING = 1 << 20
"""How many characters of a file are searched for the names of its users before all of it is read."""


def read_leaf(source: Path, paths: Sequence[Path]) -> Federation:
    """Federation of the users of all files; `source` is what the caller named."""
    users: list[str] = []
    features: list[NDArray[np.float64]] = []
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

    try:
        return assemble(np.concatenate(features), targets, labels, place, target="y")
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def leaf_samples(
    source: Path, paths: Sequence[Path], chosen: Collection[str] | None = None
) -> Iterator[tuple[Path, str, NDArray[np.float64], list[Any]]]:
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
        opening = re.match(r'\s*\{\s*"users"\s*:\s*(?=\[)', beginning)
        if opening is not None:
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


def _samples(path: Path, user: str, user_data: dict[str, Any], claimed: Any) -> tuple[NDArray[np.float64], list[Any]]:
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
