"""Scores per agent, and paired comparisons over agents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.metrics import log_loss
from sklearn.svm import LinearSVC

import kinfed
from kinfed.analysis import LEAST_TEST_ROWS, bootstrap_interval, paired_comparison, score_models, worst_decile
from kinfed.analysis.comparison import headline_entries
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge
from kinfed.learners.scikit import ScikitLearner
from question_sites import fit


def make_federation(n_agents=6, size=15, labels=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_agents * size, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X))
    if labels is not None:
        y = np.asarray(labels)[np.digitize(y, [-0.7, 0.7])]
    return Federation.from_arrays(X, y, np.repeat([f"site {k}" for k in range(n_agents)], size))


def without_points(federation, k):
    agents = list(federation.agents)
    agents[k] = Agent(agents[k].name, agents[k].X[:0], agents[k].y[:0])
    return Federation(tuple(agents), federation.columns)


def test_regression_scores():
    train, test = make_federation(), without_points(make_federation(seed=1), 2)
    models = fit(Ridge(), train, np.eye(6))
    scores = score_models(models, test, "regression")
    for k in (0, 1, 3, 4, 5):
        assert scores["mean squared error"][k] == pytest.approx(np.mean((models.predict(k, test[k].X) - test[k].y) ** 2))
    assert np.isnan(scores["mean squared error"][2])
    assert scores.sizes.tolist() == [15, 15, 0, 15, 15, 15]
    assert scores.mean() == pytest.approx(np.nanmean(scores[scores.metric]))
    assert scores.to_frame().loc["site 1", "mean squared error"] == scores["mean squared error"][1]
    assert str(scores).startswith("6 agents: mean mean squared error ")


def test_classification_scores():
    train, test = (make_federation(labels=["low", "mid", "top"], seed=seed) for seed in (0, 1))
    models = fit(Logistic(), train, np.full((6, 6), 1 / 6))
    scores = score_models(models, test, "classification")
    for k, agent in enumerate(test):
        probabilities = models.predict_proba(k, agent.X)
        assert scores["accuracy"][k] == pytest.approx(np.mean(models.predict(k, agent.X) == agent.y))
        assert scores["log loss"][k] == pytest.approx(log_loss(agent.y, probabilities, labels=models.classes))
    assert scores.metric == "log loss"
    with pytest.raises(InputError, match="metric 'auc' is not known"):
        scores["auc"]


def test_classes_never_seen_cost_much_but_not_everything():
    X = np.arange(8.0)[:, None]
    train = Federation.from_arrays(X, ["a", "b"] * 4, np.repeat([0, 1], 4))
    test = Federation.from_arrays(X, ["a", "new"] * 4, np.repeat([0, 1], 4))
    scores = score_models(fit(Logistic(), train, np.eye(2)), test, "classification")
    assert np.isfinite(scores["log loss"]).all()
    assert (scores["log loss"] > 6.9).all()
    assert (scores["accuracy"] <= 0.5).all()


def test_models_without_probabilities_have_an_accuracy():
    train = make_federation(labels=[0, 1, 2])
    scores = score_models(fit(ScikitLearner(LinearSVC()), train, np.eye(6)), train, "classification")
    assert (scores["accuracy"] > 0.5).all()
    assert np.isnan(scores["log loss"]).all()
    assert "log loss" not in str(scores)


def test_unsupervised_scores():
    train = make_federation()
    models = fit(ScikitLearner(KMeans(2, n_init=1)), train, np.eye(6))
    scores = score_models(models, train, "unsupervised")
    assert scores["score"].tolist() == [models.score(k, train[k].X) for k in range(6)]
    with pytest.raises(InputError, match="RidgeModels has no score"):
        score_models(fit(Ridge(), train, np.eye(6)), train, "unsupervised")


def test_models_of_some_targets():
    train = make_federation()
    models = fit(Ridge(), train, np.eye(6)[[4, 1]])
    scores = score_models(models, train, "regression", targets=[4, 1])
    assert scores.names == ("site 4", "site 1")
    with pytest.raises(InputError, match="2 models for 6 agents"):
        score_models(models, train, "regression")
    with pytest.raises(InputError, match="task 'ranking' is not known"):
        score_models(models, train, "ranking", targets=[4, 1])


@settings(max_examples=30, deadline=None)
@given(
    n_agents=st.integers(2, 40),
    missing=st.integers(0, 3),
    higher=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_comparisons_are_paired_and_antisymmetric(n_agents, missing, higher, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, n_agents + missing))
    first[: n_agents // 2] = second[: n_agents // 2]
    first[n_agents:] = np.nan
    one = paired_comparison(first, second, higher_is_better=higher)
    two = paired_comparison(second, first, higher_is_better=higher)
    assert one.n_agents == n_agents
    assert one.better + one.equal + one.worse == pytest.approx(1)
    assert one.equal == pytest.approx((n_agents // 2) / n_agents)
    assert (one.better, one.worse) == (two.worse, two.better)
    assert one.difference == pytest.approx(-two.difference)
    assert one.interval == pytest.approx((-two.interval[1], -two.interval[0]), abs=0.1 * np.ptp(one.interval))
    assert one.interval[0] <= one.difference <= one.interval[1]
    better = (first[:n_agents] > second[:n_agents]) if higher else (first[:n_agents] < second[:n_agents])
    assert one.better == pytest.approx(better.mean())
    opposite = paired_comparison(first, second, higher_is_better=not higher)
    assert (opposite.better, opposite.worse) == (one.worse, one.better)


def test_interval_agrees_with_scipy():
    rng = np.random.default_rng(0)
    for sample in (rng.normal(size=50), rng.exponential(size=30), rng.lognormal(size=200)):
        expected = stats.bootstrap((sample,), np.mean, n_resamples=10_000, method="BCa", rng=np.random.default_rng(1))
        found = bootstrap_interval(sample, seed=2)
        width = np.ptp(expected.confidence_interval)
        np.testing.assert_allclose(found, expected.confidence_interval, atol=0.05 * width)


def test_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = [low <= 0.3 <= high for low, high in (bootstrap_interval(rng.normal(0.3, size=30)) for _ in range(200))]
    assert 0.88 <= np.mean(covered) <= 0.99


def test_ratio_interval_agrees_with_scipy():
    rng = np.random.default_rng(0)
    for n, spread in ((40, 0.3), (15, 1.0)):
        second = rng.gamma(3.0, size=n)
        first = 0.8 * second * rng.lognormal(sigma=spread, size=n)
        expected = stats.bootstrap(
            (first, second),
            lambda one, two, axis: np.log(one.mean(axis=axis) / two.mean(axis=axis)),
            n_resamples=10_000,
            paired=True,
            vectorized=True,
            method="BCa",
            rng=np.random.default_rng(1),
        )
        low, high = np.exp(expected.confidence_interval)
        found = paired_comparison(first, second, higher_is_better=False, seed=2)
        np.testing.assert_allclose(found.ratio_interval, (low, high), atol=0.08 * (high - low))
        assert found.to_frame()[["ratio low", "ratio high"]].to_numpy().tolist() == [list(found.ratio_interval)]


@settings(max_examples=60, deadline=None)
@given(
    n_agents=st.integers(2, 15),
    zeros=st.floats(0, 0.5),
    shape=st.floats(0.05, 5.0),
    seed=st.integers(0, 10_000),
)
def test_ratios_of_errors_are_never_negative(n_agents, zeros, shape, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.gamma(shape, size=(2, n_agents)) * (rng.random((2, n_agents)) > zeros)
    found = paired_comparison(first, second, higher_is_better=False)
    low, high = found.ratio_interval
    if min(first.mean(), second.mean()) <= 0:
        assert np.isnan([low, high]).all()
    elif np.isfinite(low):
        assert 0 <= low <= high < np.inf
    else:
        assert np.isnan(high)
        assert (second == 0).any()  # agents without any error may be all that is drawn


def test_a_ratio_without_sense_has_no_interval():
    for first, second in (([1.0], [2.0]), ([1.0, 2.0], [-1.0, -2.0]), ([0.0, 0.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 0.0])):
        assert np.isnan(paired_comparison(first, second, higher_is_better=False).ratio_interval).all()
    steady = paired_comparison([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], higher_is_better=False)
    assert steady.ratio_interval == pytest.approx((0.5, 0.5))


def test_degenerate_comparisons():
    same = paired_comparison([1.0, 2.0], [1.0, 2.0], higher_is_better=True)
    assert (same.difference, same.interval, same.equal, same.verdict) == (0.0, (0.0, 0.0), 1.0, "undecided")
    single = paired_comparison([1.0], [2.0], higher_is_better=False)
    assert np.isnan(single.interval).all()
    assert single.verdict == "undecided"
    shifted = paired_comparison([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], higher_is_better=False)
    assert shifted.interval == pytest.approx((-1.0, -1.0))
    assert shifted.verdict == "better"
    rounding = paired_comparison([0.1 + 0.2, 1.0], [0.3, 2.0], higher_is_better=True)
    assert rounding.equal == 0.5
    with pytest.raises(InputError, match="nothing to compare"):
        paired_comparison([np.nan], [1.0], higher_is_better=True)
    with pytest.raises(InputError, match="one value per agent"):
        paired_comparison([1.0, 2.0], [1.0], higher_is_better=True)
    with pytest.raises(InputError, match="level"):
        paired_comparison([1.0], [1.0], higher_is_better=True, level=95)


def test_worst_decile_depends_on_the_direction():
    values = np.arange(11.0)
    assert worst_decile(values, higher_is_better=False) == 9.0
    assert worst_decile([*values, np.nan], higher_is_better=True) == 1.0
    assert np.isnan(worst_decile([np.nan], higher_is_better=True))


def test_a_comparison_reads_as_a_sentence():
    rng = np.random.default_rng(0)
    alone = rng.gamma(4, size=1000)
    text = str(
        paired_comparison(
            0.8 * alone, alone, higher_is_better=False, metric="mean squared error", first_name="kin", second_name="local"
        )
    )
    assert "mean squared error (lower is better) over 1000 agents: kin " in text
    assert "better for 100% of the agents" in text
    assert ": better;" in text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_agents_of_few_rows_share_an_entry_of_the_headline(sizes):
    entries, rows = headline_entries(sizes), np.array(sizes)
    together = np.bincount(entries, weights=rows)
    assert sorted(set(entries.tolist())) == list(range(len(together)))
    assert len(together) == 1 or together.min() >= LEAST_TEST_ROWS
    larger = np.flatnonzero(rows >= LEAST_TEST_ROWS)
    alone = [k for k in larger if np.sum(entries == entries[k]) == 1]
    assert len(alone) >= len(larger) - 1  # one at most is joined by smaller ones
    if (rows >= LEAST_TEST_ROWS).all():
        assert entries.tolist() == list(range(len(rows)))


def test_one_row_cannot_decide_a_headline():
    ours, theirs = np.array([1.0, 1.1, 0.9, 1.0]), np.array([1.1, 1.2, 1.0, 1.1])
    sizes = np.array([50, 60, 50, 40])
    plain = paired_comparison(ours, theirs, higher_is_better=False, sizes=sizes)
    spoilt = paired_comparison([*ours, 90.0], [*theirs, 0.0], higher_is_better=False, sizes=[*sizes, 1])
    assert plain.verdict == "better"
    assert spoilt.first_mean == pytest.approx((1.0 + 1.1 + 0.9 + (40 * 1.0 + 90.0) / 41) / 4)
    assert (spoilt.few_rows, spoilt.pooled_into, spoilt.n_agents) == (1, 1, 5)
    assert "1 agent with fewer than 10 test rows counts together with the next larger one" in str(spoilt)
    many = paired_comparison(np.ones(14), np.full(14, 2.0), higher_is_better=False, sizes=[3] * 12 + [30, 30])
    assert "12 agents with fewer than 10 test rows count together as 3" in str(many)
    assert paired_comparison(ours, theirs, higher_is_better=False).pooling == ""


def test_means_are_over_agents_and_over_rows():
    found = paired_comparison([1.0, 3.0], [2.0, 2.0], higher_is_better=False, sizes=[30, 10])
    assert (found.first_mean, found.first_rows_mean) == (2.0, 1.5)
    assert (found.second_mean, found.second_rows_mean) == (2.0, 2.0)
    assert (found.first_spread, found.second_spread) == (pytest.approx(np.std([1, 3], ddof=1)), 0.0)


def test_who_loses_is_told_by_name_and_clearly_beyond_two_standard_errors():
    names = [f"site {k}" for k in range(15)]
    ours, theirs = np.ones(15), np.full(15, 2.0)
    ours[[3, 7]] = 2.5, 4.0
    errors = np.full(15, 0.5)
    found = paired_comparison(ours, theirs, higher_is_better=False, names=names, errors=errors)
    assert (found.losers, found.clear_losers) == (("site 7", "site 3"), ("site 7",))
    everybody = paired_comparison(theirs, np.ones(15), higher_is_better=False, names=names)
    assert (len(everybody.losers), everybody.clear_losers) == (15, ())
    assert "site 9 and 5 more" in str(everybody)


def test_standard_errors_of_differences_are_paired_row_by_row():
    train, test = make_federation(size=30), make_federation(size=30, seed=1)
    result = kinfed.personalize(train, rule="grand-mean", test=test)
    for k, agent in enumerate(test):
        ours, alone = ((models.predict(k, agent_rows(result, agent)) - agent.y) ** 2 for models in trained_models(result))
        expected = np.std(ours - alone, ddof=1) / np.sqrt(30)
        assert result.scored["personalized"].versus_local["mean squared error"][k] == pytest.approx(expected)
    assert result.scored["local"].versus_local == {}


def agent_rows(result, agent):
    return result.preparation.transform(Federation((agent,), ("x0", "x1", "x2")))[0].X


def trained_models(result):
    return result.models, result.baselines["local"]


def test_a_model_worse_than_the_floor_is_said_to_be():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 12)), rng.normal(size=400)
    federation = Federation.from_arrays(X, y, np.repeat([f"site {k}" for k in range(20)], 20))
    train, test = federation.split(test_size=0.5, seed=0)
    ridge = kinfed.make_learner("ridge", penalty=0.01)  # one that was not chosen for these rows
    result = kinfed.personalize(train, ridge, "local", test)
    assert result.compare("floor").verdict == "worse"
    assert str(result).startswith(
        "On average personal models are worse than the agents' own means, which need no model: mean"
    )
    assert kinfed.personalize(train, ridge, "local", test, baselines=False).warning == result.warning
    better = kinfed.concept_shift(n_agents=8, n=30, dim=2, spread=0.0, seed=0)
    assert kinfed.personalize(better.train, rule="local", test=better.test(30, seed=1)).warning == ""


def test_intervals_over_splits_cover_agents_and_splits():
    covered = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        values = 0.3 + 0.3 * rng.normal(size=25) + 0.2 * rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(5, 25))
        low, high = bootstrap_interval(values, seed=seed)
        covered.append(low <= 0.3 <= high)
    assert 0.88 <= np.mean(covered) <= 0.99


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 30), st.integers(2, 6), st.integers(0, 1000))
def test_splits_that_agree_are_one_split(n_agents, splits, seed):
    first, second = np.random.default_rng(seed).gamma(2.0, size=(2, n_agents))
    one = paired_comparison(first, second, higher_is_better=False, seed=seed)
    many = paired_comparison(*(np.tile(x, (splits, 1)) for x in (first, second)), higher_is_better=False, seed=seed)
    assert many.interval == pytest.approx(one.interval, abs=0.02 * np.ptp(one.interval))
    assert many.ratio_interval == pytest.approx(one.ratio_interval, abs=0.02 * np.ptp(one.ratio_interval))
    assert (many.splits, many.difference) == (splits, pytest.approx(one.difference))


def test_a_value_missing_in_one_split_is_that_of_the_others():
    first, second = np.array([[1.0, 2.0], [np.nan, 4.0]]), np.array([[3.0, 3.0], [9.0, 3.0]])
    found = paired_comparison(first, second, higher_is_better=False)
    assert (found.first_mean, found.second_mean) == ((1.0 + 3.0) / 2, 3.0)
