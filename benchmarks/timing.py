"""Medians over repeated runs; the machine is never quiet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def median_seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(title: str, rows: list[tuple[str, float]], against: str) -> None:
    """Print seconds per row and how many times longer each row takes than the row `against`."""
    base = dict(rows)[against]
    print(f"\n{title}")
    for name, seconds in rows:
        print(f"  {name:<58} {seconds:10.4f} s   {seconds / base:8.1f} x")
