r"""Any scikit-learn estimator that takes sample weights: regressors, classifiers, clusterers and density estimators.

Target t trains a clone on the rows of all agents with :math:`w_{tk} > 0`; a row of agent k weighs :math:`w_{tk} / n_k`,
times the effective sample size :math:`1 / \sum_k w_{tk}^2 / n_k`. Constants such as ``alpha`` and ``C``, which estimators
hold against a sum over rows, so mean what they mean for that many plain rows, and change continuously with the weights.
An agent alone has rows of weight one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from kinfed.backends.agents import Agents, Task, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Counter, Kept, Store
from kinfed.errors import InputError
from kinfed.learners.base import needs_rows, rows_here
from kinfed.learners.estimator_files import UntrustedTypesError, read, rows_inside, written
from kinfed.learners.inputs import (
    agents_columns,
    agents_numbers,
    all_weights,
    check_models,
    own_codes,
    simplex_rows,
    training_store,
    two_classes,
    unique_rows,
)
from kinfed.progress import Progress
from kinfed.validation import Array, points_array


@dataclass(frozen=True)
class ScikitLearner:
    """A scikit-learn estimator, trained on each target's weighted rows.

    Parameters
    ----------
    estimator : scikit-learn estimator
        Its ``fit`` must take ``sample_weight``. A pipeline hands the weights to every step that takes them, and its last
        step must. The estimator itself is never fitted; clones are.
    n_jobs : int, optional
        Processes that train targets at the same time, as joblib counts them.
    trusted : tuple of str
        Types of other packages than scikit-learn, NumPy and SciPy that may be made when fitted estimators are read from a
        file, such as ``"my_package.MyScaler"``.

    Notes
    -----
    Every ``random_state`` that is not a number is set from the seed, the same for all targets, so that targets differ by
    their weights alone. A classifier whose rows all have one label is not trained: it predicts that label. Files hold
    estimators in the format of skops, which runs nothing when it is read.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> ScikitLearner(RandomForestRegressor(n_estimators=50)).task
    'regression'
    """

    estimator: BaseEstimator
    n_jobs: int | None = None
    trusted: tuple[str, ...] = ()

    name: ClassVar[str] = "scikit-learn"

    def __post_init__(self) -> None:
        if isinstance(self.estimator, type) or not all(hasattr(self.estimator, name) for name in ("fit", "get_params")):
            raise InputError(f"{self.estimator!r} is not a scikit-learn estimator; give an instance, such as Ridge()")
        if not _weight_parameters(self.estimator):
            raise InputError(
                f"{_name(self.estimator)} does not take sample_weight in fit, so it cannot minimise a weighted risk; "
                "choose an estimator that does"
            )

    @property
    def task(self) -> Task:
        """What the estimator is: a regressor, a classifier, or neither."""
        if is_regressor(self.estimator):
            return "regression"
        return "classification" if is_classifier(self.estimator) else "unsupervised"

    def fit(
        self,
        agents: Agents,
        weights: Array,
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> ScikitModels | ScikitClassifierModels:
        """Train one model per row of `weights`; see `Learner.fit`. `targets` only serves to name agents in errors."""
        federation, spec = rows_here(self, agents), agents.spec
        X = np.vstack(agents_columns(federation))
        y: NDArray[Any] | None = None
        if self.task == "regression":
            y = np.concatenate(agents_numbers(federation))
        elif self.task == "classification":
            # Labels are read off the classes, not learned as codes, so estimators see what the user gave them.
            y = two_classes(spec)[np.concatenate([own_codes(agent, spec) for agent in federation])]
        counted = all_weights(federation, spec)
        rows, inverse = unique_rows(simplex_rows(weights, spec))
        template = _seeded(self.estimator, spec.seed)
        store = training_store(checkpoint, f"{_name(template)} {joblib.hash(template)}", agents, rows)
        counter = Counter(progress, _name(template), len(rows))

        fitted = {place: stored for place in range(len(rows)) if (stored := self._load(store, place)) is not None}
        counter.add(len(fitted))
        waiting = [place for place in range(len(rows)) if place not in fitted]
        results = joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")(
            joblib.delayed(_fit_row)(template, X, y, spec.sizes, rows[place], counted) for place in waiting
        )
        for place, (model, problem) in zip(waiting, results, strict=True):
            if model is None:
                row = int((inverse == place).argmax())
                target = row if targets is None or len(targets) != len(inverse) else targets[row]
                who = spec.names[target] if target < len(spec.names) else row
                raise InputError(f"{_name(template)} could not be trained for agent {who}: {problem}")
            fitted[place] = model
            store.save(f"part {place}", Kept(arrays={"estimator": written(model)}))
            counter.add(1)
        models = tuple(fitted[place] for place in inverse)
        return self._models(models, spec)

    def _models(self, estimators: tuple[Any, ...], spec: TrainingSpec) -> ScikitModels | ScikitClassifierModels:
        if self.task == "classification":
            return ScikitClassifierModels(estimators, spec.dim, two_classes(spec))
        return ScikitModels(estimators, spec.dim)

    def check_sites(self) -> None:
        """Refuse: an estimator sees all rows at once."""
        raise needs_rows(self)

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The different estimators of some rows, each as the bytes of a skops file, and what they are clones of."""
        check_models(models, ScikitModels, "scikit-learn")
        chosen = [models.estimators[row] for row in rows.tolist()]
        different = list({id(one): one for one in chosen}.values())
        place = {id(one): number for number, one in enumerate(different)}
        model_of = np.array([place[id(one)] for one in chosen], dtype=np.int64)
        fitted = {f"estimator {number}": written(one) for number, one in enumerate(different)}
        return {"template": written(clone(self.estimator)), "model of": model_of, **fitted}

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> ScikitModels | ScikitClassifierModels:
        """Fitted estimators from their bytes."""
        different = [read(arrays[f"estimator {number}"], self.trusted) for number in range(len(arrays) - 2)]
        return self._models(tuple(different[number] for number in arrays["model of"].tolist()), spec)

    @classmethod
    def restored(cls, arrays: Arrays, trusted: Sequence[str] = ()) -> ScikitLearner:
        """The learner whose models `pack` wrote."""
        return cls(read(arrays["template"], trusted), trusted=tuple(trusted))

    def remembers_rows(self, models: Any) -> str | None:
        """Which part of the fitted estimators holds rows of somebody, in words; None if none is known to."""
        return next((what for one in models.estimators if (what := rows_inside(one)) is not None), None)

    def _load(self, store: Store, place: int) -> Any:
        """The estimator that was fitted before, or None; one of types nobody vouched for is fitted again."""
        kept = store.load(f"part {place}")
        try:
            return None if kept is None else read(kept.arrays["estimator"], self.trusted, of_this_run=True)
        except UntrustedTypesError:
            return None


@dataclass(frozen=True, eq=False)
class ScikitModels:
    """Fitted estimators, one per row of the weight matrix; equal rows share one.

    Attributes
    ----------
    estimators : tuple of fitted estimators
    dim : int
        Number of columns of x.
    """

    estimators: tuple[Any, ...]
    dim: int

    def __len__(self) -> int:
        return len(self.estimators)

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of the model of that row: numbers, labels, or clusters."""
        return self._ask(row, "predict", X)

    def score(self, row: int, X: ArrayLike) -> float:
        """Mean score per point of an unsupervised model, higher is better.

        The mean of ``score_samples`` (a log density) where the estimator has it, minus the mean squared distance to the
        nearest centre for k-means and its kin, else the estimator's own ``score``.
        """
        estimator = self.estimators[row]
        if hasattr(estimator, "score_samples"):
            return float(np.mean(self._ask(row, "score_samples", X)))
        total = float(self._ask(row, "score", X))
        return total / len(np.asarray(X)) if hasattr(_last_step(estimator), "inertia_") else total

    def linear(self, row: int) -> Array | None:
        """Slopes and then the intercept, of shape (outputs, d + 1), of a linear estimator; None for any other."""
        estimator = self.estimators[row]
        if not (hasattr(estimator, "coef_") and hasattr(estimator, "intercept_")):
            return None
        slopes = np.atleast_2d(estimator.coef_)
        return np.column_stack([slopes, np.broadcast_to(estimator.intercept_, len(slopes))])

    def _ask(self, row: int, method: str, X: ArrayLike) -> Any:
        estimator = self.estimators[row]
        if not hasattr(estimator, method):
            raise InputError(f"{_name(estimator)} has no {method}; choose an estimator that has")
        return getattr(estimator, method)(np.asarray(points_array(X, method, self.dim), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class ScikitClassifierModels(ScikitModels):
    """Fitted classifiers, one per row of the weight matrix.

    Attributes
    ----------
    classes : array of shape (C,)
        Sorted labels of the whole federation; a label that a model never saw has probability zero.
    """

    classes: NDArray[Any]

    @property
    def has_probabilities(self) -> bool:
        """Whether the estimator gives probabilities."""
        return all(hasattr(estimator, "predict_proba") for estimator in self.estimators)

    def predict_proba(self, row: int, X: ArrayLike) -> Array:
        """Probabilities (n, C) in the order of `classes`."""
        given = np.asarray(self._ask(row, "predict_proba", X), dtype=np.float64)
        place = {label: index for index, label in enumerate(self.classes.tolist())}
        known = [place[label] for label in np.asarray(self.estimators[row].classes_).tolist()]
        probabilities = np.zeros((len(given), len(self.classes)))
        probabilities[:, known] = given
        return probabilities


def row_weights(sizes: NDArray[np.int64], weights: Array) -> Array:
    """Weight of each pooled row: w_k / n_k times the effective sample size, and ones if all rows in use weigh the same."""
    shares = weights / np.maximum(sizes, 1)
    used = shares[weights > 0]
    if used.max() - used.min() <= 1e-12 * used.max():
        return np.repeat(np.where(weights > 0, 1.0, 0.0), sizes)
    return np.repeat(shares / (weights @ shares), sizes)


def _fit_row(
    template: BaseEstimator,
    X: Array,
    y: NDArray[Any] | None,
    sizes: NDArray[np.int64],
    weights: Array,
    counted: Array | None,
) -> tuple[Any, str]:
    """The fitted clone, or None and why it could not be fitted; rows may count differently."""
    sample_weight = row_weights(sizes, weights) * (1.0 if counted is None else counted)
    kept = sample_weight > 0
    X, sample_weight = X[kept], sample_weight[kept]
    y = None if y is None else y[kept]
    if y is not None and is_classifier(template) and (y == y[0]).all():
        return DummyClassifier(strategy="most_frequent").fit(X[:1], y[:1]), ""
    estimator = clone(template)
    try:
        estimator.fit(X, y, **dict.fromkeys(_weight_parameters(estimator), sample_weight))
    except (TypeError, ValueError) as error:
        return None, str(error).split("\n")[0]
    return estimator, ""


def _weight_parameters(estimator: Any) -> tuple[str, ...]:
    """Names under which ``fit`` takes the sample weights; none if it does not take them."""
    if isinstance(estimator, Pipeline):
        steps = [(name, _weight_parameters(step)) for name, step in estimator.steps if step not in (None, "passthrough")]
        if not steps or not steps[-1][1] or steps[-1][0] != estimator.steps[-1][0]:
            return ()
        return tuple(f"{name}__{parameter}" for name, parameters in steps for parameter in parameters)
    if has_fit_parameter(estimator, "sample_weight"):
        return ("sample_weight",)
    # Searches and target transformers hand fit parameters on to the estimator inside.
    inner = getattr(estimator, "estimator", None) or getattr(estimator, "regressor", None)
    hands_on = any(one.kind is Parameter.VAR_KEYWORD for one in signature(estimator.fit).parameters.values())
    return _weight_parameters(inner) if inner is not None and hands_on else ()


def _seeded(estimator: BaseEstimator, seed: int) -> Any:
    """A clone whose random states are numbers drawn from the seed, except where the user set a number."""
    template = clone(estimator)
    parameters, rng = template.get_params(), np.random.default_rng(seed)
    names = sorted(name for name in parameters if name == "random_state" or name.endswith("__random_state"))
    drawn = {name: int(rng.integers(2**31 - 1)) for name in names}
    return template.set_params(
        **{name: value for name, value in drawn.items() if not isinstance(parameters[name], int | np.integer)}
    )


def _last_step(estimator: Any) -> Any:
    return _last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def _name(estimator: Any) -> str:
    return type(_last_step(estimator)).__name__
