"""Calibration for learners that are slow to train: successive halving, at the cost of about seven trainings.

Every agent of enough points sets one fifth of them aside, once. What is spared then depends on the learner.

* A learner that goes step by step (networks) also has its start and its number of steps to choose. All soft weights start
  from a common model: everyone for a short while, the best for longer, the very best to the end. That one, learning alone,
  and candidates that cost few models (clusters, the grand mean) also train from scratch. Looks along the way make every
  length a candidate, and a training that has nothing left to win is given up. The best one is trained once more with weight
  decay, and again with more as long as that helps. In the end the best models go on for a while on every target's own rows,
  freely (fine-tuning) and pulled back to where they were.
* Any other learner trains the candidates for some of the agents, and the best one for all of them, beside learning alone
  and the grand mean.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Fold
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.learners.base import Learner, Models, Plan, StepwiseLearner, common_model, fit_for_targets
from kinfed.splitting import FOLDS, derived_seed
from kinfed.validation import Array
from kinfed.weights.calibration.bases import base_matrices
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Candidate, Judged
from kinfed.weights.calibration.scores import Jury, calibration_name, is_trainable

Report = Callable[[int, int], None]

LOOKS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares of the whole length at which models are scored."""

SHORT, LONGER, KEPT = 0.02, 0.1, 4
"""How long everyone trains from the common model, how long the best do, and how many those are."""

PATIENCE, WORSE = 0.1, 1.05
"""From this share of the length on, a training is given up whose scores are that many times its own best."""

HALFWAY, HOPELESS = 0.5, 2.0
"""From this share of the length on, also one whose scores are that many times the best of all."""

OWN_ROWS, PULLS = 0.25, (0.0, 0.1, 1.0)
"""How long the best models go on with own rows alone, and with which pulls back to where they were; zero is fine-tuning."""

DECAYS = (1e-3, 1e-2)
"""Weight decays with which the best candidate is trained anew, the second only where the first was better than none."""

BUDGET = 5.0
"""Trainings, of one model per agent, that halving over agents may cost."""
FEWEST_AGENTS = 8


def anybody_judges(agents: Agents) -> bool:
    """Whether any agent has enough rows to set a fifth of them aside."""
    # Rows of all agents that deal any are in the first fold.
    return bool((agents.without(Fold(0, 0, FOLDS)).spec.sizes < agents.spec.sizes).any())


class Halving:
    """One split of the federation, and the weights of every base on its training part."""

    def __init__(self, agents: Agents, learner: Learner, candidates: Sequence[Candidate], store: Store = NOWHERE) -> None:
        views = [agents.without(Fold(0, fold, FOLDS)) for fold in range(FOLDS)]
        self.jury, self._learner = Jury(agents, calibration_name(learner, candidates, FOLDS)), learner
        self.view = next((view for view in views if is_trainable(view)), views[0])
        self.judges = self.jury.judges(self.view)
        wanted = [candidate.base for candidate in candidates]
        self._bases = base_matrices(self.view, learner, wanted, self.judges, budgeted=True, store=store)
        self._means: dict[Candidate, dict[int, float]] = {}
        self.store, self._numbers = store, count(1)

    def rows(self, candidates: Sequence[Candidate], agents: NDArray[np.int64]) -> Array:
        """Weights of some judges, one candidate after another."""
        places = np.searchsorted(self.judges, agents)
        spec = self.view.spec
        rows = np.vstack([one.matrix(self._bases[one.base][places], agents, spec.sizes) for one in candidates])
        return spec.heard(rows, np.tile(agents, len(candidates)))

    def stage(self, some: Mapping[int, Sequence[Candidate]], agents: NDArray[np.int64]) -> Stage:
        """The next training, with the candidates of each of its looks."""
        return Stage(self, self.store.part(f"stage {next(self._numbers)}"), some, agents)

    def score(self, models: Models, candidates: Sequence[Candidate], agents: NDArray[np.int64]) -> dict[int, list[float]]:
        """Let agents judge, and tell their means; models come one candidate after another, agent by agent."""
        told = self.jury.score(self.view, self._learner, models, candidates, agents)
        return {t: means.tolist() for t, means in told.items()}

    def hear(self, candidates: Sequence[Candidate], told: Mapping[int, Sequence[float]]) -> None:
        """Add the means that agents told."""
        for column, candidate in enumerate(candidates):
            self._means.setdefault(candidate, {}).update({t: means[column] for t, means in told.items()})

    def mean(self, candidate: Candidate) -> float:
        """Mean score of a candidate over the agents who tried it."""
        return float(np.mean(list(self._means[candidate].values())))

    @property
    def scored(self) -> list[Candidate]:
        """Every candidate that was scored so far."""
        return list(self._means)

    def best(self, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
        """The candidates of the smallest mean score; of those that differ by rounding alone, the first."""
        return sorted(candidates, key=lambda candidate: float(f"{self.mean(candidate):.9g}"))[:count]

    def least(self) -> float:
        """The smallest mean score so far."""
        return min(self.mean(candidate) for candidate in self.scored)

    def judged(self) -> Judged:
        """Every candidate that was scored so far, with its scores."""
        candidates = tuple(self.scored)
        return Judged(candidates, self.jury.tally(candidates))


class Stage:
    """One training of halving: what agents told at each look is kept, and the learner keeps its own work.

    Parameters
    ----------
    halving : Halving
    store : Store
    some : mapping from a look to its candidates
    agents : array of int
        The judges.
    """

    def __init__(
        self, halving: Halving, store: Store, some: Mapping[int, Sequence[Candidate]], agents: NDArray[np.int64]
    ) -> None:
        self._halving, self._store, self._some, self._agents = halving, store, some, agents
        kept = store.load("looks")
        self.known: dict[int, dict[int, list[float]]] = {}
        looks = [] if kept is None else kept.settings["looks"]
        if looks and halving.jury.recalls(halving.view, [one for done, _ in looks for one in some[done]], agents):
            self.known = {done: {int(t): means for t, means in told.items()} for done, told in looks}
        self.training = store.below("training")

    def look(self, done: int, models: Models) -> None:
        """Let the judges score the models of a look."""
        told = self._halving.score(models, self._some[done], self._agents)
        self.known[done] = told
        self._store.save("looks", Kept({"looks": list(self.known.items())}))

    def hear(self, done: int) -> None:
        """Use what was told at a look."""
        self._halving.hear(self._some[done], self.known[done])

    def forget_training(self) -> None:
        """The work of the learner is of no use any more."""
        if self.training is not None:
            shutil.rmtree(self.training, ignore_errors=True)


class _EnoughSeenError(Exception):
    """Raised out of a training that has nothing left to win."""


def halve_by_steps(halving: Halving, learner: StepwiseLearner, candidates: Sequence[Candidate], report: Report) -> Judged:
    """Halving for a learner that goes step by step."""
    shared = [
        candidate for candidate in candidates if candidate.base.rule in ("clusters", "grand-mean") and not candidate.own
    ]
    soft = [candidate for candidate in candidates if candidate not in shared]
    start = common_model(learner, halving.view, checkpoint=halving.store.below("common model"))
    report(1, 9)

    def train(one: StepwiseLearner, rows: Array, **how: Any) -> Models:
        targets = np.tile(halving.judges, len(rows) // len(halving.judges))
        return fit_for_targets(one, halving.view.labelled("calibration"), rows, targets, **how)

    def run(
        some: Sequence[Candidate],
        share: float,
        warm: bool = False,
        kin: Models | None = None,
        pull: float = 0.0,
        decay: float = 0.0,
    ) -> list[Candidate]:
        """Train, look on the way, give up when nothing is left to win, and return the candidates at the last look.

        With models of `kin`, those of one candidate, these go on by themselves.
        """
        # Steps as `trained_for` counts them, so that a candidate is trained as long as it was when it was scored.
        looks = {max(1, round(look * learner.length)): look for look in (*LOOKS, share) if look <= share}

        def planned(one: Candidate, look: float) -> Candidate:
            plan = Plan(warm, look, decay=decay) if kin is None else replace(one.plan, own=look, pull=pull)
            return replace(one, plan=plan)

        at = {done: [planned(one, look) for one in some] for done, look in sorted(looks.items())}
        stage = halving.stage(at, halving.judges)
        if not stage.known:
            stage.forget_training()  # it would go on after looks that are not known
        levels = [] if kin is None else [halving.mean(one) for one in some]
        last: list[Candidate] = []

        def look(done: int, models: Any) -> None:
            if done in looks and done not in stage.known:
                stage.look(done, models)
                hear(done)

        def hear(done: int) -> None:
            stage.hear(done)
            last[:] = at[done]
            levels.append(min(halving.mean(candidate) for candidate in last))
            overdone = (kin is not None or looks[done] >= PATIENCE) and levels[-1] > WORSE * min(levels)
            if overdone or (looks[done] >= HALFWAY and levels[-1] > HOPELESS * halving.least()):
                raise _EnoughSeenError

        begin = kin if kin is not None else start if warm else None
        weighed = some if kin is None else [Candidate(LOCAL)]
        with suppress(_EnoughSeenError):
            for done in list(stage.known):
                hear(done)
            if last != at[max(at)]:
                train(
                    learner.trained_for(share, begin, pull, decay),
                    halving.rows(weighed, halving.judges),
                    monitor=look,
                    monitor_every=gcd(*looks),
                    checkpoint=stage.training,
                )
        stage.forget_training()
        return last

    begun = run(soft, SHORT, warm=True)
    report(2, 9)
    ahead = run(halving.best(begun, KEPT), LONGER, warm=True)
    report(3, 9)
    best = halving.best(ahead, 1)
    run(best, 1.0, warm=True)
    report(4, 9)
    run(shared, 1.0, warm=False)
    report(5, 9)
    if best[0].base != LOCAL:
        run(best, 1.0, warm=False)
    report(6, 9)
    run([Candidate(LOCAL)], 1.0, warm=False)
    report(7, 9)

    def leader() -> Candidate:
        return halving.best([one for one in halving.scored if one.base != LOCAL], 1)[0]

    found = leader()
    for decay in DECAYS:
        run([found], 1.0, warm=found.plan.warm, decay=decay)
        found = leader()
        if found.plan.decay != decay:
            break
    report(8, 9)
    plan = found.plan
    chosen = learner.trained_for(plan.share, start if plan.warm else None, decay=plan.decay)
    kin = train(chosen, halving.rows([found], halving.judges), checkpoint=halving.store.below("kin"))
    for pull in PULLS:
        run([found], OWN_ROWS, kin=kin, pull=pull, decay=plan.decay)
    report(9, 9)
    return halving.judged()


def halve_by_agents(
    halving: Halving, learner: Learner, candidates: Sequence[Candidate], seed: int, report: Report
) -> Judged:
    """Halving for any other learner: all candidates for some agents, the best for all."""
    rng = np.random.default_rng(derived_seed(seed, "race"))
    tried = np.sort(rng.permutation(halving.judges)[: max(FEWEST_AGENTS, len(halving.judges) // FEWEST_AGENTS)])
    # Half of the budget tries the candidates, in their order, as long as it lasts; equal rows are one model.
    left = BUDGET / 2 * len(halving.judges)
    entered = []
    for candidate in candidates:
        cost = len(np.unique(halving.rows([candidate], tried), axis=0))
        if cost <= left:
            entered.append(candidate)
            left -= cost

    def run(chosen: Sequence[Candidate], agents: NDArray[np.int64]) -> None:
        stage = halving.stage({0: chosen}, agents)
        if not stage.known:
            targets, training = np.tile(agents, len(chosen)), halving.view.labelled("calibration")
            rows = halving.rows(chosen, agents)
            stage.look(0, fit_for_targets(learner, training, rows, targets, checkpoint=stage.training))
        stage.hear(0)
        stage.forget_training()

    run(entered, tried)
    report(1, 2)
    finalists = halving.best([candidate for candidate in entered if candidate.base not in (LOCAL, GRAND_MEAN)], 1)
    run([Candidate(LOCAL), Candidate(GRAND_MEAN), *finalists], halving.judges)
    report(2, 2)
    return halving.judged()
