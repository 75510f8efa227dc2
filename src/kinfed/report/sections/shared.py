"""What was shared, in bytes, who missed what, and the privacy spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinfed.report.elements import Column, Html, Section, details, joined, paragraph, sentences, table, text
from kinfed.report.findings import Findings
from kinfed.report.story import Story
from kinfed.report.text import count, counted, nbytes, number, percent, sentence
from kinfed.sketch import FEW_ROWS

if TYPE_CHECKING:
    import pandas

_NUMBER = 8  # bytes of a number in a sketch
_TO_SERVER, _TO_AGENT = "to the server", "to the agent"


def what_was_shared(findings: Findings) -> Section:
    """The section of messages and privacy."""
    story = findings.story
    crossed = _nothing_crossed(story) if story.traffic is None else _traffic(story.traffic)
    return Section(
        "shared",
        "What was shared",
        joined(crossed, _absences(story), "<h3>Privacy spent</h3>", sentences(_privacy(story))),
    )


def _nothing_crossed(story: Story) -> Html:
    numbers = sum(story.sketch_sizes)
    views = f"{counted(len(story.sketch_sizes), 'view')} of its data"
    calibration = story.weights.calibration
    told = [
        f"Its sketches: {counted(numbers, 'number')} for {views}, {nbytes(_NUMBER * numbers)}.",
        *([] if calibration is None else map(sentence, calibration.exchanged)),
    ]
    return joined(
        paragraph("Nothing crossed a border: all data were in one process. Across sites, an agent would send at least:"),
        sentences(told),
        paragraph('kinfed personalize --engine sites, or engine="sites" in Python, counts every message and byte.'),
    )


def _traffic(traffic: pandas.DataFrame) -> Html:
    totals = traffic.groupby("direction")["bytes"].sum()
    up, down = float(totals.get(_TO_SERVER, 0)), float(totals.get(_TO_AGENT, 0))
    agents = _pivot(traffic, "agent")
    messages = counted(int(traffic["messages"].sum()), "message")
    lead = f"In all {nbytes(up)} left the agents and {nbytes(down)} came to them, in {messages}."
    if len(agents):
        largest = agents[_TO_SERVER].idxmax()
        most, median = float(agents[_TO_SERVER].max()), float(agents[_TO_SERVER].median())
        lead += (
            f" The agent that sent most, {largest}, sent {nbytes(most)}; half of the agents sent up to {nbytes(median)}."
        )
    by_phase = _pivot(traffic, "phase", in_order=True)
    counts = traffic.groupby("phase", sort=False)["messages"].sum().to_dict()
    top = float(by_phase.to_numpy().max(initial=1))
    rows = [
        [text(str(phase)), count(float(counts[phase])), _bar(row[_TO_SERVER], top), _bar(row[_TO_AGENT], top)]
        for phase, row in by_phase.iterrows()
    ]
    columns = [Column("Phase", "text"), Column("Messages"), Column("Left the agents"), Column("Came to them")]
    single = table(
        "Bytes of every agent",
        [Column("Agent", "text"), Column("Left it"), Column("Came to it")],
        ([text(str(name)), nbytes(row[_TO_SERVER]), nbytes(row[_TO_AGENT])] for name, row in agents.iterrows()),
    )
    return joined(
        paragraph(lead), table("Bytes by phase, all agents together", columns, rows), details("Bytes by agent", single)
    )


def _pivot(traffic: pandas.DataFrame, by: str, *, in_order: bool = False) -> pandas.DataFrame:
    """Bytes in both directions, by agent or phase."""
    found = traffic.pivot_table(index=by, columns="direction", values="bytes", aggfunc="sum", fill_value=0, sort=False)
    found = found.reindex(columns=[_TO_SERVER, _TO_AGENT], fill_value=0)
    return found if in_order else found.sort_values(_TO_SERVER, ascending=False, kind="stable")


def _bar(size: float, top: float) -> str:
    return f'<span class="databar" style="--share:{percent_of(size, top)}">{nbytes(size)}</span>'


def percent_of(size: float, top: float) -> str:
    """A share for the style sheet."""
    return f"{100 * size / top:.1f}%" if top > 0 else "0%"


def _absences(story: Story) -> Html:
    missed = story.attendance
    if missed is None:
        return Html("")
    if not len(missed):
        return paragraph("Nobody missed anything: every agent answered every question.")
    rows = [[text(str(one.agent)), text(str(one.phase)), text(str(one.reason))] for one in missed.itertuples()]
    told = f"{counted(len(rows), 'answer')} did not come or could not be used."
    columns = [Column("Agent", "text"), Column("Phase", "text"), Column("Reason", "text")]
    return joined("<h3>Who missed what</h3>", paragraph(told), table("Answers that are missing", columns, rows))


def _privacy(story: Story) -> list[str]:
    told = ["No noise was added, so there is no guarantee of differential privacy: epsilon is infinite."]
    sizes = story.weights.sizes
    if story.norm_bound is None:
        told.append("The features have no bound, so replacing one row can move a sketch by any length.")
    else:
        least, median = int(sizes.min()), float(np.median(sizes))
        told.append(
            "Replacing one row moves a sketch by at most 2M/n, where M bounds the features "
            f"({number(story.norm_bound)}) and n counts the rows: by {number(2 * story.norm_bound / least)} for the "
            f"smallest agent ({counted(least, 'row')}) and {number(2 * story.norm_bound / median)} for the median one "
            f"({counted(round(median), 'row')})."
        )
    told.append(
        "A sketch of few rows can be turned back into the rows; the share of agents with fewer than "
        f"{FEW_ROWS} rows here is {percent(float((sizes < FEW_ROWS).mean()), 0)}. The page what-leaves-a-site of the "
        "documentation says what every message reveals."
    )
    return told
