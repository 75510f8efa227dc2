r"""Two ways down on the simplex that multiply weights instead of moving them.

**Algorithm 3 of the paper**, exponential gradient with the prox step of Nemirovski, for all targets at once. From the
uniform start each step moves twice from the same w: a proxy :math:`w' \propto w\, e^{-\eta \nabla f(w)}`, then :math:`w
\propto w\, e^{-\eta \nabla f(w')}`, with :math:`\eta_t = c / (2 |A_t|_{op} + |b_t|_\infty)` and :math:`A_t` the Gram
matrix of :math:`\nu_k - \nu_t`. After T steps the result is far from the minimum: the early stop is part of the
estimator. A constant added to a gradient cancels when the weights are normalised, so the shared Gram matrix takes the
place of every :math:`A_t`.

**A pull towards a prior**: minimise :math:`f_t(w) + \tau_t \mathrm{KL}(w \| p)`. Mirror descent on the smooth part with
the entropy kept exact, for all targets at once. With D the Kullback-Leibler divergence, :math:`(v - w)' Q (v - w) \le L\,
D(v, w)` for L the largest squared distance between two vertices, so f is smooth relative to D, and the pull makes the sum
strongly convex relative to D: convergence is linear. Steps are tried longer than L allows and taken back where the
inequality fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from kinfed.errors import InputError
from kinfed.parallel import available_cores, map_on_cores
from kinfed.validation import Array, positive, positive_integer
from kinfed.weights.geometry import Geometry
from kinfed.weights.objective import SimplexProblem, q_aggregation_problem

# Targets advanced together: enough for an efficient matrix product, few enough to stay in cache.
_TARGETS_AT_ONCE = 80
_BISECTIONS = 64
_POWER_STEPS = 50
# One step multiplies a weight by up to e^(2 c); far beyond this the weights would overflow.
_LARGEST_STEP = 100.0


class _Half(NamedTuple):
    """Buffers of one chunk of targets, so that the 2 T half-steps allocate nothing."""

    slope: Array
    exponent: Array


def exponential_gradient(
    problem: SimplexProblem, steps: int = 1000, step_scale: float = 0.5, checkpoints: Sequence[int] = ()
) -> tuple[Array, dict[int, Array]]:
    """Weights after `steps` steps from the uniform start, and those read off the path at each of `checkpoints`.

    Parameters
    ----------
    problem : SimplexProblem
    steps : int
        T.
    step_scale : float
        c.
    checkpoints : sequence of int
        Numbers of steps, at most T, after which the weights are kept too.
    """
    steps = positive_integer(steps, "steps")
    step_scale = positive(step_scale, "step_scale")
    if step_scale > _LARGEST_STEP:
        raise InputError(f"step_scale must be at most {_LARGEST_STEP:g}, got {step_scale:g}; the paper takes 0.5")
    kept = sorted({positive_integer(step, "checkpoint") for step in checkpoints if step <= steps})
    norms = (
        shifted_operator_norms(problem.gram)[problem.targets] if problem.moved is None else moved_operator_norms(problem)
    )
    largest = 2 * norms + np.abs(problem.linear).max(axis=1)
    # A problem that is zero everywhere has no scale: every step size leaves the weights where they are.
    sizes = step_scale / np.where(largest > 1e-200, largest, 1.0)
    count = len(problem.targets)
    chunks = max(min(count, available_cores()), -(-count // _TARGETS_AT_ONCE))
    found = map_on_cores(
        lambda rows: _path(problem.rows(rows), sizes[rows], steps, kept),
        np.array_split(np.arange(count), chunks),
        operations=4.0 * steps * problem.linear.size * len(problem.gram),
    )
    parts = list(found)
    path = {step: np.vstack([part[1][i] for part in parts]) for i, step in enumerate(kept)}
    return np.vstack([part[0] for part in parts]), path


def shifted_operator_norms(gram: Array) -> Array:
    r""":math:`|A_t|_{op}` for every t, where :math:`A_t` is the Gram matrix of :math:`\nu_k - \nu_t`.

    Let G be the Gram matrix about the mean of the means, with eigenvalues :math:`\lambda_i` and eigenvectors Q. The nonzero
    eigenvalues of :math:`A_t` are those of :math:`\sum_k (\nu_k - \nu_t)(\nu_k - \nu_t)' = \sum_k \nu_k \nu_k' + B\,
    \nu_t \nu_t'`: a rank-one change, whose largest eigenvalue is the root beyond :math:`\lambda_{max}` of the secular
    equation :math:`1 = B \sum_i \lambda_i Q_{ti}^2 / (\mu - \lambda_i)`. One eigendecomposition serves all targets.
    """
    means = gram.mean(axis=0)
    centred = gram - means - means[:, None] + gram.mean()
    eigenvalues, vectors = eigh(centred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    top = eigenvalues[-1]
    strengths = len(gram) * eigenvalues * vectors**2
    # The root lies between lambda_max and lambda_max + B |nu_t|^2; bisect on the excess over lambda_max.
    low, high = np.zeros(len(gram)), np.maximum(strengths.sum(axis=1), 1e-300)
    distances = top - eigenvalues
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = (strengths / (distances + middle[:, None])).sum(axis=1) > 1
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(top + high)


def moved_operator_norms(problem: SimplexProblem) -> Array:
    r""":math:`|A_t|_{op}` of targets that hold rows out, by power iteration: it must not depend on the rows held out.

    With :math:`P v = v - e_t \sum_k v_k`, :math:`A_t = P' G P`, G being that of the target.
    """
    count, n_agents = problem.linear.shape
    own = np.arange(count), problem.targets
    vectors = np.ones((count, n_agents))
    norms = np.zeros(count)
    for _ in range(_POWER_STEPS):
        vectors[own] = 0.0
        vectors[own] = -vectors.sum(axis=1)
        product = problem.product(vectors)
        vectors = product - product[own][:, None]
        norms = np.linalg.norm(vectors, axis=1)
        vectors /= np.maximum(norms, 1e-300)[:, None]
    return norms


def _path(problem: SimplexProblem, sizes: Array, steps: int, kept: list[int]) -> tuple[Array, list[Array]]:
    """Run one chunk of targets; the rows are carried as -2 eta_t w, so that a product with G is an exponent."""
    n_agents = problem.gram.shape[0]
    totals = -2 * sizes
    slope = -sizes[:, None] * (problem.linear - 2 * problem.product(np.eye(n_agents)[problem.targets]))
    scaled = np.repeat(totals[:, None] / n_agents, n_agents, axis=1)
    proxy, buffers = np.empty_like(scaled), _Half(slope, np.empty_like(scaled))
    path = []
    for step in range(1, steps + 1):
        _half_step(scaled, scaled, problem, totals, buffers, out=proxy)
        _half_step(scaled, proxy, problem, totals, buffers, out=scaled)
        if step in kept:
            path.append(scaled / totals[:, None])
    return scaled / totals[:, None], path


def _half_step(scaled: Array, at: Array, problem: SimplexProblem, totals: Array, buffers: _Half, out: Array) -> None:
    """Move from `scaled` along the gradient taken at `at`."""
    exponent = buffers.exponent
    np.matmul(at, problem.gram, out=exponent)
    problem.add_moved(at, exponent)
    np.add(exponent, buffers.slope, out=exponent)
    np.exp(exponent, out=exponent)
    np.multiply(scaled, exponent, out=out)
    np.multiply(out, (totals / out.sum(axis=1))[:, None], out=out)


# With a pull

_MOST_STEPS = 20_000
OPTIMAL = "optimal: no other weights are better by more than the gap"


class Quadratic(Protocol):
    """A convex quadratic function on the simplex for every row."""

    @property
    def alone(self) -> Array:
        """Its value at the target alone, the scale on which gaps are judged."""

    @property
    def smoothness(self) -> Array:
        """L: the curvature of a step v - w is at most L times the divergence of v and w."""

    def rows(self, chosen: NDArray[np.int64]) -> Quadratic:
        """The same functions for some of the rows."""

    def value(self, weights: Array) -> Array:
        """The objective of every row at its weights."""

    def gradient(self, weights: Array) -> Array:
        """The gradient of every row's objective at its weights."""

    def curvature(self, steps: Array) -> Array:
        """The quadratic part at a step, row by row."""


class Minimum(NamedTuple):
    """Weights (T, B), the values of f plus pull, certified gaps to the minimum, and why the solver stopped."""

    weights: Array
    value: Array
    gap: Array
    stop: list[str]


def stacked_minima(parts: Sequence[Minimum]) -> Minimum:
    """The minima of several groups of targets as one."""
    return Minimum(
        np.vstack([part.weights for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.gap for part in parts]),
        [stop for part in parts for stop in part.stop],
    )


def mirror_descent(
    problem: Quadratic, targets: NDArray[np.int64], log_prior: Array, pull: Array, relative_gap: float = 1e-8
) -> Minimum:
    r"""Weights that minimise :math:`f_t(w) + \tau_t \mathrm{KL}(w \| p)` for every row t.

    Parameters
    ----------
    problem : Quadratic
    targets : array of shape (T,)
        The agent of each row: the solution where there is no pull.
    log_prior : array of shape (B,)
        :math:`\log p`, where all rows start.
    pull : array of shape (T,)
        :math:`\tau_t \ge 0`. Rows without a pull belong to targets without any error of their own.
    relative_gap : float
        A row is done once its gap is below this share of the value of being alone.
    """
    count, n_agents = len(targets), len(log_prior)
    weights, log_weights = np.tile(np.exp(log_prior), (count, 1)), np.tile(log_prior, (count, 1))
    gap, stop = np.zeros(count), [OPTIMAL] * count
    exact = pull <= 0
    weights[exact] = np.eye(n_agents)[targets[exact]]
    smoothness = problem.smoothness
    inverse_step = smoothness / 8
    floor = 64 * np.finfo(float).eps * (pull + smoothness + np.abs(problem.alone))
    live = np.flatnonzero(~exact)
    part = problem.rows(live)
    for _ in range(_MOST_STEPS):
        if not len(live):
            break
        slopes = part.gradient(weights[live])
        gap[live] = _gap(slopes, weights[live], log_weights[live], log_prior, pull[live])
        going = np.flatnonzero(gap[live] > np.maximum(relative_gap * part.alone, floor[live]))
        if len(going) < len(live):
            live, part, slopes = live[going], part.rows(going), slopes[going]
            if not len(live):
                break
        tau, smooth = pull[live][:, None], inverse_step[live][:, None]
        proposal = (smooth * log_weights[live] + tau * log_prior - slopes) / (smooth + tau)
        proposal -= proposal.max(axis=1, keepdims=True)
        moved = np.exp(proposal)
        total = moved.sum(axis=1, keepdims=True)
        proposal -= np.log(total)
        moved /= total
        # f(moved) <= f(w) + g'step + L D(moved, w) is what a step of this length needs.
        curvature = part.curvature(moved - weights[live])
        divergence = np.einsum("tk,tk->t", moved, proposal - log_weights[live])
        accepted = (curvature <= inverse_step[live] * divergence) | (inverse_step[live] >= smoothness[live])
        inverse_step[live] = np.minimum(inverse_step[live] * np.where(accepted, 0.8, 2.0), smoothness[live])
        taken = live[accepted]
        weights[taken], log_weights[taken] = moved[accepted], proposal[accepted]
    for t in live:
        stop[t] = f"stopped after {_MOST_STEPS} steps: the gap says how far the optimum may be"
    divergence = np.einsum("tk,tk->t", weights, np.where(weights > 0, log_weights - log_prior, 0.0))
    return Minimum(weights, problem.value(weights) + pull * divergence, gap, stop)


def entropic_minimum(
    geometry: Geometry, strength: float, c_q: float = 1.0, c_p: float = 0.0, relative_gap: float = 1e-8
) -> Minimum:
    r"""Weights that minimise :math:`f_t(w) + \tau s_t \mathrm{KL}(w \| p)` with :math:`p_k = n_k / \sum_l n_l`.

    The rule of that name (`kinfed.weights.rules.q_aggregation.entropic`) without evidence for people.
    """
    problem = q_aggregation_problem(geometry, c_q, c_p)
    pull = positive(strength, "strength") * geometry.own_variance
    prior = np.log(geometry.sizes / geometry.sizes.sum())
    return mirror_descent(problem, geometry.targets, prior, pull, positive(relative_gap, "relative_gap"))


def _gap(slopes: Array, weights: Array, log_weights: Array, log_prior: Array, pull: Array) -> Array:
    """The value g'w + tau KL(w | p) minus its minimum over all v on the simplex, -tau log sum p exp(-g / tau)."""
    tau = pull[:, None]
    exponents = log_prior - (slopes - slopes.min(axis=1, keepdims=True)) / tau
    least = slopes.min(axis=1) - pull * np.log(np.exp(exponents).sum(axis=1))
    current = np.einsum("tk,tk->t", weights, slopes + tau * (log_weights - log_prior))
    return np.asarray(np.maximum(current - least, 0.0))
