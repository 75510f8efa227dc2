"""Who takes part in a training: whoever is lost on the way is out of it for good, and the others go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kinfed.checkpoint import Kept, Store

_PIECE = "lost"


@dataclass(eq=False)
class LostAgents:
    """Agents that were lost in the trainings of a run, in that order.

    An agent that one training has lost is lost to all others that go on or begin after it, whenever it comes back: what is
    trained side by side, or one after the other, has the same agents. A run that is killed and started again goes on
    without them.

    Attributes
    ----------
    store : Store
        Where they are kept.
    together : list of mappings from place to what happened
        Agents that were lost in the same exchange.
    """

    store: Store
    together: list[dict[int, str]] = field(default_factory=list)

    @classmethod
    def kept_in(cls, store: Store) -> LostAgents:
        """What a run that was cut off had lost; nothing at first."""
        kept = store.load(_PIECE)
        told = [] if kept is None else kept.settings["together"]
        return cls(store, [{int(place): str(what) for place, what in one} for one in told])

    def add(self, lost: Mapping[int, str]) -> None:
        """Remember that these agents are lost."""
        known = {place for one in self.together for place in one}
        new = {place: what for place, what in lost.items() if place not in known}
        if new:
            self.together.append(new)
            self.store.save(_PIECE, Kept({"together": [list(one.items()) for one in self.together]}))


@dataclass(eq=False)
class TakingPart:
    """Who has a part in what is asked.

    Attributes
    ----------
    lost : LostAgents, optional
        Of the run, where what is asked is one training, which has to know who takes part; elsewhere whoever does not answer
        is missing from that answer alone.
    out : dict from place to what happened
        Agents that are not asked.
    """

    lost: LostAgents | None = None
    out: dict[int, str] = field(default_factory=dict)

    follows: ClassVar[str] = (
        "it is out of the training, the others go on with weights without it, and it gets no model in this run"
    )

    @property
    def is_strict(self) -> bool:
        """Whether an answer that does not come is an error."""
        return self.lost is not None

    def lost_elsewhere(self, asked: Collection[int]) -> dict[int, str]:
        """Of those who are to be asked, whom another training has lost: the first that were, as here they are out now."""
        for together in [] if self.lost is None else self.lost.together:
            found = {place: what for place, what in together.items() if place in asked and place not in self.out}
            if found:
                self.out |= found
                return found
        return {}

    def lose(self, silent: Mapping[int, str]) -> Mapping[int, str]:
        """These agents did not answer: in a training they are out of it, for all."""
        if self.lost is None:
            return {}
        self.lost.add(silent)
        self.out |= silent
        return silent
