"""The apps of a deployment in one process: a site answers garbage of every kind; the rest finish and the log names it."""

import importlib
import json
import sys

import numpy as np
import pandas as pd
import pytest

from flower_federation import AGENTS, LEARNER, ROUNDS, write_federation_app
from kinfed.backends.flower.nodes import InProcessGrid
from score_tables import scores_in

pytestmark = pytest.mark.torch

CLIENT = """
import numpy as np
from kinfed.backends.site import answer as answer_at_site
from kinfed.backends.flower.nodes import client_app
from kinfed.deployment.site import site_from_context
from kinfed.backends.wire import Message

from .learner import make_learner

HONEST = 0  # rounds

def answer(site, request, notes):
    reply, kept = answer_at_site(site, request, notes)
    if site.name != "south":
        return reply, kept
    arrays, settings, together = dict(reply.arrays), dict(reply.settings), "parts" in request.settings
    parts = request.settings["parts"] if together else [{"question": request.question, "settings": request.settings}]
    for number, part in enumerate(parts):
        if part["question"] != "local-training" or part["settings"]["asked"]["epoch"] < HONEST:
            continue
        name = f"{number}/change" if together else "change"
        change, epoch = arrays[name], part["settings"]["asked"]["epoch"]
        if epoch == 0:
            arrays[name] = np.where(np.arange(change.shape[1]) == 3, np.nan, change).astype(change.dtype)
        elif epoch == 1:
            arrays[name] = change[:, :-1]
        elif epoch == 2:
            arrays[name] = np.full_like(change, 1e9)
        elif epoch == 3:
            settings["agreement"] = "another"
    return Message(settings, arrays), kept

app = client_app(lambda context: site_from_context(context, make_learner), answer)
"""

GARBAGE = ("NaN", "shape", "norm", "another recipe")


@pytest.mark.parametrize("garbage", range(len(GARBAGE)))
def test_the_rest_finish_and_the_log_names_the_culprit(sites, tmp_path, monkeypatch, garbage):
    app = write_federation_app(tmp_path)
    next(app.rglob("client.py")).write_text(CLIENT.replace("HONEST = 0", f"HONEST = {garbage}"))
    rounds = len(GARBAGE) + 1
    next(app.rglob("learner.py")).write_text(LEARNER.replace(f"rounds={ROUNDS}", f"rounds={rounds}"))
    monkeypatch.syspath_prepend(app)
    client, server = (importlib.import_module(f"kinfed_app.{name}").app for name in ("client", "server"))
    for name in [name for name in sys.modules if name.startswith("kinfed_app")]:
        del sys.modules[name]  # the next app is another one
    out = tmp_path / "out"
    run_config = {"target": "y", "agent": "site", "task": "regression", "data": str(sites / "all.csv"), "out": str(out)}
    run_config |= {"learner": "torch", "rule": "grand-mean", "agents": AGENTS, "quorum": 0.25, "baselines": False}
    with InProcessGrid(client, [{}] * AGENTS, run_config) as grid:
        server(grid, grid.server_context())
    missed = pd.read_csv(out / "attendance.csv")
    (told,) = missed.itertuples(index=False)
    assert told[:2] == ("south", f"training {garbage + 1}")
    assert GARBAGE[garbage] in told.reason
    assert "no model in this run" in told[3]
    scores = scores_in(out)["personalized"]
    assert np.isfinite(scores.drop("south")).all()
    assert np.isnan(scores["south"])
    with np.load(next(out.glob("result-*.npz"))) as stored:
        assert all(np.isfinite(array).all() for name, array in stored.items() if name.endswith("parameters"))
    lines = [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]
    assert lines[-1] == {"time": lines[-1]["time"], "event": "the run is complete"}
