"""Everything a report tells, and what several sections share.

Who is kin to whom, what is predicted for every agent, what is measured, and the advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfed.analysis.ties import Ties
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.errors import InputError
from kinfed.report.prediction import Prediction, by_calibration, by_nobody, by_priors, by_theory
from kinfed.report.text import BASELINE_NAMES, Measure, by_agent
from kinfed.report.ties import WORDS, Words
from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    import pandas

    from kinfed.analysis import Diagnosis, PairedComparison, PredictedGain, Scores
    from kinfed.priors.result import Stacking
    from kinfed.weights import Weights
    from kinfed.weights.calibration.family import Calibration

MANY_AGENTS = 300
"""Agents beyond which nothing is predicted before training: it would take longer than all the rest."""


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything a report tells; nothing in it is computed from raw data.

    Attributes
    ----------
    title : str
        Such as "Mathematics achievement in 160 schools".
    names : tuple of str
        The B agents.
    sizes : array of shape (B,)
        Their rows to learn from.
    how : str
        What made the models, such as "rule entropic" and "method stacked".
    ties : Ties, optional
        Who counts how much in whose model; None for a method that does not tell.
    scored : mapping from "local", "grand-mean" and "personalized" to Scores
        Empty before training.
    comparisons : mapping from "local" and "grand-mean" to PairedComparison
        Personal models against that baseline, and the floor; empty before training.
    predicted : PredictedGain, optional
        None where the rule is judged by models: there calibration predicts. None, too, for more than `MANY_AGENTS`.
    diagnosis : Diagnosis, optional
        None where the rows are not here.
    choices : tuple of str
        Sentences on preparation, comparison, rule and learner.
    sketch_sizes : tuple of int
        Numbers in the sketch of every view; empty where agents share none.
    norm_bound : float, optional
        M, the bound on the norm of the first view's features.
    traffic : DataFrame, optional
        Columns agent, phase, direction, messages and bytes; None where all data were in one process.
    attendance : DataFrame, optional
        Columns agent, phase, reason and what follows: who missed what.
    settings : mapping from str to str
        What was asked for, in order.
    seed : int
    command : str, optional
        The shell command or Python call that repeats it.
    calibration : Calibration, optional
        What was compared to find weights.
    stacking : Stacking, optional
        Which priors share in the models.
    expected : ExpectedGain, optional
        What priors are expected to save, by the rows on which they were judged.
    loss : str
        What models are judged by in training.
    groups : tuple of str, optional
        Known labels of the agents.
    withheld : mapping from agent to str
        Agents without a model, and what happened to them; their rows of `ties` are zero.
    asked : Weights, optional
        The weights that were asked for before they were lost.
    columns : DataFrame, optional
        What every column is, what is done with it, and why; None where they were numbers from the start.
    beside : mapping from metric to a mapping as `comparisons`
        The same by the other metrics of the headline.
    screening : Screening
        Agents that are unlike all others, and what follows.
    """

    title: str
    names: tuple[str, ...]
    sizes: Integers
    how: str
    ties: Ties | None
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
    calibration: Calibration | None = None
    stacking: Stacking | None = None
    expected: Any | None = None
    loss: str = "loss"
    groups: tuple[str, ...] | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)
    asked: Weights | None = None
    columns: pandas.DataFrame | None = None
    screening: Screening = NO_SCREENING
    beside: Mapping[str, Mapping[str, PairedComparison]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.names)
        if self.groups is not None and len(self.groups) != count:
            raise InputError(f"there are {len(self.groups)} group labels for {count} agents; give one per agent")


@dataclass(frozen=True, eq=False)
class ReportContext:
    """What a report tells, and what follows from it.

    Attributes
    ----------
    data : ReportData
    prediction : Prediction
    measure : Measure, optional
        None before training.
    gains : mapping from baseline to array of shape (B,)
        Measured.
    test_rows : array of shape (B,)
        Rows of every agent that models were tested on; NaN before training.
    """

    data: ReportData
    prediction: Prediction
    measure: Measure | None
    gains: dict[str, Array]
    test_rows: Array

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in their order."""
        return self.data.names

    @property
    def ties(self) -> Ties | None:
        """Who counts how much in whose model."""
        return self.data.ties

    @property
    def words(self) -> Words | None:
        """How the page speaks of that."""
        return None if self.data.ties is None else WORDS[self.data.ties.kind]


def group_name(ties: Ties, agent: int) -> str:
    """The group of an agent in words."""
    label = int(ties.groups.labels[agent])
    return f"group {label + 1}" if label >= 0 else ("outlier" if ties.groups.sizes else "no group")


def context_of(data: ReportData) -> ReportContext:
    """Everything the sections share, computed once."""
    personal = data.scored.get("personalized")
    measure = None if personal is None else Measure(personal.metric)
    gains = {}
    if personal is not None and measure is not None:
        there = {name: by_agent(data.names, one, measure.metric) for name, one in data.scored.items()}
        compared = [name for name in BASELINE_NAMES if name in there]
        gains = {name: measure.gains(there["personalized"], there[name]) for name in compared}
    tested = {} if personal is None else dict(zip(personal.names, personal.sizes.tolist(), strict=True))
    return ReportContext(
        data=data,
        prediction=prediction_of(data),
        measure=measure,
        gains=gains,
        test_rows=np.array([tested.get(name, np.nan) for name in data.names], dtype=np.float64),
    )


def prediction_of(data: ReportData) -> Prediction:
    """What rows held out say, by calibration or by priors, else what theory predicted, else nothing."""
    if data.calibration is not None:
        return by_calibration(data.calibration)
    if data.expected is not None:
        return by_priors(data.expected, data.names, data.loss)
    if data.predicted is not None:
        return by_theory(data.predicted, data.names)
    reason = (
        f"The {data.how} makes no prediction, so there is no advice."
        if len(data.names) <= MANY_AGENTS
        else "Nothing was predicted for so many agents, so there is no advice; kinfed theory predicts it."
    )
    return by_nobody(len(data.names), reason)
