"""Work that survives an interruption: one digest, one store, for every long piece of work.

A store is a folder of finished pieces, each a NumPy archive without pickles that appears whole or not at all. A manifest
beside them holds digests of all that the numbers depend on; a folder made with anything else is refused, and the error says
what differs. Pieces hold models, and losses of single rows, so all of it is for its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import OWNER_ONLY, private_folder, remove_unfinished, write_whole
from kinfed.progress import Progress

VERSION = 2
"""Of the files; raised whenever older ones could not be read."""

_MANIFEST = "checkpoint.json"
_SETTINGS = "settings"

# What changes all the time is written at most this often, and less often where writing takes long: it may cost a twentieth
# of the time.
_SECONDS_BETWEEN = 5.0
_LARGEST_SHARE = 0.05


def digest(*parts: NDArray[Any] | str) -> str:
    """SHA-256 of arrays (their types, shapes and bytes) and texts."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(b"text" + part.encode())
        elif part.dtype.hasobject:
            total.update(b"objects" + repr([(type(one).__name__, one) for one in part.ravel().tolist()]).encode())
        else:
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).data)
    return total.hexdigest()


@dataclass(frozen=True, eq=False)
class Kept:
    """One finished piece: values that fit into JSON, and arrays."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Store:
    """Finished pieces of one run, each a file in a folder; without a folder nothing is kept.

    Parameters
    ----------
    folder : path or None
        Made if it does not exist.
    made_with : mapping of str to str
        Digests, or texts, by what they are of, such as "data" and "settings".
    """

    def __init__(self, folder: Path | None = None, made_with: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder = None if folder is None else Path(folder)
        self._due = 0.0
        if self.folder is None:
            return
        wanted = {"version": str(VERSION), **{name: digest(text) for name, text in made_with.items()}}
        manifest = self.folder / _MANIFEST
        try:
            private_folder(self.folder)
            remove_unfinished(self.folder)  # of a process that was killed while it wrote
            if not manifest.exists():
                if any(path.suffix == ".npz" for path in self.folder.iterdir()):
                    raise InputError(
                        f"the checkpoint in {self.folder} has lost its {_MANIFEST}; give another folder, or empty it"
                    )
                write_whole(manifest, lambda file: file.write(json.dumps(wanted, indent=1).encode()), OWNER_ONLY)
            found = json.loads(manifest.read_text())
            differing = [name for name, text in wanted.items() if found.get(name) != text]
        except OSError as error:
            raise InputError(f"no checkpoint can be kept in {self.folder}: {error.strerror or error}") from None
        except (AttributeError, json.JSONDecodeError) as error:
            raise InputError(f"the checkpoint in {self.folder} cannot be read ({error}); empty it to start anew") from None
        if differing:
            raise InputError(
                f"the checkpoint in {self.folder} is of another run (different: {', '.join(differing)}); "
                "give another folder, or empty it to start from the beginning"
            )

    def load(self, piece: str) -> Kept | None:
        """A finished piece, or None."""
        path = self.path(piece)
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                content = dict(stored)
            return Kept(json.loads(content.pop(_SETTINGS).tobytes()), content)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"the checkpoint {path} is damaged ({error}); delete it to do that piece again") from None

    def save(self, piece: str, kept: Kept) -> None:
        """Keep a finished piece, in place of an earlier one of that name."""
        path = self.path(piece)
        if path is None:
            return
        begun = time.monotonic()
        text = json.dumps(kept.settings, sort_keys=True).encode()
        content: dict[str, Any] = {_SETTINGS: np.frombuffer(text, dtype=np.uint8), **kept.arrays}
        try:
            write_whole(path, lambda file: np.savez(file, **content), OWNER_ONLY)
        except OSError as error:
            raise InputError(f"no checkpoint can be written to {path}: {error.strerror or error}") from None
        now = time.monotonic()
        self._due = now + max(_SECONDS_BETWEEN, (now - begun) / _LARGEST_SHARE)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write again what changes all the time."""
        return self.folder is not None and time.monotonic() >= self._due

    def path(self, piece: str, suffix: str = "npz") -> Path | None:
        """The file of a piece; None without a folder."""
        return None if self.folder is None else self.folder / f"{piece.replace(' ', '-')}.{suffix}"

    def below(self, name: str) -> Path | None:
        """A folder for a part of the work; None without a folder."""
        return None if self.folder is None else self.folder / name.replace(" ", "-")

    def part(self, name: str) -> Store:
        """The store of a part of the work: what it depends on is known here."""
        return Store(self.below(name))


NOWHERE = Store()
"""Keeps nothing."""


class Counter:
    """Tells a progress callback how much is done; pieces may end on several threads."""

    def __init__(self, progress: Progress | None, what: str, total: int) -> None:
        self._progress, self._what, self._total = progress, what, total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more as done."""
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._what, self._done, self._total)

    def reach(self, done: int) -> None:
        """Count what is missing to `done`, if anything is."""
        self.add(max(0, done - self._done))
