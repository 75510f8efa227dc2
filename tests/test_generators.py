"""Synthetic federations: their distributions against the formulas, and exact errors against independent oracles."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from kinfed.data import concept_shift, covariate_shift, feature_rotation, label_shift, no_structure
from kinfed.errors import InputError

GENERATORS = {
    "concept": lambda seed: concept_shift(n_agents=6, n=8, dim=3, seed=seed),
    "covariate": lambda seed: covariate_shift(sizes=(2, 2, 2), n=8, seed=seed),
    "label": lambda seed: label_shift(n_agents=6, n=8, groups=2, seed=seed),
    "rotation": lambda seed: feature_rotation(n_agents=6, n=8, dim=5, seed=seed),
    "same": lambda seed: no_structure(n_agents=6, n=8, agents="same", seed=seed),
    "unrelated": lambda seed: no_structure(n_agents=6, n=8, agents="unrelated", seed=seed),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_the_seed_decides_everything_and_test_points_are_fresh(make):
    first, again, other = make(3), make(3), make(4)
    for a, b, c in zip(first.train, again.train, other.train, strict=True):
        np.testing.assert_array_equal(a.X, b.X)
        np.testing.assert_array_equal(a.y, b.y)
        assert not np.array_equal(a.X, c.X)
    assert first.train.groups == again.train.groups
    test = first.test(8, seed=0)
    assert test.names == first.train.names
    assert test.groups == first.train.groups
    assert test.sizes.tolist() == [8] * 6
    assert test.is_numeric
    everything = np.concatenate([agent.X for fed in (first.train, test, first.test(8, seed=1)) for agent in fed])
    assert len(np.unique(everything[:, 0])) == len(everything)  # no point is drawn twice
    np.testing.assert_array_equal(test[2].X, pickle.loads(pickle.dumps(first)).test(8, seed=0)[2].X)


def test_no_global_randomness():
    np.random.seed(0)  # noqa: NPY002 - the state that must not matter
    before = concept_shift(n_agents=3, n=4, seed=1).train[0].X
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(before, concept_shift(n_agents=3, n=4, seed=1).train[0].X)


def test_concept_shift_defaults_are_those_of_the_paper():
    generated = concept_shift()
    assert len(generated.train) == 100
    assert set(generated.train.sizes) == {10}
    assert generated.train.dim == 20
    assert generated.distribution.noise_variance == 2.0
    assert set(generated.train.groups) == {0, 1}


def test_concept_shift_without_spread_has_opposite_coefficients():
    generated = concept_shift(n_agents=50, dim=5, spread=0, seed=2)
    signs = 2 * np.array(generated.train.groups) - 1
    np.testing.assert_allclose(
        generated.distribution.beta * signs[:, None], np.tile(generated.distribution.beta[0] * signs[0], (50, 1))
    )
    assert 5 < np.sum(signs > 0) < 45  # a fair coin for each agent


def test_concept_shift_interpolates_with_common_random_numbers():
    beta = {s: concept_shift(n_agents=20, dim=4, spread=s, seed=5).distribution.beta for s in (0.0, 0.3, 1.0)}
    np.testing.assert_allclose(beta[0.3], np.sqrt(0.7) * beta[0.0] + np.sqrt(0.3) * beta[1.0])
    X = [concept_shift(n_agents=20, dim=4, spread=s, seed=5).train[3].X for s in (0.0, 0.3)]
    np.testing.assert_array_equal(*X)


@pytest.mark.parametrize("spread", [0.0, 0.4, 1.0])
def test_concept_shift_keeps_the_norm_of_the_coefficients(spread):
    distributions = [concept_shift(200, 1, 10, spread=spread, groups=40, seed=seed).distribution for seed in range(8)]
    norms = [np.sum(distribution.beta**2, axis=1) for distribution in distributions]
    assert np.mean(norms) == pytest.approx(10, rel=0.1)  # E|beta_k|^2 = d


def test_concept_shift_with_more_groups_has_independent_centres():
    generated = concept_shift(n_agents=200, dim=400, spread=0.0, groups=4, seed=0)
    groups = np.array(generated.train.groups)
    centres = np.stack([generated.distribution.beta[groups == g][0] for g in range(4)])
    assert all(np.ptp(generated.distribution.beta[groups == g], axis=0).max() == 0 for g in range(4))
    correlation = np.corrcoef(centres) - np.eye(4)
    assert np.abs(correlation).max() < 0.25  # 5 standard deviations of 1 / sqrt(400)


def test_concept_shift_points_follow_the_law():
    generated = concept_shift(n_agents=2, dim=3, noise_variance=2.0, seed=1)
    agent = generated.test(40_000)[1]
    np.testing.assert_allclose(agent.X.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(np.cov(agent.X.T), np.eye(3), atol=0.04)
    residual = agent.y - agent.X @ generated.distribution.beta[1]
    assert stats.kstest(residual / np.sqrt(2.0), "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(np.column_stack([agent.X, residual]).T)[-1, :-1]).max() < 0.03


@pytest.mark.parametrize(
    "generated",
    [
        concept_shift(n_agents=4, dim=3, spread=0.5, seed=3),
        feature_rotation(n_agents=4, dim=5, groups=4, seed=3),
        no_structure(n_agents=3, dim=2, agents="unrelated", seed=3),
        covariate_shift(sizes=(2, 2, 2), sigma_1=0.7, sigma_2=1.3, seed=3),
        covariate_shift(sizes=(1, 1, 1), dim=2, centre=-1.0, half_width=2.0, noise_variance=0.5, seed=4),
    ],
    ids=["concept", "rotation", "unrelated", "covariate", "covariate in the plane"],
)
def test_population_mse_is_what_simulation_finds(generated):
    rng = np.random.default_rng(0)
    models = rng.standard_normal((len(generated.train), generated.train.dim + 1))
    exact = generated.population_mse(models)
    for agent, model, expected in zip(generated.test(60_000, seed=9), models, exact, strict=True):
        squared = (agent.y - agent.X @ model[:-1] - model[-1]) ** 2
        assert abs(squared.mean() - expected) < 5 * squared.std() / np.sqrt(len(squared))


def test_population_mse_of_the_truth_is_the_noise():
    generated = concept_shift(n_agents=5, dim=4, noise_variance=2.0, spread=0.5, seed=0)
    truth = np.column_stack([generated.distribution.beta, np.zeros(5)])
    np.testing.assert_allclose(generated.population_mse(truth), 2.0)


@settings(max_examples=20, deadline=None)
@given(st.floats(-3, 3), st.floats(0.1, 1.0), st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2))
def test_covariate_shift_mse_against_quadrature_in_the_plane(centre, sigma, a1, a2, c):
    generated = covariate_shift(sizes=(0, 1, 0), dim=2, sigma_2=sigma, spread_2=0.0, centre=centre, noise_variance=0.0)
    nodes, masses = np.polynomial.hermite_e.hermegauss(80)
    x = centre + sigma * nodes
    points = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    error = np.sin(3 * points[:, 0]) + 0.5 * points[:, 1] ** 2 - points @ [a1, a2] - c
    mass = np.outer(masses, masses).ravel() / np.sum(masses) ** 2
    np.testing.assert_allclose(generated.population_mse([[a1, a2, c]]), [mass @ error**2], rtol=1e-7, atol=1e-9)


def test_covariate_shift_mse_of_the_uniform_group_against_quadrature():
    generated = covariate_shift(sizes=(0, 0, 1), dim=2)
    exact = generated.population_mse([[0.3, -0.7, 0.2]])[0]
    found, _ = integrate.dblquad(
        lambda u, v: (np.sin(3 * u) + 0.5 * v**2 - 0.3 * u + 0.7 * v - 0.2) ** 2 / 144, -6, 6, -6, 6
    )
    assert exact == pytest.approx(found + 0.04, rel=1e-8)


def test_covariate_shift_is_the_papers():
    generated = covariate_shift(seed=6)
    assert generated.train.groups == (0,) * 30 + (1,) * 30 + (2,) * 40
    assert set(generated.train.sizes) == {20}
    distribution = generated.distribution
    assert np.var(distribution.centre[:30]) == pytest.approx(0.01, rel=0.5)
    assert np.mean(distribution.centre[30:60]) == pytest.approx(2.0, abs=0.25)
    assert np.var(distribution.centre[30:60]) == pytest.approx(0.3, rel=0.5)
    test = generated.test(5000)
    near, far, flat = test[0].X, test[40].X, test[80].X
    np.testing.assert_allclose([near.std(), far.std()], 1.0, atol=0.15)
    assert stats.kstest(flat.ravel() / 12 + 0.5, "uniform").pvalue > 1e-4
    x = test[5].X
    signal = np.sin(3 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.1 * (x[:, 2] + x[:, 3])
    assert stats.kstest((test[5].y - signal) / 0.2, "norm").pvalue > 1e-4


def test_label_shift_keeps_classes_and_moves_their_shares():
    generated = label_shift(n_agents=6, dim=3, classes=4, concentration=1.0, groups=3, seed=2)
    groups = np.array(generated.train.groups)
    assert np.bincount(groups).tolist() == [2, 2, 2]
    test = generated.test(20_000)
    for k, agent in enumerate(test):
        assert agent.y.dtype.kind == "i"
        np.testing.assert_allclose(np.bincount(agent.y, minlength=4) / 20_000, generated.distribution.shares[k], atol=0.02)
        common = np.argmax(generated.distribution.shares[k])
        np.testing.assert_allclose(
            agent.X[agent.y == common].mean(axis=0), generated.distribution.centre[common], atol=0.06
        )
    np.testing.assert_array_equal(*generated.distribution.shares[groups == 0])
    assert not np.allclose(generated.distribution.shares[groups == 0][0], generated.distribution.shares[groups == 1][0])


def test_label_shift_per_agent_has_no_groups_and_no_closed_form():
    generated = label_shift(n_agents=5, seed=0)
    assert generated.train.groups is None
    assert len(np.unique(generated.distribution.shares[:, 0])) == 5
    with pytest.raises(InputError, match="no closed form"):
        generated.population_mse(np.zeros((5, 6)))


def test_rotated_groups_agree_once_turned_back():
    generated = feature_rotation(n_agents=8, dim=4, groups=4, seed=1)
    quarter = np.zeros((4, 4))
    quarter[[0, 1, 2, 3], [1, 0, 3, 2]] = [-1, 1, -1, 1]  # (x, y) -> (-y, x) in both planes
    groups = np.array(generated.train.groups)
    original = generated.distribution.beta[groups == 0][0]
    for k, group in enumerate(groups):
        turn = np.linalg.matrix_power(quarter, group)
        np.testing.assert_allclose(generated.distribution.beta[k], turn @ original, atol=1e-12)
        np.testing.assert_allclose(generated.distribution.mean[k], turn @ np.ones(4), atol=1e-12)


def test_no_structure_at_both_ends():
    same, unrelated = no_structure(agents="same", seed=1), no_structure(agents="unrelated", seed=1)
    assert np.ptp(same.distribution.beta, axis=0).max() == 0
    assert len(set(same.train.groups)) == 1
    assert len(np.unique(unrelated.distribution.beta[:, 0])) == 100
    assert len(set(unrelated.train.groups)) == 100


def test_unequal_sizes_are_log_uniform():
    sizes = concept_shift(n_agents=4000, n=(5, 500), dim=1, seed=0).train.sizes
    assert sizes.min() >= 5
    assert sizes.max() <= 500
    # Half of the agents are below the geometric mean, 50: log-uniform, not uniform.
    assert np.mean(sizes < 50) == pytest.approx(0.5, abs=0.03)
    assert set(concept_shift(n_agents=5, n=(7, 7), dim=1).train.sizes) == {7}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: concept_shift(spread=1.5), "spread must be between 0 and 1"),
        (lambda: concept_shift(n=0), "n must be a positive whole number"),
        (lambda: concept_shift(n=(9, 3)), "9 is above 3"),
        (lambda: concept_shift(n=(1, 2, 3)), "a pair"),
        (lambda: concept_shift(n_agents=2.5), "n_agents must be a positive whole number"),
        (lambda: concept_shift(seed=-1), "seed must be a whole number"),
        (lambda: concept_shift(groups=0), "groups must be"),
        (lambda: concept_shift(noise_variance=-1), "noise_variance must not be negative"),
        (lambda: covariate_shift(sizes=(30, 30)), "three groups"),
        (lambda: covariate_shift(sizes=(0, 0, 0)), "three groups"),
        (lambda: covariate_shift(sizes=(1.5, 1, 1)), "three groups"),
        (lambda: covariate_shift(dim=1), "dim must be at least 2"),
        (lambda: covariate_shift(centre=np.nan), "centre must be a finite number"),
        (lambda: label_shift(classes=1), "classes must be at least 2"),
        (lambda: no_structure(agents="some"), "choose one of same, unrelated"),
        (lambda: concept_shift(n_agents=3, dim=2).test(0), "n_points must be"),
        (lambda: concept_shift(n_agents=3, dim=2).population_mse(np.zeros((2, 3))), "2 rows for 3 agents"),
        (lambda: concept_shift(n_agents=3, dim=2).population_mse(np.zeros((3, 2))), "dimension 3"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
