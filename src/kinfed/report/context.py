"""Everything a report tells, and what several sections share.

Who is kin to whom, what is predicted for every agent, by calibration or by theory, what is measured, and the advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kinfed.analysis.kinship import (
    LARGEST_NETWORK,
    AgentMap,
    Groups,
    Network,
    agent_map,
    kin_groups,
    kin_network,
    kin_order,
)
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.errors import InputError
from kinfed.report.text import BASELINE_NAMES, SPACE, Measure, by_agent, number, percent, plus_minus, signed_percent
from kinfed.validation import Array, Integers
from kinfed.weights.calibration.family import CLEAR_DEVIATIONS, JOIN, LOCAL, STAY, UNKNOWN

if TYPE_CHECKING:
    import pandas

    from kinfed.analysis import Diagnosis, PairedComparison, PredictedGain, Scores
    from kinfed.weights import Weights
    from kinfed.weights.calibration.family import Calibration

MANY_AGENTS = 300
"""Agents beyond which nothing is predicted before training: it would take longer than all the rest."""

NOT_JUDGED = "not judged"

CLEAR_ERRORS = 2.0
"""Standard errors beyond which the prediction of the theory advises an agent to join or to stay local."""

UNITS = "units typical of it"
"""What differences of a loss without shares are told in: its usual size or its spread from row to row."""


@dataclass(frozen=True, eq=False)
class ReportData:
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
        Personal models against that baseline, and the floor; empty before training.
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
        Columns agent, phase, reason and what follows: who missed what.
    settings : mapping from str to str
        What was asked for, in order.
    seed : int
    command : str, optional
        The shell command or Python call that repeats it.
    groups : tuple of str, optional
        Known labels of the agents.
    withheld : mapping from agent to str
        Agents without a model, and what happened to them; their rows of `weights` are zero.
    asked : Weights, optional
        What was asked for before they were lost.
    columns : DataFrame, optional
        What every column is, what is done with it, and why; None where they were numbers from the start.
    beside : mapping from metric to a mapping as `comparisons`
        The same by the other metrics of the headline.
    screening : Screening
        Agents that are unlike all others, and what follows.
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
    withheld: Mapping[str, str] = field(default_factory=dict)
    asked: Weights | None = None
    columns: pandas.DataFrame | None = None
    screening: Screening = NO_SCREENING
    beside: Mapping[str, Mapping[str, PairedComparison]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.weights.names)
        if not np.array_equal(self.weights.targets, np.arange(count)):
            raise InputError("a report needs the weights of all agents in order; leave out targets=...")
        if self.groups is not None and len(self.groups) != count:
            raise InputError(f"there are {len(self.groups)} group labels for {count} agents; give one per agent")


@dataclass(frozen=True, eq=False)
class Prediction:
    """What collaborating is predicted to save every agent.

    Attributes
    ----------
    gain, error : array of shape (B,)
        What is saved, and how uncertain that is; NaN where nothing is known. By calibration, an estimate from the rows that
        the agent and all others held out, as a share of a typical error: half the sum of the agent's own and the median
        one. By theory, a share of the error of the agent's mean embedding.
    meaning : str
        What is saved, as a sentence goes on after "what learning with kin saves".
    uncertainty : str
        What `error` is.
    threshold : str
        How far from zero a gain must be for an advice.
    shares : bool
        Whether gains are shares, told in percent.
    advice, reasons : tuple of str
        For every agent.
    """

    gain: Array
    error: Array
    meaning: str
    uncertainty: str
    threshold: str
    shares: bool
    advice: tuple[str, ...]
    reasons: tuple[str, ...]

    def size(self, value: float) -> str:
        """The size of a gain or of its error, without a sign."""
        return percent(abs(value)) if self.shares else f"{number(abs(value))}{SPACE}units"

    def told(self, agent: int) -> str:
        """The gain of an agent and its error; a plus is good."""
        gain, error = float(self.gain[agent]), float(self.error[agent])
        if self.shares:
            return plus_minus(signed_percent(gain), percent(error))
        return plus_minus(f"{'+' if gain >= 0 and np.isfinite(gain) else ''}{number(gain)}", number(error))


@dataclass(frozen=True, eq=False)
class ReportContext:
    """What a report tells, and what follows from it.

    Attributes
    ----------
    data : ReportData
    own : array of shape (B,)
        The weight every agent gives its own data.
    effective : array of shape (B,)
        Its effective sample size.
    others : array of shape (B, B)
        The weights on others: the matrix without its diagonal.
    order : array of int of shape (B,)
        The agents, kin beside kin.
    kin : Groups
    chart : AgentMap
    network : Network, optional
        None for more than `LARGEST_NETWORK` agents.
    prediction : Prediction
    measure : Measure, optional
        None before training.
    gains : mapping from baseline to array of shape (B,)
        Measured.
    test_rows : array of shape (B,)
        Rows of every agent that models were tested on; NaN before training.
    """

    data: ReportData
    own: Array
    effective: Array
    others: Array
    order: Integers
    kin: Groups
    chart: AgentMap
    network: Network | None
    prediction: Prediction
    measure: Measure | None
    gains: dict[str, Array]
    test_rows: Array

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in the order of the weights."""
        return self.data.weights.names

    def heard(self, agent: int, most: int) -> list[int]:
        """The others an agent listens to most, the heaviest first."""
        row = self.others[agent]
        return [k for k in np.argsort(-row, kind="stable")[:most].tolist() if row[k] > 0]

    def group_name(self, agent: int) -> str:
        """The group of an agent in words."""
        label = int(self.kin.labels[agent])
        return f"group {label + 1}" if label >= 0 else ("outlier" if self.kin.sizes else "no group")


def context_of(data: ReportData) -> ReportContext:
    """Everything the sections share, computed once."""
    weights = data.weights
    distances = weights.evidence.squared_distances
    chart = agent_map(distances)
    personal = data.scored.get("personalized")
    measure = None if personal is None else Measure(personal.metric)
    gains = {}
    if personal is not None and measure is not None:
        there = {name: by_agent(weights.names, one, measure.metric) for name, one in data.scored.items()}
        compared = [name for name in BASELINE_NAMES if name in there]
        gains = {name: measure.gains(there["personalized"], there[name]) for name in compared}
    tested = {} if personal is None else dict(zip(personal.names, personal.sizes.tolist(), strict=True))
    return ReportContext(
        data=data,
        own=weights.self_weight,
        effective=weights.effective_sample_size,
        others=np.asarray(weights.matrix * (1 - np.eye(len(weights.names)))),
        order=kin_order(weights.matrix, distances),
        kin=kin_groups(weights.evidence),
        chart=chart,
        network=kin_network(weights.matrix, chart.coordinates) if len(weights.names) <= LARGEST_NETWORK else None,
        prediction=prediction_of(weights, data.predicted),
        measure=measure,
        gains=gains,
        test_rows=np.array([tested.get(name, np.nan) for name in weights.names], dtype=np.float64),
    )


def prediction_of(weights: Weights, predicted: PredictedGain | None) -> Prediction:
    """What calibration found, else what theory predicted, else nothing."""
    if weights.calibration is not None:
        return _by_calibration(weights.calibration)
    if predicted is not None:
        return _by_theory(predicted, weights.names)
    count = len(weights.names)
    unknown = np.full(count, np.nan)
    reason = (
        f"The rule {weights.rule} makes no prediction, so there is no advice."
        if count <= MANY_AGENTS
        else "Nothing was predicted for so many agents, so there is no advice; kinfed theory predicts it."
    )
    return Prediction(unknown, unknown, "", "", "", shares=True, advice=(NOT_JUDGED,) * count, reasons=(reason,) * count)


def _by_calibration(calibration: Calibration) -> Prediction:
    choice = calibration.choice
    agents = range(len(choice.personal))
    advice = tuple(calibration.advice(agent) for agent in agents)
    told = (
        f"as a share of a typical {calibration.loss} of learning alone, half its own and half the median one; it is no "
        f"measured share of its own {calibration.loss}"
        if calibration.has_shares
        else f"in {UNITS}"
    )
    deviations = "one standard deviation" if CLEAR_DEVIATIONS == 1 else f"{CLEAR_DEVIATIONS:g} standard deviations"
    found = Prediction(
        gain=-choice.versus_local,
        error=choice.versus_local_error,
        meaning=(
            f"of the {calibration.loss}, against learning alone. It is an estimate from the rows that the agent itself and "
            f"all others held out, {told}"
        ),
        uncertainty="one posterior standard deviation",
        threshold=f"{deviations} of the posterior; stay local, too, where learning alone was its choice",
        shares=calibration.has_shares,
        advice=advice,
        reasons=(),
    )

    def reason(agent: int) -> str:
        gain, error = found.gain[agent], found.size(found.error[agent])
        candidate = calibration.candidates[choice.personal[agent]]
        if not np.isfinite(gain):
            return f"It has too few rows to hold some out, so its {calibration.loss} could not be compared."
        if candidate.base == LOCAL and not candidate.plan.warm:
            return "On the rows that it and the others held out, learning alone was the best choice for it."
        typical = f"of a typical {calibration.loss}" if found.shares else "typical of it"
        moves = "lowers" if gain >= 0 else "raises"
        spread = f", which is within the error of ±{SPACE}{error}" if advice[agent] == UNKNOWN else f" (±{SPACE}{error})"
        return (
            f"Estimated from the rows that it and the others held out, learning with kin {moves} its {calibration.loss} by "
            f"{found.size(gain)} {typical}{spread}."
        )

    return replace(found, reasons=tuple(reason(agent) for agent in agents))


def _by_theory(predicted: PredictedGain, names: tuple[str, ...]) -> Prediction:
    known = dict(zip(predicted.names, zip(predicted.gain, predicted.standard_error, strict=True), strict=True))
    gain, error = np.array([known.get(name, (np.nan, np.nan)) for name in names]).T
    clear = np.abs(gain) > CLEAR_ERRORS * error
    advice = tuple(
        UNKNOWN if not certain else JOIN if saved > 0 else STAY for saved, certain in zip(gain, clear, strict=True)
    )

    def reason(agent: int) -> str:
        if not np.isfinite(gain[agent]):
            return "It has too few rows to hold some out."
        changed = f"{percent(abs(gain[agent]))} {'lower' if gain[agent] >= 0 else 'higher'}"
        spread = (
            f" (standard error {percent(error[agent])})"
            if clear[agent]
            else f"; that is within {CLEAR_ERRORS:g} standard errors of {percent(error[agent])}"
        )
        return f"On rows it held out, averaging with kin makes the error of its mean {changed} than alone{spread}."

    return Prediction(
        gain=gain,
        error=error,
        meaning=(
            "as a share of the squared error that its mean embedding has alone, on rows that were held out; that is not "
            "yet the error of a model"
        ),
        uncertainty="one standard error",
        threshold=f"{CLEAR_ERRORS:g} standard errors",
        shares=True,
        advice=advice,
        reasons=tuple(reason(agent) for agent in range(len(names))),
    )
