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

_BLOCK = 2**22  # numbers held at once while columns are looked at together


def errors_without(y: NDArray[Any], labels: bool) -> float:
    """The error of predicting every row from the others of its agent without any column."""
    if len(y) < FEWEST_ROWS:
        return 0.0
    return float(_by_group(np.zeros((len(y), 1), dtype=np.int64), y, labels)[0])


def errors_by_category(values: pd.Series[Any], y: NDArray[Any], labels: bool) -> float:
    """The error of predicting every row from the others of its agent in the same category; a gap is a category too."""
    if len(y) < FEWEST_ROWS:
        return 0.0
    codes = pd.factorize(values)[0][:, None]
    return min(errors_without(y, labels), float(_by_group(codes - codes.min(), y, labels)[0]))


def errors_by_numbers(numbers: Array, y: NDArray[Any], labels: bool) -> Array:
    """The errors of predicting every row from the others of its agent by one column of numbers, for each of them.

    Rows are predicted by those of the same number, by the two whose numbers are next to theirs, and numeric outcomes by a
    straight line, too: the best of these counts. Rows without a number are predicted by each other, and whether there is
    one may tell by itself.

    Parameters
    ----------
    numbers : array of shape (n, m)
        NaN where a cell is missing.
    y : array of shape (n,)
    labels : bool
        Whether y are classes.
    """
    n, m = numbers.shape
    if n < FEWEST_ROWS:
        return np.zeros(m)
    errors = np.full(m, errors_without(y, labels))
    whole = np.flatnonzero(~np.isnan(numbers).any(axis=0))
    step = max(1, _BLOCK // (n * (len(np.unique(y)) if labels else 1)))
    for start in range(0, len(whole), step):
        places = whole[start : start + step]
        errors[places] = np.minimum(errors[places], _by_order(numbers[:, places], y, labels))
    for place in np.setdiff1d(np.arange(m), whole).tolist():
        there = ~np.isnan(numbers[:, place])
        errors[place] = min(errors[place], float(_by_group(there[:, None].astype(np.int64), y, labels)[0]))
        gaps = _by_group(np.zeros((int((~there).sum()), 1), dtype=np.int64), y[~there], labels)
        if there.sum() >= FEWEST_ROWS:
            errors[place] = min(errors[place], float((gaps + _by_order(numbers[there, place, None], y[there], labels))[0]))
    return errors


def _by_order(numbers: Array, y: NDArray[Any], labels: bool) -> Array:
    """The least errors, for every column without gaps, of what its order tells."""
    order = np.argsort(numbers, axis=0, kind="stable")
    ranked = np.take_along_axis(numbers, order, axis=0)
    codes = np.empty(numbers.shape, dtype=np.int64)
    steps = np.concatenate([np.zeros((1, numbers.shape[1]), dtype=bool), np.diff(ranked, axis=0) > 0])
    np.put_along_axis(codes, order, np.cumsum(steps, axis=0), axis=0)
    found = np.minimum(_by_group(codes, y, labels), _by_neighbours(order, y, labels))
    return found if labels else np.minimum(found, _by_line(numbers, y))


def _by_group(codes: NDArray[np.int64], y: NDArray[Any], labels: bool) -> Array:
    """Every row by the others of its group, for groups (n, m) of m columns; one that is alone by all others, or wrongly."""
    n, m = codes.shape
    if not n:
        return np.zeros(m)
    groups = int(codes.max()) + 1
    flat = (codes + groups * np.arange(m)).ravel()  # those of different columns are different groups
    sizes = np.bincount(flat, minlength=groups * m)[flat].reshape(n, m)
    if labels:
        classes = pd.factorize(y)[0]
        count = int(classes.max()) + 1
        counts = np.bincount(flat * count + np.repeat(classes, m), minlength=groups * m * count).reshape(-1, count)
        others = counts[flat].reshape(n, m, count)
        others[np.arange(n), :, classes] -= 1
        right = (sizes > 1) & (others.argmax(axis=2) == classes[:, None])
        return np.asarray(n - right.sum(axis=0), dtype=np.float64)
    numbers = y.astype(np.float64)
    sums = np.bincount(flat, weights=np.repeat(numbers, m), minlength=groups * m)[flat].reshape(n, m)
    everybody = (numbers.sum() - numbers) / max(n - 1, 1)
    own = (sums - numbers[:, None]) / np.maximum(sizes - 1, 1)
    return np.asarray(np.sum((numbers[:, None] - np.where(sizes > 1, own, everybody[:, None])) ** 2, axis=0))


def _by_neighbours(order: Integers, y: NDArray[Any], labels: bool) -> Array:
    """Every row by the two beside it in the order (n, m) of each column; classes only where both agree."""
    ranked = (pd.factorize(y)[0] if labels else y.astype(np.float64))[order]
    before, after = np.concatenate([ranked[1:2], ranked[:-1]]), np.concatenate([ranked[1:], ranked[-2:-1]])
    if labels:
        return np.asarray(np.sum((before != ranked) | (after != ranked), axis=0), dtype=np.float64)
    return np.asarray(np.sum((ranked - (before + after) / 2) ** 2, axis=0))


def _by_line(numbers: Array, y: NDArray[Any]) -> Array:
    """Every row by a straight line through the others: residuals over one minus the leverage."""
    x, outcome = numbers - numbers.mean(axis=0), y.astype(np.float64) - y.astype(np.float64).mean()
    squares = np.sum(x**2, axis=0)
    known = squares > 0
    slopes = np.where(known, x.T @ outcome / np.where(known, squares, 1.0), 0.0)
    leverage = 1 / len(x) + x**2 / np.where(known, squares, 1.0)
    residual = outcome[:, None] - x * slopes
    return np.where(known, np.sum((residual / np.maximum(1 - leverage, 1e-12)) ** 2, axis=0), np.inf)
