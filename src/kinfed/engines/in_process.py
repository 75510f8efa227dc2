"""The bare engine: agents are objects of this process, and a question is a function call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinfed.engines.messages import Failure, Reply, Request
from kinfed.engines.site import Site
from kinfed.engines.tasks import Notes, answer
from kinfed.errors import KinfedError


class InProcess:
    """A channel to sites of this process, asked one after another; see `kinfed.engines.messages.Channel`.

    Parameters
    ----------
    sites : sequence of Site
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sites = {str(number): site for number, site in enumerate(sites)}
        self._notes: dict[str, Notes] = {address: {} for address in self._sites}

    def reachable(self) -> tuple[str, ...]:
        """All of them, always."""
        return tuple(self._sites)

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        """Let every site answer; there is nobody else to wait for, so time is not limited."""
        answers: dict[str, Reply | Failure] = {}
        for address, request in requests.items():
            try:
                answers[address], self._notes[address] = answer(self._sites[address], request, self._notes[address])
            except KinfedError as error:
                answers[address] = Failure(str(error))
            except Exception as error:  # one agent may fail in any way; the others go on
                answers[address] = Failure(f"{type(error).__name__}: {error}")
        return answers

    def close(self) -> None:
        """Forget the notes."""
        self._notes = {address: {} for address in self._sites}
