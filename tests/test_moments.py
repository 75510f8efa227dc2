"""Moments against direct formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kinfed

KERNEL = kinfed.Polynomial(2, 1.0)
MAP = kinfed.PolynomialFeatures(KERNEL, dim=2)
samples = arrays(np.float64, (7, 2), elements=st.floats(-3, 3))


@given(Z=samples)
def test_spread_through_a_kernel_equals_spread_of_the_features(Z):
    points = MAP(Z)
    covariance = np.cov(points, rowvar=False)
    assert kinfed.trace_covariance(points) == pytest.approx(np.trace(covariance), abs=1e-9)
    assert kinfed.trace_covariance(Z, KERNEL) == pytest.approx(np.trace(covariance), rel=1e-8, abs=1e-8)
    largest = np.linalg.eigvalsh(covariance)[-1]
    assert kinfed.operator_norm(points) == pytest.approx(largest, rel=1e-8, abs=1e-9)
    assert kinfed.operator_norm(Z, KERNEL) == pytest.approx(largest, rel=1e-8, abs=1e-8)


def test_operator_norm_of_many_points_equals_that_of_the_covariance():
    points = np.random.default_rng(0).standard_normal((100, 4)) * [1, 2, 3, 4]
    assert kinfed.operator_norm(points) == pytest.approx(np.linalg.eigvalsh(np.cov(points, rowvar=False))[-1])


def test_effective_dimension():
    rng = np.random.default_rng(0)
    isotropic = rng.standard_normal((200_000, 5))
    assert kinfed.effective_dimension(isotropic) == pytest.approx(5, rel=0.02)
    line = np.outer(rng.standard_normal(50), np.ones(5))
    assert kinfed.effective_dimension(line) == pytest.approx(1)
    assert kinfed.effective_dimension(np.ones((5, 3))) == 1.0


def unbiased_by_pairs(first, second, kernel):
    """The U-statistic: averages over pairs of different points only."""
    within = [(kernel(Z, Z).sum() - np.trace(kernel(Z, Z))) / (len(Z) * (len(Z) - 1)) for Z in (first, second)]
    return sum(within) - 2 * kernel(first, second).mean()


@given(first=samples, second=samples)
def test_mmd_equals_its_u_statistic(first, second):
    for kernel in (KERNEL, kinfed.Gaussian(1.0)):
        expected = unbiased_by_pairs(first, second, kernel)
        assert kinfed.mmd2(first, second, kernel) == pytest.approx(expected, rel=1e-7, abs=1e-7)
    biased = np.sum((MAP(first).mean(axis=0) - MAP(second).mean(axis=0)) ** 2)
    assert kinfed.mmd2(first, second, KERNEL, unbiased=False) == pytest.approx(biased, rel=1e-7, abs=1e-7)
    assert kinfed.mmd2(MAP(first), MAP(second), unbiased=False) == pytest.approx(biased, rel=1e-7, abs=1e-9)


def test_the_pairwise_matrix_holds_every_pair():
    rng = np.random.default_rng(0)
    agents = [rng.standard_normal((n, 2)) for n in (5, 8, 6)]
    for unbiased in (True, False):
        matrix = kinfed.pairwise_mmd2(agents, kinfed.Gaussian(1.0), unbiased=unbiased)
        np.testing.assert_allclose(matrix, matrix.T)
        assert (np.diag(matrix) == 0).all()
        for k, first in enumerate(agents):
            for other in range(k):
                single = kinfed.mmd2(first, agents[other], kinfed.Gaussian(1.0), unbiased=unbiased)
                assert matrix[k, other] == pytest.approx(single, abs=1e-12)


@pytest.mark.parametrize("function", [kinfed.trace_covariance, kinfed.operator_norm, kinfed.effective_dimension])
def test_one_point_has_no_covariance(function):
    with pytest.raises(kinfed.InputError, match="at least two points"):
        function(np.zeros((1, 3)))
