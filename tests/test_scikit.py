"""Any scikit-learn estimator as a learner, against the estimator fitted by hand."""

import sys

import joblib
import numpy as np
import pytest
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import LinearSVC

from kinfed import learners
from kinfed.errors import InputError, MissingExtraError
from kinfed.federation import Federation
from kinfed.learners import Logistic, make_learner
from kinfed.learners.scikit import ScikitLearner, row_weights
from question_sites import fit, sites

SIZES = np.array([8, 12, 20])
WEIGHTS = np.array([[1.0, 0, 0], [0.2, 0.3, 0.5], [0.6, 0.4, 0], [0.2, 0.3, 0.5]])


def make_federation(labels=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(SIZES.sum(), 3))
    y = X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=len(X))
    return Federation.from_arrays(X, np.where(y > 0, "up", "down") if labels else y, np.repeat(["a", "b", "c"], SIZES))


def pooled(federation):
    X, y, _ = federation.pooled()
    return X, y


def test_rows_weigh_their_share_of_the_effective_sample_size():
    for row in WEIGHTS:
        sample_weight = row_weights(SIZES, row)
        np.testing.assert_allclose(sample_weight / sample_weight.sum(), np.repeat(row / SIZES, SIZES))
        np.testing.assert_allclose(sample_weight.sum(), 1 / np.sum(row**2 / SIZES))
    np.testing.assert_array_equal(row_weights(SIZES, WEIGHTS[0]), np.repeat([1.0, 0, 0], SIZES))
    np.testing.assert_array_equal(row_weights(SIZES, SIZES / SIZES.sum()), np.ones(SIZES.sum()))


def test_a_regressor_equals_the_estimator_fitted_by_hand():
    federation = make_federation()
    X, y = pooled(federation)
    learner = ScikitLearner(Ridge(alpha=0.7))
    assert learner.task == "regression"
    models = fit(learner, federation, WEIGHTS)
    assert len(models) == 4
    for t, row in enumerate(WEIGHTS):
        sample_weight = row_weights(SIZES, row)
        kept = sample_weight > 0
        oracle = Ridge(alpha=0.7).fit(X[kept], y[kept], sample_weight=sample_weight[kept])
        np.testing.assert_array_equal(models.predict(t, X), oracle.predict(X))
    assert models.estimators[1] is models.estimators[3]


def test_seeds_decide_random_estimators():
    federation = make_federation()
    X, _ = pooled(federation)
    forest = ScikitLearner(RandomForestRegressor(n_estimators=5))
    first, again, other = (fit(forest, federation, WEIGHTS[:2], seed=seed).predict(1, X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    fixed = ScikitLearner(RandomForestRegressor(n_estimators=5, random_state=3))
    one, two = (fit(fixed, federation, WEIGHTS[:2], seed=seed).predict(1, X) for seed in (0, 1))
    np.testing.assert_array_equal(one, two)
    assert forest.estimator.random_state is None


def test_several_jobs_give_the_same_models():
    federation = make_federation()
    X, _ = pooled(federation)
    alone, together = (ScikitLearner(RandomForestRegressor(n_estimators=5), n_jobs=jobs) for jobs in (None, 2))
    with joblib.parallel_config("threading"):
        models = fit(together, federation, WEIGHTS)
    for t in range(len(WEIGHTS)):
        np.testing.assert_array_equal(fit(alone, federation, WEIGHTS).predict(t, X), models.predict(t, X))


def test_pipelines_weigh_every_step_that_takes_weights():
    federation = make_federation()
    X, y = pooled(federation)
    pipeline = make_pipeline(MinMaxScaler(), StandardScaler(), Ridge())
    models = fit(ScikitLearner(pipeline), federation, WEIGHTS)
    sample_weight = row_weights(SIZES, WEIGHTS[1])
    oracle = make_pipeline(MinMaxScaler(), StandardScaler(), Ridge())
    oracle.fit(X, y, standardscaler__sample_weight=sample_weight, ridge__sample_weight=sample_weight)
    np.testing.assert_array_equal(models.predict(1, X), oracle.predict(X))
    nested = ScikitLearner(make_pipeline(MinMaxScaler(), make_pipeline(StandardScaler(), Ridge())))
    np.testing.assert_allclose(fit(nested, federation, WEIGHTS).predict(1, X), oracle.predict(X))


def test_searches_and_target_transformers_hand_weights_on():
    federation = make_federation()
    X, y = pooled(federation)
    sample_weight = row_weights(SIZES, WEIGHTS[1])
    for estimator in (GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=3), TransformedTargetRegressor(Ridge())):
        models = fit(ScikitLearner(estimator), federation, WEIGHTS[1:2])
        np.testing.assert_array_equal(models.predict(0, X), estimator.fit(X, y, sample_weight=sample_weight).predict(X))


@pytest.mark.parametrize("estimator", [KNeighborsRegressor(), make_pipeline(StandardScaler(), KNeighborsRegressor())])
def test_estimators_without_sample_weights_are_refused(estimator):
    with pytest.raises(InputError, match="KNeighborsRegressor does not take sample_weight"):
        ScikitLearner(estimator)


def test_what_is_not_an_estimator_is_refused():
    for wrong in (Ridge, "ridge", StandardScaler):
        with pytest.raises(InputError, match="not a scikit-learn estimator"):
            ScikitLearner(wrong)


def test_a_classifier_knows_all_classes_of_the_federation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.array(["x"] * 10 + ["x", "y"] * 5 + ["y", "z"] * 5)
    federation = Federation.from_arrays(X, y, np.repeat([0, 1, 2], 10))
    weights = np.array([[1.0, 0, 0], [0, 1.0, 0], [0.4, 0.3, 0.3]])
    models = fit(ScikitLearner(RandomForestClassifier(n_estimators=5)), federation, weights)
    assert models.classes.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(models.predict_proba(0, X), np.tile([1.0, 0, 0], (30, 1)))
    assert (models.predict(0, X) == "x").all()
    assert not models.predict_proba(1, X)[:, 2].any()
    for t in range(3):
        np.testing.assert_allclose(models.predict_proba(t, X).sum(axis=1), 1)
    same = Federation.from_arrays(X, ["x"] * 30, np.repeat([0, 1, 2], 10))
    with pytest.raises(InputError, match="only the class"):
        fit(ScikitLearner(LogisticRegression()), same, weights)


def test_a_classifier_without_probabilities_still_predicts():
    federation = make_federation(labels=True)
    models = fit(ScikitLearner(LinearSVC()), federation, WEIGHTS)
    assert not models.has_probabilities
    assert set(models.predict(1, federation[0].X)) <= {"up", "down"}
    with pytest.raises(InputError, match="LinearSVC has no predict_proba"):
        models.predict_proba(1, federation[0].X)


def test_clusterers_and_densities_score_per_point():
    federation = make_federation()
    X, _ = pooled(federation)
    sample_weight = row_weights(SIZES, WEIGHTS[1])
    clusters = ScikitLearner(KMeans(3, n_init=2, random_state=0))
    assert clusters.task == "unsupervised"
    models = fit(clusters, federation, WEIGHTS)
    oracle = KMeans(3, n_init=2, random_state=0).fit(X, sample_weight=sample_weight)
    nearest = np.min(((X[:, None] - oracle.cluster_centers_) ** 2).sum(axis=2), axis=1)
    assert models.score(1, X) == pytest.approx(-nearest.mean())
    np.testing.assert_array_equal(models.predict(1, X), oracle.predict(X))

    density = fit(ScikitLearner(KernelDensity(bandwidth=0.5)), federation, WEIGHTS)
    by_hand = KernelDensity(bandwidth=0.5).fit(X, sample_weight=sample_weight)
    assert density.score(1, X) == pytest.approx(by_hand.score(X) / len(X))
    with pytest.raises(InputError, match="KernelDensity has no predict"):
        density.predict(1, X)
    with pytest.raises(InputError, match="DBSCAN has no score"):
        fit(ScikitLearner(DBSCAN()), federation, WEIGHTS).score(1, X)


def test_unsupervised_estimators_need_no_target():
    federation = Federation.from_arrays(np.random.default_rng(0).normal(size=(20, 2)), None, np.repeat([0, 1], 10))
    models = fit(ScikitLearner(make_pipeline(StandardScaler(), KMeans(2, n_init=1))), federation, np.eye(2))
    assert models.score(0, federation[0].X) < 0


def test_an_estimator_that_fails_names_the_agent():
    with pytest.raises(InputError, match="KMeans could not be trained for agent a: "):
        fit(ScikitLearner(KMeans(10, n_init=1)), make_federation(), np.eye(3), targets=np.arange(3))


def test_points_at_sites_are_out_of_reach():
    agents = sites(make_federation(), ScikitLearner(Ridge()))
    with pytest.raises(InputError, match="ScikitLearner needs all points in one place; across sites use ridge, logistic"):
        ScikitLearner(Ridge()).fit(agents, WEIGHTS)
    assert not agents.log


def test_learners_by_name():
    assert make_learner("ridge", penalty=0.5) == learners.Ridge(penalty=0.5)
    assert make_learner("logistic").task == "classification"
    assert isinstance(make_learner(Ridge(), n_jobs=2), ScikitLearner)
    ready = Logistic()
    assert make_learner(ready) is ready
    with pytest.raises(InputError, match=r"learner 'forest' is not known; choose one of ridge, logistic, torch"):
        make_learner("forest")
    with pytest.raises(InputError, match="no ridge option 'alpha'; the nearest is"):
        make_learner("ridge", alpha=1.0)
    with pytest.raises(InputError, match="takes no options, got penalty"):
        make_learner(ready, penalty=1.0)
    with pytest.raises(InputError, match="Ridge is a class"):
        make_learner(Ridge)
    with pytest.raises(InputError, match="3 is not a learner"):
        make_learner(3)


def test_a_missing_torch_comes_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "kinfed.learners.neural", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install torch==2\.13\.0"):
        make_learner("torch")
