"""Priors of coefficients against dense formulas, brute force, numerical derivatives and another package's mixed model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression
from statsmodels.regression.mixed_linear_model import MixedLM

from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.learners.expansion import prior_modes
from kinfed.learners.linear import class_losses, mixed_losses
from kinfed.priors.family import FAMILY, KIN, fit_members
from kinfed.priors.fitting import fit_random_coefficients
from kinfed.priors.marginal_likelihood import triangular_inverse
from kinfed.priors.normal import Priors, posteriors
from question_sites import pooled
from random_coefficients import evidence_of, last_is_intercept, random_agents


def fitted(rows, kind="full", clusters=1, **options):
    wanted = {"shrink": False, "restricted": False, "tolerance": 1e-10, "most": 3000, **options}
    return fit_random_coefficients(
        evidence_of(rows), kind, clusters, intercepts=last_is_intercept(rows[0][0].shape[1]), **wanted
    )


def dense_log_likelihood(rows, shares, centres, spread, noise):
    """Of all outcomes, by the density of a normal vector as long as an agent has rows."""
    total = 0.0
    for X, y in rows:
        covariance = noise * (np.eye(len(y)) + X @ spread @ X.T)
        densities = [multivariate_normal(X @ one, covariance).logpdf(y) for one in centres]
        total += logsumexp(np.log(shares) + densities)
    return total


def some_priors(width, components=1, seed=0, diagonal=False):
    """One member with a spread that is diagonal, or not."""
    rng = np.random.default_rng(seed)
    return Priors(
        rng.dirichlet(np.full(components, 3.0))[None],
        2 * rng.standard_normal((1, components, width)),
        rng.uniform(0.2, 1.0, (1, width)),
        np.zeros((1, width, 0)) if diagonal else 0.7 * rng.standard_normal((1, width, 2)),
        np.array([0.6]),
    )


# ---------------------------------------------------------------- fitting


@pytest.mark.parametrize("size", [1, 5, 16, 17, 40])
def test_inverses_of_triangular_matrices(size):
    rng = np.random.default_rng(size)
    factors = np.tril(rng.standard_normal((7, size, size)) / size, -1) + np.eye(size) * rng.uniform(1, 2, (7, 1, size))
    np.testing.assert_allclose(triangular_inverse(factors), np.linalg.inv(factors), atol=1e-12)


def test_random_coefficients_are_those_of_a_mixed_model():
    """Random effects of all columns, by maximum likelihood: statsmodels maximises the same likelihood in another way."""
    rows = random_agents([9, 12, 15] * 14, seed=3)
    X, y = np.concatenate([X for X, _ in rows]), np.concatenate([y for _, y in rows])
    agents = np.repeat(np.arange(len(rows)), [len(y) for _, y in rows])
    theirs = MixedLM(y, X, agents, exog_re=X).fit(reml=False, method=["bfgs", "cg"], gtol=1e-8)
    ours = fitted(rows)
    assert theirs.converged
    assert ours.log_likelihood >= theirs.llf - 1e-3
    assert ours.log_likelihood == pytest.approx(theirs.llf, abs=1e-2)
    np.testing.assert_allclose(ours.centres[0], theirs.fe_params, atol=1e-3)
    np.testing.assert_allclose(ours.noise, theirs.scale, rtol=1e-3)
    np.testing.assert_allclose(ours.noise * ours.spread, theirs.cov_re, rtol=1e-2, atol=2e-3)
    effects = np.array([theirs.random_effects[k] for k in range(len(rows))])
    np.testing.assert_allclose(ours.means - ours.centres[0], effects, atol=5e-3)
    # Fixed effects have the covariance of generalised least squares.
    np.testing.assert_allclose(ours.noise * ours.uncertainty[0], theirs.cov_params()[:3, :3], rtol=1e-2, atol=1e-4)


def test_restricted_likelihood_is_that_of_a_mixed_model():
    """Nine agents: restricted and plain maximum likelihood differ by more than the tolerance."""
    rows = random_agents([9, 12, 15] * 3, seed=3)
    X, y = np.concatenate([X for X, _ in rows]), np.concatenate([y for _, y in rows])
    agents = np.repeat(np.arange(len(rows)), [len(y) for _, y in rows])
    theirs = MixedLM(y, X, agents, exog_re=X).fit(reml=True, method=["bfgs", "cg"], gtol=1e-8)
    assert theirs.converged
    ours, plain = fitted(rows, restricted=True), fitted(rows)
    np.testing.assert_allclose(ours.noise, theirs.scale, rtol=2e-3)
    np.testing.assert_allclose(ours.noise * ours.spread, theirs.cov_re, rtol=2e-2, atol=4e-3)
    np.testing.assert_allclose(ours.centres[0], theirs.fe_params, atol=2e-3)
    assert np.abs(plain.noise * plain.spread - theirs.cov_re).max() > 2e-2


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "full"])
def test_variances_that_tend_to_zero_get_there(kind):
    """Agents that are alike in all but their intercepts: plain EM would need thousands of iterations."""
    rng = np.random.default_rng(0)
    designs = [np.column_stack([rng.standard_normal((12, 2)), np.ones(12)]) for _ in range(40)]
    rows = [(X, X @ np.array([1.0, -1.0, rng.standard_normal()]) + rng.standard_normal(12)) for X in designs]
    usual = fit_random_coefficients(evidence_of(rows), kind, intercepts=last_is_intercept(3))
    ended = fit_random_coefficients(evidence_of(rows), kind, intercepts=last_is_intercept(3), tolerance=1e-9, most=5000)
    assert usual.iterations < 60
    assert usual.log_likelihood > ended.log_likelihood - 0.01 * len(rows)
    np.testing.assert_allclose(usual.centres, ended.centres, atol=5e-3)


@pytest.mark.parametrize(
    "kind, clusters", [("isotropic", 1), ("diagonal", 1), ("full", 1), ("diagonal", 2), ("low-rank", 1)]
)
def test_the_likelihood_is_the_dense_density(kind, clusters):
    rows = random_agents([2, 5, 8] * 6, seed=1, centres=clusters)
    found = fitted(rows, kind, clusters)
    expected = dense_log_likelihood(rows, found.shares, found.centres, found.spread, found.noise)
    assert found.log_likelihood == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind, clusters", [("isotropic", 1), ("diagonal", 1), ("full", 1), ("diagonal", 2), ("full", 3)])
def test_no_iteration_makes_anything_less_likely(kind, clusters):
    """Shares of clusters have a Dirichlet prior of one agent each, whose density counts too."""
    rows = random_agents([3, 6, 9] * 6, seed=2, centres=clusters)
    path = [fitted(rows, kind, clusters, tolerance=-np.inf, most=most) for most in range(1, 25)]
    # What is told of the last iteration is how likely everything was before it.
    prior = [np.log(one.shares).sum() * (clusters > 1) for one in path]
    values = [one.log_likelihood + known for one, known in zip(path[1:], prior[:-1], strict=True)]
    assert np.diff(values).min() > -1e-7
    assert values[-1] > values[0] + 1e-3


def test_simpler_spreads_and_those_drawn_towards_them_are_less_likely():
    rows = random_agents([4, 8, 12] * 10, seed=5)
    isotropic, diagonal, full = (fitted(rows, kind).log_likelihood for kind in ("isotropic", "diagonal", "full"))
    assert isotropic <= diagonal + 1e-6 <= full + 2e-6
    for kind, best in (("diagonal", diagonal), ("full", full)):
        drawn = fitted(rows, kind, shrink=True)
        value = dense_log_likelihood(rows, drawn.shares, drawn.centres, drawn.spread, drawn.noise)
        assert best - 0.1 * len(rows) < value < best


def test_voices_count_an_agent_twice_or_not_at_all():
    rows = random_agents([5, 7] * 8, seed=6)
    doubled = fitted(rows + rows[:6])
    voices = np.where(np.arange(16) < 6, 1.0, 0.5)
    half = fitted(rows, voices=voices)
    # Only how much agents count beside each other matters.
    np.testing.assert_allclose(half.centres, doubled.centres, atol=1e-4)
    np.testing.assert_allclose(half.spread, doubled.spread, rtol=1e-2, atol=1e-3)
    silenced = fitted(rows, voices=(np.arange(16) < 10).astype(float))
    np.testing.assert_allclose(silenced.centres, fitted(rows[:10]).centres, rtol=1e-6)


@pytest.mark.parametrize("clusters", [1, 2])
def test_the_order_of_the_agents_and_the_unit_of_the_outcome_do_not_matter(clusters):
    rows = random_agents([4, 8, 12] * 6, seed=7, centres=clusters, deviation=0.3)
    found, order = fitted(rows, "diagonal", clusters, shrink=True), np.random.default_rng(0).permutation(18)
    turned = fitted([rows[k] for k in order], "diagonal", clusters, shrink=True)
    np.testing.assert_allclose(turned.means, found.means[order], atol=1e-5)
    np.testing.assert_allclose(turned.spread, found.spread, rtol=1e-4)
    scaled = fitted([(X, 1000 * y) for X, y in rows], "diagonal", clusters, shrink=True)
    np.testing.assert_allclose(scaled.means, 1000 * found.means, rtol=1e-6)
    np.testing.assert_allclose([scaled.noise], [1e6 * found.noise], rtol=1e-6)
    np.testing.assert_allclose(scaled.spread, found.spread, rtol=1e-6, atol=1e-12)


def test_members_follow_the_order_of_the_agents_and_the_unit_of_the_outcome():
    rows, intercepts = random_agents([4, 8, 12] * 8, seed=8, centres=2), last_is_intercept(3)
    members = [one for one in FAMILY if one.kind in ("local", "common", "pull") or one.strength == 1]
    priors = fit_members(members, evidence_of(rows), intercepts).priors
    found = posteriors(priors, evidence_of(rows)).coefficients
    order = np.random.default_rng(0).permutation(24)
    turned = evidence_of([rows[k] for k in order])
    again = posteriors(fit_members(members, turned, intercepts).priors, turned).coefficients
    np.testing.assert_allclose(again, found[order], rtol=1e-6, atol=1e-8)
    members = [*FAMILY, *KIN]
    one = fit_members(members, evidence_of(rows), intercepts).priors
    other = fit_members(members, evidence_of([(X, 1000 * y) for X, y in rows]), intercepts).priors
    np.testing.assert_allclose(other.centres, 1000 * one.centres, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.noise, 1e6 * one.noise, rtol=1e-6)
    np.testing.assert_allclose(other.spread, one.spread, rtol=1e-6, atol=1e-12)


# ---------------------------------------------------------------- posteriors


@given(st.integers(1, 9), st.integers(0, 1000), st.booleans())
def test_posteriors_are_the_dense_formula_whether_rows_are_few_or_many(n, seed, diagonal):
    rows, priors = random_agents([n], width=5, seed=seed), some_priors(5, seed=seed, diagonal=diagonal)
    found = posteriors(priors, evidence_of(rows))
    (X, y), precision = rows[0], np.linalg.inv(priors.spread[0])
    inverse = np.linalg.inv(X.T @ X + precision)
    expected = inverse @ (X.T @ y + precision @ priors.centres[0, 0])
    np.testing.assert_allclose(found.coefficients[0, 0], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose((found.within(priors) + found.between)[0, 0], 0.6 * inverse, rtol=1e-6, atol=1e-8)


def test_without_spread_the_centre_stays_and_half_a_spread_is_regression_of_the_other_columns():
    rows, priors = random_agents([6], width=4), some_priors(4, diagonal=True)
    nothing = Priors(priors.shares, priors.centres, np.zeros((1, 4)), np.zeros((1, 4, 0)), priors.noise)
    found = posteriors(nothing, evidence_of(rows))
    np.testing.assert_array_equal(found.coefficients[0], priors.centres[0])
    np.testing.assert_array_equal((found.within(nothing) + found.between)[0, 0], np.zeros((4, 4)))
    half = Priors(priors.shares, priors.centres, np.array([[0.5, 0.0, 0.0, 2.0]]), np.zeros((1, 4, 0)), priors.noise)
    (X, y), centre, free = rows[0], priors.centres[0, 0], np.array([0, 3])
    left = y - X @ centre
    moved = np.linalg.solve(X[:, free].T @ X[:, free] + np.diag([2.0, 0.5]), X[:, free].T @ left)
    expected = centre + np.bincount(free, moved, minlength=4)
    np.testing.assert_allclose(posteriors(half, evidence_of(rows)).coefficients[0, 0], expected, rtol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_mixtures_are_bayes_on_a_grid(n):
    """Prior density times likelihood, summed over a grid of two coefficients."""
    rows, priors = random_agents([n], width=2, seed=n), some_priors(2, components=3, seed=4)
    axis = np.linspace(-15, 15, 601)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    (X, y), noise = rows[0], priors.noise[0]
    density = sum(
        share * multivariate_normal(centre, noise * priors.spread[0]).pdf(grid)
        for share, centre in zip(priors.shares[0], priors.centres[0], strict=True)
    )
    weight = density * np.exp(-np.square(y - grid @ X.T).sum(axis=1) / 2 / noise)
    weight /= weight.sum()
    mean = weight @ grid
    found = posteriors(priors, evidence_of(rows))
    np.testing.assert_allclose(found.coefficients[0, 0], mean, atol=1e-6)
    covariance = (weight[:, None] * (grid - mean)).T @ (grid - mean)
    np.testing.assert_allclose((found.within(priors) + found.between)[0, 0], covariance, atol=1e-6)


def test_members_of_different_shapes_stand_side_by_side():
    parts = [some_priors(3, 1, 0, diagonal=True), some_priors(3, 4, 1), some_priors(3, 2, 2)]
    evidence = evidence_of(random_agents([2, 6], seed=1))
    whole = posteriors(Priors.read(Priors.together(parts).arrays), evidence)
    for place, one in enumerate(parts):
        alone = posteriors(one, evidence)
        np.testing.assert_allclose(whole.coefficients[:, place], alone.coefficients[:, 0], rtol=1e-10)
        np.testing.assert_allclose(whole.responsibilities.sum(axis=2), 1.0)


# ---------------------------------------------------------------- log losses


@pytest.mark.parametrize("classes", [2, 3])
def test_log_losses_are_those_of_the_softmax_and_of_mixed_probabilities(classes):
    rng = np.random.default_rng(classes)
    scores, shares = rng.standard_normal((20, 4, 1 if classes == 2 else 3)), rng.dirichlet(np.ones(4))
    full = np.concatenate([np.zeros((20, 4, 1)), scores], axis=2) if classes == 2 else scores
    np.testing.assert_allclose(class_losses(scores), -np.log(softmax(full, axis=2)), rtol=1e-10)
    mixed = np.tensordot(softmax(full, axis=2), shares, axes=([1], [0]))
    np.testing.assert_allclose(mixed_losses(scores, shares), -np.log(mixed), rtol=1e-10)
    np.testing.assert_allclose(class_losses(np.full((1, 1), 800.0)), [[-np.log(1e-6), 0.0]], atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_modes_are_where_the_log_posterior_is_flat(classes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = np.argmax(X @ rng.standard_normal((3, classes)) + rng.gumbel(size=(60, classes)), axis=1)
    train = Federation.from_arrays(X, y, np.repeat([0, 1], [40, 20]))
    part, spec = train[0], pooled(train, make_learner("logistic")).spec
    outputs = 1 if classes == 2 else classes
    width, members = 4 * outputs, 4
    centres = rng.standard_normal((members, width))
    factor = rng.standard_normal((members, width, width)) / 2
    spread = factor @ factor.swapaxes(1, 2) + 0.1 * np.eye(width)
    spread[2] = 0.0
    spread[3], centres[3] = 0.7 * np.eye(width), 0.0
    found = prior_modes(part, centres, np.zeros_like(centres), spread, spec)
    np.testing.assert_array_equal(found[2], centres[2])
    points = np.column_stack([part.X, np.ones(40)])
    for m in (0, 1, 3):

        def value(theta, m=m):
            scores = points @ theta.reshape(outputs, 4).T
            full = np.column_stack([np.zeros(40), scores]) if classes == 2 else scores
            away = theta - centres[m]
            lost = logsumexp(full, axis=1) - full[np.arange(40), part.y]
            return lost.sum() + away @ np.linalg.solve(spread[m], away) / 2

        steps = 1e-5 * np.eye(width)
        gradient = np.array([value(found[m] + step) - value(found[m] - step) for step in steps]) / 2e-5
        start = np.array([value(step) - value(-step) for step in steps]) / 2e-5
        assert np.abs(gradient).max() < 2e-4 * np.abs(start).max()
    oracle = LogisticRegression(C=0.7, fit_intercept=False, tol=1e-10, max_iter=5000).fit(points, part.y)
    np.testing.assert_allclose(found[3], oracle.coef_.ravel(), atol=1e-3)
