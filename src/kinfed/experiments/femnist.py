"""The paper's third experiment: handwritten characters of 192 writers, a network for every writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray
from scipy.stats import norm

from kinfed.data import Preparation, read_femnist
from kinfed.embedding import federated_median
from kinfed.errors import InputError
from kinfed.experiments.experiment import Answer, Conclusion, Part, PartProgress, Verdict, check_settings
from kinfed.experiments.figures import colour, label, legend, panels
from kinfed.experiments.measurements import Findings, Measurement, setting_label
from kinfed.experiments.paper_settings import repetition_seed
from kinfed.experiments.summary import with_error
from kinfed.features import FourierFeatures
from kinfed.federation import Agent, Federation
from kinfed.kernels import Gaussian
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights, explicit_geometry, weigh

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

BEST, FINAL = "best accuracy", "final accuracy"
PAPER = "q-aggregation"
ENCODINGS = ("standardised", "leaf", "ink")
# One-sided level at which one agent's own test points say that it is worse off.
_LEVEL = 0.05


@dataclass(frozen=True)
class Femnist:
    """Accuracy of every writer's own network by method; reads the .npz archive, LEAF JSON and flwr-datasets' files."""

    name: ClassVar[str] = "femnist"
    summary: ClassVar[str] = (
        "Handwritten digits and letters (62 classes), one agent per writer, one hidden layer of 32, agents compared by "
        "their images alone. One protocol for all methods: the same splits, start, batches and number of steps. *Best* is "
        "each agent's best test value during training, as in the paper; *final* the value at the end. Errors are standard "
        "errors over agents."
    )
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
    test_share: float = field(default=0.2, metadata={"help": "Share of every writer's images to test on."})
    look_every: int = field(default=50, metadata={"help": "Epochs between looks at the test data."})
    methods: tuple[str, ...] = field(
        default=("local", "grand-mean", PAPER),
        metadata={"help": f"Rules to compare: {', '.join(rule for rule in RULES if rule != 'oracle')}."},
    )
    repetitions: int = field(default=3, metadata={"help": "Random splits into training and test."})
    seed: int = field(default=0, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        check_settings(self)
        one_of(self.pixels, ENCODINGS, "--pixels")
        if not self.data.exists():
            raise InputError(f"{self.data} does not exist; give the path of FEMNIST's file or folder with --data")

    @classmethod
    def quick(cls) -> Mapping[str, Any]:
        """One split of 64 writers, 300 epochs."""
        return {"repetitions": 1, "writers": 64, "epochs": 300, "look_every": 25}

    def parts(self) -> Sequence[Part]:
        """One part per repetition and method: all personal models of a method train together."""
        return [
            Part(f"{method}-repetition-{r}", r, (method,)) for r in range(self.repetitions) for method in self._longest()
        ]

    def _longest(self) -> list[str]:
        """The methods, those of one model for all last."""
        return sorted(self.methods, key=lambda method: method == "grand-mean")

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> Findings:
        """One method on one split."""
        from kinfed.experiments.training import train_and_test
        from kinfed.learners.neural import TorchLearner

        (method,), seed = part.options, repetition_seed(self.seed, part.repetition)
        train, test = self._split(seed)
        weights = self._weights(train, method, seed)
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
        return Findings(
            tuple(
                Measurement(setting, method, part.repetition, metric, one, train.names) for metric, one in values.items()
            ),
            {"epochs": trial.epochs, "curve": trial.curve, "train_sizes": train.sizes, "test_sizes": test.sizes},
        )

    def _split(self, seed: int) -> tuple[Federation, Federation]:
        federation = read_femnist(self.data, writers=self.writers, seed=self.seed)
        if self.pixels == "ink":
            agents = tuple(Agent(agent.name, 1 - np.asarray(agent.X), agent.y) for agent in federation)
            federation = Federation(agents, federation.columns, target=federation.target)
        train, test = federation.split(test_size=self.test_share, seed=seed)
        if self.pixels == "standardised":
            preparation = Preparation.fit(train)
            train, test = preparation.transform(train), preparation.transform(test)
        return train, test

    def _weights(self, train: Federation, method: str, seed: int) -> Weights:
        kernel = Gaussian(self.bandwidth or federated_median(train))
        features = FourierFeatures(kernel, self.features, dim=train.dim, seed=seed)
        return weigh(explicit_geometry([features(agent.X) for agent in train], norm_bound=features.norm_bound), method)

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, Findings]) -> Conclusion:
        """Judge the order of the methods and whether anyone loses, and draw the paper's figures."""
        tests = sum(found.arrays["test_sizes"] for part, found in findings.items() if part.options[0] == self.methods[0])
        complete = {"local", "grand-mean", PAPER} <= set(self.methods)
        return Conclusion(
            verdicts=self._verdicts(results, np.asarray(tests)) if complete else (),
            figures={
                "accuracy": _accuracy_figure(_by_agent(results, FINAL), _by_agent(results, BEST)),
                "training": _training_figure(findings, self.methods),
                "sizes": _sizes_figure(next(iter(findings.values())).arrays),
            },
            tables={"Mean over agents, with its standard error, in percent:": _table(results, self.methods)},
            remarks=(
                f"Pixels are {self.pixels}; as LEAF gives them (--pixels leaf) the background is 1 and training slower.",
                "The bandwidth is "
                + (
                    f"{self.bandwidth:g}."
                    if self.bandwidth
                    else "the median over agents of the median distance within an agent."
                ),
                f"An epoch is as many rows as an agent has on average, {self.batch} at a time from a target's own mixture "
                "of agents, the same for every method; the paper names no optimiser and no batches, here it is Adam.",
            ),
        )

    def _verdicts(self, results: pandas.DataFrame, tests: NDArray[np.int64]) -> tuple[Verdict, ...]:
        setting = f"{self.writers} writers, {self.repetitions} split(s), {self.epochs} epochs, pixels {self.pixels}"
        by_agent = {metric: _by_agent(results, metric) for metric in (FINAL, BEST)}
        ordered, texts = [], []
        for metric, table in by_agent.items():
            means = {method: table[method].mean() for method in (PAPER, "grand-mean", "local")}
            ordered.append(means[PAPER] > means["grand-mean"] > means["local"])
            gains = [f"{_percent(table[PAPER] - table[other])} over {other}" for other in ("grand-mean", "local")]
            levels = " / ".join(_percent(table[method]) for method in means)
            texts.append(f"{metric}: {levels} %; Q-aggregation gains {' and '.join(gains)}")
        above = all(
            table[PAPER].mean() > max(table["grand-mean"].mean(), table["local"].mean()) for table in by_agent.values()
        )
        first: Answer = "holds" if all(ordered) else ("holds in part" if above else "does not hold")
        final = by_agent[FINAL]
        at_least = {metric: float((table[PAPER] >= table["local"] - 1e-12).mean()) for metric, table in by_agent.items()}
        worse = _surely_worse(final[PAPER].to_numpy(), final["local"].to_numpy(), tests)
        common = float((final["grand-mean"] < final["local"]).mean())
        second: Answer = (
            "holds"
            if min(at_least.values()) == 1
            else ("holds in part" if min(at_least.values()) >= 0.5 else "does not hold")
        )
        return (
            Verdict(
                "Q-aggregation is above the grand mean, which is above local training, on average",
                "Q-aggregation / grand mean / local, " + "; ".join(texts),
                first,
                setting,
            ),
            Verdict(
                "Q-aggregation is always at least as good as local training; the grand mean fails some agents",
                f"at least as good as local for {at_least[FINAL]:.1%} of the agents at the end and {at_least[BEST]:.1%} at "
                f"their best, mean over splits; surely worse (level {_LEVEL:.0%}, median of {int(np.median(tests))} test "
                f"images) for {worse:.1%}; the grand mean is below local for {common:.1%}",
                second,
                setting,
            ),
        )


def _by_agent(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over repetitions: a row per agent, a column per method."""
    chosen = results[results["metric"] == metric]
    return chosen.pivot_table(index="agent", columns="method", values="value", aggfunc="mean", sort=False)


def _percent(values: pandas.Series[float]) -> str:
    """Mean over agents and its standard error, in percent."""
    return with_error(100 * float(values.mean()), 100 * float(values.std() / np.sqrt(len(values))))


def _surely_worse(ours: Array, theirs: Array, tests: NDArray[np.int64]) -> float:
    """Share of agents whose own test points reject that they are no worse off, taken as independent binomials."""
    pooled = (ours + theirs) / 2
    deviation = np.sqrt(np.maximum(2 * pooled * (1 - pooled) / tests, 1e-12))
    return float(np.mean((ours - theirs) / deviation < norm.ppf(_LEVEL)))


def _table(results: pandas.DataFrame, methods: Sequence[str]) -> pandas.DataFrame:
    columns = {}
    for metric in (FINAL, BEST):
        table = _by_agent(results, metric)
        columns[metric] = [_percent(table[m]) for m in methods]
        columns[f"{metric}, worst tenth of agents"] = [f"{100 * table[m].quantile(0.1):.1f}" for m in methods]
    for metric in ("self weight", "effective sample size"):
        table = _by_agent(results, metric)
        columns[f"median {metric}"] = [f"{table[m].median():.3g}" for m in methods]
    return pandas.DataFrame(columns, index=list(methods))


def _accuracy_figure(final: pandas.DataFrame, best: pandas.DataFrame) -> Figure:
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
            box.set_facecolor(colour(str(method)))
            box.set_alpha(0.5)
        row[1].tick_params(axis="x", labelsize=7)
    axes[1, 0].set_xlabel("agents, sorted by Q-aggregation")
    legend(axes[0, 0], 7)
    return figure


def _training_figure(findings: Mapping[Part, Findings], methods: Sequence[str]) -> Figure:
    figure, axes = panels(width=5.4, height=3.4)
    for method in methods:
        curves = [found.arrays for part, found in findings.items() if part.options[0] == method]
        mean = 100 * np.mean([one["curve"] for one in curves], axis=0)
        axes.plot(curves[0]["epochs"], mean, color=colour(method), label=label(method))
    axes.set_xlabel("epochs")
    axes.set_ylabel("mean test accuracy, percent")
    legend(axes)
    return figure


def _sizes_figure(arrays: Mapping[str, NDArray[Any]]) -> Figure:
    figure, axes = panels(width=6.0, height=3.0)
    order = np.argsort(arrays["train_sizes"])
    place = np.arange(len(order))
    axes.bar(place, arrays["train_sizes"][order], width=1.0, color="#0072B2", label="train")
    axes.bar(
        place, arrays["test_sizes"][order], width=1.0, bottom=arrays["train_sizes"][order], color="#E69F00", label="test"
    )
    axes.set_xlabel("agents")
    axes.set_ylabel("images")
    legend(axes)
    return figure
