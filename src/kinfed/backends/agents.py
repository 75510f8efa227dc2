r"""The agents of a federation as an algorithm sees them, wherever their rows are.

A rule, a learner, a baseline, calibration and the run itself are written against `Agents`, once. What they need to know of
the agents' rows they ask: a `Question` has a part that runs where the rows are, a form its answers must have, and a way in
which answers combine. Moments, derivatives, local training, mean gradients, losses and scores are such questions, and so is
what a method of somebody else's brings.

Two backends implement `Agents`. Where all rows are here (`kinfed.backends.pooled`) a question may answer for all agents at
once, vectorised; where every agent is a site (`kinfed.backends.server`) it becomes messages, answers are checked, and
whoever does not answer is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.audit import Audit
from kinfed.backends.wire import KINDS, Arrays, ArraySpec, Message
from kinfed.data import Preparation
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.embedding import Embedding, Scale
from kinfed.errors import InputError, KinfedError
from kinfed.federation import Agent, Federation
from kinfed.parallel import map_on_cores
from kinfed.registry import Registry

if TYPE_CHECKING:
    from kinfed.backends.pooled import PooledAgents

Task = Literal["regression", "classification", "unsupervised"]

Places = NDArray[np.int64]

ChooseEmbeddings = Callable[[Scale], tuple[Embedding, ...]]
"""The ways to compare agents of a scale, the usual one first."""

Found = TypeVar("Found")

LASTING = "lasting "
"""How the name of an array begins that an agent still has when the run was killed and is started again."""


class QuorumError(KinfedError):
    """Too few agents answered for the run to go on."""


class AgentsLostError(KinfedError):
    """Agents that a training asks are gone: it goes on without them, with other weights.

    A learner that goes step by step catches it, takes the rows of weights anew and goes on from where it was; any other
    lets it pass, and is called again.

    Parameters
    ----------
    lost : mapping from agent to what happened
    again : callable, optional
        Gives the rows of weights without them.
    """

    def __init__(self, lost: Mapping[str, str], again: Callable[[], NDArray[np.float64]] | None = None) -> None:
        super().__init__("; ".join(f"agent {name} {what}" for name, what in lost.items()))
        self._again = again

    def rows(self, before: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of weights to go on with: solved again, or as before, as whoever is lost is not asked any more."""
        return before if self._again is None else self._again()


class Fold(NamedTuple):
    """Which rows agents set aside: those of one fold, in one dealing of all rows to `folds` folds."""

    repeat: int
    fold: int
    folds: int


@dataclass(frozen=True, eq=False)
class TrainingSpec:
    """What everybody knows of the rows before training.

    Attributes
    ----------
    names : tuple of str
        The B agents, in order.
    sizes : array of int of shape (B,)
        How many rows each of them trains on.
    dim : int
        Number of columns of X.
    classes : array, or None
        The sorted labels that somebody trains on, for a classification.
    seed : int
    task : {"regression", "classification", "unsupervised"}
        What kind of outcome is learned.
    embeddings : tuple of Embedding
        Ways to compare the agents, the usual one first.
    class_weights : array, or None
        What a row of each of these classes counts in a mean loss; None where all count the same.
    screening : Screening
        Whom others listen to less, or not at all, and whose cells are held for others.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    dim: int
    classes: NDArray[Any] | None
    seed: int
    task: Task
    embeddings: tuple[Embedding, ...] = ()
    class_weights: NDArray[np.float64] | None = None
    screening: Screening = NO_SCREENING

    @cached_property
    def voices(self) -> NDArray[np.float64] | None:
        """What each agent counts for others, (B,); None where all count the same."""
        return self.screening.voices_of(self.names)

    @property
    def aside(self) -> dict[int, str]:
        """Agents that are set aside, by place, and why: nobody else learns from them, and they learn alone."""
        reasons = self.screening.aside
        return {k: reasons[name] for k, name in enumerate(self.names) if self.screening.voices.get(name) == 0}

    @property
    def quiet(self) -> dict[int, str]:
        """Agents that learn alone, and nobody else from them, by place, and why: set aside, or hardly heard by anybody."""
        faint = self.screening.faint
        return {**{k: faint[name] for k, name in enumerate(self.names) if name in faint}, **self.aside}

    def heard(self, weights: NDArray[np.float64], targets: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Rows of weights (T, B) with others' weights times their voices, on the simplex again.

        `targets` has the agent each row is for, whose own weight stays as it is; without them rows are nobody's. A row that
        hears nobody any more stays with its target.
        """
        if self.voices is None:
            return weights
        return voiced(weights, self.voices, targets)

    def with_own_rows(self, places: Sequence[int]) -> TrainingSpec:
        """The same with some agents once more, after all, for their rows as they are."""
        names = (*self.names, *(f"{self.names[k]} for itself" for k in places))
        return replace(self, names=names, sizes=np.append(self.sizes, self.sizes[list(places)]))

    def of_classes(self, places: Sequence[int] | NDArray[np.int64]) -> TrainingSpec:
        """The same with some of the classes."""
        chosen = np.asarray(places, dtype=np.int64)
        left, weights = (None if one is None else one[chosen] for one in (self.classes, self.class_weights))
        return replace(self, classes=left, class_weights=weights)


def voiced(
    weights: NDArray[np.float64], voices: NDArray[np.float64] | None, targets: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """See `TrainingSpec.heard`; of any agents."""
    if voices is None:
        return weights
    rows = weights * voices
    if targets is not None:
        each = np.arange(len(rows))
        rows[each, targets] = weights[each, targets]
        rows[each, targets] += ~rows.any(axis=1)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@runtime_checkable
class UndecidedLearner(Protocol):
    """Stands for a learner until everybody knows what kind of outcome there is."""

    def for_task(self, task: Task) -> Any:
        """The learner for that task."""


def learner_for_task(learner: Any, task: Task) -> Any:
    """The learner, decided on if it was not."""
    return learner.for_task(task) if isinstance(learner, UndecidedLearner) else learner


class SiteState(MutableMapping[str, NDArray[Any]]):
    """What an agent keeps for itself from one question of a run to the next: arrays of numbers, by name.

    There is one for all questions and folds of a run. A site that was started anew, or a run, begins with an empty one, but
    for arrays whose names begin with `LASTING`: whoever asks for these records what was answered, and asks again for what
    was lost. Arrays in it cannot be written to: a new one is put in their place. So a question finds the same state
    wherever the rows are.

    Attributes
    ----------
    changed : bool
        Whether something was put into it, or taken out.
    """

    def __init__(self, kept: Arrays | None = None) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self.update(kept or {})
        self.changed = False

    @property
    def lasting(self) -> dict[str, NDArray[Any]]:
        """What outlives the process."""
        return {name: array for name, array in self.items() if name.startswith(LASTING)}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, array: NDArray[Any]) -> None:
        if not isinstance(array, np.ndarray) or array.dtype.kind not in KINDS:
            raise InputError(f"an agent keeps arrays of numbers, but {name!r} is {type(array).__name__}; make it an array")
        self._arrays[name] = array.view()
        self._arrays[name].flags.writeable = False
        self.changed = True

    def __delitem__(self, name: str) -> None:
        del self._arrays[name]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class Delivery(NamedTuple):
    """What an agent is told at the end of a run, beside its model.

    Attributes
    ----------
    run : str
        Which run it was.
    weights : dict from agent to weight
        On whose rows its model was trained; empty for a method without weights.
    asked : dict from agent to weight
        On whose rows it was to be trained, where agents were lost since.
    withheld : str
        What happened to the agent, if it has no model since its own rows had no part in one.
    """

    run: str
    weights: dict[str, float]
    asked: dict[str, float]
    withheld: str


KeepModel = Callable[["SiteView", Any, "str | None", Delivery], None]
"""Writes an agent's own model into its folder, and what it is told."""


@dataclass(frozen=True, eq=False)
class SiteView:
    """What the part of a question that runs where the rows are may look at: one agent's rows, and what everybody knows.

    Attributes
    ----------
    agent : Agent
        The rows to train on, as numbers, as others may learn from them: cells too far from everybody's are held.
    own : Agent
        The same rows as they are, for the agent's own model.
    aside : Agent
        The rows that the fold sets aside; none without a fold.
    aside_rows : array of bool
        Which of all its rows those are.
    test : Agent, or None
        Rows to test models on.
    place : int
        Where the agent stands among all.
    spec : TrainingSpec
    fold : Fold, or None
    learner : Learner
        What is trained, as this agent was told; see `kinfed.learners`.
    state : SiteState
        What the agent keeps for itself from one question of a run to the next.
    preparation : Preparation, optional
        What made its rows numbers.
    keep_model : callable, optional
        Called as ``keep_model(site, models, method, delivery)`` where the agent keeps its own model; without one, with
        None in place of models and method.
    """

    agent: Agent
    own: Agent
    aside: Agent
    aside_rows: NDArray[np.bool_]
    test: Agent | None
    place: int
    spec: TrainingSpec
    fold: Fold | None
    learner: Any
    state: SiteState
    preparation: Preparation | None = None
    keep_model: KeepModel | None = None


class Question(ABC, Generic[Found]):
    """Something to ask of agents: a part that runs where the rows are, the form of its answer, and how answers combine.

    The parameters of a question are its fields; `messages` turns them into what each agent is sent, `answer` runs at the
    agent, which knows the question by its name in `QUESTIONS` and refuses names it does not know.

    Attributes
    ----------
    name : str
        Key of `QUESTIONS`.
    about_data : bool
        The answer depends on the rows alone: given once, it serves whenever it is asked for again.
    asked_once : bool
        Whoever did not answer when it was first asked has no part in it, however often it is asked for again: what is made
        of the answers is the same throughout.
    phase : str
        What the audit calls it; empty for a question of a training, which the audit counts under what is trained.
    follows : str
        What follows for an agent that does not answer, in a few words.
    quorum : float, optional
        Share of the agents that must answer, in place of that of the run.
    """

    name: ClassVar[str]
    about_data: ClassVar[bool] = False
    asked_once: ClassVar[bool] = False
    phase: ClassVar[str] = ""
    follows: ClassVar[str] = "it is left out of this step"
    quorum: float | None = None

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """What each agent is asked, by place; nothing in particular, of everybody, by default."""
        return dict.fromkeys(range(len(spec.names)), Message())

    @classmethod
    @abstractmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """What one agent answers: a function of its rows, of what it was asked, and of the state it keeps."""

    @abstractmethod
    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """The arrays an answer must hold."""

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """What else is wrong with an answer whose arrays have the right form, in a few words; None if nothing is."""
        return None

    @abstractmethod
    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> Found:
        """What is found from the answers of those who gave one that can be used, by place and in order."""

    def pooled(self, agents: PooledAgents) -> Found:
        """The same where all rows are here: agent after agent by default, and all at once where that is faster."""
        answers = {k: self.answer(agents.site(k), asked) for k, asked in self.messages(agents.spec).items()}
        return self.combine(agents.spec, answers)

    def on_cores(self, agents: PooledAgents) -> Found:
        """`pooled` on all cores, for answers that threads may find side by side."""
        asked = self.messages(agents.spec)
        answers = map_on_cores(lambda k: self.answer(agents.site(k), asked[k]), asked)
        return self.combine(agents.spec, dict(zip(asked, answers, strict=True)))


class Agents(Protocol):
    """The agents of a federation, and everything a method may ask of them."""

    @property
    def spec(self) -> TrainingSpec:
        """Who they are, and what is known of their rows: names, sizes, columns, classes, ways to compare them, the seed."""

    @property
    def rows(self) -> Federation | None:
        """All rows, where they are in one place: for whoever has a faster way with them; None where they are not."""

    @property
    def preparation(self) -> Preparation | None:
        """What makes raw rows numbers."""

    @property
    def audit(self) -> Audit | None:
        """What crossed, and who missed what; None where nothing crosses."""

    @property
    def digest(self) -> str:
        """Differs for different rows, as far as that is known here."""

    def ask(self, question: Question[Found]) -> Found:
        """Ask, and combine the answers."""

    def without(self, fold: Fold) -> Agents:
        """The same agents, each without the rows it sets aside."""

    def with_own_rows(self, places: Sequence[int], widen: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Self:
        """These agents and, after them, some of them once more with their rows as they are, to learn for themselves.

        `widen` makes rows of weights of these agents rows of weights of all.
        """

    def labelled(self, phase: str, again: Callable[[], NDArray[np.float64]] | None = None) -> Self:
        """The same agents, whose exchanges the audit counts under this name.

        In a training, `again` gives its rows of weights anew when agents are lost; see `AgentsLostError`.
        """

    @property
    def left_out(self) -> Mapping[int, str]:
        """Agents that have no part in this, by place, and what happened to them."""

    def in_training(self) -> Self:
        """The same agents, for one training: whoever does not answer is out of it for good, and an error says so."""

    def leaving_out(self, places: Mapping[int, str]) -> Self:
        """The same agents without some, who are not asked; nothing that they told is used."""

    def setting_aside(self, places: Mapping[int, str]) -> tuple[Agents, Places]:
        """The agents as if some were not there, and the place that each agent of the found view has among these."""

    def side_by_side(self, jobs: Sequence[Callable[[], None]]) -> Sequence[Callable[[], None]]:
        """What to call so that all these jobs are done: each, or one that does them together where exchanges are slow."""

    def newcomers(self) -> Mapping[str, Any]:
        """Agents that came too late to be part of this, by name; each can be `joined`."""

    def joined(self, newcomer: Any) -> Agents:
        """These agents and one more, the last."""


QUESTIONS: Registry[type[Question[Any]] | str] = Registry(
    "question",
    {
        "sketches": "kinfed.backends.sketches:Sketches",
        "own-weights": "kinfed.weights.weighing:OwnWeights",
        "base-rows": "kinfed.weights.calibration.bases:BaseRows",
        "mean-gradients": "kinfed.weights.gradient_rows:MeanGradients",
        "gradient-rows": "kinfed.weights.gradient_rows:GradientRows",
        "moments": "kinfed.learners.regression_moments:Moments",
        "class-counts": "kinfed.learners.derivatives:ClassCounts",
        "class-moments": "kinfed.learners.derivatives:ClassMoments",
        "derivatives": "kinfed.learners.derivatives:Derivatives",
        "local-training": "kinfed.learners.neural.exchange:LocalTraining",
        "expansions": "kinfed.learners.expansion:Expansions",
        "home-scores": "kinfed.weights.calibration.cross_fitting:HomeScores",
        "losses": "kinfed.weights.calibration.scores:Losses",
        "recall": "kinfed.weights.calibration.scores:Recall",
        "tally": "kinfed.weights.calibration.scores:Tally",
        "out-of-fold": "kinfed.priors.judging:OutOfFold",
        "own-shares": "kinfed.priors.own_shares:OwnShares",
        "own-gain": "kinfed.priors.own_gain:OwnGain",
        "expansions-under-prior": "kinfed.learners.expansion:ExpansionsUnderPrior",
        "own-posterior": "kinfed.priors.posterior:OwnPosterior",
        "own-penalties": "kinfed.methods.tuning:OwnPenalties",
        "evaluation": "kinfed.methods:Evaluation",
    },
)
"""Every question a site answers, or where it is to be found; one of somebody else's package is added by its entry point."""
