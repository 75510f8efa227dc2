"""Weights that are never the wrong choice: every agent judges a family of rules on its own held-out points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinfed.embedding import X_ONLY, Embedding
from kinfed.errors import InputError
from kinfed.learners.base import Extent, Learner
from kinfed.learners.gradients import has_gradients
from kinfed.learners.plan import StepwiseLearner
from kinfed.progress import Progress
from kinfed.validation import positive_integer
from kinfed.weights.calibration.choice import choose
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member, family, neighbours, thrifty_family
from kinfed.weights.calibration.folds import SMALLEST
from kinfed.weights.calibration.pooled import PooledTrials
from kinfed.weights.calibration.race import Course, Raced, race_agents, race_steps
from kinfed.weights.calibration.record import NEGATIVE_SCORE, Calibration
from kinfed.weights.calibration.scores import cross_validate
from kinfed.weights.calibration.trials import AgentScores, Trials
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

QUICK_OPERATIONS = 2e12
"""Arithmetic up to which the whole family is cross-validated; above it, members race."""

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


def calibrated(
    geometry: Geometry,
    federation: Federation,
    learner: Learner,
    embeddings: Sequence[Embedding],
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
    mixture: Mapping[Member, float] | None = None,
) -> Weights:
    """Score a family of weights by cross-validation at every agent, and take the best for the federation.

    Parameters
    ----------
    federation : Federation
        Numeric training data, columns standardised.
    learner : Learner
        What will be trained with the weights.
    embeddings : sequence of Embedding
        Ways to compare the agents; `geometry` belongs to the first.
    folds : int
        K, at least 2; slow learners set aside one fifth once, whatever K is. Agents of fewer than five points judge nothing
        and take what the others choose.
    seed : int
    progress : callable, optional
    mixture : mapping from Member to share, optional
        One that was chosen before, for an agent that comes later: nothing is scored again.
    """

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("calibrating", done, total)

    trials, views = PooledTrials(federation, embeddings, learner.task, seed, geometry), Views.of(embeddings)
    if mixture is not None:
        thrifty = is_thrifty(trials, learner, views, folds)
        matrix = mixed_weights(trials, learner, mixture, geometry.targets, thrifty=thrifty)
        return weights_of(geometry, "calibrated", matrix)
    record = calibrate(trials, learner, views, folds=folds, seed=seed, report=report)
    matrix = calibrated_weights(trials, learner, record, geometry.targets)
    return weights_of(geometry, "calibrated", matrix, calibration=record)


def calibrate(
    trials: Trials,
    learner: Learner,
    views: Views,
    *,
    folds: int = 5,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Let the agents judge the family, and choose.

    Parameters
    ----------
    trials : Trials
        Where candidates are tried.
    learner, folds
        As in `calibrated`.
    views : Views
    seed : int
        Of the resamples and of the agents a race begins with.
    report : callable
        Called as ``report(done, total)``.
    """
    thrifty, gradients = is_thrifty(trials, learner, views, folds), has_gradients(learner.task)
    if len(trials.sizes) == 1 or trials.sizes.max() < SMALLEST:
        raced = Raced((Member(LOCAL),), [AgentScores.of_losses(np.zeros((0, 1)))] * len(trials.sizes))
    elif thrifty:
        members = thrifty_family(views.main, gradients)
        course = Course(trials, learner, members)
        if isinstance(learner, StepwiseLearner):
            raced = race_steps(course, learner, members, report)
        else:
            raced = race_agents(course, learner, members, seed, report)
    else:
        members = family(len(views.names), views.main, gradients)
        raced = Raced(members, cross_validate(trials, learner, members, folds=folds, progress=report))
    plans = [one.plan for one in raced.members]
    simple = [one.base in (LOCAL, GRAND_MEAN) and not one.own and not one.plan.warm for one in raced.members]
    choice = choose(raced.scores, raced.local, neighbours(raced.members), simple, plans, seed, hedged=not thrifty)
    return Calibration(
        raced.members, views.names, choice, LOSSES[learner.task], raced.local, _exchanged(raced, views, thrifty), thrifty
    )


def calibrated_weights(trials: Trials, learner: Learner, calibration: Calibration, targets: NDArray[np.int64]) -> Array:
    """Weights (T, B) of the targets as they were chosen: the federation's mixture, or the agent's own member."""
    chosen = [calibration.members[place] for place in calibration.choice.personal[targets]]
    own = {row: member for row, member in enumerate(chosen) if member != calibration.member}
    matrices = _matrices(trials, learner, [*calibration.mixture, *own.values()], targets, calibration.thrifty)
    matrix = _average(matrices, calibration.mixture)
    for row, member in own.items():
        matrix[row] = matrices[member][row]
    return matrix


def mixed_weights(
    trials: Trials, learner: Learner, mixture: Mapping[Member, float], targets: NDArray[np.int64], *, thrifty: bool
) -> Array:
    """Weights (T, B) of the targets by a mixture that was chosen before."""
    return _average(_matrices(trials, learner, list(mixture), targets, thrifty), mixture)


def is_thrifty(trials: Trials, learner: Learner, views: Views, folds: int) -> bool:
    """Whether the whole family would take too long, so that members race."""
    if positive_integer(folds, "folds") < 2:
        raise InputError("folds must be at least 2: what is scored must not be trained on")
    members = family(len(views.names), views.main, has_gradients(learner.task))
    # A learner that does not say what a model takes is slow, whatever the extent of the data is.
    told = hasattr(learner, "model_operations")
    return not (told and is_quick(learner, trials.extent, folds * len(trials.sizes) * len(members)))


def is_quick(learner: Learner, extent: Extent, n_models: int) -> bool:
    """Whether that many models are trained in a minute or so; learners that do not say are taken to be slow."""
    operations = getattr(learner, "model_operations", None)
    return operations is not None and n_models * operations(extent) <= QUICK_OPERATIONS


def _matrices(
    trials: Trials, learner: Learner, members: Sequence[Member], targets: NDArray[np.int64], thrifty: bool
) -> dict[Member, Array]:
    """Weights of the targets by some members, from all points."""
    bases = trials.bases(None, learner, [member.base for member in members], targets, thrifty=thrifty)
    return {one: one.matrix(bases[one.base], targets, trials.sizes) for one in dict.fromkeys(members)}


def _exchanged(raced: Raced, views: Views, thrifty: bool) -> tuple[str, ...]:
    """What every agent sent for calibration, beside its part in training."""
    if len(raced.members) == 1:
        return ()
    used = sorted({member.base.view for member in raced.members if member.base.view is not None})
    lengths = Counter(views.lengths[view] for view in used)
    sketches = " and ".join(
        f"{count} {'sketch' if count == 1 else 'sketches'} of {length}" for length, count in lengths.items()
    )
    looks = ", its mean loss of every member that was looked at" if thrifty else ""
    sentences = [
        f"for every split an agent shared {sketches} numbers{looks}, and in the end means and covariances of "
        "the members' losses over its points"
    ]
    if any(member.base.learns for member in raced.members):
        sentences.append(
            "for the gradient rule it answered each target's model with its mean gradient and one number more, once a round"
        )
    return tuple(sentences)


def _average(matrices: Mapping[Member, Array], shares: Mapping[Member, float]) -> Array:
    """The federation's weights."""
    return np.asarray(sum(share * matrices[member] for member, share in shares.items()))
