r"""Log losses as quadratics: each agent expands its own about a model of its own, and a target weighs them with its rows.

Agent k takes the coefficients :math:`\hat\theta_k` that minimise its log loss under normal priors, so that they are finite
whatever its rows are, and answers gradient and curvature there, as :math:`H_k` and :math:`b_k = H_k \hat\theta_k - g_k`
(`kinfed.learners.quadratics`). A sum of such expansions, each near where its agent's rows are fitted well, follows the sum
of the losses far better than one about a common point would where agents differ.

Of few rows a model under such weak priors is far too sure, and an expansion there too flat: spreads found from it are too
wide. Once something is known of everybody's coefficients, agents expand their losses again, where their rows and that
lead (`ExpansionsUnderPrior`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Question, SiteView, TrainingSpec
from kinfed.backends.wire import ArraySpec, Message
from kinfed.federation import Agent
from kinfed.learners.descent import newton
from kinfed.learners.inputs import own_codes, own_columns, relative_weights, two_classes
from kinfed.learners.quadratics import Quadratics, without
from kinfed.learners.softmax import SoftmaxRisk, coefficient_penalties, coefficient_rows, definite_hessian
from kinfed.validation import Array

SLOPE_DEVIATION, INTERCEPT_DEVIATION = 1.0, 3.0
"""Standard deviations of the priors under which an agent finds where to expand; columns are standardised."""
_TOLERANCE, _MOST_STEPS = 1e-6, 100
_NO_INTERCEPT = 1e6
_LEAST_SPREAD = 1e-8  # of the mean variance of a prior
_MODE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Expansions(Question[Quadratics]):
    """Everybody's log loss as a quadratic, from all rows."""

    name = "expansions"
    about_data = True

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Curvature and slope of the own log loss."""
        found = expanded(site.agent, site.spec, getattr(site.learner, "intercept", True))
        return Message(arrays=dict(zip(("curvature", "slope"), found, strict=True)))

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A matrix and a vector, as long as a model."""
        size = _length(spec)
        return {"curvature": ArraySpec((size, size)), "slope": ArraySpec((size,))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """A log loss is convex."""
        curvature = answer.arrays["curvature"]
        scale = max(float(np.abs(curvature).max()), 1e-300)
        if np.abs(curvature - curvature.T).max() > 1e-9 * scale or np.linalg.eigvalsh(curvature)[0] < -1e-9 * scale:
            return "its curvature is not that of a loss"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> Quadratics:
        """One stack; zero where an agent has not answered."""
        size, count = _length(spec), len(spec.names)
        found = Quadratics(np.zeros(count), np.zeros((count, size, size)), np.zeros((count, size)), np.full(count, np.nan))
        for k, one in answers.items():
            found.n[k] = spec.sizes[k]
            found.curvature[k], found.slope[k] = one.arrays["curvature"], one.arrays["slope"]
        return found


@dataclass(frozen=True, eq=False)
class ExpansionsUnderPrior(Expansions):
    """The same about the most probable coefficients under a normal prior.

    Attributes
    ----------
    centre, variances : arrays of shape (p,)
    """

    centre: Array
    variances: Array

    name = "expansions-under-prior"
    about_data = False

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To everybody the prior."""
        asked = Message(arrays={"centre": self.centre, "variances": self.variances})
        return dict.fromkeys(range(len(spec.names)), asked)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Curvature and slope of the own log loss there."""
        centre, spread = asked.arrays["centre"][None], np.diag(asked.arrays["variances"])[None]
        intercept = getattr(site.learner, "intercept", True)
        mode = prior_modes(site.agent, centre, centre, spread, site.spec, intercept)[0]
        found = expanded_at(mode, site.agent, site.spec, intercept)
        return Message(arrays=dict(zip(("curvature", "slope"), found, strict=True)))


def expanded(agent: Agent, spec: TrainingSpec, intercept: bool = True) -> tuple[Array, Array]:
    """Curvature (p, p) and slope (p,) of an agent's mean log loss, about its own model."""
    penalties = np.full((1, spec.dim + 1), 0.5 / SLOPE_DEVIATION**2 / len(agent))
    penalties[:, -1] = 0.5 / INTERCEPT_DEVIATION**2 / len(agent)
    present = np.ones((1, len(two_classes(spec))), dtype=bool)
    risk = _own_risk(agent, spec, np.ones(1), penalties, present, intercept)
    found = newton(risk, np.zeros(risk.shape), _TOLERANCE, _MOST_STEPS).theta
    return expanded_at(found.ravel(), agent, spec, intercept)


def expanded_at(theta: Array, agent: Agent, spec: TrainingSpec, intercept: bool = True) -> tuple[Array, Array]:
    """Curvature (p, p) and slope (p,) of an agent's mean log loss, about coefficients (p,)."""
    present = np.ones((1, len(two_classes(spec))), dtype=bool)
    risk = _own_risk(agent, spec, np.ones(1), np.zeros((1, spec.dim + 1)), present, intercept)
    at = theta.reshape(risk.shape)
    _, gradient = risk.value_and_gradient(at)
    curvature = risk.curvature(at, np.zeros(1, dtype=np.int64)).swapaxes(2, 3).reshape(theta.size, theta.size)
    return curvature, curvature @ theta - gradient.ravel()


@dataclass(frozen=True, eq=False)
class HomeRisk:
    """Penalised log losses of the own rows of a target, and everybody else's as quadratics; see `descent.Risks`.

    Attributes
    ----------
    own : SoftmaxRisk
        Of the own rows, each model with its own weight of them.
    curvature : array of shape (T, p, p)
    slope : array of shape (T, p)
    """

    own: SoftmaxRisk
    curvature: Array
    slope: Array

    @classmethod
    def of(
        cls, others: Quadratics, rows: Array, place: int, own: Agent, spec: TrainingSpec, penalty: Array, intercept: bool
    ) -> HomeRisk:
        """The risks of weight rows (T, B) of the agent at `place`."""
        heard = without(rows, place)
        seen = np.isin(np.arange(len(two_classes(spec))), own_codes(own, spec))
        present = seen | (heard.sum(axis=1, keepdims=True) > 0)
        penalties = coefficient_penalties(penalty, present, spec.dim, spec.dim + 1)
        if not intercept:  # the others' quadratics have one; so dear that it stays at zero
            penalties[:, -1] = _NO_INTERCEPT
        return cls(_own_risk(own, spec, rows[:, place], penalties, present), *others.weighted(heard))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, K, p): models, rows of coefficients, columns."""
        return self.own.shape

    def value_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        """Values (T,) and gradients (T, K, p)."""
        value, gradient = self.own.value_and_gradient(theta)
        flat = theta.reshape(len(theta), -1)
        product = (self.curvature @ flat[..., None])[..., 0]
        value += np.einsum("tp,tp->t", flat, product / 2 - self.slope)
        return value, gradient + (product - self.slope).reshape(theta.shape)

    def hessian(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Positive definite Hessians of the models `rows`."""
        count, (_, classes, columns) = len(rows), self.shape
        others = self.curvature[rows].reshape(count, classes, columns, classes, columns).swapaxes(2, 3)
        return definite_hessian(self.own.curvature(theta, rows) + others, self.own.penalties[rows], self.own.present[rows])


@dataclass(frozen=True, eq=False)
class PriorRisk(HomeRisk):
    """Mean log losses of the own rows, and minus the logarithms of normal priors of the coefficients.

    `curvature` is the precision of each prior over the number of rows, and `slope` that times its centre.
    """

    def hessian(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """The priors make them definite."""
        own = self.own.curvature(theta, rows).swapaxes(2, 3)
        return np.asarray(own.reshape(len(rows), *self.curvature.shape[1:]) + self.curvature[rows])


def prior_modes(
    part: Agent, centres: Array, start: Array, spread: Array, spec: TrainingSpec, intercept: bool = True
) -> Array:
    """Most probable coefficients (M, p) of an agent under normal priors about `centres` (M, p).

    Parameters
    ----------
    part : Agent
        Its rows.
    centres, start : arrays of shape (M, p)
    spread : array of shape (M, p, p)
        Covariances of the priors.
    """
    found, loose = centres.copy(), np.trace(spread, axis1=1, axis2=2) > 0
    if not loose.any() or not len(part):
        return found
    count, size = int(loose.sum()), spread.shape[1]
    least = _LEAST_SPREAD * np.trace(spread[loose], axis1=1, axis2=2) / size
    precision = np.linalg.inv(spread[loose] + least[:, None, None] * np.eye(size)) / len(part)
    own = _own_risk(
        part,
        spec,
        np.ones(count),
        np.zeros((count, spec.dim + 1)),
        np.ones((count, len(two_classes(spec))), dtype=bool),
        intercept,
    )
    risk = PriorRisk(own, precision, (precision @ centres[loose][..., None])[..., 0])
    found[loose] = newton(risk, start[loose].reshape(risk.shape), _MODE_TOLERANCE, _MOST_STEPS).theta.reshape(count, size)
    return found


def mode_covariances(part: Agent, modes: Array, spread: Array, spec: TrainingSpec, intercept: bool = True) -> Array:
    r"""Covariances (M, p, p) of an agent's coefficients under normal priors, about their modes (M, p).

    With the curvature H of the sum of log losses there and :math:`S = LL'` they are :math:`(S^{-1} + H)^{-1} = L (I +
    L'HL)^{-1} L'`, which needs no inverse of S.
    """
    count, size = modes.shape
    values, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    if not len(part):
        return root @ root.swapaxes(1, 2)
    present = np.ones((count, len(two_classes(spec))), dtype=bool)
    risk = _own_risk(part, spec, np.ones(count), np.zeros((count, spec.dim + 1)), present, intercept)
    curvature = len(part) * risk.curvature(modes.reshape(risk.shape), np.arange(count)).swapaxes(2, 3)
    inner = np.eye(size) + root.swapaxes(1, 2) @ curvature.reshape(count, size, size) @ root
    return np.asarray(root @ np.linalg.solve(inner, root.swapaxes(1, 2)))


def _own_risk(
    agent: Agent,
    spec: TrainingSpec,
    weights: Array,
    penalties: Array,
    present: NDArray[np.bool_],
    intercept: bool = True,
) -> SoftmaxRisk:
    """The log loss of one agent's rows, for models that give it these weights."""
    n_classes, codes = len(two_classes(spec)), own_codes(agent, spec)
    points = np.column_stack([own_columns(agent, spec.dim), np.full(len(agent), float(intercept))])
    labels = np.array([1]) if n_classes == 2 else np.arange(n_classes)
    own = relative_weights(agent, spec)
    counted = np.ones(len(agent)) if own is None else own
    sums = ((codes == labels[:, None]) * counted) @ points / len(agent)
    shares = weights[:, None] / len(agent) * counted
    return SoftmaxRisk(points[None], np.zeros(1, dtype=np.int64), shares, weights[:, None, None] * sums, present, penalties)


def _length(spec: TrainingSpec) -> int:
    return coefficient_rows(len(two_classes(spec))) * (spec.dim + 1)
