"""Every agent judges its own models at home."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.conversation import whole_number
from kinfed.engines.messages import Reply, Request
from kinfed.engines.store import Kept, Store
from kinfed.engines.workshop import Workshop
from kinfed.evaluation import METRICS, Scores
from kinfed.learners import Models
from kinfed.learners.remote import remote_learner
from kinfed.weights import Weights

Array = NDArray[np.float64]


def evaluate(workshop: Workshop, methods: Mapping[str, Models], weights: Weights, store: Store) -> dict[str, Scores]:
    """Every agent tests its own models at home, and keeps the personal one."""
    agreement, metrics = workshop.agreement, METRICS[workshop.agreement.task]
    kept = store.load("scores")
    if kept is None:
        values = np.full((len(agreement.names), len(methods), len(metrics)), np.nan)
        sizes = np.zeros(len(agreement.names), dtype=np.int64)
        requests = {
            k: models_to_test(workshop, list(methods.values()), k, weights.matrix[k]) for k in range(len(agreement.names))
        }
        replies = workshop.ask("evaluation", requests, score_check(len(methods), len(metrics)))
        for k, reply in replies.items():
            values[k], sizes[k] = reply.arrays["values"], reply.settings["rows"]
        kept = Kept({}, {"values": values, "sizes": sizes})
        store.save("scores", kept.settings, kept.arrays)
    values, sizes = kept.arrays["values"], kept.arrays["sizes"]
    if not sizes.any():
        return {}
    return {
        name: Scores(
            agreement.task,
            agreement.names,
            sizes,
            {metric: np.ascontiguousarray(values[:, column, j]) for j, metric in enumerate(metrics)},
        )
        for column, name in enumerate(methods)
    }


def models_to_test(workshop: Workshop, methods: Sequence[Models], row: int, weights: Array) -> Request:
    """Models to test at home, the agent's own last, and whom that one listened to."""
    remote = remote_learner(workshop.learner)
    packed = [remote.pack(models, np.array([row])) for models in methods]
    arrays = {name: np.concatenate([one[name] for one in packed]) for name in packed[0]}
    names = workshop.agreement.names
    told = {names[k]: float(weights[k]) for k in np.flatnonzero(weights > 0)}
    return Request("evaluate", {"weights": told}, arrays)


def score_check(n_methods: int, n_metrics: int) -> Callable[[int, Reply], str | None]:
    """Scores must be those that were asked for."""

    def check(_: int, reply: Reply) -> str | None:
        values, rows = reply.arrays["values"], reply.settings["rows"]
        if values.shape != (n_methods, n_metrics) or values.dtype != np.float64 or np.isinf(values).any():
            return "its scores are not what was asked for"
        whole_number(rows)
        return None if reply.arrays.keys() == {"values"} else "it holds more than was asked for"

    return check
