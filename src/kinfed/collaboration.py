"""Whose data would help each agent: prepare, embed, weigh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data import Preparation
from kinfed.embedding import Embedding, choose_embedding
from kinfed.errors import InputError
from kinfed.features import FourierFeatures
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, Task, make_learner
from kinfed.theory import PredictedGain, predict_gain_of_points
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights, explicit_geometry, weigh


def collaboration_weights(
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
) -> Weights:
    """Whose data would help each agent, and how much, before any training.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    rule : str
        A key of `kinfed.RULES`.
    kernel, shift, n_features, sampling, seed
        How agents are compared; see `kinfed.choose_embedding`.
    learner : str, Learner or scikit-learn estimator
        Tells whether the target is a number or a class.
    groups : sequence, optional
        A label per agent for rules that need it; by default those of the federation.
    options : mapping, optional
        Options of the rule, such as ``{"steps": 300}``.

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
    prepared, embedding = _prepared_and_embedded(
        train, learner, kernel=kernel, shift=shift, n_features=n_features, sampling=sampling, seed=seed
    )
    return weigh_federation(prepared, embedding, rule, options, groups)


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
    prepared, embedding = _prepared_and_embedded(
        train, learner, kernel=kernel, shift=shift, n_features=n_features, sampling=sampling, seed=seed
    )
    features = embedding.features
    # The bound is about the kernel behind the random features, not about the features themselves.
    kernel_bound = float(np.sqrt(features.kernel.diagonal_bound)) if isinstance(features, FourierFeatures) else None
    return predict_gain_of_points(
        {agent.name: embedding(agent) for agent in prepared},
        rule,
        options=_rule_options(prepared, rule, options, groups),
        norm_bound=_norm_bound(embedding),
        kernel_bound=kernel_bound,
        n_features=None if kernel_bound is None else features.n_features,
        constant=constant,
        folds=folds,
        level=level,
        seed=seed,
    )


def weigh_federation(
    prepared: Federation,
    embedding: Embedding,
    rule: str,
    options: Mapping[str, Any] | None = None,
    groups: ArrayLike | None = None,
    targets: list[int] | None = None,
) -> Weights:
    """Weights of numeric data under an embedding that is chosen already; see `collaboration_weights`."""
    points = {agent.name: embedding(agent) for agent in prepared}
    geometry = explicit_geometry(points, norm_bound=_norm_bound(embedding), targets=targets)
    return weigh(geometry, rule, **_rule_options(prepared, rule, options, groups))


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


def _prepared_and_embedded(train: Federation, learner: str | Learner | Any, **how: Any) -> tuple[Federation, Embedding]:
    task = learner_for(train, learner).task
    check_target(train, task)
    prepared = Preparation.fit(train).transform(train)
    return prepared, choose_embedding(prepared, labels=task == "classification", **how)


def _norm_bound(embedding: Embedding) -> float | None:
    bound = embedding.features.norm_bound
    return bound if np.isfinite(bound) else None


def _rule_options(
    prepared: Federation, rule: str, options: Mapping[str, Any] | None, groups: ArrayLike | None
) -> dict[str, Any]:
    chosen = dict(options or {})
    if "groups" in RULES[one_of(rule, RULES, "rule")].needs:
        known = prepared.groups if groups is None else groups
        if known is None:
            raise InputError(f"rule {rule!r} needs groups; pass groups=... or give the federation groups")
        chosen["groups"] = known
    return chosen
