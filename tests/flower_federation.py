"""A small federation in files, what pooled data make of it, and whether a run across sites found the same."""

import json

import numpy as np
import pandas as pd

import kinfed
from kinfed.deployment.folder import write_app
from score_tables import scores_in

NAMES = ("north", "south", "west")
AGENTS = len(NAMES)
SEED = 5
ROUNDS = 2

LEARNER = f"""
from kinfed.learners.neural import TorchLearner
from kinfed.deployment.options import usual_learner

def make_learner(name, task):
    if name == "torch":
        return TorchLearner(hidden=(6,), task=task, method="fedavg", rounds={ROUNDS}, batch_size=8, threads=1)
    return usual_learner(name, task)
"""


def learner_of(name):
    if name != "torch":
        return kinfed.make_learner(name)
    from kinfed.learners.neural import TorchLearner

    return TorchLearner(hidden=(6,), task="regression", method="fedavg", rounds=ROUNDS, batch_size=8, threads=1)


def write_tables(folder, names=NAMES):
    """A table of some sites with a text column and gaps, whole and site by site; west is unlike the others."""
    rng = np.random.default_rng(1)
    n = 24 * len(names)
    table = pd.DataFrame(
        {
            "site": np.repeat(names, 24),
            "age": np.where(rng.random(n) < 0.05, np.nan, rng.normal(50, 10, n)),
            "dose": rng.gamma(2.0, 1.0, n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    slope = np.where(table["site"] == "west", -1.0, 1.0)
    table["y"] = 0.1 * table["age"].fillna(50) + slope * table["dose"] + rng.normal(size=n)
    table.to_csv(folder / "all.csv", index=False)
    for name, rows in table.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
    return folder


def write_federation_app(folder):
    write_app(folder, {"target": "y", "agent": "site", "task": "regression"})
    next(folder.rglob("learner.py")).write_text(LEARNER)
    return folder


def expected(tables, learner, rule="q-aggregation"):
    federation = kinfed.read_federation(tables / "all.csv", target="y", agent="site")
    train, test = federation.split(test_size=0.25, seed=SEED)
    return train, test, kinfed.personalize(train, learner_of(learner), rule, test, seed=SEED)


def parameters(models, name):
    if name == "torch":
        return {"parameters": models.stack.numpy()[models.model_of]}
    return {"coefficients": models.coefficients}


def same(out, pooled, learner):
    """What a run wrote is what pooled data give, to 1e-6."""
    weights = pd.read_csv(out / "weights.csv", index_col=0)
    assert list(weights.index) == list(pooled.train.names)
    np.testing.assert_allclose(weights.to_numpy(), pooled.weights.matrix, atol=1e-6)
    scores = scores_in(out)
    pd.testing.assert_frame_equal(scores, pooled.scores, atol=1e-6, check_index_type=False)
    found = kinfed.load(out, learner=learner_of(learner))
    mine, here = ([one.models, *one.baselines.values()] for one in (found, pooled))
    for ours, theirs in zip(mine, here, strict=True):
        for name, array in parameters(theirs, learner).items():
            np.testing.assert_allclose(parameters(ours, learner)[name], array, atol=1e-6)


def lines_of(path):
    """The lines of an audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def crossed(lines, agent):
    """What an audit log says crossed between the server and one agent, in order."""
    mine = [line for line in lines if line.get("agent") == agent and "direction" in line]
    return [(line["direction"], line["bytes"], line["arrays"]) for line in mine]


def config(out, learner, **more):
    options = {"out": str(out), "learner": learner, "rule": "q-aggregation", "seed": SEED, "test-size": 0.25}
    options |= {"agents": AGENTS, **more}
    return " ".join(f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in options.items())
