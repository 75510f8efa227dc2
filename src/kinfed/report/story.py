"""Everything a report tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError

if TYPE_CHECKING:
    import pandas

    from kinfed.diagnosis import Diagnosis
    from kinfed.evaluation import PairedComparison, Scores
    from kinfed.theory import PredictedGain
    from kinfed.weights import Weights

MANY_AGENTS = 300
"""Agents beyond which nothing is predicted before training: it would take longer than all the rest."""


@dataclass(frozen=True, eq=False)
class Story:
    """Everything a report tells; nothing in it is computed from raw data.

    Attributes
    ----------
    title : str
        Such as "Mathematics achievement in 160 schools".
    weights : Weights
        Of all agents.
    scored : mapping from "local", "grand-mean" and "personalized" to Scores
        Empty before training.
    comparisons : mapping from "local" and "grand-mean" to PairedComparison
        Personal models against that baseline; empty before training.
    predicted : PredictedGain, optional
        None where the rule is judged by models: there calibration predicts. None, too, for more than `MANY_AGENTS`.
    diagnosis : Diagnosis, optional
        None where the rows are not here.
    choices : tuple of str
        Sentences on preparation, comparison, rule and learner.
    sketch_sizes : tuple of int
        Numbers in the sketch of every view.
    norm_bound : float, optional
        M, the bound on the norm of the first view's features.
    traffic : DataFrame, optional
        Columns agent, phase, direction, messages and bytes; None where all data were in one process.
    attendance : DataFrame, optional
        Columns agent, phase and reason: who missed what.
    settings : mapping from str to str
        What was asked for, in order.
    seed : int
    command : str, optional
        The shell command or Python call that repeats it.
    groups : tuple of str, optional
        Known labels of the agents.
    """

    title: str
    weights: Weights
    scored: Mapping[str, Scores]
    comparisons: Mapping[str, PairedComparison]
    predicted: PredictedGain | None
    diagnosis: Diagnosis | None
    choices: tuple[str, ...]
    sketch_sizes: tuple[int, ...]
    norm_bound: float | None
    traffic: pandas.DataFrame | None
    attendance: pandas.DataFrame | None
    settings: Mapping[str, str]
    seed: int
    command: str | None
    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.weights.names)
        if not np.array_equal(self.weights.targets, np.arange(count)):
            raise InputError("a report needs the weights of all agents in order; leave out targets=...")
        if self.groups is not None and len(self.groups) != count:
            raise InputError(f"there are {len(self.groups)} group labels for {count} agents; give one per agent")
