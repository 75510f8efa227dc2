r"""What agents are asked for logistic regression where the points never meet.

At first an agent tells how many points of each class it has and the mean of its x, and all variances and covariances of x
where the curvature has to be bounded. In every later exchange it is sent the models that listen to it and answers the
value, the gradient and, for models of few coefficients, the Hessian of its own mean log loss.

Every agent measures x from its own mean :math:`\bar x_k`, every model from a centre :math:`c_t` of its own, so that a large
offset costs no digits on either side. With :math:`\delta = \bar x_k - c_t` the same model has the intercept
:math:`b + a'\delta` for the agent, and a derivative after (x, 1) as the agent sees it becomes the model's by adding
:math:`\delta` times its last entry to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Places, Question, SiteView, TrainingSpec
from kinfed.backends.wire import ArraySpec, Message
from kinfed.errors import InputError
from kinfed.learners.descent import LARGEST_BOUND
from kinfed.learners.inputs import comoment_fault, own_codes, own_columns, relative_weights, two_classes, unpacked
from kinfed.learners.softmax import SoftmaxRisk, coefficient_rows
from kinfed.validation import Array

_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Overview:
    """What agents told at first; all zero for those who did not.

    Attributes
    ----------
    counts : array of int of shape (B, C)
        Points of each class.
    mean : array of shape (B, d)
        Mean of x; weighted where rows are, as is what follows.
    second : array of shape (B, d, d) or (B, d)
        Covariance of x with divisor n, or its diagonal; empty where that was not asked for.
    """

    counts: Places
    mean: Array
    second: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which agents told of at least one point."""
        return np.asarray(self.counts.any(axis=1))


@dataclass(frozen=True)
class ClassCounts(Question[Overview]):
    """How many points of each class agents have, and the means of their x.

    Attributes
    ----------
    places : tuple of int
        The agents that are asked.
    """

    places: tuple[int, ...]

    name = "class-counts"
    about_data = True

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """An empty message to every agent that is asked: the question says everything."""
        return dict.fromkeys(self.places, Message())

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The agent's own counts and mean."""
        _, mean, codes = _own_points(site)
        return Message(arrays={"counts": np.bincount(codes, minlength=len(two_classes(site.spec))), "mean": mean})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """C numbers and d means."""
        return {
            "counts": ArraySpec((len(two_classes(spec)),), "int64", float(spec.sizes[place])),
            "mean": ArraySpec((spec.dim,)),
        }

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Counts must add up to the agent's points."""
        counts, total = answer.arrays["counts"], int(spec.sizes[place])
        if (counts < 0).any() or counts.sum() != total:
            return f"its class counts do not add up to its {total} points"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> Overview:
        """One row for each agent of the federation."""
        told = {
            name: np.zeros((len(spec.names), *map(int, one.shape)), dtype=one.dtype)  # type: ignore[arg-type]
            for name, one in self.form(spec, 0, Message()).items()
        }
        for place, answer in answers.items():
            for name, array in answer.arrays.items():
                told[name][place] = array
        return Overview(**told)


@dataclass(frozen=True)
class ClassMoments(ClassCounts):
    """The same, and the variances of x, with all covariances where they bound the curvature of a model."""

    name = "class-moments"

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The agent's own counts, mean and covariance."""
        columns, mean, _ = _own_points(site)
        weights = relative_weights(site.agent, site.spec)
        centred = (columns - mean) * (1.0 if weights is None else np.sqrt(weights)[:, None])
        second = centred.T @ centred / len(centred) if site.spec.dim <= LARGEST_BOUND else (centred**2).mean(axis=0)
        return Message(arrays={**super().answer(site, asked).arrays, "second": second})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """C numbers, d means, and d x d covariances or, for many columns, d variances."""
        shape = (spec.dim, spec.dim) if spec.dim <= LARGEST_BOUND else (spec.dim,)
        return {**super().form(spec, place, asked), "second": ArraySpec(shape)}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Counts must add up, and the covariances could be those of points."""
        second = answer.arrays["second"]
        return super().fault(spec, place, asked, answer) or comoment_fault(second if second.ndim == 2 else np.diag(second))


class WeightedDerivatives(NamedTuple):
    """Sums over agents of derivatives of their mean log losses, each with its weight.

    Attributes
    ----------
    value : array of shape (T,)
    gradient : array of shape (T, K, p)
    hessian : array of shape (T, K, K, p, p), or None
    silent : array of bool of shape (B,)
        Agents that were asked, and gave no answer that can be used.
    complete : array of bool of shape (T,)
        Models that listen to none of those; the sums of others are worth nothing.
    """

    value: Array
    gradient: Array
    hessian: Array | None
    silent: NDArray[np.bool_]
    complete: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Derivatives(Question[WeightedDerivatives]):
    """Value, gradient and Hessian of the weighted log loss of T models, without penalties: one exchange.

    Attributes
    ----------
    theta : array of shape (T, K, p)
        The models; p = d + 1 with intercepts, else d.
    weights : array of shape (T, B)
        An agent of weight zero is not asked about that model.
    centres : array of shape (T, d)
        What the models measure x from, where they have intercepts.
    present : array of bool of shape (T, C)
        The classes they know.
    overview : Overview
        For the means the agents measure x from.
    hessians : bool
        Whether second derivatives are asked for.
    """

    theta: Array
    weights: Array
    centres: Array
    present: NDArray[np.bool_]
    overview: Overview
    hessians: bool

    name = "derivatives"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To each agent the models that listen to it, as it sees them."""
        return {int(place): self._message(int(place)) for place in np.flatnonzero((self.weights > 0).any(axis=0))}

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The derivatives of the agent's own mean log loss at each model."""
        columns, mean, codes = _own_points(site)
        n_classes, intercept = len(two_classes(site.spec)), bool(asked.settings["intercept"])
        rows = coefficient_rows(n_classes)
        theta = unpacked(asked.arrays, "theta", (rows, site.spec.dim + intercept), "float64")
        present = (
            unpacked(asked.arrays, "present", (n_classes,), "bool") if rows > 1 else np.ones((len(theta), 1), dtype=bool)
        )
        points = np.hstack([columns - mean, np.ones((len(columns), 1))]) if intercept else columns
        labels = np.array([1]) if rows == 1 else np.arange(n_classes)
        own = relative_weights(site.agent, site.spec)
        counted = np.ones(len(points)) if own is None else own
        risk = SoftmaxRisk(
            points=points[None],
            starts=np.zeros(1, dtype=np.int64),
            weights=np.tile(counted / len(points), (len(theta), 1)),
            linear=np.broadcast_to(((codes == labels[:, None]) * counted) @ points / len(points), theta.shape),
            present=present,
            penalties=np.zeros((len(theta), points.shape[1])),
        )
        value, gradient = risk.value_and_gradient(theta)
        told = {"value": value, "gradient": gradient}
        if asked.settings["hessian"]:
            told["hessian"] = risk.curvature(theta, np.arange(len(theta)))
        return Message(arrays=told)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Of every model a value, a gradient, and a Hessian where it is asked for."""
        count, rows, columns = asked.arrays["theta"].shape
        form = {"value": ArraySpec((count,)), "gradient": ArraySpec((count, rows, columns))}
        return {**form, "hessian": ArraySpec((count, rows, rows, columns, columns))} if self.hessians else form

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Derivatives could be those of a mean log loss."""
        if (answer.arrays["value"] < -_ROUNDING).any():
            return "a log loss is below zero"
        # The derivative after an intercept is the mean difference of a probability and an indicator.
        if self._intercept and (np.abs(answer.arrays["gradient"][..., -1]) > 1 + _ROUNDING).any():
            return "a derivative after an intercept is larger than one"
        if self.hessians:
            hessian = answer.arrays["hessian"]
            if (np.einsum("tkkpp->tkp", hessian) < 0).any():
                return "a second derivative is below zero"
            largest = np.abs(hessian).max(axis=(1, 2, 3, 4), keepdims=True)
            if (np.abs(hessian - hessian.transpose(0, 2, 1, 4, 3)) > _ROUNDING * largest).any():
                return "a Hessian is not symmetric"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> WeightedDerivatives:
        """Weighted sums, by the order of agents."""
        count, rows, columns = self.theta.shape
        value, gradient = np.zeros(count), np.zeros(self.theta.shape)
        hessian = np.zeros((count, rows, rows, columns, columns)) if self.hessians else None
        for place, answer in answers.items():
            own = self.weights[:, place] > 0
            shares = self.weights[own, place]
            value[own] += shares * answer.arrays["value"]
            gradient[own] += shares[:, None, None] * self._seen(answer.arrays["gradient"], place, own)
            if hessian is not None:
                once = self._seen(answer.arrays["hessian"], place, own).swapaxes(3, 4)
                hessian[own] += shares[:, None, None, None, None] * self._seen(once, place, own).swapaxes(3, 4)
        listened = self.weights > 0
        silent = np.array([listened[:, place].any() and place not in answers for place in range(listened.shape[1])])
        return WeightedDerivatives(value, gradient, hessian, silent, np.asarray(~listened[:, silent].any(axis=1)))

    @property
    def _intercept(self) -> bool:
        return self.theta.shape[2] > self.centres.shape[1]

    def _apart(self, place: int, own: NDArray[np.bool_]) -> Array:
        """The agent's mean as seen from the centres of models `own`."""
        return np.asarray(self.overview.mean[place] - self.centres[own])

    def _message(self, place: int) -> Message:
        own = self.weights[:, place] > 0
        sent = self.theta[own]
        if self._intercept:
            sent[..., -1] += (sent[..., :-1] @ self._apart(place, own)[:, :, None])[..., 0]
        arrays = {"theta": sent} if sent.shape[1] == 1 else {"theta": sent, "present": self.present[own]}
        return Message({"hessian": self.hessians, "intercept": self._intercept}, arrays)

    def _seen(self, derivative: Array, place: int, own: NDArray[np.bool_]) -> Array:
        """Derivatives after (x, 1), the last axis, as models see them that measure x from their centres."""
        if not self._intercept:
            return derivative
        apart, moved = self._apart(place, own), derivative.copy()
        moved[..., :-1] += apart.reshape(len(apart), *(1 for _ in derivative.shape[2:]), -1) * moved[..., -1:]
        return moved


def _own_points(site: SiteView) -> tuple[Array, Array, Places]:
    """An agent's x, its mean, and its labels as places among the classes."""
    columns, codes = own_columns(site.agent, site.spec.dim), own_codes(site.agent, site.spec)
    if len(columns) == 0:
        raise InputError(f"agent {site.agent.name} has no points, so it has no mean loss; leave it out")
    # The mean of large numbers is itself rounded; a second pass removes what is left.
    weights = relative_weights(site.agent, site.spec)
    mean = np.average(columns, axis=0, weights=weights)
    mean = mean + np.average(columns - mean, axis=0, weights=weights)
    return columns, mean, codes
