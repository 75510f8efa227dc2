"""Logistic regression for all targets at once, against scikit-learn and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic
from kinfed.learners import descent as descent_module
from kinfed.learners import softmax as softmax_module
from kinfed.learners.softmax import SoftmaxRisk
from question_sites import fit


def make_federation(sizes, dim, n_classes, seed=0, offset=0.0, labels=None):
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(agent), dim))
    slopes = rng.normal(size=(n_classes, dim)) + 0.5 * rng.normal(size=(len(sizes), n_classes, dim))
    y = (np.einsum("id,icd->ic", X, slopes[agent]) + rng.gumbel(size=(len(agent), n_classes))).argmax(axis=1)
    return Federation.from_arrays(X + offset, y if labels is None else np.asarray(labels)[y], agent)


def weight_rows(n_agents, seed=0):
    """Rows of full support, of one agent, and of few agents."""
    rng = np.random.default_rng(seed)
    dense = rng.dirichlet(np.full(n_agents, 0.5), size=4)
    few = rng.dirichlet(np.full(n_agents, 0.5), size=4) * (rng.random((4, n_agents)) < 0.5)
    few[:, 0] += 0.1
    return np.vstack([dense, np.eye(n_agents)[:3], few / few.sum(axis=1, keepdims=True)])


def oracle(federation, row, penalty, intercept=True):
    X = np.vstack([agent.X for agent in federation])
    y = np.concatenate([agent.y for agent in federation])
    sample_weight = np.repeat(row / federation.sizes, federation.sizes)
    kept = sample_weight > 0
    model = LogisticRegression(C=1 / (2 * penalty), fit_intercept=intercept, tol=1e-10, max_iter=10_000)
    return model.fit(X[kept], y[kept], sample_weight=sample_weight[kept])


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("solver", ["auto", "newton", "l-bfgs"])
def test_equals_scikit_learn(n_classes, intercept, solver):
    federation = make_federation([30, 45, 38, 60, 33], 5, n_classes)
    weights, penalty = weight_rows(5), 0.02
    models = fit(Logistic(penalty=penalty, intercept=intercept, solver=solver), federation, weights)
    fresh = np.random.default_rng(5).normal(size=(40, 5))
    assert models.converged.all()
    assert (models.gradient_norm < 1e-7).all()
    for t, row in enumerate(weights):
        expected = oracle(federation, row, penalty, intercept)
        np.testing.assert_allclose(models.predict_proba(t, fresh), expected.predict_proba(fresh), atol=1e-5)
        np.testing.assert_allclose(models.coefficients[t, :, :-1], expected.coef_, atol=1e-5)
        np.testing.assert_allclose(models.coefficients[t, :, -1], expected.intercept_, atol=1e-5)
        np.testing.assert_array_equal(models.predict(t, fresh), expected.predict(fresh))


def test_many_columns_go_without_a_matrix_bound(monkeypatch):
    federation, weights = make_federation([60, 70], 8, 3, seed=1), np.array([[0.3, 0.7], [0.5, 0.5]])
    expected = fit(Logistic(solver="newton"), federation, weights)
    monkeypatch.setattr(descent_module, "LARGEST_BOUND", 5)
    found = fit(Logistic(solver="l-bfgs"), federation, weights)
    assert found.converged.all()
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-5)


def test_newton_finishes_what_l_bfgs_is_slow_at():
    federation = make_federation([10] * 4, 20, 4, seed=2)
    weights = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]])
    models = fit(Logistic(penalty=1e-7), federation, weights)
    assert models.converged.all()
    assert (models.iterations > 50).any()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_large_offset_costs_no_accuracy(n_classes):
    weights = weight_rows(4)
    near, far = (make_federation([20, 25, 30, 35], 3, n_classes, offset=offset) for offset in (0.0, 1e5))
    expected, found = fit(Logistic(), near, weights), fit(Logistic(), far, weights)
    assert found.converged.all()
    fresh = np.random.default_rng(3).normal(size=(30, 3))
    for t in range(len(weights)):
        np.testing.assert_allclose(found.predict_proba(t, fresh + 1e5), expected.predict_proba(t, fresh), atol=1e-6)


def test_classes_a_row_never_sees_have_probability_zero():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.array(["a", "b"] * 10 + ["b", "c"] * 10 + ["c"] * 20)
    federation = Federation.from_arrays(X, y, np.repeat(["first", "second", "third"], 20))
    weights = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1], [0.2, 0.3, 0.5], [0, 0.4, 0.6]])
    models = fit(Logistic(penalty=0.05), federation, weights)
    assert models.present.tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1]]
    assert models.converged.all()
    for t, row in enumerate(weights):
        probabilities = models.predict_proba(t, X)
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert not probabilities[:, ~models.present[t]].any()
        if models.present[t].sum() > 1:
            expected = oracle(federation, row, 0.05).predict_proba(X)
            np.testing.assert_allclose(probabilities[:, models.present[t]], expected, atol=1e-5)
    assert (models.predict(2, X) == "c").all()


def test_a_row_of_one_class_among_two_is_constant():
    federation = Federation.from_arrays(np.arange(8.0)[:, None], [0, 0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    models = fit(Logistic(), federation, np.array([[1.0, 0.0], [0.5, 0.5]]))
    np.testing.assert_array_equal(models.predict_proba(0, [[1.0], [9.0]]), [[1, 0], [1, 0]])
    assert models.converged.all()


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7], [-1.5, 2.5], ["x", "yy", "zzz"]])
def test_labels_of_any_type(labels):
    federation = make_federation([20, 20], 2, len(labels), labels=labels)
    models = fit(Logistic(), federation, np.full((2, 2), 0.5))
    assert models.classes.tolist() == sorted(labels)
    predicted = models.predict(0, federation[0].X)
    assert set(predicted.tolist()) <= set(labels)
    assert np.mean(predicted == federation[0].y) > 0.5


def test_labels_of_mixed_types_stay_apart():
    first = Agent("a", np.arange(4.0)[:, None], np.array([1, "1", 1, "1"], dtype=object))
    federation = Federation((first, Agent("b", np.arange(3.0)[:, None], np.array([1, 1, 1]))), ("x",))
    models = fit(Logistic(), federation, np.array([[0.5, 0.5]]))
    assert models.classes.tolist() == [1, "1"]


def test_one_class_in_the_whole_federation_is_refused():
    federation = Federation.from_arrays(np.eye(4), ["same"] * 4, [0, 0, 1, 1])
    with pytest.raises(InputError, match=r"only the class .*same.*at least two"):
        fit(Logistic(), federation, np.eye(2))


def test_options_are_checked():
    with pytest.raises(InputError, match="penalty must be positive"):
        Logistic(penalty=0)
    with pytest.raises(InputError, match="solver 'sag' is not known"):
        Logistic(solver="sag")


def test_too_few_iterations_are_told_not_hidden():
    federation = make_federation([40, 40], 4, 2)
    models = fit(Logistic(max_iterations=1), federation, np.array([[0.5, 0.5], [0.9, 0.1]]))
    assert not models.converged.any()
    assert (models.gradient_norm > 1e-8).all()
    assert (models.iterations == 1).all()


def test_equal_rows_are_trained_once():
    federation, seen = make_federation([20, 30], 3, 2), []
    weights = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    models = fit(Logistic(), federation, weights, progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen[-1] == ("logistic", 2, 2)
    assert (models.coefficients[0] == models.coefficients[2]).all()
    assert (models.coefficients[0] != models.coefficients[1]).any()


def random_risk(rng, count, n_rows, n_points, columns, shared):
    points = rng.normal(size=(1 if shared else count, n_points, columns))
    points[..., -1] = 1.0
    starts = np.unique([0, n_points // 3, n_points // 2])
    lengths = np.diff([*starts, n_points])
    weights = np.repeat(rng.dirichlet(np.ones(len(starts)), size=count) / lengths, lengths, axis=1)
    codes = rng.integers(max(n_rows, 2), size=(len(points), n_points))
    present = np.ones((count, n_rows), dtype=bool)
    if n_rows > 3:
        codes[codes == 3], present[:, 3] = 0, False
    chosen = [1] if n_rows == 1 else range(n_rows)
    linear = np.stack([((weights * (codes == c))[:, None, :] @ points)[:, 0] for c in chosen], axis=1)
    penalties = np.full((count, columns), 0.03)
    penalties[:, -1] = 0.0
    return SoftmaxRisk(points, starts, weights, linear, present, penalties)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 4),
    n_rows=st.sampled_from([1, 3, 4]),
    n_points=st.integers(5, 200),
    columns=st.integers(2, 5),
    shared=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_gradient_hessian_and_bound(count, n_rows, n_points, columns, shared, seed):
    rng = np.random.default_rng(seed)
    risk = random_risk(rng, count, n_rows, n_points, columns, shared)
    theta = rng.normal(size=risk.shape) * risk.present[:, :, None]
    _, gradient = risk.value_and_gradient(theta)
    rows = np.arange(count)
    hessian = risk.hessian(theta, rows)
    step = 1e-5
    for _ in range(3):
        direction = rng.normal(size=risk.shape) * risk.present[:, :, None]
        ahead, behind = (risk.value_and_gradient(theta + sign * step * direction) for sign in (1, -1))
        np.testing.assert_allclose((ahead[0] - behind[0]) / (2 * step), (gradient * direction).sum(axis=(1, 2)), atol=1e-7)
        # Curvature is added along the common shift of all intercepts, where gradients vanish.
        if n_rows > 1:
            direction[..., -1] -= direction[..., -1].sum(axis=1, keepdims=True) / risk.present.sum(axis=1, keepdims=True)
            direction *= risk.present[:, :, None]
            ahead, behind = (risk.value_and_gradient(theta + sign * step * direction) for sign in (1, -1))
        product = (hessian @ direction.reshape(count, -1, 1)).reshape(risk.shape)
        np.testing.assert_allclose((ahead[1] - behind[1]) / (2 * step), product, atol=1e-7)
        above = np.einsum("tkp,tpq,tkq->t", direction, risk.bound(), direction)
        assert (above >= (product * direction).sum(axis=(1, 2)) - 1e-12).all()
    np.testing.assert_allclose(np.diagonal(risk.bound(), axis1=1, axis2=2), risk.bound_diagonal())
    assert (np.linalg.eigvalsh(hessian) > 0).all()


def test_blocks_bound_memory_without_changing_results(monkeypatch):
    federation, weights = make_federation([150, 120, 90], 3, 3), weight_rows(3)
    expected = fit(Logistic(), federation, weights)
    monkeypatch.setattr(softmax_module, "_BLOCK", 64)
    np.testing.assert_allclose(fit(Logistic(), federation, weights).coefficients, expected.coefficients, atol=1e-6)


@pytest.mark.parametrize("solver", ["auto", "newton", "l-bfgs"])
@pytest.mark.parametrize("speck", [1e-12, 1e-30, 1e-300])
def test_classes_of_next_to_no_weight_are_harmless(solver, speck):
    """Exponential weights leave specks on agents that may be the only ones to know a class."""
    rng = np.random.default_rng(0)
    agent = np.repeat(np.arange(4), 20)
    y = np.where(agent == 2, 2, np.where(agent == 3, 3, rng.integers(2, size=80)))
    federation = Federation.from_arrays(rng.normal(size=(80, 3)), y, agent)
    weights = np.array([[0.5, 0.5, speck, speck], [0.8, 0.2, speck, speck], [0.6, 0.4, speck, 0.0]])
    models = fit(Logistic(penalty=0.05, solver=solver), federation, weights)
    assert models.converged.all()
    for t, row in enumerate(np.where(weights > 0.1, weights, 0.0)):
        expected = fit(Logistic(penalty=0.025, solver=solver), federation, row[None]).predict_proba(0, federation[0].X)
        # Four softmax rows that fit two classes pay half of what the one row of two classes pays.
        assert np.abs(models.predict_proba(t, federation[0].X) - expected)[:, :2].max() < 1e-5
