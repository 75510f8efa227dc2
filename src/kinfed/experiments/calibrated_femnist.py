"""The calibrated rule on handwritten characters: a network for every writer, against the paper's rule and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.collaboration import collaboration_weights
from kinfed.data import Preparation, read_femnist
from kinfed.embedding import federated_median
from kinfed.errors import InputError
from kinfed.evaluation import score_models
from kinfed.experiments.calibrated_networks import method_colour, stage
from kinfed.experiments.experiment import Conclusion, Part, PartProgress, Verdict, check_settings, graded
from kinfed.experiments.measurements import Findings, Measurement, setting_label
from kinfed.experiments.never_wrong import OURS, chosen_table
from kinfed.experiments.paper_settings import PAPER, repetition_seed
from kinfed.experiments.summary import with_error
from kinfed.features import FourierFeatures
from kinfed.federation import Federation
from kinfed.kernels import Gaussian
from kinfed.learners.plan import common_model, fit_planned
from kinfed.plotting.style import label, legend, panels
from kinfed.weights import explicit_geometry, weigh

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kinfed.learners.neural import TorchLearner

Array = NDArray[np.float64]

FINAL, LOG_LOSS = "final accuracy", "final log loss"
TUNED = "fine-tuning"
METHODS = (OURS, PAPER, "local", TUNED, "grand-mean")
"""Those that take longest first."""

NOT_WORSE, ABOVE_TUNED, ACCURATE = 0.97, 0.03, 0.81
VALIDATION = 0.2  # share of the training images that fine-tuning sets aside to choose its length
_CALIBRATED = 0.8  # share of the calibrated part's time that calibration takes


@dataclass(frozen=True)
class CalibratedFemnist:
    """Accuracy of every writer's own network: the calibrated rule, the paper's, fine-tuning, local and grand mean."""

    name: ClassVar[str] = "calibrated-femnist"
    summary: ClassVar[str] = (
        "Handwritten digits and letters (62 classes), one agent per writer, one hidden layer, pixels standardised. One "
        "protocol for all methods: the same splits, optimiser and batch size. *q-aggregation* is the paper's rule, agents "
        "compared by their images alone; *fine-tuning* goes on from the grand mean with every writer's own images, for a "
        "number of epochs chosen on a fifth of the training images; *calibrated* is kinfed's default. Values are those at "
        "the end of training; errors are standard errors over agents."
    )
    needs: ClassVar[tuple[str, ...]] = ("torch",)
    revision: ClassVar[int] = 1

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
    test_share: float = field(default=0.2, metadata={"help": "Share of every writer's images to test on."})
    repetitions: int = field(default=1, metadata={"help": "Random splits into training and test."})
    seed: int = field(default=0, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < self.test_share < 1:
            raise InputError(f"--test-share must lie between 0 and 1, got {self.test_share:g}")
        if not self.data.exists():
            raise InputError(f"{self.data} does not exist; give the path of FEMNIST's file or folder with --data")

    @classmethod
    def quick(cls) -> Mapping[str, Any]:
        """24 writers, 60 epochs."""
        return {"writers": 24, "epochs": 60}

    def parts(self) -> Sequence[Part]:
        """One part per method and repetition: all personal models of a method train together."""
        return [Part(f"{method}-repetition-{r}", r, (method,)) for method in METHODS for r in range(self.repetitions)]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> Findings:
        """One method on one split."""
        from kinfed.learners.neural import TorchLearner

        (method,), seed = part.options, repetition_seed(self.seed, part.repetition)
        raw, raw_test = self._split(seed)
        preparation = Preparation.fit(raw)
        train, test = preparation.transform(raw), preparation.transform(raw_test)
        learner = TorchLearner(
            hidden=(self.hidden,), learning_rate=self.learning_rate, epochs=self.epochs, batch_size=self.batch
        )
        setting, arrays = setting_label(writers=len(train)), {}
        if method == OURS:
            calibrating = stage(progress, 0.0, _CALIBRATED, "calibrating")
            weights = collaboration_weights(raw, OURS, learner=learner, seed=seed, progress=calibrating)
            models: Any = fit_planned(
                learner,
                train,
                weights.matrix,
                weights.plan,
                targets=weights.targets,
                seed=seed,
                progress=stage(progress, _CALIBRATED, 1.0),
                checkpoint=checkpoint,
            )
            arrays["chosen"] = np.array([setting, "" if weights.calibration is None else weights.calibration.chosen])
        elif method == TUNED:
            found = tuned_accuracies(learner, train, self.tuning, seed, progress, checkpoint / "choice")
            start: Any = common_model(learner, train, seed=seed, checkpoint=checkpoint / "common")
            progress(0.8)
            tuned = learner.trained_for(best_length(found) / learner.epochs, start)
            models = tuned.fit(train, np.eye(len(train)), seed=seed, progress=stage(progress, 0.8, 1.0))
            arrays["tuning"] = np.array(list(found.items()))
        else:
            matrix = self._weights(train, method, seed)
            models = learner.fit(train, matrix, seed=seed, progress=stage(progress, 0.0, 1.0), checkpoint=checkpoint)
        scores = score_models(models, test, "classification")
        return Findings(
            tuple(
                Measurement(setting, method, part.repetition, metric, scores[name], train.names)
                for metric, name in ((FINAL, "accuracy"), (LOG_LOSS, "log loss"))
            ),
            arrays,
        )

    def _split(self, seed: int) -> tuple[Federation, Federation]:
        train, test = read_femnist(self.data, writers=self.writers, seed=self.seed).split(self.test_share, seed)
        if not test.sizes.all():
            writer = test.names[int(np.argmin(test.sizes))]
            raise InputError(f"writer {writer} has too few images for --test-share {self.test_share:g}; raise it")
        return train, test

    def _weights(self, train: Federation, method: str, seed: int) -> Array:
        features = FourierFeatures(Gaussian(federated_median(train)), self.features, dim=train.dim, seed=seed)
        geometry = explicit_geometry([features(agent.X) for agent in train], norm_bound=features.norm_bound)
        return weigh(geometry, method).matrix

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, Findings]) -> Conclusion:
        """Judge the calibrated rule against the others, and draw every writer's accuracy."""
        by_agent = _by_agent(results, FINAL)
        chosen = {part: one for part, one in findings.items() if "chosen" in one.arrays}
        tuned = [one.arrays["tuning"] for one in findings.values() if "tuning" in one.arrays]
        return Conclusion(
            verdicts=tuple(self._verdicts(results, by_agent)),
            figures={"accuracy": accuracy_figure(by_agent)},
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

    def _verdicts(self, results: pandas.DataFrame, by_agent: pandas.DataFrame) -> Iterator[Verdict]:
        splits = "1 split" if self.repetitions == 1 else f"{self.repetitions} splits"
        setting = f"{len(by_agent)} writers, {splits}, {self.epochs} epochs"

        def against(other: str) -> tuple[float, float, str]:
            """Mean difference to another method, its standard error, and both in words."""
            gain = by_agent[OURS] - by_agent[other]
            levels = f"{_percent(by_agent[OURS])} % against {_percent(by_agent[other])} %"
            error = float(gain.std() / np.sqrt(len(gain)))
            return float(gain.mean()), error, f"{levels}: {_percent(gain)} points"

        gain, error, text = against(PAPER)
        yield Verdict(
            "the calibrated rule is above the paper's on average (here: by two standard errors over agents; in part if by "
            "less)",
            text,
            graded([gain > 0, gain > 2 * error]),
            setting,
        )
        share = _not_worse(by_agent)
        single = [_not_worse(_by_agent(rows, FINAL)) for _, rows in results.groupby("repetition")]
        yield Verdict(
            f"the calibrated rule is at least as good as local training for at least {NOT_WORSE:.0%} of the agents, in "
            "means over splits",
            f"{share:.1%} ± {np.sqrt(share * (1 - share) / len(by_agent)):.1%} of the agents; within single splits "
            + ", ".join(f"{one:.1%}" for one in single),
            graded([share >= NOT_WORSE]),
            setting,
        )
        gain, _, text = against(TUNED)
        claim = f"the calibrated rule is at least {100 * ABOVE_TUNED:g} points above fine-tuning on average"
        yield Verdict(claim, text, graded([gain >= ABOVE_TUNED]), setting)
        claim = f"the accuracy of the calibrated rule is at least {ACCURATE:.0%} on average"
        reached = float(by_agent[OURS].mean()) >= ACCURATE
        yield Verdict(claim, f"{_percent(by_agent[OURS])} %", graded([reached]), setting)


def tuned_accuracies(
    learner: TorchLearner, train: Federation, lengths: Sequence[int], seed: int, progress: PartProgress, checkpoint: Path
) -> dict[int, float]:
    """Mean accuracy, on images that were set aside, of models fine-tuned for every one of the numbers of epochs."""
    kept, aside = train.split(VALIDATION, seed)
    start: Any = common_model(learner, kept, seed=seed, checkpoint=checkpoint)
    progress(0.4)
    found: dict[int, float] = {}

    def look(done: int, models: Any) -> None:
        if done in lengths:
            found[done] = score_models(models, aside, "classification").mean("accuracy")

    # One training to the greatest length passes through all others.
    learner.trained_for(max(lengths) / learner.epochs, start).fit(
        kept,
        np.eye(len(kept)),
        seed=seed,
        progress=stage(progress, 0.4, 0.6),
        monitor=look,
        monitor_every=int(np.gcd.reduce(lengths)),
    )
    return found


def best_length(accuracies: Mapping[int, float]) -> int:
    """The number of epochs with the best accuracy, the fewest of equally good ones."""
    return max(sorted(accuracies), key=lambda length: accuracies[length])


def accuracy_figure(by_agent: pandas.DataFrame) -> Figure:
    """What every writer gains over learning alone by method, sorted, and box plots of the accuracies."""
    figure, axes = panels(2, width=5.0, height=3.4)
    methods = [method for method in METHODS if method != "local"]
    for method in methods:
        gains = 100 * np.sort((by_agent[method] - by_agent["local"]).to_numpy())
        axes[0].plot(np.arange(len(gains)), gains, color=method_colour(method), label=label(method), linewidth=1.6)
    axes[0].axhline(0.0, color="#555555", linestyle="--", linewidth=1.0)
    axes[0].set_xlabel("agents, each method sorted on its own")
    axes[0].set_ylabel("accuracy minus that of local, points")
    legend(axes[0], 7)
    values = [100 * by_agent[method].to_numpy() for method in METHODS]
    boxes = axes[1].boxplot(values, tick_labels=list(METHODS), patch_artist=True, showmeans=True)
    for box, method in zip(boxes["boxes"], METHODS, strict=True):
        box.set_facecolor(method_colour(method))
        box.set_alpha(0.5)
    axes[1].tick_params(axis="x", labelsize=7)
    axes[1].set_ylabel("accuracy, percent")
    return figure


def _by_agent(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over splits: a row per agent, a column per method."""
    chosen = results[results["metric"] == metric]
    return chosen.pivot_table(index="agent", columns="method", values="value", aggfunc="mean", sort=False)


def _not_worse(by_agent: pandas.DataFrame) -> float:
    """Share of agents for whom the calibrated rule is at least as good as learning alone."""
    return float((by_agent[OURS] >= by_agent["local"] - 1e-12).mean())


def _percent(values: pandas.Series[float]) -> str:
    """Mean over agents and its standard error, in percent."""
    return _mean(100 * values, 2)


def _mean(values: pandas.Series[float], digits: int) -> str:
    return with_error(float(values.mean()), float(values.std() / np.sqrt(len(values))), digits)


def _table(results: pandas.DataFrame) -> pandas.DataFrame:
    accuracy, loss = _by_agent(results, FINAL), _by_agent(results, LOG_LOSS)
    return pandas.DataFrame(
        {
            "accuracy, percent": [_percent(accuracy[method]) for method in METHODS],
            "worst tenth of agents, percent": [f"{100 * accuracy[method].quantile(0.1):.1f}" for method in METHODS],
            "log loss": [_mean(loss[method], 3) for method in METHODS],
        },
        index=list(METHODS),
    )


def _tuning_table(tuned: Sequence[Array]) -> pandas.DataFrame:
    """A row per split, a column per number of epochs, and what was chosen."""
    found = [{int(length): accuracy for length, accuracy in one.tolist()} for one in tuned]
    texts = [{n: f"{100 * one[n]:.2f}" for n in sorted(one)} | {"chosen": str(best_length(one))} for one in found]
    return pandas.DataFrame(texts, index=[f"split {number}" for number in range(1, len(texts) + 1)])
