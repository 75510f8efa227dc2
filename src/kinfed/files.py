"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

_PREFIX = ".writing-"


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


def remove_unfinished(folder: Path) -> None:
    """Remove what processes left in a folder that were killed while they wrote."""
    for left in folder.glob(f"{_PREFIX}*"):
        left.unlink(missing_ok=True)
