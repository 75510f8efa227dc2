"""How agents differ: in their inputs, in their target, or in how the one depends on the other."""

from __future__ import annotations

from kinfed.report.elements import Column, Section, joined, paragraph, sentences, table, text
from kinfed.report.findings import Findings
from kinfed.report.text import NOTHING, counted, number, percent, probability, sentence

_NAMES = {
    "covariate": "Covariate shift: inputs",
    "label": "Label shift: target",
    "concept": "Concept shift: target given inputs",
}

_SIZES = {
    "covariate": "of the variance of the inputs lies between agents",
    "label": "of the variance of the target lies between agents",
    "concept": "of the variance of the target that the inputs leave open is explained by an agent's own function of them",
}


def how_agents_differ(findings: Findings) -> Section:
    """The section of the heterogeneity tests."""
    diagnosis = findings.story.diagnosis
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
    if not diagnosis.tests:
        told = [sentence(one) for one in diagnosis.describe()] or ["There was nothing to test."]
        return Section("differences", "How agents differ", joined(sentences(told), reading))
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
            text(_NAMES.get(test.name, test.name)),
            text(test.question),
            number(test.statistic),
            probability(test.p_value),
            number(diagnosis.level),
            percent(test.size),
            text(_SIZES.get(test.name, NOTHING)),
            f'<span class="verdict {"differs" if test.differs else "alike"}">'
            f"{'agents differ' if test.differs else 'no difference shown'}</span>",
        ]
        for test in diagnosis.tests
    ]
    shown = table(f"{counted(len(rows), 'test')} of how agents differ", columns, rows)
    words = sentences(sentence(one) for one in diagnosis.describe())
    return Section("differences", "How agents differ", joined(words, shown, reading))
