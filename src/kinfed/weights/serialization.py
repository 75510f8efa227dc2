"""Weights and calibrations in a checkpoint: as values that fit into JSON, and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.checkpoint import Kept
from kinfed.learners.base import Plan
from kinfed.weights.calibration.choice import Choice
from kinfed.weights.calibration.family import BaseRule, Calibration, Candidate
from kinfed.weights.result import Evidence, Weights

_ROWS = ("matrix", "targets", "sizes", "risk", "objective", "gap")
_EVIDENCE = ("squared_distances", "null_means", "effective_dimension")
_CHOICE = ("shares", "personal", "mean", "error", "versus_local", "versus_local_error")


def weights_content(weights: Weights) -> Kept:
    """Weights as they are kept."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(weights, name) for name in _ROWS}
    arrays |= {name: getattr(weights.evidence, name) for name in _EVIDENCE}
    settings: dict[str, Any] = {"rule": weights.rule, "names": list(weights.names), "stop": list(weights.stop)}
    found = weights.calibration
    if found is not None:
        arrays |= {f"choice {name}": getattr(found.choice, name) for name in _CHOICE}
        settings["calibration"] = {
            "candidates": [
                [one.base.rule, one.base.strength, one.base.view, one.own, one.plan.warm, one.plan.share]
                for one in found.candidates
            ],
            "views": list(found.views),
            "chosen": found.choice.chosen,
            "loss": found.loss,
            "local": found.local,
            "exchanged": list(found.exchanged),
        }
    return Kept(settings, arrays)


def read_weights(kept: Kept) -> Weights:
    """The weights that were kept, with their calibration where there was one."""
    told, calibration = kept.settings.get("calibration"), None
    if told is not None:
        choice = Choice(chosen=told["chosen"], **{name: kept.arrays[f"choice {name}"] for name in _CHOICE})
        candidates = tuple(
            Candidate(BaseRule(rule, strength, view), own, Plan(warm, share))
            for rule, strength, view, own, warm, share in told["candidates"]
        )
        calibration = Calibration(
            candidates, tuple(told["views"]), choice, told["loss"], told["local"], tuple(told["exchanged"])
        )
    return Weights(
        rule=kept.settings["rule"],
        names=tuple(kept.settings["names"]),
        stop=tuple(kept.settings["stop"]),
        evidence=Evidence(**{name: np.asarray(kept.arrays[name]) for name in _EVIDENCE}),
        calibration=calibration,
        **{name: kept.arrays[name] for name in _ROWS},
    )
