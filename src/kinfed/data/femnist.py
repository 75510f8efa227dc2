"""FEMNIST, handwritten characters by writer, in the forms people have: an archive, LEAF's JSON, Hugging Face's tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfed.data.formats import leaf_samples, leaf_users, read_archive, visible
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.validation import Integers, positive_integer, whole_number

PIXELS = 28 * 28
CLASSES = 62
FORMS = "an .npz archive, LEAF's .json files, or the .parquet or .arrow files of flwrlabs/femnist"

Choose = Callable[[Collection[str]], Collection[str]]
Images = tuple[str, NDArray[np.float32], Integers]
"""A writer's name, pixels (n, 784) in [0, 1] and labels (n,)."""


def read_femnist(path: str | os.PathLike[str], *, writers: int | None = 192, seed: int = 0) -> Federation:
    """Read FEMNIST: images of 62 handwritten characters, one agent per writer.

    ================================================  =================================================================
    what `path` is                                    where it comes from
    ================================================  =================================================================
    an .npz archive                                   ``X`` (n, 784), ``y`` and ``agent``: see `kinfed.data.formats`
    LEAF JSON: a .json file, or a folder of them      LEAF's ``preprocess.sh -s niid --sf 1.0 -k 0 -t sample``
    a .parquet or .arrow file, or a folder with such  the data set flwrlabs/femnist on the Hugging Face hub, also saved
    in it or in folders below                         with ``save_to_disk``, whole or one folder per partition
    ================================================  =================================================================

    Parameters
    ----------
    path : path
    writers : int or None
        How many writers to take, drawn from their names in sorted order; None, or more than there are, takes all.
    seed : int
        Seed of the draw. Writers are named alike in all forms, so one seed draws the same writers from each.

    Returns
    -------
    Federation
        Writers sorted by name, their images in the order of the files. X is float32 of shape (n, 784) on LEAF's scale,
        where 1 is the white background and ink is dark; y is 0 to 61 for 0-9, A-Z, a-z. An image equal to an earlier one
        of the same writer and label is left out: LEAF doubles the first image of every writer, and a copy in the test
        part of a split would be scored by heart.

    Raises
    ------
    InputError
        If anything is wrong; the message names the file and the writer and row. Rows count from 0.
    MissingExtraError
        If pyarrow or Pillow is needed and not installed.

    Notes
    -----
    Only the writers drawn are decoded. All 3,597 of them, some 814,000 images, take 2.6 GB.
    """
    source = Path(path).expanduser()
    choose = partial(
        _drawn,
        count=None if writers is None else positive_integer(writers, "writers"),
        seed=whole_number(seed, "seed"),
    )
    if not source.exists():
        raise InputError(f"{source} does not exist; give the path of a file or folder")
    agents = [_without_copies(*images) for images in _images(source, choose)]
    _check_background(source, agents)
    agents.sort(key=lambda agent: agent.name)
    return Federation(tuple(agents), tuple(f"x{j}" for j in range(PIXELS)), target="y")


def _drawn(names: Collection[str], *, count: int | None, seed: int) -> list[str]:
    """`count` of the names, sorted; all of them if there are no more."""
    ordered = sorted(names)
    if count is None or len(ordered) <= count:
        return ordered
    return [ordered[k] for k in np.sort(np.random.default_rng(seed).choice(len(ordered), count, replace=False))]


def _images(source: Path, choose: Choose) -> Iterator[Images]:
    if source.is_dir():
        return _from_folder(source, choose)
    suffix = source.suffix.lower()
    if suffix == ".npz":
        return _from_archive(source, choose)
    if suffix == ".json":
        return _from_leaf(source, [source], choose)
    if suffix in (".parquet", ".arrow"):
        return _from_tables(source, choose)
    raise InputError(f"{source}: files of type {suffix or 'unknown'} are not read as FEMNIST; give {FORMS}")


def _from_folder(folder: Path, choose: Choose) -> Iterator[Images]:
    descriptions = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
    files = [path for path in visible(folder) if path.is_file()]
    archives = [path for path in files if path.suffix.lower() == ".npz"]
    leaf = [path for path in files if path.suffix.lower() == ".json" and path.name not in descriptions]
    if archives:
        raise InputError(f"{folder} holds the archive {archives[0].name}; give the path of the archive itself")
    return _from_leaf(folder, leaf, choose) if leaf else _from_tables(folder, choose)


def _from_archive(path: Path, choose: Choose) -> Iterator[Images]:
    federation = read_archive(path, None, (), choose)
    # Bytes and floats in [0, 1] are both in use; an image in bytes has a background of 255.
    white = 255 if any(np.nanmax(agent.X, initial=0) > 1 for agent in federation) else 1
    for agent in federation:
        if agent.y is None:
            raise InputError(f"{path} has no array y; FEMNIST needs the label of every image")
        where = f"{path}: writer {agent.name}"
        yield agent.name, _pixels(where, agent.X, white), _labels(where, agent.y)


def _from_leaf(source: Path, paths: Sequence[Path], choose: Choose) -> Iterator[Images]:
    users = {path: leaf_users(path) for path in paths}
    chosen = set(choose({user for names in users.values() for user in names}))
    needed = [path for path, names in users.items() if not chosen.isdisjoint(names)]
    for path, user, X, y in leaf_samples(source, needed, chosen):
        yield user, _pixels(f"{path}: writer {user}", X, 1), _labels(f"{path}: writer {user}", y)


def _from_tables(source: Path, choose: Choose) -> Iterator[Images]:
    from kinfed.data.image_tables import read_image_tables, table_files  # needs an extra

    paths = table_files(source) if source.is_dir() else [source]
    if not paths:
        raise InputError(f"{source} holds no FEMNIST; give {FORMS}, or a folder of one of the last two")
    for name, pixels, labels in read_image_tables(source, paths, choose):
        yield name, np.divide(pixels, 255, dtype=np.float32), labels


def _pixels(where: str, X: Any, white: int) -> NDArray[np.float32]:
    """Pixels in [0, 1] of values from 0 to `white`."""
    if X.shape[1] != PIXELS:
        raise InputError(f"{where}: an image has {X.shape[1]} values; FEMNIST has 28 x 28 = {PIXELS} pixels")
    values = np.asarray(X, dtype=np.float32)
    if (outside := np.flatnonzero(~((values >= 0) & (values <= white)).all(axis=1))).size:
        raise InputError(f"{where}, row {outside[0]}: a pixel is not between 0 and {white}; FEMNIST has grey values")
    return values if white == 1 else np.divide(values, white, dtype=np.float32)


def _labels(where: str, y: Sequence[Any] | NDArray[Any]) -> Integers:
    for row, label in enumerate(y):
        if not isinstance(label, Real) or label not in range(CLASSES):
            raise InputError(f"{where}, row {row}: y is {label!s}; labels go from 0 to {CLASSES - 1}")
    return np.array(y, dtype=np.int64)


def _without_copies(name: str, X: NDArray[np.float32], y: Integers) -> Agent:
    """The rows of a writer that differ from every earlier row in their pixels or in their label."""
    keys = [(label, pixels.tobytes()) for pixels, label in zip(X, y.tolist(), strict=True)]
    first = ~pd.Series(keys, dtype=object).duplicated().to_numpy()
    return Agent(name, X[first], y[first])


def _check_background(source: Path, agents: Sequence[Agent]) -> None:
    """Refuse white ink on black: it reads well and then disagrees with every other copy of the data."""
    if not agents:
        raise InputError(f"{source} holds no images; give {FORMS}")
    lightness = float(np.mean([np.mean(agent.X) for agent in agents]))
    if lightness < 0.5:  # FEMNIST is 0.96 on average, and 0.84 in its darkest image
        raise InputError(
            f"{source} has images on a dark background (their mean is {lightness:.2f}), but FEMNIST's is white; invert them"
        )
