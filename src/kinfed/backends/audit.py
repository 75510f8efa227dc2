"""The book of a run, and of a site: every message that crossed, how large it was, and who missed what."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import pandas
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.files import open_private_log
from kinfed.markup import card, paragraph, table
from kinfed.plotting.evaluation import AuditPlots

AUDIT = "audit.jsonl"
"""The file of the log, at the server and at a site."""

TO_AGENT, TO_SERVER = "to the agent", "to the server"


@dataclass(frozen=True)
class Absence:
    """An answer that did not come, or could not be used.

    Attributes
    ----------
    agent : str
    phase : str
        What it was asked, such as "training 3".
    reason : str
    follows : str
        What it means for the agent and for the others.
    """

    agent: str
    phase: str
    reason: str
    follows: str = ""

    def __str__(self) -> str:
        return f"agent {self.agent} missed {self.phase}: {self.reason}"


@dataclass(eq=False)
class Audit:
    """Counts and writes down everything that crosses between the server and the agents.

    Attributes
    ----------
    path : path, or None
        A file of JSON lines, one for each message; an existing one is continued.
    absences : list of Absence
    keep : callable, optional
        Called with all absences whenever there is a new one.
    """

    path: Path | None = None
    absences: list[Absence] = field(default_factory=list)
    keep: Callable[[list[Absence]], None] | None = None
    _bytes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _messages: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _file: IO[str] | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            try:
                self._file = open_private_log(self.path)
            except OSError as error:
                raise InputError(f"the audit log {self.path} cannot be written: {error.strerror or error}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "keep": None, "_file": None}  # a copy writes into no file

    @classmethod
    def of_tables(cls, traffic: pandas.DataFrame, attendance: pandas.DataFrame) -> Audit:
        """The book of a run that is over, from its `traffic` and `attendance`."""
        book = cls(absences=[Absence(*row) for row in attendance.itertuples(index=False)])
        for agent, phase, direction, messages, nbytes in traffic.itertuples(index=False):
            book._messages[agent, phase, direction] = int(messages)
            book._bytes[agent, phase, direction] = int(nbytes)
        return book

    def crossed(self, agent: str, phase: str, direction: str, nbytes: int, contents: Sequence[str]) -> None:
        """Count one message, and write it to the log if there is one."""
        # Rounds are counted together, and phases of methods that travel side by side are named once each.
        kind = ", ".join(dict.fromkeys(one.rstrip("0123456789 ") for one in phase.split(", ")))
        self._bytes[agent, kind, direction] += nbytes
        self._messages[agent, kind, direction] += 1
        self._write({"agent": agent, "phase": phase, "direction": direction, "bytes": nbytes, "arrays": list(contents)})

    def missed(self, absence: Absence) -> None:
        """Write down who missed what."""
        self.absences.append(absence)
        if self.keep is not None:
            self.keep(self.absences)
        self._write({"agent": absence.agent, "phase": absence.phase, "missed": absence.reason})

    def follows(self, agent: str, what: str) -> None:
        """Write down what follows from an agent's last absence; several things may where questions travel together."""
        place = next((k for k in reversed(range(len(self.absences))) if self.absences[k].agent == agent), None)
        if place is None or what in self.absences[place].follows:
            return
        told = "; ".join(filter(None, [self.absences[place].follows, what]))
        self.absences[place] = replace(self.absences[place], follows=told)
        if self.keep is not None:
            self.keep(self.absences)
        self._write({"agent": agent, "phase": self.absences[place].phase, "follows": what})

    def note(self, what: str) -> None:
        """Write down an event of the run itself."""
        self._write({"event": what})

    @property
    def messages(self) -> int:
        """How many messages crossed."""
        return self._messages.total()

    @property
    def traffic(self) -> pandas.DataFrame:
        """Messages and bytes by agent, phase and direction."""
        rows = [(*key, self._messages[key], nbytes) for key, nbytes in self._bytes.items()]
        return pandas.DataFrame(rows, columns=["agent", "phase", "direction", "messages", "bytes"])

    @property
    def attendance(self) -> pandas.DataFrame:
        """Who missed what, why, and what follows."""
        rows = [(one.agent, one.phase, one.reason, one.follows) for one in self.absences]
        return pandas.DataFrame(rows, columns=["agent", "phase", "reason", "what follows"])

    @property
    def plot(self) -> AuditPlots:
        """What can be drawn: ``plot.traffic()``."""
        return AuditPlots(self)

    def describe(self) -> list[str]:
        """What crossed, and who missed what, in sentences."""
        total = Counter[str]()
        for (_, _, direction), nbytes in self._bytes.items():
            total[direction] += nbytes
        crossed = f"{_size(total[TO_SERVER])} came from the agents, {_size(total[TO_AGENT])} went to them"
        return [crossed, *map(str, self.absences)]

    def _repr_html_(self) -> str:
        crossed = self.traffic.groupby(["phase", "direction"], sort=False)[["messages", "bytes"]].sum()
        return card(
            "Audit",
            paragraph(self.describe()[0]),
            table(crossed.reset_index(1), "What crossed, over all agents"),
            *([table(self.attendance.set_index("agent"), "Who missed what")] if self.absences else []),
        )

    def close(self) -> None:
        """Finish the file of the log; nothing is written after this."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, content: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(_line(content))
            self._file.flush()


@dataclass(frozen=True)
class SiteAudit:
    """A site's own log, in the words of the server's: every message it was sent, and every one it sent.

    Attributes
    ----------
    path : path
        A file of JSON lines, one for each message; an existing one is continued.
    run : str
        What tells the run from others, in every line.
    """

    path: Path
    run: str

    def crossed(self, agent: str, question: str, direction: str, nbytes: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write down one message."""
        shapes = [list(array.shape) for array in arrays.values()]
        told = {"question": question, "direction": direction, "bytes": nbytes, "arrays": list(arrays), "shapes": shapes}
        self._write({"run": self.run, "agent": agent, **told})

    def missed(self, agent: str, question: str, reason: str) -> None:
        """Write down what the server was told instead of an answer."""
        self._write({"run": self.run, "agent": agent, "question": question, "missed": reason})

    def noted(self, agent: str, sentences: Sequence[str]) -> None:
        """Write down what was done to the rows when they were read; of this nothing is sent."""
        for sentence in sentences:
            self._write({"run": self.run, "agent": agent, "note": sentence})

    def _write(self, content: dict[str, object]) -> None:
        try:
            with open_private_log(self.path) as file:
                file.write(_line(content))
        except OSError as error:
            raise InputError(
                f"its own log cannot be written ({error.strerror}), and without it this site answers nothing; see to the "
                "folder out of its node config"
            ) from None


def _line(content: Mapping[str, object]) -> str:
    return json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **content}) + "\n"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
