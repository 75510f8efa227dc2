r"""The penalised log loss of points that never meet: one evaluation is one exchange.

Every agent measures x from its own mean :math:`\bar x_k`, every model from a centre :math:`c_t` of its own, so that a large
offset costs no digits on either side. With :math:`\delta = \bar x_k - c_t` the same model has the intercept
:math:`b + a'\delta` for the agent, and a derivative after (x, 1) as the agent sees it becomes the model's by adding
:math:`\delta` times its last entry to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import KinfedError
from kinfed.learners.remote.base import Arrays, Ask, Question
from kinfed.learners.remote.checks import renormalised
from kinfed.learners.softmax import coefficient_penalties, definite_hessian, frequency_intercepts

Array = NDArray[np.float64]

Keep = Callable[["DistributedRisk", int], None]
"""Called after every exchange, with the number of models that were evaluated in it."""


class AgentsLostError(Exception):
    """Some agent did not answer: the risk is another one from now on, and its minimisation must start again."""


@dataclass(frozen=True, eq=False)
class Overview:
    """What agents told in the first exchange; all zero for those who did not.

    Attributes
    ----------
    counts : array of int of shape (B, C)
        Points of each class.
    mean : array of shape (B, d)
        Mean of x.
    second : array of shape (B, d, d) or (B, d), or None
        Covariance of x with divisor n, or its diagonal, where the curvature has to be bounded.
    """

    counts: NDArray[np.int64]
    mean: Array
    second: Array | None = None

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Who told something."""
        return np.asarray(self.counts.any(axis=1))


class DistributedRisk:
    r"""Penalised log losses of T models, of agents who answer for their own points.

    It remembers the last point at which each model was evaluated, so that only models that move are sent.

    Parameters
    ----------
    ask : Ask
    overview : Overview
    rows : array of shape (T, B)
        The weights, zero for agents that have told nothing.
    penalty : float
    intercept : bool
    hessians : bool
        Whether agents are asked for second derivatives too.
    keep : callable, optional

    Attributes
    ----------
    left : array of bool of shape (B,)
        Agents that have answered whenever they were asked.
    present : array of bool of shape (T, C)
        The classes each model knows.
    best : array of shape (T, K, p)
        Where each model had its least value so far: from there a minimisation starts again.
    """

    def __init__(
        self,
        ask: Ask,
        overview: Overview,
        rows: Array,
        penalty: float,
        intercept: bool,
        hessians: bool,
        keep: Keep | None = None,
    ) -> None:
        self._ask, self._overview, self._rows, self._keep = ask, overview, rows, keep
        self._penalty, self._intercept, self._hessians = penalty, intercept, hessians
        self._exchanges = 0
        count, (n_classes, dim) = len(rows), (overview.counts.shape[1], overview.mean.shape[1])
        self._dim = dim
        self.shape = (count, 1 if n_classes == 2 else n_classes, dim + intercept)
        sizes = np.maximum(overview.counts.sum(axis=1), 1)
        inside = (rows > 0) * sizes
        self.centres = (inside / inside.sum(axis=1, keepdims=True)) @ overview.mean * float(intercept)
        self.left = overview.answered
        self.best = np.zeros(self.shape)
        self._theta = np.full(self.shape, np.nan)
        self._value, self._gradient = np.zeros(count), np.zeros(self.shape)
        size = self.shape[1] * self.shape[2]
        self._hessian = np.zeros((count if hessians else 0, size, size))
        self._least = np.full(count, np.inf)
        self._listen_to_those_left()
        if intercept:
            self.best[..., -1] = frequency_intercepts((rows / sizes) @ overview.counts, self.present)

    @property
    def stranded(self) -> NDArray[np.bool_]:
        """Models that have nobody left to listen to (T,); they stay where they are."""
        return np.asarray(~(self._rows[:, self.left] > 0).any(axis=1))

    def lose(self, places: Iterable[int]) -> None:
        """Go on without these agents: rows are divided by their sums over the others."""
        gone = np.isin(np.arange(len(self.left)), list(places))
        if not (self.left & ~gone).any():
            raise KinfedError(
                f"no agent answers any more, after {self._exchanges} exchanges; see whether they run, and start the "
                "training again: with the same memory it goes on from here"
            )
        affected = (self.weights[:, gone] > 0).any(axis=1)
        self.left = self.left & ~gone
        self._theta[affected], self._least[affected] = np.nan, np.inf
        self._listen_to_those_left()
        settled = affected & ~self.stranded
        self.best[settled] = self._without_absent_classes(self.best[settled], self.present[settled])

    def value_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Values and gradients at theta (T, K, p): one exchange, about the models that moved since the last one."""
        moved = self._listening & (theta != self._theta).any(axis=(1, 2))
        if moved.any():
            self._exchange(theta, np.flatnonzero(moved))
        shrunk = self.penalties[:, None, :] * theta
        idle = ~self._listening
        value = self._value + np.einsum("tkp,tkp->t", theta, shrunk)
        gradient = self._gradient + 2 * shrunk
        value[idle], gradient[idle] = 0.0, 0.0
        return value, gradient

    def hessian(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Positive definite Hessians of the models `rows`; they came with the values, so that this is no exchange."""
        moved = rows[(theta[rows] != self._theta[rows]).any(axis=(1, 2))]
        if len(moved):
            self._exchange(theta, moved)
        _, classes, columns = self.shape
        blocks = self._hessian[rows].reshape(len(rows), classes, columns, classes, columns).swapaxes(2, 3)
        return definite_hessian(blocks.copy(), self.penalties[rows], self.present[rows])

    def bound(self) -> Array:
        """See `kinfed.learners.softmax.SoftmaxRisk.bound`; from the covariances agents told at first."""
        count, classes, columns = self.shape
        second = np.zeros((count, columns, columns))
        covariance = self._second().reshape(len(self.left), -1)
        inner = slice(0, self._dim)
        for row, weights in enumerate(self.weights):
            apart = self._overview.mean - self.centres[row]
            second[row, inner, inner] = (weights @ covariance).reshape(self._dim, -1) + (weights * apart.T) @ apart
            if self._intercept:
                second[row, inner, -1] = second[row, -1, inner] = weights @ apart
                second[row, -1, -1] = weights.sum()
        second *= 0.25 if classes == 1 else 0.5
        second[:, np.arange(columns), np.arange(columns)] += 2 * self.penalties
        return second

    def bound_diagonal(self) -> Array:
        """The diagonals of `bound`, of shape (T, p)."""
        variance = self._second()
        second = np.zeros((self.shape[0], self.shape[2]))
        for row, weights in enumerate(self.weights):
            second[row, : self._dim] = weights @ (variance + (self._overview.mean - self.centres[row]) ** 2)
            if self._intercept:
                second[row, -1] = weights.sum()
        return second * (0.25 if self.shape[1] == 1 else 0.5) + 2 * self.penalties

    def coefficients(self, theta: Array) -> Array:
        """Slopes and intercepts (T, K, d + 1) for x measured from zero."""
        slopes = theta[..., : self._dim]
        constant = np.zeros((*theta.shape[:2], 1))
        if self._intercept:
            constant = theta[..., -1:] - slopes @ self.centres[..., None]
        return np.concatenate([slopes, constant], axis=2)

    def _listen_to_those_left(self) -> None:
        """Weights, classes and penalties over the agents that are left."""
        self.weights = renormalised(self._rows, self.left)
        # A model that has lost all its agents keeps the classes it had.
        supports = np.where(self.stranded[:, None], self._rows, self.weights) > 0
        self.present = supports @ (self._overview.counts > 0)
        # One class is a constant: there is nothing to learn.
        self._listening = ~self.stranded & (self.present.sum(axis=1) > 1)
        self.penalties = coefficient_penalties(self._penalty, self.present, self._dim, self.shape[2])

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

    def _exchange(self, theta: Array, rows: NDArray[np.int64]) -> None:
        """Ask about the models `rows`; if somebody is silent, leave them out and raise `AgentsLostError`."""
        listeners = {
            int(place): rows[self.weights[rows, place] > 0]
            for place in np.flatnonzero((self.weights[rows] > 0).any(axis=0))
        }
        questions = {place: self._question(theta[own], own, place) for place, own in listeners.items()}
        answers = self._ask(questions)
        self._exchanges += 1
        silent = [place for place in listeners if place not in answers]
        complete = rows[~(self.weights[rows][:, silent] > 0).any(axis=1)]
        self._sum(theta, complete, listeners, answers)
        if silent:
            self.lose(silent)
        if self._keep is not None:
            self._keep(self, len(rows))
        if silent:
            raise AgentsLostError

    def _question(self, theta: Array, rows: NDArray[np.int64], place: int) -> Question:
        sent = theta.copy()
        if self._intercept:
            sent[..., -1] += (sent[..., :-1] @ self._apart(rows, place)[:, :, None])[..., 0]
        arrays: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = {"theta": sent}
        if self.shape[1] > 1:
            arrays["present"] = self.present[rows]
        settings = {"step": "derivatives", "hessian": self._hessians, "exchange": self._exchanges}
        return Question(settings, arrays)

    def _sum(
        self,
        theta: Array,
        rows: NDArray[np.int64],
        listeners: Mapping[int, NDArray[np.int64]],
        answers: Mapping[int, Arrays],
    ) -> None:
        """Weighted sums of what was answered about the models `rows`, by the order of agents."""
        self._theta[rows], self._value[rows], self._gradient[rows] = theta[rows], 0.0, 0.0
        if self._hessians:
            self._hessian[rows] = 0.0
        for place in sorted(answers):
            asked = listeners[place]
            chosen = np.isin(asked, rows)
            own = asked[chosen]
            weights, apart = self.weights[own, place], self._apart(own, place)
            answer = answers[place]
            self._value[own] += weights * answer["value"][chosen]
            gradient = answer["gradient"][chosen]
            if self._intercept:
                gradient[..., :-1] += apart[:, None, :] * gradient[..., -1:]
            self._gradient[own] += weights[:, None, None] * gradient
            if self._hessians:
                self._hessian[own] += weights[:, None, None] * self._shifted(answer["hessian"][chosen], apart)
        value = self._value[rows] + np.einsum("tkp,tp->t", theta[rows] ** 2, self.penalties[rows])
        # As in the line search: near the minimum a step may gain less than the rounding of the value.
        better = value <= self._least[rows] + 16 * np.finfo(float).eps * (1.0 + np.abs(value))
        self.best[rows[better]], self._least[rows[better]] = theta[rows[better]], value[better]

    def _shifted(self, hessian: Array, apart: Array) -> Array:
        """Hessians (R, K p, K p) about the agent's mean, about the models' centres."""
        if not self._intercept:
            return hessian
        _, classes, columns = self.shape
        blocks = hessian.reshape(len(hessian), classes, columns, classes, columns)
        blocks[:, :, :-1] += apart[:, None, :, None, None] * blocks[:, :, -1:]
        blocks[..., :-1] += apart[:, None, None, None, :] * blocks[..., -1:]
        return blocks.reshape(hessian.shape)

    def _apart(self, rows: NDArray[np.int64], place: int) -> Array:
        """The agent's mean as seen from the models' centres, (rows, d)."""
        return np.asarray(self._overview.mean[place] - self.centres[rows])

    def _second(self) -> Array:
        if self._overview.second is None:
            raise AssertionError("a bound needs second moments, which were not asked for")
        return self._overview.second
