"""Gradient Q-aggregation: gradients against differences of the loss, the problem against a general solver, kin found."""

import numpy as np
import pytest
from scipy.optimize import minimize

import kinfed
from kinfed.learners import make_learner
from kinfed.weights.gradient_problem import (
    Answers,
    GradientProblem,
    PointGradients,
    Projection,
    gradient_problem,
    mean_gradients,
    point_gradients,
    spread_of,
    true_directions,
)
from kinfed.weights.gradient_rows import GradientRows
from kinfed.weights.mirror_descent import mirror_descent
from kinfed.weights.rules.gradient import gradient_rounds, listening_clusters, without_own
from question_sites import fit, pooled, sites


def outer(points):
    return np.array([np.outer(r, h).ravel() for r, h in zip(points.residuals, points.inputs, strict=True)])


def slope(loss, theta, step=1e-6):
    """The gradient of a function by central differences."""
    flat = np.zeros(theta.size)
    for place in range(theta.size):
        ahead, behind = theta.copy().ravel(), theta.copy().ravel()
        ahead[place] += step
        behind[place] -= step
        flat[place] = (loss(ahead.reshape(theta.shape)) - loss(behind.reshape(theta.shape))) / (2 * step)
    return flat


def labelled(n_classes, seed=0):
    rng = np.random.default_rng(seed)
    X, agent = rng.standard_normal((60, 3)), np.arange(60) % 4
    y = (X[:, 0] + rng.standard_normal(60) > 0).astype(int) + (X[:, 1] > 1) * (n_classes > 2)
    return kinfed.Federation.from_arrays(X, y, agent)


def test_ridge_gradients_are_slopes_of_the_squared_error():
    train = kinfed.concept_shift(n_agents=4, n=9, dim=3, seed=0).train
    models = fit(make_learner("ridge"), train, np.eye(4))
    found = outer(point_gradients(models, 1, train[2].X, train[2].y, "regression"))
    for i, (x, y) in enumerate(zip(train[2].X, train[2].y, strict=True)):
        expected = slope(lambda theta, x=x, y=y: 0.5 * (x @ theta[:-1] + theta[-1] - y) ** 2, models.coefficients[1])
        np.testing.assert_allclose(found[i], expected, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_gradients_are_slopes_of_the_log_loss(n_classes):
    train = labelled(n_classes)
    models = fit(make_learner("logistic"), train, np.full((1, 4), 0.25))
    X, y, _ = train.pooled()
    found = outer(point_gradients(models, 0, X[:5], y[:5], "classification"))

    def loss(theta, x, label):
        logits = theta[:, :-1] @ x + theta[:, -1]
        logits = np.concatenate([[0.0], logits]) if n_classes == 2 else logits
        return np.log(np.exp(logits).sum()) - logits[label]

    for i in range(5):
        expected = slope(lambda theta, i=i: loss(theta, X[i], y[i]), models.coefficients[0])
        np.testing.assert_allclose(found[i], expected, atol=1e-5)


def test_network_gradients_are_those_of_the_last_layer():
    torch = pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    train = labelled(3)
    models = fit(TorchLearner(hidden=(5,), epochs=3, dtype="float64"), train, np.full((1, 4), 0.25))
    X, y, _ = train.pooled()
    found = outer(point_gradients(models, 0, X[:4], y[:4], "classification"))
    module = models.module_for(0)
    last = module[-1]
    for i in range(4):
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(X[i : i + 1])), torch.tensor(y[i : i + 1]))
        weight, bias = torch.autograd.grad(loss, [last.weight, last.bias])
        expected = np.column_stack([weight.numpy(), bias.numpy()]).ravel()
        np.testing.assert_allclose(found[i], expected, atol=1e-10)


def test_black_boxes_are_seen_through_their_residuals():
    from sklearn.svm import LinearSVC
    from sklearn.tree import DecisionTreeRegressor

    train = kinfed.concept_shift(n_agents=3, n=9, dim=2, seed=0).train
    models = fit(make_learner(DecisionTreeRegressor(max_depth=2)), train, np.eye(3))
    points = point_gradients(models, 0, train[1].X, train[1].y, "regression")
    np.testing.assert_allclose(points.residuals[:, 0], models.predict(0, train[1].X) - train[1].y)
    np.testing.assert_array_equal(points.inputs, np.column_stack([train[1].X, np.ones(9)]))
    sure = fit(make_learner(LinearSVC()), labelled(2), np.full((1, 4), 0.25))
    X, y, _ = labelled(2).pooled()
    assert set(np.unique(point_gradients(sure, 0, X, y, "classification").residuals)) <= {-1.0, 0.0, 1.0}
    with pytest.raises(kinfed.InputError, match="no loss gradients"):
        point_gradients(sure, 0, X, y, "unsupervised")


def test_means_and_scatter_are_those_of_the_long_vectors():
    rng = np.random.default_rng(0)
    sizes = np.array([4, 1, 7])
    points = PointGradients(rng.standard_normal((12, 2)), rng.standard_normal((12, 3)))
    means, mean_variance = mean_gradients(points, np.array([0, 4, 5]), sizes)
    long = np.split(outer(points), [4, 5])
    for k, mine in enumerate(long):
        np.testing.assert_allclose(means[k], mine.mean(axis=0))
        if len(mine) > 1:
            np.testing.assert_allclose(mean_variance[k], np.trace(np.cov(mine.T)) / len(mine))
    np.testing.assert_allclose(mean_variance[1], np.square(long[1]).sum())


def test_projections_keep_inner_products_on_average():
    rng = np.random.default_rng(1)
    points = PointGradients(rng.standard_normal((2, 12)), rng.standard_normal((2, 40)))
    exact = outer(points) @ outer(points).T
    drawn = [Projection.draw(12, 40, 100, seed) for seed in range(400)]
    short = np.array([outer(one(points)) for one in drawn])
    assert short.shape[2] <= 100
    found = np.einsum("sip,sjp->sij", short, short)
    error = found.std(axis=0) / 20
    assert (np.abs(found.mean(axis=0) - exact) < 4.5 * error).all()  # a false alarm in 50,000 runs
    whole = Projection.draw(3, 4, 100, 0)(points)
    np.testing.assert_array_equal(outer(whole), outer(points))


def random_problem(seed=0):
    rng = np.random.default_rng(seed)
    return GradientProblem(
        rng.standard_normal((2, 6, 3)), rng.random((2, 6)), rng.random((2, 6)), np.array([0, 3]), np.array([0.5, 1.0])
    )


def test_value_and_gradient_are_those_of_the_formula():
    problem, weights = random_problem(), np.random.default_rng(1).dirichlet(np.ones(6), 2)
    for t in range(2):

        def value(w, t=t):
            quadratic = np.square(problem.differences[t].T @ w).sum() + problem.variances[t] @ w**2
            return quadratic + problem.linear[t] @ w

        np.testing.assert_allclose(problem.value(weights)[t], value(weights[t]))
        np.testing.assert_allclose(problem.gradient(weights)[t], slope(value, weights[t]), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_no_weights_are_better_than_the_solver_says(seed):
    problem, prior, pull = random_problem(seed), np.full(6, 1 / 6), np.array([0.05, 0.3])
    found = mirror_descent(problem, problem.targets, np.log(prior), pull, 1e-9)
    assert (found.gap <= 1e-9 * problem.alone + 1e-12).all()
    for t in range(2):

        def value(logits, t=t):
            w = np.exp(logits - logits.max())
            w /= w.sum()
            return problem.rows(np.array([t])).value(w[None])[0] + pull[t] * w @ np.log(np.maximum(w, 1e-300) / prior)

        best = min(minimize(value, start, tol=1e-12).fun for start in np.random.default_rng(2).standard_normal((4, 6)))
        np.testing.assert_allclose(found.value[t], best, atol=1e-6)


def test_only_directions_in_which_agents_differ_are_kept():
    rng = np.random.default_rng(0)
    shares, mean_variance = np.full(60, 1 / 60), np.full(60, 20.0)  # 20 directions of variance 1
    noise = rng.standard_normal((60, 20))
    groups = np.where(np.arange(60) % 2, 4.0, -4.0)[:, None] * np.eye(20)[0]
    two = true_directions(noise + groups, mean_variance, shares)
    lengths = np.linalg.norm(two.basis, axis=0)
    assert abs(two.basis[0, lengths.argmax()]) > 0.9
    same = true_directions(noise, mean_variance, shares)
    apart = true_directions(noise + 5 * rng.standard_normal((60, 20)), mean_variance, shares)
    assert same.kept < 0.25 < 0.9 < apart.kept


def test_the_problem_of_a_target_is_the_one_of_the_page():
    rng = np.random.default_rng(3)
    means, own, sizes = rng.standard_normal((5, 4)), rng.standard_normal((6, 4)), np.array([6, 3, 4, 9, 5])
    mean_variance = rng.random(5)
    directions = true_directions(means, mean_variance, sizes / sizes.sum())
    problem = gradient_problem(
        [Answers(means, mean_variance, directions, spread_of(own), len(own))], np.array([2]), sizes, 1.5
    )
    metric = directions.basis @ directions.basis.T
    w = rng.dirichlet(np.ones(5))
    apart = w @ means - means[2]
    covariance = np.cov(own.T)
    expected = apart @ metric @ apart + (1 - directions.kept) * mean_variance @ w**2
    expected += 2 * w[2] * np.trace(metric @ covariance) / 6
    for k in (0, 1, 3, 4):
        direction = metric @ (means[k] - means[2])
        expected += 1.5 * w[k] * np.sqrt(direction @ covariance @ direction / 6)
    np.testing.assert_allclose(problem.value(w[None])[0], expected)


@pytest.fixture(scope="module")
def grouped():
    return kinfed.concept_shift(n_agents=30, n=12, dim=4, spread=0.0, groups=3, noise_variance=0.5, seed=4)


def test_kin_are_found_where_points_alone_do_not_show_them(grouped):
    train, test = grouped.train, grouped.test(300, seed=1)
    groups = np.array(train.groups)
    soft = kinfed.personalize(train, rule="gradient", test=test)
    within = soft.weights.matrix[groups[:, None] == groups].sum() / 30
    assert within > 0.8
    hard = kinfed.personalize(train, rule="gradient-clusters", options={"count": 3}, test=test)
    np.testing.assert_array_equal(hard.weights.matrix > 0, groups[:, None] == groups)
    oracle = kinfed.personalize(train, rule="oracle", test=test)
    assert oracle.scores["personalized"].mean() == pytest.approx(hard.scores["personalized"].mean())
    noise = 0.5
    assert soft.scores["personalized"].mean() - noise < 0.5 * (soft.scores["local"].mean() - noise)
    assert (soft.weights.gap < 1e-4).all()


def test_some_targets_and_any_order_give_the_same_rows():
    few = kinfed.concept_shift(n_agents=9, n=(6, 30), dim=4, spread=0.0, seed=4).train
    learner = make_learner("ridge")
    agents = pooled(few, learner)
    everyone = gradient_rounds(agents, learner, np.arange(9), rounds=2).weights
    some = gradient_rounds(agents, learner, np.array([5, 0]), rounds=2).weights
    np.testing.assert_allclose(some, everyone[[5, 0]], atol=1e-6)
    order = np.random.default_rng(0).permutation(9)
    reordered = pooled(few.select(order.tolist()), learner)
    permuted = gradient_rounds(reordered, learner, np.arange(9), rounds=2).weights
    np.testing.assert_allclose(permuted, everyone[np.ix_(order, order)], atol=1e-4)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("n_classes, n_features", [(0, 500), (3, 500), (3, 6)])
def test_agents_who_answer_for_themselves_find_the_same_weights(n_classes, n_features, common):
    if n_classes:
        train, learner = labelled(n_classes), make_learner("logistic")
    else:
        train, learner = kinfed.concept_shift(n_agents=6, n=(4, 20), dim=3, spread=0.0, seed=4).train, make_learner("ridge")
    everyone = np.arange(len(train))
    apart = sites(train, learner)
    how = {"rounds": 2, "n_features": n_features, "common": common}
    found = gradient_rounds(apart, learner, everyone, **how)
    expected = gradient_rounds(pooled(train, learner), learner, everyone, **how)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-7)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-7)
    assert np.ptp(expected.weights) > 0.1
    # Nobody sees another's points: a target has everybody's mean gradient, of the length it was projected to.
    told = [asked for question, asked in apart.log if isinstance(question, GradientRows)]
    assert len(told) == (1 if common else 2)
    length = 6 if n_features == 6 else 4 * max(n_classes, 1)
    assert {one.arrays["means"].shape for one in told[-1].values()} == {(len(train), length)}


def test_the_rule_needs_a_target():
    from sklearn.neighbors import KernelDensity

    train = kinfed.concept_shift(n_agents=3, n=6, dim=2, seed=0).train
    learner = make_learner(KernelDensity())
    with pytest.raises(kinfed.InputError, match="needs a learner with a target"):
        gradient_rounds(pooled(train, learner), learner, np.arange(3))


def test_one_common_model_is_enough_for_slow_learners(grouped):
    fitted = []

    class Counting:
        task = "regression"

        def fit(self, agents, weights, **more):
            fitted.append(len(weights))
            return make_learner("ridge").fit(agents, weights)

    groups = np.array(grouped.train.groups)
    learner = Counting()
    found = gradient_rounds(pooled(grouped.train, learner), learner, np.arange(30), common=True).weights
    assert fitted == [1]
    assert found[groups[:, None] == groups].sum() / 30 > 0.5


def test_targets_are_trained_without_themselves():
    shares = np.array([0.5, 0.25, 0.25])
    rows = without_own(np.array([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0]]), np.array([0, 1]), shares)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert rows[0, 0] == rows[1, 1] == 0
    assert rows[0, 1] > 0.97
    np.testing.assert_allclose(rows[1, 0] / rows[1, 2], 2.0)


def test_agents_who_listen_alike_are_one_cluster():
    matrix = np.kron(np.eye(3), np.full((4, 4), 0.25))
    labels = listening_clusters(matrix, 3)
    assert [len(set(labels[4 * g : 4 * g + 4])) for g in range(3)] == [1, 1, 1]
    assert len(set(labels)) == 3
    assert len(set(listening_clusters(matrix, 1))) == 1


@pytest.mark.parametrize("rule", ["gradient", "gradient-clusters"])
def test_one_agent_listens_to_itself(rule):
    alone = kinfed.concept_shift(n_agents=1, n=8, dim=2, seed=0).train
    np.testing.assert_array_equal(kinfed.collaboration_weights(alone, rule).matrix, [[1.0]])


def test_clusters_of_embeddings_find_groups_that_show():
    rng = np.random.default_rng(0)
    points = [rng.standard_normal((30, 5)) + 3 * (k % 3) for k in range(9)]
    weights = kinfed.weigh(kinfed.explicit_geometry(points, targets=[4, 0]), "clusters", count=3)
    np.testing.assert_allclose(weights.matrix[0], [0, 1 / 3, 0] * 3, atol=1e-12)
    np.testing.assert_allclose(weights.matrix[1], [1 / 3, 0, 0] * 3, atol=1e-12)
