"""Several jobs side by side whose questions travel together: what one would ask in K exchanges, K jobs ask in one.

On machines apart an exchange takes seconds whatever it carries, so the splits of a calibration go hand in hand: each is a
thread that runs until it asks, and once all are waiting, their questions to an agent are sent as one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinfed.engines.conversation import Check, Conversation
from kinfed.engines.messages import Arrays, Reply, Request, arrays_of


@dataclass(eq=False)
class _Waiting:
    """A job that has asked."""

    phase: str
    requests: Mapping[str, Request]
    check: Check
    answered: threading.Event = field(default_factory=threading.Event)
    found: dict[str, Reply] = field(default_factory=dict)
    error: BaseException | None = None


class Lockstep:
    """Stands in for a `Conversation` while jobs run side by side.

    Parameters
    ----------
    conversation : Conversation
        Carries the joined questions.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._posted: queue.Queue[_Waiting | BaseException | None] = queue.Queue()
        self._closed: BaseException | None = None

    def ask(
        self, phase: str, requests: Mapping[str, Request], check: Check, quorum: float | None = None
    ) -> dict[str, Reply]:
        """Ask as `Conversation.ask` does, together with the other jobs; the quorum is that of the federation."""
        if self._closed is not None:
            raise self._closed
        mine = _Waiting(phase, requests, check)
        self._posted.put(mine)
        mine.answered.wait()
        if mine.error is not None:
            raise mine.error
        return mine.found

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs to their ends; an error of one ends all of them."""

        def work(job: Callable[[], None]) -> None:
            try:
                job()
            except BaseException as error:
                self._posted.put(error)
            else:
                self._posted.put(None)

        threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        left, waiting = len(threads), list[_Waiting]()
        while left:
            try:
                posted = self._posted.get()
            except BaseException as error:  # an interrupt: the jobs must not go on asking
                self._closed = self._closed or error
                continue
            if isinstance(posted, _Waiting):
                waiting.append(posted)
            else:
                left -= 1
                self._closed = self._closed or posted
            if left and len(waiting) == left:
                self._answer(waiting)
                waiting = []
        if self._closed is not None:
            raise self._closed

    def _answer(self, waiting: Sequence[_Waiting]) -> None:
        try:
            if self._closed is None:
                self._exchange(waiting)
        except BaseException as error:
            self._closed = error
        for one in waiting:
            one.error = self._closed
        for one in waiting:
            one.answered.set()

    def _exchange(self, waiting: Sequence[_Waiting]) -> None:
        """One exchange for all jobs."""
        names = list(dict.fromkeys(name for one in waiting for name in one.requests))
        parts = {name: [one for one in waiting if name in one.requests] for name in names}
        shared: dict[tuple[int, ...], Arrays] = {}
        joined = {name: _joined([one.requests[name] for one in parts[name]], shared) for name in names}
        separated: dict[str, list[Reply]] = {}

        def check(name: str, reply: Reply) -> str | None:
            separated[name] = _separated(reply, len(parts[name]))
            wrong = [one.check(name, part) for one, part in zip(parts[name], separated[name], strict=True)]
            return next((fault for fault in wrong if fault is not None), None)

        phase = ", ".join(dict.fromkeys(one.phase for one in waiting))
        found = self._conversation.ask(phase, joined, check)
        for name in found:
            for one, part in zip(parts[name], separated[name], strict=True):
                one.found[name] = part


def _joined(requests: Sequence[Request], shared: dict[tuple[int, ...], Arrays]) -> Request:
    """Several questions to one agent as one; agents that are sent the same arrays share the joined ones too."""
    parts = [{"task": one.task, "settings": one.settings} for one in requests]
    key = tuple(id(one.arrays) for one in requests)
    if key not in shared:
        shared[key] = {
            f"{number}/{name}": array for number, one in enumerate(requests) for name, array in one.arrays.items()
        }
    return Request("together", {"parts": parts}, shared[key])


def _separated(reply: Reply, count: int) -> list[Reply]:
    """The answers to joined questions."""
    told: Any = reply.settings["parts"]
    if len(told) != count:
        raise ValueError(f"{len(told)} answers to {count} questions")
    return [Reply(settings, arrays_of(reply.arrays, number)) for number, settings in enumerate(told)]
