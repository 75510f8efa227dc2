"""The federation as the server sees it: what it can have agents do together, under an agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.agreement import Agreement, digest_of
from kinfed.engines.conversation import Conversation, QuorumError, fits, signed, whole_number
from kinfed.engines.lockstep import Lockstep
from kinfed.engines.messages import Reply, Request
from kinfed.engines.site import split_terms
from kinfed.engines.store import Recollection
from kinfed.errors import SketchError
from kinfed.learners import Learner, Models
from kinfed.learners.plan import Plan, StepwiseLearner
from kinfed.learners.remote import Arrays, Form, Memory, Monitor, Question, Terms, remote_learner
from kinfed.progress import Progress
from kinfed.sketch import Sketch, check_sketch
from kinfed.weights.calibration.trials import Split

Array = NDArray[np.float64]

# A solved row is on the simplex up to rounding.
_SIMPLEX = 1e-6


@dataclass(frozen=True, eq=False)
class Sketchbook:
    """Everybody's sketches in one split.

    Attributes
    ----------
    present : list of int
        Places of the agents that sent theirs, in order.
    means : mapping from view to array of shape (len(present), D)
    traces : mapping from view to array of shape (len(present),)
    norm_bounds : mapping from view to float or None
        M, where the features have no bound of their own.
    classes : array of int, or None
        Places of the classes that somebody trains on.
    """

    present: list[int]
    means: dict[int, Array]
    traces: dict[int, Array]
    norm_bounds: dict[int, float | None]
    classes: NDArray[np.int64] | None

    def absent(self, n_agents: int) -> list[int]:
        """Places of the agents whose sketches are missing."""
        there = set(self.present)
        return [k for k in range(n_agents) if k not in there]

    def joined(self, later: Sketchbook) -> Sketchbook:
        """These sketches and those of agents that came later."""
        return Sketchbook(
            [*self.present, *later.present],
            {view: np.vstack([mean, later.means[view]]) for view, mean in self.means.items()},
            {view: np.append(trace, later.traces[view]) for view, trace in self.traces.items()},
            {view: _larger(one, later.norm_bounds[view]) for view, one in self.norm_bounds.items()},
            self.classes,
        )

    def arrays(self, views: Sequence[int]) -> dict[str, NDArray[Any]]:
        """The sketches in some views, as they are sent back to the agents."""
        means = {f"mean {view}": self.means[view] for view in views}
        return means | {f"trace {view}": self.traces[view] for view in views}


@dataclass(eq=False)
class Workshop:
    """What the server can have agents do.

    Attributes
    ----------
    conversation : Conversation
    agreement : Agreement
    learner : Learner
        What the federation trains.
    known : dict from split to Sketchbook
        Sketches that were sent already.
    told : dict from split to Memory
        What agents answered learners whose questions are about the data alone: it serves all trainings of a split.
    """

    conversation: Conversation
    agreement: Agreement
    learner: Learner
    known: dict[Split | None, Sketchbook] = field(default_factory=dict)
    told: dict[Split | None, Memory] = field(default_factory=dict)
    _terms: dict[Split | None, Terms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = self.agreement.to_text()
        self.digest = digest_of(text)
        self.conversation.agreement = self.digest, text
        self.conversation.roster = self.agreement.names
        self._asking: Conversation | Lockstep = self.conversation

    @property
    def n_agents(self) -> int:
        """B."""
        return len(self.agreement.names)

    def agree(self) -> None:
        """Tell everybody the agreement."""
        text = self.agreement.to_text()
        requests = {name: Request("agree", {"text": text}) for name in self.agreement.names}
        self.conversation.ask("agreement", requests, lambda _, reply: signed(reply, self.digest))

    def terms(self, split: Split | None) -> Terms:
        """What training in a split has to know."""
        if split not in self._terms:
            self._terms[split] = split_terms(self.agreement.terms, split)
        return self._terms[split]

    def ask(
        self,
        phase: str,
        requests: Mapping[int, Request],
        check: Any,
        split: Split | None = None,
        quorum: float | None = None,
    ) -> dict[int, Reply]:
        """Ask agents by place, under the agreement."""
        names = self.agreement.names
        common: dict[str, Any] = {"agreement": self.digest}
        if split is not None:
            common["split"] = list(split)
        by_name = {
            names[k]: Request(one.task, {**common, **one.settings}, one.arrays) for k, one in sorted(requests.items())
        }
        places = {name: k for k, name in enumerate(names)}

        def checked(name: str, reply: Reply) -> str | None:
            return signed(reply, self.digest) or check(places[name], reply)

        found = self._asking.ask(phase, by_name, checked, quorum)
        return {places[name]: reply for name, reply in found.items()}

    def side_by_side(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs whose questions travel together."""
        together = Lockstep(self.conversation)
        self._asking = together
        try:
            together.run(jobs)
        finally:
            self._asking = self.conversation

    def forget(self, splits: Sequence[Split]) -> None:
        """Drop what is known of splits that are done."""
        for split in splits:
            self.known.pop(split, None)
            self._terms.pop(split, None)
            self.told.pop(split, None)

    def sketches(self, split: Split | None, views: Sequence[int], agents: Sequence[int] | None = None) -> Sketchbook:
        """One round of sketches, kept for later questions about the same split."""
        known = self.known.get(split)
        if known is not None and set(views) <= known.means.keys():
            return known
        asked = range(self.n_agents) if agents is None else agents
        sizes = self.terms(split).sizes

        def check(place: int, reply: Reply) -> str | None:
            if reply.settings.get("rows") != int(sizes[place]):
                return f"it is made of {reply.settings.get('rows')} rows, not {sizes[place]}"
            forms = {}
            for view in views:
                recipe = self.agreement.embeddings[view].features.recipe
                forms[f"mean {view}"] = Form((recipe.n_features,), "float64", recipe.norm_bound)
                forms[f"trace {view}"] = Form((), "float64")
            if self.agreement.classes is not None:
                for one in reply.settings["classes"]:
                    whole_number(one, 0, len(self.agreement.classes) - 1)
            return fits(reply.arrays, forms) or self._impossible(views, int(sizes[place]), reply)

        requests = {k: Request("sketch", {"views": list(views)}) for k in asked}
        replies = self.ask("sketches", requests, check, split)
        if not replies:
            raise QuorumError("sketches: nobody answered; see the audit log for the reasons")
        book = self._bound(views, replies)
        self.known[split] = book
        return book

    def left_classes(self, split: Split | None) -> dict[str, list[int]]:
        """What to tell agents about the classes of a split: nothing, unless setting points aside took one from all."""
        classes = None if split is None or split not in self.known else self.known[split].classes
        everybody = self.agreement.classes
        if classes is None or everybody is None or len(classes) == len(everybody):
            return {}
        return {"classes": classes.tolist()}

    def fit(
        self,
        phase: str,
        learner: Learner,
        rows: Array,
        split: Split | None = None,
        *,
        progress: Progress | None = None,
        memory: Memory | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train one model per row of weights; see `RemoteLearner.fit`."""
        remote, left = remote_learner(learner), self.left_classes(split)
        terms = split_terms(self.agreement.terms, split, left["classes"]) if left else self.terms(split)
        if remote.asks_once:
            memory = self.told.setdefault(split, Recollection())
        number = 0

        def exchange(questions: Mapping[int, Question]) -> dict[int, Arrays]:
            nonlocal number
            # Agents of one round may be asked in groups, so a training that counts its epochs says which one it is.
            number = next(iter(questions.values())).settings.get("epoch", number) + 1
            requests = {
                k: Request("train", {"question": dict(one.settings), **left}, one.arrays) for k, one in questions.items()
            }

            def check(place: int, reply: Reply) -> str | None:
                question = questions[place]
                wrong = fits(reply.arrays, remote.forms(place, terms, question))
                return wrong or remote.check(place, terms, question, reply.arrays)

            replies = self.ask(f"{phase} {number}", requests, check, split)
            return {k: reply.arrays for k, reply in replies.items()}

        return remote.fit(
            exchange,
            terms,
            rows,
            progress=progress,
            memory=memory,
            monitor=monitor,
            monitor_every=monitor_every,
        )

    def fit_planned(
        self, phase: str, learner: Learner, rows: Array, plan: Plan, memory: Any, progress: Progress | None = None
    ) -> Models:
        """Train as calibration planned: from scratch or from a common model, and for how long."""
        start = self.common(None, learner, memory("common model")) if plan.warm else None
        chosen = learner.trained_for(plan.share, start) if isinstance(learner, StepwiseLearner) else learner
        return self.fit(phase, chosen, rows, progress=progress, memory=memory(phase))

    def common(self, split: Split | None, learner: Learner, memory: Memory | None = None) -> Models:
        """One model of everybody's data, agents weighted by their size."""
        sizes = self.terms(split).sizes
        whole = learner.trained_for(1.0) if isinstance(learner, StepwiseLearner) else learner
        return self.fit("common model", whole, (sizes / sizes.sum())[None], split, memory=memory)

    def _impossible(self, views: Sequence[int], n: int, reply: Reply) -> str | None:
        for view in views:
            mean, trace = reply.arrays[f"mean {view}"], float(reply.arrays[f"trace {view}"])
            try:
                check_sketch(Sketch(mean, n, trace, self.agreement.embeddings[view].features.recipe))
            except SketchError as error:
                return str(error)
            if self.agreement.embeddings[view].norm_bound is None:
                norm = reply.settings["norms"][str(view)]
                if type(norm) is not float or not 0 < norm < np.inf:
                    return "it gives no largest norm"
        return None

    def _bound(self, views: Sequence[int], replies: Mapping[int, Reply]) -> Sketchbook:
        present = sorted(replies)
        bounds: dict[int, float | None] = {}
        for view in views:
            free = self.agreement.embeddings[view].norm_bound is None
            bounds[view] = max(replies[k].settings["norms"][str(view)] for k in present) if free else None
        classes = None
        if self.agreement.classes is not None:
            seen = sorted({int(place) for k in present for place in replies[k].settings["classes"]})
            classes = np.array(seen, dtype=np.int64)
        return Sketchbook(
            present,
            {view: np.array([replies[k].arrays[f"mean {view}"] for k in present]) for view in views},
            {view: np.array([float(replies[k].arrays[f"trace {view}"]) for k in present]) for view in views},
            bounds,
            classes,
        )


def _larger(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


def off_simplex(rows: Array) -> str | None:
    """Weights must be no less than zero and sum to one."""
    bad = (rows < -_SIMPLEX).any() or (np.abs(rows.sum(axis=-1) - 1) > _SIMPLEX).any()
    return "its weights are not on the simplex" if bad else None
