"""Flower's two apps in one process: the whole way of a deployed run, without Ray and without sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinfed.engines.flower.environment import require_flower
from kinfed.engines.messages import Channel, Failure, Reply, Request
from kinfed.engines.site import Site


def in_process_channel(sites: Sequence[Site]) -> Channel:
    """A channel to sites of this process, by way of a ClientApp and a Grid."""
    require_flower()
    return _InProcessFlower(sites)


class _InProcessFlower:
    """Enters the Grid when it is made, and leaves it when it is closed."""

    def __init__(self, sites: Sequence[Site]) -> None:
        from kinfed.engines.flower.channel import FlowerChannel
        from kinfed.engines.flower.client_app import client_app
        from kinfed.engines.flower.grid import InProcessGrid

        app = client_app(lambda context: sites[int(context.node_config["partition-id"])])
        self._grid = InProcessGrid(app, [{} for _ in sites])
        self._grid.__enter__()
        self._channel = FlowerChannel(self._grid, clock_tolerance=0.0)

    def reachable(self) -> tuple[str, ...]:
        """Numbers of the nodes."""
        return self._channel.reachable()

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        """Push and pull messages."""
        return self._channel.ask(requests, seconds)

    def close(self) -> None:
        """Leave the Grid."""
        self._grid.__exit__(None, None, None)
