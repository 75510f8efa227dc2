r"""One choice for the federation, shared where chance could have decided, and a shrunken correction for every agent.

Each agent t scores every candidate m on points it set aside: :math:`S_{tm}`, a mean loss. The federation takes the
candidate :math:`m^*` with the smallest mean over agents, each agent's scores divided by its own scale, so that none decides
alone. Learning alone and the grand mean win ties: any other candidate must be better by five percent.

Scores of few points are noisy, and the best of many is best partly by luck. So the weights are not those of :math:`m^*`
alone but the average of all candidates, each with the share of resamples in which it would have been chosen. In a resample
agents are reweighted at random (the Bayesian bootstrap), each agent's mean losses are drawn again, and the choice is made
again. Candidates that cannot be told apart share, and with enough points one candidate takes all.

The Bayesian bootstrap of an agent's :math:`n_t` points would draw mean losses around :math:`S_t` with covariance
:math:`C_t / (n_t + 1)`, where :math:`C_t` is the covariance of the losses over the points (divisor :math:`n_t`). The normal
law of that mean and covariance is drawn from instead: an agent then tells :math:`S_t` and :math:`C_t`, and no point's loss.

Agents then ask whether they should differ. For :math:`\Delta_{tm} = S_{tm} - S_{tm^*}` with noise :math:`v_m / n_t`, mean
:math:`\mu_m` and variance between agents :math:`\tau_m^2 = (\mathrm{Var}_t \Delta_{tm} - \mathrm{mean}_t v_m / n_t)_+`,
the posterior under a normal prior is

.. math:: \mu_m + \rho_{tm} (\Delta_{tm} - \mu_m) \;\pm\; \sqrt{\rho_{tm} v_m / n_t}, \qquad
          \rho_{tm} = \frac{\tau_m^2}{\tau_m^2 + v_m / n_t} .

An agent leaves the common choice only for a candidate whose posterior is below zero by one posterior standard deviation.
Choosing freely would chase noise: with ten points per agent it cost up to 11 % on the generators.

What an agent is told of its gain over learning alone is such a posterior too, with the uncertainty of :math:`\mu_m` as far
as the agent relies on it (`kinfed.weights.shrinkage`): the more points an agent has, the surer its own scores make it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.parallel import map_on_cores
from kinfed.splitting import derived_seed
from kinfed.validation import Array, without_rounding
from kinfed.weights.shrinkage import shrunken

MARGIN = 0.05
"""How much better than learning alone, in its units, a candidate must be to win against it or against the grand mean."""

RESAMPLES = 400
"""Times the choice is made again on reweighted agents and redrawn scores."""

TIE = 1e-9
"""Normalised scores this close differ by rounding alone: the first candidate wins, wherever the numbers were computed."""


@dataclass(frozen=True, eq=False)
class AgentScores:
    """What one agent tells of the candidates it judged.

    Attributes
    ----------
    n : int
        How many points it judged; 0 for an agent that judges nothing.
    mean : array of shape (M,)
        Mean loss of every candidate; NaN where it was not tried.
    covariance : array of shape (M, M)
        Covariance of the losses over the points, divisor n; NaN where one of the two was not tried.
    """

    n: int
    mean: Array
    covariance: Array

    @classmethod
    def of_losses(cls, losses: Array) -> AgentScores:
        """Scores of losses (n, M); a candidate with a NaN among its losses was not tried."""
        n, count = losses.shape
        mean, covariance = np.full(count, np.nan), np.full((count, count), np.nan)
        if n:
            tried = ~np.isnan(losses).any(axis=0)
            mine = losses[:, tried]
            mean[tried] = mine.mean(axis=0)
            apart = mine - mean[tried]
            covariance[np.ix_(tried, tried)] = apart.T @ apart / n
        return cls(n, mean, covariance)

    def spread(self, candidate: int, reference: int) -> float:
        """Variance over points, divisor n - 1, of one candidate's loss minus another's; NaN for fewer than two points."""
        if self.n < 2:
            return float("nan")
        total = float(self.covariance[candidate, candidate] + self.covariance[reference, reference])
        # Candidates that agree in all digits differ by rounding here, which must not pass for a spread.
        apart = without_rounding(total - 2 * float(self.covariance[candidate, reference]), total)
        return apart * self.n / (self.n - 1)


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen, and the numbers behind it.

    Attributes
    ----------
    chosen : int
        The best candidate for the federation.
    shares : array of shape (M,)
        The part of every candidate in the federation's weights; they sum to one.
    personal : array of int of shape (B,)
        The candidate of every agent; that of the federation for agents who scored nothing.
    mean : array of shape (M,)
        Mean normalised score of every candidate, about 1 for learning alone; NaN for candidates that were given up.
    error : array of shape (M,)
        Standard error over agents of the difference of that mean to the chosen candidate's.
    versus_local : array of shape (B,)
        Posterior mean of the agent's personal candidate minus learning alone, in units of the agent's scale (see
        `agent_scales`): an estimate from its own scores and everybody's, no share of its own loss; NaN without scores.
    versus_local_error : array of shape (B,)
        Its posterior standard deviation.
    """

    chosen: int
    shares: Array
    personal: NDArray[np.int64]
    mean: Array
    error: Array
    versus_local: Array
    versus_local_error: Array


def choose(
    scores: Sequence[AgentScores],
    local: int,
    mixtures: Sequence[Sequence[int]],
    simple: Sequence[bool],
    plans: Sequence[Hashable] | None = None,
    seed: int = 0,
    shared: bool = True,
) -> Choice:
    """Choose a candidate for the federation, then for every agent.

    Parameters
    ----------
    scores : one AgentScores per agent
        Of the losses of its points at the model of each candidate, trained without that point; n = 0 for an agent without.
    local : int
        The candidate of learning alone.
    mixtures : for every candidate, the candidates an agent may move to from it
    simple : for every candidate, whether it is one of those that win ties: learning alone, and the grand mean
    plans : for every candidate, what must be the same for candidates that share; by default all may
    seed : int
        Of the resamples.
    shared : bool
        Whether simple candidates win ties and close seconds share. After successive halving, which scores candidates on one
        split, points are too few for that: there the best takes all.
    """
    n_candidates = len(scores[0].mean)
    scored = np.array([t for t, mine in enumerate(scores) if mine.n], dtype=np.int64)
    personal = np.full(len(scores), local, dtype=np.int64)
    unknown = np.full(len(scores), np.nan)
    if not len(scored):
        only = np.arange(n_candidates) == local
        alone = np.where(only, 1.0, np.nan)
        return Choice(local, only.astype(float), personal, alone, np.zeros(n_candidates), unknown, unknown.copy())
    rows = [scores[t] for t in scored]
    sizes = np.array([mine.n for mine in rows])
    raw = np.array([mine.mean for mine in rows])
    scale = agent_scales(raw[:, local], np.array([np.sqrt(mine.covariance[local, local]) for mine in rows]))
    normalised = raw / scale[:, None]
    mean = normalised.mean(axis=0)
    margin = np.where(simple, 0.0, MARGIN if shared else 0.0)
    chosen = int(_first_least(np.nan_to_num(mean + margin, nan=np.inf)))
    error = np.nan_to_num(_standard_error(normalised - normalised[:, [chosen]], rows, scale, chosen))
    personal[:] = chosen
    together = np.array([plans is None or plan == plans[chosen] for plan in plans or range(n_candidates)])
    allowed = together & ~np.isnan(mean)
    shares = (np.arange(n_candidates) == chosen).astype(float)
    if shared:
        shares = bootstrap_shares(rows, scale, margin, allowed, seed)

    def difference(candidate: int, reference: int) -> tuple[Array, Array]:
        """A candidate's score minus the reference's, agent by agent, and its variance."""
        apart = normalised[:, candidate] - normalised[:, reference]
        # One variance for all agents: an agent's own, of a few points, would be small by chance now and then.
        spreads = [mine.spread(candidate, reference) / one**2 for mine, one in zip(rows, scale, strict=True) if mine.n > 1]
        return apart, (np.mean(spreads) if spreads else np.square(apart).mean()) / sizes

    def posterior(candidate: int, reference: int) -> tuple[Array, Array]:
        """Posterior mean and deviation, agent by agent, of a candidate's score minus the reference's."""
        apart, noise = difference(candidate, reference)
        centre = apart.mean()
        between = max(float(np.square(apart - centre).mean() - noise.mean()), 0.0)
        kept = between / (between + noise) if between > 0 else np.zeros(len(apart))
        return centre + kept * (apart - centre), np.sqrt(kept * noise)

    options = [candidate for candidate in mixtures[chosen] if not np.isnan(mean[candidate]) and candidate != chosen]
    if options and len(scored) > 2:
        bounds = np.array([np.add(*posterior(candidate, chosen)) for candidate in options])
        better = bounds.min(axis=0) < -TIE
        personal[scored[better]] = np.array(options)[_first_least(bounds.T)[better]]
    versus, deviation = unknown.copy(), unknown.copy()
    for candidate in np.unique(personal[scored]):
        mine = personal[scored] == candidate
        found = shrunken(*difference(int(candidate), local))
        versus[scored[mine]], deviation[scored[mine]] = found.mean[mine], np.sqrt(found.variance[mine])
    return Choice(chosen, shares, personal, mean, error, versus, deviation)


def bootstrap_shares(
    scores: Sequence[AgentScores], scale: Array, margin: Array, allowed: NDArray[np.bool_], seed: int
) -> Array:
    """Share of resamples in which each candidate has the smallest mean score.

    Parameters
    ----------
    scores : one AgentScores per agent
    scale : array, the unit of each agent's scores
    margin : array of shape (M,), added to the mean scores
    allowed : bool array of shape (M,), the candidates that may share
    seed : int
    """
    rng = np.random.default_rng(derived_seed(seed, "choices made again"))
    agents = rng.exponential(size=(len(scores), RESAMPLES))
    weights = agents / agents.sum(axis=0)
    total = np.tile(margin[allowed], (RESAMPLES, 1))

    def root(mine: AgentScores) -> Root:
        return symmetric_root(mine.covariance[np.ix_(allowed, allowed)] / (mine.n + 1))

    roots = map_on_cores(root, scores, 10.0 * len(scores) * float(allowed.sum()) ** 3)
    for mine, (directions, lengths), unit, weight in zip(scores, roots, scale, weights, strict=True):
        normal = rng.standard_normal((RESAMPLES, len(directions)))
        total += (weight / unit)[:, None] * (mine.mean[allowed] + (normal @ directions * lengths) @ directions.T)
    shares = np.zeros(len(allowed))
    shares[allowed] = np.bincount(_first_least(total), minlength=allowed.sum()) / RESAMPLES
    return shares


class Root(NamedTuple):
    """The matrix U diag(s) U' as U (M, r) and s (r,): with few points r is small."""

    directions: Array
    lengths: Array


def symmetric_root(covariance: Array) -> Root:
    """The positive semidefinite square root of a covariance.

    It is continuous in the covariance, so that rounding hardly moves what is drawn with it. Eigenvectors alone, or a
    triangular factor, may turn as a whole where the covariance has no full rank, and with few points it never has.
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # The root of a rounding error is no rounding error: candidates of equal losses would be drawn apart.
    used = eigenvalues > len(covariance) * np.finfo(float).eps * max(float(eigenvalues[-1]), 0.0)
    return Root(vectors[:, used], np.sqrt(eigenvalues[used]))


def _first_least(values: Array) -> NDArray[np.int64]:
    """Place of the smallest of the last axis, the first of those that are tied."""
    least = values.min(axis=-1, keepdims=True)
    return np.asarray((values <= least + TIE).argmax(axis=-1))


def agent_scales(local: Array, spread: Array) -> Array:
    """The unit of each agent's scores: its own score alone, averaged with the median of all agents'.

    One agent's score of a few points may be small by chance; the average keeps it from deciding for all. Scores that may be
    negative, such as log densities, have no unit of their own: all agents then share the median spread of their losses.
    """
    if (local < 0).any():
        return np.full(len(local), float(np.median(spread)) or 1.0)
    typical = float(np.median(local)) or float(local.mean())
    return np.asarray((local + typical) / 2) if typical > 0 else np.ones_like(local)


def _standard_error(against: Array, scores: Sequence[AgentScores], scale: Array, chosen: int) -> Array:
    """Over agents, of the mean difference to the chosen candidate; of the points where there is one agent only."""
    if len(against) > 1:
        return np.asarray(against.std(axis=0, ddof=1) / np.sqrt(len(against)))
    (mine,) = scores
    if mine.n < 2:
        return np.zeros(against.shape[1])
    spreads = np.array([mine.spread(candidate, chosen) for candidate in range(against.shape[1])])
    return np.asarray(np.sqrt(spreads / mine.n) / scale[0])
