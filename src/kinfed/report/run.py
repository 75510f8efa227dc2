"""What was shared, and how to repeat it.

Bytes, who missed what, and the privacy spent; settings, versions, seed, command, and what to cite.
"""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from kinfed.embedding import FEW_ROWS
from kinfed.markup import Html, escape, listing, paragraph
from kinfed.report.context import ReportContext, ReportData
from kinfed.report.elements import Column, Section, details, joined, table
from kinfed.report.text import count, counted, nbytes, number, percent, sentence

if TYPE_CHECKING:
    import pandas

_NUMBER = 8  # bytes of a number in a sketch
_TO_SERVER, _TO_AGENT = "to the server", "to the agent"
_ALWAYS = ("kinfed", "numpy", "scipy", "scikit-learn")
_IF_LOADED = ("torch", "flwr")
_CITATION = Html(
    "<p>Fermanian, Le Bars and Bellet: <cite>Adaptive Personalized Federated Learning via Multi-task Averaging of Kernel "
    'Mean Embeddings</cite>, arXiv <a href="https://arxiv.org/abs/2603.02233" rel="noreferrer">2603.02233</a>. Name kinfed '
    "and its version as the software.</p>"
)


def what_was_shared(context: ReportContext) -> Section:
    """The section of messages and privacy."""
    data = context.data
    crossed = _nothing_crossed(data) if data.traffic is None else _traffic(data.traffic)
    return Section(
        "shared",
        "What was shared",
        joined(crossed, _absences(data), "<h3>Privacy spent</h3>", listing(_privacy(data))),
    )


def _nothing_crossed(data: ReportData) -> Html:
    numbers, calibration = sum(data.sketch_sizes), data.calibration
    views = counted(len(data.sketch_sizes), "view")
    told = [f"Its sketches: {counted(numbers, 'number')} for {views} of its data, {nbytes(_NUMBER * numbers)}."]
    if not data.sketch_sizes:
        told = ["What its learner sums over its rows; no sketches."]
    if data.stacking is not None:
        told = [
            "Second moments of its columns and outcome, or for classes the second derivatives of its loss: what a linear "
            "model learns from its rows.",
            "How well each prior that was judged predicted rows that it held out, and how their errors go together.",
            "The coefficients of its own model, with their covariances.",
        ]
    told += [] if calibration is None else map(sentence, calibration.exchanged)
    return joined(
        paragraph("Nothing crossed a border: all data were in one process. Across sites, an agent would send at least:"),
        listing(told),
        paragraph('kinfed personalize --backend sites, or backend="sites" in Python, counts every message and byte.'),
    )


def _traffic(traffic: pandas.DataFrame) -> Html:
    agents = _pivot(traffic, "agent")
    up, down = float(agents[_TO_SERVER].sum()), float(agents[_TO_AGENT].sum())
    messages = counted(int(traffic["messages"].sum()), "message")
    lead = f"In all {nbytes(up)} left the agents and {nbytes(down)} came to them, in {messages}."
    if len(agents):
        sent = agents[_TO_SERVER]
        lead += (
            f" The agent that sent most, {sent.idxmax()}, sent {nbytes(sent.max())}; half of the agents sent up to "
            f"{nbytes(sent.median())}."
        )
    by_phase = _pivot(traffic, "phase", in_order=True)
    counts = traffic.groupby("phase", sort=False)["messages"].sum().to_dict()
    top = float(by_phase.to_numpy().max(initial=1))
    rows = [
        [escape(str(phase)), count(float(counts[phase])), _bar(row[_TO_SERVER], top), _bar(row[_TO_AGENT], top)]
        for phase, row in by_phase.iterrows()
    ]
    columns = [Column("Phase", "text"), Column("Messages"), Column("Left the agents"), Column("Came to them")]
    single = table(
        "Bytes of every agent",
        [Column("Agent", "text"), Column("Left it"), Column("Came to it")],
        ([escape(str(name)), nbytes(row[_TO_SERVER]), nbytes(row[_TO_AGENT])] for name, row in agents.iterrows()),
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
    return f'<span class="databar" style="--share:{100 * size / top:.1f}%">{nbytes(size)}</span>'


def _absences(data: ReportData) -> Html:
    missed = data.attendance
    if missed is None:
        return Html("")
    if not len(missed):
        return paragraph("Nobody missed anything: every agent answered every question.")
    rows = [[escape(str(value)) for value in row] for row in missed.itertuples(index=False)]
    told = f"{counted(len(rows), 'answer')} did not come or could not be used."
    columns = [Column(name.capitalize(), "text") for name in missed.columns]
    return joined("<h3>Who missed what</h3>", paragraph(told), table("Answers that are missing", columns, rows))


def _privacy(data: ReportData) -> list[str]:
    sizes = data.sizes
    few = f"the share of agents with fewer than {FEW_ROWS} rows here is {percent(float((sizes < FEW_ROWS).mean()), 0)}."
    none = "No noise was added, so there is no guarantee of differential privacy: epsilon is infinite."
    every = "The page what-leaves-a-site of the documentation says what every message reveals."
    if not data.sketch_sizes:
        return [none, f"Sums over few rows, such as second moments, can tell much of single rows; {few} {every}"]
    if data.norm_bound is None:
        moved = "The features have no bound, so replacing one row can move a sketch by any length."
    else:
        least, median = int(sizes.min()), float(np.median(sizes))
        moved = (
            "Replacing one row moves a sketch by at most 2M/n, where M bounds the features "
            f"({number(data.norm_bound)}) and n counts the rows: by {number(2 * data.norm_bound / least)} for the "
            f"smallest agent ({counted(least, 'row')}) and {number(2 * data.norm_bound / median)} for the median one "
            f"({counted(round(median), 'row')})."
        )
    return [
        none,
        moved,
        f"A sketch of few rows can be turned back into the rows; {few} {every}",
    ]


def settings_and_versions(context: ReportContext) -> Section:
    """The section that lets others repeat the run."""
    data = context.data
    settings = table(
        "What was asked for",
        [Column("Setting", "text"), Column("Value", "text")],
        ([escape(key), escape(value)] for key, value in {**data.settings, "seed": str(data.seed)}.items()),
    )
    versions = table(
        "Versions",
        [Column("Package", "text"), Column("Version", "text")],
        ([escape(name), escape(number)] for name, number in _versions().items()),
    )
    command = (
        '<h3>The command to repeat it</h3><div class="command"><pre tabindex="0" id="command"><code>'
        f'{escape(data.command)}</code></pre><button type="button" id="copy" hidden>Copy</button></div>'
        if data.command
        else ""
    )
    written = paragraph(f"Written on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC.", "muted")
    return Section(
        "settings",
        "Settings",
        joined(f'<div class="columns">{settings}{versions}</div>', command, written, "<h3>How to cite</h3>", _CITATION),
    )


def _versions() -> dict[str, str]:
    """Of Python and the packages that made the numbers."""
    found = {"Python": platform.python_version()}
    for name in (*_ALWAYS, *(name for name in _IF_LOADED if name in sys.modules)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
