"""The family calibration chooses from: rules, strengths, views of the agents, and mixing with one's own data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.learners.plan import USUAL_PLAN, Plan
from kinfed.weights.exponential_gradient import exponential_gradient
from kinfed.weights.geometry import Geometry
from kinfed.weights.objective import q_aggregation_problem
from kinfed.weights.rules.clusters import clusters, within
from kinfed.weights.rules.entropic import entropic
from kinfed.weights.rules.gradient import CAUTION, gradient_rounds, listening_clusters
from kinfed.weights.rules.gradient_agents import GradientAgents
from kinfed.weights.rules.similarity_test import similarity_test

Array = NDArray[np.float64]

# The strengths of each rule, and the shares of own data mixed in. Tuned once on the generators (docs/calibration.md).
EARLY_STOPS = (100, 300, 1000)
CLUSTERS = (2, 3, 5, 8)
STRENGTHS: Mapping[str, tuple[float, ...]] = {"entropic": (0.1, 1.0), "similarity-test": (1.0,)}
CAUTIONS = (1.0, CAUTION)
OWN_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)

# Gap of the solvers while members are scored: far below what scores can tell apart.
_GAP = 1e-4

_MEANING = {
    "q-aggregation": "T = {:g}",
    "entropic": "strength {:g}",
    "similarity-test": "zeta {:g}",
    "clusters": "{:g}",
    "gradient": "C_Q = {:g}",
    "gradient-clusters": "{:g}",
}


@dataclass(frozen=True)
class Base:
    """Weights before mixing.

    Attributes
    ----------
    rule : str
    strength : float, optional
        T of Algorithm 3, the pull of the entropic rule, zeta of the similarity test, the number of clusters, or C_Q
        of the gradient rule.
    view : int, optional
        Place among the views of the agents, for rules that compare embedded points.
    """

    rule: str
    strength: float | None = None
    view: int | None = None

    @property
    def learns(self) -> bool:
        """Whether models are trained to find these weights."""
        return self.rule in ("gradient", "gradient-clusters")

    def describe(self, views: Sequence[str]) -> str:
        """The rule in words."""
        parts = [] if self.strength is None else [_MEANING[self.rule].format(self.strength)]
        parts += [] if self.view is None else [views[self.view]]
        return self.rule + (f" ({', '.join(parts)})" if parts else "")


LOCAL, GRAND_MEAN = Base("local"), Base("grand-mean")


@dataclass(frozen=True)
class Member:
    r"""One candidate: base weights mixed with the agent's own data.

    Attributes
    ----------
    base : Base
    plan : Plan
        How its models are trained, for learners that leave a choice.
    own : float
        Share :math:`\alpha` of own data at an agent of average size. Larger agents keep more: the odds
        :math:`\alpha_t / (1 - \alpha_t)` are proportional to :math:`n_t`.
    """

    base: Base
    own: float = 0.0
    plan: Plan = USUAL_PLAN

    def describe(self, views: Sequence[str]) -> str:
        """The member in words."""
        mixed = self.base.describe(views) + (f" + {self.own:.0%} own" if self.own else "")
        return mixed if self.plan == USUAL_PLAN else f"{mixed}, {self.plan}"

    def matrix(self, base: Array, targets: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
        """Weights of the targets, from those of the base."""
        if not self.own:
            return base
        odds = self.own / (1 - self.own) * sizes[targets] / sizes.mean()
        share = (odds / (1 + odds))[:, None]
        return np.asarray((1 - share) * base + share * np.eye(len(sizes))[targets])


def family(n_views: int, main_views: Sequence[int], gradients: bool) -> tuple[Member, ...]:
    """All members for that many views of the agents; learning alone is the first.

    Parameters
    ----------
    n_views : int
    main_views : sequence of int
        The views that clusters are sought in, the usual one first.
    gradients : bool
        Whether the learner has loss gradients.
    """
    # The paper's rule is the slowest to solve and keeps to the usual view.
    found = [GRAND_MEAN, *(Base("q-aggregation", steps, 0) for steps in EARLY_STOPS)]
    found += [Base("clusters", count, view) for view in main_views for count in CLUSTERS]
    found += [Base(rule, one, view) for view in range(n_views) for rule, many in STRENGTHS.items() for one in many]
    if gradients:
        found += [Base("gradient", caution) for caution in CAUTIONS]
        found += [Base("gradient-clusters", count) for count in CLUSTERS]
    return (Member(LOCAL), *(Member(base, own) for base in found for own in OWN_SHARES))


def thrifty_family(views: Sequence[int], gradients: bool) -> tuple[Member, ...]:
    """The members for learners that are slow to train, the most promising first.

    Clusters cost one model each, whatever the number of agents. Which members stay was settled on the covariate-shift
    generator; soft weights without own data, and the finer grids, gained nothing there.

    Parameters
    ----------
    views : sequence of int
        The views to compare agents by, the usual one first.
    gradients : bool
        Whether the learner has loss gradients.
    """
    few = [Base("clusters", count, view) for view in views for count in CLUSTERS]
    soft = [Base("entropic", 0.1, 0), *([Base("gradient", CAUTION)] if gradients else [])]
    soft += [Base("entropic", 0.1, view) for view in views[1:]]
    soft += [Base("similarity-test", 1.0, view) for view in views]
    soft += [Base("q-aggregation", 1000, 0), Base("entropic", 1.0, 0), GRAND_MEAN]
    return (
        Member(LOCAL),
        Member(GRAND_MEAN),
        *(Member(base) for base in few[:2]),
        *(Member(base, 0.3) for base in soft),
        *(Member(base) for base in few[2:]),
        *(Member(base, own) for own in (0.5, 0.0) for base in soft if own or base != GRAND_MEAN),
    )


def neighbours(members: Sequence[Member]) -> list[list[int]]:
    """For every member those an agent may move to: other shares of own data, learning alone, and the grand mean.

    All agents train by one plan; what they weigh may differ.
    """
    kin: dict[tuple[Plan, Base], list[int]] = {}
    common: dict[Plan, list[int]] = {}
    for place, member in enumerate(members):
        kin.setdefault((member.plan, member.base), []).append(place)
        if member.base == LOCAL or (member.base == GRAND_MEAN and not member.own):
            common.setdefault(member.plan, []).append(place)
    return [sorted({*kin[member.plan, member.base], *common.get(member.plan, [])}) for member in members]


def used_views(wanted: Iterable[Base]) -> list[int]:
    """The views that bases look at."""
    return sorted({base.view for base in wanted if base.view is not None})


def geometric_bases(
    wanted: Iterable[Base],
    geometries: Mapping[int, Geometry],
    targets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> dict[Base, Array]:
    """Weights (T, B) of the targets by every base that is wanted and trains nothing.

    All early stops of one view are read off one path.

    Parameters
    ----------
    wanted : iterable of Base
    geometries : mapping from a view to the geometry of the agents under it
        Of the views that are used, with these targets. Where each agent weighs for itself it is the only target.
    targets : array of shape (T,)
    sizes : array of shape (B,)
        How many points each agent trains on.
    """
    bases = [base for base in dict.fromkeys(wanted) if not base.learns]
    found: dict[Base, Array] = {}
    paths = {view: _path(geometry, view, bases) for view, geometry in geometries.items()}
    for base in bases:
        strength = 0.0 if base.strength is None else base.strength
        match base.rule:
            case "local":
                found[base] = np.eye(len(sizes))[targets]
            case "grand-mean":
                found[base] = np.tile(sizes / sizes.sum(), (len(targets), 1))
            case "q-aggregation" if base.view is not None:
                found[base] = paths[base.view][int(strength)]
            case "entropic" if base.view is not None:
                found[base] = entropic(geometries[base.view], strength, relative_gap=_GAP).matrix
            case "similarity-test" if base.view is not None:
                found[base] = similarity_test(geometries[base.view], strength).matrix
            case "clusters" if base.view is not None:
                found[base] = clusters(geometries[base.view], int(strength)).matrix
    return found


def gradient_bases(
    wanted: Iterable[Base], agents: GradientAgents, targets: NDArray[np.int64], *, common: bool
) -> dict[Base, Array]:
    """Weights (T, B) of the targets by every base that is wanted and trains models.

    The usual C_Q goes through all rounds, and clusters are read off it; the others go one round on from there.

    Parameters
    ----------
    wanted : iterable of Base
    agents : GradientAgents
    targets : array of shape (T,)
    common : bool
        Gradients are compared at one common model: the learner is slow to train.
    """
    bases = [base for base in dict.fromkeys(wanted) if base.learns]
    if not bases:
        return {}
    # Clusters ask whom everybody listens to.
    everyone = np.arange(len(agents.sizes))
    usual = gradient_rounds(agents, everyone, relative_gap=_GAP, common=common).weights
    matrices = {CAUTION: usual}
    for c_q in sorted({float(base.strength or 0) for base in bases if base.rule == "gradient"} - {CAUTION}):
        further = gradient_rounds(agents, everyone, rounds=1, c_q=c_q, relative_gap=_GAP, common=common, start=usual)
        matrices[c_q] = further.weights
    found = {}
    for base in bases:
        strength = float(base.strength or 0)
        if base.rule == "gradient":
            found[base] = matrices[strength][targets]
        else:
            found[base] = within(listening_clusters(usual, int(strength)), targets, agents.sizes)
    return found


def _path(geometry: Geometry, view: int, bases: Sequence[Base]) -> dict[int, Array]:
    stops = [int(base.strength or 0) for base in bases if base.rule == "q-aggregation" and base.view == view]
    if not stops:
        return {}
    return exponential_gradient(q_aggregation_problem(geometry), max(stops), checkpoints=stops)[1]
