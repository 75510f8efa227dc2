"""The calibrated rule on handwritten characters: a network for every writer, against the paper's rule and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas

from kinfed.analysis import score_models
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation, read_femnist
from kinfed.embedding import federated_median
from kinfed.experiments.calibrated_networks import method_colour
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
from kinfed.experiments.femnist import by_agent, check_data, mean_over_agents, not_worse, percent, split_writers
from kinfed.experiments.never_wrong import OURS, chosen_candidate, chosen_table, stage
from kinfed.experiments.paper_settings import PAPER, input_geometry, repetition_seed
from kinfed.federation import Federation
from kinfed.learners.base import common_model, fit_planned
from kinfed.plotting.style import label, legend, panels
from kinfed.pretraining_analysis import collaboration_weights
from kinfed.validation import Array
from kinfed.weights import weigh

if TYPE_CHECKING:
    from kinfed.learners.neural import TorchLearner


FINAL, LOG_LOSS = "final accuracy", "final log loss"
TUNED = "fine-tuning"
METHODS = (OURS, PAPER, "local", TUNED, "grand-mean")
"""Those that take longest first."""

NOT_WORSE, ABOVE_TUNED, ACCURATE = 0.97, 0.03, 0.81
VALIDATION = 0.2  # share of the training images that fine-tuning sets aside to choose its length
_CALIBRATED = 0.8  # share of the calibrated part's time that calibration takes


@dataclass(frozen=True)
class CalibratedFemnist(Experiment):
    """Accuracy of every writer's own network: the calibrated rule, the paper's, fine-tuning, local and grand mean."""

    name: ClassVar[str] = "calibrated-femnist"
    summary: ClassVar[str] = (
        "Handwritten digits and letters (62 classes), one agent per writer, one hidden layer, pixels standardised. One "
        "protocol for all methods: the same splits, optimiser and batch size. *q-aggregation* is the paper's rule, agents "
        "compared by their images alone; *fine-tuning* goes on from the grand mean with every writer's own images, for a "
        "number of epochs chosen on a fifth of the training images; *calibrated* is kinfed's default. Values are those at "
        "the end of training; errors are standard errors over agents."
    )
    quick: ClassVar[Mapping[str, Any]] = {"writers": 24, "epochs": 60}
    needs: ClassVar[tuple[str, ...]] = ("torch",)

    data: Path = field(
        metadata={"help": "FEMNIST: an .npz archive, LEAF JSON, or the Parquet or Arrow files of its tables."}
    )
    writers: int = field(default=192, metadata={"help": "B, drawn from all writers."})
    features: int = field(default=1000, metadata={"help": "D, random Fourier features of the paper's rule."})
    hidden: int = field(default=32, metadata={"help": "Width of the hidden layer."})
    epochs: int = field(default=1000, metadata={"help": "An epoch draws as many rows as an agent has on average."})
    batch: int = field(default=64, metadata={"help": "Rows a step draws from a target's mixture."})
    learning_rate: float = field(default=0.001, metadata={"help": "Of Adam."})
    tuning: tuple[int, ...] = field(
        default=(5, 10, 20, 40, 80), metadata={"help": "Numbers of epochs that fine-tuning chooses from."}
    )
    test_share: float = field(default=0.2, metadata={"help": "Share of every writer's images to test on.", "share": True})
    repetitions: int = field(default=1, metadata={"help": "Random splits into training and test."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_data(self.data)

    def parts(self) -> Sequence[Part]:
        """One part per method and repetition: all personal models of a method train together."""
        return [Part(f"{method}-repetition-{r}", r, (method,)) for method in METHODS for r in range(self.repetitions)]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """One method on one split."""
        from kinfed.learners.neural import TorchLearner

        (method,), seed = part.options, repetition_seed(self.seed, part.repetition)
        raw, raw_test = split_writers(read_femnist(self.data, writers=self.writers, seed=self.seed), self.test_share, seed)
        preparation = Preparation.fit(raw)
        train, test = preparation.transform(raw), preparation.transform(raw_test)
        learner = TorchLearner(
            hidden=(self.hidden,), learning_rate=self.learning_rate, epochs=self.epochs, batch_size=self.batch
        )
        setting, arrays, agents = setting_label(writers=len(train)), {}, PooledAgents(train, learner.task, seed)
        if method == OURS:
            weights = collaboration_weights(
                raw, OURS, learner=learner, seed=seed, progress=stage(progress, 0.0, _CALIBRATED, "calibrating")
            )
            models: Any = fit_planned(
                learner,
                agents,
                weights.matrix,
                weights.plan,
                targets=weights.targets,
                progress=stage(progress, _CALIBRATED, 1.0),
                checkpoint=checkpoint,
            )
            arrays["chosen"] = chosen_candidate(setting, weights)
        elif method == TUNED:
            found = tuned_accuracies(learner, train, self.tuning, seed, progress, checkpoint / "choice")
            start: Any = common_model(learner, agents, checkpoint=checkpoint / "common")
            progress(0.8)
            tuned = learner.trained_for(best_length(found) / learner.epochs, start)
            models = tuned.fit(agents, np.eye(len(train)), progress=stage(progress, 0.8, 1.0))
            arrays["tuning"] = np.array(list(found.items()))
        else:
            matrix = weigh(input_geometry(train, federated_median(train), self.features, seed), method).matrix
            models = learner.fit(agents, matrix, progress=stage(progress, 0.0, 1.0), checkpoint=checkpoint)
        scores = score_models(models, test, "classification")
        return PartFindings(
            tuple(
                Measurement(setting, method, part.repetition, metric, scores[name], train.names)
                for metric, name in ((FINAL, "accuracy"), (LOG_LOSS, "log loss"))
            ),
            arrays,
        )

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge the calibrated rule against the others, and draw every writer's accuracy."""
        table = by_agent(results, FINAL)
        chosen = {part: one for part, one in findings.items() if "chosen" in one.arrays}
        tuned = [one.arrays["tuning"] for one in findings.values() if "tuning" in one.arrays]
        return Conclusion(
            verdicts=tuple(self._verdicts(results, table)),
            figures={"accuracy": accuracy_figure(table)},
            tables={
                "Mean over agents with its standard error, of each agent's mean over splits:": _table(results),
                "What calibration chose for the federation, and in how many splits:": chosen_table(chosen),
                "Fine-tuning, accuracy in percent on the images set aside by number of epochs:": _tuning_table(tuned),
            },
            remarks=(
                f"An epoch is as many rows as an agent has on average, {self.batch} at a time from a target's own mixture "
                f"of agents. Local, grand mean and the paper's rule train for {self.epochs} epochs; calibrated may stop "
                f"earlier; where it starts from a common model, {self.epochs} epochs of that one come before its own.",
                "Standard errors are over agents, who share the starts of the networks and the splits' luck; single agents "
                "have few test images, so some fall below local by chance.",
            ),
        )

    def _verdicts(self, results: pandas.DataFrame, table: pandas.DataFrame) -> Iterator[Verdict]:
        splits = "1 split" if self.repetitions == 1 else f"{self.repetitions} splits"
        setting = f"{len(table)} writers, {splits}, {self.epochs} epochs"

        def against(other: str) -> tuple[float, float, str]:
            """Mean difference to another method, its standard error, and both in words."""
            gain = table[OURS] - table[other]
            words = f"{percent(table[OURS])} % against {percent(table[other])} %: {percent(gain)} points"
            return float(gain.mean()), float(gain.std() / np.sqrt(len(gain))), words

        gain, error, text = against(PAPER)
        yield Verdict(
            "the calibrated rule is above the paper's on average (here: by two standard errors over agents; in part if by "
            "less)",
            text,
            graded([gain > 0, gain > 2 * error]),
            setting,
        )
        share = not_worse(table, OURS)
        single = [not_worse(by_agent(rows, FINAL), OURS) for _, rows in results.groupby("repetition")]
        yield Verdict(
            f"the calibrated rule is at least as good as local training for at least {NOT_WORSE:.0%} of the agents, in "
            "means over splits",
            f"{share:.1%} ± {np.sqrt(share * (1 - share) / len(table)):.1%} of the agents; within single splits "
            + ", ".join(f"{one:.1%}" for one in single),
            graded([share >= NOT_WORSE]),
            setting,
        )
        gain, _, text = against(TUNED)
        yield Verdict(
            f"the calibrated rule is at least {100 * ABOVE_TUNED:g} points above fine-tuning on average",
            text,
            graded([gain >= ABOVE_TUNED]),
            setting,
        )
        yield Verdict(
            f"the accuracy of the calibrated rule is at least {ACCURATE:.0%} on average",
            f"{percent(table[OURS])} %",
            graded([float(table[OURS].mean()) >= ACCURATE]),
            setting,
        )


def tuned_accuracies(
    learner: TorchLearner, train: Federation, lengths: Sequence[int], seed: int, progress: PartProgress, checkpoint: Path
) -> dict[int, float]:
    """Mean accuracy, on images that were set aside, of models fine-tuned for every one of the numbers of epochs."""
    kept, aside = train.split(VALIDATION, seed)
    agents = PooledAgents(kept, learner.task, seed)
    start: Any = common_model(learner, agents, checkpoint=checkpoint)
    progress(0.4)
    found: dict[int, float] = {}

    def look(done: int, models: Any) -> None:
        if done in lengths:
            found[done] = score_models(models, aside, "classification", metrics=["accuracy"]).mean("accuracy")

    # One training to the greatest length passes through all others.
    learner.trained_for(max(lengths) / learner.epochs, start).fit(
        agents,
        np.eye(len(kept)),
        progress=stage(progress, 0.4, 0.6),
        monitor=look,
        monitor_every=int(np.gcd.reduce(lengths)),
    )
    return found


def best_length(accuracies: Mapping[int, float]) -> int:
    """The number of epochs with the best accuracy, the fewest of equally good ones."""
    return max(sorted(accuracies), key=lambda length: accuracies[length])


def accuracy_figure(table: pandas.DataFrame) -> Figure:
    """What every writer gains over learning alone by method, sorted, and box plots of the accuracies."""
    figure, axes = panels(2, width=5.0, height=3.4)
    for method in (one for one in METHODS if one != "local"):
        gains = 100 * np.sort((table[method] - table["local"]).to_numpy())
        axes[0].plot(np.arange(len(gains)), gains, color=method_colour(method), label=label(method), linewidth=1.6)
    axes[0].axhline(0.0, color="#555555", linestyle="--", linewidth=1.0)
    axes[0].set(xlabel="agents, each method sorted on its own", ylabel="accuracy minus that of local, points")
    legend(axes[0], 7)
    boxes = axes[1].boxplot(
        [100 * table[method].to_numpy() for method in METHODS],
        tick_labels=list(METHODS),
        patch_artist=True,
        showmeans=True,
    )
    for box, method in zip(boxes["boxes"], METHODS, strict=True):
        box.set(facecolor=method_colour(method), alpha=0.5)
    axes[1].tick_params(axis="x", labelsize=7)
    axes[1].set_ylabel("accuracy, percent")
    return figure


def _table(results: pandas.DataFrame) -> pandas.DataFrame:
    accuracy, loss = by_agent(results, FINAL), by_agent(results, LOG_LOSS)
    return pandas.DataFrame(
        {
            "accuracy, percent": [percent(accuracy[method]) for method in METHODS],
            "worst tenth of agents, percent": [f"{100 * accuracy[method].quantile(0.1):.1f}" for method in METHODS],
            "log loss": [mean_over_agents(loss[method], 3) for method in METHODS],
        },
        index=list(METHODS),
    )


def _tuning_table(tuned: Sequence[Array]) -> pandas.DataFrame:
    """A row per split, a column per number of epochs, and what was chosen."""
    found = [{int(length): accuracy for length, accuracy in one.tolist()} for one in tuned]
    texts = [{n: f"{100 * one[n]:.2f}" for n in sorted(one)} | {"chosen": str(best_length(one))} for one in found]
    return pandas.DataFrame(texts, index=[f"split {number}" for number in range(1, len(texts) + 1)])
