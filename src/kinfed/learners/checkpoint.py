"""Work that survives an interruption: finished parts of a training run, kept in a folder.

A part is written to a temporary file first and then renamed, so a folder never holds half a part. A manifest carries a
digest of the settings, the data and the weights; a folder with another digest belongs to another run and is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.progress import Progress

_MANIFEST = "checkpoint.json"
_FORMAT = 1

Arrays = dict[str, NDArray[Any]]


def run_digest(learner: str, settings: Mapping[str, Any], arrays: Iterable[NDArray[Any]]) -> str:
    """SHA-256 of all that decides a run: the learner, its settings, and its data and weights."""
    digest = hashlib.sha256(json.dumps([_FORMAT, learner, sorted(settings.items())], default=str).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.dtype == object:
            digest.update(repr([(type(one).__name__, one) for one in array.ravel().tolist()]).encode())
        else:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Checkpoint:
    """Finished parts of one run, in a folder; without a folder nothing is kept.

    Parameters
    ----------
    folder : path or None
        Made if it does not exist. Refused if it holds the parts of another run.
    digest : str
        See `run_digest`.
    """

    def __init__(self, folder: Path | None, digest: str) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the checkpoint folder {self.folder} cannot be made ({error.strerror})") from None
        manifest = self.folder / _MANIFEST
        if manifest.exists():
            try:
                stored = json.loads(manifest.read_text()).get("digest")
            except (ValueError, AttributeError):
                stored = None
            if stored != digest:
                raise InputError(
                    f"the checkpoint in {self.folder} belongs to a run with other settings, data or weights; "
                    "give another folder, or empty this one"
                )
        elif any(self.folder.glob("part-*")):
            raise InputError(f"the checkpoint in {self.folder} has lost its {_MANIFEST}; give another folder, or empty it")
        else:
            write_whole(manifest, lambda file: file.write(json.dumps({"format": _FORMAT, "digest": digest}).encode()))

    def load_arrays(self, part: int) -> Arrays | None:
        """The arrays of a finished part, or None; nothing is unpickled."""
        path = self._path(part, "npz")
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, error) from None

    def save_arrays(self, part: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the arrays of a finished part."""
        path = self._path(part, "npz")
        named: dict[str, Any] = dict(arrays)
        if path is not None:
            write_whole(path, lambda file: np.savez(file, **named))

    def load_object(self, part: int) -> Any:
        """The Python object of a finished part, or None; unpickled, so trust it as you trust the folder."""
        path = self._path(part, "joblib")
        if path is None or not path.exists():
            return None
        try:
            return joblib.load(path)
        except Exception as error:  # unpickling a damaged file can raise anything
            raise _damaged(path, error) from None

    def save_object(self, part: int, value: Any) -> None:
        """Keep the Python object of a finished part."""
        path = self._path(part, "joblib")
        if path is not None:
            write_whole(path, lambda file: joblib.dump(value, file))

    def _path(self, part: int, suffix: str) -> Path | None:
        return None if self.folder is None else self.folder / f"part-{part:06d}.{suffix}"


class Counter:
    """Tells a progress callback how much is done; parts may end on several threads."""

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


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"the checkpoint file {path} is damaged ({error}); delete it, and that part is trained again")
