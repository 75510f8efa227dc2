"""The summary a person reads first: a verdict per claim, then the numbers and how they were made."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.experiments.experiment import Conclusion, Experiment

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Provenance:
    """How a run was made.

    Attributes
    ----------
    command : str
        To repeat it.
    settings : mapping
        All of the experiment's.
    versions : mapping from package to version
    seconds : float
        Run time of all parts, over all sittings.
    cores : int
    """

    command: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    seconds: float
    cores: int


def means_table(results: pandas.DataFrame) -> pandas.DataFrame:
    """Means over agents: one row per experiment, setting, method, repetition and metric."""
    keys = ["experiment", "setting", "method", "repetition", "metric"]
    return results.groupby(keys, sort=False)["value"].mean().reset_index()


def over_repetitions(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Mean, standard deviation and standard error over repetitions of the mean over agents, by setting and method."""
    chosen = results[results["metric"] == metric]
    means = chosen.groupby(["setting", "method", "repetition"], sort=False)["value"].mean()
    table = means.groupby(["setting", "method"], sort=False).agg(["mean", "std", "count"])
    table["error"] = table["std"] / np.sqrt(table["count"])
    return table.rename(columns={"std": "deviation"})


class Level(NamedTuple):
    """Mean over agents and repetitions, and over repetitions its standard deviation and standard error."""

    mean: float
    deviation: float
    error: float

    def __format__(self, digits: str) -> str:
        return with_error(self.mean, self.error, int(digits or 2))


def level(table: pandas.DataFrame, setting: str, method: str) -> Level:
    """One row of `over_repetitions`."""
    found = table[(table.index.get_level_values("setting") == setting) & (table.index.get_level_values("method") == method)]
    return Level(*(float(found[name].iloc[0]) for name in Level._fields))


def by_repetition(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over agents: a row per setting and repetition, a column per method."""
    chosen = results[results["metric"] == metric]
    return chosen.pivot_table(index=["setting", "repetition"], columns="method", values="value", aggfunc="mean", sort=False)


def methods_table(results: pandas.DataFrame, metric: str, digits: int = 2) -> pandas.DataFrame:
    """Mean and standard error as text: a row per setting, a column per method."""
    table = over_repetitions(results, metric)
    texts = [with_error(mean, error, digits) for mean, error in zip(table["mean"], table["error"], strict=True)]
    frame = pandas.DataFrame({"text": texts}, index=table.index).reset_index()
    return frame.pivot_table(index="setting", columns="method", values="text", aggfunc="first", sort=False)


def ratio_with_error(first: Array, second: Array) -> tuple[float, float]:
    """Ratio of means over paired repetitions and its standard error to first order."""
    ratio = float(first.mean() / second.mean())
    if len(first) < 2:
        return ratio, float("nan")
    deviation = (first - ratio * second).std(ddof=1) / second.mean()
    return ratio, float(deviation / np.sqrt(len(first)))


def with_error(mean: float, error: float, digits: int = 2) -> str:
    """A mean and its standard error, which one repetition does not have."""
    return f"{mean:.{digits}f}" if np.isnan(error) else f"{mean:.{digits}f} ± {error:.{digits}f}"


def markdown(table: pandas.DataFrame, corner: str = "") -> str:
    """A table in Markdown, its index first."""
    lines = ["| " + " | ".join([corner, *map(str, table.columns)]) + " |", "|" + "---|" * (len(table.columns) + 1)]
    for name, row in zip(table.index, table.itertuples(index=False), strict=True):
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in (name, *row)) + " |")
    return "\n".join(lines)


def write_summary(path: Path, experiment: Experiment, conclusion: Conclusion, provenance: Provenance) -> Path:
    """Write ``summary.md``."""
    verdicts = pandas.DataFrame(
        [[one.measured, one.answer, one.setting] for one in conclusion.verdicts],
        index=[one.claim for one in conclusion.verdicts],
        columns=["measured", "verdict", "setting"],
    )
    claims = markdown(verdicts, "claim") if len(verdicts) else "None was judged: the settings leave out what they compare."
    parts = [f"# {experiment.name}", experiment.summary, "## Claims", claims]
    parts += [f"- {remark}" for remark in conclusion.remarks]
    parts += ["## Figures", *(f"![{name}]({name}.png)" for name in conclusion.figures), "## Numbers"]
    for caption, table in conclusion.tables.items():
        parts += [caption, markdown(table)]
    settings = pandas.DataFrame({"value": [_plain(value) for value in provenance.settings.values()]})
    settings.index = pandas.Index(list(provenance.settings))
    versions = ", ".join(f"{package} {number}" for package, number in provenance.versions.items())
    parts += [
        "## Settings",
        markdown(settings, "setting"),
        "## Made with",
        f"`{provenance.command}`" if provenance.command else "the Python interface",
        f"Python {platform.python_version()}, {versions}; {provenance.seconds:.0f} s on {provenance.cores} cores. "
        "Equal seeds give an equal `results.csv`; `means.csv` holds its means over agents.",
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
