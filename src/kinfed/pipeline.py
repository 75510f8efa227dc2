"""The story on one screen: prepare, embed, weigh, train, score.

`kinfed.collaboration_weights` tells whose data would help each agent, before any training; `personalize` goes on to one
model per agent and sets it beside learning alone and learning one common model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.collaboration import Comparison, check_target, grouped, learner_for, prospect, rule_options
from kinfed.columns import group_labels
from kinfed.engines.coordinator import coordinate
from kinfed.engines.federations import personalization_of, sites_of
from kinfed.engines.flower.simulation import in_process_channel
from kinfed.engines.in_process import InProcess
from kinfed.engines.messages import Channel
from kinfed.engines.wishes import Wishes
from kinfed.errors import InputError
from kinfed.evaluation import score_models
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner
from kinfed.learners.plan import USUAL_PLAN, fit_planned
from kinfed.personalization import BASELINES, Personalization
from kinfed.progress import Progress
from kinfed.validation import one_of
from kinfed.weights import RULES

ENGINES = ("in-process", "sites", "flower")


def personalize(
    train: Federation,
    learner: str | Learner | Any = "ridge",
    rule: str = "calibrated",
    test: Federation | None = None,
    seed: int = 0,
    engine: str = "in-process",
    *,
    kernel: Kernel | str = "auto",
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    groups: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
    standardise: bool = True,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    audit: str | Path | None = None,
) -> Personalization:
    """One model per agent, trained on the risk weighted by who helps whom, beside the two baselines.

    Parameters
    ----------
    train : Federation
        Training data. Missing values, categories and scales are dealt with by rules fitted on it.
    learner : str, Learner or scikit-learn estimator
        "ridge", "logistic", "torch", or anything `kinfed.make_learner` takes.
    rule, kernel, shift, n_features, sampling, groups, options
        As in `collaboration_weights`.
    test : Federation, optional
        Test data of the same agents in the same order; without it nothing is scored.
    seed : int
        Equal seeds give equal results.
    engine : {"in-process", "sites", "flower"}
        Where agents compute. "in-process" works on all agents' data at once, the fastest way. The others make every agent a
        site of its own that answers questions (`kinfed.engines`), in this process: "sites" by function calls, "flower"
        by the messages of the Flower framework, as a deployed run does. All give the same models, up to rounding.
    standardise : bool
        Give every column mean 0 and variance 1 over the training data of all agents.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    checkpoint : path, optional
        A folder; an interrupted run that is started again with it goes on where it stopped.
    audit : path, optional
        A file to which every message between server and agents is written, where agents are sites of their own.

    Returns
    -------
    Personalization

    Examples
    --------
    >>> import kinfed
    >>> generated = kinfed.concept_shift(n_agents=20, n=15, dim=5, spread=0.0, seed=0)
    >>> result = kinfed.personalize(generated.train, test=generated.test(200, seed=1))
    >>> list(result.scores.columns)
    ['local', 'grand-mean', 'personalized']
    """
    one_of(engine, ENGINES, "engine")
    one_of(rule, RULES, "rule")
    minimiser = learner_for(train, learner)
    if minimiser.task != "unsupervised" and not train.has_target:
        raise InputError("the federation has no target to learn; name its column when reading it, as target=...")
    check_target(train, minimiser.task)
    if test is not None and test.names != train.names:
        raise InputError("train and test must hold the same agents in the same order; use Federation.split")
    train = grouped(train, groups)
    if engine != "in-process":
        comparison = Comparison(kernel, shift, n_features, sampling, seed)
        chosen = rule_options(train, rule, options)
        if "groups" in chosen:  # by name: an agent that cannot take part must not shift the labels of others
            chosen["groups"] = dict(zip(train.names, group_labels(chosen["groups"], train.names) or (), strict=True))
        wishes = Wishes(rule, chosen, comparison, standardise)
        return _across_sites(engine, train, test, minimiser, wishes, checkpoint, audit, progress)
    found = prospect(
        train,
        rule,
        kernel,
        minimiser,
        seed,
        shift=shift,
        n_features=n_features,
        sampling=sampling,
        options=options,
        standardise=standardise,
        progress=progress,
    )
    prepared, weights = found.train, found.weights
    shares = prepared.sizes / prepared.sizes.sum()
    matrices = {
        "local": np.eye(len(prepared)),
        "grand-mean": np.tile(shares, (len(prepared), 1)),
        "personalized": weights.matrix,
    }
    folder = None if checkpoint is None else Path(checkpoint)
    models = {
        name: fit_planned(
            minimiser,
            prepared,
            matrix,
            weights.plan if name == "personalized" else USUAL_PLAN,
            targets=weights.targets,
            seed=seed,
            progress=None if progress is None else _labelled(progress, name),
            checkpoint=None if folder is None else folder / name,
        )
        for name, matrix in matrices.items()
    }
    scored = {}
    if test is not None:
        held_out = found.preparation.transform(test)
        scored = {name: score_models(fitted, held_out, minimiser.task) for name, fitted in models.items()}
    return Personalization(
        **vars(found),
        models=models["personalized"],
        baselines={name: models[name] for name in BASELINES},
        scored=scored,
    )


def _labelled(progress: Progress, method: str) -> Progress:
    return lambda what, done, total: progress(f"{method}: {what}", done, total)


def _across_sites(
    engine: str,
    train: Federation,
    test: Federation | None,
    learner: Learner,
    wishes: Wishes,
    checkpoint: str | Path | None,
    audit: str | Path | None,
    progress: Progress | None,
) -> Personalization:
    """Every agent a site of its own, in this process."""
    sites = sites_of(train, test, learner)
    channel: Channel = in_process_channel(sites) if engine == "flower" else InProcess(sites)
    folder, log = (None if path is None else Path(path) for path in (checkpoint, audit))
    data = "" if folder is None else "".join(one.digest() for one in (train, test) if one is not None)
    outcome = coordinate(
        channel, learner, wishes, agents=len(sites), folder=folder, audit=log, data=data, progress=progress
    )
    return personalization_of(outcome, train, wishes)
