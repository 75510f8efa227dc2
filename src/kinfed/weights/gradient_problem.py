r"""Q-aggregation where a point is embedded as its loss gradient at the target's current model.

Let :math:`\gamma_k` be the mean loss gradient of agent k at the model of target t, :math:`\gamma_t` its own, and
:math:`s_k` the expected squared error of :math:`\gamma_k`. One gradient step on the weighted risk moves the model by
:math:`\sum_k w_k \gamma_k`, so what it should match is the target's true mean gradient, and the unbiased risk of the paper
carries over. What is new is a metric that keeps the directions in which agents truly differ.

**Denoising.** With few points, :math:`\gamma_k` is mostly noise in most directions. The covariance of the means between
agents has eigenvalues :math:`e_j`, of which :math:`\bar s / r` is noise (r directions share it), so the part
:math:`f_j = (1 - \bar s / (r e_j))_+` of direction j is real. Distances are measured with weight :math:`f_j`:

.. math::

    |\textstyle\sum_k w_k \gamma_k - \gamma_t|_F^2 + 2 w_t s_t^F + (1 - \bar f) \sum_k w_k^2 s_k
    + C_Q \sum_{k \ne t} w_k \sqrt{q_{tk} / n_t} ,

where the third term is the variance the filtered distance no longer shows. Two groups of equal agents differ in one
direction, and all others are filtered out; unrelated agents differ in all, and nothing is.

**The gradient of a loss at a point is a product of two short vectors.** For a model whose last step is linear,
:math:`f(x) = A\,h(x)`, the gradient of the loss of a point in A is the outer product :math:`r \otimes h(x)` of the slope
r of the loss in the prediction (the residual: :math:`f(x) - y`, or probabilities minus the label) and the inputs h of
that step. Ridge and logistic regression are of this form with h = (x, 1), so the product is their whole gradient; for a
network h is the last hidden layer. Any other model is seen through h = (x, 1) too: the part of its functional gradient
that a linear correction could take away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Task
from kinfed.errors import InputError
from kinfed.learners.base import Models
from kinfed.splitting import derived_seed
from kinfed.validation import Array


class PointGradients(NamedTuple):
    """Gradients of n points as factors: residuals (n, c) and inputs (n, h), the last of them constant."""

    residuals: Array
    inputs: Array


def has_gradients(task: Task) -> bool:
    """Whether models of this task have a loss in their predictions."""
    return task != "unsupervised"


def point_gradients(
    models: Models, row: int, X: ArrayLike, y: ArrayLike, task: Task, weights: Array | None = None
) -> PointGradients:
    """Loss gradients of points (X, y) at the model of that row, each times its weight."""
    counted = 1.0 if weights is None else weights[:, None]
    columns = np.asarray(X, dtype=np.float64)
    hidden = models.last_inputs(row, columns) if hasattr(models, "last_inputs") else columns
    inputs = np.column_stack([hidden, np.ones(len(columns))])
    if task == "regression":
        residuals = np.asarray(models.predict(row, columns), dtype=np.float64) - np.asarray(y, dtype=np.float64)
        return PointGradients(residuals.reshape(len(columns), -1) * counted, inputs)
    if task == "classification":
        residuals = class_residuals(models, row, columns, np.asarray(y))
        return PointGradients((residuals[:, 1:] if residuals.shape[1] == 2 else residuals) * counted, inputs)
    raise InputError("models without a target have no loss gradients; choose a rule that compares the agents' points")


def class_residuals(models: Any, row: int, X: Array, y: NDArray[Any]) -> Array:
    """Probabilities minus the label, (n, C); a label that is predicted without probabilities is taken as certain."""
    classes = models.classes
    labels = (y[:, None] == classes).astype(np.float64)
    if getattr(models, "has_probabilities", True):
        predicted = models.predict_proba(row, X)
    else:
        predicted = (np.asarray(models.predict(row, X))[:, None] == classes).astype(np.float64)
    return np.asarray(predicted - labels)


@dataclass(frozen=True, eq=False)
class Projection:
    r"""Gradients :math:`r \otimes h` as vectors of at most D numbers.

    Short gradients stay as they are. Longer ones are projected at random, factor by factor:
    :math:`(R r) \otimes (H h)` keeps inner products in expectation, and never needs the long vector.

    Attributes
    ----------
    residuals, inputs : array, or None where that factor is kept whole
    """

    residuals: Array | None
    inputs: Array | None

    @classmethod
    def draw(cls, n_residuals: int, n_inputs: int, n_features: int, seed: int) -> Projection:
        """The projection all agents redraw from one seed."""
        if n_residuals * n_inputs <= n_features:
            return cls(None, None)
        left = min(n_residuals, max(1, int(np.sqrt(n_features)), n_features // n_inputs))
        right = min(n_inputs, max(1, n_features // left))
        rng = np.random.default_rng(derived_seed(seed, "gradient projection"))
        return cls(_signs(rng, n_residuals, left), _signs(rng, n_inputs, right))

    def __call__(self, points: PointGradients) -> PointGradients:
        """Shorter factors of the same points."""
        residuals = points.residuals if self.residuals is None else points.residuals @ self.residuals
        return PointGradients(residuals, points.inputs if self.inputs is None else points.inputs @ self.inputs)


def mean_gradients(points: PointGradients, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[Array, Array]:
    """What agents answer about one model: the mean gradient of each, and the expected squared error of that mean.

    Parameters
    ----------
    points : PointGradients
        Gradients of all agents' points, one agent below the other.
    starts, sizes : arrays of shape (B,)
        The first point of each agent, and how many it has.

    Returns
    -------
    means : array of shape (B, p)
    mean_variance : array of shape (B,)
        Trace of the covariance over n. One point shows no spread; its squared length stands in.
    """
    residuals, inputs = points
    means = np.stack(
        [np.add.reduceat(column[:, None] * inputs, starts, axis=0) / sizes[:, None] for column in residuals.T], axis=1
    ).reshape(len(starts), -1)
    lengths = np.square(residuals).sum(axis=1) * np.square(inputs).sum(axis=1)
    squares = np.add.reduceat(lengths, starts) / sizes
    spread = np.maximum(squares - np.square(means).sum(axis=1), 0.0)
    return means, np.where(sizes > 1, spread / np.maximum(sizes - 1, 1), squares)


@dataclass(frozen=True, eq=False)
class GradientProblem:
    r"""Minimise :math:`|D_t' w|^2 + \sum_k v_{tk} w_k^2 + b_t' w` over the simplex, for every target t.

    Attributes
    ----------
    differences : array of shape (T, B, r)
        Rows :math:`\gamma_k - \gamma_t` in the target's own metric; on the simplex they stand for the distance.
    variances : array of shape (T, B)
    linear : array of shape (T, B)
    targets : array of shape (T,)
    mean_variance : array of shape (T,)
        :math:`s_t`, the error of the target's own mean in all directions: the unit of the pull.
    """

    differences: Array
    variances: Array
    linear: Array
    targets: NDArray[np.int64]
    mean_variance: Array

    @property
    def alone(self) -> Array:
        """The value of learning alone."""
        own = np.arange(len(self.targets)), self.targets
        return np.asarray(self.linear[own] + self.variances[own])

    @cached_property
    def smoothness(self) -> Array:
        """At most four times the largest squared distance to the target, plus the variances."""
        distances = np.einsum("tkr,tkr->tk", self.differences, self.differences)
        return np.asarray(4 * distances.max(axis=1) + 2 * self.variances.max(axis=1))

    def rows(self, chosen: NDArray[np.int64]) -> GradientProblem:
        """The same problem for some of the targets."""
        if len(chosen) == len(self.targets):
            return self
        return GradientProblem(
            self.differences[chosen],
            self.variances[chosen],
            self.linear[chosen],
            self.targets[chosen],
            self.mean_variance[chosen],
        )

    def value(self, weights: Array) -> Array:
        """The objective of every row at its weights."""
        return self.curvature(weights) + np.einsum("tk,tk->t", self.linear, weights)

    def gradient(self, weights: Array) -> Array:
        """The gradient of every row's objective at its weights."""
        mean = weights[:, None, :] @ self.differences
        slopes = 2 * (self.differences @ mean.swapaxes(1, 2))[..., 0]
        slopes += 2 * self.variances * weights + self.linear
        return np.asarray(slopes)

    def curvature(self, steps: Array) -> Array:
        """The quadratic part, row by row."""
        mean = (steps[:, None, :] @ self.differences)[:, 0]
        return np.asarray(np.einsum("tr,tr->t", mean, mean) + np.einsum("tk,tk,tk->t", self.variances, steps, steps))


@dataclass(frozen=True, eq=False)
class Directions:
    """In which directions the agents' mean gradients truly differ, and how much of a squared difference is real.

    Attributes
    ----------
    basis : array of shape (p, r)
        Directions scaled by the square root of their real part: coordinates in it are coordinates in the metric F.
    kept : float
        The mean real part over all directions noise could be in.
    """

    basis: Array
    kept: float


def true_directions(means: Array, mean_variance: Array, shares: Array) -> Directions:
    """Directions of the means (B, p) that stand out of their noise.

    Parameters
    ----------
    means : array of shape (B, p)
    mean_variance : array of shape (B,)
        The expected squared error of each mean.
    shares : array of shape (B,)
        The part of every agent in the covariance, n_k / N.
    """
    centred = (means - shares @ means) * np.sqrt(shares)[:, None]
    rank = max(1, min(means.shape[1], len(means) - 1))
    if means.shape[1] <= len(means):
        eigenvalues, vectors = np.linalg.eigh(centred.T @ centred)
        variances, directions = eigenvalues[::-1][:rank], vectors.T[::-1]
    else:
        _, singular, directions = np.linalg.svd(centred, full_matrices=False)
        variances = np.square(singular[:rank])
    noise = float(shares @ mean_variance) / rank
    real = np.where(variances > noise, 1 - noise / np.maximum(variances, 1e-300), 0.0)
    used = real > 0
    return Directions(directions[:rank][used].T * np.sqrt(real[used]), float(real.sum() / rank))


class Answers(NamedTuple):
    """What one target knows of everybody at its model.

    Attributes
    ----------
    means : array of shape (B, p)
    mean_variance : array of shape (B,)
    directions : Directions
    own : array of shape (r, p)
        A root of the covariance of the target's own gradients: their sum of squares is the covariance; see `spread_of`.
    n : int
        How many own points it is the covariance of.
    """

    means: Array
    mean_variance: Array
    directions: Directions
    own: Array
    n: int


def spread_of(gradients: Array) -> Array:
    """A root of the covariance (divisor n - 1) of gradients (n, p), which never leave the target."""
    return np.asarray((gradients - gradients.mean(axis=0)) / np.sqrt(max(len(gradients) - 1, 1)))


def gradient_problem(
    answers: Iterable[Answers], targets: NDArray[np.int64], sizes: NDArray[np.int64], c_q: float
) -> GradientProblem:
    """The aggregation problem of some targets.

    Parameters
    ----------
    answers : for each target, what everybody answered
    targets : array of shape (T,)
    sizes : array of shape (B,)
    c_q : float
        :math:`C_Q`, the caution towards differences the target cannot see well.
    """
    differences, variances, linear, mean_variances = [], [], [], []
    for t, (means, mean_variance, directions, own, n) in zip(targets.tolist(), answers, strict=True):
        apart = (means - means[t]) @ directions.basis
        spread = own @ directions.basis
        penalty = c_q * np.sqrt(np.square(spread @ apart.T).sum(axis=0) / n)
        penalty[t] = 2 * np.square(spread).sum() / n
        differences.append(apart)
        variances.append((1 - directions.kept) * mean_variance)
        linear.append(penalty)
        mean_variances.append(mean_variance[t])
    width = max((apart.shape[1] for apart in differences), default=0)
    padded = np.zeros((len(differences), len(sizes), max(width, 1)))
    for row, apart in enumerate(differences):
        padded[row, :, : apart.shape[1]] = apart
    return GradientProblem(padded, np.array(variances), np.array(linear), targets, np.array(mean_variances))


def _signs(rng: np.random.Generator, long: int, short: int) -> Array | None:
    """Random signs that keep squared lengths in expectation; None where nothing gets shorter."""
    return None if short >= long else rng.choice([-1.0, 1.0], (long, short)) / np.sqrt(short)
