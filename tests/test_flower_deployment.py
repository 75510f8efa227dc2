"""The channel over a real SuperLink and SuperNodes with TLS and keys, with a stand-in for what is asked."""

import json
import stat
import subprocess
import sys

import pytest

from flower_deployment import CONNECTED, START, Deployment, Network, wait_until
from kinfed.deployment.certificates import write_certificates
from kinfed.deployment.folder import write_app

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("deployment")]

CLIENT = """
import os, time
import numpy as np
from kinfed.backends.flower.nodes import client_app
from kinfed.backends.wire import Message
from kinfed.errors import InputError

def answer(site, request, notes):
    count = int(notes.get("count", np.zeros((), np.int64))) + 1
    if request.settings.get("raise"):
        raise InputError("this site will not; ask another")
    time.sleep(request.settings.get("sleep", 0))
    said = {"name": site["name"], "process": os.getpid(), "count": count, "seed": site["seed"]}
    return Message(said, {name: 2 * array for name, array in request.arrays.items()}), {"count": np.array(count)}

app = client_app(lambda context: {**context.node_config, "seed": context.run_config["seed"]}, answer)
"""

SERVER = """
import json, time
from pathlib import Path
import numpy as np
from kinfed.backends.flower.channel import server_app
from kinfed.backends.wire import Message, Request

def main(channel, run_config):
    out = Path(run_config["out"])
    until = time.monotonic() + 60
    while len(channel.reachable()) < run_config["agents"] and time.monotonic() < until:
        time.sleep(0.1)
    names = {}

    def exchange(title, settings, seconds):
        addresses = names if settings is not None else dict.fromkeys(channel.reachable())
        requests = {
            address: Request("train", (settings or {}).get(name, {}), {"x": np.arange(3.0), "y": np.array(True)})
            for address, name in addresses.items() if settings is None or name in settings
        }
        start = time.monotonic()
        answers = channel.ask(requests, seconds)
        taken = time.monotonic() - start
        if settings is None:
            names.update({a: answer.settings["name"] for a, answer in answers.items()})
        found = {
            names[address]: {**answer.settings, "x": answer.arrays["x"].tolist(), "y": str(answer.arrays["y"].dtype)}
            if isinstance(answer, Message) else {"failure": answer.reason}
            for address, answer in answers.items()
        }
        (out / f".{title}").write_text(json.dumps({"taken": taken, "answers": found}))
        (out / f".{title}").rename(out / f"{title}.json")

    exchange("introduction", None, 60)
    while not (out / "killed").exists() and time.monotonic() < until + 60:
        time.sleep(0.1)
    exchange("faults", {"north": {}, "south": {"raise": True}, "west": {}}, 35)
    exchange("slow", {"north": {"sleep": 20}}, 8)
    exchange("again", {"north": {}, "south": {}}, 60)

app = server_app(main)
"""


def test_questions_are_answered_and_faults_are_failures_in_bounded_time(deployment, tmp_path):
    deployment.revive_nodes()
    out, app = tmp_path / "out", tmp_path / "app"
    out.mkdir()
    write_app(app)
    (app / "kinfed_app" / "client.py").write_text(CLIENT)
    (app / "kinfed_app" / "server.py").write_text(SERVER)
    run = deployment.run(app, f'out="{out}" agents=3 seed=7')

    def told(title, seconds):
        return json.loads(deployment.wait_for(out / f"{title}.json", seconds).read_text())

    first = told("introduction", 120)["answers"]
    assert sorted(first) == ["north", "south", "west"]
    for name, answer in first.items():
        assert answer["name"] == name
        assert (answer["count"], answer["seed"]) == (1, 7)
        assert answer["x"] == [0.0, 2.0, 4.0]
        assert answer["y"] == "int64"  # 2 * True

    deployment.supernodes[2].kill()
    (out / "killed").touch()
    faults = told("faults", 90)
    assert faults["taken"] < 40
    assert faults["answers"]["north"]["count"] == 2  # the notes of the first exchange are still there, in another process
    assert faults["answers"]["north"]["process"] != first["north"]["process"]
    assert faults["answers"]["south"] == {"failure": "this site will not; ask another"}
    assert faults["answers"]["west"] == {"failure": "no answer within 35 s"}

    slow = told("slow", 30)
    assert slow["taken"] < 12
    assert slow["answers"] == {"north": {"failure": "no answer within 8 s"}}
    again = told("again", 90)["answers"]
    assert again["south"]["count"] == 2  # what raised kept no notes
    assert again["north"]["count"] >= 3
    deployment.wait_for_end(run)


def test_a_node_that_is_started_again_at_once_is_refused_and_connects_later(deployment):
    deployment.revive_nodes()
    node = deployment.supernodes[1]
    node.kill()
    before = len(node.log)
    node.start()
    wait_until(lambda: not node.running, START, "a refusal")
    assert "Exit Code: 305" in node.log[before:]
    assert CONNECTED not in node.log[before:]
    deployment.revive_nodes(1)  # within two minutes, or it fails
    assert node.running


@pytest.fixture(scope="module", name="refused")
def refused_nodes(deployment, tmp_path_factory):
    """Nodes that must not get in, started at once: each with how it ended, and what the SuperLink logged meanwhile."""
    others = write_certificates(tmp_path_factory.mktemp("others"), nodes=1)
    cases = {
        "unregistered": {"key": others.node_keys[0]},
        "another authority": {"key": deployment.certificates.node_keys[0], "authority": others.authority},
        "plaintext": {"plaintext": True},
        "plaintext, not for ever": {"plaintext": True, "extra": ["--max-wait-time", "5"]},
    }
    before, nodes = len(deployment.link.log), {}
    try:
        for number, (case, options) in enumerate(cases.items(), start=7):
            nodes[case] = deployment.start_node(number, **options)
            del deployment.supernodes[number]
        ending = [node for case, node in nodes.items() if case != "plaintext"]
        wait_until(lambda: not any(node.running for node in ending), START, "the refusal of nodes")
        assert not any(CONNECTED in node.log for node in nodes.values())
        yield nodes, deployment.link.log[before:]
    finally:
        for node in nodes.values():
            node.stop()


def test_a_node_whose_key_is_not_registered_ends_and_the_link_says_why(refused):
    nodes, at_the_link = refused
    node = nodes["unregistered"]
    assert node.popen.returncode == 1
    assert "Exit Code: 305" in node.log
    assert "Failed to activate SuperNode" in node.log
    assert "registered" not in node.log
    assert at_the_link.count("No SuperNode found with the given public key") == 1


def test_a_node_that_trusts_another_authority_ends_and_says_so(refused):
    nodes, at_the_link = refused
    node = nodes["another authority"]
    assert node.popen.returncode == 1
    assert "Exit Code: 305" in node.log
    assert "CERTIFICATE_VERIFY_FAILED" in node.log
    assert "certificate" not in at_the_link.lower()


def test_a_node_in_plaintext_tries_on_as_if_nobody_were_there(refused):
    nodes, at_the_link = refused
    assert nodes["plaintext"].running
    limited = nodes["plaintext, not for ever"]
    assert limited.popen.returncode == 1
    assert "Exit Code: 305" in limited.log
    for node in (nodes["plaintext"], limited):
        assert "Connection attempt failed, retrying in" in node.log
    told = [line for line in at_the_link.splitlines() if "WARNING" in line or "ERROR" in line]
    assert len(told) == 1  # of the key that is not registered


def test_what_is_not_tls_is_not_answered(deployment):
    request = (
        "import http.client\n"
        f"connection = http.client.HTTPConnection('127.0.0.1', {deployment.port}, timeout=10)\n"
        "connection.request('GET', '/health')\n"
        "try:\n    connection.getresponse()\n"
        "except (http.client.HTTPException, OSError):\n    print('refused')\n"
    )
    command = deployment.network.command(sys.executable, "-c", request)
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == "refused\n"


def test_the_database_is_for_its_owner_alone(deployment):
    """The SuperLink is started by the commands of the page."""
    files = list(deployment.folder.glob("superlink.db*"))
    assert files
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}


def test_without_its_database_a_link_that_is_started_again_knows_no_node(tmp_path):
    with Network() as network, Deployment(tmp_path, network, nodes=1) as deployment:
        node = deployment.start_node(0)
        deployment.wait_for_nodes()
        deployment.link.kill()
        for file in tmp_path.glob("superlink.db*"):
            file.unlink()
        deployment.start_link()
        wait_until(lambda: not node.running, 45, "the end of a node that is not known")
        assert "401" in deployment.link.log
