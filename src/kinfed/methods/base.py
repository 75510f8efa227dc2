"""What a method is: a whole way to personal models, written once against `Agents`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places, Question, SiteView, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Kept, Store
from kinfed.learners.base import Learner, Models, packed
from kinfed.priors.expectation import ExpectedGain
from kinfed.progress import Progress
from kinfed.weights import Weights

Record = TypeVar("Record")


@dataclass(frozen=True, eq=False)
class MethodContext:
    """What a method is given.

    Attributes
    ----------
    agents : Agents
        Whom it asks; the seed is theirs.
    learner : Learner
    rule : str
        How agents are weighed, for methods that weigh.
    options : mapping
        Of the rule, with group labels in the agents' order; or of a method with options of its own, which checks them.
    progress : callable, optional
    checkpoint : path, optional
        A folder of its own: what takes long is kept there.
    found : dict
        What a method finds on the way, beside its models; see `kinfed.result.Weighting.found`.
    before : Weights, optional
        Weights that were found when more agents were there: what was chosen then stays.
    again : callable, optional
        The weights of those who are still there, for a training that loses agents.
    """

    agents: Agents
    learner: Learner
    rule: str = "calibrated"
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    checkpoint: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)
    before: Weights | None = None
    again: Callable[[], Weights | None] | None = None

    def reporter(self, what: str) -> Callable[[int, int], None]:
        """What to call as ``report(done, total)``."""
        progress = self.progress
        return (lambda done, total: None) if progress is None else (lambda done, total: progress(what, done, total))


class KeptAnswers:
    """Agents who are asked once: what was found of their answers is kept, for a run that is killed and started again.

    Parameters
    ----------
    agents : Agents
    folder : path, optional
        Where; nothing is kept without one.
    """

    def __init__(self, agents: Agents, folder: Path | None) -> None:
        self._agents, self._store, self._asked = agents, Store(folder), Counter[str]()

    def ask(self, question: Question[Record], kind: type[Record]) -> Record:
        """What is found, a record of arrays of that kind; questions of a name are told apart by their number."""
        self._asked[question.name] += 1
        piece = f"{question.name} {self._asked[question.name]}"
        kept = self._store.load(piece)
        if kept is None:
            found = self._agents.ask(question)
            self._store.save(piece, Kept(arrays=dict(vars(found))))
            return found
        return kind(**kept.arrays)


class Method(ABC):
    """A whole way to personal models: one model per agent, in their order.

    Attributes
    ----------
    onboards : bool
        Whether an agent that comes later can be given a model: by `newcomer`, or where the run had weights, by the rule's
        weights and the weighted risk.
    """

    onboards: ClassVar[bool] = False

    def weigh(self, context: MethodContext) -> Weights | None:
        """Who listens to whom; None for a method without weights."""
        return None

    def expected(self, context: MethodContext) -> ExpectedGain | None:
        """What agents may expect to gain over learning alone, without final models; None where that is not predicted."""
        return None

    @abstractmethod
    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        """Train one model per agent, in the order of the agents."""

    def newcomer(
        self, spec: TrainingSpec, ask: Callable[[Question[Any]], Any], learner: Learner, found: Mapping[str, Any]
    ) -> Models:
        """The model of the last agent of `spec`, who came later, from what a run without weights found; as the only row."""
        raise NotImplementedError

    def pack(self, learner: Learner, models: Models, rows: Places) -> dict[str, NDArray[Any]]:
        """Models of some agents as arrays, to be sent home or saved."""
        return packed(learner, models, rows)

    def unpack(self, arrays: Arrays, site: SiteView) -> Models:
        """Models at their agent, which may have to look at its own rows, or at what it kept, to predict."""
        found: Models = site.learner.unpack(arrays, site.spec)
        return found

    def keep(self, learner: Learner, models: Models, row: int = 0) -> dict[str, NDArray[Any]]:
        """One agent's own model, as it is written into a file; what it needs of the agent's site is in it."""
        return packed(learner, models, np.array([row]))

    def restore(self, arrays: Arrays, learner: Learner, spec: TrainingSpec) -> Models:
        """The model that `keep` wrote, as the only row."""
        reader: Any = learner
        found: Models = reader.unpack(arrays, spec)
        return found

    @property
    def needs_site(self) -> bool:
        """Whether models predict at their agent only, who has a part of them."""
        return type(self).unpack is not Method.unpack
