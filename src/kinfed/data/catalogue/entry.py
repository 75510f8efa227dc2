"""A federation one can have: what it is, where it comes from, and how to know that it is the right one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kinfed.data.catalogue.sources import Source
from kinfed.data.readers import read_federation
from kinfed.federation import Federation


@dataclass(frozen=True)
class Entry:
    """A real federation in the catalogue.

    Attributes
    ----------
    name, title : str
    unit : str
        What an agent is.
    target, agent : str
        Columns to predict and to tell agents apart; "y" and "agent" in an archive.
    task : {"regression", "classification"}
    rows, agents : int
        How many there are.
    origin, licence, citation : str
        Who collected the data, on which terms they are passed on, and what to cite.
    source : Source
        Where its bytes come from.
    sha256 : str or None
        Of the file kinfed writes; None where forms of the same data differ in their bytes.
    """

    name: str
    title: str
    unit: str
    target: str
    agent: str
    task: Literal["regression", "classification"]
    rows: int
    agents: int
    origin: str
    licence: str
    citation: str
    source: Source
    sha256: str | None

    @property
    def file(self) -> str:
        """Name of its file in the cache."""
        return f"{self.name}{self.source.suffix}"

    @property
    def learner(self) -> str:
        """The plain learner that suits its target."""
        return "ridge" if self.task == "regression" else "logistic"

    def command(self, path: Path) -> str:
        """A command that learns from the file."""
        columns = ["--target", self.target, "--agent", self.agent] if self.source.suffix == ".csv" else []
        learner = [] if self.learner == "ridge" else ["--learner", self.learner]
        return shlex.join(["kinfed", "personalize", str(path), *columns, *learner, "--out", "results"])

    def read(self, path: Path) -> Federation:
        """The federation in a file that `kinfed.data.catalogue.fetch` wrote."""
        is_table = self.source.suffix == ".csv"
        return read_federation(path, target=self.target if is_table else None, agent=self.agent if is_table else None)

    def facts(self) -> Mapping[str, Any]:
        """Everything about it but the data, for people and machines."""
        return {
            "name": self.name,
            "title": self.title,
            "an agent is": self.unit,
            "agents": self.agents,
            "rows": self.rows,
            "target": self.target,
            "agent column": self.agent,
            "task": self.task,
            "origin": self.origin,
            "licence": self.licence,
            "citation": self.citation,
            "how to fetch": self.source.how,
            "sha256": self.sha256,
        }
