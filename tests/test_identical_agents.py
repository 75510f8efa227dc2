"""The example of identical agents: the closed form against Monte Carlo, a small run, and its verdicts."""

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.experiments.identical_agents import BRACKET, METRIC, NAIVE, IdenticalAgents, normal_moments
from kinfed.experiments.runner import run_experiment

pytestmark = pytest.mark.slow


def test_mean_and_covariance_of_features_under_a_normal_distribution():
    """Entries within 4.5 standard errors of means over 200000 points, at most 1e-5 wrong alarms per entry of 20 x 21."""
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.3), 20, dim=3, seed=1)
    points = features(np.random.default_rng(0).standard_normal((200_000, 3)))
    mean, covariance = normal_moments(features)
    error = points.std(axis=0) / np.sqrt(len(points))
    assert (np.abs(points.mean(axis=0) - mean) <= 4.5 * error).all()
    centred = points - mean
    products = np.einsum("ni,nj->ij", centred**2, centred**2) / len(points)
    error = np.sqrt((products - covariance**2) / len(points))
    assert (np.abs(centred.T @ centred / len(points) - covariance) <= 5 * error).all()


def test_a_small_run_recovers_the_oracle_and_the_bracket(tmp_path):
    """The oracle's mean error is tr Sigma / n_V; 12 repetitions of 4 targets that share data: within a factor 1.5."""
    experiment = IdenticalAgents(
        agents=12, kin=(1, 4), points=(20,), fixed_kin=4, fixed_points=20, dims=(10,), features=60, repetitions=12
    )
    summary = run_experiment(experiment, tmp_path, workers=1).read_text()
    results = pd.read_csv(tmp_path / "results.csv")
    means = results[results["metric"] == METRIC].groupby(["setting", "method"])["value"].mean()
    kin = means["d=10, kin=4, n=20"]
    np.testing.assert_allclose([kin[BRACKET], kin[NAIVE]], [1 / 80, 1 / 20])
    assert 1 / 1.5 < kin["oracle"] / kin[BRACKET] < 1.5
    assert 1 / 1.5 < kin["local"] / kin[NAIVE] < 1.5
    alone = means["d=10, kin=1, n=20"]
    assert alone["oracle"] == alone["local"]
    assert "capped by" in summary
    assert {path.name for path in tmp_path.iterdir()} >= {"error-against-kin.png", "error-against-points.svg", "means.csv"}
