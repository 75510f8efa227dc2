"""Ctrl-C at any moment of ``kinfed`` is one line and exit code 130, without a traceback.

Moments are counted from the first line of the command: before that, for some hundredths of a second, Python starts.
"""

import signal
import subprocess
import sys
import time

import pytest

import cli_runs
from cli_runs import ABOUT

pytestmark = pytest.mark.slow

STARTED = [sys.executable, "-c", "from kinfed_command import main; print(flush=True); main()"]
# Interrupts itself where it is about to import the module that is its first argument.
AT_A_MODULE = """
import os, sys
class Interruption:
    module = sys.argv.pop(1)
    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            os.kill(os.getpid(), 2)  # SIGINT, without the module that tells its number
sys.meta_path.insert(0, Interruption())
from kinfed_command import main
main()
"""
AT_THE_END_OF_AN_OBJECT = """
import signal, kinfed.cli, kinfed_command
class Ended:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def command():
    Ended()
    print("went on", flush=True)
kinfed.cli.main = command
kinfed_command.main()
"""
ON_THE_WAY_OUT = """
import atexit, signal, kinfed.cli, kinfed_command
kinfed.cli.main = lambda: atexit.register(signal.raise_signal, signal.SIGINT)
kinfed_command.main()
"""


def end(process):
    """Exit code and standard error of a process, which is not to outlive the test."""
    try:
        _, wrong = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, wrong


def of_python(code, *arguments, **others):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False, **others
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module", name="room")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    cli_runs.patients().to_csv(folder / "patients.csv", index=False)
    return folder


@pytest.mark.parametrize("moment", [0.02, 0.1, 0.3, 0.7, 1.2, 2.0])
@pytest.mark.parametrize("arguments", [("--help",), ("personalize", "patients.csv", *ABOUT, "--leave-out", "country")])
def test_at_any_moment(arguments, moment, room, tmp_path):
    out = () if arguments == ("--help",) else ("--out", str(tmp_path / "p"))
    process = subprocess.Popen(
        [*STARTED, *arguments, *out], cwd=room, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    code, wrong = end(process)
    assert "Traceback" not in wrong
    assert code == 130 or (code, wrong) == (0, "")
    if code == 130:
        assert wrong.startswith("kinfed: interrupted")
        assert wrong.count("\n") == 1


@pytest.mark.parametrize("module", ["signal", "kinfed", "numpy", "scipy.linalg", "pandas", "kinfed.run", "rich.console"])
def test_while_a_module_is_imported(module, tmp_path):
    code, told, wrong = of_python(AT_A_MODULE, module, "--help", cwd=tmp_path)
    assert (code, told, wrong) == (130, "", "kinfed: interrupted\n")


def test_at_the_end_of_an_object(tmp_path):
    assert of_python(AT_THE_END_OF_AN_OBJECT, cwd=tmp_path) == (130, "", "kinfed: interrupted\n")


def test_on_the_way_out(tmp_path):
    assert of_python(ON_THE_WAY_OUT, cwd=tmp_path) == (130, "", "kinfed: interrupted\n")


def test_a_shell_may_have_it_ignored(tmp_path):
    """``kinfed ... &`` in a script goes on when the script is interrupted."""

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    code, told, wrong = of_python(AT_A_MODULE, "numpy", "--version", cwd=tmp_path, preexec_fn=ignore)
    assert (code, wrong) == (0, "")
    assert told.startswith("kinfed ")


def test_python_m_is_the_same_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "kinfed", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("kinfed ")
