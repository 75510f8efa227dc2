"""The paper's second experiment: one regression function seen at three places, by networks small and large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.data import covariate_shift
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
from kinfed.experiments.paper_settings import (
    EXACT,
    PAPER,
    by_repetition,
    input_geometry,
    level,
    methods_table,
    over_repetitions,
    ratio_with_error,
    repetition_seed,
    train_and_test,
    weigh_by,
    with_error,
)
from kinfed.federation import Federation
from kinfed.plotting.style import colour, label, panels
from kinfed.validation import Array
from kinfed.weights import geometric_rules

BEST, FINAL = "best mean squared error", "final mean squared error"
SAMPLE = "effective sample size"
KIN_WEIGHT, KIN_FIRST = "share of the weight on others that kin get", "kin among the agents listened to most"
GROUPS = ("1", "2", "3")


@dataclass(frozen=True)
class CovariateShiftNetworks(Experiment):
    """MSE of ReLU networks by architecture and method, and the weights that were learned; all targets count."""

    name: ClassVar[str] = "covariate-shift"
    summary: ClassVar[str] = (
        "One regression function seen at three places, by three groups of agents, and learned by ReLU networks: who "
        "should learn together, and how does that depend on the size of the network? Figures are means over agents; errors "
        "are standard errors over repetitions. *Best* is each agent's best test value during training, as in the paper; "
        "*final* the value at the end."
    )
    quick: ClassVar[Mapping[str, Any]] = {
        "repetitions": 2,
        "epochs": 500,
        "hidden_layers": (1, 3),
        "test_points": 500,
        "look_every": 25,
    }
    least: ClassVar[Mapping[str, int]] = {"batch": 0}
    needs: ClassVar[tuple[str, ...]] = ("torch",)

    group_sizes: tuple[int, ...] = field(
        default=(30, 30, 40), metadata={"help": "Agents of the three groups.", "repeats": True}
    )
    points: int = field(default=20, metadata={"help": "Training points per agent."})
    dim: int = field(default=4, metadata={"help": "d."})
    sigma_1: float = field(default=1.0, metadata={"help": "Deviation of the first group's features; not in the paper."})
    sigma_2: float = field(default=1.0, metadata={"help": "Deviation of the second group's features; not in the paper."})
    features: int = field(default=500, metadata={"help": "D, random Fourier features of the kernel of bandwidth 1 on x."})
    constant: float = field(default=1.0, metadata={"help": "C_Q = C_P."})
    hidden_layers: tuple[int, ...] = field(default=(1, 2, 3), metadata={"help": "Numbers of hidden layers."})
    widths: tuple[int, ...] = field(default=(16, 32), metadata={"help": "Widths of hidden layers."})
    epochs: int = field(default=2000, metadata={"help": "Steps of Adam."})
    learning_rate: float = field(default=0.001, metadata={"help": "Of Adam."})
    batch: int = field(default=60, metadata={"help": "Rows a step draws from a target's mixture; 0: all rows."})
    test_points: int = field(default=2000, metadata={"help": "Test points per agent."})
    look_every: int = field(default=100, metadata={"help": "Epochs between looks at the test data."})
    methods: tuple[str, ...] = field(
        default=("local", "grand-mean", "oracle", PAPER, EXACT),
        metadata={"help": f"Rules to compare: {', '.join(geometric_rules())}."},
    )
    repetitions: int = field(default=20, metadata={"help": "Independent repetitions."})

    def parts(self) -> Sequence[Part]:
        """One part per repetition and architecture, the large networks first, and one for the weights."""
        architectures = sorted(((layers, width) for layers in self.hidden_layers for width in self.widths), reverse=True)
        named = [*((f"{layers}x{width}", (layers, width)) for layers, width in architectures), ("weights", ())]
        return [Part(f"{name}-repetition-{r}", r, options) for r in range(self.repetitions) for name, options in named]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All methods in one repetition: on one architecture, or their weights alone."""
        seed = repetition_seed(self.seed, part.repetition)
        generated = covariate_shift(
            self.group_sizes, self.points, self.dim, sigma_1=self.sigma_1, sigma_2=self.sigma_2, seed=seed
        )
        weights = paper_weights(generated.train, self.methods, self.features, self.constant, seed)
        if not part.options:
            return _weights_findings(weights, np.array(generated.train.groups), self.points, part.repetition)
        from kinfed.learners.neural import TorchLearner

        layers, width = part.options
        train, test = generated.train, generated.test(self.test_points)
        learner = TorchLearner(
            hidden=(width,) * layers,
            task="regression",
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            batch_size=self.batch or None,
            steps_per_epoch=1 if self.batch else None,
        )
        trials = train_and_test(
            learner, weights, train, test, seed=seed, every=self.look_every, progress=progress, checkpoint=checkpoint
        )
        setting = setting_label(hidden=f"{layers}x{width}")
        return PartFindings(
            tuple(
                Measurement(setting, method, part.repetition, metric, values, train.names)
                for method, trial in trials.items()
                for metric, values in ((BEST, trial.best), (FINAL, trial.final))
            )
        )

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge clusters, closeness to the oracle and the order of local and grand mean, and draw the paper's figures."""
        errors = results[results["metric"].isin([BEST, FINAL])]
        group = np.repeat(np.array(GROUPS), self.group_sizes)[errors["agent"].astype(int)]
        whose = {"all agents": errors, **{f"group {one}": errors[group == one] for one in GROUPS if (group == one).any()}}
        figures = {
            "mse": error_figure(
                {who: whose[who] for who in list(whose)[:2]},
                self.methods,
                {BEST: "best during training", FINAL: "at the end"},
            )
        }
        matrices = [found.arrays[PAPER] for found in findings.values() if PAPER in found.arrays]
        if matrices:
            figures["weights"] = weights_figure(matrices[0], self.group_sizes)
        tables = {
            f"{metric.capitalize()}, {who}:": methods_table(rows, metric, 3)
            for who, rows in whose.items()
            for metric in (BEST, FINAL)
        }
        tables |= {
            f"{metric.capitalize()}, by group:": methods_table(results, metric, digits)
            for metric, digits in ((KIN_WEIGHT, 3), (KIN_FIRST, 3), (SAMPLE, 0))
        }
        looks = -(-self.epochs // self.look_every)
        return Conclusion(
            verdicts=tuple(self._verdicts(results, whose)),
            figures=figures,
            tables=tables,
            remarks=(
                f"The deviations of the first two groups' features are not in the paper; they are {self.sigma_1:g} and "
                f"{self.sigma_2:g} here (--sigma-1, --sigma-2).",
                "The paper does not name its optimiser and batches. Here every epoch is one step of Adam"
                + (
                    f" on {self.batch} rows that a target draws from its own mixture of agents, the same number for every "
                    "method (for an agent alone, each of its rows equally often)."
                    if self.batch
                    else " on all rows."
                ),
                f"Best is the least of {looks} looks at the test points, for each agent and method on its own, and so is "
                "on the optimistic side for all of them.",
                "The third group, uniform on a cube, has errors far above the others', so means over all agents are mostly "
                "about it; the paper's figure is about the first group.",
                "What separates a solution of the objective from the oracle can be read off the tables of weights: how "
                "much of the weight leaves the group, and on how few agents the rest lies (the effective sample size).",
            ),
        )

    def _verdicts(self, results: pandas.DataFrame, whose: Mapping[str, pandas.DataFrame]) -> Iterator[Verdict]:
        setting = f"{self.repetitions} repetitions, sigma_1={self.sigma_1:g}, sigma_2={self.sigma_2:g}"
        trained = f"{setting}, {self.epochs} epochs"
        judged = [method for method in (PAPER, EXACT) if method in self.methods]
        yield from (_clusters(results, method, setting) for method in judged)
        if "oracle" in self.methods:
            yield from (_near_oracle(rows, method, f"{trained}, {who}") for method in judged for who, rows in whose.items())
        if {"local", "grand-mean"} <= set(self.methods):
            yield from (_order(whose[who], f"{trained}, {who}") for who in whose)


def paper_weights(
    train: Federation, methods: Sequence[str], n_features: int, constant: float, seed: int
) -> dict[str, Array]:
    """The weight matrix of every method, from raw x alone (kernel of bandwidth 1), with C_Q = C_P = `constant`."""
    geometry = input_geometry(train, 1.0, n_features, seed)
    constants = {rule: {"c_q": constant, "c_p": constant} for rule in (PAPER, EXACT)}
    return {method: weigh_by(geometry, method, train.groups, **constants.get(method, {})).matrix for method in methods}


def _weights_findings(weights: Mapping[str, Array], groups: NDArray[Any], points: int, repetition: int) -> PartFindings:
    """How well the weights know the groups, for every method that listens to others."""
    same = groups[:, None] == groups
    found, arrays = [], {}
    for method, matrix in weights.items():
        others = matrix * (1 - np.eye(len(matrix)))
        if others.sum() == 0:
            continue
        kin = np.where(same, others, 0.0).sum(axis=1) / others.sum(axis=1)
        # Of as many agents as a target has kin, those it listens to most: how many are kin?
        ranks = np.argsort(np.argsort(-others, axis=1), axis=1)
        counts = same.sum(axis=1) - 1
        heaviest = (same & (ranks < counts[:, None]) & ~np.eye(len(matrix), dtype=bool)).sum(axis=1) / np.maximum(counts, 1)
        measured = {KIN_WEIGHT: kin, KIN_FIRST: heaviest, SAMPLE: points / np.sum(matrix**2, axis=1)}
        found += [
            whole(setting_label(group=int(one) + 1), method, repetition, metric, float(values[groups == one].mean()))
            for one in np.unique(groups)
            for metric, values in measured.items()
        ]
        if repetition == 0:
            arrays[method] = matrix
    return PartFindings(tuple(found), arrays)


def _clusters(results: pandas.DataFrame, method: str, setting: str) -> Verdict:
    texts, conditions = [], []
    for metric in (KIN_FIRST, KIN_WEIGHT):
        table = over_repetitions(results[results["method"] == method], metric)
        levels = [level(table, str(name), method) for name in table.index.get_level_values("setting")]
        texts.append(f"{metric}: " + " / ".join(f"{one:3}" for one in levels))
        conditions += [one.mean >= 0.9 for one in levels]
    return Verdict(
        f"the three clusters are well recovered in the weight matrix of {label(method)} (here: at least 0.9 in each group)",
        "groups 1 / 2 / 3, " + "; ".join(texts),
        graded(conditions),
        setting,
    )


def _near_oracle(errors: pandas.DataFrame, method: str, setting: str) -> Verdict:
    found = [_ratios(errors, metric, method, "oracle") for metric in (BEST, FINAL)]
    return Verdict(
        f"{label(method)} is very close to the oracle for every architecture (here: at most 10 % above)",
        "error over the oracle's, " + "; ".join(text for _, text in found),
        graded(mean <= 1.1 for ratios, _ in found for mean, _ in ratios),
        setting,
    )


def _order(errors: pandas.DataFrame, setting: str) -> Verdict:
    texts, conditions = [], []
    for metric in (BEST, FINAL):
        ratios, text = _ratios(errors, metric, "local", "grand-mean")
        (small, small_error), (large, large_error) = ratios[0], ratios[-1]
        conditions += [small + 2 * np.nan_to_num(small_error) < 1, large - 2 * np.nan_to_num(large_error) > 1]
        texts.append(text)
    return Verdict(
        "local training is better than the grand mean for small networks, and the reverse for large ones (here: the "
        "smallest and the largest, by two standard errors)",
        "error of local over the grand mean's, " + "; ".join(texts),
        graded(conditions),
        setting,
    )


def _ratios(errors: pandas.DataFrame, metric: str, first: str, second: str) -> tuple[list[tuple[float, float]], str]:
    """Ratios of means with standard errors by architecture, the smallest first, and all of them in words."""
    ratios = {
        setting_value(str(name), "hidden"): ratio_with_error(rows[first].to_numpy(), rows[second].to_numpy())
        for name, rows in by_repetition(errors, metric).groupby("setting", sort=False)
    }
    ordered = sorted(ratios.items(), key=lambda item: architecture_size(item[0]))
    words = "; ".join(f"{name}: {with_error(*pair)}" for name, pair in ordered)
    return [pair for _, pair in ordered], f"{metric.split()[0]} {words}"


def architecture_size(architecture: str) -> tuple[int, ...]:
    """Layers and width of an architecture such as 2x16, to sort by."""
    return tuple(map(int, architecture.split("x")))


def error_figure(whose: Mapping[str, pandas.DataFrame], methods: Sequence[str], titles: Mapping[str, str]) -> Figure:
    """Error by architecture and method: a row of panels per group of agents, a column per metric with its title."""
    figure, axes = panels(len(titles), len(whose), width=5.2, height=3.2, sharex=True, squeeze=False)
    for row, (who, rows) in zip(axes, whose.items(), strict=True):
        for axis, metric in zip(row, titles, strict=True):
            table = over_repetitions(rows, metric)
            names = sorted(
                {setting_value(str(name), "hidden") for name in table.index.get_level_values("setting")},
                key=architecture_size,
            )
            for shift, method in enumerate(methods):
                levels = [level(table, setting_label(hidden=name), method) for name in names]
                axis.errorbar(
                    np.arange(len(names)) + 0.12 * (shift - (len(methods) - 1) / 2),
                    [one.mean for one in levels],
                    yerr=[np.nan_to_num(one.deviation) for one in levels],
                    fmt="o",
                    markersize=4,
                    capsize=2,
                    color=colour(method),
                    label=label(method),
                )
            axis.set_xticks(np.arange(len(names)), names)
            axis.set_title(f"{who}: {titles[metric]}", fontsize=9)
            axis.set_yscale("log")
        row[0].set_ylabel("MSE, mean and standard deviation")
    for axis in axes[-1]:
        axis.set_xlabel("hidden layers x width")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def weights_figure(matrix: Array, sizes: Sequence[int]) -> Figure:
    """The weight matrix, with lines between groups of agents."""
    figure, axes = panels(width=4.8, height=4.0)
    image = axes.imshow(matrix, cmap="magma_r", vmin=0, vmax=float(np.quantile(matrix, 0.995)), interpolation="nearest")
    for edge in np.cumsum(sizes)[:-1]:
        axes.axhline(edge - 0.5, color="#0072B2", linewidth=0.8)
        axes.axvline(edge - 0.5, color="#0072B2", linewidth=0.8)
    axes.grid(False)
    axes.set(xlabel="agent listened to", ylabel="target")
    axes.set_title("weights of Algorithm 3, first repetition", fontsize=9)
    figure.colorbar(image, ax=axes, label="weight")
    return figure
