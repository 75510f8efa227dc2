"""What the server keeps after every phase and round, so that one that was killed goes on and ends with the same models."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.messages import Arrays, encode_settings
from kinfed.errors import InputError
from kinfed.files import remove_unfinished, write_whole

_MANIFEST = "run.json"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Kept:
    """One finished phase."""

    settings: Mapping[str, Any]
    arrays: Arrays


class Store:
    """Finished phases of one run, each a file in a folder; without a folder nothing is kept.

    Parameters
    ----------
    folder : path or None
    wishes : mapping
        All that was asked for; a folder that belongs to other wishes is refused.
    """

    def __init__(self, folder: Path | None, wishes: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        digest = hashlib.sha256(encode_settings({"version": _VERSION, **wishes})).hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)  # of a server that was killed while it wrote
            manifest = folder / _MANIFEST
            if not manifest.exists():
                write_whole(manifest, lambda file: file.write(json.dumps({"digest": digest}).encode()))
            elif json.loads(manifest.read_text()).get("digest") != digest:
                raise InputError(
                    f"the checkpoint in {folder} belongs to a run with other settings; give another folder, or empty it"
                )
        except OSError as error:
            raise InputError(f"no checkpoint can be kept in {folder}: {error.strerror or error}") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the checkpoint in {folder} cannot be read; empty the folder to start anew") from None

    def load(self, phase: str) -> Kept | None:
        """A finished phase, or None."""
        path = self._path(phase)
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                content = dict(stored)
            return Kept(json.loads(content.pop("settings").tobytes()), content)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"the checkpoint {path} is damaged ({error}); delete it to run that phase again") from None

    def save(self, phase: str, settings: Mapping[str, Any] | None = None, arrays: Arrays | None = None) -> None:
        """Keep a finished phase, in place of an earlier one of that name."""
        path = self._path(phase)
        if path is None:
            return
        content: dict[str, Any] = {"settings": np.frombuffer(encode_settings(settings or {}), dtype=np.uint8)}
        content |= arrays or {}
        write_whole(path, lambda file: np.savez(file, **content))

    def memory(self, phase: str) -> Memory | Recollection:
        """A place for the state of a training; without a folder it lasts as long as the process."""
        return Recollection() if self.folder is None else Memory(self, phase)

    def _path(self, phase: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{phase.replace(' ', '-')}.npz"


@dataclass(frozen=True, eq=False)
class Memory:
    """The state of one training: see `kinfed.learners.remote.Memory`."""

    store: Store
    phase: str

    def load(self) -> dict[str, NDArray[Any]] | None:
        """The state that was kept, or None."""
        kept = self.store.load(self.phase)
        return None if kept is None else dict(kept.arrays)

    def save(self, state: Arrays) -> None:
        """Keep this state in place of the last one."""
        self.store.save(self.phase, arrays=state)


class Recollection:
    """A memory that lasts as long as the process."""

    def __init__(self) -> None:
        self._state: dict[str, NDArray[Any]] | None = None

    def load(self) -> dict[str, NDArray[Any]] | None:
        """The state that was kept, or None."""
        return self._state

    def save(self, state: Arrays) -> None:
        """Keep this state in place of the last one."""
        self._state = dict(state)
