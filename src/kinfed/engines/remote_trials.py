"""Calibration where points never meet: the same code as on pooled data, other hands.

`RemoteTrials` is what `kinfed.weights.calibration` works with when agents are elsewhere: weights are solved by the agents
themselves, models are trained in exchanges, and the losses of points stay where the points are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.conversation import fits, whole_number
from kinfed.engines.messages import Reply, Request
from kinfed.engines.remote_gradients import RemoteGradientAgents
from kinfed.engines.workshop import Workshop, off_simplex
from kinfed.learners import Extent, Learner, Models, Task
from kinfed.learners.remote import Form, Monitor, remote_learner
from kinfed.weights.calibration.family import Base, Member, geometric_bases, gradient_bases, used_views
from kinfed.weights.calibration.trials import AgentScores, Split

Array = NDArray[np.float64]

SIDE_BY_SIDE = 5
"""Splits whose questions travel together; more would make messages long, fewer exchanges many."""

MOST_BRIER = 3.0
"""The Brier score of a point is at most 2, and 1 more for a class that training never saw."""


@dataclass(eq=False)
class RemoteTrials:
    """Where candidates are tried, with agents elsewhere: see `kinfed.weights.calibration.trials.Trials`.

    Attributes
    ----------
    workshop : Workshop
    """

    workshop: Workshop
    _columns: dict[Member, int] = field(default_factory=dict)
    _judged: dict[int, set[int]] = field(default_factory=dict)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of points."""
        return self.workshop.agreement.sizes

    @property
    def extent(self) -> Extent:
        """How large the federation is."""
        agreement = self.workshop.agreement
        n_classes = 0 if agreement.classes is None else len(agreement.classes)
        return Extent(len(agreement.preparation.columns), self.workshop.n_agents, int(self.sizes.sum()), n_classes)

    def training_sizes(self, split: Split | None) -> NDArray[np.int64]:
        """How many points everybody trains on in a split."""
        return self.workshop.terms(split).sizes

    def judges(self, split: Split) -> NDArray[np.int64]:
        """Who sets points aside in a split."""
        return np.flatnonzero(self.training_sizes(split) < self.sizes)

    def can_train(self, split: Split) -> bool:
        """A classifier needs two classes."""
        if self.workshop.agreement.task != "classification":
            return True
        classes = self._book(split).classes
        return classes is not None and len(classes) > 1

    def each(self, splits: Sequence[Split], judge: Callable[[Split], None], progress: Callable[[int, int], None]) -> None:
        """Judge some splits side by side, then others: their questions travel together."""
        for start in range(0, len(splits), SIDE_BY_SIDE):
            some = splits[start : start + SIDE_BY_SIDE]
            self.workshop.side_by_side([partial(judge, split) for split in some])
            self.workshop.forget(some)
            progress(start + len(some), len(splits))

    def bases(
        self,
        split: Split | None,
        learner: Learner,
        wanted: Iterable[Base],
        targets: NDArray[np.int64],
        *,
        thrifty: bool,
    ) -> dict[Base, Array]:
        """Weights of the targets by every base; each target solves its own rows."""
        bases = list(dict.fromkeys(wanted))
        sizes = self.training_sizes(split)
        found = geometric_bases([base for base in bases if base.view is None], {}, targets, sizes)
        compared = [base for base in bases if base.view is not None]
        if compared:
            found |= dict(zip(compared, self._own_rows(split, compared, targets), strict=True))
        if any(base.learns for base in bases):
            agents = RemoteGradientAgents(self.workshop, learner, split)
            found |= gradient_bases(bases, agents, targets, common=thrifty)
        return found

    def fit(
        self,
        split: Split | None,
        learner: Learner,
        rows: Array,
        targets: NDArray[np.int64],
        *,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train candidates in a split."""
        return self.workshop.fit("calibration", learner, rows, split, monitor=monitor, monitor_every=monitor_every)

    def common(self, split: Split | None, learner: Learner) -> Models:
        """One common model in a split."""
        return self.workshop.common(split, learner)

    def score(
        self,
        split: Split,
        models: Models,
        members: Sequence[Member],
        agents: NDArray[np.int64],
        *,
        tell: bool = False,
    ) -> dict[int, Array]:
        """Have agents judge their candidates; the losses stay with them."""
        columns = [self._columns.setdefault(member, len(self._columns)) for member in members]
        for k in agents.tolist():
            self._judged.setdefault(k, set()).update(columns)
        remote = self._remote
        requests = {
            int(k): Request(
                "score",
                {"columns": columns, "tell": tell, **self.workshop.left_classes(split)},
                remote.pack(models, np.arange(len(members)) * len(agents) + place),
            )
            for place, k in enumerate(agents.tolist())
        }
        forms = {"mean": Form((len(members),), "float64")} if tell else {}
        replies = self.workshop.ask("calibration scores", requests, lambda _, reply: fits(reply.arrays, forms), split)
        return {k: reply.arrays["mean"] for k, reply in replies.items()} if tell else {}

    def tally(self, members: Sequence[Member]) -> list[AgentScores]:
        """Means and covariances of the losses at every agent."""
        columns = [self._columns[member] for member in members]
        upper = np.triu_indices(len(columns))

        def check(place: int, reply: Reply) -> str | None:
            # One agent that missed a candidate would take it from everybody, so it is the agent that is left out.
            judged = np.isin(columns, list(self._judged[place]))
            if whole_number(reply.settings["rows"], 0, int(self.sizes[place])) == 0:
                return "it has lost the losses it was to sum up"
            wrong = fits(
                {name: np.nan_to_num(array, nan=0.0) for name, array in reply.arrays.items()},
                {"mean": Form((len(columns),), "float64"), "covariance": Form((len(upper[0]),), "float64")},
            )
            return wrong or _impossible(_scores(reply, upper), judged, self.workshop.agreement.task)

        requests = {k: Request("tally", {"columns": columns}) for k in self._judged}
        replies = self.workshop.ask("calibration scores", requests, check)
        nothing = AgentScores.of_losses(np.zeros((0, len(columns))))
        return [_scores(replies[k], upper) if k in replies else nothing for k in range(self.workshop.n_agents)]

    @property
    def _remote(self) -> Any:
        return remote_learner(self.workshop.learner)

    def _book(self, split: Split | None) -> Any:
        return self.workshop.sketches(split, range(len(self.workshop.agreement.embeddings)))

    def _own_rows(self, split: Split | None, bases: Sequence[Base], targets: NDArray[np.int64]) -> list[Array]:
        """Rows of the targets, base by base; a target that does not answer keeps to itself."""
        book, n_agents = self._book(split), self.workshop.n_agents
        asked = [(base.rule, None if base.strength is None else float(base.strength), base.view) for base in bases]
        views = used_views(bases)
        settings = {
            "bases": asked,
            "absent": book.absent(n_agents),
            "norm bounds": {str(view): book.norm_bounds[view] for view in views},
        }
        there = set(book.present)
        everybody = book.arrays(views)
        requests = {int(t): Request("base-rows", settings, everybody) for t in targets if int(t) in there}
        shape = (len(bases), len(book.present))

        def check(place: int, reply: Reply) -> str | None:
            return fits(reply.arrays, {"rows": Form(shape, "float64")}) or off_simplex(reply.arrays["rows"])

        replies = self.workshop.ask("calibration weights", requests, check, split)
        matrices = [np.eye(n_agents)[targets] for _ in bases]
        for row, t in enumerate(targets.tolist()):
            if t in replies:
                for matrix, solved in zip(matrices, replies[t].arrays["rows"], strict=True):
                    matrix[row] = 0.0
                    matrix[row, book.present] = solved
        return matrices


def _impossible(scores: AgentScores, judged: NDArray[np.bool_], task: Task) -> str | None:
    """What is wrong with means and covariances of losses; candidates that were not judged have none."""
    mean, covariance = scores.mean[judged], scores.covariance[np.ix_(judged, judged)]
    if not np.isfinite(mean).all() or not np.isfinite(covariance).all() or np.isfinite(scores.mean[~judged]).any():
        return "it does not tell of the candidates it was to judge"
    if task != "unsupervised" and (mean < 0).any():
        return "a mean loss is negative"
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if (np.abs(covariance) > np.outer(spread, spread) * (1 + 1e-6) + 1e-300).any():
        return "its covariances are impossible"
    return "a loss is too large" if task == "classification" and (mean > MOST_BRIER).any() else None


def _scores(reply: Reply, upper: tuple[NDArray[Any], ...]) -> AgentScores:
    mean = reply.arrays["mean"]
    covariance = np.empty((len(mean), len(mean)))
    covariance[upper] = reply.arrays["covariance"]
    covariance.T[upper] = reply.arrays["covariance"]
    return AgentScores(int(reply.settings["rows"]), mean, covariance)
