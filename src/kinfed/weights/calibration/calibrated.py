"""Weights that are never the wrong choice: every agent judges a family of rules on its own held-out points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents
from kinfed.checkpoint import NOWHERE, Store
from kinfed.embedding import X_ONLY, Embedding
from kinfed.errors import InputError
from kinfed.learners.base import Extent, Learner, StepwiseLearner
from kinfed.learners.quadratics import HomeLearner
from kinfed.splitting import SMALLEST
from kinfed.validation import Array, positive_integer
from kinfed.weights.calibration.bases import base_matrices
from kinfed.weights.calibration.choice import AgentScores, choose
from kinfed.weights.calibration.cross_fitting import cross_fit
from kinfed.weights.calibration.family import (
    GRAND_MEAN,
    LOCAL,
    NEGATIVE_SCORE,
    Calibration,
    Candidate,
    Judged,
    budgeted_family,
    family,
    neighbours,
)
from kinfed.weights.calibration.successive_halving import Halving, anybody_judges, halve_by_agents, halve_by_steps
from kinfed.weights.gradient_problem import has_gradients
from kinfed.weights.result import Weights
from kinfed.weights.weighing import RuleContext

QUICK_OPERATIONS = 2e12
"""Arithmetic up to which every target judges the whole family; above it, the shorter one for slow learners."""

LOSSES = {"regression": "squared error", "classification": "Brier score", "unsupervised": NEGATIVE_SCORE}


@dataclass(frozen=True)
class Views:
    """The ways to compare the agents, as far as calibration needs to know them.

    Attributes
    ----------
    names : tuple of str
    main : tuple of int
        Those that clusters are sought in, the usual one first.
    lengths : tuple of int
        How many numbers a sketch has in each.
    """

    names: tuple[str, ...]
    main: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, embeddings: Sequence[Embedding]) -> Views:
        """The views of these embeddings, the usual one first."""
        main = tuple(place for place, one in enumerate(embeddings) if place == 0 or one.view == X_ONLY)
        return cls(tuple(one.name for one in embeddings), main, tuple(one.features.n_features for one in embeddings))


def calibrated(context: RuleContext, folds: int = 5) -> Weights:
    """Score a family of weights by cross-validation at every agent, and take the best for the federation.

    Parameters
    ----------
    context : RuleContext
        With the learner that will be trained, and the ways to compare agents.
    folds : int
        K, at least 2, at every target; for learners that cannot be trained at one target agents set one fifth aside once,
        whatever K is. Agents of fewer than five points judge nothing and take what the others choose.
    """
    agents, learner, targets = context.agents, context.learner, context.targets
    if context.known is not None:
        return context.weights(calibrated_weights(agents, learner, context.known, targets))
    judging, report = context.store.part("calibration"), partial(context.report, "calibrating")
    found = calibrate(agents, learner, folds=folds, report=report, store=judging)
    return context.weights(calibrated_weights(agents, learner, found, targets, context.store), calibration=found)


def calibrate(
    agents: Agents,
    learner: Learner,
    *,
    folds: int = 5,
    report: Callable[[int, int], None] = lambda done, total: None,
    store: Store = NOWHERE,
) -> Calibration:
    """Let the agents judge the family, and choose.

    Parameters
    ----------
    agents : Agents
        Their seed is that of the resamples, and of the agents successive halving begins with.
    learner, folds
        As in `calibrated`.
    report : callable
        Called as ``report(done, total)``.
    store : Store
        What was judged is kept there, and stages of successive halving; their losses agents keep themselves.
    """
    views, sizes, seed = Views.of(agents.spec.embeddings), agents.spec.sizes, agents.spec.seed
    if positive_integer(folds, "folds") < 2:
        raise InputError("folds must be at least 2: what is scored must not be trained on")
    gradients, at_home = has_gradients(learner.task), stays_at_home(agents, learner)
    if len(sizes) == 1 or sizes.max() < SMALLEST or not (at_home or anybody_judges(agents)):
        judged = Judged((Candidate(LOCAL),), [AgentScores.of_losses(np.zeros((0, 1)))] * len(sizes))
    elif isinstance(learner, HomeLearner) and at_home:
        candidates = family(len(views.names), views.main, gradients)
        if not is_quick(learner, Extent.of(agents.spec), folds * len(sizes) * len(candidates)):
            candidates = budgeted_family(views.main, gradients)
        judged = Judged(candidates, cross_fit(agents, learner, candidates, folds, report, store))
    else:
        candidates = budgeted_family(views.main, gradients)
        halving = Halving(agents, learner, candidates, store)
        if isinstance(learner, StepwiseLearner):
            judged = halve_by_steps(halving, learner, candidates, report)
        else:
            judged = halve_by_agents(halving, learner, candidates, seed, report)
    plans = [one.plan for one in judged.candidates]
    simple = [
        one.base in (LOCAL, GRAND_MEAN) and not (one.own or one.plan.warm or one.plan.own) for one in judged.candidates
    ]
    choice = choose(judged.scores, judged.local, neighbours(judged.candidates), simple, plans, seed, shared=at_home)
    return Calibration(
        judged.candidates,
        views.names,
        choice,
        LOSSES[learner.task],
        judged.local,
        _exchanged(judged, views, at_home),
        not at_home,
    )


def calibrated_weights(
    agents: Agents, learner: Learner, calibration: Calibration, targets: NDArray[np.int64], store: Store = NOWHERE
) -> Array:
    """Weights (T, B) of the targets as they were chosen: the federation's mixture, or the agent's own candidate.

    Whoever came after the choice was made takes the mixture.
    """
    choice = calibration.choice
    personal = [choice.personal[t] if t < len(choice.personal) else choice.chosen for t in targets]
    chosen = [calibration.candidates[place] for place in personal]
    own = {row: candidate for row, candidate in enumerate(chosen) if candidate != calibration.candidate}
    matrices = _matrices(agents, learner, [*calibration.mixture, *own.values()], targets, calibration.budgeted, store)
    matrix = _average(matrices, calibration.mixture)
    for row, candidate in own.items():
        matrix[row] = matrices[candidate][row]
    return matrix


def stays_at_home(agents: Agents, learner: Learner) -> bool:
    """Whether every target can judge by itself; other learners are trained across agents, on rows less one fold."""
    several = agents.rows is not None and any(agent.y is not None and agent.y.ndim > 1 for agent in agents.rows)
    return isinstance(learner, HomeLearner) and not several and learner.is_small(agents.spec)


def is_quick(learner: Learner, extent: Extent, n_models: int) -> bool:
    """Whether that many models are trained in a minute or so; learners that do not say are taken to be slow."""
    operations = getattr(learner, "model_operations", None)
    return operations is not None and n_models * operations(extent) <= QUICK_OPERATIONS


def _matrices(
    agents: Agents,
    learner: Learner,
    candidates: Sequence[Candidate],
    targets: NDArray[np.int64],
    budgeted: bool,
    store: Store = NOWHERE,
) -> dict[Candidate, Array]:
    """Weights of the targets by some candidates, from all points."""
    wanted = [candidate.base for candidate in candidates]
    bases = base_matrices(agents, learner, wanted, targets, budgeted=budgeted, store=store)
    return {one: one.matrix(bases[one.base], targets, agents.spec.sizes) for one in dict.fromkeys(candidates)}


def _exchanged(judged: Judged, views: Views, at_home: bool) -> tuple[str, ...]:
    """What every agent sent for calibration, beside its part in training."""
    if len(judged.candidates) == 1:
        return ()
    used = sorted({candidate.base.view for candidate in judged.candidates if candidate.base.view is not None})
    lengths = Counter(views.lengths[view] for view in used)
    sketches = " and ".join(
        f"{count} {'sketch' if count == 1 else 'sketches'} of {length}" for length, count in lengths.items()
    )
    told = "means and covariances of the candidates' losses over its points"
    if at_home:
        return (f"an agent shared {sketches} numbers and its loss as a quadratic, of all its points, and then {told}",)
    looks = (
        f"an agent shared {sketches} numbers, its mean loss of every candidate that was looked at, and in the end {told}"
    )
    gradients = "for the gradient rule it answered a common model with its mean gradient and one number more"
    learns = any(candidate.base.learns for candidate in judged.candidates)
    return (looks, gradients) if learns else (looks,)


def _average(matrices: Mapping[Candidate, Array], shares: Mapping[Candidate, float]) -> Array:
    return np.asarray(sum(share * matrices[candidate] for candidate, share in shares.items()))
