r"""What a flexible model that all agents share leaves unexplained, and which rows are near enough to be exchanged.

Where y given x is the same everywhere, residuals of rows with equal inputs are exchangeable between agents, however wrong
the common model is there. So the model need not be right: what it misses only has to vary little between near rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from kinfed.validation import FloatArray, without_rounding

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

FOLDS = 5
# Penalties in units of the trace of the second moments; cross-validation chooses.
_PENALTIES = np.logspace(-7, 2, 19)
_CURVE_TERMS = 6
_FARTHEST = 3.0  # standard deviations: beyond them the product of two coordinates would rule the fit


def curves_and_products(coordinates: FloatArray) -> list[Array]:
    r"""What y often depends on: a curve of every coordinate, and products of two; two blocks of mean squared norm one.

    The curves are spanned by :math:`\cos(\pi j u) / j` for :math:`j \le 6`, where u is the normal distribution function of
    the standardised coordinate. Isotropic random features alone would need far more rows for them in many dimensions.
    """
    deviation = coordinates.std(axis=0)
    standard = (coordinates - coordinates.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    turns = np.pi * ndtr(standard)
    cosines = np.column_stack([np.cos(j * turns) / j for j in range(1, _CURVE_TERMS + 1)])
    within = np.clip(standard, -_FARTHEST, _FARTHEST)
    one, other = np.triu_indices(within.shape[1])
    return [unit_block(cosines), unit_block(within[:, one] * within[:, other])]


def unit_block(points: Array) -> Array:
    """Centred points with a mean squared norm of one."""
    centred = points - points.mean(axis=0)
    square = without_rounding(float(np.sum(centred**2)), float(np.sum(points**2))) / len(points)
    return np.asarray(centred / np.sqrt(square)) if square > 0 else np.zeros(points.shape)


def cross_fitted(points: Array, targets: Array, fold: Indices) -> Array:
    r"""Predictions of the targets (N, q) by ridge regressions that have not seen the row they predict.

    The penalty minimises :math:`\mathrm{RSS} / (1 - \mathrm{df} / n)^2` over the other folds: generalised cross-validation.

    Parameters
    ----------
    points : array of shape (N, D)
        Features of x.
    targets : array of shape (N, q)
    fold : array of shape (N,)
        The fold, below `FOLDS`, of every row.
    """
    predictions = np.tile(targets.mean(axis=0), (len(targets), 1))
    for held_out in range(FOLDS):
        kept = fold != held_out
        if kept.all() or not kept.any():
            continue
        centre, middle = points[kept].mean(axis=0), targets[kept].mean(axis=0)
        coefficients = _ridge(points[kept] - centre, targets[kept] - middle)
        predictions[~kept] = middle + (points[~kept] - centre) @ coefficients
    return predictions


def _ridge(points: Array, targets: Array) -> Array:
    """Coefficients (D, q) for centred data, with the penalty of generalised cross-validation."""
    n = len(points)
    few = n < points.shape[1]
    values, vectors = np.linalg.eigh((points @ points.T if few else points.T @ points) / n)
    kept = values > 1e-12 * values[-1]
    if not kept.any():
        return np.zeros((points.shape[1], targets.shape[1]))
    values, vectors = values[kept], vectors[:, kept]
    if few:  # the eigenvectors of points.T @ points from those of the smaller matrix
        vectors = points.T @ vectors / np.sqrt(n * values)
    products = vectors.T @ (points.T @ targets) / n
    penalties = _PENALTIES * values.sum()
    inverse = 1 / (values + penalties[:, None])
    energy = np.sum(products**2, axis=1)
    left = np.sum(targets**2) / n - (2 * inverse - inverse**2 * values) @ energy
    freedom = 1 - (inverse @ values + 1) / n
    usable = freedom > 0.05  # where a model nearly interpolates, its error says nothing
    criterion = np.where(usable, left / np.where(usable, freedom, 1.0) ** 2, np.inf)
    best = inverse[int(criterion.argmin())] if usable.any() else inverse[-1]
    return np.asarray(vectors @ (best[:, None] * products))


def near_rows(coordinates: Array, least: int) -> Indices:
    """The cell of every row: rows are halved along the coordinate that varies most, while both halves have `least` rows."""
    cell = np.empty(len(coordinates), dtype=np.int64)
    waiting, found = [np.arange(len(coordinates))], 0
    while waiting:
        rows = waiting.pop()
        if len(rows) < 2 * least:
            cell[rows] = found
            found += 1
            continue
        widest = int(coordinates[rows].var(axis=0).argmax())
        rows = rows[np.argsort(coordinates[rows, widest], kind="stable")]
        waiting += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return cell


def principal_coordinates(points: FloatArray, count: int, rng: np.random.Generator) -> Array:
    """The `count` leading coordinates, or fewer, of centred points, by a random sketch of their range if d is large."""
    if points.shape[1] > 2 * count:
        sketch = points @ rng.standard_normal((points.shape[1], 2 * count)).astype(points.dtype)
        basis = np.linalg.qr(points.T @ np.linalg.qr(sketch)[0])[0]
        points = points @ basis
    left, lengths, _ = np.linalg.svd(points.astype(np.float64), full_matrices=False)
    found = np.asarray(left * lengths)[:, :count]
    # A singular vector has no sign: the row that lies farthest out is put on the positive side.
    return found * np.where(np.take_along_axis(found, np.abs(found).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)
