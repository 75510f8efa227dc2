r"""Logistic regression where the points never meet: agents answer derivatives, the server minimises.

In the first exchange an agent tells how many points of each class it has and the mean of its x. In every later one it is
sent the models that listen to it and answers the value, the gradient and, for models of few coefficients, the Hessian of
its own mean log loss. The server adds them up with each model's weights,

.. math:: f_t(\theta) = \sum_k w_{tk} \hat R_k(\theta) + \lambda |A|^2 ,

and takes a step of Newton's method or of L-BFGS; f is convex, so where it ends does not depend on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.base import Task
from kinfed.learners.descent import LARGEST_BOUND, Minimum, lbfgs, newton
from kinfed.learners.inputs import simplex_rows, unique_rows
from kinfed.learners.logistic import Logistic, LogisticModels
from kinfed.learners.remote.base import Arrays, Ask, Form, Memory, Monitor, Question, Terms
from kinfed.learners.remote.checks import (
    agent_codes,
    agent_columns,
    check_models,
    comoment_fault,
    federation_classes,
    rows_heard,
    unpacked,
)
from kinfed.learners.remote.distributed_risk import AgentsLostError, DistributedRisk, Overview
from kinfed.learners.softmax import SoftmaxRisk
from kinfed.progress import Progress

Array = NDArray[np.float64]

_LARGEST_HESSIAN = 300  # coefficients of a model up to which an agent may be asked for second derivatives
_LARGEST_EXCHANGE = 2**25  # numbers in the Hessians of one exchange up to which "auto" asks for them (256 MB)
_ROUNDING = 1e-6

Second = Literal["none", "diagonal", "matrix"]


@dataclass(frozen=True)
class RemoteLogistic:
    """Both sides of logistic regression from derivatives.

    Parameters
    ----------
    learner : Logistic
        The models are those of its `fit` on pooled data, up to its tolerance. Newton's method is taken, which needs few
        exchanges, unless ``solver="l-bfgs"``, a model has more than 300 coefficients, or, with ``solver="auto"``, the
        Hessians of one exchange would fill more than 256 MB.

    Notes
    -----
    An agent that does not answer once is out for the rest of the training: rows are divided by their sums over the others,
    and the minimisation goes on from where it was.
    """

    learner: Logistic

    @property
    def task(self) -> Task:
        """Classification."""
        return self.learner.task

    @property
    def asks_once(self) -> bool:
        """Answers depend on the models."""
        return False

    def fit(
        self,
        ask: Ask,
        terms: Terms,
        weights: NDArray[np.float64],
        *,
        progress: Progress | None = None,
        memory: Memory | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> LogisticModels:
        """Train one model per row of `weights`; see `RemoteLearner.fit`.

        A row none of whose agents answers the first exchange gets the weights of a grand mean, proportional to the sizes of
        those who do; one that loses its last agent later stays as it is. There are no epochs, so `monitor` is never called.
        """
        classes = federation_classes(terms)
        rows, inverse = unique_rows(simplex_rows(weights, terms.names, terms.sizes.tolist()))
        by_newton = self._by_newton(rows, len(classes), terms.dim)
        second: Second = "none" if by_newton else "matrix" if self._columns(terms) <= LARGEST_BOUND else "diagonal"
        state = self._recall(memory, rows, terms, second)
        overview = self._overview(ask, terms, rows, second) if state is None else _overview_of(state)
        heard = rows_heard(rows, overview.answered, terms.sizes)
        start = {"rows": rows, "counts": overview.counts, "mean": overview.mean}
        if overview.second is not None:
            start["second"] = overview.second

        settled = 0

        def keep(risk: DistributedRisk, evaluated: int) -> None:
            nonlocal settled
            settled = max(settled, len(rows) - evaluated)
            if memory is not None:
                memory.save({**start, "left": risk.left, "best": risk.best})
            if progress is not None:
                progress("logistic", settled, len(rows))

        risk = DistributedRisk(ask, overview, heard, self.learner.penalty, self.learner.intercept, by_newton, keep)
        if state is None:
            keep(risk, len(rows))
        else:
            lost = np.flatnonzero(risk.left & ~state["left"])
            if len(lost):
                risk.lose(lost.tolist())
            risk.best = np.array(state["best"])
        found = self._minimise(risk, by_newton)
        if progress is not None:
            progress("logistic", len(rows), len(rows))
        norm = np.where(risk.stranded, np.nan, found.gradient_norm)
        return LogisticModels(
            classes=classes,
            present=risk.present[inverse],
            coefficients=risk.coefficients(found.theta)[inverse],
            gradient_norm=norm[inverse],
            iterations=found.iterations[inverse],
            converged=(found.converged & ~risk.stranded)[inverse],
        )

    def answer(self, agent: Agent, place: int, terms: Terms, question: Question) -> dict[str, NDArray[Any]]:
        """Class counts and moments of x, or the derivatives of the agent's mean log loss at each model."""
        columns, codes = agent_columns(agent, terms), agent_codes(agent, terms)
        n_classes = len(federation_classes(terms))
        if len(columns) == 0:
            raise InputError(f"agent {agent.name} has no points, so it has no mean loss; leave it out")
        # The mean of large numbers is itself rounded; a second pass removes what is left.
        mean = columns.mean(axis=0)
        mean = mean + (columns - mean).mean(axis=0)
        centred = columns - mean
        if _step(question) == "counts":
            answer = {"counts": np.bincount(codes, minlength=n_classes), "mean": mean}
            if question.settings["second"] == "matrix":
                answer["second"] = centred.T @ centred / len(centred)
            if question.settings["second"] == "diagonal":
                answer["second"] = (centred**2).mean(axis=0)
            return answer
        theta, present = self._models(question, terms)
        points = np.hstack([centred, np.ones((len(columns), 1))]) if self.learner.intercept else columns
        labels = np.array([1]) if n_classes == 2 else np.arange(n_classes)
        linear = (codes == labels[:, None]) @ points / len(points)
        count = len(theta)
        risk = SoftmaxRisk(
            points=points[None],
            starts=np.zeros(1, dtype=np.int64),
            weights=np.full((count, len(points)), 1.0 / len(points)),
            linear=np.broadcast_to(linear, theta.shape),
            present=present,
            penalties=np.zeros((count, points.shape[1])),
        )
        value, gradient = risk.value_and_gradient(theta)
        answer = {"value": value, "gradient": gradient}
        if question.settings["hessian"]:
            size = theta.shape[1] * theta.shape[2]
            answer["hessian"] = risk.curvature(theta, np.arange(count)).swapaxes(2, 3).reshape(count, size, size)
        return answer

    def forms(self, place: int, terms: Terms, question: Question) -> dict[str, Form]:
        """What an answer to the question must look like."""
        if _step(question) == "counts":
            n_classes = len(federation_classes(terms))
            forms = {
                "counts": Form((n_classes,), "int64", float(terms.sizes[place])),
                "mean": Form((terms.dim,), "float64"),
            }
            if question.settings["second"] != "none":
                forms["second"] = Form((terms.dim,) * (2 if question.settings["second"] == "matrix" else 1), "float64")
            return forms
        shape = question.arrays["theta"].shape
        forms = {"value": Form(shape[:1], "float64"), "gradient": Form(shape, "float64")}
        if question.settings["hessian"]:
            size = shape[1] * shape[2]
            forms["hessian"] = Form((shape[0], size, size), "float64")
        return forms

    def check(self, place: int, terms: Terms, question: Question, answer: Arrays) -> str | None:
        """Counts must add up to the agent's points, and derivatives could be those of a mean log loss."""
        if not all(np.isfinite(array).all() for array in answer.values()):
            return "its answer is not finite"
        if _step(question) == "counts":
            counts, total = answer["counts"], int(terms.sizes[place])
            if (counts < 0).any() or counts.sum() != total:
                return f"its class counts do not add up to its {total} points"
            if question.settings["second"] == "none":
                return None
            return comoment_fault(answer["second"] if answer["second"].ndim == 2 else np.diag(answer["second"]))
        if (answer["value"] < -_ROUNDING).any():
            return "a log loss is below zero"
        # The derivative after an intercept is the mean difference of a probability and an indicator.
        if self.learner.intercept and (np.abs(answer["gradient"][..., -1]) > 1 + _ROUNDING).any():
            return "a derivative after an intercept is larger than one"
        if question.settings["hessian"]:
            hessian = answer["hessian"]
            if (np.diagonal(hessian, axis1=1, axis2=2) < 0).any():
                return "a second derivative is below zero"
            largest = np.abs(hessian).max(axis=(1, 2), keepdims=True)
            if (np.abs(hessian - hessian.swapaxes(1, 2)) > _ROUNDING * largest).any():
                return "a Hessian is not symmetric"
        return None

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Coefficients and known classes of some rows."""
        check_models(models, LogisticModels, "logistic")
        return {"coefficients": models.coefficients[rows], "present": models.present[rows]}

    def unpack(self, arrays: Arrays, terms: Terms) -> LogisticModels:
        """Models from their coefficients and classes; of how they were found nothing is known."""
        classes = federation_classes(terms)
        coefficients = unpacked(arrays, "coefficients", (_logits(len(classes)), terms.dim + 1), "float64")
        present = unpacked(arrays, "present", (len(classes),), "bool")
        count = len(coefficients)
        if len(present) != count or not present.any(axis=1).all():
            raise InputError(f"the classes of {count} models are expected, one or more for each, got {present.tolist()}")
        unknown = np.full(count, np.nan)
        no, none = np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)
        return LogisticModels(classes, present, coefficients, gradient_norm=unknown, iterations=none, converged=no)

    def _minimise(self, risk: DistributedRisk, by_newton: bool) -> Minimum:
        descend = newton if by_newton else lbfgs
        while True:
            try:
                return descend(risk, risk.best.copy(), self.learner.tolerance, self.learner.max_iterations)
            except AgentsLostError:
                continue  # at most as often as there are agents

    def _by_newton(self, rows: Array, n_classes: int, dim: int) -> bool:
        size = _logits(n_classes) * (dim + self.learner.intercept)
        if self.learner.solver == "l-bfgs" or size > _LARGEST_HESSIAN:
            return False
        return self.learner.solver == "newton" or int((rows > 0).sum()) * size**2 <= _LARGEST_EXCHANGE

    def _columns(self, terms: Terms) -> int:
        return terms.dim + int(self.learner.intercept)

    def _overview(self, ask: Ask, terms: Terms, rows: Array, second: Second) -> Overview:
        """The first exchange."""
        used = np.flatnonzero((rows > 0).any(axis=0))
        answers = ask({int(place): Question({"step": "counts", "second": second}) for place in used})
        shapes = _overview_shapes(terms, second)
        told = {name: np.zeros(shape, dtype=np.int64 if name == "counts" else float) for name, shape in shapes.items()}
        for place, answer in answers.items():
            for name, array in told.items():
                array[place] = answer[name]
        return _overview_of(told)

    def _recall(self, memory: Memory | None, rows: Array, terms: Terms, second: Second) -> dict[str, NDArray[Any]] | None:
        """What was kept of a training of the same rows on the same terms."""
        state = None if memory is None else memory.load()
        if state is None:
            return None
        n_classes, count = len(federation_classes(terms)), len(terms.names)
        best = (len(rows), _logits(n_classes), self._columns(terms))
        shapes = {"rows": rows.shape, "left": (count,), "best": best, **_overview_shapes(terms, second)}
        if {name: array.shape for name, array in state.items()} != shapes or not np.array_equal(state["rows"], rows):
            return None
        sizes = state["counts"].sum(axis=1)
        return state if ((sizes == terms.sizes) | (sizes == 0)).all() else None

    def _models(self, question: Question, terms: Terms) -> tuple[Array, NDArray[np.bool_]]:
        """The models an agent was sent, and the classes they know."""
        n_classes = len(federation_classes(terms))
        theta = unpacked(question.arrays, "theta", (_logits(n_classes), self._columns(terms)), "float64")
        if n_classes == 2:
            return theta, np.ones((len(theta), 1), dtype=bool)
        return theta, unpacked(question.arrays, "present", (n_classes,), "bool")


def _logits(n_classes: int) -> int:
    return 1 if n_classes == 2 else n_classes


def _step(question: Question) -> Literal["counts", "derivatives"]:
    step = question.settings.get("step")
    if step == "counts" or step == "derivatives":
        return step
    raise InputError(
        f"logistic regression knows the steps counts and derivatives, got {step!r}; use one version everywhere"
    )


def _overview_shapes(terms: Terms, second: Second) -> dict[str, tuple[int, ...]]:
    count, dim = len(terms.names), terms.dim
    shapes: dict[str, tuple[int, ...]] = {"counts": (count, len(federation_classes(terms))), "mean": (count, dim)}
    if second != "none":
        shapes["second"] = (count, dim, dim) if second == "matrix" else (count, dim)
    return shapes


def _overview_of(arrays: Arrays) -> Overview:
    return Overview(arrays["counts"], arrays["mean"], arrays.get("second"))
