"""The federations of a leaderboard: names of the catalogue, files, and folders of archives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kinfed.data import read_federation
from kinfed.data.catalogue import CATALOGUE, fetch
from kinfed.errors import InputError
from kinfed.experiments.never_wrong import METRIC
from kinfed.federation import Federation
from kinfed.result import Personalization
from kinfed.validation import Array, first_repeated

SMALLEST = 8
"""Rows of an agent that takes part, at least."""
MOST_CELLS = 5_000_000
"""Rows times columns of an archive that is taken from a folder, at most: images are for networks, not for tables."""
MOST_CLASSES = 10
"""Different whole numbers that are taken for classes, at most."""

LOG_LOSS, ERROR_RATE = "log loss", "error rate"
PACKAGED = tuple(name for name, entry in CATALOGUE.items() if entry.source.at_hand)
"""Names of the federations that need nothing but a package."""


@dataclass(frozen=True)
class Contest:
    """One federation to compete on.

    Attributes
    ----------
    name : str
        For the tables.
    path : Path
    target, agent : str or None
        Columns of a table; the target of an archive that has several.
    """

    name: str
    path: Path
    target: str | None = None
    agent: str | None = None

    @property
    def key(self) -> str:
        """Differs for different data, and can be part of a file name."""
        content = hashlib.sha256(self.path.read_bytes()) if self.path.is_file() else hashlib.sha256()
        for path in sorted(self.path.rglob("*")) if self.path.is_dir() else []:
            content.update(path.read_bytes() if path.is_file() else b"")
        content.update(repr((self.target, self.agent)).encode())
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', self.name)}-{content.hexdigest()[:8]}"

    def read(self) -> tuple[Federation, bool]:
        """The federation without agents of too few rows, and whether its target holds classes; numbers are floats."""
        federation = read_federation(self.path, target=self.target, agent=self.agent)
        if not federation.has_target:
            raise InputError(f"{self.path} has no target to predict; name its columns as {self.path}:TARGET:AGENT")
        enough = np.flatnonzero(federation.sizes >= SMALLEST)
        if len(enough) < 2:
            raise InputError(f"{self.path}: fewer than two agents have {SMALLEST} rows; leave it out of --data")
        chosen = federation.select(enough.tolist())
        classes = holds_classes(chosen)
        coded = classes and np.asarray(chosen[0].y).dtype.kind != "f"
        return (chosen if coded else with_target(chosen, classes=classes)), classes


def contests(given: Sequence[str]) -> tuple[list[Contest], list[str]]:
    """What is given with ``--data``, and the names of archives in folders that are too large.

    Each is a name of the catalogue, ``PATH:TARGET:AGENT`` for a table or a folder of tables, the path of an archive or
    LEAF file, ``ARCHIVE:TARGET`` where it has several, or a folder of archives.
    """
    found: list[Contest] = []
    too_large: list[str] = []
    for one in given:
        if one in CATALOGUE and not Path(one).exists():
            entry = CATALOGUE[one]
            columns = (entry.target, entry.agent) if entry.source.suffix == ".csv" else (None, None)
            found.append(Contest(one, fetch(entry), *columns))
            continue
        path, target, agent = _parts(one)
        archives = sorted(path.glob("*.npz")) if path.is_dir() else []
        if not archives:
            name = path.name.split(".")[0] if target is None or agent is not None else f"{path.stem}-{target}"
            found.append(Contest(name, path, target, agent))
            continue
        for archive in archives:
            small = _cells(archive) <= MOST_CELLS
            too_large += [] if small else [archive.stem]
            found += _of_archive(archive) if small else []
    if not found:
        raise InputError("none of the federations given with --data can be used; give other paths")
    if (repeated := first_repeated([one.name for one in found])) is not None:
        raise InputError(f"two federations of --data are called {repeated!r}; rename one of the files")
    return found, too_large


def holds_classes(federation: Federation) -> bool:
    """Whether the target is a class: text, or at most `MOST_CLASSES` different whole numbers."""
    values = np.unique(np.concatenate([np.asarray(agent.y) for agent in federation]))
    if values.dtype.kind not in "fiu":
        return True
    return len(values) <= MOST_CLASSES and bool((values == np.rint(values)).all())


def with_target(federation: Federation, *, classes: bool, unit: float = 1.0) -> Federation:
    """The federation with its target in another unit, as whole numbers if they are classes and as floats if not."""
    kind = np.int64 if classes else np.float64
    return replace(federation, agents=tuple(replace(one, y=(np.asarray(one.y) / unit).astype(kind)) for one in federation))


def held_out_errors(result: Personalization) -> dict[str, Array]:
    """Test errors of every agent's own model: the mean squared error, or log loss and error rate of classes."""
    scores = result.scored["personalized"]
    if scores.task == "regression":
        return {METRIC: scores[METRIC]}
    return {LOG_LOSS: scores[LOG_LOSS], ERROR_RATE: 1 - scores["accuracy"]}


def _parts(given: str) -> tuple[Path, str | None, str | None]:
    """Path, target and agent of what is given; a colon may be part of a path that is there."""
    for pieces in ([given], given.rsplit(":", 2), given.rsplit(":", 1)):
        path = Path(pieces[0]).expanduser()
        if path.exists():
            return path, pieces[1] if len(pieces) > 1 else None, pieces[2] if len(pieces) > 2 else None
    raise InputError(
        f"{given} is neither a path nor one of {', '.join(PACKAGED)}; give a table as PATH:TARGET:AGENT with --data"
    )


def _cells(archive: Path) -> int:
    """Rows times columns, from the header of X alone."""
    try:
        with np.load(archive, allow_pickle=False) as content, content.zip.open("X.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            return int(np.prod(read(file)[0]))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{archive} is not an archive of a federation ({error}); move it out of the folder") from None


def _of_archive(archive: Path) -> list[Contest]:
    """One contest per target of an archive."""
    with np.load(archive, allow_pickle=False) as content:
        names = content["target_names"].astype(str).tolist() if "target_names" in content.files else []
    if len(names) < 2:
        return [Contest(archive.stem, archive)]
    return [Contest(f"{archive.stem}-{name}", archive, name) for name in names]
