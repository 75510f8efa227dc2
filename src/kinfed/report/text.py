"""Numbers in words: percentages, sizes in bytes, probabilities, lists, and what training changed.

A change is told in the unit people read: a share of an error, or points of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from kinfed.analysis import FLOOR, METRICS
from kinfed.validation import Array

if TYPE_CHECKING:
    from kinfed.analysis import PairedComparison, Scores

SPACE = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
"""What stands for a number that there is not."""

_LEAST_WEIGHT = 1e-6
BASELINE_NAMES = {"local": "learning alone", "grand-mean": "one common model", FLOOR: "the agent's own mean"}
OWN_SHARES = "the agent's own class shares"
Unit = Literal["share", "points", "difference"]
"""What changes are told in: shares of an error, percentage points of accuracy, or the metric itself."""
_POINTS = f"{SPACE}percentage points"
SHARES_OF_ROWS = ("accuracy", "balanced accuracy")
"""Metrics that are told in percent, and their changes in percentage points."""


def baseline_name(baseline: str, metric: str) -> str:
    """What a baseline is called; the floor of classes is not that of numbers."""
    classes = baseline == FLOOR and METRICS[metric].task == "classification"
    return OWN_SHARES if classes else BASELINE_NAMES[baseline]


def percent(share: float, digits: int = 1) -> str:
    """A share such as 0.13 as "13.0 %"."""
    return NOTHING if not np.isfinite(share) else f"{_with_minus(f'{100 * share:,.{digits}f}')}{SPACE}%"


def signed_percent(share: float, digits: int = 1) -> str:
    """A share such as 0.13 as "+13.0 %"; what rounds to nothing has no sign."""
    if not np.isfinite(share):
        return NOTHING
    shown = f"{100 * share:+,.{digits}f}"
    return f"{_with_minus(shown if float(shown.replace(',', '')) else shown[1:])}{SPACE}%"


def weight(value: float) -> str:
    """A weight as a percentage with two decimals, or two digits where it is below one percent."""
    if not np.isfinite(value):
        return NOTHING
    if 0 < value < _LEAST_WEIGHT:
        return f"<{SPACE}0.0001{SPACE}%"
    return f"{100 * value:.2f}{SPACE}%" if value >= 0.01 or value == 0 else f"{100 * value:#.2g}{SPACE}%"


def number(value: float, digits: int = 3) -> str:
    """A number with that many significant digits, as people write them."""
    if not np.isfinite(value):
        return NOTHING
    shown = f"{value:.{digits}g}"
    return _with_minus(f"{value:,.0f}" if "e+" in shown and abs(value) < 1e9 else shown)


def figures(value: float) -> str:
    """A number with three significant digits, zeros at the end kept, for columns."""
    return NOTHING if not np.isfinite(value) else _with_minus(f"{value:#.3g}".rstrip("."))


def count(value: float) -> str:
    """A whole number with separators, such as "7,185"."""
    return NOTHING if not np.isfinite(value) else f"{value:,.0f}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, such as "1 agent" and "7 agents"."""
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def times(value: float) -> str:
    """A factor such as "3.4" and a multiplication sign."""
    return NOTHING if not np.isfinite(value) else f"{value:,.1f}{SPACE}\N{MULTIPLICATION SIGN}"


def probability(value: float) -> str:
    """A p-value with three decimals, as far as they are worth telling."""
    return NOTHING if not np.isfinite(value) else "below 0.001" if value < 0.001 else f"{value:.3f}"


def nbytes(size: float) -> str:
    """A number of bytes in B, kB, MB or GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:
            return f"{size / scale:.3g}{SPACE}{unit}"
    return f"{size:,.0f}{SPACE}B"


def listed(words: Sequence[str], most: int = 8) -> str:
    """Words as "a, b and c"; beyond `most` of them the rest is counted."""
    shown = [*words[:most], f"{count(len(words) - most)} more"] if len(words) > most else list(words)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def shortened(name: str, most: int = 24) -> str:
    """A name of at most that many characters, for labels in figures."""
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def sentence(words: str) -> str:
    """Words with a capital at the start and a full stop at the end."""
    told = words.strip()
    return told if not told else told[0].upper() + told[1:] + ("" if told[-1] in ".:?" else ".")


def _with_minus(shown: str) -> str:
    return shown.replace("-", MINUS)


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
        return METRICS[self.metric].higher_is_better

    @property
    def unit(self) -> str:
        """What a gain is a part of."""
        if not self.higher_is_better:
            return f"share of the {self.metric} that is saved"
        return f"percentage points of {self.metric} won" if self.metric in SHARES_OF_ROWS else f"{self.metric} won"

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
        if self.metric in SHARES_OF_ROWS or not self.higher_is_better:
            return signed_percent(gain).replace("%", "pt" if self.higher_is_better else "%")
        return f"+{number(gain)}" if gain >= 0 and np.isfinite(gain) else number(gain)


def by_agent(names: Sequence[str], scores: Scores, metric: str) -> Array:
    """A metric in the order of `names`; NaN for agents that were not tested."""
    values = dict(zip(scores.names, scores[metric].tolist(), strict=True))
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
        difference = cls(comparison.difference, *comparison.interval, "difference")
        if Measure(comparison.metric).higher_is_better:
            return replace(difference, unit="points") if comparison.metric in SHARES_OF_ROWS else difference
        low, high = comparison.ratio_interval
        share = cls(comparison.ratio - 1, low - 1, high - 1)
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
        changed = any(digit in shown for digit in "123456789")
        return f"{shown} {'lower' if value < 0 else 'higher'}" if changed else "no change"

    @property
    def extent(self) -> str:
        """The sizes at both ends of an interval without zero, the smaller first."""
        near, far = sorted((self.low, self.high), key=abs)
        return f"{self._amount(near)} to {self.size(far)}"

    @property
    def interval(self) -> str:
        """The interval in words: by how much lower or higher, or from one to the other."""
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
