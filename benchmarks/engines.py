"""What Flower's messages cost: ``python -m benchmarks.engines``.

A round of FedAvg with B = 100 agents, by the bare engine (function calls) and by the in-process Grid (Flower's messages and
apps); both do the same tasks on the same data. The seconds of a round are the difference of a long and a short run, divided
by the difference of their rounds. Then B = 1000 agents on the Grid, in a process of its own, whose memory is read.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from statistics import median

import kinfed
from kinfed.collaboration import Comparison
from kinfed.engines.coordinator import coordinate
from kinfed.engines.federations import sites_of
from kinfed.engines.flower.simulation import in_process_channel
from kinfed.engines.in_process import InProcess
from kinfed.engines.wishes import Wishes
from kinfed.learners.neural import TorchLearner

SHORT, LONG, REPEATS = 2, 12, 3


def seconds(make_channel: object, n_agents: int, rounds: int, rule: str) -> float:
    train = kinfed.concept_shift(n_agents=n_agents, n=20, dim=20, spread=0.1, seed=0).train
    learner = TorchLearner(hidden=(32,), task="regression", method="fedavg", rounds=rounds, batch_size=10)
    wishes = Wishes(rule, comparison=Comparison(n_features=500), baselines=False)
    channel = make_channel(sites_of(train, None, learner))  # type: ignore[operator]
    began = time.perf_counter()
    coordinate(channel, learner, wishes, agents=n_agents)
    return time.perf_counter() - began


def per_round(make_channel: object, n_agents: int, rule: str) -> float:
    def once() -> float:
        return seconds(make_channel, n_agents, LONG, rule) - seconds(make_channel, n_agents, SHORT, rule)

    return median(once() for _ in range(REPEATS)) / (LONG - SHORT)


def thousand() -> None:
    """1000 agents, every model listened to by its kin: seconds and the most memory of this process."""
    began = time.perf_counter()
    seconds(in_process_channel, 1000, 2, "similarity-test")
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.perf_counter() - began:.1f} {gigabytes:.2f}")


def main() -> None:
    print("\nFedAvg, B = 100 agents of 20 rows, network 20-32-1, batches of 10: seconds per round")
    for rule in ("similarity-test", "q-aggregation"):
        bare, grid = (per_round(make, 100, rule) for make in (InProcess, in_process_channel))
        print(f"  weights by {rule:16s} bare {bare:.3f}   in-process Grid {grid:.3f}   {grid / bare:.2f} x (limit 3)")
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks.engines import thousand; thousand()"],
        capture_output=True,
        text=True,
        check=True,
    )
    took, gigabytes = done.stdout.split()[-2:]
    print(f"  B = 1000 on the in-process Grid, 2 rounds: {took} s, {gigabytes} GB at most (limit 2 GB)")


if __name__ == "__main__":
    main()
