"""What an experiment is: independent parts that are run in any order, and what is concluded from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import pandas

from kinfed.errors import InputError
from kinfed.experiments.measurements import Findings
from kinfed.validation import one_of
from kinfed.weights import GEOMETRIC_RULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PartProgress = Callable[[float], None]
"""Called with the share of a part that is done, from 0 to 1."""

Answer = Literal["holds", "holds in part", "does not hold"]


@dataclass(frozen=True)
class Part:
    """One independent piece of an experiment, small enough to be lost.

    Attributes
    ----------
    name : str
        Unlike those of all other parts; it names the file the part is kept in.
    repetition : int
    options : tuple
        What else the experiment needs to know to run it.
    """

    name: str
    repetition: int
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper against what was measured.

    Attributes
    ----------
    claim : str
    measured : str
        With standard errors.
    answer : {"holds", "holds in part", "does not hold"}
    setting : str
    """

    claim: str
    measured: str
    answer: Answer
    setting: str


@dataclass(frozen=True, eq=False)
class Conclusion:
    """What a person reads: verdicts, figures by file name, and tables with their captions."""

    verdicts: tuple[Verdict, ...]
    figures: Mapping[str, Figure]
    tables: Mapping[str, pandas.DataFrame]
    remarks: tuple[str, ...] = ()


class Experiment(Protocol):
    """An experiment is a frozen dataclass: its fields are its settings, and `repetitions` and `seed` are among them.

    A field whose metadata holds ``help`` becomes an option on the command line; one of several values takes each once,
    unless its metadata holds ``repeats``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Packages beyond those kinfed always has."""
    revision: ClassVar[int]
    """Raised whenever `run` would find something else than before: parts of another revision are not taken over."""

    @property
    def repetitions(self) -> int:
        """Independent repetitions."""
        ...

    @property
    def seed(self) -> int:
        """Equal seeds give equal results."""
        ...

    @classmethod
    def quick(cls) -> Mapping[str, Any]:
        """Settings of a run that takes a few minutes at most."""
        ...

    def parts(self) -> Sequence[Part]:
        """All parts, those that take longest first."""
        ...

    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> Findings:
        """Run one part; it may keep its state in the folder `checkpoint` to go on from after an interruption."""
        ...

    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, Findings]) -> Conclusion:
        """Judge the claims and draw the figures, from the tidy results and the findings of every part."""
        ...


def check_settings(experiment: Experiment, least: Mapping[str, int] | None = None) -> None:
    """Refuse settings that no run could use: counts below their `least`, 1 unless it says otherwise, and unknown rules."""
    limits = {"seed": 0, **(least or {})}
    for one in fields(experiment):  # type: ignore[arg-type]
        values = getattr(experiment, one.name)
        option = "--" + one.name.replace("_", "-")
        if values == ():
            raise InputError(f"{option} needs at least one value")
        if isinstance(values, tuple) and len(set(values)) < len(values) and not one.metadata.get("repeats"):
            raise InputError(f"{option} has a value twice; give each once")
        for value in values if isinstance(values, tuple) else (values,):
            if one.name == "methods":
                one_of(value, GEOMETRIC_RULES, option)
            elif isinstance(value, int) and value < limits.get(one.name, 1):
                raise InputError(f"{option} must be at least {limits.get(one.name, 1)}, got {value}")
            elif isinstance(value, float) and not 0 <= value < inf:
                raise InputError(f"{option} must be a number of at least 0, got {value}")


def graded(each: Iterable[bool]) -> Answer:
    """A claim holds if every one of its conditions does, and in part if some do."""
    conditions = list(each)
    return "holds" if all(conditions) else ("holds in part" if any(conditions) else "does not hold")
