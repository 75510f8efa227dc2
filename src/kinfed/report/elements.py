"""Pieces of HTML. Text is escaped here, so that no section has to remember it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NewType

from kinfed.markup import escape

Html = NewType("Html", str)
"""Text that is HTML already; everything else is escaped."""

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


def text(content: str) -> Html:
    """Plain text as HTML; what is HTML already is escaped again."""
    return Html(escape(content))


def joined(*parts: str) -> Html:
    """Pieces of HTML one after the other."""
    return Html("".join(parts))


def paragraph(content: str, kind: str = "") -> Html:
    """A paragraph of plain text."""
    return Html(f"<p{_class(kind)}>{escape(content)}</p>")


def sentences(items: Iterable[str]) -> Html:
    """A list of sentences of plain text."""
    return Html("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")


def agent_link(place: int, name: str) -> Html:
    """A link to the section of an agent."""
    return Html(f'<a href="#agent-{place}">{escape(name)}</a>')


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
    head = "".join(_heading(column) for column in columns)
    body = "".join(_row(columns, row) for row in rows)
    named = f' id="{anchor}"' if anchor else ""
    seen = "" if captioned else ' class="unseen"'
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table{named}>'
        f"<caption{seen}>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, content: str, *, kind: str = "") -> Html:
    """Content that is folded away."""
    return Html(f"<details{_class(kind)}><summary>{escape(summary)}</summary>{content}</details>")


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Terms and their values, which are HTML."""
    return Html('<dl class="facts">' + "".join(f"<div><dt>{escape(k)}</dt><dd>{v}</dd></div>" for k, v in pairs) + "</dl>")


def figure(drawing: str, caption: str) -> Html:
    """A drawing with its caption, in a region that scrolls by itself where it is too wide."""
    return Html(
        f'<figure><div class="plot" tabindex="0" role="region" aria-label="{escape(caption)}">{drawing}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _heading(column: Column) -> str:
    hint = f' title="{escape(column.hint)}"' if column.hint else ""
    return f'<th scope="col"{_class("n" if column.kind == "number" else "")}{hint}>{escape(column.heading)}</th>'


def _row(columns: Sequence[Column], row: Sequence[str | Cell]) -> str:
    cells = []
    for place, (column, cell) in enumerate(zip(columns, row, strict=True)):
        shown = cell.shown if isinstance(cell, Cell) else cell
        key = f' data-sort="{cell.sort:.9g}"' if isinstance(cell, Cell) else ""
        kind = _class("n" if column.kind == "number" else "")
        cells.append(f'<th scope="row"{kind}{key}>{shown}</th>' if place == 0 else f"<td{kind}{key}>{shown}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
