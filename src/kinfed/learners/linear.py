r"""Linear models: penalties as ratios of variances, and what a learner adds so that `kinfed.priors` can use it.

Penalties with the value "auto" are found by rows held out, each method its own: learning alone and one common model
combine several (the members `LOCAL` and `COMMON` of `kinfed.priors.family`), models on a rule's weights take one
`VarianceRatio` for the federation (`kinfed.methods.tuning`). Stacked priors need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Question, TrainingSpec
from kinfed.federation import Agent
from kinfed.learners.base import Models
from kinfed.learners.inputs import own_columns, two_classes
from kinfed.learners.quadratics import HomeLearner, Quadratics
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

    def second_expansion(self, prior: Callable[[], tuple[Array, Array]]) -> Question[Quadratics] | None:
        """What to ask once a prior of everybody's coefficients is known; None where the first answers are exact.

        `prior` finds their mean and variances, (p,) each.
        """

    def own_sums(self, own: Agent, spec: TrainingSpec) -> tuple[Array, Array, float]:
        """Curvature (p, p) and slope (p,) of the sum of the rows' losses, and the sum of squares of their outcomes."""

    def posterior_modes(
        self, parts: Sequence[Agent], centres: Array, spread: Array, start: Array, spec: TrainingSpec
    ) -> Array:
        """Most probable coefficients (T, M, p) of parts of rows under normal priors about `centres` (T, M, p).

        `spread` (M, p, p) has their covariances; `start` is what second moments alone make of them.
        """

    def mode_covariances(
        self, parts: Sequence[Agent], modes: Array, spread: Array, given: Array, spec: TrainingSpec
    ) -> Array:
        """Covariances (T, M, p, p) about the modes (T, M, p); `given` is what second moments alone make of them."""

    def linear_models(
        self, coefficients: Array, shares: Array, spec: TrainingSpec, covariance: Array | None, noise: Array | None
    ) -> Models:
        """Models whose predictions are mixed, by shares (T, M), from those of coefficients (T, M, p).

        Parameters
        ----------
        coefficients, shares : arrays of shape (T, M, p) and (T, M)
        spec : TrainingSpec
        covariance : array of shape (T, p, p), optional
            Of the mean coefficients, within members and between them.
        noise : array of shape (T,), optional
            Variances of an outcome about what is predicted.
        """


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


def class_losses(scores: Array) -> Array:
    """Log losses (..., C) of every class at scores (..., K), of which one alone is that of the second of two classes."""
    full = scores
    if scores.shape[-1] == 1:
        full = np.concatenate([np.zeros_like(scores), scores], axis=-1)
    shifted = full - full.max(axis=-1, keepdims=True)
    return np.minimum(np.log(np.exp(shifted).sum(axis=-1, keepdims=True)) - shifted, MOST_LOSS)


def mixed_losses(scores: Array, shares: Array) -> Array:
    """Log losses (n, C) of every class where the probabilities of M members, by their scores (n, M, K), are mixed."""
    return np.asarray(-np.log(np.einsum("nmc,m->nc", np.exp(-class_losses(scores)), shares)))
