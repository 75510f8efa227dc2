"""Who speaks in whose model, against outcomes that are moved one by one."""

import numpy as np
import pytest

from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.methods.base import MethodContext
from kinfed.methods.stacked import Stacked
from kinfed.priors.family import Member, fit_members
from kinfed.priors.influence import influence
from kinfed.priors.normal import posteriors
from question_sites import pooled
from random_coefficients import evidence_of, last_is_intercept, random_agents


def jacobian(function, outcomes, size=1e-3):
    """Squared norms (B, B) of the derivatives of everybody's fitted values in everybody's outcomes, divided by row sums."""
    total = np.zeros((len(outcomes), len(outcomes)))
    for k, own in enumerate(outcomes):
        for i in range(len(own)):
            step = size * (np.arange(len(own)) == i)
            up, down = (function([y + way * step if j == k else y for j, y in enumerate(outcomes)]) for way in (1, -1))
            total[:, k] += [np.square((a - b) / 2 / size).sum() for a, b in zip(up, down, strict=True)]
    return total / total.sum(axis=1, keepdims=True)


def told_influence(rows, members, shares):
    evidence = evidence_of(rows)
    fitted = fit_members(members, evidence, last_is_intercept(rows[0][0].shape[1]))
    belongs = posteriors(fitted.priors, evidence).responsibilities
    each = np.broadcast_to(shares, (len(rows), len(members)))
    return influence(evidence, fitted.priors, fitted.sources, each, belongs), fitted, belongs


def test_influence_is_what_moving_an_outcome_does_to_members_whose_spread_is_given():
    rows = random_agents([3, 5, 7, 2, 6], seed=1)
    members = Member("local", 3.0), Member("common", 30.0), Member("pull", 10.0)
    shares = np.random.default_rng(1).dirichlet(np.ones(3), 5)  # of every agent's own

    def fitted_values(outcomes):
        evidence = evidence_of([(X, y) for (X, _), y in zip(rows, outcomes, strict=True)])
        priors = fit_members(members, evidence, last_is_intercept(3)).priors
        means = posteriors(priors, evidence).coefficients
        return [X @ (own @ mean) for (X, _), own, mean in zip(rows, shares, means, strict=True)]

    found, *_ = told_influence(rows, members, shares)
    np.testing.assert_allclose(found, jacobian(fitted_values, [y for _, y in rows]), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    order = np.array([3, 0, 4, 1, 2])
    turned, *_ = told_influence([rows[k] for k in order], members, shares[order])
    np.testing.assert_allclose(turned, found[np.ix_(order, order)], atol=1e-9)


@pytest.mark.parametrize("clusters", [1, 2])
def test_influence_of_random_coefficients_with_spread_and_memberships_as_they_were_found(clusters):
    """Dense formulas in the rows themselves: generalised least squares, and regression about its centres."""
    rows = random_agents([3, 5, 7, 4, 6, 8], seed=2, centres=clusters)
    members, shares = (Member("random", clusters), Member("local", 1.0)), np.array([0.7, 0.3])
    found, fitted, belongs = told_influence(rows, members, shares)
    source, spreads = fitted.sources[0], fitted.priors.spread

    def weighed(X, spread):
        return np.linalg.inv(np.eye(len(X)) + X @ spread @ X.T)

    def centres(outcomes):
        cross = [X.T @ weighed(X, source.spread) @ y for (X, _), y in zip(rows, outcomes, strict=True)]
        return np.einsum("cpq,kc,kq->cp", source.covariance, source.belongs, np.array(cross))

    def fitted_values(outcomes):
        middle, values = centres(outcomes), []
        for (X, _), y, q in zip(rows, outcomes, belongs[:, 0, :clusters], strict=True):
            about = [X @ (q @ middle), np.zeros(len(y))]
            pulled = [one + X @ s @ X.T @ weighed(X, s) @ (y - one) for one, s in zip(about, spreads, strict=True)]
            values.append(shares @ pulled)
        return values

    outcomes = [y for _, y in rows]
    np.testing.assert_allclose(centres(outcomes), fitted.priors.centres[0, :clusters], atol=1e-3)
    np.testing.assert_allclose(found, jacobian(fitted_values, outcomes), atol=1e-6)


def test_who_learns_alone_follows_itself_and_equals_follow_all_alike():
    rows = random_agents([6] * 5, seed=3)
    found, *_ = told_influence(rows, (Member("local", 3.0), Member("local", 100.0)), np.array([0.4, 0.6]))
    np.testing.assert_allclose(found, np.eye(5), atol=1e-12)
    rng = np.random.default_rng(0)
    equal = [(rows[0][0], rng.standard_normal(6)) for _ in range(5)]
    found, *_ = told_influence(equal, (Member("common", 1.0),), np.ones(1))
    np.testing.assert_allclose(found, np.full((5, 5), 0.2), atol=1e-10)
    # With more coefficients than directions that are tried it is an estimate.
    wide = random_agents([30] * 4, width=14, seed=4)
    found, *_ = told_influence([(wide[0][0], y) for _, y in wide], (Member("common", 1.0),), np.ones(1))
    np.testing.assert_allclose(found, np.full((4, 4), 0.25), atol=0.05)


def test_agents_of_two_clear_clusters_follow_their_own():
    rng = np.random.default_rng(0)
    X, agents = rng.standard_normal((360, 3)), np.repeat(np.arange(12), 30)
    sign = np.where(agents % 2, -2.0, 2.0)
    train = Federation.from_arrays(X, sign * X[:, 0] + rng.standard_normal(360), agents)
    learner = make_learner("ridge")
    context = MethodContext(pooled(train, learner), learner)
    Stacked((Member("alike", 2),)).train(context, None)
    same = np.arange(12)[:, None] % 2 == np.arange(12) % 2
    assert (context.found["stacking"].influence * same).sum(axis=1).min() > 0.9
