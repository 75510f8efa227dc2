"""Run an experiment: its parts on all cores, kept as they finish, then results, figures and summary in one folder."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import queue
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import wait
from multiprocessing.managers import SyncManager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pandas
from threadpoolctl import threadpool_limits

from kinfed.errors import InputError, MissingExtraError
from kinfed.experiments.experiment import Conclusion, Experiment, Part, PartFindings, load_findings, save_findings, tidy
from kinfed.files import remove_unfinished
from kinfed.parallel import available_cores
from kinfed.plotting.style import save_figure
from kinfed.progress import Progress

_Reports = queue.Queue[tuple[int, float]]
"""Numbers of parts, and the shares of them that are done."""

# Parts report their shares in steps of a thousandth.
_SHARES = 1000
_NUMBERS = "%.6g"


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    command: str = "",
    progress: Progress | None = None,
    workers: int | None = None,
) -> Path:
    """Run all parts that `out` does not hold yet, then write results, figures and summary there.

    Parameters
    ----------
    experiment : Experiment
    out : path
        Receives ``results.csv`` (tidy, a row per agent), ``means.csv`` (over agents), the figures as PNG and SVG,
        ``summary.md``, and ``parts/``, from which an interrupted run goes on and which a longer run can add to.
    command : str
        The command line to repeat it, for the summary.
    progress : callable, optional
        Called as ``progress(name, done, total)``.
    workers : int, optional
        Parts at once; by default one per core. More than one are run in processes of their own, so a script that calls
        this needs ``if __name__ == "__main__":`` around the call.

    Returns
    -------
    path of ``summary.md``
    """
    _check_packages(experiment)
    parts, folder = tuple(experiment.parts()), out / "parts"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {out} cannot be made ({error.strerror}); give another with --out") from None
    paths = {part: folder / f"{part.name}-{_digest(experiment)}.npz" for part in parts}
    found = {part: known for part in parts if (known := load_findings(paths[part])) is not None}
    missing = [part for part in parts if part not in found]
    meter, clock = _Meter(experiment.name, len(parts), len(found), progress), folder / f"seconds-{_digest(experiment)}.json"
    with _timed(clock) as tick:
        for part, findings in _run_parts(experiment, missing, paths, meter, workers or available_cores()):
            found[part] = findings
            tick()
    results = tidy(experiment.name, (found[part] for part in parts))
    results.to_csv(out / "results.csv", index=False, float_format=_NUMBERS, lineterminator="\n")
    means_table(results).to_csv(out / "means.csv", index=False, float_format=_NUMBERS, lineterminator="\n")
    conclusion = experiment.conclude(results, found)
    for name, figure in conclusion.figures.items():
        save_figure(figure, out / name)
    remove_unfinished(folder)
    path = out / "summary.md"
    path.write_text(_summary(experiment, conclusion, command, _seconds(clock)), encoding="utf-8")
    return path


def _run_parts(
    experiment: Experiment, parts: list[Part], paths: Mapping[Part, Path], meter: _Meter, workers: int
) -> Iterator[tuple[Part, PartFindings]]:
    if min(workers, len(parts)) <= 1:
        for number, part in enumerate(parts):
            yield part, _run_part(experiment, part, paths[part], partial(meter.report, number))
        return
    # New processes rather than copies of this one: a copy would inherit locks of threads that it does not have.
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_the_parent)
    with manager:
        reports: Any = manager.Queue()
        with _listening(reports, meter), _pool(min(workers, len(parts)), context) as pool:
            try:
                futures: dict[Future[PartFindings], Part] = {
                    pool.submit(_run_reporting, experiment, part, paths[part], number, reports): part
                    for number, part in enumerate(parts)
                }
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool:
                raise InputError(
                    f"a process of {experiment.name} was killed, perhaps for want of memory; start the same command "
                    "again to go on from the parts that are done, with fewer --workers"
                ) from None


@contextmanager
def _pool(workers: int, context: Any) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, also when it is interrupted."""
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_the_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_the_parent() -> None:
    """Leave an interruption to the parent, and end when it ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _listening(reports: _Reports, meter: _Meter) -> Iterator[None]:
    """Pass the processes' reports on to the meter, in a thread."""
    over = Event()

    def listen() -> None:
        while not over.is_set():
            try:
                number, share = reports.get(timeout=0.2)
            except queue.Empty:
                continue
            except (OSError, EOFError):  # the manager is gone: the run is being interrupted
                return
            meter.report(number, share)

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()


def _run_reporting(experiment: Experiment, part: Part, path: Path, number: int, reports: _Reports) -> PartFindings:
    return _run_part(experiment, part, path, lambda share: reports.put((number, share)))


def _run_part(experiment: Experiment, part: Part, path: Path, report: Callable[[float], None]) -> PartFindings:
    checkpoint = path.with_suffix(".checkpoint")
    with threadpool_limits(1):  # the parts themselves fill the cores
        findings = experiment.run(part, report, checkpoint)
    save_findings(path, findings)
    shutil.rmtree(checkpoint, ignore_errors=True)
    report(1.0)
    return findings


@contextmanager
def _timed(clock: Path) -> Iterator[Callable[[], None]]:
    """Add the time spent within to that of earlier sittings; what it gives is called now and then, lest a kill lose it."""
    start, before = time.monotonic(), _seconds(clock)

    def tick() -> None:
        clock.write_text(json.dumps({"seconds": round(before + time.monotonic() - start, 1)}))

    try:
        yield tick
    finally:
        tick()


def _seconds(clock: Path) -> float:
    try:
        return float(json.loads(clock.read_text())["seconds"])
    except (OSError, ValueError, KeyError):
        return 0.0


class _Meter:
    """Adds the shares of all parts up to one progress."""

    def __init__(self, name: str, total: int, done: int, progress: Progress | None) -> None:
        self._name, self._total, self._done, self._progress = name, total, done, progress
        self._shares: dict[int, float] = {}
        self.report(-1, 0.0)

    def report(self, number: int, share: float) -> None:
        self._shares[number] = share
        if self._progress is not None:
            done = self._done + sum(self._shares.values())
            self._progress(self._name, round(_SHARES * done), _SHARES * self._total)


def _digest(experiment: Experiment) -> str:
    """Of all settings that change what a part finds: parts of another run are never taken for this one's."""
    decisive = {name: _identity(value) for name, value in experiment.chosen.items() if name != "repetitions"}
    made_by = [experiment.name, experiment.revision, sorted(_versions(experiment).items())]
    return hashlib.sha256(json.dumps([made_by, sorted(decisive.items())], default=str).encode()).hexdigest()[:12]


def _identity(value: Any) -> Any:
    """A file or folder is what it holds now, not its name alone."""
    if not isinstance(value, Path):
        return value
    files = sorted(path for path in value.rglob("*") if path.is_file()) if value.is_dir() else [value]
    return [[str(path.relative_to(value.parent)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _check_packages(experiment: Experiment) -> None:
    """What is not there is said before anything is computed."""
    for package in ("matplotlib", *experiment.needs):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"kinfed reproduce {experiment.name} needs {package}: pip install 'kinfed[experiments]' "
                "(on a machine without a GPU, torch==2.13.0 first)"
            )


def _versions(experiment: Experiment) -> dict[str, str]:
    known = {}
    for package in ("kinfed", "numpy", "scipy", *experiment.needs):
        with suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


def means_table(results: pandas.DataFrame) -> pandas.DataFrame:
    """Means over agents: one row per experiment, setting, method, repetition and metric."""
    keys = ["experiment", "setting", "method", "repetition", "metric"]
    return results.groupby(keys, sort=False)["value"].mean().reset_index()


def _markdown(table: pandas.DataFrame, corner: str = "") -> str:
    """A table in Markdown, its index first."""
    lines = ["| " + " | ".join([corner, *map(str, table.columns)]) + " |", "|" + "---|" * (len(table.columns) + 1)]
    lines += [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in (name, *row)) + " |"
        for name, row in zip(table.index, table.itertuples(index=False), strict=True)
    ]
    return "\n".join(lines)


def _summary(experiment: Experiment, conclusion: Conclusion, command: str, seconds: float) -> str:
    """What a person reads first: a verdict per claim, then the numbers and how they were made."""
    verdicts = pandas.DataFrame(
        [[one.measured, one.answer, one.setting] for one in conclusion.verdicts],
        index=[one.claim for one in conclusion.verdicts],
        columns=["measured", "verdict", "setting"],
    )
    settings = {
        name: ", ".join(map(str, one)) if isinstance(one, tuple | list) else str(one)
        for name, one in experiment.chosen.items()
    }
    versions = ", ".join(f"{package} {number}" for package, number in _versions(experiment).items())
    parts = [
        f"# {experiment.name}",
        experiment.summary,
        "## Claims",
        _markdown(verdicts, "claim") if len(verdicts) else "None was judged: the settings leave out what they compare.",
        *(f"- {remark}" for remark in conclusion.remarks),
        "## Figures",
        *(f"![{name}]({name}.png)" for name in conclusion.figures),
        "## Numbers",
        *(text for caption, table in conclusion.tables.items() for text in (caption, _markdown(table))),
        "## Settings",
        _markdown(pandas.DataFrame({"value": settings}), "setting"),
        "## Made with",
        f"`{command}`" if command else "the Python interface",
        f"Python {platform.python_version()}, {versions}; {seconds:.0f} s on {available_cores()} cores. "
        "Equal seeds give an equal `results.csv`; `means.csv` holds its means over agents.",
    ]
    return "\n\n".join(parts) + "\n"
