"""All rows here: the fastest way, for one machine and for studies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import ChooseEmbeddings, Fold, Places, Question, SiteState, SiteView, Task, TrainingSpec
from kinfed.backends.wire import arrays_of
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.data import Preparation
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.embedding import Embedding, common_scale, own_scale
from kinfed.federation import Agent, Federation
from kinfed.outcomes import class_weights, classes_of, label_codes
from kinfed.splitting import LEAST_PART, deal_rows
from kinfed.validation import Array, FloatArray

Found = TypeVar("Found")

_STATES = "states"


@dataclass(frozen=True, eq=False)
class PooledAgents:
    """The agents of a federation whose rows are all here; see `kinfed.backends.agents.Agents`.

    Attributes
    ----------
    whole : Federation
        Numeric training data, columns standardised; cells too far from everybody's are held, as others learn from them.
    task : {"regression", "classification", "unsupervised"}
    seed : int
        Of folds, learners and projections.
    embeddings : tuple of Embedding
    learner : Learner, optional
        What sites would be told to train; questions that train models need it.
    test : Federation, optional
        Prepared test data of the same agents.
    fold : Fold, optional
        The rows that are set aside.
    preparation : Preparation, optional
        What made the rows numbers.
    counted : Federation, optional
        Whose classes are counted where they are to be balanced: the agents before anybody joined; all by default.
    store : Store
        Where agents keep what a run that was killed goes on with.
    own : Federation, optional
        The same rows as they are, for the agents' own models; where they differ.
    screening : Screening
        What was found when agents were looked at beside each other.
    repeated : tuple of int
        Places of agents whose rows, as they are, come once more after all agents.
    """

    whole: Federation
    task: Task
    seed: int = 0
    embeddings: tuple[Embedding, ...] = ()
    learner: Any = None
    test: Federation | None = None
    fold: Fold | None = None
    preparation: Preparation | None = None
    counted: Federation | None = None
    store: Store = field(default=NOWHERE, repr=False)
    own: Federation | None = None
    screening: Screening = NO_SCREENING
    repeated: tuple[int, ...] = ()
    _states: dict[int, SiteState] = field(default_factory=dict, repr=False)
    _points: dict[int, list[FloatArray]] = field(default_factory=dict, repr=False)

    audit = None
    left_out: ClassVar[Mapping[int, str]] = MappingProxyType({})

    @classmethod
    def prepared(
        cls,
        train: Federation,
        test: Federation | None,
        learner: Any,
        choose: ChooseEmbeddings,
        *,
        standardise: bool = True,
        columns: Mapping[str, str] | None = None,
        seed: int = 0,
        store: Store = NOWHERE,
        robust: bool = True,
        trust: Collection[str] = (),
    ) -> PooledAgents:
        """The agents of a federation that lies here: raw tables become numbers, and the ways to compare them are chosen.

        Parameters
        ----------
        train, test : Federation
            Raw or numeric. Their rows are put into the order of `Federation.in_order`.
        learner : Learner
        choose : callable
            The ways to compare agents, from their scale.
        standardise : bool
        columns : mapping from column to str, optional
            What columns are, where that is chosen by hand.
        seed : int
        store : Store
            Checkpoint of the run.
        robust, trust
            As in `Preparation.fit_screened`.
        """
        train, test = train.in_order(), None if test is None else test.in_order()
        labels = None if learner.task == "unsupervised" else learner.task == "classification"
        how = {"chosen": columns, "labels": labels, "robust": robust, "trusted": trust}
        preparation, screening = Preparation.fit_screened(train, standardise, **how)  # type: ignore[arg-type]
        own = replace(preparation.transform(train), notes=preparation.notes(train))
        rows = preparation.held(train, own, screening, LEAST_PART)
        tested = None if test is None else preparation.transform(test)
        scales = [own_scale(agent, learner.task == "classification") for agent in own]
        scale = common_scale(rows.dim, scales, preparation.outcome)
        kept = store.load(_STATES)
        states = {} if kept is None else {k: SiteState(arrays_of(kept.arrays, k)) for k in range(len(rows))}
        found = (rows, learner.task, seed, choose(scale), learner, tested, None, preparation, None, store)
        return cls(*found, own, screening, _states=states)

    @cached_property
    def kept(self) -> list[NDArray[np.bool_]]:
        """Which of its rows each agent trains on."""
        if self.fold is None:
            return [np.ones(len(agent), dtype=bool) for agent in self.whole]
        repeat, fold, folds = self.fold
        how = folds, self.seed, repeat, LEAST_PART
        agents = (self.own or self.whole).agents[: len(self.whole) - len(self.repeated)]
        kept = [deal_rows(one.name, len(one), one.y, *how, one.group) != fold for one in agents]
        return kept + [kept[k] for k in self.repeated]

    @cached_property
    def rows(self) -> Federation:
        """The rows to train on."""
        if self.fold is None:
            return self.whole
        return replace(self.whole.rows(self.kept), groups=None)

    @cached_property
    def own_rows(self) -> Federation:
        """The rows to train on, as they are."""
        if self.own is None:
            return self.rows
        return self.own if self.fold is None else replace(self.own.rows(self.kept), groups=None)

    @cached_property
    def spec(self) -> TrainingSpec:
        """Names, sizes, columns and classes of the rows to train on."""
        rows = self.rows
        classes = classes_of([agent.y for agent in rows]) if self.task == "classification" else None
        known = classes, self.seed, self.task, self.embeddings
        return TrainingSpec(rows.names, rows.sizes, rows.dim, *known, self._class_weights(classes), self.screening)

    def _class_weights(self, classes: NDArray[Any] | None) -> NDArray[np.float64] | None:
        """What rows of some classes count; in a fold as with all rows."""
        wanted = getattr(self.learner, "class_weight", None)
        if classes is None or wanted is None:
            return None
        labels = [agent.y for agent in self.counted or self.whole]
        every = classes_of(labels)
        counts = sum(np.bincount(label_codes(y, every, ""), minlength=len(every)) for y in labels if y is not None)
        found = dict(zip(every.tolist(), class_weights(wanted, every, np.asarray(counts)), strict=True))
        return np.array([found.get(label, 1.0) for label in classes.tolist()])

    @cached_property
    def digest(self) -> str:
        """Of all rows to train on."""
        return self.rows.digest()

    def ask(self, question: Question[Found]) -> Found:
        """Let the question look at all rows."""
        found = question.pooled(self)
        changed = [state for state in self._states.values() if state.changed]
        if changed:
            kept = {f"{k}/{name}": array for k, state in self._states.items() for name, array in state.lasting.items()}
            self.store.save(_STATES, Kept(arrays=kept))
        for state in changed:
            state.changed = False
        return found

    def without(self, fold: Fold) -> PooledAgents:
        """The same agents, each without the rows it sets aside; what they keep for themselves is shared."""
        return replace(self, fold=fold)

    def joined(self, newcomer: Agent) -> PooledAgents:
        """These agents and one more, the last."""
        wider = replace(self.whole, agents=(*self.whole.agents, newcomer), groups=None)
        own = None if self.own is None else replace(self.own, agents=(*self.own.agents, newcomer), groups=None)
        there = {"whole": wider, "own": own, "counted": self.counted or self.whole, "test": None, "store": NOWHERE}
        return replace(self, **there, _states={}, _points={})  # type: ignore[arg-type]

    def setting_aside(self, places: Mapping[int, str]) -> tuple[PooledAgents, Places]:
        """The other agents alone, and where each of them stands among all."""
        there = np.setdiff1d(np.arange(len(self.whole)), list(places))
        whole, own, test = (None if one is None else one.select(there) for one in (self.whole, self.own, self.test))
        parts = {"whole": whole, "own": own, "test": test, "counted": self.counted or self.whole, "store": NOWHERE}
        return replace(self, **parts, _states={}, _points={}), there  # type: ignore[arg-type]

    def with_own_rows(self, places: Sequence[int], widen: Callable[[Array], Array]) -> Self:
        """These agents, and some of them once more with their rows as they are."""
        if self.own is None or not places:
            return self
        again = [replace(self.own[k], name=f"{self.own[k].name} for itself") for k in places]
        wider = replace(self.whole, agents=(*self.whole.agents, *again), groups=None)
        there = {"whole": wider, "own": None, "counted": self.counted or self.whole, "repeated": tuple(places)}
        return replace(self, **there, _points={})  # type: ignore[arg-type]

    def newcomers(self) -> Mapping[str, Agent]:
        """Nobody comes by itself where rows are given."""
        return {}

    def labelled(self, phase: str, again: Callable[[], NDArray[np.float64]] | None = None) -> Self:
        """Nothing crosses here, so that nothing is counted."""
        return self

    def in_training(self) -> Self:
        """Nobody is ever lost whose rows are here."""
        return self

    def leaving_out(self, places: Mapping[int, str]) -> Self:
        """Nobody is ever left out whose rows are here."""
        return self

    def side_by_side(self, jobs: Sequence[Callable[[], None]]) -> Sequence[Callable[[], None]]:
        """The jobs as they are, to be done one after the other: there is nobody to wait for."""
        return jobs

    def site(self, place: int) -> SiteView:
        """One agent, as it would see itself at a site of its own."""
        agent, aside = self.whole[place], ~self.kept[place]
        return SiteView(
            agent=self.rows[place],
            own=self.own_rows[place],
            aside=(agent if self.own is None else self.own[place]).rows(aside),
            aside_rows=aside,
            test=None if self.test is None else self.test[place],
            place=place,
            spec=self.spec,
            fold=self.fold,
            learner=self.learner,
            state=self._states.setdefault(place, SiteState()),
            preparation=self.preparation,
        )

    def points(self, view: int) -> list[FloatArray]:
        """Embedded points (n_k, D) of the rows to train on, one array per agent; all rows are embedded once."""
        if view not in self._points:
            self._points[view] = [self.embeddings[view](agent) for agent in self.whole]
        everything = self._points[view]
        return everything if self.fold is None else [one[mine] for one, mine in zip(everything, self.kept, strict=True)]

    @cached_property
    def made(self) -> dict[Hashable, Any]:
        """What questions have made of these rows, to be made once."""
        return {}
