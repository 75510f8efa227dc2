r"""Intervals from resampling agents, and splits where there were several.

With one split the agents are drawn with replacement. With R splits the values are a table (R, agents), and both its rows
and its columns are drawn with replacement, independently of each other: the pigeonhole bootstrap (Owen, 2007). R rows drawn
from R have means that spread too little, by the factor :math:`\sqrt{(R - 1) / R}`, which matters for few splits: so the
means of splits are moved away from their mean first, by the inverse of that factor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from kinfed.validation import Array, Integers

RESAMPLES = 10_000
"""Resamples of the agents behind an interval."""

TIE = 1e-9
"""Relative difference below which two values are equal."""

_BLOCK = 2**20  # agents drawn at once while resampling


def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    r"""Bias corrected and accelerated bootstrap interval of a mean (Efron, 1987).

    With :math:`z_0` the normal quantile of the share of resampled means below the mean, and the acceleration :math:`a =
    \frac{1}{6} \sum_i u_i^3 / (\sum_i u_i^2)^{3/2}`, the ends are the quantiles of the resampled means at :math:`\Phi(z_0 +
    (z_0 + z) / (1 - a (z_0 + z)))` for :math:`z = \pm z_{(1 + level) / 2}`. The u are the parts that agents have in the
    mean, their deviations from it; with several splits, the deviations of agents over their number, and those of splits
    over theirs.

    Parameters
    ----------
    values : array of shape (agents,) or (splits, agents)
    level : float
        Confidence of the interval.
    seed : int
        Of the resampling.
    """
    table = _table(values)
    if table.shape[1] < 2:
        return float("nan"), float("nan")
    centre = table.mean()
    apart = _widened(table - centre)
    if float(np.sum(apart**2)) <= (TIE * float(np.abs(table).max())) ** 2:
        return float(centre), float(centre)
    means = np.concatenate([_drawn_means(apart, agents, splits) for agents, splits in _resamples(table, seed)])
    ends = np.quantile(means, _corrected_levels(means, _parts(apart), level)) + centre
    return float(ends[0]), float(ends[1])


def bootstrap_ratio_interval(
    first: ArrayLike, second: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    r"""Bias corrected and accelerated bootstrap interval of the ratio of two means over the same agents.

    Both means are taken over the same resampled agents and splits, so that values that are never negative have a ratio that
    is hardly ever negative, and never with one split. The deviations behind the acceleration are those of the logarithm of
    the ratio, :math:`u_i = x_i / \bar{x} - y_i / \bar{y}`; the rest is as in `bootstrap_interval`.

    Parameters
    ----------
    first, second : array of shape (agents,) or (splits, agents)
        Values x and y of the same agents in the same order.
    level : float
        Confidence of the interval.
    seed : int
        Of the resampling: with the same seed, the agents and splits that `bootstrap_interval` draws.

    Returns
    -------
    tuple of float
        NaN with fewer than two agents, and where a mean is not positive, in the sample or in too many resamples.
    """
    one, two = _table(first), _table(second)
    nothing = float("nan"), float("nan")
    if one.shape[1] < 2 or not (one.mean() > 0 and two.mean() > 0):
        return nothing
    ratio = float(one.mean() / two.mean())
    one, two = _widened(one), _widened(two)
    deviations = one / one.mean() - two / two.mean()
    if float(np.sum(deviations**2)) <= (TIE * float(np.abs([one / one.mean(), two / two.mean()]).max())) ** 2:
        return ratio, ratio
    blocks = []
    for agents, splits in _resamples(one, seed):
        above, below = (_drawn_means(table, agents, splits) for table in (one, two))
        blocks.append(np.divide(above, below, out=np.full(len(agents), np.inf), where=below > 0))
    ratios = np.concatenate(blocks)
    levels = _corrected_levels(ratios - ratio, _parts(deviations), level)
    # An end is one of the resampled ratios: between a number and an infinite one there is nothing to interpolate.
    low, high = np.sort(ratios)[np.rint(levels * (len(ratios) - 1)).astype(np.int64)].tolist()
    return (low, high) if np.isfinite(high) else nothing


def _table(values: ArrayLike) -> Array:
    """Values as a table (splits, agents)."""
    return np.atleast_2d(np.asarray(values, dtype=np.float64))


def _widened(table: Array) -> Array:
    """The table with the means of splits farther from their mean, as few splits understate their spread."""
    count = len(table)
    if count == 1:
        return table
    own = table.mean(axis=1, keepdims=True)
    return table + (np.sqrt(count / (count - 1)) - 1) * (own - own.mean())


def _resamples(table: Array, seed: int) -> Iterator[tuple[Integers, Array | None]]:
    """Blocks (resamples, agents) of agents drawn with replacement, and shares (resamples, splits) of splits, if several."""
    splits, agents = table.shape
    rng, own = np.random.default_rng(seed), np.random.default_rng([seed, splits])
    step = max(1, _BLOCK // agents)
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        drawn = rng.integers(agents, size=(count, agents))
        yield drawn, None if splits == 1 else own.multinomial(splits, np.full(splits, 1 / splits), size=count) / splits


def _drawn_means(table: Array, agents: Integers, splits: Array | None) -> Array:
    """Means of a table over drawn agents and splits."""
    if splits is None:
        return np.asarray(table[0][agents].mean(axis=1))
    return np.asarray(np.take_along_axis(splits @ table, agents, axis=1).mean(axis=1))


def _parts(deviations: Array) -> Array:
    """What every agent, and every split where there are several, adds to the estimate."""
    splits, agents = deviations.shape
    if splits == 1:
        return deviations[0]
    return np.concatenate([deviations.mean(axis=0) / agents, deviations.mean(axis=1) / splits])


def _corrected_levels(apart: Array, deviations: Array, level: float) -> Array:
    """Levels of the quantiles that are the ends of an interval.

    Parameters
    ----------
    apart : array
        Resampled estimates minus the estimate.
    deviations : array
        How much every agent, and every split, moves the estimate.
    level : float
    """
    below = (np.mean(apart < 0) + np.mean(apart <= 0)) / 2
    bias = ndtri(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    acceleration = float(np.sum(deviations**3)) / (6 * float(np.sum(deviations**2)) ** 1.5)
    shifted = bias + ndtri([(1 - level) / 2, (1 + level) / 2])
    return np.asarray(ndtr(bias + shifted / (1 - acceleration * shifted)))
