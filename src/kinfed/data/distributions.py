"""Distributions of synthetic agents: what draws their points, and what is known of them in closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.splitting import derived_seed
from kinfed.validation import Array, Integers, points_array, positive_integer


class Distribution(ABC):
    """Joint distribution of (X, Y) for each of B agents."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of agents B and dimension d."""

    @abstractmethod
    def draw(self, agent: int, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[Any]]:
        """Draw n independent points (X, Y) of one agent."""

    def population_mse(self, coefficients: Array) -> Array:
        """Exact mean squared error of linear models (B, d + 1), where it has a closed form."""
        raise InputError("the errors of linear models have no closed form here; use test(n_points) instead")

    def augmented_moments(self) -> Array:
        """Exact second moments (B, d + 2, d + 2) of (x, 1, y), where they have a closed form."""
        raise InputError("the second moments have no closed form here; take those of many points, test(n_points)")


@dataclass(frozen=True, eq=False)
class GaussianLinear(Distribution):
    r"""Linear regression on Gaussian features: :math:`X^{(k)} \sim N(m_k, I_d)`, :math:`Y = \beta_k'X + N(0, \sigma_Y^2)`.

    Attributes
    ----------
    mean, beta : arrays of shape (B, d)
    noise_variance : float
    """

    mean: Array
    beta: Array
    noise_variance: float

    @property
    def shape(self) -> tuple[int, int]:
        """Number of agents B and dimension d."""
        return self.beta.shape[0], self.beta.shape[1]

    def draw(self, agent: int, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[Any]]:
        """Draw n independent points (X, Y) of one agent."""
        X = self.mean[agent] + rng.standard_normal((n, self.shape[1]))
        return X, X @ self.beta[agent] + np.sqrt(self.noise_variance) * rng.standard_normal(n)

    def population_mse(self, coefficients: Array) -> Array:
        r"""With :math:`\delta = \beta_k - a`: :math:`(\delta'm_k - c)^2 + |\delta|^2 + \sigma_Y^2`."""
        delta = self.beta - coefficients[:, :-1]
        bias = np.sum(delta * self.mean, axis=1) - coefficients[:, -1]
        return bias**2 + np.sum(delta**2, axis=1) + self.noise_variance

    def augmented_moments(self) -> Array:
        r"""Those of :math:`(x, 1, \varepsilon)` between A and A', with :math:`(x, 1, y) = A (x, 1, \varepsilon)`."""
        B, d = self.shape
        mean = np.column_stack([self.mean, np.ones(B), np.zeros(B)])
        independent = mean[:, :, None] * mean[:, None] + np.diag([*np.ones(d), 0.0, self.noise_variance])
        A = np.tile(np.eye(d + 2), (B, 1, 1))
        A[:, -1, :d] = self.beta
        return np.asarray(A @ independent @ A.swapaxes(1, 2))


@dataclass(frozen=True, eq=False)
class CovariateShift(Distribution):
    r"""One regression function, seen at different places.

    .. math:: Y = \sin(3 X_1) + \tfrac12 X_2^2 + \tfrac1{10} \sum_{j \ge 3} X_j + N(0, \sigma_Y^2),

    with :math:`X^{(k)} \sim N(\mu_k, \sigma_k^2 I_d)`, or uniform on :math:`[-h, h]^d`.

    Attributes
    ----------
    centre : array of shape (B, d)
    deviation : array of shape (B,)
        Standard deviations of the Gaussian agents.
    uniform : bool array of shape (B,)
        Which agents are uniform.
    half_width : float
    noise_variance : float
    """

    centre: Array
    deviation: Array
    uniform: NDArray[np.bool_]
    half_width: float
    noise_variance: float

    @property
    def shape(self) -> tuple[int, int]:
        """Number of agents B and dimension d."""
        return self.centre.shape[0], self.centre.shape[1]

    def draw(self, agent: int, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[Any]]:
        """Draw n independent points (X, Y) of one agent."""
        if self.uniform[agent]:
            X = rng.uniform(-self.half_width, self.half_width, (n, self.shape[1]))
        else:
            X = self.centre[agent] + self.deviation[agent] * rng.standard_normal((n, self.shape[1]))
        return X, self.regression(X) + np.sqrt(self.noise_variance) * rng.standard_normal(n)

    @staticmethod
    def regression(X: Array) -> Array:
        """The noiseless answer E[Y | X]."""
        return np.sin(3 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * X[:, 2:].sum(axis=1)

    def population_mse(self, coefficients: Array) -> Array:
        r"""Exact, since coordinates are independent: the error is :math:`\sum_j h_j(X_j) - c` plus noise.

        Here :math:`h_1(x) = \sin 3x - a_1 x`, :math:`h_2(x) = x^2/2 - a_2 x`, :math:`h_j(x) = (1/10 - a_j) x`. For Gaussian
        coordinates :math:`E \sin 3X` and :math:`E \cos 3X` come from the characteristic function, and Stein's identity
        gives :math:`\mathrm{Cov}(X, \sin 3X) = 3 \sigma^2 E \cos 3X`.
        """
        a, c, h, uniform = coefficients[:, :-1], coefficients[:, -1], self.half_width, self.uniform
        mean = np.where(uniform[:, None], 0.0, self.centre)
        variance = np.where(uniform, h**2 / 3, self.deviation**2)
        v, m1, m2 = self.deviation**2, self.centre[:, 0], self.centre[:, 1]
        sine = np.where(uniform, 0.0, np.sin(3 * m1) * np.exp(-4.5 * v))
        sine_squared = np.where(uniform, 0.5 - np.sin(6 * h) / (12 * h), 0.5 - 0.5 * np.cos(6 * m1) * np.exp(-18 * v))
        sine_covariance = np.where(
            uniform, np.sin(3 * h) / (9 * h) - np.cos(3 * h) / 3, 3 * v * np.cos(3 * m1) * np.exp(-4.5 * v)
        )
        square = np.where(uniform, h**2 / 3, m2**2 + v)
        square_variance = np.where(uniform, 4 * h**4 / 45, 2 * v**2 + 4 * m2**2 * v)
        square_covariance = np.where(uniform, 0.0, 2 * m2 * v)

        slope = 0.1 - a[:, 2:]
        bias = sine + 0.5 * square - np.sum(a[:, :2] * mean[:, :2], axis=1) + np.sum(slope * mean[:, 2:], axis=1) - c
        spread = (
            (sine_squared - sine**2 - 2 * a[:, 0] * sine_covariance + a[:, 0] ** 2 * variance)
            + (0.25 * square_variance - a[:, 1] * square_covariance + a[:, 1] ** 2 * variance)
            + np.sum(slope**2, axis=1) * variance
        )
        return bias**2 + spread + self.noise_variance


@dataclass(frozen=True, eq=False)
class LabelShift(Distribution):
    r"""Classes that look alike everywhere and occur with different frequencies.

    :math:`P(Y^{(k)} = c) = p_{kc}` and :math:`X \mid Y = c \sim N(\mu_c, I_d)`.

    Attributes
    ----------
    centre : array of shape (number of classes, d)
    shares : array of shape (B, number of classes)
    """

    centre: Array
    shares: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Number of agents B and dimension d."""
        return self.shares.shape[0], self.centre.shape[1]

    def draw(self, agent: int, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[Any]]:
        """Draw n independent points (X, Y) of one agent."""
        y = rng.choice(len(self.centre), size=n, p=self.shares[agent]).astype(np.int64)
        return self.centre[y] + rng.standard_normal((n, self.shape[1])), y


@dataclass(frozen=True, eq=False)
class SyntheticFederation:
    """A synthetic federation and the truth behind it.

    Attributes
    ----------
    train : Federation
        With the true groups.
    distribution : Distribution
        The distributions of its agents, parameters included.
    seed : int
    """

    train: Federation
    distribution: Distribution
    seed: int

    def test(self, n_points: int = 1000, seed: int = 0) -> Federation:
        """Draw `n_points` fresh points of every agent, independent of the training data."""
        sizes = np.full(len(self.train), positive_integer(n_points, "n_points"))
        return draw_federation(self.distribution, sizes, self.train.groups, self.seed, "test", seed)

    def population_mse(self, coefficients: ArrayLike) -> Array:
        """Exact mean squared error E (Y - a'X - c)^2 of one linear model per agent.

        Parameters
        ----------
        coefficients : array-like of shape (B, d + 1)
            Row k holds a and, last, the intercept c of the model of agent k.

        Returns
        -------
        array of shape (B,)
        """
        n_agents, dim = self.distribution.shape
        models = points_array(coefficients, "coefficients", dim + 1).astype(np.float64)
        if len(models) != n_agents:
            raise InputError(f"coefficients has {len(models)} rows for {n_agents} agents; give one model per agent")
        return self.distribution.population_mse(models)


def draw_federation(
    distribution: Distribution, sizes: Integers, groups: tuple[Any, ...] | None, seed: int, *purposes: str | int
) -> Federation:
    """Points of every agent under the distribution; each agent has a stream of random numbers of its own."""
    agents = tuple(
        Agent(str(k), *distribution.draw(k, int(n), np.random.default_rng(derived_seed(seed, *purposes, k))))
        for k, n in enumerate(sizes)
    )
    return Federation(agents, tuple(f"x{j}" for j in range(distribution.shape[1])), groups, "y")
