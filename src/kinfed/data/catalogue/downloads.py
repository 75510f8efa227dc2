"""Files behind an address: whole or not at all, over an encrypted connection, with a limit on every wait."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from kinfed.errors import InputError
from kinfed.progress import Progress

_SECONDS = 20.0  # the longest wait for a connection or for the next bytes
_BLOCK = 1 << 16
_MOST = 1 << 30  # a server must not fill the memory
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


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
    found = hashlib.sha256(received).hexdigest()
    if sha256 is not None and found != sha256:
        raise InputError(f"{address} holds something else than expected (sha256 {found}, not {sha256}); nothing was kept")
    return bytes(received)


def _check_encrypted(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme != "https" and parts.hostname not in _OWN_MACHINE:
        raise InputError(f"{address} is not an https address; others could change what comes over it")
