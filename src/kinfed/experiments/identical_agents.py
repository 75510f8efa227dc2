"""The paper's example of identical agents: how near aggregation comes to an oracle, and how far it can gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from kinfed.embedding import FourierFeatures, Gaussian
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
    whole,
)
from kinfed.experiments.paper_settings import (
    EXACT,
    PAPER,
    by_repetition,
    methods_table,
    over_repetitions,
    ratio_with_error,
    repetition_seed,
    weigh_by,
    with_error,
)
from kinfed.plotting.style import colour, label, panels
from kinfed.validation import Array
from kinfed.weights import explicit_geometry, geometric_rules

METRIC = "squared MMD error over tr Sigma"
DIMENSION = "effective dimension"
BRACKET, NAIVE = "tr Sigma / n_V", "tr Sigma / n_1"
# Strangers are this many deviations of the smoothed distribution away, where the kernel between means is below 0.02.
_AWAY = 3.0


@dataclass(frozen=True)
class IdenticalAgents(Experiment):
    """Error of the aggregated mean embedding in the number of identical agents and in their points, known exactly."""

    name: ClassVar[str] = "identical-agents"
    summary: ClassVar[str] = (
        "Some agents have one distribution, N(0, I_d); all others are clearly elsewhere. How small does the error "
        "|sum_k w_k nu_k - mu|^2 of the aggregated embedding become for an agent among the identical ones? The true "
        "embedding mu of the random features has a closed form, so the error is exact; it is given relative to tr Sigma. "
        "Errors are standard errors over repetitions."
    )
    quick: ClassVar[Mapping[str, Any]] = {"repetitions": 3, "features": 200, "points": (10, 50, 200), "kin": (1, 4, 16, 32)}

    agents: int = field(default=64, metadata={"help": "B."})
    kin: tuple[int, ...] = field(default=(1, 2, 4, 8, 16, 32), metadata={"help": "Numbers |V| of identical agents."})
    points: tuple[int, ...] = field(default=(10, 20, 50, 100, 200), metadata={"help": "Points n per agent."})
    fixed_kin: int = field(default=16, metadata={"help": "|V| while n varies."})
    fixed_points: int = field(default=50, metadata={"help": "n while |V| varies."})
    dims: tuple[int, ...] = field(
        default=(2, 10, 60), metadata={"help": "d, with a Gaussian kernel of bandwidth sqrt(d): few to many dimensions."}
    )
    features: int = field(default=500, metadata={"help": "D, random Fourier features."})
    targets: int = field(default=8, metadata={"help": "Identical agents whose error is measured, at most."})
    methods: tuple[str, ...] = field(
        default=("local", "oracle", PAPER, EXACT, "similarity-test"),
        metadata={"help": f"Rules to compare: {', '.join(geometric_rules())}."},
    )
    repetitions: int = field(default=25, metadata={"help": "Independent repetitions."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in (("--kin", max(self.kin)), ("--fixed-kin", self.fixed_kin)):
            if value > self.agents:
                raise InputError(f"{option} must be at most the number of agents, {self.agents}, got {value}")

    def parts(self) -> Sequence[Part]:
        """One part per repetition and dimension."""
        return [Part(f"dim-{d}-repetition-{r}", r, (d,)) for r in range(self.repetitions) for d in self.dims]

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """All numbers of identical agents and of points, in one dimension."""
        (dim,), seed, found = part.options, repetition_seed(self.seed, part.repetition), []
        features = FourierFeatures(Gaussian(float(np.sqrt(dim))), self.features, dim=dim, seed=seed)
        mean, covariance = normal_moments(features)
        trace = float(np.trace(covariance))
        dimension = trace / float(np.linalg.eigvalsh(covariance)[-1])
        settings = sorted({(size, self.fixed_points) for size in self.kin} | {(self.fixed_kin, n) for n in self.points})
        for done, (size, n) in enumerate(settings):
            points = self._points(features, size, n, np.random.default_rng([seed, dim, size, n]))
            targets = list(range(min(size, self.targets)))
            means = np.array([array.mean(axis=0) for array in points])
            geometry = explicit_geometry(points, norm_bound=features.norm_bound, targets=targets)
            setting, names = setting_label(d=dim, kin=size, n=n), tuple(str(t) for t in targets)
            for method in self.methods:
                # The identical agents are one group, every other agent its own.
                groups = [0] * size + list(range(1, self.agents - size + 1))
                errors = np.sum((weigh_by(geometry, method, groups).matrix @ means - mean) ** 2, axis=1) / trace
                found.append(Measurement(setting, method, part.repetition, METRIC, errors, names))
            found += [
                whole(setting, BRACKET, part.repetition, METRIC, 1 / (size * n)),
                whole(setting, NAIVE, part.repetition, METRIC, 1 / n),
                whole(setting, BRACKET, part.repetition, DIMENSION, dimension),
            ]
            progress((done + 1) / len(settings))
        return PartFindings(tuple(found))

    def _points(self, features: FourierFeatures, size: int, n: int, rng: np.random.Generator) -> list[Any]:
        """Embedded points: the first `size` agents are N(0, I), the others normal about random places far away."""
        dim = features.dim
        places = rng.standard_normal((self.agents, dim))
        places *= _AWAY * np.sqrt(dim + 2) / np.linalg.norm(places, axis=1, keepdims=True)
        places[:size] = 0.0
        return [features(place + rng.standard_normal((n, dim))) for place in places]

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge the closeness to the oracle and the cap on the gain, and draw the errors on logarithmic axes."""
        dimensions = _dimensions(results)
        setting = f"{self.repetitions} repetitions, B={self.agents}, D={self.features}, bandwidth sqrt(d)"
        verdicts = []
        for method, words in ((PAPER, "Algorithm 3"), (EXACT, "the exact minimiser")):
            if {method, "oracle"} <= set(self.methods):
                if max(self.kin) > 1:
                    verdicts += [
                        self._near_oracle(results, method, words, setting),
                        self._cap(results, dimensions, method, words, setting),
                    ]
                if 1 in self.kin:
                    verdicts.append(self._no_kin(results, method, words, setting))
        return Conclusion(
            verdicts=tuple(verdicts),
            figures={
                "error-against-kin": self._figure(results, dimensions, "kin"),
                "error-against-points": self._figure(results, dimensions, "n"),
            },
            tables={
                f"{METRIC}, times 1000:": methods_table(
                    results.assign(value=results["value"] * np.where(results["metric"] == METRIC, 1000, 1)), METRIC, 3
                )
            },
            remarks=(
                "Effective dimensions (of the random features' exact covariance): "
                + ", ".join(f"d={dim}: {value:.1f}" for dim, value in dimensions.items())
                + ".",
                "The constants are the paper's untuned C_Q^2 = C_P = log B. The similarity test shows what a rule that "
                "does not know V either can reach.",
            ),
        )

    def _ratio(self, results: pandas.DataFrame, dim: int, size: int, first: str, second: str) -> tuple[float, float]:
        """Error of one method over that of another, with its standard error; that of learning alone is `NAIVE`."""
        rows = by_repetition(results, METRIC).loc[setting_label(d=dim, kin=size, n=self.fixed_points)]
        return ratio_with_error(rows[first].to_numpy(), rows[second].to_numpy())

    def _near_oracle(self, results: pandas.DataFrame, method: str, words: str, setting: str) -> Verdict:
        found = {
            f"d={dim}, |V|={size}": self._ratio(results, dim, size, method, "oracle")
            for dim in self.dims
            for size in self.kin
            if size > 1
        }
        return Verdict(
            f"{words} is comparable to an oracle that selects the identical agents (here: at most twice its error)",
            f"error over the oracle's at n={self.fixed_points}, "
            + "; ".join(f"{case}: {with_error(*pair)}" for case, pair in found.items()),
            graded(ratio <= 2 for ratio, _ in found.values()),
            setting,
        )

    def _no_kin(self, results: pandas.DataFrame, method: str, words: str, setting: str) -> Verdict:
        found = {dim: self._ratio(results, dim, 1, method, NAIVE) for dim in self.dims}
        return Verdict(
            f"without identical agents {words} recovers the error of learning alone (here: at most 10 % above, up to "
            "two standard errors)",
            f"error over tr Sigma / n_1 at |V|=1, n={self.fixed_points}, "
            + "; ".join(f"d={dim}: {with_error(*pair)}" for dim, pair in found.items()),
            graded(ratio <= 1.1 + 2 * np.nan_to_num(error) for ratio, error in found.values()),
            setting,
        )

    def _cap(
        self, results: pandas.DataFrame, dimensions: Mapping[int, float], method: str, words: str, setting: str
    ) -> Verdict:
        size = max(self.kin)
        caps = {dim: float(np.sqrt(min(dimensions[dim], self.fixed_points))) for dim in self.dims}
        gains = {dim: self._ratio(results, dim, size, NAIVE, method) for dim in self.dims}
        return Verdict(
            f"the gain of {words} over learning alone is capped by sqrt(min(d_e, n_1)) (here: not above it by two "
            "standard errors)",
            f"gain at |V|={size}, n={self.fixed_points}, against the cap, "
            + "; ".join(f"d={dim}: {with_error(*gains[dim])} against {cap:.2f}" for dim, cap in caps.items()),
            graded(gain - 2 * np.nan_to_num(error) <= caps[dim] for dim, (gain, error) in gains.items()),
            setting,
        )

    def _figure(self, results: pandas.DataFrame, dimensions: Mapping[int, float], along: str) -> Figure:
        figure, axes = panels(len(self.dims), width=3.9, height=3.4, sharey=True, squeeze=False)
        table = over_repetitions(results, METRIC).reset_index()
        for name in ("d", "kin", "n"):
            table[name] = [int(setting_value(one, name)) for one in table["setting"]]
        fixed, at = ("n", self.fixed_points) if along == "kin" else ("kin", self.fixed_kin)
        for axis, dim in zip(axes[0], self.dims, strict=True):
            rows = table[(table["d"] == dim) & (table[fixed] == at)].sort_values(along)
            for method in self.methods:
                curve = rows[rows["method"] == method]
                axis.errorbar(
                    curve[along],
                    curve["mean"],
                    yerr=curve["error"].fillna(0.0),
                    color=colour(method),
                    label=label(method),
                    marker="o",
                    markersize=3,
                )
            for method, style in ((BRACKET, "--"), (NAIVE, ":")):
                curve = rows[rows["method"] == method]
                axis.plot(curve[along], curve["mean"], style, color="#555555", label=method)
            axis.set(xscale="log", yscale="log")
            values = sorted(set(rows[along]))
            axis.set_xticks(values, [str(value) for value in values])
            axis.minorticks_off()
            axis.set_title(f"d={dim}, effective dimension {dimensions[dim]:.1f}", fontsize=9)
            axis.set_xlabel(f"identical agents (n={at})" if along == "kin" else f"points per agent (|V|={at})")
        axes[0, 0].set_ylabel(METRIC)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        return figure


def normal_moments(features: FourierFeatures) -> tuple[Array, Array]:
    r"""Mean and covariance of cosine features under N(0, I), in closed form.

    :math:`E \cos(w'Z + b) = e^{-|w|^2/2} \cos b`, and :math:`\cos \alpha \cos \beta = \frac12 (\cos(\alpha + \beta) +
    \cos(\alpha - \beta))` gives the second moments the same way.
    """
    frequencies, phases = features.frequencies, features.phases
    squares = np.sum(frequencies**2, axis=0)
    inner = frequencies.T @ frequencies
    total, apart = squares[:, None] + squares + 2 * inner, squares[:, None] + squares - 2 * inner
    second = np.exp(-total / 2) * np.cos(phases[:, None] + phases) + np.exp(-apart / 2) * np.cos(phases[:, None] - phases)
    mean = np.sqrt(2 / features.n_features) * np.exp(-squares / 2) * np.cos(phases)
    return mean, second / features.n_features - np.outer(mean, mean)


def _dimensions(results: pandas.DataFrame) -> dict[int, float]:
    chosen = results[results["metric"] == DIMENSION]
    dims = [int(setting_value(one, "d")) for one in chosen["setting"]]
    return {dim: float(chosen["value"][np.array(dims) == dim].mean()) for dim in sorted(set(dims))}
