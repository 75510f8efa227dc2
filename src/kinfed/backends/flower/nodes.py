"""The sites' end: the ClientApp every node runs, and a Grid of nodes in this process, without Ray and without sockets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from kinfed.backends.flower.records import ACTION, CATEGORIES, decode_arrays, decode_request, encode_arrays, encode_message
from kinfed.backends.site import Site
from kinfed.backends.site import answer as answer_at_site
from kinfed.backends.transport import NO_SPEC
from kinfed.backends.wire import Arrays, Failure, Request
from kinfed.backends.wire import Message as SiteAnswer
from kinfed.errors import KinfedError

Answer = Callable[[Site, Request, Arrays], tuple[SiteAnswer, Arrays]]

NOTES = "kinfed-notes"
"""Record of a node's state with what its agent keeps for itself between two messages of a run."""


def client_app(make_site: Callable[[Context], Site], answer: Answer = answer_at_site) -> ClientApp:
    """The app every node runs; a question it cannot answer is answered with the reason, and with the name of its agent.

    Parameters
    ----------
    make_site : callable
        The agent's data from the context of its node. A process that answers several messages, as in a simulation, calls it
        once per node; a deployed node starts a process for every message.
    answer : callable, optional
        What is done with a request and the notes: it returns a reply and the notes to keep.
    """
    app = ClientApp()
    sites: dict[tuple[int, int], Site] = {}

    def handle(message: Message, context: Context) -> Message:
        request = decode_request(message.content)
        key = context.run_id, context.node_id
        notes: Arrays = decode_arrays(context.state[NOTES]) if NOTES in context.state else {}
        name = configured_name(context)
        try:
            if key not in sites:
                for old in [known for known in sites if known[0] != context.run_id]:
                    del sites[old]  # of a run that is over
                sites[key] = make_site(context)
            name = getattr(sites[key], "name", name)
            reply, kept = answer(sites[key], request, notes)
        except KinfedError as error:
            _log(request.question, error)
            return Message(encode_message(Failure(str(error), name)), reply_to=message)
        if kept is not notes:
            context.state[NOTES] = encode_arrays(kept)
        return Message(encode_message(reply), reply_to=message)

    for category in CATEGORIES:
        getattr(app, category)(ACTION)(handle)
    return app


def configured_name(context: Context) -> str:
    """What a node is called before its data are read."""
    given = context.node_config.get("name", "")
    return str(given) or f"partition-id {context.node_config.get('partition-id', 'unknown')}"


def _log(question: str, error: KinfedError) -> None:
    """Why a question was not answered, in the node's own log: the whole of it, and of a bug where it is."""
    whole = error.__cause__ or error
    if str(whole) != NO_SPEC:  # as every site says that was started anew: it is then told again
        unforeseen = None if isinstance(whole, KinfedError) else whole
        logging.getLogger("flwr").warning("no answer to %s: %s", question, whole, exc_info=unforeseen)


def client_app_of(sites: Sequence[Site]) -> ClientApp:
    """The app for sites of this process; a node's ``partition-id`` tells which it is."""
    return client_app(lambda context: sites[int(context.node_config["partition-id"])])


FIRST_NODE = SUPERLINK_NODE_ID + 1


class InProcessGrid(Grid):
    """Nodes 0, ..., B - 1 in this process, used within a ``with`` block.

    An agent works when its answer is pulled, one after the other, so no more than one answer has to be held. Its time
    is its own: only an agent that itself takes longer than the time to live of its message is late.

    Parameters
    ----------
    app : ClientApp
        What every node runs.
    node_configs : sequence of mapping
        One per node; ``partition-id`` and ``num-partitions`` are added as in Flower's simulation.
    run_config : mapping
        Seen by every node.
    """

    def __init__(
        self, app: ClientApp, node_configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any] | None = None
    ) -> None:
        self._app = app
        self._run = Run.create_empty(run_id=1)
        self._contexts = {
            FIRST_NODE + place: Context(
                run_id=self._run.run_id,
                node_id=FIRST_NODE + place,
                node_config={"partition-id": place, "num-partitions": len(node_configs), **config},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for place, config in enumerate(node_configs)
        }
        self._numbers = count(1)
        self._waiting: dict[str, Message] = {}
        self._identity: dict[str, Any] = {}

    def __enter__(self) -> Self:
        # Flower makes messages in the name of the task its process runs. There is no such process here.
        ours = {"_task_id": 0, "_run_id": self._run.run_id, "_node_id": SUPERLINK_NODE_ID}
        for name, value in ours.items():
            self._identity[name] = getattr(TaskIdentity, name)
            setattr(TaskIdentity, name, value)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, value in self._identity.items():
            setattr(TaskIdentity, name, value)
        self._waiting.clear()

    def server_context(self) -> Context:
        """The context a ServerApp is called with."""
        run_config = next(iter(self._contexts.values())).run_config if self._contexts else {}
        return Context(self._run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(run_config))

    def set_run(self, run: Run) -> None:
        """The run is set from the beginning."""

    @property
    def run(self) -> Run:
        """What Flower tells apps about the run they belong to."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The numbers of all nodes, each of them one agent."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their answers are pulled; their identifiers, without those to unknown nodes."""
        identifiers = []
        for message in messages:
            identifier = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = identifier  # as Flower's own Grids do
            if message.metadata.dst_node_id in self._contexts:
                self._waiting[identifier] = message
                identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Have the nodes answer these messages, one by one."""
        for identifier in message_ids:
            message = self._waiting.pop(identifier, None)
            if message is not None:
                yield self._answer(message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and have them answered."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, message: Message) -> Message:
        start = time.monotonic()
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # an agent may fail in any way; the others go on, as they do on machines of their own
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        taken = time.monotonic() - start
        if taken > message.metadata.ttl:
            reason = f"{taken:.1f} s instead of {message.metadata.ttl:.1f} s"
            return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason), reply_to=message)
        return reply
