"""What several sections tell of: who is kin to whom, what is predicted and measured for every agent, and the advice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinfed.kinship import LARGEST_NETWORK, AgentMap, Groups, Network, agent_map, kin_groups, kin_network, kin_order
from kinfed.report.measures import Measure, by_agent, plus_minus
from kinfed.report.story import MANY_AGENTS, Story
from kinfed.report.text import SPACE, number, percent, signed_percent
from kinfed.weights.calibration.family import LOCAL
from kinfed.weights.calibration.record import CLEAR_DEVIATIONS, JOIN, STAY, UNKNOWN

if TYPE_CHECKING:
    from kinfed.theory import PredictedGain
    from kinfed.weights.calibration.record import Calibration

Array = NDArray[np.float64]

NOT_JUDGED = "not judged"

CLEAR_ERRORS = 2.0
"""Standard errors beyond which the prediction of the theory advises an agent to join or to stay local."""

UNITS = "units typical of it"
"""What differences of a loss without shares are told in: its usual size or its spread from row to row."""


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
        sign = "" if gain < 0 or not np.isfinite(gain) else "+"
        return plus_minus(f"{sign}{number(gain)}", number(error))


@dataclass(frozen=True, eq=False)
class Findings:
    """A story and what follows from it.

    Attributes
    ----------
    story : Story
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
    """

    story: Story
    own: Array
    effective: Array
    others: Array
    order: NDArray[np.int64]
    kin: Groups
    chart: AgentMap
    network: Network | None
    prediction: Prediction
    measure: Measure | None
    gains: dict[str, Array]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the agents."""
        return self.story.weights.names

    @property
    def few(self) -> bool:
        """Whether single agents can be drawn and named."""
        return len(self.names) <= LARGEST_NETWORK

    def group_name(self, agent: int) -> str:
        """The group of an agent in words."""
        label = int(self.kin.labels[agent])
        return f"group {label + 1}" if label >= 0 else ("outlier" if self.kin.sizes else "no group")


def findings_of(story: Story) -> Findings:
    """Everything the sections share, computed once."""
    weights = story.weights
    distances = weights.evidence.squared_distances
    chart = agent_map(distances)
    few = len(weights.names) <= LARGEST_NETWORK
    personal = story.scored.get("personalized")
    measure = None if personal is None else Measure(personal.metric)
    gains = {}
    if personal is not None and measure is not None:
        own = by_agent(weights.names, personal)
        gains = {
            baseline: measure.gains(own, by_agent(weights.names, story.scored[baseline]))
            for baseline in ("local", "grand-mean")
            if baseline in story.scored
        }
    return Findings(
        story=story,
        own=weights.self_weight,
        effective=weights.effective_sample_size,
        others=np.asarray(weights.matrix * (1 - np.eye(len(weights.names)))),
        order=kin_order(weights.matrix, distances),
        kin=kin_groups(weights.evidence),
        chart=chart,
        network=kin_network(weights.matrix, chart.coordinates) if few else None,
        prediction=_prediction(story),
        measure=measure,
        gains=gains,
    )


def _prediction(story: Story) -> Prediction:
    if story.weights.calibration is not None:
        return _by_calibration(story.weights.calibration)
    if story.predicted is not None:
        return _by_theory(story.predicted, story.weights.names)
    count = len(story.weights.names)
    unknown = np.full(count, np.nan)
    reason = f"The rule {story.weights.rule} makes no prediction, so there is no advice."
    if count > MANY_AGENTS:
        reason = "Nothing was predicted for so many agents, so there is no advice; kinfed theory predicts it."
    return Prediction(unknown, unknown, "", "", "", shares=True, advice=(NOT_JUDGED,) * count, reasons=(reason,) * count)


def _by_calibration(calibration: Calibration) -> Prediction:
    choice = calibration.choice
    agents = range(len(choice.personal))
    advice = tuple(calibration.advice(agent) for agent in agents)
    if calibration.has_shares:
        told = (
            f"as a share of a typical {calibration.loss} of learning alone, half its own and half the median one; it is no "
            f"measured share of its own {calibration.loss}"
        )
    else:
        told = f"in {UNITS}"
    found = Prediction(
        gain=-choice.versus_local,
        error=choice.versus_local_error,
        meaning=(
            f"of the {calibration.loss}, against learning alone. It is an estimate from the rows that the agent itself and "
            f"all others held out, {told}"
        ),
        uncertainty="one posterior standard deviation",
        threshold=f"{_deviations(CLEAR_DEVIATIONS)} of the posterior; stay local, too, where learning alone was its choice",
        shares=calibration.has_shares,
        advice=advice,
        reasons=(),
    )

    def reason(agent: int) -> str:
        gain, error = found.gain[agent], found.size(found.error[agent])
        member = calibration.members[choice.personal[agent]]
        if not np.isfinite(gain):
            return f"It has too few rows to hold some out, so its {calibration.loss} could not be compared."
        if member.base == LOCAL and not member.plan.warm:
            return "On the rows that it and the others held out, learning alone was the best choice for it."
        typical = f"of a typical {calibration.loss}" if found.shares else "typical of it"
        moves = "lowers" if gain >= 0 else "raises"
        estimated = (
            f"Estimated from the rows that it and the others held out, learning with kin {moves} its {calibration.loss} by "
            f"{found.size(gain)} {typical}"
        )
        if advice[agent] == UNKNOWN:
            return f"{estimated}, which is within the error of ±{SPACE}{error}."
        return f"{estimated} (±{SPACE}{error})."

    return replace(found, reasons=tuple(reason(agent) for agent in agents))


def _by_theory(predicted: PredictedGain, names: tuple[str, ...]) -> Prediction:
    known = {
        name: (gain, error)
        for name, gain, error in zip(predicted.names, predicted.gain, predicted.standard_error, strict=True)
    }
    pairs = np.array([known.get(name, (np.nan, np.nan)) for name in names])
    gain, error = pairs[:, 0], pairs[:, 1]
    clear = np.abs(gain) > CLEAR_ERRORS * error
    advice = tuple(
        UNKNOWN if not certain else JOIN if saved > 0 else STAY for saved, certain in zip(gain, clear, strict=True)
    )

    def reason(agent: int) -> str:
        if not np.isfinite(gain[agent]):
            return "It has too few rows to hold some out."
        compared = f"On rows it held out, averaging with kin makes the error of its mean {_changed(gain[agent])} than alone"
        if not clear[agent]:
            return f"{compared}; that is within {CLEAR_ERRORS:g} standard errors of {percent(error[agent])}."
        return f"{compared} (standard error {percent(error[agent])})."

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


def _changed(gain: float) -> str:
    """A gain such as "12.0 % lower"."""
    return f"{percent(abs(gain))} {'lower' if gain >= 0 else 'higher'}"


def _deviations(times: float) -> str:
    return "one standard deviation" if times == 1 else f"{times:g} standard deviations"
