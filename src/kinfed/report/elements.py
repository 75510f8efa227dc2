"""Pieces of the report, in HTML and SVG. Text is escaped here, so that no section has to remember it.

Markers differ in shape and not only in colour, and labels do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kinfed.markup import Html, escape, rows_under, tag
from kinfed.validation import Array

Kind = Literal["text", "number"]


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes
    ----------
    anchor : str
        Its id.
    heading : str
    body : Html
    """

    anchor: str
    heading: str
    body: Html


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    heading : str
    kind : {"text", "number"}
        Numbers are set to the right.
    hint : str
        What the heading means, where it does not say so itself.
    """

    heading: str
    kind: Kind = "number"
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell that is sorted by something else than what it shows."""

    shown: str
    sort: float


def joined(*parts: str) -> Html:
    """Pieces of HTML one after the other."""
    return Html("".join(parts))


def agent_link(place: int, name: str) -> Html:
    """A link to the section of an agent."""
    return tag("a", escape(name), href=f"#agent-{place}")


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str | Cell]],
    *,
    anchor: str = "",
    captioned: bool = True,
) -> Html:
    """A table in a region that scrolls by itself; cells are HTML, the first of a row names it.

    Parameters
    ----------
    caption : str
    columns : sequence of Column
    rows : iterable of sequences of Html or Cell
    anchor : str
        The id of the table.
    captioned : bool
        Whether the caption is seen, or only read to those who do not see the table.
    """
    head = [tag("th", escape(column.heading), scope="col", class_=_side(column), title=column.hint) for column in columns]
    return _scrolling(
        rows_under(
            tag("caption", escape(caption), class_="" if captioned else "unseen"),
            head,
            (_row(columns, row) for row in rows),
            id=anchor,
        ),
        "scroll",
        caption,
    )


def details(summary: str, content: str, *, kind: str = "") -> Html:
    """Content that is folded away."""
    return tag("details", tag("summary", escape(summary)), content, class_=kind)


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Terms and their values, which are HTML."""
    return tag("dl", *(tag("div", tag("dt", escape(term)), tag("dd", value)) for term, value in pairs), class_="facts")


def figure(drawing: str, caption: str) -> Html:
    """A drawing with its caption, in a region that scrolls by itself where it is too wide."""
    return tag("figure", _scrolling(drawing, "plot", caption), tag("figcaption", escape(caption)))


def _scrolling(content: str, kind: str, name: str) -> Html:
    return tag("div", content, class_=kind, tabindex=0, role="region", aria_label=name)


def _row(columns: Sequence[Column], row: Sequence[str | Cell]) -> Html:
    cells = []
    for place, (column, cell) in enumerate(zip(columns, row, strict=True)):
        key, shown = (f"{cell.sort:.9g}", cell.shown) if isinstance(cell, Cell) else ("", cell)
        cells.append(tag("td" if place else "th", shown, scope="" if place else "row", class_=_side(column), data_sort=key))
    return tag("tr", *cells)


def _side(column: Column) -> str:
    return "n" if column.kind == "number" else ""


COLOURS = 8
"""Colours of groups in the style sheet; further groups take them again with another shape."""

_SHAPES = 7
_CHARACTER = 0.56  # width of a character in units of the size of the font
Box = tuple[float, float, float, float]


def marker(x: float, y: float, radius: float, group: int) -> Html:
    """A marker of a group: colour and shape repeat with different periods; -1 is an agent without a group."""
    kind = f'class="m {"none" if group < 0 else f"g{group % COLOURS}"}"'
    shape = group % _SHAPES
    if group < 0 or shape == 0:
        return Html(f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>')
    corners = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in _CORNERS[shape - 1])
    return Html(f'<polygon {kind} points="{corners}"/>')


def _regular(corners: int, turn: float, size: float) -> tuple[tuple[float, float], ...]:
    angles = [turn + 2 * np.pi * k / corners for k in range(corners)]
    return tuple((size * float(np.cos(angle)), size * float(np.sin(angle))) for angle in angles)


_CORNERS: tuple[tuple[tuple[float, float], ...], ...] = (
    _regular(4, np.pi / 4, 1.25),  # square
    _regular(3, -np.pi / 2, 1.45),  # triangle
    _regular(4, 0.0, 1.35),  # diamond
    _regular(3, np.pi / 2, 1.45),  # triangle, point down
    _regular(5, -np.pi / 2, 1.25),  # pentagon
    _regular(6, 0.0, 1.2),  # hexagon
)


def label(x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> Html:
    """Words at a point of a drawing, which begin, end or have their middle there."""
    return tag("text", escape(words), class_=f"label {kind}".strip(), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


class Labels:
    """Labels beside markers; one that would cover another label or a marker is left out.

    Parameters
    ----------
    width, height : float
        Of the drawing.
    places : array of shape (B, 2)
        Of the markers.
    radius : float
        Of the markers.
    """

    def __init__(self, width: float, height: float, places: Array, radius: float) -> None:
        self._width, self._height, self._size = width, height, 11.0
        self._markers = [(x - radius, y - radius, x + radius, y + radius) for x, y in places.tolist()]
        self._taken: list[Box] = []

    def place(self, x: float, y: float, gap: float, words: str, kind: str = "", *, needed: bool = False) -> Html:
        """A label to the right, left, above or below a marker of radius `gap`, or none; a needed one may cover markers."""
        tries = [[*self._taken, *self._markers], *([self._taken] if needed else [])]
        return next((drawn for taken in tries if (drawn := self._beside(x, y, gap, words, kind, taken))), Html(""))

    def _beside(self, x: float, y: float, gap: float, words: str, kind: str, taken: Sequence[Box]) -> Html:
        length = _CHARACTER * self._size * len(words)
        spots = (
            (x + gap + 3, y + 0.35 * self._size, "start"),
            (x - gap - 3, y + 0.35 * self._size, "end"),
            (x, y - gap - 4, "middle"),
            (x, y + gap + self._size, "middle"),
        )
        for left, base, anchor in spots:
            start = left - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            box = (start, base - self._size, start + length, base + 0.2 * self._size)
            inside = box[0] >= 0 and box[2] <= self._width and box[1] >= 0 and box[3] <= self._height
            if inside and not any(_overlap(box, other) for other in taken):
                self._taken.append(box)
                return label(left, base, words, anchor, kind)
        return Html("")


def _overlap(one: Sequence[float], two: Sequence[float]) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


@dataclass(frozen=True, eq=False)
class Fitted:
    """Places in a drawing.

    Attributes
    ----------
    places : array of shape (B, 2)
    width, height : float
        Of the drawing.
    unit : float
        Lengths in the drawing per length in the plane; 0 where all places coincide.
    """

    places: Array
    width: float
    height: float
    unit: float


def fitted(
    coordinates: Array, width: float = 760.0, tallest: float = 640.0, lowest: float = 240.0, edge: float = 44.0
) -> Fitted:
    """Places that fill a drawing; one unit for both directions, or distances would lie."""
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    wide, tall = (float(side) for side in high - low)
    unit = min(((room - 2 * edge) / side for room, side in ((width, wide), (tallest, tall)) if side > 0), default=0.0)
    height = float(np.clip(tall * unit + 2 * edge, lowest, tallest))
    return Fitted((coordinates - (low + high) / 2) * [unit, -unit] + [width / 2, height / 2], width, height, unit)


def image(width: float, height: float, name: str, content: str, kind: str = "") -> Html:
    """A drawing that is read as one image."""
    return tag("svg", content, class_=kind, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=name)


def interactive(anchor: str, width: float, height: float, title: str, description: str, content: str) -> Html:
    """A drawing whose parts take the focus one by one; an image could not hold them."""
    return tag(
        "svg",
        tag("title", escape(title), id=f"{anchor}-title"),
        tag("desc", escape(description), id=f"{anchor}-description"),
        content,
        id=anchor,
        class_="agents",
        viewBox=f"0 0 {width:g} {height:g}",
        role="group",
        aria_labelledby=f"{anchor}-title",
        aria_describedby=f"{anchor}-description",
    )


def agent_node(place: int, told: str, drawing: str, *, first: bool) -> Html:
    """An agent in a drawing: a link to its section that tells its numbers; one of them is in the order of the tab key."""
    return tag(
        "a", drawing, class_="node", href=f"#agent-{place}", data_agent=place, tabindex=0 if first else -1, aria_label=told
    )


def layers(nodes: Sequence[str], names: Sequence[str]) -> Html:
    """Agents, and above them their names."""
    return joined(tag("g", *nodes, class_="nodes"), tag("g", *names, class_="names"))


def agent_readout(anchor: str) -> Html:
    """Where the numbers of the chosen agent are told, also to those who do not see the drawing."""
    return Html(
        f'<p id="{anchor}" class="readout" aria-live="polite" hidden>Point at an agent, or move with the arrow keys.</p>'
    )


def error_bar(x: float, low: float, high: float, y: float, kind: str) -> Html:
    """A dot with its interval, lying."""
    return Html(
        f'<line class="bar {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends."""
    span = high - low
    if not span > 0:
        return [low]
    step = 10 ** np.floor(np.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (factor * step) <= most)
    return [float(k * step) for k in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)]
