r"""How good models are, agent by agent, and whether one method is better than another.

Agents are the unit: a comparison is paired over agents, and its interval comes from resampling agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from kinfed.errors import InputError
from kinfed.learners.base import Models, Task
from kinfed.validation import one_of, target_indices

if TYPE_CHECKING:
    import pandas

    from kinfed.federation import Federation

Array = NDArray[np.float64]

HIGHER_IS_BETTER: Mapping[str, bool] = MappingProxyType(
    {"mean squared error": False, "accuracy": True, "log loss": False, "score": True}
)
"""The metrics, and which way they are read."""

METRICS: Mapping[Task, tuple[str, ...]] = MappingProxyType(
    {"regression": ("mean squared error",), "classification": ("accuracy", "log loss"), "unsupervised": ("score",)}
)
"""The metrics of each task, the leading one first."""

PROBABILITY_FLOOR = 1e-6
"""Least probability the log loss takes a class to have: a class a model never saw costs 13.8, not infinity."""

RESAMPLES = 10_000
"""Resamples of the agents behind an interval."""

_TIE = 1e-9  # relative difference below which two values are equal
_BLOCK = 2**20  # agents drawn at once while resampling


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one model per agent.

    Attributes
    ----------
    task : {"regression", "classification", "unsupervised"}
    names : tuple of str
        The T agents the models were tested on.
    sizes : array of int of shape (T,)
        Numbers of test points.
    values : mapping from metric to array of shape (T,)
        NaN for agents without test points; the log loss is NaN for models without probabilities.
    """

    task: Task
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    values: Mapping[str, Array]

    @property
    def metric(self) -> str:
        """The leading metric of the task."""
        return METRICS[self.task][0]

    def __getitem__(self, metric: str) -> Array:
        return self.values[one_of(metric, self.values, "metric")]

    def mean(self, metric: str | None = None) -> float:
        """Mean over the agents that have test points; NaN if none has."""
        values = self[metric or self.metric]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    def to_frame(self) -> pandas.DataFrame:
        """A row per agent, a column per metric."""
        import pandas

        return pandas.DataFrame(dict(self.values), index=pandas.Index(self.names, name="agent"))

    def __str__(self) -> str:
        parts = []
        for metric, values in self.values.items():
            if np.isnan(values).all():
                continue
            bad = worst_decile(values, higher_is_better=HIGHER_IS_BETTER[metric])
            parts.append(f"mean {metric} {self.mean(metric):.4g}, worst decile {bad:.4g}")
        return f"{len(self.names)} agents: " + ("; ".join(parts) or "no test points")


def score_models(
    models: Models, federation: Federation, task: Task, targets: int | Sequence[int] | NDArray[np.int64] | None = None
) -> Scores:
    """Test each model on the data of its agent.

    Parameters
    ----------
    models : Models
        One per target.
    federation : Federation
        Test data.
    task : {"regression", "classification", "unsupervised"}
        Regression is scored by the mean squared error, classification by accuracy and log loss, and models without a
        target by their own score per point.
    targets : array of shape (T,), optional
        The agent each model is for; all agents in order by default.
    """
    one_of(task, METRICS, "task")
    chosen = target_indices(targets, len(federation))
    if len(models) != len(chosen):
        raise InputError(
            f"there are {len(models)} models for {len(chosen)} agents; give the agent of each model as targets"
        )
    values = np.full((len(chosen), len(METRICS[task])), np.nan)
    sizes = np.zeros(len(chosen), dtype=np.int64)
    for row, k in enumerate(chosen.tolist()):
        agent = federation[k]
        sizes[row] = len(agent.X)
        if sizes[row] == 0:
            continue
        if task == "unsupervised":
            values[row] = _method(models, "score", "an unsupervised task")(row, agent.X)
            continue
        if agent.y is None:
            raise InputError(f"agent {federation.names[k]} has no target to test predictions against")
        if task == "regression":
            values[row] = np.mean((np.asarray(models.predict(row, agent.X)) - np.asarray(agent.y, dtype=np.float64)) ** 2)
        else:
            values[row] = _classification(models, row, agent.X, np.asarray(agent.y))
    columns = {metric: np.ascontiguousarray(values[:, column]) for column, metric in enumerate(METRICS[task])}
    return Scores(task, tuple(federation.names[k] for k in chosen), sizes, MappingProxyType(columns))


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
        Which way the metric is read; see `HIGHER_IS_BETTER`.
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
        better=float(better.mean()),
        equal=float(equal.mean()),
        worse=float((~equal & ~better).mean()),
        first_worst_decile=worst_decile(one, higher_is_better=higher_is_better),
        second_worst_decile=worst_decile(two, higher_is_better=higher_is_better),
    )


def worst_decile(values: ArrayLike, *, higher_is_better: bool) -> float:
    """The value that nine in ten agents reach or surpass; NaN values are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.quantile(known, 0.1 if higher_is_better else 0.9)) if len(known) else float("nan")


def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    r"""Bias corrected and accelerated bootstrap interval of a mean (Efron, 1987).

    With :math:`z_0` the normal quantile of the share of resampled means below the mean, and the acceleration :math:`a =
    \frac{1}{6} \sum_i u_i^3 / (\sum_i u_i^2)^{3/2}` of the deviations u, the ends are the quantiles of the resampled means
    at :math:`\Phi(z_0 + (z_0 + z) / (1 - a (z_0 + z)))` for :math:`z = \pm z_{(1 + level) / 2}`.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    if n < 2:
        return float("nan"), float("nan")
    deviations = sample - sample.mean()
    spread = float(np.sum(deviations**2))
    if spread <= (_TIE * float(np.abs(sample).max())) ** 2:
        return float(sample.mean()), float(sample.mean())
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    blocks = [min(step, RESAMPLES - start) for start in range(0, RESAMPLES, step)]
    means = np.concatenate([deviations[rng.integers(n, size=(block, n))].mean(axis=1) for block in blocks])
    below = (np.mean(means < 0) + np.mean(means <= 0)) / 2
    bias = ndtri(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    acceleration = float(np.sum(deviations**3)) / (6 * spread**1.5)
    shifted = bias + ndtri([(1 - level) / 2, (1 + level) / 2])
    ends = np.quantile(means, ndtr(bias + shifted / (1 - acceleration * shifted))) + sample.mean()
    return float(ends[0]), float(ends[1])


def _classification(models: Models, row: int, X: Any, y: NDArray[Any]) -> tuple[float, float]:
    """Accuracy and log loss of one model."""
    if not (hasattr(models, "predict_proba") and getattr(models, "has_probabilities", True)):
        return float(np.mean(np.asarray(models.predict(row, X)) == y)), float("nan")
    probabilities = np.asarray(models.predict_proba(row, X))
    classes = np.asarray(_method(models, "classes", "a classification task"))
    place = {label: index for index, label in enumerate(classes.tolist())}
    codes = np.array([place.get(label, -1) for label in y.tolist()])
    # A label the whole training federation never had is a miss of floor probability.
    given = np.where(codes >= 0, probabilities[np.arange(len(y)), codes], 0.0)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == codes))
    return accuracy, float(-np.log(np.clip(given, PROBABILITY_FLOOR, 1.0)).mean())


def _method(models: Models, name: str, purpose: str) -> Any:
    if not hasattr(models, name):
        raise InputError(f"{type(models).__name__} has no {name}, which {purpose} needs")
    return getattr(models, name)
