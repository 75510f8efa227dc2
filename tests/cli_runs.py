"""Command lines for tests: in this process, which is fast, or in one of their own, as a user types them."""

import subprocess
import sys

import numpy as np
import pandas as pd

from kinfed.cli import main

PROCESS = [sys.executable, "-c", "from kinfed.cli import main; main()"]
ABOUT = ("--target", "outcome", "--agent", "hospital")


def in_a_process(*arguments, cwd, **others):
    return subprocess.run([*PROCESS, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, **others)


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
