"""Is the calibrated rule ever the wrong choice on real data? Five federations, two amounts of data, two learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.data import read_federation
from kinfed.errors import InputError
from kinfed.experiments.experiment import (
    Conclusion,
    Experiment,
    Measurement,
    Part,
    PartFindings,
    PartProgress,
    Verdict,
    graded,
    setting_label,
)
from kinfed.experiments.leaderboard_data import ERROR_RATE, LOG_LOSS, held_out_errors, with_target
from kinfed.experiments.never_wrong import (
    CALIBRATING,
    METRIC,
    OURS,
    SIMPLER,
    Bound,
    chosen_candidate,
    chosen_table,
    judge,
    ratio,
    ratio_figure,
    ratio_table,
    stage,
)
from kinfed.experiments.paper_settings import by_repetition, methods_table, repetition_seed, with_error
from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.run import personalize
from kinfed.validation import one_of

SMALLEST, LEAST_TEST = 8, 4
"""Rows of an agent that takes part, and rows it keeps for testing, at least."""
BOUND, TOGETHER = Bound(1.03, SIMPLER), 0.98
"""Of every single error over that of the best simpler rule, and of the geometric mean of all of them."""


@dataclass(frozen=True)
class RealProblem:
    """What is to be predicted in one file, divided by its unit."""

    file: str
    target: str | None = None
    classes: bool = False
    unit: float = 1.0

    @property
    def name(self) -> str:
        """The federation's name in the tables of results: its file, and its target where one is named."""
        return self.file if self.target is None else f"{self.file}-{self.target}"

    @property
    def learners(self) -> tuple[str, ...]:
        """Those that are tried: ridge regression takes two classes as the numbers 0 and 1."""
        return ("logistic", "ridge") if self.classes else ("ridge",)


PROBLEMS = (
    RealProblem("landmine", classes=True),
    RealProblem("hsb82_schools"),
    RealProblem("communities_crime"),
    RealProblem("tcga_brca", "E", classes=True),
    RealProblem("tcga_brca", "T", unit=365.25),  # days there, years here
    RealProblem("heart_disease", classes=True),
)
SETS = tuple(dict.fromkeys(problem.file for problem in PROBLEMS))


@dataclass(frozen=True)
class RealFederations(Experiment):
    """Test error of the calibrated rule over that of local, grand mean and the paper's rule on real federations."""

    name: ClassVar[str] = "real-federations"
    summary: ClassVar[str] = (
        "The calibrated rule against what a person would choose otherwise: landmine fields, schools, crime by state, "
        "breast cancer by region (E: event, T: years) and heart disease by hospital, with few training points per agent "
        "and with half of its rows. One protocol for all methods: the same splits, preparation and learner. "
        "*q-aggregation* is the paper's rule with the features kinfed chooses. Figures are means over all agents; errors "
        "are standard errors over splits."
    )
    quick: ClassVar[Mapping[str, Any]] = {"repetitions": 1, "sets": ("hsb82_schools", "heart_disease")}
    least: ClassVar[Mapping[str, int]] = {"points": 2, "folds": 2}

    data: Path = field(metadata={"help": f"A folder with some of {', '.join(f'{name}.npz' for name in SETS)}."})
    sets: tuple[str, ...] = field(default=SETS, metadata={"help": "Those to use, where they are there."})
    points: int = field(default=20, metadata={"help": "Training points per agent, where they are few."})
    folds: int = field(default=5, metadata={"help": "Folds of the calibration."})
    repetitions: int = field(default=2, metadata={"help": "Random splits into training and test."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in self.sets:
            one_of(one, SETS, "--sets")
        if not self.data.is_dir():
            raise InputError(f"{self.data} is not a folder; give the folder of the federations with --data")
        if not self._problems:
            files = ", ".join(f"{name}.npz" for name in self.sets)
            raise InputError(f"the folder {self.data} holds none of {files}; give another with --data")

    @property
    def _problems(self) -> list[RealProblem]:
        return [one for one in PROBLEMS if one.file in self.sets and (self.data / f"{one.file}.npz").is_file()]

    def parts(self) -> Sequence[Part]:
        """One part per problem, amount of data, learner and split."""
        return [
            Part(f"{problem.name}-{amount}-{learner}-repetition-{r}", r, (problem, amount, learner))
            for problem in self._problems
            for learner in problem.learners
            for amount in ("half", str(self.points))
            for r in range(self.repetitions)
        ]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All methods on one split."""
        problem, amount, learner = part.options
        seed, trained = repetition_seed(self.seed, part.repetition), make_learner(learner)
        train, test = split(read_problem(self.data, problem), None if amount == "half" else self.points, seed)
        if learner == "ridge":
            train, test = with_target(train, classes=False), with_target(test, classes=False)
        found = {one: personalize(train, trained, one, test, seed, baselines=False) for one in SIMPLER}
        found[OURS] = personalize(
            train,
            trained,
            OURS,
            test,
            seed,
            options={"folds": self.folds},
            baselines=False,
            progress=stage(progress, 0.0, CALIBRATING, "calibrating"),
        )
        setting = setting_label(set=problem.name, n=amount, learner=learner)
        measurements = tuple(
            Measurement(setting, method, part.repetition, metric, values, train.names)
            for method, result in found.items()
            for metric, values in held_out_errors(result).items()
        )
        return PartFindings(measurements, {"chosen": chosen_candidate(setting, found[OURS].weights)})

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge every problem and all together, and draw all ratios."""
        errors = leading_errors(results)
        captions = {
            METRIC: "Mean squared error of ridge regression",
            ERROR_RATE: "Error rate of logistic regression",
            LOG_LOSS: "Log loss of logistic regression",
        }
        tables = {
            "Test error of calibrated over that of each other method (mean squared error of ridge regression, error rate "
            "of logistic regression), ratio of means with its standard error:": ratio_table(errors, SIMPLER)
        }
        if LOG_LOSS in set(results["metric"]):
            tables["Log loss of calibrated over that of each other method, the same way:"] = ratio_table(
                by_repetition(results, LOG_LOSS), SIMPLER
            )
        tables |= {
            f"{caption}, mean over agents and splits with its standard error:": methods_table(results, metric, 4)
            for metric, caption in captions.items()
            if metric in set(results["metric"])
        }
        tables["What was chosen for the federation, and in how many splits:"] = chosen_table(findings)
        return Conclusion(
            verdicts=tuple(self._verdicts(errors)),
            figures={"ratios": ratio_figure(errors, SIMPLER)},
            tables=tables,
            remarks=(
                "Splits of one federation share its rows: standard errors over splits tell how much the split matters, not "
                "what other agents would show.",
                f"Agents of fewer than {SMALLEST} rows are left out; every other keeps at least {LEAST_TEST} for testing. "
                "The times T of breast cancer are taken as they are, whether or not the event was seen.",
                "The best of several methods is the one of least mean test error over the splits: a person who chose among "
                "them would have to know it beforehand.",
            ),
        )

    def _verdicts(self, errors: pandas.DataFrame) -> Iterator[Verdict]:
        splits = "1 split" if self.repetitions == 1 else f"{self.repetitions} splits"
        settings = list(errors.index.unique("setting"))
        yield from (judge(errors, setting, BOUND, splits) for setting in settings)
        mean, error = geometric_mean(errors)
        yield Verdict(
            f"over all problems, the geometric mean of the error over that of the best of {', '.join(SIMPLER)} is at most "
            f"{TOGETHER:g}",
            with_error(mean, error, 3),
            graded([mean <= TOGETHER]),
            f"{len(settings)} problems, amounts and learners; {splits}",
        )


def read_problem(folder: Path, problem: RealProblem) -> Federation:
    """The federation of a problem, without agents of too few rows; classes are whole numbers."""
    path = folder / f"{problem.file}.npz"
    federation = read_federation(path, target=problem.target)
    enough = np.flatnonzero(federation.sizes >= SMALLEST)
    if not len(enough):
        raise InputError(f"{path}: no agent has {SMALLEST} rows; leave the file out of --sets")
    return with_target(federation.select(enough.tolist()), classes=problem.classes, unit=problem.unit)


def split(federation: Federation, points: int | None, seed: int) -> tuple[Federation, Federation]:
    """Training and test part: that many training points per agent, or half of its rows; classes in proportion."""
    tested = [n // 2 if points is None else max(n - points, LEAST_TEST) for n in federation.sizes.tolist()]
    return federation.split_by((tested / federation.sizes).tolist(), seed)


def leading_errors(results: pandas.DataFrame) -> pandas.DataFrame:
    """Mean squared error of ridge regression and error rate of logistic regression, in one table of `by_repetition`."""
    return by_repetition(results[results["metric"] != LOG_LOSS].assign(metric="error"), "error")


def geometric_mean(errors: pandas.DataFrame) -> tuple[float, float]:
    """Of the calibrated rule's error over the best simpler rule's, with its standard error over splits.

    The standard error is the jackknife's, which leaves out one split of all problems at a time: problems of one
    federation share their splits, so their ratios are not independent.
    """

    def mean(of: pandas.DataFrame) -> float:
        values = np.array([ratio(of, one, [best[one]]).value for one in best])
        with np.errstate(divide="ignore"):  # an error may be zero
            return float(np.exp(np.log(values).mean()))

    best = {one: ratio(errors, one, SIMPLER).method for one in errors.index.unique("setting")}
    numbers = errors.index.get_level_values("repetition")
    splits = numbers.unique()
    without = np.array([mean(errors[numbers != one]) for one in splits]) if len(splits) > 1 else np.array([np.nan])
    if not np.isfinite(without).all():
        return mean(errors), float("nan")
    return mean(errors), float(np.sqrt((len(splits) - 1) * without.var()))
