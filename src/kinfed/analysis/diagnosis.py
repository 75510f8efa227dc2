"""What the heterogeneity tests found, for people and for tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from kinfed.markup import card, listing, table
from kinfed.plotting.analysis import DiagnosisPlots
from kinfed.validation import one_of


@dataclass(frozen=True)
class ShiftTest:
    """One question about the differences between agents, and its answer.

    Attributes
    ----------
    name : {"covariate", "label", "concept"}
    question : str
        For people, such as "Do the inputs x differ between agents?".
    statistic : float
        What was compared with its value under permutation; see `kinfed.analysis`.
    p_value : float
        Share of the permutations, the data themselves among them, with a statistic at least as large. It answers this
        question alone, and is not corrected for the others.
    size : float
        How much differs, from 0 to 1, corrected for chance: the share of the variance that lies between agents; for
        "concept", of the variance of y that x leaves open, the share that an agent's own function of x explains.
    level : float
        The chance of a false alarm the test accepts.
    """

    name: str
    question: str
    statistic: float
    p_value: float
    size: float
    level: float

    @property
    def differs(self) -> bool:
        """Whether a difference was found: the p-value is at most the level."""
        return self.p_value <= self.level

    def __str__(self) -> str:
        found = "yes" if self.differs else "no difference was found"
        size = f"; {self.size:.1%} of {_VARIANCE[self.name]}" if self.differs else ""
        return f"{self.question} {found[0].upper()}{found[1:]} (p = {self.p_value:.3g}{size})."


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Which kinds of difference there are between agents; made by `kinfed.diagnose`.

    Attributes
    ----------
    tests : tuple of ShiftTest
        "covariate" and, with a target, "label" and "concept", in this order; empty where nothing can be compared.
    level : float
        Of every test on its own; the family of tests is not corrected.
    agents : DataFrame
        A row per agent, a column per test: the agent's own p-value, for the question whether its rows could be a draw from
        all. These are not adjusted for the number of agents: at level 0.05, one agent in twenty stands out by chance.
    permutations : int
    notes : tuple of str
        What was left out, and why, in sentences.
    """

    tests: tuple[ShiftTest, ...]
    level: float
    agents: pandas.DataFrame
    permutations: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ShiftTest:
        tests = {test.name: test for test in self.tests}
        return tests[one_of(name, tests, "test")]

    def describe(self) -> list[str]:
        """What was found and what it means for joining, in plain sentences."""
        sentences = [f"{test} {self._agents_that_stand_out(test)}" for test in self.tests]
        if self.tests:
            sentences += [*_meaning({test.name: test.differs for test in self.tests}), self._levels()]
        return [*sentences, *self.notes]

    def to_frame(self) -> pandas.DataFrame:
        """A table with a row per test: its question, statistic, p-value and answer."""
        columns = ["question", "statistic", "p_value", "size", "level", "differs"]
        rows = {test.name: [getattr(test, column) for column in columns] for test in self.tests}
        return pandas.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("test")

    @property
    def plot(self) -> DiagnosisPlots:
        """What can be drawn: ``plot.tests()``."""
        return DiagnosisPlots(self)

    def __str__(self) -> str:
        return "\n".join(self.describe())

    def _repr_html_(self) -> str:
        return card("Diagnosis", listing(self.describe()), table(self.to_frame(), "What differs between agents"))

    def _agents_that_stand_out(self, test: ShiftTest) -> str:
        own = self.agents[test.name].to_numpy(dtype=float)
        count, known = int(np.sum(own <= self.level)), int(np.sum(~np.isnan(own)))
        return f"Taken one by one, {count} of {known} agents stand out; by chance about {self.level * known:.2g} would."

    def _levels(self) -> str:
        if len(self.tests) == 1:
            return f"Tested at level {self.level:.3g} with {self.permutations} permutations."
        return (
            f"Every question is tested at level {self.level:.3g} on its own, with {self.permutations} permutations: where "
            f"nothing differs, up to {min(self.level * len(self.tests), 1):.0%} of federations get at least one yes."
        )


_VARIANCE = {
    "covariate": "the variance of x, as the kernel sees it, lies between agents",
    "label": "the variance of y, as the kernel sees it, lies between agents",
    "concept": "the variance of y that x leaves open is explained by an agent's own function of x",
}


def _meaning(differs: dict[str, bool]) -> list[str]:
    """How to read the answers together."""
    if "concept" not in differs:
        if differs["covariate"]:
            return [
                "Agents see different inputs; whether they also answer them differently cannot be told without a target."
            ]
        return ["Nothing was found to differ between agents, as far as inputs tell; answers need a target to be compared."]
    if differs["concept"]:
        join = (
            "The same inputs have different answers at different agents: one common model cannot be right for all of them, "
            "so an agent should join its kin rather than everyone."
        )
        unsure = (
            "A label shift, where only the frequencies of y move and x given y stays the same, also changes y given x; "
            "these tests do not tell it from a concept shift."
        )
        return [join, unsure] if differs["label"] else [join]
    if differs["covariate"]:
        return [
            "Agents see different inputs, and nothing speaks against one answer to each: everyone may learn from everyone, "
            "with a model that can follow the common curve; a stiff model, such as a straight line, gains from weights "
            "that favour agents with similar inputs."
        ]
    if differs["label"]:
        return [
            "The answers differ between agents, and neither the inputs nor the answers to equal inputs were found to: one "
            "of the two must differ, by too little to be found here or only in how widely y scatters, which is not "
            "looked for; let the weights decide whether to join."
        ]
    return [
        "Nothing was found to differ between agents: data of all should help each, and one common model is a fair start; "
        "with few rows per agent a difference can go unnoticed."
    ]
