"""Calibration for learners that are slow to train: a race that costs about five trainings.

Every agent sets one fifth of its points aside, once. What is spared then depends on the learner.

* A learner that goes step by step (networks) also has its start and its number of steps to choose. All soft weights start
  from a common model: everyone for a short while, the best for longer, the very best to the end. That one, learning alone,
  and members that cost few models (clusters, the grand mean) also train from scratch. Looks along the way make every length
  a candidate, and a training that has nothing left to win is given up.
* Any other learner trains the members for some of the agents, and the best one for all of them, beside learning alone and
  the grand mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.learners.base import Learner, Models
from kinfed.learners.plan import Plan, StepwiseLearner, common_model
from kinfed.splitting import derived_seed
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member, base_weights
from kinfed.weights.calibration.folds import deal_folds, without_fold
from kinfed.weights.calibration.scores import EmbeddedAgents, can_train, point_losses

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]
Report = Callable[[int, int], None]

FOLDS = 5
LOOKS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares of the whole length at which models are scored."""

SHORT, LONGER, KEPT = 0.02, 0.1, 4
"""How long everyone trains from the common model, how long the best do, and how many those are."""

PATIENCE, WORSE = 0.1, 1.05
"""From this share of the length on, a training is given up whose scores are that many times its own best."""

HALFWAY, HOPELESS = 0.5, 2.0
"""From this share of the length on, also one whose scores are that many times the best of all."""

BUDGET = 5.0
"""Trainings, of one model per agent, that a race over agents may cost."""
FEWEST_AGENTS = 8


@dataclass(frozen=True, eq=False)
class Raced:
    """Candidates and, for every agent, the losses (n_t, M) of its points; NaN for candidates it did not try."""

    members: tuple[Member, ...]
    losses: list[Array]

    @property
    def local(self) -> int:
        """Learning alone from scratch, as long as it was trained."""
        alone = [place for place, one in enumerate(self.members) if one.base == LOCAL and not one.plan.warm]
        return max(alone, key=lambda place: self.members[place].plan.share)


class Course:
    """One split of the federation, and the weights of every base on its training part."""

    def __init__(
        self,
        federation: Federation,
        learner: Learner,
        views: Sequence[EmbeddedAgents],
        members: Sequence[Member],
        seed: int,
    ) -> None:
        dealt = deal_folds(federation, FOLDS, seed)
        fold = next((f for f in range(FOLDS) if can_train(without_fold(federation, dealt, f), learner.task)), 0)
        self.kept = [mine != fold for mine in dealt]
        self.federation, self.learner, self.seed = federation, learner, seed
        self.train = without_fold(federation, dealt, fold)
        self.judges = np.array([t for t, rows in enumerate(self.kept) if not rows.all()], dtype=np.int64)
        wanted = {member.base for member in members}
        used = sorted({base.view for base in wanted if base.view is not None} | {0})
        geometries = {view: views[view].geometry(self.kept) for view in used}
        self._bases = base_weights(wanted, geometries, self.train, learner, seed, thrifty=True)
        self._scores: dict[Member, dict[int, Array]] = {}

    def rows(self, member: Member, agents: NDArray[np.int64]) -> Array:
        """Weights of some agents by a member."""
        everyone = np.arange(len(self.kept))
        return member.matrix(self._bases[member.base], everyone, self.train.sizes)[agents]

    def score(self, models: Models, members: Sequence[Member], agents: NDArray[np.int64]) -> None:
        """Keep the losses of the agents' points; models come one member after another, agent by agent."""
        for row, t in enumerate(agents.tolist()):
            agent, aside = self.federation[t], ~self.kept[t]
            y = None if agent.y is None else np.asarray(agent.y)[aside]
            rows = [place * len(agents) + row for place in range(len(members))]
            losses = point_losses(models, rows, agent.X[aside], y, self.learner.task)
            for member, mine in zip(members, losses.T, strict=True):
                self._scores.setdefault(member, {})[t] = mine

    def mean(self, member: Member) -> float:
        """Mean score of a member over the agents who tried it."""
        return float(np.mean([losses.mean() for losses in self._scores[member].values()]))

    def best(self, members: Sequence[Member], count: int) -> list[Member]:
        """The members of the smallest mean score."""
        return sorted(members, key=self.mean)[:count]

    def least(self) -> float:
        """The smallest mean score so far."""
        return min(self.mean(member) for member in self._scores)

    def raced(self) -> Raced:
        """All that was scored."""
        members = tuple(self._scores)
        losses = []
        for t, rows in enumerate(self.kept):
            mine = np.full((int((~rows).sum()), len(members)), np.nan)
            for column, member in enumerate(members):
                if t in self._scores[member]:
                    mine[:, column] = self._scores[member][t]
            losses.append(mine)
        return Raced(members, losses)


class _EnoughSeenError(Exception):
    """Raised out of a training that has nothing left to win."""


def race_steps(course: Course, learner: StepwiseLearner, members: Sequence[Member], report: Report) -> Raced:
    """The race of a learner that goes step by step."""
    shared = [member for member in members if member.base.rule in ("clusters", "grand-mean") and not member.own]
    soft = [member for member in members if member not in shared]
    start = common_model(learner, course.train, seed=course.seed)
    report(1, 7)

    def run(some: Sequence[Member], share: float, warm: bool) -> list[Member]:
        """Train, look on the way, give up when nothing is left to win, and return the candidates at the last look."""
        # Steps as `trained_for` counts them, so that a candidate is trained as long as it was when it was scored.
        looks = {max(1, round(look * learner.length)): look for look in (*LOOKS, share) if look <= share}
        levels: list[float] = []
        last: list[Member] = []

        def look(done: int, models: Any) -> None:
            if done not in looks:
                return
            last[:] = [replace(member, plan=Plan(warm, looks[done])) for member in some]
            course.score(models, last, course.judges)
            levels.append(min(course.mean(member) for member in last))
            overdone = looks[done] >= PATIENCE and levels[-1] > WORSE * min(levels)
            if overdone or (looks[done] >= HALFWAY and levels[-1] > HOPELESS * course.least()):
                raise _EnoughSeenError

        trained = learner.trained_for(share, start if warm else None)
        with suppress(_EnoughSeenError):
            trained.fit(
                course.train,
                np.vstack([course.rows(member, course.judges) for member in some]),
                targets=np.tile(course.judges, len(some)),
                seed=course.seed,
                monitor=look,
                monitor_every=gcd(*looks),
            )
        return last

    begun = run(soft, SHORT, warm=True)
    report(2, 7)
    ahead = run(course.best(begun, KEPT), LONGER, warm=True)
    report(3, 7)
    best = course.best(ahead, 1)
    run(best, 1.0, warm=True)
    report(4, 7)
    run(shared, 1.0, warm=False)
    report(5, 7)
    if best[0].base != LOCAL:
        run(best, 1.0, warm=False)
    report(6, 7)
    run([Member(LOCAL)], 1.0, warm=False)
    report(7, 7)
    return course.raced()


def race_agents(course: Course, learner: Learner, members: Sequence[Member], report: Report) -> Raced:
    """The race of any other learner: all members for some agents, the best for all."""
    rng = np.random.default_rng(derived_seed(course.seed, "race"))
    tried = np.sort(rng.permutation(course.judges)[: max(FEWEST_AGENTS, len(course.judges) // FEWEST_AGENTS)])
    # Half of the budget tries the members, in their order, as long as it lasts; equal rows are one model.
    left = BUDGET / 2 * len(course.judges)
    entered = []
    for member in members:
        cost = len(np.unique(course.rows(member, tried), axis=0))
        if cost <= left:
            entered.append(member)
            left -= cost

    def run(chosen: Sequence[Member], agents: NDArray[np.int64]) -> None:
        rows = np.vstack([course.rows(member, agents) for member in chosen])
        models = learner.fit(course.train, rows, targets=np.tile(agents, len(chosen)), seed=course.seed)
        course.score(models, chosen, agents)

    run(entered, tried)
    report(1, 2)
    finalists = course.best([member for member in entered if member.base not in (LOCAL, GRAND_MEAN)], 1)
    run([Member(LOCAL), Member(GRAND_MEAN), *finalists], course.judges)
    report(2, 2)
    return course.raced()
