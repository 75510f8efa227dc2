"""Whether the interval of a headline covers what other splits of the same rows would have told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.analysis import comparisons
from kinfed.experiments.experiment import (
    Conclusion,
    Experiment,
    Figure,
    Measurement,
    Part,
    PartFindings,
    PartProgress,
    Verdict,
    graded,
    setting_label,
    setting_value,
    whole,
)
from kinfed.experiments.leaderboard_data import Contest, contests
from kinfed.experiments.paper_settings import repetition_seed
from kinfed.learners import make_learner
from kinfed.methods import REFERENCES
from kinfed.plotting.style import panels
from kinfed.run import personalize
from kinfed.splitting import derived_seed
from kinfed.validation import Array, one_of
from kinfed.weights import RULES

LOW, HIGH, ESTIMATE, TRUTH = "low", "high", "difference", "difference of one fresh split"
HEADLINE = "local"
"""The comparison that leads a headline."""
COVERED = 0.85
"""Share of the trials whose interval must cover: 17 of 20."""


@dataclass(frozen=True)
class IntervalCoverage(Experiment):
    """How often the interval of a run with repeats covers the mean difference over many other splits."""

    name: ClassVar[str] = "interval-coverage"
    summary: ClassVar[str] = (
        "Personal models against learning alone on real federations: every trial is a run with repeats and tells a 95 % "
        "interval of the difference of the leading metric, over agents and splits. The truth is the mean difference over "
        "many fresh splits of the same rows, each of one run. How many trials' intervals cover it?"
    )
    quick: ClassVar[Mapping[str, Any]] = {
        "data": ("medicare",),
        "repetitions": 3,
        "repeats": 2,
        "splits": 3,
        "rule": "similarity-test",
    }
    least: ClassVar[Mapping[str, int]] = {"repeats": 1}

    data: tuple[str, ...] = field(
        default=("hsb82", "medicare"),
        metadata={"help": "A name of kinfed data list, a table as PATH:TARGET:AGENT, or an archive (.npz)."},
    )
    repeats: int = field(default=5, metadata={"help": "Splits of a trial."})
    splits: int = field(default=20, metadata={"help": "Fresh splits whose mean is the truth."})
    rule: str = field(default="calibrated", metadata={"help": "How agents are weighed."})
    test_size: float = field(default=0.2, metadata={"help": "Share of every agent's rows to test on.", "share": True})
    repetitions: int = field(default=20, metadata={"help": "Trials."})

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.rule, [name for name, rule in RULES.items() if "groups" not in rule.needs], "--rule")

    @cached_property
    def _contests(self) -> list[Contest]:
        return contests(self.data)[0]

    def parts(self) -> Sequence[Part]:
        """One part per federation and trial, and one per federation and fresh split; trials take longer."""
        trials = [
            Part(f"{one.key}-trial-{r}", r, (one, self.repeats)) for one in self._contests for r in range(self.repetitions)
        ]
        fresh = [Part(f"{one.key}-split-{r}", r, (one, 0)) for one in self._contests for r in range(self.splits)]
        return [*trials, *fresh]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """A trial, with the ends of its intervals; or the difference of one fresh split."""
        contest, repeats = part.options
        federation, classes = contest.read()
        # A seed of its own kind, so that no split of a trial is one of those that make the truth.
        purpose = int(derived_seed(self.seed, "trials" if repeats else "fresh splits").generate_state(1)[0])
        seed = repetition_seed(purpose, part.repetition)
        learner = make_learner("logistic" if classes else "ridge")
        train, test = federation.split(self.test_size, seed)
        result = personalize(train, learner, self.rule, test, seed, repeats=max(repeats, 1), checkpoint=checkpoint)
        setting = setting_label(federation=contest.name, metric=result.metric.replace(" ", "-"))
        found: list[Measurement] = []
        for baseline, told in comparisons(result.scored, REFERENCES, seed).items():
            values = {TRUTH: told.difference}
            if repeats:
                values = {ESTIMATE: told.difference, LOW: told.interval[0], HIGH: told.interval[1]}
            found += [whole(setting, baseline, part.repetition, metric, value) for metric, value in values.items()]
        progress(1.0)
        return PartFindings(tuple(found))

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Count the trials that cover, and draw their intervals about the truth."""
        counts = {
            str(one): {
                str(baseline): int(covering(results, str(one), baseline).sum()) for baseline in rows["method"].unique()
            }
            for one, rows in results.groupby("setting", sort=False)
        }
        table = pandas.DataFrame(
            {
                setting_value(one, "federation"): {
                    f"against {baseline}": f"{count} of {self.repetitions}; truth {truth(results, one, baseline):+.4g}, "
                    f"mean width {widths(results, one, baseline).mean():.4g}"
                    for baseline, count in found.items()
                }
                for one, found in counts.items()
            }
        )
        return Conclusion(
            verdicts=tuple(self._verdicts(counts)),
            figures={"intervals": self._figure(results)},
            tables={"Trials whose interval covers the mean over fresh splits:": table},
            remarks=(
                "The agents are the same in all trials, and intervals also cover what other agents would change: they are "
                "expected to cover more often than 95 %.",
                f"Rule {self.rule}, {self.repeats} splits in a trial, {self.splits} fresh ones for the truth, "
                f"{self.test_size:.0%} of every agent's rows to test on.",
            ),
        )

    def _verdicts(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Verdict]:
        needed = ceil(COVERED * self.repetitions)
        for setting, found in counts.items():
            yield Verdict(
                f"the headline's 95 % interval with {self.repeats} repeats covers the mean over {self.splits} fresh splits "
                f"in at least {needed} of {self.repetitions} trials",
                f"in {found[HEADLINE]} of {self.repetitions}",
                graded([found[HEADLINE] >= needed]),
                setting,
            )

    def _figure(self, results: pandas.DataFrame) -> Figure:
        settings = list(results["setting"].unique())
        figure, axes = panels(len(settings), width=4.0, height=3.4, squeeze=False)
        for axis, setting in zip(axes[0], settings, strict=True):
            middle, low, high = (trials(results, setting, HEADLINE, metric) for metric in (ESTIMATE, LOW, HIGH))
            places = np.arange(1, len(middle) + 1)
            axis.errorbar(middle, places, xerr=np.abs([middle - low, high - middle]), fmt="o", markersize=3, elinewidth=1)
            axis.axvline(truth(results, setting, HEADLINE), color="black", linestyle="--", linewidth=0.9)
            axis.set(xlabel="difference to learning alone", ylabel="trial", yticks=places[:: max(1, len(places) // 5)])
            axis.tick_params(axis="x", labelrotation=30)
            axis.set_title(setting_value(setting, "federation"), fontsize=9)
        return figure


def trials(results: pandas.DataFrame, setting: str, baseline: str, metric: str) -> Array:
    """What the trials told, in their order."""
    chosen = results[(results["setting"] == setting) & (results["method"] == baseline) & (results["metric"] == metric)]
    return np.asarray(chosen.sort_values("repetition")["value"], dtype=np.float64)


def truth(results: pandas.DataFrame, setting: str, baseline: str) -> float:
    """The mean over fresh splits."""
    return float(trials(results, setting, baseline, TRUTH).mean())


def widths(results: pandas.DataFrame, setting: str, baseline: str) -> Array:
    """How wide the intervals of the trials are."""
    return trials(results, setting, baseline, HIGH) - trials(results, setting, baseline, LOW)


def covering(results: pandas.DataFrame, setting: str, baseline: str) -> Array:
    """One for each trial whose interval covers the truth, and zero for the others."""
    low, high = (trials(results, setting, baseline, metric) for metric in (LOW, HIGH))
    return np.asarray((low <= truth(results, setting, baseline)) & (truth(results, setting, baseline) <= high), dtype=float)
