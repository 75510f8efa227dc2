"""The answer first: what learning with kin is worth, against learning alone and against one common model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfed.analysis import FLOOR
from kinfed.markup import Html, escape, paragraph, tag
from kinfed.report.context import MANY_AGENTS, ReportContext, ReportData
from kinfed.report.elements import Section, error_bar, facts, image, joined
from kinfed.report.prediction import NOT_JUDGED, UNITS
from kinfed.report.text import (
    SHARES_OF_ROWS,
    SPACE,
    Change,
    baseline_name,
    count,
    counted,
    listed,
    number,
    percent,
    sentence,
    times,
)
from kinfed.report.ties import WORDS
from kinfed.weights.calibration.family import JOIN, STAY, UNKNOWN

if TYPE_CHECKING:
    from kinfed.analysis import PairedComparison, PredictedGain
    from kinfed.weights.calibration.family import Calibration

_VERDICTS = {
    "better": "\N{BLACK UP-POINTING TRIANGLE}",
    "worse": "\N{BLACK DOWN-POINTING TRIANGLE}",
    "undecided": "\N{BLACK DIAMOND}",
}
_KIN = "Learning with kin"
_SAME = {
    "learning alone": "every agent has the same model as when it learns alone",
    "one common model": "every agent has the same model as all others, the common one",
}
_DECILE = "Nine in ten agents reach or beat the worst decile."
_FLOOR = (
    "What needs no model is the floor: an agent's own mean in training, or the shares of its classes, each with half a row "
    "more."
)


def headline(context: ReportContext) -> Section:
    """The first section: measured after training, predicted before it."""
    comparisons = context.data.comparisons
    learning = [] if context.words is None else [context.words.learning]
    meaning = [*learning, *([_DECILE] if comparisons else []), *([_FLOOR] if FLOOR in comparisons else [])]
    told = _measured(context) if comparisons else _predicted(context)
    lost = _withheld(context.data)
    explained = paragraph(" ".join(meaning), "muted") if meaning else ""
    return Section("in-short", "In short", joined(told, lost, explained, _at_a_glance(context)))


def _withheld(data: ReportData) -> Html:
    """Who has no model, and why; and what became of the others' weights."""
    if not data.withheld:
        return Html("")
    without = listed([f"agent {name} {what}" for name, what in data.withheld.items()])
    verbs = ("has", "is") if len(data.withheld) == 1 else ("have", "are")
    again = (
        "" if data.asked is None else " The weights of the others were solved again without; they are those on this page."
    )
    return paragraph(
        f"{counted(len(data.withheld), 'agent')} of {count(len(data.names))} {verbs[0]} no model in this run and "
        f"{verbs[1]} in no number above, since a model needs rows of its own agent: {without}.{again}"
    )


def _measured(context: ReportContext) -> Html:
    data, who = context.data, _KIN if context.ties is not None else f"The {context.data.how}"
    found, first = data.comparisons, next(iter(data.comparisons.values()))
    names = {key: baseline_name(key, first.metric) for key in found}
    warning = found[FLOOR].warning if FLOOR in found else ""
    lead = [
        answer(one, names[key], first=one is first, who=who) for key, one in found.items() if not (warning and key == FLOOR)
    ]
    lead += [_beside(other[first.second_name], names[first.second_name]) for other in data.beside.values() if other]
    cards = [
        _card(one, names[key], [other[key] for other in data.beside.values() if key in other]) for key, one in found.items()
    ]
    splits = f"scores are means over {first.splits} splits, and intervals cover agents and splits"
    notes = " ".join(sentence(one) for one in (splits if first.splits > 1 else "", first.pooling) if one)
    return joined(
        tag("p", tag("strong", escape(warning)), class_="lead") if warning else "",
        paragraph(" ".join(lead), "lead"),
        f'<div class="cards">{"".join(cards)}</div>',
        paragraph(notes, "muted") if notes else "",
    )


def _beside(comparison: PairedComparison, baseline: str) -> str:
    """Another metric of the headline, in half a sentence's worth."""
    change = Change.of(comparison)
    shown = change.words(change.value).replace("no change", "the same")
    return f"The {comparison.metric} is {shown} {'as' if shown == 'the same' else 'than'} with {baseline}."


def answer(comparison: PairedComparison, baseline: str, *, first: bool = True, who: str = _KIN) -> str:
    """One comparison as a sentence for people, of `who` is compared; a second one need not name everything again."""
    if comparison.equal == 1:
        # A model may be right as often as another one and yet not be the same.
        models = comparison.metric not in SHARES_OF_ROWS and baseline in _SAME
        same = _SAME[baseline] if models else f"every agent's {comparison.metric} is that of {baseline}"
        return f"{who if first else 'It'} changes nothing against {baseline}: {same}."
    change = Change.of(comparison)
    level = f"{percent(comparison.level, 0)} interval"
    if comparison.verdict != "undecided":
        moves = "lowers" if comparison.difference < 0 else "raises"
        told = f"{who} {moves} the {comparison.metric}" if first else f"It {moves} it"
        return f"{told} by {change.size(change.value)} against {baseline} ({level} {change.extent})."
    asked = f"Whether {who[:1].lower() + who[1:] if first else 'it'} beats {baseline} is undecided"
    seen = f"the {comparison.metric} is {change.words(change.value)}".replace("is no change", "is the same")
    why = (
        f"the {level}, {change.interval}, leaves both open"
        if change.has_interval
        else "one agent is too few for an interval"
    )
    return f"{asked}: {seen}, and {why}."


def _card(comparison: PairedComparison, baseline: str, beside: Sequence[PairedComparison] = ()) -> Html:
    change = Change.of(comparison)
    verdict, same = comparison.verdict, comparison.equal == 1
    interval = change.interval if change.has_interval else "none: there are too few agents"
    rows = [
        *([] if same else [(f"{percent(comparison.level, 0)} interval", escape(interval))]),
        ("Mean over agents", _both(comparison.first_mean, comparison.second_mean)),
        ("Mean over rows", _both(comparison.first_rows_mean, comparison.second_rows_mean)),
        *((f"{sentence(one.metric).rstrip('.')}, over agents", _both(one.first_mean, one.second_mean)) for one in beside),
        ("Worst decile", _both(comparison.first_worst_decile, comparison.second_worst_decile)),
        ("Spread between agents", _both(comparison.first_spread, comparison.second_spread)),
    ]
    counts = {name: round(getattr(comparison, name) * comparison.n_agents) for name in ("better", "equal", "worse")}
    return joined(
        f'<article class="card"><h3>Against {escape(baseline)}</h3><p class="verdict {verdict}">'
        f'<span aria-hidden="true">{"=" if same else _VERDICTS[verdict]}</span> {"the same" if same else verdict}</p>',
        paragraph(change.words(change.value), "figure"),
        paragraph(comparison.metric, "muted"),
        _interval(change, comparison) if change.has_interval and not same else "",
        facts(rows),
        stacked(counts, "agents"),
        paragraph(sentence(comparison.losses), "muted") if comparison.losses else "",
        "</article>",
    )


def _both(ours: float, theirs: float) -> str:
    return f"{number(ours, 4)} against {number(theirs, 4)}"


def stacked(counts: dict[str, int], noun: str) -> Html:
    """A bar of parts, with their numbers below it."""
    parts = "".join(
        f'<span class="{name.replace(" ", "-")}" style="flex-grow:{value}"></span>'
        for name, value in counts.items()
        if value
    )
    numbers = "".join(
        f'<li><span class="key {name.replace(" ", "-")}"></span><strong>{count(value)}</strong> {escape(name)} '
        f'<span class="muted">({percent(value / max(sum(counts.values()), 1), 0)})</span></li>'
        for name, value in counts.items()
    )
    return Html(
        f'<div class="stack" aria-hidden="true">{parts}</div><ul class="parts" aria-label="Number of '
        f'{escape(noun)}">{numbers}</ul>'
    )


def _interval(change: Change, comparison: PairedComparison) -> Html:
    width, height, edge = 320.0, 46.0, 16.0
    low, high = min(change.low, 0.0, change.value), max(change.high, 0.0, change.value)
    if high == low:
        low, high = low - 1.0, high + 1.0

    def x(value: float) -> float:
        return edge + (width - 2 * edge) * (value - low) / (high - low)

    label = f"Change of the {comparison.metric}: {change.words(change.value)}, interval {change.interval}."
    anchor = "start" if x(0) < width / 3 else "end" if x(0) > 2 * width / 3 else "middle"
    drawing = (
        f'<line class="axis" x1="{edge / 2}" x2="{width - edge / 2}" y1="16" y2="16"/>'
        f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="5" y2="27"/>'
        f'<text class="label" x="{x(0):.1f}" y="42" text-anchor="{anchor}">no change</text>'
        + error_bar(x(change.value), x(change.low), x(change.high), 16, comparison.verdict)
    )
    return image(width, height, label, drawing, "interval")


def _predicted(context: ReportContext) -> Html:
    data = context.data
    tested = "no model has been tested yet."
    note = paragraph(f"Predicted, not measured: {tested}", "badge")
    if data.calibration is not None:
        lead, cards = _by_calibration(data.calibration)
    elif data.expected is not None:
        lead, cards = _by_priors(data.expected, data.loss)
    elif data.predicted is not None:
        lead, cards = _by_theory(data.predicted)
    else:
        return joined(paragraph(f"Not measured: {tested}", "badge"), paragraph(_not_predicted(data), "lead"))
    counts = {word: context.prediction.advice.count(word) for word in (JOIN, UNKNOWN, STAY)}
    advised = paragraph(context.prediction.advised, "muted")
    card = f'<article class="card"><h3>Advice to the agents</h3>{stacked(counts, "agents")}{advised}</article>'
    return joined(note, paragraph(lead, "lead"), '<div class="cards">', cards, card, "</div>")


def _not_predicted(data: ReportData) -> str:
    many = (
        f" For so many agents (more than {MANY_AGENTS}) nothing is predicted unless it is asked for: kinfed theory "
        "predicts what collaborating would save."
    )
    says = "" if data.ties is None else f" says {WORDS[data.ties.kind].heading.lower()};"
    return (
        f"The {data.how}{says}{' what that is worth' if says else ': what it is worth'} was neither predicted nor measured."
        f"{many if len(data.names) > MANY_AGENTS else ''}"
    )


def _by_calibration(calibration: Calibration) -> tuple[str, Html]:
    choice = calibration.choice
    alone, best = float(choice.mean[calibration.local]), float(choice.mean[choice.chosen])
    if not calibration.judged and len(choice.personal) == 1:
        return "There is one agent, so there is nobody to learn with.", Html("")
    if not calibration.judged:
        return "Nothing could be predicted: no agent has rows enough to hold some out. Every agent learns alone.", Html("")
    if choice.chosen == calibration.local:
        return "On rows that were held out, no way of learning with others was clearly better than learning alone.", Html(
            ""
        )
    shares = calibration.has_shares and alone > 0
    unit = alone if shares else 1.0
    change = Change((best - alone) / unit, unit="share" if shares else "difference")
    error = change.size(float(choice.error[calibration.local]) / unit)
    told = "" if shares else f", in {UNITS},"
    lead = (
        f"Learning with kin is predicted to {'lower' if change.value < 0 else 'raise'} the {calibration.loss} by "
        f"{change.size(change.value)}{told} against learning alone (standard error {error}), judged by models on rows that "
        "every agent held out."
    )
    return lead, _predicted_card(change, f"{calibration.loss} on held-out rows{told.rstrip(',')}, ±{SPACE}{error}")


def _by_priors(expected: Any, loss: str) -> tuple[str, Html]:
    saved = float(expected.mean)
    if not np.isfinite(saved):
        return "Nothing could be predicted: no agent has rows enough to hold some out.", Html("")
    low, high = expected.interval
    change = Change(-saved, -high, -low)
    ends = f"; {percent(expected.level, 0)} interval {change.interval}" if change.has_interval else ""
    lead = (
        f"Learning with kin is expected to {'lower' if saved >= 0 else 'raise'} an agent's {loss} by {change.size(saved)} "
        "against learning alone, in the mean over agents, judged by models and by rows that every agent held out."
    )
    return lead, _predicted_card(change, f"{loss} of new rows, mean over agents{ends}")


def _by_theory(predicted: PredictedGain) -> tuple[str, Html]:
    saved, (low, high) = predicted.mean_gain, predicted.interval
    lead = (
        f"Averaging with kin is predicted to {'save' if saved >= 0 else 'add'} {percent(abs(saved))} of the error that "
        "the mean embedding of an agent alone has. That is the error of an agent's picture of its own data, not yet "
        "that of a model."
    )
    change = Change(-saved, -high, -low)
    ends = change.interval if change.has_interval else "none: there are too few agents"
    return lead, _predicted_card(change, f"error of the mean embedding; {percent(predicted.level, 0)} interval {ends}")


def _predicted_card(change: Change, note: str) -> Html:
    return tag(
        "article",
        tag("h3", "Predicted, against learning alone"),
        paragraph(change.words(change.value), "figure"),
        paragraph(note, "muted"),
        class_="card",
    )


def _at_a_glance(context: ReportContext) -> Html:
    data, ties, words = context.data, context.ties, context.words
    pairs = [("Agents", count(len(data.names))), ("Rows to learn from", count(float(data.sizes.sum())))]
    if ties is not None and words is not None:
        groups, outliers = len(ties.groups.sizes), len(ties.groups.outliers)
        pairs.append((words.median, percent(float(np.nanmedian(ties.own)), 0)))
        if ties.effective is not None:
            gained = float(np.nanmedian(ties.effective / ties.sizes))
            pairs.append(("An agent learns as if it had, median", f"{times(gained)} its rows"))
        found = f"{count(groups)}, and {counted(outliers, 'outlier')}" if outliers else count(groups)
        pairs.append(("Groups of kin", found))
    if data.comparisons and context.prediction.advice[0] != NOT_JUDGED:
        pairs.append(("Advised to join", f"{count(context.prediction.advice.count(JOIN))} of {count(len(data.names))}"))
    return Html(f'<div class="glance">{facts((key, escape(value)) for key, value in pairs)}</div>')
