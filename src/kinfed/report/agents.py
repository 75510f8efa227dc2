"""Every agent: a table to search, and a section of its own; and how agents differ.

They may differ in their inputs, in their target, or in how the one depends on the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinfed.analysis import LEAST_TEST_ROWS
from kinfed.markup import Html, escape, listing, paragraph
from kinfed.report.context import ReportContext, group_name
from kinfed.report.elements import Cell, Column, Section, agent_link, facts, joined, table
from kinfed.report.prediction import NOT_JUDGED
from kinfed.report.text import (
    NOTHING,
    baseline_name,
    count,
    counted,
    figures,
    number,
    percent,
    probability,
    sentence,
    times,
    weight,
)
from kinfed.validation import Array

_COLLABORATORS = 10
_UNFOLDED_UP_TO = 20  # agents; the sections of more would part the page in two

_SHIFTS = {"covariate": "inputs", "label": "target", "concept": "target given inputs"}
_SIZES = {
    "covariate": "of the variance of the inputs lies between agents",
    "label": "of the variance of the target lies between agents",
    "concept": "of the variance of the target that the inputs leave open is explained by an agent's own function of them",
}


def agents_one_by_one(context: ReportContext) -> Section:
    """The section of the agents."""
    tests = _own_tests(context)
    unfolded = " open" if len(context.names) <= _UNFOLDED_UP_TO else ""
    return Section(
        "agents",
        "Agents",
        joined(
            paragraph(_how_to_read(context)),
            _filter(context),
            _overview(context),
            "<h3>One by one</h3>",
            paragraph("Every agent has a section: open the one you want, or follow any link with its name.", "muted"),
            f'<details class="chapters"{unfolded}><summary>{counted(len(context.names), "agent")}</summary>',
            *(_chapter(context, tests, agent) for agent in range(len(context.names))),
            "</details>",
        ),
    )


def _how_to_read(context: ReportContext) -> str:
    found = context.prediction
    told = [] if context.words is None else [context.words.reading]
    if found.meaning:
        told += [
            f"Predicted gain: what learning with kin saves {found.meaning}; ± is {found.uncertainty}.",
            found.advised,
        ]
    if context.measure is not None:
        told.append(f"Measured gain: {context.measure.unit}, on test rows. A plus is always good.")
        if np.nanmin(context.test_rows, initial=LEAST_TEST_ROWS) < LEAST_TEST_ROWS:
            told.append(
                f"Few: fewer than {LEAST_TEST_ROWS} test rows; such agents count together at the top of this page, and "
                "their own gains are mostly chance."
            )
    return " ".join(told)


def _filter(context: ReportContext) -> Html:
    words = "".join(
        f"<option>{escape(word)}</option>" for word in dict.fromkeys(context.prediction.advice) if word != NOT_JUDGED
    )
    select = (
        f'<label>Advice <select id="filter-advice"><option value="">any</option>{words}</select></label>' if words else ""
    )
    return Html(
        '<div class="filter" role="search" hidden><label>Name <input id="filter-name" type="search" autocomplete="off" '
        f'spellcheck="false"></label>{select}<p id="filter-count" role="status"></p></div>'
    )


def _overview(context: ReportContext) -> Html:
    data, ties, words, prediction = context.data, context.ties, context.words, context.prediction
    columns = [Column("Agent", "text"), Column("Rows", hint="Rows to learn from, n")]
    if words is not None:
        columns.append(Column(f"Own {words.amount}", hint=sentence(words.own)[:-1]))
    if ties is not None and ties.effective is not None:
        columns.append(Column("Learns as if from", hint="Effective sample size"))
        columns.append(Column("Gained", hint="Effective sample size over own rows"))
    if prediction.meaning:
        columns.append(Column("Predicted gain"))
    if context.measure is not None:
        columns.append(Column("Test rows"))
        names = [baseline_name(baseline, context.measure.metric) for baseline in context.gains]
        columns += [Column(f"Against {name}", hint="Measured gain") for name in names]
    if prediction.meaning:
        columns.append(Column("Advice", "text"))

    def rows() -> Iterator[list[str | Cell]]:
        for agent, name in enumerate(context.names):
            size = float(data.sizes[agent])
            row: list[str | Cell] = [agent_link(agent, name), Cell(count(size), size)]
            if ties is not None:
                row.append(Cell(percent(ties.own[agent]), ties.own[agent]))
            if ties is not None and ties.effective is not None:
                effective = float(ties.effective[agent])
                row += [Cell(count(effective), effective), Cell(times(effective / size), effective / size)]
            if prediction.meaning:
                row.append(Cell(prediction.told(agent), prediction.gain[agent]))
            if context.measure is not None:
                row.append(Cell(_test_rows(context, agent), context.test_rows[agent]))
            row += [Cell(_measured(context, gains, agent), gains[agent]) for gains in context.gains.values()]
            if prediction.meaning:
                row.append(prediction.advice[agent])
            yield row

    return table("All agents", columns, rows(), anchor="agents-table")


def _measured(context: ReportContext, gains: Array, agent: int) -> str:
    return NOTHING if context.measure is None else context.measure.told(float(gains[agent]))


def _test_rows(context: ReportContext, agent: int) -> str:
    rows = float(context.test_rows[agent])
    return f"{count(rows)}{', few' if 0 < rows < LEAST_TEST_ROWS else ''}"


def _chapter(context: ReportContext, tests: dict[str, Array], agent: int) -> Html:
    data, ties, words, prediction = context.data, context.ties, context.words, context.prediction
    size, lost = float(data.sizes[agent]), data.withheld.get(context.names[agent])
    pairs = [("Rows", count(size))]
    if ties is not None and words is not None:
        pairs.append((sentence(words.own)[:-1], percent(ties.own[agent])))
        if ties.effective is not None:
            effective = float(ties.effective[agent])
            learns = NOTHING if lost is not None else f"{counted(round(effective), 'row')} ({times(effective / size)})"
            pairs.append(("Learns as if from", learns))
        pairs.append(("On the map", group_name(ties, agent)))
    if prediction.meaning:
        pairs.append(("Predicted gain", prediction.told(agent)))
    if context.measure is not None:
        pairs.append(("Test rows", _test_rows(context, agent)))
        pairs += [
            (f"Measured, against {baseline_name(baseline, context.measure.metric)}", _measured(context, gains, agent))
            for baseline, gains in context.gains.items()
        ]
    if data.calibration is not None:
        pairs.append(("Its choice", escape(data.calibration.personal(agent))))
    pairs += [(words, probability(float(values[agent]))) for words, values in tests.items()]
    advice, reason = prediction.advice[agent], escape(prediction.reasons[agent])
    if lost is not None:
        reason = escape(
            f"No model was delivered: it {lost}, so its rows had no part in the training; it keeps what it had."
        )
    judged = advice != NOT_JUDGED and lost is None
    shown = f'<span class="advice {advice.replace(" ", "-")}">{advice}</span>' if judged else ""
    return joined(
        f'<details class="agent" id="agent-{agent}"><summary><span class="name">{escape(context.names[agent])}</span> '
        f"{shown}"
        f"</summary><p>{f'<strong>{sentence(advice)}</strong> {reason}' if judged else reason}</p>",
        facts(pairs),
        _collaborators(context, agent),
        "</details>",
    )


def _own_tests(context: ReportContext) -> dict[str, Array]:
    """Whether every agent differs from the others: the p-values of the diagnosis, by what may differ."""
    diagnosis = context.data.diagnosis
    if diagnosis is None:
        return {}
    own = diagnosis.agents.reindex(list(context.names))
    return {f"Differs in {words}, p-value": own[shift].to_numpy() for shift, words in _SHIFTS.items() if shift in own}


def _collaborators(context: ReportContext, agent: int) -> Html:
    ties, words = context.ties, context.words
    if ties is None or words is None:
        return Html("")
    row, heard, evidence = ties.others[agent], ties.heard(agent, _COLLABORATORS), ties.evidence
    if not heard:
        lost = context.names[agent] in context.data.withheld
        return Html("") if lost else paragraph(words.alone)
    columns = [Column(words.others, "text"), Column(words.amount.capitalize())]
    rows = [[agent_link(k, context.names[k]), weight(row[k])] for k in heard]
    if evidence is not None:
        columns += [
            Column("Squared MMD", hint="How far apart the rows of the two agents are; 0 for one distribution"),
            Column("Chance up to", hint="What chance explains of that in 95 of 100 cases"),
            Column("Differs", "text"),
        ]
        for told, k in zip(rows, heard, strict=True):
            distance, quantile = float(evidence.squared_distances[agent, k]), float(evidence.null_quantiles[agent, k])
            differs = NOTHING if not np.isfinite(distance) else "yes" if distance > quantile else "no"
            told += [figures(distance), figures(quantile), differs]
    listened = int((row > 0).sum())
    rest = f", the {len(heard)} heaviest of {count(listened)}" if listened > len(heard) else ""
    return table(f"{words.collaborators.format(agent=context.names[agent])}{rest}", columns, rows)


def how_agents_differ(context: ReportContext) -> Section:
    """The section of the heterogeneity tests."""
    diagnosis = context.data.diagnosis
    reading = paragraph(
        "How to read it. Covariate shift: agents see different inputs, such as older patients, but the same inputs "
        "lead to the same outcome; a common model can serve all of them if it is rich enough, and joining helps most "
        "where inputs overlap. Label shift: outcomes are more frequent at some agents than at others. Concept shift: "
        "the same inputs lead to different outcomes; then one common model is wrong for somebody, and it matters with "
        "whom one joins. A small p-value says that there is a difference, the size says how large it is: with many "
        "rows a difference may be certain and too small to matter.",
        "muted",
    )
    if diagnosis is None:
        why = "The rows stayed with the agents, so these tests, which look at all rows at once, were not made."
        return Section("differences", "How agents differ", joined(paragraph(why), reading))
    words = listing([sentence(one) for one in diagnosis.describe()] or ["There was nothing to test."])
    if not diagnosis.tests:
        return Section("differences", "How agents differ", joined(words, reading))
    columns = [
        Column("Kind of difference", "text"),
        Column("Question", "text"),
        Column("Statistic"),
        Column("p\N{NON-BREAKING HYPHEN}value"),
        Column("Level"),
        Column("Size", hint="Shares of different variances, corrected for chance"),
        Column("What the size is", "text"),
        Column("Verdict", "text"),
    ]
    rows = [
        [
            escape(f"{test.name.capitalize()} shift: {_SHIFTS[test.name]}" if test.name in _SHIFTS else test.name),
            escape(test.question),
            number(test.statistic),
            probability(test.p_value),
            number(diagnosis.level),
            percent(test.size),
            escape(_SIZES.get(test.name, NOTHING)),
            f'<span class="verdict {"differs" if test.differs else "alike"}">'
            f"{'agents differ' if test.differs else 'no difference shown'}</span>",
        ]
        for test in diagnosis.tests
    ]
    shown = table(f"{counted(len(rows), 'test')} of how agents differ", columns, rows)
    return Section("differences", "How agents differ", joined(words, shown, reading))
