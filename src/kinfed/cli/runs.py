"""A run of personal training: what is kept while it goes on, and what is written when it is done."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinfed
from kinfed.cli.outputs import PERSONAL_FILES, complete, shown, write_exchange, write_settings, write_weights
from kinfed.cli.terminal import Bars, made_folder, typed_command
from kinfed.federation import Federation
from kinfed.personalization import Personalization
from kinfed.pipeline import personalize


@dataclass(frozen=True)
class Run:
    """Where a run keeps what it has done, so that an interrupted one goes on.

    Attributes
    ----------
    out : path
        Folder for the results.
    engine : str
    """

    out: Path
    engine: str = "in-process"

    @property
    def checkpoint(self) -> Path:
        """What is done so far; gone when the results are written."""
        return self.out / "checkpoint"

    @property
    def log(self) -> Path | None:
        """Every message between server and agents, where agents are sites of their own."""
        return None if self.engine == "in-process" else self.checkpoint / "audit.jsonl"

    def personalize(self, train: Federation, test: Federation, bars: Bars, **wishes: Any) -> Personalization:
        """Weights, models and scores; a run that fails leaves nothing behind, an interrupted one its checkpoint."""
        had_folder, had_checkpoint = self.out.exists(), self.checkpoint.exists()
        made_folder(self.out)
        try:
            with bars.step(f"learning with {len(train)} agents"):
                return personalize(
                    train,
                    test=test,
                    engine=self.engine,
                    progress=bars,
                    checkpoint=self.checkpoint,
                    audit=self.log,
                    **wishes,
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("start the same command again to go on") from None
        except Exception:
            # Kept, it would stand in the way of the same run with the mistake mended.
            if not had_checkpoint:
                shutil.rmtree(self.checkpoint, ignore_errors=True)
            if not had_folder:
                with suppress(OSError):
                    self.out.rmdir()
            raise

    def write(self, result: Personalization, title: str, settings: Mapping[str, Any], bars: Bars, command: str) -> None:
        """All files at once, with the settings that `command` takes; then nothing is left to go on from."""
        with bars.step("writing results and report"), complete(self.out, PERSONAL_FILES) as folder:
            write_weights(result.weights, folder)
            result.scores.to_csv(folder / "scores.csv")
            write_exchange(result.exchange, self.log, folder)
            write_settings(command, kinfed.__version__, settings, folder)
            result.report(folder, title=title, settings=shown(settings), command=typed_command(), progress=bars)
        shutil.rmtree(self.checkpoint, ignore_errors=True)
