"""Small HTML for notebooks: sentences and tables on a card.

Every text is escaped. Styles are inline and take their colours from the page, so that a card can be read in light and dark
notebooks; there are no scripts, and nothing is fetched.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_LONGEST = 80  # characters of a cell
_LINE = "1px solid rgba(128,128,128,0.4)"
_CARD = f"border:{_LINE};border-radius:6px;padding:0.6em 1em;margin:0.4em 0;max-width:60em;overflow-x:auto"
_CELL = "padding:0.15em 0.7em"
# Characters that no HTML may hold, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: object) -> str:
    """A text as it stands, for any place in HTML."""
    return html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def card(title: str, *parts: str) -> str:
    """A frame with a title around parts that are HTML already."""
    heading = f'<div style="font-weight:600;margin-bottom:0.3em">{escape(title)}</div>'
    return f'<div style="{_CARD}">{heading}{"".join(parts)}</div>'


def paragraph(text: str) -> str:
    """A text as a paragraph."""
    return f'<p style="margin:0.3em 0">{escape(text)}</p>'


def listing(sentences: Iterable[str]) -> str:
    """A sentence per line; nothing for none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul style="margin:0.3em 0;padding-left:1.4em">{items}</ul>' if items else ""


def table(frame: pandas.DataFrame, caption: str, most: int = 10) -> str:
    """A table with its index as the first column; of more than `most` rows, the first and the last ones.

    Parameters
    ----------
    frame : DataFrame
    caption : str
        What the table shows; the number of rows is added where some are left out.
    most : int
        Rows to show.
    """
    shown = len(frame) if len(frame) <= most else most
    above = shown if shown == len(frame) else (shown + 1) // 2
    rows = [_row(frame, place) for place in range(above)]
    if shown < len(frame):
        rows.append(f'<tr><td colspan="{frame.shape[1] + 1}" style="text-align:center">\N{HORIZONTAL ELLIPSIS}</td></tr>')
        rows += [_row(frame, place) for place in range(len(frame) - (shown - above), len(frame))]
        caption = f"{caption} ({shown} of {len(frame)} rows)"
    names = ["" if frame.index.name is None else frame.index.name, *frame.columns]
    sides = ["left", *(_side(frame.iat[0, column] if len(frame) else 0.0) for column in range(frame.shape[1]))]
    head = "".join(
        f'<th scope="col" style="{_CELL};text-align:{side}">{escape(name)}</th>'
        for name, side in zip(names, sides, strict=True)
    )
    return (
        '<table style="border-collapse:collapse;margin:0.5em 0;font-size:90%">'
        f'<caption style="text-align:left;caption-side:top;white-space:nowrap;{_CELL}">{escape(caption)}</caption>'
        f'<thead><tr style="border-bottom:{_LINE}">{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _row(frame: pandas.DataFrame, place: int) -> str:
    name = f'<th scope="row" style="{_CELL};text-align:left">{escape(_shortened(str(frame.index[place])))}</th>'
    values = [frame.iat[place, column] for column in range(frame.shape[1])]
    cells = "".join(f'<td style="{_CELL};text-align:{_side(value)}">{escape(_cell(value))}</td>' for value in values)
    return f"<tr>{name}{cells}</tr>"


def _side(value: Any) -> str:
    """Where in its cell a value stands: numbers and what replaces them at the right, texts at the left."""
    return "left" if isinstance(value, str) else "right"


def _cell(value: Any) -> str:
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
