"""Files that appear whole or not at all, whatever happens while they are written, and files for their owner alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

_PREFIX = ".writing-"

OWNER_ONLY = 0o600
"""Rights of files that hold models, what sites told, or what crossed."""

_OWNER_ONLY_FOLDER = 0o700


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any], rights: int = 0o666) -> None:
    """Let `fill` write into a temporary file beside `path`, and give it that name only when it is complete."""
    temporary = path.parent / f"{_PREFIX}{uuid4().hex}"
    # Opened so that the file has the rights any new file of this user has, unless others are asked for.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder(folder: Path) -> Path:
    """The folder; where it has to be made, it and those above it are for their owner alone."""
    for missing in reversed([one for one in folder.parents if not one.exists()]):
        missing.mkdir(_OWNER_ONLY_FOLDER, exist_ok=True)
    folder.mkdir(_OWNER_ONLY_FOLDER, exist_ok=True)
    return folder


def open_private_log(path: Path) -> IO[str]:
    """A file of text to write at its end, for its owner alone, in a folder that is made if it is not there."""
    private_folder(path.parent)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY), "a", encoding="utf-8")


def remove_unfinished(folder: Path) -> None:
    """Remove what processes left in a folder that were killed while they wrote."""
    for left in folder.glob(f"{_PREFIX}*"):
        left.unlink(missing_ok=True)
