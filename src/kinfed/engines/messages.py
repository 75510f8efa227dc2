"""What is said between the server and an agent: a question, its answer, or why there is none.

A message is a name or a few settings that fit into JSON, and arrays. Nothing else crosses: no code, no pickles. All engines
carry these three records, each in its own way.
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


@dataclass(frozen=True, eq=False)
class Request:
    """What the server asks of one agent.

    Attributes
    ----------
    task : str
        A key of `kinfed.engines.tasks.TASKS`.
    settings : mapping
        Values that fit into JSON.
    arrays : mapping from name to array
    """

    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its content."""
        return payload_bytes(self.settings, self.arrays)


@dataclass(frozen=True, eq=False)
class Reply:
    """What an agent answers."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its content."""
        return payload_bytes(self.settings, self.arrays)


@dataclass(frozen=True)
class Failure:
    """Why there is no answer: an error at the agent, no answer in time, or an answer that cannot be used."""

    reason: str


class Channel(Protocol):
    """A way to reach agents; every engine has one."""

    def reachable(self) -> tuple[str, ...]:
        """Addresses of the agents that could be asked now, in no particular order."""
        ...

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        """Ask several agents at once, by address, and wait for their answers.

        Whoever has not answered within `seconds` is given up: its answer is a `Failure`, and a later one is thrown away.
        An agent that raises is a `Failure` with its message. Every address that was asked is in the result.
        """
        ...

    def close(self) -> None:
        """Tell agents there will be no more questions, and give back what the channel holds."""
        ...


def payload_bytes(settings: Mapping[str, Any], arrays: Arrays) -> int:
    """Bytes of a message's content: its settings as JSON, and its numbers."""
    return len(encode_settings(settings)) + sum(int(array.nbytes) for array in arrays.values())


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
