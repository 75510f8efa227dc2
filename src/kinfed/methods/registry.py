"""Methods by name."""

from __future__ import annotations

from kinfed.analysis import FLOOR
from kinfed.methods.base import Method
from kinfed.methods.stacked import Stacked, TunedGrandMean, TunedLocal
from kinfed.methods.weighted import Weighted
from kinfed.priors.family import CLUSTERED, FAMILY, KIN, RANDOM
from kinfed.registry import Registry

METHODS: Registry[Method] = Registry(
    "method",
    {
        "stacked": Stacked(FAMILY),
        "weighted": Weighted(),
        "random-coefficients": Stacked(RANDOM),
        "clustered-random-coefficients": Stacked(CLUSTERED),
        "kin-prior": Stacked(KIN),
        "local": TunedLocal(),
        "grand-mean": TunedGrandMean(),
    },
)
"""Methods by name, read whenever one is asked for."""

BASELINES = ("local", "grand-mean")
"""The methods every result is compared with."""

REFERENCES = (*BASELINES, FLOOR)
"""What personal models are compared with: the baselines, and what needs no model."""
