"""Which rows of an agent are held out for testing, from a seed and nothing else."""

from __future__ import annotations

import hashlib
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError


def derived_seed(seed: int, *purposes: str | int) -> np.random.SeedSequence:
    """Seed of the random numbers for one purpose: equal on every machine, and independent between purposes."""
    value: Any = seed
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise InputError(f"seed must be a whole number of at least 0, got {seed!r}")
    # Python's own hash() differs between processes; a digest does not. The lengths keep ("a", "b") from being ("ab",).
    texts = [str(purpose).encode("utf-8", "surrogatepass") for purpose in purposes]
    digest = hashlib.sha256(b"".join(len(text).to_bytes(8) + text for text in texts)).digest()
    return np.random.SeedSequence([int(value), *np.frombuffer(digest, dtype="<u4").tolist()])


def held_out(n: int, y: NDArray[Any] | None, test_size: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of an agent's n rows are for testing; the values of y are kept in proportion where they are classes."""
    test = np.zeros(n, dtype=bool)
    n_test = min(int(np.floor(test_size * n + 0.5)), n - 1)
    if n_test <= 0:
        return test
    shuffled = rng.permutation(n)
    if y is None or y.dtype.kind == "f":
        test[shuffled[:n_test]] = True
        return test
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    # Class j is due n_test * count_j / n points. It gets the whole part, and what is left goes to the largest fractions:
    # first among classes that keep a point in training, with ties broken at random.
    whole, fraction = np.divmod(n_test * counts, n)
    order = np.lexsort((rng.permutation(len(counts)), -fraction, whole + 1 >= counts))
    order = order[fraction[order] > 0]
    whole[order[: n_test - whole.sum()]] += 1
    for label, share in enumerate(whole):
        test[shuffled[codes[shuffled] == label][:share]] = True
    return test
