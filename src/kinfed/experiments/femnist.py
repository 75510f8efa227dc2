"""The paper's third experiment: handwritten characters of 192 writers, a network for every writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.data import Preparation, read_femnist
from kinfed.embedding import federated_median
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
)
from kinfed.experiments.paper_settings import PAPER, input_geometry, repetition_seed, train_and_test, with_error
from kinfed.federation import Federation
from kinfed.plotting.style import colour, label, legend, panels
from kinfed.validation import one_of
from kinfed.weights import geometric_rules, weigh

BEST, FINAL = "best accuracy", "final accuracy"
ENCODINGS = ("standardised", "leaf", "ink")


@dataclass(frozen=True)
class Femnist(Experiment):
    """Accuracy of every writer's own network by method; reads the .npz archive, LEAF JSON and flwr-datasets' files."""

    name: ClassVar[str] = "femnist"
    summary: ClassVar[str] = (
        "Handwritten digits and letters (62 classes), one agent per writer, one hidden layer of 32, agents compared by "
        "their images alone. One protocol for all methods: the same splits, start, batches and number of steps. *Best* is "
        "each agent's best test value during training, as in the paper; *final* the value at the end. Errors are standard "
        "errors over agents."
    )
    quick: ClassVar[Mapping[str, Any]] = {"repetitions": 1, "writers": 64, "epochs": 300, "look_every": 25}
    needs: ClassVar[tuple[str, ...]] = ("torch",)

    data: Path = field(
        metadata={"help": "FEMNIST: an .npz archive, LEAF JSON, or the Parquet or Arrow files of its tables."}
    )
    writers: int = field(default=192, metadata={"help": "B, drawn from all writers."})
    pixels: str = field(
        default="standardised",
        metadata={
            "help": f"What the networks and kernels see: {', '.join(ENCODINGS)} (leaf: background 1; ink: background 0)."
        },
    )
    features: int = field(default=1000, metadata={"help": "D, random Fourier features."})
    bandwidth: float = field(
        default=0.0, metadata={"help": "Of the Gaussian kernel; 0: the median distance within agents."}
    )
    hidden: int = field(default=32, metadata={"help": "Width of the hidden layer."})
    epochs: int = field(default=2000, metadata={"help": "An epoch draws as many rows as an agent has on average."})
    batch: int = field(default=64, metadata={"help": "Rows a step draws from a target's mixture."})
    learning_rate: float = field(default=0.001, metadata={"help": "Of Adam."})
    test_share: float = field(default=0.2, metadata={"help": "Share of every writer's images to test on.", "share": True})
    look_every: int = field(default=50, metadata={"help": "Epochs between looks at the test data."})
    methods: tuple[str, ...] = field(
        default=("local", "grand-mean", PAPER),
        metadata={"help": f"Rules to compare: {', '.join(rule for rule in geometric_rules() if rule != 'oracle')}."},
    )
    repetitions: int = field(default=3, metadata={"help": "Random splits into training and test."})

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.pixels, ENCODINGS, "--pixels")
        if "oracle" in self.methods:
            raise InputError("--methods 'oracle' needs known groups, which FEMNIST does not have; leave it out")
        check_data(self.data)

    def parts(self) -> Sequence[Part]:
        """One part per repetition and method: all personal models of a method train together."""
        longest_first = sorted(self.methods, key=lambda method: method == "grand-mean")
        return [Part(f"{method}-repetition-{r}", r, (method,)) for r in range(self.repetitions) for method in longest_first]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """One method on one split."""
        from kinfed.learners.neural import TorchLearner

        (method,), seed = part.options, repetition_seed(self.seed, part.repetition)
        train, test = self._split(seed)
        weights = weigh(input_geometry(train, self.bandwidth or federated_median(train), self.features, seed), method)
        learner = TorchLearner(
            hidden=(self.hidden,), learning_rate=self.learning_rate, epochs=self.epochs, batch_size=self.batch
        )
        trial = train_and_test(
            learner,
            {method: weights.matrix},
            train,
            test,
            seed=seed,
            every=self.look_every,
            progress=progress,
            checkpoint=checkpoint,
        )[method]
        setting = setting_label(pixels=self.pixels)
        values = {
            BEST: trial.best,
            FINAL: trial.final,
            "self weight": weights.self_weight,
            "effective sample size": weights.effective_sample_size,
        }
        return PartFindings(
            tuple(
                Measurement(setting, method, part.repetition, metric, one, train.names) for metric, one in values.items()
            ),
            {"epochs": trial.epochs, "curve": trial.curve, "train_sizes": train.sizes, "test_sizes": test.sizes},
        )

    def _split(self, seed: int) -> tuple[Federation, Federation]:
        federation = read_femnist(self.data, writers=self.writers, seed=self.seed)
        if self.pixels == "ink":
            agents = tuple(replace(agent, X=1 - np.asarray(agent.X)) for agent in federation)
            federation = replace(federation, agents=agents)
        train, test = split_writers(federation, self.test_share, seed)
        if self.pixels == "standardised":
            preparation = Preparation.fit(train)
            train, test = preparation.transform(train), preparation.transform(test)
        return train, test

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge the order of the methods and whether anyone loses, and draw the paper's figures."""
        looks = -(-self.epochs // self.look_every)
        return Conclusion(
            verdicts=tuple(self._verdicts(results)),
            figures={
                "accuracy": accuracy_figure(by_agent(results, FINAL), by_agent(results, BEST)),
                "training": training_figure(findings, self.methods),
                "sizes": sizes_figure(next(iter(findings.values())).arrays),
            },
            tables={
                "Mean over agents, with its standard error, in percent:": _table(results, self.methods),
                "Mean accuracy over agents and splits during training, in percent:": _curve_table(findings, self.methods),
            },
            remarks=(
                f"Pixels are {self.pixels} (--pixels); which encoding is taken decides how fast the networks learn.",
                "The bandwidth is "
                + (
                    f"{self.bandwidth:g}."
                    if self.bandwidth
                    else "the median over agents of the median distance within one."
                ),
                f"An epoch is as many rows as an agent has on average, {self.batch} at a time from a target's own mixture "
                "of agents, the same for every method; the paper names no optimiser and no batches, here it is Adam. The "
                "curves show who was still learning at the end.",
                f"Best is the best of {looks} looks at the test images, for each agent and method on its own, and so is on "
                "the optimistic side for all of them.",
                "Standard errors are over agents, who share the starts of the networks and the splits' luck; single agents "
                "have few test images, so some fall below local by chance.",
            ),
        )

    def _verdicts(self, results: pandas.DataFrame) -> Iterator[Verdict]:
        tables = {metric: by_agent(results, metric) for metric in (FINAL, BEST)}
        writers = len(tables[FINAL])
        setting = f"{writers} writers, {self.repetitions} split(s), {self.epochs} epochs, pixels {self.pixels}"
        if {"local", "grand-mean", PAPER} <= set(self.methods):
            texts, conditions = [], []
            for metric, table in tables.items():
                levels = " / ".join(percent(table[method]) for method in (PAPER, "grand-mean", "local"))
                gains = [
                    table[PAPER] - table["grand-mean"],
                    table["grand-mean"] - table["local"],
                    table[PAPER] - table["local"],
                ]
                conditions += [bool(gain.mean() > 2 * gain.std() / np.sqrt(writers)) for gain in gains[:2]]
                texts.append(f"{metric}: {levels} %; differences {', '.join(percent(gain) for gain in gains)} points")
            yield Verdict(
                "Q-aggregation is above the grand mean, which is above local training, on average (here: each by two "
                "standard errors over agents)",
                "Q-aggregation / grand mean / local, and Q-aggregation minus grand mean, grand mean minus local, "
                "Q-aggregation minus local; " + "; ".join(texts),
                graded(conditions),
                setting,
            )
        for method, claim in (
            (
                PAPER,
                "Q-aggregation is always at least as good as local training (here: for all agents; in part from 95 % on)",
            ),
            ("grand-mean", "the grand mean fails some agents (here: it is below local training for more than 5 %)"),
        ):
            if not {method, "local"} <= set(self.methods):
                continue
            texts, shares = [], []
            for metric, table in tables.items():
                share = not_worse(table, method)
                splits = [not_worse(by_agent(rows, metric), method) for _, rows in results.groupby("repetition")]
                shares.append(share)
                texts.append(
                    f"{metric}: {share:.1%} ± {np.sqrt(share * (1 - share) / writers):.1%} of the agents over all splits, "
                    f"{min(splits):.1%} to {max(splits):.1%} in single splits"
                )
            good = [share == 1 for share in shares] + [share >= 0.95 for share in shares]
            yield Verdict(
                claim,
                "at least as good as local for " + "; ".join(texts),
                graded(good if method == PAPER else [share < 0.95 for share in shares]),
                setting,
            )


def check_data(path: Path) -> None:
    """Refuse a path that is not there before anything is computed."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give the path of FEMNIST's file or folder with --data")


def split_writers(federation: Federation, share: float, seed: int) -> tuple[Federation, Federation]:
    """Training and test images of every writer, each of whom must have some of both."""
    train, test = federation.split(test_size=share, seed=seed)
    if not test.sizes.all():
        writer = test.names[int(np.argmin(test.sizes))]
        raise InputError(f"writer {writer} has too few images for --test-share {share:g}; raise it")
    return train, test


def by_agent(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over repetitions: a row per agent, a column per method."""
    return results[results["metric"] == metric].pivot_table(
        index="agent", columns="method", values="value", aggfunc="mean", sort=False
    )


def not_worse(table: pandas.DataFrame, method: str) -> float:
    """Share of agents for whom the method is at least as good as local training."""
    return float((table[method] >= table["local"] - 1e-12).mean())


def mean_over_agents(values: pandas.Series[float], digits: int = 2) -> str:
    """Mean over agents and its standard error."""
    return with_error(float(values.mean()), float(values.std() / np.sqrt(len(values))), digits)


def percent(values: pandas.Series[float]) -> str:
    """Mean over agents and its standard error, in percent."""
    return mean_over_agents(100 * values)


def _table(results: pandas.DataFrame, methods: Sequence[str]) -> pandas.DataFrame:
    columns = {}
    for metric in (FINAL, BEST):
        table = by_agent(results, metric)
        columns[metric] = [percent(table[m]) for m in methods]
        columns[f"{metric}, worst tenth of agents"] = [f"{100 * table[m].quantile(0.1):.1f}" for m in methods]
    columns |= {
        f"median {metric}": [f"{by_agent(results, metric)[m].median():.3g}" for m in methods]
        for metric in ("self weight", "effective sample size")
    }
    return pandas.DataFrame(columns, index=list(methods))


def _curve_table(findings: Mapping[Part, PartFindings], methods: Sequence[str]) -> pandas.DataFrame:
    curves = {}
    for method in methods:
        found = [one.arrays for part, one in findings.items() if part.options[0] == method]
        epochs, mean = found[0]["epochs"], 100 * np.mean([one["curve"] for one in found], axis=0)
        chosen = np.unique(np.linspace(0, len(epochs) - 1, 9).round().astype(int))
        curves[method] = {int(epochs[i]): f"{mean[i]:.2f}" for i in chosen} | {"best": f"{mean.max():.2f}"}
    return pandas.DataFrame(curves)


def accuracy_figure(final: pandas.DataFrame, best: pandas.DataFrame) -> Figure:
    """Accuracy of every agent by method, sorted, and box plots."""
    figure, axes = panels(2, 2, width=5.0, height=3.1, width_ratios=(2.2, 1))
    for row, (words, table) in zip(axes, (("at the end", final), ("best during training", best)), strict=True):
        ordered = table.sort_values(PAPER if PAPER in table else table.columns[-1])
        for method in ordered.columns:
            row[0].plot(
                np.arange(len(ordered)),
                100 * ordered[method].to_numpy(),
                ".",
                markersize=4,
                color=colour(str(method)),
                label=label(str(method)),
            )
        row[0].set_title(f"accuracy of every agent, {words}", fontsize=9)
        row[0].set_ylabel("percent")
        boxes = row[1].boxplot(
            [100 * table[method].to_numpy() for method in table.columns],
            tick_labels=[str(method) for method in table.columns],
            patch_artist=True,
            showmeans=True,
        )
        for box, method in zip(boxes["boxes"], table.columns, strict=True):
            box.set(facecolor=colour(str(method)), alpha=0.5)
        row[1].tick_params(axis="x", labelsize=7)
    axes[1, 0].set_xlabel("agents, sorted by " + label(PAPER if PAPER in final else str(final.columns[-1])))
    legend(axes[0, 0], 7)
    return figure


def training_figure(findings: Mapping[Part, PartFindings], methods: Sequence[str]) -> Figure:
    """Mean test accuracy during training."""
    figure, axes = panels(width=5.4, height=3.4)
    for method in methods:
        curves = [found.arrays for part, found in findings.items() if part.options[0] == method]
        mean = 100 * np.mean([one["curve"] for one in curves], axis=0)
        axes.plot(curves[0]["epochs"], mean, color=colour(method), label=label(method))
    axes.set(xlabel="epochs", ylabel="mean test accuracy, percent")
    legend(axes)
    return figure


def sizes_figure(arrays: Mapping[str, NDArray[Any]]) -> Figure:
    """Images of every agent for training and test."""
    figure, axes = panels(width=6.0, height=3.0)
    order = np.argsort(arrays["train_sizes"])
    place = np.arange(len(order))
    axes.bar(place, arrays["train_sizes"][order], width=1.0, color="#0072B2", label="train")
    axes.bar(
        place, arrays["test_sizes"][order], width=1.0, bottom=arrays["train_sizes"][order], color="#E69F00", label="test"
    )
    axes.set(xlabel="agents", ylabel="images")
    legend(axes)
    return figure
