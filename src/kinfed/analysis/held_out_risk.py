r"""The corollary's bound on real data, beside losses on rows that neither weights nor models have seen.

The truth is not known here, so both sides of the corollary (`kinfed.analysis.excess_risk`) are estimated, from the same
folds. Every agent sets a part of its rows aside; the rest A gives weights w, mixtures
:math:`\hat\mu_t = \sum_k w_{tk} \nu^A_k` and ridge models. With :math:`\bar\nu_t` the mean embedding of the rows that agent
t has set aside,

.. math:: u_t = s^A_t + |\hat\mu_t - \nu^A_t|^2 + 2 \langle \hat\mu_t - \nu^A_t, \nu^A_t - \bar\nu_t \rangle

has expectation :math:`E |\hat\mu_t - \mu_t|^2`, whatever the rule and however it looked at A. By Jensen's inequality the
mean excess risk over agents is at most :math:`2 (1 + r^2)` times the root of the mean of u, plus :math:`\lambda r^2`.

**The ball.** Over all linear models :math:`R_\Theta` is infinite. Here r is the largest norm of a model that was trained,
and the excess risk is that over the best model of the ball :math:`|\theta| \le r`, in which the trained models are
minimisers too. With a ball :math:`|\theta| \le |\hat\theta|` of its own for every model, Cauchy and Schwarz give

.. math:: 2 \sqrt{ E (1 + |\hat\theta|^2)^2 \; E |\hat\mu - \mu|^2 } + \lambda E |\hat\theta|^2 ,

in which nothing that is random is treated as fixed.

**How loose.** A model's excess risk is at most its risk, as no risk is negative; and at least what another model of the
ball does better. So the bound is at least bound / loss and at most bound / (loss - least loss) times the excess risk. Of
that difference two standard errors, over agents, are taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.analysis.excess_risk import augmented_moments, linear_risk, loss_norm, mixtures, ridge_models
from kinfed.backends.pooled import PooledAgents
from kinfed.learners.linear import USUAL_PENALTY
from kinfed.learners.ridge import Ridge
from kinfed.markup import card, listing, table
from kinfed.validation import Array, Integers

ALONE, TOGETHER = "local", "grand-mean"

_CLEAR = 2.0  # standard errors

LARGEST_MOMENTS = 2**23
"""Numbers of everybody's second moments up to which the bound is computed (64 MB)."""


@dataclass(frozen=True, eq=False)
class FoldRisk:
    """What one fold tells of one weight matrix, an entry per agent; NaN for agents that set nothing aside."""

    set_aside: Integers
    loss: Array
    squared_mmd: Array
    squared_norm: Array


@dataclass(frozen=True, eq=False)
class HeldOutRisk:
    r"""Bounds on the excess risk of ridge beside its loss on rows set aside; an entry per weight matrix, means over agents.

    Everything but `squared_mmd`, `radius` and the factors of looseness is in units of the loss. Models have seen (K - 1)/K
    of the rows.

    Attributes
    ----------
    methods : tuple of str
        Learning alone, the grand mean, and the rule.
    loss : array of shape (M,)
        Mean squared error on rows set aside.
    worse : array of shape (M,)
        How much more that is, at least, than the least of them: the mean difference less two standard errors.
    squared_mmd : array of shape (M,)
        Estimate of :math:`E |\hat\mu - \mu|^2` for standardised columns and outcome; can be negative by chance.
    radius : float
        r.
    corollary : array of shape (M,)
        :math:`2 (1 + r^2) \sqrt{u} + \lambda r^2`; NaN where the estimate u is negative.
    own_balls : array of shape (M,)
        The bound with a ball for every model.
    dim : int
        Columns d.
    """

    methods: tuple[str, ...]
    loss: Array
    worse: Array
    squared_mmd: Array
    radius: float
    corollary: Array
    own_balls: Array
    dim: int

    @property
    def gain(self) -> Array:
        """What is saved of the loss of learning alone: measured, and no bound."""
        return np.asarray(self.loss[0] - self.loss)

    @property
    def loose_at_least(self) -> Array:
        """Times the corollary's bound is above the excess risk, at least; above 1 the bound says nothing."""
        return np.asarray(self.corollary / np.where(self.loss > 0, self.loss, np.nan))

    @property
    def loose_at_most(self) -> Array:
        """Times it is above the excess risk at most; infinite where the loss is not clearly above the least one."""
        return np.where(self.worse > 0, self.corollary / np.where(self.worse > 0, self.worse, 1.0), np.inf)

    def to_frame(self) -> pandas.DataFrame:
        """A row per weight matrix."""
        columns = {
            "corollary": self.corollary,
            "own_balls": self.own_balls,
            "loss": self.loss,
            "gain": self.gain,
            "loose_at_least": self.loose_at_least,
            "loose_at_most": self.loose_at_most,
            "squared_mmd": self.squared_mmd,
        }
        return pandas.DataFrame(columns, index=pandas.Index(self.methods, name="weights"))

    def __str__(self) -> str:
        rule, told = self.methods[-1], self.corollary[[0, -1]]
        if np.isnan(told).any():
            return "the distances between mixtures and agents are too noisy for the corollary's bound on the loss of ridge"
        vacuous = self.loose_at_least[-1] > 1
        verdict = "says nothing that is not known without it" if vacuous else "says something"
        return (
            f"by the corollary ridge loses at most {told[1]:.4g} to the best linear model of norm {self.radius:.3g} with "
            f"{rule}, and {told[0]:.4g} alone (mean squared errors); on rows set aside the whole losses are "
            f"{self.loss[-1]:.4g} and {self.loss[0]:.4g}, a gain of {self.gain[-1]:.4g}: the bound {verdict}, and is at "
            f"least {self.loose_at_least[-1]:.3g} times the excess risk"
        )

    def _repr_html_(self) -> str:
        return card("The corollary in loss units", listing([str(self)]), table(self.to_frame(), "Bounds and losses"))


@dataclass(frozen=True, eq=False)
class RidgeRows:
    r"""Rows of all agents, for ridge: columns and outcome standardised, so that neither rules the distance.

    Attributes
    ----------
    X, y : tuples of arrays of shapes (n_k, d) and (n_k,)
    penalty : float
        :math:`\lambda`.
    unit : float
        Variance that the outcome was divided by.
    """

    X: tuple[Array, ...]
    y: tuple[Array, ...]
    penalty: float
    unit: float = 1.0

    @cached_property
    def trace(self) -> Array:
        r""":math:`\mathrm{tr}\,\Sigma_k` of every agent in the space of the kernel; NaN for a single row."""
        found = []
        for rows, outcomes in zip(self.X, self.y, strict=True):
            diagonal = (np.sum(rows**2, axis=1) + 1 + outcomes**2) ** 2
            spread = diagonal.sum() - len(rows) * np.sum(augmented_moments(rows, outcomes) ** 2)
            found.append(max(float(spread), 0.0) / (len(rows) - 1) if len(rows) > 1 else np.nan)
        return np.array(found)

    def fold(self, aside: Sequence[NDArray[np.bool_]], weights: Array) -> tuple[FoldRisk, ...]:
        """What a fold tells of learning alone, of the grand mean, and of the weights (B, B) of the rows that are left."""
        kept, held = (self._moments(part) for part in ([~out for out in aside], aside))
        sizes, counts = (np.array([part.sum() for part in parts]) for parts in ([~out for out in aside], aside))
        count = len(sizes)
        matrices = (np.eye(count), np.tile(sizes / sizes.sum(), (count, 1)), weights)
        return tuple(fold_risk(kept, held, counts, self.trace / sizes, matrix, self.penalty) for matrix in matrices)

    def _moments(self, chosen: Sequence[NDArray[np.bool_]]) -> Array:
        return np.array([augmented_moments(X[own], y[own]) for X, y, own in zip(self.X, self.y, chosen, strict=True)])


def ridge_rows(agents: PooledAgents) -> RidgeRows | None:
    """The rows of agents whose learner is ridge with an intercept; None for others, and for too many numbers."""
    learner, outcome = agents.learner, None if agents.preparation is None else agents.preparation.outcome
    if not isinstance(learner, Ridge) or not learner.intercept or outcome is None:
        return None
    rows = agents.rows
    if len(rows) * (rows.dim + 2) ** 2 > LARGEST_MOMENTS or any(one.weight is not None for one in rows):
        return None
    scale = outcome.scale if outcome.scale > 0 else 1.0
    return RidgeRows(
        tuple(np.asarray(one.X, dtype=np.float64) for one in rows),
        tuple((np.asarray(one.y, dtype=np.float64) - outcome.mean) / scale for one in rows),
        learner.penalty if isinstance(learner.penalty, float | int) else USUAL_PENALTY,
        scale**2,
    )


def fold_risk(kept: Array, held: Array, set_aside: Integers, variance: Array, weights: Array, penalty: float) -> FoldRisk:
    """Losses and distances under one weight matrix.

    Parameters
    ----------
    kept, held : arrays of shape (B, d + 2, d + 2)
        Second moments of every agent's rows that are left, and of those it has set aside.
    set_aside : array of shape (B,)
        How many those are.
    variance : array of shape (B,)
        :math:`s^A_k`, the expected squared errors of the mean embeddings of the rows that are left.
    weights : array of shape (B, B)
    penalty : float
    """
    mixed = mixtures(weights, kept)
    models = ridge_models(mixed, penalty)
    shift = mixed - kept
    squared = variance + np.sum(shift**2, axis=(1, 2)) + 2 * np.sum(shift * (kept - held), axis=(1, 2))
    unknown = set_aside == 0
    return FoldRisk(
        set_aside=set_aside,
        loss=np.where(unknown, np.nan, linear_risk(models, held)),
        squared_mmd=np.where(unknown, np.nan, squared),
        squared_norm=loss_norm(models) - 1,
    )


def held_out_risk(methods: Sequence[str], folds: Sequence[Sequence[FoldRisk]], rows: RidgeRows) -> HeldOutRisk | None:
    """All folds of every weight matrix together; None if no agent has set rows aside.

    Parameters
    ----------
    methods : sequence of str
        Learning alone first.
    folds : for every weight matrix, one FoldRisk per fold
    rows : RidgeRows
        What the folds are of.
    """
    penalty, unit = rows.penalty, rows.unit
    counts = np.array([one.set_aside for one in folds[0]])
    measured = counts.sum(axis=0) > 0
    if not measured.any():
        return None

    shares = counts[:, measured] / counts[:, measured].sum(axis=0)

    def by_agent(value: Callable[[FoldRisk], Array]) -> Array:
        """Means (M, agents) over every agent's rows."""
        values = np.array([[value(one)[measured] for one in every] for every in folds])
        return np.asarray(np.sum(np.where(shares > 0, values, 0.0) * shares, axis=1))

    losses = by_agent(lambda one: one.loss)
    squared = by_agent(lambda one: one.squared_mmd).mean(axis=1)
    fourth = by_agent(lambda one: (1 + one.squared_norm) ** 2).mean(axis=1)
    second = by_agent(lambda one: one.squared_norm).mean(axis=1)
    loss = losses.mean(axis=1)
    apart = losses - losses[loss.argmin()]
    error = apart.std(axis=1, ddof=1) / np.sqrt(apart.shape[1]) if apart.shape[1] > 1 else np.full(len(loss), np.inf)
    largest = float(max(one.squared_norm.max() for every in folds for one in every))
    distance = np.sqrt(np.where(squared >= 0, squared, np.nan))
    return HeldOutRisk(
        methods=tuple(methods),
        loss=unit * loss,
        worse=unit * np.maximum(apart.mean(axis=1) - _CLEAR * error, 0.0),
        squared_mmd=squared,
        radius=float(np.sqrt(largest)),
        corollary=unit * (2 * (1 + largest) * distance + penalty * largest),
        own_balls=unit * (2 * np.sqrt(fourth) * distance + penalty * second),
        dim=rows.X[0].shape[1],
    )
