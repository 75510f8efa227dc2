"""Priors around the others' models, each judged on rows it has not seen, and one convex combination of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places
from kinfed.learners.base import AUTO, Models
from kinfed.learners.linear import PriorLearner, intercepts
from kinfed.learners.quadratics import Quadratics
from kinfed.methods.base import Method, MethodContext
from kinfed.methods.weighted import GrandMean, Local, Weighted
from kinfed.parallel import map_on_cores
from kinfed.priors.family import COMMON, LOCAL, Fitted, Member, fit_members
from kinfed.priors.influence import influence
from kinfed.priors.judging import Judged, OutOfFold, agent_groups, repeats_of
from kinfed.priors.normal import Evidence
from kinfed.priors.posterior import OwnPosterior
from kinfed.priors.result import Stacking
from kinfed.priors.stacking import Stack, stacked_shares
from kinfed.validation import Array
from kinfed.weights import Weights

_NOTHING = 1e-3  # members of a smaller share are left out


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

    def weigh(self, context: MethodContext) -> Weights | None:
        """Calibrated weights where the learner knows no priors."""
        return None if has_priors(context) else Weighted().weigh(context)

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """Fit the priors crosswise, judge them, stack them, and let every agent find its model."""
        learner = context.learner
        if weights is not None or not isinstance(learner, PriorLearner):
            return Weighted().train(context, weights)
        agents = context.agents.labelled("training")
        spec, report = agents.spec, context.reporter("priors")
        crosswise, fitted, stack = judged_members(self.members, learner, agents, report)
        used = np.flatnonzero(stack.shares > _NOTHING)
        shares = stack.shares[used] / stack.shares[used].sum()
        # With few agents a target's own rows are a good part of everybody's: its prior is the one without them.
        each = crosswise.alone
        priors = tuple(one.priors.select(used) for one in (fitted[:-1] if each else fitted[-1:]))
        of = crosswise.groups if each else np.zeros(len(spec.names), dtype=np.int64)
        own = agents.ask(OwnPosterior(priors, of, shares))
        if spec.quiet and any(one.kind != "local" for one in self.members):  # whoever nobody hears hears nobody
            alone: Any = Stacked(LOCAL).train(replace(context, found={}), None)
            places = list(spec.quiet)
            own.coefficients[places] = alone.coefficients[places].reshape(len(places), -1)
            own.covariance[places] = alone.covariance[places]
            own.noise[places] = alone.noise[places] if spec.task == "regression" else np.nan
        context.found["stacking"] = Stacking(
            spec.names,
            tuple(str(self.members[place]) for place in used.tolist()),
            shares,
            stack.judged.n,
            stack.judged.losses[:, used],
            crosswise.influence(fitted[-1], used, shares, own.responsibilities, spec.seed),
        )
        report(4, 4)
        return learner.linear_models(own.coefficients, spec, own.covariance, own.noise)


def judged_members(
    members: tuple[Member, ...], learner: PriorLearner, agents: Agents, report: Callable[[int, int], None]
) -> tuple[Crosswise, list[Fitted], Stack]:
    """Everybody's evidence, the members' priors without each group and with everybody, and the members' shares."""
    spec, count = agents.spec, len(members)
    report(0, 4)
    crosswise = Crosswise.of(agents, learner.quadratics(agents))
    report(1, 4)
    fitted = crosswise.fitted(members, spec.seed)
    report(2, 4)
    outside, repeats = tuple(one.priors for one in fitted[:-1]), repeats_of(spec)
    local = np.array([one.kind == "local" for one in members])
    heard = np.ones(len(spec.names)) if spec.voices is None else (spec.voices > 0).astype(np.float64)

    def ask(shares: Array) -> Judged:
        found = agents.ask(OutOfFold(outside, crosswise.groups, shares, repeats))
        return replace(found, n=found.n * heard)  # whoever nobody hears does not judge for others

    stack = stacked_shares(
        ask,
        count,
        np.flatnonzero(local) if local.any() else np.arange(count),
        spec.task == "regression",
        spec.seed,
    )
    report(3, 4)
    return crosswise, fitted, stack


def tuned(context: MethodContext) -> bool:
    """Whether penalties are to be found by rows held out, and can be."""
    return has_priors(context) and getattr(context.learner, "penalty", None) == AUTO


class TunedLocal(Local):
    """Learning alone, with the penalties that suit the federation best."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """By rows held out, unless the learner's penalty is given."""
        return Stacked(LOCAL).train(context, None) if tuned(context) else super().train(context, weights)


class TunedGrandMean(GrandMean):
    """One common model, with the penalties that suit the federation best."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """By rows held out, unless the learner's penalty is given; everybody has the same model."""
        learner = context.learner
        if not tuned(context) or not isinstance(learner, PriorLearner):
            return super().train(context, weights)
        agents = context.agents.labelled("training")
        _, fitted, stack = judged_members(COMMON, learner, agents, context.reporter("one common model"))
        theta = stack.shares @ fitted[-1].priors.centres[:, 0]
        return learner.linear_models(np.tile(theta, (len(agents.spec.names), 1)), agents.spec, None, None)


def has_priors(context: MethodContext) -> bool:
    """Whether the learner's models have coefficients of which something may be known before."""
    learner = context.learner
    return isinstance(learner, PriorLearner) and learner.is_small(context.agents.spec)


@dataclass(frozen=True, eq=False)
class Crosswise:
    """Everybody's evidence, and the groups without which priors are fitted.

    Attributes
    ----------
    evidence : Evidence
    groups : array of int of shape (B,)
    intercepts : array of bool of shape (p,)
    voices : array of shape (B,)
        What everybody counts for others; zero for agents that did not answer.
    noise : float, optional
    """

    evidence: Evidence
    groups: Places
    intercepts: NDArray[np.bool_]
    voices: Array
    noise: float | None

    @classmethod
    def of(cls, agents: Agents, quadratics: Quadratics) -> Crosswise:
        """From what everybody told."""
        spec, n = agents.spec, quadratics.n
        voices = (n > 0) * (np.ones(len(n)) if spec.voices is None else spec.voices)
        evidence = Evidence.of(
            n, n[:, None, None] * quadratics.curvature, n[:, None] * quadratics.slope, n * quadratics.noise
        )
        known = None if spec.task == "regression" else 1.0
        return cls(evidence, agent_groups(len(n), spec.seed), intercepts(spec), voices, known)

    @property
    def alone(self) -> bool:
        """Whether every agent is a group of its own."""
        return int(self.groups.max()) + 1 == len(self.groups)

    def fitted(self, members: tuple[Member, ...], seed: int) -> list[Fitted]:
        """The priors for every group, without its agents; and, last, those of everybody."""

        def one(group: int) -> Fitted:
            there = np.flatnonzero((self.groups != group) & (self.voices > 0))
            if not len(there):  # whoever is alone, or hears nobody, knows of itself only
                there = np.flatnonzero(self.evidence.n > 0)
            how = (self.intercepts, np.maximum(self.voices[there], 1e-9), self.noise, seed)
            return fit_members(members, self.evidence.select(there), *how, whole=group < 0)

        return list(map_on_cores(one, [*range(int(self.groups.max()) + 1), -1]))

    def influence(self, fitted: Fitted, used: Places, shares: Array, responsibilities: Array, seed: int) -> Array:
        """Who speaks in whose model (B, B)."""
        there = np.flatnonzero(self.voices > 0)
        found = np.eye(len(self.voices))
        if len(there):
            sources = [fitted.sources[place] for place in used.tolist()]
            known = np.nan_to_num(responsibilities[there], nan=0.0)
            among = influence(self.evidence.select(there), fitted.priors.select(used), sources, shares, known, seed)
            found[np.ix_(there, there)] = among
        return found
