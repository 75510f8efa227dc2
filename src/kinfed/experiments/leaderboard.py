"""Which rule is best, on which federation? Every rule on the same splits, with the same learner.

Standings of many methods over many settings: ranks, errors over that of one method, wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.errors import InputError
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
)
from kinfed.experiments.leaderboard_data import (
    ERROR_RATE,
    LOG_LOSS,
    MOST_CLASSES,
    PACKAGED,
    SMALLEST,
    Contest,
    contests,
    held_out_errors,
)
from kinfed.experiments.never_wrong import METRIC, OURS, chosen_candidate, chosen_table
from kinfed.experiments.paper_settings import by_repetition, methods_table, ratio_with_error, repetition_seed, with_error
from kinfed.learners import make_learner
from kinfed.plotting.style import label, panels
from kinfed.run import personalize
from kinfed.validation import one_of
from kinfed.weights import RULES

_TIE = 1e-9  # relative difference below which two errors are equal
ALONE = "local"
SLACK = 0.03
"""Share of an error by which the calibrated rule may miss the best rule."""
GROUPED = tuple(rule for rule, known in RULES.items() if "groups" in known.needs)
"""Rules that need groups, which real federations rarely know."""
APPLICABLE = tuple(rule for rule in RULES if rule not in GROUPED)


def losses(results: pandas.DataFrame, metrics: Sequence[str]) -> pandas.DataFrame:
    """Mean over agents of the metric of `metrics` a setting has: a row per setting and repetition, a column per method."""
    return by_repetition(results[results["metric"].isin(metrics)].assign(metric="loss"), "loss")


def ratios(table: pandas.DataFrame, against: str) -> dict[str, dict[str, tuple[float, float]]]:
    """By setting and method, the ratio of means over repetitions to that of `against`, with its standard error."""
    return {
        setting: {method: ratio_with_error(rows[method].to_numpy(), rows[against].to_numpy()) for method in table.columns}
        for setting, rows in ((one, table.loc[one]) for one in table.index.unique("setting"))
    }


def ratios_table(table: pandas.DataFrame, against: str) -> pandas.DataFrame:
    """`ratios` as text, a row per method and a column per federation."""
    return pandas.DataFrame(
        {
            setting_value(setting, "federation"): {one: with_error(*pair, 3) for one, pair in found.items()}
            for setting, found in ratios(table, against).items()
        }
    )


def by_federation(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table with a row per setting turned over: a column per federation."""
    return table.rename(index=lambda setting: setting_value(setting, "federation")).T


def standings(table: pandas.DataFrame, against: str) -> pandas.DataFrame:
    r"""A row per method, the best mean rank first.

    "mean rank" is over settings, ties shared; the error over that of `against` is :math:`\exp` of the mean over settings of
    :math:`\log(e_m / e)`, with its standard error over repetitions; "wins" counts settings where no method has a smaller
    mean error; "worst" is the largest mean error over that of the best method of the setting.
    """
    means = table.groupby(level="setting", sort=False).mean()
    best = means.min(axis=1)
    logs = table.div(table[against], axis=0).transform(np.log).groupby(level="repetition").mean()
    value = np.exp(logs.mean())
    error = value * logs.std(ddof=1) / np.sqrt(len(logs))
    # Rules that come to the same weights differ by rounding alone.
    ranked = means.div(best, axis=0).round(9).rank(axis=1).mean()
    frame = pandas.DataFrame(
        {
            "mean rank": ranked.map("{:.1f}".format),
            f"error over that of {against}": [with_error(value[one], error[one], 3) for one in table.columns],
            "wins": [int((means[one] <= best * (1 + _TIE)).sum()) for one in table.columns],
            "worst": means.div(best, axis=0).max().map("{:.3f}".format),
        },
        index=table.columns,
    )
    return frame.loc[sorted(frame.index, key=lambda method: (ranked[method], value[method]))]


def heat_map(table: pandas.DataFrame, against: str) -> Figure:
    """Percent by which every method's error differs from that of `against`: a row per method, a column per setting."""
    shown = standings(table, against).index
    settings = list(table.index.unique("setting"))
    found = ratios(table, against)
    values = 100 * (np.array([[found[one][method][0] for one in settings] for method in shown]) - 1)
    figure, axes = panels(width=2.6 + 0.85 * len(settings), height=1.4 + 0.32 * len(shown))
    # A method that goes wrong by far must not take the colours from the others.
    limit = float(np.clip(np.quantile(np.abs(values), 0.95), 1.0, 50.0))
    axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        axes.text(
            column,
            row,
            f"{value:+.1f}",
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if value <= values[:, column].min() + 1e-7 else "normal",
            color="white" if abs(value) > 0.7 * limit else "black",
        )
    axes.set_xticks(range(len(settings)), [setting_value(one, "federation") for one in settings], rotation=30, ha="right")
    axes.set_yticks(range(len(shown)), [label(method) for method in shown])
    axes.grid(False)
    axes.set_title(f"error against {label(against)}, in percent (blue: smaller; bold: least)", fontsize=9)
    return figure


@dataclass(frozen=True)
class Leaderboard(Experiment):
    """Every weight rule beside learning alone and one common model, on real federations: ranks, errors, wins."""

    name: ClassVar[str] = "leaderboard"
    summary: ClassVar[str] = (
        "Every weight rule on every federation, with one protocol: the same splits, preparation and learner for all rules, "
        "ridge regression for numbers and logistic regression for classes. The error is the mean squared error, or the log "
        "loss for classes, on held out rows; figures are means over all agents, and errors are standard errors over splits."
    )
    quick: ClassVar[Mapping[str, Any]] = {
        "repetitions": 2,
        "data": ("london-exams", "dutch-classes", "contraception", "medicare"),
    }
    least: ClassVar[Mapping[str, int]] = {"folds": 2}

    data: tuple[str, ...] = field(
        default=PACKAGED,
        metadata={
            "help": "A name of kinfed data list, a table as PATH:TARGET:AGENT, an archive, or a folder of archives (.npz)."
        },
    )
    rules: tuple[str, ...] = field(default=APPLICABLE, metadata={"help": "Rules that take part."})
    test_size: float = field(default=0.5, metadata={"help": "Share of every agent's rows to test on.", "share": True})
    features: int = field(default=500, metadata={"help": "D, random Fourier features."})
    folds: int = field(default=5, metadata={"help": "Folds of the calibration."})
    repetitions: int = field(default=3, metadata={"help": "Random splits into training and test."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.rules:
            one_of(rule, APPLICABLE, "--rules")
        if ALONE not in self.rules:
            raise InputError(f"--rules must hold {ALONE}: every error is measured against it")

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

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All rules on one split."""
        (contest,), seed = part.options, repetition_seed(self.seed, part.repetition)
        federation, classes = contest.read()
        learner = make_learner("logistic" if classes else "ridge")
        train, test = federation.split(self.test_size, seed)
        setting = setting_label(federation=contest.name, learner="logistic" if classes else "ridge")
        measurements: list[Measurement] = []
        chosen = {}
        for number, rule in enumerate(self.rules):
            options = {"folds": self.folds} if rule == OURS else None
            found = personalize(
                train, learner, rule, test, seed, n_features=self.features, options=options, baselines=False
            )
            measurements += [
                Measurement(setting, rule, part.repetition, metric, values, train.names)
                for metric, values in held_out_errors(found).items()
            ]
            if found.weights.calibration is not None:
                chosen = {"chosen": chosen_candidate(setting, found.weights)}
            progress((number + 1) / len(self.rules))
        return PartFindings(tuple(measurements), chosen)

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Rank the rules and judge the calibrated one."""
        table, too_large = losses(results, (METRIC, LOG_LOSS)), self._found[1]
        tables = {
            "The rules, best mean rank first. The error over that of local is the geometric mean over federations; a win "
            "is the least error on a federation; the last column is the largest error over that of the best rule "
            "there:": standings(table, ALONE),
            "Error over that of local, ratio of means with its standard error (mean squared error, or log loss for "
            "classes):": ratios_table(table, ALONE),
        }
        captions = {METRIC: "Mean squared error", LOG_LOSS: "Log loss", ERROR_RATE: "Error rate"}
        tables |= {
            f"{caption}, mean over agents and splits with its standard error:": by_federation(
                methods_table(results, metric, 4)
            )
            for metric, caption in captions.items()
            if metric in set(results["metric"])
        }
        if OURS in self.rules:
            tables["What the calibrated rule chose, and in how many splits:"] = chosen_table(findings)
        return Conclusion(
            verdicts=tuple(self._verdicts(table)),
            figures={"leaderboard": heat_map(table, ALONE)},
            tables=tables,
            remarks=(
                "The best rule of a federation is known only afterwards, from the same test rows: a person who chose it "
                "beforehand would have been lucky.",
                "Splits of one federation share its rows: standard errors tell how much the split matters, not other "
                "agents.",
                f"Agents of fewer than {SMALLEST} rows are left out. A target is a class if it is text or has at most "
                f"{MOST_CLASSES} different whole numbers.",
                f"Left out are rules that need known groups: {', '.join(GROUPED)}.",
                *([f"Left out as too large for these learners: {', '.join(too_large)}."] if too_large else []),
            ),
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
        yield Verdict(
            f"{claim} on every federation",
            f"on {sum(near)} of {len(near)}, at most {standings(table, ALONE)['worst'][OURS]} times",
            graded(near),
            f"{len(near)} federations; {splits}",
        )
