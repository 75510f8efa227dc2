"""What collaborating is predicted to save every agent, and the advice that follows.

By calibration, by the rows on which priors were judged, by the theory of mean embeddings, or by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfed.report.text import SPACE, number, percent, plus_minus, signed_percent
from kinfed.validation import Array
from kinfed.weights.calibration.family import CLEAR_DEVIATIONS, JOIN, LOCAL, STAY, UNKNOWN

if TYPE_CHECKING:
    from kinfed.analysis import PredictedGain
    from kinfed.weights.calibration.family import Calibration

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
        one. By priors, a share of the agent's own loss alone. By theory, a share of the error of the agent's mean
        embedding.
    meaning : str
        What is saved, as a sentence goes on after "what learning with kin saves".
    uncertainty : str
        What `error` is.
    advised : str
        When there is advice, as a sentence.
    shares : bool
        Whether gains are shares, told in percent.
    advice, reasons : tuple of str
        For every agent.
    """

    gain: Array
    error: Array
    meaning: str
    uncertainty: str
    advised: str
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


def by_nobody(count: int, reason: str) -> Prediction:
    """No prediction, and why."""
    unknown = np.full(count, np.nan)
    return Prediction(unknown, unknown, "", "", "", shares=True, advice=(NOT_JUDGED,) * count, reasons=(reason,) * count)


def by_calibration(calibration: Calibration) -> Prediction:
    """What the candidate that was chosen saved on rows held out."""
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
        advised=_farther(f"{deviations} of the posterior; stay local, too, where learning alone was its choice"),
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


def by_priors(expected: Any, names: tuple[str, ...], loss: str) -> Prediction:
    """What a combination of priors is expected to save, from the rows on which they were judged.

    Parameters
    ----------
    expected : ExpectedGain
        Of some or all agents.
    names : tuple of str
    loss : str
    """
    place = {name: k for k, name in enumerate(expected.names)}

    def taken(values: Array) -> Array:
        return np.array([values[place[name]] if name in place else np.nan for name in names], dtype=np.float64)

    gain, error, low, high, probable = (
        taken(one) for one in (expected.gain, expected.error, expected.low, expected.high, expected.probability)
    )
    advice = tuple(expected.advice[place[name]] if name in place else UNKNOWN for name in names)

    def reason(agent: int) -> str:
        if not np.isfinite(gain[agent]):
            return f"It has too few rows to hold some out, so its {loss} could not be compared."
        chance = f" That it gains at all has a probability of {percent(probable[agent], 0)}."
        ends = f"{signed_percent(low[agent])} to {signed_percent(high[agent])}"
        return (
            f"Learning with kin is expected to {'save' if gain[agent] >= 0 else 'cost'} {percent(abs(gain[agent]))} of the "
            f"{loss} that it has alone ({percent(expected.level, 0)} interval of what is saved: {ends})."
            f"{chance if np.isfinite(probable[agent]) else ''}"
        )

    return Prediction(
        gain=gain,
        error=error,
        meaning=(
            f"of the {loss} that the agent has when it learns alone, on new rows. It is an estimate from how far the two "
            "models are apart and from rows that were held out"
        ),
        uncertainty="one posterior standard deviation",
        advised=(
            "Advice: join where a gain is probable enough, stay local where a loss is; elsewhere there is no clear "
            "difference."
        ),
        shares=True,
        advice=advice,
        reasons=_each(reason, len(names)),
    )


def by_theory(predicted: PredictedGain, names: tuple[str, ...]) -> Prediction:
    """What the paper's bound on mean embeddings predicts."""
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
        advised=_farther(f"{CLEAR_ERRORS:g} standard errors"),
        shares=True,
        advice=advice,
        reasons=_each(reason, len(names)),
    )


def _each(reason: Callable[[int], str], count: int) -> tuple[str, ...]:
    return tuple(reason(agent) for agent in range(count))


def _farther(threshold: str) -> str:
    return f"Advice: join or stay local where the predicted gain is farther from zero than {threshold}."
