"""One look for all figures: colours that colour-blind readers tell apart, the same for a method everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "local": "#0072B2",
        "grand-mean": "#E69F00",
        "oracle": "#000000",
        "q-aggregation": "#009E73",
        "q-aggregation-exact": "#CC79A7",
        "entropic": "#D55E00",
        "similarity-test": "#56B4E9",
        "james-stein": "#999999",
        "multi-task-averaging": "#8C6D1F",
    }
)
"""The palette of Okabe and Ito, and two more."""

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


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.6, height: float = 3.4, **options: Any
) -> tuple[Figure, Any]:
    """A figure with rows x columns axes, as an array of that shape, or one Axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


def colour(method: str) -> str:
    """The colour of a method."""
    return METHOD_COLOURS.get(method, "#555555")


def label(method: str) -> str:
    """A method in words."""
    return METHOD_LABELS.get(method, method.replace("-", " "))


def mean_and_deviation(axes: Axes, method: str, x: Any, mean: Any, deviation: Any) -> None:
    """A line with a band of one standard deviation."""
    style = "--" if method.endswith("-exact") else "-"  # it often lies on top of another line
    axes.plot(x, mean, color=colour(method), label=label(method), linewidth=1.8, linestyle=style, marker="o", markersize=3)
    axes.fill_between(x, mean - deviation, mean + deviation, color=colour(method), alpha=0.15, linewidth=0)


def legend(axes: Axes, size: float = 8.0) -> None:
    """The legend, where it covers least."""
    axes.legend(fontsize=size, framealpha=0.8, edgecolor="none")


def save_figure(figure: Figure, stem: Path) -> None:
    """Write PNG and SVG, equal bytes for equal figures."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure.savefig(stem.with_suffix(".png"), dpi=160, metadata={"Software": None})
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
