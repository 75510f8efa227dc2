"""The default method: stacked priors, or a rule's weights where one is named; and penalties that are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kinfed
from kinfed.learners.linear import VarianceRatio, row_penalties
from kinfed.methods.tuning import RATIO, RATIOS
from kinfed.settings import Settings
from site_runs import generated, same_models


@pytest.mark.parametrize(
    "given, method, rule",
    [
        ({}, "stacked", "calibrated"),
        ({"rule": "entropic"}, "weighted", "entropic"),
        ({"rule": "calibrated"}, "weighted", "calibrated"),
        ({"options": {"folds": 3}}, "weighted", "calibrated"),
        ({"method": "random-coefficients"}, "random-coefficients", "calibrated"),
        ({"method": "stacked", "rule": "entropic"}, "stacked", "entropic"),
    ],
)
def test_a_rule_selects_the_weighted_method(given, method, rule):
    settings = Settings(**given)
    assert (settings.method, settings.rule) == (method, rule)
    assert replace(settings, seed=3).method == method


def test_a_result_of_priors_has_influence_and_one_of_a_rule_has_weights():
    train, test = generated()
    found = kinfed.personalize(train, test=test)
    assert found.influence.shape == (len(train), len(train))
    with pytest.raises(kinfed.InputError, match="method 'stacked' has no weights"):
        _ = found.weights
    weighted = kinfed.personalize(train, test=test, rule="entropic")
    assert weighted.weights.matrix.shape == found.influence.shape
    with pytest.raises(kinfed.InputError, match="method 'weighted' reports weights"):
        _ = weighted.influence


def test_what_is_found_does_not_depend_on_the_order_of_the_agents():
    train = kinfed.concept_shift(21, 9, 3, spread=0.2, seed=1).train
    order = np.random.default_rng(0).permutation(21)
    one, other = (kinfed.personalize(rows, "ridge", baselines=False) for rows in (train, train.select(order)))
    np.testing.assert_allclose(other.models.coefficients, one.models.coefficients[order], atol=1e-8)
    np.testing.assert_allclose(other.stacking.shares, one.stacking.shares, atol=1e-8)


# ---------------------------------------------------------------- penalties


def test_a_ratio_is_a_penalty_over_the_rows_that_a_model_varies_as():
    rows, sizes = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]]), np.array([10, 40])
    effective = [10.0, 1 / (0.25 / 10 + 0.25 / 40), 1 / (0.04 / 10 + 0.64 / 40)]
    np.testing.assert_allclose(row_penalties(VarianceRatio(3.0), rows, sizes), 3.0 / np.array(effective))
    np.testing.assert_array_equal(row_penalties(0.2, rows, sizes), [0.2] * 3)
    np.testing.assert_array_equal(row_penalties("auto", rows, sizes), [0.01] * 3)


def test_models_with_a_ratio_are_posterior_modes_of_one_agents_rows():
    """Alone, the penalty is that of slopes with variance 1 / ratio relative to the noise, whatever the number of rows."""
    train, _ = generated()
    for name in ("ridge", "logistic"):
        rows = train if name == "ridge" else replace(train, agents=tuple(replace(a, y=(a.y > 0) * 1) for a in train))
        found = kinfed.personalize(rows, kinfed.make_learner(name, penalty=VarianceRatio(3.0)), "local", baselines=False)
        for place, own in enumerate(found.train):
            X, theta = np.column_stack([own.X, np.ones(len(own))]), found.models.coefficients[place].ravel()
            scores = X @ theta
            fitted = scores if name == "ridge" else 1 / (1 + np.exp(-scores))
            slope = X.T @ (fitted - own.y) + 3.0 * np.append(theta[:-1], 0.0)
            np.testing.assert_allclose(slope, 0.0, atol=1e-5 * len(own))


@pytest.mark.parametrize("name", ["ridge", "logistic"])
@pytest.mark.parametrize("rule", ["q-aggregation", "local"])
def test_the_penalty_of_a_rules_models_is_the_best_by_rows_held_out(name, rule):
    """By a loop over agents, folds and ratios; pooled and on sites alike."""
    train, test = generated()
    if name == "logistic":
        train, test = (replace(one, agents=tuple(replace(a, y=(a.y > 0) * 1) for a in one)) for one in (train, test))
    found = kinfed.personalize(train, name, rule, test, seed=2)
    assert found.found[RATIO] in RATIOS
    assert any("penalty found by rows held out" in one for one in found.choices)
    given = kinfed.make_learner(name, penalty=VarianceRatio(found.found[RATIO]))
    same_models(kinfed.personalize(train, given, rule, test, seed=2).models, found.models, found.learner, 1e-6)
    apart = kinfed.personalize(train, name, rule, test, seed=2, backend="sites")
    assert apart.found[RATIO] == found.found[RATIO]
    same_models(apart.models, found.models, found.learner, 1e-6)


def test_rows_of_noise_are_penalised_and_rows_without_noise_are_not():
    """Sixty rows of pure noise in twelve columns, and of an exact line: the ends of what is tried, or near them."""
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((600, 12)), np.repeat(np.arange(10), 60)
    exact = X @ rng.standard_normal(12)
    for y, least, most in ((rng.standard_normal(600), 100.0, np.inf), (exact + 1e-3 * rng.standard_normal(600), 0.0, 0.1)):
        train = kinfed.Federation.from_arrays(X, y, agent)
        ratio = kinfed.personalize(train, "ridge", "local", baselines=False).found[RATIO]
        assert least <= ratio <= most


def test_a_run_goes_on_with_the_penalty_it_had(tmp_path):
    train, test = generated()
    whole = kinfed.personalize(train, "ridge", "q-aggregation", test, checkpoint=tmp_path)
    again = kinfed.personalize(train, "ridge", "q-aggregation", test, checkpoint=tmp_path)
    assert again.found[RATIO] == whole.found[RATIO]
    np.testing.assert_array_equal(again.models.coefficients, whole.models.coefficients)


# ---------------------------------------------------------------- agents that come later


@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_a_newcomer_needs_the_priors_and_nobodys_rows(name, tmp_path):
    """Its model is the same from the run, from a file without any rows, and nobody else's changes."""
    made = kinfed.concept_shift(20, 12, 4, spread=0.1, seed=1)
    train, test, later = made.train, made.test(300), made.test(12, seed=9)
    if name == "logistic":
        parts = (train, test, later)
        train, test, later = (replace(p, agents=tuple(replace(a, y=(a.y > 0) * 1) for a in p)) for p in parts)
    result = kinfed.personalize(train, name, test=test)
    before = result.models.coefficients.copy()
    newcomer = result.onboard(later[0].X, later[0].y, name="late")
    assert newcomer.weights is None
    np.testing.assert_array_equal(before, result.models.coefficients)
    result.save(tmp_path / "kept")
    loaded = kinfed.load(tmp_path / "kept")
    again = loaded.onboard(later[0].X, later[0].y, name="late")
    np.testing.assert_allclose(again.model.models.coefficients, newcomer.model.models.coefficients, rtol=1e-10)
    # Rows of agent 0 once more: what it learns is near what agent 0 learned, and better than twelve rows alone.
    own = test[0]
    if name == "ridge":
        error = np.mean((newcomer.predict(own.X) - own.y) ** 2)
        assert error < result.scores["local"].mean()
    else:
        assert np.mean(newcomer.predict(own.X) == own.y) > 0.6


# ---------------------------------------------------------------- errors


def test_errors_of_coefficients_and_intervals_of_outcomes_cover():
    """Slopes and new outcomes of 100 agents in three federations, against the truth of the generator.

    In eight other federations 86 to 93 % of the slopes, and 88 to 91 % of the outcomes, were within what should hold 90 %;
    means of three are outside 85 to 95 % with a probability below 1e-2.
    """
    covered, inside = [], []
    for seed, (n_agents, n) in enumerate([(40, 15), (30, 40), (30, 10)]):
        made = kinfed.concept_shift(n_agents, n, 6, spread=0.25, seed=50 + seed)
        result = kinfed.personalize(made.train, "ridge", baselines=False, seed=seed)
        for agent, truth in zip(made.test(200), made.distribution.beta, strict=True):
            table = result.model(agent.name).coefficients.iloc[:-1]
            covered.append(np.abs(table["coefficient"] - truth) <= 1.645 * table["standard error"])
            found = result.predict(agent.name, agent.X, interval=0.9)
            np.testing.assert_array_equal(found["prediction"], result.predict(agent.name, agent.X))
            inside.append(np.mean((found["low"] <= agent.y) & (agent.y <= found["high"])))
    assert 0.85 <= np.mean(covered) <= 0.95
    assert 0.85 <= np.mean(inside) <= 0.95


def test_intervals_are_for_models_that_know_their_errors():
    train, _ = generated()
    weighted = kinfed.personalize(train, "ridge", "entropic", baselines=False)
    with pytest.raises(kinfed.InputError, match=r"knows no errors; a model of numbers by method='stacked' does"):
        weighted.predict(train.names[0], train[0].X, interval=0.9)
    stacked = kinfed.personalize(train, "ridge", baselines=False)
    with pytest.raises(kinfed.InputError, match=r"interval must be between 0 and 1, such as 0\.9, got 90"):
        stacked.predict(train.names[0], train[0].X, interval=90)
    assert list(weighted.model(0).coefficients) == ["coefficient"]
