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
from kinfed.priors.judging import posterior_moments
from kinfed.priors.normal import Priors
from kinfed.validation import Array

NOISE_ROWS = 10.0
"""How many rows the federation's noise counts beside an agent's own residuals."""


@dataclass(frozen=True, eq=False)
class OwnModels:
    """Posteriors of B agents.

    Attributes
    ----------
    coefficients : array of shape (B, M, p)
        Means under M members, or one that is mixed already, for numbers; NaN for agents that did not answer.
    shares : array of shape (B, M)
    covariance : array of shape (B, p, p)
        Of the mixture, within members and between them.
    noise : array of shape (B,)
        Variance of an outcome about its mean; NaN for classes.
    """

    coefficients: Array
    shares: Array
    covariance: Array
    noise: Array

    def with_others(self, places: Places, others: OwnModels) -> OwnModels:
        """The same, but for the agents at some places, which have their models of `others`."""
        count = max(self.shares.shape[1], others.shares.shape[1])
        mine, theirs = (
            (
                np.pad(one.coefficients, ((0, 0), (0, count - one.shares.shape[1]), (0, 0))),
                np.pad(one.shares, ((0, 0), (0, count - one.shares.shape[1]))),
                one.covariance.copy(),
                one.noise.copy(),
            )
            for one in (self, others)
        )
        for array, other in zip(mine, theirs, strict=True):
            array[places] = other[places]
        return OwnModels(*mine)


@dataclass(frozen=True, eq=False)
class OwnPosterior(Question[OwnModels]):
    """Ask every agent for its model.

    Attributes
    ----------
    priors : tuple of Priors
    of : array of int of shape (B,)
        Which of them is for each agent; -1 for agents that are not asked.
    shares : array of shape (B, M)
        Of the members in everybody's model.
    """

    priors: tuple[Priors, ...]
    of: Places
    shares: Array

    name = "own-posterior"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody its priors."""
        told = [one.arrays for one in self.priors]
        return {
            k: Message({}, {**told[place], "member": self.shares[k]})
            for k, place in enumerate(self.of.tolist())
            if place >= 0
        }

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The posterior mean, for classes of every member, the covariance of the mixture, and the noise."""
        priors, shares = Priors.read(asked.arrays), asked.arrays["member"]
        own, spec, learner = site.own, site.spec, site.learner
        each, covariances = (one[0] for one in posterior_moments([own], priors, learner, spec))
        mean = shares @ each
        within = np.einsum("m,mpq->pq", shares, covariances)
        covariance = within + np.einsum("m,mp,mq->pq", shares, each - mean, each - mean)
        told, noise = each, np.nan
        if spec.task == "regression":
            told = mean[None]
            level = float(shares @ priors.noise)
            points, weights = design(own, learner, spec), relative_weights(own, spec)
            squares = np.square(own_numbers(own) - points @ mean) * (1.0 if weights is None else weights)
            used = float(np.einsum("ij,ji->", points.T @ points, within)) / level  # degrees of freedom
            noise = (NOISE_ROWS * level + float(squares.sum())) / (NOISE_ROWS + max(len(own) - used, 0.0))
        return Message({}, {"coefficients": told, "covariance": covariance, "noise": np.array(noise)})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A vector, or one of every member, a matrix, and a number."""
        width = coefficient_count(spec)
        shapes = {"coefficients": ArraySpec((self._told(spec).shape[1], width)), "covariance": ArraySpec((width, width))}
        return {**shapes, "noise": ArraySpec((), gaps=True)}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> OwnModels:
        """In the order of the agents."""
        count, width, shares = len(spec.names), coefficient_count(spec), self._told(spec)
        shapes = {"coefficients": (count, shares.shape[1], width), "covariance": (count, width, width), "noise": (count,)}
        found = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        for k, one in answers.items():
            for name, array in found.items():
                array[k] = one.arrays[name]
        return OwnModels(shares=shares, **found)

    def _told(self, spec: TrainingSpec) -> Array:
        """The shares of what an agent tells: numbers are mixed where the rows are."""
        return np.ones((len(spec.names), 1)) if spec.task == "regression" else self.shares

    def pooled(self, agents: PooledAgents) -> OwnModels:
        """The same on all cores."""
        return self.on_cores(agents)
