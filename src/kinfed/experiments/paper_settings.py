"""What the paper's synthetic experiments share: its features, its least squares, and seeds of repetitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinfed.data import Generated
from kinfed.features import FourierFeatures
from kinfed.federation import Federation
from kinfed.kernels import Gaussian
from kinfed.learners.regression_moments import RegressionMoments, regression_moments, squared_error, stack_moments
from kinfed.learners.ridge import ridge_coefficients
from kinfed.splitting import derived_seed
from kinfed.weights import Geometry, explicit_geometry

Array = NDArray[np.float64]

PAPER, EXACT = "q-aggregation", "q-aggregation-exact"
"""The paper's rule as it is computed, and the minimum it is said to compute."""


def repetition_seed(seed: int, repetition: int) -> int:
    """The seed of one repetition; repetitions are independent, and the same whatever their number."""
    return int(derived_seed(seed, "repetition", repetition).generate_state(1)[0])


def concept_kernel(dim: int) -> Gaussian:
    r"""The paper's kernel for concept shift, :math:`\exp(-|x - x'|^2 / (2 (d + 1)) - (y - y')^2 / 2)`.

    It is the one whose frequencies are :math:`N(0, I_d / (d + 1) \oplus 1)`, as the paper draws them.
    """
    return Gaussian((float(np.sqrt(dim + 1)),) * dim + (1.0,))


def concept_geometry(train: Federation, n_features: int, seed: int) -> Geometry:
    """Geometry of the agents of a concept shift under the paper's features."""
    features = FourierFeatures(concept_kernel(train.dim), n_features, dim=train.dim + 1, seed=seed)
    points = [features(np.column_stack([agent.X, np.asarray(agent.y)])) for agent in train]
    return explicit_geometry(points, norm_bound=features.norm_bound)


class LeastSquares:
    """Linear regression with an intercept, of least norm where points are too few, for any weights on one federation.

    The error is that on the population, in closed form, or on `test_points` fresh points per agent as in the paper.
    """

    def __init__(self, generated: Generated, test_points: int = 0) -> None:
        self._generated = generated
        self._train = _moments(generated.train)
        self._test = _moments(generated.test(test_points)) if test_points else None

    def error(self, weights: Array, penalty: float = 0.0) -> Array:
        """Mean squared error of every agent's own model; with a penalty, of ridge regression instead."""
        coefficients = ridge_coefficients(self._train.weighted(weights), penalty)
        if self._test is None:
            return self._generated.population_mse(coefficients)
        return squared_error(self._test, coefficients)


def _moments(federation: Federation) -> RegressionMoments:
    return stack_moments([regression_moments(agent.X, np.asarray(agent.y)) for agent in federation])
