"""What the ServerApp does: the run with its settings, and its files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfed.backends.server import connected
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import Channel
from kinfed.checkpoint import Store
from kinfed.deployment.options import MakeLearner, path_or_none, read_settings, server_learner_of
from kinfed.errors import InputError
from kinfed.learners.base import site_learner
from kinfed.result import Personalization
from kinfed.result_files import write_tables
from kinfed.run import comparing, run

AUDIT = "audit.jsonl"


def run_federation(channel: Channel, run_config: Mapping[str, Any], make_learner: MakeLearner | None = None) -> None:
    """Run a federation over a channel and write what it found into the folder ``out``.

    Parameters
    ----------
    channel : Channel
    run_config : mapping
        Fields of `kinfed.settings.Settings`.
    make_learner : callable, optional
        The app's own way to make a learner, the same as at the sites.
    """
    settings = read_settings(run_config)
    out = Path(settings.out).expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {out} cannot be made: {error.strerror or error}") from None
    learner = site_learner(server_learner_of(settings, make_learner))
    store = Store(path_or_none(settings.checkpoint), settings.telling(learner))
    with connected(
        channel,
        learner,
        comparing(settings),
        store,
        standardise=settings.standardise,
        seed=settings.seed,
        agents=settings.agents,
        timeouts=TimeoutPolicy(settings.seconds, settings.quorum),
        log=out / AUDIT,
    ) as agents:
        result = run(agents, learner, settings, store)
    write_result(result, out)
    log = logging.getLogger("flwr")  # Flower streams its own log to whoever started the run
    for sentence in (*sentences(result), f"the results are in {out.resolve()}"):
        log.info(sentence)


def write_result(result: Personalization, out: Path) -> None:
    """Write the result with its models, its tables and its report into a folder; `kinfed.load` reads it.

    A method without weights has no report.
    """
    out.mkdir(parents=True, exist_ok=True)
    result.save(out, overwrite=True)
    write_tables(result, out)
    if result.weighed is not None:
        title = f"Personal models of {len(result.known.names)} sites"
        result.report(out, title=title, settings=result.settings.telling(result.learner))


def sentences(result: Personalization) -> list[str]:
    """The run in a few sentences."""
    return [
        f"{len(result.known.names)} agents took part",
        *([] if result.exchange is None else result.exchange.describe()),
        *(f"agent {name} came late and has weights and a model" for name in result.joined),
    ]
