"""What is checked on both sides: the agent's own data before it answers, and its answers before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.learners.base import Models
from kinfed.learners.inputs import agents_columns, known_codes, numeric_targets
from kinfed.learners.remote.base import Arrays, Terms

Array = NDArray[np.float64]

# How far rounding may take a covariance beyond what the variances allow.
_ROUNDING = 1e-6


def agent_columns(agent: Agent, terms: Terms) -> Array:
    """The agent's finite float64 (n, d) table, with the d of the federation."""
    return agents_columns(_alone(agent, terms))[0]


def agent_numbers(agent: Agent, terms: Terms) -> Array:
    """The agent's finite float64 y, of shape (n,)."""
    return numeric_targets(_alone(agent, terms))[0]


def agent_codes(agent: Agent, terms: Terms) -> NDArray[np.int64]:
    """The agent's labels as places among the classes of the federation."""
    labels = _alone(agent, terms)[0].y
    if labels is None:
        raise InputError(f"agent {agent.name} has no target; give y, or use an estimator that needs none")
    return known_codes(labels, federation_classes(terms), agent.name)


def federation_classes(terms: Terms) -> NDArray[Any]:
    """The sorted labels of the federation: two or more."""
    if terms.classes is None or len(terms.classes) < 2:
        raise InputError("the federation has fewer than two classes; a classifier needs at least two")
    return terms.classes


def comoment_fault(comoment: Array) -> str | None:
    r"""What keeps a matrix from being a covariance: asymmetry, a variance below zero, :math:`C_{ij}^2 > C_{ii} C_{jj}`."""
    variances = np.diagonal(comoment)
    if (variances < 0).any():
        return "a variance is below zero"
    deviations = np.sqrt(variances)
    largest = deviations[:, None] * deviations[None, :]
    if (np.abs(comoment - comoment.T) > _ROUNDING * largest).any():
        return "the covariances are not symmetric"
    if (np.abs(comoment) > largest * (1 + _ROUNDING)).any():
        return "a covariance is larger than its variances allow"
    return None


def unpacked(arrays: Arrays, name: str, shape: Sequence[int], kind: str) -> NDArray[Any]:
    """The array `name` of packed models, one for each of its rows; raise `InputError` if it is not of that form.

    Parameters
    ----------
    shape : sequence of int
        Of one model.
    kind : {"float64", "bool"}
    """
    array = arrays.get(name)
    expected = f"of type {kind} and shape (models, {', '.join(map(str, shape))})"
    if array is None:
        raise InputError(f"the models have no {name}; an array {expected} is expected")
    if array.ndim == 0 or array.dtype.name != kind or array.shape[1:] != tuple(shape):
        raise InputError(
            f"the models' {name} are of type {array.dtype.name} and shape {array.shape}; {expected} is expected"
        )
    if not np.isfinite(array).all():
        raise InputError(f"the models' {name} hold NaN or infinite values; train them again")
    return array


def renormalised(rows: Array, answered: NDArray[np.bool_]) -> Array:
    """Weight rows divided by their sums over those who answered, and zero where nobody did.

    A row whose agents have all answered stays as it is to the last digit.
    """
    kept = np.where(answered, rows, 0.0)
    shares = kept.sum(axis=1) / rows.sum(axis=1)
    return np.asarray(kept / np.where(shares > 0, shares, 1.0)[:, None])


def rows_heard(rows: Array, answered: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Array:
    """`renormalised`, with weights proportional to the sizes of those who answered for rows that heard nobody."""
    heard = renormalised(rows, answered)
    points = sizes * answered
    if not points.any():
        count = int((rows > 0).any(axis=0).sum())
        raise KinfedError(f"none of the {count} agents that were asked has answered; see whether they run, and try again")
    return np.asarray(np.where(heard.any(axis=1, keepdims=True), heard, points / points.sum()))


def check_models(models: Models, kind: type, who: str) -> None:
    """Raise `InputError` unless the models are of that type."""
    if not isinstance(models, kind):
        raise InputError(f"{who} packs {kind.__name__}, got {type(models).__name__}; give models of the same learner")


def _alone(agent: Agent, terms: Terms) -> Federation:
    """The agent as a federation of its own: its shapes are checked against what everybody has."""
    return Federation((agent,), tuple(f"x{place}" for place in range(terms.dim)))
