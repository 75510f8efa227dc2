"""What calibration found, for people: the table of scores, the choice, its price against simpler ones, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.weights.calibration.choice import Choice
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member

if TYPE_CHECKING:
    import pandas

JOIN, STAY, UNKNOWN = "join", "stay local", "too little data to say"


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
    def member(self) -> Member:
        """The best member for the federation."""
        return self.members[self.choice.chosen]

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

        Columns: score (mean, relative to learning alone), standard error (of the difference to the best), share (in the
        federation's weights), own choice of (how many agents took it for themselves).
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

    def price(self, place: int) -> tuple[float, float]:
        """How much higher the score would be with that member for all, relative to the best one, and its error."""
        unit = self._unit(self.choice.chosen)
        more = self.choice.mean[place] - self.choice.mean[self.choice.chosen]
        return float(more / unit), float(self.choice.error[place] / unit)

    def advice(self, agent: int) -> str:
        """Whether that agent should join: "join", "stay local", or "too little data to say"."""
        versus, error = self.choice.versus_local[agent], self.choice.versus_local_error[agent]
        member = self.members[self.choice.personal[agent]]
        if member.base == LOCAL and not member.plan.warm and np.isfinite(versus):
            return STAY
        if np.isnan(versus) or abs(versus) <= error:
            return UNKNOWN
        return JOIN if versus < 0 else STAY

    def describe(self) -> list[str]:
        """The choice in sentences."""
        sentences = [f"chosen for the federation, of {len(self.members)} members: {self.chosen}"]
        if len(self.mixture) > 1:
            share = self.mixture[self.member]
            sentences.append(f"it has {share:.0%} of the weights, {len(self.mixture) - 1} others about as good the rest")
        common = [place for place, one in enumerate(self.members) if one.base == GRAND_MEAN and not one.own]
        prices = {"learning alone": self.local, "one common model": min(common, key=self._score, default=self.local)}
        for name, place in prices.items():
            price, error = self.price(place)
            told = np.isfinite(price) and place != self.choice.chosen
            if told and not (name != "learning alone" and place == self.local):
                sentences.append(f"{name} instead would cost {price:+.1%} ± {error:.1%} of the {self.loss}")
        own = int((self.choice.personal != self.choice.chosen).sum())
        sentences.append(f"{own} of {len(self.choice.personal)} agents do better with a choice of their own")
        advice = [self.advice(agent) for agent in range(len(self.choice.personal))]
        sentences.append(", ".join(f"{advice.count(word)} {word}" for word in (JOIN, STAY, UNKNOWN)))
        return [*sentences, *self.exchanged]

    def _unit(self, place: int) -> float:
        """A member's mean score, to express others in; scores that may be zero or negative are left as they are."""
        score = float(self.choice.mean[place])
        return score if score > 0 else 1.0

    def _score(self, place: int) -> float:
        return float(np.nan_to_num(self.choice.mean[place], nan=np.inf))
