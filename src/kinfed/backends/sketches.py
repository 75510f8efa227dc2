"""The one vector every agent shares, once for each way to compare agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Places, Question, QuorumError, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.embedding import Sketch, check_sketch
from kinfed.embedding.sketch import sketch
from kinfed.errors import InputError, SketchError
from kinfed.validation import Array, whole_number


@dataclass(frozen=True, eq=False)
class SketchStack:
    """The sketches of all agents that sent theirs, stacked view by view.

    Attributes
    ----------
    present : array of int
        Places of the P agents that sent theirs, in order.
    means : tuple of array of shape (P, D), one for each view of the agents
    traces : tuple of array of shape (P,)
    norm_bounds : tuple of float or None
        M, where the features have no bound of their own.
    classes : array of int, or None
        Places of the classes that somebody trains on.
    """

    present: Places
    means: tuple[Array, ...]
    traces: tuple[Array, ...]
    norm_bounds: tuple[float | None, ...]
    classes: Places | None

    def mean_of(self, places: Places) -> Array:
        """Means of some agents in the usual view; zero for those that are absent."""
        means = np.zeros((int(max(self.present.max(), places.max())) + 1, self.means[0].shape[1]))
        means[self.present] = self.means[0]
        return means[places]

    def mean_variance(self, sizes: NDArray[np.int64]) -> Array:
        """Expected squared error of every agent's mean in the usual view, (B,); NaN for agents that are absent."""
        found = np.full(len(sizes), np.nan)
        found[self.present] = self.traces[0] / sizes[self.present]
        return found


@dataclass(frozen=True)
class Sketches(Question[SketchStack]):
    """The mean of every agent's random features, and how far its points lie from it."""

    name = "sketches"
    about_data = True
    follows = "nobody listens to it, and it learns alone"
    asked_once = True  # rows of weights have an entry for each of those who answered

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """Nothing in particular, of everybody."""
        return dict.fromkeys(range(len(spec.names)), Message())

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """One sketch for each view."""
        settings: dict[str, Any] = {"rows": len(site.agent), "norms": {}}
        arrays: dict[str, NDArray[Any]] = {}
        for view, embedding in enumerate(site.spec.embeddings):
            points = embedding.raw_points(site.agent)
            made = sketch(points, embedding.features)
            arrays[f"mean {view}"], arrays[f"trace {view}"] = made.mean, np.array(made.trace)
            if embedding.norm_bound is None:  # a map without a bound of its own: the largest norm among all agents will do
                settings["norms"][str(view)] = float(np.linalg.norm(embedding.features(points), axis=1).max())
        if site.spec.classes is not None and site.agent.y is not None:
            settings["classes"] = np.flatnonzero(np.isin(site.spec.classes, site.agent.y)).tolist()
        return Message(settings, arrays)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A mean no longer than features can be, and the trace of a covariance, for each view."""
        recipes = [embedding.features.recipe for embedding in spec.embeddings]
        means = {f"mean {view}": ArraySpec((one.n_features,), bound=one.norm_bound) for view, one in enumerate(recipes)}
        return means | {f"trace {view}": ArraySpec(()) for view in range(len(recipes))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """A sketch must be of as many rows as the agent has, and one that rows could have."""
        rows, classes = int(spec.sizes[place]), spec.classes
        if answer.settings.get("rows") != rows:
            return f"it is made of {answer.settings.get('rows')} rows, not {rows}"
        if classes is not None and any(whole_number(one, "a class") >= len(classes) for one in answer.settings["classes"]):
            return "it names a class that there is not"
        for view, embedding in enumerate(spec.embeddings):
            mean, trace = answer.arrays[f"mean {view}"], float(answer.arrays[f"trace {view}"])
            try:
                check_sketch(Sketch(mean, rows, trace, embedding.features.recipe))
            except SketchError as error:
                return str(error)
            if embedding.norm_bound is None:
                norm = answer.settings["norms"][str(view)]
                if type(norm) is not float or not 0 < norm < np.inf:
                    return "it gives no largest norm"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> SketchStack:
        """All of them, one below the other."""
        if not answers:
            raise QuorumError("sketches: nobody answered; see the audit log for the reasons")
        told = list(answers.values())
        views, classes = range(len(spec.embeddings)), None
        if spec.classes is not None:
            classes = np.array(sorted({one for each in told for one in each.settings["classes"]}), dtype=np.int64)
        return SketchStack(
            np.array(list(answers), dtype=np.int64),
            tuple(np.array([one.arrays[f"mean {view}"] for one in told]) for view in views),
            tuple(np.array([float(one.arrays[f"trace {view}"]) for one in told]) for view in views),
            tuple(
                max((one.settings["norms"][str(view)] for one in told if one.settings["norms"]), default=None)
                if spec.embeddings[view].norm_bound is None
                else None
                for view in views
            ),
            classes,
        )

    def pooled(self, agents: PooledAgents) -> SketchStack:
        """The same from points that are embedded already."""
        spec = agents.spec
        if (spec.sizes < 2).any():
            name = spec.names[int(np.flatnonzero(spec.sizes < 2)[0])]
            raise InputError(f"agent {name} has one point, so its covariance is undefined; leave it out")
        points = [agents.points(view) for view in range(len(agents.embeddings))]
        return SketchStack(
            np.arange(len(agents.spec.names)),
            tuple(np.array([one.mean(axis=0, dtype=np.float64) for one in each]) for each in points),
            tuple(np.array([float(one.var(axis=0, ddof=1, dtype=np.float64).sum()) for one in each]) for each in points),
            (None,) * len(points),
            None if agents.spec.classes is None else np.arange(len(agents.spec.classes)),
        )
