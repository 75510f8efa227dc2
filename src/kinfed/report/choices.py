"""The choices and why: preparation, method and learner; the candidates of calibration, or priors and their shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinfed.markup import Html, escape, listing, paragraph
from kinfed.report.context import ReportContext
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
from kinfed.report.prediction import UNITS
from kinfed.report.text import count, counted, listed, number, percent, sentence, shortened

if TYPE_CHECKING:
    from kinfed.priors.result import Stacking
    from kinfed.weights.calibration.family import Calibration

_BEST = 15
_WIDTH, _ROW, _TOP, _FOOT, _NAMES = 760.0, 26.0, 10.0, 44.0, 360.0
_PERCENT = 64.0  # room for the number at the end of a bar


def choices_and_why(context: ReportContext) -> Section:
    """The section of the choices."""
    data = context.data
    told = listing(sentence(one) for one in data.choices)
    if data.calibration is not None:
        how = joined("<h3>What was compared</h3>", _compared(data.calibration))
    elif data.stacking is not None:
        how = joined("<h3>What was combined</h3>", _combined(data.stacking, data.loss))
    else:
        many = "the rule calibrated compares many" if data.how.startswith("rule") else "the method stacked combines many"
        how = paragraph(f"The {data.how} was asked for, so no other was tried; {many}.")
    return Section("choices", "Choices and why", joined(told, how))


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


def _combined(stacking: Stacking, loss: str) -> Html:
    frame = stacking.table
    told = (
        "A prior is what is believed of a model before the agent's own rows are seen: nothing (learning alone), that all "
        "have one common model, that they scatter about it (random coefficients), or that they form clusters. Every model "
        "is a mixture of what these make of its rows, with the shares that predicted rows held out best."
        + (" Agents depart from these shares as far as their own rows say so." if stacking.departs else "")
    )
    words = (
        f"The {loss} is a mean over agents; lower is better. A penalty or strength of 10 counts like 10 rows that say "
        "zero, or what the common model says."
    )
    columns = [
        Column("Prior", "text"),
        Column("Share"),
        Column(sentence(loss)[:-1], hint="On rows held out"),
    ]
    rows = [
        [escape(str(name)), percent(share), number(mean, 4)]
        for name, share, mean in zip(frame.index, frame["share"], frame["out-of-fold loss"], strict=True)
    ]
    shown = min(len(frame), _BEST)
    which = f"the {shown} largest of {len(frame)} priors" if shown < len(frame) else counted(shown, "prior")
    caption = f"Shares of {which} in every model; at the right the {loss} of each alone, on rows held out."
    return joined(
        paragraph(told),
        figure(_bars(stacking, loss), caption),
        paragraph(words, "muted"),
        details(f"{counted(len(frame), 'prior')} as a table", table("Priors, the largest share first", columns, rows)),
    )


def _bars(stacking: Stacking, loss: str) -> Html:
    """A bar for every share, its number at the end, and the loss on rows held out at the right."""
    frame = stacking.table.head(_BEST)
    height, right = 2 * _TOP + _ROW * (len(frame) + 1), _WIDTH - 16
    longest = right - _NAMES - 2 * _PERCENT
    top = max(float(frame["share"].iloc[0]), 1e-12)
    drawn: list[str] = [
        label(_NAMES - 14, _TOP + 14, "prior", "end"),
        label(_NAMES, _TOP + 14, "share", "start"),
        label(right, _TOP + 14, shortened(loss, 16), "end"),
    ]
    for line, (name, row) in enumerate(frame.iterrows()):
        share = float(row["share"])
        y, length = _TOP + _ROW * (line + 1.5), longest * share / top
        drawn += [
            label(_NAMES - 14, y + 4, shortened(str(name), 52), "end", "chosen" if line == 0 else "other"),
            f'<rect class="share" x="{_NAMES}" y="{y - 7:.1f}" width="{max(length, 1):.1f}" height="14" rx="3"/>',
            label(_NAMES + length + 8, y + 4, percent(share, 0 if share >= 0.01 else 1), "start"),
            label(right, y + 4, number(float(row["out-of-fold loss"]), 4), "end"),
        ]
    best = frame.index[0]
    told = f"Shares of {counted(len(frame), 'prior')}; the largest, {percent(top, 0)}, is {best}."
    return image(_WIDTH, height, told, "".join(drawn), "dots")
