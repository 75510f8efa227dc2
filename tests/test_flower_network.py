"""Everything Flower does here without a route to anywhere: no telemetry, no installs, no addresses but those given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flower_deployment import confined

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def can_confine():
    return subprocess.run(confined("true"), capture_output=True).returncode == 0


def run(command, seconds, **environment):
    return subprocess.run(
        command,
        cwd=HERE.parent,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def test_the_count_of_packets_without_a_route_sees_an_attempt():
    """Else the absence of such packets would prove nothing."""
    if not can_confine():
        pytest.skip("network namespaces are not allowed here")
    attempt = (
        "import socket\n"
        "count = lambda: int([line for line in open('/proc/net/snmp') if line.startswith('Ip:')][1].split()[12])\n"
        "before = count()\n"
        "try:\n    socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError:\n    pass\n"
        "assert count() > before\n"
    )
    done = run(confined(sys.executable, "-c", attempt), 30)
    assert done.returncode == 0, done.stderr


def test_the_command_line_with_flower_needs_no_network(tmp_path):
    if not can_confine():
        pytest.skip("network namespaces are not allowed here")
    script = (
        "import kinfed\n"
        "train = kinfed.concept_shift(n_agents=4, n=20, dim=2, seed=0).train\n"
        "kinfed.personalize(train, 'ridge', 'q-aggregation', engine='flower')\n"
        "lines = [line for line in open('/proc/net/snmp') if line.startswith('Ip:')]\n"
        "counted = dict(zip(*(line.split() for line in lines)))\n"
        "assert counted['OutNoRoutes'] == '0', counted\n"
    )
    done = run(confined(sys.executable, "-c", script), 120)
    assert done.returncode == 0, done.stderr


def test_deployed_and_simulated_runs():
    """The runs of `flower_runs`, in a network namespace without a route where this machine allows one."""
    runs = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(HERE / "flower_runs.py")]
    done = run(confined(*runs), 2400, KINFED_TESTS_CONFINED="1") if can_confine() else run(runs, 2400)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
