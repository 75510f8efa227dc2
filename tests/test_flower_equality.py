"""One federation in process: pooled, site by site, and on Flower's Grid, to the same models."""

import numpy as np
import pandas as pd
import pytest

import kinfed
from flower_federation import SEED, expected, learner_of, parameters


@pytest.mark.parametrize("learner", ["ridge", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("backend", ["sites", "flower"])
def test_in_process(sites, learner, backend):
    train, test, pooled = expected(sites, learner)
    found = kinfed.personalize(train, learner_of(learner), "q-aggregation", test, seed=SEED, backend=backend)
    np.testing.assert_allclose(found.weights.matrix, pooled.weights.matrix, atol=1e-9)
    for first, second in [(found.models, pooled.models)] + [
        (found.baselines[name], pooled.baselines[name]) for name in pooled.baselines
    ]:
        for name, array in parameters(second, learner).items():
            np.testing.assert_allclose(parameters(first, learner)[name], array, atol=1e-6)
    pd.testing.assert_frame_equal(found.scores, pooled.scores, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["calibrated", "gradient"])
def test_in_process_with_a_rule_that_trains(sites, rule):
    train, test, pooled = expected(sites, "ridge", rule)
    found = kinfed.personalize(train, "ridge", rule, test, seed=SEED, backend="flower")
    np.testing.assert_allclose(found.models.coefficients, pooled.models.coefficients, atol=1e-6)
