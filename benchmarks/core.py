"""The core against the best alternative: solvers of quadratic programs, a plain loop, scikit-learn's features.

Run as ``python -m benchmarks.core``. Every comparison is like for like: the same problem, the same precision or a coarser
one for the alternative, the same machine in the same run, with the threads each library chooses by itself.
"""

from __future__ import annotations

import tracemalloc
from functools import partial

import clarabel
import highspy
import numpy as np
import piqp
from scipy import sparse
from sklearn.kernel_approximation import RBFSampler

import kinfed
from benchmarks.timing import report
from kinfed.bench import median_seconds
from kinfed.weights.active_set import active_set
from kinfed.weights.mirror_descent import exponential_gradient
from kinfed.weights.objective import SimplexProblem, q_aggregation_problem

SAMPLE = 8  # targets the general solvers are timed on; their time for all targets is extrapolated


def three_groups(n_agents: int, dim: int, n: int = 20, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    means = (0.3 * rng.standard_normal((3, dim)) / np.sqrt(dim))[rng.integers(0, 3, n_agents)]
    return list(means[:, None] + rng.standard_normal((n_agents, n, dim)) / np.sqrt(dim))


def by_piqp(problem: SimplexProblem, t: int) -> np.ndarray:
    n_agents = len(problem.gram)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-9
    linear = problem.linear[t] - 2 * problem.gram[problem.targets[t]]
    solver.setup(2 * problem.gram, linear, np.ones((1, n_agents)), np.ones(1), None, None, None, np.zeros(n_agents), None)
    solver.solve()
    return np.asarray(solver.result.x)


def by_clarabel(problem: SimplexProblem, t: int) -> np.ndarray:
    n_agents = len(problem.gram)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    linear = problem.linear[t] - 2 * problem.gram[problem.targets[t]]
    constraints = sparse.vstack([np.ones((1, n_agents)), -sparse.eye(n_agents)], format="csc")
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n_agents)]
    bounds = np.concatenate([[1.0], np.zeros(n_agents)])
    quadratic = sparse.csc_matrix(np.triu(2 * problem.gram))
    return np.array(clarabel.DefaultSolver(quadratic, linear, constraints, bounds, cones, settings).solve().x)


def by_highs(problem: SimplexProblem, t: int) -> np.ndarray:
    n_agents = len(problem.gram)
    model = highspy.HighsModel()
    model.lp_.num_col_, model.lp_.num_row_ = n_agents, 1
    model.lp_.col_cost_ = problem.linear[t] - 2 * problem.gram[problem.targets[t]]
    model.lp_.col_lower_, model.lp_.col_upper_ = np.zeros(n_agents), np.ones(n_agents)
    model.lp_.row_lower_ = model.lp_.row_upper_ = np.ones(1)
    model.lp_.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.lp_.a_matrix_.start_ = np.array([0, n_agents])
    model.lp_.a_matrix_.index_ = np.arange(n_agents)
    model.lp_.a_matrix_.value_ = np.ones(n_agents)
    lower = sparse.csc_matrix(np.tril(2 * problem.gram))
    model.hessian_.dim_ = n_agents
    model.hessian_.start_, model.hessian_.index_, model.hessian_.value_ = lower.indptr, lower.indices, lower.data
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(model)
    solver.run()
    return np.array(solver.getSolution().col_value)


def exact_solver(n_agents: int = 1000, dim: int = 500) -> None:
    problem = q_aggregation_problem(kinfed.explicit_geometry(three_groups(n_agents, dim)), 1.0, 1.0)
    weights, gap, _ = active_set(problem)
    ours = problem.value(weights)
    rows = [("kinfed, all targets at once", median_seconds(lambda: active_set(problem)))]
    targets = np.linspace(0, n_agents - 1, SAMPLE).astype(int)
    for name, solve in (("PIQP", by_piqp), ("HiGHS", by_highs), ("Clarabel", by_clarabel)):
        seconds = median_seconds(
            lambda solve=solve: [solve(problem, t) for t in targets], repeats=3 if name != "Clarabel" else 1
        )
        found = np.maximum([solve(problem, t) for t in targets], 0.0)
        values = problem.rows(targets).value(found / found.sum(axis=1, keepdims=True))
        worst = np.max(np.abs(values - ours[targets]) / ours[targets])
        rows.append((f"{name}, looped over targets (objective within {worst:.0e})", seconds * n_agents / SAMPLE))
    rows.append(("one product W G, the least a certificate needs", median_seconds(lambda: weights @ problem.gram, 9)))
    report(
        f"Exact weights for all {n_agents} targets, D = {dim} (relative gap {np.max(gap / problem.alone):.0e})",
        rows,
        against=rows[0][0],
    )


def plain_loop(problem: SimplexProblem, t: int, steps: int) -> np.ndarray:
    """Algorithm 3 for one target as one would write it down."""
    gram, target = problem.gram, problem.targets[t]
    A = gram - gram[target] - gram[target][:, None] + gram[target, target]
    b = problem.linear[t]
    eta = 0.5 / (2 * np.linalg.norm(A, 2) + np.abs(b).max())
    w = np.full(len(gram), 1 / len(gram))
    for _ in range(steps):
        proxy = w * np.exp(-eta * (2 * A @ w + b))
        proxy /= proxy.sum()
        w = w * np.exp(-eta * (2 * A @ proxy + b))
        w /= w.sum()
    return w


def algorithm_three(n_agents: int = 300, dim: int = 500, steps: int = 1000) -> None:
    problem = q_aggregation_problem(kinfed.explicit_geometry(three_groups(n_agents, dim)))
    together = median_seconds(lambda: exponential_gradient(problem, steps))
    targets = np.linspace(0, n_agents - 1, SAMPLE).astype(int)
    alone = median_seconds(lambda: [plain_loop(problem, t, steps) for t in targets]) * n_agents / SAMPLE
    worst = max(np.abs(exponential_gradient(problem, steps)[0][t] - plain_loop(problem, t, steps)).max() for t in targets)
    matrix = np.random.default_rng(0).random((n_agents, n_agents))
    limit = 2 * steps * median_seconds(lambda: matrix @ problem.gram, 25)
    rows = [
        ("kinfed, all targets at once", together),
        (f"plain loop over targets (weights within {worst:.0e})", alone),
        ("the 2 T matrix products alone", limit),
    ]
    report(f"Algorithm 3 for all {n_agents} targets, T = {steps}", rows, against=rows[0][0])


def transform_and_mean(sampler: RBFSampler, Z: np.ndarray) -> np.ndarray:
    return sampler.transform(Z).mean(axis=0)


def sketches(n: int = 200_000, dim: int = 64, n_features: int = 1000) -> None:
    for kind in (np.float64, np.float32):
        Z = np.random.default_rng(0).standard_normal((n, dim)).astype(kind)
        reference = RBFSampler(gamma=0.5 / dim, n_components=n_features, random_state=0).fit(Z)
        rows = []
        for sampling in ("iid", "orthogonal"):
            features = kinfed.FourierFeatures(kinfed.Gaussian(np.sqrt(dim)), n_features, dim=dim, sampling=sampling)
            rows.append((f"kinfed.sketch, {sampling}", median_seconds(partial(kinfed.sketch, Z, features), 5)))
        rows.append(("RBFSampler.transform(Z).mean(axis=0)", median_seconds(partial(transform_and_mean, reference, Z), 5)))
        report(f"Mean of D = {n_features} features over {n:,} x {dim} points, {kind.__name__}", rows, against=rows[0][0])
        tracemalloc.start()
        kinfed.sketch(Z, features)
        print(f"  extra memory of kinfed.sketch at its peak: {tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB")
        tracemalloc.stop()


def main() -> None:
    exact_solver()
    algorithm_three()
    sketches()


if __name__ == "__main__":
    main()
