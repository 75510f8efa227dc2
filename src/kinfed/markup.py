"""HTML: the one way to write it, for the report and for notebooks, and the cards that notebooks show.

Every text is escaped here. The styles of a card are inline and take their colours from the page, so that it can be read in
light and dark notebooks; there are no scripts, and nothing is fetched.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NewType

if TYPE_CHECKING:
    import pandas

Html = NewType("Html", str)
"""Text that is HTML already; everything else is escaped."""

_LONGEST = 80  # characters of a cell
_LINE = "1px solid rgba(128,128,128,0.4)"
_CARD = f"border:{_LINE};border-radius:6px;padding:0.6em 1em;margin:0.4em 0;max-width:60em;overflow-x:auto"
_CELL = "padding:0.15em 0.7em"
# Characters that no HTML may hold, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: object) -> Html:
    """A text as it stands, for any place in HTML; what is HTML already is escaped again."""
    return Html(html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(text))))


def tag(name: str, *content: str, **attributes: object) -> Html:
    """An element: its content is HTML already, its attributes are texts, and empty ones are left out.

    Names that Python has taken for itself end in an underscore (``class_``), and other underscores are hyphens.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value != ""
    )
    return Html(f"<{name}{given}>{''.join(content)}</{name}>")


def paragraph(text: str, kind: str = "") -> Html:
    """A text as a paragraph, of a class where the page has one for it."""
    return tag("p", escape(text), class_=kind)


def listing(sentences: Iterable[str]) -> Html:
    """A sentence per line; nothing for none."""
    items = [tag("li", escape(sentence)) for sentence in sentences]
    return tag("ul", *items) if items else Html("")


def card(title: str, *parts: str) -> Html:
    """A frame with a title around parts that are HTML already."""
    return tag("div", tag("div", escape(title), style="font-weight:600;margin-bottom:0.3em"), *parts, style=_CARD)


def rows_under(caption: Html, head: Iterable[str], rows: Iterable[str], **attributes: object) -> Html:
    """A table of rows under a head, with its caption."""
    return tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *rows), **attributes)


def table(frame: pandas.DataFrame, caption: str, most: int = 10) -> Html:
    """A table with its index as the first column; of more than `most` rows, the first and the last ones.

    Parameters
    ----------
    frame : DataFrame
    caption : str
        What the table shows; the number of rows is added where some are left out.
    most : int
        Rows to show.
    """
    above = len(frame) if len(frame) <= most else (most + 1) // 2
    rows = [_row(frame, place) for place in range(above)]
    if len(frame) > most:
        rows.append(tag("tr", tag("td", "\N{HORIZONTAL ELLIPSIS}", colspan=frame.shape[1] + 1, style="text-align:center")))
        rows += [_row(frame, place) for place in range(len(frame) - (most - above), len(frame))]
        caption = f"{caption} ({most} of {len(frame)} rows)"
    names = ["" if frame.index.name is None else frame.index.name, *frame.columns]
    sides = ["left", *(_side(frame.iat[0, column] if len(frame) else 0.0) for column in range(frame.shape[1]))]
    head = [
        _cell("th", name, side, scope="col", style=f"border-bottom:{_LINE}")
        for name, side in zip(names, sides, strict=True)
    ]
    return rows_under(
        tag("caption", escape(caption), style=f"text-align:left;caption-side:top;white-space:nowrap;{_CELL}"),
        head,
        rows,
        style="border-collapse:collapse;margin:0.5em 0;font-size:90%",
    )


def _row(frame: pandas.DataFrame, place: int) -> Html:
    cells = [_cell("td", _shown(value), _side(value)) for value in (frame.iat[place, k] for k in range(frame.shape[1]))]
    return tag("tr", _cell("th", _shortened(str(frame.index[place])), "left", scope="row"), *cells)


def _cell(name: str, text: object, side: str, *, scope: str = "", style: str = "") -> Html:
    return tag(name, escape(text), scope=scope, style=f"{_CELL};text-align:{side}{style and ';'}{style}")


def _side(value: Any) -> str:
    """Where in its cell a value stands: numbers and what replaces them at the right, texts at the left."""
    return "left" if isinstance(value, str) else "right"


def _shown(value: Any) -> str:
    """A value for the eye: numbers of four digits, and a dash where there is none."""
    if value is None or (isinstance(value, Real) and math.isnan(float(value))):
        return "\N{EN DASH}"
    if type(value).__name__ in ("bool", "bool_"):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):.4g}"
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
