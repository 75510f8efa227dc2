"""What the ServerApp does: the coordinator's story with the options of a run, and its files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfed.collaboration import Comparison
from kinfed.engines.conversation import Patience
from kinfed.engines.coordinator import coordinate
from kinfed.engines.flower.options import MakeLearner, RunOptions, path_or_none
from kinfed.engines.messages import Channel
from kinfed.engines.wishes import Wishes
from kinfed.errors import InputError

AUDIT = "audit.jsonl"


def run_federation(channel: Channel, run_config: Mapping[str, Any], make_learner: MakeLearner | None = None) -> None:
    """Run a federation over a channel and write what it found into the folder ``out``.

    Parameters
    ----------
    channel : Channel
    run_config : mapping
        See `kinfed.engines.flower.options.RunOptions`.
    make_learner : callable, optional
        The app's own way to make a learner, the same as at the sites.
    """
    options = RunOptions.from_config(run_config)
    out = Path(options.out).expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {out} cannot be made: {error.strerror or error}") from None
    comparison = Comparison(
        shift=options.shift, n_features=options.n_features, sampling=options.sampling, seed=options.seed
    )
    outcome = coordinate(
        channel,
        options.server_learner(make_learner),
        Wishes(options.rule, {}, comparison, options.standardise, options.baselines),
        agents=options.agents,
        patience=Patience(options.seconds, options.quorum),
        folder=path_or_none(options.checkpoint),
        audit=out / AUDIT,
    )
    outcome.write(out)
    log = logging.getLogger("flwr")  # Flower streams its own log to whoever started the run
    for sentence in (*outcome.sentences(), f"the results are in {out.resolve()}"):
        log.info(sentence)
