"""The questions of successive halving: which models are worth how much to agents, on rows they set aside.

A judge keeps the losses of its rows to itself, and tells their mean; in the end means and covariances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kinfed.backends.agents import LASTING, Agents, Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.checkpoint import digest
from kinfed.errors import InputError
from kinfed.learners.base import Learner, Models, site_learner
from kinfed.learners.inputs import relative_weights
from kinfed.validation import Array
from kinfed.weights.calibration.choice import AgentScores
from kinfed.weights.calibration.family import Candidate
from kinfed.weights.calibration.losses import KeptLosses, judged_losses, read_scores, scores_fault, scores_form, told_scores


@dataclass(frozen=True, eq=False)
class Losses(Question[dict[int, Array]]):
    """Let agents judge models on the rows they set aside; they keep the losses, and tell the mean of every candidate.

    Attributes
    ----------
    calibration : str
        Under which the losses are kept.
    learner : Learner
        Of the models.
    models : Models
        One candidate after another, agent by agent.
    columns : tuple of int
        Under which the losses of the candidates are kept; what is judged again in the same fold replaces what was kept.
    judges : array of int
    """

    calibration: str
    learner: Learner
    models: Models
    columns: tuple[int, ...]
    judges: Places

    name = "losses"
    phase = "calibration scores"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every judge its candidates."""
        learner = site_learner(self.learner)
        settings = {"calibration": self.calibration, "columns": list(self.columns)}
        return {
            int(k): Message(settings, learner.pack(self.models, self._rows(place)))
            for place, k in enumerate(self.judges.tolist())
        }

    def _rows(self, place: int) -> Places:
        """The models of one judge."""
        return np.arange(len(self.columns)) * len(self.judges) + place

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Judge; the losses of single rows stay here."""
        models, settings = site.learner.unpack(asked.arrays, site.spec), asked.settings
        means = cls._judge(site, settings["calibration"], models, range(len(models)), settings["columns"])
        return Message(arrays={"mean": means})

    @staticmethod
    def _judge(site: SiteView, calibration: str, models: Models, rows: Sequence[int], columns: Sequence[int]) -> Array:
        repeat = _repeat(site)
        losses = judged_losses(models, rows, site.aside, site.spec, relative_weights(site.aside, site.spec))
        site.state[calibration] = kept_losses(site, calibration).keep(repeat, site.aside_rows, columns, losses).values
        return np.asarray(losses.mean(axis=0))

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A mean for each candidate."""
        return {"mean": ArraySpec((len(self.columns),))}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> dict[int, Array]:
        """By agent, what it told."""
        return {k: one.arrays["mean"] for k, one in answers.items()}

    def pooled(self, agents: PooledAgents) -> dict[int, Array]:
        """The same without packing models."""
        return {
            t: self._judge(agents.site(t), self.calibration, self.models, self._rows(place).tolist(), self.columns)
            for place, t in enumerate(self.judges.tolist())
        }


@dataclass(frozen=True, eq=False)
class Recall(Question[bool]):
    """Whether judges still have the losses of a fold that was judged before the run was cut off; see `Losses`."""

    calibration: str
    columns: tuple[int, ...]
    judges: Places

    name = "recall"
    phase = "calibration scores"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every judge."""
        asked = Message({"calibration": self.calibration, "columns": list(self.columns)})
        return dict.fromkeys(self.judges.tolist(), asked)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Yes or no."""
        kept, columns = kept_losses(site, asked.settings["calibration"]), asked.settings["columns"]
        return Message({"kept": bool(kept.covers(_repeat(site), site.aside_rows, columns))})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Nothing but the settings."""
        return {}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> bool:
        """Whether nobody has lost them; who does not answer is told apart in the end."""
        return all(one.settings.get("kept") is True for one in answers.values())


@dataclass(frozen=True, eq=False)
class Tally(Question[list[AgentScores]]):
    """Means and covariances of the losses that judges kept; n = 0 for agents that judged nothing or do not answer.

    Attributes
    ----------
    calibration : str
    columns : tuple of int
        Of the candidates to tell about.
    judged : mapping from agent to set of int
        The columns each agent has judged.
    """

    calibration: str
    columns: tuple[int, ...]
    judged: Mapping[int, set[int]]

    name = "tally"
    phase = "calibration scores"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """Ask everybody who judged for the scores of the columns."""
        return dict.fromkeys(self.judged, Message({"calibration": self.calibration, "columns": list(self.columns)}))

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Over all rows that were judged; those of several repeats are averaged first."""
        found = kept_losses(site, asked.settings["calibration"]).scores(asked.settings["columns"])
        return told_scores(found)

    def pooled(self, agents: PooledAgents) -> list[AgentScores]:
        """The scores of every agent, read off the losses that are kept here."""
        return [kept_losses(agents.site(k), self.calibration).scores(self.columns) for k in range(len(agents.spec.names))]

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """Means, and the upper half of a matrix."""
        return scores_form(len(self.columns))

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Scores must be of what was judged, and could be those of losses."""
        # One agent that missed a candidate would take it from everybody, so it is the agent that is left out.
        return scores_fault(answer, spec, place, np.isin(self.columns, list(self.judged[place])))

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> list[AgentScores]:
        """In the order of the agents."""
        nothing = AgentScores.of_losses(np.zeros((0, len(self.columns))))
        return [read_scores(answers[k]) if k in answers else nothing for k in range(len(spec.names))]


def kept_losses(site: SiteView, calibration: str) -> KeptLosses:
    """What an agent kept of its judgements in a calibration."""
    kept = site.state.get(calibration)
    return KeptLosses.nothing(len(site.aside_rows)) if kept is None else KeptLosses(kept)


def _repeat(site: SiteView) -> int:
    if site.fold is None:
        raise InputError("candidates are scored on points that were set aside; name the fold")
    return site.fold.repeat


@dataclass(eq=False)
class Jury:
    """The agents as judges of one calibration, and the columns under which they keep the losses of its candidates.

    Attributes
    ----------
    agents : Agents
    calibration : str
        A name that no calibration has in which other candidates, or rows, are judged.
    """

    agents: Agents
    calibration: str
    _columns: dict[Candidate, int] = field(default_factory=dict)
    _judged: dict[int, set[int]] = field(default_factory=dict)

    def judges(self, view: Agents) -> Places:
        """Who sets rows aside in a view, in order."""
        return np.flatnonzero(view.spec.sizes < self.agents.spec.sizes)

    def score(
        self,
        view: Agents,
        learner: Learner,
        models: Models,
        candidates: Sequence[Candidate],
        judges: Places,
    ) -> dict[int, Array]:
        """Let judges score models, one candidate after another, agent by agent; see `Losses`."""
        return view.ask(Losses(self.calibration, learner, models, self._entered(candidates, judges), judges))

    def recalls(self, view: Agents, candidates: Sequence[Candidate], judges: Places) -> bool:
        """Whether judges still know what they scored before the run was cut off."""
        return view.ask(Recall(self.calibration, self._entered(candidates, judges), judges))

    def _entered(self, candidates: Sequence[Candidate], judges: Places) -> tuple[int, ...]:
        """The columns of candidates that these judges score."""
        columns = tuple(self._columns.setdefault(candidate, len(self._columns)) for candidate in candidates)
        for k in judges.tolist():
            self._judged.setdefault(k, set()).update(columns)
        return columns

    def tally(self, candidates: Sequence[Candidate]) -> list[AgentScores]:
        """What every agent tells in the end."""
        unknown = len(self._columns)
        columns = tuple(self._columns.get(one, unknown) for one in candidates)
        return self.agents.ask(Tally(self.calibration, columns, self._judged))


def calibration_name(learner: Learner, candidates: Sequence[Candidate], folds: int) -> str:
    """What tells calibrations of the same agents apart."""
    return f"{LASTING}losses of {digest(repr(learner), repr(candidates), repr(folds))[:16]}"


def is_trainable(view: Agents) -> bool:
    """Whether a classifier still sees two classes; with so few labels that a fold takes one away, it is left out."""
    return view.spec.classes is None or len(view.spec.classes) > 1
