"""The tests of heterogeneity hold their level, find what differs, and agree with slow oracles.

Data and seeds are fixed, so a test that passes once passes always; the stated error rates say how likely a correct method
would have been to fail when the seeds were first chosen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations as orders_of

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.analysis import ShiftTest, shift_tests
from kinfed.analysis.common_model import (
    FOLDS,
    cross_fitted,
    curves_and_products,
    near_rows,
    principal_coordinates,
    share_of_own_functions,
)
from kinfed.analysis.permutation import deal_rows, exchange_within_cells
from kinfed.federation import Agent, Federation

LEAST_PERMUTATIONS = 19  # p <= 0.05 exactly if the data have the largest statistic of twenty


def p_values(federation: Federation, labels: bool, seed: int, permutations: int = LEAST_PERMUTATIONS) -> dict[str, float]:
    found = shift_tests(federation, labels=labels, permutations=permutations, seed=seed)
    return {test.name: test.p_value for test in found.tests}


def rejections(make, labels: bool, count: int) -> dict[str, int]:
    found = [p_values(make(seed), labels, seed) for seed in range(count)]
    return {name: sum(one[name] <= 0.05 for one in found) for name in found[0]}


def seen_elsewhere(seed: int, n_agents: int = 8, n: int = 15) -> Federation:
    """Every agent sees one curved function of x, with noise, at a place of its own."""
    rng = np.random.default_rng([seed, 1])
    agent = np.repeat(np.arange(n_agents), n)
    X = rng.standard_normal((n_agents, 3))[agent] + rng.standard_normal((len(agent), 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + (0.2 + 0.4 * np.abs(X[:, 2])) * rng.standard_normal(len(agent))
    return Federation.from_arrays((X - X.mean(axis=0)) / X.std(axis=0), y, agent.astype(str))


# With 60 federations and a level of 0.05, more than 10 rejections have probability 0.0002; there are seven such counts.
@pytest.mark.slow
def test_where_agents_are_alike_every_test_holds_its_level():
    counts = rejections(lambda seed: kinfed.no_structure(8, 12, dim=4, seed=seed).train, False, 60)
    assert max(counts.values()) <= 10
    counts = rejections(lambda seed: kinfed.label_shift(8, 12, groups=1, classes=3, seed=seed).train, True, 60)
    assert max(counts.values()) <= 10


@pytest.mark.slow
def test_different_inputs_alone_do_not_look_like_different_answers():
    counts = rejections(seen_elsewhere, False, 60)
    assert counts["concept"] <= 10
    assert counts["covariate"] == 60


# With 8 federations and a level of 0.05, more than 3 rejections have probability 0.0004.
@pytest.mark.slow
def test_curves_in_many_columns_do_not_look_like_different_answers():
    def curved(seed):
        rng = np.random.default_rng([seed, 2])
        agent = np.repeat(np.arange(30), 40)
        X = rng.standard_normal((30, 20))[agent] + rng.standard_normal((1200, 20))
        y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + X[:, 2] * X[:, 3] / 2 + rng.standard_normal(1200) / 2
        return Federation.from_arrays(X / X.std(axis=0), y, agent.astype(str))

    assert rejections(curved, False, 8)["concept"] <= 3


def test_what_differs_is_found():
    concept = [p_values(kinfed.concept_shift(12, 25, dim=4, seed=seed).train, False, seed) for seed in range(6)]
    assert all(found["concept"] <= 0.05 for found in concept)
    assert sum(found["covariate"] <= 0.05 for found in concept) <= 3  # exact level 0.05: more has probability 0.0001
    label = [p_values(kinfed.label_shift(12, 25, seed=seed).train, True, seed) for seed in range(6)]
    assert all(found["label"] <= 0.05 and found["covariate"] <= 0.05 for found in label)


def test_slopes_that_differ_are_found_where_no_mean_does():
    rng = np.random.default_rng(0)
    agent = np.repeat(np.arange(10), 30)
    X = rng.standard_normal((300, 2))
    y = X[:, 0] * np.where(agent % 2 == 0, 1, -1) + rng.standard_normal(300)
    for target, labels in ((y, False), ((y > 0).astype(int), True)):
        found = p_values(Federation.from_arrays(X, target, agent.astype(str)), labels, 0, 199)
        assert found["concept"] == 1 / 200
        assert found["covariate"] > 0.05


def test_dealing_rows_agrees_with_all_deals_written_out():
    rng = np.random.default_rng(3)
    points = rng.standard_normal((6, 2))
    points[:2] += 0.8
    points -= points.mean(axis=0)
    agent = np.array([0, 0, 0, 1, 1, 2])

    def own(order):
        rows = points[list(order)]
        return [sum(agent == k) * np.sum(rows[agent == k].mean(axis=0) ** 2) for k in range(3)]

    every = np.array([own(order) for order in orders_of(range(6))])
    observed = np.array(own(range(6)))
    exact = np.mean(every.sum(axis=1) >= observed.sum() - 1e-9)
    exact_own = np.mean(every >= observed - 1e-9, axis=0)
    found = deal_rows(points, agent, 6000, np.random.default_rng(0), lambda done: None)
    assert found.statistic == pytest.approx(observed.sum(), rel=1e-5)
    assert found.null_mean == pytest.approx(every.sum(axis=1).mean(), rel=0.05)
    # Four standard errors of a share of 6000 draws, four shares: fails with probability 0.0003.
    assert np.abs(np.append(found.own_p_values, found.p_value) - np.append(exact_own, exact)).max() < 4 * 0.5 / np.sqrt(
        6000
    )


def test_exchanging_residuals_agrees_with_all_exchanges_written_out():
    rng = np.random.default_rng(5)
    agent = np.array([0, 0, 0, 0, 1, 1, 2])
    cell = np.array([1, 0, 1, 0, 0, 1, 1])
    residuals, points = rng.standard_normal((7, 2)), rng.standard_normal((7, 3))  # agents above and below three rows

    def own(order):
        e = residuals[list(order)]
        pairs = [(i, j) for i in range(7) for j in range(7) if i != j and agent[i] == agent[j]]
        terms = [(agent[i], (e[i] @ e[j]) * (points[i] @ points[j]) / sum(agent == agent[i])) for i, j in pairs]
        return [sum(term for k, term in terms if k == which) for which in range(3)]

    every = np.array([own(order) for order in orders_of(range(7)) if np.array_equal(cell[list(order)], cell)])
    assert len(every) == 6 * 24
    observed = np.array(own(range(7)))
    exact = np.mean(every.sum(axis=1) >= observed.sum() - 1e-9)
    exact_own = np.mean(every >= observed - 1e-9, axis=0)
    found = exchange_within_cells(residuals, points, agent, cell, 6000, np.random.default_rng(0), lambda done: None)
    assert found.statistic == pytest.approx(observed.sum(), rel=1e-4)
    assert found.own_p_values[2] == 1  # one row has nothing in common with itself
    assert np.abs(np.append(found.own_p_values, found.p_value) - np.append(exact_own, exact)).max() < 4 * 0.5 / np.sqrt(
        6000
    )


def test_cross_fitted_predictions_are_those_of_models_without_the_fold():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((60, 3))
    targets = np.column_stack([points @ [1.0, -2.0, 0.5], np.ones(60)])  # without noise no penalty is the best
    fold = np.arange(60) % FOLDS
    targets[fold == 2, 0] += 50  # must not reach the predictions of its own fold, but all others
    predicted = cross_fitted(points, targets, fold)
    clean = points[fold == 2] @ [1.0, -2.0, 0.5]
    np.testing.assert_allclose(predicted[fold == 2, 0], clean, atol=1e-3)
    assert np.all(np.abs(predicted[fold != 2, 0] - targets[fold != 2, 0]) > 1)
    np.testing.assert_allclose(predicted[:, 1], 1.0)


def test_curves_and_products_span_sums_of_curves_and_products_of_two():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (4000, 3))
    y = np.exp(X[:, 0]) - np.abs(X[:, 1]) + X[:, 0] * X[:, 2]
    blocks = curves_and_products(X)
    for block in blocks:
        assert np.mean(np.sum(block**2, axis=1)) == pytest.approx(1)
    design = np.column_stack([np.ones(len(X)), *blocks])
    missed = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert missed.var() < 0.005 * y.var()
    assert not any(block.any() for block in curves_and_products(np.ones((5, 2))))


def test_near_rows_share_a_cell():
    line = np.random.default_rng(0).permutation(64).astype(float)
    cell = near_rows(np.column_stack([line, np.zeros(64)]), 4)
    assert np.bincount(cell).tolist() == [4] * 16
    assert all(np.ptp(line[cell == one]) == 3 for one in range(16))


def test_principal_coordinates_keep_the_distances_of_points_of_low_rank():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((40, 5)) @ rng.standard_normal((5, 300))
    points -= points.mean(axis=0)
    found = principal_coordinates(points, 6, rng)
    np.testing.assert_allclose(found @ found.T, points @ points.T, atol=1e-8)


def test_the_size_of_a_label_shift_is_the_share_of_the_variance_between_agents():
    shares = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    counts = (shares * 1000).astype(int)
    y = np.concatenate([np.repeat([0, 1, 2], count) for count in counts])
    X = np.random.default_rng(0).standard_normal((2000, 1))
    federation = Federation.from_arrays(X, y, np.repeat(["a", "b"], 1000))
    common = shares.mean(axis=0)
    truth = np.mean(np.sum((shares - common) ** 2, axis=1)) / (1 - np.sum(common**2))
    found = shift_tests(federation, labels=True, permutations=19)
    assert found["label"].size == pytest.approx(truth, abs=0.002)
    assert found["covariate"].size < 0.01


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_the_size_of_a_concept_shift_is_the_share_of_offsets_and_slopes(share):
    # Over a dozen seeds the estimates had a standard deviation of 0.04 and lay up to 0.07 below the truth.
    rng = np.random.default_rng(1)
    agent = np.repeat(np.arange(60), 30)
    X = rng.standard_normal((1800, 3))
    offsets, slopes = rng.standard_normal(60)[agent], np.sum(X * rng.standard_normal((60, 3))[agent], axis=1) / np.sqrt(3)
    for own in (offsets, slopes):
        y = X[:, 0] + np.sqrt(share) * own + np.sqrt(1 - share) * rng.standard_normal(1800)
        found = shift_tests(Federation.from_arrays(X, y, agent.astype(str)), labels=False, permutations=19)
        assert found["concept"].size == pytest.approx(share, abs=0.15)


def test_variance_components_agree_with_pairs_written_out():
    rng = np.random.default_rng(2)
    starts, residuals = (
        np.array([0, 4, 5]),
        rng.standard_normal((9, 2)) + np.repeat([[2.0], [0.0], [-2.0]], [4, 1, 4], axis=0),
    )
    kernels = [np.ones((9, 1)), rng.standard_normal((9, 2))]
    agent = np.repeat([0, 1, 2], [4, 1, 4])
    rows = []
    for i in range(9):
        for j in range(9):
            if i != j and agent[i] == agent[j]:
                weight = 1 / np.sqrt(np.sum(agent == agent[i]))
                rows.append(
                    [weight * (kernel[i] @ kernel[j]) for kernel in kernels] + [weight * (residuals[i] @ residuals[j])]
                )
    table = np.array(rows)
    variances = np.linalg.lstsq(table[:, :2], table[:, 2], rcond=None)[0]
    if variances[1] < 0:
        variances = np.array([table[:, 0] @ table[:, 2] / (table[:, 0] @ table[:, 0]), 0.0])
    expected = variances.sum() / np.mean(np.sum(residuals**2, axis=1))
    assert 0 < expected < 1
    assert share_of_own_functions(residuals, kernels, starts) == pytest.approx(expected)


def test_the_order_of_agents_changes_nothing_but_the_permutations():
    train = kinfed.concept_shift(8, 20, dim=3, spread=0.3, noise_variance=30.0, seed=2).train
    turned = train.select(range(7, -1, -1))
    one, other = (shift_tests(each, labels=False, permutations=999) for each in (train, turned))
    for test, again in zip(one.tests, other.tests, strict=True):
        assert test.statistic == pytest.approx(again.statistic, rel=1e-3)
        # Two shares of 999 draws differ by more than five standard errors with probability below 0.000001.
        assert abs(test.p_value - again.p_value) < 5 * np.sqrt(2 * 0.25 / 999)
    assert other.agents.index.tolist() == list(turned.names)
    own = (one.agents - other.agents.loc[list(train.names)]).abs()
    assert own.to_numpy().max() < 5 * np.sqrt(2 * 0.25 / 999)


def test_a_seed_repeats_and_another_differs_by_chance_alone():
    train = kinfed.label_shift(6, 15, concentration=8.0, seed=0).train
    first, again, other = (shift_tests(train, labels=True, permutations=999, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first.to_frame(), again.to_frame())
    pd.testing.assert_frame_equal(first.agents, again.agents)
    assert first["label"].p_value != other["label"].p_value
    assert abs(first["label"].p_value - other["label"].p_value) < 5 * np.sqrt(2 * 0.25 / 999)
    assert first["label"].statistic == pytest.approx(other["label"].statistic)


def test_the_agent_that_differs_stands_out():
    train = kinfed.no_structure(10, 40, dim=3, seed=0).train
    odd = Agent(train[3].name, train[3].X + 2, -train[3].y)
    found = shift_tests(replace(train, agents=(*train.agents[:3], odd, *train.agents[4:])), labels=False)
    assert found.agents["covariate"].idxmin() == odd.name
    assert found.agents.loc[odd.name].max() <= 0.01
    assert found["covariate"].differs


def test_without_a_target_only_inputs_are_compared():
    train = kinfed.covariate_shift((2, 2, 2), 20, seed=0).train
    bare = replace(train, agents=tuple(replace(agent, y=None) for agent in train))
    found = kinfed.diagnose(bare)
    assert [test.name for test in found.tests] == ["covariate"]
    assert found.agents.columns.tolist() == ["covariate"]
    assert "no target" in found.describe()[-1]


def test_where_nothing_can_be_compared_there_are_no_tests_and_a_reason():
    train = kinfed.no_structure(3, 5, dim=2, seed=0).train
    alone = shift_tests(train.select([0]), labels=False)
    assert alone.tests == ()
    assert "two agents" in str(alone)
    assert alone.to_frame().empty
    assert alone.agents.shape == (1, 0)
    single_rows = Federation.from_arrays(np.eye(4), np.arange(4.0), list("abcd"))
    assert "no agent has two rows" in str(shift_tests(single_rows, labels=False))


def odd_federations() -> dict[str, tuple[Federation, bool]]:
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((30, 2)), np.repeat(list("abcdef"), [1, 2, 1, 10, 6, 10])
    y = rng.standard_normal(30)
    usual = Federation.from_arrays(X, y, agent)
    empty = replace(usual, agents=(*usual.agents, Agent("g", np.empty((0, 2)), np.empty(0))))
    rare = np.where(np.arange(30) == 7, "rare", np.where(y > 0, "yes", "no"))
    wide = rng.standard_normal((30, 784)).astype(np.float32)
    return {
        "agents of one or two rows": (usual, False),
        "an agent without rows": (empty, False),
        "constant y": (Federation.from_arrays(X, np.full(30, 1e9 / 3), agent), False),
        "constant x": (Federation.from_arrays(np.ones((30, 2)), y, agent), False),
        "constant x and y": (Federation.from_arrays(np.ones((30, 2)), np.ones(30), agent), False),
        "x in two values": (Federation.from_arrays((X[:, :1] > 1).astype(float), y, agent), False),
        "one class": (Federation.from_arrays(X, np.full(30, "yes"), agent), True),
        "a class of one row": (Federation.from_arrays(X, rare, agent), True),
        "as many classes as rows": (Federation.from_arrays(np.tile(X, (3, 1)), np.arange(90), np.tile(agent, 3)), True),
        "many columns": (Federation.from_arrays(wide, y, agent), False),
        "two agents of two rows": (Federation.from_arrays(X[:4], y[:4], list("aabb")), False),
    }


@pytest.mark.parametrize("name", odd_federations())
def test_odd_federations_get_finite_answers(name):
    federation, labels = odd_federations()[name]
    found = shift_tests(federation, labels=labels, permutations=39)
    table = found.to_frame()
    assert table.index.tolist() == ["covariate", "label", "concept"]
    assert table["p_value"].between(1 / 40, 1).all()
    assert table["size"].between(0, 1).all()
    assert np.isfinite(table["statistic"]).all()
    assert found.agents.index.tolist() == list(federation.names)
    with_rows = federation.sizes > 0
    assert found.agents[with_rows].notna().all(axis=None)
    assert found.agents[~with_rows].isna().all(axis=None)
    if "constant x" in name:
        assert (found["covariate"].p_value, found["covariate"].size) == (1.0, 0.0)
    assert any("90 classes" in note for note in found.notes) == (name == "as many classes as rows")
    if name in ("constant y", "constant x and y", "one class"):
        assert (found["label"].p_value, found["concept"].p_value, found["concept"].size) == (1.0, 1.0, 0.0)


def test_of_very_many_rows_some_are_drawn_from_every_agent(monkeypatch):
    monkeypatch.setattr("kinfed.analysis.shifts.MOST_ROWS", 100)
    train = kinfed.no_structure(5, 60, dim=2, seed=0).train
    found = shift_tests(train, labels=False, permutations=19)
    assert any("100 of the 300 rows" in note for note in found.notes)
    assert found.agents.notna().all(axis=None)


def test_with_many_columns_a_difference_of_answers_comes_with_a_caution():
    rng = np.random.default_rng(0)
    agent = np.repeat([0, 1, 2], 60)
    X = rng.standard_normal((180, 11)) + 0.3 * agent[:, None]
    y = X[:, 0] * (agent - 1) * 3 + rng.standard_normal(180)
    for columns, told in ((11, True), (10, False)):
        found = shift_tests(Federation.from_arrays(X[:, :columns], y, agent.astype(str)), labels=False, permutations=99)
        assert found["covariate"].differs
        assert found["concept"].differs
        assert any("common model of the test" in note for note in found.notes) == told


def test_progress_runs_from_nothing_to_everything_once():
    steps = []
    train = kinfed.no_structure(4, 10, dim=2, seed=0).train
    kinfed.diagnose(train, permutations=20, progress=lambda what, done, total: steps.append((what, done, total)))
    done = [one[1] for one in steps]
    assert done == sorted(done)
    assert done[-1] == 60
    assert {(what, total) for what, _, total in steps} == {("differences between agents", 60)}


def test_raw_tables_are_prepared_first():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"clinic": np.repeat(list("abcd"), 25), "age": rng.normal(50, 10, 100), "sex": rng.choice(["f", "m"], 100)}
    )
    frame.loc[3, "age"] = np.nan
    frame["ill"] = np.where(rng.random(100) < np.where(frame["clinic"] < "c", 0.05, 0.95), "yes", "no")
    train = Federation.from_table(frame, target="ill", agent="clinic")
    found = kinfed.diagnose(train, "logistic")
    assert found["label"].differs
    assert found["concept"].differs
    sentences = found.describe()
    assert any("join its kin" in sentence for sentence in sentences)
    assert any("label shift" in sentence for sentence in sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize(
    "differs, words",
    [
        ((False, False, False), "one common model is a fair start"),
        ((True, True, False), "everyone may learn from everyone"),
        ((False, True, False), "let the weights decide"),
        ((True, False, True), "join its kin"),
    ],
)
def test_the_sentences_read_the_tests_together(differs, words):
    names = ("covariate", "label", "concept")
    tests = tuple(
        ShiftTest(name, "?", 1.0, 0.01 if yes else 0.5, 0.2, 0.05) for name, yes in zip(names, differs, strict=True)
    )
    agents = pd.DataFrame({name: [0.01, 0.7] for name in names}, index=["a", "b"])
    told = " ".join(kinfed.Diagnosis(tests, 0.05, agents, 499).describe())
    assert words in told
    assert told.count("1 of 2 agents stand out") == 3
    assert "15%" in told


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda train: kinfed.diagnose(train, level=0), "level must lie between 0 and 1"),
        (lambda train: kinfed.diagnose(train, permutations=0), "permutations must be a positive whole number"),
        (lambda train: kinfed.diagnose(train, seed=-1), "seed must be a whole number"),
        (lambda train: kinfed.diagnose(train)["shape"], "test 'shape' is not known"),
        (lambda train: shift_tests(with_text(train), labels=False), "use kinfed.diagnose"),
        (lambda train: shift_tests(with_words(train), labels=False), "not finite numbers"),
        (lambda train: kinfed.diagnose(with_words(train), "ridge"), "use learner 'logistic'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(call, words):
    with pytest.raises(kinfed.KinfedError, match=words) as caught:
        call(kinfed.no_structure(3, 6, dim=2, seed=0).train)
    assert "\n" not in str(caught.value)


def with_text(train: Federation) -> Federation:
    return replace(train, agents=tuple(replace(agent, X=pd.DataFrame(agent.X).astype(str)) for agent in train))


def with_words(train: Federation) -> Federation:
    return replace(train, agents=tuple(replace(agent, y=agent.y.astype(str)) for agent in train))


def test_a_weighting_holds_the_weights_and_how_they_came_about():
    train = kinfed.concept_shift(n_agents=6, n=12, dim=2, seed=0).train
    found = kinfed.weighting(train, "q-aggregation", learner="ridge", seed=3, options={"steps": 20})
    weights = kinfed.collaboration_weights(train, "q-aggregation", seed=3, options={"steps": 20})
    np.testing.assert_array_equal(found.weights.matrix, weights.matrix)
    assert isinstance(found, kinfed.Weighting)
    assert found.train.names == train.names
    assert found.seed == 3
    assert any("rule q-aggregation, steps 20" in sentence for sentence in found.choices)
    assert found.choices[-1].startswith("learner Ridge")
    personal = kinfed.personalize(train, "ridge", "q-aggregation", seed=3, options={"steps": 20})
    *others, last = personal.choices
    assert others == found.choices
    assert last.startswith("penalty found by rows held out: ")
    raw = kinfed.weighting(train, "q-aggregation", standardise=False)
    np.testing.assert_array_equal(raw.train[0].X, train.in_order()[0].X)


def test_the_predicted_gain_tells_its_progress():
    steps = []
    train = kinfed.concept_shift(n_agents=5, n=12, dim=2, seed=0).train
    kinfed.predict_gain(train, folds=4, progress=lambda *step: steps.append(step))
    assert steps == [("predicted gain", fold, 4) for fold in (1, 2, 3, 4)]
