"""What crosses between the server and a site: a request, the message it answers with, or why there is none.

A message is a few settings that fit into JSON, and arrays. Nothing else crosses: no code, no pickles. Every channel carries
these records, each in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

KINDS = frozenset("fiub")
"""Kinds of arrays that may be sent: floating point, integer, unsigned, boolean."""

ENVELOPE = "together"
"""Name of a message that holds several questions; the arrays of each are named after its number, as in "2/mean"."""


@dataclass(frozen=True)
class ArraySpec:
    """What an array of an answer must look like to be used: its shape, its type, and how large it may be.

    Attributes
    ----------
    shape : tuple of int or None
        None for a length that only the agents know.
    dtype : str
        As in ``array.dtype.name``.
    bound : float
        The largest norm of the whole array; infinite where none is known.
    gaps : bool
        Whether NaN may stand in it, for what there is not.
    """

    shape: tuple[int | None, ...]
    dtype: str = "float64"
    bound: float = np.inf
    gaps: bool = False

    def fault(self, name: str, array: NDArray[Any]) -> str | None:
        """What is wrong with an array, in a few words; None if nothing is."""
        fitting = len(array.shape) == len(self.shape) and all(
            wanted in (None, given) for wanted, given in zip(self.shape, array.shape, strict=True)
        )
        if not fitting:
            return f"{name} has shape {array.shape}, not {self.shape}"
        if array.dtype.name != self.dtype:
            return f"{name} has type {array.dtype.name}, not {self.dtype}"
        if array.dtype.kind == "f" and not (np.isfinite(array) | (self.gaps & np.isnan(array))).all():
            return f"{name} holds NaN or an infinite value"
        norm = float(np.linalg.norm(array.astype(np.float64))) if np.isfinite(self.bound) else 0.0
        if norm > self.bound * (1 + 1e-6):
            return f"{name} has norm {norm:.6g}, but at most {self.bound:.6g} is possible"
        return None


def form_fault(arrays: Arrays, form: Mapping[str, ArraySpec]) -> str | None:
    """What is wrong with the names, shapes, types or sizes of arrays; None if nothing is."""
    if arrays.keys() != form.keys():
        return f"it holds {', '.join(sorted(arrays)) or 'nothing'}, not {', '.join(sorted(form))}"
    return next((fault for name, one in form.items() if (fault := one.fault(name, arrays[name]))), None)


@dataclass(frozen=True, eq=False)
class Message:
    """What is asked of one agent, or what it answers: values that fit into JSON, and arrays. Nothing else crosses."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Request:
    """What the server asks of one site.

    Attributes
    ----------
    question : str
        A step of the handshake, or a key of `kinfed.backends.agents.QUESTIONS`.
    settings : mapping
        Values that fit into JSON.
    arrays : mapping from name to array
    repeatable : bool
        Whether one answer serves whoever asks the same: what depends on rows alone. It is not sent.
    """

    question: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    repeatable: bool = False


@dataclass(frozen=True)
class Failure:
    """Why there is no answer: an error at the site, no answer in time, or an answer that cannot be used.

    Attributes
    ----------
    reason : str
    name : str
        What the site calls itself; empty where nothing was heard of it.
    gone : bool
        The site was not there, or went away before it answered: should it come back in time, it can be asked again.
    """

    reason: str
    name: str = ""
    gone: bool = False


class Channel(Protocol):
    """A way to reach sites."""

    @property
    def slow(self) -> bool:
        """Whether an exchange takes long whatever it carries, so that questions had better travel together."""

    def reachable(self) -> tuple[str, ...]:
        """Addresses of the sites that could be asked now, in no particular order."""

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Message | Failure]:
        """Ask several sites at once, by address, and wait for their answers.

        Whoever has not answered within `seconds` is given up: its answer is a `Failure`, and a later one is thrown away.
        A site that raises is a `Failure` with its message. Every address that was asked is in the result.
        """

    def close(self) -> None:
        """Tell sites there will be no more questions, and give back what the channel holds."""


def payload_bytes(content: Request | Message) -> int:
    """Bytes of a message's content: its settings as JSON, and its numbers."""
    return len(encode_settings(content.settings)) + sum(int(array.nbytes) for array in content.arrays.values())


def arrays_of(arrays: Arrays, number: int) -> dict[str, NDArray[Any]]:
    """The arrays of one of several joined messages, whose names begin with its number."""
    start = f"{number}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def encode_settings(settings: Mapping[str, Any]) -> bytes:
    """Settings as JSON; numbers keep every digit."""
    return json.dumps(settings, separators=(",", ":"), sort_keys=True, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} does not fit into a message")
