"""What personal training found: weights, models, scores, and a place for newcomers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.collaboration import weigh_federation
from kinfed.data import Preparation
from kinfed.embedding import Embedding
from kinfed.errors import InputError
from kinfed.evaluation import HIGHER_IS_BETTER, PairedComparison, Scores, paired_comparison
from kinfed.federation import Agent, Federation
from kinfed.learners import Learner, Models
from kinfed.learners.plan import fit_planned
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights

if TYPE_CHECKING:
    import pandas

    from kinfed.engines.audit import Audit

BASELINES = ("local", "grand-mean")


@dataclass(frozen=True, eq=False)
class Personalization:
    """What `kinfed.personalize` found.

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
    embeddings : tuple of Embedding
        How agents were compared; the usual way first.
    exchange : Audit, optional
        What crossed between server and agents, and who missed what, where agents were sites of their own.
    """

    weights: Weights
    models: Models
    baselines: Mapping[str, Models]
    scored: Mapping[str, Scores]
    learner: Learner
    train: Federation
    preparation: Preparation
    embeddings: tuple[Embedding, ...]
    rule_options: Mapping[str, Any]
    seed: int
    exchange: Audit | None = None

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
            *self.embeddings[0].reasons,
            f"rule {rule}{given}: {RULES[rule].summary}",
            *([] if self.weights.calibration is None else self.weights.calibration.describe()),
            f"learner {self.learner!r}",
        ]

    def predict(self, agent: str | int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of an agent's personal model for raw rows of its columns."""
        name = self.train[agent].name
        return self.models.predict(self.train.names.index(name), prepared_rows(self.preparation, name, X, None).X)

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
        newcomer = prepared_rows(self.preparation, name, X, y)
        joined = replace(self.train, agents=(*self.train.agents, newcomer), groups=None)
        options = dict(self.rule_options)
        if self.weights.calibration is not None:
            options["mixture"] = self.weights.calibration.mixture  # the federation has chosen already
        weights = weigh_federation(
            joined,
            self.embeddings,
            self.weights.rule,
            self.learner,
            options,
            groups,
            targets=[len(self.train)],
            seed=self.seed,
        )
        model = fit_planned(
            self.learner, joined, weights.matrix, self.weights.plan, targets=weights.targets, seed=self.seed
        )
        return Newcomer(name, weights, model, self.preparation)

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
        return self.models.predict(0, prepared_rows(self.preparation, self.name, X, None).X)


def prepared_rows(preparation: Preparation, name: str, X: ArrayLike, y: ArrayLike | None) -> Agent:
    """Raw rows of one agent, in the columns of the training data, as an agent ready for a model."""
    table: Any = X if hasattr(X, "columns") else np.asarray(X)
    if table.ndim != 2 or table.shape[1] != len(preparation.source):
        raise InputError(
            f"agent {name}: rows of the {len(preparation.source)} columns {', '.join(preparation.source[:5])}"
            f"{', ...' if len(preparation.source) > 5 else ''} are expected, got an array of shape {table.shape}"
        )
    columns = None if hasattr(X, "columns") else preparation.source
    return preparation.transform(Federation.from_arrays(table, y, [name] * len(table), columns=columns))[0]
