"""One look for all figures: colours that colour-blind readers tell apart, the same for a method everywhere.

Agents along an axis are named while there is room for names, and counted where there is not. The small picture of a weight
matrix is SVG, for notebooks that may have no matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import MissingExtraError
from kinfed.markup import escape
from kinfed.validation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, OCHRE, GREY, BLACK = "#CC79A7", "#56B4E9", "#8C6D1F", "#999999", "#000000"

PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, OCHRE)
"""The palette of Okabe and Ito but for its yellow, which white paper swallows, and a brown."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""A shape for every colour of the palette, so that none has to be told by its colour alone."""

METHOD_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "local": BLUE,
        "grand-mean": ORANGE,
        "oracle": BLACK,
        "q-aggregation": GREEN,
        "q-aggregation-exact": PINK,
        "entropic": VERMILION,
        "similarity-test": SKY,
        "james-stein": GREY,
        "multi-task-averaging": OCHRE,
    }
)

METHOD_LABELS: Mapping[str, str] = MappingProxyType(
    {"q-aggregation": "Q-aggregation (Algorithm 3)", "q-aggregation-exact": "Q-aggregation (exact minimum)"}
)

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "kinfed",
}
_TITLES: dict[Any, Any] = {"axes.titlesize": 10.0, "axes.titlelocation": "left", "axes.axisbelow": True}
NAMED_UP_TO = 60
"""Agents that have their names on an axis."""
_LONGEST = 24
_CELLS, _SHADES, _SIDE = 48, 5, 192  # of a thumbnail: rows and columns, shades, pixels
_ROOM = (0.11, 0.035)  # width and height of a name beside a point, in sizes of the picture


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.6, height: float = 3.4, **options: Any
) -> tuple[Figure, Any]:
    """A figure with rows x columns axes, as an array of that shape, or one Axes."""
    matplotlib = _matplotlib()
    from kinfed.plotting.picture import Picture

    with matplotlib.rc_context(_STYLE):
        figure = Picture(figsize=(width * columns, height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


@contextmanager
def canvas(
    axes: Axes | None = None, *, width: float = 4.6, height: float = 3.4, columns: int = 1, **options: Any
) -> Iterator[Any]:
    """Axes to draw into in the one look: those that are given, or `columns` new ones of this size in inches."""
    with _matplotlib().rc_context({**_STYLE, **_TITLES}):
        yield panels(columns, width=width / columns, height=height, **options)[1] if axes is None else axes


def figure_of(axes: Axes) -> Figure:
    """The whole figure that holds the axes."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def colour(method: str) -> str:
    """The colour of a method."""
    return METHOD_COLOURS.get(method, "#555555")


def label(method: str) -> str:
    """A method's name as legends write it."""
    return METHOD_LABELS.get(method, method.replace("-", " "))


def mean_and_deviation(axes: Axes, method: str, x: Any, mean: Any, deviation: Any) -> None:
    """A line with a band of one standard deviation."""
    style = "--" if method.endswith("-exact") else "-"  # it often lies on top of another line
    axes.plot(x, mean, color=colour(method), label=label(method), linewidth=1.8, linestyle=style, marker="o", markersize=3)
    axes.fill_between(x, mean - deviation, mean + deviation, color=colour(method), alpha=0.15, linewidth=0)


def legend(axes: Axes, size: float = 8.0) -> None:
    """The legend, where it covers least."""
    axes.legend(fontsize=size, framealpha=0.8, edgecolor="none")


def legend_beside(axes: Axes) -> None:
    """The legend at the right, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, borderaxespad=0.2, handlelength=1.4)


def save_figure(figure: Figure, stem: Path) -> None:
    """Write PNG and SVG, equal bytes for equal figures."""
    with _matplotlib().rc_context(_STYLE):
        figure.savefig(stem.with_suffix(".png"), dpi=160, metadata={"Software": None})
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("figures need matplotlib, which is not installed: pip install 'kinfed[plots]'") from None
    return matplotlib


def short(name: str) -> str:
    """A name that fits beside an axis, without its middle if it is long: names of agents often differ in their ends.

    Mathematics in it is taken literally.
    """
    line = " ".join(name.split())
    return (line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]}…{line[1 - _LONGEST // 2 :]}").replace("$", r"\$")


def listed(names: Sequence[object]) -> bool:
    """Whether every agent has its name on the axis."""
    return len(names) <= NAMED_UP_TO


def height_of(names: Sequence[str]) -> float:
    """Height in inches of axes with an agent per row."""
    return 1.1 + 0.19 * len(names) if listed(names) else 4.2


def agent_rows(axes: Axes, names: Sequence[str], order: str) -> None:
    """An agent per row, the first one on top; `order` says how they are sorted where they are too many to be named."""
    if listed(names):
        named_rows(axes, [short(name) for name in names], fontsize=8)
    else:
        axes.set(ylim=(len(names) - 0.5, -0.5), yticks=[], ylabel=f"{len(names)} agents, {order}")
        axes.grid(False, axis="y")


def named_rows(axes: Axes, names: Sequence[str], **options: Any) -> None:
    """A name per row, the first one on top."""
    axes.set_yticks(np.arange(len(names)), names, **options)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def name_points(axes: Axes, coordinates: Array, names: Sequence[str], which: Sequence[int]) -> None:
    """Names beside points, in this order of importance; a name that would cover another is left out."""
    reach = np.maximum(np.ptp(coordinates, axis=0).max(), 1e-12) * np.array(_ROOM)
    placed: list[Array] = []
    for k in which:
        here = coordinates[k]
        if not any((np.abs(here - other) < reach).all() for other in placed):
            placed.append(here)
            axes.annotate(short(names[k]), (here[0], here[1]), (4, 4), textcoords="offset points", fontsize=7.5)


def bars(axes: Axes, lengths: ArrayLike, colours: Any, left: ArrayLike = 0.0, **options: Any) -> None:
    """A bar per agent, with gaps between bars that are few."""
    values: Array = np.asarray(lengths, dtype=np.float64)
    thickness = 0.75 if len(values) <= NAMED_UP_TO else 1.0
    axes.barh(np.arange(len(values)), values, height=thickness, left=left, color=colours, linewidth=0, **options)


def thumbnail(matrix: Array, description: str) -> str:
    """The cells of a matrix in five shades from zero to its 98 % quantile; NaN, the diagonal, in a colour of its own.

    Parameters
    ----------
    matrix : array of shape (T, B)
    description : str
        What a reader who cannot see the picture is told.
    """
    cells = block_maxima(matrix, _CELLS)
    positive = cells[cells > 0]
    top = float(np.quantile(positive, 0.98)) if len(positive) else 1.0
    shade = np.minimum(np.round(np.nan_to_num(cells) / top * _SHADES), _SHADES)
    paths = [_path(shade == level, BLUE, level / _SHADES) for level in range(1, _SHADES + 1) if (shade == level).any()]
    if np.isnan(cells).any():
        paths.append(_path(np.isnan(cells), ORANGE, 0.6))
    rows, columns = cells.shape
    unit = _SIDE / max(rows, columns)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(description)}" '
        f'width="{columns * unit:.0f}" height="{rows * unit:.0f}" viewBox="0 0 {columns} {rows}" '
        f'shape-rendering="crispEdges" style="border:1px solid rgba(128,128,128,0.4)">{"".join(paths)}</svg>'
    )


def _path(chosen: NDArray[np.bool_], fill: str, opacity: float) -> str:
    """One path of unit squares at the chosen cells."""
    squares = "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(chosen).tolist())
    return f'<path fill="{fill}" fill-opacity="{opacity:.2g}" d="{squares}"/>'


def block_maxima(matrix: Array, most: int) -> Array:
    """The largest entry of every block of cells, in as few cells per block as leave at most `most` rows and columns.

    NaN entries are left out; a block of nothing else is NaN.
    """
    rows, columns = matrix.shape
    block = -(-max(rows, columns) // most)
    if block == 1:
        return matrix
    padded = np.pad(matrix, ((0, -rows % block), (0, -columns % block)), constant_values=np.nan)
    blocks = np.where(np.isnan(padded), -np.inf, padded).reshape(padded.shape[0] // block, block, -1, block)
    largest = blocks.max(axis=(1, 3))
    return np.where(np.isneginf(largest), np.nan, largest)
