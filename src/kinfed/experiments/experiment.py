"""What an experiment is: independent parts that are run in any order, what they measure, and what is concluded.

Measurements are kept as one file per part on the way, and are one tidy row per agent in the end.
"""

from __future__ import annotations

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.validation import Array, one_of
from kinfed.weights import geometric_rules

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # matplotlib is imported when a figure is drawn

COLUMNS = ("experiment", "setting", "method", "repetition", "agent", "metric", "value")
"""The columns of ``results.csv``."""

WHOLE = "all"
"""Stands for the agent where a value belongs to the federation as a whole."""
PartProgress = Callable[[float], None]
"""Called with the share of a part that is done, from 0 to 1."""
Answer = Literal["holds", "holds in part", "does not hold"]


@dataclass(frozen=True, eq=False)
class Measurement:
    """Values of one metric under one setting, by one method, in one repetition.

    Attributes
    ----------
    setting : str
        As ``name=value`` pairs, see `setting_label`.
    method : str
    repetition : int
    metric : str
    values : array
        One per agent.
    agents : tuple of str
        Their names; ``("all",)`` for a value of the federation as a whole.
    """

    setting: str
    method: str
    repetition: int
    metric: str
    values: Array
    agents: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.agents) != len(self.values):
            raise InputError(f"{self.metric} has {len(self.values)} values for {len(self.agents)} agents")


@dataclass(frozen=True, eq=False)
class PartFindings:
    """All that one part of an experiment found: measurements, and arrays that figures need."""

    measurements: tuple[Measurement, ...]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def whole(setting: str, method: str, repetition: int, metric: str, value: float) -> Measurement:
    """A value of the federation as a whole."""
    return Measurement(setting, method, repetition, metric, np.array([value], dtype=np.float64), (WHOLE,))


def setting_label(**values: Any) -> str:
    """``name=value`` pairs in the order given.

    Examples
    --------
    >>> setting_label(spread=0.25, features=500)
    'spread=0.25, features=500'
    """
    return ", ".join(f"{name}={value}" for name, value in values.items())


def setting_value(label: str, name: str) -> str:
    """The value of one name in a label of `setting_label`.

    Examples
    --------
    >>> setting_value("spread=0.25, features=500", "features")
    '500'
    """
    return setting_values(label)[name]


def setting_values(label: str) -> dict[str, str]:
    """All values of a label of `setting_label`, by name."""
    return dict(pair.split("=", 1) for pair in label.split(", "))


def tidy(experiment: str, findings: Iterable[PartFindings]) -> pandas.DataFrame:
    """All measurements as one table, a row per agent, in the columns of `COLUMNS`."""
    return pandas.concat(
        [
            pandas.DataFrame(
                {
                    "experiment": experiment,
                    "setting": one.setting,
                    "method": one.method,
                    "repetition": one.repetition,
                    "agent": one.agents,
                    "metric": one.metric,
                    "value": one.values,
                },
                columns=list(COLUMNS),
            )
            for found in findings
            for one in found.measurements
        ],
        ignore_index=True,
    )


def save_findings(path: Path, found: PartFindings) -> None:
    """Write a part; the file appears whole or not at all."""
    labels = [[one.setting, one.method, one.repetition, one.metric, list(one.agents)] for one in found.measurements]
    content: dict[str, Any] = {
        **{f"values_{i}": one.values for i, one in enumerate(found.measurements)},
        **{f"array_{name}": array for name, array in found.arrays.items()},
    }
    write_whole(path, lambda file: np.savez_compressed(file, labels=np.array(json.dumps(labels)), **content))


def load_findings(path: Path) -> PartFindings | None:
    """A part that was written before; None if there is none or it cannot be read, so that it is made again."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return PartFindings(
                tuple(
                    Measurement(setting, method, repetition, metric, archive[f"values_{i}"], tuple(agents))
                    for i, (setting, method, repetition, metric, agents) in enumerate(json.loads(str(archive["labels"])))
                ),
                {name.removeprefix("array_"): archive[name] for name in archive.files if name.startswith("array_")},
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


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


@dataclass(frozen=True)
class Experiment(ABC):
    """An experiment is a frozen dataclass: its fields are its settings, and `repetitions` and `seed` are among them.

    A field whose metadata holds ``help`` becomes an option on the command line; one of several values takes each once,
    unless its metadata holds ``repeats``; one that holds ``share`` lies between 0 and 1.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    quick: ClassVar[Mapping[str, Any]]
    """Settings of a run that takes a few minutes at most."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages beyond those kinfed always has."""
    least: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """The least values of settings that are counts, where it is not 1."""
    revision: ClassVar[int] = 1
    """Raised whenever `run` would find something else than before: parts of another revision are not taken over."""

    seed: int = field(default=0, kw_only=True, metadata={"help": "Equal seeds give equal results."})

    def __post_init__(self) -> None:
        """Refuse settings that no run could use: counts below their `least`, which is 1 if not given, and unknown rules."""
        limits = {"seed": 0, **self.least}
        for one in self.options():
            values, option = getattr(self, one.name), "--" + one.name.replace("_", "-")
            if values == ():
                raise InputError(f"{option} needs at least one value")
            if isinstance(values, tuple) and len(set(values)) < len(values) and not one.metadata.get("repeats"):
                raise InputError(f"{option} has a value twice; give each once")
            for value in values if isinstance(values, tuple) else (values,):
                if one.name == "methods":
                    one_of(value, geometric_rules(), option)
                elif isinstance(value, int) and value < limits.get(one.name, 1):
                    raise InputError(f"{option} must be at least {limits.get(one.name, 1)}, got {value}")
                elif isinstance(value, float) and not 0 <= value < inf:
                    raise InputError(f"{option} must be a number of at least 0, got {value}")
                elif one.metadata.get("share") and not 0 < value < 1:
                    raise InputError(f"{option} must lie between 0 and 1, got {value:g}")

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """Its settings, the seed last."""
        return sorted(fields(cls), key=lambda one: one.name == "seed")

    @property
    def chosen(self) -> dict[str, Any]:
        """The value of every setting."""
        return {one.name: getattr(self, one.name) for one in self.options()}

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """All parts, those that take longest first."""

    @abstractmethod
    def run(self, part: Part, progress: PartProgress, checkpoint: Path) -> PartFindings:
        """Run one part; it may keep its state in the folder `checkpoint` to go on from after an interruption."""

    @abstractmethod
    def conclude(self, results: pandas.DataFrame, findings: Mapping[Part, PartFindings]) -> Conclusion:
        """Judge the claims and draw the figures, from the tidy results and the findings of every part."""


def graded(each: Iterable[bool]) -> Answer:
    """A claim holds if every one of its conditions does, and in part if some do."""
    conditions = list(each)
    return "holds" if all(conditions) else ("holds in part" if any(conditions) else "does not hold")
