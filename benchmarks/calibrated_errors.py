"""Is the calibrated rule as good as that of kinfed 0.1.0? Test errors on the same rows, paired.

    python -m benchmarks.calibrated_errors --release PYTHON [--data FOLDER] [--repetitions 10] [--only TEXT]

PYTHON is an interpreter beside which kinfed 0.1.0 is installed; `benchmarks.against_release` says how to make one. Both
sides work on the same rows: generators of 40 agents, with errors on fresh rows, and, with FOLDER, real federations, half of
the rows of every agent or 20 of them for training. A case is as good if the ratio of mean errors (squared errors, or Brier
scores) is at most 1.01, or 1.03 with fewer than 40 agents, up to one standard error of the repetitions. The exit code
is 1 if one is not. What each side found is kept in a file, so that a run that is cut off goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

MANY_AGENTS, LIMITS = 40, {True: 1.01, False: 1.03}
LEAST_TEST, SMALLEST = 4, 8

Rows = tuple[Any, Any]
"""Training and test federation."""


def generated() -> Iterator[tuple[str, Callable[[int], Rows], str]]:
    """Cases of the generators: name, rows of a repetition, learner."""
    import kinfed

    def concept(**how: Any) -> Callable[[int], Rows]:
        def draw(seed: int) -> Rows:
            made = kinfed.concept_shift(MANY_AGENTS, **{"n": 10, "dim": 20, **how}, seed=seed)
            return made.train, made.test(200, seed=seed + 1)

        return draw

    def unstructured(agents: str) -> Callable[[int], Rows]:
        def draw(seed: int) -> Rows:
            made = kinfed.no_structure(MANY_AGENTS, 10, 20, agents=agents, seed=seed)
            return made.train, made.test(200, seed=seed + 1)

        return draw

    def covariate(seed: int) -> Rows:
        made = kinfed.covariate_shift(sizes=(14, 14, 14), n=20, seed=seed)
        return made.train, made.test(200, seed=seed + 1)

    def classes(seed: int) -> Rows:
        made = kinfed.concept_shift(MANY_AGENTS, 25, 5, spread=0.1, seed=seed)
        rows = made.train, made.test(200, seed=seed + 1)
        return tuple(with_outcome(one, lambda y: (y > 0).astype(int)) for one in rows)  # type: ignore[return-value]

    for spread in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0):
        yield f"two groups, spread {spread:g}", concept(spread=spread, groups=2), "ridge"
    for groups, spread in ((3, 0.0), (3, 0.25), (5, 0.0), (5, 0.25)):
        yield f"{groups} groups, spread {spread:g}", concept(spread=spread, groups=groups), "ridge"
    for dim, spread in ((5, 0.1), (5, 0.5), (50, 0.1), (50, 0.5)):
        yield f"{dim} columns, spread {spread:g}", concept(spread=spread, groups=2, dim=dim), "ridge"
    yield "unequal sizes", concept(spread=0.25, groups=2, n=(5, 200)), "ridge"
    yield "unrelated", unstructured("unrelated"), "ridge"
    yield "identical", unstructured("same"), "ridge"
    yield "covariate shift", covariate, "ridge"
    yield "two classes", classes, "logistic"


def real(folder: Path) -> Iterator[tuple[str, Callable[[int], Rows], str]]:
    """Cases of the real federations."""
    files = (
        ("hsb82_schools", "ridge"),
        ("communities_crime", "ridge"),
        ("landmine", "logistic"),
        ("heart_disease", "logistic"),
    )
    for file, learner in files:
        for points in (None, 20):
            amount = "half" if points is None else f"{points} rows"
            yield (
                f"{file}, {amount}",
                lambda seed, file=file, points=points: halved(folder / f"{file}.npz", points, seed),
                learner,
            )


def halved(path: Path, points: int | None, seed: int) -> Rows:
    """Half of every agent's rows, or so many, for training, and the others for testing; small agents are left out."""
    import kinfed

    with np.load(path, allow_pickle=False) as data:
        X, y, agent = data["X"].astype(float), data["y"], data["agent"]
    rng = np.random.default_rng(seed)
    parts: tuple[list[Any], list[Any]] = [], []
    for k in np.unique(agent):
        rows = rng.permutation(np.flatnonzero(agent == k))
        count = len(rows) // 2 if points is None else min(points, len(rows) - LEAST_TEST)
        if count >= SMALLEST and len(rows) - count >= LEAST_TEST:
            parts[0].append(rows[:count])
            parts[1].append(rows[count:])
    chosen = [np.concatenate(part) for part in parts]
    outcome = y.astype(int) if y.dtype.kind == "i" else y.astype(float)
    train, test = (kinfed.Federation.from_arrays(X[part], outcome[part], agent[part]) for part in chosen)
    return train, test


def with_outcome(federation: Any, change: Callable[[Any], Any]) -> Any:
    """The same rows with another outcome."""
    import kinfed

    X, y, agent = federation.pooled()
    return kinfed.Federation.from_arrays(X, change(np.asarray(y)), np.asarray(federation.names)[agent])


def error(train: Any, test: Any, learner: str, seed: int) -> float:
    """The mean over agents of the test error of the calibrated rule."""
    import kinfed

    found = kinfed.personalize(train, learner, "calibrated", test, seed, baselines=False)
    if learner == "ridge":
        return float(found.scores["personalized"].mean())
    losses = []
    for row, agent in enumerate(found.preparation.transform(test)):
        apart = found.models.predict_proba(row, agent.X) - (np.asarray(agent.y)[:, None] == found.models.classes)
        losses.append(float(np.square(apart).sum(axis=1).mean()))
    return float(np.mean(losses))


def work(out: Path, data: Path | None, repetitions: int, only: str) -> None:
    """All cases on one side."""
    found = json.loads(out.read_text()) if out.exists() else {}
    cases = [*generated(), *(() if data is None else real(data))]
    for repetition in range(repetitions):
        for name, rows, learner in cases:
            mine = found.setdefault(name, {"agents": 0, "errors": []})
            if only in name and len(mine["errors"]) <= repetition:
                train, test = rows(1000 + repetition)
                mine["agents"] = len(train)
                mine["errors"].append(error(train, test, learner, repetition))
                out.write_text(json.dumps(found))


def main() -> int:
    """Run both sides, and compare."""
    parser = argparse.ArgumentParser(description="Errors of the calibrated rule against those of kinfed 0.1.0.")
    parser.add_argument("--release", help="an interpreter with kinfed 0.1.0")
    parser.add_argument(
        "--new", default=sys.executable, help="an interpreter with the code to compare; this one by default"
    )
    parser.add_argument("--data", type=Path, help="a folder with real federations")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this text")
    parser.add_argument("--kept", type=Path, default=Path("calibrated-errors"), help="folder for what was found")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.work, chosen.data, chosen.repetitions, chosen.only)
        return 0
    chosen.kept.mkdir(parents=True, exist_ok=True)
    files = {name: chosen.kept.resolve() / f"{name}.json" for name in ("release", "new")}
    for name, python in (("release", chosen.release), ("new", chosen.new)):
        command = [
            python,
            str(Path(__file__).resolve()),
            "--work",
            str(files[name]),
            "--repetitions",
            str(chosen.repetitions),
        ]
        command += ["--only", chosen.only, *(["--data", str(chosen.data.resolve())] if chosen.data else [])]
        hidden = {"PYTHONPATH"} if name == "release" else set()
        subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k not in hidden})
    old, new = (json.loads(files[name].read_text()) for name in ("release", "new"))
    bad = 0
    print(f"{'case':32}{'agents':>7}{'repetitions':>12}{'ratio':>8}{'error':>8}")
    for name in (one for one in old if new.get(one, {"errors": []})["errors"]):
        count = min(len(old[name]["errors"]), len(new[name]["errors"]))
        before, after = (np.array(side[name]["errors"][:count]) for side in (old, new))
        ratio, deviation = after.mean() / before.mean(), float(np.std(after / before) / np.sqrt(max(count - 1, 1)))
        worse = ratio - deviation > LIMITS[old[name]["agents"] >= MANY_AGENTS]
        bad += worse
        print(f"{name:32}{old[name]['agents']:7}{count:12}{ratio:8.3f}{deviation:8.3f}{'  WORSE' if worse else ''}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
