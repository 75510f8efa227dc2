"""FEMNIST as Hugging Face keeps it: Parquet or Arrow tables with an encoded image, a writer and a character in every row.

`datasets.Dataset.save_to_disk` writes Arrow streams named in ``state.json``, one folder per split beside a
``dataset_dict.json``; the hub holds Parquet files. Both are read here as they are, without the package `datasets`.
"""

from __future__ import annotations

import io
import json
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.formats import visible
from kinfed.data.text_tables import first_sentence
from kinfed.errors import InputError, MissingExtraError
from kinfed.validation import Integers

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from PIL import Image
except ImportError:
    raise MissingExtraError(
        "FEMNIST in Parquet or Arrow files is read with pyarrow and Pillow, of which one is not installed: "
        "pip install 'kinfed[femnist]'"
    ) from None

COLUMNS = ("image", "writer_id", "character")
"""The columns that are needed; the tables have ``hsf_id`` too."""

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The character of every label, in LEAF's order; the class names of the tables have the same."""

SIDE = 28
TABLE_SUFFIXES = (".parquet", ".arrow")

_GREY_MODES = ("1", "L", "P", "RGB")  # what an 8-bit grey image may be stored as


def table_files(folder: Path) -> list[Path]:
    """The tables of a folder and of those below it, without what `datasets` keeps beside a data set it has saved."""
    if (folder / "dataset_dict.json").is_file():
        splits = [str(split) for split in _json_list(folder / "dataset_dict.json", "splits")]
        if len(splits) != 1:
            raise InputError(f"{folder} holds the splits {', '.join(splits) or 'none'}; give the folder of one of them")
        return table_files(folder / splits[0])
    if (folder / "state.json").is_file():
        entries = _json_list(folder / "state.json", "_data_files")
        return [folder / str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]
    inside = visible(folder, "cache-")
    below = [path for path in inside if path.is_dir() and not path.is_symlink()]
    found = [path for path in inside if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()]
    return [*found, *(path for one in below for path in table_files(one))]


def read_image_tables(
    source: Path, paths: Sequence[Path], choose: Callable[[Collection[str]], Collection[str]]
) -> Iterator[tuple[str, NDArray[np.uint8], Integers]]:
    """Name, images (n, 784) and labels of every writer that `choose` takes; the others' images are never decoded."""
    names = {
        name
        for path in paths
        for first, batch in _batches(path, COLUMNS[1:2])
        for name in _names(path, first, batch.column(0))
    }
    if not names:
        raise InputError(f"{source} holds no images; give the tables with the data")
    chosen = set(choose(names))
    pixels: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in chosen}
    labels: dict[str, list[int]] = {name: [] for name in chosen}
    for path in paths:
        by_character = _label_of(path)
        for first, batch in _batches(path, COLUMNS):
            writers = _names(path, first, batch.column("writer_id"))
            wanted = [row for row, writer in enumerate(writers) if writer in chosen]
            images = _encoded(path, batch.column("image")).take(pa.array(wanted, pa.int64()))
            characters = batch.column("character").take(pa.array(wanted, pa.int64()))
            for row, image, character in zip(wanted, images.to_pylist(), characters.to_pylist(), strict=True):
                place = f"{path}: writer {writers[row]}, row {first + row}"
                if character not in by_character:
                    raise InputError(f"{place}: character {character!r} is none of the 62 of FEMNIST; correct it")
                pixels[writers[row]].append(_decoded(place, image))
                labels[writers[row]].append(by_character[character])
    for name in sorted(chosen):
        yield name, np.stack(pixels.pop(name)), np.array(labels.pop(name), dtype=np.int64)


def _batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """These columns in portions, each with the number of its first row in the file."""
    try:
        first = 0
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as table:
                _check_columns(path, table.schema_arrow)
                for batch in table.iter_batches(columns=list(columns)):
                    yield first, batch
                    first += len(batch)
        else:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                _check_columns(path, stream.schema)
                for batch in stream:
                    selected = batch.select(list(columns))
                    selected.validate(full=True)  # a damaged stream may point outside of itself
                    yield first, selected
                    first += len(batch)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        kind = "a Parquet file" if path.suffix.lower() == ".parquet" else "an Arrow stream"
        raise InputError(
            f"{path} is not {kind} or is damaged ({first_sentence(error)}); download or save it again"
        ) from None


def _check_columns(path: Path, schema: pa.Schema) -> None:
    for column in COLUMNS:
        if column not in schema.names:
            raise InputError(
                f"{path} has no column {column!r}, so it is not FEMNIST; the columns {', '.join(COLUMNS)} are needed, "
                f"and it has {', '.join(schema.names[:12])}"
            )


def _names(path: Path, first: int, writers: pa.Array) -> list[str]:
    names = writers.to_pylist()
    if None in names:
        raise InputError(f"{path}: row {first + names.index(None)} has no writer_id; fill it in or drop the row")
    return [str(name) for name in names]


def _label_of(path: Path) -> dict[int | str, int]:
    """The label 0 to 61 of every value the column ``character`` may have: the character itself, or the index of its class.

    The names of the classes stand in the table or in the ``dataset_info.json`` beside it. Without them they are taken to be
    in LEAF's order, as they are in the data set on the hub.
    """
    names = _class_names(path)
    if sorted(names) != sorted(CHARACTERS):
        raise InputError(f"{path} has {len(names)} classes of characters, not the 62 of FEMNIST (0-9, A-Z, a-z)")
    labels: dict[int | str, int] = {character: label for label, character in enumerate(CHARACTERS)}
    return labels | {index: CHARACTERS.index(name) for index, name in enumerate(names)}


def _class_names(path: Path) -> list[str]:
    described: Any = None
    try:
        if path.suffix.lower() == ".parquet":
            schema = pq.read_schema(path)
        else:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                schema = stream.schema
        metadata = (schema.metadata or {}).get(b"huggingface")
        if metadata is not None:
            described = json.loads(metadata)["info"]["features"]
        elif (path.parent / "dataset_info.json").is_file():
            described = json.loads((path.parent / "dataset_info.json").read_text(encoding="utf-8"))["features"]
        names = None if described is None else described["character"].get("names")
        return list(CHARACTERS) if names is None else [str(name) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise InputError(f"{path}: the description of its columns is damaged; download or save the data again") from None


def _encoded(path: Path, images: pa.Array) -> pa.Array:
    """The encoded images, which `datasets` keeps in a field ``bytes`` beside a ``path``."""
    if pa.types.is_struct(images.type) and images.type.get_field_index("bytes") >= 0:
        images = pc.struct_field(images, "bytes")
    if not (pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type)):
        raise InputError(f"{path}: column 'image' holds {images.type}, not PNG images; save the data as it was downloaded")
    return images


def _decoded(place: str, encoded: bytes | None) -> NDArray[np.uint8]:
    """The 784 grey values of an image."""
    if encoded is None:
        raise InputError(f"{place} has no image in the table; save the data with its images")
    try:
        with Image.open(io.BytesIO(encoded), formats=("PNG",)) as image:
            size, mode = image.size, image.mode
            if size == (SIDE, SIDE) and mode in _GREY_MODES:  # else a huge image would be decoded just to be refused
                return np.asarray(image.convert("L"), dtype=np.uint8).reshape(-1)
    except Exception as error:  # a damaged image can raise anything
        raise InputError(f"{place}: the image is not PNG or is damaged ({error}); download the data again") from None
    if size != (SIDE, SIDE):
        raise InputError(f"{place}: the image has {size[0]} x {size[1]} pixels; FEMNIST has {SIDE} x {SIDE}")
    raise InputError(f"{place}: the image has mode {mode}; FEMNIST has 8-bit grey images")


def _json_list(path: Path, key: str) -> list[Any]:
    with suppress(ValueError, KeyError, TypeError, OSError):
        if isinstance(entry := json.loads(path.read_text(encoding="utf-8"))[key], list):
            return entry
    raise InputError(f"{path} has no list {key!r}, so the data set is damaged; save it again")
