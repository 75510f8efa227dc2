r"""A site: one agent's rows, and what it answers. Every channel runs this very code.

What an answer may hold is written with each question and nowhere else: counts, means and sums of columns, the mean of
random features, a row of weights, moments, parameters and derivatives of models, mean gradients, means and covariances of
losses, test scores; no rows, no features or losses of single points, no cells in errors. Of few rows an aggregate can be as
good as the rows, so a site of fewer than its own limit answers nothing.

Notes are arrays a site keeps for itself between two questions of one run: the fingerprint of the rows it began with, the
spec, and the state of questions. The fingerprint, and what lasts of the state, are also in files, for a run that is killed
and started again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import (
    QUESTIONS,
    Fold,
    KeepModel,
    Question,
    SiteState,
    SiteView,
    TrainingSpec,
    learner_for_task,
)
from kinfed.backends.audit import TO_AGENT, TO_SERVER, SiteAudit
from kinfed.backends.fingerprint import Fingerprint, changed
from kinfed.backends.handshake import HANDSHAKE, OwnTable
from kinfed.backends.redaction import discreet, nameless
from kinfed.backends.spec import FederationSpec, digest_of, learner_text
from kinfed.backends.transport import NO_SPEC
from kinfed.backends.wire import ENVELOPE, Arrays, Failure, Message, Request, arrays_of, payload_bytes
from kinfed.checkpoint import Kept, Store, digest
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.outcomes import outcome_as
from kinfed.splitting import LEAST_PART, deal_rows

Notes = Mapping[str, NDArray[Any]]

MOST_FOLDS = 10
"""Folds whose rows a session keeps at hand."""

_ROWS, _SPEC, _STATE = "rows", "agreement", "state/"
_STATES = "state"


@dataclass(frozen=True, eq=False)
class Site:
    """All an agent works with; nothing of it leaves but by an answer.

    Attributes
    ----------
    train : Federation
        Of this one agent; raw tables are welcome. Its rows are put into the order of `Federation.in_order`.
    test : Federation, or None
        Rows of the same agent, set aside to test models on; in that order too.
    place : int
        Where it stands among the agents; sites of equal places are ordered by name.
    learner : Learner
        What will be trained; the same at every site.
    keep_model : callable, optional
        Writes its own model into its folder; see `kinfed.backends.agents.SiteView`.
    least_rows : int
        With fewer rows to train on it answers nothing, and with fewer to set aside it sets none aside where what is made of
        the others would leave: few rows can be computed from aggregates of them.
    kept : path, optional
        Folder for what it keeps for itself, of one run: that of a run before is removed.
    audit : SiteAudit, optional
        Its own log of all that crosses.
    """

    train: Federation
    test: Federation | None
    place: int
    learner: Any
    keep_model: KeepModel | None = None
    least_rows: int = LEAST_PART
    kept: Path | None = None
    audit: SiteAudit | None = None
    _sessions: dict[str, SiteSession] = field(default_factory=dict, repr=False)
    _fingerprints: dict[bytes, Fingerprint] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.train) != 1 or (self.test is not None and self.test.names != self.train.names):
            raise InputError("a site holds the data of one agent, for training and for testing")
        object.__setattr__(self, "train", self.train.in_order())
        object.__setattr__(self, "test", None if self.test is None else self.test.in_order())

    @property
    def name(self) -> str:
        """The name of the one agent whose rows are here."""
        return self.train.names[0]

    def session(self, text: str) -> SiteSession:
        """The session under a spec; it is set up once for each."""
        if text not in self._sessions:
            self._sessions.clear()  # one spec at a time
            self._sessions[text] = SiteSession(self, text)
        return self._sessions[text]

    def recognise(self, known: Fingerprint) -> None:
        """Raise unless the rows are those of a fingerprint."""
        if known.key not in self._fingerprints:  # what was read stays as it is, and is looked at once
            self._fingerprints[known.key] = Fingerprint.of(self.train, self.test, known.key)
        known.recognise(self.name, self._fingerprints[known.key])

    def remembered(self, agreement: str, piece: str = _STATES) -> Arrays:
        """What it kept for itself under a spec before it was started anew; what it kept under others is removed."""
        if self.kept is None or not self.kept.exists():
            return {}
        mine = self._folder(agreement)
        for other in set(self.kept.iterdir()) - {mine}:
            shutil.rmtree(other, ignore_errors=True)
        found = None
        with suppress(InputError):  # what is damaged is as good as lost, and whoever needs it asks again
            found = Store(mine).load(piece)
        return {} if found is None else found.arrays

    def remember(self, agreement: str, arrays: Arrays, piece: str = _STATES) -> None:
        """Keep what it keeps for itself; where there is nothing to keep, nothing is left."""
        store = Store() if self.kept is None else Store(self._folder(agreement))
        if arrays:
            store.save(piece, Kept(arrays=arrays))
        elif (path := store.path(piece)) is not None:
            path.unlink(missing_ok=True)

    def _folder(self, agreement: str) -> Path:
        # The name too: sites that were given one folder by mistake must not take each other's.
        return (self.kept or Path()) / digest(agreement, self.name)[:32]


class OwnRows(NamedTuple):
    """Agents that are there once more with their rows as they are, and whether this one is asked about those."""

    repeated: tuple[int, ...] = ()
    asked: bool = False


class SiteSession:
    """One agent's prepared rows under a spec."""

    def __init__(self, site: Site, text: str) -> None:
        self.site, self.text, self.spec = site, text, _read_spec(text)
        if site.name not in self.spec.names:
            raise InputError(f"agent {site.name} is not part of this agreement; it joins as a newcomer")
        self.learner = learner_for_task(site.learner, self.spec.task)
        if learner_text(self.learner) != self.spec.learner:
            raise InputError(
                f"agent {site.name} would train {learner_text(self.learner)}, but the federation trains "
                f"{self.spec.learner}; use the same learner at every site"
            )
        self.place = self.spec.names.index(site.name)
        rows = int(self.spec.sizes[self.place])
        if len(site.train[0]) != rows:  # all that is known where a run goes on at a site that has no folder
            raise changed(site.name, rows, len(site.train[0]))
        self._views: dict[tuple[Fold | None, tuple[int, ...] | None, OwnRows], SiteView] = {}

    @cached_property
    def own(self) -> Agent:
        """The training rows as numbers, as they are."""
        return self._prepared(self.site.train)

    @cached_property
    def agent(self) -> Agent:
        """The same as others may learn from them."""
        own = replace(self.site.train, agents=(self.own,), columns=self.spec.preparation.columns)
        raw = replace(self.site.train, agents=(replace(self.site.train[0], y=self.own.y),))
        return self.spec.preparation.held(raw, own, self.spec.screening, self.site.least_rows)[0]

    @cached_property
    def test(self) -> Agent | None:
        """The test rows as numbers."""
        return None if self.site.test is None else self._prepared(self.site.test)

    def _prepared(self, rows: Federation) -> Agent:
        agent = self.spec.preparation.transform(rows)[0]
        if self.learner is self.site.learner:
            return agent
        return replace(agent, y=outcome_as(agent.y, self.spec.task, agent.name))

    def view(self, fold: Fold | None, classes: Sequence[int] | None, state: SiteState, own: OwnRows) -> SiteView:
        """What a question may look at; `classes` are the places of those that are left in a fold."""
        key = fold, None if classes is None else tuple(classes), own
        if key not in self._views:
            if len(self._views) > MOST_FOLDS:
                self._views.clear()
            self._views[key] = self._make_view(fold, self.spec.training(fold, classes), own)
        return replace(self._views[key], state=state)

    def _make_view(self, fold: Fold | None, training: TrainingSpec, rows: OwnRows) -> SiteView:
        agent, own, spec = self.own if rows.asked else self.agent, self.own, self.spec
        aside = np.zeros(len(agent), dtype=bool)
        if fold is not None:
            how = fold.folds, spec.seed, fold.repeat, self.site.least_rows
            aside = deal_rows(own.name, len(own), own.y, *how, agent.group) == fold.fold
        return SiteView(
            agent=agent.rows(~aside),
            own=own.rows(~aside),
            aside=own.rows(aside),
            aside_rows=aside,
            test=self.test,
            place=len(training.names) + rows.repeated.index(self.place) if rows.asked else self.place,
            spec=training.with_own_rows(rows.repeated),
            fold=fold,
            learner=self.learner,
            state=SiteState(),
            preparation=spec.preparation,
            keep_model=self.site.keep_model,
        )


def answer(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    """Answer a request, or raise an error that the server may hear; the notes are returned as they are to be kept.

    What came is in the site's own log, if it has one, before it is looked at, and an answer before it is sent.

    Parameters
    ----------
    site : Site
        The agent's rows.
    request : Request
    notes : mapping from name to array
        What this function returned as notes last time in this run; empty at first.
    """
    if site.audit is None:
        return _discreet_answer(site, request, notes)
    asked = _questions(request)
    site.audit.crossed(site.name, asked, TO_AGENT, payload_bytes(request), request.arrays)
    try:
        reply, kept = _discreet_answer(site, request, notes)
    except KinfedError as error:
        site.audit.missed(site.name, asked, str(error))
        raise
    site.audit.crossed(site.name, asked, TO_SERVER, payload_bytes(reply), reply.arrays)
    return reply, kept


def _questions(request: Request) -> str:
    """What is asked, each question once."""
    try:
        return ", ".join(dict.fromkeys(str(part["question"]) for part in request.settings["parts"]))
    except (KeyError, TypeError):
        return request.question


def _discreet_answer(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    try:
        if len(site.train[0]) < site.least_rows:
            raise InputError(
                f"this site has fewer than {site.least_rows} rows to train on, too few to answer; "
                "set least-rows in its node config to change that"
            )
        return _answer(site, request, _recognised(site, notes))
    except KinfedError as error:
        raise discreet(error, (site.name, *site.train.columns), [str(site.kept or "")]) from error
    except Exception as error:
        raise nameless(error, f"the question {request.question}") from error


def _recognised(site: Site, notes: Notes) -> Notes:
    """The notes, if the rows are still those that the run began with."""
    if _ROWS not in notes:
        return {**notes, _ROWS: Fingerprint.of(site.train, site.test).to_array()}
    site.recognise(Fingerprint.from_array(notes[_ROWS]))
    return notes


def _answer(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    if request.question in HANDSHAKE:
        test_rows = 0 if site.test is None else len(site.test[0])
        return HANDSHAKE[request.question](
            OwnTable(site.train, test_rows, site.place, site.learner, site.least_rows), request
        ), notes
    if request.question == "agree":
        return _agree(site, request, notes)
    if request.question == ENVELOPE:
        return _together(site, request, notes)
    return _answer_question(site, request, notes)


def _agree(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    """Take the spec, if the rows here fit it; what was kept in this run stays, as when somebody joins it."""
    text = str(request.settings["text"])
    session = site.session(text)
    agreement, kept = digest_of(text), {name: array for name, array in notes.items() if name != _SPEC}
    kept |= site.remembered(agreement, _ROWS)  # of a run that goes on: what was answered then is still used
    _recognised(site, kept)
    site.remember(agreement, {_ROWS: kept[_ROWS]}, _ROWS)
    kept |= {_STATE + name: array for name, array in site.remembered(agreement).items()}
    if site.audit is not None:
        told = session.spec.preparation.notes(site.train), session.spec.screening.about(site.name)
        site.audit.noted(site.name, [*told[0], *told[1]])
    return Message({"agreement": agreement}), {**kept, _SPEC: np.frombuffer(text.encode(), dtype=np.uint8)}


def _together(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    """Answer several requests that came as one, in their order."""
    told: list[Mapping[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for number, part in enumerate(request.settings["parts"]):
        own = Request(part["question"], part["settings"], arrays_of(request.arrays, number))
        try:
            reply, notes = _answer(site, own, notes)
        except KinfedError:
            raise
        except Exception as error:
            raise nameless(error, f"the question {own.question}") from error
        told.append(reply.settings)
        arrays |= {f"{number}/{name}": array for name, array in reply.arrays.items()}
    return Message({"parts": told}, arrays), notes


def _answer_question(site: Site, request: Request, notes: Notes) -> tuple[Message, Notes]:
    """Let a question look at the rows, under the spec."""
    question = question_named(request.question)
    settings, text = request.settings, notes[_SPEC].tobytes().decode() if _SPEC in notes else ""
    if not text or digest_of(text) != settings["agreement"]:
        raise InputError(NO_SPEC)
    given = settings.get("fold")
    state = SiteState({name[len(_STATE) :]: array for name, array in notes.items() if name.startswith(_STATE)})
    fold, repeated = None if given is None else Fold(*given), tuple(settings.get("repeated", ()))
    own = OwnRows(repeated, bool(settings.get("own rows")))
    view = site.session(text).view(fold, settings.get("classes"), state, own)
    reply = question.answer(view, Message(settings["asked"], request.arrays))
    signed = Message({"agreement": settings["agreement"], "answer": dict(reply.settings)}, reply.arrays)
    if not state.changed:
        return signed, notes
    site.remember(settings["agreement"], state.lasting)
    kept = {name: notes[name] for name in (_ROWS, _SPEC)}
    return signed, kept | {_STATE + name: array for name, array in state.items()}


def question_named(name: str) -> type[Question[Any]]:
    """The question of that name; one that is not known here is refused."""
    try:
        found = QUESTIONS[name]
    except InputError:
        known = "use the same kinfed, and the same extensions, at every site"
        raise InputError(f"there is no question {name}; {known}") from None
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = QUESTIONS[name] = getattr(import_module(module), attribute)
    question: Any = found
    return question


@lru_cache(maxsize=2)
def _read_spec(text: str) -> FederationSpec:
    """The spec, read once by all sites of a process: it holds the features, and the names of everybody."""
    return FederationSpec.from_text(text)


class InProcess:
    """A channel to sites of this process, asked one after another; see `kinfed.backends.wire.Channel`.

    Parameters
    ----------
    sites : sequence of Site
    """

    slow = False

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sites = {str(number): site for number, site in enumerate(sites)}
        self._notes: dict[str, Notes] = {address: {} for address in self._sites}

    def reachable(self) -> tuple[str, ...]:
        """The addresses of all sites: in one process none is ever away."""
        return tuple(self._sites)

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Message | Failure]:
        """Let every site answer; there is nobody else to wait for, so time is not limited."""
        answers: dict[str, Message | Failure] = {}
        for address, request in requests.items():
            try:
                answers[address], self._notes[address] = answer(self._sites[address], request, self._notes[address])
            except KinfedError as error:
                answers[address] = Failure(str(error), self._sites[address].name)
            except Exception as error:  # one agent may fail in any way; the others go on
                answers[address] = Failure(f"{type(error).__name__}: {error}", self._sites[address].name)
        return answers

    def close(self) -> None:
        """Forget what sites noted for later questions of this run."""
        self._notes = {address: {} for address in self._sites}


def sites_of(train: Federation, test: Federation | None, learner: Any, kept: Path | None = None) -> list[Site]:
    """One site per agent of a federation that lies here, in its order; `kept` is a folder for what they keep."""

    def alone(federation: Federation, k: int) -> Federation:
        return replace(federation.select([k]), groups=None)

    folders = [None if kept is None else kept / str(k) for k in range(len(train))]
    tests = [None if test is None else alone(test, k) for k in range(len(train))]
    return [Site(alone(train, k), tests[k], k, learner, kept=folders[k]) for k in range(len(train))]
