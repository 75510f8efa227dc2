"""What Flower does in one process without a route to anywhere: no telemetry, no installs, no addresses but those given.

`test_flower_runs` says the same of a deployment.
"""

import subprocess
import sys

import pytest

from flower_deployment import Network

pytestmark = pytest.mark.server


@pytest.fixture(name="network")
def confined_network():
    with Network() as made:
        if not made.confined:
            pytest.skip("network namespaces are not allowed here")
        yield made


def run(network, script, seconds):
    command = network.command(sys.executable, "-c", script)
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=seconds)


def test_the_count_of_packets_without_a_route_sees_an_attempt(network):
    """Else the absence of such packets would prove nothing."""
    assert network.without_route() == (0, 0)
    run(
        network,
        "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError:\n    pass\n",
        30,
    )
    assert network.without_route()[0] > 0


def test_a_federation_on_flower_in_one_process_needs_no_network(network):
    run(
        network,
        "import kinfed\n"
        "train = kinfed.concept_shift(n_agents=4, n=20, dim=2, seed=0).train\n"
        "kinfed.personalize(train, 'ridge', 'q-aggregation', backend='flower')\n",
        120,
    )
    assert network.without_route()[0] == 0
