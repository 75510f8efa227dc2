"""The server's story: gather, agree, sketch, weigh, train, test, and welcome whoever comes late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.agreement import Agreement
from kinfed.engines.audit import Absence, Audit
from kinfed.engines.conversation import Conversation, Patience
from kinfed.engines.gathering import Introduction, agree_on_recipe, introductions
from kinfed.engines.joining import welcome
from kinfed.engines.judging import evaluate
from kinfed.engines.kept_weights import read_weights, weights_content
from kinfed.engines.messages import Channel
from kinfed.engines.outcome import Outcome
from kinfed.engines.store import Store
from kinfed.engines.weighing import weigh_across
from kinfed.engines.wishes import Wishes
from kinfed.engines.workshop import Sketchbook, Workshop
from kinfed.learners import Learner, Models
from kinfed.learners.plan import USUAL_PLAN
from kinfed.learners.remote import remote_learner
from kinfed.progress import Progress
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights

Array = NDArray[np.float64]


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
        scored = evaluate(workshop, methods, weights, store)
        joined = welcome(workshop, wishes, weights, strangers)
        book.note("the run is complete")
    except BaseException as error:
        book.note(f"the run ended early: {error}")
        raise
    finally:
        channel.close()
        book.close()
    return Outcome(workshop.agreement, learner, wishes, weights, methods, scored, joined, book)


def _audit(path: Path | None, store: Store) -> Audit:
    """The book of the run; who missed what before it was resumed is still known."""
    kept = store.load("attendance")
    absences = [] if kept is None else [Absence(*one) for one in kept.settings["absences"]]

    def keep(missed: list[Absence]) -> None:
        store.save("attendance", {"absences": [[one.agent, one.phase, one.reason] for one in missed]})

    return Audit(path, absences, keep)


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

    weights = weigh_across(workshop, wishes.rule, wishes.rule_options(workshop.agreement), report=report)
    content = weights_content(weights)
    store.save("weights", content.settings, content.arrays)
    return weights


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
