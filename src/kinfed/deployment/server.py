"""What the ServerApp does: the run with its settings, and its files."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfed.backends.audit import AUDIT
from kinfed.backends.server import connected
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import Channel
from kinfed.checkpoint import Store
from kinfed.deployment.options import MakeLearner, path_or_none, read_settings, server_learner_of
from kinfed.errors import InputError
from kinfed.files import private_folder
from kinfed.learners.auto import AutoLearner, auto_sentence
from kinfed.learners.base import AUTO, site_learner
from kinfed.result import Personalization
from kinfed.result_files import write_tables
from kinfed.run import run
from kinfed.run_setup import comparing

_SECONDS_BETWEEN = 3.0

_LOG = logging.getLogger("flwr")  # what Flower streams to whoever started the run


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
        private_folder(out)
    except OSError as error:
        raise InputError(f"the folder {out} cannot be made: {error.strerror or error}") from None
    learner: Any = server_learner_of(settings, make_learner)
    if not isinstance(learner, AutoLearner):
        site_learner(learner)
    store = Store(path_or_none(settings.checkpoint), settings.telling(learner))
    lines, written = ProgressLines(), 0

    def write(found: Personalization) -> None:
        nonlocal written
        write_result(found, out)
        written = agents.audit.messages

    _LOG.info(f"waiting for {settings.agents} sites, at most {settings.seconds:g} s")
    with connected(
        channel,
        learner,
        comparing(settings),
        store,
        standardise=settings.standardise,
        robust=settings.robust,
        trust=settings.trust,
        columns=settings.columns,
        seed=settings.seed,
        agents=settings.agents,
        timeouts=TimeoutPolicy(settings.seconds, settings.quorum),
        log=out / AUDIT,
        watch=lines.exchanged,
    ) as agents:
        # Whoever comes late may be slow, or fail, so the others' results are written before it is asked for anything.
        result = run(agents, site_learner(agents.learner), settings, store, lines.worked, write)
        if agents.audit.messages > written:
            write(result)
    for sentence in (*sentences(result), f"the results are in {out.resolve()}"):
        _LOG.info(sentence)


@dataclass(eq=False)
class ProgressLines:
    """One line for each exchange: who answered, how far the work is, and the time so far.

    Where exchanges are quick there is a line every few seconds, and one for each that somebody missed.
    """

    _begun: float = field(default_factory=time.monotonic)
    _due: float = 0.0
    _work: str = ""

    def worked(self, what: str, done: int, total: int) -> None:
        """Remember how far the work is, until it is done; see `kinfed.progress.Progress`."""
        self._work = f"; {what}: {done} of {total}" if done < total else ""

    def exchanged(self, phase: str, answered: int, missed: Mapping[str, str]) -> None:
        """Tell of an exchange; see `kinfed.backends.transport.Watch`."""
        now = time.monotonic()
        if now < self._due and not missed:
            return
        self._due = now + _SECONDS_BETWEEN
        asked, reasons = answered + len(missed), "".join(f"; {name}: {why}" for name, why in missed.items())
        text = f"{phase}: {answered} of {asked} sites answered{reasons}{self._work}; {now - self._begun:.0f} s so far"
        _LOG.log(logging.WARNING if missed else logging.INFO, text)


def write_result(result: Personalization, out: Path) -> None:
    """Write the result with its models, its tables and its report into a folder; `kinfed.load` reads it.

    A method without weights has no report.
    """
    result.save(out, overwrite=True)
    write_tables(result, out)
    if result.weighed is not None:
        title = f"Personal models of {len(result.known.names)} sites"
        result.report(out, title=title, settings=result.settings.telling(result.learner))


def sentences(result: Personalization) -> list[str]:
    """The run in a few sentences."""
    return [
        f"{len(result.known.names) - len(result.withheld)} agents took part",
        *([auto_sentence(result.settings.target, result.known.classes)] if result.settings.learner == AUTO else []),
        *(f"agent {name} has no model: it {what}" for name, what in result.withheld.items()),
        *result.known.screening.describe(),
        *([] if result.exchange is None else result.exchange.describe()),
        *(f"agent {name} came late and has weights and a model" for name in result.joined),
    ]
