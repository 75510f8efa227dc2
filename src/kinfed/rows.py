"""What tells rows apart, whatever their order: a keyed hash of what each of them holds.

A row is its cells, by the names of their columns, its target, and its group, time and weight where it has them. Equal
cells have equal hashes in whatever type a table happens to hold them: the category 1 is the number 1, and a gap is a gap.
So the rows an agent tests on, and the order in which its rows are used, follow from the rows themselves; a file that is
sorted anew gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfed.columns import categories

_CELLS = 1 << 20  # at a time: they are written out, 8 bytes each
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{0,14}")


def row_hashes(
    X: Any, y: NDArray[Any] | None, columns: Sequence[str], key: bytes, beside: Sequence[NDArray[Any]] = ()
) -> NDArray[np.uint64]:
    """A number for every row, the same on every machine; different rows have different ones, as good as always.

    Parameters
    ----------
    X : float array of shape (n, d), or DataFrame
    y : array of shape (n,), or None
    columns : sequence of d str
        Their order does not matter.
    key : bytes
        At most 64. Hashes under different keys tell nothing of each other.
    beside : sequence of arrays of shape (n,)
        What else a row holds: its group, time or weight.
    """
    position = sorted(range(len(columns)), key=columns.__getitem__)
    keyed = blake2b(digest_size=8, key=key)
    last = [*([] if y is None else [y]), *beside]
    found, step = [], 1 + _CELLS // (1 + len(columns))
    for start in range(0, len(X), step):
        rows = slice(start, start + step)
        for row in _words(X[rows], [one[rows] for one in last], position):
            one = keyed.copy()
            one.update(row)
            found.append(one.digest())
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


def label_hashes(labels: Sequence[str], key: bytes) -> NDArray[np.uint64]:
    """A number for every label, such as those of groups of rows."""
    return row_hashes(pd.DataFrame({"label": pd.Series(labels, dtype=object)}), None, ["label"], key)


def _words(X: Any, last: Sequence[NDArray[Any]], position: Sequence[int]) -> NDArray[np.uint64]:
    """The cells of some rows as 8 bytes each, the target and what is beside it last."""
    width = len(position)
    words = np.empty((len(X), width + len(last)), dtype="<u8")
    if isinstance(X, np.ndarray):
        words[:, :width] = _numbers(np.take(X, position, axis=1))
    else:
        for place, j in enumerate(position):
            words[:, place] = _cells(X.iloc[:, j])
    for place, values in enumerate(last):
        words[:, width + place] = _cells(pd.Series(values))
    return words


def _cells(values: pd.Series[Any]) -> NDArray[np.uint64]:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiu":
        return _numbers(values.to_numpy())
    codes, texts = categories(values)
    # A gap has the code -1, which picks the last.
    return np.array([*map(_word, texts), *_numbers(np.array([np.nan]))], dtype="<u8")[codes]


def _numbers(values: NDArray[Any]) -> NDArray[np.uint64]:
    numbers = values.astype("<f8") + 0.0  # -0 is 0
    numbers[np.isnan(numbers)] = np.nan  # whose bits could be others
    return numbers.view("<u8")


def _word(category: str) -> int:
    """A whole number is that number, as in a table that has nothing else in this column."""
    if _WHOLE_NUMBER.fullmatch(category):
        return int(np.array(float(category)).astype("<f8").view("<u8"))
    return int.from_bytes(blake2b(category.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
