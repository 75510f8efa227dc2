"""The weights of the family's bases, by rules that compare agents and by rules that train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.sketches import SketchStack
from kinfed.backends.wire import ArraySpec, Message
from kinfed.checkpoint import NOWHERE, Store
from kinfed.learners.base import Learner
from kinfed.validation import Array
from kinfed.weights.calibration.family import CAUTION, BaseRule
from kinfed.weights.geometry import Geometry, geometry_at, pooled_geometry, present_at, sketch_messages
from kinfed.weights.mirror_descent import entropic_minimum, exponential_gradient
from kinfed.weights.objective import q_aggregation_problem
from kinfed.weights.rules.closed_form import clusters, similar_kin, within
from kinfed.weights.rules.gradient import gradient_rounds, listening_clusters
from kinfed.weights.weighing import off_simplex, usual_sketches

SCORED_GAP = 1e-4
"""Gap of the solvers of candidates: far below what scores can tell apart."""


def base_matrices(
    agents: Agents,
    learner: Learner,
    wanted: Iterable[BaseRule],
    targets: Places,
    *,
    budgeted: bool,
    store: Store = NOWHERE,
) -> dict[BaseRule, Array]:
    """Weights (T, B) of the targets by every base that is wanted.

    Parameters
    ----------
    learner : Learner
        What the gradient rule trains.
    budgeted : bool
        That rule compares gradients at one common model: the learner is slow to train.
    store : Store
        Its finished rounds are kept there.
    """
    bases = tuple(dict.fromkeys(wanted))
    found = geometric_bases([one for one in bases if one.view is None], {}, targets, agents.spec.sizes)
    compared = tuple(one for one in bases if one.view is not None)
    if compared:
        rows: dict[BaseRule, Array] = agents.ask(BaseRows(compared, targets, usual_sketches(agents)))
        found |= rows
    how: dict[str, Any] = {"relative_gap": SCORED_GAP, "common": budgeted, "store": store}
    return found | _gradient_bases(agents, learner, [one for one in bases if one.learns], targets, how)


def _gradient_bases(
    agents: Agents, learner: Learner, bases: Sequence[BaseRule], targets: Places, how: Mapping[str, Any]
) -> dict[BaseRule, Array]:
    """The bases that train models: the usual C_Q goes through all rounds, the others one round on from there."""
    if not bases:
        return {}
    # Clusters ask whom everybody listens to that is there.
    sizes = agents.spec.sizes
    everyone = np.flatnonzero(sizes > 0)
    places = np.searchsorted(everyone, targets)
    usual = gradient_rounds(agents, learner, everyone, **how).weights
    matrices = {CAUTION: usual}
    for c_q in sorted({float(base.strength or 0) for base in bases if base.rule == "gradient"} - {CAUTION}):
        matrices[c_q] = gradient_rounds(agents, learner, everyone, rounds=1, c_q=c_q, start=usual, **how).weights
    found = {}
    for base in bases:
        strength = float(base.strength or 0)
        if base.rule == "gradient":
            found[base] = matrices[strength][places]
        else:
            kin = within(listening_clusters(usual[:, everyone], int(strength)), places, sizes[everyone])
            found[base] = np.zeros((len(targets), len(sizes)))
            found[base][:, everyone] = kin
    return found


@dataclass(frozen=True, eq=False)
class BaseRows(Question[dict[BaseRule, Array]]):
    """Weights (T, B) of some targets by many rules that compare agents; a target that does not answer keeps to itself.

    Attributes
    ----------
    bases : tuple of BaseRule
    targets : array of shape (T,)
    stack : SketchStack, optional
        Everybody's sketches, where rows are at sites.
    """

    bases: tuple[BaseRule, ...]
    targets: Places
    stack: SketchStack | None = None

    name = "base-rows"
    phase = "calibration weights"

    @property
    def _stack(self) -> SketchStack:
        if self.stack is None:
            raise AssertionError("sites weigh everybody's sketches: ask for them first")
        return self.stack

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """The rules, and everybody's sketches in the views they look at."""
        asked = [(one.rule, None if one.strength is None else float(one.strength), one.view) for one in self.bases]
        return sketch_messages(spec, self._stack, self.targets, used_views(self.bases), {"bases": asked})

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Own rows by all of them."""
        bases = [BaseRule(rule, strength, view) for rule, strength, view in asked.settings["bases"]]
        geometries = {view: geometry_at(site, asked, view) for view in used_views(bases)}
        present = present_at(site, asked)
        own = np.array([present.index(site.place)])
        rows = geometric_bases(bases, geometries, own, site.spec.sizes[present])
        return Message(arrays={"rows": np.array([rows[base][0] for base in bases])})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A row for each rule."""
        return {"rows": ArraySpec((len(self.bases), len(spec.names) - len(asked.settings["absent"])))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Rows must be on the simplex."""
        return off_simplex(answer.arrays["rows"])

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> dict[BaseRule, Array]:
        """One matrix for each rule."""
        present = self._stack.present
        found = {base: np.eye(len(spec.names))[self.targets] for base in self.bases}
        for row, t in enumerate(self.targets.tolist()):
            if t in answers:
                for matrix, solved in zip(found.values(), answers[t].arrays["rows"], strict=True):
                    matrix[row] = 0.0
                    matrix[row, present] = solved
        return found

    def pooled(self, agents: PooledAgents) -> dict[BaseRule, Array]:
        """The weights of all targets at once, from one geometry per view."""
        geometries = {view: pooled_geometry(agents, view, self.targets) for view in used_views(self.bases)}
        return geometric_bases(self.bases, geometries, self.targets, agents.spec.sizes)


def used_views(wanted: Iterable[BaseRule]) -> list[int]:
    """The views that bases look at."""
    return sorted({base.view for base in wanted if base.view is not None})


def geometric_bases(
    wanted: Iterable[BaseRule],
    geometries: Mapping[int, Geometry],
    targets: NDArray[np.int64],
    sizes: NDArray[np.int64] | Array,
) -> dict[BaseRule, Array]:
    """Weights (T, B) of the targets by every base that is wanted and trains nothing.

    All early stops of one view are read off one path.

    Parameters
    ----------
    wanted : iterable of BaseRule
    geometries : mapping from a view to the geometry of the agents under it
        Of the views that are used, with these targets. Where each agent weighs for itself it is the only target.
    targets : array of shape (T,)
    sizes : array of shape (B,), or (T, B) where targets know themselves by fewer points than others do
        How many points each agent trains on.
    """
    known = np.broadcast_to(sizes, (len(targets), np.shape(sizes)[-1]))
    bases = [base for base in dict.fromkeys(wanted) if not base.learns]
    found: dict[BaseRule, Array] = {}
    paths = {view: _path(geometry, view, bases) for view, geometry in geometries.items()}
    for base in bases:
        strength = 0.0 if base.strength is None else base.strength
        match base.rule:
            case "local":
                found[base] = np.eye(known.shape[1])[targets]
            case "grand-mean":
                found[base] = known / known.sum(axis=1, keepdims=True)
            case "q-aggregation" if base.view is not None:
                found[base] = paths[base.view][int(strength)]
            case "entropic" if base.view is not None:
                found[base] = entropic_minimum(geometries[base.view], strength, relative_gap=SCORED_GAP).weights
            case "similarity-test" if base.view is not None:
                found[base] = similar_kin(geometries[base.view], strength)
            case "clusters" if base.view is not None:
                found[base] = clusters(geometries[base.view], int(strength)).matrix
    return found


def _path(geometry: Geometry, view: int, bases: Sequence[BaseRule]) -> dict[int, Array]:
    stops = [int(base.strength or 0) for base in bases if base.rule == "q-aggregation" and base.view == view]
    if not stops:
        return {}
    return exponential_gradient(q_aggregation_problem(geometry), max(stops), checkpoints=stops)[1]
