r"""Columns that give the outcome away: how much of it a single column leaves unexplained, told as two sums.

A column that was made from the outcome, or is known only once the outcome is, predicts it from single rows almost without
error. Every agent predicts each of its training rows from its other ones, by that column alone, and tells how wrong that
was in all, beside how wrong it was to predict without any column: squared errors of a numeric outcome, counts of wrong
classes. Both add up over agents, each of which is compared with itself, so a column that only tells agents apart explains
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfed.validation import Array, Integers

FEWEST_ROWS = 4
"""An agent with fewer rows judges nothing."""


def errors_without(y: NDArray[Any], labels: bool) -> float:
    """The error of predicting every row from the others of its agent without any column."""
    if len(y) < FEWEST_ROWS:
        return 0.0
    return _by_group(np.zeros(len(y), dtype=np.int64), y, labels)


def errors_with(values: pd.Series[Any], numbers: Array | None, y: NDArray[Any], labels: bool) -> float:
    """The error of predicting every row from the others of its agent by one column; missing cells are a value of their own.

    Parameters
    ----------
    values : Series of n cells
        Of categories, where `numbers` is None.
    numbers : array of shape (n,), optional
        The cells as numbers, NaN where they are missing. Rows are then predicted by the two whose numbers are next to
        theirs, too, and numeric outcomes by a straight line: the best of these counts.
    y : array of shape (n,)
    labels : bool
        Whether y are classes.
    """
    if len(y) < FEWEST_ROWS:
        return 0.0
    without = errors_without(y, labels)
    codes = pd.factorize(values if numbers is None else pd.Series(numbers))[0]
    found = min(without, _by_group(codes, y, labels))
    if numbers is None:
        return found
    there = ~np.isnan(numbers)
    if there.sum() < FEWEST_ROWS:
        return found
    gaps = _by_group(np.zeros(int((~there).sum()), dtype=np.int64), y[~there], labels)
    found = min(found, gaps + _by_neighbours(numbers[there], y[there], labels))
    return found if labels else min(found, gaps + _by_line(numbers[there], y[there]))


def _by_group(codes: Integers, y: NDArray[Any], labels: bool) -> float:
    """Every row by the others of its group; a row that is alone in one is predicted wrongly, or by all others."""
    if not len(y):
        return 0.0
    codes = codes - codes.min()
    sizes = np.bincount(codes)[codes]
    if labels:
        classes = pd.factorize(y)[0]
        counts = np.zeros((codes.max() + 1, classes.max() + 1), dtype=np.int64)
        np.add.at(counts, (codes, classes), 1)
        others = counts[codes]
        others[np.arange(len(y)), classes] -= 1
        right = (sizes > 1) & (others.argmax(axis=1) == classes)
        return float(len(y) - right.sum())
    numbers = y.astype(np.float64)
    sums = np.bincount(codes, weights=numbers)[codes]
    everybody = (numbers.sum() - numbers) / max(len(y) - 1, 1)
    predicted = np.where(sizes > 1, (sums - numbers) / np.maximum(sizes - 1, 1), everybody)
    return float(np.sum((numbers - predicted) ** 2))


def _by_neighbours(numbers: Array, y: NDArray[Any], labels: bool) -> float:
    """Every row by the two beside it in the order of the column; classes only where both agree."""
    order = np.argsort(numbers, kind="stable")
    ranked = pd.factorize(y[order])[0] if labels else y[order].astype(np.float64)
    before, after = np.r_[ranked[1], ranked[:-1]], np.r_[ranked[1:], ranked[-2]]
    if labels:
        return float(np.sum((before != ranked) | (after != ranked)))
    return float(np.sum((ranked - (before + after) / 2) ** 2))


def _by_line(numbers: Array, y: NDArray[Any]) -> float:
    """Every row by a straight line through the others: residuals over one minus the leverage."""
    x, outcome = numbers - numbers.mean(), y.astype(np.float64) - y.astype(np.float64).mean()
    squares = float(x @ x)
    if squares <= 0:
        return float("inf")
    leverage = 1 / len(x) + x**2 / squares
    residual = outcome - x * (x @ outcome) / squares
    return float(np.sum((residual / np.maximum(1 - leverage, 1e-12)) ** 2))
