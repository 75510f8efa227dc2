"""Names of things people choose by name; a new one is one line, or an entry point of somebody else's package."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import entry_points
from typing import Any, TypeVar

from kinfed.errors import InputError

ENTRY_POINTS = "kinfed"
"""Group of entry points: modules that installed packages name there are imported when an unknown name is asked for."""

Value = TypeVar("Value")


class Registry(dict[str, Value]):
    """Values by name. A name that is not there is looked for once more after installed packages have registered theirs."""

    def __init__(self, what: str, values: dict[str, Value] | None = None) -> None:
        super().__init__(values or {})
        self.what = what

    def __missing__(self, name: Any) -> Value:
        if name not in self.all_names():
            raise UnknownNameError(f"{self.what} {name!r} is not known; choose one of {', '.join(self)}")
        return self[name]

    def all_names(self) -> tuple[str, ...]:
        """All names, those of installed packages among them."""
        for point in entry_points(group=ENTRY_POINTS):
            point.load()
        return tuple(self)


def is_known(name: Any, valid: Collection[str]) -> bool:
    """Whether a name is valid; packages are asked for theirs only if it is not there already."""
    return name in valid or (isinstance(valid, Registry) and name in valid.all_names())


class UnknownNameError(InputError, KeyError):
    """A name that nothing is registered under."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show its message in quotes
