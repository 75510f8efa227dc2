"""Neural networks through the whole pipeline: names, labels, weights, newcomers, interruption."""

import numpy as np
import pytest

import kinfed
from kinfed.learners.neural import TorchLearner

pytestmark = pytest.mark.torch


def test_networks_personalise_classes():
    generated = kinfed.label_shift(n_agents=12, n=40, classes=3, groups=3, concentration=0.3, seed=0)
    learner = TorchLearner(hidden=(8,), epochs=30, batch_size=10, learning_rate=1e-2)
    result = kinfed.personalize(generated.train, learner, test=generated.test(100, seed=1), seed=0)
    assert result.metric == "log loss"
    assert result.scored["personalized"].mean("accuracy") > 0.6
    assert "one-hot encoded" in "\n".join(result.choices)
    again = kinfed.personalize(generated.train, learner, seed=0)
    for name, values in result.models.parameters.items():
        assert values.tobytes() == again.models.parameters[name].tobytes()
    late = generated.test(30, seed=2)[0]
    newcomer = result.onboard(late.X, late.y)
    assert newcomer.predict(late.X).shape == (30,)


def test_federated_averaging_in_the_estimator():
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((200, 3)), np.arange(200) % 5
    y = X @ [1.0, -1.0, 0.5]
    learner = TorchLearner(task="regression", hidden=(), method="fedavg", rounds=60, optimiser="sgd", learning_rate=0.1)
    model = kinfed.PersonalizedRegressor(learner).fit(X, y, agent=agent)
    assert model.score(X, y, agent=agent) > 0.98
    assert kinfed.PersonalizedRegressor("torch").fit(X, y, agent=agent).predict(X, agent=agent).dtype.kind == "f"
    assert set(kinfed.PersonalizedClassifier("torch").fit(X, y > 0, agent=agent).predict(X, agent=agent)) <= {True, False}


def test_torch_is_a_learner_by_name():
    generated = kinfed.label_shift(n_agents=4, n=20, classes=2, seed=0)
    result = kinfed.personalize(generated.train, "torch", test=generated.test(20, seed=1))
    assert (result.metric, result.learner.task) == ("log loss", "classification")
    numbers = kinfed.concept_shift(n_agents=4, n=10, dim=3, seed=0).train
    assert kinfed.personalize(numbers, "torch").learner.task == "regression"
    with pytest.raises(kinfed.InputError, match="no torch option 'depth'"):
        kinfed.make_learner("torch", depth=3)
