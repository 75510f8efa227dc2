"""What a run gives back, before training and after it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.analysis import FLOOR, PairedComparison, Scores, compare_scores, comparisons
from kinfed.analysis.metrics import metric_named
from kinfed.backends.agents import Agents
from kinfed.backends.audit import Audit
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.spec import FederationSpec, learner_text
from kinfed.data import Preparation
from kinfed.embedding import Embedding
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners import Learner, Models
from kinfed.learners.auto import auto_sentence
from kinfed.learners.base import AUTO
from kinfed.learners.delivered import model_and_row, withheld_of
from kinfed.markup import card, listing, paragraph, table
from kinfed.methods import METHODS, REFERENCES
from kinfed.methods.tuning import tuning_sentences
from kinfed.model import NO_RUN, PersonalModel, RunStamp, refuse_rows
from kinfed.onboarding import Newcomer, onboard, onboard_here
from kinfed.plotting.evaluation import PersonalizationPlots, WeightingPlots
from kinfed.priors.expectation import ExpectedGain
from kinfed.priors.result import Stacking
from kinfed.progress import Progress
from kinfed.settings import Settings
from kinfed.splitting import LEAST_PART
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights


@dataclass(frozen=True, eq=False)
class Weighting:
    """Whose data would help each agent, and what that was found from, before any training; made by `kinfed.weighting`.

    Attributes
    ----------
    weighed : Weights, optional
        Who would listen to whom; None for a method without weights.
    learner : Learner
        What would be trained.
    settings : Settings
        What was asked for.
    agents : Agents, optional
        Who was asked. They have the rows, so they are in no file and in no pickle: None in what was read from one.
    kept : FederationSpec, optional
        What everybody knew of agents that are not here any more.
    found : mapping
        What was made of the rows on the way, such as the diagnosis, and stays when they are gone.
    """

    weighed: Weights | None
    learner: Learner
    settings: Settings
    agents: Agents | None = field(default=None, repr=False)
    kept: FederationSpec | None = field(default=None, repr=False)
    found: dict[str, Any] = field(default_factory=dict, repr=False)

    maker: ClassVar[str] = "weighting"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "agents": None, "kept": self.known}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The rows of a copy in the same place are the same rows.
        changed = {one.name: deepcopy(getattr(self, one.name), memo) for one in fields(self) if one.name != "agents"}
        return replace(self, **changed)

    def save(self, folder: str | Path, *, allow_rows: bool = False, overwrite: bool = False) -> Path:
        """Write the result, without anybody's rows, into a folder; `kinfed.load` reads it.

        Parameters
        ----------
        folder : path
        allow_rows : bool
            Write models even if they remember rows they were trained on, as nearest neighbours do.
        overwrite : bool
            Replace a result that is there.
        """
        from kinfed.result_files import save_result  # which knows what a result is made of

        return save_result(self, folder, allow_rows=allow_rows, overwrite=overwrite)

    @property
    def weights(self) -> Weights:
        """Who would listen to whom."""
        if self.weighed is None:
            raise InputError(f"method {self.settings.method!r} has no weights; a rule has, as in method='weighted'")
        return self.weighed

    @property
    def stacking(self) -> Stacking | None:
        """Which priors share in the models, and who speaks in whose; None for a method without priors."""
        return self.found.get("stacking")

    @property
    def expected(self) -> ExpectedGain | None:
        """What every agent may expect to gain over learning alone, with intervals and advice; None without priors."""
        return None if self.stacking is None else self.stacking.expected

    @property
    def influence(self) -> pandas.DataFrame:
        """Who speaks in whose model: a row per agent, whose outcomes its fitted values follow; rows sum to one."""
        if self.stacking is None:
            raise InputError(f"method {self.settings.method!r} reports weights or nothing; method='stacked' has influence")
        return self.stacking.influence_table

    @cached_property
    def known(self) -> FederationSpec:
        """What everybody knew of the agents: names, sizes, how rows become numbers and how agents were compared."""
        if self.kept is not None:
            return self.kept
        agents: Any = self.agents
        spec, preparation = agents.spec, agents.preparation
        if preparation is None:
            raise InputError("these agents' rows were numbers from the start, so that no raw rows can be predicted for")
        return FederationSpec(
            names=spec.names,
            sizes=spec.sizes,
            least=(LEAST_PART,) * len(spec.names),
            preparation=preparation,
            embeddings=spec.embeddings,
            task=spec.task,
            learner=learner_text(self.learner),
            classes=spec.classes,
            seed=spec.seed,
            screening=spec.screening,
        )

    @property
    def preparation(self) -> Preparation:
        """What made the rows numbers."""
        return self.known.preparation

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.settings.seed

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """How agents were compared; the usual way first."""
        return self.known.embeddings

    @property
    def rule_options(self) -> Mapping[str, Any]:
        """Options of the rule, as they were given."""
        return self.settings.shown_options

    @property
    def train(self) -> Federation:
        """The prepared training rows, where they are here; in the order in which the run used them."""
        return self._here.whole

    @property
    def _here(self) -> PooledAgents:
        if not isinstance(self.agents, PooledAgents):
            raise InputError("the rows are not here: they are at the sites, or were left out when the result was saved")
        return self.agents

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done when tables were read, in sentences; nothing where that was at the sites."""
        return tuple(self.found.get("notes", ()))

    @property
    def choices(self) -> list[str]:
        """What was done to the data, how agents were compared and which rule weighed them, in sentences."""
        given = "".join(f", {name} {value!r}" for name, value in self.rule_options.items())
        learner = [f"learner {self.learner!r}"]
        if self.settings.learner == AUTO:
            rows = None if self.agents is None else self.agents.rows
            target = self.settings.target or (None if rows is None else rows.target)
            learner.insert(0, auto_sentence(target, self.known.classes))
        if self.stacking is not None and getattr(self.learner, "penalty", AUTO) != AUTO:
            learner.append("the penalty that was given is for learning alone and one common model; priors have their own")
        if self.weighed is None:
            done = (*self.notes, *self.preparation.describe(), *self.known.screening.describe())
            method = f"method {self.settings.method}{given}"
            if self.stacking is None:
                return [*done, method, *learner]
            method += ": priors of coefficients, combined by losses on rows held out"
            return [*done, method, str(self.stacking), *learner]
        rule, calibration = self.weighed.rule, self.weighed.calibration
        return [
            *self.notes,
            *self.preparation.describe(),
            *self.known.screening.describe(),
            *self.embeddings[0].reasons,
            f"rule {rule}{given}: {RULES[rule].summary}",
            *([] if calibration is None else calibration.describe()),
            *learner,
            *tuning_sentences(self.found),
        ]

    @property
    def plot(self) -> WeightingPlots:
        """Figures: weights or influence, map, network, why, effective_sample_size, calibration or members."""
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
        from kinfed.reporting import report_data

        data = report_data(self, title=title, settings=settings, command=command, progress=progress)
        return write_report(data, Path(folder))

    def _repr_html_(self) -> str:
        found = self.stacking if self.weighed is None else self.weighed
        return card(f"Method {self.settings.method}", listing(self.choices)) if found is None else found._repr_html_()


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
    stamp : RunStamp
        What tells the run from all others, and when it began.
    asked : Weights, optional
        The weights that were asked for, where agents were lost in training since; `weights` are those that were used, with
        a row of zeros for an agent that has no model.
    """

    models: Models
    baselines: Mapping[str, Models]
    scored: Mapping[str, Scores]
    exchange: Audit | None = None
    joined: Mapping[str, Newcomer] = field(default_factory=dict)
    stamp: RunStamp = NO_RUN
    asked: Weights | None = None

    maker: ClassVar[str] = "personalize"

    def __getstate__(self) -> dict[str, Any]:
        for models in (self.models, *self.baselines.values()):
            refuse_rows(self.learner, models, allow_rows=False)
        return super().__getstate__()

    @property
    def scores(self) -> pandas.DataFrame:
        """The leading metric: a row per agent; columns floor, local, grand-mean and personalized, those that exist."""
        self._need_test("scores")
        columns = {name: scores[self.metric] for name, scores in self.scored.items()}
        return pandas.DataFrame(columns, index=pandas.Index(self.known.names, name="agent"))

    @property
    def withheld(self) -> dict[str, str]:
        """Agents without a model, since their rows had no part in the training, and what happened to them."""
        return {self.known.names[place]: what for place, what in withheld_of(self.models).items()}

    @property
    def metric(self) -> str:
        """What the scores are, such as "mean squared error"."""
        return self.metrics[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the headline, the leading one first."""
        self._need_test("metric")
        return self.scored["personalized"].headline

    @cached_property
    def counted(self) -> dict[str, Scores]:
        """The scores that count in means over agents: those of agents that are set aside, or left to themselves, do not."""
        told = self.known.screening
        return {name: one.without([*told.aside, *told.faint]) for name, one in self.scored.items()}

    @property
    def warning(self) -> str:
        """What a reader must know first: that personal models are worse than what needs no model; empty if they are not."""
        found = comparisons(self.counted, (FLOOR,), self.seed)
        return found[FLOOR].warning if FLOOR in found else ""

    def compare(self, baseline: str = "local", *, metric: str | None = None, level: float = 0.95) -> PairedComparison:
        """Personal models against "local", "grand-mean" or "floor", paired over agents, with a bootstrap interval.

        Parameters
        ----------
        baseline : {"local", "grand-mean", "floor"}
        metric : str, optional
            The leading one by default.
        level : float
            Confidence of the interval.
        """
        self._need_test("compare")
        one_of(baseline, [name for name in REFERENCES if name in self.scored], "baseline")
        chosen = self.metric if metric is None else metric_named(metric).name
        return compare_scores(self.counted, baseline, self.seed, level, metric=chosen)

    @property
    def plot(self) -> PersonalizationPlots:
        """Figures: those of a `Weighting`, and scores and gains."""
        return PersonalizationPlots(self)

    def model(self, agent: str | int) -> PersonalModel:
        """One agent's model, to predict with and to take home."""
        names, method = self.known.names, METHODS[self.settings.method]
        place = names.index(one_of(agent, names, "agent")) if isinstance(agent, str) else int(agent)
        models, row = model_and_row(self.models, place)
        if method.needs_site:
            sent = method.pack(self.learner, models, np.array([row]))
            try:
                models, row = method.unpack(sent, self._here.site(place)), 0
            except KeyError as error:  # it is not in the agent's state here
                raise InputError(
                    f"agent {names[place]} kept its part of the model ({error}) at its site; predict there, or use "
                    "backend='pooled'"
                ) from None
        heard = np.zeros(0) if self.weighed is None else self.weighed.matrix[place]
        weights = {names[k]: float(heard[k]) for k in np.flatnonzero(heard)}
        spec = self.known.training()
        return PersonalModel(
            names[place], self.settings.method, self.learner, models, row, self.preparation, spec, weights, self.stamp
        )

    def predict(self, agent: str | int, X: ArrayLike, interval: float | None = None) -> NDArray[Any] | pandas.DataFrame:
        """Predictions of an agent's personal model for raw rows, with an interval if asked; see `PersonalModel.predict`."""
        return self.model(agent).predict(X, interval)

    def predict_proba(self, agent: str | int, X: ArrayLike) -> pandas.DataFrame:
        """Probabilities of the classes by an agent's personal model for raw rows, a column per class."""
        return self.model(agent).predict_proba(X)

    def onboard(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        name: str = "newcomer",
        groups: ArrayLike | None = None,
        train: Federation | None = None,
    ) -> Newcomer:
        """A model, and with a rule weights, for an agent that comes later; nobody else's model changes.

        Parameters
        ----------
        X, y
            The newcomer's raw rows and target, in the columns of the training data; at least two rows.
        name : str
            A name no agent has yet.
        groups : sequence, optional
            Labels of all agents and then of the newcomer, for rules that need them.
        train : Federation, optional
            The training data again, for a result of a rule that was read from a file: neither the agents' sketches nor the
            rows that the newcomer's model is trained on are in it. Priors are, and are all that stacked models need.
        """
        if name in self.known.names:
            raise InputError(f"there is already an agent {name!r}; give the newcomer another name")
        if not METHODS[self.settings.method].onboards:
            raise InputError(f"method {self.settings.method!r} takes nobody in later; train again with the newcomer")
        raw, options = self.preparation.alone(name, X, y), dict(self.rule_options)
        newcomer = self.preparation.transform(raw.in_order())[0]
        if self.weighed is not None and "groups" in RULES[self.weighed.rule].needs:
            if groups is None:
                raise InputError(f"rule {self.weighed.rule!r} needs groups; pass groups=... of all agents and the newcomer")
            options["groups"] = groups
        if self.weighed is None:  # what was found of the others is enough: nobody's rows are needed
            return onboard_here(self.known, newcomer, self.learner, self.settings.method, self.found, self.stamp)
        here = self.agents if train is None else self._agents_of(train)
        if not isinstance(here, PooledAgents):
            raise InputError(
                f"a newcomer is compared with the sketches of the {len(self.known.names)} agents and learns from "
                "their rows, and a saved result holds neither; pass the training data as train=..., or ask the sites"
            )
        how = (self.learner, self.settings.method, self.weighed, self.found, options, self.stamp)
        return onboard(here, newcomer, *how)

    def _agents_of(self, train: Federation) -> PooledAgents:
        """The agents again, from their training data."""
        known = self.known
        if train.names != known.names or not np.array_equal(train.sizes, known.sizes):
            raise InputError("these are not the agents and rows of this result; pass the federation it was trained on")
        raw, preparation = train.in_order(), known.preparation
        own = preparation.transform(raw)
        rows = preparation.held(raw, own, known.screening, LEAST_PART)
        how = (rows, known.task, known.seed, known.embeddings, self.learner)
        return PooledAgents(*how, preparation=preparation, own=own, screening=known.screening)

    def _need_test(self, what: str) -> None:
        if not self.scored:
            raise InputError(f"{what} needs test data: call personalize(..., test=...)")

    def __str__(self) -> str:
        lines = [self.warning] if self.warning else []
        lines += [] if self.weighed is None else [repr(self.weighed)]
        lines += [] if self.stacking is None else [str(self.stacking)]
        lines += [] if self.expected is None else [str(self.expected)]
        lines += [f"agent {name} has no model: it {what}" for name, what in self.withheld.items()]
        told, apart = self.known.screening, "and does not count in the means"
        lines += [f"{why}; it is set aside, learns alone, {apart}" for why in told.aside.values()]
        lines += [f"agent {name} learns alone, {apart}: {why}" for name, why in told.faint.items()]
        if self.scored:
            lines += [str(one) for one in comparisons(self.counted, REFERENCES, self.seed).values()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.scored:
            shown = table(self.scores, f"{self.metric} of every agent")
        else:
            shown = paragraph("Nothing is scored without test data: call personalize(..., test=...).")
        told, others = str(self), []
        if self.weighed is not None:
            others = [table(self.weighed.explanation, "Whom every agent listens to", 6)]
        elif self.stacking is not None:
            others = [table(self.stacking.table, "Priors and their shares", 6)]
            others += [table(self.stacking.explanation, "Who speaks in whose model", 6)]
        return card(
            f"Personal models of {len(self.known.names)} agents",
            *([listing(told.split("\n"))] if told else []),
            shown,
            *others,
        )
