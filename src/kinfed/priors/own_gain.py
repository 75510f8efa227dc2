r"""What an agent can tell of its gain: how far its personal model is from its own alone, and how both do on rows held out.

The stacked models are posterior means. If :math:`\theta_s` is one, under the posterior :math:`N(\theta_s, C)`, and
:math:`\theta_l` is the model that the agent would have alone, the loss that joining saves is, as a function of the truth
:math:`\theta = \theta_s + e`,

.. math:: D(\theta) = E_x \ell(\theta_l) - E_x \ell(\theta_s) = q + h'e + \dots, \qquad E[D | \text{rows}] \approx q ,

with q the mean divergence of the two models' predictions: for squared errors :math:`q = E_x (x'(\theta_s - \theta_l))^2`
and :math:`h = 2 E_x[xx'] (\theta_s - \theta_l)`, exactly; for log losses q is the Kullback-Leibler divergence of the
probabilities, and the truth is drawn. So q, found with *all* rows, is what to expect before any test, :math:`h'Ch` its
variance, and no test row's noise is in it; losses on rows held out, at four fifths of the rows, say whether it can be
trusted. Predictions are compared on *typical rows*, which have the second moments of everybody's columns: on its own rows
an agent's model alone fits what it has learnt by heart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.federation import Agent
from kinfed.learners.inputs import own_codes, own_numbers, relative_weights
from kinfed.learners.linear import PriorLearner, class_losses, mixed_losses
from kinfed.priors.judging import FOLDS, NOT_ITS_ROWS, held_out_scores, judged_own, posterior_moments
from kinfed.priors.normal import Priors, RowMoments
from kinfed.splitting import SMALLEST, deal_rows, derived_seed
from kinfed.validation import Array

TYPICAL_ROWS = 200
"""Rows on which probabilities are compared."""
JUDGED = ("alone", "joined", "apart", "typically apart", "variance", "excess")
FINAL = ("apart", "variance", "excess", "excess variance")
DRAWS = 64
"""Truths that are drawn for classes."""
WIDTHS = {"regression": (0.5, 1.2), "classification": (0.75, 1.8)}
"""What posteriors are too wide by, as a factor of their covariance: with no rows, and with many; see `width`."""


@dataclass(frozen=True, eq=False)
class OwnGains:
    """What B agents told; NaN for those that did not.

    Attributes
    ----------
    n : array of shape (B,)
        Rows that were judged.
    judged : array of shape (B, 6)
        Of models on four fifths of the rows, in the order of `JUDGED`: mean losses alone and stacked, on rows held out;
        mean divergence of the two, on those rows and on typical ones; variance of the stacked model's loss over rows; and
        its expected excess loss, from its posterior.
    final : array of shape (B, 4)
        Of models on all rows, in the order of `FINAL`: their divergence on typical rows, the variance of the loss that is
        saved, the stacked model's expected excess loss, and the variance of that.
    """

    n: Array
    judged: Array
    final: Array


@dataclass(frozen=True, eq=False)
class OwnGain(Question[OwnGains]):
    """Ask every agent what it would gain, by its own lights.

    Attributes
    ----------
    priors : tuple of Priors
        Of every group, fitted without it.
    groups : array of int of shape (B,)
    shares : array of shape (B, 3, M)
        Of the members, found without the agent's group: when learning alone, stacked, and stacked as its own rows say.
        The last are not judged on those rows.
    typical : array of shape (r, d + 1)
        Typical rows.
    repeats : int
    """

    priors: tuple[Priors, ...]
    groups: Places
    shares: Array
    typical: Array
    repeats: int

    name = "own-gain"
    phase = "expected gain"
    follows = "nothing is said of its gain"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody the priors of its group."""
        told = [{**one.arrays, "typical": self.typical} for one in self.priors]
        return {
            k: Message({"repeats": self.repeats}, {**told[self.groups[k]], "at": self.shares[k]})
            for k in range(len(spec.names))
            if spec.sizes[k]
        }

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Ten numbers: means over rows, and what models of all rows differ in."""
        priors, shares, typical = Priors.read(asked.arrays), asked.arrays["at"], asked.arrays["typical"]
        # As others learn from its rows, far cells held: what it tells has a part in what others may expect.
        own, spec, learner = site.agent, site.spec, site.learner
        final = _differences([own], priors, shares[[0, 2]], typical, learner, spec)[0]
        arrays = {"final": final, "judged": np.full(len(JUDGED), np.nan)}
        if len(own) < SMALLEST:
            return Message({"rows": 0}, arrays)
        rows, scores = held_out_scores(site, priors, int(asked.settings["repeats"]))
        alone, joined = (mixed(scores, one, spec) for one in shares[:2])
        losses = np.column_stack([_losses(own, rows, alone, spec), _losses(own, rows, joined, spec)])
        weights = relative_weights(own, spec)
        counted = np.ones(len(rows)) if weights is None else weights[rows]
        means = counted @ np.column_stack([losses, divergences(joined, alone, spec)]) / counted.sum()
        # A row that several repeats judge has one loss, their mean.
        seen, place = np.unique(rows, return_inverse=True)
        each = np.bincount(place, counted * losses[:, 1]) / np.bincount(place, counted)
        parts = [own.rows(kept) for kept in _kept(own, spec)]
        typically = np.mean(_differences(parts, priors, shares[:2], typical, learner, spec), axis=0)
        excess = typically[FINAL.index("excess")]
        arrays["judged"] = np.array([*means, typically[0], each.var(ddof=1), excess])
        return Message({"rows": len(seen)}, arrays)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Ten numbers, in two arrays."""
        return {"judged": ArraySpec((len(JUDGED),), gaps=True), "final": ArraySpec((len(FINAL),))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """None of the numbers can be negative."""
        if not judged_own(answer, spec, place):
            return NOT_ITS_ROWS
        judged = answer.arrays["judged"]
        if np.isnan(judged).any() != (answer.settings["rows"] == 0):
            return "it does not tell all that it judged"
        # Divergences of nearly equal probabilities may be below zero by rounding.
        least = min(float(np.nan_to_num(judged, nan=0.0).min()), float(answer.arrays["final"].min()))
        return "its losses are none" if least < -1e-6 else None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> OwnGains:
        """In the order of the agents."""
        count = len(spec.names)
        found = OwnGains(np.zeros(count), *(np.full((count, len(told)), np.nan) for told in (JUDGED, FINAL)))
        for k, one in answers.items():
            found.n[k] = one.settings["rows"]
            found.judged[k], found.final[k] = one.arrays["judged"], one.arrays["final"]
        return found

    def pooled(self, agents: PooledAgents) -> OwnGains:
        """The same on all cores."""
        return self.on_cores(agents)


def typical_rows(evidence: RowMoments, spec: TrainingSpec) -> Array:
    r"""Rows (r, d + 1) that have the second moments of everybody's, from what everybody told.

    For squared errors they are the rows of a factor, so that means of squares of linear functions are exact. For log losses
    the curvature :math:`E[p (1 - p) xx']` stands for the second moments, relative to its entry at the intercept, and
    `TYPICAL_ROWS` normal rows are drawn with them.
    """
    width, rows = spec.dim + 1, float(evidence.n.sum())
    matrix = np.einsum("trp,trq->pq", evidence.root, evidence.root) / max(rows, 1.0)
    if spec.task != "regression":
        blocks = [matrix[at : at + width, at : at + width] for at in range(0, len(matrix), width)]
        matrix = np.mean([one / max(one[-1, -1], 1e-12) for one in blocks], axis=0)
        centre = matrix[:-1, -1]
        values, vectors = np.linalg.eigh(matrix[:-1, :-1] - np.outer(centre, centre))
        rng = np.random.default_rng(derived_seed(spec.seed, "typical rows"))
        drawn = rng.standard_normal((TYPICAL_ROWS // 2, spec.dim)) * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
        return np.column_stack([centre + np.concatenate([drawn, -drawn]), np.ones(2 * len(drawn))])
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(width * np.maximum(values, 0.0))[:, None] * vectors.T)


def width(rows: int, columns: int, task: str) -> float:
    """How much of the posterior's covariance is there, for an agent of so many rows and columns.

    A mixture of members is better than they are; where rows are few, its covariance is that of its widest members.
    """
    few, many = WIDTHS[task]
    return few + (many - few) * rows / (rows + columns)


def mixed(scores: Array, shares: Array, spec: TrainingSpec) -> Array:
    """Predictions from members' linear scores (n, M, K): numbers (n, 1), or log losses (n, C) of every class."""
    return scores[..., 0] @ shares[:, None] if spec.task == "regression" else mixed_losses(scores, shares)


def divergences(joined: Array, alone: Array, spec: TrainingSpec) -> Array:
    """How far predictions, as `mixed` has them, are apart (n,).

    Squares of their difference, or Kullback-Leibler divergences of their probabilities: what the first expects to save.
    """
    if spec.task == "regression":
        return np.asarray(np.square(joined[:, 0] - alone[:, 0]))
    return np.asarray((np.exp(-joined) * (alone - joined)).sum(axis=1))


def _losses(own: Agent, rows: NDArray[np.int64], predicted: Array, spec: TrainingSpec) -> Array:
    if spec.task == "regression":
        return np.asarray(np.square(predicted[:, 0] - own_numbers(own).ravel()[rows]))
    return np.asarray(predicted[np.arange(len(rows)), own_codes(own, spec)[rows]])


def _kept(own: Agent, spec: TrainingSpec) -> list[NDArray[np.bool_]]:
    """The rows that each fold of the first repeat leaves."""
    dealt = deal_rows(own.name, len(own), None, FOLDS, spec.seed, 0, group=own.group)
    return [dealt != fold for fold in range(FOLDS) if (dealt == fold).any()]


def _differences(
    parts: list[Agent], priors: Priors, shares: Array, typical: Array, learner: PriorLearner, spec: TrainingSpec
) -> Array:
    """Of models on each part of the rows: the numbers of `FINAL`, (T, 4)."""
    alone, joined = shares
    told = []
    for part, each, within in zip(parts, *posterior_moments(parts, priors, learner, spec), strict=True):
        within *= width(len(part), typical.shape[1], spec.task)
        if spec.task == "regression":
            apart = each - joined @ each
            between = width(len(part), typical.shape[1], spec.task) * np.einsum("m,mp,mq->pq", joined, apart, apart)
            covariance = np.einsum("m,mpq->pq", joined, within) + between
            told.append(_of_squares(joined @ each, alone @ each, covariance, typical))
        else:
            told.append(_of_classes(each, shares, within, typical, spec.seed))
    return np.array(told)


def _of_squares(joined: Array, alone: Array, covariance: Array, typical: Array) -> list[float]:
    """For squared errors, in closed form: moments of linear and quadratic functions of a normal vector."""
    moments = typical.T @ typical / len(typical)
    slope, turned = 2 * moments @ (joined - alone), moments @ covariance
    apart = float(slope @ (joined - alone)) / 2
    return [apart, slope @ covariance @ slope, np.trace(turned), 2 * np.einsum("ij,ji->", turned, turned)]


def _of_classes(each: Array, shares: Array, within: Array, typical: Array, seed: int) -> list[float]:
    """For log losses, over truths that are drawn from the posterior: a member by its share, and its coefficients.

    Parameters
    ----------
    each, within : arrays of shape (M, p) and (M, p, p)
        The members' coefficients and their covariances.
    shares : array of shape (2, M)
        Of learning alone and of joining.
    typical : array of shape (r, d + 1)
    seed : int
    """
    scores = np.einsum("np,mkp->nmk", typical, each.reshape(len(each), -1, typical.shape[1]))
    more, less = (mixed_losses(scores, one) for one in shares)
    rng = np.random.default_rng(derived_seed(seed, "truths"))
    ends = np.round(DRAWS * np.cumsum(shares[1])).astype(np.int64)
    saved, excess = [], []
    for theta, covariance, count in zip(each, within, np.diff(ends, prepend=0), strict=True):
        if not count:
            continue
        values, vectors = np.linalg.eigh(covariance)
        moves = rng.standard_normal((count, len(theta))) * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
        moves[count // 2 : count // 2 * 2] = -moves[: count // 2]  # in opposite pairs
        for move in moves:
            least = class_losses(typical @ (theta + move).reshape(-1, typical.shape[1]).T)
            likely = np.exp(-least)
            saved.append(float((likely * (more - less)).sum(axis=1).mean()))
            excess.append(float((likely * (less - least)).sum(axis=1).mean()))
    apart = float((np.exp(-less) * (more - less)).sum(axis=1).mean())
    return [apart, float(np.var(saved)), max(float(np.mean(excess)), 0.0), float(np.var(excess))]
