"""Outcomes: what kind they are of, and the classes, codes and weights of those that are labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.validation import unknown

OUTCOME_KINDS = ("none", "text", "boolean", "zero-one", "two numbers", "whole numbers", "decimals")
"""What `outcome_kind` may say."""


def outcome_kind(y: NDArray[Any] | None) -> str:
    """What an outcome holds, one of `OUTCOME_KINDS`.

    "zero-one" are zeros and ones alone, and "two numbers" at most two other whole numbers; floats that are whole count as
    whole numbers.
    """
    if y is None:
        return "none"
    if y.dtype.kind not in "fiub":
        return "text"
    if y.dtype.kind == "b":
        return "boolean"
    found = np.unique(y)
    if not np.array_equal(found, np.round(found)):
        return "decimals"
    return "zero-one" if np.isin(found, (0, 1)).all() else "two numbers" if len(found) <= 2 else "whole numbers"


def outcome_as(y: NDArray[Any] | None, task: str, name: str) -> NDArray[Any] | None:
    """An agent's outcome as a task takes it: numbers, or labels, of which whole numbers are integers."""
    if y is None or task not in ("regression", "classification"):
        return y
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise InputError(f"the target of agent {name} is not a number, but the task is regression")
        return y.astype(np.float64)
    if y.dtype.kind != "f":
        return y
    if not np.array_equal(y, np.round(y)):
        raise InputError(f"the target of agent {name} has decimals, but the task is classification")
    return y.astype(np.int64)


def classes_of(labels: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """The sorted classes of all agents' labels.

    Labels of one type sort as that type does; labels of mixed types sort by type, then by their text: 1 and "1" stay
    different classes.
    """
    arrays = [np.asarray(y).ravel() for y in labels if y is not None and len(y)]
    if _are_of_one_type(arrays):
        return np.unique(np.concatenate(arrays))
    distinct = list(dict.fromkeys(one for y in arrays for one in y.tolist()))
    try:
        distinct.sort()
    except TypeError:
        distinct.sort(key=lambda one: (type(one).__name__, str(one)))
    classes = np.empty(len(distinct), dtype=object)
    classes[:] = distinct
    return classes


def label_codes(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """One agent's labels as places among classes that are known already."""
    if _are_of_one_type([labels, classes]):
        codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        codes[classes[codes] != labels] = -1
    else:
        places = {label: place for place, label in enumerate(classes.tolist())}
        codes = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        raise InputError(
            f"agent {name} has the label {labels[codes.argmin()]!r}, which is not among the {len(classes)} classes of the "
            "federation; collect the classes again, or drop its rows"
        )
    return codes


def class_weights(wanted: str | Mapping[Any, float], classes: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    r"""What a row of each class counts.

    Parameters
    ----------
    wanted : "balanced", or mapping from class to weight
        "balanced" is :math:`n / (C n_c)` with :math:`n_c` of n rows in class c of C. A mapping may name classes as text,
        as a settings file does; those it does not name count 1.
    classes : array of shape (C,)
    counts : array of shape (C,)
        Rows of each class in the federation.
    """
    if isinstance(wanted, str):
        return np.asarray(counts.sum() / (len(classes) * np.maximum(counts, 1)), dtype=np.float64)
    known = {str(label): place for place, label in enumerate(classes.tolist())}
    weights = np.ones(len(classes))
    for label, weight in wanted.items():
        if str(label) not in known:
            raise InputError(f"class_weight: {unknown('class', str(label), known)}")
        weights[known[str(label)]] = weight
    return weights


def _are_of_one_type(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether labels compare as NumPy compares them: all numbers, or all texts, and no Python objects."""
    kinds = {"number" if y.dtype.kind in "iuf" else y.dtype.kind for y in arrays}
    return len(kinds) == 1 and "O" not in kinds
