"""Four ways to the same geometry, and through it to the same weights."""

import dataclasses

import numpy as np
import pytest

import kinfed
from kinfed.learners.regression_moments import regression_moments

SIZES = (5, 9, 14, 6, 30, 2)


@pytest.fixture
def raw():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 3)) + 0.3 * k for k, n in enumerate(SIZES)]


def assert_same_geometry(first, second, rtol=1e-8):
    scale = np.abs(first.gram).max()
    np.testing.assert_allclose(first.gram, second.gram, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(first.mean_variance, second.mean_variance, rtol=rtol)
    np.testing.assert_allclose(first.directional, second.directional, rtol=rtol, atol=1e-20)
    np.testing.assert_allclose(first.operator_norms, second.operator_norms, rtol=rtol)
    np.testing.assert_array_equal(first.sizes, second.sizes)
    np.testing.assert_array_equal(first.targets, second.targets)
    assert first.norm_bound == pytest.approx(second.norm_bound, rel=rtol)


@pytest.mark.parametrize("offset", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("targets", [None, [4, 1]])
def test_features_kernel_and_moments_agree(raw, offset, targets):
    kernel = kinfed.Polynomial(2, offset)
    features = kinfed.PolynomialFeatures(kernel, dim=3)
    explicit = kinfed.explicit_geometry([features(Z) for Z in raw], targets=targets)
    through_kernel = kinfed.kernel_geometry(raw, kernel, targets=targets)
    own = {t: raw[t] for t in (range(len(raw)) if targets is None else targets)}
    through_moments = kinfed.moment_geometry([kinfed.second_moments(Z, kernel) for Z in raw], own, kernel)
    assert_same_geometry(explicit, through_kernel)
    assert_same_geometry(explicit, through_moments)
    for rule in ("q-aggregation", "q-aggregation-exact", "entropic", "similarity-test"):
        weights = [kinfed.weigh(geometry, rule) for geometry in (explicit, through_kernel, through_moments)]
        for other in weights[1:]:
            np.testing.assert_allclose(weights[0].matrix, other.matrix, atol=1e-8)
            np.testing.assert_allclose(weights[0].objective, other.objective, rtol=1e-8)


def test_the_front_door_agrees_with_and_without_kernel(raw):
    kernel = kinfed.Polynomial()
    features = kinfed.PolynomialFeatures(kernel, dim=3)
    for solver in ("exponential-gradient", "exact"):
        embedded = kinfed.q_aggregation([features(Z) for Z in raw], solver=solver, c_q=0.2, c_p=0.01)
        direct = kinfed.q_aggregation(raw, kernel=kernel, solver=solver, c_q=0.2, c_p=0.01)
        np.testing.assert_allclose(embedded.objective, direct.objective, rtol=1e-8)
        np.testing.assert_allclose(embedded.matrix, direct.matrix, atol=1e-7)


def test_a_site_with_its_points_and_all_sketches_knows_as_much(raw):
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), 60, dim=3)
    sketches = [kinfed.sketch(Z, features) for Z in raw]
    everything = kinfed.explicit_geometry([features(Z) for Z in raw], norm_bound=features.norm_bound)
    together = kinfed.weigh(everything, "q-aggregation").matrix
    for t, Z in enumerate(raw):
        own = kinfed.sketch_geometry(sketches, {t: Z})
        np.testing.assert_allclose(kinfed.weigh(own, "q-aggregation").matrix[0], together[t], atol=1e-10)
        assert own.effective_dimensions[0] == pytest.approx(kinfed.effective_dimension(features(Z)))


def test_geometry_is_what_its_symbols_say(raw):
    geometry = kinfed.explicit_geometry(raw)
    means = np.array([Z.mean(axis=0) for Z in raw])
    for t, Z in enumerate(raw):
        covariance = np.cov(Z, rowvar=False)
        assert geometry.mean_variance[t] == pytest.approx(np.trace(covariance) / len(Z))
        for k in range(len(raw)):
            direction = means[k] - means[t]
            assert geometry.directional[t, k] == pytest.approx(direction @ covariance @ direction, abs=1e-14)
            assert geometry.squared_distances[t, k] == pytest.approx(direction @ direction, abs=1e-14)


def test_agents_without_spread_have_exactly_none_in_every_form(raw):
    kernel = kinfed.Polynomial(2, 1.0)
    features = kinfed.PolynomialFeatures(kernel, dim=3)
    flat = [np.repeat(Z[:1], len(Z), axis=0) if k % 2 else Z for k, Z in enumerate(raw)]
    own = dict(enumerate(flat))
    for geometry in (
        kinfed.explicit_geometry([features(Z) for Z in flat]),
        kinfed.kernel_geometry(flat, kernel),
        kinfed.moment_geometry([kinfed.second_moments(Z, kernel) for Z in flat], own, kernel),
        kinfed.sketch_geometry([kinfed.sketch(Z, features) for Z in flat], own, norm_bound=50.0),
    ):
        assert (geometry.mean_variance[1::2] == 0).all()
        assert (geometry.mean_variance[::2] > 0).all()
        assert (geometry.effective_dimensions >= 1).all()
        weights = kinfed.weigh(geometry, "q-aggregation-exact")
        assert (weights.gap <= 1e-10 * np.where(geometry.mean_variance > 0, geometry.mean_variance, 1e-4)).all()


def test_twins_are_at_distance_zero_in_every_form(raw):
    kernel = kinfed.Polynomial(2, 1.0)
    features = kinfed.PolynomialFeatures(kernel, dim=3)
    twins = [*raw, raw[0][::-1]]
    own = dict(enumerate(twins))
    objectives = []
    for geometry in (
        kinfed.explicit_geometry([features(Z) for Z in twins]),
        kinfed.kernel_geometry(twins, kernel),
        kinfed.moment_geometry([kinfed.second_moments(Z, kernel) for Z in twins], own, kernel),
    ):
        assert np.sqrt(geometry.squared_distances[0, 6]) < 1e-12
        objectives.append(kinfed.weigh(geometry, "q-aggregation-exact").objective / geometry.mean_variance)
    np.testing.assert_allclose(objectives[1], objectives[0], atol=1e-8)
    np.testing.assert_allclose(objectives[2], objectives[0], atol=1e-8)


@pytest.mark.parametrize("kernel, shift", [(kinfed.Gaussian(1e5), 0.0), (kinfed.Polynomial(), 1e4)])
def test_a_gram_matrix_that_rounding_made_indefinite_is_mended(kernel, shift):
    rng = np.random.default_rng(0)
    points = [rng.standard_normal((6, 3)) + shift for _ in range(40)]
    geometry = kinfed.kernel_geometry(points, kernel)
    assert np.linalg.eigvalsh(geometry.gram)[0] > -1e-12 * np.abs(geometry.gram).max()
    weights = kinfed.weigh(geometry, "q-aggregation-exact", c_q=0.0, c_p=0.0)
    assert not any("last round" in reason for reason in weights.stop)


def test_a_common_shift_changes_nothing(raw):
    near, far = kinfed.explicit_geometry(raw), kinfed.explicit_geometry([Z + 1e5 for Z in raw])
    np.testing.assert_allclose(near.gram, far.gram, atol=1e-9)
    np.testing.assert_allclose(near.directional, far.directional, rtol=1e-7, atol=1e-12)


def test_names_come_from_a_mapping(raw):
    weights = kinfed.q_aggregation(dict(zip("abcdef", raw, strict=True)), targets=[2])
    assert weights.names == tuple("abcdef")
    frame = weights.to_frame()
    assert list(frame.index) == ["c"]
    assert list(frame.columns) == list("abcdef")


def spoiled(raw, agent, array):
    return [array if k == agent else Z for k, Z in enumerate(raw)]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda raw: {"points": []}, "no agents"),
        (lambda raw: {"points": spoiled(raw, 2, np.zeros((0, 3)))}, "agent 2 has no points"),
        (lambda raw: {"points": spoiled(raw, 3, np.zeros((1, 3)))}, "agent 3 has one point.*at least two"),
        (lambda raw: {"points": spoiled(raw, 1, np.full((4, 3), np.nan))}, "agent 1: row 0 holds NaN"),
        (lambda raw: {"points": spoiled(raw, 1, np.array([[1, 2, 3], [0, np.inf, 0]]))}, "agent 1: row 1"),
        (lambda raw: {"points": spoiled(raw, 4, np.zeros((5, 4)))}, "agent 4 has points of dimension 4"),
        (lambda raw: {"points": {"oslo": raw[0], "rome": [["x"]]}}, "agent rome: the points are not a table of numbers"),
        (lambda raw: {"c_q": -1.0}, "c_q must not be negative"),
        (lambda raw: {"c_p": -0.1}, "c_p must not be negative"),
        (lambda raw: {"c_q": np.nan}, "c_q must be a finite number"),
        (lambda raw: {"targets": 6}, "target 6 is out of range: there are 6 agents"),
        (lambda raw: {"targets": [0, -1]}, "target -1 is out of range"),
        (lambda raw: {"targets": [0.5]}, "target 0.5"),
        (lambda raw: {"targets": []}, "targets is empty"),
        (lambda raw: {"solver": "newton"}, "solver 'newton' is not known; choose one of exponential-gradient, exact"),
        (lambda raw: {"steps": 0}, "steps must be a positive whole number"),
        (lambda raw: {"step_scale": 0.0}, "step_scale must be positive"),
        (lambda raw: {"norm_bound": 0.01}, "above norm_bound"),
        (lambda raw: {"norm_bound": -1.0}, "norm_bound must be positive"),
        (lambda raw: {"kernel": kinfed.Gaussian([1.0, 2.0])}, "2 bandwidths"),
        (lambda raw: {"kernel": "gaussian"}, "kernel must be a kernel"),
        (lambda raw: {"kernel": kinfed.Gaussian}, "kernel must be a kernel"),
        (lambda raw: {"kernel": kinfed.Gaussian(1.0), "norm_bound": 0.1}, "above norm_bound"),
        (lambda raw: {"points": None}, "one table per agent, got NoneType"),
        (lambda raw: {"points": np.zeros((5, 3))}, "split it by agent"),
        (lambda raw: {"points": [np.zeros((3, 0))]}, "agent 0: the points have no columns"),
        (lambda raw: {"points": [1j * raw[0]]}, "they are complex"),
        (lambda raw: {"points": [1e200 * Z for Z in raw]}, "agent 0 has values beyond 1e\\+100; rescale"),
        (lambda raw: {"targets": 0.0}, "target 0.0 is not an agent's index"),
        (lambda raw: {"step_scale": 1e6}, "step_scale must be at most 100"),
        (lambda raw: {"c_q": 10**400}, "c_q must be a finite number"),
    ],
)
def test_bad_input_is_refused_by_name(raw, change, words):
    arguments = {"points": raw} | change(raw)
    with pytest.raises(kinfed.KinfedError, match=words):
        kinfed.q_aggregation(**arguments)


def test_bad_sketches_are_refused_by_agent(raw):
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), 60, dim=3)
    other = kinfed.FourierFeatures(kinfed.Gaussian(1.0), 60, dim=3, seed=1)
    sketches = [kinfed.sketch(Z, features) for Z in raw]
    with pytest.raises(kinfed.SketchError, match=r"agent 2 was made with other features.*seed 0 and 1"):
        kinfed.sketch_geometry([*sketches[:2], kinfed.sketch(raw[2], other), *sketches[3:]], {0: raw[0]})
    loud = kinfed.Sketch(sketches[1].mean * 50, sketches[1].n, sketches[1].trace, features.recipe)
    with pytest.raises(kinfed.SketchError, match="agent 1: the mean has norm"):
        kinfed.sketch_geometry([sketches[0], loud], {0: raw[0]})
    with pytest.raises(kinfed.InputError, match="agent 0 gives 9 points, but its sketch was made of 5"):
        kinfed.sketch_geometry(sketches, {0: raw[1]})
    with pytest.raises(kinfed.InputError, match="no sketches"):
        kinfed.sketch_geometry([], {})
    with pytest.raises(kinfed.InputError, match="agent 0 gives other points"):
        kinfed.sketch_geometry(sketches, {0: raw[0] + 1})
    with pytest.raises(kinfed.InputError, match="agent 1 gives no sketch but str"):
        kinfed.sketch_geometry([sketches[0], "site.npz"], {0: raw[0]})
    exact = kinfed.PolynomialFeatures(kinfed.Polynomial(), dim=3)
    with pytest.raises(kinfed.InputError, match="pass norm_bound"):
        kinfed.sketch_geometry([kinfed.sketch(Z, exact) for Z in raw], {0: raw[0]})


def test_bad_moments_are_refused(raw):
    kernel = kinfed.Polynomial()
    moments = [kinfed.second_moments(Z, kernel) for Z in raw]
    with pytest.raises(kinfed.InputError, match="degree 2 only"):
        kinfed.moment_geometry(moments, {0: raw[0]}, kinfed.Polynomial(degree=3))
    with pytest.raises(kinfed.InputError, match="degree 2 only"):
        kinfed.second_moments(raw[0], kinfed.Gaussian(1.0))
    with pytest.raises(kinfed.InputError, match="agent 0 made its moments for offset 1"):
        kinfed.moment_geometry(moments, {0: raw[0]}, kinfed.Polynomial(2, 2.0))
    impossible = dataclasses.replace(moments[2], trace=-1.0)
    with pytest.raises(kinfed.InputError, match="agent 2 has moments that no data can have"):
        kinfed.moment_geometry([*moments[:2], impossible], {0: raw[0]}, kernel)
    with pytest.raises(kinfed.InputError, match="agent 0 gives 9 points"):
        kinfed.moment_geometry(moments, {0: raw[1]}, kernel)
    with pytest.raises(kinfed.InputError, match="agent 1 has moments of shapes"):
        kinfed.moment_geometry([moments[0], kinfed.second_moments(raw[1][:, :2], kernel)], {0: raw[0]}, kernel)
    with pytest.raises(kinfed.InputError, match="no agents"):
        kinfed.moment_geometry([], {}, kernel)
    with pytest.raises(kinfed.InputError, match="at least two points"):
        kinfed.second_moments(raw[0][:1], kernel)


def test_the_moments_of_ridge_are_the_moments_of_the_embedding(raw):
    """One exchange serves both: mean and second moment of z = (x, y)."""
    kernel = kinfed.Polynomial()
    for Z in raw:
        ridge = regression_moments(Z[:, :2], Z[:, 2])
        embedding = kinfed.second_moments(Z, kernel)
        np.testing.assert_allclose(ridge.mean, embedding.mean)
        np.testing.assert_allclose(ridge.comoment + np.outer(ridge.mean, ridge.mean), embedding.second)
