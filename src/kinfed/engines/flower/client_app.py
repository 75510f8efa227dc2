"""The agents' side: a ClientApp that answers with `kinfed.engines.tasks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kinfed.engines.flower.channel import ACTION, CATEGORIES
from kinfed.engines.flower.records import decode_arrays, decode_request, encode_arrays, encode_reply
from kinfed.engines.messages import Arrays, Reply, Request

if TYPE_CHECKING:
    from kinfed.engines.site import Site

Answer = Callable[["Site", Request, Arrays], tuple[Reply, Arrays]]

NOTES = "kinfed-notes"
"""Record of a node's state with what its agent keeps for itself between two messages of a run."""


def client_app(make_site: Callable[[Context], Site], answer: Answer | None = None) -> ClientApp:
    """The app every node runs.

    Parameters
    ----------
    make_site : callable
        The agent's data from the context of its node. A process that answers several messages, as in a simulation, calls it
        once per node; a deployed node starts a process for every message.
    answer : callable, optional
        What is done with a request and the notes: it returns a reply and the notes to keep. By default
        `kinfed.engines.tasks.answer`.
    """
    do = _usual_answer() if answer is None else answer
    app = ClientApp()
    sites: dict[tuple[int, int], Site] = {}

    def handle(message: Message, context: Context) -> Message:
        request = decode_request(message.content)
        key = context.run_id, context.node_id
        if key not in sites:
            for old in [known for known in sites if known[0] != context.run_id]:
                del sites[old]  # of a run that is over
            sites[key] = make_site(context)
        notes: Arrays = decode_arrays(context.state[NOTES]) if NOTES in context.state else {}
        reply, kept = do(sites[key], request, notes)
        if kept is not notes:
            context.state[NOTES] = encode_arrays(kept)
        return Message(encode_reply(reply), reply_to=message)

    for category in CATEGORIES:
        getattr(app, category)(ACTION)(handle)
    return app


def _usual_answer() -> Answer:
    from kinfed.engines.tasks import answer

    return answer
