"""NumPy archives: ``X``, ``agent`` and what may come with them, read without pickles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.columns import agent_labels, unknown
from kinfed.errors import InputError
from kinfed.federation import Federation, assemble

ARRAYS = ("X", "y", "agent", "agent_names", "feature_names", "target_names", "groups", "dup")
"""The arrays that are read; an archive may hold others."""


def read_archive(
    path: Path,
    target: str | None,
    leave_out: Collection[str],
    choose: Callable[[Collection[str]], Collection[str]] | None = None,
) -> Federation:
    """Federation of an ``.npz`` archive.

    ``X`` (n, d) and ``agent`` (n,) are needed; ``agent`` holds labels, or indices into ``agent_names`` if that is there.
    Optional: ``y`` (n,), or (n, several) with ``target_names`` of which `target` picks one; ``feature_names`` (d,);
    ``groups``, one label per agent in the order of ``agent_names``, else of first appearance; ``dup`` (n,), rows to drop.
    With `choose` only the agents it returns of all their names are kept.
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
    for column in leave_out:
        if column not in columns:
            raise InputError(f"{path}: {unknown('column', column, columns)}")
    y, name = _target(path, arrays, target)
    kept = ~arrays["dup"].astype(bool) if "dup" in arrays else np.ones(n, dtype=bool)
    used = [j for j, column in enumerate(columns) if column not in leave_out]
    try:
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
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


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
