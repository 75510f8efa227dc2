"""Agents that are unlike all others in a column, what may have happened, and what follows; and cells far out."""

from __future__ import annotations

from kinfed.data.screening import FAINT
from kinfed.markup import Html, escape, paragraph, tag
from kinfed.report.context import ReportData
from kinfed.report.elements import Column, details, joined, table
from kinfed.report.text import counted

_MOST = 40  # rows that are listed
_ASIDE = "Set aside: it learns alone, and nobody else learns from it"


def agents_apart(data: ReportData) -> Html:
    """Who is set aside, in one line that is seen at once, and a table to unfold; nothing where nothing was found."""
    found = data.screening
    if not (found.findings or found.held or found.voices):
        return Html("")
    lines = [paragraph(why) for why in found.aside.values()]
    if lines:
        lines.insert(0, tag("p", tag("strong", _headline(len(found.aside))), class_="lead"))
    told = [(one.agent, one.column, one.what, _cause(one.cause), _follows(one.aside)) for one in found.findings]
    told += [
        (agent, column, f"{counted(cells, 'cell')} too far from everybody's", "", "Held at the limit in what others learn")
        for agent, columns in found.held.items()
        if agent not in found.aside
        for column, cells in columns.items()
    ]
    far = "most outcomes are too far from everybody's"
    told += [(name, "the outcome", far, "", _spoken(one)) for name, one in found.voices.items() if one > 0]
    rows = [[escape(cell) for cell in row] for row in told[:_MOST]]
    names = ("Agent", "Column", "What was found", "Likely cause", "What follows")
    shown = table("Agents and cells unlike all others", [Column(name, "text") for name in names], rows, captioned=False)
    more = paragraph(f"The first {_MOST} of {len(told)}.") if len(told) > _MOST else Html("")
    title = f"Unlike all others: {counted(len({row[0] for row in told}), 'agent')}"
    return joined(*lines, details(title, joined(shown, more), kind="agents-apart"))


def _headline(number: int) -> str:
    told = "One agent is" if number == 1 else f"{number} agents are"
    return f"{told} set aside: the data cannot be meant as they are. Means leave it out. Ask there, or use --trust."


def _cause(cause: str) -> str:
    return f"{cause[:1].upper()}{cause[1:]}?" if cause else "Unknown"


def _spoken(voice: float) -> str:
    return f"Counts {voice:.2g} for others" if voice >= FAINT else "It learns alone, and nobody else learns from it"


def _follows(aside: bool) -> str:
    return _ASIDE if aside else "This warning; far cells are held for others"
