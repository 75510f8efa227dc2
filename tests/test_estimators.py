"""The scikit-learn front: its own checks, agents, pandas, and searching with metadata routing."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import kinfed


@parametrize_with_checks([kinfed.PersonalizedRegressor(), kinfed.PersonalizedClassifier()])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(name="rows", scope="module")
def two_kinds_of_agents():
    """Eight agents; the sign of the slope alternates, so one common model is useless."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((480, 3)), columns=["a", "b", "c"])
    agent = np.array([f"site {k}" for k in np.arange(480) % 8])
    signal = X["a"] * np.where(np.arange(480) % 2, 1.0, -1.0)
    return X, signal + 0.1 * rng.standard_normal(480), agent


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [None, "ridge", Ridge(alpha=0.1), DecisionTreeRegressor(max_depth=4)])
def test_personal_models_beat_one_model(rows, estimator):
    X, y, agent = rows
    model = kinfed.PersonalizedRegressor(estimator).fit(X[:400], y[:400], agent=agent[:400])
    assert model.score(X[400:], y[400:], agent=agent[400:]) > 0.8
    assert Ridge().fit(X[:400], y[:400]).score(X[400:], y[400:]) < 0.2
    assert list(model.agents_) == [f"site {k}" for k in range(8)]
    linear = estimator is None or estimator == "ridge"
    assert (model.weights_ is None) == linear == (model.influence_ is not None)
    heard = model.influence_ if linear else model.weights_.matrix
    assert heard[0, 1::2].sum() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [None, LogisticRegression()])
def test_a_classifier_with_text_labels_and_probabilities(rows, estimator):
    X, y, agent = rows
    labels = np.where(y > 0, "up", "down")
    model = kinfed.PersonalizedClassifier(estimator).fit(X, labels, agent=agent)
    assert model.score(X, labels, agent=agent) > 0.9
    probabilities = model.predict_proba(X, agent=agent)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X, agent=agent))


@pytest.mark.slow
def test_the_agent_may_be_a_column_of_the_table(rows, fitted):
    X, y, agent = rows
    table = X.assign(site=agent)
    by_column = kinfed.PersonalizedRegressor().fit(table, y, agent="site")
    np.testing.assert_array_equal(by_column.predict(table, agent="site"), fitted.predict(X, agent=agent))
    assert list(by_column.feature_names_in_) == ["a", "b", "c"]


def test_equal_seeds_give_equal_bytes_and_clones_start_afresh(rows):
    X, y, agent = rows
    model = kinfed.PersonalizedRegressor(rule="entropic", options={"strength": 0.2}, random_state=3)
    copy = clone(model)
    assert copy.get_params()["options"] == {"strength": 0.2}
    first = model.fit(X, y, agent=agent).predict(X, agent=agent)
    assert copy.fit(X, y, agent=agent).predict(X, agent=agent).tobytes() == first.tobytes()


def test_grid_search_in_a_pipeline_with_metadata_routing(rows):
    X, y, agent = rows
    with sklearn.config_context(enable_metadata_routing=True):
        inner = kinfed.PersonalizedRegressor()
        for request in (inner.set_fit_request, inner.set_predict_request, inner.set_score_request):
            request(agent=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), inner),
            {"personalizedregressor__rule": ["grand-mean", "q-aggregation"]},
            cv=list(StratifiedKFold(3).split(X, agent)),
            error_score="raise",
        )
        search.fit(X, y, agent=agent)
        assert search.best_params_ == {"personalizedregressor__rule": "q-aggregation"}
        assert search.best_estimator_.predict(X, agent=agent).shape == (480,)


@pytest.fixture(name="fitted", scope="module")
def fitted_to_rows(rows):
    X, y, agent = rows
    return kinfed.PersonalizedRegressor().fit(X, y, agent=agent)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda m, X, y, a: m.predict(X), "8 agents; tell which one"),
        (
            lambda m, X, y, a: m.predict(X[:1], agent=["site 9"]),
            "no agent among those seen at fit: 'site 9'; the nearest is",
        ),
        (lambda m, X, y, a: m.predict(X, agent=a[:5]), "one label per row: X has 480 rows"),
        (lambda m, X, y, a: clone(m).fit(X, y, agent=a[:5]), "one label per row"),
        (lambda m, X, y, a: clone(m).fit(X, y, agent="place"), "no column 'place'"),
        (lambda m, X, y, a: clone(m).fit(X.to_numpy(), y, agent="place"), "X is not a DataFrame"),
        (lambda m, X, y, a: clone(m).fit(X * 0 + 1, y, agent=a), "constant"),
        (
            lambda m, X, y, a: clone(m).set_params(rule="entropic").fit(X, y, agent=["lonely", *a[1:]]),
            "agent lonely has one point",
        ),
        (lambda m, X, y, a: kinfed.PersonalizedRegressor("logistic").fit(X, y, agent=a), "learner for regression"),
        (lambda m, X, y, a: kinfed.PersonalizedRegressor(rule="best").fit(X, y, agent=a), "rule 'best' is not known"),
        (lambda m, X, y, a: kinfed.PersonalizedClassifier().fit(X, y * 0 > 1, agent=a), "at least two classes"),
    ],
)
def test_mistakes_are_named(rows, fitted, call, words):
    X, y, agent = rows
    with pytest.raises(kinfed.KinfedError, match=words):
        call(fitted, X, y, agent)
