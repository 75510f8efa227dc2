"""Real runs: deployed with TLS and keys, where there is no route, with faults and without; and simulated on Ray.

Ray listens on all interfaces, so it is started in a network namespace of its own only.
"""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

import kinfed
from flower_deployment import Deployment, Network, wait_until
from flower_federation import (
    AGENTS,
    NAMES,
    ROUNDS,
    SEED,
    config,
    crossed,
    expected,
    learner_of,
    lines_of,
    same,
    write_federation_app,
)
from kinfed.backends.site import sites_of
from kinfed.backends.wire import Failure
from kinfed.model import load_model
from score_tables import scores_in
from site_runs import Unruly
from site_runs import run as run_across

pytestmark = [pytest.mark.server, pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("deployment")]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return write_federation_app(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def killed(deployment, app, tmp_path_factory):
    """What a run had written, and kept, when the host died in the first round of training; it is up again."""
    deployment.revive_nodes()
    folder = tmp_path_factory.mktemp("killed")
    log = folder / "out" / "audit.jsonl"
    run = deployment.run(app, config(folder / "out", "torch", checkpoint=str(folder / "kept")))
    deployment.wait_for(log, 100)
    wait_until(lambda: '"training 1"' in log.read_text(), 600, "the first round")
    deployment.restart_link()
    assert all(node.running for node in deployment.supernodes.values())
    wait_until(lambda: deployment.status(run) == "finished:failed", 60, "giving up the run")  # it does not go on by itself
    assert not (folder / "out" / "weights.csv").exists()
    return folder


def resume(deployment, app, killed, folder, **options):
    """Start the run again from a copy of what it had kept."""
    shutil.copytree(killed / "kept", folder / "kept")
    return deployment.run(app, config(folder / "out", "torch", checkpoint=str(folder / "kept"), **options))


def test_deployed(deployment, sites, app, killed, tmp_path):
    """SuperLink and three SuperNodes on loopback; a killed server goes on, and the sites keep their models."""
    _, test, pooled = expected(sites, "torch")
    run, out = resume(deployment, app, killed, tmp_path), tmp_path / "out"
    deployment.wait_for(out / "attendance.csv", 600)
    deployment.wait_for_end(run)
    same(out, pooled, "torch")
    log = lines_of(out / "audit.jsonl")
    phases = {line.get("phase") for line in log}
    assert not phases & {"columns", "scale", "sketches", "weights"}  # what was finished is not done again
    assert log[-1]["event"] == "the run is complete"
    streamed = deployment.flwr("log", str(run), "test", "--show").stdout
    assert "introduction: 3 of 3 sites answered" in streamed
    assert re.search(r"training 2: 3 of 3 sites answered; personalized: training: 1 of 2; \d+ s so far", streamed)
    for name, node in zip(NAMES, deployment.supernodes.values(), strict=True):
        mine = [line for line in lines_of(sites / "kept" / name / "audit.jsonl") if line["run"] == str(run)]
        assert crossed(mine, name) == crossed(log, name)
        assert "Traceback" not in node.log  # also not where a run goes on, and sites have to be told again
    model = load_model(sites / "kept" / "south" / "model")
    raw = test["south"].X
    np.testing.assert_allclose(model.predict(raw), pooled.predict("south", raw), atol=1e-6)


def absent_from_the_last_round(sites, name):
    """The result of a run across sites of this process in which a site does not answer in the last round."""
    train, test, _ = expected(sites, "ridge")
    learner = learner_of("torch")

    def behave(request, answer):
        late = request.question == "local-training" and request.settings["asked"]["epoch"] == ROUNDS - 1
        return Failure("it is not there") if late else answer

    channel = Unruly(sites_of(train, test, learner), {str(train.names.index(name)): behave})
    return run_across(channel, learner, seed=SEED)


def test_a_site_killed_in_a_round_that_returns_for_the_tests_keeps_the_model_it_had(
    deployment, sites, app, killed, tmp_path
):
    deployment.revive_nodes()
    kept, out = sites / "kept" / "west", tmp_path / "out"
    if not (kept / "model").exists():
        expected(sites, "torch")[2].model("west").save(kept / "model")
    before = {path.name: path.read_bytes() for path in (kept / "model").iterdir()}
    run = resume(deployment, app, killed, tmp_path, seconds=120.0)
    log = deployment.wait_for(out / "audit.jsonl", 120)
    asked = f'"phase": "training {ROUNDS}", "direction": "to the agent"'
    wait_until(lambda: asked in log.read_text(), 600, "the last round")
    deployment.supernodes[2].kill()
    wait_until(lambda: '"missed"' in log.read_text(), 300, "the loss of a site")
    deployment.revive_nodes()
    deployment.wait_for(out / "attendance.csv", 300)
    deployment.wait_for_end(run)
    (missed,) = pd.read_csv(out / "attendance.csv").itertuples(index=False)
    assert missed[:2] == ("west", f"training {ROUNDS}")
    assert "no model in this run" in missed[3]
    assert {path.name: path.read_bytes() for path in (kept / "model").iterdir()} == before
    assert "No model was delivered: agent west was lost in training" in (kept / "last-run.txt").read_text()

    found, absent = kinfed.load(out, learner=learner_of("torch")), absent_from_the_last_round(sites, "west")
    assert list(found.withheld) == list(absent.withheld) == ["west"]
    trained = ([one.models, *one.baselines.values()] for one in (found, absent))
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_allclose(ours.models.stack.numpy(), theirs.models.stack.numpy(), atol=1e-6)
    weights = pd.read_csv(out / "weights.csv", index_col=0)
    np.testing.assert_allclose(weights.to_numpy(), absent.weights.matrix, atol=1e-6)
    assert not weights["west"].any()
    assert pd.read_csv(out / "weights-asked.csv", index_col=0)["west"].any()
    scores = scores_in(out)
    assert scores.loc["west"].isna().all()
    assert found.compare("local").n_agents == 2
    assert found.compare("local").first_mean == pytest.approx(scores["personalized"].mean())
    assert load_model(sites / "kept" / "north" / "model", learner=learner_of("torch")).weights.keys() <= {"north", "south"}
    assert "1 agent of 3 has no model in this run" in (out / "index.html").read_text()
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "the run is complete"


def test_nothing_tried_to_leave_this_machine(deployment, killed):
    """The kernel counts packets for which there was no route: not one was sent anywhere but to the loopback."""
    network = deployment.network
    if not network.confined:
        pytest.skip("network namespaces are not allowed here: there is none to count in")
    astray, sent = network.without_route()
    assert astray == 0
    assert sent > 1000  # there was traffic, on the loopback
    assert not network.read("route").splitlines()[1:]


def test_simulated_on_ray(sites, app, tmp_path):
    """``flwr run`` as a simulation: the same app, one file for all.

    It has a network of its own: to learn its own address Ray opens a socket towards a public one, though it sends nothing.
    """
    _, _, pooled = expected(sites, "ridge")
    out = tmp_path / "out"
    with Network() as network:
        if not network.confined:
            pytest.skip("Ray listens on all interfaces, and there is no network namespace to keep it in")
        with Deployment(tmp_path / "simulation", network, simulation=True) as deployment:
            deployment.run(app, config(out, "ridge", data=str(sites / "all.csv")), simulated=AGENTS)
            deployment.wait_for(out / "attendance.csv", 600)
            same(out, pooled, "ridge")
