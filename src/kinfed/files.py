"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_PREFIX = ".writing-"


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Let `fill` write into a temporary file beside `path`, and give it that name only when it is complete."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what processes left in a folder that were killed while they wrote."""
    for left in folder.glob(f"{_PREFIX}*"):
        left.unlink(missing_ok=True)
