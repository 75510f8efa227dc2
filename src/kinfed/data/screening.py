"""What was found when agents were looked at beside each other, and what follows for those who learn from them.

Nobody is kept from a model: an agent that is set aside learns alone, and from its own rows, as they are, every agent learns
for itself. What is bounded is how much an agent can do to others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.plausibility import FEWEST_AGENTS, Finding, implausible
from kinfed.data.scales import GRID, far_limits, voices
from kinfed.validation import Array, unknown

if TYPE_CHECKING:
    from kinfed.data.column_encoders import NumericRule, TableSummary
    from kinfed.data.preparation import Preparation

ALONE = "learns alone, and nobody else learns from it (--trust takes it in)"

FAINT = 0.1
"""Voice below which an agent is left to itself: it learns alone, and nobody else learns from it."""

MOST_TOLD, MOST_NAMED = 12, 5
"""Findings that are told one by one, and agents and columns whose far cells are."""


@dataclass(frozen=True)
class Screening:
    """What agents are like beside each other.

    Attributes
    ----------
    findings : tuple of Finding
        Agents that are unlike all others in a column.
    voices : mapping from agent to float
        How much those count for others that count for less than others do; nothing, if they are set aside.
    held : mapping from agent to mapping from column to int
        Cells that are too far from everybody's, and are held at the limit in what others learn from the agent.
    trusted : tuple of str
        Agents that were taken in as they are.
    """

    findings: tuple[Finding, ...] = ()
    voices: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()

    def voices_of(self, names: Sequence[str]) -> Array | None:
        """What each of some agents counts for others; None where all count the same."""
        if not self.voices:
            return None
        return np.array([self.voices.get(name, 1.0) for name in names])

    @property
    def aside(self) -> dict[str, str]:
        """Agents that are set aside, and why."""
        found: dict[str, str] = {}
        for one in self.findings:
            if one.aside:
                found.setdefault(one.agent, str(one))
        return found

    @property
    def faint(self) -> dict[str, str]:
        """Agents that are left to themselves without being set aside, and why."""
        low = {name: voice for name, voice in self.voices.items() if 0 < voice < FAINT}
        return {name: f"its outcomes, as a whole, would count {voice:.2g} for others" for name, voice in low.items()}

    def about(self, agent: str) -> tuple[str, ...]:
        """What there is to say of one agent, in sentences."""
        told = [_told(one) for one in self.findings if one.agent == agent]
        if 0 < (voice := self.voices.get(agent, 1.0)) < 1:
            follows = f"counts {voice:.2g} for others" if voice >= FAINT else ALONE
            told.append(f"{agent}: most of its outcomes are too far from everybody's, so it {follows}")
        cells = self.held.get(agent, {})
        if cells:
            named = ", ".join(f"{column} ({count})" for column, count in cells.items())
            told.append(f"{agent}: cells too far from everybody's, held at the limit in what others learn: {named}")
        return tuple(told)

    def describe(self) -> list[str]:
        """What there is to say of all agents, those that are set aside first."""
        names = dict.fromkeys([*self.aside, *(one.agent for one in self.findings), *self.voices])
        told = [sentence for name in names for sentence in self.about(name)]
        more = [f"and {len(told) - MOST_TOLD} more of this kind"] if len(told) > MOST_TOLD else []
        cells = [
            (name, column, count) for name, mine in self.held.items() if name not in names for column, count in mine.items()
        ]
        if cells:
            total, agents = sum(count for *_, count in cells), len({name for name, *_ in cells})
            most = sorted(cells, key=lambda one: -one[2])[:MOST_NAMED]
            where = ", ".join(f"{count} of {column} at {name}" for name, column, count in most)
            more.append(
                f"{total} cells of {agents} agents are far from everybody's, and held in what others learn: {where}"
                + (", ..." if len(cells) > len(most) else "")
            )
        return told[:MOST_TOLD] + more

    def to_settings(self) -> dict[str, Any]:
        """As values that fit into JSON."""
        findings = [asdict(one) for one in self.findings]
        held = {name: dict(cells) for name, cells in self.held.items()}
        return {"findings": findings, "voices": dict(self.voices), "held": held, "trusted": list(self.trusted)}

    @classmethod
    def from_settings(cls, told: Mapping[str, Any]) -> Screening:
        """What `to_settings` wrote."""
        findings = tuple(Finding(**one) for one in told["findings"])
        held = {str(name): {str(column): int(n) for column, n in cells.items()} for name, cells in told["held"].items()}
        spoken = {str(name): float(voice) for name, voice in told["voices"].items()}
        return cls(findings, spoken, held, tuple(map(str, told["trusted"])))


def _told(finding: Finding) -> str:
    follows = f"; it is set aside: it {ALONE}"
    return f"{finding}{follows if finding.aside else ''}"


def screened(
    preparation: Preparation,
    answers: Mapping[str, TableSummary],
    far: Mapping[str, NDArray[np.int64]],
    trusted: Collection[str] = (),
) -> tuple[Preparation, Screening]:
    """The preparation with limits of what others learn from far cells, and what was found of the agents.

    Parameters
    ----------
    preparation : Preparation
        Fitted on these answers.
    answers : mapping from agent to TableSummary
    far : mapping from agent to array of shape (numeric columns, edges)
        Cells beyond the edges of the grid (`kinfed.data.scales.far_counts`), of those columns that `measured` has.
    trusted : collection of str
        Agents that are taken in as they are.
    """
    names = list(answers)
    for name in trusted:
        if name not in answers:
            raise unknown("agent", name, names)
    if not preparation.robust:
        return preparation, Screening(trusted=tuple(trusted))
    rules = preparation.measured
    every = [*preparation.source, *([rules[-1].column] if preparation.outcome is not None else [])]
    shapes = [one.shapes for one in answers.values() if one.shapes is not None]
    findings, _ = implausible(shapes, names, every, trusted)
    used = {rule.column for rule in rules}
    findings = tuple(one for one in findings if one.column in used)
    places = [len(every) - 1 if rule is preparation.outcome else every.index(rule.column) for rule in rules]
    known = np.array([one.count[places] for one in shapes])
    counts = np.array([far[name] for name in names])
    limits = far_limits(counts, known)
    limited = [replace(rule, limit=float(limit)) for rule, limit in zip(rules, limits, strict=True)]
    if 2 * len({one.agent for one in findings if one.aside}) > len(names):  # who is right then?
        findings = tuple(replace(one, aside=False) for one in findings)
    spoken = {name: 0.0 for name in names if any(one.aside for one in findings if one.agent == name)}
    if preparation.outcome is not None:
        loud = voices(counts[:, -1], known[:, -1], float(limits[-1]))
        if len(names) < FEWEST_AGENTS:  # who is right among so few?
            loud = np.maximum(loud, FAINT)
        spoken = {name: float(voice) for name, voice in zip(names, loud, strict=True) if voice < 1} | spoken
    held = {
        name: cells
        for name, mine in zip(names, counts, strict=True)
        if name not in trusted and (cells := _beyond(limited, mine))
    }
    spoken = {name: voice for name, voice in spoken.items() if name not in trusted}
    return preparation.with_limits(limited), Screening(findings, spoken, held, tuple(trusted))


def _beyond(rules: Sequence[NumericRule], counts: NDArray[np.int64]) -> dict[str, int]:
    """How many cells of an agent are beyond the limit, by column."""
    found = {}
    for rule, mine in zip(rules, counts, strict=True):
        edges = [count for edge, count in zip(GRID, mine.tolist(), strict=True) if edge == rule.limit]
        if edges and edges[0]:
            found[rule.column] = edges[0]
    return found


NO_SCREENING = Screening()
"""Nothing was found, or nobody looked."""
