"""Priors around the others' models, each judged on rows it has not seen, and one convex combination of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinfed.backends.agents import Agents, Places, Question, TrainingSpec
from kinfed.learners.base import Learner, Models
from kinfed.learners.linear import PriorLearner
from kinfed.methods.base import KeptAnswers, Method, MethodContext
from kinfed.methods.crosswise import Crosswise
from kinfed.methods.tuning import has_priors, is_tuned
from kinfed.methods.weighted import GrandMean, Local, Weighted
from kinfed.priors.expectation import ExpectedGain, expected_gain, own_gain_question
from kinfed.priors.family import COMMON, LOCAL, FittedMembers, Member, margins
from kinfed.priors.judging import JudgedMembers, OutOfFold, repeats_of
from kinfed.priors.own_gain import OwnGains
from kinfed.priors.own_shares import OwnShares, StrengthLosses, member_scales, shares_of_agents
from kinfed.priors.posterior import OwnModels, OwnPosterior
from kinfed.priors.result import Stacking
from kinfed.priors.stacking import Stack, stacked_shares
from kinfed.validation import Array
from kinfed.weights import Weights


@dataclass(frozen=True)
class Stacked(Method):
    """Members of a family of priors, stacked.

    For learners that are not linear, or too large for everybody's second moments to be in one place, there is one member:
    calibrated weights, and the weighted risk.

    Attributes
    ----------
    members : tuple of Member
    """

    members: tuple[Member, ...]

    onboards = True

    def weigh(self, context: MethodContext) -> Weights | None:
        """Calibrated weights where the learner knows no priors."""
        return None if has_priors(context) else Weighted().weigh(context)

    def expected(self, context: MethodContext) -> ExpectedGain | None:
        """By members that were judged; None for learners that know no priors, and for learning alone."""
        learner = context.learner
        if not has_priors(context) or not isinstance(learner, PriorLearner):
            return None
        agents = context.agents.labelled("training")
        return self.judged(learner, agents, KeptAnswers(agents, None), context.reporter("priors")).expected

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """Fit the priors crosswise, judge them, stack them, and let every agent find its model."""
        learner = context.learner
        if weights is not None or not isinstance(learner, PriorLearner):
            return Weighted().train(context, weights)
        own = self._own_models(context, learner)
        return learner.linear_models(own.coefficients, own.shares, context.agents.spec, own.covariance, own.noise)

    def _own_models(self, context: MethodContext, learner: PriorLearner) -> OwnModels:
        """What is found is told beside."""
        agents = context.agents.labelled("training")
        spec, report = agents.spec, context.reporter("priors")
        members = self._members(agents)
        answers = KeptAnswers(agents, None if context.checkpoint is None else context.checkpoint / "priors")
        judged = self.judged(learner, agents, answers, report)
        crosswise, stack, whole = judged.crosswise, judged.stack, judged.fitted[-1]
        used = stack.used
        shares = stack.shares[used] / stack.shares[used].sum()
        each = judged.own_shares(shares, used, spec.task)
        own = answers.ask(OwnPosterior(*crosswise.final(judged.fitted, used), each), OwnModels)
        if spec.quiet and any(one.kind != "local" for one in members):  # whoever nobody hears hears nobody
            folder = None if context.checkpoint is None else context.checkpoint / "alone"
            alone = Stacked(LOCAL)._own_models(replace(context, found={}, checkpoint=folder), learner)
            own = own.with_others(np.array(list(spec.quiet)), alone)
        context.found["stacking"] = Stacking(
            spec.names,
            tuple(str(members[place]) for place in used.tolist()),
            shares,
            stack.judged.n,
            stack.judged.losses[:, used],
            crosswise.influence(whole, used, each, spec.seed),
            whole.priors.select(used),
            judged.expected,
            each,
        )
        report(4, 4)
        return own

    def newcomer(
        self, spec: TrainingSpec, ask: Callable[[Question[Any]], Any], learner: Learner, found: Mapping[str, Any]
    ) -> Models:
        """What the rows of the last agent make of the priors that all others have left."""
        stacking: Stacking = found["stacking"]
        of = np.append(np.full(len(spec.names) - 1, -1), 0)
        own = ask(OwnPosterior((stacking.priors,), of, np.tile(stacking.shares, (len(of), 1))))
        given: Any = learner
        last = (one[-1:] for one in (own.covariance, own.noise))
        models: Models = given.linear_models(own.coefficients[-1:], own.shares[-1:], spec, *last)
        return models

    def _members(self, agents: Agents) -> tuple[Member, ...]:
        """Whoever is the only one learns alone."""
        return self.members if len(agents.spec.names) - len(agents.left_out) > 1 else LOCAL

    def judged(
        self, learner: PriorLearner, agents: Agents, answers: KeptAnswers, report: Callable[[int, int], None]
    ) -> Judged:
        """`judged_members`, how far everybody departs from their shares, and what agents may expect to gain."""
        spec, members = agents.spec, self._members(agents)
        kinds = [one.kind == "local" for one in members]
        beside = () if all(kinds) else tuple(one for one in LOCAL if one not in members)
        crosswise, fitted, stack = judged_members(members, learner, agents, answers, report, beside)
        found = Judged(crosswise, fitted, stack)
        if all(kinds) or (crosswise.voices > 0).sum() < 2:
            return found
        outside = [one.priors for one in fitted[:-1]]
        if len(stack.used) > 1:
            chosen = tuple(one.select(stack.used) for one in outside)
            shares = stack.shares[stack.used] / stack.shares[stack.used].sum()
            typical = member_scales(stack.judged, stack.shares, spec.task)[1]
            told = answers.ask(OwnShares(chosen, crosswise.groups, shares, typical), StrengthLosses)
            heard = replace(told, n=told.n * (stack.judged.n > 0))
            found = replace(found, strength=heard.strength(crosswise.order))
        places = np.flatnonzero([*kinds, *(True for _ in beside)]), np.arange(len(members))
        evidence = crosswise.evidence
        asked = own_gain_question(spec, outside, crosswise.groups, evidence, stack, places, found.strength)
        return replace(found, expected=expected_gain(answers.ask(asked, OwnGains), spec))


@dataclass(frozen=True, eq=False)
class Judged:
    """What is known once members were judged.

    Attributes
    ----------
    crosswise : Crosswise
    fitted : list of FittedMembers
        Without each group, and with everybody.
    stack : Stack
    strength : float
        How far everybody's shares follow its own rows.
    expected : ExpectedGain, optional
        None for who learns alone.
    """

    crosswise: Crosswise
    fitted: list[FittedMembers]
    stack: Stack
    strength: float = 0.0
    expected: ExpectedGain | None = None

    def own_shares(self, shares: Array, used: Places, task: str) -> Array:
        """Everybody's shares (B, M) of the members that are used, from the federation's (M,)."""
        judged = self.stack.judged
        scales, _ = member_scales(judged, self.stack.shares, task)
        return shares_of_agents(shares, judged.of_members(used), scales, self.strength)


def judged_members(
    members: tuple[Member, ...],
    learner: PriorLearner,
    agents: Agents,
    answers: KeptAnswers,
    report: Callable[[int, int], None],
    beside: tuple[Member, ...] = (),
) -> tuple[Crosswise, list[FittedMembers], Stack]:
    """Everybody's evidence, the members' priors without each group and with everybody, and the members' shares.

    Members `beside` these are judged too, and have no share.
    """
    spec, count = agents.spec, len(members)
    report(0, 4)
    crosswise = Crosswise.asked(agents, learner, answers)
    report(1, 4)
    fitted = crosswise.fitted((*members, *beside), spec.seed)
    report(2, 4)
    outside, repeats = tuple(one.priors for one in fitted[:-1]), repeats_of(spec)
    local = np.array([one.kind == "local" for one in members])
    heard = ~np.isin(np.arange(len(spec.names)), list(spec.quiet))  # the others do not judge for all

    told: list[JudgedMembers] = []

    def padded(shares: Array) -> Array:
        return np.append(shares, np.zeros(len(beside)))

    def ask(shares: Array) -> JudgedMembers:
        found = answers.ask(OutOfFold(outside, crosswise.groups, padded(shares), repeats), JudgedMembers)
        told.append(replace(found, n=found.n * heard))
        return told[-1].of_members(np.arange(count)).of_agents(crosswise.order)

    stack = stacked_shares(
        ask,
        count,
        np.flatnonzero(local) if local.any() else np.arange(count),
        spec.task == "regression",
        spec.seed,
        margins(members, len(spec.names), int(spec.sizes.sum()), len(crosswise.intercepts)),
    )
    report(3, 4)
    return crosswise, fitted, Stack(padded(stack.shares), told[-1], padded(stack.at), padded(stack.margins))


class TunedLocal(Local):
    """Learning alone, with the penalties that suit the federation best."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """By rows held out, unless the learner's penalty is given."""
        return Stacked(LOCAL).train(context, None) if is_tuned(context) else super().train(context, weights)


class TunedGrandMean(GrandMean):
    """One common model, with the penalties that suit the federation best."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """By rows held out, unless the learner's penalty is given; everybody has the same model."""
        learner = context.learner
        if not is_tuned(context) or not isinstance(learner, PriorLearner):
            return super().train(context, weights)
        agents = context.agents.labelled("training")
        answers = KeptAnswers(agents, None if context.checkpoint is None else context.checkpoint / "priors")
        _, fitted, stack = judged_members(COMMON, learner, agents, answers, context.reporter("one common model"))
        count = len(agents.spec.names)
        theta = np.tile(fitted[-1].priors.centres[:, 0], (count, 1, 1))
        return learner.linear_models(theta, np.tile(stack.shares, (count, 1)), agents.spec, None, None)
