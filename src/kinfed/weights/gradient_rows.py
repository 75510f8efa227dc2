"""A round of the gradient rule: everybody answers about a model with a mean gradient, and targets solve their own rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places, Question, QuorumError, SiteView, Task, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.errors import InputError
from kinfed.learners.base import Learner, Models, site_learner
from kinfed.learners.inputs import all_weights, relative_weights
from kinfed.validation import Array, short_text
from kinfed.weights.gradient_problem import (
    Answers,
    Directions,
    PointGradients,
    Projection,
    gradient_problem,
    mean_gradients,
    point_gradients,
    spread_of,
    true_directions,
)
from kinfed.weights.mirror_descent import Minimum, mirror_descent, stacked_minima
from kinfed.weights.weighing import off_simplex

GRADIENT_FEATURES = 500
"""D, the length above which gradients are projected at random."""

IN_FLIGHT = 2**28
"""Bytes of gradients that a server holds at once."""

# Numbers of one block of targets' differences (256 MB).
_BLOCK = 2**25


class Caution(NamedTuple):
    r"""How a target weighs what it was answered.

    Attributes
    ----------
    c_q : float
        :math:`C_Q`.
    strength : float
        :math:`\tau`, in units of the target's own error.
    relative_gap : float
    """

    c_q: float
    strength: float
    relative_gap: float


def gradient_rows(
    agents: Agents,
    learner: Learner,
    models: Models,
    targets: Places,
    caution: Caution,
    n_features: int = GRADIENT_FEATURES,
) -> Minimum:
    """Weights of the targets from everybody's answers about their models: one per target, or one for all."""
    if agents.rows is not None:
        return agents.ask(GradientRows(learner, models, targets, np.arange(len(models)), caution, n_features))
    # All agents' gradients at all models would not fit into memory, so some models come after others.
    step = max(1, IN_FLIGHT // (8 * n_features * len(agents.spec.names)))
    parts = []
    for some in (slice(start, start + step) for start in range(0, len(targets), step)):
        rows = np.arange(len(models))[some] if len(models) > 1 else np.array([0])
        told = agents.ask(MeanGradients(learner, models, rows, n_features))
        parts.append(agents.ask(GradientRows(learner, models, targets[some], rows, caution, n_features, told)))
    return stacked_minima(parts)


class MeanAnswers(NamedTuple):
    """Mean gradients (P, R, p) of the agents that are present at R models, and the variances (P, R) of those means."""

    present: Places
    means: Array
    variances: Array


@dataclass(frozen=True, eq=False)
class MeanGradients(Question[MeanAnswers]):
    """Everybody's mean loss gradient, and the expected squared error of that mean, at every model.

    Attributes
    ----------
    learner : Learner
        Of the models.
    models : Models
    rows : array of int
        Those that are asked about.
    n_features : int
    """

    learner: Learner
    models: Models
    rows: Places
    n_features: int

    name = "mean-gradients"
    phase = "gradients"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """Send the models to every agent, with the number of features to project on."""
        packed = site_learner(self.learner).pack(self.models, self.rows)
        return dict.fromkeys(range(len(spec.names)), Message({"features": self.n_features}, packed))

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The means of the models' loss gradients over the agent's own rows, and their variances."""
        X, y = _labelled(site)
        models = site.learner.unpack(asked.arrays, site.spec)
        projection = projection_of(models, X, y, site.spec.task, asked.settings["features"], site.spec.seed)
        whole, weights = (np.zeros(1, dtype=np.int64), np.array([len(X)])), relative_weights(site.agent, site.spec)
        found = [
            mean_gradients(projection(point_gradients(models, row, X, y, site.spec.task, weights)), *whole)
            for row in range(len(models))
        ]
        means, variances = (np.concatenate(part) for part in zip(*found, strict=True))
        return Message(arrays={"means": means, "variances": variances})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A gradient and a variance for each model; how long gradients are, the agents know."""
        return {"means": ArraySpec((len(self.rows), None)), "variances": ArraySpec((len(self.rows),))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """A variance is not negative."""
        return "a variance is negative" if (answer.arrays["variances"] < 0).any() else None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> MeanAnswers:
        """The answers of those whose gradients are as long as most others'."""
        widths = [one.arrays["means"].shape[1] for one in answers.values()]
        if not widths:
            raise QuorumError("gradients: nobody answered; see the audit log for the reasons")
        usual = max(set(widths), key=widths.count)
        present = [k for k, width in zip(answers, widths, strict=True) if width == usual]
        return MeanAnswers(
            np.array(present, dtype=np.int64),
            np.array([answers[k].arrays["means"] for k in present]),
            np.array([answers[k].arrays["variances"] for k in present]),
        )


@dataclass(frozen=True, eq=False)
class GradientRows(Question[Minimum]):
    """Weights of some targets by the gradient rule; for one that does not answer the grand mean stands in.

    Attributes
    ----------
    learner : Learner
    models : Models
    targets : array of shape (T,)
    rows : array of shape (T,), or (1,) where all targets share one
        Their models.
    caution : Caution
    n_features : int
    told : MeanAnswers, optional
        What everybody answered about those models, where rows are at sites.
    """

    learner: Learner
    models: Models
    targets: Places
    rows: Places
    caution: Caution
    n_features: int
    told: MeanAnswers | None = None

    name = "gradient-rows"
    phase = "gradient weights"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every target its model, and everybody's mean gradient there."""
        present, means, variances = self._told
        settings = {
            "features": self.n_features,
            "absent": np.setdiff1d(np.arange(len(spec.names)), present).tolist(),
            **self.caution._asdict(),
        }
        learner, asked = site_learner(self.learner), {}
        for row, t in enumerate(self.targets.tolist()):
            if t in present:
                place = min(row, len(self.rows) - 1)
                model = learner.pack(self.models, self.rows[place : place + 1])
                asked[t] = Message(settings, {**model, "means": means[:, place], "variances": variances[:, place]})
        return asked

    @property
    def _told(self) -> MeanAnswers:
        if self.told is None:
            raise AssertionError("sites weigh what everybody answered: ask for mean gradients first")
        return self.told

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The own row, from everybody's mean gradients and own gradients, row by row."""
        X, y = _labelled(site)
        model = {name: array for name, array in asked.arrays.items() if name not in ("means", "variances")}
        models, settings = site.learner.unpack(model, site.spec), asked.settings
        projection = projection_of(models, X, y, site.spec.task, settings["features"], site.spec.seed)
        present = np.setdiff1d(np.arange(len(site.spec.names)), settings["absent"])
        means, variances, sizes = asked.arrays["means"], asked.arrays["variances"], site.spec.sizes[present]
        weights = relative_weights(site.agent, site.spec)
        own = products(projection(point_gradients(models, 0, X, y, site.spec.task, weights)))
        directions = true_directions(means, variances, sizes / sizes.sum())
        answers = Answers(means, variances, directions, spread_of(own), len(own))
        caution = Caution(*(settings[name] for name in Caution._fields))
        found = weigh_answers([answers], np.searchsorted(present, [site.place]), sizes, caution)
        numbers = np.array([found.value[0], found.gap[0]])
        return Message({"stop": found.stop[0]}, {"row": found.weights[0], "numbers": numbers})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A weight for every agent, and two numbers."""
        return {"row": ArraySpec((len(asked.arrays["means"]),)), "numbers": ArraySpec((2,))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """The row must be on the simplex."""
        short_text(answer.settings["stop"])
        return off_simplex(answer.arrays["row"])

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> Minimum:
        """One row below the other."""
        present = self._told.present
        sizes = np.where(np.isin(np.arange(len(spec.names)), present), spec.sizes, 0)
        matrix = np.tile(sizes / sizes.sum(), (len(self.targets), 1))
        numbers = np.full((len(self.targets), 2), np.nan)
        stop = ["no answer: the grand mean stands in"] * len(self.targets)
        for row, t in enumerate(self.targets.tolist()):
            if t in answers:
                matrix[row] = 0.0
                matrix[row, present] = answers[t].arrays["row"]
                numbers[row], stop[row] = answers[t].arrays["numbers"], str(answers[t].settings["stop"])
        return Minimum(matrix, numbers[:, 0], numbers[:, 1], stop)

    def pooled(self, agents: PooledAgents) -> Minimum:
        """All targets, block by block."""
        exchange = _Exchange(self.models, agents, self.n_features)
        sizes = agents.spec.sizes
        step = max(1, _BLOCK // (len(sizes) * min(len(sizes), exchange.length)))
        parts = []
        for start in range(0, len(self.targets), step):
            chosen = self.targets[start : start + step]
            answers = (exchange(start + row, int(target)) for row, target in enumerate(chosen))
            parts.append(weigh_answers(answers, chosen, sizes, self.caution))
        return stacked_minima(parts)


def weigh_answers(answers: Iterable[Answers], targets: Places, sizes: NDArray[np.int64], caution: Caution) -> Minimum:
    """The weights that everybody's answers to some targets lead to."""
    problem = gradient_problem(answers, targets, sizes, caution.c_q)
    pull = caution.strength * problem.mean_variance
    return mirror_descent(problem, targets, np.log(sizes / sizes.sum()), pull, caution.relative_gap)


def projection_of(
    models: Models, X: NDArray[Any], y: NDArray[Any], task: Task, n_features: int = GRADIENT_FEATURES, seed: int = 0
) -> Projection:
    """The projection of gradients at these models; any agent's points lead to the same one."""
    few = point_gradients(models, 0, X[:2], y[:2], task)
    return Projection.draw(few.residuals.shape[1], few.inputs.shape[1], n_features, seed)


def products(points: PointGradients) -> Array:
    """The gradients (n, p) themselves, out of their factors."""
    return np.asarray((points.residuals[:, :, None] * points.inputs[:, None, :]).reshape(len(points.residuals), -1))


class _Exchange:
    """The answers of agents whose rows are here at the models of some targets; targets of one common model ask once."""

    def __init__(self, models: Models, agents: PooledAgents, n_features: int) -> None:
        self._models, self._task, self._sizes = models, agents.task, agents.spec.sizes
        self._X, y, _ = agents.rows.pooled()
        self._y = np.asarray(y)  # a task with gradients has an outcome
        self._weights = all_weights(agents.rows, agents.spec)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._projection = projection_of(models, self._X, self._y, self._task, n_features, agents.seed)
        few = self._projection(point_gradients(models, 0, self._X[:2], self._y[:2], self._task))
        self.length = few.residuals.shape[1] * few.inputs.shape[1]
        self._at = cache(self._at_model) if len(models) == 1 else self._at_model

    def _at_model(self, row: int) -> tuple[PointGradients, Array, Array, Directions]:
        points = self._projection(point_gradients(self._models, row, self._X, self._y, self._task, self._weights))
        means, variances = mean_gradients(points, self._starts, self._sizes)
        return points, means, variances, true_directions(means, variances, self._sizes / self._sizes.sum())

    def __call__(self, row: int, target: int) -> Answers:
        """What everybody answers to one target."""
        points, means, variances, directions = self._at(0 if len(self._models) == 1 else row)
        mine = slice(self._starts[target], self._starts[target] + self._sizes[target])
        own = products(PointGradients(points.residuals[mine], points.inputs[mine]))
        return Answers(means, variances, directions, spread_of(own), len(own))


def _labelled(site: SiteView) -> tuple[NDArray[Any], NDArray[Any]]:
    if site.agent.y is None:
        raise InputError(f"agent {site.agent.name} has no target, so its points have no loss gradients")
    return site.agent.X, site.agent.y
