"""Exchanges with many sites at once: whom to ask, what to believe, and when to give up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinfed.backends.agents import Question, QuorumError, TrainingSpec
from kinfed.backends.audit import TO_AGENT, TO_SERVER, Absence, Audit
from kinfed.backends.wire import KINDS, Arrays, Channel, Failure, Message, Request, form_fault, payload_bytes
from kinfed.errors import InputError
from kinfed.validation import short_text

NO_SPEC = "the agreement is not known here"
"""How a site says that it lost its notes, as one that was started anew does; it is then told again."""

# Seconds to wait for strangers that may be agents come back, and between two looks for them.
_RETURN = 60.0
_LOOK = 0.5

Check = Callable[[str, Message], str | None]
"""What is wrong with an agent's answer, in a few words; None if nothing is."""


Watch = Callable[[str, int, Mapping[str, str]], None]
"""Told of every exchange: its phase, how many answered, and why the others did not, by agent."""


def nobody_watches(phase: str, answered: int, missed: Mapping[str, str]) -> None:
    """What is told of exchanges where nobody watches."""


@dataclass(frozen=True)
class TimeoutPolicy:
    """How long to wait, and for how many.

    Attributes
    ----------
    seconds : float
        Time every phase or round may take; whoever has not answered by then is left out of it. Whoever goes away and is
        back by then is asked again.
    quorum : float
        Share of all agents that must still be there after an exchange, else the run fails.
    """

    seconds: float = 600.0
    quorum: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(f"the time limit of a phase must be a number of seconds above 0, got {self.seconds!r}")
        if not 0 <= self.quorum <= 1:
            raise InputError(f"quorum is the share of agents that must answer, between 0 and 1, got {self.quorum!r}")


@dataclass(eq=False)
class Transport:
    """The server's end of all exchanges: whom to ask, what to believe, and when to give up.

    Attributes
    ----------
    channel : Channel
    timeouts : TimeoutPolicy
    audit : Audit
    addresses : dict from agent to address
    refused : set of addresses
        Agents that cannot take part.
    roster : tuple of str
        The agents of the spec, whose quorum counts; before there is one, those that are asked.
    spec : tuple of digest and text, or None
        Told again to an agent that lost it.
    watch : callable
    """

    channel: Channel
    timeouts: TimeoutPolicy
    audit: Audit
    addresses: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    roster: tuple[str, ...] = ()
    spec: tuple[str, str] | None = None
    watch: Watch = nobody_watches
    _absent: set[str] = field(default_factory=set)
    _next_look: float = 0.0
    _pause: float = 0.0

    def ask(
        self, phase: str, requests: Mapping[str, Request], check: Check, quorum: float | None = None
    ) -> dict[str, Message]:
        """Ask agents by name; the answers of those who gave one that can be used.

        Parameters
        ----------
        phase : str
            For the audit, such as "sketches" or "training 3".
        requests : mapping from agent to Request
        check : callable
        quorum : float, optional
            In place of that of `timeouts`; 0 where nobody has to answer.
        """
        if not requests:
            return {}
        until = time.monotonic() + self.timeouts.seconds
        missing = (self._absent & requests.keys()) | (requests.keys() - self.addresses.keys())
        if missing:
            self._look_for(missing)
        found, failed = self._exchange_under_spec(phase, requests, check)
        # Whoever was absent before has had its time; whoever goes away in this exchange has what is left of it.
        while back := self._returned(self._vanished(failed) - missing, until):
            again, still = self._exchange_under_spec(phase, {name: requests[name] for name in back}, check)
            found |= again
            failed = {name: failure for name, failure in failed.items() if name not in again} | still
            if time.monotonic() >= until:
                break
        for name, failure in failed.items():
            self.audit.missed(Absence(name, phase, failure.reason))
        self._absent = (self._absent - found.keys()) | failed.keys()
        self.watch(phase, len(found), {name: failure.reason for name, failure in failed.items()})
        # An exchange may concern a few agents only, so what counts is how many of all are still there.
        everybody = set(self.roster) or set(requests)
        there = len(everybody - self._absent)
        needed = math.ceil((self.timeouts.quorum if quorum is None else quorum) * len(everybody))
        if there < needed:
            reasons = "; ".join(f"{name}: {failure.reason}" for name, failure in list(failed.items())[:3])
            raise QuorumError(
                f"{phase}: {there} of {len(everybody)} agents are left, {needed} are needed ({reasons}); "
                "lower the quorum, or start again when they are back"
            )
        return {name: found[name] for name in requests if name in found}

    def strangers(self) -> list[str]:
        """Addresses of agents that could be asked but have no name yet."""
        known = {*self.addresses.values(), *self.refused}
        return [address for address in self.channel.reachable() if address not in known]

    def introduce(self, addresses: Sequence[str], phase: str, seconds: float | None = None) -> dict[str, Message]:
        """Ask who is at these addresses; the answers by address."""
        limit = self.timeouts.seconds if seconds is None else seconds
        given = self.channel.ask({address: Request("describe") for address in addresses}, limit)
        replies, missed = {}, {}
        for address, answer in given.items():
            name = _told_name(answer) or f"at {address}"
            self.audit.crossed(name, phase, TO_AGENT, payload_bytes(Request("describe")), [])
            if isinstance(answer, Failure):
                self.audit.missed(Absence(name, phase, answer.reason))
                missed[name] = answer.reason
            else:
                self.audit.crossed(name, phase, TO_SERVER, payload_bytes(answer), list(answer.arrays))
                replies[address] = answer
        if given:
            self.watch(phase, len(replies), missed)
        return replies

    def wait_for(self, count: int) -> None:
        """Wait until that many agents can be asked, as long as a phase may take."""
        until = time.monotonic() + self.timeouts.seconds
        while len(self.channel.reachable()) < count and time.monotonic() < until:
            time.sleep(min(0.5, self.timeouts.seconds / 20))

    def _look_for(self, names: Iterable[str]) -> None:
        """Agents that went away may be back at another address."""
        reachable = set(self.channel.reachable())
        # Whoever can still be reached has only missed an exchange; nobody else may take its name.
        gone = {name for name in names if self.addresses.get(name) not in reachable}
        strangers = self.strangers()
        if not gone or not strangers or time.monotonic() < self._next_look:
            return
        limit = min(self.timeouts.seconds, _RETURN)
        found = {
            str(reply.settings.get("name")): address
            for address, reply in self.introduce(strangers, "return", limit).items()
        }
        for name in gone & found.keys():
            self.addresses[name] = found[name]
            self.audit.note(f"agent {name} is back")
        # A stranger that does not answer would cost this time in every exchange, so the next look comes later and later.
        self._pause = 0.0 if gone <= found.keys() else max(limit, 2 * self._pause)
        self._next_look = time.monotonic() + self._pause

    def _vanished(self, failed: Mapping[str, Failure]) -> set[str]:
        """Agents that did not answer because they are not there, or were not for a while."""
        there = set(self.channel.reachable()) if failed else set()
        return {name for name, one in failed.items() if one.gone or self.addresses.get(name) not in there}

    def _returned(self, names: set[str], until: float) -> list[str]:
        """Wait until one of these agents is back, perhaps at another address; those that are, none when time is up."""
        back: list[str] = []
        while names and not back:
            time.sleep(min(_LOOK, self.timeouts.seconds / 20))
            self._look_for(names)
            there = set(self.channel.reachable())
            back = sorted(name for name in names if self.addresses.get(name) in there)
            if time.monotonic() >= until:  # one look more: others may have taken all the time
                break
        return back

    def _exchange_under_spec(
        self, phase: str, requests: Mapping[str, Request], check: Check
    ) -> tuple[dict[str, Message], dict[str, Failure]]:
        """One exchange; whoever has lost the spec is told it, and asked once more."""
        found, failed = self._exchange(phase, requests, check)
        lost = {name: requests[name] for name, failure in failed.items() if NO_SPEC in failure.reason}
        if lost and self.spec is not None:
            told = self._tell(lost)
            again, still = self._exchange(phase, {name: lost[name] for name in told}, check)
            found |= again
            failed = {name: failure for name, failure in failed.items() if name not in again} | still
        return found, failed

    def _crossed(self, phase: str) -> Check:
        """Count an answer, and look at the types of its arrays."""

        def count(name: str, reply: Message) -> str | None:
            self.audit.crossed(name, phase, TO_SERVER, payload_bytes(reply), list(reply.arrays))
            return _unsound(reply.arrays)

        return count

    def _tell(self, names: Iterable[str]) -> list[str]:
        digest, text = self.spec or ("", "")
        requests = {name: Request("agree", {"text": text}) for name in names}
        found, failed = self._exchange("agreement", requests, signed_under(digest))
        for name, failure in failed.items():
            self.audit.missed(Absence(name, "agreement", failure.reason))
        return list(found)

    def _exchange(
        self, phase: str, requests: Mapping[str, Request], check: Check
    ) -> tuple[dict[str, Message], dict[str, Failure]]:
        found: dict[str, Message] = {}
        # Whoever missed the last exchange and is out of reach is not waited for again.
        reached = set(self.channel.reachable()) if self._absent else set(self.addresses.values())
        there = {name: one for name, one in requests.items() if self.addresses.get(name) in reached}
        failed = {name: Failure("it is not there", gone=True) for name in requests if name not in there}
        for name, request in there.items():
            self.audit.crossed(name, phase, TO_AGENT, payload_bytes(request), list(request.arrays))
        by_address = {self.addresses[name]: request for name, request in there.items()}
        answers = self.channel.ask(by_address, self.timeouts.seconds) if by_address else {}
        for name in there:
            answer = answers[self.addresses[name]]
            if isinstance(answer, Failure):
                failed[name] = answer
                continue
            wrong = _checked(self._crossed(phase), name, answer) or _checked(check, name, answer)
            if wrong is None:
                found[name] = answer
            else:
                failed[name] = Failure(f"its answer was refused: {wrong}")
        return found, failed


@dataclass(frozen=True, eq=False)
class AnswerCheck:
    """Whether an answer to a question can be used: signed under the spec, of the right form, and possible.

    Attributes
    ----------
    question : Question
    spec : TrainingSpec
    digest : str
        Of the federation's spec.
    asked : mapping from place to Message
    """

    question: Question[Any]
    spec: TrainingSpec
    digest: str
    asked: Mapping[int, Message]

    def __call__(self, place: int, reply: Message) -> str | None:
        """What is wrong with the answer of the agent at that place; None if nothing is."""
        wrong = signed(reply, self.digest)
        if wrong is None:
            wrong = form_fault(reply.arrays, self.question.form(self.spec, place, self.asked[place]))
        if wrong is None:
            answer = Message(reply.settings["answer"], reply.arrays)
            wrong = self.question.fault(self.spec, place, self.asked[place], answer)
        return wrong


def signed_under(digest: str) -> Check:
    """That answers are given under the spec of this digest."""
    return lambda _, reply: signed(reply, digest)


def signed(reply: Message, digest: str) -> str | None:
    """An answer must be given under the spec."""
    given = reply.settings.get("agreement")
    return None if given == digest else f"it follows another recipe ({given!r}, not {digest!r})"


def _unsound(arrays: Arrays) -> str | None:
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            return f"{name} has type {array.dtype}"
    return None


def _told_name(answer: Message | Failure) -> str:
    """What an agent calls itself, where that can be written down."""
    try:
        return short_text(answer.name if isinstance(answer, Failure) else answer.settings.get("name"))
    except ValueError:
        return ""


def _checked(check: Check, name: str, reply: Message) -> str | None:
    try:
        return check(name, reply)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"
