"""Weights that are never the wrong choice: every agent judges a family of rules on its own held-out points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinfed.embedding import X_ONLY, Embedding
from kinfed.errors import InputError
from kinfed.learners.base import Learner, Progress
from kinfed.learners.gradients import has_gradients
from kinfed.learners.plan import StepwiseLearner
from kinfed.validation import positive_integer
from kinfed.weights.calibration.choice import choose
from kinfed.weights.calibration.family import GRAND_MEAN, LOCAL, Member, base_weights, family, neighbours, thrifty_family
from kinfed.weights.calibration.folds import SMALLEST
from kinfed.weights.calibration.race import Course, Raced, race_agents, race_steps
from kinfed.weights.calibration.record import Calibration
from kinfed.weights.calibration.scores import EmbeddedAgents, cross_validate
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of

if TYPE_CHECKING:
    from kinfed.federation import Federation

Array = NDArray[np.float64]

QUICK_OPERATIONS = 2e12
"""Arithmetic up to which the whole family is cross-validated; above it, members race."""

LOSSES = {"regression": "squared error", "classification": "Brier score", "unsupervised": "score"}


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
    if positive_integer(folds, "folds") < 2:
        raise InputError("folds must be at least 2: what is scored must not be trained on")
    views = [EmbeddedAgents(federation, embedding) for embedding in embeddings]
    main_views = [place for place, one in enumerate(embeddings) if place == 0 or one.view == X_ONLY]
    gradients = has_gradients(learner.task)
    members = family(len(views), main_views, gradients)
    thrifty = not is_quick(learner, federation, folds * len(geometry) * len(members))

    def mixed(wanted: Iterable[Member]) -> dict[Member, Array]:
        """Weights of the targets by some members, from all points."""
        found = list(dict.fromkeys(wanted))
        used = {member.base.view for member in found} - {None, 0}
        geometries = {0: geometry} | {
            view: views[view].geometry(targets=geometry.targets) for view in used if view is not None
        }
        bases = base_weights((member.base for member in found), geometries, federation, learner, seed, thrifty=thrifty)
        return {one: one.matrix(bases[one.base], geometry.targets, geometry.sizes) for one in found}

    if mixture is not None:
        matrices = mixed(mixture)
        return weights_of(geometry, "calibrated", _average(matrices, mixture))

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("calibrating", done, total)

    if len(geometry) == 1 or geometry.sizes.max() < SMALLEST:
        raced = Raced((Member(LOCAL),), [np.zeros((0, 1))] * len(geometry))
    elif thrifty:
        members = thrifty_family(main_views, gradients)
        course = Course(federation, learner, views, members, seed)
        if isinstance(learner, StepwiseLearner):
            raced = race_steps(course, learner, members, report)
        else:
            raced = race_agents(course, learner, members, report)
    else:
        losses = cross_validate(federation, learner, views, members, folds=folds, seed=seed, progress=report)
        raced = Raced(members, losses)
    plans = [one.plan for one in raced.members]
    simple = [one.base in (LOCAL, GRAND_MEAN) and not one.own and not one.plan.warm for one in raced.members]
    choice = choose(raced.losses, raced.local, neighbours(raced.members), simple, plans, seed, hedged=not thrifty)
    names = tuple(one.name for one in embeddings)
    exchanged = _exchanged(raced, embeddings)
    record = Calibration(raced.members, names, choice, LOSSES[learner.task], raced.local, exchanged)
    personal = [raced.members[place] for place in choice.personal[geometry.targets]]
    matrices = mixed([*record.mixture, *personal])
    matrix = _average(matrices, record.mixture)
    for row, member in enumerate(personal):
        if member != record.member:
            matrix[row] = matrices[member][row]
    return weights_of(geometry, "calibrated", matrix, calibration=record)


def is_quick(learner: Learner, federation: Federation, n_models: int) -> bool:
    """Whether that many models are trained in a minute or so; learners that do not say are taken to be slow."""
    operations = getattr(learner, "model_operations", None)
    return operations is not None and n_models * operations(federation) <= QUICK_OPERATIONS


def _exchanged(raced: Raced, embeddings: Sequence[Embedding]) -> tuple[str, ...]:
    """What every agent sent for calibration, beside its part in training."""
    if len(raced.members) == 1:
        return ()
    used = sorted({member.base.view for member in raced.members if member.base.view is not None})
    sketches = ", ".join(str(embeddings[view].features.n_features) for view in used)
    sentences = [f"for every split an agent shared sketches of {sketches} numbers, and in the end one score per member"]
    if any(member.base.learns for member in raced.members):
        sentences.append(
            "for the gradient rule it answered each target's model with its mean gradient and one number more, once a round"
        )
    return tuple(sentences)


def _average(matrices: Mapping[Member, Array], shares: Mapping[Member, float]) -> Array:
    """The federation's weights."""
    return np.asarray(sum(share * matrices[member] for member, share in shares.items()))
