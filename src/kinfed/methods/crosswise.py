"""Priors fitted crosswise: from everybody's evidence, for the agents of every group without them, and for use with all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places
from kinfed.learners.linear import PriorLearner, intercepts
from kinfed.learners.quadratics import Quadratics
from kinfed.methods.base import KeptAnswers
from kinfed.parallel import map_on_cores
from kinfed.priors.family import FittedMembers, Member, fit_members
from kinfed.priors.fitting import fit_random_coefficients
from kinfed.priors.influence import influence
from kinfed.priors.judging import agent_groups
from kinfed.priors.normal import Priors, RowMoments, posteriors, probabilities
from kinfed.validation import Array


@dataclass(frozen=True, eq=False)
class Crosswise:
    """Everybody's evidence, and the groups without which priors are fitted.

    Attributes
    ----------
    evidence : RowMoments
    groups : array of int of shape (B,)
    intercepts : array of bool of shape (p,)
    voices : array of shape (B,)
        What everybody counts for others; zero for agents that did not answer.
    noise : float, optional
    order : array of int of shape (B,)
        Agents by name: what is found does not depend on the order in which they came.
    """

    evidence: RowMoments
    groups: Places
    intercepts: NDArray[np.bool_]
    voices: Array
    noise: float | None
    order: Places

    @classmethod
    def of(cls, agents: Agents, quadratics: Quadratics) -> Crosswise:
        """From what everybody told."""
        spec, n = agents.spec, quadratics.n
        voices = (n > 0) * (np.ones(len(n)) if spec.voices is None else spec.voices)
        evidence = RowMoments.of(
            n, n[:, None, None] * quadratics.curvature, n[:, None] * quadratics.slope, n * quadratics.noise
        )
        known = None if spec.task == "regression" else 1.0
        order = np.argsort(np.array(spec.names), kind="stable")
        groups = agent_groups(len(n), spec.seed)[np.argsort(order)]
        return cls(evidence, groups, intercepts(spec), voices, known, order)

    @classmethod
    def asked(cls, agents: Agents, learner: PriorLearner, answers: KeptAnswers) -> Crosswise:
        """Ask everybody; for log losses twice, the second time where their rows and everybody's coefficients lead.

        Where a loss is expanded then depends on all agents, the loss that is expanded on its own agent only.
        """
        first = cls.of(agents, learner.quadratics(agents))

        def prior() -> tuple[Array, Array]:
            there = first._among(first.voices > 0)
            found = fit_random_coefficients(
                first.evidence.select(there),
                "isotropic",
                intercepts=first.intercepts,
                voices=first.voices[there],
                noise=first.noise,
            )
            return found.centres[0], np.diagonal(found.spread)

        again = learner.second_expansion(prior) if (first.voices > 0).any() else None
        return first if again is None else cls.of(agents, answers.ask(again, Quadratics))

    def _among(self, chosen: NDArray[np.bool_]) -> Places:
        """The places of some agents, by name."""
        return self.order[chosen[self.order]]

    @property
    def alone(self) -> bool:
        """Whether every agent is a group of its own."""
        return int(self.groups.max()) + 1 == len(self.groups)

    def fitted(self, members: tuple[Member, ...], seed: int) -> list[FittedMembers]:
        """The priors for every group, without its agents; and, last, those of everybody."""

        def one(group: int) -> FittedMembers:
            there = self._among((self.groups != group) & (self.voices > 0))
            if not len(there):  # whoever is alone, or hears nobody, knows of itself only
                there = self._among(self.evidence.n > 0)
            how = (self.intercepts, np.maximum(self.voices[there], 1e-9), self.noise, seed)
            return fit_members(members, self.evidence.select(there), *how, whole=group < 0)

        return list(map_on_cores(one, [*range(int(self.groups.max()) + 1), -1]))

    def final(self, fitted: list[FittedMembers], used: Places) -> tuple[tuple[Priors, ...], Places]:
        """The priors with which agents find their models, and which of them is whose.

        With few agents a target's own rows are a good part of everybody's, and its prior is the one without them. Nor is a
        target its own kin.
        """
        if self.alone:
            return tuple(one.priors.select(used) for one in fitted[:-1]), self.groups
        whole, single = fitted[-1].priors.select(used), fitted[-1].single[used]
        if not single.any():
            return (whole,), np.zeros(len(self.groups), dtype=np.int64)
        component = {k: place for place, k in enumerate(self._among(self.voices > 0).tolist())}
        each = [whole.without(single, component[k]) if k in component else whole for k in range(len(self.groups))]
        return tuple(each), np.arange(len(self.groups))

    def influence(self, fitted: FittedMembers, used: Places, shares: Array, seed: int) -> Array:
        """Who speaks in whose model (B, B), by priors of everybody and everybody's shares (B, M).

        Clusters have no names of their own: whose they are is found for these priors, and not taken from others, such as
        those without an agent, in which the same clusters may come in another order.
        """
        there = self._among(self.voices > 0)
        found = np.eye(len(self.voices))
        if len(there):
            evidence, priors = self.evidence.select(there), fitted.priors.select(used)
            logarithms = posteriors(priors, evidence).log_evidence
            if len(there) > 1:
                for m in np.flatnonzero(fitted.single[used]):
                    logarithms[np.arange(len(there)), m, np.arange(len(there))] = -np.inf
            sources = [fitted.sources[place] for place in used.tolist()]
            among = influence(evidence, priors, sources, shares[there], probabilities(logarithms), seed)
            found[np.ix_(there, there)] = among
        return found
