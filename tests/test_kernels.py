"""Kernels against scikit-learn's, and the properties any kernel has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import pdist
from sklearn.gaussian_process.kernels import Matern as ReferenceMatern
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel, rbf_kernel

import kinfed

KERNELS = [
    kinfed.Gaussian(1.3),
    kinfed.Gaussian([0.5, 2.0, 1.0]),
    kinfed.Laplace(0.8),
    kinfed.Laplace((0.5, 2.0, 1.0)),
    kinfed.Matern(1.1, 0.5),
    kinfed.Matern(1.1, 1.5),
    kinfed.Matern([0.5, 2.0, 1.0], 2.5),
    kinfed.Polynomial(),
    kinfed.Polynomial(degree=2, offset=0.0),
    kinfed.Polynomial(degree=3, offset=0.5),
]
points = arrays(np.float64, (6, 3), elements=st.floats(-3, 3))


@pytest.mark.parametrize(
    "kernel, reference",
    [
        (kinfed.Gaussian(1.3), lambda a, b: rbf_kernel(a, b, gamma=1 / (2 * 1.3**2))),
        (kinfed.Laplace(0.8), lambda a, b: laplacian_kernel(a, b, gamma=1 / 0.8)),
        (kinfed.Matern(1.1, 0.5), ReferenceMatern(1.1, nu=0.5)),
        (kinfed.Matern(1.1, 1.5), ReferenceMatern(1.1, nu=1.5)),
        (kinfed.Matern(1.1, 2.5), ReferenceMatern(1.1, nu=2.5)),
        (kinfed.Polynomial(2, 0.7), lambda a, b: polynomial_kernel(a, b, degree=2, gamma=1, coef0=0.7)),
    ],
)
def test_gram_matrices_equal_scikit_learns(kernel, reference):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    np.testing.assert_allclose(kernel(first, second), reference(first, second), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS)
@given(Z=points)
def test_kernels_are_positive_definite_and_know_their_diagonal(kernel, Z):
    gram = kernel(Z, Z)
    np.testing.assert_allclose(gram, gram.T)
    assert np.linalg.eigvalsh(gram)[0] >= -1e-9 * max(1.0, np.abs(gram).max())
    np.testing.assert_allclose(kernel.diagonal(Z), np.diag(gram), rtol=1e-9, atol=1e-12)
    assert (np.diag(gram) <= kernel.diagonal_bound * (1 + 1e-12)).all()


def test_a_bandwidth_per_coordinate_rescales_that_coordinate():
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((5, 3))
    scales = np.array([0.5, 2.0, 1.0])
    for kernel in (kinfed.Gaussian, kinfed.Laplace, kinfed.Matern):
        np.testing.assert_allclose(kernel(scales)(Z, Z), kernel(1.0)(Z / scales, Z / scales))


def test_bounded_kernels_say_so():
    assert kinfed.Gaussian(1.0).diagonal_bound == kinfed.Laplace(1.0).diagonal_bound == 1.0
    assert kinfed.Polynomial().diagonal_bound == np.inf


def test_median_bandwidth():
    Z = np.random.default_rng(2).standard_normal((40, 3))
    assert kinfed.median_bandwidth(Z) == pytest.approx(np.median(pdist(Z)))
    big = np.random.default_rng(3).standard_normal((5000, 3))
    assert kinfed.median_bandwidth(big, seed=1) == kinfed.median_bandwidth(big, seed=1)
    assert kinfed.median_bandwidth(big) == pytest.approx(np.sqrt(2 * 3), rel=0.15)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: kinfed.Gaussian(0.0), "bandwidth must be positive"),
        (lambda: kinfed.Gaussian([1.0, -2.0]), "coordinate 1"),
        (lambda: kinfed.Gaussian("wide"), "bandwidth must be a finite number"),
        (lambda: kinfed.Matern(1.0, 2.0), "0.5, 1.5 or 2.5"),
        (lambda: kinfed.Polynomial(degree=0), "degree"),
        (lambda: kinfed.Polynomial(offset=-1.0), "offset must not be negative"),
        (lambda: kinfed.Gaussian([1.0, 2.0])(np.zeros((2, 3)), np.zeros((2, 3))), "2 bandwidths"),
        (lambda: kinfed.Gaussian(1.0)([[np.nan]], [[0.0]]), "row 0 holds NaN"),
        (lambda: kinfed.median_bandwidth(np.zeros((5, 2))), "coincide"),
        (lambda: kinfed.median_bandwidth(np.zeros((1, 2))), "at least two points"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(kinfed.InputError, match=words):
        make()
