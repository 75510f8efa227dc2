"""One look for all figures: colours that colour-blind readers tell apart, the same for a method everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinfed.errors import MissingExtraError

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


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.6, height: float = 3.4, **options: Any
) -> tuple[Figure, Any]:
    """A figure with rows x columns axes, as an array of that shape, or one Axes."""
    _need_matplotlib()
    import matplotlib

    from kinfed.plotting.picture import Picture

    with matplotlib.rc_context(_STYLE):
        figure = Picture(figsize=(width * columns, height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


@contextmanager
def canvas(
    axes: Axes | None = None, *, width: float = 4.6, height: float = 3.4, columns: int = 1, **options: Any
) -> Iterator[Any]:
    """Axes to draw into in the one look: those that are given, or `columns` new ones of this size in inches."""
    _need_matplotlib()
    import matplotlib

    with matplotlib.rc_context({**_STYLE, **_TITLES}):
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


def legend_beside(axes: Axes) -> None:
    """The legend at the right, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, borderaxespad=0.2, handlelength=1.4)


def save_figure(figure: Figure, stem: Path) -> None:
    """Write PNG and SVG, equal bytes for equal figures."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure.savefig(stem.with_suffix(".png"), dpi=160, metadata={"Software": None})
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("figures need matplotlib, which is not installed: pip install 'kinfed[plots]'") from None
