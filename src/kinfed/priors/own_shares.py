r"""Shares of an agent's own: how far its combination of the members departs from the federation's.

With w the federation's shares and :math:`L_{tm}` agent t's mean out-of-fold loss of member m on :math:`n_t` rows, its own
are

.. math:: w_{tm} \propto w_m \exp \Bigl( -c \, \frac{n_t L_{tm}}{2 v_t} \Bigr) ,

with :math:`v_t` the mean of its loss and of a typical one, and for log losses 1 in place of :math:`2 v_t`. With c = 1 they
are the posterior probabilities of the members, if w were the prior and losses on rows held out were likelihoods; with c = 0
all agents have the same. So where half of the agents are alike and the others like nobody, each half has a combination of
its own.

c is one number for the federation, found from all agents: each tells what its rows lose with c of `STRENGTHS`, by folds in
folds. Of rows held out the losses are mixed with shares from the other folds, which were predicted without these rows too.
Losses of one level would not do: what other folds lose follows the rows that are judged, and c would seem too good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import isfinite

import numpy as np
from scipy import stats

from kinfed.backends.agents import Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.federation import Agent
from kinfed.learners.inputs import own_codes, own_numbers, relative_weights
from kinfed.learners.linear import PriorLearner, class_losses, design
from kinfed.priors.judging import (
    NOT_ITS_ROWS,
    JudgedMembers,
    held_out,
    judged_own,
    member_scores,
    posterior_coefficients,
    to_judges,
)
from kinfed.priors.normal import Priors, probabilities
from kinfed.validation import Array

STRENGTHS = (0.0, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Values of c that are tried."""
FEWEST_AGENTS, SURE = 3, 0.84
"""How many agents have to judge c, and the probability with which it has to be better than none."""


@dataclass(frozen=True, eq=False)
class StrengthLosses:
    """What B agents told: rows that were judged (B,), none for those that told nothing, and mean losses (B, strengths).

    Squared errors are relative to the agent's scale :math:`v_t`.
    """

    n: Array
    losses: Array

    def strength(self, order: Places) -> float:
        """The c of least loss, if it is surely better than none; agents are taken in this order."""
        judged = order[self.n[order] > 0]
        if len(judged) < FEWEST_AGENTS:
            return 0.0
        saved = self.losses[judged] - self.losses[judged, :1]
        error = saved.std(axis=0, ddof=1) / np.sqrt(len(judged))
        bound = saved.mean(axis=0) + stats.t.ppf(SURE, len(judged) - 1) * error
        return STRENGTHS[int(np.argmin(bound))]


@dataclass(frozen=True, eq=False)
class OwnShares(Question[StrengthLosses]):
    """Ask every agent how far shares should follow its own rows.

    Attributes
    ----------
    priors : tuple of Priors
        Of every group, fitted without it.
    groups : array of int of shape (B,)
    shares : array of shape (M,)
        Of the federation, none of them zero.
    typical : float
        The median agent's loss under these shares.
    """

    priors: tuple[Priors, ...]
    groups: Places
    shares: Array
    typical: float

    name = "own-shares"
    phase = "judging priors"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody who has rows enough the priors of its group."""
        return to_judges({"typical": self.typical}, self.priors, self.groups, self.shares, spec)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """As others learn from its rows, far cells held: what an agent tells decides for all."""
        how = Priors.read(asked.arrays), asked.arrays["at"], float(asked.settings["typical"])
        losses = strength_losses(site.agent, *how, site.learner, site.spec)
        told = np.zeros(len(STRENGTHS)) if losses is None else losses
        return Message({"rows": 0 if losses is None else len(site.agent)}, {"losses": told})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A mean loss for each strength."""
        return {"losses": ArraySpec((len(STRENGTHS),))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Losses are never negative."""
        if not judged_own(answer, spec, place):
            return NOT_ITS_ROWS
        return "its losses are none" if (answer.arrays["losses"] < 0).any() else None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> StrengthLosses:
        """In the order of the agents."""
        found = StrengthLosses(np.zeros(len(spec.names)), np.zeros((len(spec.names), len(STRENGTHS))))
        for k, one in answers.items():
            found.n[k], found.losses[k] = one.settings["rows"], one.arrays["losses"]
        return found

    def pooled(self, agents: PooledAgents) -> StrengthLosses:
        """The same on all cores."""
        return self.on_cores(agents)


def member_scales(judged: JudgedMembers, shares: Array, task: str) -> tuple[Array, float]:
    """What n times a mean loss is divided by in each agent's shares (B,), and the median agent's mean loss."""
    if task != "regression":
        return np.ones(len(judged.n)), 1.0
    losses = np.einsum("i,tij,j->t", shares, judged.curvature, shares) / 2
    typical = float(np.median(losses[judged.n > 0])) if (judged.n > 0).any() else 1.0
    return np.maximum(losses + typical, 1e-300), typical


def shares_of_agents(shares: Array, judged: JudgedMembers, scales: Array, strength: float) -> Array:
    """Every agent's own shares (B, M), from the federation's (M,) or from those it is told (B, M)."""
    with np.errstate(divide="ignore"):
        logarithms = np.log(shares) - strength * (judged.n / scales)[:, None] * judged.losses
    return probabilities(logarithms)


def strength_losses(
    own: Agent, priors: Priors, shares: Array, typical: float, learner: PriorLearner, spec: TrainingSpec
) -> Array | None:
    """Mean losses of an agent's rows at `STRENGTHS`, by folds in folds; None where it has too few rows."""
    folds = held_out(own, 1, spec)
    pairs = list(combinations(range(len(folds)), 2))
    left = [~aside for aside in folds] + [~(folds[f] | folds[g]) for f, g in pairs]
    if len(folds) < 3 or not all(kept.any() for kept in left):
        return None
    coefficients = posterior_coefficients([own.rows(kept) for kept in left], priors, learner, spec)
    points, weights = design(own, learner, spec), relative_weights(own, spec)
    # All rows under the coefficients of all parts, of shape (n, parts, M, K).
    scores = member_scores(points, coefficients.reshape(-1, coefficients.shape[2]))
    scores = scores.reshape(len(own), len(left), len(shares), -1)
    counted = np.ones(len(own)) if weights is None else weights
    quadratic = spec.task == "regression"
    truth = own_numbers(own).ravel() if quadratic else own_codes(own, spec)

    def errors(part: int, fold: int) -> Array:
        """Of the rows (n, M) of a fold, under the coefficients of a part; for classes log losses."""
        rows = folds[fold]
        told = scores[rows, part]
        if quadratic:
            return np.asarray(told[..., 0] - truth[rows, None])
        return np.asarray(class_losses(told)[np.arange(len(told)), :, truth[rows]])

    def mixed(told: Array, with_shares: Array) -> Array:
        """Losses (n,) of the mixture."""
        return np.square(told @ with_shares) if quadratic else -np.log(np.exp(-told) @ with_shares)

    # What a fold's rows lose by members, each predicted without the fold that is judged and without its own.
    others = np.zeros((len(folds), len(shares)))
    for part, (f, g) in enumerate(pairs, start=len(folds)):
        for judged, seen in ((f, g), (g, f)):
            told = errors(part, seen)
            others[judged] += counted[folds[seen]] @ (np.square(told) if quadratic else told)
    here = [errors(fold, fold) for fold in range(len(folds))]
    rows = [counted[aside] for aside in folds]
    at_once = sum(float(n @ mixed(told, shares)) for n, told in zip(rows, here, strict=True)) / counted.sum()
    scale = max(at_once + typical, 1e-300) if quadratic else 1.0
    found = np.zeros(len(STRENGTHS))
    for fold, (n, told) in enumerate(zip(rows, here, strict=True)):
        logarithms = np.log(shares) - np.outer(STRENGTHS, others[fold] / scale)
        found += [float(n @ mixed(told, one)) for one in probabilities(logarithms)]
    found *= (2.0 / scale if quadratic else 1.0) / counted.sum()
    return found if all(map(isfinite, found)) else None
