"""Medians over repeated runs; a machine is never quiet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

_OFTEN = 9


def seconds(function: Callable[[], Any]) -> float:
    """Seconds one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median_seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    """Median over that many calls."""
    return statistics.median(seconds(function) for _ in range(repeats))


def median_seconds_beside(work: Callable[[], Any], limit: Callable[[], Any], repeats: int = 3) -> tuple[float, float]:
    """Medians of work and of its limit, timed in turn, so that a busy machine slows both; a short limit runs often."""
    pairs = [(seconds(work), median_seconds(limit, _OFTEN)) for _ in range(repeats)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
