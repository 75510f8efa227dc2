"""What can be told before any training: whose data would help each agent, how agents differ, and what joining is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.analysis import (
    Diagnosis,
    ExcessRisk,
    PredictedGain,
    augmented_moments,
    compared_excess_risks,
    diagnosis_of,
    gain_of,
)
from kinfed.analysis.held_out_risk import ALONE, TOGETHER, ridge_rows
from kinfed.data import Preparation, SyntheticFederation
from kinfed.embedding import Kernel
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import Learner
from kinfed.learners.auto import learner_for
from kinfed.learners.base import AUTO
from kinfed.learners.inputs import check_outcome
from kinfed.methods import METHODS
from kinfed.priors.expectation import ExpectedGain
from kinfed.progress import Progress
from kinfed.result import Weighting
from kinfed.run_setup import chosen_settings, method_context, ordered_options, pooled_agents
from kinfed.weights import RULES, Weights, explicit_geometry, weigh


def collaboration_weights(
    train: Federation,
    rule: str = "calibrated",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = AUTO,
    seed: int = 0,
    *,
    groups: ArrayLike | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> Weights:
    """Whose data would help each agent, and how much.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    rule : str
        A key of `kinfed.RULES`.
    kernel, seed
        How agents are compared; see `kinfed.choose_embedding`.
    learner : str, Learner or scikit-learn estimator
        What will be trained: rules that judge models train it, others only need to know if the target is a class.
    groups : sequence, optional
        A label per agent for rules that need it; by default those of the federation.
    progress : callable, optional
        Called as ``progress(what, done, total)`` while long work goes on.
    **choices
        Any other field of `kinfed.settings.Settings` that concerns the comparison: ``options`` of the rule, such as
        ``{"steps": 300}``, ``shift``, ``n_features``, ``sampling``, ``standardise`` and so on.

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
    return weighting(train, rule, kernel, learner, seed, groups=groups, progress=progress, **choices).weights


def weighting(
    train: Federation,
    rule: str = "calibrated",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = AUTO,
    seed: int = 0,
    *,
    groups: ArrayLike | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> Weighting:
    """Whose data would help each agent, with everything that was found on the way.

    Parameters
    ----------
    train, rule, kernel, learner, seed, groups, progress, **choices
        As in `collaboration_weights`.

    Returns
    -------
    Weighting
    """
    settings, chosen, train = chosen_settings(
        train, learner, groups, {"rule": rule, "kernel": kernel, "seed": seed, **choices}
    )
    if RULES[rule].trains and chosen.task != "unsupervised" and not train.has_target:
        raise InputError(f"rule {rule!r} judges models, and there is no target to learn; use rule 'q-aggregation'")
    agents = pooled_agents(train, None, chosen, settings)
    weights = METHODS["weighted"].weigh(method_context(agents, chosen, settings, progress))
    return Weighting(weights, chosen, settings, agents, found={"notes": agents.rows.notes})


def diagnose(
    train: Federation,
    learner: str | Learner | Any = AUTO,
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
    check_outcome(train, task)
    prepared = Preparation.fit(train).transform(train)
    return diagnosis_of(prepared, task, seed, level=level, permutations=permutations, progress=progress)


def predict_gain(
    train: Federation,
    rule: str = "q-aggregation",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = AUTO,
    seed: int = 0,
    *,
    groups: ArrayLike | None = None,
    constant: float = 1.0,
    folds: int = 10,
    level: float = 0.95,
    progress: Progress | None = None,
    **choices: Any,
) -> PredictedGain:
    """What collaborating would save each agent, before any training, with an honest uncertainty.

    The saving is in the squared error of the agent's mean embedding, measured on points the weights have not seen; beside
    it stand the terms of the paper's bound. It is not yet the test error of a model (see `PredictedGain`).

    Parameters
    ----------
    train, rule, kernel, learner, seed, groups, **choices
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
    settings, chosen, train = chosen_settings(
        train, learner, groups, {"rule": rule, "kernel": kernel, "seed": seed, **choices}
    )
    if RULES[rule].trains:
        raise InputError(f"rule {rule!r} is judged by models, not by embeddings; see the scores in weights.calibration")
    agents, told = pooled_agents(train, None, chosen, settings), ordered_options(settings, train.names)
    return gain_of(agents, rule, told, constant=constant, folds=folds, level=level, progress=progress)


def expected_gain(
    train: Federation,
    learner: str | Learner | Any = AUTO,
    method: str = "stacked",
    seed: int = 0,
    *,
    progress: Progress | None = None,
    **choices: Any,
) -> ExpectedGain:
    """What every agent may expect of joining, before any model is delivered: its gain over tuned local models, and advice.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    learner : str, Learner or scikit-learn estimator
        What would be trained: one of linear models, as "ridge" and "logistic" are.
    method : str
        A key of `kinfed.METHODS`, of those that know priors.
    seed : int
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    **choices
        Any other field of `kinfed.settings.Settings` that concerns the data.

    Returns
    -------
    ExpectedGain
        The same as `Personalization.expected` after training.

    Examples
    --------
    >>> import kinfed
    >>> train = kinfed.no_structure(n_agents=20, n=10, dim=8, agents="same", seed=0).train
    >>> expected = kinfed.expected_gain(train, learner="ridge")
    >>> set(expected.advice)
    {'join'}
    """
    settings, chosen, train = chosen_settings(train, learner, None, {"method": method, "seed": seed, **choices})
    agents = pooled_agents(train, None, chosen, settings)
    found = METHODS[method].expected(method_context(agents, chosen, settings, progress))
    if found is None:
        raise InputError(
            f"method {method!r} with this learner and {len(train)} agents makes no prediction; take method 'stacked', a "
            "learner of linear models such as 'ridge' or 'logistic', and two agents or more"
        )
    return found


def known_excess_risk(
    generated: SyntheticFederation,
    rule: str = "q-aggregation",
    kernel: Kernel | str = "auto",
    seed: int = 0,
    **choices: Any,
) -> dict[str, ExcessRisk]:
    """What ridge loses where the truth is known, and the paper's bound on it: alone, with the grand mean, and with a rule.

    Parameters
    ----------
    generated : SyntheticFederation
        With second moments in closed form, as `kinfed.concept_shift` has them.
    rule, kernel, seed, **choices
        As in `collaboration_weights`; a rule that trains models is refused.

    Returns
    -------
    dict from "local", "grand-mean" and the rule to ExcessRisk
        In units of the loss, as the outcome was generated. Distances and radius are those of standardised columns.

    Examples
    --------
    >>> import kinfed
    >>> found = kinfed.known_excess_risk(kinfed.concept_shift(n_agents=12, n=40, dim=3, spread=0.0, seed=0))
    >>> all((one.excess <= one.corollary).all() for one in found.values())
    True
    """
    chosen = {"rule": rule, "kernel": kernel, "seed": seed, **choices}
    settings, learner, train = chosen_settings(generated.train, "ridge", None, chosen)
    if RULES[rule].trains:
        raise InputError(f"rule {rule!r} is judged by models, not by embeddings; take a rule such as 'q-aggregation'")
    agents = pooled_agents(train, None, learner, settings)
    rows, preparation = ridge_rows(agents), agents.preparation
    if rows is None or preparation is None or preparation.outcome is None:
        raise InputError("the second moments of so many agents and columns do not fit; generate fewer of them")
    embedding, sizes = agents.embeddings[0], agents.rows.sizes
    geometry = explicit_geometry(
        dict(zip(agents.spec.names, agents.points(0), strict=True)), norm_bound=embedding.norm_bound
    )
    weights = {
        ALONE: np.eye(len(sizes)),
        TOGETHER: np.tile(sizes / sizes.sum(), (len(sizes), 1)),
        rule: weigh(geometry, rule, **ordered_options(settings, train.names)).matrix,
    }
    # From (x, 1, y) as generated to the same of standardised columns and outcome.
    centre = np.array([*preparation.mean, 0.0, preparation.outcome.mean])
    scale = np.array([*preparation.scale, 1.0, np.sqrt(rows.unit)])
    standardising = np.diag(1 / scale)
    standardising[:, -2] -= centre / scale
    truth = standardising @ generated.distribution.augmented_moments() @ standardising.T
    samples = np.array([augmented_moments(X, y) for X, y in zip(rows.X, rows.y, strict=True)])
    return compared_excess_risks(weights, samples, truth, rows.penalty, unit=rows.unit)
