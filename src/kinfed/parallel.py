"""Independent pieces of array work on all cores.

NumPy lets go of the interpreter lock inside its loops, so threads are enough. While they run, BLAS is held to one thread:
two levels of threads on the same cores would only get in each other's way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

# Starting threads and holding BLAS back costs a few milliseconds, in which one core does some 10^7 operations.
_WORTH_THREADS = 5e7

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_on_cores(
    function: Callable[[Item], Result], items: Iterable[Item], operations: float = math.inf
) -> Iterable[Result]:
    """Results of `function` on every item, in order, to be gone through once; the first error is raised.

    `operations` is a rough count of arithmetic operations in all: a little work is done before threads have started.
    """
    work = list(items)
    workers = min(available_cores(), len(work)) if operations > _WORTH_THREADS else 1
    if workers <= 1:
        return map(function, work)
    with threadpool_limits(1), ThreadPoolExecutor(workers) as executor:
        return list(executor.map(function, work))
