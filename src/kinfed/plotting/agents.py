"""Agents along an axis: named while there is room for names, counted where there is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED_UP_TO = 60
"""Agents that have their names on an axis."""

_LONGEST = 24
_ROOM = (0.11, 0.035)  # width and height of a name beside a point, in sizes of the picture


def short(name: str) -> str:
    """A name that fits beside an axis, without its middle if it is long: names of agents often differ in their ends.

    Mathematics in it is taken literally.
    """
    line = " ".join(name.split())
    cut = line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]}…{line[1 - _LONGEST // 2 :]}"
    return cut.replace("$", r"\$")


def listed(names: Sequence[object]) -> bool:
    """Whether every agent has its name on the axis."""
    return len(names) <= NAMED_UP_TO


def height_of(names: Sequence[str]) -> float:
    """Height in inches of axes with an agent per row."""
    return 1.1 + 0.19 * len(names) if listed(names) else 4.2


def agent_rows(axes: Axes, names: Sequence[str], order: str) -> None:
    """An agent per row, the first one on top; `order` says how they are sorted where they are too many to be named."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    if listed(names):
        axes.set_yticks(np.arange(len(names)), [short(name) for name in names], fontsize=8)
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(names)} agents, {order}")


def name_points(axes: Axes, coordinates: NDArray[np.float64], names: Sequence[str], which: Sequence[int]) -> None:
    """Names beside points, in this order of importance; a name that would cover another is left out."""
    reach = np.maximum(np.ptp(coordinates, axis=0).max(), 1e-12) * np.array(_ROOM)
    placed: list[NDArray[np.float64]] = []
    for k in which:
        here = coordinates[k]
        if any((np.abs(here - other) < reach).all() for other in placed):
            continue
        placed.append(here)
        axes.annotate(short(names[k]), (here[0], here[1]), (4, 4), textcoords="offset points", fontsize=7.5)


def bars(axes: Axes, lengths: ArrayLike, colours: Any, left: ArrayLike = 0.0, **options: Any) -> None:
    """A bar per agent, with gaps between bars that are few."""
    values: NDArray[np.float64] = np.asarray(lengths, dtype=np.float64)
    thickness = 0.75 if len(values) <= NAMED_UP_TO else 1.0
    axes.barh(np.arange(len(values)), values, height=thickness, left=left, color=colours, linewidth=0, **options)
