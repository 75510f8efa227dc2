r"""Random coefficients by maximum likelihood: centres, spread and noise from everybody's second moments.

Agent k's coefficients are :math:`\theta_k \sim \sum_c \pi_c N(\mu_c, \sigma^2 S)`, and its outcomes
:math:`y = X\theta_k + \sigma\epsilon`. EM goes back and forth between the posterior of the :math:`\theta_k` and

.. math::

    \mu_c &= \Bigl(\sum_k q_{kc} F_k' K_k^{-1} F_k\Bigr)^{-1} \sum_k q_{kc} F_k' K_k^{-1} z_k , \\
    \sigma^2 S &= \tfrac1B \sum_k E[(\theta_k - \mu_c)(\theta_k - \mu_c)' | y_k] , \\
    \sigma^2 &= \tfrac1N \sum_k E[|y_k - X_k \theta_k|^2 | y_k] ,

with responsibilities :math:`q_{kc}` of the components, which share S, so that one factor :math:`K_k^{1/2}` for each agent
serves all. :math:`\mu_c` is the exact maximiser for given S and :math:`\sigma^2` (generalised least squares), and its own
uncertainty is part of both expectations: the likelihood is the restricted one, in which centres are integrated out. About
an estimated centre few agents seem closer together than they are. Variances that tend to zero do so slowly: after every
second iteration the logarithms of all variances are extrapolated (squared extrapolation of Varadhan and Roland), unless
that makes the outcomes less likely. It stops once the likelihood stands still.

A sum over few agents cannot tell p variances: a diagonal S is drawn towards the isotropic one as if by `DIAGONAL_PRIOR`
further agents, a full one towards half its diagonal and half the isotropic one as if by p (the mode under an inverse
Wishart prior); intercepts have a variance of their own in all of them. And where columns are many, not even the centres
are known well: their slopes have a prior :math:`N(0, \sigma^2 \omega^2 I)` in turn, and :math:`\omega^2` is that of
largest likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinfed.priors.marginal_likelihood import Expected, Whitened, generalised_least_squares, uncertainty_of_centres
from kinfed.priors.normal import RowMoments, probabilities
from kinfed.validation import Array

DIAGONAL_PRIOR = 2.0
"""How many agents the isotropic spread counts in a diagonal one."""
RANK = 3
"""Of the part of a low-rank spread that is not diagonal."""
MOST_ITERATIONS, FEW_ITERATIONS, WIDE = 60, 12, 3000
"""EM takes at most so many iterations; fewer for models of many coefficients, p, whose cube each takes: WIDE / p."""
TOLERANCE = 1e-4
"""EM stops once two iterations in a row change the log likelihood by less than this for each agent."""
STARTS = 8
"""Of k-means, which begins the search for clusters."""
_ROUNDS = 20
_LEAST = 1e-8  # of the rows of everybody: what is added to the precision of a centre
_LONGEST_STEP, _MOST_CHANGE = 32.0, 8.0  # of an extrapolation, and of a logarithm in it
_LEAST_NOISE = 1e-8  # of the variance about one common model: outcomes without noise have this


@dataclass(frozen=True, eq=False)
class RandomCoefficients:
    """A fitted prior.

    Attributes
    ----------
    shares : array of shape (C,)
    centres : array of shape (C, p)
    spread : array of shape (p, p)
        S, relative to the noise.
    noise : float
    uncertainty : array of shape (C, p, p)
        Covariance of every centre, relative to the noise.
    log_likelihood : float
        Up to a constant for log losses.
    memberships : array of shape (B, C)
    means : array of shape (B, p)
        Posterior means of the agents it was fitted on.
    iterations : int
    """

    shares: Array
    centres: Array
    spread: Array
    noise: float
    uncertainty: Array
    log_likelihood: float
    memberships: Array
    means: Array
    iterations: int


def fit_random_coefficients(
    evidence: RowMoments,
    kind: str,
    clusters: int = 1,
    *,
    intercepts: NDArray[np.bool_],
    voices: Array | None = None,
    noise: float | None = None,
    start: RandomCoefficients | None = None,
    seed: int = 0,
    shrink: bool = True,
    restricted: bool = True,
    tolerance: float = TOLERANCE,
    most: int | None = None,
) -> RandomCoefficients:
    """The prior of largest likelihood.

    Parameters
    ----------
    evidence : RowMoments
        Of all agents, a piece each.
    kind : {"isotropic", "diagonal", "low-rank", "full"}
        Of the spread; "low-rank" is diagonal plus a part of rank `RANK`.
    clusters : int
        C.
    intercepts : array of bool of shape (p,)
    voices : array of shape (B,), optional
        What each agent counts, at most one.
    noise : float, optional
        The variance of the noise where it is known: 1 for log losses.
    start : RandomCoefficients, optional
        Where to begin, with one cluster; more are sought among the agents' posterior means under it.
    seed : int
    shrink : bool
        Whether spread and centres are drawn towards simpler ones; without, they are those of largest likelihood.
    restricted : bool
        Whether the likelihood is the restricted one, of which centres are no parameters.
    tolerance, most
        When to stop; by default the number of iterations follows from that of coefficients.
    """
    counts = np.ones(len(evidence)) if voices is None else voices
    rows = float((counts * evidence.n).sum())
    most = int(np.clip(WIDE // len(intercepts), FEW_ITERATIONS, MOST_ITERATIONS)) if most is None else most
    common = _common(evidence, intercepts, counts, noise)
    found, quietest = common if start is None else start, max(2 * _LEAST_NOISE * common.noise, 1e-200)
    if clusters > 1:
        found = _split(evidence, found, clusters, counts, np.random.default_rng(seed))
    diagonal = kind in ("isotropic", "diagonal")
    shares, centres, variance = found.shares, found.centres, found.noise
    spread = np.diagonal(found.spread).copy() if diagonal else found.spread
    least = np.full(len(intercepts), _LEAST * rows)  # precision of the prior of the centres
    how = {"evidence": evidence, "counts": counts, "known": noise is not None, "restricted": restricted}
    last, iteration, still = -np.inf, 0, 0
    trail = [_logarithms(spread, variance)]
    safe: tuple[Array, float] | None = None
    for iteration in range(1, most + 1):  # noqa: B007  the number of iterations is told
        now = Expected.of(spread, variance, shares, centres, least, **how)  # type: ignore[arg-type]
        if safe is not None and not now.value >= last:  # the extrapolation went too far
            spread, variance = safe
            now = Expected.of(spread, variance, shares, centres, least, **how)  # type: ignore[arg-type]
            trail = [_logarithms(spread, variance)]
        safe = None
        still = still + 1 if abs(now.value - last) < tolerance * counts.sum() else 0
        if still == 2:  # one of any two iterations was extrapolated
            break
        last, white, belongs, uncertainty, centres = now.value, now.white, now.belongs, now.uncertainty, now.centres
        shares = (belongs.sum(axis=0) + (clusters > 1)) / (counts.sum() + clusters * (clusters > 1))
        if shrink and not intercepts.all():
            size = np.square(centres) / variance + np.diagonal(uncertainty, axis1=1, axis2=2)
            least = np.where(intercepts, least, np.clip(1.0 / size[:, ~intercepts].mean(), _LEAST * rows, rows))
        residuals = white.residuals(centres)
        moved = (residuals @ white.root) * spread if diagonal else residuals @ white.root @ spread  # E[theta] - mu
        weighted = belongs[..., None] * moved
        if diagonal:
            precision = np.einsum("b,brp,brp->p", counts, white.root, white.root)
            total = counts.sum() * spread - spread**2 * precision + (weighted * moved).sum(axis=(0, 1)) / variance
        else:
            flat = (np.sqrt(counts)[:, None, None] * white.root).reshape(-1, spread.shape[0])
            width = spread.shape[0]
            total = counts.sum() * spread - spread @ (flat.T @ flat) @ spread
            total += weighted.reshape(-1, width).T @ moved.reshape(-1, width) / variance
        # Residuals of rows: F (theta - E theta) adds I - K^{-1}.
        left = np.square(residuals @ white.inverse).sum(axis=2)
        free = evidence.root.shape[1] - np.square(white.inverse).sum(axis=(1, 2))
        total_error = (belongs * (left + evidence.unseen[:, None])).sum() + variance * (counts @ free)
        if restricted:
            more, explained = uncertainty_of_centres(white, belongs, uncertainty, spread)
            total = total + more
            total_error += variance * explained
        new = noise if noise is not None else max(float(total_error) / rows, quietest)
        spread = _shaped(total * (variance / new), kind, counts.sum(), intercepts, shrink)
        variance = float(new)
        trail.append(_logarithms(spread, variance))
        if len(trail) == 3:
            safe = spread, variance
            spread, variance = _extrapolated(trail, spread, variance, noise is None)
            trail = [_logarithms(spread, variance)]
    if safe is not None:  # nobody looked at the last extrapolation
        spread, variance = safe
    ended = Expected.of(spread, variance, shares, centres, least, **how)  # type: ignore[arg-type]
    white, centres, uncertainty = ended.white, ended.centres, ended.uncertainty
    belongs = probabilities(ended.logarithms)
    residuals = white.residuals(centres) @ white.root
    moved = residuals * spread if diagonal else residuals @ spread
    means = np.einsum("bc,bcp->bp", belongs, centres + moved)
    whole = np.diag(spread) if diagonal else spread
    told = now.log_likelihood
    return RandomCoefficients(shares, centres, whole, variance, uncertainty, told, belongs, means, iteration)


def _logarithms(spread: Array, variance: float) -> Array:
    """Of all variances, that of the noise last."""
    own = spread if spread.ndim == 1 else np.diagonal(spread)
    return np.log(np.maximum(np.append(own, variance), 1e-200))


def _extrapolated(trail: list[Array], spread: Array, variance: float, free: bool) -> tuple[Array, float]:
    """Where three states in a row, the last of which is given, seem to lead; correlations stay as they are."""
    first, second, third = trail
    step, turn = second - first, third - 2 * second + first
    long = float(np.clip(np.linalg.norm(step) / max(float(np.linalg.norm(turn)), 1e-300), 1.0, _LONGEST_STEP))
    further = first + 2 * long * step + long**2 * turn
    factor = np.exp(np.clip(further - third, -_MOST_CHANGE, _MOST_CHANGE))
    scale = factor[:-1]
    wider = spread * scale if spread.ndim == 1 else spread * np.sqrt(np.outer(scale, scale))
    return wider, variance * float(factor[-1]) if free else variance


def _common(evidence: RowMoments, intercepts: NDArray[np.bool_], counts: Array, noise: float | None) -> RandomCoefficients:
    """Where EM begins: the common model, half of its residuals being noise and half the agents' own coefficients."""
    rows, width = float((counts * evidence.n).sum()), evidence.root.shape[2]
    root = np.sqrt(counts)[:, None, None] * evidence.root
    flat, seen = root.reshape(-1, width), (np.sqrt(counts)[:, None] * evidence.seen).ravel()
    matrix = flat.T @ flat + 1e-6 * rows * np.eye(width)
    centre: Array = np.asarray(np.linalg.solve(matrix, flat.T @ seen), dtype=np.float64)
    residual = (float(np.square(seen - flat @ centre).sum()) + float(counts @ evidence.unseen)) / max(rows, 1.0)
    variance = noise if noise is not None else max(residual / 2, 1e-200)
    slopes = max(int((~intercepts).sum()), 1)
    shared = np.where(intercepts, 0.25, 0.5 / slopes) * (1.0 if noise is not None else residual / variance)
    nothing = np.zeros((len(evidence), 1))
    return RandomCoefficients(
        np.ones(1),
        centre[None],
        np.diag(shared),
        variance,
        np.asarray(np.linalg.inv(matrix)[None], dtype=np.float64),
        -np.inf,
        nothing + 1.0,
        nothing + centre,
        0,
    )


def _split(
    evidence: RowMoments, start: RandomCoefficients, clusters: int, counts: Array, rng: np.random.Generator
) -> RandomCoefficients:
    """Where a search for clusters begins: k-means of the posterior means under one cluster."""
    white = Whitened.of(evidence, start.spread)
    means = start.centres[0] + white.residuals(start.centres)[:, 0, None, :] @ white.root @ start.spread
    means = means[:, 0]
    heard = np.flatnonzero(counts > 0)
    best, labels = np.inf, np.zeros(len(means), dtype=np.int64)
    for _ in range(STARTS):
        centres = means[rng.choice(heard, clusters, replace=len(heard) < clusters)]
        for _ in range(_ROUNDS):
            distances = np.square(means).sum(axis=1)[:, None] - 2 * means @ centres.T + np.square(centres).sum(axis=1)
            nearest = distances.argmin(axis=1)
            member = (nearest == np.arange(clusters)[:, None]) * counts
            full = member.sum(axis=1) > 0
            centres[full] = member[full] @ means / member[full].sum(axis=1, keepdims=True)
        value = float(counts @ distances[np.arange(len(means)), nearest])
        if value < best:
            best, labels = value, nearest
    belongs = 0.98 * (labels[:, None] == np.arange(clusters)) + 0.02 / clusters
    least = np.full(means.shape[1], _LEAST * float((counts * evidence.n).sum()))
    centres, uncertainty = generalised_least_squares(white, counts[:, None] * belongs, least)
    shares = (counts @ belongs) / counts.sum()
    # Part of what was spread is now between clusters.
    return replace(start, shares=shares, centres=centres, spread=0.3 * start.spread, uncertainty=uncertainty)


def _shaped(total: Array, kind: str, agents: float, intercepts: NDArray[np.bool_], shrink: bool) -> Array:
    """The spread of a kind, from the sum over agents of their squared deviations."""
    variances = (total if total.ndim == 1 else np.diagonal(total)) / agents
    isotropic = np.empty_like(variances)
    for some in (intercepts, ~intercepts):
        if some.any():
            isotropic[some] = variances[some].mean()
    if kind == "isotropic":
        return isotropic
    if kind == "diagonal":
        prior = DIAGONAL_PRIOR * shrink
        return np.asarray((agents * variances + prior * isotropic) / (agents + prior))
    prior = len(variances) * shrink
    found = (total + prior * np.diag((variances + isotropic) / 2)) / (agents + prior)
    return found if kind == "full" else _low_rank(found)


def _low_rank(spread: Array) -> Array:
    """A spread of which correlations have rank `RANK`, with the variances it had."""
    deviations = np.sqrt(np.maximum(np.diagonal(spread), 1e-300))
    values, vectors = np.linalg.eigh(spread / np.outer(deviations, deviations))
    factor = vectors[:, -RANK:] * np.sqrt(np.maximum(values[-RANK:] - 1.0, 0.0))
    own = np.maximum(1.0 - np.square(factor).sum(axis=1), 1e-3)
    total = own + np.square(factor).sum(axis=1)
    found = (factor @ factor.T + np.diag(own)) / np.sqrt(np.outer(total, total))
    return np.asarray(found * np.outer(deviations, deviations))
