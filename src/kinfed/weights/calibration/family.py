"""The family calibration chooses from, and what it found: rules, strengths, views of the agents, mixing with own data.

`Calibration` is for people: the table of scores, the choice, its price against simpler ones, and advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.learners.base import USUAL_PLAN, Plan
from kinfed.markup import card, listing, table
from kinfed.plotting.evaluation import CalibrationPlots
from kinfed.validation import Array
from kinfed.weights.calibration.choice import AgentScores, Choice

# The strengths of each rule, and the shares of own data mixed in. Tuned once on the generators (docs/calibration.md).
EARLY_STOPS = (100, 300, 1000)
CLUSTERS = (2, 3, 5, 8)
STRENGTHS: Mapping[str, tuple[float, ...]] = {"entropic": (0.1, 1.0), "similarity-test": (1.0,)}
CAUTION = 4.0
"""C_Q of the gradient rule, unless another is asked for."""
CAUTIONS = (1.0, CAUTION)
OWN_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)

_MEANING = {
    "q-aggregation": "T = {:g}",
    "entropic": "strength {:g}",
    "similarity-test": "zeta {:g}",
    "clusters": "{:g}",
    "gradient": "C_Q = {:g}",
    "gradient-clusters": "{:g}",
}


@dataclass(frozen=True)
class BaseRule:
    """Weights before mixing.

    Attributes
    ----------
    rule : str
    strength : float, optional
        T of Algorithm 3, the pull of the entropic rule, zeta of the similarity test, the number of clusters, or C_Q
        of the gradient rule.
    view : int, optional
        Place among the views of the agents, for rules that compare embedded points.
    """

    rule: str
    strength: float | None = None
    view: int | None = None

    @property
    def learns(self) -> bool:
        """Whether models are trained to find these weights."""
        return self.rule in ("gradient", "gradient-clusters")

    def describe(self, views: Sequence[str]) -> str:
        """The rule in words: its name, its strength and its view."""
        parts = [] if self.strength is None else [_MEANING[self.rule].format(self.strength)]
        parts += [] if self.view is None else [views[self.view]]
        return self.rule + (f" ({', '.join(parts)})" if parts else "")


LOCAL, GRAND_MEAN = BaseRule("local"), BaseRule("grand-mean")


@dataclass(frozen=True)
class Candidate:
    r"""One candidate: base weights mixed with the agent's own data.

    Attributes
    ----------
    base : BaseRule
    plan : Plan
        How its models are trained, for learners that leave a choice.
    own : float
        Share :math:`\alpha` of own data at an agent of average size. Larger agents keep more: the odds
        :math:`\alpha_t / (1 - \alpha_t)` are proportional to :math:`n_t`.
    """

    base: BaseRule
    own: float = 0.0
    plan: Plan = USUAL_PLAN

    def describe(self, views: Sequence[str]) -> str:
        """The candidate in words: its rule, its own share and its plan."""
        mixed = self.base.describe(views) + (f" + {self.own:.0%} own" if self.own else "")
        return mixed if self.plan == USUAL_PLAN else f"{mixed}, {self.plan}"

    def matrix(self, base: Array, targets: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
        """Weights of the targets, from those of the base."""
        if not self.own:
            return base
        odds = self.own / (1 - self.own) * sizes[targets] / sizes[sizes > 0].mean()
        share = (odds / (1 + odds))[:, None]
        return np.asarray((1 - share) * base + share * np.eye(len(sizes))[targets])


def family(n_views: int, main_views: Sequence[int], gradients: bool) -> tuple[Candidate, ...]:
    """All candidates for that many views of the agents; learning alone is the first.

    Parameters
    ----------
    n_views : int
    main_views : sequence of int
        The views that clusters are sought in, the usual one first.
    gradients : bool
        Whether the learner has loss gradients.
    """
    # The paper's rule is the slowest to solve and keeps to the usual view.
    found = [GRAND_MEAN, *(BaseRule("q-aggregation", steps, 0) for steps in EARLY_STOPS)]
    found += [BaseRule("clusters", count, view) for view in main_views for count in CLUSTERS]
    found += [BaseRule(rule, one, view) for view in range(n_views) for rule, many in STRENGTHS.items() for one in many]
    if gradients:
        found += [BaseRule("gradient", caution) for caution in CAUTIONS]
        found += [BaseRule("gradient-clusters", count) for count in CLUSTERS]
    return (Candidate(LOCAL), *(Candidate(base, own) for base in found for own in OWN_SHARES))


def budgeted_family(views: Sequence[int], gradients: bool) -> tuple[Candidate, ...]:
    """The candidates for learners that are slow to train, the most promising first.

    Clusters cost one model each, whatever the number of agents. Which candidates stay was settled on the covariate-shift
    generator; soft weights without own data, and the finer grids, gained nothing there.

    Parameters
    ----------
    views : sequence of int
        The views to compare agents by, the usual one first.
    gradients : bool
        Whether the learner has loss gradients.
    """
    few = [BaseRule("clusters", count, view) for view in views for count in CLUSTERS]
    soft = [BaseRule("entropic", 0.1, 0), *([BaseRule("gradient", CAUTION)] if gradients else [])]
    soft += [BaseRule("entropic", 0.1, view) for view in views[1:]]
    soft += [BaseRule("similarity-test", 1.0, view) for view in views]
    soft += [BaseRule("q-aggregation", 1000, 0), BaseRule("entropic", 1.0, 0), GRAND_MEAN]
    return (
        Candidate(LOCAL),
        Candidate(GRAND_MEAN),
        *(Candidate(base) for base in few[:2]),
        *(Candidate(base, 0.3) for base in soft),
        *(Candidate(base) for base in few[2:]),
        *(Candidate(base, own) for own in (0.5, 0.0) for base in soft if own or base != GRAND_MEAN),
    )


def neighbours(candidates: Sequence[Candidate]) -> list[list[int]]:
    """For every candidate those an agent may move to: other shares of own data, learning alone, and the grand mean.

    All agents train by one plan; what they weigh may differ.
    """
    kin: dict[tuple[Plan, BaseRule], list[int]] = {}
    common: dict[Plan, list[int]] = {}
    for place, candidate in enumerate(candidates):
        kin.setdefault((candidate.plan, candidate.base), []).append(place)
        if candidate.base == LOCAL or (candidate.base == GRAND_MEAN and not candidate.own):
            common.setdefault(candidate.plan, []).append(place)
    return [sorted({*kin[candidate.plan, candidate.base], *common.get(candidate.plan, [])}) for candidate in candidates]


@dataclass(frozen=True, eq=False)
class Judged:
    """Candidates, and what every agent tells of them; NaN for candidates it did not try."""

    candidates: tuple[Candidate, ...]
    scores: list[AgentScores]

    @property
    def local(self) -> int:
        """Learning alone from scratch, as long as it was trained."""
        alone = [place for place, one in enumerate(self.candidates) if one.base == LOCAL and not one.plan.warm]
        return max(alone, key=lambda place: self.candidates[place].plan.share)


JOIN, STAY, UNKNOWN = "join", "stay local", "no clear difference"
"""Advice. The last says nothing of how much data there is: a large agent may hardly gain, a small one may not know."""

CLEAR_DEVIATIONS = 1.0
"""Posterior standard deviations beyond which an agent is advised to join or to stay local."""

NEGATIVE_SCORE = "negative score"
"""The loss of learners without a target: minus what they call their score. It may be negative, so it has no shares."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of all candidates and what was chosen.

    Attributes
    ----------
    candidates : tuple of Candidate
    views : tuple of str
        Names of the views the candidates speak of.
    choice : Choice
    loss : str
        What a score is.
    local : int
        The candidate of learning alone, from scratch.
    exchanged : tuple of str
        What every agent sent for it, in numbers.
    budgeted : bool
        Whether candidates were halved successively, because the learner is slow to train.
    """

    candidates: tuple[Candidate, ...]
    views: tuple[str, ...]
    choice: Choice
    loss: str
    local: int
    exchanged: tuple[str, ...]
    budgeted: bool = False

    def among(self, places: NDArray[np.int64]) -> Calibration:
        """The same for some of the agents; whoever came after the choice was made is none of them."""
        known = places[places < len(self.choice.personal)]
        return self._of_agents(lambda array, nothing: array[known])

    def beside(self, places: NDArray[np.int64], count: int) -> Calibration:
        """The same for agents at these places among `count`; the others have no scores."""

        def spread(array: NDArray[Any], nothing: float) -> NDArray[Any]:
            wide = np.full(count, nothing, dtype=array.dtype)
            wide[places] = array
            return wide

        return self._of_agents(spread)

    def _of_agents(self, change: Callable[[NDArray[Any], float], NDArray[Any]]) -> Calibration:
        choice = self.choice
        return replace(
            self,
            choice=replace(
                choice,
                personal=change(choice.personal, choice.chosen),
                versus_local=change(choice.versus_local, np.nan),
                versus_local_error=change(choice.versus_local_error, np.nan),
            ),
        )

    @property
    def has_shares(self) -> bool:
        """Whether a difference of the loss can be told as a share of it; otherwise it is told in units typical of it."""
        return self.loss != NEGATIVE_SCORE

    @property
    def judged(self) -> bool:
        """Whether any agent held points out and judged the candidates on them."""
        return bool(np.isfinite(self.choice.versus_local).any())

    @property
    def candidate(self) -> Candidate:
        """The best candidate for the federation."""
        return self.candidates[self.choice.chosen]

    @property
    def common(self) -> int | None:
        """The best candidate that trains one common model for all; None if there is none."""
        all_alike = [one.base == GRAND_MEAN and not (one.own or one.plan.own) for one in self.candidates]
        found = np.flatnonzero(all_alike).tolist()
        return min(found, key=self._score, default=None)

    @property
    def mixture(self) -> dict[Candidate, float]:
        """The candidates that make up the federation's weights, and the share of each."""
        return {self.candidates[place]: float(self.choice.shares[place]) for place in np.flatnonzero(self.choice.shares)}

    @property
    def chosen(self) -> str:
        """The federation's candidate in words."""
        return self.candidate.describe(self.views)

    def personal(self, agent: int) -> str:
        """What one agent uses, in words."""
        place = self.choice.personal[agent]
        return "as the federation" if place == self.choice.chosen else self.candidates[place].describe(self.views)

    @property
    def table(self) -> pandas.DataFrame:
        """A row per candidate, the best first.

        Columns: score (mean, relative to learning alone; a negative score in units typical of it), standard error (of the
        difference to the best), share (in the federation's weights), own choice of (how many agents took it for
        themselves).
        """
        alone = self._unit(self.local)
        taken = np.bincount(self.choice.personal, minlength=len(self.candidates))
        frame = pandas.DataFrame(
            {
                "score": self.choice.mean / alone,
                "standard error": self.choice.error / alone,
                "share": self.choice.shares,
                "own choice of": np.where(np.arange(len(taken)) == self.choice.chosen, 0, taken),
            },
            index=pandas.Index([candidate.describe(self.views) for candidate in self.candidates], name="candidate"),
        )
        return frame.sort_values("score", kind="stable")

    @property
    def plot(self) -> CalibrationPlots:
        """What can be drawn: ``plot.scores()``."""
        return CalibrationPlots(self)

    def price(self, place: int) -> tuple[float, float]:
        """How much higher the score would be with that candidate for all, and its error.

        Both are relative to the best candidate; a negative score is told in units typical of it.
        """
        unit = self._unit(self.choice.chosen)
        more = self.choice.mean[place] - self.choice.mean[self.choice.chosen]
        return float(more / unit), float(self.choice.error[place] / unit)

    def advice(self, agent: int) -> str:
        """Whether that agent should join: "join", "stay local", or "no clear difference"."""
        versus, error = self.choice.versus_local[agent], self.choice.versus_local_error[agent]
        candidate = self.candidates[self.choice.personal[agent]]
        if candidate.base == LOCAL and not candidate.plan.warm and np.isfinite(versus):
            return STAY
        if np.isnan(versus) or abs(versus) <= CLEAR_DEVIATIONS * error:
            return UNKNOWN
        return JOIN if versus < 0 else STAY

    def describe(self) -> list[str]:
        """What was chosen, and what other choices would have cost, in sentences."""
        sentences = [f"chosen for the federation, of {len(self.candidates)} candidates: {self.chosen}"]
        if len(self.candidates) == 1:
            sentences = ["nothing could be judged, so every agent learns alone"]
        if len(self.mixture) > 1:
            share = self.mixture[self.candidate]
            sentences.append(f"it has {share:.0%} of the weights, {len(self.mixture) - 1} others about as good the rest")
        prices = {"learning alone": self.local, "one common model": self.local if self.common is None else self.common}
        for name, place in prices.items():
            price, error = self.price(place)
            told = np.isfinite(price) and place != self.choice.chosen
            if told and not (name != "learning alone" and place == self.local):
                shares = f"{price:+.1%} ± {error:.1%} of the {self.loss}"
                units = f"{price:+.3g} ± {error:.2g} units of the {self.loss}"
                sentences.append(f"{name} instead would cost {shares if self.has_shares else units}")
        own = int((self.choice.personal != self.choice.chosen).sum())
        departs = "does better with a choice of its own" if own == 1 else "do better with a choice of their own"
        sentences.append(f"{own} of {len(self.choice.personal)} agents {departs}")
        advice = [self.advice(agent) for agent in range(len(self.choice.personal))]
        sentences.append(", ".join(f"{advice.count(word)} {word}" for word in (JOIN, STAY, UNKNOWN)))
        return [*sentences, *self.exchanged]

    def _repr_html_(self) -> str:
        return card("Calibration", listing(self.describe()), table(self.table, f"Candidates by their {self.loss}"))

    def _unit(self, place: int) -> float:
        """A candidate's mean score, to express others in; scores that may be zero or negative are left as they are."""
        score = float(self.choice.mean[place])
        return score if score > 0 and self.has_shares else 1.0

    def _score(self, place: int) -> float:
        return float(np.nan_to_num(self.choice.mean[place], nan=np.inf))
