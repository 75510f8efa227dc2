"""A small picture of a weight matrix as SVG, for notebooks that may have no matplotlib."""

from __future__ import annotations

import html

import numpy as np
from numpy.typing import NDArray

from kinfed.plotting.pooling import block_maxima
from kinfed.plotting.style import BLUE, ORANGE

_CELLS = 48
_SHADES = 5
_SIDE = 192  # pixels


def thumbnail(matrix: NDArray[np.float64], description: str) -> str:
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
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(description)}" '
        f'width="{columns * unit:.0f}" height="{rows * unit:.0f}" viewBox="0 0 {columns} {rows}" '
        f'shape-rendering="crispEdges" style="border:1px solid rgba(128,128,128,0.4)">{"".join(paths)}</svg>'
    )


def _path(chosen: NDArray[np.bool_], fill: str, opacity: float) -> str:
    """One path of unit squares at the chosen cells."""
    squares = "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(chosen).tolist())
    return f'<path fill="{fill}" fill-opacity="{opacity:.2g}" d="{squares}"/>'
