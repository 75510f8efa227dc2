r"""How fast kinfed is on this machine: its tasks, each beside a matrix product of the same arithmetic.

With B agents of n points, N = B n, d columns, D features and T steps. A limit is what a perfect implementation of the same
sums would take if it ran as fast as the linear algebra library multiplies matrices; it leaves out cosines, exponentials and
everything else that is not a sum of products.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas
from threadpoolctl import threadpool_info

from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation, concept_shift
from kinfed.embedding import FourierFeatures, Gaussian
from kinfed.embedding.sketch import sketch
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.parallel import available_cores
from kinfed.progress import Progress
from kinfed.run import personalize
from kinfed.weights import explicit_geometry
from kinfed.weights.active_set import active_set
from kinfed.weights.mirror_descent import exponential_gradient
from kinfed.weights.objective import q_aggregation_problem

TASKS = 8
FOLDS = 5  # of the calibration
_OFTEN = 9


@dataclass(frozen=True)
class Sizes:
    """Of the federation tasks are timed on.

    Attributes
    ----------
    agents, points, dim, features : int
        B, n, d and D.
    steps : int
        T, of Algorithm 3.
    repeats : int
        Runs a median is taken of.
    """

    agents: int = 100
    points: int = 50
    dim: int = 20
    features: int = 500
    steps: int = 1000
    repeats: int = 3

    def __post_init__(self) -> None:
        for name, least in (("agents", 2), ("points", 5), ("dim", 1), ("features", 2), ("steps", 1), ("repeats", 1)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Task:
    """Work to be timed beside its limit.

    Attributes
    ----------
    name : str
    work : callable
    limit : str
        The product that does the same arithmetic.
    product : callable
        Does it once.
    times : callable
        How often the work needs it; asked after the work was done.
    """

    name: str
    work: Callable[[], Any]
    limit: str
    product: Callable[[], Any]
    times: Callable[[], int] = lambda: 1


def tasks(sizes: Sizes, seed: int = 0) -> Iterator[Task]:
    """All tasks, each from what the one before it found."""
    drawn = concept_shift(sizes.agents, sizes.points, sizes.dim, spread=0.1, seed=seed).train
    train = Preparation.fit(drawn).transform(drawn)
    labelled = _labelled(train)
    X, _, _ = train.pooled()
    features = FourierFeatures(Gaussian(np.sqrt(sizes.dim)), sizes.features, dim=sizes.dim, seed=seed)
    frequencies = np.ascontiguousarray(features.frequencies)
    angles = "the product Z W of points and frequencies, N x d x D"
    yield Task("features of all points", lambda: features(X), angles, lambda: X @ frequencies)
    yield Task("sketch of all points", lambda: sketch(X, features), angles, lambda: X @ frequencies)

    points = [features(agent.X) for agent in train]
    pooled, means = np.vstack(points), np.array([one.mean(axis=0) for one in points])
    yield Task(
        "geometry of all agents",
        lambda: explicit_geometry(points, norm_bound=features.norm_bound),
        "the product of features and means, N x D x B",
        lambda: pooled @ means.T,
    )
    problem = q_aggregation_problem(explicit_geometry(points, norm_bound=features.norm_bound))
    weights = exponential_gradient(problem, sizes.steps)[0]
    certificate = "the product W G, B x B x B"
    yield Task(
        "weights by Algorithm 3",
        lambda: exponential_gradient(problem, sizes.steps),
        f"2 T times {certificate}",
        lambda: weights @ problem.gram,
        lambda: 2 * sizes.steps,
    )
    yield Task("exact weights, certified", lambda: active_set(problem), certificate, lambda: weights @ problem.gram)

    width = sizes.dim + 1
    moments = np.random.default_rng(seed).standard_normal((sizes.agents, width * width))
    ridge, logistic = make_learner("ridge"), make_learner("logistic")
    mixing = "the product of weights and moments, B x B x (d+1)^2"
    yield Task(
        "ridge regression for all agents",
        lambda: ridge.fit(PooledAgents(train, "regression"), weights),
        f"the product X'X, d x N x d, and {mixing}",
        lambda: (X.T @ X, weights @ moments),
    )
    curvature = np.random.default_rng(seed).standard_normal((len(X), width * width))
    shares = np.repeat(weights, sizes.points, axis=1)
    yield Task(
        "logistic regression for all agents",
        lambda: logistic.fit(PooledAgents(labelled, "classification"), weights),
        "one step's second derivatives, B x N x (d+1)^2",
        lambda: shares @ curvature,
    )
    counted: list[int] = []

    def whole() -> None:
        result = personalize(train, "ridge", "calibrated", seed=seed, n_features=sizes.features, options={"folds": FOLDS})
        counted.append(0 if result.weights.calibration is None else len(result.weights.calibration.candidates))

    yield Task(
        "personalize, calibrated, end to end",
        whole,
        f"for every candidate in every one of {FOLDS} folds {mixing}",
        lambda: weights @ moments,
        lambda: FOLDS * counted[-1],
    )


def _labelled(federation: Federation) -> Federation:
    """The same points, with the sign of the target for a class."""
    agents = (replace(one, y=(np.asarray(one.y) > 0).astype(np.int64)) for one in federation)
    return replace(federation, agents=tuple(agents))


def seconds(function: Callable[[], Any]) -> float:
    """How many seconds one call of the function takes."""
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
        """A table with a row per task."""
        return pandas.DataFrame(self.facts()["tasks"])

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, in the types JSON has."""
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
