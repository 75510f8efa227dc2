"""All targets at once against a loop of scikit-learn fits: ``python -m benchmarks.learners``.

Both sides solve the same problems to the same tolerance, and the difference of their predictions is printed. The loop is
timed on a few targets and scaled up to all of them. It has one BLAS thread, since several only wait for each other on
problems this small, and the faster of the two solvers that suit these sizes. Columns are standardised and correlated, as
in most tables. Medians over repetitions that alternate between the two sides, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import linear_model
from threadpoolctl import threadpool_limits

from kinfed.backends.pooled import PooledAgents
from kinfed.federation import Federation
from kinfed.learners import Logistic, Ridge

REPETITIONS = 3
LOOP_TARGETS = 8
TOLERANCE = 1e-6


def make_federation(n_agents: int, size: int, dim: int, n_classes: int, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(n_agents), size)
    correlation = 0.8 ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
    X = rng.normal(size=(len(agent), dim)) @ np.linalg.cholesky(correlation).T
    slopes = rng.normal(size=(max(n_classes, 1), dim)) + 0.5 * rng.normal(size=(n_agents, max(n_classes, 1), dim))
    signal = np.einsum("id,icd->ic", X, slopes[agent])
    y = (signal + rng.gumbel(size=signal.shape)).argmax(axis=1) if n_classes else signal[:, 0] + rng.normal(size=len(X))
    return Federation.from_arrays(X, y, agent)


def weight_matrices(n_agents: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    every = np.maximum(rng.dirichlet(np.full(n_agents, 0.3), size=n_agents), 1e-9)
    tenth = every * (rng.random(every.shape) < 0.1) + 0.3 * np.eye(n_agents)
    return {
        "all agents": every / every.sum(axis=1, keepdims=True),
        "a tenth": tenth / tenth.sum(axis=1, keepdims=True),
        "alone": np.eye(n_agents),
    }


def loop(federation: Federation, weights: np.ndarray, estimator: Any, targets: range) -> list[Any]:
    X, y, agent = federation.pooled()
    fitted = []
    with threadpool_limits(1):
        for t in targets:
            sample_weight = (weights[t] / federation.sizes)[agent]
            kept = sample_weight > 0
            fitted.append(estimator().fit(X[kept], y[kept], sample_weight=sample_weight[kept]))
    return fitted


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def compare(label: str, federation: Federation, weights: np.ndarray, learner: Any, estimators: list[Any]) -> None:
    targets = range(0, len(weights), max(1, len(weights) // LOOP_TARGETS))
    ours: list[float] = []
    theirs: list[list[float]] = [[] for _ in estimators]
    for _ in range(REPETITIONS):
        agents = PooledAgents(federation, learner.task)  # new ones: nothing of an earlier fit is known
        taken, models = seconds(lambda agents=agents: learner.fit(agents, weights))
        ours.append(taken)
        for times, estimator in zip(theirs, estimators, strict=True):
            taken, fitted = seconds(lambda estimator=estimator: loop(federation, weights, estimator, targets))
            times.append(taken * len(weights) / len(targets))
    fresh = np.random.default_rng(5).normal(size=(200, federation.dim))
    method = "predict_proba" if hasattr(models, "predict_proba") else "predict"
    apart = max(
        np.abs(getattr(models, method)(t, fresh) - getattr(one, method)(fresh)).max()
        for t, one in zip(targets, fitted, strict=True)
        if getattr(models, method)(t, fresh).shape == getattr(one, method)(fresh).shape
    )
    mine, best = statistics.median(ours), min(statistics.median(times) for times in theirs)
    print(f"{label:<46}{mine:9.3f} s{best:13.3f} s{best / mine:8.1f} x{apart:11.1e}", flush=True)


def main() -> None:
    print(f"{'':<46}{'kinfed':>11}{'scikit-learn':>15}{'ratio':>10}{'apart':>11}")
    for n_agents in (160, 500):
        for support, weights in weight_matrices(n_agents).items():
            ridge = make_federation(n_agents, 40, 20, 0)
            penalty = Ridge().penalty
            compare(
                f"ridge, B={n_agents} n=40 d=20, {support}",
                ridge,
                weights,
                Ridge(),
                [lambda penalty=penalty: linear_model.Ridge(alpha=penalty)],
            )
    for n_agents, n_classes in ((160, 2), (160, 5), (500, 2)):
        federation = make_federation(n_agents, 40, 20, n_classes)
        learner = Logistic(tolerance=TOLERANCE)

        def logistic(solver: str, penalty: float = learner.penalty) -> Callable[[], Any]:
            return lambda: linear_model.LogisticRegression(C=1 / (2 * penalty), tol=TOLERANCE, solver=solver, max_iter=1000)

        for support, weights in weight_matrices(n_agents).items():
            label = f"logistic, B={n_agents} n=40 d=20 C={n_classes}, {support}"
            compare(label, federation, weights, learner, [logistic("lbfgs"), logistic("newton-cholesky")])


if __name__ == "__main__":
    main()
