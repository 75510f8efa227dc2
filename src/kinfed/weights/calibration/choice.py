r"""One choice for the federation, hedged against chance, and a shrunken correction for every agent.

Each agent t scores every member m on points it set aside: :math:`S_{tm}`, a mean loss. The federation takes the member
:math:`m^*` with the smallest mean over agents, each agent's scores divided by its own scale, so that none decides alone.
Learning alone and the grand mean win ties: any other member must be better by three percent.

Scores of few points are noisy, and the best of many is best partly by luck. So the weights are not those of :math:`m^*`
alone but the average of all members, each with the share of resamples in which it would have been chosen. In a resample
agents are reweighted at random (the Bayesian bootstrap), each agent's mean losses are drawn again, and the choice is made
again. Members that cannot be told apart share, and with enough points one member takes all.

The Bayesian bootstrap of an agent's :math:`n_t` points would draw mean losses around :math:`S_t` with covariance
:math:`C_t / (n_t + 1)`, where :math:`C_t` is the covariance of the losses over the points (divisor :math:`n_t`). The normal
law of that mean and covariance is drawn from instead: an agent then tells :math:`S_t` and :math:`C_t`, and no point's loss.

Agents then ask whether they should differ. For :math:`\Delta_{tm} = S_{tm} - S_{tm^*}` with noise :math:`v_m / n_t`, mean
:math:`\mu_m` and variance between agents :math:`\tau_m^2 = (\mathrm{Var}_t \Delta_{tm} - \mathrm{mean}_t v_m / n_t)_+`,
the posterior under a normal prior is

.. math:: \mu_m + \rho_{tm} (\Delta_{tm} - \mu_m) \;\pm\; \sqrt{\rho_{tm} v_m / n_t}, \qquad
          \rho_{tm} = \frac{\tau_m^2}{\tau_m^2 + v_m / n_t} .

An agent leaves the common choice only for a member whose posterior is below zero by one posterior standard deviation.
Choosing freely would chase noise: with ten points per agent it cost up to 11 % on the generators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.parallel import map_on_cores
from kinfed.splitting import derived_seed
from kinfed.weights.calibration.trials import AgentScores

Array = NDArray[np.float64]

HANDICAP = 0.03
"""How much better than learning alone, in its units, a member must be to win against it or against the grand mean."""

RESAMPLES = 400
"""Times the choice is made again on reweighted agents and redrawn scores."""

TIE = 1e-9
"""Normalised scores this close differ by rounding alone: the first member wins, wherever the numbers were computed."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen, and the numbers behind it.

    Attributes
    ----------
    chosen : int
        The best member for the federation.
    shares : array of shape (M,)
        The part of every member in the federation's weights; they sum to one.
    personal : array of int of shape (B,)
        The member of every agent; that of the federation for agents who scored nothing.
    mean : array of shape (M,)
        Mean normalised score of every member, about 1 for learning alone; NaN for members that left the race.
    error : array of shape (M,)
        Standard error over agents of the difference of that mean to the chosen member's.
    versus_local : array of shape (B,)
        Posterior mean of the agent's personal member minus learning alone, in units of the agent's scale (see
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
    hedged: bool = True,
) -> Choice:
    """Choose a member for the federation, then for every agent.

    Parameters
    ----------
    scores : one AgentScores per agent
        Of the losses of its points at the model of each member, trained without that point; n = 0 for an agent without.
    local : int
        The member of learning alone.
    mixtures : for every member, the members an agent may move to from it
    simple : for every member, whether it is one of those that win ties: learning alone, and the grand mean
    plans : for every member, what must be the same for members that share; by default all may
    seed : int
        Of the resamples.
    hedged : bool
        Whether simple members win ties and close seconds share. Members that raced were scored on one split, whose points
        are too few for that: there the best takes all.
    """
    n_members = len(scores[0].mean)
    scored = np.array([t for t, mine in enumerate(scores) if mine.n], dtype=np.int64)
    personal = np.full(len(scores), local, dtype=np.int64)
    unknown = np.full(len(scores), np.nan)
    if not len(scored):
        only = np.arange(n_members) == local
        alone = np.where(only, 1.0, np.nan)
        return Choice(local, only.astype(float), personal, alone, np.zeros(n_members), unknown, unknown.copy())
    rows = [scores[t] for t in scored]
    sizes = np.array([mine.n for mine in rows])
    raw = np.array([mine.mean for mine in rows])
    scale = agent_scales(raw[:, local], np.array([np.sqrt(mine.covariance[local, local]) for mine in rows]))
    normalised = raw / scale[:, None]
    mean = normalised.mean(axis=0)
    handicap = np.where(simple, 0.0, HANDICAP if hedged else 0.0)
    chosen = int(_first_least(np.nan_to_num(mean + handicap, nan=np.inf)))
    error = np.nan_to_num(_standard_error(normalised - normalised[:, [chosen]], rows, scale, chosen))
    personal[:] = chosen
    together = np.array([plans is None or plan == plans[chosen] for plan in plans or range(n_members)])
    allowed = together & ~np.isnan(mean)
    shares = hedge(rows, scale, handicap, allowed, seed) if hedged else (np.arange(n_members) == chosen).astype(float)

    def posterior(member: int, reference: int) -> tuple[Array, Array]:
        """Posterior mean and deviation, agent by agent, of a member's score minus the reference's."""
        apart = normalised[:, member] - normalised[:, reference]
        # One variance for all agents: an agent's own, of a few points, would be small by chance now and then.
        spreads = [mine.spread(member, reference) / one**2 for mine, one in zip(rows, scale, strict=True) if mine.n > 1]
        noise = (np.mean(spreads) if spreads else np.square(apart).mean()) / sizes
        centre = apart.mean()
        between = max(float(np.square(apart - centre).mean() - noise.mean()), 0.0)
        kept = between / (between + noise) if between > 0 else np.zeros(len(apart))
        return centre + kept * (apart - centre), np.sqrt(kept * noise)

    options = [member for member in mixtures[chosen] if not np.isnan(mean[member]) and member != chosen]
    if options and len(scored) > 2:
        bounds = np.array([np.add(*posterior(member, chosen)) for member in options])
        better = bounds.min(axis=0) < -TIE
        personal[scored[better]] = np.array(options)[_first_least(bounds.T)[better]]
    versus, deviation = unknown.copy(), unknown.copy()
    for member in np.unique(personal[scored]):
        mine = personal[scored] == member
        centre, spread = posterior(int(member), local)
        versus[scored[mine]], deviation[scored[mine]] = centre[mine], np.hypot(spread, error[local])[mine]
    return Choice(chosen, shares, personal, mean, error, versus, deviation)


def hedge(scores: Sequence[AgentScores], scale: Array, handicap: Array, allowed: NDArray[np.bool_], seed: int) -> Array:
    """Share of resamples in which each member has the smallest mean score.

    Parameters
    ----------
    scores : one AgentScores per agent
    scale : array, the unit of each agent's scores
    handicap : array of shape (M,), added to the mean scores
    allowed : bool array of shape (M,), the members that may share
    seed : int
    """
    rng = np.random.default_rng(derived_seed(seed, "choices made again"))
    agents = rng.exponential(size=(len(scores), RESAMPLES))
    weights = agents / agents.sum(axis=0)
    total = np.tile(handicap[allowed], (RESAMPLES, 1))

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
    # The root of a rounding error is no rounding error: members of equal losses would be drawn apart.
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
    """Over agents, of the mean difference to the chosen member; of the points where there is one agent only."""
    if len(against) > 1:
        return np.asarray(against.std(axis=0, ddof=1) / np.sqrt(len(against)))
    (mine,) = scores
    if mine.n < 2:
        return np.zeros(against.shape[1])
    spreads = np.array([mine.spread(member, chosen) for member in range(against.shape[1])])
    return np.asarray(np.sqrt(spreads / mine.n) / scale[0])
