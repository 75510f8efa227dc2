"""What personal training found: weights, models, scores, and a place for newcomers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.collaboration import Prospect, weigh_federation
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.evaluation import HIGHER_IS_BETTER, PairedComparison, Scores, paired_comparison
from kinfed.federation import Agent, Federation
from kinfed.learners import Models
from kinfed.learners.plan import fit_planned
from kinfed.markup import card, listing, paragraph, table
from kinfed.plotting.evaluation import PersonalizationPlots
from kinfed.progress import Progress
from kinfed.validation import one_of
from kinfed.weights import Weights

if TYPE_CHECKING:
    import pandas

    from kinfed.engines.audit import Audit
    from kinfed.report import Story

BASELINES = ("local", "grand-mean")


@dataclass(frozen=True, eq=False, kw_only=True)
class Personalization(Prospect):
    """What `kinfed.personalize` found: a `Prospect`, and what came of it.

    Attributes
    ----------
    models : Models
        One personal model per agent, in the order of the federation.
    baselines : mapping from "local" and "grand-mean" to Models
    scored : mapping from method to Scores
        Empty without test data.
    exchange : Audit, optional
        What crossed between server and agents, and who missed what, where agents were sites of their own.
    """

    models: Models
    baselines: Mapping[str, Models]
    scored: Mapping[str, Scores]
    exchange: Audit | None = None

    maker: ClassVar[str] = "personalize"

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
        return compared(self.scored, one_of(baseline, BASELINES, "baseline"), self.seed, level)

    @property
    def plot(self) -> PersonalizationPlots:
        """Figures: weights, map, network, effective_sample_size, why, scores, gains, calibration."""
        return PersonalizationPlots(self)

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

    def story(
        self,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> Story:
        """What the report tells: the prospect, what the models reached, and what crossed."""
        before = super().story(title=title, settings=settings, command=command, progress=progress)
        exchange = self.exchange
        return replace(
            before,
            scored=self.scored,
            comparisons=comparisons(self.scored, self.seed),
            traffic=None if exchange is None else exchange.traffic,
            attendance=None if exchange is None else exchange.attendance,
        )

    def _need_test(self, what: str) -> None:
        if not self.scored:
            raise InputError(f"{what} needs test data: call personalize(..., test=...)")

    def __str__(self) -> str:
        lines = [repr(self.weights)]
        if self.scored:
            lines += [str(self.compare(baseline)) for baseline in BASELINES if baseline in self.scored]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.scored:
            shown = table(self.scores, f"{self.metric} of every agent")
        else:
            shown = paragraph("Nothing is scored without test data: call personalize(..., test=...).")
        advice = table(self.weights.explanation, "Whom every agent listens to", 6)
        return card(f"Personal models of {len(self.train)} agents", listing(str(self).split("\n")), shown, advice)


def compared(scored: Mapping[str, Scores], baseline: str, seed: int, level: float = 0.95) -> PairedComparison:
    """Personal models against one baseline, by the leading metric."""
    metric = scored["personalized"].metric
    return paired_comparison(
        scored["personalized"][metric],
        scored[baseline][metric],
        higher_is_better=HIGHER_IS_BETTER[metric],
        seed=seed,
        level=level,
        metric=metric,
        first_name="personalized",
        second_name=baseline,
    )


def comparisons(scored: Mapping[str, Scores], seed: int) -> dict[str, PairedComparison]:
    """Personal models against every baseline that was scored for an agent they were scored for."""
    if "personalized" not in scored:
        return {}
    known = ~np.isnan(scored["personalized"][scored["personalized"].metric])
    there = [name for name in BASELINES if name in scored and (known & ~np.isnan(scored[name][scored[name].metric])).any()]
    return {name: compared(scored, name, seed) for name in there}


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

    def _repr_html_(self) -> str:
        return card(f"Newcomer {self.name}", table(self.weights.why(self.name), "Whom it listens to, and why"))


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
