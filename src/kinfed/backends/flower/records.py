"""Requests and replies as Flower's records.

A message is text in a `ConfigRecord` and, if it has arrays, all of them packed into one array of an `ArrayRecord`. Flower
carries every array as two objects with a request over the network each, about 20 ms at every hop: a hundred models in a
hundred arrays take half a minute to arrive, and packed into one array no longer than a single model.

Packed arrays are a length of 8 bytes, that many bytes of JSON that list names, types and shapes, and the numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from kinfed.backends.wire import Arrays, Failure, Message, Request, encode_settings

ACTION = "kinfed"
"""Name of the action of every message; Flower shows it in the logs of the nodes."""

CATEGORIES = ("query", "train", "evaluate")

TEXT = "kinfed"
ARRAYS = "kinfed-arrays"

_PACKED = "kinfed.packed"
"""How the bytes of the packed array are to be read; Flower calls this the stype and leaves it to us."""

_FAILED, _NAME = "failed", "name"

_LENGTH = 8
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        dtype.str: dtype
        for kind, sizes in _SIZES.items()
        for size in sizes
        for order in "<>"
        for dtype in [np.dtype(f"{order}{kind}{size}")]
    }
)
"""The types that may cross, by what they are called in a message: objects, text and long doubles are not among them."""


def encode_request(request: Request, packed: dict[int, ArrayRecord] | None = None) -> RecordDict:
    """The request as records.

    Parameters
    ----------
    request : Request
    packed : dict, optional
        Arrays packed before, by the identity of their mapping; requests that share one then share its bytes too.
    """
    records = _encode({"question": request.question, "settings": request.settings}, {})
    if request.arrays:
        known = {} if packed is None else packed
        if id(request.arrays) not in known:
            known[id(request.arrays)] = encode_arrays(request.arrays)
        records[ARRAYS] = known[id(request.arrays)]
    return records


def decode_request(records: RecordDict) -> Request:
    """The request in records; anything malformed is a ValueError."""
    content, arrays = _decode(records, ("question", "settings"))
    if not isinstance(content["question"], str):
        raise ValueError("the question of a message must be text")
    return Request(content["question"], content["settings"], arrays)


def encode_message(reply: Message | Failure) -> RecordDict:
    """A reply as the records that Flower sends: settings as text, arrays as bytes."""
    if isinstance(reply, Failure):
        return _encode({"settings": {_FAILED: reply.reason, _NAME: reply.name}}, {})
    return _encode({"settings": reply.settings}, reply.arrays)


def decode_message(records: RecordDict) -> Message | Failure:
    """The reply in records; anything malformed is a ValueError."""
    content, arrays = _decode(records, ("settings",))
    told = content["settings"]
    if _FAILED not in told:
        return Message(told, arrays)
    if told.keys() != {_FAILED, _NAME} or not all(isinstance(one, str) for one in told.values()) or arrays:
        raise ValueError("what it says about its failure is malformed")
    return Failure(told[_FAILED], told[_NAME])


def encode_arrays(arrays: Arrays) -> ArrayRecord:
    """Named arrays, packed into one."""
    listed = []
    parts: list[Any] = []
    for name, array in arrays.items():
        if array.dtype.str not in DTYPES:
            raise ValueError(f"array {name!r} has type {array.dtype}, which does not fit into a message")
        listed.append([name, array.dtype.str, list(array.shape)])
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    head = json.dumps(listed, separators=(",", ":")).encode()
    packed = b"".join([len(head).to_bytes(_LENGTH, "little"), head, *parts])
    # Filled in afterwards: given to the constructor, the array would be made twice.
    record = ArrayRecord()
    record["packed"] = Array("uint8", (len(packed),), _PACKED, packed)
    return record


def decode_arrays(record: Any) -> dict[str, NDArray[Any]]:
    """The arrays of `encode_arrays`, each a copy of its own that may be written to; anything malformed is a ValueError."""
    if not isinstance(record, ArrayRecord) or set(record) != {"packed"} or record["packed"].stype != _PACKED:
        raise ValueError("the arrays of a message must be packed into one")
    packed = record["packed"].data
    start = _LENGTH + int.from_bytes(packed[:_LENGTH], "little")
    if start > len(packed):
        raise ValueError("the list of arrays in a message is cut off")
    listed = _parsed(packed[_LENGTH:start])
    if not isinstance(listed, list):
        raise ValueError("a message must list its arrays")
    arrays: dict[str, NDArray[Any]] = {}
    for entry in listed:
        name, dtype, shape = _checked_entry(entry)
        if name in arrays:
            raise ValueError(f"a message holds two arrays named {name!r}")
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(packed):
            raise ValueError(f"array {name!r} of shape {tuple(shape)} is cut off")
        arrays[name] = _array(name, packed, start, dtype, shape)
        start = end
    if start != len(packed):
        raise ValueError(f"a message holds {len(packed) - start} bytes more than its arrays")
    return arrays


def _encode(content: Mapping[str, Any], arrays: Arrays) -> RecordDict:
    records = RecordDict({TEXT: ConfigRecord({"content": encode_settings(content).decode("ascii")})})
    if arrays:
        records[ARRAYS] = encode_arrays(arrays)
    return records


def _decode(records: RecordDict, keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    unknown = sorted(set(records) - {TEXT, ARRAYS})
    if unknown:
        raise ValueError(f"a message holds an unknown record {unknown[0]!r}")
    texts = records.get(TEXT)
    text = texts.get("content") if isinstance(texts, ConfigRecord) else None
    if not isinstance(text, str):
        raise ValueError("a message has no text")
    content = _parsed(text)
    if not isinstance(content, dict) or set(content) != set(keys) or not isinstance(content["settings"], dict):
        raise ValueError(f"the text of a message must hold {' and '.join(keys)}, and nothing else")
    return content, decode_arrays(records[ARRAYS]) if ARRAYS in records else {}


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the text of a message is nested too deeply") from None


def _checked_entry(entry: Any) -> tuple[str, np.dtype[Any], list[int]]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError("an array of a message must be listed by name, type and shape")
    name, kind, shape = entry
    if not isinstance(name, str):
        raise ValueError(f"the name of an array must be text, got {name!r}")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ValueError(f"array {name!r} has type {kind!r}, which may not cross")
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"array {name!r} has no proper shape, got {shape!r}")
    return name, DTYPES[kind], shape


def _array(name: str, packed: bytes, start: int, dtype: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(shape, dtype)
    if array.size == 0:
        return array
    numbers = array.reshape(-1).view(np.uint8)
    numbers[:] = np.frombuffer(packed, np.uint8, array.nbytes, start)
    # A boolean of another byte than 0 or 1 is neither true nor false to NumPy: sums and comparisons go wrong.
    if dtype.kind == "b" and int(numbers.max()) > 1:
        raise ValueError(f"array {name!r} holds something else than true and false")
    return array
