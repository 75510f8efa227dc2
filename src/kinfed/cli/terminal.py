"""What commands share: sentences and JSON on standard output, bars on standard error, and the folder results go to."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from kinfed.errors import InputError

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.", rich_help_panel="Output")]
Seed = Annotated[
    int, typer.Option(min=0, metavar="NUMBER", help="Equal seeds give equal results.", rich_help_panel="Training")
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output, for machines.", rich_help_panel="Output")
]


def say(*sentences: str) -> None:
    """Print sentences on standard output as they are, a line each: neither wrapped nor coloured."""
    typer.echo("\n".join(sentences))


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output; numbers that are not finite become null, paths become text."""
    typer.echo(json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a line under its head."""
    table = Table(*head, box=box.SIMPLE)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and what they stand for, a line each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, escape(value))
    Console().print(table)


@contextmanager
def resumable() -> Iterator[None]:
    """Work that an interrupted run goes on with when it is started again."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("start the same command again to go on") from None


def typed_command() -> str:
    """The command as it was typed, quoted for a shell."""
    return shlex.join(["kinfed", *sys.argv[1:]])


class Bars:
    """Progress on standard error: ``bars(what, done, total)`` moves a bar, ``with bars.step(what)`` turns a spinner."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how much of `what` is done; what has no total keeps moving."""
        known = total or None
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=known)
        self._progress.update(self._tasks[what], completed=done, total=known)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Work whose end is not known: a line that lives as long as the block."""
        task = self._progress.add_task(what, total=None)
        try:
            yield
        finally:
            self._progress.remove_task(task)


@contextmanager
def progress_bars(hidden: bool = False) -> Iterator[Bars]:
    """Bars with the time left, which vanish at the end; none where standard error is not a terminal, or when `hidden`."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal, transient=True) as progress:
        yield Bars(progress)


def made_folder(out: Path) -> Path:
    """The folder, which is made if it is not there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "there is a file of that name" if out.exists() else error.strerror
        raise InputError(f"the folder {out} cannot be made: {reason}; give another folder") from None
    return out


def check_folder(out: Path) -> None:
    """Raise before anything is computed if results could not be written to the folder; nothing is made yet."""
    existing = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise InputError(f"the folder {out} cannot be made: {existing} is a file; give another folder with --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"nothing can be written to {out}: Permission denied; give another folder with --out")


def _plain(value: Any) -> Any:
    """The value in the types JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
