"""The code here against kinfed 0.1.0: are its numbers the same, and is it as fast?

    python -m benchmarks.against_release --release PYTHON numbers
    python -m benchmarks.against_release --release PYTHON speed

PYTHON is an interpreter beside which kinfed 0.1.0 is installed, with the same versions of everything else. To make one, put
the tag or commit of 0.1.0 for COMMIT:

    git worktree add ../kinfed-0.1.0-source COMMIT
    python3 -m venv ../kinfed-0.1.0
    ../kinfed-0.1.0/bin/pip install --constraint constraints.txt torch==2.13.0
    ../kinfed-0.1.0/bin/pip install --constraint constraints.txt flwr==1.41.0 ../kinfed-0.1.0-source

The code here is what the interpreter that runs this script imports, or another by ``--new``. Import times depend on what
else is installed; with the release's own interpreter on both sides, kinfed alone differs:

    PYTHONPATH=src python -m benchmarks.against_release --release PYTHON --new PYTHON speed

*numbers*: both sides make the same runs (`benchmarks.release_runs`), each in a process of its own: every rule, learner and
backend, tables with gaps and text, agents that come later, the scikit-learn front. Training and test rows are given, in the
order in which the code here uses them: 0.1.0 drew test rows and dealt folds by the places of rows, and that is meant to
differ. What they found is compared: weights of data alone, ridge and scikit-learn to 1e-9, logistic to 1e-6, networks to
1e-4, decisions (chosen member, personal choices, advice, classes) as texts. A difference is the largest over an array, in
units of the larger of 1 and the release's largest number. The exit code is 1 if anything differs by more and `EXPECTED`
does not say why.

*speed*: both sides do the same work in turn, several times; medians of wall and processor seconds and the ratio new / old
are printed, and the ratio of the fastest repetitions, which a busy machine disturbs least. Above 1 the new code is slower.
Both have one BLAS thread; kinfed's own threads run as they do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

RELEASE = "0.1.0"
WORK = Path(__file__).with_name("release_runs.py")

EXPECTED: Mapping[str, str] = {
    f"{start} | *": "folds stay at home: another way to judge; benchmarks.calibrated_errors compares the errors"
    for start in ("calibrated*, ridge, *", "calibrated*, logistic, *", "Personalized*, calibrated")
}
"""Differences that are meant: "run | what", where * stands for anything, and why. They are printed and do not fail."""

SLOWER = 1.15
"""Ratio of processor seconds, of the medians and of the fastest, from which an item is marked."""

BESIDE = ("numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "joblib", "torch", "flwr")
"""Libraries that must be the same on both sides."""


@dataclass(frozen=True)
class Side:
    """One of the two interpreters."""

    name: str
    python: str
    flags: tuple[str, ...]

    def command(self, *arguments: str) -> list[str]:
        return [self.python, *self.flags, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        # Without compiled files beside it, a source tree would be compiled again at every import.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

    def ask(self, code: str) -> str:
        """What a line of Python prints on this side."""
        done = subprocess.run(self.command("-c", code), env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.name}: {done.stderr.strip() or 'the interpreter failed'}")
        return done.stdout.strip()


def sides(release: str, new: str) -> tuple[Side, Side]:
    """Both sides; the release sees none of the paths the new code is found by."""
    old, ours = Side("release", release, ("-I",)), Side("new", new, ("-P",))
    for side in (old, ours):
        version, place = side.ask("import kinfed; print(kinfed.__version__, kinfed.__file__)").split(" ", 1)
        print(f"{side.name:8s} kinfed {version} in {Path(place).parent}")
        if side is old and version != RELEASE:
            raise SystemExit(f"--release must be an interpreter with kinfed {RELEASE}; it has {version}")
    listing = (
        "import sys; from importlib.metadata import distributions as all; "
        "print('python', sys.version.split()[0]); [print(one.name, one.version) for one in all()]"
    )
    there, here = (dict(line.split() for line in side.ask(listing).splitlines()) for side in (old, ours))
    for name in ("python", *BESIDE):
        if there.get(name) != here.get(name):
            told = f"{there.get(name, 'not installed')} beside the release and {here.get(name, 'not installed')} here"
            print(f"note: {name} is {told}; differences may come from that")
    return old, ours


# ---------------------------------------------------------------- numbers


@dataclass(frozen=True)
class Found:
    """What one side found."""

    runs: Mapping[str, Mapping[str, Any]]
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def load(cls, folder: Path) -> Found:
        told = json.loads((folder / "numbers.json").read_text())
        with np.load(folder / "numbers.npz", allow_pickle=False) as archive:
            return cls(told, {name: archive[name] for name in archive.files})

    def of(self, run: str) -> dict[str, np.ndarray | list[str]]:
        """Everything a run found, by what it is."""
        numbers = {name.removeprefix(f"{run} | "): one for name, one in self.arrays.items() if name.startswith(f"{run} | ")}
        return {**numbers, **self.runs[run]["decisions"]}


@dataclass(frozen=True)
class Row:
    """One comparison: by how much it differs, and what is allowed; decisions have no number."""

    run: str
    what: str
    difference: float
    allowed: float | None
    note: str = ""

    @property
    def good(self) -> bool:
        return self.difference <= (self.allowed or 0.0)

    @property
    def reason(self) -> str | None:
        """Why it is meant to differ, where it is."""
        return next((why for pattern, why in EXPECTED.items() if fnmatchcase(f"{self.run} | {self.what}", pattern)), None)

    @property
    def verdict(self) -> str:
        return "same" if self.good else "DIFFERS" if self.reason is None else "expected"


def difference(old: np.ndarray, new: np.ndarray) -> tuple[float, str]:
    """The largest difference in units of the larger of 1 and the largest old number, and what else is to be said."""
    if old.shape != new.shape:
        return np.inf, f"shape {old.shape}, now {new.shape}"
    known = np.isfinite(old)
    if not np.array_equal(old[~known], new[~known], equal_nan=True) or not np.isfinite(new[known]).all():
        return np.inf, "NaN or infinite elsewhere"
    if not known.any():
        return 0.0, ""
    return float(np.abs(new[known] - old[known]).max() / max(1.0, np.abs(old[known]).max())), ""


def changed(old: Sequence[str], new: Sequence[str]) -> tuple[float, str]:
    """How many of some decisions differ, and the first that does."""
    if len(old) != len(new):
        return np.inf, f"{len(old)} texts, now {len(new)}"
    apart = [(first, second) for first, second in zip(old, new, strict=True) if first != second]
    return float(len(apart)), f"{len(apart)} of {len(old)}, such as {apart[0][0]!r}, now {apart[0][1]!r}" if apart else ""


def compare(old: Found, new: Found) -> Iterator[Row]:
    """All comparisons, run by run."""
    for run in old.runs:
        told = [side.runs.get(run, {"error": "was not run"})["error"] for side in (old, new)]
        if any(told):
            who = " and ".join(f"{side}: {error}" for side, error in zip(("release", "new"), told, strict=True) if error)
            yield Row(run, "the run itself", np.inf, None, who)
            continue
        before, after = old.of(run), new.of(run)
        for what in before | after:
            if what not in before or what not in after:
                yield Row(run, what, np.inf, None, f"only {'the release' if what in before else 'the new code'} has it")
            elif isinstance(before[what], list):
                yield Row(run, what, *((gap := changed(before[what], after[what]))[0], None), gap[1])
            else:
                gap = difference(before[what], after[what])
                yield Row(run, what, gap[0], old.runs[run]["allowed"][what], gap[1])


def condensed(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """The table people read: what differs, row by row, and for the rest one row per run and allowance."""
    groups: dict[tuple[str, float | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.run, row.allowed or None), []).append(row)
    for (_, allowed), members in groups.items():
        for row in members:
            if not row.good:
                yield row, row.what
        if good := [row for row in members if row.good]:
            most = max(good, key=lambda row: row.difference)
            count = f"{len(good)} {'decisions and data' if allowed is None else 'arrays'}"
            yield replace(most, allowed=allowed), count if most.difference == 0 else f"{count}, most: {most.what}"


def show(rows: Sequence[Row], every: bool) -> None:
    """Print the table."""
    print(f"\n{'run':76s} {'what':48s} {'difference':>10s} {'allowed':>8s}  verdict")
    last = ""
    for row, what in ((row, row.what) for row in rows) if every else condensed(rows):
        allowed = "equal" if row.allowed is None else f"{row.allowed:.0e}" if row.allowed else "0"
        apart = f"{row.difference:.1e}" if row.allowed is not None and row.difference else f"{row.difference:.0f}"
        print(f"{row.run if row.run != last else '':76s} {what:48s} {apart:>10s} {allowed:>8s}  {row.verdict}")
        if row.note:
            print(f"{'':76s}   {row.note}")
        last = row.run


def same_numbers(old: Side, new: Side, only: str, every: bool, kept: Path | None) -> int:
    """Compare all runs; 1 if any differs."""
    with tempfile.TemporaryDirectory() as scratch:
        found, orders = {}, Path(scratch, "orders.npz")
        subprocess.run(new.command(str(WORK), "orders", str(orders)), env=new.environment, check=True)
        for side in (old, new):
            folder = Path(scratch, side.name)
            if side is old and kept is not None:
                folder = kept / hashlib.sha256(WORK.read_bytes() + orders.read_bytes() + only.encode()).hexdigest()[:16]
            if not (folder / "numbers.json").exists():
                began = time.perf_counter()
                run_numbers(side, folder, orders, only)
                print(f"{side.name:8s} ran in {time.perf_counter() - began:.0f} s", flush=True)
            found[side.name] = Found.load(folder)
    rows = list(compare(found["release"], found["new"]))
    if not rows:
        raise SystemExit(f"no run has {only!r} in its name")
    show(rows, every)
    print()
    for pattern, why in EXPECTED.items():
        meant = [row for row in rows if row.verdict == "expected" and fnmatchcase(f"{row.run} | {row.what}", pattern)]
        print(f"expected, {pattern}: {why} ({len(meant)} differ)")
    bad = [row for row in rows if row.verdict == "DIFFERS"]
    runs, failed = len(found["release"].runs), len({row.run for row in bad})
    numbers = sum(row.allowed is not None for row in rows)
    print(f"{runs} runs, {numbers} arrays and {len(rows) - numbers} decisions: ", end="")
    meant = ", save what is expected" if any(row.verdict == "expected" for row in rows) else ""
    print(f"{len(bad)} differ, in {failed} runs" if bad else f"the same numbers as the release{meant}")
    return int(bool(bad))


def run_numbers(side: Side, folder: Path, orders: Path, only: str) -> None:
    """Let one side make all runs; what it prints is shown only if it fails."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with open(unfinished / "log.txt", "w+") as log:
        command = side.command(str(WORK), "numbers", str(unfinished), str(orders), only)
        code = subprocess.run(command, env=side.environment, stdout=log, stderr=log).returncode
        if code:
            log.seek(0)
            raise SystemExit(f"{side.name}: the runs ended with code {code}\n{log.read()[-3000:]}")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


# ---------------------------------------------------------------- speed


@dataclass
class Timings:
    """Wall and processor seconds of the repetitions of one side."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, line: str) -> None:
        wall, processor = map(float, line.split())
        self.wall.append(wall)
        self.processor.append(processor)

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.wall), statistics.median(self.processor)


class FailedItemError(Exception):
    """An item that cannot be timed, and what was raised."""


class Worker:
    """A process of one side that times what it is asked for, while the other waits."""

    IMPORT = "import kinfed"
    _CLOCK = (
        "import time; w, p = time.perf_counter(), time.process_time(); import kinfed; "
        "print(time.perf_counter() - w, time.process_time() - p)"
    )

    def __init__(self, side: Side) -> None:
        self.side = side
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process is)
        self.process = subprocess.Popen(
            side.command(str(WORK), "speed"),
            env=side.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def seconds(self, item: str) -> str:
        """Wall and processor seconds of one repetition, as a line; an import has a new process each time."""
        if item == self.IMPORT:
            return self.side.ask(self._CLOCK)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{item}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"{self.side.name}: the process ended at {item}\n{self.log.read()[-3000:]}")
        if line.startswith("failed"):
            raise FailedItemError(f"{self.side.name} {line.strip()}")
        return line

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def time_in_turn(workers: Sequence[Worker], item: str, repeats: int, seconds: float) -> tuple[Timings, Timings]:
    """At least so many repetitions, and more of what is short."""
    timings = Timings(), Timings()
    old = timings[0].processor
    while len(old) < repeats or (sum(old) < seconds and len(old) < 5 * repeats):
        # Each goes first as often as the other: a machine that grows busier slows both.
        for place in (0, 1) if len(old) % 2 == 0 else (1, 0):
            timings[place].add(workers[place].seconds(item))
    return timings


def same_speed(old: Side, new: Side, only: str, repeats: int, seconds: float) -> int:
    """Time every item on both sides; 1 if some item failed."""
    listing = f"import runpy; print(*runpy.run_path({str(WORK)!r})['TIMED'], sep='\\n')"
    items = [item for item in (Worker.IMPORT, *new.ask(listing).splitlines()) if only in item]
    failed = False
    workers = Worker(old), Worker(new)
    print(f"\n{'':36s}{'wall s':>9s}{'':8s}{'':7s}{'processor s':>18s}{'':8s}{'fastest':>8s}")
    print(f"{'':36s}{'old':>8s}{'new':>8s}{'ratio':>8s}{'old':>10s}{'new':>8s}{'ratio':>8s}{'ratio':>8s}{'times':>7s}")
    try:
        for item in items:
            try:
                timings = time_in_turn(workers, item, repeats, seconds)
            except FailedItemError as error:
                failed = True
                print(f"{item:36s}  {error}", flush=True)
                continue
            (wall, processor), (new_wall, new_processor) = (one.medians for one in timings)
            fastest = min(timings[1].processor) / min(timings[0].processor)
            slower = min(fastest, new_processor / processor) > SLOWER
            print(
                f"{item:36s}{wall:8.3f}{new_wall:8.3f}{new_wall / wall:8.2f}{processor:10.3f}{new_processor:8.3f}"
                f"{new_processor / processor:8.2f}{fastest:8.2f}{len(timings[0].wall):7d}{'  slower' if slower else ''}",
                flush=True,
            )
    finally:
        for worker in workers:
            worker.close()
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=f"Compare the code here with kinfed {RELEASE}.")
    parser.add_argument("what", choices=("numbers", "speed"))
    parser.add_argument("--release", required=True, help=f"an interpreter with kinfed {RELEASE}")
    parser.add_argument(
        "--new", default=sys.executable, help="an interpreter with the code to compare; this one by default"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="runs or items whose name holds this text")
    parser.add_argument("--every", action="store_true", help="numbers: a row for every array and decision")
    parser.add_argument(
        "--kept", type=Path, metavar="FOLDER", help="numbers: keep what the release found, for the next time"
    )
    parser.add_argument("--repeats", type=int, default=3, help="speed: how often each side does each item, at least")
    parser.add_argument("--seconds", type=float, default=2.0, help="speed: processor seconds to repeat short items for")
    chosen = parser.parse_args()
    old, new = sides(chosen.release, chosen.new)
    if chosen.what == "numbers":
        return same_numbers(old, new, chosen.only, chosen.every, chosen.kept)
    return same_speed(old, new, chosen.only, chosen.repeats, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
