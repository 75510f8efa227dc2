r"""Ridge regression in closed form: all targets from one exchange of moments, and exactly.

For target t the learner minimises

.. math:: \sum_k w_{tk} \frac{1}{n_k} \sum_{i} (y_i^{(k)} - a'x_i^{(k)} - c)^2 + \lambda |a|^2

over a and c; the intercept is not penalised. Where rows have sample weights :math:`s_i`, the mean is
:math:`\sum_i s_i (\dots)^2 / \sum_i s_i`. Agent k answers :math:`(n_k, \bar z_k, C_k)` of its points z = (x, y), once:
the weighted moments of all targets come from one matrix product, the solutions from one stacked solve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, Task, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Counter, Kept
from kinfed.federation import Agent
from kinfed.learners.base import AUTO, Extent
from kinfed.learners.inputs import (
    check_models,
    own_columns,
    own_numbers,
    relative_weights,
    rows_heard,
    simplex_rows,
    training_store,
    unique_rows,
    unpacked,
)
from kinfed.learners.linear import Penalty, VarianceRatio, design, row_penalties
from kinfed.learners.quadratics import LARGEST_QUADRATICS, Quadratics, sizes_at_home, without
from kinfed.learners.regression_moments import Moments, RegressionMoments
from kinfed.parallel import map_on_cores
from kinfed.progress import Progress
from kinfed.validation import Array, nonnegative, points_array

# Elements of the moments held at once, for agents and for the targets of one part (256 MB, and 32 MB on each core).
_AGENT_BLOCK = 2**25
_TARGET_BLOCK = 2**22


@dataclass(frozen=True)
class Ridge:
    r"""Ridge regression on the weighted risk, in closed form.

    Parameters
    ----------
    penalty : float, "auto", or VarianceRatio
        :math:`\lambda`, relative to the mean squared error: scikit-learn's ``alpha`` for one agent's data is
        :math:`n_k \lambda`. With "auto" every method finds its own by rows held out (`kinfed.learners.linear`); a fit
        by itself, which no method asked for, then has 0.01, which takes about one percent off slopes of standardised
        columns.
        With 0 and too few points the solution of least norm is taken, as `numpy.linalg.lstsq` does on centred data.
    intercept : bool
        Whether an unpenalised constant is fitted.

    Examples
    --------
    >>> Ridge().task
    'regression'

    See Also
    --------
    ridge_coefficients : the same from moments alone.
    """

    penalty: Penalty = AUTO
    intercept: bool = True

    name: ClassVar[str] = "ridge"
    task: ClassVar[Task] = "regression"

    def __post_init__(self) -> None:
        if self.penalty != AUTO and not isinstance(self.penalty, VarianceRatio):
            nonnegative(self.penalty, "penalty")

    def model_operations(self, extent: Extent) -> float:
        """Roughly how many arithmetic operations one model takes."""
        return float(extent.dim + 1) ** 2 * (extent.dim + 1 + 2 * extent.n_agents)

    def check_sites(self) -> None:
        """It can be trained across sites."""

    def fit(
        self,
        agents: Agents,
        weights: Array,
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> RidgeModels:
        """Train one model per row of `weights`; see `Learner.fit`. Neither `targets` nor the seed has an influence.

        A row that heard nobody gets the weights of a grand mean, proportional to the sizes of those who answered.
        """
        rows, inverse = unique_rows(simplex_rows(weights, agents.spec))
        store = training_store(checkpoint, repr(self), agents, rows)
        counter = Counter(progress, "ridge", len(rows))
        used = np.flatnonzero((rows > 0).any(axis=0))
        size = agents.spec.dim + 1
        agents_step, rows_step = max(1, _AGENT_BLOCK // size**2), max(1, _TARGET_BLOCK // size**2)
        blocks = [used[start : start + agents_step] for start in range(0, len(used), agents_step)]

        def moments_of(block: NDArray[np.int64]) -> RegressionMoments:
            return agents.ask(Moments(tuple(block.tolist())))

        # The moments of all agents are held when they fit into one block, else asked for again for each part.
        kept = moments_of(blocks[0]) if len(blocks) == 1 else None
        answered = np.zeros(len(agents.spec.names), dtype=bool)
        for block in blocks:
            answered[block] = (kept or moments_of(block)).n > 0
        heard = rows_heard(rows, answered, agents.spec.sizes)
        if kept is None:  # who is silent is not asked again for every part
            blocks = [block[answered[block]] for block in blocks if answered[block].any()]

        def part(index: int) -> Array:
            chosen = heard[index * rows_step : (index + 1) * rows_step]
            stored = store.load(f"part {index}")
            # Whoever is heard now may have been silent when the part was kept.
            if stored is None or not np.array_equal(stored.arrays["heard"], chosen):
                mixture = (kept or moments_of(blocks[0])).weighted(chosen[:, blocks[0]])
                for block in blocks[1:]:
                    mixture = mixture + moments_of(block).weighted(chosen[:, block])
                penalties = row_penalties(self.penalty, chosen, agents.spec.sizes)
                coefficients = ridge_coefficients(mixture, penalties, intercept=self.intercept)
                stored = Kept(arrays={"coefficients": coefficients, "heard": chosen})
                store.save(f"part {index}", stored)
            counter.add(len(chosen))
            return stored.arrays["coefficients"]

        return RidgeModels(np.concatenate(list(map_on_cores(part, range(-(-len(rows) // rows_step)))))[inverse])

    def is_small(self, spec: TrainingSpec) -> bool:
        """Whether everybody's second moments can be at every target."""
        return (spec.dim + 1) ** 2 * len(spec.names) <= LARGEST_QUADRATICS

    def quadratics(self, agents: Agents) -> Quadratics:
        """Mean squared errors of everybody, from the moments: exact."""
        moments = agents.ask(Moments(tuple(range(len(agents.spec.names)))))
        z = np.concatenate([moments.mean_x, np.ones((len(moments.n), 1)), moments.mean[:, moments.dim :]], axis=1)
        raw = z[:, :, None] * z[:, None, :]
        inner = np.r_[: moments.dim, moments.dim + 1]
        raw[:, inner[:, None], inner] += moments.comoment
        if not self.intercept:  # a column of zeros, as in `design`
            raw[:, moments.dim] = raw[:, :, moments.dim] = 0.0
        return Quadratics(moments.n, raw[:, :-1, :-1], raw[:, :-1, -1], raw[:, -1, -1])

    def fit_quadratics(self, everybody: Quadratics, rows: Array, spec: TrainingSpec) -> RidgeModels:
        """One model per row of weights, from everybody's moments: what `fit` finds."""
        return self._solved(*everybody.weighted(rows), row_penalties(self.penalty, rows, everybody.n))

    def fit_at_home(self, others: Quadratics, rows: Array, place: int, own: Agent, spec: TrainingSpec) -> RidgeModels:
        """One model per row of weights for the agent at `place`, whose moments are those of its own rows."""
        inputs, weights = np.column_stack([own_columns(own, spec.dim), np.ones(len(own))]), relative_weights(own, spec)
        weighted = inputs if weights is None else inputs * weights[:, None]
        matrix, cross = others.weighted(without(rows, place))
        matrix += rows[:, place, None, None] * (weighted.T @ inputs / len(own))
        cross += rows[:, place, None] * (weighted.T @ own_numbers(own) / len(own))
        return self._solved(matrix, cross, row_penalties(self.penalty, rows, sizes_at_home(others, place, own)))

    def second_expansion(self, prior: Callable[[], tuple[Array, Array]]) -> None:
        """Squared errors are quadratic functions."""

    def own_sums(self, own: Agent, spec: TrainingSpec) -> tuple[Array, Array, float]:
        """Sums of products of an agent's columns, with its outcome, and of squares of the outcome; exact."""
        points, outcome, weights = design(own, self, spec), own_numbers(own), relative_weights(own, spec)
        weighted = points if weights is None else points * weights[:, None]
        squares = np.square(outcome) if weights is None else weights * np.square(outcome)
        return weighted.T @ points, weighted.T @ outcome, float(squares.sum())

    def posterior_modes(
        self, parts: Sequence[Agent], centres: Array, spread: Array, start: Array, spec: TrainingSpec
    ) -> Array:
        """What second moments say is exact."""
        return start

    def mode_covariances(
        self, parts: Sequence[Agent], modes: Array, spread: Array, given: Array, spec: TrainingSpec
    ) -> Array:
        """What second moments say is exact."""
        return given

    def linear_models(
        self, coefficients: Array, shares: Array, spec: TrainingSpec, covariance: Array | None, noise: Array | None
    ) -> RidgeModels:
        """Models of mixed coefficients, with what is known of their errors: mixtures of linear models are linear."""
        return RidgeModels(np.einsum("tmp,tm->tp", coefficients, shares), covariance, noise)

    def _solved(self, matrix: Array, cross: Array, penalties: Array) -> RidgeModels:
        """The models whose curvatures, without the penalty, and slopes these are."""
        dim = matrix.shape[1] - 1
        used, slopes = dim + self.intercept, np.arange(dim)
        matrix, cross = matrix[:, :used, :used].copy(), cross[:, :used, None]
        matrix[:, slopes, slopes] += penalties[:, None]
        theta = np.zeros((len(matrix), dim + 1))
        theta[:, :used] = (np.linalg.solve(matrix, cross) if penalties.all() else _least_norm(matrix, cross))[..., 0]
        return RidgeModels(theta)

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Coefficients of some rows, of shape (rows, d + 1)."""
        check_models(models, RidgeModels, "ridge")
        found = {"coefficients": models.coefficients[rows]}
        if models.covariance is not None and models.noise is not None:
            found |= {"covariance": models.covariance[rows], "noise": models.noise[rows]}
        return found

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> RidgeModels:
        """The models whose coefficients were sent, after a check of their form."""
        size = spec.dim + 1
        found = unpacked(arrays, "coefficients", (size,), "float64")
        if "covariance" not in arrays:
            return RidgeModels(found)
        return RidgeModels(
            found, unpacked(arrays, "covariance", (size, size), "float64"), unpacked(arrays, "noise", (), "float64")
        )


@dataclass(frozen=True, eq=False)
class RidgeModels:
    """Linear models, one per row of the weight matrix.

    Attributes
    ----------
    coefficients : array of shape (T, d + 1), or (T, d + 1, m) for m outputs
        Slopes, then the intercept.
    covariance : array of shape (T, d + 1, d + 1), optional
        Of the coefficients, for models that were found under a prior.
    noise : array of shape (T,), optional
        Variance of an outcome about what is predicted, if the coefficients were known.
    """

    coefficients: Array
    covariance: Array | None = None
    noise: Array | None = None

    def __len__(self) -> int:
        return len(self.coefficients)

    def predict(self, row: int, X: ArrayLike) -> Array:
        """Predictions of the model of that row, of shape (n,) or (n, m)."""
        theta = self.coefficients[row]
        return np.asarray(points_array(X, "predict", len(theta) - 1) @ theta[:-1] + theta[-1])

    def linear(self, row: int) -> Array:
        """Slopes and then the intercept of the model of that row, of shape (outputs, d + 1)."""
        return np.atleast_2d(self.coefficients[row].T)

    def predict_rows(self, rows: Sequence[int], X: ArrayLike) -> Array:
        """Predictions of several models for the same points, of shape (rows, n) or (rows, n, m)."""
        theta = self.coefficients[np.asarray(rows)]
        columns = points_array(X, "predict_rows", theta.shape[1] - 1)
        if theta.ndim == 2:
            return np.asarray(theta[:, :-1] @ columns.T + theta[:, -1:])
        return np.asarray(columns @ theta[:, :-1] + theta[:, -1:])


def ridge_coefficients(moments: RegressionMoments, penalty: float | Array, *, intercept: bool = True) -> Array:
    r"""Slopes and intercept that minimise the mean squared error plus :math:`\lambda |a|^2`, from moments alone.

    Parameters
    ----------
    moments : RegressionMoments with any leading axes (...)
    penalty : float, or array (...)
        :math:`\lambda`; with 0 the solution of least norm.
    intercept : bool

    Returns
    -------
    array of shape (..., d + 1), or (..., d + 1, m) for m outputs
    """
    d = moments.dim
    matrix, cross = moments.xx, moments.comoment[..., :d, d:]
    mean_x, mean_y = moments.mean_x, moments.mean[..., d:]
    if not intercept:
        matrix = matrix + mean_x[..., :, None] * mean_x[..., None, :]
        cross = cross + mean_x[..., :, None] * mean_y[..., None, :]
    penalised = matrix + np.asarray(penalty)[..., None, None] * np.eye(d)
    slopes = np.linalg.solve(penalised, cross) if np.all(penalty) else _least_norm(matrix, cross)
    constant = mean_y - (mean_x[..., None] * slopes).sum(axis=-2) if intercept else np.zeros_like(mean_y)
    theta = np.concatenate([slopes, constant[..., None, :]], axis=-2)
    return theta if moments.outputs else theta[..., 0]


def _least_norm(matrix: Array, cross: Array) -> Array:
    r"""Solutions of least norm of the positive semidefinite systems A a = b, stacked.

    The rank is judged on the columns scaled to unit diagonal, :math:`A = D \tilde A D`, so units of measurement play no
    part in it: eigenvalues of :math:`\tilde A` below rounding count as zero. With :math:`\tilde N` spanning its null space,
    :math:`D^{-1} \tilde A^+ D^{-1} b` is a solution, and taking away its part in the span of :math:`D^{-1} \tilde N` makes
    it the one of least norm.
    """
    diagonal = np.sqrt(np.maximum(np.diagonal(matrix, axis1=-2, axis2=-1), 0.0))
    scale = np.where(diagonal > 0, diagonal, 1.0)[..., None]
    eigenvalues, vectors = np.linalg.eigh(matrix / (scale * scale.swapaxes(-1, -2)))
    kept = eigenvalues > eigenvalues[..., -1:] * (10 * matrix.shape[-1] * np.finfo(float).eps)
    inverse = np.where(kept, 1.0 / np.where(kept, eigenvalues, 1.0), 0.0)
    slopes = vectors @ (inverse[..., None] * (vectors.swapaxes(-1, -2) @ (cross / scale))) / scale
    for place in map(tuple, np.argwhere(~kept.all(axis=-1))):
        null_space, _ = np.linalg.qr(vectors[place][:, ~kept[place]] / scale[place])
        slopes[place] -= null_space @ (null_space.T @ slopes[place])
    return np.asarray(slopes)
