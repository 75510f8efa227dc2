"""Several jobs whose requests travel together: what one would ask in K exchanges, K jobs ask in one.

On machines apart an exchange takes seconds whatever it carries, so the folds of a calibration and the methods that are
trained go hand in hand: each job runs until it asks, and once all are waiting, their requests to a site are sent as one.
Only one job runs at a time, in the order in which they were given, so that results do not depend on threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinfed.backends.transport import Check, Transport
from kinfed.backends.wire import ENVELOPE, Message, Request, arrays_of, encode_settings


@dataclass(eq=False)
class _Job:
    """A job in a thread of its own, which runs only while it is its turn."""

    work: Callable[[], None]
    turn: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    asked: tuple[str, Mapping[str, Request], Check, float | None] | None = None
    found: dict[str, Message] = field(default_factory=dict)
    error: BaseException | None = None
    over: bool = False


class RequestBatching:
    """Stands in for a `Transport` while jobs run side by side.

    Parameters
    ----------
    transport : Transport
        Carries the joined requests.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._running: _Job | None = None
        self._closed: BaseException | None = None

    def ask(
        self, phase: str, requests: Mapping[str, Request], check: Check, quorum: float | None = None
    ) -> dict[str, Message]:
        """Ask as `Transport.ask` does, together with the other jobs; the largest quorum that is wanted holds for all."""
        job = self._running
        if job is None or self._closed is not None:
            raise self._closed or AssertionError("only jobs ask")
        job.asked, job.found = (phase, requests, check, quorum), {}
        job.turn.clear()
        job.paused.set()
        job.turn.wait()
        if self._closed is not None:
            raise self._closed
        return job.found

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all jobs to their ends; an error of one ends all of them."""
        jobs = [_Job(work) for work in works]
        threads = [threading.Thread(target=self._work, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            while any(not job.over for job in jobs):
                for job in jobs:
                    if not job.over:
                        self._let_run(job)
                waiting = [job for job in jobs if not job.over]
                if waiting and self._closed is None:
                    self._exchange(waiting)
        except BaseException as error:  # an interrupt, or too few answers: the jobs must not go on asking
            self._closed = self._closed or error
            for job in jobs:
                job.turn.set()
        if self._closed is not None:
            raise self._closed

    def _work(self, job: _Job) -> None:
        job.turn.wait()
        try:
            if self._closed is None:
                job.work()
        except BaseException as error:
            self._closed = self._closed or error
        finally:
            job.over = True
            job.paused.set()

    def _let_run(self, job: _Job) -> None:
        """Let a job run until it asks, or ends."""
        self._running = job
        job.paused.clear()
        job.turn.set()
        job.paused.wait()

    def _exchange(self, waiting: Sequence[_Job]) -> None:
        """One exchange for all jobs; what several ask of a site in the same words is asked once."""
        asked = [job.asked for job in waiting if job.asked is not None]
        names = list(dict.fromkeys(name for _, requests, _, _ in asked for name in requests))
        parts = {name: Joined([requests.get(name) for _, requests, _, _ in asked]) for name in names}
        joined: dict[tuple[int, ...], Request] = {}
        separated: dict[str, list[Message]] = {}

        def check(name: str, reply: Message) -> str | None:
            separated[name] = parts[name].separated(reply)
            wrong = (
                one_check(name, separated[name][place])
                for place, (_, _, one_check, _) in zip(parts[name].places, asked, strict=True)
                if place is not None
            )
            return next((fault for fault in wrong if fault is not None), None)

        phase = ", ".join(dict.fromkeys(phase for phase, *_ in asked))
        usual = self._transport.timeouts.quorum
        quorum = max(usual if one is None else one for *_, one in asked)
        found = self._transport.ask(phase, {name: parts[name].joined(joined) for name in names}, check, quorum)
        for name in found:
            for job, place in zip(waiting, parts[name].places, strict=True):
                if place is not None:
                    job.found[name] = separated[name][place]


class Joined:
    """The requests of several jobs to one site: the different ones, and the place of each job's among them."""

    def __init__(self, requests: Sequence[Request | None]) -> None:
        self.places: list[int | None] = []
        self.different: list[Request] = []
        known: dict[tuple[str, bytes, int], int] = {}
        for one in requests:
            if one is None:
                self.places.append(None)
                continue
            key = one.question, encode_settings(one.settings), id(one.arrays) if one.arrays else 0
            if key not in known or not one.repeatable:  # a site may answer otherwise when it is asked a second time
                known[key] = len(self.different)
                self.different.append(one)
            self.places.append(known[key])

    def joined(self, shared: dict[tuple[int, ...], Request]) -> Request:
        """As one request; sites that are sent the same arrays share the joined ones too."""
        if len(self.different) == 1:
            return self.different[0]
        parts = [{"question": one.question, "settings": one.settings} for one in self.different]
        key = tuple(id(one.arrays) for one in self.different)
        if key not in shared:
            arrays = {f"{k}/{name}": array for k, one in enumerate(self.different) for name, array in one.arrays.items()}
            shared[key] = Request(ENVELOPE, {}, arrays)
        return Request(ENVELOPE, {"parts": parts}, shared[key].arrays)

    def separated(self, reply: Message) -> list[Message]:
        """The answers to the different requests."""
        if len(self.different) == 1:
            return [reply]
        told: Any = reply.settings["parts"]
        if len(told) != len(self.different):
            raise ValueError(f"{len(told)} answers to {len(self.different)} questions")
        return [Message(settings, arrays_of(reply.arrays, number)) for number, settings in enumerate(told)]
