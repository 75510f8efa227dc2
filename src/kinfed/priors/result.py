"""What stacking found, for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from kinfed.markup import card, paragraph, table
from kinfed.plotting.style import thumbnail
from kinfed.priors.expectation import ExpectedGain
from kinfed.priors.normal import Priors
from kinfed.priors.stacking import NOTHING
from kinfed.validation import Array

_NAMED = 4  # members that a sentence names


@dataclass(frozen=True, eq=False)
class Stacking:
    """Which members of the family share in the personal models, and who speaks in whose.

    Attributes
    ----------
    names : tuple of str
        The B agents.
    members : tuple of str
        The M members that have a share.
    shares : array of shape (M,)
    judged : array of shape (B,)
        How many rows of each agent the members were judged on.
    losses : array of shape (B, M)
        Mean out-of-fold losses.
    influence : array of shape (B, B)
        Row t: whose outcomes agent t's fitted values follow; every row sums to one.
    priors : Priors
        Of these members, from all agents: what an agent that comes later begins with.
    expected : ExpectedGain, optional
        What every agent may expect to gain over learning alone.
    own_shares : array of shape (B, M), optional
        Shares in everybody's own model, where these depart from `shares` as its own rows say.
    """

    names: tuple[str, ...]
    members: tuple[str, ...]
    shares: Array
    judged: Array
    losses: Array
    influence: Array
    priors: Priors
    expected: ExpectedGain | None = None
    own_shares: Array | None = None

    @property
    def table(self) -> pandas.DataFrame:
        """A row per member: its share, and its mean out-of-fold loss over agents."""
        seen = self.judged > 0
        losses = self.losses[seen].mean(axis=0) if seen.any() else np.full(len(self.members), np.nan)
        columns = {"share": self.shares, "out-of-fold loss": losses}
        found = pandas.DataFrame(columns, index=pandas.Index(self.members, name="member"))
        return found.sort_values("share", ascending=False)

    @property
    def influence_table(self) -> pandas.DataFrame:
        """A row per agent: whose outcomes its fitted values follow."""
        return pandas.DataFrame(
            self.influence, index=pandas.Index(self.names, name="agent"), columns=pandas.Index(self.names, name="of")
        )

    @property
    def departs(self) -> bool:
        """Whether agents have shares of their own."""
        return self.own_shares is not None and bool(np.abs(self.own_shares - self.shares).max(initial=0.0) > NOTHING)

    @property
    def own(self) -> Array:
        """How much each agent's fitted values follow its own outcomes (B,)."""
        return np.diagonal(self.influence)

    def __str__(self) -> str:
        shares = self.table["share"]
        shown = "; ".join(f"{name} ({share:.0%})" for name, share in shares.head(_NAMED).items())
        others = len(shares) - _NAMED
        rest = f"; {others} other{'s' * (others > 1)} ({shares.iloc[_NAMED:].sum():.0%})" if others > 0 else ""
        combined = f"one combination of {len(shares)} priors" if len(shares) > 1 else "one prior"
        departs = ", from which agents depart as their own rows say" if self.departs else ""
        return (
            f"{combined} for all agents{departs}: {shown}{rest}; in the median agent its own outcomes have "
            f"{np.median(self.own):.0%} of the influence on the fitted values"
        )

    @property
    def explanation(self) -> pandas.DataFrame:
        """A row per agent: the rows it judged, its own influence, and the three others that speak most in its model.

        Where agents have shares of their own, also the prior with the largest.
        """
        others = self.influence * (1 - np.eye(len(self.names)))
        loudest = np.argsort(-others, axis=1, kind="stable")[:, :3]
        heard = [
            ", ".join(f"{self.names[k]} ({row[k]:.1%})" for k in places if row[k] > 0)
            for row, places in zip(others, loudest, strict=True)
        ]
        columns = {"judged": self.judged.astype(np.int64), "own influence": self.own, "who else speaks": heard}
        if self.departs and self.own_shares is not None:
            most = self.own_shares.argmax(axis=1)
            columns["largest share"] = [
                f"{self.members[place]} ({row[place]:.0%})" for place, row in zip(most, self.own_shares, strict=True)
            ]
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="agent"))

    def _repr_html_(self) -> str:
        from kinfed.analysis.ties import Ties  # which clusters, and is needed for pictures only

        order = Ties("influence", self.names, self.judged.astype(np.int64), self.influence).order
        others = np.where(np.eye(len(order), dtype=bool), np.nan, self.influence[np.ix_(order, order)])
        return card(
            f"Stacked priors of {len(self.names)} agents",
            paragraph(f"{str(self)[:1].upper()}{str(self)[1:]}."),
            thumbnail(others, "Influence, a row per model and a column per agent that speaks in it, kin side by side"),
            table(self.table, "Priors and their shares"),
            table(self.explanation, "Who speaks in whose model"),
        )
