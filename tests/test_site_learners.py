"""Ridge and logistic regression where the points never meet: the same models as from pooled points, whoever is missing."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.tree import DecisionTreeRegressor

from kinfed.backends.agents import Fold
from kinfed.backends.site import question_named
from kinfed.backends.wire import Message, form_fault
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge, derivatives, descent
from kinfed.learners import logistic as logistic_module
from kinfed.learners import ridge as ridge_module
from kinfed.learners.base import SiteLearner, site_learner
from kinfed.learners.derivatives import ClassCounts, ClassMoments, Derivatives
from kinfed.learners.ridge import Moments
from kinfed.learners.scikit import ScikitLearner
from question_sites import fit, pooled, sites

SIZES = [30, 45, 38, 60, 33]
EXACT = {"tolerance": 1e-11}  # so that two ways to the same minimum end closer together than the tests ask for


def regression_federation(seed=0, dim=3, offset=0.0):
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.normal(size=(len(agent), dim)) + offset
    y = np.einsum("id,id->i", X, rng.normal(1, 0.5, size=(len(SIZES), dim))[agent]) + rng.normal(size=len(agent))
    return Federation.from_arrays(X, y, agent)


def labelled_federation(n_classes, seed=0, dim=4, offset=0.0):
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.normal(size=(len(agent), dim))
    slopes = rng.normal(size=(n_classes, dim)) + 0.5 * rng.normal(size=(len(SIZES), n_classes, dim))
    y = (np.einsum("id,icd->ic", X, slopes[agent]) + rng.gumbel(size=(len(agent), n_classes))).argmax(axis=1)
    return Federation.from_arrays(X + offset, np.array(["a", "b", "c", "d"])[y], agent)


def uneven_federation():
    """Classes that only some agents have seen: the third has one, the last alone knows d."""
    rng = np.random.default_rng(4)
    labels = [["a", "b"] * 10, ["b", "c"] * 10, ["c"] * 20, ["a", "c"] * 10, ["a", "d"] * 10]
    X = rng.normal(size=(100, 2)) + np.array([[ord(label) - 98.0, 0.0] for label in np.concatenate(labels)]) / 2
    return Federation.from_arrays(X, np.concatenate(labels), np.repeat(np.arange(5), 20))


def weight_rows(seed=0):
    """Rows of full support, of one agent, of few agents, and two rows twice."""
    rng = np.random.default_rng(seed)
    dense = rng.dirichlet(np.full(5, 0.5), size=3)
    few = rng.dirichlet(np.full(5, 0.5), size=3) * (rng.random((3, 5)) < 0.5)
    few[:, 0] += 0.1
    rows = np.vstack([dense, np.eye(5)[:3], few / few.sum(axis=1, keepdims=True)])
    return np.vstack([rows, rows[:2]])


class Killed(Exception):  # noqa: N818
    pass


def killed_at(exchange):
    def silent(now, place):
        if now == exchange:
            raise Killed
        return False

    return silent


def train(learner, federation, weights, **options):
    agents = sites(federation, learner, **options)
    return learner.fit(agents, weights), agents


def is_used(question, agents, place, answer):
    """Whether a server would use an answer."""
    asked = question.messages(agents.spec)[place]
    form = question.form(agents.spec, place, asked)
    return form_fault(answer.arrays, form) is None and question.fault(agents.spec, place, asked, answer) is None


def without(weights, *places):
    left = weights.copy()
    left[:, list(places)] = 0.0
    return left / left.sum(axis=1, keepdims=True)


def assert_same_logistic(found, expected, atol=1e-8):
    np.testing.assert_array_equal(found.classes, expected.classes)
    np.testing.assert_array_equal(found.present, expected.present)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=0, atol=atol)


# Ridge


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("learner", [Ridge(), Ridge(penalty=0.0), Ridge(penalty=0.3, intercept=False)])
def test_ridge_equals_the_pooled_fit_in_one_exchange(learner, seed):
    federation, weights = regression_federation(seed, offset=10.0 * seed), weight_rows(seed)
    found, agents = train(learner, federation, weights)
    np.testing.assert_allclose(found.coefficients, fit(learner, federation, weights).coefficients, rtol=1e-10, atol=1e-10)
    assert len(agents.log) == 1
    assert all(not asked.arrays for asked in agents.log[0][1].values())


def test_ridge_asks_only_agents_somebody_listens_to():
    weights = np.array([[0.5, 0.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    _, agents = train(Ridge(), regression_federation(), weights)
    assert set(agents.log[0][1]) == {0, 2}


def test_ridge_without_an_agent_is_the_fit_of_renormalised_rows():
    federation, weights = regression_federation(), weight_rows()
    weights = weights[(weights[:, [0, 2, 3, 4]] > 0).any(axis=1)]
    found, _ = train(Ridge(), federation, weights, silent=lambda exchange, place: place == 1)
    expected = fit(Ridge(), federation, without(weights, 1))
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-10)


def test_a_ridge_row_that_heard_nobody_takes_the_mean_by_size():
    federation = regression_federation()
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5, 0.0]])
    found, _ = train(Ridge(), federation, weights, silent=lambda exchange, place: place == 1)
    mean = np.array([30.0, 0.0, 0.0, 60.0, 0.0]) / 90.0
    expected = fit(Ridge(), federation, np.array([mean, weights[1]]))
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-10)


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_nobody_answers(learner, tmp_path):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(2)
    agents = sites(federation, learner, silent=lambda exchange, place: True)
    with pytest.raises(KinfedError, match="none of the 5 agents that were asked has answered"):
        learner.fit(agents, weight_rows(), checkpoint=tmp_path)
    assert not list(tmp_path.glob("*.npz"))


def test_ridge_from_moments_that_are_known():
    federation = regression_federation()
    agents = sites(federation, Ridge(), silent=lambda exchange, place: place == 1)
    Ridge().fit(agents, np.array([[0.5, 0.25, 0.25, 0.0, 0.0]]))
    other = np.array([[0.4, 0.0, 0.6, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    found = Ridge().fit(agents, other)
    assert len(agents.log) == 1  # all that is needed is known
    np.testing.assert_allclose(found.coefficients, fit(Ridge(), federation, other).coefficients, atol=1e-10)
    wider = np.full((1, 5), 0.2)
    found = Ridge().fit(agents, wider)
    assert [set(asked) for _, asked in agents.log] == [{0, 1, 2}, {1, 3, 4}]  # who missed is asked again
    np.testing.assert_allclose(found.coefficients, fit(Ridge(), federation, without(wider, 1)).coefficients, atol=1e-10)


def test_ridge_in_blocks_asks_whoever_is_silent_once(monkeypatch):
    monkeypatch.setattr(ridge_module, "_AGENT_BLOCK", 2 * 16)
    monkeypatch.setattr(ridge_module, "_TARGET_BLOCK", 2 * 16)
    federation, weights = regression_federation(), weight_rows()[:3]
    found, agents = train(Ridge(), federation, weights, silent=lambda exchange, place: place in (1, 4))
    assert [set(asked) for _, asked in agents.log] == [{0, 1}, {2, 3}, {4}]
    expected = fit(Ridge(), federation, without(weights, 1, 4))
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-10)


def test_parts_of_ridge_that_heard_others_are_solved_again(monkeypatch, tmp_path):
    monkeypatch.setattr(ridge_module, "_TARGET_BLOCK", 2 * 16)
    federation, weights = regression_federation(), weight_rows()[:3]
    Ridge().fit(sites(federation, Ridge(), silent=lambda exchange, place: place == 1), weights, checkpoint=tmp_path)
    found = Ridge().fit(sites(federation, Ridge()), weights, checkpoint=tmp_path)
    np.testing.assert_allclose(found.coefficients, fit(Ridge(), federation, weights).coefficients, atol=1e-10)


@pytest.mark.parametrize("learner", [Ridge(), Logistic(**EXACT)])
@pytest.mark.parametrize("changed", ["data", "weights"])
def test_the_checkpoint_of_another_training_is_refused(learner, changed, tmp_path):
    make = regression_federation if learner.task == "regression" else lambda seed: labelled_federation(3, seed)
    federation, weights = make(1), weight_rows()
    learner.fit(sites(make(0) if changed == "data" else federation, learner), weights, checkpoint=tmp_path)
    other = without(weights[:3], 3) if changed == "weights" else weights
    with pytest.raises(InputError, match=f"{tmp_path} is of another run .different: {changed}"):
        learner.fit(sites(federation, learner), other, checkpoint=tmp_path)


def test_the_checkpoint_of_pooled_rows_is_not_that_of_sites(tmp_path):
    federation = labelled_federation(2)
    fit(Logistic(), federation, weight_rows(), checkpoint=tmp_path)
    with pytest.raises(InputError, match="different: backend"):
        Logistic().fit(sites(federation, Logistic()), weight_rows(), checkpoint=tmp_path)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda answer: answer["n"].__iadd__(1), "31 points, not of 30"),
        (lambda answer: answer["mean"].__setitem__(0, np.nan), None),
        (lambda answer: answer["comoment"].__setitem__((1, 1), -1.0), "below zero"),
        (lambda answer: answer["comoment"].__setitem__((0, 1), 0.3), "not symmetric"),
        (lambda answer: answer["comoment"].__setitem__(([0, 1], [1, 0]), 50.0), "larger than its variances allow"),
    ],
)
def test_ridge_moments_that_cannot_be(spoil, said):
    question, agents = Moments((0,)), pooled(regression_federation(), Ridge())
    answer = Moments.answer(agents.site(0), Message())
    assert is_used(question, agents, 0, answer)
    spoil(answer.arrays)
    assert not is_used(question, agents, 0, answer)
    assert said is None or said in question.fault(agents.spec, 0, Message(), answer)


# Logistic regression


@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
def test_logistic_equals_the_pooled_fit(n_classes, intercept, solver):
    for seed in range(2):
        federation, weights = labelled_federation(n_classes, seed, offset=3.0 * seed), weight_rows(seed)
        learner = Logistic(penalty=0.02, intercept=intercept, solver=solver, **EXACT)
        found, agents = train(learner, federation, weights)
        assert found.converged.all()
        assert_same_logistic(found, fit(learner, federation, weights))
        first = "class-counts" if solver == "auto" else "class-moments"
        assert [question.name for question, _ in agents.log] == [first, *["derivatives"] * (len(agents.log) - 1)]
        assert set(agents.log[0][1]) == set(range(5))
        assert len(agents.log) <= (12 if solver == "auto" else 60)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_logistic_at_its_default_tolerance(n_classes):
    federation, weights = labelled_federation(n_classes), weight_rows()
    found, _ = train(Logistic(), federation, weights)
    assert_same_logistic(found, fit(Logistic(), federation, weights), atol=1e-6)


def test_a_large_offset_costs_no_accuracy():
    weights = weight_rows()
    near, far = labelled_federation(3), labelled_federation(3, offset=1e5)
    found, _ = train(Logistic(**EXACT), far, weights)
    expected = fit(Logistic(**EXACT), near, weights)
    np.testing.assert_allclose(found.coefficients[..., :-1], expected.coefficients[..., :-1], atol=1e-8)
    for t in range(len(weights)):
        np.testing.assert_allclose(found.predict_proba(t, far[0].X), expected.predict_proba(t, near[0].X), atol=1e-8)


UNEVEN_ROWS = np.array(
    [
        [1.0, 0, 0, 0, 0],  # a, b
        [0.5, 0.5, 0, 0, 0],  # a, b, c
        [0, 0, 1.0, 0, 0],  # c alone
        [0, 0.4, 0.6, 0, 0],  # b, c
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0, 0, 0.3, 0, 0.7],  # a, c, d
    ]
)


@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
def test_classes_that_some_agents_never_see(solver):
    federation, learner = uneven_federation(), Logistic(penalty=0.05, solver=solver, **EXACT)
    found, _ = train(learner, federation, UNEVEN_ROWS)
    assert found.present.sum(axis=1).tolist() == [2, 3, 1, 2, 4, 3]
    assert_same_logistic(found, fit(learner, federation, UNEVEN_ROWS))


def settings_of(agents, name):
    """What the agents were told about one setting, in all exchanges but the first."""
    return {message.settings[name] for _, asked in agents.log[1:] for message in asked.values()}


@pytest.mark.parametrize("largest_bound", [256, 75, 8])
def test_many_coefficients_go_without_hessians(monkeypatch, largest_bound):
    monkeypatch.setattr(descent, "LARGEST_BOUND", largest_bound)
    monkeypatch.setattr(derivatives, "LARGEST_BOUND", largest_bound)
    federation, weights = labelled_federation(4, dim=75), weight_rows()[:4]
    learner = Logistic(**EXACT)
    found, agents = train(learner, federation, weights)
    assert {name for _, asked in agents.log[1:] for q in asked.values() for name in q.arrays} == {"theta", "present"}
    assert settings_of(agents, "hessian") == {False}
    assert_same_logistic(found, fit(learner, federation, weights), atol=1e-7)


@pytest.mark.parametrize("solver", ["auto", "newton"])
def test_hessians_that_would_fill_too_much_are_not_asked_for_unless_the_user_does(monkeypatch, solver):
    monkeypatch.setattr(logistic_module, "_LARGEST_EXCHANGE", 100)
    federation, weights, learner = labelled_federation(3), weight_rows(), Logistic(solver=solver, **EXACT)
    found, agents = train(learner, federation, weights)
    assert settings_of(agents, "hessian") == {solver == "newton"}
    assert_same_logistic(found, fit(learner, federation, weights))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_an_answer_holds_the_derivatives_of_the_mean_log_loss(n_classes, intercept):
    federation, rng = labelled_federation(n_classes), np.random.default_rng(0)
    agents, agent = pooled(federation, Logistic(intercept=intercept)), federation[1]
    points = agent.X - agent.X.mean(axis=0) if intercept else agent.X
    points = np.hstack([points, np.ones((len(agent), 1))]) if intercept else points
    codes = np.searchsorted(agents.spec.classes, agent.y)

    def answer(theta, hessian=False):
        arrays = {"theta": theta, "present": np.ones((len(theta), n_classes), dtype=bool)}
        return Derivatives.answer(agents.site(1), Message({"hessian": hessian, "intercept": intercept}, arrays)).arrays

    theta = rng.normal(size=(3, 1 if n_classes == 2 else n_classes, points.shape[1]))
    found = answer(theta, hessian=True)
    logits = np.einsum("rkp,np->rnk", theta, points)
    if n_classes == 2:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
    losses = -log_softmax(logits, axis=2)[:, np.arange(len(codes)), codes]
    np.testing.assert_allclose(found["value"], losses.mean(axis=1), rtol=1e-12)
    for row, column in np.ndindex(theta[0].shape):
        step = np.zeros(theta[0].shape)
        step[row, column] = 1e-5
        above, below = answer(theta + step), answer(theta - step)
        slope = (above["value"] - below["value"]) / 2e-5
        np.testing.assert_allclose(found["gradient"][:, row, column], slope, atol=1e-8)
        curvature = (above["gradient"] - below["gradient"]) / 2e-5
        np.testing.assert_allclose(found["hessian"][:, row, :, column], curvature, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_weighted_derivatives_do_not_depend_on_what_x_is_measured_from(n_classes, intercept):
    """Sums over agents, each of whom measures x from its own mean, against all points measured from a model's centre."""
    federation, rng = labelled_federation(n_classes, offset=4.0), np.random.default_rng(1)
    agents, weights = pooled(federation, Logistic(intercept=intercept)), weight_rows()[[0, 3, 6]]
    centres = rng.normal(size=(3, 4)) * intercept
    overview, present = agents.ask(ClassCounts(tuple(range(5)))), np.ones((3, n_classes), dtype=bool)

    def derivatives_at(theta):
        return agents.ask(Derivatives(theta, weights, centres, present, overview, hessians=True))

    theta = rng.normal(size=(3, 1 if n_classes == 2 else n_classes, 4 + intercept))
    found = derivatives_at(theta)
    assert found.complete.all()
    assert not found.silent.any()
    X, y, _ = federation.pooled()
    codes = np.searchsorted(agents.spec.classes, y)
    for t, row in enumerate(weights):
        points = np.hstack([X - centres[t], np.ones((len(X), int(intercept)))])
        logits = points @ theta[t].T
        logits = np.hstack([np.zeros_like(logits), logits]) if n_classes == 2 else logits
        losses = -log_softmax(logits, axis=1)[np.arange(len(codes)), codes]
        np.testing.assert_allclose(found.value[t], np.repeat(row / federation.sizes, federation.sizes) @ losses, rtol=1e-12)
    for row, column in np.ndindex(theta[0].shape):
        step = np.zeros(theta[0].shape)
        step[row, column] = 1e-5
        above, below = derivatives_at(theta + step), derivatives_at(theta - step)
        np.testing.assert_allclose(found.gradient[:, row, column], (above.value - below.value) / 2e-5, atol=1e-7)
        np.testing.assert_allclose(found.hessian[:, row, :, column], (above.gradient - below.gradient) / 2e-5, atol=1e-7)


def test_an_agent_is_sent_only_models_that_listen_to_it_and_still_move():
    federation, weights = labelled_federation(3), weight_rows()
    distinct = np.unique(weights, axis=0)
    _, agents = train(Logistic(), federation, weights)
    models = [{place: len(q.arrays["theta"]) for place, q in asked.items()} for _, asked in agents.log[1:]]
    assert models[0] == dict(enumerate((distinct > 0).sum(axis=0).tolist()))  # equal rows are one model
    assert all(now.get(place, 0) <= before.get(place, 0) for before, now in pairwise(models) for place in range(5))
    assert sum(models[-1].values()) < sum(models[0].values())


@pytest.mark.parametrize("learner", [Ridge(), Logistic(), Logistic(solver="l-bfgs")])
def test_an_agent_without_weight_has_no_part_in_a_model(learner):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    weights = np.array([[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.2, 0.3, 0.4, 0.1], [0.3, 0.0, 0.7, 0.0, 0.0]])
    changed = [Agent(one.name, one.X + 7.0 * (place > 2), one.y) for place, one in enumerate(federation)]
    first, _ = train(learner, federation, weights)
    second, _ = train(learner, Federation(tuple(changed), federation.columns), weights)
    np.testing.assert_array_equal(first.coefficients[[0, 2]], second.coefficients[[0, 2]])
    assert (first.coefficients[1] != second.coefficients[1]).any()


@pytest.mark.parametrize("learner", [Ridge(), Logistic(**EXACT)])
def test_agents_without_a_fold_are_other_agents(learner):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    agents, weights, fold = sites(federation, learner), weight_rows(), Fold(0, 1, 3)
    whole, part = learner.fit(agents, weights), learner.fit(agents.without(fold), weights)
    expected = learner.fit(pooled(federation, learner).without(fold), weights)
    np.testing.assert_allclose(part.coefficients, expected.coefficients, atol=1e-8)
    assert np.abs(whole.coefficients - part.coefficients).max() > 1e-3


# Agents that do not answer


@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
@pytest.mark.parametrize("exchange", [0, 1, 2, 5])
def test_an_agent_that_stops_answering(solver, exchange):
    federation, learner = labelled_federation(3), Logistic(solver=solver, **EXACT)
    weights = weight_rows()
    weights = weights[(np.delete(weights, 1, axis=1) > 0).any(axis=1)]
    found, agents = train(learner, federation, weights, silent=lambda now, place: place == 1 and now >= exchange)
    assert found.converged.all()
    assert_same_logistic(found, fit(learner, federation, without(weights, 1)))
    assert 1 not in {place for _, asked in agents.log[exchange + 1 :] for place in asked}


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
def test_an_agent_that_stops_when_some_of_its_models_have_converged(solver, n_classes):
    federation, learner, weights = labelled_federation(n_classes), Logistic(solver=solver, **EXACT), weight_rows()[:3]
    weights = np.vstack([weights, without(weights[:1], 2, 3, 4)])
    _, whole = train(learner, federation, weights)
    told = [len(asked[1].arrays["theta"]) for _, asked in whole.log[1:] if 1 in asked]
    last = len(told)
    assert told[-1] < told[0]  # else nothing had converged, and the test would test nothing
    found, _ = train(learner, federation, weights, silent=lambda now, place: place == 1 and now >= last)
    assert found.converged.all()
    assert_same_logistic(found, fit(learner, federation, without(weights, 1)))


@pytest.mark.parametrize("exchange", [0, 1, 3])
def test_several_agents_fail_one_after_the_other_and_take_classes_with_them(exchange):
    federation, learner = uneven_federation(), Logistic(penalty=0.05, **EXACT)
    weights = np.array([[0.2, 0.2, 0.2, 0.2, 0.2], [0.5, 0.4, 0.1, 0, 0], [0.2, 0, 0, 0, 0.8], [0, 0.5, 0.5, 0, 0]])
    silent = {4: exchange, 1: exchange + 1}
    found, _ = train(learner, federation, weights, silent=lambda now, place: now >= silent.get(place, np.inf))
    expected = fit(learner, federation, without(weights, 1, 4))
    assert found.present.sum(axis=1).tolist() == [3, 3, 2, 1]
    assert_same_logistic(found, expected)


def test_two_classes_of_which_one_is_lost():
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = np.array(["no"] * 10 + ["no", "yes"] * 10)
    federation = Federation.from_arrays(X, y, np.repeat([0, 1, 2], 10))
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    found, _ = train(Logistic(**EXACT), federation, weights, silent=lambda now, place: place == 1 and now >= 2)
    assert_same_logistic(found, fit(Logistic(**EXACT), federation, without(weights, 1)))
    np.testing.assert_array_equal(found.predict_proba(0, X), np.array([[1.0, 0.0]] * 30))


def test_a_row_that_heard_nobody_at_first_takes_the_mean_by_size():
    federation, learner = labelled_federation(3), Logistic(**EXACT)
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5, 0.0]])
    found, _ = train(learner, federation, weights, silent=lambda now, place: place == 1)
    mean = np.array([30.0, 0.0, 0.0, 60.0, 0.0]) / 90.0
    assert_same_logistic(found, fit(learner, federation, np.array([mean, weights[1]])))


def test_a_row_that_loses_its_last_agent_stays_as_it_is():
    federation, learner = labelled_federation(3), Logistic(**EXACT)
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.2, 0.0, 0.3, 0.0]])
    found, agents = train(learner, federation, weights, silent=lambda now, place: place == 1 and now >= 3)
    expected = fit(learner, federation, np.vstack([weights[:1], without(weights[1:], 1)]))
    assert found.converged.tolist() == [False, True]
    assert np.isnan(found.gradient_norm).tolist() == [True, False]
    np.testing.assert_allclose(found.coefficients[1], expected.coefficients[1], atol=1e-8)
    # One step of Newton's method was taken: nearer than the start, but not there.
    start = np.abs(expected.coefficients[0]).max()
    assert 1e-6 < np.abs(found.coefficients[0] - expected.coefficients[0]).max() < 0.9 * start
    assert all(len(message.arrays["theta"]) == 1 for _, asked in agents.log[4:] for message in asked.values())


def test_all_agents_are_gone_and_come_back(tmp_path):
    federation, weights, learner = labelled_federation(3), weight_rows(), Logistic(**EXACT)
    agents = sites(federation, learner, silent=lambda now, place: now == 3)
    with pytest.raises(KinfedError, match="no agent answers any more, after 3 exchanges"):
        learner.fit(agents, weights, checkpoint=tmp_path)
    before = len(agents.log)
    found = learner.fit(agents, weights, checkpoint=tmp_path)
    assert_same_logistic(found, fit(learner, federation, weights))
    assert len(agents.log) - before < len(train(learner, federation, weights)[1].log)


@pytest.mark.parametrize("learner", [Ridge(), Logistic(**EXACT)])
@pytest.mark.parametrize("exchange", [0, 1, 3])
def test_an_answer_of_the_wrong_form_is_no_answer(learner, exchange):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    weights = weight_rows()[:3]
    name = "mean" if learner.task == "regression" else "gradient"

    def spoil(now, place, answer):
        wrong = place == 2 and now >= exchange
        cut = {key: one[..., :-1] if wrong and key in (name, "mean") else one for key, one in answer.arrays.items()}
        return Message(arrays=cut)

    found, _ = train(learner, federation, weights, spoil=spoil)
    reached = exchange == 0 or learner.task == "classification"
    expected = fit(learner, federation, without(weights, 2) if reached else weights)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-8)


# A server that is killed


@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_killed_server_goes_on(solver, n_classes, tmp_path):
    federation, weights = labelled_federation(n_classes), weight_rows()
    learner = Logistic(solver=solver, **EXACT)
    expected, whole = train(learner, federation, weights)
    for exchange in range(0, len(whole.log), 1 if solver == "auto" else 7):
        folder = tmp_path / str(exchange)
        with pytest.raises(Killed):
            learner.fit(sites(federation, learner, silent=killed_at(exchange)), weights, checkpoint=folder)
        again = sites(federation, learner)
        found = learner.fit(again, weights, checkpoint=folder)
        assert_same_logistic(found, expected)
        if exchange:
            assert {question.name for question, _ in again.log} == {"derivatives"}
        if exchange and solver == "auto":
            # L-BFGS starts again without its pairs; Newton's method has forgotten nothing.
            assert len(again.log) <= len(whole.log) - exchange + 1
            assert len(again.log) < len(whole.log)


def test_a_killed_server_remembers_who_was_lost(tmp_path):
    federation, weights, learner = uneven_federation(), np.full((1, 5), 0.2), Logistic(**EXACT)

    def silent(now, place):
        return killed_at(4)(now, place) or (place == 4 and now == 2)

    with pytest.raises(Killed):
        learner.fit(sites(federation, learner, silent=silent), weights, checkpoint=tmp_path)
    again = sites(federation, learner)
    found = learner.fit(again, weights, checkpoint=tmp_path)
    assert {place for _, asked in again.log for place in asked} == {0, 1, 2, 3}
    assert_same_logistic(found, fit(learner, federation, without(weights, 4)))


def test_a_trained_model_is_asked_about_once_more(tmp_path):
    federation, weights, learner = labelled_federation(3), weight_rows(), Logistic()
    found = learner.fit(sites(federation, learner), weights, checkpoint=tmp_path)
    agents = sites(federation, learner)
    again = learner.fit(agents, weights, checkpoint=tmp_path)
    assert len(agents.log) == 1
    np.testing.assert_array_equal(again.coefficients, found.coefficients)


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_progress_grows_to_the_number_of_distinct_rows(learner):
    federation, told = regression_federation() if learner.task == "regression" else labelled_federation(3), []
    agents = sites(federation, learner)
    learner.fit(agents, weight_rows(), progress=lambda what, done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (len(np.unique(weight_rows(), axis=0)),) * 2


# What crosses


@pytest.mark.parametrize(
    "step, spoil, said",
    [
        ("moments", lambda answer: answer["counts"].__setitem__(0, 20), "do not add up to its 30 points"),
        ("moments", lambda answer: answer["counts"].__iadd__([-15, 15, 0]), "do not add up to its 30 points"),
        ("moments", lambda answer: answer["counts"].__setitem__(0, 99), None),
        ("moments", lambda answer: answer["second"].__setitem__((0, 0), -1.0), "below zero"),
        ("moments", lambda answer: answer["mean"].__setitem__(0, np.inf), None),
        ("derivatives", lambda answer: answer["value"].__setitem__(0, -0.1), "below zero"),
        ("derivatives", lambda answer: answer["value"].__setitem__(0, np.nan), None),
        ("derivatives", lambda answer: answer["gradient"].__setitem__((1, 2, -1), 3.0), "larger than one"),
        ("derivatives", lambda answer: answer["hessian"].__setitem__((0, 0, 0, 1, 1), -0.1), "below zero"),
        ("derivatives", lambda answer: answer["hessian"].__setitem__((1, 0, 0, 0, 3), 0.7), "not symmetric"),
        ("derivatives", lambda answer: answer["hessian"].__setitem__((1, 0, 1, 2, 2), 0.7), "not symmetric"),
    ],
)
def test_logistic_answers_that_cannot_be(step, spoil, said):
    agents = pooled(labelled_federation(3), Logistic())
    question = ClassMoments(tuple(range(5)))
    if step == "derivatives":
        overview, present = agents.ask(question), np.ones((2, 3), dtype=bool)
        question = Derivatives(np.ones((2, 3, 5)), np.full((2, 5), 0.2), np.zeros((2, 4)), present, overview, True)
    asked = question.messages(agents.spec)[0]
    answer = question.answer(agents.site(0), asked)
    assert is_used(question, agents, 0, answer)
    spoil(answer.arrays)
    assert not is_used(question, agents, 0, answer)
    assert said is None or said in question.fault(agents.spec, 0, asked, answer)


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_models_survive_being_packed(learner):
    federation = regression_federation() if learner.task == "regression" else uneven_federation()
    models, rows = fit(learner, federation, weight_rows()), np.array([4, 1])
    unpacked = learner.unpack(learner.pack(models, rows), pooled(federation, learner).spec)
    assert len(unpacked) == 2
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(unpacked.predict(place, federation[0].X), models.predict(row, federation[0].X))


@pytest.mark.parametrize(
    "learner, change, said",
    [
        (Ridge(), {"coefficients": None}, "have no coefficients"),
        (Ridge(), {"coefficients": np.zeros((2, 3))}, r"shape \(2, 3\).*shape \(models, 4\) is expected"),
        (Ridge(), {"coefficients": np.zeros((2, 4), dtype=np.float32)}, "type float32"),
        (Ridge(), {"coefficients": np.full((2, 4), np.nan)}, "NaN"),
        (Logistic(), {"coefficients": np.zeros((2, 1, 5))}, r"shape \(models, 3, 5\) is expected"),
        (Logistic(), {"present": np.zeros((2, 3), dtype=bool)}, "one or more for each"),
        (Logistic(), {"present": np.ones((1, 3), dtype=bool)}, "classes of 2 models"),
        (Logistic(), {"present": np.ones((2, 3))}, "type float64"),
    ],
)
def test_packed_models_that_do_not_fit_are_refused(learner, change, said):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    arrays = learner.pack(fit(learner, federation, weight_rows()), np.arange(2)) | change
    sent = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(InputError, match=said):
        learner.unpack(sent, pooled(federation, learner).spec)


def test_models_of_another_learner_are_not_packed():
    models = fit(Ridge(), regression_federation(), weight_rows())
    with pytest.raises(InputError, match="logistic packs LogisticModels, got RidgeModels"):
        Logistic().pack(models, np.arange(2))


@pytest.mark.parametrize(
    "learner, agent, said",
    [
        (Ridge(), Agent("x", np.zeros((3, 3)), None), "agent x has no target"),
        (Ridge(), Agent("x", np.zeros((3, 2)), np.zeros(3)), "agent x: points of dimension 3 are expected"),
        (Ridge(), Agent("x", np.zeros((3, 3)), np.array(["p", "q", "p"])), "agent x has a target that is not a number"),
        (Logistic(), Agent("x", np.zeros((3, 4)), None), "agent x has no target"),
        (Logistic(), Agent("x", np.zeros((3, 4)), np.array(["a", "z", "a"])), "'z'.*not among the 3 classes"),
        (Logistic(), Agent("x", np.zeros((3, 4)), np.array([1, 2, 1])), "1.*not among the 3 classes"),
        (Logistic(), Agent("x", np.full((3, 4), np.nan), np.array(["a", "b", "a"])), "agent x: row 0 holds NaN"),
        (Logistic(), Agent("x", np.zeros((0, 4)), np.array([], dtype=str)), "agent x has no points"),
    ],
)
def test_an_agent_whose_data_do_not_fit_says_so(learner, agent, said):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    site = replace(pooled(federation, learner).site(0), agent=agent)
    for question in (Moments,) if learner.task == "regression" else (ClassCounts, ClassMoments, Derivatives):
        with pytest.raises(InputError, match=said):
            question.answer(site, Message({"hessian": False, "intercept": True}))


def test_questions_nobody_understands():
    assert all(question_named(one.name) is one for one in (Moments, ClassCounts, ClassMoments, Derivatives))
    with pytest.raises(InputError, match="there is no question dance; use the same kinfed"):
        question_named("dance")
    arrays = {"theta": np.zeros((1, 1, 5)), "present": np.ones((1, 3), dtype=bool)}
    site = pooled(labelled_federation(3), Logistic()).site(0)
    with pytest.raises(InputError, match=r"shape \(models, 3, 5\) is expected"):
        Derivatives.answer(site, Message({"hessian": False, "intercept": True}, arrays))


def test_weights_and_classes_are_checked_at_the_door():
    agents = sites(labelled_federation(3), Logistic())
    with pytest.raises(InputError, match="row 0 of the weights is not on the simplex"):
        Logistic().fit(agents, np.full((1, 5), 0.3))
    federation = Federation(tuple(replace(one, y=np.full(len(one), "a")) for one in labelled_federation(3)), tuple("stuv"))
    one_class = sites(federation, Logistic())
    with pytest.raises(InputError, match="only the class a; a classifier needs at least two"):
        Logistic().fit(one_class, weight_rows())
    assert not agents.log
    assert not one_class.log


# Which learners there are


def test_learners_that_need_all_points_are_refused():
    with pytest.raises(InputError, match="ScikitLearner needs all points in one place; across sites use ridge"):
        site_learner(ScikitLearner(DecisionTreeRegressor()))
    for learner in (Ridge(), Logistic()):
        assert isinstance(learner, SiteLearner)
        assert site_learner(learner) is learner


def test_importing_the_learners_imports_neither_torch_nor_scikit_learn():
    code = "import sys, kinfed.learners; sys.exit(bool({'torch', 'flwr', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
