"""What the data are, before anything is said of them: every column, what was read in it, what is done with it, and why."""

from __future__ import annotations

from kinfed.markup import Html, escape, paragraph
from kinfed.report.context import ReportData
from kinfed.report.elements import Column, details, joined, table
from kinfed.report.text import count, counted, percent

_MOST = 100  # columns that are listed


def the_columns(data: ReportData) -> Html:
    """The table of columns, folded away under one line that says how many are used; nothing where there is none."""
    frame = data.columns
    if frame is None:
        return Html("")
    left_out = int((frame["what is done"] == "left out").sum())
    gaps = int((frame["missing"] > 0).sum())
    told = f"The data: {counted(len(frame), 'column')}, {count(left_out)} left out, {count(gaps)} with gaps"
    shown = frame.head(_MOST)
    rows = [
        [
            escape(str(name)),
            escape(row["read as"]),
            percent(row["missing"]),
            count(float(row["different values"])),
            escape(row["what is done"]),
            escape(row["why"]),
        ]
        for name, row in shown.iterrows()
    ]
    columns = [
        Column("Column", "text"),
        Column("Read as", "text"),
        Column("Missing", hint="Share of cells that are missing or cannot be read"),
        Column("Different values", hint="The most at one agent"),
        Column("What is done", "text"),
        Column("Why", "text"),
    ]
    more = paragraph(f"The first {_MOST} of {len(frame)} columns.") if len(frame) > _MOST else Html("")
    return details(
        told, joined(table("What every column is", columns, rows, captioned=False), more), kind="columns-of-data"
    )
