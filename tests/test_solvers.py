"""The two solvers against independent ones: a plain loop, and interior-point methods for quadratic programs."""

import clarabel
import numpy as np
import piqp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import kinfed
from conftest import embedded_agents
from kinfed.weights.active_set import OPTIMAL, active_set
from kinfed.weights.mirror_descent import exponential_gradient, shifted_operator_norms
from kinfed.weights.objective import SimplexProblem, duality_gap, q_aggregation_problem


def paper_by_the_letter(points, target, c_q, c_p, norm_bound, steps=1000, c=0.5):
    """Algorithms 1 and 3 for one target, from the points and with its own matrix A."""
    means = np.array([Z.mean(axis=0) for Z in points])
    own, n = points[target], len(points[target])
    differences = means - means[target]
    A = differences @ differences.T
    covariance = np.cov(own, rowvar=False).reshape(own.shape[1], own.shape[1])
    b = np.zeros(len(points))
    for k, difference in enumerate(differences):
        b[k] = c_q * np.sqrt(max(difference @ covariance @ difference, 0) / n)
        b[k] += c_p * norm_bound / n * np.linalg.norm(difference)
    b[target] += 2 * np.trace(covariance) / n
    eta = c / (2 * np.linalg.norm(A, 2) + np.abs(b).max())
    w = np.full(len(points), 1 / len(points))
    for _ in range(steps):
        proxy = w * np.exp(-eta * (2 * A @ w + b))
        proxy /= proxy.sum()
        w = w * np.exp(-eta * (2 * A @ proxy + b))
        w /= w.sum()
    return w, w @ A @ w + b @ w


@pytest.mark.parametrize("kind", ["clustered", "duplicated", "rank-deficient", "zero-variance"])
def test_exponential_gradient_equals_the_plain_loop(kind):
    points = embedded_agents(kind, 25, 12, 6)
    for c_q, c_p, steps, scale in ((1.3, 0.7, 1000, 0.5), (0.0, 0.0, 150, 1.5)):
        weights = kinfed.q_aggregation(points, c_q=c_q, c_p=c_p, norm_bound=5.0, steps=steps, step_scale=scale)
        for t in range(25):
            expected, value = paper_by_the_letter(points, t, c_q, c_p, 5.0, steps, scale)
            np.testing.assert_allclose(weights.matrix[t], expected, rtol=1e-9, atol=1e-12)
            assert weights.objective[t] == pytest.approx(value, rel=1e-9, abs=1e-14)


def test_default_constants_are_the_papers():
    points = embedded_agents("clustered", 12, 8, 5)
    bound = max(np.linalg.norm(Z, axis=1).max() for Z in points)
    expected, _ = paper_by_the_letter(points, 3, np.sqrt(np.log(12)), np.log(12), bound)
    np.testing.assert_allclose(kinfed.q_aggregation(points, targets=3).matrix[0], expected, rtol=1e-9)


def test_some_targets_equal_all_targets_and_the_path_holds_its_checkpoints():
    points = embedded_agents("clustered", 30, 10, 5)
    everyone = kinfed.q_aggregation(points)
    some = kinfed.q_aggregation(points, targets=[7, 3])
    np.testing.assert_allclose(some.matrix, everyone.matrix[[7, 3]], rtol=1e-12)
    problem = q_aggregation_problem(kinfed.explicit_geometry(points))
    last, path = exponential_gradient(problem, 200, checkpoints=(10, 200, 50, 999))
    assert sorted(path) == [10, 50, 200]
    np.testing.assert_array_equal(path[200], last)
    np.testing.assert_allclose(path[50], exponential_gradient(problem, 50)[0], rtol=1e-12)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 10_000), st.booleans())
def test_shifted_operator_norms(n_agents, dim, seed, duplicated):
    means = np.random.default_rng(seed).standard_normal((n_agents, dim))
    if duplicated:
        means[: n_agents // 2] = means[0]
    norms = shifted_operator_norms(means @ means.T)
    for t in range(n_agents):
        differences = means - means[t]
        assert norms[t] == pytest.approx(np.linalg.norm(differences @ differences.T, 2), rel=1e-9, abs=1e-9)


def relative_gap(weights, points, c_q, c_p):
    """The certificate computed anew from the points in extended precision, in units of the value of learning alone."""
    points = [np.asarray(Z, dtype=np.longdouble) for Z in points]
    means = np.array([Z.mean(axis=0) for Z in points])
    if c_q is None:
        c_q, c_p = np.sqrt(np.log(len(points))), np.log(len(points))
    bound = max(np.sqrt((Z**2).sum(axis=1)).max() for Z in points)
    gaps = []
    for w, t in zip(weights.matrix.astype(np.longdouble), weights.targets, strict=True):
        spread, n = points[t] - means[t], len(points[t])
        apart = means - means[t]
        linear = c_q * np.sqrt(((spread @ apart.T) ** 2).sum(axis=0) / (n - 1) / n)
        linear += c_p * bound / n * np.sqrt((apart**2).sum(axis=1))
        alone = 2 * (spread**2).sum() / (n - 1) / n
        linear[t] = alone
        slopes = 2 * apart @ (w @ apart) + linear
        gap = np.sum(w * (slopes - slopes.min()))
        gaps.append(float(gap / alone) if alone > 1e-30 else float(gap))
    return np.array(gaps)


@pytest.mark.parametrize("constants", [(0.0, 0.0), (0.05, 0.02), (1.0, 1.0), (None, None)])
def test_the_exact_solver_is_certified(kind, constants):
    points = embedded_agents(kind, 60, 40, 6)
    weights = kinfed.q_aggregation(points, c_q=constants[0], c_p=constants[1], solver="exact")
    assert relative_gap(weights, points, *constants).max() <= 1e-10
    assert set(weights.stop) == {OPTIMAL}
    assert (weights.matrix >= 0).all()
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0, rtol=1e-14)


def by_piqp(problem, t):
    n_agents = len(problem.gram)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-12
    linear = problem.linear[t] - 2 * problem.gram[problem.targets[t]]
    solver.setup(2 * problem.gram, linear, np.ones((1, n_agents)), np.ones(1), None, None, None, np.zeros(n_agents), None)
    solver.solve()
    return np.asarray(solver.result.x)


def by_clarabel(problem, t):
    n_agents = len(problem.gram)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    linear = problem.linear[t] - 2 * problem.gram[problem.targets[t]]
    constraints = sparse.vstack([np.ones((1, n_agents)), -sparse.eye(n_agents)], format="csc")
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n_agents)]
    bounds = np.concatenate([[1.0], np.zeros(n_agents)])
    quadratic = sparse.csc_matrix(np.triu(2 * problem.gram))
    return np.array(clarabel.DefaultSolver(quadratic, linear, constraints, bounds, cones, settings).solve().x)


@pytest.mark.parametrize("oracle", [by_piqp, by_clarabel])
@pytest.mark.parametrize("kind", ["same", "random", "clustered", "duplicated", "rank-deficient", "zero-variance"])
def test_the_exact_objective_equals_an_independent_solvers(kind, oracle):
    points = embedded_agents(kind, 40, 30, 6, seed=3)
    for c_q, c_p in ((0.0, 0.0), (0.1, 0.05), (1.0, 0.5)):
        problem = q_aggregation_problem(kinfed.explicit_geometry(points), c_q, c_p)
        weights, _, _ = active_set(problem)
        found = problem.value(weights)
        for t in range(0, 40, 7):
            independent = np.maximum(oracle(problem, t), 0)
            independent /= independent.sum()
            value = problem.rows(np.array([t])).value(independent[None])[0]
            assert found[t] <= value + 1e-12
            assert found[t] == pytest.approx(value, rel=1e-8, abs=1e-9)


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 100_000), st.floats(0, 2))
def test_no_point_of_the_simplex_beats_the_certificate(n_agents, dim, seed, size):
    """On arbitrary problems, not only those of embeddings: linear terms of any sign."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((n_agents, dim))
    linear = size * rng.standard_normal((n_agents, n_agents))
    problem = SimplexProblem(means @ means.T, linear, np.arange(n_agents))
    weights, gap, _ = active_set(problem)
    value = problem.value(weights)
    scale = np.abs(problem.gram).max() + np.abs(linear).max()
    assert (gap <= 1e-10 * scale).all()
    np.testing.assert_allclose(gap, duality_gap(problem.gradient(weights), weights), atol=1e-12 * scale)
    for _ in range(20):
        other = rng.dirichlet(np.full(n_agents, 0.3), n_agents)
        assert (problem.value(other) >= value - gap - 1e-12 * scale).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, dim, constants",
    [
        ("random", 300, (0.1, 0.1)),
        ("clustered", 500, (1.0, 1.0)),
        ("same", 200, (0.0, 0.0)),
        ("duplicated", 100, (0.05, 0.05)),
        ("rank-deficient", 100, (0.0, 0.0)),
        ("zero-variance", 50, (0.1, 0.1)),
        ("clustered", 500, (None, None)),
    ],
)
def test_two_thousand_agents_are_certified(kind, dim, constants):
    points = embedded_agents(kind, 2000, dim, 8, seed=1)
    weights = kinfed.q_aggregation(points, c_q=constants[0], c_p=constants[1], solver="exact", targets=range(0, 2000, 20))
    assert relative_gap(weights, points, *constants).max() <= 1e-10
    assert set(weights.stop) == {OPTIMAL}
