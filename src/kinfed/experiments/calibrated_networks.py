"""The calibrated rule for networks, on the paper's second experiment: one regression function seen at three places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.analysis import score_models
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation, covariate_shift
from kinfed.experiments.covariate_shift import architecture_size, paper_weights
from kinfed.experiments.experiment import (
    Conclusion,
    Experiment,
    Figure,
    Measurement,
    Part,
    PartFindings,
    PartProgress,
    setting_label,
    setting_value,
)
from kinfed.experiments.never_wrong import (
    OURS,
    SIMPLER,
    Bound,
    chosen_candidate,
    chosen_table,
    judge,
    ratio_table,
    stage,
    ticks_within,
)
from kinfed.experiments.paper_settings import (
    by_repetition,
    methods_table,
    ratio_with_error,
    repetition_seed,
)
from kinfed.learners.base import fit_planned
from kinfed.plotting.style import METHOD_COLOURS, colour, label, panels
from kinfed.pretraining_analysis import collaboration_weights

FINAL = "final mean squared error"
BASELINES = (*SIMPLER, "oracle")
BOUNDS = (Bound(1.05, ("oracle",)), Bound(1.03, SIMPLER))

# Shares of a part's time: the methods of known weights, then the calibration, then the models it asks for.
_KNOWN, _CALIBRATED = 0.3, 0.9


@dataclass(frozen=True)
class CalibratedNetworks(Experiment):
    """MSE of ReLU networks by architecture: the calibrated rule against simpler ones and the oracle; all targets count."""

    name: ClassVar[str] = "calibrated-networks"
    summary: ClassVar[str] = (
        "One regression function seen at three places, by three groups of agents, and learned by ReLU networks, as in "
        "covariate-shift: the calibrated rule, which also chooses start and length of the training, against what a person "
        "would choose otherwise. All methods train on the same prepared data (x standardised). *q-aggregation* is the "
        "paper's rule with the paper's own features on the raw data; *oracle* knows the true groups. Figures are means "
        "over all agents at the end of training; errors are standard errors over repetitions."
    )
    quick: ClassVar[Mapping[str, Any]] = {"agents": 32, "epochs": 300, "hidden_layers": (1, 3), "widths": (16,)}
    least: ClassVar[Mapping[str, int]] = {"agents": 4, "dim": 2}
    needs: ClassVar[tuple[str, ...]] = ("torch",)

    agents: int = field(default=100, metadata={"help": "B: 30 %, 30 % and 40 % of them in the three groups."})
    points: int = field(default=20, metadata={"help": "Training points per agent."})
    dim: int = field(default=4, metadata={"help": "d."})
    features: int = field(
        default=500, metadata={"help": "D, random Fourier features: of the paper's kernel on x, and of the calibration's."}
    )
    constant: float = field(default=1.0, metadata={"help": "C_Q = C_P of the paper's rule."})
    hidden_layers: tuple[int, ...] = field(default=(1, 2, 3), metadata={"help": "Numbers of hidden layers."})
    widths: tuple[int, ...] = field(default=(16, 32), metadata={"help": "Widths of hidden layers."})
    epochs: int = field(default=2000, metadata={"help": "Steps of Adam."})
    learning_rate: float = field(default=0.001, metadata={"help": "Of Adam."})
    batch: int = field(default=60, metadata={"help": "Rows a step draws from a target's mixture."})
    test_points: int = field(default=1000, metadata={"help": "Test points per agent."})
    repetitions: int = field(default=1, metadata={"help": "Independent repetitions."})

    @property
    def group_sizes(self) -> tuple[int, int, int]:
        """Agents of the three groups."""
        small = round(0.3 * self.agents)
        return small, small, self.agents - 2 * small

    def parts(self) -> Sequence[Part]:
        """One part per architecture and repetition, the large networks first."""
        shapes = sorted(((layers, width) for layers in self.hidden_layers for width in self.widths), reverse=True)
        return [
            Part(f"{layers}x{width}-repetition-{r}", r, (layers, width))
            for layers, width in shapes
            for r in range(self.repetitions)
        ]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All methods on one architecture; the architectures of a repetition share its data."""
        from kinfed.learners.neural import TorchLearner

        (layers, width), seed = part.options, repetition_seed(self.seed, part.repetition)
        generated = covariate_shift(self.group_sizes, self.points, self.dim, seed=seed)
        raw = generated.train
        preparation = Preparation.fit(raw)
        train, test = preparation.transform(raw), preparation.transform(generated.test(self.test_points))
        learner = TorchLearner(
            hidden=(width,) * layers,
            task="regression",
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            batch_size=self.batch,
            steps_per_epoch=1,
        )
        known = paper_weights(raw, BASELINES, self.features, self.constant, seed)
        # Methods of known weights train side by side: a model does not depend on the rows beside it.
        targets = np.tile(np.arange(len(train)), len(known))
        agents = PooledAgents(train, learner.task, seed)
        models = learner.fit(
            agents,
            np.vstack(list(known.values())),
            targets=targets,
            progress=stage(progress, 0.0, _KNOWN),
            checkpoint=checkpoint / "known",
        )
        errors = score_models(models, test, "regression", targets)["mean squared error"].reshape(len(known), -1)
        values = dict(zip(known, errors, strict=True))
        weights = collaboration_weights(
            raw,
            OURS,
            learner=learner,
            seed=seed,
            n_features=self.features,
            progress=stage(progress, _KNOWN, _CALIBRATED, "calibrating"),
        )
        ours = fit_planned(
            learner,
            agents,
            weights.matrix,
            weights.plan,
            targets=weights.targets,
            progress=stage(progress, _CALIBRATED, 1.0),
            checkpoint=checkpoint / "calibrated",
        )
        values[OURS] = score_models(ours, test, "regression")["mean squared error"]
        setting = setting_label(hidden=f"{layers}x{width}")
        return PartFindings(
            tuple(Measurement(setting, method, part.repetition, FINAL, one, train.names) for method, one in values.items()),
            {"chosen": chosen_candidate(setting, weights)},
        )

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge both bounds for every architecture, and draw the ratios to the oracle."""
        errors = by_repetition(results, FINAL)
        settings = sorted(errors.index.unique("setting"), key=lambda one: architecture_size(setting_value(one, "hidden")))
        where = f"{self.repetitions} repetition(s), {self.epochs} epochs, all {self.agents} agents"
        return Conclusion(
            verdicts=tuple(judge(errors, one, bound, where) for bound in BOUNDS for one in settings),
            figures={"ratios": oracle_figure(errors, settings)},
            tables={
                "Error of calibrated over that of each other method, ratio of means with its standard error:": ratio_table(
                    errors, BASELINES
                ).loc[settings],
                "Final mean squared error, mean over agents and repetitions with its standard error:": methods_table(
                    results, FINAL, 3
                ).loc[settings],
                "What was chosen for the federation, and in how many repetitions:": chosen_table(findings).loc[settings],
            },
            remarks=(
                "covariate-shift trains on x as it is; here x is standardised for all methods, so errors of the two are "
                "not to be compared.",
                "The best of several methods is the one of least mean error over the repetitions: a person who chose among "
                "them would have to know it beforehand.",
                f"Every epoch is one step of Adam on {self.batch} rows that a target draws from its own mixture of agents; "
                f"all methods but calibrated take {self.epochs} of them from one random start. Calibrated may stop "
                f"earlier; where it starts from a common model, {self.epochs} steps of that one come before its own.",
            ),
        )


def method_colour(method: str) -> str:
    """The colour of a method, the calibrated rule and fine-tuning among them."""
    return colour(method) if method in METHOD_COLOURS or method != OURS else "#882255"


def oracle_figure(errors: pandas.DataFrame, settings: Sequence[str]) -> Figure:
    """Error of every method over the oracle's by architecture, on a logarithmic axis."""
    figure, axes = panels(width=6.4, height=3.8)
    methods, places = (*SIMPLER, OURS), np.arange(len(settings))
    for number, method in enumerate(methods):
        rows = [errors.loc[one] for one in settings]
        found = [ratio_with_error(one[method].to_numpy(), one["oracle"].to_numpy()) for one in rows]
        axes.errorbar(
            places + 0.6 * ((number + 0.5) / len(methods) - 0.5),
            [value for value, _ in found],
            yerr=np.nan_to_num([error for _, error in found]),
            fmt="o",
            markersize=4,
            capsize=2,
            color=method_colour(method),
            label=label(method),
        )
    axes.axhline(1.0, color="#555555", linestyle="--", linewidth=1.2)
    axes.set_yscale("log")
    ticks_within(axes.yaxis, (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0, 20.0))
    axes.set_xticks(places, [setting_value(one, "hidden") for one in settings])
    axes.set(xlabel="hidden layers x width", ylabel="error over the oracle's")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
