"""Results in a folder: all files of a run, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kinfed.cli.config import SETTINGS, settings_text, toml_value
from kinfed.cli.terminal import made_folder
from kinfed.engines.audit import Audit
from kinfed.errors import InputError
from kinfed.weights import Weights

REPORT = "index.html"
WEIGHT_FILES = ("weights.csv", "explanation.csv", "calibration.csv", REPORT, SETTINGS)
PERSONAL_FILES = (*WEIGHT_FILES, "scores.csv", "traffic.csv", "attendance.csv", "audit.jsonl")
THEORY_FILES = ("theory.csv", SETTINGS)


@contextmanager
def complete(out: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder to write to, whose files take their place in `out` when the block ends without an error.

    Files of these `names` that an earlier run left and this one did not write are removed then, so that all belong
    together.
    """
    try:
        folder = Path(tempfile.mkdtemp(dir=made_folder(out), prefix=".writing-"))
        try:
            yield folder
            written = sorted(path.name for path in folder.iterdir())
            for name in written:
                os.replace(folder / name, out / name)
            for name in set(names) - set(written):
                (out / name).unlink(missing_ok=True)
        except InputError as error:
            raise InputError(str(error).replace(str(folder), str(out))) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"results cannot be written to {out}: {reason}; make room, or give another folder with --out"
        ) from None


def files_in(out: Path, names: Sequence[str]) -> list[Path]:
    """The files of these names that are there."""
    return [out / name for name in names if (out / name).exists()]


def write_weights(weights: Weights, folder: Path) -> None:
    """Who listens to whom, why, and what calibration found."""
    weights.to_frame().to_csv(folder / "weights.csv")
    weights.explanation.to_csv(folder / "explanation.csv")
    if weights.calibration is not None:
        weights.calibration.table.to_csv(folder / "calibration.csv")


def write_exchange(exchange: Audit | None, log: Path | None, folder: Path) -> None:
    """What crossed between server and agents, where agents were sites of their own."""
    if exchange is not None:
        exchange.traffic.to_csv(folder / "traffic.csv", index=False)
        exchange.attendance.to_csv(folder / "attendance.csv", index=False)
    if log is not None and log.exists():
        shutil.copyfile(log, folder / "audit.jsonl")


def write_settings(command: str, version: str, settings: Mapping[str, Any], folder: Path) -> None:
    """All options of the run, for ``--config``."""
    text = settings_text(command, version, settings)
    (folder / SETTINGS).write_text(text, encoding="utf-8", errors="replace")


def shown(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as a reader sees them: every value a text, tables one entry for each name."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}, {name}": toml_value(one) for name, one in value.items()}
        else:
            flat[key] = value if isinstance(value, str) else toml_value(value)
    return flat
