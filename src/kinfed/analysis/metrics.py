r"""Metrics: what a model is worth on one agent's test rows, and how sure that is.

Let :math:`y_i` be the outcomes of an agent's n test rows, :math:`\hat y_i` what a model predicts, and :math:`p_{ic}` the
probability it gives class c. Most metrics are means of losses of single rows, :math:`\frac1n \sum_i \ell_i`, whose standard
error is :math:`s_\ell / \sqrt n`; the others say what theirs is. What cannot be told is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kinfed.backends.agents import Task
from kinfed.errors import InputError
from kinfed.validation import Array, Integers, unknown

PROBABILITY_FLOOR = 1e-6
"""Least probability the log loss takes a class to have: a class a model never saw costs 13.8, not infinity."""

LEAST_TOLD = 5
"""Test rows of an agent at least for its floor, its R2 and its standard errors: those of fewer would tell its outcomes."""

_LARGEST_COUNT, _LEAST_BIN = 10, 10  # bins of the calibration error at most, and rows in one of them at least
_NOTHING = float("nan"), float("nan")


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """One agent's test rows, and what a model says of them.

    Attributes
    ----------
    outcome : array of shape (n,)
        Numbers, or the places of classes; -1 for a class that nobody trained on.
    predicted : array of shape (n,)
        The same of the model.
    probabilities : array of shape (n, classes), optional
        None for numbers, and for models without them.
    centre : float
        Mean of the agent's own outcome in training.
    """

    outcome: Array | Integers
    predicted: Array | Integers
    probabilities: Array | None = None
    centre: float = float("nan")

    def __len__(self) -> int:
        return len(self.outcome)


@dataclass(frozen=True)
class Metric:
    """One way to judge a model on an agent's test rows.

    Attributes
    ----------
    name : str
    task : {"regression", "classification", "unsupervised"}
    higher_is_better : bool
    of_probabilities : bool
        Models without probabilities have none.
    losses : callable, optional
        From `JudgedRows` to a number per row (n,), where the metric is their mean.
    whole : callable, optional
        From `JudgedRows` to the value and its standard error, where it is no mean.
    """

    name: str
    task: Task
    higher_is_better: bool
    of_probabilities: bool = False
    losses: Callable[[JudgedRows], Array] | None = None
    whole: Callable[[JudgedRows], tuple[float, float]] | None = None

    def row_losses(self, judged: JudgedRows) -> Array | None:
        """The numbers of the single rows whose mean this is; None where it is no such mean, or there are none."""
        if self.losses is None or not len(judged) or (self.of_probabilities and judged.probabilities is None):
            return None
        return self.losses(judged)

    def __call__(self, judged: JudgedRows) -> tuple[float, float]:
        """The value and its standard error; NaN where there is none, as for the error of fewer than `LEAST_TOLD` rows."""
        rows = self.row_losses(judged)
        if rows is not None:
            return float(rows.mean()), mean_error(rows)
        missing = self.of_probabilities and judged.probabilities is None
        value, error = _NOTHING if self.whole is None or missing or not len(judged) else self.whole(judged)
        return value, error if len(judged) >= LEAST_TOLD else float("nan")


def mean_error(rows: Array) -> float:
    """Standard error of a mean of rows; NaN for fewer than `LEAST_TOLD`."""
    return float(rows.std(ddof=1) / np.sqrt(len(rows))) if len(rows) >= LEAST_TOLD else float("nan")


def _squared(judged: JudgedRows) -> Array:
    return np.asarray((judged.predicted - judged.outcome) ** 2, dtype=np.float64)


def _absolute(judged: JudgedRows) -> Array:
    return np.asarray(np.abs(judged.predicted - judged.outcome), dtype=np.float64)


def _explained(judged: JudgedRows) -> tuple[float, float]:
    r"""Share of the squared error of the agent's own training mean that is saved, :math:`R^2 = 1 - \bar\ell / \bar m`.

    With :math:`m_i = (y_i - \bar y_{train})^2`, the delta method gives the standard error of the ratio: that of the mean of
    :math:`(\ell_i - (1 - R^2) m_i) / \bar m`.
    """
    ours, mean = _squared(judged), (np.asarray(judged.outcome, dtype=np.float64) - judged.centre) ** 2
    if len(judged) < LEAST_TOLD or not mean.mean() > 0:
        return _NOTHING
    ratio = float(ours.mean() / mean.mean())
    return 1 - ratio, mean_error((ours - ratio * mean) / mean.mean())


def _log_losses(judged: JudgedRows) -> Array:
    given = _probability_of(judged, np.asarray(judged.outcome))
    return np.asarray(-np.log(np.clip(given, PROBABILITY_FLOOR, 1.0)))


def _brier(judged: JudgedRows) -> Array:
    r""":math:`\sum_c (p_{ic} - 1\{y_i = c\})^2`; a class that nobody trained on adds its own one."""
    assert judged.probabilities is not None
    given = _probability_of(judged, np.asarray(judged.outcome))
    return np.asarray(np.sum(judged.probabilities**2, axis=1) - 2 * given + 1)


def _right(judged: JudgedRows) -> Array:
    return np.asarray(judged.predicted == judged.outcome, dtype=np.float64)


def _balanced(judged: JudgedRows) -> tuple[float, float]:
    r"""Mean over the K classes present of the share :math:`r_c` of their :math:`m_c` rows that is right.

    The standard error is binomial, :math:`\frac1K \sqrt{\sum_c r_c (1 - r_c) / m_c}`.
    """
    right = _right(judged)
    present, counts = np.unique(judged.outcome, return_counts=True)
    shares = np.array([right[judged.outcome == one].mean() for one in present])
    return float(shares.mean()), float(np.sqrt(np.sum(shares * (1 - shares) / counts)) / len(present))


def _auc(judged: JudgedRows) -> tuple[float, float]:
    r"""Mean over the classes present of the chance that a row of the class has a higher probability of it than another.

    For two classes this is the usual area under the curve. Row i of class c is above a share :math:`V_i` of the others, and
    one of the others below a share of those of the class (ties count half); every row's part in the mean are these shares,
    centred and divided by the size of their side, and the sum over classes of their variances is that of DeLong et al.
    (1988) for two classes.
    """
    assert judged.probabilities is not None
    codes, n = np.asarray(judged.outcome), len(judged)
    values, parts = [], np.zeros(n)
    for one in np.unique(codes[codes >= 0]).tolist():
        mine = codes == one
        if mine.all():
            return _NOTHING
        score = judged.probabilities[:, one]
        above = _share_below(score[mine], score[~mine])
        below = 1 - _share_below(score[~mine], score[mine])
        values.append(float(above.mean()))
        parts[mine] += (above - values[-1]) / mine.sum()
        parts[~mine] += (below - values[-1]) / (n - mine.sum())
    if not values:
        return _NOTHING
    groups = [parts[codes == one] for one in np.unique(codes)]
    if min(map(len, groups)) < 2:
        return float(np.mean(values)), float("nan")
    variance = sum(len(one) * float(np.var(one, ddof=1)) for one in groups)
    return float(np.mean(values)), float(np.sqrt(variance)) / len(values)


def _calibration_error(judged: JudgedRows) -> tuple[float, float]:
    r"""How far the predicted class's probability is from how often it is right, :math:`\sum_b \frac{n_b}n |r_b - p_b|`.

    Rows are sorted by that probability into at most ten bins of equal count and at least ten rows each; rows of equal
    probability stay together. There is no standard error.
    """
    if len(judged) < _LEAST_BIN:
        return _NOTHING
    told, right = _probability_of(judged, np.asarray(judged.predicted)), _right(judged)
    order = np.argsort(np.round(told, 9), kind="stable")
    ends = np.append(np.flatnonzero(np.diff(np.round(told, 9)[order])) + 1, len(order))
    full = len(order) / min(_LARGEST_COUNT, len(order) // _LEAST_BIN)
    starts = [0]
    for end in ends.tolist():
        if end - starts[-1] >= full - 1e-9 and len(order) - end >= _LEAST_BIN:
            starts.append(end)
    apart = [abs(float(np.sum(right[rows] - told[rows]))) for rows in np.split(order, starts[1:])]
    return sum(apart) / len(order), float("nan")


def _probability_of(judged: JudgedRows, codes: Integers) -> Array:
    """The probability a model gives a class of every row; zero for one it never saw."""
    assert judged.probabilities is not None
    return np.where(codes >= 0, judged.probabilities[np.arange(len(codes)), codes], 0.0)


def _share_below(values: Array, others: Array) -> Array:
    """The share of `others` below each value, ties counting half."""
    ranked = np.sort(others)
    below, upto = (np.searchsorted(ranked, values, side=side) for side in ("left", "right"))
    return np.asarray((below + upto) / (2 * len(others)))


_ALL = (
    Metric("mean squared error", "regression", higher_is_better=False, losses=_squared),
    Metric("mean absolute error", "regression", higher_is_better=False, losses=_absolute),
    Metric("R2", "regression", higher_is_better=True, whole=_explained),
    Metric("log loss", "classification", higher_is_better=False, of_probabilities=True, losses=_log_losses),
    Metric("Brier score", "classification", higher_is_better=False, of_probabilities=True, losses=_brier),
    Metric("accuracy", "classification", higher_is_better=True, losses=_right),
    Metric("balanced accuracy", "classification", higher_is_better=True, whole=_balanced),
    Metric("AUC", "classification", higher_is_better=True, of_probabilities=True, whole=_auc),
    Metric("calibration error", "classification", higher_is_better=False, of_probabilities=True, whole=_calibration_error),
    Metric("score", "unsupervised", higher_is_better=True),
)

METRICS: Mapping[str, Metric] = MappingProxyType({one.name: one for one in _ALL})
"""Every metric by name; that of models without an outcome is their own score."""

HEADLINE: Mapping[Task, tuple[str, ...]] = MappingProxyType(
    {"regression": ("mean squared error",), "classification": ("log loss", "accuracy"), "unsupervised": ("score",)}
)
"""The metrics of the headline unless others are asked for, the leading one first."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "mse": "mean squared error",
        "mae": "mean absolute error",
        "brier": "Brier score",
        "ece": "calibration error",
        **{one.name.lower(): one.name for one in _ALL},
    }
)
"""Names that stand for a metric when one is asked for; capitals and hyphens do not matter."""


def metrics_of(task: Task) -> tuple[Metric, ...]:
    """The metrics of a task."""
    return tuple(one for one in _ALL if one.task == task)


def metric_named(name: str) -> Metric:
    """The metric that is asked for by its name or an alias."""
    found = ALIASES.get(name.strip().lower().replace("-", " ").replace("_", " "))
    if found is None:
        raise InputError(f"{unknown('metric', name, METRICS)} (one of {', '.join(METRICS)})")
    return METRICS[found]


def headline_metrics(asked: Collection[str], task: Task) -> tuple[str, ...]:
    """The metrics of the headline: those asked for, or the usual ones of the task; one of another task is refused."""
    found = [metric_named(name) for name in ([asked] if isinstance(asked, str) else asked)]
    for one in found:
        if one.task != task:
            fitting = ", ".join(other.name for other in metrics_of(task))
            raise InputError(f"metric {one.name!r} is for {one.task}, and this is a {task}; take one of {fitting}")
    return tuple(dict.fromkeys(one.name for one in found)) or HEADLINE[task]
