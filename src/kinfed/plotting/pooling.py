"""Large matrices for small pictures, in which no heavy cell may be lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def block_maxima(matrix: Array, most: int) -> Array:
    """The largest entry of every block of cells, in as few cells per block as leave at most `most` rows and columns.

    NaN entries are left out; a block of nothing else is NaN.
    """
    rows, columns = matrix.shape
    block = -(-max(rows, columns) // most)
    if block == 1:
        return matrix
    padded = np.pad(matrix, ((0, -rows % block), (0, -columns % block)), constant_values=np.nan)
    blocks = np.where(np.isnan(padded), -np.inf, padded).reshape(padded.shape[0] // block, block, -1, block)
    largest = blocks.max(axis=(1, 3))
    return np.where(np.isneginf(largest), np.nan, largest)
