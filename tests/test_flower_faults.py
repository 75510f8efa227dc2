"""A deployment in which one site dies in the middle of a round and others answer garbage; the rest finish."""

import json

import numpy as np
import pandas as pd
import pytest

from flower_deployment import Deployment, wait_until
from kinfed.engines.flower.folder import write_app

pytestmark = pytest.mark.slow

CLIENT = """
import numpy as np
from kinfed.engines import tasks
from kinfed.engines.flower.client_app import client_app
from kinfed.engines.flower.site import site_from_context
from kinfed.engines.messages import Reply

from .learner import make_learner

def answer(site, request, notes):
    reply, kept = tasks.answer(site, request, notes)
    if site.name != "garbage" or request.task != "train":
        return reply, kept
    arrays, settings = dict(reply.arrays), dict(reply.settings)
    change, epoch = arrays["change"], request.settings["question"]["epoch"]
    if epoch == 0:
        arrays["change"] = np.where(np.arange(change.shape[1]) == 3, np.nan, change).astype(change.dtype)
    elif epoch == 1:
        arrays["change"] = change[:, :-1]
    elif epoch == 2:
        arrays["change"] = np.full_like(change, 1e9)
    elif epoch == 3:
        settings["agreement"] = "another"
    return Reply(settings, arrays), kept

app = client_app(lambda context: site_from_context(context, make_learner), answer)
"""

ROUNDS = 5

LEARNER = f"""
from kinfed.learners.neural import TorchLearner

def make_learner(name, task):
    return TorchLearner(hidden=(4,), task=task, method="fedavg", rounds={ROUNDS}, batch_size=8)
"""

GARBAGE = {"training 1": "NaN", "training 2": "shape", "training 3": "norm", "training 4": "another recipe"}
NAMES = ["first", "second", "dies", "garbage"]


def test_the_rest_finish_and_the_log_names_the_culprits(tmp_path):
    rng = np.random.default_rng(0)
    for name in NAMES:
        X = rng.normal(size=(30, 3))
        table = pd.DataFrame(X, columns=list("abc")).assign(y=(X[:, 0] + 0.5 * rng.normal(size=30) > 0).astype(int))
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    app = tmp_path / "app"
    write_app(app, {"target": "y", "task": "classification", "learner": "torch"})
    next(app.rglob("client.py")).write_text(CLIENT)
    next(app.rglob("learner.py")).write_text(LEARNER)
    out = tmp_path / "out"
    log = out / "audit.jsonl"
    with Deployment(tmp_path / "deployment", nodes=len(NAMES)) as deployment:
        for number, name in enumerate(NAMES):
            deployment.start_node(number, f'name="{name}" data="{tmp_path / name}.csv"')
        deployment.wait_for_nodes()
        run = deployment.run(
            app, f'out="{out}" rule="grand-mean" agents={len(NAMES)} quorum=0.25 seconds=120 baselines=false'
        )
        deployment.wait_for(log, 120)
        asked = f'"phase": "training {ROUNDS}", "direction": "to the agent"'
        wait_until(lambda: asked in log.read_text(), 900, "the last round")
        deployment.supernodes[NAMES.index("dies")].kill()
        deployment.wait_for(out / "attendance.csv", 500)
        wait_until(lambda: deployment.status(run) == "finished:completed", 60, "the end of the run")
    missed = pd.read_csv(out / "attendance.csv")
    told = missed[missed.agent == "garbage"].set_index("phase")["reason"]
    assert list(told.index) == list(GARBAGE)
    for phase, reason in GARBAGE.items():
        assert reason in told[phase]
    assert f"training {ROUNDS}" in set(missed[missed.agent == "dies"].phase)
    assert not {"first", "second"} & set(missed.agent)
    scores = pd.read_csv(out / "scores.csv", index_col="agent")["personalized"]
    assert np.isfinite(scores[["first", "second", "garbage"]]).all()
    assert np.isnan(scores["dies"])
    with np.load(out / "models.npz") as models:
        assert all(np.isfinite(array).all() for array in models.values())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1] == {"time": lines[-1]["time"], "event": "the run is complete"}
