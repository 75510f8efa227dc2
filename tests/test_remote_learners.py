"""Ridge and logistic regression where the points never meet: the same models as from pooled points, whoever is missing."""

import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.tree import DecisionTreeRegressor

from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge, descent
from kinfed.learners.remote import Question, Terms, remote_learner
from kinfed.learners.remote import logistic as remote_logistic_module
from kinfed.learners.scikit import ScikitLearner

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


def terms_of(federation):
    y = np.concatenate([agent.y for agent in federation])
    classes = None if y.dtype.kind == "f" else np.unique(y)
    return Terms(tuple(federation.names), np.asarray(federation.sizes), federation.dim, classes, 0)


def freeze(arrays):
    """What was received cannot be written to: it lies in the buffer it came in."""
    for array in arrays.values():
        array.flags.writeable = False


class Agents:
    """All agents, asked one after the other; answers that are not of the right form are thrown away, as an engine does."""

    def __init__(self, remote, federation, silent=lambda exchange, place: False, spoil=None):
        self.remote, self.federation, self.terms = remote, federation, terms_of(federation)
        self.silent, self.spoil, self.log = silent, spoil, []

    def __call__(self, questions):
        exchange, answers = len(self.log), {}
        self.log.append(dict(questions))
        for place, question in questions.items():
            if self.silent(exchange, place):
                continue
            freeze(question.arrays)
            answer = self.remote.answer(self.federation[place], place, self.terms, question)
            freeze(answer)
            if self.spoil is not None:
                answer = self.spoil(exchange, place, answer)
            forms = self.remote.forms(place, self.terms, question)
            right = set(forms) == set(answer) and all(
                form.shape == answer[name].shape
                and form.dtype == answer[name].dtype.name
                and np.linalg.norm(answer[name]) <= form.bound
                for name, form in forms.items()
            )
            if right and self.remote.check(place, self.terms, question, answer) is None:
                answers[place] = answer
        return answers


class Shelf:
    """A memory that keeps copies, as a file would."""

    def __init__(self):
        self.state = None

    def load(self):
        return None if self.state is None else {name: array.copy() for name, array in self.state.items()}

    def save(self, state):
        self.state = {name: np.array(array) for name, array in state.items()}


class Killed(Exception):  # noqa: N818
    pass


def killed_at(exchange, agents):
    def ask(questions):
        if len(agents.log) == exchange:
            raise Killed
        return agents(questions)

    return ask


def fit(learner, federation, weights, **options):
    remote = remote_learner(learner)
    agents = Agents(remote, federation, **options)
    return remote.fit(agents, agents.terms, weights), agents


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
    found, agents = fit(learner, federation, weights)
    np.testing.assert_allclose(found.coefficients, learner.fit(federation, weights).coefficients, rtol=1e-10, atol=1e-10)
    assert len(agents.log) == 1
    assert all(not question.arrays for question in agents.log[0].values())


def test_ridge_asks_only_agents_somebody_listens_to():
    weights = np.array([[0.5, 0.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    _, agents = fit(Ridge(), regression_federation(), weights)
    assert set(agents.log[0]) == {0, 2}


def test_ridge_without_an_agent_is_the_fit_of_renormalised_rows():
    federation, weights = regression_federation(), weight_rows()
    weights = weights[(weights[:, [0, 2, 3, 4]] > 0).any(axis=1)]
    found, _ = fit(Ridge(), federation, weights, silent=lambda exchange, place: place == 1)
    expected = Ridge().fit(federation, without(weights, 1))
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-10)


def test_a_ridge_row_that_heard_nobody_takes_the_mean_by_size():
    federation = regression_federation()
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5, 0.0]])
    found, _ = fit(Ridge(), federation, weights, silent=lambda exchange, place: place == 1)
    mean = np.array([30.0, 0.0, 0.0, 60.0, 0.0]) / 90.0
    expected = Ridge().fit(federation, np.array([mean, weights[1]]))
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-10)


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_nobody_answers(learner):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(2)
    remote, shelf = remote_learner(learner), Shelf()
    agents = Agents(remote, federation, silent=lambda exchange, place: True)
    with pytest.raises(KinfedError, match="none of the 5 agents that were asked has answered"):
        remote.fit(agents, agents.terms, weight_rows(), memory=shelf)
    assert shelf.state is None


def test_ridge_from_moments_that_are_known():
    federation, remote, shelf = regression_federation(), remote_learner(Ridge()), Shelf()
    agents = Agents(remote, federation, silent=lambda exchange, place: place == 1)
    first = np.array([[0.5, 0.25, 0.25, 0.0, 0.0]])
    remote.fit(agents, agents.terms, first, memory=shelf)
    other = np.array([[0.4, 0.0, 0.6, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    found = remote.fit(agents, agents.terms, other, memory=shelf)
    assert len(agents.log) == 1  # all that is needed is known
    np.testing.assert_allclose(found.coefficients, Ridge().fit(federation, other).coefficients, atol=1e-10)
    wider = np.full((1, 5), 0.2)
    found = remote.fit(agents, agents.terms, wider, memory=shelf)
    assert [set(questions) for questions in agents.log] == [{0, 1, 2}, {1, 3, 4}]  # who missed is asked again
    np.testing.assert_allclose(found.coefficients, Ridge().fit(federation, without(wider, 1)).coefficients, atol=1e-10)


@pytest.mark.parametrize("learner", [Ridge(), Logistic(**EXACT)])
def test_a_memory_of_other_data_is_not_used(learner):
    make = regression_federation if learner.task == "regression" else lambda seed: labelled_federation(3, seed)
    federation, weights, remote, shelf = make(1), weight_rows(), remote_learner(learner), Shelf()
    fewer = Federation(tuple(Agent(one.name, one.X[:-3], one.y[:-3]) for one in make(0)), federation.columns)
    agents = Agents(remote, fewer)
    remote.fit(agents, agents.terms, weights, memory=shelf)
    agents = Agents(remote, federation)
    found = remote.fit(agents, agents.terms, weights, memory=shelf)
    np.testing.assert_allclose(found.coefficients, learner.fit(federation, weights).coefficients, atol=1e-8)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda answer: answer["n"].__iadd__(1), "31 points, not of 30"),
        (lambda answer: answer["mean"].__setitem__(0, np.nan), "not finite"),
        (lambda answer: answer["comoment"].__setitem__((1, 1), -1.0), "below zero"),
        (lambda answer: answer["comoment"].__setitem__((0, 1), 0.3), "not symmetric"),
        (lambda answer: answer["comoment"].__setitem__(([0, 1], [1, 0]), 50.0), "larger than its variances allow"),
    ],
)
def test_ridge_moments_that_cannot_be(spoil, said):
    federation, remote = regression_federation(), remote_learner(Ridge())
    terms = terms_of(federation)
    answer = remote.answer(federation[0], 0, terms, Question())
    assert remote.check(0, terms, Question(), answer) is None
    spoil(answer)
    assert said in remote.check(0, terms, Question(), answer)


# Logistic regression


@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
def test_logistic_equals_the_pooled_fit(n_classes, intercept, solver):
    for seed in range(2):
        federation, weights = labelled_federation(n_classes, seed, offset=3.0 * seed), weight_rows(seed)
        learner = Logistic(penalty=0.02, intercept=intercept, solver=solver, **EXACT)
        found, agents = fit(learner, federation, weights)
        assert found.converged.all()
        assert_same_logistic(found, learner.fit(federation, weights))
        assert [question.settings["step"] for questions in agents.log for question in questions.values()][:6] == [
            *["counts"] * 5,
            "derivatives",
        ]
        assert len(agents.log) <= (12 if solver == "auto" else 60)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_logistic_at_its_default_tolerance(n_classes):
    federation, weights = labelled_federation(n_classes), weight_rows()
    found, _ = fit(Logistic(), federation, weights)
    assert_same_logistic(found, Logistic().fit(federation, weights), atol=1e-6)


def test_a_large_offset_costs_no_accuracy():
    weights = weight_rows()
    near, far = labelled_federation(3), labelled_federation(3, offset=1e5)
    found, _ = fit(Logistic(**EXACT), far, weights)
    expected = Logistic(**EXACT).fit(near, weights)
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
    found, _ = fit(learner, federation, UNEVEN_ROWS)
    assert found.present.sum(axis=1).tolist() == [2, 3, 1, 2, 4, 3]
    assert_same_logistic(found, learner.fit(federation, UNEVEN_ROWS))


@pytest.mark.parametrize("largest_bound", [256, 8])
def test_many_coefficients_go_without_hessians(monkeypatch, largest_bound):
    monkeypatch.setattr(descent, "LARGEST_BOUND", largest_bound)
    monkeypatch.setattr(remote_logistic_module, "LARGEST_BOUND", largest_bound)
    federation, weights = labelled_federation(4, dim=75), weight_rows()[:4]
    learner = Logistic(**EXACT)
    found, agents = fit(learner, federation, weights)
    assert {name for answers in agents.log[1:] for q in answers.values() for name in q.arrays} == {"theta", "present"}
    assert not any(question.settings["hessian"] for questions in agents.log[1:] for question in questions.values())
    assert_same_logistic(found, learner.fit(federation, weights), atol=1e-7)


def test_hessians_that_would_fill_too_much(monkeypatch):
    monkeypatch.setattr(remote_logistic_module, "_LARGEST_EXCHANGE", 100)
    federation, weights = labelled_federation(3), weight_rows()
    found, agents = fit(Logistic(**EXACT), federation, weights)
    assert not any(question.settings["hessian"] for questions in agents.log[1:] for question in questions.values())
    assert_same_logistic(found, Logistic(**EXACT).fit(federation, weights))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_an_answer_holds_the_derivatives_of_the_mean_log_loss(n_classes, intercept):
    federation, remote = labelled_federation(n_classes), remote_learner(Logistic(intercept=intercept))
    terms, agent, rng = terms_of(federation), federation[1], np.random.default_rng(0)
    points = agent.X - agent.X.mean(axis=0) if intercept else agent.X
    points = np.hstack([points, np.ones((len(agent), 1))]) if intercept else points
    codes = np.searchsorted(terms.classes, agent.y)

    def answer(theta, hessian=False):
        arrays = {"theta": theta, "present": np.ones((len(theta), n_classes), dtype=bool)}
        return remote.answer(agent, 1, terms, Question({"step": "derivatives", "hessian": hessian}, arrays))

    theta = rng.normal(size=(3, 1 if n_classes == 2 else n_classes, points.shape[1]))
    found = answer(theta, hessian=True)
    logits = np.einsum("rkp,np->rnk", theta, points)
    if n_classes == 2:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
    losses = -log_softmax(logits, axis=2)[:, np.arange(len(codes)), codes]
    np.testing.assert_allclose(found["value"], losses.mean(axis=1), rtol=1e-12)
    for column in range(theta[0].size):
        step = np.zeros(theta[0].size)
        step[column] = 1e-5
        step = step.reshape(theta[0].shape)
        above, below = answer(theta + step), answer(theta - step)
        slope = (above["value"] - below["value"]) / 2e-5
        np.testing.assert_allclose(found["gradient"].reshape(3, -1)[:, column], slope, atol=1e-8)
        curvature = (above["gradient"] - below["gradient"]).reshape(3, -1) / 2e-5
        np.testing.assert_allclose(found["hessian"][:, column], curvature, atol=1e-8)


def test_an_agent_is_sent_only_models_that_listen_to_it_and_still_move():
    federation, weights = labelled_federation(3), weight_rows()
    distinct = np.unique(weights, axis=0)
    _, agents = fit(Logistic(), federation, weights)
    models = [{place: len(q.arrays["theta"]) for place, q in questions.items()} for questions in agents.log[1:]]
    assert models[0] == dict(enumerate((distinct > 0).sum(axis=0).tolist()))
    assert all(now.get(place, 0) <= before.get(place, 0) for before, now in pairwise(models) for place in range(5))
    assert sum(models[-1].values()) < sum(models[0].values())


@pytest.mark.parametrize("learner", [Ridge(), Logistic(), Logistic(solver="l-bfgs")])
def test_an_agent_without_weight_has_no_part_in_a_model(learner):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    weights = np.array([[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.2, 0.3, 0.4, 0.1], [0.3, 0.0, 0.7, 0.0, 0.0]])
    changed = [Agent(one.name, one.X + 7.0 * (place > 2), one.y) for place, one in enumerate(federation)]
    first, _ = fit(learner, federation, weights)
    second, _ = fit(learner, Federation(tuple(changed), federation.columns), weights)
    np.testing.assert_array_equal(first.coefficients[[0, 2]], second.coefficients[[0, 2]])
    assert (first.coefficients[1] != second.coefficients[1]).any()


# Agents that do not answer


@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
@pytest.mark.parametrize("exchange", [0, 1, 2, 5])
def test_an_agent_that_stops_answering(solver, exchange):
    federation, learner = labelled_federation(3), Logistic(solver=solver, **EXACT)
    weights = weight_rows()
    weights = weights[(np.delete(weights, 1, axis=1) > 0).any(axis=1)]
    found, agents = fit(learner, federation, weights, silent=lambda now, place: place == 1 and now >= exchange)
    assert found.converged.all()
    assert_same_logistic(found, learner.fit(federation, without(weights, 1)))
    assert 1 not in {place for questions in agents.log[exchange + 1 :] for place in questions}


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
def test_an_agent_that_stops_when_some_of_its_models_have_converged(solver, n_classes):
    federation, learner, weights = labelled_federation(n_classes), Logistic(solver=solver, **EXACT), weight_rows()[:3]
    weights = np.vstack([weights, without(weights[:1], 2, 3, 4)])
    _, whole = fit(learner, federation, weights)
    asked = [len(questions[1].arrays["theta"]) for questions in whole.log[1:] if 1 in questions]
    last = len(asked)
    assert asked[-1] < asked[0]  # else nothing had converged, and the test would test nothing
    found, _ = fit(learner, federation, weights, silent=lambda now, place: place == 1 and now >= last)
    assert found.converged.all()
    assert_same_logistic(found, learner.fit(federation, without(weights, 1)))


@pytest.mark.parametrize("exchange", [0, 1, 3])
def test_several_agents_fail_one_after_the_other_and_take_classes_with_them(exchange):
    federation, learner = uneven_federation(), Logistic(penalty=0.05, **EXACT)
    weights = np.array([[0.2, 0.2, 0.2, 0.2, 0.2], [0.5, 0.4, 0.1, 0, 0], [0.2, 0, 0, 0, 0.8], [0, 0.5, 0.5, 0, 0]])
    silent = {4: exchange, 1: exchange + 1}
    found, _ = fit(learner, federation, weights, silent=lambda now, place: now >= silent.get(place, np.inf))
    expected = learner.fit(federation, without(weights, 1, 4))
    assert found.present.sum(axis=1).tolist() == [3, 3, 2, 1]
    assert_same_logistic(found, expected)


def test_two_classes_of_which_one_is_lost():
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = np.array(["no"] * 10 + ["no", "yes"] * 10)
    federation = Federation.from_arrays(X, y, np.repeat([0, 1, 2], 10))
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    found, _ = fit(Logistic(**EXACT), federation, weights, silent=lambda now, place: place == 1 and now >= 2)
    assert_same_logistic(found, Logistic(**EXACT).fit(federation, without(weights, 1)))
    np.testing.assert_array_equal(found.predict_proba(0, X), np.array([[1.0, 0.0]] * 30))


def test_a_row_that_heard_nobody_at_first_takes_the_mean_by_size():
    federation, learner = labelled_federation(3), Logistic(**EXACT)
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5, 0.0]])
    found, _ = fit(learner, federation, weights, silent=lambda now, place: place == 1)
    mean = np.array([30.0, 0.0, 0.0, 60.0, 0.0]) / 90.0
    assert_same_logistic(found, learner.fit(federation, np.array([mean, weights[1]])))


def test_a_row_that_loses_its_last_agent_stays_as_it_is():
    federation, learner = labelled_federation(3), Logistic(**EXACT)
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.2, 0.0, 0.3, 0.0]])
    found, agents = fit(learner, federation, weights, silent=lambda now, place: place == 1 and now >= 3)
    expected = learner.fit(federation, np.vstack([weights[:1], without(weights[1:], 1)]))
    assert found.converged.tolist() == [False, True]
    np.testing.assert_allclose(found.coefficients[1], expected.coefficients[1], atol=1e-8)
    # One step of Newton's method was taken: nearer than the start, but not there.
    start = np.abs(expected.coefficients[0]).max()
    assert 1e-6 < np.abs(found.coefficients[0] - expected.coefficients[0]).max() < 0.9 * start
    assert all(len(question.arrays["theta"]) == 1 for questions in agents.log[4:] for question in questions.values())


def test_all_agents_are_gone_and_come_back():
    federation, weights, learner = labelled_federation(3), weight_rows(), Logistic(**EXACT)
    remote, shelf = remote_learner(learner), Shelf()
    agents = Agents(remote, federation, silent=lambda now, place: now == 3)
    with pytest.raises(KinfedError, match="no agent answers any more, after 3 exchanges"):
        remote.fit(agents, agents.terms, weights, memory=shelf)
    before = len(agents.log)
    found = remote.fit(agents, agents.terms, weights, memory=shelf)
    assert_same_logistic(found, learner.fit(federation, weights))
    assert len(agents.log) - before < len(fit(learner, federation, weights)[1].log)


@pytest.mark.parametrize("learner", [Ridge(), Logistic(**EXACT)])
@pytest.mark.parametrize("exchange", [0, 1, 3])
def test_an_answer_of_the_wrong_form_is_no_answer(learner, exchange):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    weights = weight_rows()[:3]
    name = "mean" if learner.task == "regression" else "gradient"

    def spoil(now, place, answer):
        wrong = place == 2 and now >= exchange
        return {key: array[..., :-1] if wrong and key in (name, "mean") else array for key, array in answer.items()}

    found, _ = fit(learner, federation, weights, spoil=spoil)
    reached = exchange == 0 or learner.task == "classification"
    expected = learner.fit(federation, without(weights, 2) if reached else weights)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, atol=1e-8)


# A server that is killed


@pytest.mark.parametrize("solver", ["auto", "l-bfgs"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_killed_server_goes_on(solver, n_classes):
    federation, weights = labelled_federation(n_classes), weight_rows()
    learner = Logistic(solver=solver, **EXACT)
    expected, whole = fit(learner, federation, weights)
    for exchange in range(0, len(whole.log), 1 if solver == "auto" else 7):
        remote, shelf = remote_learner(learner), Shelf()
        agents = Agents(remote, federation)
        with pytest.raises(Killed):
            remote.fit(killed_at(exchange, agents), agents.terms, weights, memory=shelf)
        assert len(agents.log) == exchange
        again = Agents(remote, federation)
        found = remote.fit(again, again.terms, weights, memory=shelf)
        assert_same_logistic(found, expected)
        if exchange:
            assert "counts" not in {question.settings["step"] for question in again.log[0].values()}
        if exchange and solver == "auto":
            # L-BFGS starts again without its pairs; Newton's method has forgotten nothing.
            assert len(again.log) <= len(whole.log) - exchange + 1
            assert len(again.log) < len(whole.log)


def test_a_killed_server_remembers_who_was_lost():
    federation, weights, learner = uneven_federation(), np.full((1, 5), 0.2), Logistic(**EXACT)
    remote, shelf = remote_learner(learner), Shelf()
    agents = Agents(remote, federation, silent=lambda now, place: place == 4 and now == 2)
    with pytest.raises(Killed):
        remote.fit(killed_at(4, agents), agents.terms, weights, memory=shelf)
    again = Agents(remote, federation)
    found = remote.fit(again, again.terms, weights, memory=shelf)
    assert {place for questions in again.log for place in questions} == {0, 1, 2, 3}
    assert_same_logistic(found, learner.fit(federation, without(weights, 4)))


def test_a_memory_of_other_rows_is_not_used():
    federation, learner, shelf = labelled_federation(3), Logistic(**EXACT), Shelf()
    remote, weights = remote_learner(learner), weight_rows()[:3]
    agents = Agents(remote, federation)
    remote.fit(agents, agents.terms, without(weights, 3), memory=shelf)  # the fourth agent was not asked, and is not lost
    found = remote.fit(agents, agents.terms, weights, memory=shelf)
    assert_same_logistic(found, learner.fit(federation, weights))


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_progress_grows_to_the_number_of_distinct_rows(learner):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    remote, told = remote_learner(learner), []
    agents = Agents(remote, federation)
    remote.fit(agents, agents.terms, weight_rows(), progress=lambda what, done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (len(np.unique(weight_rows(), axis=0)),) * 2


# What crosses


@pytest.mark.parametrize(
    "step, spoil, said",
    [
        ("counts", lambda answer: answer["counts"].__setitem__(0, 99), "do not add up to its 30 points"),
        ("counts", lambda answer: answer["counts"].__iadd__([-50, 50, 0]), "do not add up to its 30 points"),
        ("counts", lambda answer: answer["second"].__setitem__((0, 0), -1.0), "below zero"),
        ("counts", lambda answer: answer["mean"].__setitem__(0, np.inf), "not finite"),
        ("derivatives", lambda answer: answer["value"].__setitem__(0, -0.1), "below zero"),
        ("derivatives", lambda answer: answer["value"].__setitem__(0, np.nan), "not finite"),
        ("derivatives", lambda answer: answer["gradient"].__setitem__((1, 2, -1), 3.0), "larger than one"),
        ("derivatives", lambda answer: answer["hessian"].__setitem__((0, 1, 1), -0.1), "below zero"),
        ("derivatives", lambda answer: answer["hessian"].__setitem__((1, 0, 3), 0.7), "not symmetric"),
    ],
)
def test_logistic_answers_that_cannot_be(step, spoil, said):
    federation, remote = labelled_federation(3), remote_learner(Logistic())
    terms = terms_of(federation)
    arrays = {"theta": np.ones((2, 3, 5)), "present": np.ones((2, 3), dtype=bool)}
    question = Question({"step": step, "second": "matrix", "hessian": True}, arrays if step == "derivatives" else {})
    answer = remote.answer(federation[0], 0, terms, question)
    assert remote.check(0, terms, question, answer) is None
    forms = remote.forms(0, terms, question)
    assert {name: (form.shape, form.dtype) for name, form in forms.items()} == {
        name: (array.shape, array.dtype.name) for name, array in answer.items()
    }
    spoil(answer)
    assert said in remote.check(0, terms, question, answer)


@pytest.mark.parametrize("learner", [Ridge(), Logistic()])
def test_models_survive_being_packed(learner):
    federation = regression_federation() if learner.task == "regression" else uneven_federation()
    weights = weight_rows()
    models, remote, rows = learner.fit(federation, weights), remote_learner(learner), np.array([4, 1])
    unpacked = remote.unpack(remote.pack(models, rows), terms_of(federation))
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
    remote = remote_learner(learner)
    arrays = remote.pack(learner.fit(federation, weight_rows()), np.arange(2)) | change
    with pytest.raises(InputError, match=said):
        remote.unpack({name: array for name, array in arrays.items() if array is not None}, terms_of(federation))


def test_models_of_another_learner_are_not_packed():
    models = Ridge().fit(regression_federation(), weight_rows())
    with pytest.raises(InputError, match="logistic packs LogisticModels, got RidgeModels"):
        remote_learner(Logistic()).pack(models, np.arange(2))


@pytest.mark.parametrize(
    "learner, agent, said",
    [
        (Ridge(), Agent("x", np.zeros((3, 3)), None), "agent x has no target"),
        (Ridge(), Agent("x", np.zeros((3, 2)), np.zeros(3)), "agent x: X has shape"),
        (Ridge(), Agent("x", np.zeros((3, 3)), np.array(["p", "q", "p"])), "agent x has a target that is not a number"),
        (Logistic(), Agent("x", np.zeros((3, 4)), None), "agent x has no target"),
        (Logistic(), Agent("x", np.zeros((3, 4)), np.array(["a", "z", "a"])), "'z'.*not among the 3 classes"),
        (Logistic(), Agent("x", np.full((3, 4), np.nan), np.array(["a", "b", "a"])), "agent x: row 0 holds NaN"),
    ],
)
def test_an_agent_whose_data_do_not_fit_says_so(learner, agent, said):
    federation = regression_federation() if learner.task == "regression" else labelled_federation(3)
    with pytest.raises(InputError, match=said):
        remote_learner(learner).answer(agent, 0, terms_of(federation), Question({"step": "counts", "second": "none"}))


def test_questions_nobody_understands():
    federation, remote = labelled_federation(3), remote_learner(Logistic())
    terms = terms_of(federation)
    with pytest.raises(InputError, match="steps counts and derivatives, got 'dance'"):
        remote.answer(federation[0], 0, terms, Question({"step": "dance"}))
    arrays = {"theta": np.zeros((1, 1, 5)), "present": np.ones((1, 3), dtype=bool)}
    with pytest.raises(InputError, match=r"shape \(models, 3, 5\) is expected"):
        remote.answer(federation[0], 0, terms, Question({"step": "derivatives", "hessian": False}, arrays))


def test_weights_and_classes_are_checked_at_the_door():
    agents = Agents(remote_learner(Logistic()), labelled_federation(3))
    with pytest.raises(InputError, match="row 0 of the weights is not on the simplex"):
        agents.remote.fit(agents, agents.terms, np.full((1, 5), 0.3))
    one_class = Terms(agents.terms.names, agents.terms.sizes, 4, np.array(["a"]), 0)
    with pytest.raises(InputError, match="fewer than two classes"):
        agents.remote.fit(agents, one_class, weight_rows())
    assert not agents.log


# The registry


def test_learners_without_a_remote_form_are_refused():
    with pytest.raises(InputError, match="ScikitLearner needs all points in one place; across sites use ridge"):
        remote_learner(ScikitLearner(DecisionTreeRegressor()))


def test_a_torch_learner_is_known_by_its_name(monkeypatch):
    learner = type("TorchLearner", (), {"__module__": "kinfed.learners.neural.learner"})()
    stand_in = SimpleNamespace(RemoteTorch=lambda one: ("remote", one))
    monkeypatch.setitem(sys.modules, "kinfed.learners.remote.neural", stand_in)
    assert remote_learner(learner) == ("remote", learner)
    with pytest.raises(InputError, match="needs all points in one place"):
        remote_learner(type("TorchLearner", (), {"__module__": "somewhere.else"})())


def test_importing_the_remote_learners_imports_no_torch():
    code = "import sys, kinfed.learners.remote; sys.exit(bool({'torch', 'flwr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
