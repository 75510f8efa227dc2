"""The server's end: a channel over a Flower Grid, on which questions are pushed at once and answers pulled as they come."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from kinfed.backends.flower.nodes import InProcessGrid, client_app_of
from kinfed.backends.flower.records import ACTION, decode_message, encode_request
from kinfed.backends.site import Site
from kinfed.backends.wire import Channel, Failure, Request
from kinfed.backends.wire import Message as Answer

_TRAINING = ("moments", "class-counts", "class-moments", "derivatives", "local-training", "mean-gradients")

_CATEGORIES: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("losses", "evaluation"), "evaluate"), **dict.fromkeys(_TRAINING, "train")}
)

_CODES: Mapping[int, str] = MappingProxyType(
    {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its app could not be loaded",
        ErrorCode.MESSAGE_UNAVAILABLE: "the message was lost or came too late",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
        ErrorCode.NODE_UNAVAILABLE: "the node is gone",
        ErrorCode.INVALID_FAB: "the node does not trust this app",
        ErrorCode.CLIENT_APP_CRASHED: "its process died",
    }
)

_RAISED = re.compile(r"<class '(?:[\w.<>]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)
"""How Flower writes an exception of the agent: ``<class 'kinfed.errors.InputError'>:<'message'>``."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
_SECONDS_BETWEEN_LINES = 60.0
_LONGEST_REASON = 500


@dataclass(frozen=True, eq=False)
class FlowerChannel:
    """Reach the agents behind the nodes of a Grid; an address is the node's number as text.

    `Grid.send_and_receive` would sleep three seconds between two looks, so messages are pushed and pulled here.

    Attributes
    ----------
    grid : Grid
    clock_tolerance : float
        Seconds a message stays valid beyond the time to wait for it. Nodes stamp their answers with their own clocks, and
        one that is ahead by more than what is left would see its answer dropped.
    """

    grid: Grid
    clock_tolerance: float = 10.0

    slow = True

    def reachable(self) -> tuple[str, ...]:
        """Addresses of the nodes that are connected."""
        return tuple(str(node) for node in self.grid.get_node_ids())

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer | Failure]:
        """Ask several nodes at once and wait for their answers; see `kinfed.backends.wire.Channel`."""
        deadline = time.monotonic() + seconds
        answers: dict[str, Answer | Failure] = {}
        pending = self._push(requests, seconds + self.clock_tolerance)
        pause, line_due = _FIRST_PAUSE, time.monotonic() + _SECONDS_BETWEEN_LINES
        while pending:
            for message in self.grid.pull_messages(list(pending)):
                # An error reply for a dead node comes from the SuperLink: what it answers tells whom it is about.
                address = pending.pop(message.metadata.reply_to_message_id, None)
                if address is not None:
                    answers[address] = _answer(message)
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                break
            if time.monotonic() > line_due:
                waited = f"{len(pending)} of {len(requests)} sites have not answered yet, {left:.0f} s are left"
                logging.getLogger("flwr").info(waited)
                line_due += _SECONDS_BETWEEN_LINES
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        late = dict.fromkeys(pending.values(), Failure(f"no answer within {seconds:g} s"))
        lost = Failure("the message could not be sent: the node is gone", gone=True)
        return {address: answers.get(address) or late.get(address, lost) for address in requests}

    def close(self) -> None:
        """Nothing to do: nodes wait for other runs, and the Grid belongs to Flower."""

    def _push(self, requests: Mapping[str, Request], ttl: float) -> dict[str, str]:
        """Send all requests; addresses by the identifiers of their messages, without those that could not be sent."""
        packed: dict[int, ArrayRecord] = {}  # many agents are sent the very same arrays, and they are packed once
        messages = {
            address: Message(
                encode_request(request, packed),
                int(address),
                f"{category_of(request.question)}.{ACTION}",
                ttl=ttl,
                group_id=request.question,
            )
            for address, request in requests.items()
        }
        # Some Grids leave refused messages out of their answer and others put an empty text there, so the order tells
        # nothing; the identifier is written into the message itself.
        sent = set(self.grid.push_messages(list(messages.values())))
        identifiers = {message.metadata.message_id: address for address, message in messages.items()}
        return {identifier: address for identifier, address in identifiers.items() if identifier in sent}


def category_of(question: str) -> str:
    """Flower's word for a question, one of `CATEGORIES`; what is neither training nor evaluation is a query."""
    return _CATEGORIES.get(question, "query")


def _answer(message: Message) -> Answer | Failure:
    if message.has_error():
        return Failure(_reason(message.error), gone=message.error.code == ErrorCode.NODE_UNAVAILABLE)
    try:
        found = decode_message(message.content)
    except ValueError as error:
        return Failure(f"its answer cannot be read: {error}")
    return Failure(found.reason[:_LONGEST_REASON], found.name) if isinstance(found, Failure) else found


def _reason(error: Error) -> str:
    told = (error.reason or "").strip()
    raised = _RAISED.fullmatch(told)
    if raised is not None:
        told = f"{raised[1]}: {raised[2]}"
    words = _CODES.get(error.code)
    reason = told if words is None else f"{words} ({told})" if told else words
    return (reason or f"error {error.code} without a reason")[:_LONGEST_REASON]


def server_app(main: Callable[[Channel, Mapping[str, Any]], None]) -> ServerApp:
    """The app the server runs.

    Parameters
    ----------
    main : callable
        Called as ``main(channel, run_config)``; when it returns, the run is over, and if it raises, the run has failed.
    """
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        channel = FlowerChannel(grid)
        try:
            main(channel, context.run_config)
        finally:
            channel.close()

    return app


class InProcessFlower:
    """A channel to sites of this process by way of a ClientApp and a Grid: all of a deployed run but the sockets.

    It enters the Grid when it is made, and leaves it when it is closed.
    """

    slow = False

    def __init__(self, sites: Sequence[Site]) -> None:
        self._grid = InProcessGrid(client_app_of(sites), [{} for _ in sites])
        self._grid.__enter__()
        self._channel = FlowerChannel(self._grid, clock_tolerance=0.0)

    def reachable(self) -> tuple[str, ...]:
        """The addresses of the nodes that are connected: their numbers, as text."""
        return self._channel.reachable()

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer | Failure]:
        """Push a message to every node that is asked, and pull answers until all came or time is up."""
        return self._channel.ask(requests, seconds)

    def close(self) -> None:
        """Leave the Grid, which ends its connection."""
        self._grid.__exit__(None, None, None)
