"""Metrics against scikit-learn, their standard errors against simulation, and the floor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

import kinfed
from kinfed.analysis import METRICS, headline_metrics, metrics_of
from kinfed.analysis.agent_scores import FloorModels
from kinfed.analysis.metrics import LEAST_TOLD, JudgedRows
from kinfed.errors import InputError


def classes_drawn(n, classes, seed):
    """Outcomes of some classes and probabilities that know something of them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes))
    outcome = (logits + rng.gumbel(size=(n, classes))).argmax(axis=1)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return JudgedRows(outcome, probabilities.argmax(axis=1), probabilities)


def numbers_drawn(n, seed, centre=0.3):
    rng = np.random.default_rng(seed)
    outcome = rng.normal(size=n)
    return JudgedRows(outcome, 0.6 * outcome + 0.5 * rng.normal(size=n), None, centre)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 10_000))
def test_metrics_of_numbers_are_those_of_scikit_learn(n, seed):
    rows = numbers_drawn(n, seed)
    found = {one.name: one(rows)[0] for one in metrics_of("regression")}
    assert found["mean squared error"] == pytest.approx(oracle.mean_squared_error(rows.outcome, rows.predicted))
    assert found["mean absolute error"] == pytest.approx(oracle.mean_absolute_error(rows.outcome, rows.predicted))
    if n < LEAST_TOLD:
        assert np.isnan(found["R2"])
        return
    about_test_mean = JudgedRows(rows.outcome, rows.predicted, None, float(rows.outcome.mean()))
    assert METRICS["R2"](about_test_mean)[0] == pytest.approx(oracle.r2_score(rows.outcome, rows.predicted))
    floor = np.full(n, rows.centre)
    saved = 1 - found["mean squared error"] / oracle.mean_squared_error(rows.outcome, floor)
    assert found["R2"] == pytest.approx(saved)
    assert METRICS["R2"](JudgedRows(rows.outcome, floor, None, rows.centre))[0] == pytest.approx(0)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(6, 60), classes=st.integers(2, 4), seed=st.integers(0, 10_000))
def test_metrics_of_classes_are_those_of_scikit_learn(n, classes, seed):
    rows = classes_drawn(n, classes, seed)
    found = {one.name: one(rows)[0] for one in metrics_of("classification")}
    labels = np.arange(classes)
    assert found["log loss"] == pytest.approx(oracle.log_loss(rows.outcome, rows.probabilities, labels=labels))
    hot = np.eye(classes)[rows.outcome]
    assert found["Brier score"] == pytest.approx(np.mean(np.sum((rows.probabilities - hot) ** 2, axis=1)))
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(rows.outcome, rows.predicted))
    recalls = oracle.recall_score(rows.outcome, rows.predicted, labels=np.unique(rows.outcome), average="macro")
    assert found["balanced accuracy"] == pytest.approx(recalls)
    present = np.unique(rows.outcome)
    if len(present) == 1:
        assert np.isnan(found["AUC"])
        return
    areas = [oracle.roc_auc_score(rows.outcome == one, rows.probabilities[:, one]) for one in present]
    assert found["AUC"] == pytest.approx(np.mean(areas))
    if classes == 2:
        assert found["AUC"] == pytest.approx(oracle.roc_auc_score(rows.outcome, rows.probabilities[:, 1]))


def test_ties_in_probability_count_half():
    outcome = np.array([0, 0, 1, 1, 1, 0])
    second = np.array([0.5, 0.2, 0.5, 0.5, 0.9, 0.9])
    rows = JudgedRows(outcome, (second > 0.5).astype(int), np.column_stack([1 - second, second]))
    assert METRICS["AUC"](rows)[0] == pytest.approx(oracle.roc_auc_score(outcome, second))


def test_models_without_probabilities_have_accuracies_only():
    rows = classes_drawn(30, 3, 0)
    bare = JudgedRows(rows.outcome, rows.predicted)
    there = {one.name for one in metrics_of("classification") if np.isfinite(one(bare)[0])}
    assert there == {"accuracy", "balanced accuracy"}


def binned(outcome, predicted, told, bins):
    order = np.argsort(told)
    parts = np.array_split(order, bins)
    right = predicted == outcome
    return sum(len(part) * abs(right[part].mean() - told[part].mean()) for part in parts) / len(order)


@pytest.mark.parametrize(("n", "bins"), [(10, 1), (19, 1), (20, 2), (60, 6), (100, 10), (500, 10)])
def test_calibration_error_has_bins_of_equal_count(n, bins):
    rows = classes_drawn(n, 2, n)
    told = rows.probabilities.max(axis=1)
    assert METRICS["calibration error"](rows)[0] == pytest.approx(binned(rows.outcome, rows.predicted, told, bins))


def test_calibration_error_keeps_equal_probabilities_together_whatever_the_order_of_rows():
    rng = np.random.default_rng(0)
    outcome = (rng.random(90) < 0.3).astype(int)
    shares = np.tile([0.7, 0.3], (90, 1))
    rows = JudgedRows(outcome, np.zeros(90, dtype=int), shares)
    assert METRICS["calibration error"](rows)[0] == pytest.approx(abs(np.mean(outcome == 0) - 0.7))
    assert np.isnan(METRICS["calibration error"](classes_drawn(9, 2, 0))[0])


def drawn_errors(metric, draw, times=400):
    found = np.array([METRICS[metric](draw(seed)) for seed in range(times)])
    return float(np.nanstd(found[:, 0])), float(np.sqrt(np.nanmean(found[:, 1] ** 2)))


@pytest.mark.parametrize("metric", ["mean squared error", "mean absolute error", "R2"])
def test_standard_errors_of_numbers_are_the_spread_over_samples(metric):
    spread, told = drawn_errors(metric, lambda seed: numbers_drawn(80, seed))
    assert told == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("metric", ["log loss", "Brier score", "accuracy", "balanced accuracy", "AUC"])
@pytest.mark.parametrize("classes", [2, 3])
def test_standard_errors_of_classes_are_the_spread_over_samples(metric, classes):
    spread, told = drawn_errors(metric, lambda seed: classes_drawn(90, classes, seed))
    assert told == pytest.approx(spread, rel=0.15)


def test_few_rows_tell_no_standard_errors():
    for rows in (numbers_drawn(LEAST_TOLD - 1, 0), classes_drawn(LEAST_TOLD - 1, 2, 1)):
        task = "regression" if rows.probabilities is None else "classification"
        assert all(np.isnan(one(rows)[1]) for one in metrics_of(task))
    empty = JudgedRows(np.zeros(0), np.zeros(0), None, 0.0)
    assert all(np.isnan(one(empty)).all() for one in metrics_of("regression"))


def test_the_floor_is_the_mean_or_the_shares_with_half_a_row_for_each_class():
    numbers = FloorModels.of([np.array([1.0, 2.0, 6.0]), np.array([4.0])], None)
    assert numbers.predict(0, np.zeros((2, 1))).tolist() == [3.0, 3.0]
    labels = np.array(["a", "b", "c"])
    shares = FloorModels.of([np.array(["a", "a", "b"])], labels)
    assert shares.predict_proba(0, np.zeros((1, 1)))[0] == pytest.approx(np.array([2.5, 1.5, 0.5]) / 4.5)
    assert shares.predict(0, np.zeros((2, 1))).tolist() == ["a", "a"]


@pytest.mark.parametrize("labels", [None, ["no", "yes"]])
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_the_floor_is_scored_from_the_agents_own_training_rows(labels, backend):
    rng = np.random.default_rng(0)
    X, agent = rng.normal(size=(120, 2)), np.repeat(["a", "b", "c"], 40)
    y = X[:, 0] + rng.normal(size=120) + np.repeat([0.0, 1.0, 2.0], 40)
    y = y if labels is None else np.array(labels)[(y > 1).astype(int)]
    train, test = kinfed.Federation.from_arrays(X, y, agent).split(seed=0)
    learner = "ridge" if labels is None else "logistic"
    result = kinfed.personalize(train, learner, "local", test, backend=backend)
    assert list(result.scores.columns) == ["floor", "local", "grand-mean", "personalized"]
    for k, (own, held) in enumerate(zip(train, test, strict=True)):
        if labels is None:
            expected = np.mean((held.y - own.y.mean()) ** 2)
        else:
            counts = np.array([np.sum(own.y == label) + 0.5 for label in labels])
            expected = oracle.log_loss(held.y, np.tile(counts / counts.sum(), (len(held), 1)), labels=labels)
        assert result.scores["floor"].iloc[k] == pytest.approx(expected)
    found = result.compare("floor")
    assert (found.first_name, found.second_name) == ("personalized", "floor")


def test_an_agent_of_few_test_rows_tells_no_floor():
    rng = np.random.default_rng(0)
    X, y, agent = rng.normal(size=(60, 1)), rng.normal(size=60), np.repeat(["big", "small"], [50, 10])
    train, test = kinfed.Federation.from_arrays(X, y, agent).split(seed=0)
    result = kinfed.personalize(train, rule="local", test=test)
    assert test.sizes.tolist() == [10, 2]
    assert result.scores["floor"].isna().tolist() == [False, True]
    assert result.scores.drop(columns="floor").notna().all().all()


def test_metrics_are_asked_for_by_name_or_alias():
    assert headline_metrics((), "classification") == ("log loss", "accuracy")
    assert headline_metrics(("auc", "Brier", "balanced-accuracy", "AUC"), "classification") == (
        *("AUC", "Brier score", "balanced accuracy"),
    )
    assert headline_metrics(("mae", "r2", "mse"), "regression") == ("mean absolute error", "R2", "mean squared error")
    with pytest.raises(InputError, match="there is no metric 'accuraccy'; the nearest is 'accuracy'"):
        headline_metrics(("accuraccy",), "classification")
    with pytest.raises(InputError, match="metric 'AUC' is for classification, and this is a regression; take one of mean"):
        headline_metrics(("auc",), "regression")


def test_the_metric_of_the_headline_is_a_choice_and_all_are_written(tmp_path):
    generated = kinfed.concept_shift(n_agents=5, n=15, dim=2, spread=0.0, seed=0)
    test = generated.test(20, seed=1)
    with pytest.raises(InputError, match="this is a regression"):
        kinfed.personalize(generated.train, test=test, metric="accuracy")
    result = kinfed.personalize(generated.train, rule="local", test=test, metric=("r2", "mae"))
    assert (result.metric, result.metrics) == ("R2", ("R2", "mean absolute error"))
    assert result.compare("floor").metric == "R2"
    assert result.compare(metric="mse").metric == "mean squared error"
    assert (result.scores["floor"] == 0).all()
    assert set(result.scored["local"].values) == {one.name for one in metrics_of("regression")}
    result.save(tmp_path)
    assert kinfed.load(tmp_path).metrics == ("R2", "mean absolute error")
