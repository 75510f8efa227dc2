r"""Linear models under priors of their coefficients: what a learner adds so that `kinfed.priors` can use it.

Penalties with the value "auto" are found by rows held out: learning alone and one common model combine several (the members
`LOCAL` and `COMMON` of `kinfed.priors.family`), each its own. Stacked priors need none.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Where no method has found one."""
MOST_LOSS = float(-np.log(1e-6))
"""The most that one row can lose: probabilities are taken to be at least 1e-6."""


@runtime_checkable
class PriorLearner(HomeLearner, Protocol):
    """A learner whose models have p coefficients, of which others may know something before."""

    @property
    def penalty(self) -> float | str:
        """A number, or "auto"."""

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
    """P."""
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
