"""The penalised log loss of points that never meet: one evaluation is one exchange."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places
from kinfed.checkpoint import Counter, Kept, Store
from kinfed.errors import KinfedError
from kinfed.learners.derivatives import ClassCounts, ClassMoments, Derivatives, Overview
from kinfed.learners.inputs import renormalised, rows_heard
from kinfed.learners.softmax import (
    coefficient_penalties,
    curvature_bound,
    definite_hessian,
    frequency_start,
    measured_from,
)
from kinfed.validation import Array


class RiskChangedError(Exception):
    """Some agent did not answer: the risk is another one from now on, and its minimisation must start again."""


class DistributedRisk:
    r"""Penalised log losses of T models, of agents who answer for their own points.

    It remembers the last point at which each model was evaluated, so that only models that move are sent. An agent that
    does not answer once is out: rows are divided by their sums over the others, and a row that loses its last agent stays
    as it is. A row none of whose agents has told its class counts gets the weights of a grand mean, proportional to the
    sizes of those who have.

    Parameters
    ----------
    agents : Agents
    rows : array of shape (T, B)
        The weights.
    penalty : float
    intercept : bool
    second : bool
        Whether agents are asked for second derivatives too.
    store : Store
        What is known is kept there after every exchange, and taken from there.
    counter : Counter
        Is told how many models do not move any more.

    Attributes
    ----------
    hessians : {"cheap", "none"}
        Whether second derivatives come with the values.
    centres : array of shape (T, d)
        What each model measures x from; zero without intercepts.
    left : array of bool of shape (B,)
        Agents that have answered whenever they were asked.
    present : array of bool of shape (T, C)
        The classes each model knows.
    best : array of shape (T, K, p)
        Where each model had its least value so far: from there a minimisation starts again.
    """

    def __init__(
        self, agents: Agents, rows: Array, penalty: Array, intercept: bool, second: bool, store: Store, counter: Counter
    ) -> None:
        self._agents, self._store, self._counter = agents, store, counter
        self._penalty, self._dim, self._intercept = penalty, agents.spec.dim, intercept
        self.hessians: Literal["cheap", "none"] = "cheap" if second else "none"
        self._overview = overview = self._first_exchange(rows)
        self._rows = rows_heard(rows, overview.answered, agents.spec.sizes)
        sizes = np.maximum(overview.counts.sum(axis=1), 1)
        inside = (self._rows > 0) * sizes
        self.centres = (inside / inside.sum(axis=1, keepdims=True)) @ overview.mean * float(intercept)
        self._exchanges = 0
        self.left = overview.answered
        self._listen_to_those_left()
        self.best = frequency_start((self._rows / sizes) @ overview.counts, self.present, self._dim, intercept)
        self.shape = count, classes, columns = len(rows), self.best.shape[1], self.best.shape[2]
        self._theta = np.full(self.shape, np.nan)
        self._value, self._gradient, self._least = np.zeros(count), np.zeros(self.shape), np.full(count, np.inf)
        self._hessian = np.zeros((count if second else 0, classes, classes, columns, columns))
        kept = store.load("descent")
        if kept is not None:
            self._lose(self.left & ~kept.arrays["left"])
            self.best = kept.arrays["best"]

    @property
    def stranded(self) -> NDArray[np.bool_]:
        """Models that have nobody left to listen to (T,); they stay where they are."""
        return np.asarray(~(self._rows[:, self.left] > 0).any(axis=1))

    def start_from(self, coefficients: Array) -> None:
        """Begin at slopes and intercepts (T, K, d + 1) for x measured from zero, unless it has begun before."""
        if self._store.load("descent") is None:
            theta = measured_from(coefficients, self.centres)[..., : self.shape[2]]
            self.best = self._without_absent_classes(theta, self.present)

    def value_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Values and gradients at theta (T, K, p): one exchange, about the models that moved since the last one."""
        self._evaluate(theta, np.flatnonzero(self._listening))
        shrunk = self.penalties[:, None, :] * theta
        value = np.where(self._listening, self._value + np.einsum("tkp,tkp->t", theta, shrunk), 0.0)
        return value, np.where(self._listening[:, None, None], self._gradient + 2 * shrunk, 0.0)

    def hessian(self, theta: Array, rows: Places) -> Array:
        """Positive definite Hessians of the models `rows`; they came with the values, so that this is no exchange."""
        self._evaluate(theta, rows)
        return definite_hessian(self._hessian[rows], self.penalties[rows], self.present[rows])

    def bound(self) -> Array:
        """See `kinfed.learners.softmax.curvature_bound`; from the covariances agents told at first."""
        count, classes, columns = self.shape
        second, inner = np.zeros((count, columns, columns)), slice(0, self._dim)
        for row, weights in enumerate(self.weights):
            apart = self._apart(row)
            second[row] = (weights * apart.T) @ apart
            second[row, inner, inner] += np.tensordot(weights, self._overview.second, 1)
        return curvature_bound(second, self.penalties, classes)

    def bound_diagonal(self) -> Array:
        """The diagonals of `bound`, of shape (T, p)."""
        second, told = np.zeros(self.penalties.shape), self._overview.second
        variances = told if told.ndim == 2 else np.diagonal(told, axis1=1, axis2=2)
        for row, weights in enumerate(self.weights):
            second[row] = weights @ self._apart(row) ** 2
            second[row, : self._dim] += weights @ variances
        return curvature_bound(second, self.penalties, self.shape[1])

    def _first_exchange(self, rows: Array) -> Overview:
        """Class counts and moments of x, kept as soon as somebody has told them."""
        kept = self._store.load("overview")
        if kept is not None:
            return Overview(**kept.arrays)
        used = tuple(np.flatnonzero((rows > 0).any(axis=0)).tolist())
        overview = self._agents.ask(ClassCounts(used) if self.hessians == "cheap" else ClassMoments(used))
        if overview.answered.any():
            self._store.save("overview", Kept(arrays=vars(overview)))
        return overview

    def _evaluate(self, theta: Array, rows: Places) -> None:
        """Ask about those of the models `rows` that moved; if somebody is silent, go on without and raise."""
        rows = rows[(theta[rows] != self._theta[rows]).any(axis=(1, 2))]
        if len(rows) == 0:
            return
        told = self._agents.ask(
            Derivatives(
                theta[rows],
                self.weights[rows],
                self.centres[rows],
                self.present[rows],
                self._overview,
                self.hessians == "cheap",
            )
        )
        self._exchanges += 1
        heard = rows[told.complete]
        self._theta[heard], self._value[heard] = theta[heard], told.value[told.complete]
        self._gradient[heard] = told.gradient[told.complete]
        if told.hessian is not None:
            self._hessian[heard] = told.hessian[told.complete]
        value = self._value[heard] + np.einsum("tkp,tp->t", theta[heard] ** 2, self.penalties[heard])
        # As in the line search: near the minimum a step may gain less than the rounding of the value.
        better = value <= self._least[heard] + 16 * np.finfo(float).eps * (1.0 + np.abs(value))
        self.best[heard[better]], self._least[heard[better]] = theta[heard[better]], value[better]
        self._lose(told.silent)
        self._store.save("descent", Kept(arrays={"left": self.left, "best": self.best}))
        self._counter.reach(len(theta) - len(rows))
        if told.silent.any():
            raise RiskChangedError

    def _lose(self, gone: NDArray[np.bool_]) -> None:
        """Go on without these agents."""
        if not gone.any():
            return
        if not (self.left & ~gone).any():
            raise KinfedError(
                f"no agent answers any more, after {self._exchanges} exchanges; see whether they run, and start the "
                "training again: with the same checkpoint it goes on from here"
            )
        affected = (self.weights[:, gone] > 0).any(axis=1)
        self.left = self.left & ~gone
        self._theta[affected], self._least[affected] = np.nan, np.inf
        self._listen_to_those_left()
        settled = affected & ~self.stranded
        self.best[settled] = self._without_absent_classes(self.best[settled], self.present[settled])

    def _listen_to_those_left(self) -> None:
        """Weights, classes and penalties over the agents that are left."""
        self.weights = renormalised(self._rows, self.left)
        # A model that has lost all its agents keeps the classes it had.
        supports = np.where(self.stranded[:, None], self._rows, self.weights) > 0
        self.present = supports @ (self._overview.counts > 0)
        # One class is a constant: there is nothing to learn.
        self._listening = ~self.stranded & (self.present.sum(axis=1) > 1)
        self.penalties = coefficient_penalties(self._penalty, self.present, self._dim, self._dim + self._intercept)

    def _without_absent_classes(self, theta: Array, present: NDArray[np.bool_]) -> Array:
        """Coefficients zero for classes that are gone, and for a class that is alone; intercepts on the level zero."""
        several = present.sum(axis=1) > 1
        if self.shape[1] == 1:
            return theta * several[:, None, None]
        known = (present & several[:, None])[:, :, None]
        theta = np.where(known, theta, 0.0)
        if self._intercept:
            level = theta[..., -1:].sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
            theta[..., -1:] -= np.where(known, level, 0.0)
        return theta

    def _apart(self, row: int) -> Array:
        """The agents' means as seen from a model's centre, (B, d), with a column of ones for its intercept."""
        apart = self._overview.mean - self.centres[row]
        return np.hstack([apart, np.ones((len(apart), int(self._intercept)))])
