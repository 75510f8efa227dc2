"""What README.md and CONTRIBUTING.md show is run as it stands."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

import kinfed

ROOT = Path(__file__).parents[1]


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_readme(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    hospital = np.arange(200) % 5
    X = rng.standard_normal((200, 2))
    y = X[:, 0] * np.where(hospital % 2, 1, -1) + 0.1 * rng.standard_normal(200)
    table = pd.DataFrame({"hospital": hospital, "age": X[:, 0], "dose": X[:, 1], "outcome": y})
    table.to_csv(tmp_path / "patients.csv", index=False)
    monkeypatch.chdir(tmp_path)
    names = {"X_new": X[hospital == 1], "y_new": y[hospital == 1], "X": X, "y": y, "hospital": hospital}
    for block in python_blocks("README.md"):
        exec(block, names)
    assert "personalized" in capsys.readouterr().out
    assert names["newcomer"].weights.matrix.shape == (1, 6)
    assert names["model"].score(X, y, agent=hospital) > 0.9


def test_a_rule_in_ten_lines():
    rule, registry_line = python_blocks("CONTRIBUTING.md")
    names = {"Rule": kinfed.Rule}
    exec(rule, names)
    points = [np.random.default_rng(k).standard_normal((5, 3)) for k in range(8)]
    weights = names["nearest"](kinfed.explicit_geometry(points))
    assert (np.sort(weights.matrix, axis=1)[:, -5:] == 0.2).all()
    assert (weights.self_weight == 0.2).all()
    entry = eval("{" + registry_line.strip() + "}", names)
    assert entry["nearest"].weigh is names["nearest"]


def test_every_rule_and_learner_is_named_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for name in (*kinfed.RULES, *kinfed.LEARNERS):
        assert name in readme
