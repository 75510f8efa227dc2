"""The server's story: gather, agree, sketch, weigh, train, test, and welcome whoever comes late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.collaboration import Comparison
from kinfed.engines.agreement import Agreement, learner_text
from kinfed.engines.audit import Absence, Audit
from kinfed.engines.conversation import Conversation, Patience, whole_number
from kinfed.engines.gathering import Introduction, agree_on_recipe, introductions
from kinfed.engines.kept_weights import read_weights, weights_content
from kinfed.engines.messages import Channel, Reply, Request
from kinfed.engines.outcome import Joined, Outcome
from kinfed.engines.store import Kept, Store
from kinfed.engines.weighing import weigh_across
from kinfed.engines.workshop import Sketchbook, Workshop
from kinfed.errors import InputError
from kinfed.evaluation import METRICS, Scores
from kinfed.learners import Learner, Models, Progress
from kinfed.learners.plan import USUAL_PLAN
from kinfed.learners.remote import remote_learner
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Wishes:
    """What is asked of a federation.

    Attributes
    ----------
    rule : str
        A key of `kinfed.RULES`.
    options : mapping
        Options of the rule; group labels are given by agent name.
    comparison : Comparison
        How agents are compared; it holds the seed.
    standardise : bool
    baselines : bool
        Train learning alone and one common model beside the personal ones. Their models cross the wire too.
    """

    rule: str = "calibrated"
    options: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison = field(default_factory=Comparison)
    standardise: bool = True
    baselines: bool = True

    def settings(self, learner: Learner) -> dict[str, Any]:
        """All of it, as values that tell two runs apart."""
        return {
            "rule": self.rule,
            "options": repr(sorted((name, _plain(value)) for name, value in self.options.items())),
            "comparison": repr(self.comparison),
            "standardise": self.standardise,
            "baselines": self.baselines,
            "learner": learner_text(learner),
        }


def coordinate(
    channel: Channel,
    learner: Learner,
    wishes: Wishes,
    *,
    agents: int = 1,
    patience: Patience | None = None,
    folder: Path | None = None,
    audit: Path | None = None,
    data: str = "",
    progress: Progress | None = None,
) -> Outcome:
    """Run a federation from the first introduction to the last test.

    Parameters
    ----------
    channel : Channel
        The way to the agents.
    learner : Learner
        The same as at every site.
    wishes : Wishes
    agents : int
        How many to wait for, as long as a phase may take; then those that are there begin.
    patience : Patience, optional
    folder : path, optional
        Checkpoint: every phase and round is kept there, and a run that was killed goes on from it.
    audit : path, optional
        Log of all that crosses.
    data : str
        Tells the data apart where they are known: a checkpoint of other data is refused.
    progress : callable, optional
    """
    book = Audit()
    try:
        one_of(wishes.rule, RULES, "rule")
        remote_learner(learner)  # one that cannot be trained across sites is refused before anybody is asked
        store = Store(folder, {**wishes.settings(learner), "data": data})
        book = _audit(audit, store)
        conversation = Conversation(channel, patience or Patience(), book)
        conversation.wait_for(agents)
        workshop, strangers = _gather(conversation, learner, wishes, store)
        workshop.told[None] = store.memory("answers")
        _recall_sketches(workshop, store)
        weights = _weigh(workshop, wishes, store, progress)
        methods = _train(workshop, weights, wishes, store, progress)
        scored = _evaluate(workshop, methods, weights, store)
        joined = _welcome(workshop, wishes, weights, strangers)
        book.note("the run is complete")
    except BaseException as error:
        book.note(f"the run ended early: {error}")
        raise
    finally:
        channel.close()
        book.close()
    return Outcome(workshop.agreement, learner, weights, methods, scored, joined, book)


def _audit(path: Path | None, store: Store) -> Audit:
    """The book of the run; who missed what before it was resumed is still known."""
    kept = store.load("attendance")
    absences = [] if kept is None else [Absence(*one) for one in kept.settings["absences"]]

    def keep(missed: list[Absence]) -> None:
        store.save("attendance", {"absences": [[one.agent, one.phase, one.reason] for one in missed]})

    return Audit(path, absences, keep)


def _plain(value: Any) -> Any:
    """Arrays as lists: long ones print shortened, and could not be told apart."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _gather(
    conversation: Conversation, learner: Learner, wishes: Wishes, store: Store
) -> tuple[Workshop, dict[str, Introduction]]:
    """Introductions and the agreement; and who is there without being part of it."""
    there = introductions(conversation, learner)
    kept = store.load("agreement")
    if kept is None:
        agreement = agree_on_recipe(conversation, there, learner, wishes.comparison, wishes.rule, wishes.standardise)
        store.save("agreement", {"text": agreement.to_text()})
    else:
        agreement = Agreement.from_text(kept.settings["text"])
        conversation.audit.note("an earlier run is resumed")
    workshop = Workshop(conversation, agreement, learner)
    if kept is None:
        workshop.agree()
    late = [name for name in there if name in conversation.addresses and name not in agreement.names]
    return workshop, {name: there[name] for name in late}


def _recall_sketches(workshop: Workshop, store: Store) -> None:
    """One round of sketches of all points, or those an earlier run was sent."""
    views = range(len(workshop.agreement.embeddings))
    kept = store.load("sketches")
    if kept is None:
        found = workshop.sketches(None, views)
        arrays: dict[str, NDArray[Any]] = found.arrays(list(views))
        arrays["present"] = np.array(found.present)
        if found.classes is not None:
            arrays["classes"] = found.classes
        store.save("sketches", {"norm bounds": [found.norm_bounds[view] for view in views]}, arrays)
        return
    workshop.known[None] = Sketchbook(
        kept.arrays["present"].tolist(),
        {view: np.asarray(kept.arrays[f"mean {view}"]) for view in views},
        {view: np.asarray(kept.arrays[f"trace {view}"]) for view in views},
        dict(enumerate(kept.settings["norm bounds"])),
        kept.arrays.get("classes"),
    )


def _weigh(workshop: Workshop, wishes: Wishes, store: Store, progress: Progress | None) -> Weights:
    kept = store.load("weights")
    if kept is not None:
        return read_weights(kept)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("calibrating", done, total)

    weights = weigh_across(workshop, wishes.rule, _options(workshop.agreement, wishes), report=report)
    content = weights_content(weights)
    store.save("weights", content.settings, content.arrays)
    return weights


def _options(agreement: Agreement, wishes: Wishes) -> dict[str, Any]:
    """The rule's options, with group labels in the agents' order."""
    options = dict(wishes.options)
    if "groups" not in RULES[wishes.rule].needs:
        return options
    groups = options.get("groups")
    if groups is None:
        raise InputError(f"rule {wishes.rule!r} needs groups; give a label for every agent")
    for name in agreement.names:
        if name not in groups:
            raise InputError(f"groups has no label for agent {name}; give one per agent")
    return {**options, "groups": [groups[name] for name in agreement.names]}


def _train(
    workshop: Workshop, weights: Weights, wishes: Wishes, store: Store, progress: Progress | None
) -> dict[str, Models]:
    """Models of every method; they are trained side by side where they take equally long."""
    sizes, learner = workshop.agreement.sizes, workshop.learner
    matrices: dict[str, Array] = {}
    if wishes.baselines:
        matrices = {"local": np.eye(len(sizes)), "grand-mean": np.tile(sizes / sizes.sum(), (len(sizes), 1))}
    trained: dict[str, Models] = {}
    if weights.plan != USUAL_PLAN:
        trained["personalized"] = workshop.fit_planned(
            "training", learner, weights.matrix, weights.plan, store.memory, progress
        )
    else:
        matrices["personalized"] = weights.matrix
    if matrices:
        phase = "training" if "personalized" in matrices else "training of baselines"
        together = workshop.fit(
            phase, learner, np.vstack(list(matrices.values())), progress=progress, memory=store.memory(phase)
        )
        remote = remote_learner(learner)
        for number, name in enumerate(matrices):
            rows = number * len(sizes) + np.arange(len(sizes))
            trained[name] = remote.unpack(remote.pack(together, rows), workshop.agreement.terms)
    return {name: trained[name] for name in ("local", "grand-mean", "personalized") if name in trained}


def _evaluate(workshop: Workshop, methods: Mapping[str, Models], weights: Weights, store: Store) -> dict[str, Scores]:
    """Every agent tests its own models at home, and keeps the personal one."""
    agreement, metrics = workshop.agreement, METRICS[workshop.agreement.task]
    kept = store.load("scores")
    if kept is None:
        values = np.full((len(agreement.names), len(methods), len(metrics)), np.nan)
        sizes = np.zeros(len(agreement.names), dtype=np.int64)
        requests = {
            k: _evaluation(workshop, list(methods.values()), k, weights.matrix[k]) for k in range(len(agreement.names))
        }
        replies = workshop.ask("evaluation", requests, _score_check(len(methods), len(metrics)))
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


def _evaluation(workshop: Workshop, methods: list[Models], row: int, weights: Array) -> Request:
    remote = remote_learner(workshop.learner)
    packed = [remote.pack(models, np.array([row])) for models in methods]
    arrays = {name: np.concatenate([one[name] for one in packed]) for name in packed[0]}
    names = workshop.agreement.names
    told = {names[k]: float(weights[k]) for k in np.flatnonzero(weights > 0)}
    return Request("evaluate", {"weights": told}, arrays)


def _score_check(n_methods: int, n_metrics: int) -> Any:
    def check(_: int, reply: Reply) -> str | None:
        values, rows = reply.arrays["values"], reply.settings["rows"]
        if values.shape != (n_methods, n_metrics) or values.dtype != np.float64 or np.isinf(values).any():
            return "its scores are not what was asked for"
        whole_number(rows)
        return None if reply.arrays.keys() == {"values"} else "it holds more than was asked for"

    return check


def _welcome(
    workshop: Workshop, wishes: Wishes, weights: Weights, strangers: Mapping[str, Introduction]
) -> dict[str, Joined]:
    """Weights and a model for agents that came late; nobody else's model changes."""
    late = {**strangers, **introductions(workshop.conversation, workshop.learner)}
    joined = {}
    for name, one in late.items():
        if name in workshop.agreement.names:
            continue
        try:
            joined[name] = _join(workshop, wishes, weights, one)
        except Exception as error:  # the federation's own work is done, and must not be lost to a newcomer
            workshop.conversation.audit.missed(Absence(name, "joining", f"{type(error).__name__}: {error}"))
    return joined


def _join(workshop: Workshop, wishes: Wishes, weights: Weights, newcomer: Introduction) -> Joined:
    """One sketch of the newcomer, its own row of weights, and a training of its model alone."""
    agreement, views = workshop.agreement, range(len(workshop.agreement.embeddings))
    wider = replace(
        agreement,
        names=(*agreement.names, newcomer.name),
        sizes=np.append(agreement.sizes, newcomer.rows),
    )
    joining, own = Workshop(workshop.conversation, wider, workshop.learner), len(agreement.names)
    sent = joining.sketches(None, views, agents=[own])
    joining.known[None] = workshop.known[None].joined(sent)
    options = _options(wider, wishes)
    if weights.calibration is not None:
        options["mixture"] = weights.calibration.mixture  # the federation has chosen already
    row = weigh_across(joining, wishes.rule, options, targets=np.array([own]))
    models = joining.fit_planned("training of a newcomer", joining.learner, row.matrix, weights.plan, lambda _: None)
    request = _evaluation(joining, [models], 0, row.matrix[0])
    metrics = METRICS[agreement.task]
    reply = joining.ask("evaluation", {own: request}, _score_check(1, len(metrics)), quorum=0.0).get(own)
    scores = {} if reply is None else dict(zip(metrics, reply.arrays["values"][0].tolist(), strict=True))
    workshop.conversation.audit.note(f"agent {newcomer.name} came late and has weights and a model")
    return Joined(newcomer.name, row, models, scores)
