"""Beyond the paper: what Algorithm 3 does on its way from the uniform start to the minimum, and what its constants do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.data import concept_shift
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
    setting_values,
    whole,
)
from kinfed.experiments.paper_settings import (
    EXACT,
    PAPER,
    LeastSquares,
    concept_geometry,
    over_repetitions,
    repetition_seed,
    with_error,
)
from kinfed.plotting.style import colour, label, panels
from kinfed.weights import weigh
from kinfed.weights.active_set import active_set
from kinfed.weights.mirror_descent import exponential_gradient
from kinfed.weights.objective import default_constants, q_aggregation_problem

METRIC, RIDGE = "mean squared error", "mean squared error with a ridge"
OBJECTIVE = "objective over that of the target alone"


@dataclass(frozen=True)
class EarlyStop(Experiment):
    """Error and objective along Algorithm 3, from 1 to 100,000 steps, and for other constants C_Q and C_P."""

    name: ClassVar[str] = "early-stop"
    summary: ClassVar[str] = (
        "The paper's concept shift, looked at along the steps of Algorithm 3: with the paper's constants the minimum of "
        "the objective is the target alone, and what helps is to stop far from it. Constants are scaled together, "
        "C_Q^2 = C_P = factor x log B. Figures are means over all agents; errors are standard errors over repetitions."
    )
    quick: ClassVar[Mapping[str, Any]] = {"repetitions": 2, "steps": 10_000}

    spreads: tuple[float, ...] = field(default=(0.0, 0.25, 0.5, 1.0), metadata={"help": "Values of sigma_c^2."})
    factors: tuple[float, ...] = field(
        default=(0.0, 0.1, 1.0, 10.0), metadata={"help": "Factors of C_Q^2 and C_P; 1 is the paper's."}
    )
    steps: int = field(default=100_000, metadata={"help": "Steps with the paper's constants; at most 10,000 with others."})
    agents: int = field(default=100, metadata={"help": "B."})
    points: int = field(default=10, metadata={"help": "Training points per agent."})
    dim: int = field(default=20, metadata={"help": "d."})
    features: int = field(default=500, metadata={"help": "D."})
    penalty: float = field(default=0.01, metadata={"help": "Ridge penalty that is shown beside least squares."})
    repetitions: int = field(default=6, metadata={"help": "Independent repetitions."})

    def parts(self) -> Sequence[Part]:
        """One part per repetition and spread."""
        return [Part(f"spread-{s}-repetition-{r}", r, (s,)) for r in range(self.repetitions) for s in self.spreads]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All constants for one spread in one repetition."""
        (spread,), seed = part.options, repetition_seed(self.seed, part.repetition)
        generated = concept_shift(self.agents, self.points, self.dim, spread=spread, seed=seed)
        geometry = concept_geometry(generated.train, self.features, seed)
        learner, names = LeastSquares(generated), generated.train.names
        found = []

        def add(method: str, matrix: np.ndarray[Any, Any], **where: Any) -> None:
            setting = setting_label(sigma_c2=spread, **where)
            for metric, penalty in ((METRIC, 0.0), (RIDGE, self.penalty)):
                found.append(Measurement(setting, method, part.repetition, metric, learner.error(matrix, penalty), names))

        for method, options in (("local", {}), ("oracle", {"groups": generated.train.groups})):
            add(method, weigh(geometry, method, **options).matrix)
        c_q, c_p = default_constants(len(geometry))
        for done, factor in enumerate(self.factors):
            problem = q_aggregation_problem(geometry, c_q * float(np.sqrt(factor)), c_p * factor)
            alone = problem.value(np.eye(len(geometry)))
            _, path = exponential_gradient(problem, self._steps(factor), checkpoints=_looks(self._steps(factor)))
            exact, _, _ = active_set(problem)
            states = [(PAPER, matrix, {"factor": factor, "steps": step}) for step, matrix in path.items()]
            for method, matrix, where in [*states, (EXACT, exact, {"factor": factor})]:
                add(method, matrix, **where)
                setting = setting_label(sigma_c2=spread, **where)
                found += [
                    whole(setting, method, part.repetition, OBJECTIVE, float(np.mean(problem.value(matrix) / alone))),
                    whole(setting, method, part.repetition, "self weight", float(np.diag(matrix).mean())),
                ]
            progress((done + 1) / len(self.factors))
        return PartFindings(tuple(found))

    def _steps(self, factor: float) -> int:
        return self.steps if factor == 1.0 else min(self.steps, 10_000)

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge what the constants and the early stop do, and draw the path."""
        table, ridge, objectives, own = (
            _columns(over_repetitions(results, metric)) for metric in (METRIC, RIDGE, OBJECTIVE, "self weight")
        )
        return Conclusion(
            verdicts=tuple(self._verdicts({METRIC: table, RIDGE: ridge}, objectives, own))
            if 1.0 in self.factors and self.steps >= 1000
            else (),
            figures={"path": _figure(table, ridge, objectives, self.spreads, self.factors)},
            tables={
                "Mean squared error along the steps, with the paper's constants:": _path_table(table),
                f"The same with a ridge penalty of {self.penalty:g}:": _path_table(ridge),
                "Objective over its value at the target alone:": _path_table(objectives),
                "Weight of the target itself:": _path_table(own, 6),
            },
            remarks=(
                "Where an agent has fewer points than coefficients, least squares is not continuous in the weights: points "
                "of the smallest weight still decide all that the agent's own points leave open, and fit it to noise. So "
                "the error first rises far above local's as the weights of others vanish, and only weights of exactly "
                "zero, or below rounding, give local training back. A ridge penalty takes most of the rise away.",
            ),
        )

    def _verdicts(
        self, tables: Mapping[str, pandas.DataFrame], objectives: pandas.DataFrame, own: pandas.DataFrame
    ) -> Iterator[Verdict]:
        setting = f"concept shift, {self.repetitions} repetitions, all {self.agents} agents"
        for metric, table in tables.items():
            good, texts = [], []
            for spread in self.spreads:
                grid = table[(table["sigma_c2"] == spread) & table["method"].isin([PAPER, EXACT])]
                paper = grid[(grid["factor"] == 1.0) & (grid["steps"] == 1000)].iloc[0]
                best = grid.sort_values("mean").iloc[0]
                good.append(bool(paper["mean"] <= 1.1 * best["mean"]))
                where = "the minimum" if best["method"] == EXACT else f"T = {best['steps']:.0f}"
                texts.append(
                    f"sigma_c^2 = {spread:g}: {with_error(paper['mean'], paper['error'])} against "
                    f"{with_error(best['mean'], best['error'])} at factor {best['factor']:g}, {where}"
                )
            yield Verdict(
                "C_Q and C_P need no tuning: those of the theory are good (here: within 10 % of the best factor and T of "
                "the grid in hindsight)",
                f"{metric} with the paper's constants and T = 1000 against the best; " + "; ".join(texts),
                graded(good),
                setting,
            )
        exact = own[(own["method"] == EXACT) & (own["factor"] == 1.0)].sort_values("mean").iloc[0]
        stopped = objectives[
            (objectives["method"] == PAPER) & (objectives["factor"] == 1.0) & (objectives["steps"] == 1000)
        ]
        ratios = [with_error(mean, error) for mean, error in zip(stopped["mean"], stopped["error"], strict=True)]
        yield Verdict(
            "Algorithm 3 minimises the objective (here: within 5 % of the minimum after 1000 steps)",
            "with the paper's constants the minimum gives the target itself a weight of "
            f"{with_error(exact['mean'], exact['error'], 6)} or more; after 1000 steps the objective is "
            f"{' / '.join(ratios)} times that of the target alone at sigma_c^2 = "
            + " / ".join(f"{spread:g}" for spread in stopped["sigma_c2"]),
            graded(mean <= 1.05 for mean in stopped["mean"]),
            setting,
        )


def _looks(steps: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `steps`."""
    grid = [int(one * 10**power) for power in range(9) for one in (1, 2, 5)]
    return [step for step in grid if step < steps] + [steps]


def _columns(table: pandas.DataFrame) -> pandas.DataFrame:
    """Settings as columns of numbers."""
    flat = table.reset_index()
    for name in ("sigma_c2", "factor", "steps"):
        flat[name] = [float(setting_values(setting).get(name, "nan")) for setting in flat["setting"]]
    return flat


def _path_table(table: pandas.DataFrame, digits: int = 2) -> pandas.DataFrame:
    rows = table[(table["method"] == PAPER) & (table["factor"] == 1.0)]
    frame = pandas.DataFrame(
        {
            "steps": rows["steps"].astype(int),
            "sigma_c^2": [f"sigma_c^2 = {one:g}" for one in rows["sigma_c2"]],
            "text": [with_error(mean, error, digits) for mean, error in zip(rows["mean"], rows["error"], strict=True)],
        }
    )
    return frame.pivot_table(index="steps", columns="sigma_c^2", values="text", aggfunc="first", sort=False)


def _figure(
    errors: pandas.DataFrame,
    ridge: pandas.DataFrame,
    objectives: pandas.DataFrame,
    spreads: Sequence[float],
    factors: Sequence[float],
) -> Figure:
    figure, axes = panels(len(spreads), 2, width=3.4, height=2.8, sharex=True, squeeze=False)
    shades = {factor: str(0.75 - 0.6 * i / max(1, len(factors) - 1)) for i, factor in enumerate(sorted(factors))}
    for column, spread in enumerate(spreads):
        for row, (table, words) in enumerate(((errors, "mean squared error"), (objectives, OBJECTIVE))):
            axis = axes[row, column]
            here = table[table["sigma_c2"] == spread]
            for factor in factors:
                path = here[(here["method"] == PAPER) & (here["factor"] == factor)].sort_values("steps")
                paper = factor == 1.0
                axis.plot(
                    path["steps"],
                    path["mean"],
                    color=colour(PAPER) if paper else shades[factor],
                    linewidth=2.0 if paper else 1.0,
                    label=f"Algorithm 3, constants x {factor:g}" + (" (paper)" if paper else ""),
                )
            if row == 0:
                of_paper = (ridge["sigma_c2"] == spread) & (ridge["method"] == PAPER) & (ridge["factor"] == 1.0)
                gentle = ridge[of_paper].sort_values("steps")
                axis.plot(
                    gentle["steps"],
                    gentle["mean"],
                    color="#D55E00",
                    linewidth=1.4,
                    label="the same weights, ridge regression",
                )
            for method, style in (("local", "--"), ("oracle", ":")):
                level = here[here["method"] == method]["mean"]
                if row == 0 and len(level):
                    axis.axhline(level.iloc[0], color=colour(method), linestyle=style, linewidth=1.2, label=label(method))
            axis.axvline(1000, color="#999999", linewidth=0.8)
            axis.set_xscale("log")
            if row == 0:
                axis.set_title(rf"$\sigma_c^2$ = {spread:g}", fontsize=9)
            else:
                axis.set(xlabel="steps T", yscale="log")
            if column == 0:
                axis.set_ylabel(words, fontsize=8)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
