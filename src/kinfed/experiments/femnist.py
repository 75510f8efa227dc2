"""The paper's third experiment: handwritten characters of 192 writers, a network for every writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.data import Preparation, read_femnist
from kinfed.embedding import federated_median
from kinfed.errors import InputError
from kinfed.experiments.experiment import Conclusion, Part, PartProgress, Verdict, check_settings, graded
from kinfed.experiments.femnist_figures import accuracy_figure, sizes_figure, training_figure
from kinfed.experiments.measurements import Findings, Measurement, setting_label
from kinfed.experiments.paper_settings import PAPER, repetition_seed
from kinfed.experiments.summary import with_error
from kinfed.features import FourierFeatures
from kinfed.federation import Agent, Federation
from kinfed.kernels import Gaussian
from kinfed.validation import one_of
from kinfed.weights import GEOMETRIC_RULES, Weights, explicit_geometry, weigh

Array = NDArray[np.float64]

BEST, FINAL = "best accuracy", "final accuracy"
ENCODINGS = ("standardised", "leaf", "ink")


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
    revision: ClassVar[int] = 1

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
        metadata={"help": f"Rules to compare: {', '.join(rule for rule in GEOMETRIC_RULES if rule != 'oracle')}."},
    )
    repetitions: int = field(default=3, metadata={"help": "Random splits into training and test."})
    seed: int = field(default=0, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        check_settings(self)
        one_of(self.pixels, ENCODINGS, "--pixels")
        if "oracle" in self.methods:
            raise InputError("--methods 'oracle' needs known groups, which FEMNIST does not have; leave it out")
        if not 0 < self.test_share < 1:
            raise InputError(f"--test-share must lie between 0 and 1, got {self.test_share:g}")
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
        if not test.sizes.all():
            writer = test.names[int(np.argmin(test.sizes))]
            raise InputError(f"writer {writer} has too few images for --test-share {self.test_share:g}; raise it")
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
        looks = -(-self.epochs // self.look_every)
        return Conclusion(
            verdicts=tuple(self._verdicts(results)),
            figures={
                "accuracy": accuracy_figure(_by_agent(results, FINAL), _by_agent(results, BEST)),
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
        by_agent = {metric: _by_agent(results, metric) for metric in (FINAL, BEST)}
        writers = len(by_agent[FINAL])
        setting = f"{writers} writers, {self.repetitions} split(s), {self.epochs} epochs, pixels {self.pixels}"
        compared = {"local", "grand-mean", PAPER} & set(self.methods)
        if len(compared) == 3:
            texts, conditions = [], []
            for metric, table in by_agent.items():
                levels = " / ".join(_percent(table[method]) for method in (PAPER, "grand-mean", "local"))
                gains = [
                    table[PAPER] - table["grand-mean"],
                    table["grand-mean"] - table["local"],
                    table[PAPER] - table["local"],
                ]
                conditions += [_clearly_positive(gain) for gain in gains[:2]]
                texts.append(f"{metric}: {levels} %; differences {', '.join(_percent(gain) for gain in gains)} points")
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
            for metric, table in by_agent.items():
                share = float((table[method] >= table["local"] - 1e-12).mean())
                splits = _shares_by_split(results, metric, method)
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


def _by_agent(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over repetitions: a row per agent, a column per method."""
    chosen = results[results["metric"] == metric]
    return chosen.pivot_table(index="agent", columns="method", values="value", aggfunc="mean", sort=False)


def _shares_by_split(results: pandas.DataFrame, metric: str, method: str) -> list[float]:
    """Share of agents for whom the method is at least as good as local training, in every split."""
    shares = []
    for _, rows in results.groupby("repetition"):
        table = _by_agent(rows, metric)
        shares.append(float((table[method] >= table["local"] - 1e-12).mean()))
    return shares


def _percent(values: pandas.Series[float]) -> str:
    """Mean over agents and its standard error, in percent."""
    return with_error(100 * float(values.mean()), 100 * float(values.std() / np.sqrt(len(values))))


def _clearly_positive(values: pandas.Series[float]) -> bool:
    return bool(values.mean() > 2 * values.std() / np.sqrt(len(values)))


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


def _curve_table(findings: Mapping[Part, Findings], methods: Sequence[str]) -> pandas.DataFrame:
    curves = {}
    for method in methods:
        found = [one.arrays for part, one in findings.items() if part.options[0] == method]
        epochs, mean = found[0]["epochs"], 100 * np.mean([one["curve"] for one in found], axis=0)
        chosen = np.unique(np.linspace(0, len(epochs) - 1, 9).round().astype(int))
        curves[method] = {int(epochs[i]): f"{mean[i]:.2f}" for i in chosen} | {"best": f"{mean.max():.2f}"}
    return pandas.DataFrame(curves)
