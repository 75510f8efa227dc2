"""What an experiment measures, and how it is kept: one tidy row per agent in the end, one file per part on the way."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import write_whole

COLUMNS = ("experiment", "setting", "method", "repetition", "agent", "metric", "value")
"""Of ``results.csv``."""

WHOLE = "all"
"""Stands for the agent where a value belongs to the federation as a whole."""


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
    values: NDArray[np.float64]
    agents: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.agents) != len(self.values):
            raise InputError(f"{self.metric} has {len(self.values)} values for {len(self.agents)} agents")


@dataclass(frozen=True, eq=False)
class Findings:
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
    return dict(pair.split("=", 1) for pair in label.split(", "))[name]


def tidy(experiment: str, findings: Iterable[Findings]) -> pandas.DataFrame:
    """All measurements as one table, a row per agent, in the columns of `COLUMNS`."""
    tables = [
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
    ]
    return pandas.concat(tables, ignore_index=True)


def save_findings(path: Path, found: Findings) -> None:
    """Write a part; the file appears whole or not at all."""
    labels = [[one.setting, one.method, one.repetition, one.metric, list(one.agents)] for one in found.measurements]
    content: dict[str, Any] = {f"values_{i}": one.values for i, one in enumerate(found.measurements)}
    content |= {f"array_{name}": array for name, array in found.arrays.items()}
    write_whole(path, lambda file: np.savez_compressed(file, labels=np.array(json.dumps(labels)), **content))


def load_findings(path: Path) -> Findings | None:
    """A part that was written before; None if there is none or it cannot be read, so that it is made again."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            labels = json.loads(str(archive["labels"]))
            measurements = tuple(
                Measurement(setting, method, repetition, metric, archive[f"values_{i}"], tuple(agents))
                for i, (setting, method, repetition, metric, agents) in enumerate(labels)
            )
            arrays = {name.removeprefix("array_"): archive[name] for name in archive.files if name.startswith("array_")}
            return Findings(measurements, arrays)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
