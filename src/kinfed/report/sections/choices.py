"""Choices that were made, and why: preparation, comparison, rule, learner, and the table of calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinfed.markup import escape
from kinfed.report.elements import Column, Html, Section, details, figure, joined, paragraph, sentences, table, text
from kinfed.report.findings import UNITS, Findings
from kinfed.report.shapes import error_bar, image, ticks
from kinfed.report.text import count, counted, listed, number, percent, sentence, shortened

if TYPE_CHECKING:
    from kinfed.weights.calibration.record import Calibration

_BEST = 15
_WIDTH, _ROW, _TOP, _FOOT, _NAMES = 760.0, 26.0, 10.0, 44.0, 360.0


def choices_and_why(findings: Findings) -> Section:
    """The section of the choices."""
    story = findings.story
    told = sentences(sentence(one) for one in story.choices)
    calibration = story.weights.calibration
    if calibration is None:
        rule = f"The rule {story.weights.rule} was asked for, so no other was tried; the rule calibrated compares many."
        return Section("choices", "Choices and why", joined(told, paragraph(rule)))
    return Section("choices", "Choices and why", joined(told, "<h3>What was compared</h3>", _compared(calibration)))


def _compared(calibration: Calibration) -> Html:
    if not calibration.judged:
        return paragraph("Nothing: no agent held rows out to judge candidates on.")
    frame = calibration.table
    drawn = drawn_members(calibration)
    columns = [
        Column("Candidate", "text"),
        Column("Score", hint=f"{_score_in_words(calibration)}; lower is better"),
        Column("Standard error", hint="Of the difference to the best"),
        Column("Share", hint="In the weights of the federation"),
        Column("Own choice of", hint="How many agents took it for themselves"),
    ]
    rows = [
        [text(str(name)), number(score, 4), number(error), percent(share), count(float(own))]
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


def drawn_members(calibration: Calibration) -> list[int]:
    """Places of the members to draw, the best first: learning alone, the common model, and the best of the others."""
    mean = calibration.choice.mean
    ranked = [place for place in np.argsort(mean, kind="stable").tolist() if np.isfinite(mean[place])]
    always = [place for place in ranked if place in _simple(calibration)]
    best = [place for place in ranked if place not in always][: _BEST - len(always)]
    return [place for place in ranked if place in always or place in best]


def _simple(calibration: Calibration) -> dict[int, str]:
    """The members that need no kin, for people."""
    common = {} if calibration.common is None else {calibration.common: "one common model"}
    return {calibration.local: "learning alone", **common}


def _score_in_words(calibration: Calibration) -> str:
    told = "relative to learning alone" if calibration.has_shares else f"in {UNITS}"
    return f"mean {calibration.loss} {told}"


def _dots(drawn: Sequence[int], calibration: Calibration) -> Html:
    # The table is sorted by the score, members without one last, as places are here.
    rank = np.argsort(np.argsort(calibration.choice.mean, kind="stable"))[drawn]
    frame = calibration.table.iloc[rank]
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
        f'<text class="label" x="{x(tick):.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{number(tick)}</text>'
        for tick in ticks(low, high)
    )
    plain = _simple(calibration)
    rows = []
    for line, (place, name, score, error) in enumerate(zip(drawn, frame.index, scores, errors, strict=True)):
        y = _TOP + _ROW * (line + 0.5)
        kind = "chosen" if place == calibration.choice.chosen else "plain" if place in plain else "other"
        words = shortened(plain.get(place, str(name)), 52)
        rows.append(
            f'<text class="label {kind}" x="{_NAMES - 14}" y="{y + 4:.1f}" text-anchor="end">{escape(words)}</text>'
            + error_bar(x(score), x(score - error), x(score + error), y, kind)
        )
    axis = (
        f'<text class="label" x="{(_NAMES + _WIDTH) / 2:.0f}" y="{height - 6:.1f}" text-anchor="middle">'
        f"{escape(_score_in_words(calibration))}</text>"
    )
    best = int(np.argmin(scores))
    label = f"Scores of {counted(len(drawn), 'candidate')}; the best is {frame.index[best]} with {number(scores[best])}."
    return image(_WIDTH, height, label, f"{grid}{''.join(rows)}{axis}", "dots")
