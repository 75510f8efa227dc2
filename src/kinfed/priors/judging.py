r"""Judging the members on rows that their priors have not seen.

Agents are dealt into groups; the priors for the agents of a group are fitted on the evidence of all others. An agent then
holds out folds of its own rows, at home, finds its posterior from the rest, and predicts. Of the predictions :math:`Z_i`
(members' linear scores of row i) it tells what stacking needs: for squared errors the mean of :math:`e_i e_i'`, the
members' errors; for log losses of mixed probabilities, which are not quadratic, gradient and curvature at given shares.

Folds are dealt without a look at the outcome. With neighbouring numbers, or rows of one class, in different folds the
rows held out would have the mean of those that are left, and members that rely on an agent's own mean would look better
than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import LASTING, Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.checkpoint import digest
from kinfed.federation import Agent
from kinfed.learners.inputs import own_codes, relative_weights
from kinfed.learners.linear import PriorLearner, class_losses, coefficient_count, design
from kinfed.priors.normal import Posteriors, Priors, RowMoments, posteriors
from kinfed.splitting import SMALLEST, deal_rows, derived_seed
from kinfed.validation import Array, whole_number

FOLDS = 5
ENOUGH_ROWS = 2000
"""Small federations deal their folds again until about so many rows were judged."""
MOST_REPEATS = 5
LARGE_MODEL = 100
"""Coefficients from which on folds are dealt once: a model takes their cube."""
GROUPS, GROUPS_OF_ONE = 5, 16
"""Into how many groups agents are dealt; up to so many agents, each is a group of its own."""


def agent_groups(count: int, seed: int) -> Places:
    """The group of each of that many agents."""
    if count <= GROUPS_OF_ONE:
        return np.arange(count)
    return np.asarray(np.random.default_rng(derived_seed(seed, "groups of agents")).permutation(np.arange(count) % GROUPS))


def repeats_of(spec: TrainingSpec) -> int:
    """How often folds are dealt."""
    most = MOST_REPEATS if coefficient_count(spec) < LARGE_MODEL else 1
    return int(np.clip(-(-ENOUGH_ROWS // max(int(spec.sizes.sum()), 1)), 1, most))


@dataclass(frozen=True, eq=False)
class JudgedMembers:
    """What B agents told of M members; n = 0 for those that judged nothing.

    Attributes
    ----------
    n : array of shape (B,)
        Rows that were judged.
    losses : array of shape (B, M)
        Mean loss of every member.
    gradient, curvature : arrays of shape (B, M) and (B, M, M)
        Of the mean loss of the members' mixture as a function of their shares, where it was asked for.
    """

    n: Array
    losses: Array
    gradient: Array
    curvature: Array

    def of_agents(self, places: Places) -> JudgedMembers:
        """What some agents told, in this order."""
        return JudgedMembers(self.n[places], self.losses[places], self.gradient[places], self.curvature[places])

    def of_members(self, places: Places) -> JudgedMembers:
        """What was told of some members."""
        curvature = self.curvature[:, places[:, None], places]
        return JudgedMembers(self.n, self.losses[:, places], self.gradient[:, places], curvature)


@dataclass(frozen=True, eq=False)
class OutOfFold(Question[JudgedMembers]):
    """Everybody's judgement of the members, by rows held out at home.

    Attributes
    ----------
    priors : tuple of Priors
        Of every group, fitted without it.
    groups : array of int of shape (B,)
    shares : array of shape (M,)
        Of the members, where gradient and curvature are taken.
    repeats : int
    """

    priors: tuple[Priors, ...]
    groups: Places
    shares: Array
    repeats: int

    name = "out-of-fold"
    phase = "judging priors"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody who has rows enough the priors of its group."""
        return to_judges({"repeats": self.repeats}, self.priors, self.groups, self.shares, spec)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Judge, and tell means; predictions of single rows stay here, for the next shares."""
        rows, scores = held_out_scores(site, Priors.read(asked.arrays), int(asked.settings["repeats"]))
        return told(site.agent, rows, scores, asked.arrays["at"], site.spec)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Means of losses, and derivatives."""
        count = len(self.shares)
        shapes = {"losses": (count,), "gradient": (count,), "curvature": (count, count)}
        return {name: ArraySpec(shape) for name, shape in shapes.items()}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Losses are never negative, and convex in the shares."""
        if not judged_own(answer, spec, place):
            return NOT_ITS_ROWS
        curvature = answer.arrays["curvature"]
        scale = max(float(np.abs(curvature).max()), 1e-300)
        if (answer.arrays["losses"] < 0).any() or np.linalg.eigvalsh(curvature + curvature.T)[0] < -1e-6 * scale:
            return "its losses are none"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> JudgedMembers:
        """In the order of the agents."""
        count, width = len(spec.names), len(self.shares)
        found = JudgedMembers(
            *(np.zeros(shape) for shape in ((count,), (count, width), (count, width), (count, width, width)))
        )
        for k, one in answers.items():
            found.n[k] = one.settings["rows"]
            for name in ("losses", "gradient", "curvature"):
                getattr(found, name)[k] = one.arrays[name]
        return found

    def pooled(self, agents: PooledAgents) -> JudgedMembers:
        """The same on all cores."""
        return self.on_cores(agents)


NOT_ITS_ROWS = "it judged other rows than it has"


def judged_own(answer: Message, spec: TrainingSpec, place: int) -> bool:
    """Whether the number of rows that were judged is possible."""
    return 0 <= whole_number(answer.settings["rows"], "the number of rows") <= spec.sizes[place]


def to_judges(
    settings: Mapping[str, Any], priors: Sequence[Priors], groups: Places, shares: Array, spec: TrainingSpec
) -> Mapping[int, Message]:
    """The priors of its group, and shares, for every agent who has rows enough to judge them."""
    told = [Message(settings, {**one.arrays, "at": shares}) for one in priors]
    return {k: told[groups[k]] for k in range(len(spec.names)) if spec.sizes[k] >= SMALLEST}


def held_out(own: Agent, repeats: int, spec: TrainingSpec) -> list[NDArray[np.bool_]]:
    """Which rows are held out, fold by fold."""
    found = []
    for repeat in range(repeats):
        dealt = deal_rows(own.name, len(own), None, FOLDS, spec.seed, repeat, group=own.group)
        found += [dealt == fold for fold in range(FOLDS) if (dealt == fold).any()]
    return found


def held_out_scores(site: SiteView, priors: Priors, repeats: int) -> tuple[NDArray[np.int64], Array]:
    """Places of the rows judged (N,), and their scores (N, M, K); for classes they are kept for the next question.

    Rows are judged as others learn from them, far cells held: what an agent tells decides for all.
    """
    piece = f"{LASTING}scores of {digest(str(repeats), *priors.arrays.values())[:16]}"
    kept = site.state.get(piece)
    if kept is None:
        kept = out_of_fold_scores(site.agent, priors, repeats, site.learner, site.spec)
        if site.spec.task == "classification":
            site.state[piece] = kept
    outputs = (kept.shape[1] - 1) // len(priors)
    return kept[:, 0].astype(np.int64), kept[:, 1:].reshape(len(kept), len(priors), outputs)


def out_of_fold_scores(own: Agent, priors: Priors, repeats: int, learner: PriorLearner, spec: TrainingSpec) -> Array:
    """Linear scores of an agent's rows by all members, of shape (rows judged, 1 + M outputs).

    The first column has the place of the row; a row that several repeats judge is there several times.
    """
    held = held_out(own, repeats, spec)
    if not held:
        return np.zeros((0, 1 + len(priors) * (priors.centres.shape[2] // (spec.dim + 1))))
    parts = [own.rows(~aside) for aside in held]
    found = []
    coefficients = posterior_coefficients(parts, priors, learner, spec)
    points = design(own, learner, spec)
    for aside, theta in zip(held, coefficients, strict=True):
        rows = np.flatnonzero(aside)
        found.append(np.column_stack([rows, member_scores(points[rows], theta).reshape(len(rows), -1)]))
    return np.concatenate(found)


def member_scores(points: Array, coefficients: Array) -> Array:
    """Linear scores (n, M, K) of points (n, d + 1), from the coefficients (M, p) of members."""
    outputs = coefficients.reshape(len(coefficients), -1, points.shape[1])
    return np.asarray(np.einsum("np,mkp->nmk", points, outputs))


def posterior_coefficients(parts: list[Agent], priors: Priors, learner: PriorLearner, spec: TrainingSpec) -> Array:
    """Coefficients (T, M, p) of every member for each part of an agent's rows."""
    return _modes(posteriors(priors, evidence_of_parts(parts, learner, spec)), parts, priors, learner, spec)


def posterior_moments(parts: list[Agent], priors: Priors, learner: PriorLearner, spec: TrainingSpec) -> tuple[Array, Array]:
    """The same, and their covariances (T, M, p, p)."""
    found = posteriors(priors, evidence_of_parts(parts, learner, spec))
    modes, spread = _modes(found, parts, priors, learner, spec), priors.spread
    return modes, learner.mode_covariances(parts, modes, spread, found.within(priors), spec) + found.between


def _modes(found: Posteriors, parts: list[Agent], priors: Priors, learner: PriorLearner, spec: TrainingSpec) -> Array:
    centres = np.einsum("tmc,mcp->tmp", found.responsibilities, priors.centres)
    return learner.posterior_modes(parts, centres, priors.spread, found.coefficients, spec)


def evidence_of_parts(parts: list[Agent], learner: PriorLearner, spec: TrainingSpec) -> RowMoments:
    """Second moments of each part."""
    sums = [learner.own_sums(part, spec) for part in parts]
    n = np.array([float(len(part)) for part in parts])
    return RowMoments.of(n, *(np.array([one[place] for one in sums]) for place in range(3)))


def told(own: Agent, rows: NDArray[np.int64], scores: Array, shares: Array, spec: TrainingSpec) -> Message:
    """What an agent tells of its members' scores (N, M, K) at shares: mean losses, gradient and curvature."""
    count = scores.shape[1]
    weights = relative_weights(own, spec)
    if not len(rows):
        nothing = {"losses": np.zeros(count), "gradient": np.zeros(count), "curvature": np.zeros((count, count))}
        return Message({"rows": 0}, nothing)
    counted = np.ones(len(rows)) if weights is None else weights[rows]
    counted = counted / counted.sum()
    if spec.task == "regression":
        errors = scores[..., 0] - np.asarray(own.y, dtype=np.float64).ravel()[rows, None]
        second = (counted[:, None] * errors).T @ errors
        arrays = {"losses": np.diagonal(second).copy(), "gradient": 2 * second @ shares, "curvature": 2 * second}
    else:
        each = class_losses(scores)[np.arange(len(rows)), :, own_codes(own, spec)[rows]]
        likely = np.exp(-each)
        slopes = likely / (likely @ shares)[:, None]  # of minus the logarithm of the mixture
        curvature = (counted[:, None] * slopes).T @ slopes
        arrays = {"losses": counted @ each, "gradient": -counted @ slopes, "curvature": curvature}
    return Message({"rows": len(np.unique(rows))}, arrays)
