"""The scikit-learn front: personal models as one estimator that is told which agent a row belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kinfed.checkpoint import Store
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.learners.base import AUTO
from kinfed.run import run
from kinfed.run_setup import chosen_settings, pooled_agents
from kinfed.validation import unknown

ONLY_AGENT = "only agent"


class _Personalized(BaseEstimator):
    """What the regressor and the classifier share: one model per agent behind fit and predict."""

    _default_learner: str
    _task: str

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = AUTO,
        rule: str = AUTO,
        kernel: Any = "auto",
        shift: str = "auto",
        n_features: int = 500,
        sampling: str = "iid",
        options: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.rule = rule
        self.kernel = kernel
        self.shift = shift
        self.n_features = n_features
        self.sampling = sampling
        self.options = options
        self.random_state = random_state

    def fit(self, X: Any, y: Any, agent: Any = None) -> Any:
        """Learn who helps whom, and a model for every agent.

        Parameters
        ----------
        X : array or DataFrame of shape (n, d)
        y : array of shape (n,)
        agent : array of shape (n,), or name of a column of `X`, optional
            The agent each row belongs to; without it all rows are one agent's.

        Returns
        -------
        self
        """
        X, labels = _agent_of_rows(X, agent)
        columns = [str(name) for name in X.columns] if hasattr(X, "columns") else None
        X, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), y_numeric=self._task == "regression", ensure_min_samples=2
        )
        federation = Federation.from_arrays(X, self._check_target(y), _one_per_row(labels, X), columns=columns)
        given = self._default_learner if self.estimator is None else self.estimator
        learner = make_learner(given, **({"task": self._task} if isinstance(given, str) and given == "torch" else {}))
        if learner.task != self._task:
            raise InputError(
                f"{type(self).__name__} needs a learner for {self._task}, but {learner!r} is for {learner.task}"
            )
        named = ("method", "rule", "options", "kernel", "shift", "n_features", "sampling")
        choices = {name: getattr(self, name) for name in named}
        settings, learner, federation = chosen_settings(
            federation, learner, None, {**choices, "seed": self.random_state, "baselines": False}
        )
        agents = pooled_agents(federation, None, learner, settings)
        result = run(agents, learner, settings, Store(None, {}))
        self.preparation_, self.models_ = result.preparation, result.models
        self.weights_ = result.weighed
        self.influence_ = None if result.stacking is None else result.stacking.influence
        self.agents_ = np.array(federation.names)
        return self

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def _by_agent(self, X: Any, agent: Any) -> tuple[Any, list[tuple[int, NDArray[np.bool_]]]]:
        """Checked rows, and for every agent among them the row of its model and which rows are its own."""
        check_is_fitted(self)
        X, labels = _agent_of_rows(X, agent)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        if labels is None and len(self.agents_) > 1:
            raise InputError(
                f"the model knows {len(self.agents_)} agents; tell which one each row belongs to, as agent=..."
            )
        given = _one_per_row(labels, X)
        names = np.full(len(X), self.agents_[0]) if labels is None else np.array([str(name) for name in given])
        prepared = self.preparation_.transform(
            Federation.from_arrays(X, None, np.zeros(len(X), dtype=int), columns=self.preparation_.source)
        )[0].X
        rows = []
        for name in np.unique(names):
            found = np.flatnonzero(self.agents_ == name)
            if not len(found):
                raise unknown("agent among those seen at fit:", str(name), self.agents_.tolist())
            rows.append((int(found[0]), names == name))
        return prepared, rows

    def predict(self, X: Any, agent: Any = None) -> NDArray[Any]:
        """Predictions of each row by the model of its agent."""
        prepared, rows = self._by_agent(X, agent)
        parts = [(mine, np.asarray(self.models_.predict(row, prepared[mine]))) for row, mine in rows]
        predicted = np.empty(len(prepared), dtype=np.result_type(*(part.dtype for _, part in parts)))
        for mine, part in parts:
            predicted[mine] = part
        return predicted


class PersonalizedRegressor(RegressorMixin, _Personalized):
    """A regression model of its own for every agent, trained on the data of those who help it.

    Parameters
    ----------
    estimator : learner, scikit-learn regressor, or name of a learner, optional
        What is trained for each agent; closed-form ridge by default.
    method, rule
        The way to personal models, a key of `kinfed.METHODS`, or a rule of `kinfed.RULES` by which agents are weighed; see
        `kinfed.personalize`.
    kernel, shift, n_features, sampling, options
        How agents are compared and weighed; see `kinfed.collaboration_weights`.
    random_state : int
        Seed of everything random.

    Attributes
    ----------
    weights_ : Weights, or None
        Who listens to whom, by a rule.
    influence_ : array of shape (B, B), or None
        Who speaks in whose model, by stacked priors.
    agents_ : array of str
        The agents seen at fit.

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> rng = np.random.default_rng(0)
    >>> X, agent = rng.standard_normal((200, 3)), np.arange(200) % 4
    >>> y = np.where(agent % 2, X[:, 0], -X[:, 0])
    >>> model = kinfed.PersonalizedRegressor().fit(X, y, agent=agent)
    >>> bool(model.score(X, y, agent=agent) > 0.9)
    True
    """

    _default_learner = "ridge"
    _task = "regression"

    def score(self, X: Any, y: Any, sample_weight: Any = None, agent: Any = None) -> float:
        """Coefficient of determination of the predictions."""
        return float(r2_score(y, self.predict(X, agent=agent), sample_weight=sample_weight))


class PersonalizedClassifier(ClassifierMixin, _Personalized):
    """A classifier of its own for every agent, trained on the data of those who help it.

    Parameters
    ----------
    estimator : learner, scikit-learn classifier, or name of a learner, optional
        What is trained for each agent; multinomial logistic regression by default.
    method, rule
        The way to personal models, a key of `kinfed.METHODS`, or a rule of `kinfed.RULES` by which agents are weighed; see
        `kinfed.personalize`.
    kernel, shift, n_features, sampling, options
        How agents are compared and weighed; see `kinfed.collaboration_weights`.
    random_state : int
        Seed of everything random.

    Attributes
    ----------
    classes_ : array
        All classes, over all agents.
    weights_ : Weights, or None
        Who listens to whom, by a rule.
    influence_ : array of shape (B, B), or None
        Who speaks in whose model, by stacked priors.
    agents_ : array of str
        The agents seen at fit.
    """

    _default_learner = "logistic"
    _task = "classification"

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"all rows have the class {self.classes_[0]}; a classifier needs at least two classes")
        return np.asarray(codes)

    def predict(self, X: Any, agent: Any = None) -> NDArray[Any]:
        """The class of each row by the model of its agent."""
        check_is_fitted(self)
        return np.asarray(self.classes_[super().predict(X, agent=agent)])

    def predict_proba(self, X: Any, agent: Any = None) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes_`."""
        prepared, rows = self._by_agent(X, agent)
        models: Any = self.models_
        if not hasattr(models, "predict_proba"):
            raise AttributeError(f"{type(models).__name__} gives no probabilities")
        probabilities = np.zeros((len(prepared), len(self.classes_)))
        for row, mine in rows:
            probabilities[np.ix_(mine, models.classes)] = models.predict_proba(row, prepared[mine])
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None, agent: Any = None) -> float:
        """The share of rows whose class is predicted, by their weights where there are any."""
        return float(accuracy_score(y, self.predict(X, agent=agent), sample_weight=sample_weight))


def _agent_of_rows(X: Any, agent: Any) -> tuple[Any, Any]:
    """Take the agents out of a column of X where `agent` names one."""
    if isinstance(agent, str):
        if not hasattr(X, "columns"):
            raise InputError(f"agent={agent!r} names a column, but X is not a DataFrame; give one label per row")
        if agent not in X.columns:
            raise unknown("column", agent, [str(name) for name in X.columns])
        return X.drop(columns=agent), np.asarray(X[agent])
    return X, None if agent is None else np.asarray(agent)


def _one_per_row(labels: ArrayLike | None, X: NDArray[Any]) -> NDArray[Any]:
    if labels is None:
        return np.full(len(X), ONLY_AGENT)
    given = np.asarray(labels)
    if given.shape != (len(X),):
        raise InputError(f"agent must hold one label per row: X has {len(X)} rows, agent has shape {given.shape}")
    return given
