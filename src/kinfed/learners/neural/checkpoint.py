"""The state of a run on disk, so that an interrupted run goes on and ends with the same numbers.

One file, ``checkpoint.npz``: a NumPy archive without pickles. It holds arrays and, under ``made_with``, digests as JSON of
all that the numbers depend on. It is written beside its place and moved there once whole, so there always is a good one.
"""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import remove_unfinished, write_whole

CHECKPOINT_VERSION = 1

# Written at most this often, and less often where writing takes long: it may cost a twentieth of the time.
_SECONDS_BETWEEN = 5.0
_LARGEST_SHARE = 0.05


def digest(*parts: NDArray[Any] | str) -> str:
    """SHA-256 of arrays (their types, shapes and bytes) and texts."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(b"text" + part.encode())
        elif part.dtype.hasobject:
            total.update(b"objects" + repr(part.tolist()).encode())
        else:
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).data)
    return total.hexdigest()


class CheckpointFolder:
    """Where one run keeps its state.

    Parameters
    ----------
    folder : path
        Made if it does not exist.
    made_with : mapping of str to str
        Digests by what they are of; a checkpoint with any other is refused, and the error says what differs.
    """

    def __init__(self, folder: Path, made_with: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "checkpoint.npz"
        self._made_with = {"version": str(CHECKPOINT_VERSION), **made_with}
        self._due = 0.0

    def load(self) -> dict[str, NDArray[Any]] | None:
        """The arrays kept there, or None if there are none yet."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                content = {name: archive[name] for name in archive.files}
            made_with = json.loads(str(content.pop("made_with")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
            raise InputError(
                f"the checkpoint in {self.folder} cannot be read ({error}); remove it to start from the beginning"
            ) from None
        differing = [name for name, value in self._made_with.items() if made_with.get(name) != value]
        if differing:
            raise InputError(
                f"the checkpoint in {self.folder} is of another run (different: {', '.join(differing)}); "
                "give another folder, or remove it to start from the beginning"
            )
        return content

    def is_due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._due

    def save(self, content: Mapping[str, NDArray[Any]]) -> None:
        """Replace the checkpoint."""
        begun = time.monotonic()
        arrays: dict[str, Any] = {"made_with": np.array(json.dumps(self._made_with)), **content}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder)  # of a run that was killed while it wrote
            write_whole(self.path, lambda file: np.savez(file, **arrays))
        except OSError as error:
            raise InputError(f"no checkpoint can be written to {self.folder}: {error.strerror or error}") from None
        now = time.monotonic()
        self._due = now + max(_SECONDS_BETWEEN, (now - begun) / _LARGEST_SHARE)
