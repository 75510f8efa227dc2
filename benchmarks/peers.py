"""What a statistician or a researcher of federated learning would fit instead: linear models of squared error or log loss.

Nothing here uses kinfed. Every peer is a function ``peer(train, test, choices, rng)`` that gives, for each choice of its
hyperparameters, the sum of every agent's test losses, an array of shape (choices, agents). `tuned` picks one choice for the
whole federation by five folds and fits once more with all training rows.

Penalties are ratios of variances: a model minimises the sum of its rows' losses, half the squared error or the log loss,
plus kappa / 2 times its squared length, so that what is best for four fifths of the rows suits all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray
Peer = Callable[["Rows", "Rows", Sequence[Any], np.random.Generator], Array]

FOLDS = 5
PENALTIES = tuple(round(float(10**exponent), 3) for exponent in np.arange(-1, 3.01, 0.5))
COMMON = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Penalties of models that many agents share."""
FREE = 1e-3
"""Penalty of intercepts: next to nothing, but models exist where an agent has seen one class only."""
STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 200)
STARTS, ROUNDS = 6, 25
"""Random starts of peers that look for clusters, and rounds of each."""
FLOOR = 1e-5
"""Added to variances of coefficients, which are of standardised columns, so that none is zero."""
TOLERANCE = 1e-5
"""Newton's method stops once no coefficient moves by more."""
CAP = -np.log(1e-6)
"""Most that a row can cost in log loss, as kinfed counts it: a class a model takes to be impossible."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all agents, one below the other.

    Attributes
    ----------
    X : array of shape (N, p)
        Standardised columns, and a last column of ones.
    y : array of shape (N,)
        Numbers, or codes 0, 1, ... of classes.
    agent : array of shape (N,)
        Whose row it is, in ascending order.
    n_agents : int
    classes : int
        Number of classes; 0 for regression.
    """

    X: Array
    y: Array
    agent: Array
    n_agents: int
    classes: int = 0

    @property
    def outputs(self) -> int:
        """Columns of coefficients: one for numbers and for two classes, else one for each class."""
        return 1 if self.classes < 3 else self.classes

    @property
    def length(self) -> int:
        """Coefficients of a model."""
        return self.X.shape[1] * self.outputs

    @cached_property
    def sizes(self) -> Array:
        return np.bincount(self.agent, minlength=self.n_agents)

    def part(self, chosen: Array) -> Rows:
        """Some of the rows."""
        return replace(self, X=self.X[chosen], y=self.y[chosen], agent=self.agent[chosen])

    def by_agent(self, values: Array) -> Array:
        """Sums over each agent's rows of the last axis."""
        ends = np.cumsum(self.sizes)
        sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
        return sums[..., ends] - sums[..., ends - self.sizes]

    @cached_property
    def places(self) -> Array:
        """Rows of each agent in a matrix (agents, most rows); those that are not there are -1."""
        there = np.arange(self.sizes.max()) < self.sizes[:, None]
        found = np.full(there.shape, -1)
        found[there] = np.arange(len(self.y))
        return found

    @cached_property
    def padded(self) -> tuple[Array, Array, Array]:
        """X (B, n, p), y (B, n), and whether a row is there (B, n)."""
        return self.X[self.places], self.y[self.places], (self.places >= 0).astype(float)

    @cached_property
    def moments(self) -> tuple[Array, Array, Array]:
        """X'X, X'y and y'y of each agent."""
        X, y, there = self.padded
        X, y = X * there[..., None], y * there
        return X.swapaxes(1, 2) @ X, (X.swapaxes(1, 2) @ y[..., None])[..., 0], (y**2).sum(axis=1)

    def free_intercept(self, kappa: float) -> Array:
        """Penalties of all coefficients."""
        weights = np.full((self.X.shape[1], self.outputs), float(kappa))
        weights[-1] = FREE
        return weights.ravel()

    def own_losses(self, theta: Array) -> Array:
        """Sums of the agents' losses, each under its own model (B, q)."""
        if not self.classes:
            S, r, yy = self.moments
            return yy - 2 * (theta * r).sum(axis=1) + np.einsum("kp,kpq,kq->k", theta, S, theta)
        X, y, there = self.padded
        return (there * np.minimum(log_losses(_linear(X, theta, self.outputs), y), CAP)).sum(axis=1)

    def row_losses(self, theta: Array) -> Array:
        """Losses of all rows under each model (M, q), of shape (M, N)."""
        scores = _linear(self.X[None], theta, self.outputs)
        return np.minimum(log_losses(scores, self.y[None]), CAP) if self.classes else (self.y - scores[..., 0]) ** 2

    def cross_losses(self, theta: Array) -> Array:
        """Sums of every agent's losses under each model (M, q), of shape (M, B)."""
        if self.classes:
            return self.by_agent(self.row_losses(theta))
        S, r, yy = self.moments
        outer = (theta[:, :, None] * theta[:, None, :]).reshape(len(theta), -1)
        return yy - 2 * theta @ r.T + outer @ S.reshape(len(S), -1).T

    def fit_own(self, penalty: Array, centre: Array, start: Array | None = None, steps: int = 50) -> Array:
        """A model for each agent from its rows; `penalty` is of every coefficient, or a matrix."""
        matrix = np.diag(penalty) if penalty.ndim == 1 else penalty
        centre = np.broadcast_to(centre, (self.n_agents, self.length))
        if not self.classes:
            S, r, _ = self.moments
            return np.linalg.solve(S + matrix, (r + centre @ matrix)[..., None])[..., 0]
        X, y, there = self.padded
        return newton(X, y, there, self.outputs, matrix, centre, centre if start is None else start, steps)

    def fit_agents(self, weights: Array, kappa: float, start: Array | None = None, steps: int = 50) -> Array:
        """A model for each row of weights (M, B): what each row of an agent counts."""
        penalty = self.free_intercept(kappa)
        if self.classes:
            return self.fit_rows(weights[:, self.agent], kappa, start, steps)
        S, r, _ = self.moments
        matrix = (weights @ S.reshape(len(S), -1)).reshape(-1, *S.shape[1:]) + np.diag(penalty)
        return np.linalg.solve(matrix, (weights @ r)[..., None])[..., 0]

    def fit_rows(self, weights: Array, kappa: float, start: Array | None = None, steps: int = 50) -> Array:
        """A model for each row of weights (M, N)."""
        penalty, found = self.free_intercept(kappa), []
        start = np.zeros((len(weights), self.length)) if start is None else start
        for w, theta in zip(weights, start, strict=True):
            used = w > 1e-9
            X, y, w = self.X[used], self.y[used], w[used]
            if self.classes:
                near = np.zeros((1, self.length))
                found.append(newton(X[None], y[None], w[None], self.outputs, np.diag(penalty), near, theta[None], steps)[0])
            else:
                Xw = X * w[:, None]
                found.append(np.linalg.solve(Xw.T @ X + np.diag(penalty), Xw.T @ y))
        return np.array(found)

    def common(self, kappa: float) -> Array:
        """One model of all rows."""
        return self.fit_agents(np.ones((1, self.n_agents)), kappa)[0]

    def expansion(self, theta: Array) -> tuple[Array, Array]:
        """Curvature H (B, q, q) of each agent's loss at its model, and H theta - gradient."""
        if not self.classes:
            return self.moments[:2]
        X, y, there = self.padded
        gradient, hessian = derivatives(X, y, there, self.outputs, theta)
        return hessian, (hessian @ theta[..., None])[..., 0] - gradient


def _linear(X: Array, theta: Array, outputs: int) -> Array:
    return X @ theta.reshape(*theta.shape[:-1], -1, outputs)


def probabilities(scores: Array) -> Array:
    """Of the classes that have coefficients."""
    if scores.shape[-1] == 1:
        return 0.5 * (1 + np.tanh(scores / 2))
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def log_losses(scores: Array, y: Array) -> Array:
    """Log losses of rows with linear scores (..., n, outputs)."""
    if scores.shape[-1] == 1:
        return np.logaddexp(0, np.where(y == 1, -1.0, 1.0) * scores[..., 0])
    top = scores.max(axis=-1)
    total = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))
    at = np.broadcast_to(y, scores.shape[:-1])[..., None].astype(int)
    return total - np.take_along_axis(scores, at, axis=-1)[..., 0]


def gradients(X: Array, y: Array, w: Array, outputs: int, theta: Array) -> tuple[Array, Array]:
    """Of the summed log losses of models theta (M, q), of shape (M, q); and probabilities."""
    P = probabilities(_linear(X, theta, outputs))
    truth = (y[..., None] == 1) if outputs == 1 else y[..., None] == np.arange(outputs)
    return (X.swapaxes(1, 2) @ (w[..., None] * (P - truth))).reshape(len(theta), -1), P


def derivatives(X: Array, y: Array, w: Array, outputs: int, theta: Array) -> tuple[Array, Array]:
    """Gradients and Hessians of the summed log losses."""
    gradient, P = gradients(X, y, w, outputs, theta)
    M, p = len(theta), X.shape[-1]
    hessian = np.empty((M, p, outputs, p, outputs))
    for i, j in product(range(outputs), repeat=2):
        bend = w * P[..., i] * ((i == j) - P[..., j])
        hessian[:, :, i, :, j] = (X * bend[..., None]).swapaxes(1, 2) @ X
    return gradient, hessian.reshape(M, p * outputs, -1)


def newton(X: Array, y: Array, w: Array, outputs: int, matrix: Array, centre: Array, start: Array, steps: int) -> Array:
    """Penalised logistic regressions, all at once: Newton's method, each model with step sizes of its own."""
    theta = np.array(start, dtype=float)
    moving = np.arange(len(theta))

    def objective(who: Array, at: Array) -> Array:
        away = at - centre[who]
        losses = w[who] * log_losses(_linear(X[who], at, outputs), y[who])
        return losses.sum(axis=1) + 0.5 * (away @ matrix * away).sum(axis=1)

    for _ in range(steps):
        gradient, hessian = derivatives(X[moving], y[moving], w[moving], outputs, theta[moving])
        gradient += (theta[moving] - centre[moving]) @ matrix
        step = np.linalg.solve(hessian + matrix, gradient[..., None])[..., 0]
        before, size, open_ = objective(moving, theta[moving]), np.ones(len(moving)), np.arange(len(moving))
        for _ in range(12):
            after = objective(moving[open_], theta[moving[open_]] - size[open_, None] * step[open_])
            open_ = open_[after > before[open_] + 1e-10]
            if not len(open_):
                break
            size[open_] /= 2
        size[open_] = 0  # no step is better than a bad one
        theta[moving] -= size[:, None] * step
        moving = moving[(np.abs(step).max(axis=1) > TOLERANCE) & (size > 0)]
        if not len(moving):
            break
    return theta


# The peers.


def local(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Everybody alone."""
    theta, found = None, []
    for kappa in choices:
        theta = train.fit_own(train.free_intercept(kappa), np.zeros(train.length), theta)
        found.append(test.own_losses(theta))
    return np.array(found)


def grand_mean(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """One model for all."""
    return np.array([test.cross_losses(train.common(kappa)[None])[0] for kappa in choices])


def weighted(train: Rows, test: Rows, choices: Sequence[Any], weights: Array) -> Array:
    """A model of everybody's rows for each agent; weights (B, B) of agents sum to one in each row.

    Rows count such that they sum to the number of rows that would vary as much, 1 / sum of w^2 / n, which makes the penalty
    comparable with that of a model of as many rows.
    """
    sizes = np.maximum(train.sizes, 1)
    counts = weights / sizes / (weights**2 / sizes).sum(axis=1, keepdims=True)
    theta, found = None, []
    for kappa in choices:
        theta = train.fit_agents(counts, kappa, theta)
        found.append(test.own_losses(theta))
    return np.array(found)


def ditto(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Own loss and the distance from the common model; choices are penalties of the common model and of the distance."""
    shared = {kappa: train.common(kappa) for kappa in {one for one, _ in choices}}
    theta: dict[float, Array] = {}
    found = []
    if not train.classes:
        values, vectors = np.linalg.eigh(train.moments[0])
    for common, kappa in choices:
        centre = shared[common]
        if train.classes:
            theta[common] = train.fit_own(np.full(train.length, kappa), centre, theta.get(common))
        else:
            turned = ((train.moments[1] + kappa * centre)[:, None] @ vectors)[:, 0] / (np.maximum(values, 0) + kappa)
            theta[common] = (vectors @ turned[..., None])[..., 0]
        found.append(test.own_losses(theta[common]))
    return np.array(found)


def fine_tuning(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Steps of gradient descent on own rows from the common model; choices are its penalty and the number of steps."""
    found = np.empty((len(choices), train.n_agents))
    X, y, there = train.padded
    XX = train.moments[0] if not train.classes else (X * there[..., None]).swapaxes(1, 2) @ X
    values, vectors = np.linalg.eigh(XX)
    values = np.maximum(values, 0)
    steepest = np.maximum(values[:, -1:], 1e-12)
    for common in {one for one, _ in choices}:
        start = np.broadcast_to(train.common(common), (train.n_agents, train.length))
        wanted = {steps: i for i, (one, steps) in enumerate(choices) if one == common}
        if not train.classes:
            slope = ((XX @ start[..., None])[..., 0] - train.moments[1])[:, None] @ vectors
            for steps, i in wanted.items():
                share = 1 - (1 - values / steepest) ** steps
                filtered = np.where(values > 1e-9 * steepest, share / np.maximum(values, 1e-300), steps / steepest)
                found[i] = test.own_losses(start - (vectors @ (filtered * slope[:, 0])[..., None])[..., 0])
            continue
        theta, bend = start.copy(), 0.25 if train.outputs == 1 else 0.5
        for steps in range(max(wanted) + 1):
            if steps in wanted:
                found[wanted[steps]] = test.own_losses(theta)
            theta -= gradients(X, y, there, train.outputs, theta)[0] / (bend * steepest)
    return found


def random_coefficients(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Coefficients that are normal over agents; a choice is whether their covariance is "diagonal" or "full"."""
    return np.array([test.own_losses(posterior_means(train, full=one == "full")[0]) for one in choices])


def posterior_means(train: Rows, *, full: bool, rounds: int = 500) -> tuple[Array, Array, Array, float]:
    """Maximum likelihood by EM: the agents' expected coefficients, their mean, their covariance, and the noise.

    The log loss is expanded about every agent's current coefficients, anew in each round (Laplace's approximation).
    """
    q, noise = train.length, 1.0 if train.classes else 0.5
    mean, covariance = train.common(1.0), np.eye(q) / q
    theta = np.broadcast_to(mean, (train.n_agents, q))
    for _ in range(rounds):
        precision, before = np.linalg.inv(covariance), theta
        if train.classes:  # two steps with a line search, from where it was
            theta = train.fit_own(precision, mean, theta, steps=2)
        H, b = train.expansion(theta)
        spread = np.linalg.inv(H / noise + precision)
        new = (spread @ (b / noise + precision @ mean)[..., None])[..., 0]
        new = theta if train.classes else new  # the mode is where the expansion is about
        mean = new.mean(axis=0)
        away = new - mean
        covariance = spread.mean(axis=0) + away.T @ away / len(away)
        covariance = (covariance if full else np.diag(np.diag(covariance))) + FLOOR * np.eye(q)
        if not train.classes:
            left = train.own_losses(new) + np.einsum("kpq,kqp->k", H, spread)
            noise = float(left.sum() / len(train.y))
        moved = np.sqrt(((new - before) ** 2).mean() / (new**2).mean())
        theta = new
        if moved < 1e-5:
            break
    return theta, mean, covariance, noise


def _first_assignment(train: Rows, K: int, rng: np.random.Generator, seeded: bool) -> Array:
    """Clusters to start with: random ones, or those of whichever of K random agents' models suits best."""
    if not seeded:
        return rng.integers(K, size=train.n_agents)
    chosen = rng.choice(train.n_agents, size=min(K, train.n_agents), replace=False)
    one_each = np.eye(train.n_agents)[chosen]
    return train.cross_losses(train.fit_agents(one_each, 10.0, steps=10)).argmin(axis=0)


def ifca(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Clusters of agents, each agent where its training loss is least; choices are their number and the penalty."""
    found = []
    for K, kappa in choices:
        best = (np.inf, None, None)
        for start in range(STARTS):
            label, theta = _first_assignment(train, K, rng, start % 2 == 1), np.zeros((K, train.length))
            for _ in range(ROUNDS):
                theta = train.fit_agents((label == np.arange(K)[:, None]).astype(float), kappa, theta, steps=3)
                losses = train.cross_losses(theta)
                before, label = label, losses.argmin(axis=0)
                if (label == before).all():
                    break
            total = losses.min(axis=0).sum()
            if total < best[0]:
                best = (total, theta, label)
        _, theta, label = best
        found.append(test.own_losses(theta[label]))
    return np.array(found)


def fedem(train: Rows, test: Rows, choices: Sequence[Any], rng: np.random.Generator) -> Array:
    """Mixtures of shared models with shares of each agent's own; choices are their number and the penalty."""
    found = []
    for K, kappa in choices:
        best = (-np.inf, None, None)
        for start in range(STARTS // 2):
            label = _first_assignment(train, K, rng, start % 2 == 1)
            mine = 0.1 / K + 0.9 * (label == np.arange(K)[:, None])
            theta, likelihood = np.zeros((K, train.length)), -np.inf
            part, shares = mine[:, train.agent], mine
            for _ in range(2 * ROUNDS):
                theta = train.fit_rows(part, kappa, theta, steps=2)
                losses, before = train.row_losses(theta), likelihood
                if not train.classes:  # a common variance of the noise
                    noise = (part * losses).sum() / part.sum()
                    losses = 0.5 * (losses / noise + np.log(noise))
                joint = np.log(shares[:, train.agent]) - losses
                row = np.logaddexp.reduce(joint, axis=0)
                part, likelihood = np.exp(joint - row), row.sum()
                shares = np.maximum(train.by_agent(part) / np.maximum(train.sizes, 1), 1e-6)
                if abs(likelihood - before) < 1e-4 * len(train.y):
                    break
            if likelihood > best[0]:
                best = (likelihood, theta, shares / shares.sum(axis=0))
        _, theta, shares = best
        mixing = shares[:, test.agent]
        if test.classes:
            values = -np.logaddexp.reduce(np.log(mixing) - test.row_losses(theta), axis=0)
        else:
            values = (test.y - (mixing * (test.X @ theta.T).T).sum(axis=0)) ** 2
        found.append(test.by_agent(values))
    return np.array(found)


PEERS: dict[str, tuple[Peer, list[Any]]] = {
    "local": (local, list(PENALTIES)),
    "grand mean": (grand_mean, list(PENALTIES)),
    "Ditto": (ditto, list(product(COMMON, PENALTIES))),
    "fine-tuning": (fine_tuning, list(product(COMMON, STEPS))),
    "random coefficients, diagonal": (random_coefficients, ["diagonal"]),
    "random coefficients, full": (random_coefficients, ["full"]),
    "IFCA": (ifca, list(product((2, 3, 5), COMMON))),
    "FedEM": (fedem, list(product((2, 3), COMMON))),
}


def deal(rows: Rows, rng: np.random.Generator) -> Array:
    """A fold for each row: every agent deals its own, without a look at the outcome, from a fold of its own on."""
    folds = np.empty(len(rows.y), dtype=int)
    for k in range(rows.n_agents):
        mine = np.flatnonzero(rows.agent == k)
        order = rng.permutation(mine)
        folds[order] = (rng.integers(FOLDS) + np.arange(len(mine))) % FOLDS
    return folds


def splits(rows: Rows, folds: Array) -> Iterator[tuple[Rows, Rows]]:
    """Rows to train on and rows that are held out, for each fold."""
    for fold in range(FOLDS):
        yield rows.part(folds != fold), rows.part(folds == fold)


def units(rows: Rows, folds: Array, rng: np.random.Generator) -> Array:
    """What an agent's losses are divided by: the mean of its own held-out loss, learning alone, and the median agent's."""
    sums = sum(local(own, held, PENALTIES, rng) for own, held in splits(rows, folds))
    means = sums[sums.sum(axis=1).argmin()] / np.maximum(rows.sizes, 1)
    return (means + np.median(means)) / 2


def chosen(scores: Sequence[Array], rows: Rows, unit: Array) -> int:
    """The best choice for the whole federation, from held-out sums (choices, agents) of each fold."""
    means = np.sum(scores, axis=0) / np.maximum(rows.sizes, 1)
    return int((means / unit).mean(axis=1).argmin())


def tuned(name: str, train: Rows, test: Rows, folds: Array, unit: Array, seed: int) -> tuple[Array, Any]:
    """Mean test losses of the agents, and the choice that was made."""
    peer, choices = PEERS[name]
    rng = np.random.default_rng(seed)
    best = 0
    if len(choices) > 1:
        best = chosen([peer(own, held, choices, rng) for own, held in splits(train, folds)], train, unit)
    return peer(train, test, [choices[best]], rng)[0] / test.sizes, choices[best]
