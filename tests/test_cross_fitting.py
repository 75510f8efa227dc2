"""Folds that stay at home: rows held out have no part in what a target is judged with, and what is judged is right."""

from dataclasses import replace

import numpy as np
import pytest

import kinfed
from kinfed.federation import Agent
from kinfed.learners import make_learner
from kinfed.learners.expansion import HomeRisk, expanded
from kinfed.learners.quadratics import Quadratics
from kinfed.splitting import deal_rows
from kinfed.weights.calibration.cross_fitting import Dealing, cross_fit
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, BaseRule, Candidate, family
from kinfed.weights.calibration.home_rows import Cases, Clusters, Everybody, agent_groups, clusters_outside, home_rows
from kinfed.weights.geometry import explicit_geometry, held_out_geometry
from kinfed.weights.mirror_descent import entropic_minimum, moved_operator_norms
from kinfed.weights.objective import duality_gap, q_aggregation_problem
from kinfed.weights.rules.closed_form import similar_kin
from question_sites import fit, pooled

BASES = (
    LOCAL,
    GRAND_MEAN,
    BaseRule("q-aggregation", 100, 0),
    BaseRule("q-aggregation", 300, 0),
    BaseRule("entropic", 0.1, 0),
    BaseRule("similarity-test", 1.0, 0),
    BaseRule("clusters", 2, 0),
    BaseRule("gradient", 4.0),
    BaseRule("gradient", 1.0),
    BaseRule("gradient-clusters", 2),
)


def labelled(train):
    """The same agents with two classes in place of numbers."""
    return replace(train, agents=tuple(Agent(one.name, one.X, (one.y > 0).astype(int)) for one in train))


def federation(learner, n_agents=9, n=14, dim=3, seed=0):
    train = kinfed.concept_shift(n_agents, n, dim, spread=0.2, seed=seed).train
    train = train if learner == "ridge" else labelled(train)
    return kinfed.Preparation.fit(train).transform(train)


def known_of(train, learner, seed=0):
    """Everybody by all rows, and the agents."""
    embedding = kinfed.choose_embedding(train, n_features=40, seed=seed)
    agents = pooled(train, learner, seed=seed, embeddings=[embedding])
    points = agents.points(0)
    everybody = Everybody(
        train.names,
        train.sizes,
        {0: np.array([one.mean(axis=0, dtype=np.float64) for one in points])},
        {0: np.array([one.astype(np.float64).var(axis=0, ddof=1).sum() / len(one) for one in points])},
        {0: float(embedding.features.norm_bound)},
        learner.quadratics(agents),
        agents.spec,
        learner,
    )
    return everybody, agents


def cases_of(everybody, agents, asides):
    """One case for each (target, rows held out)."""
    groups = agent_groups(len(everybody.sizes), agents.spec.seed)
    found = {group: clusters_outside(everybody, groups == group, BASES) for group in np.unique(groups).tolist()}
    return Cases(
        np.array([t for t, _ in asides]),
        [agents.rows[t].rows(~aside) for t, aside in asides],
        {0: [agents.points(0)[t][~aside] for t, aside in asides]},
        [found[int(groups[t])] for t, _ in asides],
    )


def some_folds(train, targets=(0, 4, 8)):
    return [(t, deal_rows(train[t].name, len(train[t]), train[t].y, 5, 0, 0) == fold) for t in targets for fold in (0, 3)]


def test_a_target_that_holds_rows_out_has_the_problem_of_an_agent_of_the_other_rows():
    rng = np.random.default_rng(0)
    points = [rng.standard_normal((12, 5)) + 0.3 * k for k in range(7)]
    means = np.array([one.mean(axis=0) for one in points])
    variance = np.array([one.var(axis=0, ddof=1).sum() / 12 for one in points])
    targets, aside = np.array([2, 2, 5]), [rng.permutation(12) < 3 for _ in range(3)]
    parts = [points[t][~out] for t, out in zip(targets, aside, strict=True)]
    held = held_out_geometry(tuple("abcdefg"), means, variance, np.full(7, 12), parts, targets, 9.0)
    problem, weights = q_aggregation_problem(held), rng.dirichlet(np.ones(7), 3)
    for case, t in enumerate(targets):
        own = [parts[case] if k == t else one for k, one in enumerate(points)]
        alone = explicit_geometry(own, norm_bound=9.0, targets=[int(t)])
        oracle, row = q_aggregation_problem(alone), weights[[case]]
        one = problem.rows(np.array([case]))
        np.testing.assert_allclose(one.value(row), oracle.value(row), rtol=1e-10)
        # Gradients on the simplex are told apart by their differences alone.
        given, expected = one.gradient(row)[0], oracle.gradient(row)[0]
        np.testing.assert_allclose(given - given[0], expected - expected[0], atol=1e-10)
        np.testing.assert_allclose(one.curvature(row - 1 / 7), oracle.curvature(row - 1 / 7), rtol=1e-9)
        assert one.smoothness[0] >= oracle.smoothness[0] * (1 - 1e-12)
        np.testing.assert_allclose(similar_kin(held, 1.0)[case], similar_kin(alone, 1.0)[0], atol=1e-12)
        apart = np.array(own, dtype=object)
        differences = np.array([np.mean(one, axis=0) for one in apart]) - np.mean(parts[case], axis=0)
        norm = np.linalg.norm(differences @ differences.T, 2)
        np.testing.assert_allclose(moved_operator_norms(problem)[case], norm, rtol=1e-2)
    solved = entropic_minimum(held, 0.5, relative_gap=1e-10)
    assert (solved.gap <= 1e-9 * np.abs(solved.value)).all()
    assert (duality_gap(problem.gradient(weights), weights) >= 0).all()


@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_rows_held_out_have_no_part_in_the_weights(name):
    """Whatever the rows held out are, and with them all that the target is known by, its rows of weights are the same."""
    learner, train = make_learner(name), federation(name)
    everybody, agents = known_of(train, learner)
    asides = some_folds(train)
    rows = home_rows(everybody, cases_of(everybody, agents, asides), BASES)
    for case, (t, aside) in enumerate(asides):
        other = train[t]
        X, y = other.X.copy(), other.y.copy()
        rng = np.random.default_rng(case)
        X[aside] = rng.standard_normal(X[aside].shape) * 3
        y[aside] = rng.permutation(train[(t + 1) % 9].y)[: aside.sum()]
        changed = tuple(Agent(other.name, X, y) if k == t else one for k, one in enumerate(train))
        again = replace(train, agents=changed)
        embedding = agents.embeddings[0]
        agents_again = pooled(again, learner, embeddings=[embedding])
        known, _ = known_of(train, learner)
        points = agents_again.points(0)
        means, variance = known.means[0].copy(), known.mean_variance[0].copy()
        means[t] = points[t].mean(axis=0, dtype=np.float64)
        variance[t] = points[t].astype(np.float64).var(axis=0, ddof=1).sum() / len(points[t])
        known = replace(known, means={0: means}, mean_variance={0: variance}, quadratics=learner.quadratics(agents_again))
        found = home_rows(known, cases_of(known, agents_again, [(t, aside)]), BASES)
        for base in BASES:
            np.testing.assert_allclose(found[base][0], rows[base][case], atol=2e-6, err_msg=f"{base.rule} of {t}")
            np.testing.assert_allclose(rows[base].sum(axis=1), 1.0, atol=1e-9)
            assert (rows[base] >= -1e-12).all()


def test_ridge_at_home_is_ridge_on_everybody_and_the_rows_that_are_left():
    learner, train = make_learner("ridge"), federation("ridge")
    everybody, agents = known_of(train, learner)
    rows = np.random.default_rng(0).dirichlet(np.ones(9), 5)
    for t, aside in some_folds(train):
        left = train[t].rows(~aside)
        models = learner.fit_at_home(everybody.quadratics, rows, t, left, agents.spec)
        oracle = replace(train, agents=tuple(left if k == t else one for k, one in enumerate(train)))
        np.testing.assert_allclose(models.coefficients, fit(learner, oracle, rows).coefficients, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        learner.fit_quadratics(everybody.quadratics, rows, agents.spec).coefficients,
        fit(learner, train, rows).coefficients,
        rtol=1e-8,
        atol=1e-10,
    )
    theta = models.coefficients[0]
    for k, one in enumerate(train):
        inputs = np.column_stack([one.X, np.ones(len(one))])
        gradients = (inputs @ theta - one.y)[:, None] * inputs
        np.testing.assert_allclose(everybody.quadratics.mean_gradients(theta)[k], gradients.mean(axis=0), atol=1e-10)
        np.testing.assert_allclose(
            everybody.quadratics.spread(theta)[k], np.square(inputs @ theta - one.y).mean(), rtol=1e-8
        )


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_at_home_is_exact_in_the_own_rows_and_near_in_the_others(n_classes):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((6 * 60, 2))
    y = (X[:, 0] + rng.logistic(size=len(X)) > 0).astype(int) + (n_classes - 2) * (X[:, 1] + rng.logistic(size=len(X)) > 1)
    train = kinfed.Federation.from_arrays(X, y, np.repeat(np.arange(6), 60))
    learner = make_learner("logistic")
    agents = pooled(train, learner)
    everybody = learner.quadratics(agents)
    left = train[1].rows(np.arange(60) >= 12)
    alone = learner.fit_at_home(everybody, np.eye(6)[[1]], 1, left, agents.spec)
    oracle = replace(train, agents=tuple(left if k == 1 else one for k, one in enumerate(train)))
    exact = fit(learner, oracle, np.eye(6)[[1]])
    np.testing.assert_allclose(alone.predict_proba(0, X), exact.predict_proba(0, X), atol=1e-5)
    rows = rng.dirichlet(np.ones(6), 4)
    near, exact = learner.fit_at_home(everybody, rows, 1, left, agents.spec), fit(learner, oracle, rows)
    for row in range(4):
        apart = np.abs(near.predict_proba(row, X) - exact.predict_proba(row, X))
        assert apart.mean() < 0.02
    # The quadratic touches the log loss where it was expanded, in value and slope.
    curvature, _ = expanded(train[0], agents.spec)
    assert np.linalg.eigvalsh(curvature)[0] > -1e-12
    risk = HomeRisk.of(everybody, rows, 1, left, agents.spec, np.full(4, 0.01), True)
    theta = rng.standard_normal(risk.shape)
    value, gradient = risk.value_and_gradient(theta)
    step = 1e-6 * rng.standard_normal(risk.shape)
    moved, _ = risk.value_and_gradient(theta + step)
    np.testing.assert_allclose(moved - value, np.einsum("tkp,tkp->t", gradient, step), atol=1e-9)
    turned = risk.value_and_gradient(theta + step)[1] - gradient
    hessian = risk.hessian(theta, np.arange(4))
    product = np.einsum("tij,tj->ti", hessian, step.reshape(4, -1)).reshape(step.shape)
    if n_classes == 2:  # with more the Hessian is made definite where the loss is flat
        np.testing.assert_allclose(turned, product, atol=1e-10)


def test_an_expansion_has_the_slope_of_the_loss_where_it_was_made():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    train = kinfed.Federation.from_arrays(X, (X[:, 0] + rng.logistic(size=40) > 0).astype(int), np.repeat([0, 1], 20))
    agents = pooled(train, learner := make_learner("logistic"))
    known, one = learner.quadratics(agents), train[0]
    # Where it was expanded: there the gradient is that of the priors.
    inputs = np.column_stack([one.X, np.ones(20)])
    prior = np.array([1.0, 1.0, 1.0, 1 / 9]) / 20
    theta = np.zeros(4)
    for _ in range(50):
        p = 1 / (1 + np.exp(-inputs @ theta))
        gradient = inputs.T @ (p - one.y) / 20
        hessian = (inputs * (p * (1 - p))[:, None]).T @ inputs / 20
        theta -= np.linalg.solve(hessian + np.diag(prior), gradient + prior * theta)
    np.testing.assert_allclose(known.curvature[0], hessian, atol=1e-5)
    np.testing.assert_allclose(known.mean_gradients(theta)[0], gradient, atol=1e-5)
    np.testing.assert_array_equal(known.spread(theta), 1.0)


def test_scores_are_losses_of_models_that_have_not_seen_the_points():
    train = federation("ridge", n_agents=6, n=10, dim=2, seed=3)
    learner = make_learner("ridge")
    candidates = (Candidate(LOCAL), Candidate(GRAND_MEAN), Candidate(GRAND_MEAN, 0.4))
    agents = pooled(train, learner, seed=7, embeddings=[kinfed.choose_embedding(train, n_features=20)])
    seen = []
    scores = cross_fit(agents, learner, candidates, 5, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6)
    for t in (0, 5):
        expected = np.zeros((10, 3))
        for repeat in range(5):
            dealt = deal_rows(train[t].name, 10, train[t].y, 5, 7, repeat)
            for fold in range(5):
                aside = dealt == fold
                left = train[t].rows(~aside)
                rest = replace(train, agents=tuple(left if k == t else one for k, one in enumerate(train)))
                for column, candidate in enumerate(candidates):
                    row = np.eye(6)[t] if candidate.base == LOCAL else rest.sizes / rest.sizes.sum()
                    if candidate.own:
                        odds = 0.4 / 0.6
                        row = (row + odds * np.eye(6)[t]) / (1 + odds)
                    model = fit(learner, rest, row[None])
                    expected[aside, column] += (model.predict(0, train[t].X[aside]) - train[t].y[aside]) ** 2 / 5
        assert scores[t].n == 10
        np.testing.assert_allclose(scores[t].mean, expected.mean(axis=0), rtol=1e-8)
        np.testing.assert_allclose(scores[t].covariance, np.cov(expected.T, bias=True), rtol=1e-7)


def test_clusters_are_found_outside_the_group_and_everybody_else_joins_one():
    train = kinfed.concept_shift(30, 25, 2, spread=0.0, seed=1).train
    train = kinfed.Preparation.fit(train).transform(train)
    everybody, _ = known_of(train, make_learner("ridge"), seed=1)
    groups = agent_groups(30, 1)
    assert sorted(np.bincount(groups)) == [3] * 10
    np.testing.assert_array_equal(agent_groups(12, 5), np.arange(12))
    truth = np.asarray(kinfed.concept_shift(30, 25, 2, spread=0.0, seed=1).train.groups)
    found = clusters_outside(everybody, groups == 4, [BaseRule("gradient-clusters", 2), BaseRule("clusters", 2, 0)])
    listening = found[BaseRule("gradient-clusters", 2)]
    outside = groups != 4
    assert (listening.labels[~outside] == -1).all()
    same = listening.labels[outside][:, None] == listening.labels[outside]
    assert (same == (truth[outside][:, None] == truth[outside])).mean() > 0.9
    assert (found[BaseRule("clusters", 2, 0)].labels >= 0).all()
    rows = listening.together(np.array([0, 1]), np.full((2, 30), 5.0), np.array([0, 1]))
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert (rows[[0, 1], [0, 1]] > 0).all()


def test_a_point_joins_the_cluster_that_ward_would_join_it_to():
    means = np.array([[0.0], [0.2], [5.0], [5.2], [5.4], [2.4]])
    labels = np.array([0, 0, 1, 1, 1, -1])
    members = np.array([2.0, 3.0])
    shares = (labels == np.arange(2)[:, None]) / members[:, None]
    apart = np.square(means - means.T)
    one = Clusters(labels, members, shares, np.einsum("ck,kl,cl->c", shares, apart, shares) / 2)
    rise = [2 / 3 * (2.4 - 0.1) ** 2, 3 / 4 * (2.4 - 5.2) ** 2]
    assert one.nearest_to_means(apart[[5]])[0] == int(np.argmin(rise))


def test_quadratics_of_absent_agents_weigh_nothing():
    known = Quadratics(np.array([4.0, 0.0]), np.stack([np.eye(2), np.zeros((2, 2))]), np.ones((2, 2)), np.ones(2))
    matrix, slope = known.weighted(np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(matrix[0], np.eye(2))
    np.testing.assert_array_equal(slope[0], [1.0, 1.0])
    assert len(known.select(np.array([0]))) == 1


def test_small_agents_judge_nothing():
    assert Dealing(5, 2, 0).held_out(Agent("a", np.zeros((4, 1)), np.zeros(4))) == []
    assert len(Dealing(5, 2, 0).held_out(Agent("a", np.zeros((5, 1)), np.arange(5.0)))) == 10


def test_the_family_is_judged_whole():
    train = federation("ridge", n_agents=7, n=12)
    candidates = family(1, [0], gradients=True)
    agents = pooled(train, learner := make_learner("ridge"), embeddings=[kinfed.choose_embedding(train, n_features=20)])
    scores = cross_fit(agents, learner, candidates, 4, lambda done, total: None)
    assert all(one.n == 12 and np.isfinite(one.mean).all() for one in scores)
