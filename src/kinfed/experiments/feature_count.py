"""The number D of random features: what an agent sends against how well agents are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas

from kinfed.data import Generated, concept_shift
from kinfed.experiments.experiment import Conclusion, Part, PartProgress, Verdict, check_settings, graded
from kinfed.experiments.measurements import Findings, Measurement, setting_label, whole
from kinfed.experiments.paper_settings import LeastSquares, concept_kernel, repetition_seed
from kinfed.experiments.summary import by_repetition, level, over_repetitions, ratio_with_error, with_error
from kinfed.features import FourierFeatures
from kinfed.plotting.style import colour, legend, panels
from kinfed.weights import Geometry, explicit_geometry, kernel_geometry, weigh

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC, APART = "mean squared error", "relative error of squared distances"
EXACT_KERNEL = "exact kernel"
NORM_BOUND = float(np.sqrt(2))
"""M of the paper's features, for all: a smaller M is a smaller penalty, and would be compared instead of the features."""


@dataclass(frozen=True)
class FeatureCount:
    """MSE of Algorithm 3 and error of the distances between agents against D, with the exact kernel as the limit."""

    name: ClassVar[str] = "feature-count"
    summary: ClassVar[str] = (
        "The paper's concept shift with D random features per sketch: an agent sends D numbers, 8 D bytes. The exact "
        "kernel, for which points would have to be pooled, is the limit. Figures are means over all agents; errors are "
        "standard errors over repetitions."
    )
    needs: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 1

    spreads: tuple[float, ...] = field(default=(0.0, 0.25), metadata={"help": "Values of sigma_c^2."})
    features: tuple[int, ...] = field(
        default=(10, 20, 50, 100, 200, 500, 1000, 2000, 5000), metadata={"help": "Values of D."}
    )
    samplings: tuple[str, ...] = field(default=("iid", "orthogonal"), metadata={"help": "How frequencies are drawn."})
    agents: int = field(default=100, metadata={"help": "B."})
    points: int = field(default=10, metadata={"help": "Training points per agent."})
    dim: int = field(default=20, metadata={"help": "d."})
    repetitions: int = field(default=20, metadata={"help": "Independent repetitions."})
    seed: int = field(default=0, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def quick(cls) -> Mapping[str, Any]:
        """Three repetitions of five values of D."""
        return {"repetitions": 3, "features": (10, 50, 200, 500, 2000)}

    def parts(self) -> Sequence[Part]:
        """One part per repetition and spread."""
        return [Part(f"spread-{s}-repetition-{r}", r, (s,)) for r in range(self.repetitions) for s in self.spreads]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> Findings:
        """All values of D for one spread in one repetition."""
        (spread,), seed = part.options, repetition_seed(self.seed, part.repetition)
        generated = concept_shift(self.agents, self.points, self.dim, spread=spread, seed=seed)
        learner, names = LeastSquares(generated), generated.train.names
        kernel, points = concept_kernel(self.dim), _points(generated)
        exact = kernel_geometry(points, kernel, norm_bound=NORM_BOUND)
        found: list[Measurement] = []

        def add(method: str, geometry: Geometry, **where: Any) -> None:
            setting = setting_label(sigma_c2=spread, **where)
            errors = learner.error(weigh(geometry, "q-aggregation").matrix)
            found.append(Measurement(setting, method, part.repetition, METRIC, errors, names))
            if method != EXACT_KERNEL:
                apart = np.abs(geometry.squared_distances - exact.squared_distances).sum() / exact.squared_distances.sum()
                found.append(whole(setting, method, part.repetition, APART, float(apart)))

        add(EXACT_KERNEL, exact)
        local = learner.error(np.eye(self.agents))
        found.append(Measurement(setting_label(sigma_c2=spread), "local", part.repetition, METRIC, local, names))
        cases = [(count, sampling) for count in self.features for sampling in self.samplings]
        for done, (count, sampling) in enumerate(cases):
            features = FourierFeatures(kernel, count, dim=self.dim + 1, seed=seed, sampling=sampling)
            geometry = explicit_geometry([features(one) for one in points], norm_bound=NORM_BOUND)
            add(sampling, geometry, features=count)
            progress((done + 1) / len(cases))
        return Findings(tuple(found))

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, Findings]) -> Conclusion:
        """Judge whether more features buy accuracy, and how fast."""
        errors, apart = over_repetitions(results, METRIC), over_repetitions(results, APART)
        return Conclusion(
            verdicts=(self._verdict(results),),
            figures={"features": self._figure(errors, apart)},
            tables={
                "Mean squared error of Algorithm 3:": self._table(errors, 2),
                "Error of all squared distances between mean embeddings, relative to their sum:": self._table(apart, 4),
            },
        )

    def _verdict(self, results: pandas.DataFrame) -> Verdict:
        errors, apart = over_repetitions(results, METRIC), over_repetitions(results, APART)
        table = by_repetition(results, METRIC)
        counts, sampling = sorted(self.features), self.samplings[0]
        texts, conditions = [], []
        for spread in self.spreads:
            limit = level(errors, setting_label(sigma_c2=spread), EXACT_KERNEL)
            exact = table.loc[setting_label(sigma_c2=spread)][EXACT_KERNEL].to_numpy()
            ratios = {
                count: ratio_with_error(
                    table.loc[setting_label(sigma_c2=spread, features=count)][sampling].to_numpy(), exact
                )
                for count in counts
            }
            enough = [count for count in counts if ratios[count][0] <= 1.1]
            conditions += [ratios[counts[0]][0] - 2 * np.nan_to_num(ratios[counts[0]][1]) > 1, ratios[counts[-1]][0] <= 1.1]
            reached = f"from D = {enough[0]} ({8 * enough[0]} bytes)" if enough else f"nowhere up to D = {counts[-1]}"
            texts.append(
                f"sigma_c^2 = {spread:g}: {limit:2} with the exact kernel, and of that "
                + ", ".join(f"{with_error(*ratios[count])} at D = {count}" for count in counts)
                + f"; within 10 % {reached}"
            )
        means = [level(apart, setting_label(sigma_c2=self.spreads[0], features=count), sampling).mean for count in counts]
        if len(counts) > 1:
            slope = float(np.polyfit(np.log(counts), np.log(means), 1)[0])
            conditions.append(-0.6 <= slope <= -0.4)
            texts.append(f"the distances' error falls like D^({slope:.2f})")
        return Verdict(
            "D trades communication for accuracy, and the price is of order D^(-1/2) (here: worse than the exact kernel at "
            "the least D by two standard errors, within 10 % at the largest, and distances with a slope of -0.4 to -0.6)",
            "; ".join(texts),
            graded(conditions),
            f"concept shift, {self.repetitions} repetitions, all {self.agents} agents, {sampling} features",
        )

    def _table(self, table: pandas.DataFrame, digits: int) -> pandas.DataFrame:
        columns = {}
        for spread in self.spreads:
            for sampling in self.samplings:
                rows = [level(table, setting_label(sigma_c2=spread, features=count), sampling) for count in self.features]
                texts = [f"{row:{digits}}" for row in rows]
                columns[f"sigma_c^2 = {spread:g}, {sampling}"] = texts
        return pandas.DataFrame(columns, index=[f"D = {count}" for count in self.features])

    def _figure(self, errors: pandas.DataFrame, apart: pandas.DataFrame) -> Figure:
        figure, axes = panels(2, width=4.6, height=3.4)
        markers = {"iid": "o", "orthogonal": "s", "sobol": "^", "auto": "d"}
        shades = ("#009E73", "#D55E00", "#0072B2", "#CC79A7")
        for shade, spread in zip(shades * len(self.spreads), self.spreads, strict=False):
            for axis, table in ((axes[0], errors), (axes[1], apart)):
                for sampling in self.samplings:
                    rows = [
                        level(table, setting_label(sigma_c2=spread, features=count), sampling) for count in self.features
                    ]
                    axis.errorbar(
                        np.array(self.features) * (1 + 0.06 * self.samplings.index(sampling)),
                        [row.mean for row in rows],
                        yerr=[np.nan_to_num(row.error) for row in rows],
                        color=shade,
                        capsize=2,
                        marker=markers.get(sampling, "x"),
                        linestyle="-" if sampling == "iid" else "--",
                        markersize=4,
                        label=rf"$\sigma_c^2$ = {spread:g}, {sampling}",
                    )
            limit = level(errors, setting_label(sigma_c2=spread), EXACT_KERNEL).mean
            axes[0].axhline(limit, color=shade, linewidth=0.8, linestyle=":")
            axes[0].axhline(
                level(errors, setting_label(sigma_c2=spread), "local").mean, color=colour("local"), linewidth=0.8
            )
        for axis, words in zip(axes, ("mean squared error, with standard error", APART), strict=True):
            axis.set_xscale("log")
            axis.set_xlabel("features D = numbers an agent sends")
            axis.set_ylabel(words)
            axis.grid(True, alpha=0.25)
        axes[1].set_yscale("log")
        axes[0].set_title("Algorithm 3; dotted: exact kernel; blue: local", fontsize=8)
        legend(axes[0], 7)
        return figure


def _points(generated: Generated) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [np.column_stack([agent.X, np.asarray(agent.y)]) for agent in generated.train]
