"""Calibration where points never meet: agents who weigh and judge by themselves come to the same choice."""

from dataclasses import replace

import numpy as np
import pytest

import kinfed
from kinfed.backends.agents import Fold
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation
from kinfed.learners import make_learner
from kinfed.learners.base import Extent
from kinfed.run_setup import pooled_agents
from kinfed.settings import Settings
from kinfed.weights.calibration.calibrated import calibrate, calibrated_weights, is_quick, stays_at_home
from kinfed.weights.calibration.cross_fitting import HomeScores
from kinfed.weights.calibration.scores import Losses
from question_sites import pooled, sites

pytestmark = pytest.mark.slow


def prepared(generated):
    return Preparation.fit(generated.train).transform(generated.train)


def two_classes():
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((80, 2)), np.repeat(np.arange(5), [20, 4, 16, 20, 20])
    y = (X[:, 0] * np.where(agent % 2, 1, -1) + 0.5 * rng.standard_normal(80) > 0).astype(int)
    federation = kinfed.Federation.from_arrays(X, y, agent)
    return Preparation.fit(federation).transform(federation)


def cases(name):
    if name == "ridge":
        return prepared(kinfed.concept_shift(n_agents=8, n=(4, 15), dim=2, spread=0.1, seed=2)), make_learner("ridge")
    if name == "logistic":
        return two_classes(), make_learner("logistic")
    train = prepared(kinfed.covariate_shift(sizes=(2, 2, 2), n=15, seed=1))
    if name == "tree":
        from sklearn.tree import DecisionTreeRegressor

        return train, make_learner(DecisionTreeRegressor(max_depth=2, random_state=0))
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    return train, TorchLearner(hidden=(3,), task="regression", epochs=40)


def embeddings_of(train, learner, count=1, n_features=20):
    settings = Settings(n_features=n_features, standardise=False)
    return pooled_agents(train, None, learner, settings).embeddings[:count]


# Logistic models end within a tolerance of 1e-8 of their minimum, on either way there, and networks compute in float32.
@pytest.mark.parametrize("name, tolerance", [("ridge", 1e-9), ("logistic", 1e-7), ("torch", 1e-6)])
def test_agents_apart_choose_as_agents_in_one_place(name, tolerance, monkeypatch):
    monkeypatch.setattr("kinfed.weights.calibration.cross_fitting.MOST_REPEATS", 2)
    train, learner = cases(name)
    embeddings = embeddings_of(train, learner, count=3, n_features=40)
    everyone = np.arange(len(train))
    found, matrices = [], []
    for place in (pooled, sites):
        agents = place(train, learner, seed=3, embeddings=embeddings)
        record = calibrate(agents, learner, folds=2)
        found.append(record)
        matrices.append(calibrated_weights(agents, learner, record, everyone))
        alone = calibrated_weights(agents, learner, record, np.array([1]))
        np.testing.assert_allclose(alone[0], matrices[-1][1], atol=1e-9)
    here, apart = found
    assert here.budgeted == apart.budgeted == (name == "torch")
    assert here.candidates == apart.candidates
    assert here.choice.chosen == apart.choice.chosen
    np.testing.assert_array_equal(here.choice.personal, apart.choice.personal)
    np.testing.assert_allclose(here.choice.mean, apart.choice.mean, rtol=tolerance)
    np.testing.assert_array_equal(here.choice.shares, apart.choice.shares)
    np.testing.assert_allclose(matrices[0], matrices[1], atol=tolerance)
    assert here.describe() == apart.describe()


def test_models_that_cannot_be_sent_are_not_calibrated_apart():
    train, learner = cases("tree")
    agents = sites(train, learner, embeddings=embeddings_of(train, learner))
    with pytest.raises(kinfed.InputError, match="needs all points in one place; across sites use ridge, logistic or torch"):
        calibrate(agents, learner)


@pytest.mark.parametrize("name, at_home", [("ridge", True), ("logistic", True), ("tree", False)])
def test_where_targets_judge_by_themselves_no_fold_is_ever_named(name, at_home):
    """What is made of a part of an agent's rows would give the rest away beside what is made of all."""
    train, learner = cases(name)
    asked = []

    class Watched(PooledAgents):
        def ask(self, question):
            asked.append((question, self.fold))
            return super().ask(question)

    calibrate(Watched(train, learner.task, 0, embeddings_of(train, learner), learner), learner, folds=2)
    judged = [question for question, _ in asked if isinstance(question, HomeScores)]
    assert bool(judged) == at_home
    assert all(fold is None for _, fold in asked) == at_home
    assert any(isinstance(question, Losses) for question, _ in asked) != at_home


@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_targets_apart_tell_moments_of_losses_once_and_nothing_of_folds(name):
    train, learner = cases(name)
    agents = sites(train, learner, embeddings=embeddings_of(train, learner))
    record = calibrate(agents, learner, folds=2)
    (told,) = [asked for question, asked in agents.log if isinstance(question, HomeScores)]
    assert sorted(told) == np.flatnonzero(np.isfinite(record.choice.versus_local)).tolist()


def test_an_agent_that_falls_silent_is_one_without_scores():
    train, learner = cases("ridge")
    agents = sites(train, learner, embeddings=embeddings_of(train, learner))
    agents.silent = lambda exchange, place: place == 4 and isinstance(agents.log[exchange][0], HomeScores)
    record = calibrate(agents, learner, folds=2)
    assert np.isfinite(record.choice.mean).all()
    assert record.advice(4) == "no clear difference"
    assert record.personal(4) == "as the federation"


@pytest.mark.parametrize("place", [pooled, sites])
def test_a_second_calibration_knows_nothing_of_the_first(place):
    """Successive halving judges the rows of one fold: what agents kept of others, when all were judged, must not count."""
    train, learner = cases("torch")
    embeddings = embeddings_of(train, learner)
    used, fresh = (place(train, learner, embeddings=embeddings) for _ in range(2))
    calibrate(used, replace(learner, epochs=5), folds=2)
    again, once = (calibrate(agents, learner, folds=2) for agents in (used, fresh))
    assert again.budgeted
    np.testing.assert_array_equal(again.choice.mean, once.choice.mean)
    np.testing.assert_array_equal(again.choice.error, once.choice.error)
    np.testing.assert_array_equal(again.choice.versus_local, once.choice.versus_local)


def test_an_extent_is_enough_to_know_what_is_quick():
    train, learner = cases("logistic")
    embeddings = embeddings_of(train, learner)
    agents = pooled(train, learner, embeddings=embeddings)
    extent = Extent.of(agents.spec)
    assert extent == Extent(2, 5, 80, 2)
    assert is_quick(learner, extent, 500)
    assert not is_quick(learner, extent, 10**10)
    assert stays_at_home(agents, learner)
    assert learner.model_operations(Extent(2, 5, 80, 3)) == 3 * learner.model_operations(Extent(2, 5, 80, 2))
    assert not stays_at_home(agents, cases("tree")[1])
    with pytest.raises(kinfed.InputError, match="folds must be at least 2"):
        calibrate(agents, learner, folds=1)


@pytest.mark.parametrize("place", [pooled, sites])
def test_questions_about_any_split_in_any_order(place):
    train, learner = cases("ridge")
    agents = place(train, learner, seed=3)
    first, second = Fold(0, 0, 3), Fold(1, 2, 3)
    sizes = [agents.without(one).spec.sizes.tolist() for one in (first, second, first)]
    assert sizes[0] == sizes[2] != sizes[1]
    assert agents.spec.sizes.tolist() == train.sizes.tolist()
    assert all((np.array(kept) <= train.sizes).all() for kept in sizes)
