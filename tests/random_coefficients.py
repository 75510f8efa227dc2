"""Agents whose coefficients are random, and what is told of their rows, for tests of priors."""

import numpy as np

from kinfed.priors.normal import RowMoments


def random_agents(sizes, width=3, seed=0, centres=1, deviation=0.7, noise=0.5):
    """Rows (X, y) of agents whose coefficients are normal about one of some centres; the last column is of ones."""
    rng = np.random.default_rng(seed)
    middle = 2.0 * rng.standard_normal((centres, width))
    mixing = np.eye(width) + 0.3 * rng.standard_normal((width, width))
    found = []
    for k, n in enumerate(sizes):
        X = np.column_stack([rng.standard_normal((n, width - 1)), np.ones(n)])
        theta = middle[k % centres] + deviation * mixing @ rng.standard_normal(width)
        found.append((X, X @ theta + np.sqrt(noise) * rng.standard_normal(n)))
    return found


def evidence_of(rows):
    """What is told of rows: sums of products."""
    return RowMoments.of(
        np.array([float(len(y)) for _, y in rows]),
        np.array([X.T @ X for X, _ in rows]),
        np.array([X.T @ y for X, y in rows]),
        np.array([y @ y for _, y in rows]),
    )


def last_is_intercept(width):
    """Which of the coefficients are intercepts."""
    return np.arange(width) == width - 1
