"""All agents' points as one tensor, each agent's rows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.learners.inputs import known_codes
from kinfed.validation import points_array

if TYPE_CHECKING:
    from kinfed.federation import Agent, Federation


@dataclass(frozen=True, eq=False)
class Pool:
    """The rows of all agents.

    Attributes
    ----------
    X : tensor of shape (N, d)
    y : tensor of shape (N,)
        Numbers, or places in `classes` as int64.
    agents : tensor of shape (N,), int64
        The agent of each row; rows of one agent are adjacent and agents come in order.
    first, sizes : tensors of shape (B,), int64
        Agent k has the rows ``first[k]`` to ``first[k] + sizes[k] - 1``.
    kept : tensor of shape (B,), int64
        The agent's first ``kept[k]`` rows train its own model; the rest of them are held out from it, to tell when to stop.
    held_out : tensor of shape (N,), bool
        Whether a row is held out from the model of its own agent.
    classes : array or None
        The labels in order, of a classification.
    names : tuple of str
    rows_before : int
        How many rows of the whole federation come before these, where the pool holds a part of it.
    """

    X: Tensor
    y: Tensor
    agents: Tensor
    first: Tensor
    sizes: Tensor
    kept: Tensor
    held_out: Tensor
    classes: NDArray[Any] | None
    names: tuple[str, ...]
    rows_before: int = 0


def pool_federation(
    federation: Federation, task: str, dtype: torch.dtype, rng: np.random.Generator, held_out_share: float = 0.0
) -> Pool:
    """Check and pool the data of all agents.

    With `held_out_share` above zero the rows of each agent are shuffled with `rng`, and that share of them (one at least,
    never all) is held out.
    """
    names = tuple(str(name) for name in federation.names)
    X = _points([federation[k] for k in range(len(names))], names, dtype)
    labels = [_labels(federation[k].y, len(X[k]), name) for k, name in enumerate(names)]
    sizes = np.array([len(points) for points in X], dtype=np.int64)
    y, classes = _encode(np.concatenate(labels), task)
    agents = np.repeat(np.arange(len(sizes)), sizes)
    held = np.zeros_like(sizes)
    points = np.concatenate(X)
    if held_out_share > 0:
        held = np.minimum(np.maximum(np.round(held_out_share * sizes).astype(np.int64), 1), sizes - 1)
        order = np.lexsort((rng.random(len(points)), agents))
        points, y = points[order], y[order]
    first, kept = np.cumsum(sizes) - sizes, sizes - held
    return Pool(
        X=torch.from_numpy(points),
        y=torch.as_tensor(y, dtype=torch.int64 if classes is not None else dtype),
        agents=torch.from_numpy(agents),
        first=torch.from_numpy(first),
        sizes=torch.from_numpy(sizes),
        kept=torch.from_numpy(kept),
        held_out=torch.from_numpy(np.arange(len(points)) - first[agents] >= kept[agents]),
        classes=classes,
        names=names,
    )


def pool_agent(
    agent: Agent, task: str, dtype: torch.dtype, dim: int, classes: NDArray[Any] | None, rows_before: int
) -> Pool:
    """Check the data of one agent and give it the form of a pool of its own, nothing held out.

    Parameters
    ----------
    agent : Agent
    task, dtype
        As in `pool_federation`.
    dim : int
        The number of columns everybody has.
    classes : array or None
        The sorted labels of the whole federation, of a classification.
    rows_before : int
        As in `Pool`.
    """
    (X,) = _points([agent], [agent.name], dtype, dim)
    labels = _labels(agent.y, len(X), agent.name)
    y = _encode(labels, task)[0] if classes is None else known_codes(labels, classes, agent.name)
    size = torch.tensor([len(X)])
    return Pool(
        X=torch.from_numpy(np.array(X, order="C")),
        y=torch.as_tensor(y, dtype=torch.int64 if classes is not None else dtype),
        agents=torch.zeros(len(X), dtype=torch.int64),
        first=torch.zeros(1, dtype=torch.int64),
        sizes=size,
        kept=size,
        held_out=torch.zeros(len(X), dtype=torch.bool),
        classes=classes,
        names=(agent.name,),
        rows_before=rows_before,
    )


def _points(
    agents: Sequence[Agent], names: Sequence[str], dtype: torch.dtype, dim: int | None = None
) -> list[NDArray[Any]]:
    if not names:
        raise InputError("the federation has no agents, so there is nothing to train on")
    kind = np.float64 if dtype == torch.float64 else np.float32
    X: list[NDArray[Any]] = []
    for agent, name in zip(agents, names, strict=True):
        points = points_array(agent.X, f"agent {name}", X[0].shape[1] if X else dim)
        if len(points) == 0:
            raise InputError(f"agent {name} has no points; leave it out of the federation")
        largest = float(np.finfo(kind).max)
        if float(np.abs(points).max(initial=0)) > largest:
            raise InputError(f"agent {name} has numbers beyond {largest:.3g}, the largest of {kind.__name__}; rescale them")
        X.append(points.astype(kind, copy=False))
    return X


def _labels(y: Any, count: int, name: str) -> NDArray[Any]:
    if y is None:
        raise InputError(f"agent {name} has no y; a neural learner predicts a target, so every agent must have one")
    labels = np.asarray(y)
    if labels.shape != (count,):
        raise InputError(f"agent {name} has y of shape {labels.shape}; one value for each of its {count} rows is expected")
    return labels


def _encode(labels: NDArray[Any], task: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if task == "regression":
        try:
            numbers = labels.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError("y is not numeric; use task='classification' for labels") from None
        if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            raise InputError("y holds NaN or numbers that are infinite or near it; drop those rows, or rescale y")
        return numbers, None
    if labels.dtype.kind == "f" and not (labels == np.round(labels)).all():
        raise InputError("y holds fractions or NaN, which are no class labels; use task='regression' for numbers")
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError:
        raise InputError("y mixes labels that cannot be sorted, such as text and numbers; use one kind of label") from None
    if len(classes) < 2:
        raise InputError(f"all agents have the one class {classes[0]}; a classifier needs two classes at least")
    return codes, classes
