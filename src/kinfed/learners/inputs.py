"""What learners check at the door: an agent's own arrays, its outcome, the weight rows, and models that were sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, Task, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Store, digest
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.outcomes import label_codes
from kinfed.validation import Array, points_array, positive

# Solvers leave rows on the simplex up to rounding; more than this is somebody's mistake.
_SIMPLEX_TOLERANCE = 1e-6

# How far rounding may take a covariance beyond what the variances allow.
_ROUNDING = 1e-6


def simplex_rows(weights: ArrayLike, spec: TrainingSpec) -> Array:
    """Return `weights` as a (T, B) float array with rows on the simplex, rounding below zero removed.

    An agent without rows must not carry weight: it has no mean loss.
    """
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2 or len(matrix) == 0 or matrix.shape[1] != len(spec.names):
        raise InputError(
            f"weights must have one row per target and one column for each of the {len(spec.names)} agents, "
            f"got shape {matrix.shape}"
        )
    sums = matrix.sum(axis=1)
    faulty = ~(np.abs(sums - 1) <= _SIMPLEX_TOLERANCE) | ~(matrix >= -_SIMPLEX_TOLERANCE).all(axis=1)
    if faulty.any():
        row = int(faulty.argmax())
        raise InputError(
            f"row {row} of the weights is not on the simplex: its smallest entry is {matrix[row].min():g} "
            f"and its sum is {sums[row]:g}"
        )
    matrix = np.where(matrix > 0, matrix, 0.0)
    idle = (matrix > 0).any(axis=0) & (spec.sizes == 0)
    if idle.any():
        raise InputError(f"agent {spec.names[int(idle.argmax())]} has no points, so it must have weight zero")
    return matrix


def unique_rows(matrix: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the distinct rows in order of first appearance, and for each row of `matrix` its place among them."""
    places: dict[bytes, int] = {}
    inverse = np.array([places.setdefault(row.tobytes(), len(places)) for row in matrix], dtype=np.int64)
    return matrix[np.unique(inverse, return_index=True)[1]], inverse


def renormalised(rows: Array, answered: NDArray[np.bool_]) -> Array:
    """Weight rows divided by their sums over those who answered, and zero where nobody did.

    A row whose agents have all answered stays as it is to the last digit.
    """
    kept = np.where(answered, rows, 0.0)
    shares = kept.sum(axis=1) / rows.sum(axis=1)
    return np.asarray(kept / np.where(shares > 0, shares, 1.0)[:, None])


def rows_heard(rows: Array, answered: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Array:
    """`renormalised`, with weights proportional to the sizes of those who answered for rows that heard nobody."""
    heard = renormalised(rows, answered)
    points = sizes * answered
    if not points.any():
        raise KinfedError(
            f"none of the {(rows > 0).any(axis=0).sum()} agents that were asked has answered; "
            "see whether they run, and try again"
        )
    return np.asarray(np.where(heard.any(axis=1, keepdims=True), heard, points / points.sum()))


def own_columns(agent: Agent, dim: int) -> Array:
    """An agent's finite float64 (n, d) table."""
    return np.asarray(points_array(agent.X, f"agent {agent.name}", dim), dtype=np.float64)


def own_numbers(agent: Agent) -> Array:
    """An agent's finite float64 y, of shape (n,), or (n, m) for m outputs."""
    y = _outcome(agent)
    if y.dtype.kind not in "iufb" and not (y.dtype == object and all(isinstance(one, Real) for one in y.ravel())):
        raise InputError(f"agent {agent.name} has a target that is not a number; for labels use learner 'logistic'")
    y = y.astype(np.float64)
    if not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y.reshape(len(y), -1)).all(axis=1))[0])
        raise InputError(f"agent {agent.name}: the target of row {row} is NaN or infinite; impute or drop it")
    return y


def own_codes(agent: Agent, spec: TrainingSpec) -> NDArray[np.int64]:
    """An agent's labels as places among the classes of the federation."""
    y = _outcome(agent)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"agent {agent.name} has labels of shape {y.shape}; a classifier takes one label per point")
    missing = np.array([one is None or one != one for one in y.tolist()], dtype=bool) if y.dtype == object else y != y
    if missing.any():
        raise InputError(f"agent {agent.name}: the label of row {missing.argmax()} is missing; drop that row")
    return label_codes(y, two_classes(spec), agent.name)


def relative_weights(agent: Agent, spec: TrainingSpec) -> Array | None:
    r"""What each row counts in the agent's mean loss, with mean one; None where all count the same.

    Row i counts :math:`s_i n / \sum_j s_j`, where :math:`s_i` is its sample weight times the weight of its class, so that
    the mean of weighted losses over the rows is :math:`\sum_i s_i \ell_i / \sum_i s_i`.
    """
    weights = None if agent.weight is None else np.asarray(agent.weight, dtype=np.float64)
    if spec.class_weights is not None and spec.classes is not None and len(agent):
        of_class = dict(zip(spec.classes.tolist(), spec.class_weights.tolist(), strict=True))
        labels, codes = np.unique(_outcome(agent), return_inverse=True)
        # Rows that are judged may have a class that a fold has left nobody to train on.
        own = np.array([of_class.get(label, 1.0) for label in labels.tolist()])[codes]
        weights = own if weights is None else weights * own
    return None if weights is None or not len(weights) else weights / weights.mean()


def all_weights(federation: Federation, spec: TrainingSpec) -> Array | None:
    """`relative_weights` of all agents' rows, one agent below the other; None where all rows count the same."""
    found = [relative_weights(agent, spec) for agent in federation]
    if all(one is None for one in found):
        return None
    return np.concatenate([np.ones(len(k)) if one is None else one for k, one in zip(federation, found, strict=True)])


def check_class_weight(wanted: Any) -> None:
    """Raise `InputError` unless weights of classes are none, "balanced", or positive numbers by class."""
    if wanted is None or (isinstance(wanted, str) and wanted == "balanced"):
        return
    if not isinstance(wanted, Mapping):
        raise InputError(f"class_weight must be 'balanced', or weights by class, got {wanted!r}")
    for label, weight in wanted.items():
        positive(weight, f"class_weight of {label}")


def agents_columns(federation: Federation) -> list[Array]:
    """Each agent's finite float64 (n_k, d) table, all with the same d."""
    return [own_columns(agent, federation.dim) for agent in federation]


def agents_numbers(federation: Federation) -> list[Array]:
    """Each agent's finite float64 y, all of one shape but for the number of rows."""
    found = [own_numbers(agent) for agent in federation]
    for agent, y in zip(federation, found, strict=True):
        if y.ndim > 2 or y.shape[1:] != found[0].shape[1:]:
            raise InputError(
                f"agent {agent.name} has a target of shape {y.shape}; all agents must share one shape, (n,) or (n, outputs)"
            )
    return found


def check_outcome(train: Federation, task: Task) -> None:
    """A regression needs numbers and a classification classes, and says so before anything is computed."""
    for agent in train:
        if agent.y is None:
            continue
        kind = agent.y.dtype.kind
        if task == "regression" and kind not in "fiub":
            raise InputError(f"the target of agent {agent.name} is not a number; for labels use learner 'logistic'")
        if task == "classification" and kind == "f" and (broken := agent.y[agent.y != np.round(agent.y)]).size:
            raise InputError(
                f"the target of agent {agent.name} holds {broken[0]:g}, which is no class; for numbers use learner 'ridge'"
            )


def two_classes(spec: TrainingSpec) -> NDArray[Any]:
    """The sorted labels of the federation: two or more."""
    if spec.classes is None or len(spec.classes) < 2:
        only = f"only the class {spec.classes[0]}" if spec.classes is not None and len(spec.classes) else "no labels"
        raise InputError(f"the federation has {only}; a classifier needs at least two classes")
    return spec.classes


def comoment_fault(comoment: Array) -> str | None:
    r"""What keeps a matrix from being a covariance: asymmetry, a variance below zero, :math:`C_{ij}^2 > C_{ii} C_{jj}`."""
    variances = np.diagonal(comoment)
    if (variances < 0).any():
        return "a variance is below zero"
    deviations = np.sqrt(variances)
    largest = deviations[:, None] * deviations[None, :]
    if (np.abs(comoment - comoment.T) > _ROUNDING * largest).any():
        return "the covariances are not symmetric"
    if (np.abs(comoment) > largest * (1 + _ROUNDING)).any():
        return "a covariance is larger than its variances allow"
    return None


def unpacked(arrays: Arrays, name: str, shape: Sequence[int], kind: str) -> NDArray[Any]:
    """The array `name` of packed models, one for each of its rows; raise `InputError` if it is not of that form.

    Parameters
    ----------
    shape : sequence of int
        Of one model.
    kind : {"float64", "float32", "bool"}
    """
    array = arrays.get(name)
    expected = f"of type {kind} and shape (models, {', '.join(map(str, shape))})"
    if array is None:
        raise InputError(f"the models have no {name}; an array {expected} is expected")
    if array.ndim == 0 or array.dtype.name != kind or array.shape[1:] != tuple(shape):
        raise InputError(
            f"the models' {name} are of type {array.dtype.name} and shape {array.shape}; {expected} is expected"
        )
    if not np.isfinite(array).all():
        raise InputError(f"the models' {name} hold NaN or infinite values; train them again")
    return array


def check_models(models: Any, kind: type, who: str) -> None:
    """Raise `InputError` unless the models are of that type."""
    if not isinstance(models, kind):
        raise InputError(f"{who} packs {kind.__name__}, got {type(models).__name__}; give models of the same learner")


def _outcome(agent: Agent) -> NDArray[Any]:
    if agent.y is None:
        raise InputError(f"agent {agent.name} has no target; give y, or use an estimator that needs none")
    y = np.asarray(agent.y)
    if len(y) != len(agent.X):
        raise InputError(f"agent {agent.name} has {len(agent.X)} points but {len(y)} targets")
    return y


def without_lost(folder: Path | None, agents: Agents) -> Path | None:
    """Where a training goes on that has lost agents: a folder below that of the one they were part of."""
    places = "-".join(map(str, agents.left_out))
    return folder if folder is None or not places else folder / f"without-{places}"


def training_store(folder: Path | None, learner: str, agents: Agents, rows: Array) -> Store:
    """The store of one training: of a learner in words, of these agents, with these rows of weights."""
    if folder is None:
        return Store(None, {})
    return Store(
        folder,
        {
            "settings": learner,
            "data": agents.digest,
            "weights": digest(rows),
            "backend": "sites" if agents.rows is None else "pooled",
        },
    )
