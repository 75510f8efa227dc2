"""Whether a site's rows are those it introduced itself with, in whatever order.

The fingerprint is made under a key that the site draws for one run. Neither ever leaves it: whoever had both could test
guesses about rows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.federation import Federation

_KEY = 32


@dataclass(frozen=True)
class Fingerprint:
    """Of all rows of an agent, to train and to test on.

    Attributes
    ----------
    key : bytes
    digest : bytes
    count : int
        Number of rows.
    """

    key: bytes
    digest: bytes
    count: int

    @classmethod
    def of(cls, train: Federation, test: Federation | None, key: bytes | None = None) -> Self:
        """Under a key, or a new one."""
        own, count = secrets.token_bytes(_KEY) if key is None else key, 0
        total = blake2b(key=own)
        for part in (train, test):
            if part is not None:
                hashes = part[0].row_hashes(part.columns, own)
                total.update(len(hashes).to_bytes(8) + np.sort(hashes).astype("<u8").tobytes())
                count += len(hashes)
        return cls(own, total.digest(), count)

    @classmethod
    def from_array(cls, array: NDArray[np.uint8]) -> Self:
        """Read what `to_array` made."""
        content = array.tobytes()
        return cls(content[:_KEY], content[_KEY:-8], int.from_bytes(content[-8:]))

    def to_array(self) -> NDArray[np.uint8]:
        """As numbers, to be noted."""
        return np.frombuffer(self.key + self.digest + self.count.to_bytes(8), dtype=np.uint8)

    def recognise(self, name: str, now: Fingerprint) -> None:
        """Raise unless the agent of that name has the same rows now."""
        if now.digest != self.digest:
            raise changed(name, self.count, now.count)


def changed(name: str, before: int, now: int) -> InputError:
    """What a site says whose rows are not those it had when the run began."""
    told = f"{before} rows then, {now} now" if before != now else f"{now} rows as before, but not the same"
    return InputError(
        f"agent {name}: its data have changed since this run began ({told}), so it takes no further part; "
        "put them back, or start the run again"
    )
