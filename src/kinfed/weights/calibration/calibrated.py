"""Weights that are never the wrong choice: every agent judges a family of rules on its own held-out points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Agents, Fold, Places
from kinfed.checkpoint import NOWHERE, Kept, Store
from kinfed.embedding import X_ONLY, Embedding
from kinfed.errors import InputError
from kinfed.learners.base import Extent, Learner, StepwiseLearner
from kinfed.splitting import SMALLEST
from kinfed.validation import Array, positive_integer
from kinfed.weights.calibration.bases import base_matrices
from kinfed.weights.calibration.choice import AgentScores, choose
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
from kinfed.weights.calibration.scores import Jury, calibration_name, is_trainable
from kinfed.weights.calibration.successive_halving import Halving, halve_by_agents, halve_by_steps
from kinfed.weights.gradient_problem import has_gradients
from kinfed.weights.result import Weights
from kinfed.weights.weighing import RuleContext

ENOUGH_POINTS = 600
"""Small federations deal their folds again, with other points together, until about this many were scored."""
MOST_REPEATS = 5
SIDE_BY_SIDE = 5
"""Folds whose questions travel together; more would make messages long, fewer exchanges many."""
_WEIGHTS_AT_ONCE = 2**25  # numbers of the weight rows trained together (256 MB)

QUICK_OPERATIONS = 2e12
"""Arithmetic up to which the whole family is cross-validated; above it, candidates are halved successively."""

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
        K, at least 2; slow learners set aside one fifth once, whatever K is. Agents of fewer than five points judge nothing
        and take what the others choose.
    """
    agents, learner, targets = context.agents, context.learner, context.targets
    if context.known is not None:
        known = context.known
        return context.weights(mixed_weights(agents, learner, known.mixture, targets, budgeted=known.budgeted))
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
        Finished folds, and stages of successive halving, are kept there; their losses agents keep themselves.
    """
    views, sizes, seed = Views.of(agents.spec.embeddings), agents.spec.sizes, agents.spec.seed
    budgeted, gradients = is_budgeted(agents, learner, views, folds), has_gradients(learner.task)
    if len(sizes) == 1 or sizes.max() < SMALLEST:
        judged = Judged((Candidate(LOCAL),), [AgentScores.of_losses(np.zeros((0, 1)))] * len(sizes))
    elif budgeted:
        candidates = budgeted_family(views.main, gradients)
        halving = Halving(agents, learner, candidates, store)
        if isinstance(learner, StepwiseLearner):
            judged = halve_by_steps(halving, learner, candidates, report)
        else:
            judged = halve_by_agents(halving, learner, candidates, seed, report)
    else:
        candidates = family(len(views.names), views.main, gradients)
        scores = cross_validate(agents, learner, candidates, folds=folds, progress=report, store=store)
        judged = Judged(candidates, scores)
    plans = [one.plan for one in judged.candidates]
    simple = [one.base in (LOCAL, GRAND_MEAN) and not one.own and not one.plan.warm for one in judged.candidates]
    choice = choose(judged.scores, judged.local, neighbours(judged.candidates), simple, plans, seed, shared=not budgeted)
    return Calibration(
        judged.candidates,
        views.names,
        choice,
        LOSSES[learner.task],
        judged.local,
        _exchanged(judged, views, budgeted),
        budgeted,
    )


def cross_validate(
    agents: Agents,
    learner: Learner,
    candidates: Sequence[Candidate],
    *,
    folds: int,
    progress: Callable[[int, int], None],
    store: Store = NOWHERE,
) -> list[AgentScores]:
    """Scores of all candidates by every agent; n = 0 for agents of too few points.

    In every fold all agents set points aside at once. Weights and models are made of the rest by the same steps that make
    the final ones.
    """
    jury = Jury(agents, calibration_name(learner, candidates, folds))
    repeats = int(np.clip(-(-ENOUGH_POINTS // int(agents.spec.sizes.sum())), 1, MOST_REPEATS))
    dealt = [Fold(repeat, fold, folds) for repeat in range(repeats) for fold in range(folds)]

    def judge(fold: Fold) -> None:
        view = agents.without(fold)
        judges = jury.judges(view)
        if len(judges) and is_trainable(view):
            piece = f"fold {fold.repeat} {fold.fold}"
            if store.load(piece) is None or not jury.recalls(view, candidates, judges):
                _score(jury, view, learner, candidates, judges)
                store.save(piece, Kept())
        progress(next(done), len(dealt))

    done = count(1)
    progress(0, len(dealt))
    for some in (dealt[start : start + SIDE_BY_SIDE] for start in range(0, len(dealt), SIDE_BY_SIDE)):
        for job in agents.side_by_side([partial(judge, fold) for fold in some]):
            job()
    return jury.tally(candidates)


def _score(jury: Jury, view: Agents, learner: Learner, candidates: Sequence[Candidate], judges: Places) -> None:
    """Let the judges of one fold score all candidates."""
    sizes = view.spec.sizes
    bases = base_matrices(view, learner, [candidate.base for candidate in candidates], judges, budgeted=False)
    step = max(1, _WEIGHTS_AT_ONCE // (len(judges) * len(sizes)))
    for some in (candidates[start : start + step] for start in range(0, len(candidates), step)):
        stacked = np.vstack([candidate.matrix(bases[candidate.base], judges, sizes) for candidate in some])
        models = learner.fit(view.labelled("calibration"), stacked, targets=np.tile(judges, len(some)))
        jury.score(view, learner, models, some, judges)


def calibrated_weights(
    agents: Agents, learner: Learner, calibration: Calibration, targets: NDArray[np.int64], store: Store = NOWHERE
) -> Array:
    """Weights (T, B) of the targets as they were chosen: the federation's mixture, or the agent's own candidate."""
    chosen = [calibration.candidates[place] for place in calibration.choice.personal[targets]]
    own = {row: candidate for row, candidate in enumerate(chosen) if candidate != calibration.candidate}
    matrices = _matrices(agents, learner, [*calibration.mixture, *own.values()], targets, calibration.budgeted, store)
    matrix = _average(matrices, calibration.mixture)
    for row, candidate in own.items():
        matrix[row] = matrices[candidate][row]
    return matrix


def mixed_weights(
    agents: Agents, learner: Learner, mixture: Mapping[Candidate, float], targets: NDArray[np.int64], *, budgeted: bool
) -> Array:
    """Weights (T, B) of the targets by a mixture that was chosen before."""
    return _average(_matrices(agents, learner, list(mixture), targets, budgeted), mixture)


def is_budgeted(agents: Agents, learner: Learner, views: Views, folds: int) -> bool:
    """Whether the whole family would take too long, so that candidates are halved successively."""
    if positive_integer(folds, "folds") < 2:
        raise InputError("folds must be at least 2: what is scored must not be trained on")
    candidates = family(len(views.names), views.main, has_gradients(learner.task))
    # A learner that does not say what a model takes is slow, whatever the extent of the data is.
    told = hasattr(learner, "model_operations")
    return not (told and is_quick(learner, Extent.of(agents.spec), folds * len(agents.spec.names) * len(candidates)))


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


def _exchanged(judged: Judged, views: Views, budgeted: bool) -> tuple[str, ...]:
    """What every agent sent for calibration, beside its part in training."""
    if len(judged.candidates) == 1:
        return ()
    used = sorted({candidate.base.view for candidate in judged.candidates if candidate.base.view is not None})
    lengths = Counter(views.lengths[view] for view in used)
    sketches = " and ".join(
        f"{count} {'sketch' if count == 1 else 'sketches'} of {length}" for length, count in lengths.items()
    )
    looks = ", its mean loss of every candidate that was looked at" if budgeted else ""
    sentences = [
        f"for every split an agent shared {sketches} numbers{looks}, and in the end means and covariances of "
        "the candidates' losses over its points"
    ]
    if any(candidate.base.learns for candidate in judged.candidates):
        sentences.append(
            "for the gradient rule it answered each target's model with its mean gradient and one number more, once a round"
        )
    return tuple(sentences)


def _average(matrices: Mapping[Candidate, Array], shares: Mapping[Candidate, float]) -> Array:
    return np.asarray(sum(share * matrices[candidate] for candidate, share in shares.items()))
