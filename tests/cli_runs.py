"""Command lines for tests: in this process, which is fast, or in one of their own, as a user types them."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from kinfed.cli import main

PROCESS = [sys.executable, "-c", "from kinfed_command import main; main()"]
ABOUT = ("--target", "outcome", "--agent", "hospital")


def in_a_process(*arguments, cwd, **others):
    return subprocess.run([*PROCESS, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, **others)


def in_this_process(*arguments, cwd, env=None):
    """What `in_a_process` returns, without the seconds a process takes to start."""
    before, typed, known = Path.cwd(), sys.argv, dict(os.environ)
    out, wrong = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    sys.argv = ["kinfed", *map(str, arguments)]
    os.chdir(cwd)
    if env is not None:
        set_environment(env)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            main()
    except SystemExit as end:
        told = [stream.buffer.getvalue().decode() for stream in (out, wrong)]
        return subprocess.CompletedProcess(sys.argv, end.code, *told)
    finally:
        sys.argv = typed
        os.chdir(before)
        set_environment(known)
    raise AssertionError("main leaves with an exit code")


def set_environment(wanted):
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def patients():
    """Eight hospitals in two countries; in one the outcome rises with age, in the other it falls."""
    rng = np.random.default_rng(0)
    hospital = np.arange(240) % 8
    age, ward = rng.normal(60, 10, 240), rng.choice(["east", "west"], 240)
    outcome = 0.1 * age * np.where(hospital % 2, 1, -1) + (ward == "east") + 0.3 * rng.normal(size=240)
    country = np.where(hospital % 2, "France", "Italy")
    return pd.DataFrame({"hospital": hospital, "age": age, "ward": ward, "outcome": outcome, "country": country})


def here(monkeypatch, capsys):
    """A function that runs a command line in this process and returns exit code, standard output and error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kinfed", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            told = capsys.readouterr()
            return end.code, told.out, told.err
        raise AssertionError("main leaves with an exit code")

    return run
