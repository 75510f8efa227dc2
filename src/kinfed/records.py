"""Frozen records as files: JSON for people, a NumPy archive for numbers, checksums for both, and nothing that runs.

A `Codec` turns records of the classes it knows into values that fit into JSON, and arrays, and back; nothing but those
classes is ever made. `write_record` puts one into a folder of two files, such as ``model.json`` and ``model-3f2a.npz``; the
first names the format, its version, the second, and the digests of both, so that a file that is damaged, foreign or of a
newer kinfed is told apart.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.checkpoint import Kept
from kinfed.errors import InputError
from kinfed.files import OWNER_ONLY, private_folder, write_whole

VERSION = 1
"""Of the files; raised whenever an older kinfed could not read them."""

_NUMBERS = "fiub"


class Codec:
    """Records of a few classes as values that fit into JSON, and arrays.

    Parameters
    ----------
    *types : dataclasses
        Whose instances may stand anywhere in a record, beside None, numbers, texts, arrays of numbers or texts, tuples,
        lists, mappings with texts as keys, and tables.
    """

    def __init__(self, *types: type[Any]) -> None:
        self._types = {one.__name__: one for one in types}

    def pack(self, value: Any) -> Kept:
        """The record as it is kept."""
        arrays: dict[str, NDArray[Any]] = {}
        return Kept({"record": self._packed(value, arrays)}, arrays)

    def unpack(self, kept: Kept) -> Any:
        """The record again; a ValueError, KeyError or TypeError if it is none."""
        return self._unpacked(kept.settings["record"], kept.arrays)

    def _packed(self, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            name = str(len(arrays))
            arrays[name] = value
            return {"array": name}
        if isinstance(value, np.ndarray):
            return {"texts": [str(one) for one in value.tolist()]}
        if isinstance(value, pandas.DataFrame):
            columns = [value[column].to_numpy() for column in value]
            parts = (list(map(str, value.columns)), value.index.to_numpy(), value.index.name, tuple(columns))
            return {"table": [self._packed(one, arrays) for one in parts]}
        if isinstance(value, tuple | list):
            return {"tuple" if isinstance(value, tuple) else "list": [self._packed(one, arrays) for one in value]}
        if isinstance(value, Mapping):
            return {"mapping": [[str(key), self._packed(one, arrays)] for key, one in value.items()]}  # in their order
        if is_dataclass(value) and type(value).__name__ in self._types:
            return {
                type(value).__name__: {one.name: self._packed(getattr(value, one.name), arrays) for one in fields(value)}
            }
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, float) and not math.isfinite(plain):
            return {"number": repr(plain)}
        if plain is None or isinstance(plain, bool | int | float | str):
            return plain
        raise InputError(f"{type(value).__name__} cannot be kept in a file; leave it out")

    def _unpacked(self, told: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        if not isinstance(told, Mapping):
            return told
        ((kind, content),) = told.items()
        match kind:
            case "array":
                return arrays[content]
            case "texts":
                return np.array(content, dtype=np.str_)
            case "number":
                return float(content)
            case "tuple" | "list":
                return {"tuple": tuple, "list": list}[kind](self._unpacked(one, arrays) for one in content)
            case "mapping":
                return {key: self._unpacked(one, arrays) for key, one in content}
            case "table":
                names, index, title, columns = (self._unpacked(one, arrays) for one in content)
                table = pandas.DataFrame(dict(enumerate(columns)), index=pandas.Index(index, name=title))
                return table.set_axis(names, axis=1)
        return self._types[kind](**{name: self._unpacked(one, arrays) for name, one in content.items()})


def write_record(folder: str | Path, kind: str, kept: Kept, *, overwrite: bool = False) -> Path:
    """Write a record into a folder of its own, whole or not at all, for its owner alone.

    Parameters
    ----------
    folder : path
        Made if it is not there; one that holds a record of that kind is refused unless it may be overwritten.
    kind : str
        What it is, such as "model": the name of the files.
    kept : Kept
    overwrite : bool
    """
    target = Path(folder)
    if (target / f"{kind}.json").exists() and not overwrite:
        raise InputError(f"{target} holds a {kind} already; give another folder, or allow it to be overwritten")
    buffer = io.BytesIO()
    content: dict[str, Any] = dict(kept.arrays)
    np.savez(buffer, **content)
    data = buffer.getvalue()
    numbers = hashlib.sha256(data).hexdigest()
    body = {"version": VERSION, "arrays": f"{kind}-{numbers[:12]}.npz", "arrays sha256": numbers, **kept.settings}
    told = {"format": f"kinfed {kind}", "sha256": _digest(body), **body}
    text = json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
    try:
        private_folder(target)
        # The archive has a name of its own, so that an older record is whole until the JSON file takes its place.
        write_whole(target / str(body["arrays"]), lambda file: file.write(data), OWNER_ONLY)
        write_whole(target / f"{kind}.json", lambda file: file.write(text), OWNER_ONLY)
        for older in target.glob(f"{kind}-*.npz"):
            if older.name != body["arrays"]:
                older.unlink()
    except OSError as error:
        raise InputError(f"the {kind} cannot be written to {target}: {error.strerror or error}") from None
    return target


def read_record(folder: str | Path, kind: str) -> Kept:
    """Read what `write_record` wrote; anything else is an `InputError` in one sentence."""
    source = Path(folder)
    path = source / f"{kind}.json"
    if not path.exists():
        raise InputError(f"there is no {kind} in {source}: {path.name} is missing; give the folder it was saved to")
    try:
        told = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        if not isinstance(told, dict) or told.get("format") != f"kinfed {kind}":
            raise InputError(f"{path} is not a {kind} of kinfed; give the folder one was saved to")
        if not isinstance(told.get("version"), int) or told["version"] > VERSION:
            newer = f"format {told.get('version')!r}, this one reads {VERSION}"
            raise InputError(f"{path} was written by a newer kinfed ({newer}); update kinfed")
        body = {name: value for name, value in told.items() if name not in ("format", "sha256")}
        data = (source / Path(told["arrays"]).name).read_bytes()
        if _digest(body) != told["sha256"] or hashlib.sha256(data).hexdigest() != told["arrays sha256"]:
            raise ValueError("a checksum is wrong")
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = dict(stored)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the {kind} in {source} is damaged ({reason}); copy it again, or save it anew") from None
    return Kept(body, arrays)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
