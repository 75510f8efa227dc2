"""Every agent's own model: what its rows make of the members, mixed by their shares; found where the rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kinfed.backends.agents import Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.learners.inputs import own_numbers, relative_weights
from kinfed.learners.linear import coefficient_count, design
from kinfed.priors.judging import evidence_of_parts
from kinfed.priors.normal import Priors, posteriors
from kinfed.validation import Array

NOISE_ROWS = 10.0
"""How many rows the federation's noise counts beside an agent's own residuals."""


@dataclass(frozen=True, eq=False)
class OwnModels:
    """Posteriors of B agents.

    Attributes
    ----------
    coefficients : array of shape (B, p)
        Means; NaN for agents that did not answer.
    covariance : array of shape (B, p, p)
    noise : array of shape (B,)
        Variance of an outcome about its mean; NaN for classes.
    """

    coefficients: Array
    covariance: Array
    noise: Array


@dataclass(frozen=True, eq=False)
class OwnPosterior(Question[OwnModels]):
    """Ask every agent for its model.

    Attributes
    ----------
    priors : tuple of Priors
    of : array of int of shape (B,)
        Which of them is for each agent; -1 for agents that are not asked.
    shares : array of shape (M,)
    """

    priors: tuple[Priors, ...]
    of: Places
    shares: Array

    name = "own-posterior"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody its priors."""
        told = [Message({}, {**one.arrays, "member": self.shares}) for one in self.priors]
        return {k: told[place] for k, place in enumerate(self.of.tolist()) if place >= 0}

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The posterior mean of the mixture, its covariance within and between members, and the noise."""
        priors, shares = Priors.read(asked.arrays), asked.arrays["member"]
        own, spec, learner = site.own, site.spec, site.learner
        evidence = evidence_of_parts([own], learner, spec)
        found = posteriors(priors, evidence)
        centres = np.einsum("tmc,mcp->tmp", found.responsibilities, priors.centres)
        each = learner.posterior_modes([own], centres, priors.spread, found.coefficients, spec)[0]
        mean = shares @ each
        within = np.einsum("m,mpq->pq", shares, found.covariance(priors)[0])
        covariance = within + np.einsum("m,mp,mq->pq", shares, each - mean, each - mean)
        noise = np.nan
        if spec.task == "regression":
            level = float(shares @ priors.noise)
            points, weights = design(own, learner, spec), relative_weights(own, spec)
            squares = np.square(own_numbers(own) - points @ mean) * (1.0 if weights is None else weights)
            used = float(np.einsum("ij,ji->", points.T @ points, within)) / level  # degrees of freedom
            noise = (NOISE_ROWS * level + float(squares.sum())) / (NOISE_ROWS + max(len(own) - used, 0.0))
        return Message({}, {"coefficients": mean, "covariance": covariance, "noise": np.array(noise)})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A vector, a matrix, and a number."""
        width = coefficient_count(spec)
        shapes = {"coefficients": ArraySpec((width,)), "covariance": ArraySpec((width, width))}
        return {**shapes, "noise": ArraySpec((), gaps=True)}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> OwnModels:
        """In the order of the agents."""
        count, width = len(spec.names), coefficient_count(spec)
        shapes = {"coefficients": (count, width), "covariance": (count, width, width), "noise": (count,)}
        found = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        for k, one in answers.items():
            for name, array in found.items():
                array[k] = one.arrays[name]
        return OwnModels(**found)

    def pooled(self, agents: PooledAgents) -> OwnModels:
        """The same on all cores."""
        return self.on_cores(agents)
