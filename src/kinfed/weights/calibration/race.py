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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.learners.base import Learner, Models
from kinfed.learners.plan import Plan, StepwiseLearner
from kinfed.splitting import derived_seed
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member
from kinfed.weights.calibration.trials import AgentScores, Split, Trials

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
    """Candidates, and what every agent tells of them; NaN for candidates it did not try."""

    members: tuple[Member, ...]
    scores: list[AgentScores]

    @property
    def local(self) -> int:
        """Learning alone from scratch, as long as it was trained."""
        alone = [place for place, one in enumerate(self.members) if one.base == LOCAL and not one.plan.warm]
        return max(alone, key=lambda place: self.members[place].plan.share)


class Course:
    """One split of the federation, and the weights of every base on its training part."""

    def __init__(self, trials: Trials, learner: Learner, members: Sequence[Member]) -> None:
        splits = [Split(0, fold, FOLDS) for fold in range(FOLDS)]
        self.trials = trials
        self.split = next((split for split in splits if trials.can_train(split)), splits[0])
        self.judges = trials.judges(self.split)
        self._sizes = trials.training_sizes(self.split)
        wanted = [member.base for member in members]
        self._bases = trials.bases(self.split, learner, wanted, self.judges, thrifty=True)
        self._means: dict[Member, dict[int, float]] = {}

    def rows(self, members: Sequence[Member], agents: NDArray[np.int64]) -> Array:
        """Weights of some judges, one member after another."""
        places = np.searchsorted(self.judges, agents)
        return np.vstack([one.matrix(self._bases[one.base][places], agents, self._sizes) for one in members])

    def score(self, models: Models, members: Sequence[Member], agents: NDArray[np.int64]) -> None:
        """Let agents judge; models come one member after another, agent by agent."""
        told = self.trials.score(self.split, models, members, agents, tell=True)
        for column, member in enumerate(members):
            self._means.setdefault(member, {}).update({t: float(means[column]) for t, means in told.items()})

    def mean(self, member: Member) -> float:
        """Mean score of a member over the agents who tried it."""
        return float(np.mean(list(self._means[member].values())))

    def best(self, members: Sequence[Member], count: int) -> list[Member]:
        """The members of the smallest mean score; of those that differ by rounding alone, the first."""
        return sorted(members, key=lambda member: float(f"{self.mean(member):.9g}"))[:count]

    def least(self) -> float:
        """The smallest mean score so far."""
        return min(self.mean(member) for member in self._means)

    def raced(self) -> Raced:
        """All that was scored."""
        members = tuple(self._means)
        return Raced(members, self.trials.tally(members))


class _EnoughSeenError(Exception):
    """Raised out of a training that has nothing left to win."""


def race_steps(course: Course, learner: StepwiseLearner, members: Sequence[Member], report: Report) -> Raced:
    """The race of a learner that goes step by step."""
    shared = [member for member in members if member.base.rule in ("clusters", "grand-mean") and not member.own]
    soft = [member for member in members if member not in shared]
    start = course.trials.common(course.split, learner)
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
            course.trials.fit(
                course.split,
                trained,
                course.rows(some, course.judges),
                np.tile(course.judges, len(some)),
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


def race_agents(course: Course, learner: Learner, members: Sequence[Member], seed: int, report: Report) -> Raced:
    """The race of any other learner: all members for some agents, the best for all."""
    rng = np.random.default_rng(derived_seed(seed, "race"))
    tried = np.sort(rng.permutation(course.judges)[: max(FEWEST_AGENTS, len(course.judges) // FEWEST_AGENTS)])
    # Half of the budget tries the members, in their order, as long as it lasts; equal rows are one model.
    left = BUDGET / 2 * len(course.judges)
    entered = []
    for member in members:
        cost = len(np.unique(course.rows([member], tried), axis=0))
        if cost <= left:
            entered.append(member)
            left -= cost

    def run(chosen: Sequence[Member], agents: NDArray[np.int64]) -> None:
        targets = np.tile(agents, len(chosen))
        course.score(course.trials.fit(course.split, learner, course.rows(chosen, agents), targets), chosen, agents)

    run(entered, tried)
    report(1, 2)
    finalists = course.best([member for member in entered if member.base not in (LOCAL, GRAND_MEAN)], 1)
    run([Member(LOCAL), Member(GRAND_MEAN), *finalists], course.judges)
    report(2, 2)
    return course.raced()
