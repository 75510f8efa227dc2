"""What stacking found, for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from kinfed.priors.expectation import ExpectedGain
from kinfed.validation import Array


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
    expected : ExpectedGain, optional
        What every agent may expect to gain over learning alone.
    """

    names: tuple[str, ...]
    members: tuple[str, ...]
    shares: Array
    judged: Array
    losses: Array
    influence: Array
    expected: ExpectedGain | None = None

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
    def own(self) -> Array:
        """How much each agent's fitted values follow its own outcomes (B,)."""
        return np.diagonal(self.influence)

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {share:.0%}" for name, share in self.table["share"].head(4).items())
        return (
            f"a combination of {len(self.members)} priors ({shown}); agents' fitted values follow their own outcomes by "
            f"{np.median(self.own):.0%} (median), and others' by the rest"
        )
