"""The corollary in loss units: norms and distances against the kernel itself, the chain of bounds, held-out estimates.

Inequalities that are proved for every sample are asked to hold for every sample. Means over repetitions are compared within
4.5 standard errors (wrong alarms below 1e-5 per comparison).
"""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinfed
from cli_runs import in_this_process
from kinfed.analysis.excess_risk import (
    augmented_moments,
    compared_excess_risks,
    excess_risk_of,
    excess_risk_table,
    linear_risk,
    loss_norm,
    mixtures,
    ridge_models,
)
from kinfed.analysis.held_out_risk import RidgeRows, held_out_risk
from kinfed.learners.ridge import Ridge

KERNEL = kinfed.Polynomial(degree=2, offset=1.0)
STANDARD_ERRORS = 4.5
ROUNDING = 1e-9


def random_agents(rng, count=6, n=12, dim=3):
    """Rows of agents that differ in place, scale and coefficients, some with fewer rows than columns."""
    agents = []
    for _ in range(count):
        rows = int(rng.integers(2, n))
        X = rng.normal(rng.normal(size=dim), rng.uniform(0.2, 2), (rows, dim))
        agents.append((X, X @ rng.normal(size=dim) + rng.normal(rng.normal(), rng.uniform(0, 1), rows)))
    return agents


def moments_of(agents):
    return np.array([augmented_moments(X, y) for X, y in agents])


# ---------------------------------------------------------------- the space of the kernel


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_the_norm_of_a_loss_is_that_of_its_expansion_in_the_kernel(dim):
    """As many points as the space has dimensions: the loss is their span, c = K^-1 l, and |l|^2 = l'K^-1 l."""
    rng = np.random.default_rng(dim)
    points = rng.standard_normal(((dim + 2) * (dim + 3) // 2, dim + 1))
    for theta in rng.standard_normal((5, dim + 1)):
        loss = (points[:, -1] - points[:, :-1] @ theta[:-1] - theta[-1]) ** 2
        squared = loss @ np.linalg.solve(KERNEL(points, points), loss)
        np.testing.assert_allclose(loss_norm(theta), squared**0.5, rtol=1e-6)


def test_the_norm_is_that_of_the_paper_s_proof():
    """With an intercept the loss is c^2 k((a / c, -1 / c), .), whose norm is c^2 k(z, z)^(1/2)."""
    theta = np.array([0.7, -1.2, 0.4])
    centre = np.array([[*theta[:-1], -1.0]]) / theta[-1]
    np.testing.assert_allclose(loss_norm(theta), theta[-1] ** 2 * KERNEL(centre, centre)[0, 0] ** 0.5)


def test_no_loss_of_the_ball_has_a_larger_norm():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((200, 4))
    theta *= 1.7 * rng.random((200, 1)) / np.linalg.norm(theta, axis=1, keepdims=True)
    assert (loss_norm(theta) <= 1 + 1.7**2).all()
    np.testing.assert_allclose(loss_norm(np.array([0.0, 1.7])), 1 + 1.7**2)


def test_the_distance_is_the_mmd_of_the_kernel():
    """Of mixtures of samples too, by Gram matrices and by the library's explicit features."""
    rng = np.random.default_rng(1)
    agents, weights = random_agents(rng), rng.dirichlet(np.ones(6), size=6)
    mixed = mixtures(weights, moments_of(agents))
    found = excess_risk_of(mixed, moments_of(agents), 0.1).mmd
    points = [np.column_stack(agent) for agent in agents]
    gram = np.array([[KERNEL(one, other).mean() for other in points] for one in points])
    apart = weights - np.eye(6)
    np.testing.assert_allclose(found**2, np.einsum("tk,kl,tl->t", apart, gram, apart), rtol=1e-8, atol=1e-8)
    features = kinfed.PolynomialFeatures(KERNEL, dim=4)
    means = np.array([features(one).mean(axis=0) for one in points])
    np.testing.assert_allclose(found, np.linalg.norm(apart @ means, axis=1), rtol=1e-8)


def test_risks_and_models_are_those_of_the_rows():
    rng = np.random.default_rng(2)
    X, theta = rng.standard_normal((30, 3)), rng.standard_normal((1, 4))
    y = rng.standard_normal(30)
    moments = augmented_moments(X, y)[None]
    np.testing.assert_allclose(linear_risk(theta, moments), np.mean((y - X @ theta[0, :-1] - theta[0, -1]) ** 2))
    federation = kinfed.Federation.from_arrays(X, y, np.zeros(30))
    agents = kinfed.backends.pooled.PooledAgents(federation, "regression")
    for penalty in (0.0, 0.3):
        expected = Ridge(penalty=penalty).fit(agents, np.ones((1, 1))).coefficients
        np.testing.assert_allclose(ridge_models(moments, penalty), expected, rtol=1e-9)


def test_the_generator_s_second_moments_are_those_of_many_points():
    """Within 4.5 standard errors of 40,000 points of each of three agents; and its risks are the quadratic form."""
    generated = kinfed.concept_shift(n_agents=3, n=5, dim=2, spread=0.5, seed=1)
    truth = generated.distribution.augmented_moments()
    for agent, exact in zip(generated.test(40_000), truth, strict=True):
        rows = np.column_stack([agent.X, np.ones(len(agent)), agent.y])
        products = rows[:, :, None] * rows[:, None]
        noise = products.std(axis=0) / len(rows) ** 0.5
        assert (np.abs(products.mean(axis=0) - exact) <= STANDARD_ERRORS * noise + ROUNDING).all()
    theta = np.random.default_rng(0).standard_normal((3, 3))
    np.testing.assert_allclose(linear_risk(theta, truth), generated.population_mse(theta))
    with pytest.raises(kinfed.InputError, match="no closed form"):
        kinfed.label_shift(n_agents=3).distribution.augmented_moments()


# ---------------------------------------------------------------- the chain of bounds


@given(seed=st.integers(0, 2**32 - 1), penalty=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 100.0]), spread=st.floats(0.01, 50))
def test_every_step_of_the_chain_holds_for_every_sample(seed, penalty, spread):
    """Any weights, any data, fewer rows than columns, any penalty; the truth is another sample or the same."""
    rng = np.random.default_rng(seed)
    agents = [(spread * X, y) for X, y in random_agents(rng)]
    truth = moments_of([(spread * X, y) for X, y in random_agents(rng, n=40)])
    mixed = mixtures(rng.dirichlet(np.full(6, 0.3), size=6), moments_of(agents))
    found = excess_risk_of(mixed, truth, penalty)
    slack = 1e-7 * (1 + found.corollary)
    for lower, upper in (
        (np.zeros(6), found.excess),
        (found.excess, found.by_difference),
        (found.by_difference, found.by_norms),
        (found.by_norms, found.corollary),
    ):
        assert (lower <= upper + slack).all()


def test_the_excess_risk_is_that_of_the_models():
    """Against risks on the rows themselves, the least of them by least squares."""
    rng = np.random.default_rng(3)
    targets = [(rng.standard_normal((20, 3)), rng.standard_normal(20)) for _ in range(6)]
    mixed = moments_of(random_agents(rng))
    expected = []
    for (X, y), theta in zip(targets, ridge_models(mixed, 0.2), strict=True):
        least = np.linalg.lstsq(np.column_stack([X, np.ones(20)]), y, rcond=None)[1][0] / 20
        expected.append(np.mean((y - X @ theta[:-1] - theta[-1]) ** 2) - least)
    np.testing.assert_allclose(excess_risk_of(mixed, moments_of(targets), 0.2).excess, expected, rtol=1e-9)


@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0, 3.0])
def test_a_constant_outcome_that_is_shifted_is_known_exactly(shift):
    """Outcome 0, learned from outcome b: excess b^2, both norms b sqrt(2 + b^2), their product 2 + b^2 times the excess."""
    zero = np.zeros((4, 1))
    mixed, truth = (augmented_moments(zero, np.full(4, value))[None] for value in (shift, 0.0))
    found, b2 = excess_risk_of(mixed, truth, 0.0), shift**2
    np.testing.assert_allclose(found.excess, b2)
    np.testing.assert_allclose(found.mmd, (b2 * (2 + b2)) ** 0.5)
    np.testing.assert_allclose(found.by_difference, b2 * (2 + b2))
    np.testing.assert_allclose(found.by_norms, (2 + b2) * (b2 * (2 + b2)) ** 0.5)
    np.testing.assert_allclose(found.corollary, 2 * (1 + b2) * (b2 * (2 + b2)) ** 0.5)
    np.testing.assert_allclose(found.looseness, 2 * (1 + b2) * (2 + b2) ** 0.5 / shift)


def test_a_mixture_that_is_the_target_loses_nothing():
    moments = moments_of(random_agents(np.random.default_rng(4), n=60))
    found = excess_risk_of(moments, moments, 0.0)
    for one in (found.mmd, found.excess, found.by_difference, found.by_norms, found.corollary):
        np.testing.assert_allclose(one, 0.0, atol=1e-20)
    assert np.isinf(found.looseness)


def test_the_corollary_falls_like_the_root_of_the_points_and_the_excess_risk_like_the_points():
    """Sixteen times the points: the bound a quarter, the excess and its bound by the difference a sixteenth; to a third."""
    means = []
    for n in (200, 3200):
        generated = kinfed.concept_shift(n_agents=60, n=n, dim=3, seed=2)
        samples = np.array([augmented_moments(agent.X, agent.y) for agent in generated.train])
        found = excess_risk_of(samples, generated.distribution.augmented_moments(), 0.0, radius=5.0)
        means.append([one.mean() for one in (found.corollary, found.by_difference, found.excess)])
    np.testing.assert_allclose(np.divide(*means), [4, 16, 16], rtol=1 / 3)


def test_units_scale_the_loss_and_one_radius_serves_all_weights():
    rng = np.random.default_rng(5)
    samples, truth = moments_of(random_agents(rng)), moments_of(random_agents(rng, n=60))
    weights = {"local": np.eye(6), "grand-mean": np.full((6, 6), 1 / 6)}
    plain, scaled = (compared_excess_risks(weights, samples, truth, 0.1, unit=unit) for unit in (1.0, 9.0))
    assert plain["local"].radius == plain["grand-mean"].radius
    for name in weights:
        np.testing.assert_allclose(scaled[name].corollary, 9 * plain[name].corollary)
        np.testing.assert_allclose(scaled[name].excess, 9 * plain[name].excess)
        np.testing.assert_allclose(scaled[name].looseness, plain[name].looseness)
    frame = excess_risk_table(plain)
    np.testing.assert_allclose(frame["gain"], frame.loc["local", "excess_risk"] - frame["excess_risk"])


def test_known_truth_is_that_of_raw_columns():
    """Standardising is undone: excess risks are those of the models in raw columns, by the generator's own formula."""
    generated = kinfed.concept_shift(n_agents=8, n=25, dim=3, spread=0.1, seed=3)
    found = kinfed.known_excess_risk(generated, "similarity-test")
    assert list(found) == ["local", "grand-mean", "similarity-test"]
    for name, one in found.items():
        ridge = kinfed.make_learner("ridge", penalty=0.01)
        result = kinfed.personalize(generated.train, ridge, rule=name, baselines=False)
        tables = [result.model(agent).coefficients["coefficient"] for agent in generated.train.names]
        slopes = ["x0", "x1", "x2"]
        theta = np.array([[*table[slopes], table.drop(slopes).item()] for table in tables])
        excess = generated.population_mse(theta) - generated.distribution.noise_variance
        np.testing.assert_allclose(one.excess, excess, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"penalty": -1.0}, "penalty must not be negative"),
        ({"unit": 0.0}, "unit must be positive"),
        ({"radius": 0.0}, "at least the norm of every model"),
        ({"truth": np.zeros((2, 3, 3))}, "alike"),
    ],
)
def test_bad_input(arguments, words):
    moments = moments_of(random_agents(np.random.default_rng(6)))
    with pytest.raises(kinfed.InputError, match=words):
        excess_risk_of(**{"mixed": moments, "truth": moments, "penalty": 0.1, **arguments})


def test_rules_that_train_are_refused():
    with pytest.raises(kinfed.InputError, match="judged by models"):
        kinfed.known_excess_risk(kinfed.concept_shift(n_agents=4, n=10, dim=2), "calibrated")


# ---------------------------------------------------------------- held out


def folds_of(rows, weights, K=3):
    deal = [np.arange(len(y)) % K for y in rows.y]
    return list(zip(*(rows.fold([own == fold for own in deal], weights) for fold in range(K)), strict=True))


def test_held_out_losses_and_distances_are_a_literal_loop():
    rng = np.random.default_rng(7)
    agents = [(rng.standard_normal((6, 2)), rng.standard_normal(6)) for _ in range(4)]
    rows = RidgeRows(*map(tuple, zip(*agents, strict=True)), penalty=0.2, unit=4.0)
    weights = rng.dirichlet(np.ones(4), size=4)
    found = held_out_risk(("local", "grand-mean", "ours"), folds_of(rows, weights), rows)
    features = kinfed.PolynomialFeatures(KERNEL, dim=3)
    embedded = [features(np.column_stack(agent)) for agent in agents]
    losses, squares, norms = [], [], []
    for fold in range(3):
        aside = np.arange(6) % 3 == fold
        kept = np.array([one[~aside].mean(axis=0) for one in embedded])
        for t, (X, y) in enumerate(agents):
            extended = [np.column_stack([X_k[~aside], np.ones(4)]) for X_k, _ in agents]
            normal = sum(w * one.T @ one / 4 for w, one in zip(weights[t], extended, strict=True)) + np.diag([0.2, 0.2, 0])
            right = sum(w * one.T @ y_k[~aside] / 4 for w, one, (_, y_k) in zip(weights[t], extended, agents, strict=True))
            theta = np.linalg.solve(normal, right)
            losses.append(np.mean((y[aside] - X[aside] @ theta[:2] - theta[2]) ** 2))
            norms.append(theta @ theta)
            mixed, variance = weights[t] @ kept, np.var(embedded[t], axis=0, ddof=1).sum() / 4
            change = [np.sum((mixed - one) ** 2) - np.sum((kept[t] - one) ** 2) for one in embedded[t][aside]]
            squares.append(variance + np.mean(change))
    np.testing.assert_allclose(found.loss[-1], 4 * np.mean(losses))
    np.testing.assert_allclose(found.squared_mmd[-1], np.mean(squares))
    own = 2 * (np.mean((1 + np.array(norms)) ** 2) * np.mean(squares)) ** 0.5 + 0.2 * np.mean(norms)
    np.testing.assert_allclose(found.own_balls[-1], 4 * own)
    assert found.radius**2 >= max(norms) * (1 - ROUNDING)
    expected = 4 * (2 * (1 + found.radius**2) * np.mean(squares) ** 0.5 + 0.2 * found.radius**2)
    np.testing.assert_allclose(found.corollary[-1], expected)
    assert found.gain[0] == 0


@pytest.mark.slow
def test_squared_distances_are_unbiased_for_weights_that_look_at_the_data():
    """Against the true moments, over 400 federations; weights pull towards the agents that look nearest."""
    generated = kinfed.concept_shift(n_agents=4, n=9, dim=1, spread=0.5, seed=0)
    truth, rng = generated.distribution.augmented_moments(), np.random.default_rng(8)
    differences = []
    for _ in range(400):
        drawn = [generated.distribution.draw(k, 9, rng) for k in range(4)]
        rows = RidgeRows(*map(tuple, zip(*drawn, strict=True)), penalty=0.1)
        estimates, errors = [], []
        for fold in range(3):
            aside = [np.arange(9) % 3 == fold] * 4
            kept = np.array([augmented_moments(X[~out], y[~out]) for (X, y), out in zip(drawn, aside, strict=True)])
            near = np.exp(-0.1 * np.sum((kept[:, None] - kept) ** 2, axis=(2, 3)))
            weights = near / near.sum(axis=1, keepdims=True)
            estimates.append(rows.fold(aside, weights)[-1].squared_mmd)
            errors.append(np.sum((mixtures(weights, kept) - truth) ** 2, axis=(1, 2)))
        differences.append(np.mean(estimates) - np.mean(errors))
    assert abs(np.mean(differences)) <= STANDARD_ERRORS * np.std(differences) / 400**0.5


def test_agents_of_two_rows_take_part_and_are_not_measured():
    train = kinfed.concept_shift(n_agents=6, n=12, dim=2, seed=0).train
    few = kinfed.Federation.from_arrays(
        np.concatenate([train[0].X[:2], *(agent.X for agent in train)]),
        np.concatenate([train[0].y[:2], *(agent.y for agent in train)]),
        np.repeat(np.arange(7), [2, *train.sizes]),
    )
    risk = kinfed.predict_gain(few, "grand-mean", n_features=50).risk
    np.testing.assert_allclose(risk.loss[1], risk.loss[2])
    np.testing.assert_allclose(risk.corollary[1], risk.corollary[2])
    assert np.isfinite(risk.loss).all()


def test_the_bound_is_for_ridge_alone():
    train = kinfed.label_shift(n_agents=5, n=30, dim=2, classes=2, seed=0).train
    assert kinfed.predict_gain(train, n_features=50).risk is None
    assert kinfed.predict_gain(train, learner="ridge", n_features=50).risk is not None
    assert kinfed.predict_gain(train.select([0]), learner="ridge", n_features=50).risk is None  # nobody to learn from


def test_sentences_say_when_the_bound_says_nothing_and_when_it_is_not_known():
    told = {"methods": ("local", "grand-mean", "ours"), "radius": 1.0, "dim": 1, "worse": np.array([0.5, 0.0, 0.0])}
    told |= {"loss": np.array([2.0, 1.0, 1.0]), "squared_mmd": np.ones(3), "own_balls": np.ones(3)}
    vacuous = kinfed.HeldOutRisk(**told, corollary=np.array([4.0, 4.0, 4.0]))
    assert "says nothing" in str(vacuous)
    np.testing.assert_allclose(vacuous.loose_at_least, [2, 4, 4])
    np.testing.assert_allclose(vacuous.loose_at_most, [8, np.inf, np.inf])
    assert "says something" in str(kinfed.HeldOutRisk(**told, corollary=np.array([0.5, 0.5, 0.5])))
    assert "too noisy" in str(kinfed.HeldOutRisk(**told, corollary=np.array([0.5, 0.5, np.nan])))
    assert "corollary" in vacuous._repr_html_()


def test_a_result_keeps_the_bound(tmp_path):
    train = kinfed.concept_shift(n_agents=6, n=12, dim=2, seed=0).train
    result = kinfed.weighting(train, "q-aggregation", n_features=50)
    result.report(tmp_path / "report")
    result.save(tmp_path / "kept")
    kept, made = (one.found["predicted"].risk for one in (kinfed.load(tmp_path / "kept"), result))
    pd.testing.assert_frame_equal(kept.to_frame(), made.to_frame())


# ---------------------------------------------------------------- the command


def test_the_command_shows_bound_loss_gain_and_looseness(tmp_path):
    train = kinfed.concept_shift(n_agents=8, n=15, dim=2, seed=0).train
    tables = [pd.DataFrame(one.X, columns=["a", "b"]).assign(y=one.y, site=f"site {k}") for k, one in enumerate(train)]
    pd.concat(tables).to_csv(tmp_path / "sites.csv", index=False)
    arguments = ["theory", "sites.csv", "--target", "y", "--agent", "site", "--features", "60", "--out", "out"]
    done = in_this_process(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "by the corollary ridge loses at most" in done.stdout
    assert "8 simulated agents" in done.stdout
    measured = pd.read_csv(tmp_path / "out" / "excess-risk.csv", index_col="weights")
    known = pd.read_csv(tmp_path / "out" / "known-excess-risk.csv", index_col="weights")
    assert list(measured.index) == list(known.index) == ["local", "grand-mean", "q-aggregation"]
    assert (known["excess_risk"] <= known["corollary"]).all()
    np.testing.assert_allclose(known["looseness"], known["corollary"] / known["excess_risk"])
    assert (measured["loose_at_least"] <= measured["loose_at_most"]).all()
    machine = in_this_process(*arguments, "--force", "--json", cwd=tmp_path)
    document = json.loads(machine.stdout)
    assert document["known excess risk"]["local"]["gain"] == 0
    np.testing.assert_allclose(document["excess risk"]["local"]["loss"], measured.loc["local", "loss"])
