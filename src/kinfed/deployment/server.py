"""What the ServerApp does: the run with its settings, and its files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfed.backends.server import connected
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import Channel
from kinfed.checkpoint import Store
from kinfed.deployment.options import MakeLearner, path_or_none, read_settings, server_learner_of
from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.learners.base import site_learner
from kinfed.methods import METHODS, comparing
from kinfed.result import Personalization
from kinfed.run import run

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
    """Write weights, explanations, scores, models, traffic, attendance and the report into a folder.

    A method without weights has no report.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights, learner, names = result.weighed, site_learner(result.learner), result.agents.spec.names
    if weights is not None:
        weights.to_frame().to_csv(out / "weights.csv")
        weights.explanation.to_csv(out / "explanation.csv")
        if weights.calibration is not None:
            weights.calibration.table.to_csv(out / "calibration.csv")
    if result.scored:
        result.scores.to_csv(out / "scores.csv")
    trained = {name: (name, models) for name, models in result.baselines.items()}
    trained["personalized"] = result.settings.method, result.models
    arrays: dict[str, Any] = {
        f"{title}/{name}": array
        for title, (method, models) in trained.items()
        for name, array in METHODS[method].pack(learner, models, np.arange(len(models))).items()
    }
    if result.joined:
        rows = [one.weights.to_frame() for one in result.joined.values()]
        pandas.concat(rows).fillna(0.0).to_csv(out / "newcomers-weights.csv")
        scores = {name: dict(one.scores) for name, one in result.joined.items()}
        pandas.DataFrame.from_dict(scores, orient="index").rename_axis("agent").to_csv(out / "newcomers-scores.csv")
    for name, one in result.joined.items():
        packed = learner.pack(one.models, np.array([0]))
        arrays |= {f"newcomer {name}/{key}": array for key, array in packed.items()}
    write_whole(out / "models.npz", lambda file: np.savez(file, **arrays))
    if result.exchange is not None:
        result.exchange.traffic.to_csv(out / "traffic.csv", index=False)
        result.exchange.attendance.to_csv(out / "attendance.csv", index=False)
    if weights is not None:
        result.report(out, title=f"Personal models of {len(names)} sites", settings=result.settings.telling(learner))


def sentences(result: Personalization) -> list[str]:
    """The run in a few sentences."""
    return [
        f"{len(result.agents.spec.names)} agents took part",
        *([] if result.exchange is None else result.exchange.describe()),
        *(f"agent {name} came late and has weights and a model" for name in result.joined),
    ]
