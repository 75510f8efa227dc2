r"""What a learner needs of everybody's rows to train at one target, where only the target's own rows are.

Each agent answers once, from *all* its rows: its mean loss as a quadratic function of the coefficients,

.. math:: R_k(\theta) \approx \tfrac12 \theta' H_k \theta - b_k' \theta + c_k .

For squared errors it is exact, and holds the moments of the rows; for log losses it is the expansion about a model of the
agent's own. A target then weighs the others' quadratics against the loss of its own rows, less any it holds out, and
nothing of that leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places, TrainingSpec
from kinfed.federation import Agent
from kinfed.learners.base import Models, SiteLearner
from kinfed.validation import Array

LARGEST_QUADRATICS = 2**25
"""Numbers of everybody's curvatures that a target is sent at most (256 MB)."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    r"""Mean losses of a stack of B agents as quadratic functions of p coefficients.

    Attributes
    ----------
    n : array of shape (B,)
        Rows of each agent; 0 where an agent has not answered.
    curvature : array of shape (B, p, p)
        :math:`H_k`.
    slope : array of shape (B, p)
        :math:`b_k`.
    noise : array of shape (B,)
        For squared errors the mean square of the outcome, from which `spread` knows the residuals; NaN for log losses,
        which do not need it.
    """

    n: Array
    curvature: Array
    slope: Array
    noise: Array

    def __len__(self) -> int:
        return len(self.n)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays, to be sent."""
        return {name: getattr(self, name) for name in ("n", "curvature", "slope", "noise")}

    def select(self, places: Places) -> Self:
        """Those of some agents."""
        return type(self)(self.n[places], self.curvature[places], self.slope[places], self.noise[places])

    def weighted(self, rows: Array) -> tuple[Array, Array]:
        """Curvatures (R, p, p) and slopes (R, p) of the mixtures of agents by weight rows (R, B)."""
        size = self.slope.shape[1]
        return (rows @ self.curvature.reshape(len(self), -1)).reshape(-1, size, size), rows @ self.slope

    def mean_gradients(self, theta: Array) -> Array:
        """The mean loss gradient (B, p) of every agent at coefficients (p,)."""
        return np.asarray(self.curvature @ theta - self.slope)

    def spread(self, theta: Array) -> Array:
        r"""The factor :math:`\sigma_k^2` (B,) by which the covariance of a row's gradient is :math:`\sigma_k^2 H_k`.

        Where residuals do not depend on the inputs, gradients of squared errors have the covariance
        :math:`E[r^2] E[hh']`. For log losses the factor is one: the expected outer product of the gradients of a model that
        is right is the curvature.
        """
        residual = np.einsum("bpq,p,q->b", self.curvature, theta, theta) - 2 * self.slope @ theta + self.noise
        return np.where(np.isnan(self.noise), 1.0, np.maximum(residual, 0.0))

    def mean_variance(self, theta: Array) -> Array:
        """The expected squared error (B,) of every agent's mean gradient at coefficients (p,)."""
        traces = np.trace(self.curvature, axis1=1, axis2=2)
        return np.asarray(self.spread(theta) * traces / np.maximum(self.n, 1))


@runtime_checkable
class HomeLearner(SiteLearner, Protocol):
    """A learner that is also trained at one target, from everybody's quadratics and the target's own rows."""

    def is_small(self, spec: TrainingSpec) -> bool:
        """Whether everybody's quadratics can be at every target."""

    def quadratics(self, agents: Agents) -> Quadratics:
        """Ask everybody, once."""

    def fit_quadratics(self, everybody: Quadratics, rows: Array, spec: TrainingSpec) -> Models:
        """Train one model per row of weights (R, B) on quadratics alone."""

    def fit_at_home(self, others: Quadratics, rows: Array, place: int, own: Agent, spec: TrainingSpec) -> Models:
        """Train one model per row of weights (R, B) for the agent at `place`, whose rows are `own`.

        The weight of `place` is that of its own rows; its quadratic is not looked at.
        """


def read_quadratics(arrays: Mapping[str, NDArray[Any]]) -> Quadratics:
    """Quadratics that were sent."""
    return Quadratics(*(arrays[name] for name in ("n", "curvature", "slope", "noise")))


def sizes_at_home(others: Quadratics, place: int, own: Agent) -> Array:
    """How many rows everybody has, where the agent at `place` has those of `own`."""
    sizes = np.asarray(others.n, dtype=np.float64).copy()
    sizes[place] = len(own)
    return sizes


def without(rows: Array, place: int) -> Array:
    """Weight rows that do not listen to one agent."""
    others = rows.copy()
    others[:, place] = 0.0
    return others
