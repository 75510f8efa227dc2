"""The three questions: which rows and features answer them, and what the answers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.analysis.common_model import (
    FOLDS,
    cross_fitted,
    curves_and_products,
    near_rows,
    principal_coordinates,
    share_of_own_functions,
    unit_block,
)
from kinfed.analysis.diagnosis import Diagnosis, ShiftTest
from kinfed.analysis.permutation import Permuted, Step, deal_rows, exchange_within_cells
from kinfed.backends.agents import Task
from kinfed.embedding import FourierFeatures, Gaussian, federated_median
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.progress import Progress, silent
from kinfed.splitting import derived_seed
from kinfed.validation import Array, FloatArray, Integers, positive_integer, without_rounding

QUESTIONS = {
    "covariate": "Do the inputs x differ between agents?",
    "label": "Do the answers y differ between agents?",
    "concept": "Do the answers to equal inputs, y given x, differ between agents?",
}
MOST_ROWS = 20_000  # so that 1,000 agents take less than ten seconds
INPUT_FEATURES = 128
ANSWER_FEATURES = 32  # of one coordinate
MODEL_FEATURES = 256
MOST_CLASSES = 64
MOST_OUTPUTS = 16  # combinations of classes that the common model predicts
LINEAR_COORDINATES = 100
CURVED_COORDINATES = 20  # columns, or leading coordinates of more, that have curves and products
CELL_COORDINATES = 10
LEAST_IN_CELL = 4  # few, so that rows of a cell are near; enough to come from several agents


def shift_tests(
    prepared: Federation,
    *,
    labels: bool,
    level: float = 0.05,
    permutations: int = 499,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Test whether inputs, answers, and answers to equal inputs differ between agents.

    Parameters
    ----------
    prepared : Federation
        Numeric data, columns standardised. Of more than 20,000 rows that many are drawn, in proportion from every agent.
    labels : bool
        Whether y holds classes rather than numbers.
    level : float
        The chance of a false alarm that each test accepts, on its own.
    permutations : int
        The smallest p-value is 1 / (permutations + 1).
    seed : int
        Of features, folds and permutations.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from kinfed.data import concept_shift
    >>> from kinfed.analysis import shift_tests
    >>> found = shift_tests(concept_shift(n_agents=10, n=30, dim=3, seed=1).train, labels=False)
    >>> found["covariate"].differs, found["concept"].differs
    (False, True)
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    count = positive_integer(permutations, "permutations")
    if not prepared.is_numeric:
        raise InputError("the data hold text or missing values; use kinfed.diagnose, which prepares them first")
    rows, notes = _draw_rows(prepared, labels, seed)
    if rows is None:
        return Diagnosis((), level, _own_table(prepared, {}, ()), count, notes)

    ways: dict[str, Callable[[_Rows, _TestRun], tuple[Permuted, float]]] = {"covariate": _covariate}
    if rows.targets is not None:
        ways |= {"label": _label, "concept": _concept}
    found = {}
    for place, (name, way) in enumerate(ways.items()):
        rng = np.random.default_rng(derived_seed(seed, "diagnosis", name))
        found[name] = way(rows, _TestRun(count, seed, rng, _steps(progress or silent, place * count, len(ways) * count)))
    tests = tuple(
        ShiftTest(name, QUESTIONS[name], permuted.statistic, permuted.p_value, size, level)
        for name, (permuted, size) in found.items()
    )
    own = {name: permuted.own_p_values for name, (permuted, _) in found.items()}
    if {"covariate", "concept"} <= {test.name for test in tests if test.differs} and prepared.dim > CELL_COORDINATES:
        notes += (
            f"With {prepared.dim} columns hardly any inputs are equal: where inputs differ, a part of the difference of y "
            "given x may be what the common model of the test misses.",
        )
    return Diagnosis(tests, level, _own_table(prepared, own, rows.present), count, notes)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that are compared: centred inputs, targets (N, q) if there are any, the agent 0, 1, ... and fold of each.

    `present` holds the places, in the federation, of the agents that have rows.
    """

    inputs: FloatArray
    targets: Array | None
    labels: bool
    agent: Integers
    fold: Integers
    present: Integers
    bandwidth: float


@dataclass(frozen=True, eq=False)
class _TestRun:
    permutations: int
    seed: int
    rng: np.random.Generator
    step: Step


def _covariate(rows: _Rows, run: _TestRun) -> tuple[Permuted, float]:
    return _dealt(_input_features(rows, INPUT_FEATURES, run.seed), rows, run)


def _label(rows: _Rows, run: _TestRun) -> tuple[Permuted, float]:
    targets = np.asarray(rows.targets)
    features = FourierFeatures(Gaussian(1.0), ANSWER_FEATURES, dim=1, seed=run.seed, sampling="orthogonal")
    return _dealt(targets if rows.labels else features(targets), rows, run)


def _dealt(points: FloatArray, rows: _Rows, run: _TestRun) -> tuple[Permuted, float]:
    r"""The test by dealing rows, and its size: :math:`1 - (1 - R^2)(N - 1)/(N - B)` with R^2 the share between agents."""
    centred = points - points.mean(axis=0)
    total = without_rounding(*(float(np.sum(each**2, dtype=np.float64)) for each in (centred, points)))
    permuted = deal_rows(centred, rows.agent, run.permutations, run.rng, run.step)
    by_chance = total * (len(rows.present) - 1) / (len(centred) - 1)
    return permuted, _share(permuted.statistic - by_chance, total - by_chance)


def _concept(rows: _Rows, run: _TestRun) -> tuple[Permuted, float]:
    r"""The test by exchanging residuals, and its size.

    :math:`\varphi(x)` holds a constant, the coordinates of x, and random features: offsets, slopes and curves of an agent.
    """
    targets, inputs = np.asarray(rows.targets), rows.inputs
    if targets.shape[1] > MOST_OUTPUTS:
        targets = principal_coordinates(targets - targets.mean(axis=0), MOST_OUTPUTS, run.rng)
    linear = unit_block(principal_coordinates(inputs, LINEAR_COORDINATES, run.rng))
    curved = curves_and_products(inputs if inputs.shape[1] <= CURVED_COORDINATES else linear[:, :CURVED_COORDINATES])
    smooth = _input_features(rows, MODEL_FEATURES, run.seed + 1)
    predictions = cross_fitted(np.column_stack([linear, *curved, smooth]), targets, rows.fold)
    residuals = targets - predictions
    residuals -= residuals.mean(axis=0)
    # Near rows have near inputs and near predictions: what the model misses is often tied to how large it predicts.
    near = linear[:, :CELL_COORDINATES]
    # Almost as wide as x: were they equally wide, rounding would decide which is halved first.
    weight = 0.9 * np.sqrt(near.var(axis=0).max() / _positive(float(predictions.var(axis=0).max())))
    cell = near_rows(np.column_stack([near, weight * predictions]), LEAST_IN_CELL)
    kernels = [np.ones((len(inputs), 1)), linear, _input_features(rows, INPUT_FEATURES, run.seed).astype(np.float64)]
    points = np.column_stack(kernels) / np.sqrt(len(kernels))
    permuted = exchange_within_cells(residuals, points, rows.agent, cell, run.permutations, run.rng, run.step)
    found = share_of_own_functions(residuals, kernels, np.flatnonzero(np.diff(rows.agent, prepend=-1)))
    # Near rows that are exchanged keep some of what the model misses: that part is chance, not difference.
    return permuted, found * _share(permuted.statistic - permuted.null_mean, permuted.statistic)


def _input_features(rows: _Rows, count: int, seed: int) -> FloatArray:
    kernel = Gaussian(rows.bandwidth)
    return FourierFeatures(kernel, count, dim=rows.inputs.shape[1], seed=seed, sampling="orthogonal")(rows.inputs)


def _draw_rows(prepared: Federation, labels: bool, seed: int) -> tuple[_Rows | None, tuple[str, ...]]:
    """The rows to compare, and what there is to say about them; None where nothing can be compared."""
    present = np.flatnonzero(prepared.sizes > 0)
    if len(present) < 2:
        return None, ("There is nothing to compare: a difference between agents needs two agents with data.",)
    if prepared.sizes.max() < 2:
        return None, ("There is nothing to compare: no agent has two rows, so chance and difference look the same.",)
    notes, drawn, folds = [], [], []
    total = int(prepared.sizes.sum())
    for agent in prepared.select(present.tolist()):
        rng = np.random.default_rng(derived_seed(seed, "rows of the diagnosis", agent.name))
        kept = len(agent) if total <= MOST_ROWS else max(min(len(agent), 2), int(len(agent) * MOST_ROWS / total))
        chosen = np.sort(rng.permutation(len(agent))[:kept])
        drawn.append(agent.rows(chosen))
        folds.append(rng.permutation((np.arange(kept) + rng.integers(FOLDS)) % FOLDS))
    sample = Federation(tuple(drawn), prepared.columns)
    inputs, y, index = sample.pooled()
    if len(inputs) < total:
        notes.append(f"The tests use {len(inputs):,} of the {total:,} rows, drawn in proportion from every agent.")
    if y is None:
        notes.append("There is no target, so only the inputs are compared.")
    elif labels and len(np.unique(y)) > MOST_CLASSES:
        notes.append(f"There are {len(np.unique(y))} classes; all but the {MOST_CLASSES - 1} most frequent count as one.")
    centred = inputs - inputs.mean(axis=0)
    rows = _Rows(
        inputs=centred,
        targets=None if y is None else _targets(y, labels),
        labels=labels,
        agent=index,
        fold=np.concatenate(folds),
        present=present,
        bandwidth=_bandwidth(sample, centred),
    )
    return rows, tuple(notes)


def _targets(y: NDArray[Any], labels: bool) -> Array:
    """Standardised numbers (N, 1), or one column per class, the rarest of very many together in one."""
    if labels:
        _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        rank = np.argsort(np.argsort(-counts, kind="stable"))
        return np.eye(MOST_CLASSES)[np.minimum(rank[codes], MOST_CLASSES - 1)][:, : len(counts)]
    if y.dtype.kind not in "fiub" or not np.isfinite(y.astype(np.float64)).all():
        raise InputError("the target holds values that are not finite numbers; for classes, use a classifier as learner")
    numbers = y.astype(np.float64)
    deviation = float(numbers.std())
    # Rounding leaves a constant that is large a deviation that is not quite zero.
    constant = deviation <= 1e-12 * float(np.abs(numbers).max())
    return np.asarray(np.zeros(len(y)) if constant else (numbers - numbers.mean()) / deviation)[:, None]


def _bandwidth(sample: Federation, centred: FloatArray) -> float:
    """Median distance within agents; where there is none, the root mean squared distance between rows."""
    try:
        return federated_median(sample)
    except InputError:
        return _positive(float(np.sqrt(2 * np.sum(centred.var(axis=0, dtype=np.float64)))))


def _own_table(prepared: Federation, own: dict[str, Array], present: Iterable[int]) -> pandas.DataFrame:
    """A row per agent, a column per test; NaN for agents without rows."""
    table = pandas.DataFrame(own, index=[prepared.names[k] for k in present])
    return table.reindex(pandas.Index(prepared.names, name="agent"))


def _steps(progress: Progress, before: int, total: int) -> Step:
    return lambda done: progress("differences between agents", before + done, total)


def _share(part: float, whole: float) -> float:
    return float(np.clip(part / whole, 0.0, 1.0)) if whole > 0 else 0.0


def _positive(value: float) -> float:
    return value if value > 0 else 1.0


def diagnosis_of(prepared: Federation, task: Task, seed: int, **options: Any) -> Diagnosis:
    """The tests for numeric data: the target holds classes where they are learned, or where it is text."""
    y = prepared[0].y
    labels = task == "classification" or (y is not None and y.dtype.kind not in "fiub")
    return shift_tests(prepared, labels=labels, seed=seed, **options)
