"""The story on one screen: prepare, embed, weigh, train, score.

`collaboration_weights` tells whose data would help each agent, before any training; `personalize` goes on to one model
per agent and sets it beside learning alone and learning one common model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import Preparation
from kinfed.embedding import Embedding, choose_embedding
from kinfed.errors import InputError
from kinfed.evaluation import HIGHER_IS_BETTER, PairedComparison, Scores, paired_comparison, score_models
from kinfed.federation import Agent, Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, Models, Progress, Task, make_learner
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights, explicit_geometry, weigh

if TYPE_CHECKING:
    import pandas

ENGINES = ("in-process",)
BASELINES = ("local", "grand-mean")


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
    task = _learner_for(train, learner).task
    _check_target(train, task)
    prepared = Preparation.fit(train).transform(train)
    embedding = choose_embedding(
        prepared,
        kernel=kernel,
        shift=shift,
        labels=task == "classification",
        n_features=n_features,
        sampling=sampling,
        seed=seed,
    )
    return weigh_federation(prepared, embedding, rule, options, groups)


def weigh_federation(
    prepared: Federation,
    embedding: Embedding,
    rule: str,
    options: Mapping[str, Any] | None = None,
    groups: ArrayLike | None = None,
    targets: list[int] | None = None,
) -> Weights:
    """Weights of numeric data under an embedding that is chosen already; see `collaboration_weights`."""
    bound = embedding.features.norm_bound
    points = {agent.name: embedding(agent) for agent in prepared}
    geometry = explicit_geometry(points, norm_bound=bound if np.isfinite(bound) else None, targets=targets)
    chosen = dict(options or {})
    if "groups" in RULES[one_of(rule, RULES, "rule")].needs:
        known = prepared.groups if groups is None else groups
        if known is None:
            raise InputError(f"rule {rule!r} needs groups; pass groups=... or give the federation groups")
        chosen["groups"] = known
    return weigh(geometry, rule, **chosen)


def personalize(
    train: Federation,
    learner: str | Learner | Any = "ridge",
    rule: str = "q-aggregation",
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
    engine : {"in-process"}
        Where agents compute.
    standardise : bool
        Give every column mean 0 and variance 1 over the training data of all agents.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    checkpoint : path, optional
        A folder; an interrupted run that is started again with it goes on where it stopped.

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
    minimiser = _learner_for(train, learner)
    if minimiser.task != "unsupervised" and not train.has_target:
        raise InputError("the federation has no target to learn; name its column when reading it, as target=...")
    _check_target(train, minimiser.task)
    if test is not None and test.names != train.names:
        raise InputError("train and test must hold the same agents in the same order; use Federation.split")
    preparation = Preparation.fit(train, standardise=standardise)
    prepared = preparation.transform(train)
    embedding = choose_embedding(
        prepared,
        kernel=kernel,
        shift=shift,
        labels=minimiser.task == "classification",
        n_features=n_features,
        sampling=sampling,
        seed=seed,
    )
    weights = weigh_federation(prepared, embedding, rule, options, groups)
    shares = prepared.sizes / prepared.sizes.sum()
    matrices = {
        "local": np.eye(len(prepared)),
        "grand-mean": np.tile(shares, (len(prepared), 1)),
        "personalized": weights.matrix,
    }
    folder = None if checkpoint is None else Path(checkpoint)
    models = {
        name: minimiser.fit(
            prepared,
            matrix,
            targets=weights.targets,
            seed=seed,
            progress=None if progress is None else _labelled(progress, name),
            checkpoint=None if folder is None else folder / name,
        )
        for name, matrix in matrices.items()
    }
    scored = {}
    if test is not None:
        held_out = preparation.transform(test)
        scored = {name: score_models(fitted, held_out, minimiser.task) for name, fitted in models.items()}
    return Personalization(
        weights=weights,
        models=models["personalized"],
        baselines={name: models[name] for name in BASELINES},
        scored=scored,
        learner=minimiser,
        train=prepared,
        preparation=preparation,
        embedding=embedding,
        rule_options=dict(options or {}),
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class Personalization:
    """What `personalize` found.

    Attributes
    ----------
    weights : Weights
        Who listens to whom.
    models : Models
        One personal model per agent, in the order of the federation.
    baselines : mapping from "local" and "grand-mean" to Models
    scored : mapping from method to Scores
        Empty without test data.
    learner : Learner
    train : Federation
        The prepared training data.
    preparation : Preparation
        The rules that prepared it.
    embedding : Embedding
        How agents were compared.
    """

    weights: Weights
    models: Models
    baselines: Mapping[str, Models]
    scored: Mapping[str, Scores]
    learner: Learner
    train: Federation
    preparation: Preparation
    embedding: Embedding
    rule_options: Mapping[str, Any]
    seed: int

    @property
    def scores(self) -> pandas.DataFrame:
        """The leading metric: a row per agent, columns local, grand-mean and personalized."""
        import pandas

        self._need_test("scores")
        columns = {name: scores[scores.metric] for name, scores in self.scored.items()}
        return pandas.DataFrame(columns, index=pandas.Index(self.train.names, name="agent"))

    @property
    def metric(self) -> str:
        """What the scores are, such as "mean squared error"."""
        self._need_test("metric")
        return self.scored["personalized"].metric

    def compare(self, baseline: str = "local", *, level: float = 0.95) -> PairedComparison:
        """Personal models against a baseline, paired over agents, with a bootstrap interval."""
        self._need_test("compare")
        one_of(baseline, BASELINES, "baseline")
        metric = self.metric
        return paired_comparison(
            self.scored["personalized"][metric],
            self.scored[baseline][metric],
            higher_is_better=HIGHER_IS_BETTER[metric],
            seed=self.seed,
            level=level,
            metric=metric,
            first_name="personalized",
            second_name=baseline,
        )

    @property
    def choices(self) -> list[str]:
        """What was done to the data, how agents were compared and which rule weighed them, in sentences."""
        given = "".join(f", {name} {value!r}" for name, value in self.rule_options.items())
        rule = self.weights.rule
        return [
            *self.preparation.describe(),
            *self.embedding.reasons,
            f"rule {rule}{given}: {RULES[rule].summary}",
            f"learner {self.learner!r}",
        ]

    def predict(self, agent: str | int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of an agent's personal model for raw rows of its columns."""
        name = self.train[agent].name
        return self.models.predict(self.train.names.index(name), self._prepared_rows(name, X, None).X)

    def onboard(
        self, X: ArrayLike, y: ArrayLike | None = None, *, name: str = "newcomer", groups: ArrayLike | None = None
    ) -> Newcomer:
        """Weights and a model for an agent that comes later; nobody else's model changes.

        Parameters
        ----------
        X, y
            The newcomer's raw rows and target, in the columns of the training data; at least two rows.
        name : str
            A name no agent has yet.
        groups : sequence, optional
            Labels of all agents and then of the newcomer, for rules that need them.
        """
        if name in self.train.names:
            raise InputError(f"there is already an agent {name!r}; give the newcomer another name")
        newcomer = self._prepared_rows(name, X, y)
        joined = replace(self.train, agents=(*self.train.agents, newcomer), groups=None)
        weights = weigh_federation(
            joined, self.embedding, self.weights.rule, self.rule_options, groups, targets=[len(self.train)]
        )
        model = self.learner.fit(joined, weights.matrix, targets=weights.targets, seed=self.seed)
        return Newcomer(name, weights, model, self.preparation)

    def _prepared_rows(self, name: str, X: ArrayLike, y: ArrayLike | None) -> Agent:
        columns = self.preparation.source
        rows = len(X)  # type: ignore[arg-type]
        given = Federation.from_arrays(X, y, [name] * rows, columns=None if hasattr(X, "columns") else columns)
        return self.preparation.transform(given)[0]

    def _need_test(self, what: str) -> None:
        if not self.scored:
            raise InputError(f"{what} needs test data: call personalize(..., test=...)")

    def __str__(self) -> str:
        lines = [repr(self.weights)]
        if self.scored:
            lines += [str(self.compare(baseline)) for baseline in BASELINES]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Newcomer:
    """An agent that came later: its weights and its model."""

    name: str
    weights: Weights
    models: Models
    preparation: Preparation

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predictions for raw rows."""
        columns = None if hasattr(X, "columns") else self.preparation.source
        rows = Federation.from_arrays(X, None, [self.name] * len(X), columns=columns)  # type: ignore[arg-type]
        return self.models.predict(0, self.preparation.transform(rows)[0].X)


def _learner_for(train: Federation, learner: str | Learner | Any) -> Learner:
    """The learner; a network asked for by name predicts numbers where the target is floating point, else classes."""
    y = train[0].y
    if learner == "torch" and y is not None and y.dtype.kind == "f":
        return make_learner("torch", task="regression")
    return make_learner(learner)


def _check_target(train: Federation, task: Task) -> None:
    """A regression needs numbers, and says so before anything is computed."""
    for agent in train:
        if task == "regression" and agent.y is not None and agent.y.dtype.kind not in "fiub":
            raise InputError(f"the target of agent {agent.name} is not a number; for labels use learner 'logistic'")


def _labelled(progress: Progress, method: str) -> Progress:
    return lambda what, done, total: progress(f"{method}: {what}", done, total)
