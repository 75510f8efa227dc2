"""Whether one method is better than another: paired over agents, with an interval from resampling agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from kinfed.analysis.metrics import METRICS
from kinfed.analysis.scores import Scores, worst_decile
from kinfed.errors import InputError
from kinfed.markup import card, paragraph, table
from kinfed.validation import Array, Integers

RESAMPLES = 10_000
"""Resamples of the agents behind an interval."""

_TIE = 1e-9  # relative difference below which two values are equal
_BLOCK = 2**20  # agents drawn at once while resampling


@dataclass(frozen=True)
class PairedComparison:
    r"""One method against another over the same agents.

    Attributes
    ----------
    n_agents : int
        Agents with a value of both; others are left out.
    difference : float
        Mean over agents of first minus second.
    interval : tuple of float
        Confidence interval of the difference (see `bootstrap_interval`); NaN with fewer than two agents.
    ratio : float
        `first_mean` / `second_mean`.
    ratio_interval : tuple of float
        Confidence interval of the ratio (see `bootstrap_ratio_interval`); NaN with fewer than two agents, and where a mean
        is not positive. The verdict is that of the difference.
    better, equal, worse : float
        Shares of agents for whom the first method is better, equal, worse.
    """

    metric: str
    first_name: str
    second_name: str
    higher_is_better: bool
    n_agents: int
    first_mean: float
    second_mean: float
    difference: float
    interval: tuple[float, float]
    level: float
    ratio: float
    ratio_interval: tuple[float, float]
    better: float
    equal: float
    worse: float
    first_worst_decile: float
    second_worst_decile: float

    @property
    def verdict(self) -> str:
        """One of "better", "worse", and "undecided" where the interval holds zero or there is none."""
        low, high = self.interval
        if not (low > 0 or high < 0):
            return "undecided"
        return "better" if (low > 0) == self.higher_is_better else "worse"

    def to_frame(self) -> pandas.DataFrame:
        """One row: means, difference and ratio with their intervals, shares of agents, worst deciles and verdict."""
        columns = {
            "metric": self.metric,
            "agents": self.n_agents,
            "mean": self.first_mean,
            "other mean": self.second_mean,
            "difference": self.difference,
            "low": self.interval[0],
            "high": self.interval[1],
            "level": self.level,
            "ratio": self.ratio,
            "ratio low": self.ratio_interval[0],
            "ratio high": self.ratio_interval[1],
            "better": self.better,
            "equal": self.equal,
            "worse": self.worse,
            "worst decile": self.first_worst_decile,
            "other worst decile": self.second_worst_decile,
            "verdict": self.verdict,
        }
        return pandas.DataFrame(columns, index=[f"{self.first_name} against {self.second_name}"])

    def _repr_html_(self) -> str:
        numbers = self.to_frame().T
        return card("Paired comparison", paragraph(str(self)), table(numbers, "The same in numbers", len(numbers)))

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.metric} ({'higher' if self.higher_is_better else 'lower'} is better) over {self.n_agents} agents: "
            f"{self.first_name} {self.first_mean:.4g} against {self.second_name} {self.second_mean:.4g}, "
            f"difference {self.difference:+.4g} ({self.level:.0%} interval {low:+.4g} to {high:+.4g}): {self.verdict}; "
            f"better for {self.better:.0%} of the agents, equal for {self.equal:.0%}, worse for {self.worse:.0%}; "
            f"worst decile {self.first_worst_decile:.4g} against {self.second_worst_decile:.4g}"
        )


def paired_comparison(
    first: ArrayLike,
    second: ArrayLike,
    *,
    higher_is_better: bool,
    seed: int = 0,
    level: float = 0.95,
    metric: str = "value",
    first_name: str = "first",
    second_name: str = "second",
) -> PairedComparison:
    """Compare two methods agent by agent.

    Parameters
    ----------
    first, second : array of shape (agents,)
        Values of the same agents in the same order; agents with a NaN in either are left out.
    higher_is_better : bool
        Which way the metric is read; see `kinfed.analysis.METRICS`.
    seed : int
        Of the resampling.
    level : float
        Confidence of the interval.
    metric, first_name, second_name : str
        Used in the sentence that ``str`` gives.

    Examples
    --------
    >>> result = paired_comparison([1.0, 2.0, 2.0, 1.5], [2.0, 3.0, 2.0, 3.5], higher_is_better=False)
    >>> result.difference, result.better, result.equal, result.verdict
    (-1.0, 0.75, 0.25, 'better')
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim != 1 or one.shape != two.shape:
        raise InputError(f"both methods need one value per agent, got shapes {one.shape} and {two.shape}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    both = ~(np.isnan(one) | np.isnan(two))
    if not both.any():
        raise InputError(f"no agent has a value of both {first_name} and {second_name}; there is nothing to compare")
    one, two = one[both], two[both]
    apart = one - two
    equal = np.abs(apart) <= _TIE * np.maximum(np.abs(one), np.abs(two))
    better = ~equal & ((apart > 0) == higher_is_better)
    return PairedComparison(
        metric=metric,
        first_name=first_name,
        second_name=second_name,
        higher_is_better=higher_is_better,
        n_agents=len(one),
        first_mean=float(one.mean()),
        second_mean=float(two.mean()),
        difference=float(apart.mean()),
        interval=bootstrap_interval(apart, level=level, seed=seed),
        level=level,
        ratio=float(one.mean() / two.mean()) if two.mean() != 0 else float("nan"),
        ratio_interval=bootstrap_ratio_interval(one, two, level=level, seed=seed),
        better=float(better.mean()),
        equal=float(equal.mean()),
        worse=float((~equal & ~better).mean()),
        first_worst_decile=worst_decile(one, higher_is_better=higher_is_better),
        second_worst_decile=worst_decile(two, higher_is_better=higher_is_better),
    )


def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    r"""Bias corrected and accelerated bootstrap interval of a mean (Efron, 1987).

    With :math:`z_0` the normal quantile of the share of resampled means below the mean, and the acceleration :math:`a =
    \frac{1}{6} \sum_i u_i^3 / (\sum_i u_i^2)^{3/2}` of the deviations u, the ends are the quantiles of the resampled means
    at :math:`\Phi(z_0 + (z_0 + z) / (1 - a (z_0 + z)))` for :math:`z = \pm z_{(1 + level) / 2}`.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2:
        return float("nan"), float("nan")
    deviations = sample - sample.mean()
    if float(np.sum(deviations**2)) <= (_TIE * float(np.abs(sample).max())) ** 2:
        return float(sample.mean()), float(sample.mean())
    means = np.concatenate([deviations[drawn].mean(axis=1) for drawn in _resampled_agents(len(sample), seed)])
    ends = np.quantile(means, _corrected_levels(means, deviations, level)) + sample.mean()
    return float(ends[0]), float(ends[1])


def bootstrap_ratio_interval(
    first: ArrayLike, second: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    r"""Bias corrected and accelerated bootstrap interval of the ratio of two means over the same agents.

    Both means are taken over the same resampled agents, so that values that are never negative have a ratio that is never
    negative. The deviations behind the acceleration are those of the logarithm of the ratio, :math:`u_i = x_i / \bar{x} -
    y_i / \bar{y}`; the rest is as in `bootstrap_interval`.

    Parameters
    ----------
    first, second : array of shape (agents,)
        Values x and y of the same agents in the same order.
    level : float
        Confidence of the interval.
    seed : int
        Of the resampling: with the same seed, the agents that `bootstrap_interval` draws.

    Returns
    -------
    tuple of float
        NaN with fewer than two agents, and where a mean is not positive, in the sample or in too many resamples.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    nothing = float("nan"), float("nan")
    if len(one) < 2 or not (one.mean() > 0 and two.mean() > 0):
        return nothing
    ratio = float(one.mean() / two.mean())
    shares = np.array([one / one.mean(), two / two.mean()])
    deviations = shares[0] - shares[1]
    if float(np.sum(deviations**2)) <= (_TIE * float(np.abs(shares).max())) ** 2:
        return ratio, ratio
    blocks = []
    for drawn in _resampled_agents(len(one), seed):
        above, below = one[drawn].mean(axis=1), two[drawn].mean(axis=1)
        blocks.append(np.divide(above, below, out=np.full(len(drawn), np.inf), where=below > 0))
    ratios = np.concatenate(blocks)
    levels = _corrected_levels(ratios - ratio, deviations, level)
    # An end is one of the resampled ratios: between a number and an infinite one there is nothing to interpolate.
    low, high = np.sort(ratios)[np.rint(levels * (len(ratios) - 1)).astype(np.int64)].tolist()
    return (low, high) if np.isfinite(high) else nothing


def _resampled_agents(n: int, seed: int) -> Iterator[Integers]:
    """Blocks (resamples, n) of agents drawn with replacement, `RESAMPLES` in all."""
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    for start in range(0, RESAMPLES, step):
        yield rng.integers(n, size=(min(step, RESAMPLES - start), n))


def _corrected_levels(apart: Array, deviations: Array, level: float) -> Array:
    """Levels of the quantiles that are the ends of an interval.

    Parameters
    ----------
    apart : array
        Resampled estimates minus the estimate.
    deviations : array of shape (agents,)
        How much every agent moves the estimate.
    level : float
    """
    below = (np.mean(apart < 0) + np.mean(apart <= 0)) / 2
    bias = ndtri(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    acceleration = float(np.sum(deviations**3)) / (6 * float(np.sum(deviations**2)) ** 1.5)
    shifted = bias + ndtri([(1 - level) / 2, (1 + level) / 2])
    return np.asarray(ndtr(bias + shifted / (1 - acceleration * shifted)))


def compare_scores(
    scored: Mapping[str, Scores], baseline: str, seed: int, level: float = 0.95, *, metric: str | None = None
) -> PairedComparison:
    """Personal models against one baseline, by the leading metric or another one."""
    ours = scored["personalized"]
    chosen = metric or ours.metric
    return paired_comparison(
        ours[chosen],
        scored[baseline][chosen],
        higher_is_better=METRICS[chosen].higher_is_better,
        seed=seed,
        level=level,
        metric=chosen,
        first_name="personalized",
        second_name=baseline,
    )


def comparisons(scored: Mapping[str, Scores], baselines: Iterable[str], seed: int) -> dict[str, PairedComparison]:
    """Personal models against every baseline that was scored for an agent they were scored for."""
    if "personalized" not in scored:
        return {}
    metric = scored["personalized"].metric
    known = {name: ~np.isnan(one[metric]) for name, one in scored.items()}
    there = [name for name in baselines if name in scored and (known["personalized"] & known[name]).any()]
    return {name: compare_scores(scored, name, seed) for name in there}
