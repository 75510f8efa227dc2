"""The server's side: a ServerApp that hands a channel to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from kinfed.engines.flower.channel import FlowerChannel
from kinfed.engines.messages import Channel


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
