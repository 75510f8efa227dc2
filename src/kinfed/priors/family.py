r"""The family: what one might believe of an agent's coefficients before its rows are seen.

From knowing nothing of the others to taking over what they know: a ridge penalty of its own, one common model, a pull
towards it, random coefficients, clusters, and the models of single kin. Penalties are ratios of variances, :math:`\kappa
= \sigma^2 / \tau^2` of coefficients with variance :math:`\tau^2`, so that what suits four fifths of the rows suits all of
them.

Which members are usual was decided on 19 generators (`benchmarks/family.py`, two or three repetitions, seeds from 1000
on). Test losses over those of all 26 members, in the geometric mean and in the worst case: without pulls 0.9997 and
1.002; without the models of single clusters (`ALIKE`) 1.002 and 1.035, without penalties of learning alone 1.003 and
1.053, without those of the common model 1.001 and 1.010, without random coefficients about one centre 1.005 and 1.020,
without those about several 1.020 and 1.169. So pulls are left out. Twelve members, with half the penalties and two
clusters that are alike, had 1.001, but 1.021 where columns are many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.priors.fitting import RandomCoefficients, fit_random_coefficients
from kinfed.priors.influence import Sources
from kinfed.priors.normal import Priors, RowMoments
from kinfed.registry import Registry
from kinfed.validation import Array

FREE = 1e6
"""Variance of an intercept that nothing is known of, relative to the noise."""
TIGHT = 1e-3
"""What is left of the spread within a cluster whose agents are taken to be alike."""
MARGIN, CLUSTER_MARGIN = 0.2, 0.25
"""h and c of `margins`."""
FULL_AGENTS = 1.5
"""A full spread needs so many agents for each coefficient; with fewer, its correlations are of low rank."""


_IN_WORDS = {
    "local": "learning alone, penalty {strength:g}",
    "common": "one common model, penalty {strength:g}",
    "pull": "pulled to the common model, strength {strength:g}",
    "random": "random coefficients, {spread}",
    "clustered random": "{strength:g} clusters, random coefficients within",
    "alike": "{strength:g} clusters, one model each",
    "kin": "near single others, width {strength:g}",
}
_SPREADS = {
    "isotropic": "one spread for all",
    "diagonal": "independent",
    "low-rank": "correlated in a few directions",
    "full": "correlated",
}


@dataclass(frozen=True)
class Member:
    """One prior of the family.

    Attributes
    ----------
    kind : str
        A key of `MEMBERS`.
    strength : float
        Its penalty, or number of clusters, or width.
    spread : str
        Of random coefficients: "isotropic", "diagonal", "low-rank" or "full".
    """

    kind: str
    strength: float = 1.0
    spread: str = "diagonal"

    def describe(self) -> str:
        """The member in words; what kind it is stands before the first comma."""
        several = "clustered " if self.kind == "random" and self.strength > 1 else ""
        words = _IN_WORDS.get(several + self.kind, f"{self.kind}, {{strength:g}}")
        spread = _SPREADS.get(self.spread, self.spread)
        apart = "" if self.spread == "diagonal" or "{spread}" in words else f", {spread}"
        return words.format(strength=self.strength, spread=spread) + apart

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, eq=False)
class Known:
    """What members are made from: everybody's evidence, and fits that several share, made once.

    Attributes
    ----------
    evidence : RowMoments
    intercepts : array of bool of shape (p,)
    voices : array of shape (B,)
    noise : float, optional
        Where it is known.
    seed : int
    fits : dict
    """

    evidence: RowMoments
    intercepts: NDArray[np.bool_]
    voices: Array
    noise: float | None
    seed: int
    whole: bool
    fits: dict[tuple[str, int], RandomCoefficients]

    def fitted(self, spread: str, clusters: int) -> RandomCoefficients:
        """Random coefficients; several clusters are sought from where one has ended."""
        if spread == "full" and self.voices.sum() < FULL_AGENTS * len(self.intercepts):
            spread = "low-rank"
        key = spread, clusters
        if key not in self.fits:
            how = {"intercepts": self.intercepts, "voices": self.voices, "noise": self.noise, "seed": self.seed}
            simple = ("isotropic", 1) if clusters == 1 else ("diagonal", 1)
            start = None if key == simple else self.fitted(*simple)
            self.fits[key] = fit_random_coefficients(self.evidence, spread, clusters, start=start, **how)  # type: ignore[arg-type]
        return self.fits[key]

    def common(self, penalty: float) -> tuple[Array, Array]:
        """One model for everybody, of shape (p,), and its covariance relative to the noise."""
        root, seen = self._all
        inverse = np.linalg.inv(root.T @ root + np.diag(np.where(self.intercepts, 1.0 / FREE, penalty)))
        return inverse @ (root.T @ seen), inverse

    @cached_property
    def pooled_penalty(self) -> float:
        r"""The penalty of the common model that is most likely: that of largest evidence in all rows, as if of one agent.

        With eigenvalues :math:`a_j` of the sum of all A and the outcome's parts :math:`v_j` along their vectors, it
        minimises :math:`N \log Q(\kappa) + \sum_j \log (1 + a_j / \kappa)`, where :math:`Q = \sum_i y_i^2 - \sum_j
        v_j^2 / (a_j + \kappa)` is the least penalised sum of squares.
        """
        slopes, free = ~self.intercepts, self.intercepts
        root, seen = self._all
        rows = float((self.voices * self.evidence.n).sum())
        matrix, cross = root.T @ root, root.T @ seen
        # The intercepts are free: what they explain is taken out first.
        gone = np.linalg.solve(
            matrix[np.ix_(free, free)] + np.eye(free.sum()) / FREE, np.column_stack([matrix[free], cross[free]])
        )
        inner = matrix[np.ix_(slopes, slopes)] - matrix[np.ix_(slopes, free)] @ gone[:, :-1][:, slopes]
        left = cross[slopes] - matrix[np.ix_(slopes, free)] @ gone[:, -1]
        squares = float(seen @ seen + self.voices @ self.evidence.unseen - cross[free] @ gone[:, -1])
        values, vectors = np.linalg.eigh(inner)
        parts = np.square(vectors.T @ left)
        penalties = 10.0 ** np.arange(-1.0, 5.01, 0.25)
        shrunk = squares - (parts / (np.maximum(values, 0.0) + penalties[:, None])).sum(axis=1)
        fit = rows * np.log(np.maximum(shrunk, max(1e-12 * squares, 1e-200))) if self.noise is None else shrunk / self.noise
        return float(penalties[np.argmin(fit + np.log1p(np.maximum(values, 0.0) / penalties[:, None]).sum(axis=1))])

    @property
    def _all(self) -> tuple[Array, Array]:
        """All agents' rows, one below the other, as factors; their outcomes."""
        root = (np.sqrt(self.voices)[:, None, None] * self.evidence.root).reshape(-1, len(self.intercepts))
        return root, (np.sqrt(self.voices)[:, None] * self.evidence.seen).ravel()


class Made(NamedTuple):
    """A member's prior, and what its centres are made of; None where that is nothing of others.

    `single` says that every component is about one agent, in their order: that agent is to do without it.
    """

    prior: Priors
    sources: Sources | None
    single: bool = False


def _made(
    known: Known,
    centres: Array,
    variances: Array,
    correlated: Array | None = None,
    sources: Sources | None = None,
    shares: Array | None = None,
    noise: float | None = None,
) -> Made:
    """A member of components about `centres`, whose spread has a part that is diagonal and one that is not."""
    level = known.fitted("isotropic", 1).noise if noise is None else noise
    factor = np.zeros((len(variances), 0))
    if correlated is not None:
        values, vectors = np.linalg.eigh(correlated)
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
    parts = np.ones(1) if shares is None else shares
    there = np.broadcast_to(centres, (len(parts), len(variances)))
    return Made(Priors(parts[None], there[None], np.asarray(variances)[None], factor[None], np.array([level])), sources)


def _local(known: Known, member: Member) -> Made:
    """Nothing of the others: slopes about zero, and an intercept that is free."""
    return _made(known, np.zeros(len(known.intercepts)), np.where(known.intercepts, FREE, 1.0 / member.strength))


def _common(known: Known, member: Member) -> Made:
    """One model for everybody."""
    return _about_common(known, member.strength, 0.0)


def _pull(known: Known, member: Member) -> Made:
    """All coefficients about the common model's, as in Ditto."""
    return _about_common(known, known.pooled_penalty, 1.0 / member.strength)


def _about_common(known: Known, penalty: float, variance: float) -> Made:
    centre, uncertainty = known.common(penalty)
    sources = Sources(uncertainty[None], known.voices[:, None], np.zeros_like(uncertainty))
    return _made(known, centre, np.full(len(centre), variance), None if known.whole else uncertainty, sources)


def _random(known: Known, member: Member) -> Made:
    """Random coefficients about one centre, or those of clusters."""
    fit = known.fitted(member.spread, int(member.strength))
    diagonal = member.spread in ("isotropic", "diagonal")
    return _about_fit(known, fit, np.diagonal(fit.spread) * diagonal, None if diagonal else fit.spread)


def _alike(known: Known, member: Member) -> Made:
    """Clusters of agents that are taken to be alike: each has one model, as in clustered federated learning."""
    fit = known.fitted(member.spread, int(member.strength))
    return _about_fit(known, fit, TIGHT * np.diagonal(fit.spread), None)


def _about_fit(known: Known, fit: RandomCoefficients, variances: Array, correlated: Array | None) -> Made:
    sources = Sources(fit.uncertainty, known.voices[:, None] * fit.memberships, fit.spread)
    if not known.whole:
        uncertain = np.einsum("c,cpq->pq", fit.shares, fit.uncertainty)
        correlated = uncertain if correlated is None else correlated + uncertain
    return _made(known, fit.centres, variances, correlated, sources, fit.shares, fit.noise)


def _kin(known: Known, member: Member) -> Made:
    """As single others are: a component about every agent's posterior mean, as wide as a share of the spread."""
    fit = known.fitted("diagonal", 1)
    variances = member.strength * np.diagonal(fit.spread) + np.diagonal(fit.uncertainty[0])
    shares = known.voices / known.voices.sum()
    each = np.broadcast_to(fit.spread, (len(shares), *fit.spread.shape))
    sources = Sources(each, np.eye(len(shares)), fit.spread)
    return _made(known, fit.means, variances, None, sources, shares, fit.noise)._replace(single=True)


MEMBERS: Registry[Callable[[Known, Member], Made]] = Registry(
    "member", {"local": _local, "common": _common, "pull": _pull, "random": _random, "alike": _alike, "kin": _kin}
)
"""Kinds of members, each a function that makes the prior from what is known of the agents."""

LOCAL = tuple(Member("local", kappa) for kappa in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0))
COMMON = tuple(Member("common", kappa) for kappa in (1.0, 30.0, 300.0, 3000.0))
PULLS = tuple(Member("pull", kappa) for kappa in (1.0, 3.0, 10.0, 30.0, 100.0, 300.0))
RANDOM = (Member("random", 1, "isotropic"), Member("random", 1), Member("random", 1, "full"))
CLUSTERED = tuple(Member("random", clusters) for clusters in (2, 3, 5))
ALIKE = tuple(Member("alike", clusters) for clusters in (2, 3, 5))
KIN = tuple(Member("kin", width) for width in (0.1,))
FAMILY = (*LOCAL, *COMMON, *RANDOM, *CLUSTERED, *ALIKE)
"""The usual members: pulls towards the common model add nothing to random coefficients about it."""


def margins(members: Sequence[Member], agents: int, rows: int, width: int) -> Array:
    r"""By which share of the loss each member has to be better than random coefficients about one centre, of shape (M,).

    Those can turn into one common model or into learning alone, and know how far to go from the agents; the others have a
    number that was fixed before, and pay :math:`h / B`. Further clusters pay :math:`c \, p / N` for the p coefficients of
    each centre, a part of what Akaike's criterion takes off.

    Parameters
    ----------
    members : sequence of Member
    agents, rows : int
        B and N, of all agents.
    width : int
        p.
    """
    found = [
        MARGIN / max(agents, 1) * (one.kind != "random")
        + CLUSTER_MARGIN * (one.strength - 1) * width / max(rows, 1) * (one.kind in ("random", "alike"))
        for one in members
    ]
    return np.array(found)


@dataclass(frozen=True, eq=False)
class FittedMembers:
    """Priors of all members, what their centres are made of, and which have a component for every single agent."""

    priors: Priors
    sources: tuple[Sources | None, ...]
    single: NDArray[np.bool_]


def fit_members(
    members: Sequence[Member],
    evidence: RowMoments,
    intercepts: NDArray[np.bool_],
    voices: Array | None = None,
    noise: float | None = None,
    seed: int = 0,
    whole: bool = True,
) -> FittedMembers:
    """The priors of all members, from everybody's evidence; see `Known`."""
    counts = np.ones(len(evidence)) if voices is None else voices
    known = Known(evidence, intercepts, counts, noise, seed, whole, {})
    made = [MEMBERS[one.kind](known, one) for one in members]
    together = Priors.together([one.prior for one in made])
    return FittedMembers(together, tuple(one.sources for one in made), np.array([one.single for one in made]))
