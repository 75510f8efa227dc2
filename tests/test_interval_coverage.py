"""The experiment on intervals: how trials are counted, and a small run of it."""

import numpy as np
import pandas as pd
import pytest

from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.interval_coverage import ESTIMATE, HIGH, LOW, TRUTH, IntervalCoverage, covering, truth


def test_trials_are_counted_that_cover_the_mean_of_fresh_splits():
    told = {LOW: [0.0, 0.2, -1.0], HIGH: [1.0, 0.3, 0.6], ESTIMATE: [0.5, 0.25, 0.0], TRUTH: [0.4, 0.6]}
    rows = [
        {"setting": "federation=a", "method": "local", "repetition": r, "metric": metric, "value": value}
        for metric, values in told.items()
        for r, value in enumerate(values)
    ]
    results = pd.DataFrame(rows)
    assert truth(results, "federation=a", "local") == pytest.approx(0.5)
    assert covering(results, "federation=a", "local").tolist() == [1.0, 0.0, 1.0]


def test_it_needs_a_rule_without_groups():
    assert EXPERIMENTS["interval-coverage"] is IntervalCoverage
    with pytest.raises(InputError, match="--rule 'oracle' is not known"):
        IntervalCoverage(rule="oracle")


@pytest.mark.slow
def test_a_small_run_of_it(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 2))
    table = pd.DataFrame(X, columns=["a", "b"]).assign(y=X @ [1.0, -1.0] + rng.normal(size=240), site=np.arange(240) % 6)
    table.to_csv(tmp_path / "rows.csv", index=False)
    experiment = IntervalCoverage(
        data=(f"{tmp_path / 'rows.csv'}:y:site",), rule="similarity-test", repeats=2, splits=4, repetitions=3
    )
    run_experiment(experiment, tmp_path / "out")
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert set(results["method"]) == {"local", "grand-mean", "floor"}
    counts = results.groupby("metric").repetition.nunique()
    assert counts[TRUTH] == 4
    assert counts[LOW] == counts[HIGH] == counts[ESTIMATE] == 3
    differences = results[results["metric"] == ESTIMATE].value.tolist() + results[results["metric"] == TRUTH].value.tolist()
    assert len(set(differences)) == len(differences)  # no split is there twice
    assert "of 3 trials" in (tmp_path / "out" / "summary.md").read_text()
