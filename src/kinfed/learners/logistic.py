r"""Logistic regression, binary and multinomial, for all targets at once.

For target t the learner minimises

.. math:: \sum_k w_{tk} \frac{1}{n_k} \sum_i -\log p_\theta(y_i^{(k)} | x_i^{(k)}) + \lambda |A|^2 ,

where :math:`p_\theta(c|x)` is the softmax of :math:`A_c'x + b_c` and the intercepts b are not penalised. With two classes
:math:`p_\theta(1|x) = 1 / (1 + e^{-a'x - b})` and the penalty is :math:`\lambda |a|^2`, as is usual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.learners.base import Extent, Task
from kinfed.learners.checkpoint import Arrays, Checkpoint, Counter, run_digest
from kinfed.learners.descent import Minimum, lbfgs, newton
from kinfed.learners.inputs import agents_columns, label_codes, simplex_rows, unique_rows
from kinfed.learners.softmax import SoftmaxRisk, coefficient_penalties, frequency_intercepts
from kinfed.parallel import map_on_cores
from kinfed.progress import Progress
from kinfed.validation import one_of, points_array, positive, positive_integer

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

_NEWTON_AT_ONCE = 64  # coefficients of a model up to which Newton's method is the faster one
_NEWTON_TO_FINISH = 300  # coefficients up to which it takes over where L-BFGS is slow
_SLOW = 50  # iterations of L-BFGS

_SHARED_ROWS = 64  # coefficient rows moved together by one matrix product
_SHARED_WEIGHTS = 2**24  # point weights held for one part (128 MB)
_GATHERED_POINTS = 2**18  # elements of the points gathered for one part (2 MB: they should stay in cache)


@dataclass(frozen=True)
class Logistic:
    r"""Logistic regression on the weighted risk.

    Parameters
    ----------
    penalty : float
        :math:`\lambda`, relative to the mean log loss: scikit-learn's ``C`` is :math:`1 / (2 \lambda)` for sample weights
        that sum to one. The default suits standardised columns. Among penalties from 1e-5 to 0.3, on simulated kin, heart
        disease at four hospitals and landmine fields, its log loss was within 6 % of the best where agents share points
        and within 28 % for models trained alone, which at 1e-4 lose two to three times the best.
    intercept : bool
        Whether unpenalised constants are fitted.
    tolerance : float
        A model has converged once the norm of its gradient is below this, or below this share of the norm at the start
        if that is above one.
    max_iterations : int
    solver : {"auto", "newton", "l-bfgs"}
        "auto" takes Newton's method for models of up to 64 coefficients unless many rows share their support; otherwise
        L-BFGS, which Newton's method relieves after 50 iterations if there are no more than 300 coefficients.

    Notes
    -----
    A class that no agent of a row's support has seen is left out of that row's model: its probability is zero, the limit
    its free intercept would run to. With two classes left the row is a binary problem, with one a constant.

    Examples
    --------
    >>> Logistic(penalty=0.1).task
    'classification'
    """

    penalty: float = 1e-2
    intercept: bool = True
    tolerance: float = 1e-8
    max_iterations: int = 500
    solver: str = "auto"

    def __post_init__(self) -> None:
        positive(self.penalty, "penalty")
        positive(self.tolerance, "tolerance")
        positive_integer(self.max_iterations, "max_iterations")
        one_of(self.solver, ("auto", "newton", "l-bfgs"), "solver")

    @property
    def task(self) -> Task:
        """Classification."""
        return "classification"

    def model_operations(self, extent: Extent) -> float:
        """Roughly how many arithmetic operations one model takes: some thirty looks at all points."""
        logits = 1 if extent.n_classes == 2 else extent.n_classes
        return 30.0 * 4 * float(extent.n_points) * (extent.dim + 1) * logits

    def fit(
        self,
        federation: Federation,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> LogisticModels:
        """Train one model per row of `weights`; see `Learner.fit`. Neither `targets` nor `seed` has an influence."""
        columns = agents_columns(federation)
        classes, codes = label_codes(federation)
        matrix = simplex_rows(weights, federation.names, [len(table) for table in columns])
        rows, inverse = unique_rows(matrix)
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        digest = "" if checkpoint is None else run_digest("logistic", settings, [*columns, *codes, classes, rows])
        store = Checkpoint(checkpoint, digest)
        counter = Counter(progress, "logistic", len(rows))
        pool = _Pool(columns, codes, rows, len(classes))

        def part(index: int) -> Arrays:
            stored = store.load_arrays(index)
            if stored is None:
                stored = self._solve(pool, pool.parts[index])
                store.save_arrays(index, stored)
            counter.add(len(pool.parts[index]))
            return stored

        solved = map_on_cores(part, range(len(pool.parts)))
        order = np.argsort(np.concatenate(pool.parts), kind="stable")
        fields = {name: np.concatenate([one[name] for one in solved])[order][inverse] for name in solved[0]}
        return LogisticModels(classes=classes, present=pool.present[inverse], **fields)

    def _solve(self, pool: _Pool, part: NDArray[np.int64]) -> Arrays:
        """Coefficients and certificates of one part's rows."""
        count, size = len(part), pool.dim + 1
        theta = np.zeros((count, pool.n_logits, size))
        norm, iterations, converged = np.zeros(count), np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
        several = pool.present[part].sum(axis=1) > 1
        if several.any():
            risk, centres = pool.risk(part[several], self.penalty, self.intercept)
            found = self._minimise(risk, pool.start(part[several], self.intercept))
            slopes = found.theta[..., : pool.dim]
            theta[several, :, :-1] = slopes
            if self.intercept:
                theta[several, :, -1] = found.theta[..., -1] - (slopes @ centres[..., None])[..., 0]
            norm[several], iterations[several], converged[several] = found.gradient_norm, found.iterations, found.converged
        return {"coefficients": theta, "gradient_norm": norm, "iterations": iterations, "converged": converged}

    def _minimise(self, risk: SoftmaxRisk, start: Array) -> Minimum:
        count, rows, columns = risk.shape
        own_points = len(risk.points) == count
        if self.solver == "newton" or (self.solver == "auto" and own_points and rows * columns <= _NEWTON_AT_ONCE):
            return newton(risk, start, self.tolerance, self.max_iterations)
        if self.solver == "l-bfgs" or rows * columns > _NEWTON_TO_FINISH or self.max_iterations <= _SLOW:
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
        Norm of the gradient at the end, with x measured from the mean of the row's points.
    iterations : array of int of shape (T,)
    converged : array of bool of shape (T,)
        Whether `gradient_norm` met the tolerance.
    """

    classes: NDArray[Any]
    present: NDArray[np.bool_]
    coefficients: Array
    gradient_norm: Array
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.coefficients)

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each point."""
        return np.asarray(self.classes[self.predict_proba(row, X).argmax(axis=1)])

    def predict_proba(self, row: int, X: ArrayLike) -> Array:
        """Probabilities (n, C) in the order of `classes`."""
        theta = self.coefficients[row]
        columns = points_array(X, "predict_proba", theta.shape[1] - 1)
        logits = columns @ theta[:, :-1].T + theta[:, -1]
        if len(theta) == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        logits = np.where(self.present[row], logits, -np.inf)
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(logits / logits.sum(axis=1, keepdims=True), dtype=np.float64)


class _Pool:
    """All agents' points in one table, and the weight rows in parts that are trained together.

    Rows of one support share its points; rows of different supports gather their own, padded to a common length. Either
    way an agent of weight zero has no part in a row's model.
    """

    def __init__(self, columns: list[Array], codes: list[NDArray[np.int64]], rows: Array, n_classes: int) -> None:
        self.columns, self.codes = np.vstack(columns), np.concatenate(codes)
        self.sizes = np.array([len(table) for table in columns])
        self.dim = self.columns.shape[1]
        self.n_logits = 1 if n_classes == 2 else n_classes
        self._agent = np.repeat(np.arange(len(columns)), self.sizes)
        self._rows = rows
        self._shares = rows / np.maximum(self.sizes, 1)
        counts = np.array([np.bincount(one, minlength=n_classes) for one in codes])
        self._masses = self._shares @ counts
        self.present = (rows > 0) @ (counts > 0)
        self.parts = self._split()

    def _split(self) -> list[NDArray[np.int64]]:
        """Rows of equal support in parts of their own; the others by the length of their support."""
        supports: dict[bytes, list[int]] = {}
        for place, row in enumerate(self._rows > 0):
            supports.setdefault(row.tobytes(), []).append(place)
        parts: list[NDArray[np.int64]] = []
        lonely: list[int] = []
        for places in supports.values():
            if len(places) == 1:
                lonely += places
                continue
            step = max(1, min(_SHARED_ROWS // self.n_logits, _SHARED_WEIGHTS // len(self.columns)))
            parts += [np.array(places[start : start + step]) for start in range(0, len(places), step)]
        lengths = (self._rows > 0) @ self.sizes
        lonely.sort(key=lambda place: -int(lengths[place]))
        while lonely:
            step = max(1, _GATHERED_POINTS // (int(lengths[lonely[0]]) * (self.dim + 1)))
            parts.append(np.array(lonely[:step]))
            lonely = lonely[step:]
        return parts

    def risk(self, part: NDArray[np.int64], penalty: float, intercept: bool) -> tuple[SoftmaxRisk, Array]:
        """The weighted risks of a part's rows, and the points their x is measured from."""
        places, starts, weights = self._gather(part)
        points, codes = self.columns[places], self.codes[places]
        centres = np.zeros((len(places), self.dim))
        if intercept:
            # x is measured from the middle of the points in use: large offsets would cost digits.
            inside = weights.max(axis=0, keepdims=True) > 0 if len(places) == 1 else weights > 0
            centres = np.einsum("tn,tnd->td", inside / inside.sum(axis=1, keepdims=True), points)
            points -= centres[:, None, :]
            points = np.concatenate([points, np.ones((*points.shape[:2], 1))], axis=2)
        penalties = coefficient_penalties(penalty, self.present[part], self.dim, points.shape[2])
        linear = np.empty((len(part), self.n_logits, points.shape[2]))
        for row in range(self.n_logits):
            label = 1 if self.n_logits == 1 else row
            linear[:, row] = ((weights * (codes == label))[:, None, :] @ points)[:, 0]
        return SoftmaxRisk(points, starts, weights, linear, self.present[part], penalties), centres

    def start(self, part: NDArray[np.int64], intercept: bool) -> Array:
        """Slopes zero, and the intercepts that give every class its weighted frequency."""
        start = np.zeros((len(part), self.n_logits, self.dim + intercept))
        if intercept:
            start[..., -1] = frequency_intercepts(self._masses[part], self.present[part])
        return start

    def _gather(self, part: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
        """Places (1 or T, N) of the points in use, where each agent's start, and the weights (T, N) of those points."""
        supports = self._rows[part] > 0
        if (supports == supports[0]).all():
            places = np.flatnonzero(supports[0][self._agent])
            starts = np.concatenate([[0], np.cumsum(self.sizes[supports[0]])[:-1]])
            return places[None], starts, self._shares[part][:, self._agent[places]]
        own = [np.flatnonzero(support[self._agent]) for support in supports]
        longest = max(len(one) for one in own)
        places = np.array([np.pad(one, (0, longest - len(one)), mode="edge") for one in own])
        weights = self._shares[part[:, None], self._agent[places]]
        weights[np.arange(longest) >= np.array([len(one) for one in own])[:, None]] = 0.0
        return places, np.zeros(1, dtype=np.int64), weights
