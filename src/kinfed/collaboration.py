"""Whose data would help each agent: prepare, embed, weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data import Preparation
from kinfed.embedding import Embedding, Scale, alternative_views, common_scale, own_scale, scaled_embedding
from kinfed.errors import InputError
from kinfed.features import FourierFeatures
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, Progress, Task, make_learner
from kinfed.theory import PredictedGain, predict_gain_of_points
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights, explicit_geometry, weigh


def collaboration_weights(
    train: Federation,
    rule: str = "calibrated",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = "ridge",
    seed: int = 0,
    *,
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    groups: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Whose data would help each agent, and how much.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    rule : str
        A key of `kinfed.RULES`.
    kernel, shift, n_features, sampling, seed
        How agents are compared; see `kinfed.choose_embedding`.
    learner : str, Learner or scikit-learn estimator
        What will be trained: rules that judge models train it, others only need to know if the target is a class.
    groups : sequence, optional
        A label per agent for rules that need it; by default those of the federation.
    options : mapping, optional
        Options of the rule, such as ``{"steps": 300}``.
    progress : callable, optional
        Called as ``progress(what, done, total)`` while long work goes on.

    Returns
    -------
    Weights

    Examples
    --------
    >>> import kinfed
    >>> train = kinfed.concept_shift(n_agents=12, n=20, dim=3, spread=0.0, seed=0).train
    >>> weights = kinfed.collaboration_weights(train)
    >>> weights.matrix.shape
    (12, 12)
    """
    comparison = Comparison(kernel, shift, n_features, sampling, seed)
    minimiser = learner_for(train, learner)
    check_target(train, minimiser.task)
    if "learner" in RULES[one_of(rule, RULES, "rule")].needs and minimiser.task != "unsupervised" and not train.has_target:
        raise InputError(f"rule {rule!r} judges models, and there is no target to learn; use rule 'q-aggregation'")
    prepared = Preparation.fit(train).transform(train)
    embeddings = comparison.embeddings(prepared, minimiser.task, rule)
    return weigh_federation(prepared, embeddings, rule, minimiser, options, groups, seed=seed, progress=progress)


def predict_gain(
    train: Federation,
    rule: str = "q-aggregation",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = "ridge",
    seed: int = 0,
    *,
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    groups: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
    constant: float = 1.0,
    folds: int = 10,
    level: float = 0.95,
) -> PredictedGain:
    """What collaborating would save each agent, before any training, with an honest uncertainty.

    The saving is in the squared error of the agent's mean embedding, measured on points the weights have not seen; beside
    it stand the terms of the paper's bound. It is not yet the test error of a model (see `PredictedGain`).

    Parameters
    ----------
    train, rule, kernel, learner, seed, shift, n_features, sampling, groups, options
        As in `collaboration_weights`.
    constant : float
        C, the unknown absolute constant of the bound.
    folds : int
        K: every agent sets aside one K-th of its points at a time.
    level : float
        Confidence of the intervals.

    Returns
    -------
    PredictedGain

    Examples
    --------
    >>> import kinfed
    >>> train = kinfed.concept_shift(n_agents=12, n=20, dim=3, spread=0.0, seed=0).train
    >>> predicted = kinfed.predict_gain(train)
    >>> predicted.mean_gain > 0.1
    True
    """
    task = learner_for(train, learner).task
    check_target(train, task)
    prepared = Preparation.fit(train).transform(train)
    if RULES[one_of(rule, RULES, "rule")].needs - {"groups"}:
        raise InputError(f"rule {rule!r} is judged by models, not by embeddings; see the scores in weights.calibration")
    (embedding,) = Comparison(kernel, shift, n_features, sampling, seed).embeddings(prepared, task, rule)
    features = embedding.features
    # The bound is about the kernel behind the random features, not about the features themselves.
    kernel_bound = float(np.sqrt(features.kernel.diagonal_bound)) if isinstance(features, FourierFeatures) else None
    return predict_gain_of_points(
        {agent.name: embedding(agent) for agent in prepared},
        rule,
        options=rule_options(prepared, rule, options, groups),
        norm_bound=embedding.norm_bound,
        kernel_bound=kernel_bound,
        n_features=None if kernel_bound is None else features.n_features,
        constant=constant,
        folds=folds,
        level=level,
        seed=seed,
    )


@dataclass(frozen=True)
class Comparison:
    """How agents are to be compared, as a user asks for it; see `kinfed.choose_embedding`."""

    kernel: Kernel | str = "auto"
    shift: str = "auto"
    n_features: int = 500
    sampling: str = "iid"
    seed: int = 0

    def embeddings(self, prepared: Federation, task: Task, rule: str) -> tuple[Embedding, ...]:
        """The embedding of numeric data, and for a rule that chooses among several, all of them, the usual one first."""
        answers = [own_scale(agent, labels=task == "classification") for agent in prepared]
        return self.embeddings_at(common_scale(prepared.dim, answers), rule)

    def embeddings_at(self, scale: Scale, rule: str) -> tuple[Embedding, ...]:
        """The same, from the agents' answers alone."""
        several = "embeddings" in RULES[one_of(rule, RULES, "rule")].needs and isinstance(self.kernel, str)
        views = alternative_views(scale, self.shift) if several else (None,)
        return tuple(
            scaled_embedding(
                scale,
                kernel=self.kernel,
                shift=self.shift,
                n_features=self.n_features,
                sampling=self.sampling,
                seed=self.seed,
                view=view,
            )
            for view in views
        )


def weigh_federation(
    prepared: Federation,
    embeddings: Sequence[Embedding],
    rule: str,
    learner: Learner,
    options: Mapping[str, Any] | None = None,
    groups: ArrayLike | None = None,
    targets: list[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weights:
    """Weights of numeric data under embeddings that are chosen already; see `collaboration_weights`."""
    first = embeddings[0]
    points = {agent.name: first(agent) for agent in prepared}
    geometry = explicit_geometry(points, norm_bound=first.norm_bound, targets=targets)
    chosen = rule_options(prepared, rule, options, groups)
    # What a rule asks for beyond the geometry; its own options come from the user.
    context = {"federation": prepared, "learner": learner, "embeddings": embeddings, "seed": seed, "progress": progress}
    asked = signature(RULES[rule].weigh).parameters
    return weigh(geometry, rule, **{name: value for name, value in context.items() if name in asked} | chosen)


def learner_for(train: Federation, learner: str | Learner | Any) -> Learner:
    """The learner; a network asked for by name predicts numbers where the target is floating point, else classes."""
    y = train[0].y
    if isinstance(learner, str) and learner == "torch" and y is not None and y.dtype.kind == "f":
        return make_learner("torch", task="regression")
    return make_learner(learner)


def check_target(train: Federation, task: Task) -> None:
    """A regression needs numbers, and says so before anything is computed."""
    for agent in train:
        if task == "regression" and agent.y is not None and agent.y.dtype.kind not in "fiub":
            raise InputError(f"the target of agent {agent.name} is not a number; for labels use learner 'logistic'")


def rule_options(
    prepared: Federation, rule: str, options: Mapping[str, Any] | None, groups: ArrayLike | None
) -> dict[str, Any]:
    """The options of a rule, and the group labels if it needs them."""
    chosen = dict(options or {})
    if "groups" in RULES[one_of(rule, RULES, "rule")].needs:
        known = prepared.groups if groups is None else groups
        if known is None:
            raise InputError(f"rule {rule!r} needs groups; pass groups=... or give the federation groups")
        chosen["groups"] = known
    return chosen
