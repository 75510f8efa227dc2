"""Features: pinned draws, unbiased inner products, exact norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kinfed
from kinfed.embedding.fourier import cosine_of_turns

KERNELS = [
    kinfed.Gaussian(1.5),
    kinfed.Laplace(1.5),
    kinfed.Matern(1.5, 0.5),
    kinfed.Matern(1.5, 1.5),
    kinfed.Matern(1.5, 2.5),
]
SAMPLINGS = ["iid", "orthogonal", "sobol"]

# Features of z = (0.3, -1.2, 0.7), D = 6, seed 7: a change here means that sites with different versions of kinfed would
# no longer understand each other, so RECIPE_VERSION must change too.
# fmt: off
PINNED = {
    (kinfed.Gaussian(bandwidth=0.9), "iid"): [
        0.4153003563172,
        -0.0811290398463,
        0.0429296842842,
        0.5486491038716,
        -0.4083209547447,
        0.5255614185966,
    ],
    (kinfed.Gaussian(bandwidth=0.9), "orthogonal"): [
        0.5109895091284,
        0.1669223790046,
        0.1594665034208,
        -0.2687434741422,
        0.5526936336894,
        -0.5548907708911,
    ],
    (kinfed.Gaussian(bandwidth=0.9), "sobol"): [
        0.3157442248597,
        0.5068933080176,
        0.4892355636118,
        -0.4833620980188,
        -0.2763919456503,
        -0.3065646695735,
    ],
    (kinfed.Laplace(bandwidth=0.9), "iid"): [
        -0.523813296864,
        0.4711291390265,
        0.4890805523794,
        0.5587339444438,
        -0.4293963456491,
        -0.2621155299415,
    ],
    (kinfed.Laplace(bandwidth=0.9), "orthogonal"): [
        -0.3655680194679,
        -0.201060333159,
        -0.394047002879,
        -0.4468706261052,
        0.541209826004,
        -0.4219719100313,
    ],
    (kinfed.Laplace(bandwidth=0.9), "sobol"): [
        -0.564683116494,
        0.3025186020297,
        0.42643795124,
        -0.1202759796464,
        -0.491747728779,
        -0.3892094642678,
    ],
    (kinfed.Matern(bandwidth=0.9, nu=1.5), "iid"): [
        0.4211505158105,
        -0.4074791973967,
        0.4986495193706,
        0.5720688465868,
        -0.4082719369604,
        0.3400043137961,
    ],
    (kinfed.Matern(bandwidth=0.9, nu=1.5), "orthogonal"): [
        0.4203609741386,
        0.0222072937999,
        0.0717093402571,
        -0.3957650625744,
        0.5769230186389,
        -0.5728796591373,
    ],
    (kinfed.Matern(bandwidth=0.9, nu=1.5), "sobol"): [
        -0.0350253156434,
        0.5226057616464,
        0.4602106882636,
        -0.5762868735252,
        -0.2453906094928,
        -0.3486250933901,
    ],
}
# fmt: on


@given(turns=arrays(np.float64, 50, elements=st.floats(-1e6, 1e6)))
def test_cosine_of_turns_is_the_cosine(turns):
    exact = np.cos(2 * np.pi * (turns - np.rint(turns)))
    for kind, tolerance in ((np.float64, 1e-15), (np.float32, 3e-7)):
        values = (turns - np.rint(turns)).astype(kind) if kind is np.float32 else turns.copy()
        cosine_of_turns(values, np.empty_like(values), np.empty_like(values))
        assert values.dtype == kind
        np.testing.assert_allclose(values, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel, sampling", PINNED, ids=str)
def test_features_are_pinned(kernel, sampling):
    features = kinfed.FourierFeatures(kernel, n_features=6, dim=3, seed=7, sampling=sampling)
    np.testing.assert_allclose(features([[0.3, -1.2, 0.7]])[0], PINNED[kernel, sampling], rtol=0, atol=1e-10)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_inner_products_are_unbiased_for_the_kernel(kernel, sampling):
    """Mean over 400 seeds within 4.5 standard errors at 15 pairs: a false alarm has probability below 1e-4 per case."""
    Z = np.random.default_rng(0).standard_normal((6, 3))
    pairs = np.triu_indices(6, k=1)
    draws = []
    for seed in range(400):
        phi = kinfed.FourierFeatures(kernel, n_features=40, dim=3, seed=seed, sampling=sampling)(Z)
        draws.append((phi @ phi.T)[pairs])
    mean, error = np.mean(draws, axis=0), np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(mean - kernel(Z, Z)[pairs]) < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("sampling, dim", [("orthogonal", 20), ("sobol", 4)])
def test_coupled_draws_are_closer_to_the_kernel_than_iid(sampling, dim):
    Z = np.random.default_rng(1).standard_normal((30, dim))
    kernel = kinfed.Gaussian(np.sqrt(dim))

    def error(how):
        errors = []
        for seed in range(20):
            phi = kinfed.FourierFeatures(kernel, n_features=400, dim=dim, seed=seed, sampling=how)(Z)
            errors.append(np.mean((phi @ phi.T - kernel(Z, Z)) ** 2))
        return np.sqrt(np.mean(errors))

    assert error(sampling) < 0.9 * error("iid")


@given(Z=arrays(np.float64, (4, 5), elements=st.floats(-50, 50)), seed=st.integers(0, 1000))
def test_norms_keep_their_bound(Z, seed):
    for sampling in SAMPLINGS:
        features = kinfed.FourierFeatures(kinfed.Gaussian(2.0), n_features=30, dim=5, seed=seed, sampling=sampling)
        norms = np.linalg.norm(features(Z), axis=1)
        if sampling == "iid":
            assert features.norm_bound == np.sqrt(2)
            assert (norms <= features.norm_bound * (1 + 1e-12)).all()
        else:
            assert features.norm_bound == 1.0
            np.testing.assert_allclose(norms, 1.0, rtol=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_single_precision_keeps_the_bound_however_far_the_points(sampling):
    features = kinfed.FourierFeatures(kinfed.Laplace(1.0), n_features=60, dim=4, sampling=sampling)
    for size in (1.0, 1e4, 1.7e9):
        sketch = kinfed.sketch(np.full((4, 4), size, dtype=np.float32), features)
        assert np.linalg.norm(sketch.mean) <= features.norm_bound * (1 + 1e-6)


def test_orthogonal_frequencies_are_orthogonal_within_blocks():
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=20, dim=5, seed=0, sampling="orthogonal")
    for start in (0, 5):
        block = features.frequencies[:, start : start + 5]
        gram = block.T @ block
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12)


def test_auto_picks_by_dimension():
    chosen = {d: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 8, dim=d, sampling="auto").sampling for d in (1, 8, 9, 100)}
    assert chosen == {1: "sobol", 8: "sobol", 9: "orthogonal", 100: "orthogonal"}


def test_single_precision_stays_single_and_close():
    Z = np.random.default_rng(2).standard_normal((50, 6))
    for sampling in SAMPLINGS:
        features = kinfed.FourierFeatures(kinfed.Gaussian(2.0), 64, dim=6, sampling=sampling)
        single = features(Z.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, features(Z), atol=2e-6)


def test_many_rows_equal_few_rows():
    Z = np.random.default_rng(3).standard_normal((3000, 4))
    features = kinfed.FourierFeatures(kinfed.Matern(1.0, 1.5), 100, dim=4)
    np.testing.assert_array_equal(features(Z)[2900:], features(Z[2900:]))


@pytest.mark.parametrize("offset", [0.0, 1.0, 2.5])
def test_the_polynomial_map_is_exact(offset):
    kernel = kinfed.Polynomial(2, offset)
    Z = np.random.default_rng(4).standard_normal((20, 5))
    features = kinfed.PolynomialFeatures(kernel, dim=5)
    assert features(Z).shape == (20, features.n_features) == (20, 21)
    np.testing.assert_allclose(features(Z) @ features(Z).T, kernel(Z, Z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "features",
    [
        kinfed.FourierFeatures(kinfed.Gaussian([1.0, 2.0]), 10, dim=2, seed=5),
        kinfed.FourierFeatures(kinfed.Matern(0.5, 2.5), 10, dim=3, seed=1, sampling="auto"),
        kinfed.FourierFeatures(kinfed.Laplace(0.5), 10, dim=12, sampling="auto"),
        kinfed.PolynomialFeatures(kinfed.Polynomial(2, 0.5), dim=3),
    ],
    ids=lambda features: type(features.kernel).__name__,
)
def test_a_recipe_rebuilds_its_map_through_json(features):
    recipe = kinfed.Recipe.from_json(features.recipe.to_json())
    rebuilt = kinfed.features_from_recipe(recipe)
    Z = np.random.default_rng(0).standard_normal((3, features.dim))
    np.testing.assert_array_equal(rebuilt(Z), features(Z))
    assert rebuilt == features


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: kinfed.FourierFeatures(kinfed.Polynomial(), 10, dim=2), "PolynomialFeatures"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 0, dim=2), "n_features"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 11, dim=2, sampling="sobol"), "even"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 10, dim=2, sampling="halton"), "choose one of iid"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 10, dim=2, seed=-1), "seed"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian([1.0, 1.0]), 10, dim=3), "2 bandwidths"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 10, dim=30000, sampling="sobol"), "use 'orthogonal'"),
        (lambda: kinfed.FourierFeatures(kinfed.Gaussian(1.0), 10, dim=2)(np.zeros((3, 4))), "dimension 2"),
        (lambda: kinfed.PolynomialFeatures(kinfed.Polynomial(degree=3), dim=2), "degree 2"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(kinfed.InputError, match=words):
        make()
