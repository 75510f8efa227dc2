"""The one exception tree: every error a user can cause is a `KinfedError`.

Messages are one sentence that says what is wrong, with which agent, file or key, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class KinfedError(Exception):
    """Root of every error a user of kinfed can cause."""


class InputError(KinfedError, ValueError):
    """An argument, an agent's data or an option is not usable as given."""


class SketchError(KinfedError, ValueError):
    """A sketch file or a sketch received from elsewhere cannot be trusted."""


class MissingExtraError(KinfedError, ImportError):
    """A feature needs an optional dependency; the message holds the install command."""


@contextmanager
def naming(place: Any) -> Iterator[None]:
    """Put the place, such as a file, before the message of an `InputError` of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
