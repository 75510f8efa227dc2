"""How it was done: the choices and why, what was shared, and how to repeat it.

Preparation, comparison, rule, learner and the table of calibration; bytes, who missed what, and the privacy spent;
settings, versions, seed, command, and what to cite.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from kinfed.embedding import FEW_ROWS
from kinfed.markup import Html, escape, listing, paragraph
from kinfed.report.context import UNITS, ReportContext, ReportData
from kinfed.report.elements import (
    Column,
    Section,
    details,
    error_bar,
    figure,
    image,
    joined,
    label,
    table,
    ticks,
)
from kinfed.report.text import count, counted, listed, nbytes, number, percent, sentence, shortened

if TYPE_CHECKING:
    import pandas

    from kinfed.weights.calibration.family import Calibration

_BEST = 15
_WIDTH, _ROW, _TOP, _FOOT, _NAMES = 760.0, 26.0, 10.0, 44.0, 360.0
_NUMBER = 8  # bytes of a number in a sketch
_TO_SERVER, _TO_AGENT = "to the server", "to the agent"
_ALWAYS = ("kinfed", "numpy", "scipy", "scikit-learn")
_IF_LOADED = ("torch", "flwr")
_CITATION = Html(
    "<p>Fermanian, Le Bars and Bellet: <cite>Adaptive Personalized Federated Learning via Multi-task Averaging of Kernel "
    'Mean Embeddings</cite>, arXiv <a href="https://arxiv.org/abs/2603.02233" rel="noreferrer">2603.02233</a>. Name kinfed '
    "and its version as the software.</p>"
)


def choices_and_why(context: ReportContext) -> Section:
    """The section of the choices."""
    data = context.data
    told = listing(sentence(one) for one in data.choices)
    calibration = data.weights.calibration
    if calibration is None:
        rule = f"The rule {data.weights.rule} was asked for, so no other was tried; the rule calibrated compares many."
        return Section("choices", "Choices and why", joined(told, paragraph(rule)))
    return Section("choices", "Choices and why", joined(told, "<h3>What was compared</h3>", _compared(calibration)))


def _compared(calibration: Calibration) -> Html:
    if not calibration.judged:
        return paragraph("Nothing: no agent held rows out to judge candidates on.")
    frame = calibration.table
    drawn = drawn_candidates(calibration)
    columns = [
        Column("Candidate", "text"),
        Column("Score", hint=f"{_score_in_words(calibration)}; lower is better"),
        Column("Standard error", hint="Of the difference to the best"),
        Column("Share", hint="In the weights of the federation"),
        Column("Own choice of", hint="How many agents took it for themselves"),
    ]
    rows = [
        [escape(str(name)), number(score, 4), number(error), percent(share), count(float(own))]
        for name, score, error, share, own in zip(
            frame.index, frame["score"], frame["standard error"], frame["share"], frame["own choice of"], strict=True
        )
    ]
    told = (
        f"Every agent with rows enough to hold some out judged {counted(len(frame), 'candidate')} on them. A score is the "
        f"{_score_in_words(calibration)}, so lower is better; the error bar is one standard error of the difference to the "
        "best candidate. Candidates that are about as good share the weights."
    )
    simple = listed([name for place, name in _simple(calibration).items() if place in drawn])
    return joined(
        paragraph(told),
        figure(_dots(drawn, calibration), f"Scores of {counted(len(drawn), 'candidate')}: {simple}, and the best others."),
        details(
            f"{counted(len(frame), 'candidate')} as a table",
            table("Calibration: all candidates, the best first", columns, rows),
        ),
    )


def drawn_candidates(calibration: Calibration) -> list[int]:
    """Places of the candidates to draw, the best first: learning alone, the common model, and the best of the others."""
    mean = calibration.choice.mean
    ranked = [place for place in np.argsort(mean, kind="stable").tolist() if np.isfinite(mean[place])]
    always = [place for place in ranked if place in _simple(calibration)]
    best = [place for place in ranked if place not in always][: _BEST - len(always)]
    return [place for place in ranked if place in always or place in best]


def _simple(calibration: Calibration) -> dict[int, str]:
    """The candidates that need no kin, for people."""
    common = {} if calibration.common is None else {calibration.common: "one common model"}
    return {calibration.local: "learning alone", **common}


def _score_in_words(calibration: Calibration) -> str:
    return f"mean {calibration.loss} {'relative to learning alone' if calibration.has_shares else f'in {UNITS}'}"


def _dots(drawn: Sequence[int], calibration: Calibration) -> Html:
    # The table is sorted by the score, candidates without one last, as places are here.
    frame = calibration.table.iloc[np.argsort(np.argsort(calibration.choice.mean, kind="stable"))[drawn]]
    scores, errors = frame["score"].to_numpy(), frame["standard error"].to_numpy()
    low, high = float((scores - errors).min()), float((scores + errors).max())
    margin = 0.04 * (high - low) or 0.05
    low, high = low - margin, high + margin
    height = _TOP + _ROW * len(drawn) + _FOOT
    bottom = height - _FOOT

    def x(value: float) -> float:
        return _NAMES + (_WIDTH - _NAMES - 16) * (value - low) / (high - low)

    grid = "".join(
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom:.1f}"/>'
        + label(x(tick), bottom + 16, number(tick))
        for tick in ticks(low, high)
    )
    plain = _simple(calibration)
    rows = []
    for line, (place, name, score, error) in enumerate(zip(drawn, frame.index, scores, errors, strict=True)):
        y = _TOP + _ROW * (line + 0.5)
        kind = "chosen" if place == calibration.choice.chosen else "plain" if place in plain else "other"
        words = shortened(plain.get(place, str(name)), 52)
        rows.append(
            label(_NAMES - 14, y + 4, words, "end", kind) + error_bar(x(score), x(score - error), x(score + error), y, kind)
        )
    axis = label((_NAMES + _WIDTH) / 2, height - 6, _score_in_words(calibration))
    best = int(np.argmin(scores))
    told = f"Scores of {counted(len(drawn), 'candidate')}; the best is {frame.index[best]} with {number(scores[best])}."
    return image(_WIDTH, height, told, f"{grid}{''.join(rows)}{axis}", "dots")


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
    numbers, calibration = sum(data.sketch_sizes), data.weights.calibration
    told = [
        f"Its sketches: {counted(numbers, 'number')} for {counted(len(data.sketch_sizes), 'view')} of its data, "
        f"{nbytes(_NUMBER * numbers)}.",
        *([] if calibration is None else map(sentence, calibration.exchanged)),
    ]
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
    sizes = data.weights.sizes
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
        "No noise was added, so there is no guarantee of differential privacy: epsilon is infinite.",
        moved,
        "A sketch of few rows can be turned back into the rows; the share of agents with fewer than "
        f"{FEW_ROWS} rows here is {percent(float((sizes < FEW_ROWS).mean()), 0)}. The page what-leaves-a-site of the "
        "documentation says what every message reveals.",
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
