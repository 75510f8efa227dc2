"""How models are tested: by every agent, at home, on its own test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.analysis import FLOOR, OwnScores, Scores, federation_scores, own_scores
from kinfed.backends.agents import Delivery, Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message, arrays_of
from kinfed.learners.base import Learner, Models
from kinfed.learners.delivered import DeliveredModels, model_and_row, withheld_of
from kinfed.methods.registry import METHODS
from kinfed.validation import Array, whole_number


def delivered(
    method: str, learner: Learner, models: Models, spec: TrainingSpec, withheld: Mapping[int, str]
) -> Models | DeliveredModels:
    """The models without those of agents whose rows had no part in their training; all of them where there are none."""
    if not withheld:
        return models
    rows = np.setdiff1d(np.arange(len(spec.names)), list(withheld))
    made = METHODS[method].pack(learner, models, rows)
    return DeliveredModels(METHODS[method].restore(made, learner, spec), spec.names, dict(withheld))


@dataclass(frozen=True, eq=False)
class Evaluation(Question[dict[str, Scores]]):
    """Every agent tests its own models at home, and keeps the personal one.

    Attributes
    ----------
    learner : Learner
    models : mapping from what a result calls them to the name of their method, and Models, one per target
        The agents' own come last.
    targets : array of shape (T,)
    weights : array of shape (T, B), optional
        Whom the own models listen to, told to the agents.
    run : str
        Which run this is, for those who keep their model.
    asked : array of shape (T, B), optional
        Whom they were to listen to, where agents were lost since. An agent that has no model of its own, since its rows had
        no part in one, is told so, and scores nothing.
    quorum : float, optional
    """

    learner: Learner
    models: Mapping[str, tuple[str, Models]]
    targets: Places
    weights: Array | None = None
    run: str = ""
    asked: Array | None = None
    quorum: float | None = None

    name = "evaluation"
    phase = "evaluation"
    follows = "its models are not scored, and it keeps the model it had"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every target its models."""
        asked = {}
        own = withheld_of(list(self.models.values())[-1][1])
        for row, t in enumerate(self.targets.tolist()):
            methods: list[str | None] = []
            arrays: dict[str, NDArray[Any]] = {}
            for place, (method, models) in enumerate(self.models.values()):
                given = row not in withheld_of(models) and row not in own
                methods.append(method if given else None)
                if given:
                    whole, place_there = model_and_row(models, row)
                    made = METHODS[method].pack(self.learner, whole, np.array([place_there]))
                    arrays |= {f"{place}/{name}": array for name, array in made.items()}
            told = {"methods": methods, "weights": _heard(spec, self.weights, row), "run": self.run}
            asked[t] = Message({**told, "asked": _heard(spec, self.asked, row), "withheld": own.get(row, "")}, arrays)
        return asked

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Scores on own test rows; the last model is the agent's own, and is kept if it keeps models."""
        methods = asked.settings["methods"]
        models = [
            None if method is None else METHODS[method].unpack(arrays_of(asked.arrays, place), site)
            for place, method in enumerate(methods)
        ]
        found = OwnScores.nothing(len(methods), site.spec.task)
        if site.test is not None:
            given = [None if one is None else (one, 0) for one in models]
            found = own_scores(given, site.test, site.own.y, site.spec.task, site.spec.classes, _local(methods))
        if site.keep_model is not None:
            told = asked.settings
            home = Delivery(str(told["run"]), dict(told["weights"]), dict(told["asked"]), str(told["withheld"]))
            site.keep_model(site, models[-1], methods[-1], home)
        if not any(METHODS[method].needs_site for method in methods if method is not None):
            site.state.clear()  # the run is over; should it be killed now, no method would ask for what was kept
        return Message({"rows": 0 if site.test is None else len(site.test)}, found._asdict())

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A number and its standard error for the floor, each model and metric; and errors against learning alone."""
        shapes = {name: one.shape for name, one in OwnScores.nothing(len(self.models), spec.task)._asdict().items()}
        return {name: ArraySpec(shape, gaps=True) for name, shape in shapes.items()}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """The number of test rows is one, and errors are never negative."""
        whole_number(answer.settings["rows"], "the number of test rows")
        if any((answer.arrays[name] < 0).any() for name in ("errors", "versus_local")):
            return "it holds a negative standard error"
        return None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> dict[str, Scores]:
        """The scores of the floor and of every method; none where nobody has test rows."""
        own = {t: OwnScores(**one.arrays) for t, one in answers.items()}
        return self._scores(spec, own, {t: int(one.settings["rows"]) for t, one in answers.items()})

    def pooled(self, agents: PooledAgents) -> dict[str, Scores]:
        """The same without packing models, unless a method has its own way to predict at an agent."""
        test, methods = agents.test, [method for method, _ in self.models.values()]
        if test is None:
            return {}
        if any(METHODS[method].needs_site for method in methods):
            return super().pooled(agents)
        found = {}
        for row, t in enumerate(self.targets.tolist()):
            given = [(models, row) for _, models in self.models.values()]
            found[t] = own_scores(given, test[t], agents.own_rows[t].y, agents.task, agents.spec.classes, _local(methods))
        return self._scores(agents.spec, found, {t: len(test[t]) for t in found})

    def _scores(self, spec: TrainingSpec, own: Mapping[int, OwnScores], rows: Mapping[int, int]) -> dict[str, Scores]:
        """What agents found, by place, over all targets."""
        targets = self.targets.tolist()
        sizes = np.array([rows.get(t, 0) for t in targets], dtype=np.int64)
        if not sizes.any():
            return {}
        nothing = OwnScores.nothing(len(self.models), spec.task)
        names = tuple(spec.names[t] for t in targets)
        scores = federation_scores(spec.task, names, sizes, [own.get(t, nothing) for t in targets])
        found = dict(zip((FLOOR, *self.models), scores, strict=True))
        if spec.task == "unsupervised":
            del found[FLOOR]
        return found


def _local(methods: Sequence[str | None]) -> int | None:
    """Where learning alone stands among the methods that the own models are compared with."""
    return next((place for place, method in enumerate(methods[:-1]) if method == "local"), None)


def _heard(spec: TrainingSpec, weights: Array | None, row: int) -> dict[str, float]:
    """Whom a row of weights listens to, by name."""
    return {} if weights is None else {spec.names[k]: float(weights[row, k]) for k in np.flatnonzero(weights[row] > 0)}
