r"""Linear models: penalties as ratios of variances, and what a learner adds so that `kinfed.priors` can use it.

Penalties with the value "auto" are found by rows held out, each method its own: learning alone and one common model
combine several (the members `LOCAL` and `COMMON` of `kinfed.priors.family`), models on a rule's weights take one
`VarianceRatio` for the federation (`kinfed.methods.tuning`). Stacked priors need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import TrainingSpec
from kinfed.federation import Agent
from kinfed.learners.base import Models
from kinfed.learners.inputs import own_columns, two_classes
from kinfed.learners.quadratics import HomeLearner
from kinfed.validation import Array

USUAL_PENALTY = 1e-2
"""Of slopes of standardised columns, relative to the mean loss, where "auto" finds none."""
MOST_LOSS = float(-np.log(1e-6))
"""The most that one row can lose: probabilities are taken to be at least 1e-6."""


@dataclass(frozen=True)
class VarianceRatio:
    r"""A penalty that is as strong for models of few rows as it should be, and as weak for those of many.

    With :math:`\kappa = \sigma^2 / \tau^2`, the variance of the noise over that of a slope, the penalty relative to the
    mean loss of n rows is :math:`\kappa / n`. A weighted risk varies as that of :math:`1 / \sum_k w_k^2 / n_k` rows does.
    So what suits four fifths of the rows suits all of them.

    Attributes
    ----------
    value : float
        :math:`\kappa`.
    """

    value: float


Penalty = float | str | VarianceRatio
"""A number, a ratio, or "auto"."""


def row_penalties(penalty: Penalty, rows: Array, sizes: NDArray[np.int64] | Array) -> Array:
    """What slopes cost, relative to the mean loss, in the models of weight rows (R, B) of agents of these sizes; (R,)."""
    if isinstance(penalty, VarianceRatio):
        return np.asarray(penalty.value * (np.square(rows) / np.maximum(sizes, 1)).sum(axis=1))
    return np.full(len(rows), USUAL_PENALTY if isinstance(penalty, str) else penalty)


@runtime_checkable
class PriorLearner(HomeLearner, Protocol):
    """A learner whose models have p coefficients, of which others may know something before."""

    @property
    def penalty(self) -> Penalty:
        """A number, a ratio, or "auto"."""

    @property
    def intercept(self) -> bool:
        """Whether models have one."""

    def own_sums(self, own: Agent, spec: TrainingSpec) -> tuple[Array, Array, float]:
        """Curvature (p, p) and slope (p,) of the sum of the rows' losses, and the sum of squares of their outcomes."""

    def posterior_modes(
        self, parts: Sequence[Agent], centres: Array, spread: Array, start: Array, spec: TrainingSpec
    ) -> Array:
        """Most probable coefficients (T, M, p) of parts of rows under normal priors about `centres` (T, M, p).

        `spread` (M, p, p) has their covariances; `start` is what second moments alone make of them.
        """

    def linear_models(
        self, coefficients: Array, spec: TrainingSpec, covariance: Array | None, noise: Array | None
    ) -> Models:
        """Models of coefficients (T, p), with their covariances (T, p, p) and the variances (T,) of the noise."""


def design(agent: Agent, learner: PriorLearner, spec: TrainingSpec) -> Array:
    """Rows and a last column of ones, or of zeros where the learner has no intercept; of shape (n, d + 1)."""
    return np.column_stack([own_columns(agent, spec.dim), np.full(len(agent), float(learner.intercept))])


def intercepts(spec: TrainingSpec) -> NDArray[np.bool_]:
    """Which of the p coefficients are intercepts."""
    outputs = 1 if spec.task == "regression" or len(two_classes(spec)) == 2 else len(two_classes(spec))
    return np.tile(np.arange(spec.dim + 1) == spec.dim, outputs)


def coefficient_count(spec: TrainingSpec) -> int:
    """How many coefficients a model has, p."""
    return len(intercepts(spec))


def log_losses(scores: Array, codes: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """Log losses (n,) of scores (n, K), their gradients (n, K) and curvatures (n, K, K).

    One column of scores is that of the second of two classes.
    """
    full = np.column_stack([np.zeros(len(scores)), scores]) if scores.shape[1] == 1 else scores
    shifted = full - full.max(axis=1, keepdims=True)
    likely = np.exp(shifted)
    likely /= likely.sum(axis=1, keepdims=True)
    each = np.arange(len(codes))
    losses = np.minimum(-np.log(np.maximum(likely[each, codes], 1e-300)), MOST_LOSS)
    slopes, curvature = likely.copy(), -likely[:, :, None] * likely[:, None, :]
    slopes[each, codes] -= 1.0
    place = np.arange(full.shape[1])
    curvature[:, place, place] += likely
    if scores.shape[1] == 1:
        return losses, slopes[:, 1:], curvature[:, 1:, 1:]
    return losses, slopes, curvature
