"""Rules that look at no data: alone, all together, or the groups somebody knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfed.errors import InputError
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of


def local(geometry: Geometry) -> Weights:
    r"""Every agent alone: :math:`w_t = e_t`."""
    return weights_of(geometry, "local", np.eye(len(geometry))[geometry.targets])


def grand_mean(geometry: Geometry) -> Weights:
    r"""One model for all: :math:`w_{tk} = n_k / \sum_l n_l`."""
    shares = geometry.sizes / geometry.sizes.sum()
    return weights_of(geometry, "grand-mean", np.tile(shares, (len(geometry.targets), 1)))


def oracle(geometry: Geometry, groups: Sequence[Any]) -> Weights:
    r"""The grand mean within each known group.

    Parameters
    ----------
    groups : sequence of length B
        A label per agent; agents with equal labels share their data.
    """
    labels = np.empty(len(geometry), dtype=object)  # objects keep the label 1 apart from the label "1"
    given = list(groups)
    if len(given) != len(geometry) or any(np.ndim(label) for label in given):
        raise InputError(f"groups must hold one label for each of the {len(geometry)} agents, got {len(given)}")
    if any(label != label for label in given):
        raise InputError(f"the group of agent {geometry.names[[x != x for x in given].index(True)]} is missing (NaN)")
    labels[:] = given
    together = (labels[geometry.targets][:, None] == labels) * geometry.sizes.astype(float)
    return weights_of(geometry, "oracle", together / together.sum(axis=1, keepdims=True))
