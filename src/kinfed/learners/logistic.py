r"""Logistic regression, binary and multinomial, for all targets at once.

For target t the learner minimises

.. math:: \sum_k w_{tk} \frac{1}{n_k} \sum_i -\log p_\theta(y_i^{(k)} | x_i^{(k)}) + \lambda |A|^2 ,

where :math:`p_\theta(c|x)` is the softmax of :math:`A_c'x + b_c` and the intercepts b are not penalised. With two classes
:math:`p_\theta(1|x) = 1 / (1 + e^{-a'x - b})` and the penalty is :math:`\lambda |a|^2`, as is usual. Where rows have
weights, :math:`s_i` being that of the row times that of its class, the mean is :math:`\sum_i s_i (\dots) / \sum_i s_i`.

The risk is evaluated on points that are all here (`kinfed.learners.pooled_risk`), or by agents who answer derivatives
(`kinfed.learners.distributed_risk`); it is convex, so where its minimisation ends does not depend on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, AgentsLostError, Task, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Counter, Kept, Store
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners.base import AUTO, Extent
from kinfed.learners.descent import Descent, lbfgs, newton
from kinfed.learners.distributed_risk import DistributedRisk, RiskChangedError
from kinfed.learners.expansion import Expansions, ExpansionsUnderPrior, HomeRisk, expanded, mode_covariances, prior_modes
from kinfed.learners.inputs import (
    agents_columns,
    all_weights,
    check_class_weight,
    check_models,
    own_codes,
    simplex_rows,
    training_store,
    two_classes,
    unique_rows,
    unpacked,
    without_lost,
)
from kinfed.learners.linear import Penalty, VarianceRatio, row_penalties
from kinfed.learners.pooled_risk import PooledPoints, PooledRisk
from kinfed.learners.quadratics import LARGEST_QUADRATICS, Quadratics, sizes_at_home
from kinfed.learners.softmax import coefficient_penalties, coefficient_rows, measured_from_zero
from kinfed.parallel import map_on_cores
from kinfed.progress import Progress
from kinfed.validation import Array, one_of, points_array, positive, positive_integer

_NEWTON_TO_FINISH = 300  # coefficients up to which Newton's method takes over where L-BFGS is slow, and sites are asked
_HOME_TOLERANCE = 1e-6  # far below what scores can tell apart
_LEAST_CURVATURE = 1e-9  # of directions in which quadratics are flat: all intercepts together
_SLOW = 50  # iterations of L-BFGS
_LARGEST_EXCHANGE = 2**25  # numbers in the Hessians of one exchange up to which "auto" asks for them (256 MB)


@dataclass(frozen=True)
class Logistic:
    r"""Logistic regression on the weighted risk.

    Parameters
    ----------
    penalty : float, "auto", or VarianceRatio
        :math:`\lambda`, relative to the mean log loss: scikit-learn's ``C`` is :math:`1 / (2 \lambda)` for sample weights
        that sum to one. With "auto" every method finds its own by rows held out (`kinfed.learners.linear`); a fit by
        itself, which no method asked for, and models of too many numbers for that then have 0.01.
    intercept : bool
        Whether unpenalised constants are fitted.
    tolerance : float
        A model has converged once the norm of its gradient is below this, or below this share of the norm at the start
        if that is above one.
    max_iterations : int
    solver : {"auto", "newton", "l-bfgs"}
        "auto" takes Newton's method for models of up to 64 coefficients unless many rows share their support; otherwise
        L-BFGS, which Newton's method relieves after 50 iterations if there are no more than 300 coefficients. Across sites
        Newton's method needs few exchanges: it is taken unless a model has more than 300 coefficients or, with "auto", the
        Hessians of one exchange would fill more than 256 MB.
    class_weight : "balanced", or mapping from class to weight, optional
        What rows of each class count. "balanced" is :math:`n / (C n_c)` over the whole federation, the same for everybody.

    Notes
    -----
    A class that no agent of a row's support has seen is left out of that row's model: its probability is zero, the limit
    its free intercept would run to. With two classes left the row is a binary problem, with one a constant.

    Examples
    --------
    >>> Logistic(penalty=0.1).task
    'classification'
    """

    penalty: Penalty = AUTO
    intercept: bool = True
    tolerance: float = 1e-8
    max_iterations: int = 500
    solver: str = "auto"
    class_weight: str | Mapping[Any, float] | None = None

    name: ClassVar[str] = "logistic"
    task: ClassVar[Task] = "classification"

    def __post_init__(self) -> None:
        if self.penalty != AUTO and not isinstance(self.penalty, VarianceRatio):
            positive(self.penalty, "penalty")
        positive(self.tolerance, "tolerance")
        positive_integer(self.max_iterations, "max_iterations")
        one_of(self.solver, ("auto", "newton", "l-bfgs"), "solver")
        check_class_weight(self.class_weight)

    def _penalties(self, rows: Array, sizes: Any) -> Array:
        """What slopes cost in the models of weight rows (R, B), of shape (R,)."""
        found = row_penalties(self.penalty, rows, sizes)
        # Of a slope with variance tau^2, minus the logarithm of its density is half its square over tau^2.
        return found / 2 if isinstance(self.penalty, VarianceRatio) else found

    def model_operations(self, extent: Extent) -> float:
        """Roughly how many arithmetic operations one model takes: some thirty looks at all points."""
        return 30.0 * 4 * float(extent.n_points) * (extent.dim + 1) * coefficient_rows(extent.n_classes)

    def check_sites(self) -> None:
        """It can be trained across sites."""

    def fit(
        self,
        agents: Agents,
        weights: Array,
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> LogisticModels:
        """Train one model per row of `weights`; see `Learner.fit`. Neither `targets` nor the seed has an influence.

        Across sites a row none of whose agents answers at first gets the weights of a grand mean, proportional to the sizes
        of those who do. An agent that does not answer once is out for the rest of the training: rows are divided by their
        sums over the others, or solved again where `AgentsLostError` says so, and the minimisation goes on from where it
        was. A row that loses its last agent stays as it is.
        """
        classes = two_classes(agents.spec)
        matrix, start = weights, None
        while True:
            rows, inverse = unique_rows(simplex_rows(matrix, agents.spec))
            store = training_store(without_lost(checkpoint, agents), repr(self), agents, rows)
            counter = Counter(progress, "logistic", len(rows))
            if agents.rows is not None:
                found = self._pooled(agents.rows, agents.spec, rows, store, counter)
                break
            risk = None
            try:
                risk = self._distributed(agents, rows, store, counter)
                if start is not None:
                    risk.start_from(start[np.unique(inverse, return_index=True)[1]])
                found = self._solve(risk)
                break
            except AgentsLostError as error:
                if risk is not None:
                    start = measured_from_zero(risk.best, risk.centres)[inverse]
                matrix = error.rows(matrix)
        counter.reach(len(rows))
        return LogisticModels(classes, **{name: array[inverse] for name, array in found.items()})

    def is_small(self, spec: TrainingSpec) -> bool:
        """Whether everybody's curvatures can be at every target."""
        size = coefficient_rows(len(two_classes(spec))) * (spec.dim + 1)
        return size <= _NEWTON_TO_FINISH and size**2 * len(spec.names) <= LARGEST_QUADRATICS

    def quadratics(self, agents: Agents) -> Quadratics:
        """Expansions of everybody's log loss, each about a model of its own."""
        return agents.ask(Expansions())

    def fit_quadratics(self, everybody: Quadratics, rows: Array, spec: TrainingSpec) -> LogisticModels:
        """One model per row of weights, from expansions alone: where their weighted sum is least."""
        classes = two_classes(spec)
        present = np.ones((len(rows), len(classes)), dtype=bool)
        shape = len(rows), coefficient_rows(len(classes)), spec.dim + 1
        penalties = coefficient_penalties(self._penalties(rows, everybody.n), present, spec.dim, spec.dim + 1)
        curvature, slope = everybody.weighted(rows)
        each = np.arange(curvature.shape[1])
        curvature[:, each, each] += np.tile(2 * penalties, shape[1]) + _LEAST_CURVATURE
        theta = np.asarray(np.linalg.solve(curvature, slope[..., None]), dtype=np.float64).reshape(shape)
        nothing = np.full(len(rows), np.nan), np.ones(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool)
        return LogisticModels(classes, present, theta, *nothing)

    def fit_at_home(self, others: Quadratics, rows: Array, place: int, own: Agent, spec: TrainingSpec) -> LogisticModels:
        """One model per row of weights for the agent at `place`, from its own rows and the others' expansions."""
        penalties = self._penalties(rows, sizes_at_home(others, place, own))
        risk = HomeRisk.of(others, rows, place, own, spec, penalties, self.intercept)
        found = newton(risk, np.zeros(risk.shape), _HOME_TOLERANCE, self.max_iterations)
        alone = risk.own.present.sum(axis=1) == 1  # one class is a constant
        theta = np.where(alone[:, None, None], 0.0, found.theta)
        return LogisticModels(
            two_classes(spec), risk.own.present, theta, found.gradient_norm, found.iterations, found.converged | alone
        )

    def second_expansion(self, prior: Callable[[], tuple[Array, Array]]) -> ExpansionsUnderPrior:
        """Everybody's log loss about the most probable coefficients under the prior."""
        return ExpansionsUnderPrior(*prior())

    def own_sums(self, own: Agent, spec: TrainingSpec) -> tuple[Array, Array, float]:
        """The expansion of the sum of an agent's log losses about a model of its own."""
        curvature, slope = expanded(own, spec, self.intercept)
        return len(own) * curvature, len(own) * slope, np.nan

    def posterior_modes(
        self, parts: Sequence[Agent], centres: Array, spread: Array, start: Array, spec: TrainingSpec
    ) -> Array:
        """By Newton's method on the log losses of the rows themselves."""
        return np.stack(
            [prior_modes(*one, spread, spec, self.intercept) for one in zip(parts, centres, start, strict=True)]
        )

    def mode_covariances(
        self, parts: Sequence[Agent], modes: Array, spread: Array, given: Array, spec: TrainingSpec
    ) -> Array:
        """By the curvature of the rows' log losses at the modes (Laplace's approximation)."""
        return np.stack([mode_covariances(*one, spread, spec, self.intercept) for one in zip(parts, modes, strict=True)])

    def linear_models(
        self, coefficients: Array, shares: Array, spec: TrainingSpec, covariance: Array | None, noise: Array | None
    ) -> LogisticModels:
        """Models that mix probabilities, know all classes, and have covariances by Laplace's approximation."""
        classes, (count, members) = two_classes(spec), shares.shape
        each = coefficients.reshape(count, members, coefficient_rows(len(classes)), spec.dim + 1)
        nothing = np.full(count, np.nan), np.ones(count, dtype=np.int64), np.ones(count, dtype=bool)
        present = np.ones((count, len(classes)), dtype=bool)
        mean = np.einsum("tm,tmkp->tkp", shares, each)
        mixed = (None, None) if members == 1 else (each, shares)
        return LogisticModels(classes, present, mean, *nothing, covariance, *mixed)

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Coefficients and known classes of some rows."""
        check_models(models, LogisticModels, "logistic")
        found = {name: getattr(models, name) for name in ("coefficients", "present", "covariance", "members", "shares")}
        return {name: array[rows] for name, array in found.items() if array is not None}

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> LogisticModels:
        """Models from their coefficients and classes; of how they were found nothing is known."""
        classes = two_classes(spec)
        coefficients = unpacked(arrays, "coefficients", (coefficient_rows(len(classes)), spec.dim + 1), "float64")
        present = unpacked(arrays, "present", (len(classes),), "bool")
        count = len(coefficients)
        if len(present) != count or not present.any(axis=1).all():
            raise InputError(f"the classes of {count} models are expected, one or more for each, got {present.tolist()}")
        more: dict[str, Array] = {}
        if "covariance" in arrays:
            more["covariance"] = unpacked(arrays, "covariance", (coefficients[0].size,) * 2, "float64")
        if "members" in arrays:
            more["shares"] = unpacked(arrays, "shares", arrays["members"].shape[1:2], "float64")
            more["members"] = unpacked(arrays, "members", (more["shares"].shape[1], *coefficients.shape[1:]), "float64")
        return LogisticModels(
            classes,
            present,
            coefficients,
            gradient_norm=np.full(count, np.nan),
            iterations=np.zeros(count, dtype=np.int64),
            converged=np.zeros(count, dtype=bool),
            **more,
        )

    def _pooled(
        self, federation: Federation, spec: TrainingSpec, rows: Array, store: Store, counter: Counter
    ) -> dict[str, NDArray[Any]]:
        """Parts of the rows on all cores; see `PooledPoints`."""
        codes = [own_codes(agent, spec) for agent in federation]
        weights = all_weights(federation, spec)
        points = PooledPoints(agents_columns(federation), codes, rows, len(two_classes(spec)), weights)
        penalties = self._penalties(rows, spec.sizes)

        def part(index: int) -> Arrays:
            chosen = points.parts[index]
            stored = store.load(f"part {index}")
            if stored is None:
                stored = Kept(arrays=self._solve(points.risk(chosen, penalties[chosen], self.intercept)))
                store.save(f"part {index}", stored)
            counter.add(len(chosen))
            return stored.arrays

        count, n_classes = points.present.shape
        # A row of one class is in no part: its model is a constant.
        found: dict[str, NDArray[Any]] = {
            "present": points.present,
            "coefficients": np.zeros((count, coefficient_rows(n_classes), spec.dim + 1)),
            "gradient_norm": np.zeros(count),
            "iterations": np.zeros(count, dtype=np.int64),
            "converged": np.ones(count, dtype=bool),
        }
        for chosen, solved in zip(points.parts, map_on_cores(part, range(len(points.parts))), strict=True):
            for name, array in solved.items():
                found[name][chosen] = array
        return found

    def _distributed(self, agents: Agents, rows: Array, store: Store, counter: Counter) -> DistributedRisk:
        """The risk across sites, with second derivatives unless they are too many: they save most exchanges."""
        size = coefficient_rows(len(two_classes(agents.spec))) * (agents.spec.dim + self.intercept)
        few = self.solver == "newton" or int((rows > 0).sum()) * size**2 <= _LARGEST_EXCHANGE
        second = self.solver != "l-bfgs" and size <= _NEWTON_TO_FINISH and few
        penalties = self._penalties(rows, agents.spec.sizes)
        return DistributedRisk(agents, rows, penalties, self.intercept, second, store, counter)

    def _solve(self, risk: PooledRisk | DistributedRisk) -> dict[str, NDArray[Any]]:
        """Coefficients and certificates of one risk's models."""
        while True:
            try:
                found = self._minimise(risk, risk.best.copy())
                break
            except RiskChangedError:
                continue  # at most as often as there are agents
        return {
            "present": risk.present,
            "coefficients": measured_from_zero(found.theta, risk.centres),
            "gradient_norm": np.where(risk.stranded, np.nan, found.gradient_norm),
            "iterations": found.iterations,
            "converged": found.converged & ~risk.stranded,
        }

    def _minimise(self, risk: PooledRisk | DistributedRisk, start: Array) -> Descent:
        _, rows, columns = risk.shape
        without = self.solver == "l-bfgs" or risk.hessians == "none"
        if not without and (self.solver == "newton" or risk.hessians == "cheap"):
            return newton(risk, start, self.tolerance, self.max_iterations)
        if without or rows * columns > _NEWTON_TO_FINISH or self.max_iterations <= _SLOW:
            return lbfgs(risk, start, self.tolerance, self.max_iterations)
        begun = lbfgs(risk, start, self.tolerance, _SLOW)
        if begun.converged.all():
            return begun
        ended = newton(risk, begun.theta, self.tolerance, self.max_iterations - _SLOW)
        return replace(ended, iterations=begun.iterations + ended.iterations, converged=begun.converged | ended.converged)


@dataclass(frozen=True, eq=False)
class LogisticModels:
    """Logistic regressions, one per row of the weight matrix.

    Attributes
    ----------
    classes : array of shape (C,)
        Sorted labels of the whole federation.
    present : array of bool of shape (T, C)
        The classes each model knows; others have probability zero.
    coefficients : array of shape (T, C, d + 1), or (T, 1, d + 1) for two classes
        Slopes, then the intercept, of every class, or of the second of two.
    gradient_norm : array of shape (T,)
        Norm of the gradient at the end, with x measured from the mean of the row's points; NaN where it is not known.
    iterations : array of int of shape (T,)
    converged : array of bool of shape (T,)
        Whether `gradient_norm` met the tolerance.
    covariance : array of shape (T, p, p), optional
        Of all coefficients of a model, class by class, for models that were found under a prior.
    members : array of shape (T, M, C or 1, d + 1), optional
        Coefficients of members whose probabilities are mixed; `coefficients` has their mean.
    shares : array of shape (T, M), optional
        Of these members.
    """

    classes: NDArray[Any]
    present: NDArray[np.bool_]
    coefficients: Array
    gradient_norm: Array
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]
    covariance: Array | None = None
    members: Array | None = None
    shares: Array | None = None

    def __len__(self) -> int:
        return len(self.coefficients)

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each point."""
        return np.asarray(self.classes[self.predict_proba(row, X).argmax(axis=1)])

    def linear(self, row: int) -> Array:
        """Slopes and then the intercept of every class, or of the second of two, of shape (C or 1, d + 1)."""
        return self.coefficients[row]

    def predict_proba(self, row: int, X: ArrayLike) -> Array:
        """Probabilities (n, C) in the order of `classes`."""
        columns = points_array(X, "predict_proba", self.coefficients.shape[2] - 1)
        if self.members is None or self.shares is None:
            return self._probabilities(row, self.coefficients[row], columns)
        mixed = zip(self.shares[row], self.members[row], strict=True)
        return np.sum([share * self._probabilities(row, theta, columns) for share, theta in mixed if share > 0], axis=0)

    def _probabilities(self, row: int, theta: Array, columns: NDArray[np.floating[Any]]) -> Array:
        """Of coefficients (C or 1, d + 1), for points of that row's model."""
        logits = columns @ theta[:, :-1].T + theta[:, -1]
        if len(theta) == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        logits = np.where(self.present[row], logits, -np.inf)
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(logits / logits.sum(axis=1, keepdims=True), dtype=np.float64)
