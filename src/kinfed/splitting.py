"""Which rows of an agent are held out, for testing or by a fold: from a seed, its name and its own rows alone."""

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


def held_out(
    hashes: NDArray[np.uint64], y: NDArray[Any] | None, test_size: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which of an agent's rows are for testing: those whose hashes come first, of every class where y are classes.

    Parameters
    ----------
    hashes : array of shape (n,)
        Of the rows (`kinfed.rows`), under a key of the split: whatever the order of the rows, the same are held out.
    y : array of shape (n,), or None
        Its values are kept in proportion where they are classes.
    test_size : float
        The share to hold out.
    rng : numpy.random.Generator
        Breaks ties between classes.
    """
    n = len(hashes)
    test = np.zeros(n, dtype=bool)
    n_test = min(int(np.floor(test_size * n + 0.5)), n - 1)
    if n_test <= 0:
        return test
    ranked = np.argsort(hashes, kind="stable")
    if y is None or y.dtype.kind == "f":
        test[ranked[:n_test]] = True
        return test
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    # Class j is due n_test * count_j / n points. It gets the whole part, and what is left goes to the largest fractions:
    # first among classes that keep a point in training, with ties broken at random.
    whole, fraction = np.divmod(n_test * counts, n)
    order = np.lexsort((rng.permutation(len(counts)), -fraction, whole + 1 >= counts))
    order = order[fraction[order] > 0]
    whole[order[: n_test - whole.sum()]] += 1
    for label, share in enumerate(whole):
        test[ranked[codes[ranked] == label][:share]] = True
    return test


SMALLEST = 5
"""An agent of fewer rows judges nothing: it keeps all of them for training and takes what the others chose."""

LEAST_PART = 2
"""Rows that are set aside at least, or none are, where what is made of the others leaves an agent."""


def deal_rows(
    name: str, n: int, y: NDArray[Any] | None, folds: int, seed: int, repeat: int = 0, least: int = 1
) -> NDArray[np.int64]:
    """The fold in which each of an agent's n rows is set aside; -1 for never, where a fold had fewer than `least` rows.

    Rows of one class, or of neighbouring values of a numeric outcome, go to different folds, so every fold resembles the
    whole, and a class is missing from training only where the agent has it once. Folds depend on the agent's name and rows,
    never on who else takes part.
    """
    if not _deals(n, folds, least):
        return np.full(n, -1, dtype=np.int64)
    rng = np.random.default_rng(derived_seed(seed, "folds", repeat, name))
    shuffled = rng.permutation(n)
    if y is not None and np.ndim(y) == 1:
        shuffled = shuffled[np.argsort(np.asarray(y)[shuffled], kind="stable")]
    dealt = np.empty(n, dtype=np.int64)
    # Blocks of neighbours are dealt in random order, so that no fold always holds the smaller of two.
    whole = n - n % folds
    for start in range(0, whole, folds):
        dealt[shuffled[start : start + folds]] = rng.permutation(folds)
    dealt[shuffled[whole:]] = _folds_of_the_rest(name, n, folds, seed, repeat)
    return dealt


def fold_counts(name: str, n: int, folds: int, seed: int, repeat: int = 0, least: int = 1) -> NDArray[np.int64]:
    """How many of its n rows the agent of that name sets aside in each fold: known without seeing them."""
    if not _deals(n, folds, least):
        return np.zeros(folds, dtype=np.int64)
    counts = np.full(folds, n // folds, dtype=np.int64)
    counts[_folds_of_the_rest(name, n, folds, seed, repeat)] += 1
    return counts


def _deals(n: int, folds: int, least: int) -> bool:
    """Whether an agent of n rows sets any aside."""
    return n >= SMALLEST and (least <= 1 or n // folds >= least)


def _folds_of_the_rest(name: str, n: int, folds: int, seed: int, repeat: int) -> NDArray[np.int64]:
    """The folds of the rows that make no whole block; drawn by themselves, so that counts need no dealing."""
    rng = np.random.default_rng(derived_seed(seed, "folds of the rest", repeat, name))
    return rng.permutation(folds)[: n % folds]
