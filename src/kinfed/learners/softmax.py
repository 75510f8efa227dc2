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

Array = NDArray[np.float64]

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
        Where the agents' points start; points of one agent weigh the same. Used for shared points only.
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
        value = np.zeros(count)
        gradient = np.zeros_like(theta)
        for block in self._blocks(count * classes):
            points = self.points[:, block]
            if len(points) == 1:  # shared points: one matrix product for all models
                logits = (theta.reshape(-1, columns) @ points[0].T).reshape(count, classes, -1)
            else:
                logits = theta @ points.swapaxes(1, 2)
            normaliser, probabilities = self._normalise(logits)
            weights = self.weights[:, block]
            value += np.einsum("tn,tn->t", weights, normaliser)
            probabilities *= weights[:, None, :]
            if len(points) == 1:
                gradient += (probabilities.reshape(count * classes, -1) @ points[0]).reshape(theta.shape)
            else:
                gradient += probabilities @ points
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
        for block in self._blocks(count * max(classes, columns)):
            points = self.points[:, block] if len(self.points) == 1 else self.points[rows, block]
            _, probabilities = self._normalise(theta[rows] @ points.swapaxes(1, 2), rows)
            weighted = probabilities * self.weights[rows, None, block]
            for first in range(classes):
                for second in range(first + 1):
                    curvature = weighted[:, first] * ((first == second) - probabilities[:, second])
                    hessian[:, first, second] += (curvature[:, :, None] * points).swapaxes(1, 2) @ points
        for first in range(classes):
            for second in range(first):
                hessian[:, second, first] = hessian[:, first, second]
        return hessian

    def bound(self) -> Array:
        r"""Matrices above the curvature of each class's coefficients everywhere, of shape (T, p, p).

        A softmax probability has :math:`p_c (1 - p_c) \le 1/4`, and :math:`\mathrm{diag}(p) - pp' \preceq I/2`, so the
        Hessian is below :math:`I \otimes (\kappa \sum_i s_{ti} x_i x_i' + 2 \lambda_t m)` with :math:`\kappa` 1/4 for two
        classes and 1/2 for more (Boehning, 1992).
        """
        count, classes, columns = self.shape
        second = np.zeros((count, columns, columns))
        if len(self.points) == 1:  # shared points: one second moment per agent serves all models
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
        second *= 0.25 if classes == 1 else 0.5
        second[:, np.arange(columns), np.arange(columns)] += 2 * self.penalties
        return second

    def bound_diagonal(self) -> Array:
        """The diagonals of `bound`, of shape (T, p), for when the matrices would be too large."""
        second = np.zeros((self.shape[0], self.shape[2]))
        for block in self._blocks(self.shape[0] * self.shape[2]):
            second += np.einsum("tn,tnp->tp", self.weights[:, block], self.points[:, block] ** 2)
        return second * (0.25 if self.shape[1] == 1 else 0.5) + 2 * self.penalties

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


def coefficient_penalties(penalty: float, present: NDArray[np.bool_], dim: int, columns: int) -> Array:
    r"""What a model pays for each of its `columns` columns, of shape (T, columns); those beyond `dim` are free.

    Parameters
    ----------
    penalty : float
        :math:`\lambda`.
    present : array of bool of shape (T, C)
        The classes of each model, among those of the federation.
    """
    penalties = np.full((len(present), columns), penalty)
    if present.shape[1] > 2:
        # Two opposite rows of half the size share what one row would pay.
        penalties[present.sum(axis=1) == 2] *= 2
    penalties[:, dim:] = 0.0
    return penalties


def frequency_intercepts(masses: Array, present: NDArray[np.bool_]) -> Array:
    """Intercepts that give every class its weighted frequency where slopes are zero: (T, C), or (T, 1) for two classes.

    Parameters
    ----------
    masses : array of shape (T, C)
        Weights of the classes in each model's data.
    present : array of bool of shape (T, C)
    """
    logarithms = np.log(np.where(present, np.maximum(masses, _LEAST_MASS), 1.0))
    if present.shape[1] == 2:
        return np.asarray(logarithms[:, 1:] - logarithms[:, :1])
    level = logarithms.sum(axis=1, keepdims=True) / present.sum(axis=1, keepdims=True)
    return np.where(present, logarithms - level, 0.0)
