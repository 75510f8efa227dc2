r"""What a flexible model that all agents share leaves unexplained, and how much of that agents' own functions explain.

Where y given x is the same everywhere, residuals of rows with equal inputs are exchangeable between agents, however wrong
the common model is there. So the model need not be right: what it misses only has to vary little between near rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtr

from kinfed.validation import Array, FloatArray, Integers, without_rounding

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


def cross_fitted(points: Array, targets: Array, fold: Integers) -> Array:
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
    inverse = 1 / (values + _PENALTIES[:, None] * values.sum())
    left = np.sum(targets**2) / n - (2 * inverse - inverse**2 * values) @ np.sum(products**2, axis=1)
    freedom = 1 - (inverse @ values + 1) / n
    usable = freedom > 0.05  # where a model nearly interpolates, its error says nothing
    criterion = np.where(usable, left / np.where(usable, freedom, 1.0) ** 2, np.inf)
    best = inverse[int(criterion.argmin())] if usable.any() else inverse[-1]
    return np.asarray(vectors @ (best[:, None] * products))


def near_rows(coordinates: Array, least: int) -> Integers:
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
        points = points @ np.linalg.qr(points.T @ np.linalg.qr(sketch)[0])[0]
    left, lengths, _ = np.linalg.svd(points.astype(np.float64), full_matrices=False)
    found = np.asarray(left * lengths)[:, :count]
    # A singular vector has no sign: the row that lies farthest out is put on the positive side.
    return found * np.where(np.take_along_axis(found, np.abs(found).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)


def share_of_own_functions(residuals: Array, kernels: Sequence[Array], starts: Integers) -> float:
    r""":math:`\sum_a \sigma_a^2 / E |e|^2`, with :math:`\sigma_a^2 \ge 0`, for kernels whose mean of k(x, x) is one.

    If :math:`e_i = g_k(x_i) + \varepsilon_i` where the :math:`g_k` are independent between agents and have the covariance
    :math:`\sum_a \sigma_a^2 \kappa_a(x, x')`, then for two rows of one agent
    :math:`E \langle e_i, e_j \rangle = \sum_a \sigma_a^2 \kappa_a(x_i, x_j)`. So the :math:`\sigma_a^2` come from a
    regression of products of residuals on kernels, over pairs of rows (Haseman and Elston, 1972). A constant, a linear and
    a Gaussian kernel stand for offsets, slopes and curves.

    Parameters
    ----------
    residuals : array of shape (N, q)
    kernels : one array of shape (N, D_a) each
        Features whose inner products are the kernel.
    starts : array of shape (B,)
        Where the rows of every agent start; pairs of agent k have the weight :math:`1 / n_k`.
    """
    energy = np.sum(residuals**2, axis=1)
    if not energy.any():
        return 0.0
    diagonals = [np.sum(kernel**2, axis=1) for kernel in kernels]
    normal, answer = np.zeros((len(kernels), len(kernels))), np.zeros(len(kernels))
    for rows in np.split(np.arange(len(residuals)), starts[1:]):
        own = [kernel[rows] for kernel in kernels]
        for a, one in enumerate(own):
            answer[a] += (np.sum((residuals[rows].T @ one) ** 2) - energy[rows] @ diagonals[a][rows]) / len(rows)
            for b, other in enumerate(own):
                normal[a, b] += (np.sum((one.T @ other) ** 2) - diagonals[a][rows] @ diagonals[b][rows]) / len(rows)
    if not np.diag(normal).any():  # no agent has two rows
        return 0.0
    variances, _ = nnls(normal, answer)
    return float(min(variances.sum() / energy.mean(), 1.0))
