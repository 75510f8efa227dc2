"""What can be told before any training: how agents differ, and what collaborating would save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.collaboration.weighing import Comparison, check_target, learner_for, rule_options
from kinfed.data import Preparation
from kinfed.diagnosis import Diagnosis, shift_tests
from kinfed.embedding import Embedding
from kinfed.errors import InputError
from kinfed.features import FourierFeatures
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, Task
from kinfed.progress import Progress
from kinfed.theory import PredictedGain, predict_gain_of_points
from kinfed.validation import one_of
from kinfed.weights import RULES


def diagnose(
    train: Federation,
    learner: str | Learner | Any = "ridge",
    seed: int = 0,
    *,
    level: float = 0.05,
    permutations: int = 499,
    progress: Progress | None = None,
) -> Diagnosis:
    """Which kind of difference there is between agents: in the inputs, the answers, or the answers to equal inputs.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    learner : str, Learner or scikit-learn estimator
        Tells whether the target is a number or a class; nothing is trained with it.
    seed : int
        Of features, folds and permutations.
    level : float
        The chance of a false alarm that each test accepts, on its own.
    permutations : int
        The smallest p-value is 1 / (permutations + 1).
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import kinfed
    >>> train = kinfed.covariate_shift(sizes=(4, 4, 4), n=30, seed=0).train
    >>> {test.name: test.differs for test in kinfed.diagnose(train).tests}
    {'covariate': True, 'label': True, 'concept': False}
    """
    task = learner_for(train, learner).task
    check_target(train, task)
    prepared = Preparation.fit(train).transform(train)
    return diagnosis_of(prepared, task, seed, level=level, permutations=permutations, progress=progress)


def diagnosis_of(prepared: Federation, task: Task, seed: int, **options: Any) -> Diagnosis:
    """The tests for numeric data: the target holds classes where they are learned, or where it is text."""
    y = prepared[0].y
    labels = task == "classification" or (y is not None and y.dtype.kind not in "fiub")
    return shift_tests(prepared, labels=labels, seed=seed, **options)


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
    progress: Progress | None = None,
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
    progress : callable, optional
        Called as ``progress(what, done, total)``.

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
    chosen = rule_options(prepared, rule, options, groups)
    return gain_of(prepared, embedding, rule, chosen, seed, constant=constant, folds=folds, level=level, progress=progress)


def gain_of(
    prepared: Federation, embedding: Embedding, rule: str, rule_options: Mapping[str, Any], seed: int, **options: Any
) -> PredictedGain:
    """The predicted gain of numeric data under an embedding that is chosen already."""
    features = embedding.features
    # The bound is about the kernel behind the random features, not about the features themselves.
    kernel_bound = float(np.sqrt(features.kernel.diagonal_bound)) if isinstance(features, FourierFeatures) else None
    return predict_gain_of_points(
        {agent.name: embedding(agent) for agent in prepared},
        rule,
        options=rule_options,
        norm_bound=embedding.norm_bound,
        kernel_bound=kernel_bound,
        n_features=None if kernel_bound is None else features.n_features,
        seed=seed,
        **options,
    )
