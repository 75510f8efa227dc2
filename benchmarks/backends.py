"""What messages cost: ``python -m benchmarks.backends``.

A round of FedAvg with B = 100 agents on the backends "pooled" (all rows here), "sites" (every agent a site, by function
calls) and "flower" (by Flower's messages and apps, in this process); all train the same models on the same data. The
seconds of a round are the difference of a long and a short run, divided by the difference of their rounds. Then B = 1000
agents on Flower, in a process of its own, whose memory is read.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from statistics import median

import kinfed
from kinfed.learners.neural import TorchLearner

SHORT, LONG, REPEATS = 2, 12, 3


def seconds(backend: str, n_agents: int, rounds: int, rule: str) -> float:
    train = kinfed.concept_shift(n_agents=n_agents, n=20, dim=20, spread=0.1, seed=0).train
    learner = TorchLearner(hidden=(32,), task="regression", method="fedavg", rounds=rounds, batch_size=10)
    began = time.perf_counter()
    kinfed.personalize(train, learner, rule, backend=backend, baselines=False)
    return time.perf_counter() - began


def per_round(backend: str, n_agents: int, rule: str) -> float:
    def once() -> float:
        return seconds(backend, n_agents, LONG, rule) - seconds(backend, n_agents, SHORT, rule)

    return median(once() for _ in range(REPEATS)) / (LONG - SHORT)


def thousand() -> None:
    """1000 agents, every model listened to by its kin: seconds and the most memory of this process."""
    took = seconds("flower", 1000, 2, "similarity-test")
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{took:.1f} {gigabytes:.2f}")


def main() -> None:
    print("\nFedAvg, B = 100 agents of 20 rows, network 20-32-1, batches of 10: seconds per round")
    for rule in ("similarity-test", "q-aggregation"):
        pooled, sites, flower = (per_round(backend, 100, rule) for backend in ("pooled", "sites", "flower"))
        print(
            f"  weights by {rule:16s} pooled {pooled:.3f}   sites {sites:.3f}   flower {flower:.3f}   "
            f"{flower / sites:.2f} x sites (limit 3)"
        )
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks.backends import thousand; thousand()"],
        capture_output=True,
        text=True,
        check=True,
    )
    took, gigabytes = done.stdout.split()[-2:]
    print(f"  B = 1000 on Flower in one process, 2 rounds: {took} s, {gigabytes} GB at most (limit 2 GB)")


if __name__ == "__main__":
    main()
