"""Who helps whom, with agents elsewhere: every agent solves its own row of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.conversation import fits, short_text
from kinfed.engines.messages import Reply, Request
from kinfed.engines.remote_gradients import RemoteGradientAgents
from kinfed.engines.remote_trials import RemoteTrials
from kinfed.engines.workshop import Sketchbook, Workshop, off_simplex
from kinfed.errors import InputError
from kinfed.learners.remote import Form
from kinfed.validation import one_of
from kinfed.weights import GEOMETRIC_RULES, RULES, Weights
from kinfed.weights.calibration.calibrated import Views, calibrate, calibrated_weights, is_thrifty, mixed_weights
from kinfed.weights.calibration.family import Member
from kinfed.weights.calibration.record import Calibration
from kinfed.weights.evidence import Evidence
from kinfed.weights.result import CLOSED_FORM
from kinfed.weights.rules.clusters import within
from kinfed.weights.rules.gradient import gradient_rounds, listening_clusters

Array = NDArray[np.float64]
Report = Callable[[int, int], None]


def weigh_across(
    workshop: Workshop,
    rule: str,
    options: Mapping[str, Any],
    targets: NDArray[np.int64] | None = None,
    report: Report = lambda done, total: None,
) -> Weights:
    """Weights of the targets, all agents by default, by a rule of `kinfed.RULES`.

    For the rule "calibrated" the option ``mixture`` (members and shares that were chosen before) spares the scoring, as for
    an agent that comes later.
    """
    one_of(rule, RULES, "rule")
    chosen = np.arange(workshop.n_agents) if targets is None else targets
    if rule in GEOMETRIC_RULES:
        return _own_rows(workshop, rule, options, chosen)
    matrix, calibration, numbers, stop = _LEARNED[rule](workshop, options, chosen, report)
    # What chance explains of the distances is told with any row; that of learning alone costs nothing.
    told = _own_rows(workshop, "local", {}, chosen)
    return Weights(
        matrix=matrix,
        rule=rule,
        targets=chosen,
        names=workshop.agreement.names,
        sizes=workshop.agreement.sizes,
        risk=_risk(workshop.known[None], workshop.agreement.sizes, matrix, chosen),
        objective=numbers[:, 0],
        gap=numbers[:, 1],
        stop=stop,
        evidence=told.evidence,
        calibration=calibration,
    )


def _own_rows(workshop: Workshop, rule: str, options: Mapping[str, Any], targets: NDArray[np.int64]) -> Weights:
    """Every target's own row; one that does not answer keeps to itself."""
    book, n_agents = workshop.sketches(None, [0]), workshop.n_agents
    shape = (len(book.present),)
    settings = {
        "rule": rule,
        "options": _present_options(options, book.present),
        "absent": book.absent(n_agents),
        "norm bounds": {"0": book.norm_bounds[0]},
    }
    there = set(book.present)
    most = workshop.agreement.embeddings[0].features.n_features
    everybody = book.arrays([0])
    requests = {int(t): Request("weights", settings, everybody) for t in targets if int(t) in there}

    def check(_: int, reply: Reply) -> str | None:
        numbers = reply.arrays.get("numbers")
        rows = {name: array for name, array in reply.arrays.items() if name != "numbers"}
        forms = {name: Form(shape, "float64") for name in ("row", "squared distances")}
        if numbers is None or numbers.shape != (4,) or numbers.dtype != np.float64:
            return "it has no risk, objective, gap and effective dimension"
        if not 1 <= numbers[3] <= most:
            return f"its effective dimension is {numbers[3]:g}, outside 1 to {most}"
        short_text(reply.settings["stop"])
        return fits(rows, forms) or off_simplex(rows["row"])

    replies = workshop.ask("weights", requests, check)
    matrix = np.eye(n_agents)[targets]
    numbers = np.full((len(targets), 4), np.nan)
    distances = np.full((len(targets), n_agents), np.nan)
    stop = ["no answer: it keeps to itself"] * len(targets)
    for row, t in enumerate(targets.tolist()):
        if t in replies:
            matrix[row] = 0.0
            matrix[row, book.present] = replies[t].arrays["row"]
            numbers[row] = replies[t].arrays["numbers"]
            distances[row, book.present] = replies[t].arrays["squared distances"]
            stop[row] = str(replies[t].settings["stop"])
    agreement = workshop.agreement
    scatter = _scatter(book, agreement.sizes)
    return Weights(
        matrix=matrix,
        rule=rule,
        targets=targets,
        names=agreement.names,
        sizes=agreement.sizes,
        risk=numbers[:, 0],
        objective=numbers[:, 1],
        gap=numbers[:, 2],
        stop=tuple(stop),
        evidence=Evidence(distances, scatter[targets][:, None] + scatter, numbers[:, 3]),
    )


_Learned = tuple[Array, Calibration | None, Array, tuple[str, ...]]


def _calibrated(workshop: Workshop, options: Mapping[str, Any], targets: NDArray[np.int64], report: Report) -> _Learned:
    folds, mixture = int(options.get("folds", 5)), options.get("mixture")
    _refuse_others("calibrated", options, {"folds", "mixture"})
    trials, views = RemoteTrials(workshop), Views.of(workshop.agreement.embeddings)
    closed = np.full((len(targets), 2), np.nan), (CLOSED_FORM,) * len(targets)
    if mixture is not None:
        members: dict[Member, float] = dict(mixture)
        thrifty = is_thrifty(trials, workshop.learner, views, folds)
        return mixed_weights(trials, workshop.learner, members, targets, thrifty=thrifty), None, *closed
    found = calibrate(trials, workshop.learner, views, folds=folds, seed=workshop.agreement.seed, report=report)
    return calibrated_weights(trials, workshop.learner, found, targets), found, *closed


def _gradient(workshop: Workshop, options: Mapping[str, Any], targets: NDArray[np.int64], report: Report) -> _Learned:
    given = dict(options)
    agents = RemoteGradientAgents(workshop, workshop.learner, n_features=given.pop("n_features", 500))
    _refuse_others("gradient", given, {"rounds", "c_q", "strength", "relative_gap"})
    found = gradient_rounds(agents, targets, **given)
    return found.weights, None, np.column_stack([found.value, found.gap]), tuple(found.stop)


def _gradient_clusters(
    workshop: Workshop, options: Mapping[str, Any], targets: NDArray[np.int64], report: Report
) -> _Learned:
    _refuse_others("gradient-clusters", options, {"count"})
    everyone = np.arange(workshop.n_agents)
    found = gradient_rounds(RemoteGradientAgents(workshop, workshop.learner), everyone)
    labels = listening_clusters(found.weights, int(options.get("count", 2)))
    matrix = within(labels, targets, workshop.agreement.sizes)
    return matrix, None, np.full((len(targets), 2), np.nan), (CLOSED_FORM,) * len(targets)


_LEARNED = {"calibrated": _calibrated, "gradient": _gradient, "gradient-clusters": _gradient_clusters}


def _refuse_others(rule: str, options: Mapping[str, Any], known: set[str]) -> None:
    for name in options:
        if name not in known:
            raise InputError(f"rule {rule!r} does not take the option {name!r}; it has {', '.join(sorted(known))}")


def _present_options(options: Mapping[str, Any], present: list[int]) -> dict[str, Any]:
    """Options as the agents need them: one group label for each agent whose sketch is there."""
    if "groups" not in options:
        return dict(options)
    labels = list(options["groups"])
    return {**options, "groups": [labels[k] for k in present]}


def _risk(book: Sketchbook, sizes: NDArray[np.int64], matrix: Array, targets: NDArray[np.int64]) -> Array:
    """Unbiased risk of fixed weights, from the sketches."""
    means = np.zeros((len(sizes), book.means[0].shape[1]))
    means[book.present] = book.means[0]
    scatter = _scatter(book, sizes)
    apart = matrix @ means - means[targets]
    own = matrix[np.arange(len(targets)), targets]
    return np.asarray(np.square(apart).sum(axis=1) + (2 * own - 1) * scatter[targets])


def _scatter(book: Sketchbook, sizes: NDArray[np.int64]) -> Array:
    """Expected squared error of every agent's mean; NaN for agents that are absent."""
    scatter = np.full(len(sizes), np.nan)
    scatter[book.present] = book.traces[0] / sizes[book.present]
    return scatter
