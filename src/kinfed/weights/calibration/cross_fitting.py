"""Judging the family where folds stay at home.

Across sites, the moments of all rows minus those without a fold of two rows *are* those two rows. So nothing that is made
of a part of an agent's rows ever leaves it: a target holds its own folds out, solves and trains its candidates itself, from
what everybody is known by, and tells means and covariances of the losses in the end. That everybody is known by all rows
does no harm to the scores: a target's own rows are in nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.sketches import Sketches, SketchStack
from kinfed.backends.wire import ArraySpec, Message, arrays_of
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.federation import Agent
from kinfed.learners.inputs import relative_weights
from kinfed.learners.quadratics import HomeLearner, Quadratics, read_quadratics
from kinfed.parallel import map_on_cores
from kinfed.splitting import SMALLEST, deal_rows
from kinfed.validation import Array, FloatArray
from kinfed.weights.calibration.bases import used_views
from kinfed.weights.calibration.choice import AgentScores
from kinfed.weights.calibration.family import BaseRule, Candidate
from kinfed.weights.calibration.home_rows import Cases, Clusters, Everybody, agent_groups, clusters_outside, home_rows
from kinfed.weights.calibration.losses import KeptLosses, judged_losses, read_scores, scores_fault, scores_form, told_scores

ENOUGH_POINTS = 600
"""Small federations deal their folds again, with other points together, until about this many were scored."""
MOST_REPEATS = 5
_CASES_AT_ONCE = 2**20  # numbers of one base's rows of the cases that are solved together (8 MB)

_CLUSTERS = ("labels", "members", "centres", "within")


@dataclass(frozen=True)
class Dealing:
    """How an agent deals its rows to folds.

    Attributes
    ----------
    folds : int
    repeats : int
        How often.
    seed : int
    """

    folds: int
    repeats: int
    seed: int

    @classmethod
    def of(cls, spec: TrainingSpec, folds: int) -> Dealing:
        """As often as so many rows need it."""
        return cls(folds, int(np.clip(-(-ENOUGH_POINTS // int(spec.sizes.sum())), 1, MOST_REPEATS)), spec.seed)

    def held_out(self, agent: Agent) -> list[tuple[int, NDArray[np.bool_]]]:
        """Repeat and rows of every fold that is held out; none where an agent is too small to judge."""
        if len(agent) < SMALLEST:
            return []
        found = []
        for repeat in range(self.repeats):
            dealt = deal_rows(agent.name, len(agent), agent.y, self.folds, self.seed, repeat, group=agent.group)
            found += [(repeat, dealt == fold) for fold in range(self.folds) if (dealt == fold).any()]
        return found


@dataclass(frozen=True, eq=False)
class HomeScores(Question[list[AgentScores]]):
    """What every agent tells of the candidates, judged on its own rows; n = 0 for those that judge nothing.

    Attributes
    ----------
    candidates : tuple of Candidate
    dealing : Dealing
    learner : HomeLearner
    quadratics : Quadratics
        Of all agents.
    stack : SketchStack, optional
        Everybody's sketches, where rows are at sites.
    report : callable
        Called as ``report(done, total)`` where all rows are here.
    store : Store
        Where losses are kept, if all rows are here: of so many targets, judging takes a while.
    """

    candidates: tuple[Candidate, ...]
    dealing: Dealing
    learner: HomeLearner
    quadratics: Quadratics
    stack: SketchStack | None = None
    report: Callable[[int, int], None] = field(default=lambda done, total: None)
    store: Store = NOWHERE

    name = "home-scores"
    phase = "calibration scores"

    @property
    def _bases(self) -> tuple[BaseRule, ...]:
        return tuple(dict.fromkeys(one.base for one in self.candidates))

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every judge the candidates, everybody's sketches and quadratics, and the clusters found without its group."""
        if self.stack is None:
            raise AssertionError("sites compare everybody's sketches: ask for them first")
        present = np.intersect1d(self.stack.present, np.flatnonzero(self.quadratics.n > 0))
        chosen = np.searchsorted(self.stack.present, present)
        views = used_views(self._bases)
        everybody = Everybody(
            tuple(spec.names[k] for k in present),
            spec.sizes[present],
            {view: self.stack.means[view][chosen] for view in views},
            {view: self.stack.traces[view][chosen] / spec.sizes[present] for view in views},
            {},
            self.quadratics.select(present),
            spec,
            self.learner,
        )
        settings = {
            "candidates": [(one.base.rule, one.base.strength, one.base.view, one.own) for one in self.candidates],
            "folds": self.dealing.folds,
            "repeats": self.dealing.repeats,
            "absent": np.setdiff1d(np.arange(len(spec.names)), present).tolist(),
            "norm bounds": {str(view): self.stack.norm_bounds[view] for view in views},
        }
        known = everybody.quadratics.arrays
        for view in views:
            known |= {f"mean {view}": everybody.means[view], f"variance {view}": everybody.mean_variance[view]}
        groups, asked = agent_groups(len(present), spec.seed), dict[int, Message]()
        for group in np.unique(groups):
            found = clusters_outside(everybody, groups == group, self._bases)
            clusters = {f"{i} {name}": getattr(one, name) for i, one in enumerate(found.values()) for name in _CLUSTERS}
            judges = [k for k in present[groups == group].tolist() if spec.sizes[k] >= SMALLEST]
            asked |= dict.fromkeys(judges, Message(settings, known | clusters))
        return dict(sorted(asked.items()))

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Judge, and tell means and covariances of the losses."""
        settings, arrays, spec = asked.settings, asked.arrays, site.spec
        candidates = [
            Candidate(BaseRule(rule, strength, view), own) for rule, strength, view, own in settings["candidates"]
        ]
        bases = tuple(dict.fromkeys(one.base for one in candidates))
        present = np.setdiff1d(np.arange(len(spec.names)), settings["absent"])
        views = used_views(bases)
        told = settings["norm bounds"]
        bounds = {view: float(told[str(view)] or spec.embeddings[view].features.norm_bound) for view in views}
        everybody = Everybody(
            tuple(spec.names[k] for k in present),
            spec.sizes[present],
            {view: arrays[f"mean {view}"] for view in views},
            {view: arrays[f"variance {view}"] for view in views},
            bounds,
            read_quadratics(arrays),
            spec,
            site.learner,
        )
        sought = [base for base in bases if base.rule in ("clusters", "gradient-clusters")]
        clusters = {base: Clusters(*(arrays[f"{i} {name}"] for name in _CLUSTERS)) for i, base in enumerate(sought)}
        dealing = Dealing(settings["folds"], settings["repeats"], spec.seed)
        place = int(np.searchsorted(present, site.place))
        embedded = {view: spec.embeddings[view](site.agent) for view in views}
        judge = Judge(place, site.own, site.agent, embedded, clusters)
        (found,) = judged(everybody, candidates, [judge], dealing)
        return told_scores(found)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Means, and the upper half of a matrix."""
        return scores_form(len(self.candidates))

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Scores must be of rows the agent has, and could be those of losses; whose rows are one group has none."""
        if answer.settings["rows"] == 0 and np.isnan(answer.arrays["mean"]).all():
            return None
        return scores_fault(answer, spec, place, np.ones(len(self.candidates), dtype=bool))

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> list[AgentScores]:
        """In the order of the agents."""
        nothing = AgentScores.of_losses(np.zeros((0, len(self.candidates))))
        return [read_scores(answers[k]) if k in answers else nothing for k in range(len(spec.names))]

    def pooled(self, agents: PooledAgents) -> list[AgentScores]:
        """The same for many targets at once."""
        spec, views = agents.spec, used_views(self._bases)
        stack = agents.ask(Sketches())
        everybody = Everybody(
            spec.names,
            spec.sizes,
            {view: stack.means[view] for view in views},
            {view: stack.traces[view] / spec.sizes for view in views},
            {view: _norm_bound(agents, view) for view in views},
            self.quadratics,
            spec,
            self.learner,
        )
        groups = agent_groups(len(spec.names), spec.seed)
        clusters = list(
            map_on_cores(lambda one: clusters_outside(everybody, groups == one, self._bases), range(groups.max() + 1))
        )
        judges = [
            Judge(k, own, agents.rows[k], {view: agents.points(view)[k] for view in views}, clusters[groups[k]])
            for k, own in enumerate(agents.own_rows)
        ]
        return judged(everybody, self.candidates, judges, self.dealing, self.report, self.store)


@dataclass(frozen=True, eq=False)
class Judge:
    """A target with its rows as they are, and as they are compared with others' and embedded in every view that is used.

    And the clusters that were found without its group.
    """

    place: int
    agent: Agent
    compared: Agent
    embedded: Mapping[int, FloatArray]
    clusters: Mapping[BaseRule, Clusters]


def judged(
    everybody: Everybody,
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    dealing: Dealing,
    report: Callable[[int, int], None] = lambda done, total: None,
    store: Store = NOWHERE,
) -> list[AgentScores]:
    """The scores of all candidates by every judge; losses of judges that are done are kept in the store."""
    losses = [KeptLosses.nothing(len(judge.agent)) for judge in judges]
    per_judge = dealing.folds * dealing.repeats
    step = max(1, _CASES_AT_ONCE // (len(everybody.sizes) * per_judge))
    for start in range(0, len(judges), step):
        report(start, len(judges))
        some, piece = range(start, min(start + step, len(judges))), f"judged from {start}"
        kept = store.load(piece)
        if kept is None:
            _judge(everybody, candidates, judges, some, dealing, losses)
            store.save(piece, Kept(arrays={str(j): losses[j].values for j in some}))
        else:
            for j in some:
                losses[j] = KeptLosses(kept.arrays[str(j)])
    report(len(judges), len(judges))
    return [one.scores(range(len(candidates))) for one in losses]


def _judge(
    everybody: Everybody,
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    some: Iterable[int],
    dealing: Dealing,
    losses: list[KeptLosses],
) -> None:
    """Let some of the judges score all candidates, fold by fold, and keep the losses."""
    bases = [one.base for one in candidates]
    held = [(j, *one) for j in some for one in dealing.held_out(judges[j].agent)]
    if not held:
        return
    cases = Cases(
        np.array([judges[j].place for j, _, _ in held]),
        [judges[j].compared.rows(~aside) for j, _, aside in held],
        {view: [judges[j].embedded[view][~aside] for j, _, aside in held] for view in used_views(bases)},
        [judges[j].clusters for j, _, _ in held],
    )
    weights = home_rows(everybody, cases, bases)
    counted = {j: _counted(judges[j].agent, [aside for one, _, aside in held if one == j], everybody.spec) for j in some}

    def score(case: int) -> Array:
        j, _, aside = held[case]
        target = cases.targets[case : case + 1]
        rows = np.vstack([one.matrix(weights[one.base][case : case + 1], target, everybody.sizes) for one in candidates])
        rows = everybody.heard(rows, np.repeat(target, len(rows)))
        own_part = judges[j].agent.rows(~aside)
        models = everybody.learner.fit_at_home(everybody.quadratics, rows, int(target[0]), own_part, everybody.spec)
        tested, own = judges[j].agent.rows(aside), counted[j]
        return judged_losses(models, range(len(rows)), tested, everybody.spec, None if own is None else own[aside])

    for (j, repeat, aside), found in zip(held, map_on_cores(score, range(len(held))), strict=True):
        losses[j] = losses[j].keep(repeat, aside, range(len(candidates)), found)


def _counted(agent: Agent, asides: Sequence[NDArray[np.bool_]], spec: TrainingSpec) -> Array | None:
    """What each row counts among those that are judged, with mean one; None where all count the same."""
    ever = np.any(asides, axis=0) if asides else np.zeros(len(agent), dtype=bool)
    weights = relative_weights(agent.rows(ever), spec)
    if weights is None:
        return None
    found = np.zeros(len(agent))
    found[ever] = weights
    return found


def cross_fit(
    agents: Agents,
    learner: HomeLearner,
    candidates: Sequence[Candidate],
    folds: int,
    report: Callable[[int, int], None],
    store: Store = NOWHERE,
) -> list[AgentScores]:
    """Scores of all candidates by every agent; n = 0 for agents of too few rows, and for those that do not answer."""
    kept = store.load("scores")
    if kept is not None:
        return [
            read_scores(Message({"rows": int(n)}, arrays_of(kept.arrays, k))) for k, n in enumerate(kept.arrays["rows"])
        ]
    stack = agents.ask(Sketches()) if agents.rows is None else None
    dealing = Dealing.of(agents.spec, folds)
    quadratics = learner.quadratics(agents.labelled("calibration"))
    scores = agents.ask(HomeScores(tuple(candidates), dealing, learner, quadratics, stack, report, store))
    told = {f"{k}/{name}": array for k, one in enumerate(scores) for name, array in told_scores(one).arrays.items()}
    store.save("scores", Kept(arrays={"rows": np.array([one.n for one in scores]), **told}))
    return scores


def _norm_bound(agents: PooledAgents, view: int) -> float:
    """M: of the features, or of all points where these have none of their own."""
    bound = agents.embeddings[view].norm_bound
    if bound is not None:
        return bound
    return max(float(np.linalg.norm(points, axis=1).max()) for points in agents.points(view))
