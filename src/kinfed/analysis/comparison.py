"""Whether one method is better than another: paired over agents, with an interval from resampling agents and splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.analysis.bootstrap import TIE, bootstrap_interval, bootstrap_ratio_interval
from kinfed.analysis.metrics import METRICS
from kinfed.analysis.scores import FLOOR, LEAST_TEST_ROWS, Scores, rows_mean, worst_decile
from kinfed.errors import InputError
from kinfed.markup import card, paragraph, table
from kinfed.validation import Array, Integers

CLEAR_LOSS = 2.0
"""Standard errors of its paired difference by which an agent must be worse off for its loss to be called clear."""

_SHOWN_LOSERS = 10


@dataclass(frozen=True)
class PairedComparison:
    r"""One method against another over the same agents.

    Agents with fewer than `LEAST_TEST_ROWS` test rows are pooled with each other into entries of at least that many rows,
    in which rows count alike; every other agent is an entry. Means, intervals, worst deciles and spreads are over
    entries, so that a single row decides nothing.

    Attributes
    ----------
    n_agents : int
        Agents with a value of both; others are left out.
    difference : float
        Mean over entries of first minus second.
    interval : tuple of float
        Confidence interval of the difference (see `kinfed.analysis.bootstrap`); NaN with fewer than two entries.
    ratio : float
        `first_mean` / `second_mean`.
    ratio_interval : tuple of float
        Confidence interval of the ratio; NaN with fewer than two entries, and where a mean is not positive. The verdict is
        that of the difference.
    better, equal, worse : float
        Shares of agents for whom the first method is better, equal, worse.
    first_rows_mean, second_rows_mean : float
        Means over test rows; NaN where their numbers are not known.
    first_spread, second_spread : float
        Standard deviations between entries.
    losers, clear_losers : tuple of str
        Agents for whom the first method is worse, the largest loss first; and those of them whose loss is larger than
        `CLEAR_LOSS` standard errors of it, as far as these are known.
    few_rows : int
        Agents with fewer than `LEAST_TEST_ROWS` test rows.
    pooled_into : int
        Entries they are pooled into.
    splits : int
        Splits that values are means of; intervals then cover agents and splits.
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
    first_rows_mean: float = float("nan")
    second_rows_mean: float = float("nan")
    first_spread: float = float("nan")
    second_spread: float = float("nan")
    losers: tuple[str, ...] = ()
    clear_losers: tuple[str, ...] = ()
    few_rows: int = 0
    pooled_into: int = 0
    splits: int = 1

    @property
    def verdict(self) -> str:
        """One of "better", "worse", and "undecided" where the interval holds zero or there is none."""
        low, high = self.interval
        if not (low > 0 or high < 0):
            return "undecided"
        return "better" if (low > 0) == self.higher_is_better else "worse"

    @property
    def is_worse(self) -> bool:
        """Whether the mean of the first method is worse, sure or not."""
        return self.equal < 1 and (self.difference < 0 if self.higher_is_better else self.difference > 0)

    @property
    def warning(self) -> str:
        """What a reader must know first, where the first method is worse than the floor, which needs no model."""
        if self.second_name != FLOOR or not self.is_worse:
            return ""
        own = "class shares" if METRICS[self.metric].task == "classification" else "means"
        sure = "" if self.verdict == "worse" else f"; the {self.level:.0%} interval leaves both open"
        return (
            f"On average personal models are worse than the agents' own {own}, which need no model: {self.metric} "
            f"{self.first_mean:.4g} against {self.second_mean:.4g}{sure}."
        )

    @property
    def pooling(self) -> str:
        """How agents with few test rows count, in a few words; empty where there are none."""
        if not self.few_rows:
            return ""
        who = f"{self.few_rows} agent{'s' if self.few_rows > 1 else ''} with fewer than {LEAST_TEST_ROWS} test rows"
        if self.few_rows == 1:
            return f"{who} counts together with the next larger one"
        into = "one" if self.pooled_into == 1 else str(self.pooled_into)
        return f"{who} count together as {into}"

    @property
    def losses(self) -> str:
        """Who loses, by name, and who of them clearly, in a few words; empty where nobody does."""
        if not self.losers:
            return ""
        clear = f"; clearly, by more than {CLEAR_LOSS:g} standard errors: {_some(self.clear_losers)}"
        return f"worse off: {_some(self.losers)}{clear if self.clear_losers else ''}"

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
            "mean over rows": self.first_rows_mean,
            "other mean over rows": self.second_rows_mean,
            "spread": self.first_spread,
            "other spread": self.second_spread,
            "clearly worse off": len(self.clear_losers),
            "few test rows": self.few_rows,
            "splits": self.splits,
            "verdict": self.verdict,
        }
        return pandas.DataFrame(columns, index=[f"{self.first_name} against {self.second_name}"])

    def _repr_html_(self) -> str:
        numbers = self.to_frame().T
        return card("Paired comparison", paragraph(str(self)), table(numbers, "The same in numbers", len(numbers)))

    def __str__(self) -> str:
        low, high = self.interval
        told = [
            f"{self.metric} ({'higher' if self.higher_is_better else 'lower'} is better) over {self.n_agents} agents"
            f"{f' and {self.splits} splits' if self.splits > 1 else ''}: "
            f"{self.first_name} {self.first_mean:.4g} against {self.second_name} {self.second_mean:.4g}, "
            f"difference {self.difference:+.4g} ({self.level:.0%} interval {low:+.4g} to {high:+.4g}): {self.verdict}",
            f"better for {self.better:.0%} of the agents, equal for {self.equal:.0%}, worse for {self.worse:.0%}",
            f"worst decile {self.first_worst_decile:.4g} against {self.second_worst_decile:.4g}",
        ]
        if np.isfinite(self.first_rows_mean):
            told.append(f"over rows {self.first_rows_mean:.4g} against {self.second_rows_mean:.4g}")
        if np.isfinite(self.first_spread):
            told.append(f"spread between agents {self.first_spread:.4g} against {self.second_spread:.4g}")
        return "; ".join([*told, *filter(None, (self.losses, self.pooling))])


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
    sizes: ArrayLike | None = None,
    names: Sequence[str] = (),
    errors: ArrayLike | None = None,
) -> PairedComparison:
    """Compare two methods agent by agent.

    Parameters
    ----------
    first, second : array of shape (agents,) or (splits, agents)
        Values of the same agents in the same order; agents with a NaN in either are left out. With several splits, a value
        that is missing in some of them is the mean of the others.
    higher_is_better : bool
        Which way the metric is read; see `kinfed.analysis.METRICS`.
    seed : int
        Of the resampling.
    level : float
        Confidence of the interval.
    metric, first_name, second_name : str
        Used in the sentence that ``str`` gives.
    sizes : array of shape (agents,), optional
        Numbers of test rows; without them no agents are pooled, and nothing is known over rows.
    names : sequence of str, optional
        Of the agents, to tell who loses.
    errors : array of shape (agents,), optional
        Standard errors of the differences, to tell who loses clearly.

    Examples
    --------
    >>> result = paired_comparison([1.0, 2.0, 2.0, 1.5], [2.0, 3.0, 2.0, 3.5], higher_is_better=False)
    >>> result.difference, result.better, result.equal, result.verdict
    (-1.0, 0.75, 0.25, 'better')
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim not in (1, 2) or one.shape != two.shape:
        raise InputError(f"both methods need one value per agent, got shapes {one.shape} and {two.shape}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    one, two = np.atleast_2d(one), np.atleast_2d(two)
    known = ~(np.isnan(one) | np.isnan(two))
    both = np.asarray(known.any(axis=0))
    if not both.any():
        raise InputError(f"no agent has a value of both {first_name} and {second_name}; there is nothing to compare")
    one, two = (_filled(values[:, both], known[:, both]) for values in (one, two))
    rows = None if sizes is None else np.asarray(sizes, dtype=np.int64)[both]
    lost = _loss(one.mean(axis=0), two.mean(axis=0), higher_is_better=higher_is_better)
    worst = [k for k in np.argsort(-lost, kind="stable").tolist() if lost[k] > 0] if len(names) else []
    told = [str(name) for name, there in zip(names, both.tolist(), strict=bool(len(names))) if there]
    unsure = np.full(len(lost), np.nan) if errors is None else np.asarray(errors, dtype=np.float64)[both]
    entries = np.arange(len(lost)) if rows is None else headline_entries(rows)
    few = np.zeros(len(lost), dtype=bool) if rows is None else rows < LEAST_TEST_ROWS
    ours, theirs = (_pooled(values, entries, rows) for values in (one, two))
    mean, other = ours.mean(axis=0), theirs.mean(axis=0)
    return PairedComparison(
        metric=metric,
        first_name=first_name,
        second_name=second_name,
        higher_is_better=higher_is_better,
        n_agents=len(lost),
        first_mean=float(mean.mean()),
        second_mean=float(other.mean()),
        difference=float((mean - other).mean()),
        interval=bootstrap_interval(ours - theirs, level=level, seed=seed),
        level=level,
        ratio=float(mean.mean() / other.mean()) if other.mean() != 0 else float("nan"),
        ratio_interval=bootstrap_ratio_interval(ours, theirs, level=level, seed=seed),
        better=float((lost < 0).mean()),
        equal=float((lost == 0).mean()),
        worse=float((lost > 0).mean()),
        first_worst_decile=worst_decile(mean, higher_is_better=higher_is_better),
        second_worst_decile=worst_decile(other, higher_is_better=higher_is_better),
        first_rows_mean=float("nan") if rows is None else rows_mean(one.mean(axis=0), rows),
        second_rows_mean=float("nan") if rows is None else rows_mean(two.mean(axis=0), rows),
        first_spread=float(mean.std(ddof=1)) if len(mean) > 1 else float("nan"),
        second_spread=float(other.std(ddof=1)) if len(mean) > 1 else float("nan"),
        losers=tuple(told[k] for k in worst),
        clear_losers=tuple(told[k] for k in worst if lost[k] > CLEAR_LOSS * unsure[k]),
        few_rows=int(few.sum()),
        pooled_into=len(np.unique(entries[few])),
        splits=len(one),
    )


def headline_entries(sizes: ArrayLike) -> Integers:
    """The entry of a headline every agent belongs to, numbered in the order of the agents.

    From the smallest agent up, agents share an entry until it has `LEAST_TEST_ROWS` test rows; whoever has as many is an
    entry alone, unless smaller ones would be left with fewer.

    Examples
    --------
    >>> headline_entries([30, 4, 50, 4, 3, 20]).tolist()
    [0, 1, 2, 1, 1, 3]
    >>> headline_entries([30, 1, 50]).tolist()
    [0, 0, 1]
    """
    rows = np.asarray(sizes, dtype=np.int64)
    entries = np.zeros(len(rows), dtype=np.int64)
    entry, filled = -1, LEAST_TEST_ROWS
    for k in np.argsort(rows, kind="stable").tolist():
        if filled >= LEAST_TEST_ROWS:
            entry, filled = entry + 1, 0
        entries[k] = entry
        filled += int(rows[k])
    if filled < LEAST_TEST_ROWS and entry > 0:
        entries[entries == entry] = entry - 1
    _, first, place = np.unique(entries, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[place], dtype=np.int64)


def compare_scores(
    scored: Mapping[str, Scores], baseline: str, seed: int, level: float = 0.95, *, metric: str | None = None
) -> PairedComparison:
    """Personal models against one baseline, by the leading metric or another one."""
    ours = scored["personalized"]
    chosen = metric or ours.metric
    return paired_comparison(
        ours.table(chosen),
        scored[baseline].table(chosen),
        higher_is_better=METRICS[chosen].higher_is_better,
        seed=seed,
        level=level,
        metric=chosen,
        first_name="personalized",
        second_name=baseline,
        sizes=ours.sizes,
        names=ours.names,
        errors=ours.versus_local.get(chosen) if baseline == "local" else None,
    )


def comparisons(
    scored: Mapping[str, Scores], baselines: Iterable[str], seed: int, *, metric: str | None = None
) -> dict[str, PairedComparison]:
    """Personal models against every baseline that was scored for an agent they were scored for."""
    if "personalized" not in scored:
        return {}
    chosen = metric or scored["personalized"].metric
    known = {name: ~np.isnan(one[chosen]) for name, one in scored.items()}
    there = [name for name in baselines if name in scored and (known["personalized"] & known[name]).any()]
    return {name: compare_scores(scored, name, seed, metric=chosen) for name in there}


def _loss(ours: Array, theirs: Array, *, higher_is_better: bool) -> Array:
    """By how much the first is worse; zero where the two are equal up to rounding."""
    apart = (theirs - ours) if higher_is_better else (ours - theirs)
    return np.where(np.abs(apart) <= TIE * np.maximum(np.abs(ours), np.abs(theirs)), 0.0, apart)


def _filled(values: Array, known: NDArray[np.bool_]) -> Array:
    """Values (splits, agents) with the mean of an agent's other splits where one is missing."""
    counts = known.sum(axis=0)
    return np.where(known, values, np.where(known, values, 0.0).sum(axis=0) / counts)


def _pooled(values: Array, entries: Integers, rows: Integers | None) -> Array:
    """Values (splits, entries): means over the rows of each entry."""
    if len(np.unique(entries)) == len(entries):
        return values
    weights = np.ones(len(entries)) if rows is None else rows.astype(np.float64)
    shares = np.zeros((len(entries), int(entries.max()) + 1))
    shares[np.arange(len(entries)), entries] = weights
    return np.asarray(values @ (shares / shares.sum(axis=0)))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_LOSERS
    return ", ".join(names[:_SHOWN_LOSERS]) + (f" and {more} more" if more > 0 else "")
