r"""The gradient of a loss at a point, as a product of two short vectors.

For a model whose last step is linear, :math:`f(x) = A\,h(x)`, the gradient of the loss of a point in A is the outer product
:math:`r \otimes h(x)` of the slope r of the loss in the prediction (the residual: :math:`f(x) - y`, or probabilities minus
the label) and the inputs h of that step. Ridge and logistic regression are of this form with h = (x, 1), so the product is
their whole gradient; for a network h is the last hidden layer. Any other model is seen through h = (x, 1) too: the part of
its functional gradient that a linear correction could take away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.learners.base import Models, Task

Array = NDArray[np.float64]


class PointGradients(NamedTuple):
    """Gradients of n points as factors: residuals (n, c) and inputs (n, h), the last of them constant."""

    residuals: Array
    inputs: Array


def has_gradients(task: Task) -> bool:
    """Whether models of this task have a loss in their predictions."""
    return task != "unsupervised"


def point_gradients(models: Models, row: int, X: ArrayLike, y: ArrayLike, task: Task) -> PointGradients:
    """Loss gradients of points (X, y) at the model of that row."""
    columns = np.asarray(X, dtype=np.float64)
    hidden = models.last_inputs(row, columns) if hasattr(models, "last_inputs") else columns
    inputs = np.column_stack([hidden, np.ones(len(columns))])
    if task == "regression":
        residuals = np.asarray(models.predict(row, columns), dtype=np.float64) - np.asarray(y, dtype=np.float64)
        return PointGradients(residuals.reshape(len(columns), -1), inputs)
    if task == "classification":
        residuals = class_residuals(models, row, columns, np.asarray(y))
        return PointGradients(residuals[:, 1:] if residuals.shape[1] == 2 else residuals, inputs)
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
