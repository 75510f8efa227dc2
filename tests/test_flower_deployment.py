"""The channel over a real SuperLink and SuperNodes with TLS and keys, with a stand-in for what is asked."""

import json
import subprocess
import sys

import pytest

from flower_deployment import CONNECTED, wait_until
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


def refused(deployment, number, **options):
    """Start a node that must not get in; what it logged before it gave up."""
    node = deployment.start_node(number, extra=["--max-retries", "1"], **options)
    try:
        wait_until(lambda: not node.running, 45, "the refusal of a node")
    finally:
        node.stop()
        del deployment.supernodes[number]
    assert node.popen.returncode not in (0, None)
    assert CONNECTED not in node.log
    return node.log


@pytest.fixture(name="others")
def others_keys(tmp_path):
    return write_certificates(tmp_path, nodes=1)


def test_a_node_whose_key_is_not_registered_is_refused(deployment, others):
    assert "Failed to initialize the connection" in refused(deployment, 7, key=others.node_keys[0])


def test_a_node_in_plaintext_is_refused(deployment):
    refused(deployment, 8, plaintext=True)
    request = (
        "import http.client\n"
        f"connection = http.client.HTTPConnection('127.0.0.1', {deployment.port}, timeout=10)\n"
        "connection.request('GET', '/health')\n"
        "try:\n    connection.getresponse()\n"
        "except (http.client.HTTPException, OSError):\n    print('refused')\n"
    )
    command = deployment.network.command(sys.executable, "-c", request)
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == "refused\n"


def test_a_node_does_not_trust_a_server_of_another_authority(deployment, others):
    key = deployment.certificates.node_keys[0]
    assert "certificate" in refused(deployment, 9, key=key, authority=others.authority).lower()
