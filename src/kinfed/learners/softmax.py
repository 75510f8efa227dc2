r"""The penalised log loss of many softmax models at once: values, gradients and Hessians.

Model t has one row of coefficients :math:`\theta_c` per class and minimises

.. math:: f_t(\theta) = \sum_i s_{ti} \Bigl( \log \sum_c e^{\theta_c' x_i} - \theta_{y_i}' x_i \Bigr)
          + \lambda_t \sum_{c, j} m_j \theta_{cj}^2 .

The linear part needs the points only once: it is :math:`\langle\theta, V_t\rangle` with :math:`V_{tc} = \sum_{i: y_i = c}
s_{ti} x_i`. With one row of coefficients (two classes) the other class has logit zero, which is logistic regression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.validation import Array

# Elements of the largest temporary array of one evaluation: about what a core's cache holds.
_BLOCK = 2**15

_LEAST_CURVATURE = 1e-12
_LEAST_MASS = 1e-12  # a class of less weight starts as if it had this much: its gradient is no larger


@dataclass(frozen=True, eq=False)
class SoftmaxRisk:
    r"""Penalised log losses of T models.

    Attributes
    ----------
    points : array of shape (1, N, p) or (T, N, p)
        Points all models share, or each model's own, padded with points of weight zero.
    starts : array of int
        Where the agents' points start; points of one agent weigh the same. Used for shared points only; empty where rows
        of an agent have weights of their own.
    weights : array of shape (T, N)
        :math:`s_{ti}`, with sum one.
    linear : array of shape (T, K, p)
        :math:`V_t`.
    present : array of bool of shape (T, K)
        Classes a model knows; the coefficients of others stay zero and their probability is zero. Ignored if K = 1.
    penalties : array of shape (T, p)
        :math:`\lambda_t m_j`, zero for the intercept.
    """

    points: Array
    starts: NDArray[np.int64]
    weights: Array
    linear: Array
    present: NDArray[np.bool_]
    penalties: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, K, p): models, rows of coefficients, columns."""
        return self.linear.shape[0], self.linear.shape[1], self.linear.shape[2]

    def value_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """f_t and its gradient at theta (T, K, p)."""
        count, classes, columns = self.shape
        value, gradient = np.zeros(count), np.zeros_like(theta)
        # Models that share points are rows of one: one matrix product serves them all.
        rows = theta.reshape(1, -1, columns) if len(self.points) == 1 else theta
        for block in self._blocks(count * classes):
            points, weights = self.points[:, block], self.weights[:, block]
            normaliser, probabilities = self._normalise((rows @ points.swapaxes(1, 2)).reshape(count, classes, -1))
            value += np.einsum("tn,tn->t", weights, normaliser)
            probabilities *= weights[:, None, :]
            gradient += (probabilities.reshape(*rows.shape[:2], -1) @ points).reshape(theta.shape)
        shrunk = self.penalties[:, None, :] * theta
        value += np.einsum("tkp,tkp->t", theta, shrunk - self.linear)
        gradient += 2 * shrunk - self.linear
        return value, gradient

    def hessian(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Hessians of the models `rows`, of shape (len(rows), K p, K p), made positive definite: see `definite_hessian`."""
        return definite_hessian(self.curvature(theta, rows), self.penalties[rows], self.present[rows])

    def curvature(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Hessians of the log losses alone of the models `rows`, of shape (len(rows), K, K, p, p)."""
        count, (_, classes, columns) = len(rows), self.shape
        hessian = np.zeros((count, classes, classes, columns, columns))
        pairs = [(first, second) for first in range(classes) for second in range(first + 1)]
        for block in self._blocks(count * max(classes, columns)):
            points = self.points[:, block] if len(self.points) == 1 else self.points[rows, block]
            _, probabilities = self._normalise(theta[rows] @ points.swapaxes(1, 2), rows)
            weighted = probabilities * self.weights[rows, None, block]
            for first, second in pairs:
                curvature = weighted[:, first] * ((first == second) - probabilities[:, second])
                hessian[:, first, second] += (curvature[:, :, None] * points).swapaxes(1, 2) @ points
        for first, second in pairs:
            hessian[:, second, first] = hessian[:, first, second]
        return hessian

    def bound(self) -> Array:
        """Matrices (T, p, p) above the curvature of each class's coefficients everywhere; see `curvature_bound`."""
        count, classes, columns = self.shape
        second = np.zeros((count, columns, columns))
        if len(self.points) == 1 and len(self.starts):  # shared points: one second moment per agent serves all models
            agents = np.split(self.points[0], self.starts[1:])
            step = max(1, _BLOCK // columns**2)
            for first in range(0, len(agents), step):
                moments = np.array([own.T @ own for own in agents[first : first + step]])
                shares = self.weights[:, self.starts[first : first + step]]
                second += (shares @ moments.reshape(len(moments), -1)).reshape(second.shape)
        else:
            for block in self._blocks(count * columns):
                points = self.points[:, block]
                second += (self.weights[:, block, None] * points).swapaxes(1, 2) @ points
        return curvature_bound(second, self.penalties, classes)

    def bound_diagonal(self) -> Array:
        """The diagonals of `bound`, of shape (T, p), for when the matrices would be too large."""
        second = np.zeros((self.shape[0], self.shape[2]))
        for block in self._blocks(self.shape[0] * self.shape[2]):
            second += np.einsum("tn,tnp->tp", self.weights[:, block], self.points[:, block] ** 2)
        return curvature_bound(second, self.penalties, self.shape[1])

    def _normalise(self, logits: Array, rows: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Log normalisers (T, N) and probabilities (T, K, N); `logits` is overwritten."""
        if logits.shape[1] == 1:
            # log(1 + e^z) = z + log(1 + e^-z), exact to a rounding of z; beyond -700 the exponential would overflow.
            logit = np.maximum(logits[:, 0], -700.0)
            total = np.exp(-logit)
            total += 1.0
            return logit + np.log(total), (1.0 / total)[:, None]
        present = self.present if rows is None else self.present[rows]
        if not present.all():
            logits[~present] = -np.inf
        largest = logits.max(axis=1)
        logits -= largest[:, None]
        np.exp(logits, out=logits)
        total = logits.sum(axis=1)
        logits /= total[:, None]
        return largest + np.log(total), logits

    def _blocks(self, elements: int) -> Iterator[slice]:
        step = max(64, _BLOCK // elements)
        for start in range(0, self.points.shape[1], step):
            yield slice(start, start + step)


def definite_hessian(curvature: Array, penalties: Array, present: NDArray[np.bool_]) -> Array:
    r"""Positive definite Hessians of penalised log losses, of shape (T, K p, K p).

    Adding the same number to all intercepts changes nothing, and neither do coefficients of absent classes; gradients
    vanish in those directions, so curvature one may be put there.

    Parameters
    ----------
    curvature : array of shape (T, K, K, p, p)
        Hessians of the log losses alone; overwritten.
    penalties : array of shape (T, p)
    present : array of bool of shape (T, K)
        Ignored if K = 1.
    """
    count, classes, _, columns, _ = curvature.shape
    each, column = np.arange(classes)[:, None], np.arange(columns)
    free = penalties == 0
    # The intercept of a class of next to no weight has next to no curvature.
    curvature[:, each, each, column, column] += 2 * penalties[:, None, :] + _LEAST_CURVATURE * free[:, None, :]
    if classes > 1:
        pairs = (present[:, :, None] & present[:, None, :])[..., None] & free[:, None, None, :]
        curvature[:, :, :, column, column] += pairs / classes
        curvature[:, each, each, column, column] += ~present[:, :, None]
    return curvature.swapaxes(2, 3).reshape(count, classes * columns, classes * columns)


def curvature_bound(second: Array, penalties: Array, rows: int) -> Array:
    r"""What is above the curvature of every row of coefficients everywhere: matrices (T, p, p), or their diagonals (T, p).

    A softmax probability has :math:`p_c (1 - p_c) \le 1/4`, and :math:`\mathrm{diag}(p) - pp' \preceq I/2`, so the Hessian
    is below :math:`I \otimes (\kappa \sum_i s_{ti} x_i x_i' + 2 \lambda_t m)` with :math:`\kappa` 1/4 for two classes and
    1/2 for more (Boehning, 1992).

    Parameters
    ----------
    second : array of shape (T, p, p) or (T, p)
        :math:`\sum_i s_{ti} x_i x_i'`, or its diagonal.
    penalties : array of shape (T, p)
    rows : int
        Rows of coefficients of a model.
    """
    bound = second * (0.25 if rows == 1 else 0.5)
    if bound.ndim == 2:
        return bound + 2 * penalties
    column = np.arange(bound.shape[1])
    bound[:, column, column] += 2 * penalties
    return bound


def coefficient_rows(n_classes: int) -> int:
    """Rows of coefficients of a model: one per class, and one for two classes."""
    return 1 if n_classes == 2 else n_classes


def coefficient_penalties(penalty: Array, present: NDArray[np.bool_], dim: int, columns: int) -> Array:
    r"""What a model pays for each of its `columns` columns, of shape (T, columns); those beyond `dim` are free.

    Parameters
    ----------
    penalty : array of shape (T,)
        :math:`\lambda`.
    present : array of bool of shape (T, C)
        The classes of each model, among those of the federation.
    """
    penalties = np.repeat(penalty[:, None], columns, axis=1)
    if present.shape[1] > 2:
        # Two opposite rows of half the size share what one row would pay.
        penalties[present.sum(axis=1) == 2] *= 2
    penalties[:, dim:] = 0.0
    return penalties


def frequency_start(masses: Array, present: NDArray[np.bool_], dim: int, intercept: bool) -> Array:
    """Slopes zero, and the intercepts, if any, that give every class its weighted frequency: (T, K, d) or (T, K, d + 1).

    Parameters
    ----------
    masses : array of shape (T, C)
        Weights of the classes in each model's data.
    present : array of bool of shape (T, C)
    dim : int
    intercept : bool
    """
    count, n_classes = present.shape
    start = np.zeros((count, coefficient_rows(n_classes), dim + intercept))
    if intercept:
        logarithms = np.log(np.where(present, np.maximum(masses, _LEAST_MASS), 1.0))
        level = logarithms.sum(axis=1, keepdims=True) / present.sum(axis=1, keepdims=True)
        start[..., -1] = (
            logarithms[:, 1:] - logarithms[:, :1] if n_classes == 2 else np.where(present, logarithms - level, 0)
        )
    return start


def measured_from(coefficients: Array, centres: Array) -> Array:
    """Slopes and intercepts (T, K, d + 1) for x measured from centres (T, d), of those for x measured from zero."""
    moved = coefficients.copy()
    moved[..., -1] += (coefficients[..., :-1] @ centres[..., None])[..., 0]
    return moved


def measured_from_zero(theta: Array, centres: Array) -> Array:
    """Slopes and intercepts (T, K, d + 1) for x measured from zero, of models whose x is measured from centres (T, d).

    Models without intercepts have centres zero, and get the intercept zero.
    """
    slopes, intercepts = np.split(theta, [centres.shape[1]], axis=2)
    return np.concatenate([slopes, intercepts.sum(axis=2, keepdims=True) - slopes @ centres[..., None]], axis=2)
