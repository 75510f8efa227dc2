"""Ridge in closed form against scikit-learn and numpy, and the arithmetic of moments."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import linear_model

from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners import (
    RegressionMoments,
    Ridge,
    ridge_coefficients,
    squared_error,
    stack_moments,
)
from kinfed.learners import ridge as ridge_module
from kinfed.learners.regression_moments import regression_moments
from question_sites import fit


def make_federation(sizes, dim, seed=0, offset=0.0, outputs=()):
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(agent), dim)) + offset
    slopes = rng.normal(size=(len(sizes), dim, *outputs))
    y = np.stack([x @ slopes[k] for x, k in zip(X - offset, agent, strict=True)])
    y = y + 0.5 * rng.normal(size=y.shape) + 3.0
    if outputs:  # a federation holds one target; learners take several
        return Unchecked(Agent(str(k), X[agent == k], y[agent == k]) for k in np.unique(agent))
    return Federation.from_arrays(X, y, agent)


class Unchecked:
    """Agents that no federation would hold: of several outputs, without a target, or without points."""

    def __init__(self, agents):
        self.agents = list(agents)
        self.names = tuple(agent.name for agent in self.agents)
        self.sizes = np.array([len(agent) for agent in self.agents])
        self.dim = self.agents[0].X.shape[1]

    def __len__(self):
        return len(self.agents)

    def __iter__(self):
        return iter(self.agents)

    def __getitem__(self, k):
        return self.agents[k]


def pooled(federation, row):
    X = np.vstack([agent.X for agent in federation])
    y = np.concatenate([agent.y for agent in federation])
    return X, y, np.repeat(row / federation.sizes, federation.sizes)


def simplex(rows, columns, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(columns, 0.4), size=rows)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("penalty", [1e-3, 0.3])
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_equals_scikit_learn(penalty, intercept, outputs):
    federation = make_federation([7, 12, 30, 5, 21], 6, outputs=outputs)
    weights = simplex(8, 5)
    models = fit(Ridge(penalty=penalty, intercept=intercept), federation, weights)
    fresh = np.random.default_rng(9).normal(size=(11, 6))
    assert models.coefficients.shape == (8, 7, *outputs)
    for t, row in enumerate(weights):
        X, y, sample_weight = pooled(federation, row)
        oracle = linear_model.Ridge(alpha=penalty, fit_intercept=intercept).fit(X, y, sample_weight=sample_weight)
        np.testing.assert_allclose(models.coefficients[t, :-1], oracle.coef_.T, atol=1e-8)
        np.testing.assert_allclose(models.coefficients[t, -1], oracle.intercept_, atol=1e-8)
        np.testing.assert_allclose(models.predict(t, fresh), oracle.predict(fresh), atol=1e-8)


def test_without_penalty_and_points_it_is_the_least_norm_solution():
    federation = make_federation([10] * 6, 20, seed=1)
    weights = np.vstack([np.eye(6)[:4], [[0.5, 0.5, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]]])
    models = fit(Ridge(penalty=0), federation, weights)
    for t, row in enumerate(weights):
        X, y, sample_weight = pooled(federation, row)
        mean_x, mean_y = sample_weight @ X, sample_weight @ y
        root = np.sqrt(sample_weight)
        oracle = np.linalg.lstsq((X - mean_x) * root[:, None], (y - mean_y) * root, rcond=1e-10)[0]
        np.testing.assert_allclose(models.coefficients[t, :-1], oracle, atol=1e-8)
        np.testing.assert_allclose(models.coefficients[t, -1], mean_y - mean_x @ oracle, atol=1e-8)


def test_rank_does_not_depend_on_units():
    federation = make_federation([40, 50], 4, seed=2)
    units = np.array([1e-7, 1.0, 1e3, 1e8])
    rescaled = Federation.from_arrays(
        np.vstack([agent.X for agent in federation]) * units,
        np.concatenate([agent.y for agent in federation]),
        np.repeat([0, 1], federation.sizes),
    )
    weights = simplex(3, 2)
    plain, scaled = (fit(Ridge(penalty=0), one, weights).coefficients for one in (federation, rescaled))
    np.testing.assert_allclose(scaled[:, :-1] * units, plain[:, :-1], rtol=1e-9)


def test_constant_and_repeated_columns_are_harmless():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1))
    X = np.hstack([x, x, np.full((30, 1), 5.0)])
    federation = Federation.from_arrays(X, 2 * x[:, 0] + 1, np.zeros(30))
    coefficients = fit(Ridge(penalty=0), federation, np.ones((1, 1))).coefficients[0]
    np.testing.assert_allclose(coefficients, [1, 1, 0, 1], atol=1e-9)


@pytest.mark.parametrize("penalty", [0.0, 1e-2])
def test_a_large_offset_costs_no_accuracy(penalty):
    sizes, dim = [10, 25, 40], 6
    near, far = make_federation(sizes, dim, seed=3), make_federation(sizes, dim, seed=3, offset=1e5)
    weights = simplex(4, 3)
    expected = fit(Ridge(penalty=penalty), near, weights)
    found = fit(Ridge(penalty=penalty), far, weights)
    fresh = np.random.default_rng(1).normal(size=(20, dim))
    # X + 1e5 itself is rounded to about 1e-11
    np.testing.assert_allclose(found.coefficients[:, :-1], expected.coefficients[:, :-1], atol=1e-8)
    for t in range(4):
        np.testing.assert_allclose(found.predict(t, fresh + 1e5), expected.predict(t, fresh), atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(
    n=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    dim=st.integers(1, 4),
    outputs=st.sampled_from([(), (2,)]),
    offset=st.sampled_from([0.0, 1e5]),
    seed=st.integers(0, 1000),
)
def test_moments_add_and_subtract_as_points_do(n, dim, outputs, offset, seed):
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(size, dim)) + offset for size in n]
    y = [rng.normal(size=(size, *outputs)) for size in n]
    first, second = (regression_moments(X[k], y[k]) for k in range(2))
    whole = regression_moments(np.vstack(X), np.concatenate(y))
    for found, expected in ((first + second, whole), (whole - second, first), (whole - first, second)):
        assert found.n == expected.n
        for name in ("mean_x", "mean_y", "comoment"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-8, rtol=1e-11)
            assert getattr(found, name).shape == getattr(expected, name).shape
    nothing = whole - whole
    assert nothing.n == 0
    assert not nothing.comoment.any()
    np.testing.assert_allclose((nothing + first).comoment, first.comoment)


def test_more_cannot_be_taken_away_than_there_is():
    small, large = regression_moments([[1.0], [2.0]], [0.0, 1.0]), regression_moments(np.eye(3)[:, :1], np.arange(3.0))
    with pytest.raises(InputError, match="subtract a part from its whole"):
        small - large
    with pytest.raises(InputError, match="do not combine"):
        small + regression_moments(np.eye(3), np.arange(3.0))


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_squared_error_needs_moments_only(outputs):
    federation = make_federation([9, 14, 20], 3, seed=4, offset=1e4, outputs=outputs)
    models = fit(Ridge(), federation, simplex(5, 3))
    moments = [regression_moments(agent.X, agent.y) for agent in federation]
    direct = np.array([[np.mean((models.predict(t, a.X) - a.y) ** 2) for t in range(5)] for a in federation])
    for k, one in enumerate(moments):
        np.testing.assert_allclose(squared_error(one, models.coefficients), direct[k], rtol=1e-9)
    batched = squared_error(stack_moments(moments), np.stack([models.coefficients] * 3, axis=1))
    np.testing.assert_allclose(batched, direct.T, rtol=1e-9)
    empty = moments[0] - moments[0]
    assert np.isnan(squared_error(empty, models.coefficients)).all()
    with pytest.raises(InputError, match="must end in shape"):
        squared_error(moments[0], models.coefficients[:, :-1])


def test_a_fold_can_be_left_out_of_a_mixture():
    federation = make_federation([10, 15, 20], 4, seed=5)
    weights, k, fold = simplex(3, 3), 1, np.arange(15) % 5 == 0
    moments = [regression_moments(agent.X, agent.y) for agent in federation]
    held_out = regression_moments(federation[k].X[fold], federation[k].y[fold])
    mixtures = stack_moments(moments).weighted(weights)
    shares = weights[:, k]
    without = [moments[k] - held_out] * 3
    edited = mixtures + stack_moments(without).scaled(shares) - stack_moments([moments[k]] * 3).scaled(shares)
    kept = [a if j != k else SimpleNamespace(X=a.X[~fold], y=a.y[~fold]) for j, a in enumerate(federation)]
    X, y = np.vstack([a.X for a in kept]), np.concatenate([a.y for a in kept])
    ridge = Ridge(penalty=0.01)
    refitted = fit(ridge, Federation.from_arrays(X, y, np.repeat(range(3), [len(a.y) for a in kept])), weights)
    np.testing.assert_allclose(ridge_coefficients(edited, 0.01), refitted.coefficients, atol=1e-10)


def test_one_agents_moments_need_no_stack():
    agent = make_federation([30], 4)[0]
    single = ridge_coefficients(regression_moments(agent.X, agent.y), 0.0)
    oracle = linear_model.LinearRegression().fit(agent.X, agent.y)
    np.testing.assert_allclose(single, [*oracle.coef_, oracle.intercept_], atol=1e-10)


def test_blocks_bound_memory_without_changing_results(monkeypatch):
    federation, weights = make_federation([6, 8, 10, 12, 14], 3, seed=6), simplex(7, 5)
    expected = fit(Ridge(), federation, weights).coefficients
    monkeypatch.setattr(ridge_module, "_AGENT_BLOCK", 2 * 16)
    monkeypatch.setattr(ridge_module, "_TARGET_BLOCK", 3 * 16)
    np.testing.assert_allclose(fit(Ridge(), federation, weights).coefficients, expected, rtol=1e-12)


def test_errors_name_the_agent():
    X, agent = np.eye(4), ["a", "a", "clinic", "clinic"]
    with pytest.raises(InputError, match=r"agent a .*'logistic'"):
        fit(Ridge(), Federation.from_arrays(X, ["u", "v", "u", "v"], agent), np.eye(2))
    unfinished = Unchecked([Agent("0", X[:2], np.array([1.0, 2.0])), Agent("1", X[2:], np.array([np.nan, 4.0]))])
    with pytest.raises(InputError, match="agent 1: the target of row 0 is NaN"):
        fit(Ridge(), unfinished, np.eye(2))
    federation = Federation.from_arrays(X, np.arange(4.0), agent)
    with pytest.raises(InputError, match="row 1 of the weights is not on the simplex"):
        fit(Ridge(), federation, np.array([[0.5, 0.5], [0.5, 0.6]]))
    with pytest.raises(InputError, match="got shape"):
        fit(Ridge(), federation, np.eye(3))
    with pytest.raises(InputError, match="agent clinic has no target"):
        fit(Ridge(), Unchecked([federation[0], replace(federation[1], y=None)]), np.eye(2))
    with pytest.raises(InputError, match="penalty must not be negative"):
        Ridge(penalty=-1)
    with pytest.raises(InputError, match="dimension 4"):
        fit(Ridge(), federation, np.eye(2)).predict(0, np.ones((2, 3)))


def test_an_agent_without_points_may_be_there_but_not_weigh():
    federation = Unchecked([make_federation([5, 5], 2)[0], Agent("1", np.zeros((0, 2)), np.zeros(0))])
    models = fit(Ridge(), federation, np.array([[1.0, 0.0]]))
    assert np.isfinite(models.coefficients).all()
    with pytest.raises(InputError, match="agent 1 has no points"):
        fit(Ridge(), federation, np.array([[0.5, 0.5]]))


def test_moments_are_frozen_records():
    one = regression_moments(np.eye(3), np.arange(3.0))
    assert isinstance(one, RegressionMoments)
    with pytest.raises(AttributeError):
        one.n = 4
