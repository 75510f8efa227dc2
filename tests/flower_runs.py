"""Real runs: deployed with TLS and keys, and simulated on Ray. `test_flower_network` runs these where there is no route.

Ray listens on all interfaces, so it is started in a network namespace of its own only.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from flower_deployment import Deployment, wait_until
from flower_federation import AGENTS, config, expected, learner_of, same, write_federation_app, write_tables
from kinfed.engines.site_model import load_site_model

CONFINED = "KINFED_TESTS_CONFINED" in os.environ


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return write_federation_app(tmp_path_factory.mktemp("app"))


def test_deployed(tables, app, tmp_path):
    """SuperLink and three SuperNodes on loopback; a killed server goes on, and the sites keep their models."""
    with Deployment(tmp_path / "deployment", nodes=AGENTS) as deployment:
        for number, name in enumerate(["north", "south", "west"]):
            kept = tmp_path / "kept" / name
            deployment.start_node(number, f'name="{name}" data="{tables / name}.csv" out="{kept}"')
        deployment.wait_for_nodes()
        # The server of the first run is killed in its first round and started again.
        _, test, pooled = expected(tables, "torch")
        out, again = tmp_path / "torch", tmp_path / "again"
        deployment.run(app, config(out, "torch", checkpoint=str(tmp_path / "kept" / "server")))
        deployment.wait_for(out / "audit.jsonl", 100)
        wait_until(lambda: '"training 1"' in (out / "audit.jsonl").read_text(), 600, "the first round")
        deployment.kill_server_app()
        run = deployment.run(app, config(again, "torch", checkpoint=str(tmp_path / "kept" / "server")))
        deployment.wait_for(again / "attendance.csv", 600)
        same(again, pooled, "torch")
        assert not (out / "weights.csv").exists()
        phases = {json.loads(line).get("phase") for line in (again / "audit.jsonl").read_text().splitlines()}
        assert not phases & {"columns", "scale", "sketches", "weights"}  # what was finished is not done again
        wait_until(lambda: deployment.status(run) == "finished:completed", 60, "the end of the run")
        model = load_site_model(tmp_path / "kept" / "south", learner_of("torch"))
        raw = test["south"].X
        np.testing.assert_allclose(model.predict(raw), pooled.predict("south", raw), atol=1e-6)
        log = [json.loads(line) for line in (again / "audit.jsonl").read_text().splitlines()]
        assert log[-1]["event"] == "the run is complete"


@pytest.mark.skipif(not CONFINED, reason="there is no network namespace to count in")
def test_nothing_tried_to_leave_this_machine():
    """The kernel counts packets for which there was no route: not one was sent anywhere but to the loopback."""
    head, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:"))
    counted = dict(zip(head, values, strict=True))
    beyond = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    assert int(counted["OutNoRoutes"]) == 0
    assert int(beyond.get("Ip6OutNoRoutes", 0)) == 0
    assert int(counted["OutRequests"]) > 1000  # there was traffic, on the loopback
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    assert not routes


@pytest.mark.skipif(not CONFINED, reason="Ray listens on all interfaces, and there is no network namespace to keep it in")
def test_simulated_on_ray(tables, app, tmp_path):
    """``flwr run`` as a simulation: the same app, one file for all.

    It comes after the count: to learn its own address Ray opens a socket towards a public one, though it sends nothing.
    """
    _, _, pooled = expected(tables, "torch")
    out = tmp_path / "out"
    with Deployment(tmp_path / "simulation", simulation=True) as deployment:
        deployment.run(app, config(out, "torch", data=str(tables / "all.csv")), simulated=AGENTS)
        deployment.wait_for(out / "attendance.csv", 600)
        same(out, pooled, "torch")
