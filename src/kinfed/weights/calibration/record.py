"""What calibration found, for people: the table of scores, the choice, its price against simpler ones, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.markup import card, listing, table
from kinfed.plotting.calibration import CalibrationPlots
from kinfed.weights.calibration.choice import Choice
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member

if TYPE_CHECKING:
    import pandas

JOIN, STAY, UNKNOWN = "join", "stay local", "too little data to say"

CLEAR_DEVIATIONS = 1.0
"""Posterior standard deviations beyond which an agent is advised to join or to stay local."""

NEGATIVE_SCORE = "negative score"
"""The loss of learners without a target: minus what they call their score. It may be negative, so it has no shares."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of all members and what was chosen.

    Attributes
    ----------
    members : tuple of Member
    views : tuple of str
        Names of the views the members speak of.
    choice : Choice
    loss : str
        What a score is.
    local : int
        The member of learning alone, from scratch.
    exchanged : tuple of str
        What every agent sent for it, in numbers.
    thrifty : bool
        Whether members raced, because the learner is slow to train.
    """

    members: tuple[Member, ...]
    views: tuple[str, ...]
    choice: Choice
    loss: str
    local: int
    exchanged: tuple[str, ...]
    thrifty: bool = False

    @property
    def has_shares(self) -> bool:
        """Whether a difference of the loss can be told as a share of it; otherwise it is told in units typical of it."""
        return self.loss != NEGATIVE_SCORE

    @property
    def judged(self) -> bool:
        """Whether any agent held points out and judged the members on them."""
        return bool(np.isfinite(self.choice.versus_local).any())

    @property
    def member(self) -> Member:
        """The best member for the federation."""
        return self.members[self.choice.chosen]

    @property
    def common(self) -> int | None:
        """The best member that trains one common model for all; None if there is none."""
        found = [place for place, one in enumerate(self.members) if one.base == GRAND_MEAN and not one.own]
        return min(found, key=self._score, default=None)

    @property
    def mixture(self) -> dict[Member, float]:
        """The members that make up the federation's weights, and the share of each."""
        return {self.members[place]: float(self.choice.shares[place]) for place in np.flatnonzero(self.choice.shares)}

    @property
    def chosen(self) -> str:
        """The federation's member in words."""
        return self.member.describe(self.views)

    def personal(self, agent: int) -> str:
        """What one agent uses, in words."""
        place = self.choice.personal[agent]
        return "as the federation" if place == self.choice.chosen else self.members[place].describe(self.views)

    @property
    def table(self) -> pandas.DataFrame:
        """A row per member, the best first.

        Columns: score (mean, relative to learning alone; a negative score in units typical of it), standard error (of the
        difference to the best), share (in the federation's weights), own choice of (how many agents took it for
        themselves).
        """
        import pandas

        alone = self._unit(self.local)
        taken = np.bincount(self.choice.personal, minlength=len(self.members))
        frame = pandas.DataFrame(
            {
                "score": self.choice.mean / alone,
                "standard error": self.choice.error / alone,
                "share": self.choice.shares,
                "own choice of": np.where(np.arange(len(taken)) == self.choice.chosen, 0, taken),
            },
            index=pandas.Index([member.describe(self.views) for member in self.members], name="member"),
        )
        return frame.sort_values("score", kind="stable")

    @property
    def plot(self) -> CalibrationPlots:
        """Figures: scores."""
        return CalibrationPlots(self)

    def price(self, place: int) -> tuple[float, float]:
        """How much higher the score would be with that member for all, and its error.

        Both are relative to the best member; a negative score is told in units typical of it.
        """
        unit = self._unit(self.choice.chosen)
        more = self.choice.mean[place] - self.choice.mean[self.choice.chosen]
        return float(more / unit), float(self.choice.error[place] / unit)

    def advice(self, agent: int) -> str:
        """Whether that agent should join: "join", "stay local", or "too little data to say"."""
        versus, error = self.choice.versus_local[agent], self.choice.versus_local_error[agent]
        member = self.members[self.choice.personal[agent]]
        if member.base == LOCAL and not member.plan.warm and np.isfinite(versus):
            return STAY
        if np.isnan(versus) or abs(versus) <= CLEAR_DEVIATIONS * error:
            return UNKNOWN
        return JOIN if versus < 0 else STAY

    def describe(self) -> list[str]:
        """The choice in sentences."""
        sentences = [f"chosen for the federation, of {len(self.members)} members: {self.chosen}"]
        if len(self.mixture) > 1:
            share = self.mixture[self.member]
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
        return card("Calibration", listing(self.describe()), table(self.table, f"Members by their {self.loss}"))

    def _unit(self, place: int) -> float:
        """A member's mean score, to express others in; scores that may be zero or negative are left as they are."""
        score = float(self.choice.mean[place])
        return score if score > 0 and self.has_shares else 1.0

    def _score(self, place: int) -> float:
        return float(np.nan_to_num(self.choice.mean[place], nan=np.inf))
