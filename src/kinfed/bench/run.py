"""Time all tasks and say on what machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_info

from kinfed.bench.tasks import TASKS, Sizes, tasks
from kinfed.bench.timing import median_seconds_beside
from kinfed.parallel import available_cores

if TYPE_CHECKING:
    import pandas

from kinfed.progress import Progress


@dataclass(frozen=True)
class Timing:
    """Seconds of a task and of its limit, medians both."""

    task: str
    seconds: float
    limit: str
    limit_seconds: float

    @property
    def ratio(self) -> float:
        """How many times longer the task takes than its limit."""
        return self.seconds / self.limit_seconds


@dataclass(frozen=True)
class Bench:
    """All timings of one run, with the machine and the sizes they are for."""

    timings: tuple[Timing, ...]
    sizes: Sizes
    machine: Mapping[str, Any]

    def to_frame(self) -> pandas.DataFrame:
        """A row per task."""
        import pandas

        return pandas.DataFrame([{**asdict(one), "ratio": one.ratio} for one in self.timings])

    def facts(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "machine": dict(self.machine),
            "sizes": asdict(self.sizes),
            "tasks": [{**asdict(one), "ratio": one.ratio} for one in self.timings],
        }


def run_bench(sizes: Sizes | None = None, *, seed: int = 0, progress: Progress | None = None) -> Bench:
    """Time every task beside its limit, in turn, so that a busy machine slows both.

    Parameters
    ----------
    sizes : Sizes, optional
        Of the federation.
    seed : int
        Of its data.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    """
    chosen = sizes or Sizes()
    timings = []
    for number, task in enumerate(tasks(chosen, seed)):
        if progress is not None:
            progress("timing", number, TASKS)
        taken, product = median_seconds_beside(task.work, task.product, chosen.repeats)
        timings.append(Timing(task.name, taken, task.limit, task.times() * product))
    if progress is not None:
        progress("timing", TASKS, TASKS)
    return Bench(tuple(timings), chosen, machine())


def machine() -> dict[str, Any]:
    """What the timings depend on besides kinfed."""
    libraries = [one for one in threadpool_info() if one.get("user_api") == "blas"]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": available_cores(),
        "linear algebra": ", ".join(sorted({f"{one['internal_api']} {one['version']}" for one in libraries})) or "unknown",
        "threads": max((int(one["num_threads"]) for one in libraries), default=1),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "kinfed": version("kinfed"),
    }
