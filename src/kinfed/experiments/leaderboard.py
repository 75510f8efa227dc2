"""Which rule is best, on which federation? Every rule on the same splits, with the same learner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.collaboration import collaboration_weights
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.evaluation import score_models
from kinfed.experiments.experiment import Conclusion, Part, PartProgress, Verdict, check_settings, graded
from kinfed.experiments.leaderboard_data import MOST_CLASSES, PACKAGED, SMALLEST, Contest, contests
from kinfed.experiments.measurements import Findings, Measurement, setting_label, setting_value
from kinfed.experiments.never_wrong import METRIC, OURS, chosen_table
from kinfed.experiments.paper_settings import repetition_seed
from kinfed.experiments.standings import by_federation, heat_map, losses, ratios, ratios_table, standings
from kinfed.experiments.summary import methods_table, with_error
from kinfed.learners import make_learner
from kinfed.learners.plan import fit_planned
from kinfed.validation import one_of
from kinfed.weights import RULES

if TYPE_CHECKING:
    from kinfed.weights import Weights

Array = NDArray[np.float64]

LOG_LOSS, ERROR_RATE = "log loss", "error rate"
ALONE = "local"
SLACK = 0.03
"""Share of an error by which the calibrated rule may miss the best rule."""
GROUPED = tuple(rule for rule, known in RULES.items() if "groups" in known.needs)
"""Rules that need groups, which real federations rarely know."""
APPLICABLE = tuple(rule for rule in RULES if rule not in GROUPED)


@dataclass(frozen=True)
class Leaderboard:
    """Every weight rule beside learning alone and one common model, on real federations: ranks, errors, wins."""

    name: ClassVar[str] = "leaderboard"
    summary: ClassVar[str] = (
        "Every weight rule on every federation, with one protocol: the same splits, preparation and learner for all rules, "
        "ridge regression for numbers and logistic regression for classes. The error is the mean squared error, or the log "
        "loss for classes, on held out rows; figures are means over all agents, and errors are standard errors over splits."
    )
    needs: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 1

    data: tuple[str, ...] = field(
        default=PACKAGED,
        metadata={
            "help": "A name of kinfed data list, a table as PATH:TARGET:AGENT, an archive, or a folder of archives (.npz)."
        },
    )
    rules: tuple[str, ...] = field(default=APPLICABLE, metadata={"help": "Rules that take part."})
    test_size: float = field(default=0.5, metadata={"help": "Share of every agent's rows to test on."})
    features: int = field(default=500, metadata={"help": "D, random Fourier features."})
    folds: int = field(default=5, metadata={"help": "Folds of the calibration."})
    repetitions: int = field(default=3, metadata={"help": "Random splits into training and test."})
    seed: int = field(default=0, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        check_settings(self, {"folds": 2})
        for rule in self.rules:
            one_of(rule, APPLICABLE, "--rules")
        if ALONE not in self.rules:
            raise InputError(f"--rules must hold {ALONE}: every error is measured against it")
        if not 0 < self.test_size < 1:
            raise InputError(f"--test-size must lie between 0 and 1, got {self.test_size}")

    @classmethod
    def quick(cls) -> Mapping[str, Any]:
        """Two splits of four federations."""
        return {"repetitions": 2, "data": ("london-exams", "dutch-classes", "contraception", "medicare")}

    @cached_property
    def _found(self) -> tuple[list[Contest], list[str]]:
        return contests(self.data)

    def parts(self) -> Sequence[Part]:
        """One part per federation and split, the largest federations first."""
        by_size = sorted(self._found[0], key=lambda one: -one.path.stat().st_size)
        # The key of the data is part of the name: a part of a file that was changed since is not taken over.
        return [
            Part(f"{contest.key}-repetition-{r}", r, (contest,)) for contest in by_size for r in range(self.repetitions)
        ]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> Findings:
        """All rules on one split."""
        (contest,), seed = part.options, repetition_seed(self.seed, part.repetition)
        federation, classes = contest.read()
        learner = make_learner("logistic" if classes else "ridge")
        train, test = federation.split(self.test_size, seed)
        preparation = Preparation.fit(train)
        prepared, tested = preparation.transform(train), preparation.transform(test)
        setting = setting_label(federation=contest.name, learner="logistic" if classes else "ridge")
        measurements: list[Measurement] = []
        chosen = {}
        for number, rule in enumerate(self.rules):
            weights = self._weights(rule, train, learner, seed)
            models = fit_planned(learner, prepared, weights.matrix, weights.plan, seed=seed)
            scores = score_models(models, tested, learner.task)
            values = (
                {LOG_LOSS: scores[LOG_LOSS], ERROR_RATE: 1 - scores["accuracy"]} if classes else {METRIC: scores[METRIC]}
            )
            measurements += [
                Measurement(setting, rule, part.repetition, metric, value, train.names) for metric, value in values.items()
            ]
            if weights.calibration is not None:
                chosen = {"chosen": np.array([setting, str(weights.calibration.chosen)])}
            progress((number + 1) / len(self.rules))
        return Findings(tuple(measurements), chosen)

    def _weights(self, rule: str, train: Any, learner: Any, seed: int) -> Weights:
        options = {"folds": self.folds} if rule == OURS else None
        return collaboration_weights(train, rule, learner=learner, seed=seed, n_features=self.features, options=options)

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, Findings]) -> Conclusion:
        """Rank the rules and judge the calibrated one."""
        table = losses(results, (METRIC, LOG_LOSS))
        tables = {
            "The rules, best mean rank first. The error over that of local is the geometric mean over federations; a win "
            "is the least error on a federation; the last column is the largest error over that of the best rule "
            "there:": standings(table, ALONE),
            "Error over that of local, ratio of means with its standard error (mean squared error, or log loss for "
            "classes):": ratios_table(table, ALONE),
        }
        for metric, caption in ((METRIC, "Mean squared error"), (LOG_LOSS, "Log loss"), (ERROR_RATE, "Error rate")):
            if metric in set(results["metric"]):
                tables[f"{caption}, mean over agents and splits with its standard error:"] = by_federation(
                    methods_table(results, metric, 4)
                )
        if OURS in self.rules:
            tables["What the calibrated rule chose, and in how many splits:"] = chosen_table(findings)
        return Conclusion(
            verdicts=tuple(self._verdicts(table)),
            figures={"leaderboard": heat_map(table, ALONE)},
            tables=tables,
            remarks=tuple(self._remarks()),
        )

    def _verdicts(self, table: pandas.DataFrame) -> Iterator[Verdict]:
        if OURS not in self.rules or len(self.rules) < 2:
            return
        splits = "1 split" if self.repetitions == 1 else f"{self.repetitions} splits"
        claim = f"{OURS} is within {SLACK:.0%} of the best rule"
        near = []
        for setting in table.index.unique("setting"):
            best = str(table.loc[setting].drop(columns=OURS).mean().idxmin())
            value, error = ratios(table, best)[setting][OURS]
            near.append(value <= 1 + SLACK)
            where = f"{setting_value(setting, 'federation')}; {splits}"
            yield Verdict(claim, f"{with_error(value, error, 3)} times {best}, the best other", graded(near[-1:]), where)
        worst = standings(table, ALONE)["worst"][OURS]
        yield Verdict(
            f"{claim} on every federation",
            f"on {sum(near)} of {len(near)}, at most {worst} times",
            graded(near),
            f"{len(near)} federations; {splits}",
        )

    def _remarks(self) -> Iterator[str]:
        yield (
            "The best rule of a federation is known only afterwards, from the same test rows: a person who chose it "
            "beforehand would have been lucky."
        )
        yield "Splits of one federation share its rows: standard errors tell how much the split matters, not other agents."
        yield (
            f"Agents of fewer than {SMALLEST} rows are left out. A target is a class if it is text or has at most "
            f"{MOST_CLASSES} different whole numbers."
        )
        yield f"Left out are rules that need known groups: {', '.join(GROUPED)}."
        if self._found[1]:
            yield f"Left out as too large for these learners: {', '.join(self._found[1])}."
