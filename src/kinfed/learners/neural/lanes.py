"""From rows of weights to lanes: the different problems among them, where they start, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.learners.neural.models import TorchModels
from kinfed.learners.neural.pool import Pool
from kinfed.learners.neural.stacked import StackedModule
from kinfed.validation import target_indices


def start_parameters(
    warm_start: Mapping[str, Any] | TorchModels | None,
    stacked: StackedModule,
    n_rows: int,
    classes: NDArray[Any] | None,
) -> Tensor:
    """Parameters to start from: one lane for all rows, or one for each of the `n_rows` rows of the weights."""
    layout, dtype = stacked.layout, next(stacked.module.parameters()).dtype
    if warm_start is None:
        return layout.start(stacked.module)
    if isinstance(warm_start, TorchModels):
        if not np.array_equal(warm_start.classes, classes if classes is not None else []):
            raise InputError("warm_start was trained on other classes than those of this federation")
        warm_start = warm_start.parameters
    start = layout.pack(warm_start, dtype)
    if len(start) not in (1, n_rows):
        raise InputError(f"warm_start has {len(start)} rows; one is expected, or one for each of the {n_rows} weight rows")
    return start


def distinct_lanes(
    matrix: NDArray[np.float64],
    start: Tensor,
    targets: ArrayLike | None,
    pool: Pool,
    needs_target: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Find the different problems: rows equal in weights, start and (for early stopping) target are one.

    Returns
    -------
    lane : array of shape (T,)
        The problem of each row.
    rows : array of shape (U,)
        The first row with each problem, in order.
    own : array of shape (U,)
        The agent each problem holds rows out of; -1 without early stopping.
    """
    own = np.full(len(matrix), -1, dtype=np.int64)
    if targets is not None:
        chosen = target_indices(np.asarray(targets).tolist(), len(pool.names))
        if len(chosen) != len(matrix):
            raise InputError(f"there are {len(chosen)} targets for {len(matrix)} rows of weights; give one for each row")
    if needs_target:
        if targets is None and len(matrix) != len(pool.names):
            raise InputError("early stopping needs to know the agent of each row; give targets")
        own = chosen if targets is not None else np.arange(len(matrix))
        held = (pool.sizes - pool.kept).numpy()[own]
        if (held == 0).any():
            name = pool.names[int(own[held == 0][0])]
            raise InputError(f"agent {name} has one row and cannot hold any out; train without patience or leave it out")
    lane, rows = group_rows(matrix, start, own)
    return lane, rows, own[rows]


def group_rows(
    matrix: NDArray[np.float64], start: Tensor, own: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The problem of each row, and the first row of each problem: see `distinct_lanes`."""
    starts = start.numpy() if len(start) > 1 else np.zeros((len(matrix), 0))
    seen: dict[tuple[bytes, bytes, int], int] = {}
    lane = np.empty(len(matrix), dtype=np.int64)
    rows: list[int] = []
    for row, weights in enumerate(matrix):
        key = (weights.tobytes(), starts[row].tobytes(), int(own[row]))
        if key not in seen:
            seen[key] = len(rows)
            rows.append(row)
        lane[row] = seen[key]
    return lane, np.array(rows, dtype=np.int64)
