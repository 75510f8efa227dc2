"""What learners check at the door: the agents' arrays, their targets and the weight rows."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.validation import points_array

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

# Solvers leave rows on the simplex up to rounding; more than this is somebody's mistake.
_SIMPLEX_TOLERANCE = 1e-6


def simplex_rows(weights: ArrayLike, names: Sequence[str], sizes: Sequence[int]) -> Array:
    """Return `weights` as a (T, B) float array with rows on the simplex, rounding below zero removed.

    An agent without points must not carry weight: it has no mean loss.
    """
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2 or len(matrix) == 0 or matrix.shape[1] != len(names):
        raise InputError(
            f"weights must have one row per target and one column for each of the {len(names)} agents, "
            f"got shape {matrix.shape}"
        )
    sums = matrix.sum(axis=1)
    faulty = ~(np.abs(sums - 1) <= _SIMPLEX_TOLERANCE) | ~(matrix >= -_SIMPLEX_TOLERANCE).all(axis=1)
    if faulty.any():
        row = int(np.flatnonzero(faulty)[0])
        raise InputError(
            f"row {row} of the weights is not on the simplex: its smallest entry is {matrix[row].min():g} "
            f"and its sum is {sums[row]:g}"
        )
    matrix = np.where(matrix > 0, matrix, 0.0)
    idle = (matrix > 0).any(axis=0) & (np.asarray(sizes) == 0)
    if idle.any():
        raise InputError(f"agent {names[int(np.flatnonzero(idle)[0])]} has no points, so it must have weight zero")
    return matrix


def unique_rows(matrix: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the distinct rows in order of first appearance, and for each row of `matrix` its place among them."""
    places: dict[bytes, int] = {}
    inverse = np.array([places.setdefault(row.tobytes(), len(places)) for row in matrix], dtype=np.int64)
    _, first = np.unique(inverse, return_index=True)
    return matrix[first], inverse


def agents_columns(federation: Federation) -> list[Array]:
    """Return each agent's finite float64 (n_k, d) table, all with the same d."""
    tables: list[Array] = []
    for agent, name in zip(federation, federation.names, strict=True):
        table = points_array(agent.X, f"agent {name}", tables[0].shape[1] if tables else None)
        tables.append(np.asarray(table, dtype=np.float64))
    if not tables:
        raise InputError("there are no agents: give a federation with at least one")
    return tables


def numeric_targets(federation: Federation) -> list[Array]:
    """Return each agent's finite float64 y, of shape (n_k,), or (n_k, m) for m outputs."""
    targets: list[Array] = []
    for agent, name in zip(federation, federation.names, strict=True):
        y = _labelled(agent, name)
        if y.dtype.kind not in "iufb" and not (y.dtype == object and all(isinstance(one, Real) for one in y.ravel())):
            raise InputError(f"agent {name} has a target that is not a number; for labels use learner 'logistic'")
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            row = int(np.flatnonzero(~np.isfinite(y.reshape(len(y), -1)).all(axis=1))[0])
            raise InputError(f"agent {name}: the target of row {row} is NaN or infinite; impute or drop it")
        if y.ndim > 2 or (targets and y.shape[1:] != targets[0].shape[1:]):
            raise InputError(
                f"agent {name} has a target of shape {y.shape}; all agents must share one shape, (n,) or (n, outputs)"
            )
        targets.append(y)
    return targets


def label_codes(federation: Federation) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Return the sorted classes of the federation, and each agent's labels as places among them.

    Labels of one type sort as that type does; labels of mixed types sort by type, then by their text.
    """
    labels: list[NDArray[Any]] = []
    for agent, name in zip(federation, federation.names, strict=True):
        y = _labelled(agent, name)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            raise InputError(f"agent {name} has labels of shape {y.shape}; a classifier takes one label per point")
        missing = np.array([one is None or one != one for one in y.tolist()], dtype=bool)
        if missing.any():
            raise InputError(f"agent {name}: the label of row {int(np.flatnonzero(missing)[0])} is missing; drop that row")
        labels.append(y)
    kinds = {"number" if y.dtype.kind in "iuf" else y.dtype.kind for y in labels if len(y)}
    pooled = np.concatenate(labels) if len(kinds) == 1 and "O" not in kinds else _as_objects(labels)
    if pooled.dtype == object:
        classes, codes = _codes_of_objects(pooled)
    else:
        classes, codes = np.unique(pooled, return_inverse=True)
    if len(classes) < 2:
        only = f"only the class {classes[0]}" if len(classes) else "no labels"
        raise InputError(f"the federation has {only}; a classifier needs at least two classes")
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return classes, np.split(codes.astype(np.int64), ends)


def known_codes(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """One agent's labels as places among classes that are known already."""
    places = {label: place for place, label in enumerate(classes.tolist())}
    codes = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        raise InputError(
            f"agent {name} has the label {labels[codes.argmin()]!r}, which is not among the {len(places)} classes of the "
            "federation; collect the classes again, or drop its rows"
        )
    return codes


def _labelled(agent: Any, name: str) -> NDArray[Any]:
    if agent.y is None:
        raise InputError(f"agent {name} has no target; give y, or use an estimator that needs none")
    y = np.asarray(agent.y)
    if len(y) != len(agent.X):
        raise InputError(f"agent {name} has {len(agent.X)} points but {len(y)} targets")
    return y


def _as_objects(labels: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate without coercion: 1 and '1' stay different classes."""
    values = [one for y in labels for one in y.tolist()]
    pooled = np.empty(len(values), dtype=object)
    pooled[:] = values
    return pooled


def _codes_of_objects(pooled: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    distinct = list(dict.fromkeys(pooled.tolist()))
    try:
        distinct.sort()
    except TypeError:
        distinct.sort(key=lambda one: (type(one).__name__, str(one)))
    places = {one: place for place, one in enumerate(distinct)}
    classes = np.empty(len(distinct), dtype=object)
    classes[:] = distinct
    return classes, np.array([places[one] for one in pooled.tolist()], dtype=np.int64)
