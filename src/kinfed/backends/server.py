"""Every agent a site: questions become messages, answers are checked, and whoever does not answer is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import (
    QUESTIONS,
    AgentsLostError,
    ChooseEmbeddings,
    Fold,
    Places,
    Question,
    TrainingSpec,
    learner_for_task,
)
from kinfed.backends.agreement import Introduction, agree_on_spec, introductions
from kinfed.backends.attendance import LostAgents, TakingPart
from kinfed.backends.audit import Absence, Audit
from kinfed.backends.request_batching import Joined, RequestBatching
from kinfed.backends.sketches import Sketches
from kinfed.backends.spec import FederationSpec, digest_of
from kinfed.backends.transport import AnswerCheck, TimeoutPolicy, Transport, Watch, nobody_watches, signed_under
from kinfed.backends.wire import Channel, Message, Request
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.validation import Array

Found = TypeVar("Found")

_AS_THEY_ARE = " of rows as they are"


@dataclass(eq=False)
class ServerSession:
    """What the server holds while sites work under one spec.

    Attributes
    ----------
    transport : Transport
    spec : FederationSpec
    learner : Learner
        What the federation trains, or what stands for it until the outcome is known.
    store : Store
        Where answers that depend on rows alone are kept, so that a server that was killed does not ask again.
    late : dict from name to Introduction
        Agents that are there without being part of the spec.
    data : str
        Tells the rows apart where they are known.
    """

    transport: Transport
    spec: FederationSpec
    learner: Any
    store: Store
    late: dict[str, Introduction] = field(default_factory=dict)
    data: str = ""

    def __post_init__(self) -> None:
        self.lost = LostAgents.kept_in(self.store)
        self.text = self.spec.to_text()
        self.digest = digest_of(self.text)
        self.places = {name: k for k, name in enumerate(self.spec.names)}
        self.asking: Transport | RequestBatching = self.transport

    def take_turn(self) -> None:
        """Exchanges are under this spec from now on: several sessions share a transport when somebody joins."""
        self.transport.spec = self.digest, self.text
        self.transport.roster = self.spec.names

    def agree(self) -> Collection[str]:
        """Tell every agent the spec, and hear who takes it; an answer that does not carry its digest is refused."""
        self.take_turn()
        request = Request("agree", {"text": self.text})
        return self.transport.ask("agreement", dict.fromkeys(self.spec.names, request), signed_under(self.digest)).keys()


@dataclass(eq=False)
class _Known:
    """What is known of the agents without one fold: shared by all views of it."""

    spec: TrainingSpec
    answers: dict[str, dict[int, Message]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    has_classes: bool = False


@dataclass(frozen=True, eq=False)
class RemoteAgents:
    """The agents of a federation, each a site that answers messages; see `kinfed.backends.agents.Agents`.

    Attributes
    ----------
    session : ServerSession
    fold : Fold, optional
        The rows that sites set aside.
    phase : str
        Under which the audit counts the exchanges of a training.
    part : TakingPart
        Who is asked, and whether an answer that does not come is an error.
    again : callable, optional
        Gives the rows of weights of a training anew when agents are lost.
    quiet : tuple of int
        Agents that are as if they were not there.
    repeated : tuple of int
        Agents that come once more after all, with their rows as they are.
    """

    session: ServerSession
    fold: Fold | None = None
    phase: str = ""
    quiet: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    part: TakingPart = field(default_factory=TakingPart, repr=False)
    again: Callable[[], NDArray[np.float64]] | None = field(default=None, repr=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), repr=False)
    _shared: list[_Known] = field(default_factory=list, repr=False)

    rows = None

    @property
    def _known(self) -> _Known:
        """What all views of this fold share."""
        if not self._shared:
            spec = self.session.spec.training(self.fold)
            spec = replace(spec, sizes=np.where(np.isin(np.arange(len(spec.names)), self.quiet), 0, spec.sizes))
            self._shared.append(_Known(spec.with_own_rows(self.repeated)))
        return self._shared[0]

    @property
    def spec(self) -> TrainingSpec:
        """Names, sizes, columns and classes of the rows to train on."""
        known, whole = self._known, self.session.spec.classes
        if self.fold is not None and whole is not None and not known.has_classes:
            known.has_classes = True  # by now: the sketches themselves are asked for under all classes
            left = self.ask(Sketches()).classes
            if left is not None and len(left) < len(whole):
                known.spec = known.spec.of_classes(left)
        return known.spec

    @property
    def learner(self) -> Any:
        """What is trained, decided on by the outcome if it was not before."""
        return learner_for_task(self.session.learner, self.session.spec.task)

    @property
    def preparation(self) -> Preparation:
        """What makes rows numbers at every site."""
        return self.session.spec.preparation

    @property
    def audit(self) -> Audit:
        """What crossed, and who missed what."""
        return self.session.transport.audit

    @property
    def digest(self) -> str:
        """Of the spec and, where they are known, of the rows."""
        return f"{self.session.digest} {self.session.data} {self.fold}"

    def ask(self, question: Question[Found]) -> Found:
        """Ask by messages; answers that depend on the rows alone are asked for once."""
        out = self.part.out
        asked = {k: message for k, message in question.messages(self.spec).items() if self._site(k) not in out}
        if question.about_data and any(one.settings or one.arrays for one in asked.values()):
            raise AssertionError(
                f"{question.name} is about rows alone, but what it asks has content: it cannot be kept by name"
            )
        known = self._known_answers(question.name) if question.about_data else {}
        missing = {k: message for k, message in asked.items() if k not in known}
        if missing and not (question.asked_once and question.name in self._known.asked):
            if not question.phase:  # of a training
                self._tell_of(self.part.lost_elsewhere({self._site(k) for k in missing}))
            given = self._exchange(question, missing)
            self._known.asked.add(question.name)
            if question.about_data:
                known |= given
                self._keep_answers(question.name, known)
            else:
                known = given
            silent = {self._site(k): self._last_absence(self._site(k)) for k in missing if k not in given}
            if silent and not question.phase:
                self._tell_of(self.part.lose(silent))
        return question.combine(self.spec, {k: known[k] for k in sorted(asked) if k in known})

    def _exchange(self, question: Question[Any], asked: Mapping[int, Message]) -> dict[int, Message]:
        session, spec = self.session, self._known.spec
        common: dict[str, Any] = {"agreement": session.digest}
        if self.fold is not None:
            common["fold"] = list(self.fold)
        everything = session.spec.classes
        fewer = spec.classes is not None and everything is not None and len(spec.classes) < len(everything)
        if fewer and not isinstance(question, Sketches):  # which tell what classes there are
            common["classes"] = np.flatnonzero(np.isin(everything, spec.classes)).tolist()  # type: ignore[arg-type]
        places: dict[str, list[int]] = {}
        for k in asked:
            places.setdefault(session.spec.names[self._site(k)], []).append(k)
        # What is asked of an agent for others and for itself travels together.
        joined = {
            name: Joined([self._request(question, k, asked[k], common) for k in mine]) for name, mine in places.items()
        }
        shared: dict[tuple[int, ...], Request] = {}
        requests = {name: one.joined(shared) for name, one in joined.items()}

        phase = question.phase or self.phase or question.name
        if not question.phase and self.phase:
            phase = f"{self.phase} {next(self._numbers)}"
        check = AnswerCheck(question, spec, session.digest, asked)
        separated: dict[str, dict[int, Message]] = {}

        def check_all(name: str, reply: Message) -> str | None:
            parts = joined[name].separated(reply)
            separated[name] = {k: parts[place or 0] for k, place in zip(places[name], joined[name].places, strict=True)}
            wrong = (check(k, one) for k, one in separated[name].items())
            return next((fault for fault in wrong if fault is not None), None)

        session.take_turn()
        found = session.asking.ask(phase, requests, check_all, question.quorum)
        follows = self.part.follows if self.part.is_strict and not question.phase else question.follows
        for name in requests.keys() - found.keys():
            session.transport.audit.follows(name, follows)
        return {k: Message(one.settings["answer"], one.arrays) for name in found for k, one in separated[name].items()}

    def _site(self, place: int) -> int:
        """The place of the agent who answers for a place: that of its rows as they are is another."""
        count = len(self.session.spec.names)
        return place if place < count else self.repeated[place - count]

    def _request(self, question: Question[Any], place: int, asked: Message, common: Mapping[str, Any]) -> Request:
        own = {} if not self.repeated else {"repeated": list(self.repeated), "own rows": place != self._site(place)}
        return Request(question.name, {**common, **own, "asked": asked.settings}, asked.arrays, question.about_data)

    def _tell_of(self, lost: Mapping[int, str]) -> None:
        """Say that agents are lost, if any are."""
        if lost:
            raise AgentsLostError({self.session.spec.names[k]: what for k, what in lost.items()}, self.again)

    def _last_absence(self, place: int) -> str:
        """What happened to an agent that has just not answered."""
        name = self.session.spec.names[place]
        told = next(one for one in reversed(self.audit.absences) if one.agent == name)
        return f"was lost in {told.phase} ({told.reason})"

    def without(self, fold: Fold) -> RemoteAgents:
        """The same agents, each without the rows it sets aside."""
        return RemoteAgents(self.session, fold, quiet=self.quiet, part=TakingPart(out=self.part.out))

    def setting_aside(self, places: Mapping[int, str]) -> tuple[Self, Places]:
        """The same agents as if some were not there: they are not asked, and have no rows as far as anybody knows."""
        fewer = replace(self.leaving_out(places), quiet=(*self.quiet, *places), _shared=[])
        fewer._known.answers = self._known.answers  # what is known of the others' rows
        return fewer, np.arange(len(self.session.spec.names))

    def with_own_rows(self, places: Sequence[int], widen: Callable[[Array], Array]) -> Self:
        """These agents, and some of them once more with their rows as they are."""
        again = self.again
        wider = None if again is None else lambda: widen(again())
        more = replace(self, repeated=tuple(places), again=wider, _shared=[])
        more._known.answers = self._known.answers
        return more

    def labelled(self, phase: str, again: Callable[[], NDArray[np.float64]] | None = None) -> Self:
        """The same agents, whose exchanges the audit counts under this name."""
        return replace(self, phase=phase, again=again, _numbers=count(1))

    @property
    def left_out(self) -> dict[int, str]:
        """Agents that have no part in this, by place, and what happened to them."""
        return dict(sorted(self.part.out.items()))

    def in_training(self) -> Self:
        """The same agents, for one training: whoever does not answer is out of it for good, and an error says so."""
        return replace(self, part=TakingPart(self.session.lost, dict(self.part.out)))

    def leaving_out(self, places: Mapping[int, str]) -> Self:
        """The same agents without some, who are not asked; nothing that they told is used."""
        return replace(self, part=TakingPart(out={**self.part.out, **places}))

    def side_by_side(self, jobs: Sequence[Callable[[], None]]) -> Sequence[Callable[[], None]]:
        """Together where exchanges are slow: their requests travel as one. Jobs of a job wait their turn."""
        if isinstance(self.session.asking, RequestBatching) or not self.session.transport.channel.slow:
            return jobs
        return [partial(self._together, jobs)]

    def _together(self, jobs: Sequence[Callable[[], None]]) -> None:
        batching = RequestBatching(self.session.transport)
        self.session.asking = batching
        try:
            batching.run(jobs)
        finally:
            self.session.asking = self.session.transport

    def newcomers(self) -> dict[str, Introduction]:
        """Agents that came late, by name."""
        session = self.session
        session.late |= introductions(session.transport, session.learner)
        return {name: one for name, one in session.late.items() if name not in session.spec.names}

    def joined(self, newcomer: Introduction) -> RemoteAgents:
        """These agents and one more, the last; nothing that is known of the others is asked for again."""
        session, spec = self.session, self.session.spec
        wider = replace(
            spec,
            names=(*spec.names, newcomer.name),
            sizes=np.append(spec.sizes, newcomer.rows),
            least=(*spec.least, newcomer.least_rows),
            aside=(*spec.aside, None),
        )
        joined = RemoteAgents(ServerSession(session.transport, wider, session.learner, NOWHERE, {}, session.data))
        for name in QUESTIONS:  # also what only the checkpoint knows
            joined._known.answers[name] = dict(self._answered(name))
        if newcomer.name not in joined.session.agree():
            raise InputError(f"agent {newcomer.name} does not take the agreement")
        return joined

    def _known_answers(self, question: str) -> dict[int, Message]:
        """What is known of a question about rows alone, by place; of rows as they are under a name of its own."""
        count = len(self.session.spec.names)
        own = self._answered(question + _AS_THEY_ARE) if self.repeated else {}
        again = {count + number: own[k] for number, k in enumerate(self.repeated) if k in own}
        return {**self._answered(question), **again}

    def _keep_answers(self, question: str, known: Mapping[int, Message]) -> None:
        count = len(self.session.spec.names)
        for name, some in (
            (question, {k: one for k, one in known.items() if k < count}),
            (question + _AS_THEY_ARE, {self._site(k): one for k, one in known.items() if k >= count}),
        ):
            if some:
                self._known.answers[name] = some
                self._keep(name, some)

    def _answered(self, question: str) -> dict[int, Message]:
        """What is known of a question about rows alone: from this run, or from one that was cut off."""
        known = self._known.answers
        if question not in known:
            kept = self.session.store.load(f"answers {question}") if self.fold is None else None
            known[question] = {} if kept is None else _unpacked(kept)
        return known[question]

    def _keep(self, question: str, known: Mapping[int, Message]) -> None:
        if self.fold is None and self.session.store.folder is not None:
            settings = {str(k): dict(one.settings) for k, one in known.items()}
            arrays = {f"{k}/{name}": array for k, one in known.items() for name, array in one.arrays.items()}
            self.session.store.save(f"answers {question}", Kept(settings, arrays))


@contextmanager
def connected(
    channel: Channel,
    learner: Any,
    choose: ChooseEmbeddings,
    store: Store,
    *,
    standardise: bool = True,
    robust: bool = True,
    trust: Collection[str] = (),
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    agents: int = 1,
    timeouts: TimeoutPolicy | None = None,
    log: Path | None = None,
    data: str = "",
    watch: Watch = nobody_watches,
) -> Iterator[RemoteAgents]:
    """The agents behind a channel, once they have agreed on one recipe; the channel is closed when the run is over.

    Parameters
    ----------
    channel : Channel
        The way to the sites.
    learner : Learner
        The same as at every site.
    choose : callable
        The ways to compare agents, from their scale.
    store : Store
        Checkpoint of the run: one that was killed goes on with the recipe it had.
    standardise : bool
    robust, trust
        As in `Preparation.fit_screened`.
    columns : mapping from column to str, optional
        What columns are, where that is chosen by hand.
    seed : int
    agents : int
        How many to wait for, as long as a phase may take; then those that are there begin.
    timeouts : TimeoutPolicy, optional
    log : path, optional
        Log of all that crosses.
    data : str
        Tells the rows apart where they are known.
    watch : callable
        Told of every exchange.
    """
    audit = Audit()
    try:
        audit = _audit(log, store)
        transport = Transport(channel, timeouts or TimeoutPolicy(), audit, watch=watch)
        transport.wait_for(agents)
        there = introductions(transport, learner)
        kept = store.load("agreement")
        if kept is None:
            found = agree_on_spec(transport, there, learner, choose, standardise, seed, columns or {}, robust, trust)
            spec = replace(found, run=uuid4().hex)
            store.save("agreement", Kept({"text": spec.to_text()}))
        else:
            spec = FederationSpec.from_text(kept.settings["text"])
            audit.note("an earlier run is resumed")
        late = {name: one for name, one in there.items() if name in transport.addresses and name not in spec.names}
        session = ServerSession(transport, spec, learner, store, late, data)
        if kept is None:
            session.agree()
        yield RemoteAgents(session)
        audit.note("the run is complete")
    except BaseException as error:
        audit.note(f"the run ended early: {error}")
        raise
    finally:
        channel.close()
        audit.close()


def _audit(path: Path | None, store: Store) -> Audit:
    """The book of the run; who missed what before it was resumed is still known."""
    kept = store.load("attendance")
    absences = [] if kept is None else [Absence(*one) for one in kept.settings["absences"]]

    def keep(missed: list[Absence]) -> None:
        store.save("attendance", Kept({"absences": [list(astuple(one)) for one in missed]}))

    return Audit(path, absences, keep)


def _unpacked(kept: Kept) -> dict[int, Message]:
    found: dict[int, Message] = {}
    for place, settings in kept.settings.items():
        start = f"{place}/"
        arrays = {name[len(start) :]: array for name, array in kept.arrays.items() if name.startswith(start)}
        found[int(place)] = Message(settings, arrays)
    return found
