"""The paper's statements by Monte Carlo.

Every check compares a mean over independent repetitions with the value it should have, within 4.5 standard errors: a
right implementation fails with probability below 1e-5 per comparison.
"""

import numpy as np
import pytest

import kinfed
from kinfed.weights.objective import q_aggregation_problem

pytestmark = pytest.mark.slow
STANDARD_ERRORS = 4.5


def assert_mean(draws, expected):
    draws = np.asarray(draws)
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) <= STANDARD_ERRORS * error + 1e-12).all()


def embedding_of_normal(features, mean, scale):
    """E Phi(Z) of cosine features for Z ~ N(mean, scale^2 I): E cos(w'Z + b) = exp(-scale^2 |w|^2 / 2) cos(w'mean + b)."""
    damping = np.exp(-0.5 * scale**2 * np.sum(features.frequencies**2, axis=0))
    return np.sqrt(2 / features.n_features) * damping * np.cos(mean @ features.frequencies + features.phases)


def squared_norm_of_normal(features, mean, scale):
    """E |Phi(Z)|^2, from cos^2 = (1 + cos of twice the angle) / 2."""
    damping = np.exp(-2 * scale**2 * np.sum(features.frequencies**2, axis=0))
    return np.mean(1 + damping * np.cos(2 * (mean @ features.frequencies + features.phases)))


FEATURES = kinfed.FourierFeatures(kinfed.Gaussian(1.5), n_features=80, dim=3, seed=0)


def test_the_error_of_a_mean_embedding_is_trace_over_n():
    """E |nu - mu|^2 = tr Sigma / n, with the true mu in closed form; and the estimated trace is unbiased."""
    rng = np.random.default_rng(0)
    mu, n = embedding_of_normal(FEATURES, np.zeros(3), 1.0), 7
    errors, traces = [], []
    for _ in range(1000):
        points = FEATURES(rng.standard_normal((n, 3)))
        errors.append(np.sum((points.mean(axis=0) - mu) ** 2))
        traces.append(kinfed.trace_covariance(points))
    trace = squared_norm_of_normal(FEATURES, np.zeros(3), 1.0) - mu @ mu
    assert_mean(errors, trace / n)
    assert_mean(traces, trace)


def test_the_objective_without_penalties_is_unbiased_for_the_risk():
    """E f_t(w) - s_t = E |sum_k w_k nu_k - mu_t|^2 for fixed weights, and `Weights.risk` is that estimate."""
    rng = np.random.default_rng(1)
    means = np.array([[0.0, 0, 0], [0.5, 0, 0], [0, 1.0, 0], [0, 0, 0]])
    sizes = (5, 8, 12, 3)
    mu = np.array([embedding_of_normal(FEATURES, mean, 1.0) for mean in means])
    shares = np.array(sizes) / sum(sizes)
    differences, risks = [], []
    for _ in range(1000):
        points = [FEATURES(mean + rng.standard_normal((n, 3))) for mean, n in zip(means, sizes, strict=True)]
        geometry = kinfed.explicit_geometry(points)
        weights = kinfed.weigh(geometry, "grand-mean")
        true = np.sum((shares @ np.array([Z.mean(axis=0) for Z in points]) - mu) ** 2, axis=1)
        estimate = q_aggregation_problem(geometry, 0.0, 0.0).value(weights.matrix) - geometry.mean_variance
        differences.append(estimate - true)
        risks.append(weights.risk - estimate)
    assert_mean(differences, 0.0)
    np.testing.assert_allclose(risks, 0.0, atol=1e-12)


@pytest.mark.parametrize("sampling", ["iid", "orthogonal", "sobol"])
def test_random_features_keep_the_trace_of_the_covariance(sampling):
    """E_Gamma tr Sigma^Gamma = tr Sigma, for one data set and many draws of the features."""
    Z = np.random.default_rng(2).standard_normal((15, 3))
    kernel = kinfed.Gaussian(1.5)
    traces = [
        kinfed.trace_covariance(kinfed.FourierFeatures(kernel, 30, dim=3, seed=seed, sampling=sampling)(Z))
        for seed in range(1000)
    ]
    assert_mean(traces, kinfed.trace_covariance(Z, kernel))


def test_traces_differ_by_at_most_twice_the_distance():
    """|tr Sigma_P - tr Sigma_Q| <= 2 M MMD(P, Q), exactly for empirical distributions when k(z, z) = M^2."""
    rng = np.random.default_rng(3)
    kernel = kinfed.Gaussian(1.0)
    tightest = np.inf
    for _ in range(300):
        first = rng.standard_normal((9, 2)) * rng.uniform(0.1, 2)
        second = rng.standard_normal((9, 2)) * rng.uniform(0.1, 2) + rng.uniform(-1, 1)
        # Divisor n: the covariance of the empirical distribution itself.
        traces = [kinfed.trace_covariance(Z, kernel) * (len(Z) - 1) / len(Z) for Z in (first, second)]
        bound = 2 * np.sqrt(kinfed.mmd2(first, second, kernel, unbiased=False))
        assert abs(traces[0] - traces[1]) <= bound + 1e-12
        tightest = min(tightest, bound - abs(traces[0] - traces[1]))
    assert tightest < 0.5  # the bound is not met by a mile everywhere


def concept_shift(spread, seed, n_agents=100, n=10, dim=20):
    """The paper's concept shift: weighted least squares is scored by its exact population error."""
    rng = np.random.default_rng(seed)
    groups = rng.choice([-1, 1], n_agents)
    centre = rng.standard_normal(dim)
    slopes = groups[:, None] * np.sqrt(1 - spread) * centre + np.sqrt(spread) * rng.standard_normal((n_agents, dim))
    X = 1 + rng.standard_normal((n_agents, n, dim))
    Y = np.einsum("knd,kd->kn", X, slopes) + np.sqrt(2) * rng.standard_normal((n_agents, n))
    with_one = np.concatenate([X, np.ones((n_agents, n, 1))], axis=2)
    second = np.einsum("kni,knj->kij", with_one, with_one) / n
    cross = np.einsum("kni,kn->ki", with_one, Y) / n

    def mean_squared_error(matrix):
        solutions = np.array(
            [
                np.linalg.lstsq(A, b, rcond=1e-10)[0]
                for A, b in zip(np.tensordot(matrix, second, 1), matrix @ cross, strict=True)
            ]
        )
        off = slopes - solutions[:, :dim]
        return np.mean((off.sum(axis=1) - solutions[:, dim]) ** 2 + np.sum(off**2, axis=1) + 2)

    features = kinfed.FourierFeatures(kinfed.Gaussian([np.sqrt(dim + 1)] * dim + [1.0]), 500, dim=dim + 1, seed=seed)
    points = [features(np.column_stack([X[k], Y[k]])) for k in range(n_agents)]
    return kinfed.explicit_geometry(points, norm_bound=features.norm_bound), mean_squared_error


def test_concept_shift_as_was_measured():
    """Algorithm 3 improves on local by about half at no spread and falls behind at full spread; the exact minimum is local.

    The error of one repetition depends on (1'beta_0)^2, so it is compared with the local one of the same repetition, of
    which there are eight. The ranges are 24 earlier repetitions' mean differences (-6.7, -1.4 and 4.0 with deviations of
    2.6, 1.5 and 1.1) and four standard errors of a mean of eight on both sides: a right implementation fails with
    probability below 0.001.
    """
    ranges = {0.0: (-10.5, -2.9), 0.25: (-3.5, 0.7), 1.0: (2.4, 5.6)}
    for spread, (low, high) in ranges.items():
        errors, local_errors = [], []
        for seed in range(8):
            geometry, mean_squared_error = concept_shift(spread, seed)
            errors.append(mean_squared_error(kinfed.weigh(geometry, "q-aggregation").matrix))
            local_errors.append(mean_squared_error(np.eye(100)))
            if seed < 3:
                exact = kinfed.weigh(geometry, "q-aggregation-exact")
                np.testing.assert_array_equal(exact.matrix, np.eye(100))
                assert (exact.gap == 0).all()
        assert low < np.mean(errors) - np.mean(local_errors) < high
        assert 11 < np.mean(local_errors) < 19  # about 15, with a deviation of at most 3.1
        if spread == 0.0:
            assert np.mean(errors) < 0.77 * np.mean(local_errors)  # the ratio is 0.52 with a standard error of 0.06
