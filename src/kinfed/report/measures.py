"""What training changed, agent by agent and for all, in the unit people read: shares of an error, points of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kinfed.evaluation import HIGHER_IS_BETTER
from kinfed.report.text import MINUS, NOTHING, SPACE, number, percent, signed_percent

if TYPE_CHECKING:
    from kinfed.evaluation import PairedComparison, Scores

Array = NDArray[np.float64]

BASELINE_NAMES = {"local": "learning alone", "grand-mean": "one common model"}
"""The baselines, for people."""

Unit = Literal["share", "points", "difference"]
"""What changes are told in: shares of an error, percentage points of accuracy, or the metric itself."""

_POINTS = f"{SPACE}percentage points"


@dataclass(frozen=True)
class Measure:
    """A metric, and the unit its gains are told in; a gain above zero is always good.

    Attributes
    ----------
    metric : str
    """

    metric: str

    @property
    def higher_is_better(self) -> bool:
        """Which way the metric is read."""
        return HIGHER_IS_BETTER[self.metric]

    @property
    def unit(self) -> str:
        """What a gain is a part of."""
        if not self.higher_is_better:
            return f"share of the {self.metric} that is saved"
        return "percentage points of accuracy won" if self.metric == "accuracy" else f"{self.metric} won"

    def gains(self, personal: Array, baseline: Array) -> Array:
        """What every agent wins over a baseline.

        An error is saved as a share of the baseline's. A score may be zero or negative: there the difference is told.
        """
        if self.higher_is_better:
            return np.asarray(personal - baseline)
        positive = baseline > 0
        return np.where(positive, (baseline - personal) / np.where(positive, baseline, 1.0), np.nan)

    def told(self, gain: float) -> str:
        """A gain with its unit."""
        if not np.isfinite(gain):
            return NOTHING
        if self.metric == "accuracy":
            return signed_percent(gain).replace("%", "pt")
        if not self.higher_is_better:
            return signed_percent(gain)
        return number(gain) if gain < 0 else f"+{number(gain)}"


def by_agent(names: Sequence[str], scores: Scores) -> Array:
    """The leading metric in the order of `names`; NaN for agents that were not tested."""
    values = dict(zip(scores.names, scores[scores.metric].tolist(), strict=True))
    return np.array([values.get(name, np.nan) for name in names])


@dataclass(frozen=True)
class Change:
    """A comparison as a change of the baseline's mean.

    Attributes
    ----------
    value, low, high : float
        The change and its interval.
    unit : {"share", "points", "difference"}
        Shares of the baseline's mean, points of accuracy (as shares of one), or the metric itself.
    """

    value: float
    low: float = np.nan
    high: float = np.nan
    unit: Unit = "share"

    @classmethod
    def of(cls, comparison: PairedComparison) -> Change:
        """The change of a comparison: a share of an error, percentage points of accuracy, a difference of a score.

        An error is told as a difference, too, where its ratio has no interval, or one on another side of no change than
        that of the difference: the verdict is read from the difference, and words must not contradict it.
        """
        low, high = comparison.interval
        difference = cls(comparison.difference, low, high, "difference")
        if Measure(comparison.metric).higher_is_better:
            return replace(difference, unit="points") if comparison.metric == "accuracy" else difference
        less, more = (end - 1 for end in comparison.ratio_interval)
        share = cls(comparison.ratio - 1, less, more)
        if not difference.has_interval:
            return share if np.isfinite(share.value) and comparison.second_mean > 0 else difference
        return share if share.has_interval and share.side == difference.side else difference

    @property
    def side(self) -> int:
        """Where the interval lies: 1 above no change, -1 below it, 0 if it holds it."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def has_interval(self) -> bool:
        """Whether there were agents enough for an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def size(self, value: float) -> str:
        """The size of a change without its sign."""
        return self._amount(value) + (_POINTS if self.unit == "points" else "")

    def words(self, value: float) -> str:
        """A change such as "13.0 % lower"."""
        shown = self.size(value)
        if not any(digit in shown for digit in "123456789"):
            return "no change"
        return f"{shown} {'lower' if value < 0 else 'higher'}"

    @property
    def extent(self) -> str:
        """The sizes at both ends of an interval without zero, the smaller first."""
        near, far = sorted((self.low, self.high), key=abs)
        return f"{self._amount(near)} to {self.size(far)}"

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.side:
            return f"{self.extent} {'lower' if self.side < 0 else 'higher'}"
        return f"{self.words(self.low)} to {self.words(self.high)}"

    def _amount(self, value: float) -> str:
        """The number of a size."""
        if self.unit == "difference":
            return number(abs(value))
        return percent(abs(value)).removesuffix(f"{SPACE}%" if self.unit == "points" else "")


def plus_minus(value: str, error: str) -> str:
    """A value and its error."""
    return value if NOTHING in (value, error) else f"{value} ±{SPACE}{error.lstrip('+').lstrip(MINUS)}"
