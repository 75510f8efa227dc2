"""Every agent: a table to search, and a section of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kinfed.markup import escape
from kinfed.report.elements import Cell, Column, Html, Section, agent_link, facts, joined, paragraph, table
from kinfed.report.findings import NOT_JUDGED, Findings
from kinfed.report.measures import BASELINE_NAMES
from kinfed.report.text import (
    NOTHING,
    count,
    counted,
    figures,
    percent,
    probability,
    sentence,
    times,
    weight,
)

Array = NDArray[np.float64]

_COLLABORATORS = 10
_UNFOLDED_UP_TO = 20  # agents; the sections of more would part the page in two

_SHIFTS = {"covariate": "inputs", "label": "target", "concept": "target given inputs"}


def agents_one_by_one(findings: Findings) -> Section:
    """The section of the agents."""
    tests = _own_tests(findings)
    unfolded = " open" if len(findings.names) <= _UNFOLDED_UP_TO else ""
    chapters = "".join(_chapter(findings, tests, agent) for agent in range(len(findings.names)))
    return Section(
        "agents",
        "Agents",
        joined(
            paragraph(_how_to_read(findings)),
            _filter(findings),
            _overview(findings),
            "<h3>One by one</h3>",
            paragraph("Every agent has a section: open the one you want, or follow any link with its name.", "muted"),
            f'<details class="chapters"{unfolded}><summary>{counted(len(findings.names), "agent")}</summary>',
            chapters,
            "</details>",
        ),
    )


def _how_to_read(findings: Findings) -> str:
    told = [
        "Learns as if from: how many rows of its own would give an average as steady as the weighted one has "
        "(the effective sample size, 1 / Σ w²/n); gained: that, as a multiple of the agent's own rows."
    ]
    if findings.prediction.meaning:
        found = findings.prediction
        told.append(f"Predicted gain: what learning with kin saves {found.meaning}; ± is {found.uncertainty}.")
        told.append(f"Advice: join or stay local where it is farther from zero than {found.threshold}.")
    if findings.measure is not None:
        told.append(f"Measured gain: {findings.measure.unit}, on test rows. A plus is always good.")
    return " ".join(told)


def _filter(findings: Findings) -> Html:
    words = "".join(
        f"<option>{escape(word)}</option>" for word in dict.fromkeys(findings.prediction.advice) if word != NOT_JUDGED
    )
    select = (
        f'<label>Advice <select id="filter-advice"><option value="">any</option>{words}</select></label>' if words else ""
    )
    return Html(
        '<div class="filter" role="search" hidden><label>Name <input id="filter-name" type="search" autocomplete="off" '
        f'spellcheck="false"></label>{select}<p id="filter-count" role="status"></p></div>'
    )


def _overview(findings: Findings) -> Html:
    weights, prediction = findings.story.weights, findings.prediction
    gained = findings.effective / weights.sizes
    columns = [
        Column("Agent", "text"),
        Column("Rows", hint="Rows to learn from, n"),
        Column("Own weight", hint="Weight on its own data"),
        Column("Learns as if from", hint="Effective sample size"),
        Column("Gained", hint="Effective sample size over own rows"),
    ]
    if prediction.meaning:
        columns.append(Column("Predicted gain"))
    columns += [Column(f"Against {BASELINE_NAMES[baseline]}", hint="Measured gain") for baseline in findings.gains]
    if prediction.meaning:
        columns.append(Column("Advice", "text"))

    def rows() -> Iterator[list[str | Cell]]:
        for agent, name in enumerate(findings.names):
            row: list[str | Cell] = [
                agent_link(agent, name),
                Cell(count(float(weights.sizes[agent])), float(weights.sizes[agent])),
                Cell(percent(findings.own[agent]), findings.own[agent]),
                Cell(count(findings.effective[agent]), findings.effective[agent]),
                Cell(times(gained[agent]), gained[agent]),
            ]
            if prediction.meaning:
                row.append(Cell(prediction.told(agent), prediction.gain[agent]))
            row += [Cell(_measured(findings, gains, agent), gains[agent]) for gains in findings.gains.values()]
            if prediction.meaning:
                row.append(prediction.advice[agent])
            yield row

    return table("All agents", columns, rows(), anchor="agents-table")


def _measured(findings: Findings, gains: Array, agent: int) -> str:
    return NOTHING if findings.measure is None else findings.measure.told(float(gains[agent]))


def _chapter(findings: Findings, tests: dict[str, Array], agent: int) -> Html:
    weights, prediction = findings.story.weights, findings.prediction
    size, effective = float(weights.sizes[agent]), findings.effective[agent]
    pairs = [
        ("Rows", count(size)),
        ("Weight on itself", percent(findings.own[agent])),
        ("Learns as if from", f"{counted(round(effective), 'row')} ({times(effective / size)})"),
        ("On the map", findings.group_name(agent)),
    ]
    if prediction.meaning:
        pairs.append(("Predicted gain", prediction.told(agent)))
    pairs += [
        (f"Measured, against {BASELINE_NAMES[baseline]}", _measured(findings, gains, agent))
        for baseline, gains in findings.gains.items()
    ]
    calibration = weights.calibration
    if calibration is not None:
        pairs.append(("Its choice", escape(calibration.personal(agent))))
    pairs += [(words, probability(float(values[agent]))) for words, values in tests.items()]
    advice = prediction.advice[agent]
    shown = "" if advice == NOT_JUDGED else f'<span class="advice {advice.replace(" ", "-")}">{advice}</span>'
    return joined(
        f'<details class="agent" id="agent-{agent}"><summary><span class="name">{escape(findings.names[agent])}</span> '
        f"{shown}"
        f"</summary><p>{_advice_in_words(findings, agent)}</p>",
        facts(pairs),
        _collaborators(findings, agent),
        "</details>",
    )


def _advice_in_words(findings: Findings, agent: int) -> str:
    advice, reason = findings.prediction.advice[agent], escape(findings.prediction.reasons[agent])
    return reason if advice == NOT_JUDGED else f"<strong>{sentence(advice)}</strong> {reason}"


def _own_tests(findings: Findings) -> dict[str, Array]:
    """Whether every agent differs from the others: the p-values of the diagnosis, by what may differ."""
    diagnosis = findings.story.diagnosis
    if diagnosis is None:
        return {}
    own = diagnosis.agents.reindex(list(findings.names))
    return {f"Differs in {words}, p-value": own[shift].to_numpy() for shift, words in _SHIFTS.items() if shift in own}


def _collaborators(findings: Findings, agent: int) -> Html:
    weights = findings.story.weights
    row = findings.others[agent]
    heard = [k for k in np.argsort(-row, kind="stable")[:_COLLABORATORS].tolist() if row[k] > 0]
    if not heard:
        return paragraph("It listens to nobody else.")
    evidence = weights.evidence
    columns = [
        Column("Listens to", "text"),
        Column("Weight"),
        Column("Squared MMD"),
        Column("Chance up to"),
        Column("Differs", "text"),
    ]
    rows: list[list[str | Cell]] = [
        [
            agent_link(k, findings.names[k]),
            weight(row[k]),
            figures(evidence.squared_distances[agent, k]),
            figures(evidence.null_quantiles[agent, k]),
            _differs(evidence.squared_distances[agent, k], evidence.null_quantiles[agent, k]),
        ]
        for k in heard
    ]
    listened = int((row > 0).sum())
    rest = f", the {len(heard)} heaviest of {count(listened)}" if listened > len(heard) else ""
    return table(f"Collaborators of {findings.names[agent]}{rest}", columns, rows)


def _differs(distance: float, quantile: float) -> str:
    if not np.isfinite(distance):
        return NOTHING
    return "yes" if distance > quantile else "no"
