"""Talking with many agents at once: whom to ask, what to believe, and when to give up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kinfed.engines.audit import TO_AGENT, TO_SERVER, Absence, Audit
from kinfed.engines.messages import KINDS, Arrays, Channel, Failure, Reply, Request
from kinfed.engines.tasks import NO_AGREEMENT
from kinfed.errors import InputError, KinfedError
from kinfed.learners.remote import Form

MOST = 2**53
"""No count is larger."""

# Seconds to wait for strangers that may be agents come back.
_RETURN = 60.0

Check = Callable[[str, Reply], str | None]
"""What is wrong with an agent's answer, in a few words; None if nothing is."""


class QuorumError(KinfedError):
    """Too few agents answered for the run to go on."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, and for how many.

    Attributes
    ----------
    seconds : float
        Time every phase or round may take; whoever has not answered by then is left out of it.
    quorum : float
        Share of the agents asked that must answer, else the run fails.
    """

    seconds: float = 600.0
    quorum: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(f"the time limit of a phase must be a number of seconds above 0, got {self.seconds!r}")
        if not 0 <= self.quorum <= 1:
            raise InputError(f"quorum is the share of agents that must answer, between 0 and 1, got {self.quorum!r}")


@dataclass(eq=False)
class Conversation:
    """The server's end of all its talks.

    Attributes
    ----------
    channel : Channel
    patience : Patience
    audit : Audit
    addresses : dict from agent to address
    refused : set of addresses
        Agents that cannot take part.
    roster : tuple of str
        The agents of the agreement, whose quorum counts; before there is one, those that are asked.
    agreement : tuple of digest and text, or None
        Told again to an agent that lost it.
    """

    channel: Channel
    patience: Patience
    audit: Audit
    addresses: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    roster: tuple[str, ...] = ()
    agreement: tuple[str, str] | None = None
    _absent: set[str] = field(default_factory=set)
    _next_look: float = 0.0
    _pause: float = 0.0

    def ask(
        self, phase: str, requests: Mapping[str, Request], check: Check, quorum: float | None = None
    ) -> dict[str, Reply]:
        """Ask agents by name; the answers of those who gave one that can be used.

        Parameters
        ----------
        phase : str
            For the audit, such as "sketches" or "training 3".
        requests : mapping from agent to Request
        check : callable
        quorum : float, optional
            In place of that of `patience`; 0 where nobody has to answer.
        """
        if not requests:
            return {}
        missing = (self._absent & requests.keys()) | (requests.keys() - self.addresses.keys())
        if missing:
            self._look_for(missing)
        found, failed = self._exchange(phase, requests, check)
        lost = {name: requests[name] for name, failure in failed.items() if NO_AGREEMENT in failure.reason}
        if lost and self.agreement is not None:
            told = self._tell(lost)
            again, still = self._exchange(phase, {name: lost[name] for name in told}, check)
            found |= again
            failed = {name: failure for name, failure in failed.items() if name not in again} | still
        for name, failure in failed.items():
            self.audit.missed(Absence(name, phase, failure.reason))
        self._absent = (self._absent - found.keys()) | failed.keys()
        # An exchange may concern a few agents only, so what counts is how many of all are still there.
        everybody = set(self.roster) or set(requests)
        there = len(everybody - self._absent)
        needed = math.ceil((self.patience.quorum if quorum is None else quorum) * len(everybody))
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

    def introduce(self, addresses: Sequence[str], phase: str, seconds: float | None = None) -> dict[str, Reply]:
        """Ask who is at these addresses; the answers by address."""
        limit = self.patience.seconds if seconds is None else seconds
        given = self.channel.ask({address: Request("describe") for address in addresses}, limit)
        replies = {}
        for address, answer in given.items():
            told = answer.settings.get("name") if isinstance(answer, Reply) else None
            name = told if isinstance(told, str) else f"at {address}"
            self.audit.crossed(name, phase, TO_AGENT, Request("describe").nbytes, [])
            if isinstance(answer, Failure):
                self.audit.missed(Absence(name, phase, answer.reason))
            else:
                self.audit.crossed(name, phase, TO_SERVER, answer.nbytes, [])
                replies[address] = answer
        return replies

    def wait_for(self, count: int) -> None:
        """Wait until that many agents can be asked, as long as a phase may take."""
        until = time.monotonic() + self.patience.seconds
        while len(self.channel.reachable()) < count and time.monotonic() < until:
            time.sleep(min(0.5, self.patience.seconds / 20))

    def _look_for(self, names: Iterable[str]) -> None:
        """Agents that went away may be back at another address."""
        reachable = set(self.channel.reachable())
        # Whoever can still be reached has only missed an exchange; nobody else may take its name.
        gone = {name for name in names if self.addresses.get(name) not in reachable}
        strangers = self.strangers()
        if not gone or not strangers or time.monotonic() < self._next_look:
            return
        limit = min(self.patience.seconds, _RETURN)
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

    def _crossed(self, phase: str) -> Check:
        """Count an answer, and look at the types of its arrays."""

        def count(name: str, reply: Reply) -> str | None:
            self.audit.crossed(name, phase, TO_SERVER, reply.nbytes, list(reply.arrays))
            return _unsound(reply.arrays)

        return count

    def _tell(self, names: Iterable[str]) -> list[str]:
        digest, text = self.agreement or ("", "")
        requests = {name: Request("agree", {"text": text}) for name in names}
        found, failed = self._exchange("agreement", requests, lambda _, reply: signed(reply, digest))
        for name, failure in failed.items():
            self.audit.missed(Absence(name, "agreement", failure.reason))
        return list(found)

    def _exchange(
        self, phase: str, requests: Mapping[str, Request], check: Check
    ) -> tuple[dict[str, Reply], dict[str, Failure]]:
        found: dict[str, Reply] = {}
        # Whoever missed the last exchange and is out of reach is not waited for again.
        reached = set(self.channel.reachable()) if self._absent else set(self.addresses.values())
        there = {name: one for name, one in requests.items() if self.addresses.get(name) in reached}
        failed = {name: Failure("it is not there") for name in requests if name not in there}
        for name, request in there.items():
            self.audit.crossed(name, phase, TO_AGENT, request.nbytes, list(request.arrays))
        by_address = {self.addresses[name]: request for name, request in there.items()}
        answers = self.channel.ask(by_address, self.patience.seconds) if by_address else {}
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


def whole_number(value: Any, least: int = 0, most: int = MOST) -> int:
    """The value if it is a whole number in that range; a ValueError otherwise."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
    return value


def short_text(value: Any) -> str:
    """The value if it is text that can be written down; a ValueError otherwise."""
    if not isinstance(value, str) or not 0 < len(value) <= 500 or not value.isprintable():
        raise ValueError("a text is empty, too long, or cannot be printed")
    return value


def signed(reply: Reply, digest: str) -> str | None:
    """An answer must be given under the agreement."""
    given = reply.settings.get("agreement")
    return None if given == digest else f"it follows another recipe ({given!r}, not {digest!r})"


def fits(arrays: Arrays, forms: Mapping[str, Form]) -> str | None:
    """What is wrong with the names, shapes, types or sizes of arrays; None if nothing is."""
    if arrays.keys() != forms.keys():
        return f"it holds {', '.join(sorted(arrays)) or 'nothing'}, not {', '.join(sorted(forms))}"
    for name, form in forms.items():
        array = arrays[name]
        if array.shape != form.shape:
            return f"{name} has shape {array.shape}, not {form.shape}"
        if array.dtype.name != form.dtype:
            return f"{name} has type {array.dtype.name}, not {form.dtype}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} holds NaN or an infinite value"
        norm = float(np.linalg.norm(array.astype(np.float64))) if math.isfinite(form.bound) else 0.0
        if norm > form.bound * (1 + 1e-6):
            return f"{name} has norm {norm:.6g}, but at most {form.bound:.6g} is possible"
    return None


def _unsound(arrays: Arrays) -> str | None:
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            return f"{name} has type {array.dtype}"
    return None


def _checked(check: Check, name: str, reply: Reply) -> str | None:
    try:
        return check(name, reply)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"
