"""Candidates tried where all points are in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.embedding import Embedding
from kinfed.learners.base import Extent, Learner, Models, Task
from kinfed.learners.inputs import label_codes
from kinfed.learners.plan import common_model
from kinfed.validation import FloatArray
from kinfed.weights.calibration.family import Base, Member, geometric_bases, gradient_bases, used_views
from kinfed.weights.calibration.folds import deal_folds, without_fold
from kinfed.weights.calibration.scores import KeptLosses, point_losses
from kinfed.weights.calibration.trials import AgentScores, Monitor, Split
from kinfed.weights.geometry import Geometry, explicit_geometry
from kinfed.weights.rules.gradient_agents import PooledGradientAgents

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EmbeddedAgents:
    """The agents as one embedding shows them; points are embedded when first asked for, and once.

    Attributes
    ----------
    federation : Federation
    embedding : Embedding
    """

    federation: Federation
    embedding: Embedding

    @cached_property
    def points(self) -> list[FloatArray]:
        """One (n_k, D) array per agent."""
        return [self.embedding(agent) for agent in self.federation]

    def geometry(self, kept: Sequence[NDArray[np.bool_]] | None = None, targets: Iterable[int] | None = None) -> Geometry:
        """Geometry of the points, or of those that are kept."""
        points = self.points if kept is None else [mine[rows] for mine, rows in zip(self.points, kept, strict=True)]
        named = dict(zip(self.federation.names, points, strict=True))
        return explicit_geometry(named, norm_bound=self.embedding.norm_bound, targets=targets)


@dataclass(frozen=True, eq=False)
class _Part:
    """What is trained on in one split; `kept` marks it among each agent's points, where some are set aside."""

    split: Split | None
    train: Federation
    kept: list[NDArray[np.bool_]]


class PooledTrials:
    """The agents of a federation whose points are in one place; see `Trials`.

    Parameters
    ----------
    federation : Federation
        Numeric training data, columns standardised.
    embeddings : sequence of Embedding
        The views of the agents.
    task : {"regression", "classification", "unsupervised"}
    seed : int
        Of folds, learners and projections.
    geometry : Geometry, optional
        Of all points in the first view, where it is there already.
    """

    def __init__(
        self,
        federation: Federation,
        embeddings: Sequence[Embedding],
        task: Task,
        seed: int = 0,
        geometry: Geometry | None = None,
    ) -> None:
        self._federation, self._task, self._seed, self._geometry = federation, task, seed, geometry
        self._views = [EmbeddedAgents(federation, embedding) for embedding in embeddings]
        self._last: _Part | None = None
        self._columns: dict[Member, int] = {}
        self._losses = [KeptLosses.nothing(len(agent)) for agent in federation]

    @cached_property
    def sizes(self) -> Places:
        """How many points each agent has."""
        return self._federation.sizes

    @cached_property
    def extent(self) -> Extent:
        """The extent of all data."""
        federation = self._federation
        n_classes = len(label_codes(federation)[0]) if self._task == "classification" else 0
        return Extent(federation.dim, len(federation), int(self.sizes.sum()), n_classes)

    def training_sizes(self, split: Split | None) -> Places:
        """How many points each agent trains on."""
        return self._part(split).train.sizes

    def judges(self, split: Split) -> Places:
        """The agents that set points aside, in order."""
        return np.flatnonzero(self.training_sizes(split) < self.sizes)

    def can_train(self, split: Split) -> bool:
        """Whether a classifier still sees two classes; with so few labels that a fold takes one away, it is left out."""
        train = self._part(split).train
        if self._task != "classification":
            return True
        return len(np.unique(np.concatenate([np.asarray(agent.y) for agent in train]))) > 1

    def each(self, splits: Sequence[Split], judge: Callable[[Split], None], progress: Callable[[int, int], None]) -> None:
        """Judge every split, one after the other."""
        for done, split in enumerate(splits, 1):
            judge(split)
            progress(done, len(splits))

    def bases(
        self, split: Split | None, learner: Learner, wanted: Iterable[Base], targets: Places, *, thrifty: bool
    ) -> dict[Base, Array]:
        """Weights of the targets by every base that is wanted."""
        part, bases = self._part(split), list(wanted)
        geometries = {view: self._view(view, part, targets) for view in used_views(bases)}
        found = geometric_bases(bases, geometries, targets, part.train.sizes)
        if any(base.learns for base in bases):
            agents = PooledGradientAgents(part.train, learner, seed=self._seed)
            found |= gradient_bases(bases, agents, targets, common=thrifty)
        return found

    def fit(
        self,
        split: Split | None,
        learner: Learner,
        rows: Array,
        targets: Places,
        *,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train one model per weight row."""
        watched: dict[str, Any] = {} if monitor is None else {"monitor": monitor, "monitor_every": monitor_every}
        return learner.fit(self._part(split).train, rows, targets=targets, seed=self._seed, **watched)

    def common(self, split: Split | None, learner: Learner) -> Models:
        """One common model."""
        return common_model(learner, self._part(split).train, seed=self._seed)

    def score(
        self, split: Split, models: Models, members: Sequence[Member], agents: Places, *, tell: bool = False
    ) -> dict[int, Array]:
        """Let agents judge models on the points they set aside."""
        kept = self._part(split).kept
        columns = [self._columns.setdefault(member, len(self._columns)) for member in members]
        told = {}
        for place, t in enumerate(agents.tolist()):
            agent, aside = self._federation[t], ~kept[t]
            y = None if agent.y is None else np.asarray(agent.y)[aside]
            rows = [number * len(agents) + place for number in range(len(members))]
            losses = point_losses(models, rows, agent.X[aside], y, self._task)
            self._losses[t] = self._losses[t].keep(split.repeat, aside, columns, losses)
            if tell:
                told[t] = losses.mean(axis=0)
        return told

    def tally(self, members: Sequence[Member]) -> list[AgentScores]:
        """Scores of every agent, over all points it judged for these members."""
        columns = [self._columns.get(member, len(self._columns)) for member in members]
        return [mine.scores(columns) for mine in self._losses]

    def _part(self, split: Split | None) -> _Part:
        """The training part of a split; all questions about one split come together, so the last one is kept."""
        if self._last is None or self._last.split != split:
            if split is None:
                self._last = _Part(None, self._federation, [])
            else:
                dealt = deal_folds(self._federation, split.folds, self._seed, split.repeat)
                train = without_fold(self._federation, dealt, split.fold)
                self._last = _Part(split, train, [mine != split.fold for mine in dealt])
        return self._last

    def _view(self, view: int, part: _Part, targets: Places) -> Geometry:
        if part.split is not None:
            return self._views[view].geometry(part.kept, targets)
        if view == 0 and self._geometry is not None and np.array_equal(self._geometry.targets, targets):
            return self._geometry
        return self._views[view].geometry(targets=targets)
