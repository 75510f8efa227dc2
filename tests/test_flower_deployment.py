"""The channel over a real SuperLink and SuperNodes with TLS and keys, with a stand-in for what is asked."""

import http.client
import json

import pytest

from flower_deployment import Deployment, wait_until
from kinfed.engines.flower.certificates import write_certificates
from kinfed.engines.flower.folder import write_app

pytestmark = pytest.mark.slow

CLIENT = """
import os, time
import numpy as np
from kinfed.engines.flower.client_app import client_app
from kinfed.engines.messages import Reply
from kinfed.errors import InputError

def answer(site, request, notes):
    count = int(notes.get("count", np.zeros((), np.int64))) + 1
    if request.settings.get("raise"):
        raise InputError("this site will not; ask another")
    time.sleep(request.settings.get("sleep", 0))
    said = {"name": site["name"], "process": os.getpid(), "count": count, "seed": site["seed"]}
    return Reply(said, {name: 2 * array for name, array in request.arrays.items()}), {"count": np.array(count)}

app = client_app(lambda context: {**context.node_config, "seed": context.run_config["seed"]}, answer)
"""

SERVER = """
import json, time
from pathlib import Path
import numpy as np
from kinfed.engines.flower.server_app import server_app
from kinfed.engines.messages import Reply, Request

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
            if isinstance(answer, Reply) else {"failure": answer.reason}
            for address, answer in answers.items()
        }
        (out / f".{title}").write_text(json.dumps({"taken": taken, "answers": found}))
        (out / f".{title}").rename(out / f"{title}.json")

    exchange("introduction", None, 60)
    while not (out / "killed").exists() and time.monotonic() < until + 60:
        time.sleep(0.1)
    exchange("faults", {"a": {}, "b": {"raise": True}, "c": {}}, 35)
    exchange("slow", {"a": {"sleep": 20}}, 8)
    exchange("again", {"a": {}, "b": {}}, 60)

app = server_app(main)
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment")) as made:
        for number, name in enumerate("abc"):
            made.start_node(number, f'name="{name}"')
        made.wait_for_nodes()
        yield made


def test_questions_are_answered_and_faults_are_failures_in_bounded_time(deployment):
    out, app = deployment.folder / "out", deployment.folder / "app"
    out.mkdir()
    write_app(app)
    (app / "kinfed_app" / "client.py").write_text(CLIENT)
    (app / "kinfed_app" / "server.py").write_text(SERVER)
    run = deployment.run(app, f'out="{out}" agents=3 seed=7')

    def told(title, seconds):
        return json.loads(deployment.wait_for(out / f"{title}.json", seconds).read_text())

    first = told("introduction", 120)["answers"]
    assert sorted(first) == ["a", "b", "c"]
    for name, answer in first.items():
        assert answer["name"] == name
        assert (answer["count"], answer["seed"]) == (1, 7)
        assert answer["x"] == [0.0, 2.0, 4.0]
        assert answer["y"] == "int64"  # 2 * True

    deployment.supernodes[2].kill()
    (out / "killed").touch()
    faults = told("faults", 90)
    assert faults["taken"] < 40
    assert faults["answers"]["a"]["count"] == 2  # the notes of the first exchange are still there, in another process
    assert faults["answers"]["a"]["process"] != first["a"]["process"]
    assert faults["answers"]["b"] == {"failure": "InputError: this site will not; ask another"}
    assert faults["answers"]["c"] == {"failure": "no answer within 35 s"}

    slow = told("slow", 30)
    assert slow["taken"] < 12
    assert slow["answers"] == {"a": {"failure": "no answer within 8 s"}}
    again = told("again", 90)["answers"]
    assert again["b"]["count"] == 2  # what raised kept no notes
    assert again["a"]["count"] >= 3
    wait_until(lambda: deployment.status(run) == "finished:completed", 30, "the end of the run")


def refused(deployment, number, **options):
    """Start a node that must not get in; what it logged before it gave up."""
    node = deployment.start_node(number, extra=["--max-retries", "1"], **options)
    try:
        wait_until(lambda: not node.running, 45, "the refusal of a node")
    finally:
        node.stop()
        del deployment.supernodes[number]
    assert node.popen.returncode not in (0, None)
    assert "SuperNode ID:" not in node.log
    return node.log


@pytest.fixture(name="others")
def others_keys(tmp_path):
    return write_certificates(tmp_path, nodes=1)


def test_a_node_whose_key_is_not_registered_is_refused(deployment, others):
    assert "Failed to initialize the connection" in refused(deployment, 7, key=others.node_keys[0])


def test_a_node_in_plaintext_is_refused(deployment):
    refused(deployment, 8, plaintext=True)
    connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=10)
    connection.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_a_node_does_not_trust_a_server_of_another_authority(deployment, others):
    key = deployment.certificates.node_keys[0]
    assert "certificate" in refused(deployment, 9, key=key, authority=others.authority).lower()
