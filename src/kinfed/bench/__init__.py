"""How fast kinfed is on this machine: its tasks, each beside a matrix product of the same arithmetic."""

from kinfed.bench.run import Bench, Timing, run_bench
from kinfed.bench.tasks import Sizes

__all__ = ["Bench", "Sizes", "Timing", "run_bench"]
