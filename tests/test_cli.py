"""Commands as a user types them: real processes, real files, one line for every mistake."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest


def kinfed(*arguments, cwd):
    command = [sys.executable, "-c", "from kinfed.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.fixture(name="table")
def patients(tmp_path):
    rng = np.random.default_rng(0)
    hospital = np.arange(240) % 8
    age, ward = rng.normal(60, 10, 240), rng.choice(["east", "west"], 240)
    outcome = 0.1 * age * np.where(hospital % 2, 1, -1) + (ward == "east") + 0.3 * rng.normal(size=240)
    frame = pd.DataFrame({"hospital": hospital, "age": age, "ward": ward, "outcome": outcome})
    frame.loc[3:40, "age"] = np.nan
    frame.to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path


def test_demo_ends_with_three_sentences_and_its_files(tmp_path):
    done = kinfed("demo", "--out", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    what, gain, where = done.stdout.strip().splitlines()
    assert what.startswith("160 schools shared sketches and scores")
    assert "against" in gain
    assert "for one common model" in gain
    assert "demo/scores.csv" in where
    assert done.stderr == ""  # no bars where the output is not a terminal
    scores = pd.read_csv(tmp_path / "demo" / "scores.csv", index_col="agent")
    assert len(scores) == 160
    assert scores["personalized"].mean() < min(scores["local"].mean(), scores["grand-mean"].mean())
    weights = pd.read_csv(tmp_path / "demo" / "weights.csv", index_col="target")
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "calibration.csv",
        "explanation.csv",
        "scores.csv",
        "weights.csv",
    ]


def test_weights_and_personalize_on_ones_own_table(table):
    done = kinfed("weights", "patients.csv", "--target", "outcome", "--agent", "hospital", "--out", "before", cwd=table)
    assert done.returncode == 0, done.stderr
    before = pd.read_csv(table / "before" / "weights.csv", index_col="target")
    assert before.shape == (8, 8)
    done = kinfed(
        "personalize",
        "patients.csv",
        "--target",
        "outcome",
        "--agent",
        "hospital",
        "--out",
        "after",
        "--rule",
        "entropic",
        cwd=table,
    )
    assert done.returncode == 0, done.stderr
    assert "missing values replaced by the mean" in done.stdout
    assert "column ward: one-hot encoded as east, west" in done.stdout
    assert "personalized" in done.stdout
    assert pd.read_csv(table / "after" / "scores.csv").shape == (8, 4)
    again = kinfed(
        "personalize",
        "patients.csv",
        "--target",
        "outcome",
        "--agent",
        "hospital",
        "--out",
        "after",
        "--seed",
        1,
        cwd=table,
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("weights", "nowhere.csv", "--agent", "hospital", "--out", "x"), "nowhere.csv"),
        (("weights", "patients.csv", "--agent", "hospitl", "--out", "x"), "the nearest is 'hospital'"),
        (("personalize", "patients.csv", "--agent", "hospital", "--out", "x"), "no target to learn"),
        (("personalize", "patients.csv", "--target", "ward", "--agent", "hospital", "--out", "x"), "logistic"),
        (
            ("weights", "patients.csv", "--target", "outcome", "--agent", "hospital", "--out", "x", "--rule", "best"),
            "rule 'best'",
        ),
        (
            ("weights", "patients.csv", "--target", "outcome", "--agent", "hospital", "--out", "patients.csv"),
            "cannot be made",
        ),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(table, arguments, words):
    done = kinfed(*arguments, cwd=table)
    assert done.returncode == 1
    assert done.stderr.startswith("kinfed: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr
    assert not (table / "x" / "weights.csv").exists()


def test_an_unreadable_command_line_is_exit_code_two(tmp_path):
    assert kinfed("weights", cwd=tmp_path).returncode == 2
