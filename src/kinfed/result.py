"""What a run gives back, before training and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.analysis import (
    PairedComparison,
    PredictedGain,
    Scores,
    compare_scores,
    comparisons,
    diagnosis_of,
    gain_of,
)
from kinfed.backends.agents import Agents
from kinfed.backends.audit import Audit
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation
from kinfed.embedding import Embedding
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import Learner, Models
from kinfed.markup import card, listing, paragraph, table
from kinfed.methods import BASELINES, METHODS, ordered_options
from kinfed.onboarding import Newcomer, onboard
from kinfed.plotting.evaluation import PersonalizationPlots, WeightingPlots
from kinfed.progress import Progress
from kinfed.settings import Settings
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights

if TYPE_CHECKING:
    from kinfed.report import ReportData


@dataclass(frozen=True, eq=False)
class Weighting:
    """Whose data would help each agent, and what that was found from, before any training; made by `kinfed.weighting`.

    Attributes
    ----------
    weighed : Weights, optional
        Who would listen to whom; None for a method without weights.
    learner : Learner
        What would be trained.
    agents : Agents
        Who was asked, and how they were compared.
    settings : Settings
        What was asked for.
    """

    weighed: Weights | None
    learner: Learner
    agents: Agents
    settings: Settings

    maker: ClassVar[str] = "weighting"

    @property
    def weights(self) -> Weights:
        """Who would listen to whom."""
        if self.weighed is None:
            raise InputError(f"method {self.settings.method!r} has no weights; a rule has, as in method='weighted'")
        return self.weighed

    @property
    def preparation(self) -> Preparation:
        """What made the rows numbers."""
        if self.agents.preparation is None:
            raise InputError("these agents' rows were numbers from the start")
        return self.agents.preparation

    @property
    def seed(self) -> int:
        """Equal seeds give equal results."""
        return self.settings.seed

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """How agents were compared; the usual way first."""
        return self.agents.spec.embeddings

    @property
    def rule_options(self) -> Mapping[str, Any]:
        """Options of the rule, as they were given."""
        return self.settings.shown_options

    @property
    def train(self) -> Federation:
        """The prepared training rows, where they are here."""
        return self._here.whole

    @property
    def _here(self) -> PooledAgents:
        if not isinstance(self.agents, PooledAgents):
            raise InputError("the rows are at the sites, not here; ask the sites")
        return self.agents

    @property
    def choices(self) -> list[str]:
        """What was done to the data, how agents were compared and which rule weighed them, in sentences."""
        given = "".join(f", {name} {value!r}" for name, value in self.rule_options.items())
        if self.weighed is None:
            return [*self.preparation.describe(), f"method {self.settings.method}{given}", f"learner {self.learner!r}"]
        rule, calibration = self.weighed.rule, self.weighed.calibration
        return [
            *self.preparation.describe(),
            *self.embeddings[0].reasons,
            f"rule {rule}{given}: {RULES[rule].summary}",
            *([] if calibration is None else calibration.describe()),
            f"learner {self.learner!r}",
        ]

    @property
    def plot(self) -> WeightingPlots:
        """Figures: weights, map, network, effective_sample_size, why, calibration."""
        return WeightingPlots(self)

    def report(
        self,
        folder: str | Path,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write a page a person can read: ``index.html`` in `folder`, complete in itself.

        Parameters
        ----------
        folder : path
            It is made if it is not there.
        title : str, optional
        settings : mapping from str to str, optional
            What was asked for, to stand on the page.
        command : str, optional
            What repeats the run, to stand on the page.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        path of the page
        """
        from kinfed.report import write_report  # a page of a second, which not every result becomes

        return write_report(self.story(title=title, settings=settings, command=command, progress=progress), Path(folder))

    def story(
        self,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> ReportData:
        """What the report tells: the weights, how agents differ, and what is predicted."""
        from kinfed.report import MANY_AGENTS, ReportData

        weights, names = self.weights, self.agents.spec.names
        here = isinstance(self.agents, PooledAgents)
        # Every fold of a prediction weighs all agents again: for many that takes minutes.
        foreseen = here and not RULES[weights.rule].trains and len(names) <= MANY_AGENTS
        groups = self.train.groups if here else None
        return ReportData(
            title=title or f"Who helps whom among {len(names)} agents",
            weights=weights,
            scored={},
            comparisons={},
            predicted=self._predicted(progress) if foreseen else None,
            diagnosis=diagnosis_of(self.train, self.learner.task, self.seed, progress=progress) if here else None,
            choices=tuple(self.choices),
            sketch_sizes=tuple(one.features.n_features for one in self.embeddings),
            norm_bound=self.embeddings[0].norm_bound,
            traffic=None,
            attendance=None,
            settings=settings or self._asked,
            seed=self.seed,
            command=command or (self._call if here else None),
            groups=None if groups is None else tuple(map(str, groups)),
        )

    @property
    def _call(self) -> str:
        """The call that made this, where no other command did."""
        arguments = ", ".join(f"{name}={value}" for name, value in self._asked.items())
        return f"kinfed.{self.maker}(train, {arguments})"

    @property
    def _asked(self) -> dict[str, str]:
        """What was asked for, as arguments of that call."""
        embedding = self.embeddings[0]
        recipe = embedding.features.recipe
        asked: dict[str, Any] = {"rule": self.weights.rule, "learner": self.learner, "seed": self.seed}
        if self.rule_options:
            asked["options"] = dict(self.rule_options)
        if embedding.view is None:
            asked["kernel"] = recipe.make_kernel()
        if embedding.target is None and self.agents.spec.task != "unsupervised":
            asked["shift"] = "covariate"
        if recipe.seed is not None:
            asked |= {"n_features": recipe.n_features, "sampling": recipe.sampling}
        return {name: repr(value) for name, value in asked.items()}

    def _repr_html_(self) -> str:
        return self.weights._repr_html_()

    def _predicted(self, progress: Progress | None) -> PredictedGain:
        options = ordered_options(self.settings, self.agents.spec.names)
        return gain_of(self._here, self.weights.rule, options, progress=progress)


@dataclass(frozen=True, eq=False, kw_only=True)
class Personalization(Weighting):
    """What `kinfed.personalize` found: a `Weighting`, and what came of it.

    Attributes
    ----------
    models : Models
        One personal model per agent, in the order of the federation.
    baselines : mapping from "local" and "grand-mean" to Models
    scored : mapping from method to Scores
        Empty without test data.
    exchange : Audit, optional
        What crossed between server and agents, and who missed what, where agents were sites of their own.
    joined : mapping from name to Newcomer
        Agents that came while the run went on.
    """

    models: Models
    baselines: Mapping[str, Models]
    scored: Mapping[str, Scores]
    exchange: Audit | None = None
    joined: Mapping[str, Newcomer] = field(default_factory=dict)

    maker: ClassVar[str] = "personalize"

    @property
    def scores(self) -> pandas.DataFrame:
        """The leading metric: a row per agent, columns local, grand-mean and personalized."""
        self._need_test("scores")
        columns = {name: scores[scores.metric] for name, scores in self.scored.items()}
        return pandas.DataFrame(columns, index=pandas.Index(self.agents.spec.names, name="agent"))

    @property
    def metric(self) -> str:
        """What the scores are, such as "mean squared error"."""
        self._need_test("metric")
        return self.scored["personalized"].metric

    def compare(self, baseline: str = "local", *, level: float = 0.95) -> PairedComparison:
        """Personal models against a baseline, paired over agents, with a bootstrap interval."""
        self._need_test("compare")
        return compare_scores(self.scored, one_of(baseline, BASELINES, "baseline"), self.seed, level)

    @property
    def plot(self) -> PersonalizationPlots:
        """Figures: weights, map, network, effective_sample_size, why, scores, gains, calibration."""
        return PersonalizationPlots(self)

    def predict(self, agent: str | int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of an agent's personal model for raw rows of its columns."""
        names = self.agents.spec.names
        place = names.index(one_of(agent, names, "agent")) if isinstance(agent, str) else int(agent)
        rows, method = self.preparation.rows(names[place], X).X, METHODS[self.settings.method]
        if not method.needs_site:
            return self.models.predict(place, rows)
        sent = method.pack(self.learner, self.models, np.array([place]))
        try:
            own = method.unpack(sent, self._here.site(place))
        except KeyError as error:  # it is not in the agent's state here
            raise InputError(
                f"agent {names[place]} kept its part of the model ({error}) at its site; predict there, or use "
                "backend='pooled'"
            ) from None
        return own.predict(0, rows)

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
        if name in self.agents.spec.names:
            raise InputError(f"there is already an agent {name!r}; give the newcomer another name")
        newcomer, options = self.preparation.rows(name, X, y), dict(self.rule_options)
        if "groups" in RULES[self.weights.rule].needs:
            if groups is None:
                raise InputError(f"rule {self.weights.rule!r} needs groups; pass groups=... of all agents and the newcomer")
            options["groups"] = groups
        return onboard(self._here, newcomer, self.learner, self.weights, options)

    def story(
        self,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> ReportData:
        """What the report tells: the weighting, what the models reached, and what crossed."""
        before = super().story(title=title, settings=settings, command=command, progress=progress)
        exchange = self.exchange
        return replace(
            before,
            scored=self.scored,
            comparisons=comparisons(self.scored, BASELINES, self.seed),
            traffic=None if exchange is None else exchange.traffic,
            attendance=None if exchange is None else exchange.attendance,
        )

    def _need_test(self, what: str) -> None:
        if not self.scored:
            raise InputError(f"{what} needs test data: call personalize(..., test=...)")

    def __str__(self) -> str:
        lines = [] if self.weighed is None else [repr(self.weighed)]
        if self.scored:
            lines += [str(self.compare(baseline)) for baseline in BASELINES if baseline in self.scored]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.scored:
            shown = table(self.scores, f"{self.metric} of every agent")
        else:
            shown = paragraph("Nothing is scored without test data: call personalize(..., test=...).")
        told, advice = str(self), [] if self.weighed is None else [self.weighed.explanation]
        return card(
            f"Personal models of {len(self.agents.spec.names)} agents",
            *([listing(told.split("\n"))] if told else []),
            shown,
            *(table(one, "Whom every agent listens to", 6) for one in advice),
        )
