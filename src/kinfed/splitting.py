"""Which rows of an agent are held out, for testing or by a fold: from a seed, its name and its own rows alone."""

from __future__ import annotations

import hashlib
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.validation import FloatArray


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


def held_out_groups(
    hashes: NDArray[np.uint64], group: NDArray[np.int64], y: NDArray[Any] | None, test_size: float
) -> NDArray[np.bool_]:
    r"""Which rows are for testing where groups of them stay together.

    Groups are gone through in the order of their hashes. With :math:`a_s` rows of class s among those taken, n of all, and
    :math:`\tau` the share to hold out, a group is taken if that lowers
    :math:`\sum_s (a_s - \tau n_s)^2 / n_s + (\sum_s a_s - \tau n)^2 / n`, and if another one is left for training.

    Parameters
    ----------
    hashes : array of shape (G,)
        Of the labels of the groups, under a key of the split.
    group : array of shape (n,)
        The place of every row's group.
    y : array of shape (n,), or None
        Its values are kept in proportion where they are classes.
    test_size : float
    """
    if not len(group):
        return np.zeros(0, dtype=bool)
    counts = _counts_by_group(group, None if y is None or y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1])
    whole = counts.sum(axis=0)
    taken, short = np.zeros(len(hashes), dtype=bool), test_size * whole
    for one in np.argsort(hashes, kind="stable"):
        left = short - counts[one]
        if taken.sum() < len(hashes) - 1 and (left**2 / whole).sum() < (short**2 / whole).sum():
            taken[one], short = True, left
    return np.asarray(taken[group])


def latest_rows(time: FloatArray, group: NDArray[Any] | None, test_size: float) -> NDArray[np.bool_]:
    """Which rows are for testing: the latest, or the groups that were there last.

    Rows, or groups, of one time stay together: of rows those of the time where the share ends are for training, and groups
    are taken as long as that brings their rows nearer to the share.
    """
    n = len(time)
    n_test = min(int(np.floor(test_size * n + 0.5)), n - 1)
    if n_test <= 0:
        return np.zeros(n, dtype=bool)
    if group is None:
        return np.asarray(time > np.sort(time)[n - n_test - 1])
    _, codes = np.unique(group, return_inverse=True)
    last = np.full(codes.max() + 1, -np.inf)
    np.maximum.at(last, codes, time)
    latest, taken = last[codes], np.inf
    for moment in np.unique(last)[:0:-1]:  # the earliest stays for training
        if abs((latest >= moment).sum() - test_size * n) >= abs((latest >= taken).sum() - test_size * n):
            break
        taken = moment
    return np.asarray(latest >= taken)


def _counts_by_group(group: NDArray[np.int64], strata: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Rows of every group in each stratum, and in the last column altogether."""
    sizes = np.bincount(group)
    if strata is None:
        return sizes[:, None]
    counts = np.zeros((len(sizes), strata.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, strata), 1)
    return np.column_stack([counts, sizes])


SMALLEST = 5
"""An agent of fewer rows judges nothing: it keeps all of them for training and takes what the others chose."""

LEAST_PART = 2
"""Rows that are set aside at least, or none are, where what is made of the others leaves an agent."""


FOLDS = 5
"""Folds of which agents set one aside where models are trained without it."""


def deal_rows(
    name: str,
    n: int,
    y: NDArray[Any] | None,
    folds: int,
    seed: int,
    repeat: int = 0,
    least: int = 1,
    group: NDArray[Any] | None = None,
) -> NDArray[np.int64]:
    """The fold in which each of an agent's n rows is set aside; -1 for never, where a fold had fewer than `least` rows.

    Rows of one class, or of neighbouring values of a numeric outcome, go to different folds, so every fold resembles the
    whole, and a class is missing from training only where the agent has it once. Folds depend on the agent's name and rows,
    never on who else takes part. With `group`, the label of every row, groups are dealt instead: see `_deal_groups`.
    """
    if group is not None:
        return _deal_groups(name, group, y, folds, seed, repeat, least)
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


def _deal_groups(
    name: str, group: NDArray[Any], y: NDArray[Any] | None, folds: int, seed: int, repeat: int, least: int
) -> NDArray[np.int64]:
    """The fold of each row where rows of one group share it.

    Groups are dealt from the largest on, each to the fold that has least of what it holds: rows, and rows of a class or of
    a fifth of the values of a numeric outcome. A fold of fewer than `least` rows, or that would leave fewer than an agent
    of `SMALLEST` rows has left without a fold, is never set aside; those that are have the first numbers.
    """
    n, (_, codes) = len(group), np.unique(group, return_inverse=True)
    dealt = np.full(n, -1, dtype=np.int64)
    if n < SMALLEST:
        return dealt
    counts = _counts_by_group(codes, _strata(y))
    rng = np.random.default_rng(derived_seed(seed, "folds of groups", repeat, name))
    order = rng.permutation(len(counts))
    held, fold = np.zeros((folds, counts.shape[1])), np.empty(len(counts), dtype=np.int64)
    for one in order[np.argsort(-counts[order, -1], kind="stable")]:
        # Shares of what there is of a stratum, so that a rare class counts as much as a common one; ties at random.
        cost = held @ (counts[one] / counts.sum(axis=0))
        fold[one] = rng.permutation(np.flatnonzero(cost <= cost.min() * (1 + 1e-12)))[0]
        held[fold[one]] += counts[one]
    rows = held[:, -1]
    usable = rng.permutation(np.flatnonzero((rows >= max(least, 1)) & (n - rows >= SMALLEST - 1)))
    for number, one in enumerate(usable):
        dealt[fold[codes] == one] = number
    return dealt


def _strata(y: NDArray[Any] | None) -> NDArray[np.int64] | None:
    """Classes, or fifths of the values of a numeric outcome, as numbers."""
    if y is None or np.ndim(y) != 1:
        return None
    if y.dtype.kind != "f":
        return np.unique(y, return_inverse=True)[1]
    ranks = np.empty(len(y), dtype=np.int64)
    ranks[np.argsort(y, kind="stable")] = np.arange(len(y))
    return ranks * FOLDS // len(y)


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
