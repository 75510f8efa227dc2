"""Where one curve overtakes another, with an uncertainty from resampling repetitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_RESAMPLES = 1000


def crossing(x: Array, difference: Array) -> float:
    """Where a curve that starts below zero first reaches it, by straight lines between the points; NaN if it never does.

    Examples
    --------
    >>> import numpy as np
    >>> crossing(np.array([0.0, 0.5, 1.0]), np.array([-2.0, -1.0, 1.0]))
    0.75
    """
    if difference[0] >= 0:
        return float(x[0])
    above = np.flatnonzero(difference >= 0)
    if not len(above):
        return float("nan")
    right = int(above[0])
    left = right - 1
    share = -difference[left] / (difference[right] - difference[left])
    return float(x[left] + share * (x[right] - x[left]))


def crossing_with_error(x: Array, differences: Array, seed: int) -> tuple[float, float]:
    """The crossing of the mean over repetitions, and its standard error over resampled repetitions.

    Parameters
    ----------
    x : array of shape (m,)
    differences : array of shape (repetitions, m)
    seed : int
    """
    rng = np.random.default_rng(seed)
    count = len(differences)
    draws = [crossing(x, differences[rng.integers(count, size=count)].mean(axis=0)) for _ in range(_RESAMPLES)]
    known = np.array(draws)[np.isfinite(draws)]
    error = float(known.std(ddof=1)) if count > 1 and len(known) > 1 else float("nan")
    return crossing(x, differences.mean(axis=0)), error
