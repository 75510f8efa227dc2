"""The rows networks are trained on: all agents' rows as one tensor, blocks of them, and where random numbers come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.backends.agents import TrainingSpec
from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.inputs import relative_weights
from kinfed.learners.neural.model_stack import Cost
from kinfed.outcomes import label_codes
from kinfed.validation import points_array


class Stream(IntEnum):
    """What random numbers are for; every purpose has a stream of its own."""

    START = 0
    HOLD_OUT = 1
    MIXTURE = 2
    SHUFFLE = 3
    LAYERS = 4


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """The generator of one purpose in one epoch: no generator has a state that would have to be kept."""
    return np.random.default_rng([seed, int(stream), *numbers])


def torch_seed(seed: int, stream: Stream, *numbers: int) -> int:
    """A seed for torch's own generator."""
    return int(generator(seed, stream, *numbers).integers(2**63))


@dataclass(frozen=True, eq=False)
class Pool:
    """The rows of some agents.

    Attributes
    ----------
    X : tensor of shape (N, d)
    y : tensor of shape (N,)
        Numbers, or places among the classes as int64.
    agents : tensor of shape (N,), int64
        The agent of each row; rows of one agent are adjacent and agents come in order.
    first, sizes : tensors of shape (B,), int64
        Agent k has the rows ``first[k]`` to ``first[k] + sizes[k] - 1``.
    kept : tensor of shape (B,), int64
        The agent's first ``kept[k]`` rows train its own model; the rest of them are held out from it, to tell when to stop.
    held_out : tensor of shape (N,), bool
        Whether a row is held out from the model of its own agent.
    counted : tensor of shape (N,), optional
        What rows count, with mean one for every agent; all the same by default.
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
    counted: Tensor | None = None
    rows_before: int = 0


def pool_rows(
    agents: Sequence[Agent],
    spec: TrainingSpec,
    task: str,
    dtype: str,
    *,
    held_out_share: float = 0.0,
    rows_before: int = 0,
) -> Pool:
    """Check and pool the rows of all agents, or those of one of them.

    Parameters
    ----------
    agents : sequence of Agent
    spec : TrainingSpec
        Of all agents: columns, classes and seed.
    task : {"classification", "regression"}
    dtype : {"float32", "float64"}
    held_out_share : float
        Above zero, the rows of each agent are shuffled, and that share of them (one at least, never all) is held out.
    rows_before : int
        As in `Pool`.
    """
    X = [_points(agent, spec.dim, dtype) for agent in agents]
    outcomes = [_outcome(agent, task) for agent in agents]
    classes = known_classes(spec, task)
    if len(classes):
        outcomes = [label_codes(one, classes, agent.name) for agent, one in zip(agents, outcomes, strict=True)]
    points, y = np.concatenate(X), np.concatenate(outcomes)
    sizes = np.array([len(one) for one in X], dtype=np.int64)
    owner, first = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
    kept, weights = sizes, [relative_weights(agent, spec) for agent in agents]
    counted = None
    if any(one is not None for one in weights):
        counted = np.concatenate([np.ones(n) if one is None else one for one, n in zip(weights, sizes, strict=True)])
    if held_out_share > 0:
        kept = sizes - np.minimum(np.maximum(np.round(held_out_share * sizes).astype(np.int64), 1), sizes - 1)
        order = np.lexsort((generator(spec.seed, Stream.HOLD_OUT).random(len(points)), owner))
        points, y, counted = points[order], y[order], None if counted is None else counted[order]
    return Pool(
        X=torch.from_numpy(np.ascontiguousarray(points)),
        y=torch.from_numpy(y.astype(np.int64 if len(classes) else dtype)),
        agents=torch.from_numpy(owner),
        first=torch.from_numpy(first),
        sizes=torch.from_numpy(sizes),
        kept=torch.from_numpy(kept),
        held_out=torch.from_numpy(np.arange(len(points)) - first[owner] >= kept[owner]),
        counted=None if counted is None else torch.from_numpy(counted.astype(dtype)),
        rows_before=rows_before,
    )


def known_classes(spec: TrainingSpec, task: str) -> NDArray[Any]:
    """The sorted labels, two or more; none for a regression."""
    if task == "regression":
        return np.array([])
    if spec.classes is None or len(spec.classes) == 0:
        raise InputError("a classifier needs the labels of the whole federation, two at least; give classes in the spec")
    try:
        sorted(spec.classes.tolist())
    except TypeError:
        raise InputError("y mixes labels that cannot be sorted, such as text and numbers; use one kind of label") from None
    if len(spec.classes) < 2:
        raise InputError(f"all agents have the one class {spec.classes[0]}; a classifier needs two classes at least")
    return spec.classes


def _points(agent: Agent, dim: int, dtype: str) -> NDArray[Any]:
    points = points_array(agent.X, f"agent {agent.name}", dim)
    if len(points) == 0:
        raise InputError(f"agent {agent.name} has no points; leave it out of the federation")
    largest = float(np.finfo(dtype).max)
    if float(np.abs(points).max(initial=0)) > largest:
        raise InputError(f"agent {agent.name} has numbers beyond {largest:.3g}, the largest of {dtype}; rescale them")
    return points.astype(dtype, copy=False)


def _outcome(agent: Agent, task: str) -> NDArray[Any]:
    """Labels as they are, or finite numbers."""
    name, count = agent.name, len(agent)
    if agent.y is None:
        raise InputError(f"agent {name} has no y; a neural learner predicts a target, so every agent must have one")
    y = np.asarray(agent.y)
    if y.shape != (count,):
        raise InputError(f"agent {name} has y of shape {y.shape}; one value for each of its {count} rows is expected")
    if task == "classification":
        if y.dtype.kind == "f" and not (y == np.round(y)).all():
            raise InputError(
                f"agent {name}: y holds fractions or NaN, which are no class labels; use task='regression' for numbers"
            )
        return y
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"agent {name}: y is not numeric; use task='classification' for labels") from None
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise InputError(
            f"agent {name}: y holds NaN or numbers that are infinite or near it; drop those rows, or rescale y"
        )
    return numbers


class Block(NamedTuple):
    """Rows of the first models of a chunk: X (L', n, d), y and weights (L', n)."""

    X: Tensor
    y: Tensor
    weights: Tensor

    @classmethod
    def of(cls, pool: Pool, rows: Tensor, weights: Tensor) -> Block:
        """The rows (L', n), or (1, n) where the models share them, with their weights (L', n)."""
        X = pool.X.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)
        weights = weights if pool.counted is None else weights * pool.counted[rows]
        return cls(X.expand(*weights.shape, -1), pool.y[rows].expand(weights.shape), weights)


def interval_blocks(pool: Pool, first: Tensor, counts: Tensor, cost: Cost) -> Iterator[Block]:
    """Blocks of models whose rows are adjacent in the pool, each row of weight 1 / count.

    Parameters
    ----------
    pool : Pool
    first, counts : tensors of shape (L,), int64
        Model l has the rows ``first[l]`` to ``first[l] + counts[l] - 1``; counts do not increase.
    cost : Cost
    """
    step = cost.rows_at_once(len(first))
    shared = bool((first == first[0]).all() and (counts == counts[0]).all())
    for start in range(0, int(counts[0]), step):
        models = int((counts > start).sum())
        places = torch.arange(start, min(start + step, int(counts[0])))
        rows = first[:1, None] + places if shared else padded(first, counts, models, places)
        inside = (places < counts[:models, None]).to(pool.X.dtype)
        yield Block.of(pool, rows, inside / counts[:models, None])


def padded(first: Tensor, counts: Tensor, models: int, places: Tensor) -> Tensor:
    """Rows (models, n) at the given places; beyond a model's last row, that row."""
    return first[:models, None] + torch.minimum(places, counts[:models, None] - 1)
