"""What README.md and CONTRIBUTING.md show is run as it stands."""

import re
import shlex
import subprocess
import sys
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


def commands(name, start):
    """The shell lines of a page that begin so, without their comments."""
    lines = (line.strip() for line in (ROOT / name).read_text().splitlines())
    return [line.split("  #")[0] for line in lines if line.startswith(start)]


def test_the_commands_for_many_machines(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"hospital": np.arange(120) % 4, "age": rng.normal(size=120), "outcome": rng.normal(size=120)})
    table.to_csv(tmp_path / "patients.csv", index=False)
    shown = [line for line in commands("README.md", "kinfed ") if "flower" in line]
    assert len(shown) == 3
    shown = [f"{line} --rule q-aggregation" if "personalize" in line else line for line in shown]  # seconds, not minutes
    shown += [
        line.replace("keys", "others").replace(" app ", " other ")
        for line in commands("docs/flower.md", "kinfed flower")[:2]
    ]
    program = str(Path(sys.executable).with_name("kinfed"))
    for line in shown:
        done = subprocess.run([program, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "results" / "traffic.csv").exists()
    assert (tmp_path / "keys" / "ca.crt").exists()
    assert (tmp_path / "app" / "pyproject.toml").exists()
    assert (tmp_path / "others" / "node-3.pub").exists()
    assert (tmp_path / "other" / "pyproject.toml").exists()
