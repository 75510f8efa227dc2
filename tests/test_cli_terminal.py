"""What a terminal shows: bars with the time left, colours unless NO_COLOR, and nothing of it where there is no terminal."""

import os
import pty
import re
import subprocess

import pytest

import cli_runs
from cli_runs import ABOUT, PROCESS

pytestmark = pytest.mark.slow

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
CALIBRATED = ("personalize", "patients.csv", *ABOUT, "--leave-out", "country", "--out", "p")
QUICK = (*CALIBRATED, "--rule", "entropic")


@pytest.fixture(name="room")
def table(tmp_path):
    cli_runs.patients().to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path


def on_a_terminal(arguments, cwd, **environment):
    """Exit code, standard output through a pipe, and what a terminal at standard error was sent."""
    keyboard, terminal = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    process = subprocess.Popen(
        [*PROCESS, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={**known, "TERM": "xterm-256color", "COLUMNS": "120", **environment},
    )
    os.close(terminal)
    seen = b""
    try:
        while chunk := os.read(keyboard, 65536):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(keyboard)
    told, _ = process.communicate(timeout=240)
    return process.returncode, told, seen.decode()


def test_bars_show_what_goes_on_and_the_time_left(room):
    code, told, seen = on_a_terminal(CALIBRATED, room)
    assert code == 0, seen
    assert "reading patients.csv" in seen
    assert re.search(r"\d+%", seen)
    assert re.search(r"\d:\d\d:\d\d", seen)
    assert COLOUR.search(seen)
    assert "\x1b" not in told


def test_no_colour_where_none_is_wanted(room):
    code, _, seen = on_a_terminal(QUICK, room, NO_COLOR="1")
    assert code == 0, seen
    assert "learning with 8 agents" in seen
    assert not COLOUR.search(seen)


def test_machines_see_no_bars(room):
    code, told, seen = on_a_terminal((*QUICK, "--json"), room)
    assert (code, seen) == (0, "")
    assert told.startswith("{")


def test_a_mistake_on_a_terminal_is_one_line(room):
    code, told, seen = on_a_terminal(("personalize", "nowhere.csv", *ABOUT, "--out", "p"), room)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "\n")
    assert (code, told) == (1, "")
    assert [line for line in plain.splitlines() if line.startswith("kinfed: ")] == [
        "kinfed: nowhere.csv does not exist; give the path of a file or folder"
    ]
