r"""The penalty of models on given weights, by rows held out at home.

Every target holds folds of its own rows out, one after the other, trains a model for each ratio :math:`\kappa` (see
`kinfed.learners.linear.VarianceRatio`) on its weights from everybody's mean losses as quadratics and its own rows that are
left, and tells the mean losses of the rows held out. The federation takes the ratio of least mean loss, every agent on its
own scale. Weights stay as they were found, from all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinfed.backends.agents import Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.checkpoint import Kept, Store
from kinfed.federation import Agent
from kinfed.learners.base import AUTO, Learner, Models
from kinfed.learners.inputs import own_codes, own_numbers, relative_weights
from kinfed.learners.linear import MOST_LOSS, PriorLearner, VarianceRatio
from kinfed.learners.quadratics import Quadratics, read_quadratics
from kinfed.methods.base import MethodContext
from kinfed.priors.judging import JudgedMembers, held_out, repeats_of
from kinfed.priors.stacking import agent_scales
from kinfed.splitting import SMALLEST
from kinfed.validation import Array, whole_number
from kinfed.weights.calibration.calibrated import stays_at_home

RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""What is tried: from hardly any penalty to hardly any slope, where an agent has some tens of rows."""
RATIO = "penalty ratio"
"""Under which name a run keeps what was chosen."""


def has_priors(context: MethodContext) -> bool:
    """Whether the learner's models have coefficients of which something may be known before."""
    return isinstance(context.learner, PriorLearner) and stays_at_home(context.agents, context.learner)


def is_tuned(context: MethodContext) -> bool:
    """Whether penalties are to be found by rows held out, and can be."""
    return has_priors(context) and getattr(context.learner, "penalty", None) == AUTO


def with_ratio(learner: Learner, found: Mapping[str, Any]) -> Learner:
    """The learner with the penalty that a run found; as it is where none was."""
    given: Any = learner
    return replace(given, penalty=VarianceRatio(float(found[RATIO]))) if RATIO in found else learner


def tuning_sentences(found: Mapping[str, Any]) -> list[str]:
    """What was found, in a sentence; none where nothing was."""
    if RATIO not in found:
        return []
    return [
        f"penalty found by rows held out: {float(found[RATIO]):g} / n relative to the mean loss, n the effective sample "
        "size of a model"
    ]


def tuned_learner(context: MethodContext, matrix: Array) -> Learner:
    """The learner with the penalty that suits these weights (B, B); what was chosen is told in `context.found`."""
    learner = context.learner
    if not is_tuned(context) or not isinstance(learner, PriorLearner):
        return learner
    store = Store(None if context.checkpoint is None else context.checkpoint / "tuning")
    kept = store.load("penalty")
    if kept is None:
        agents = context.agents.labelled("tuning")
        asked = OwnPenalties(matrix, learner.quadratics(agents), repeats_of(agents.spec), learner)
        judged, ratio = agents.ask(asked), 1.0
        if (judged.n > 0).any():
            heard = ~np.isin(np.arange(len(judged.n)), list(agents.spec.quiet))  # the others do not judge for all
            counts = heard * (judged.n > 0) / agent_scales(judged, np.arange(len(RATIOS)))
            ratio = RATIOS[int(np.argmin(counts @ judged.losses))]
        kept = Kept({"ratio": ratio})
        store.save("penalty", kept)
    context.found[RATIO] = kept.settings["ratio"]
    return with_ratio(learner, context.found)


@dataclass(frozen=True, eq=False)
class OwnPenalties(Question[JudgedMembers]):
    """What every target loses with each ratio, on rows of its own that were held out.

    Attributes
    ----------
    matrix : array of shape (B, B)
        The weights.
    quadratics : Quadratics
        Everybody's mean losses.
    repeats : int
    learner : PriorLearner
    """

    matrix: Array
    quadratics: Quadratics
    repeats: int
    learner: PriorLearner

    name = "own-penalties"
    phase = "tuning"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """To every target of enough rows its weights, and the quadratics of those whom it listens to."""
        there, asked = self.quadratics.n > 0, dict[int, Message]()
        for k in range(len(spec.names)):
            if spec.sizes[k] < SMALLEST or not there[k]:
                continue
            heard = self._heard(k)
            settings = {"repeats": self.repeats, "place": int(np.flatnonzero(heard == k)[0])}
            asked[k] = Message(settings, {**self.quadratics.select(heard).arrays, "row": self.matrix[k, heard]})
        return asked

    def _heard(self, place: int) -> Places:
        there = (self.quadratics.n > 0) & (self.matrix[place] > 0)
        there[place] = True
        return np.flatnonzero(there)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """Train without each fold, and tell mean losses."""
        others, place, repeats = read_quadratics(asked.arrays), asked.settings["place"], asked.settings["repeats"]
        # As others learn from its rows, far cells held: what it tells decides for all.
        return _told(site.agent, others, asked.arrays["row"], place, repeats, site.learner, site.spec)

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A mean loss for every ratio."""
        return {"losses": ArraySpec((len(RATIOS),))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Losses are never negative, and of rows the agent has."""
        if not 0 <= whole_number(answer.settings["rows"], "the number of rows") <= spec.sizes[place]:
            return "it judged other rows than it has"
        return "its losses are negative" if (answer.arrays["losses"] < 0).any() else None

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> JudgedMembers:
        """In the order of the agents."""
        count, width = len(spec.names), len(RATIOS)
        found = JudgedMembers(np.zeros(count), np.zeros((count, width)), np.zeros((0, width)), np.zeros((0, width, width)))
        for k, one in answers.items():
            found.n[k], found.losses[k] = one.settings["rows"], one.arrays["losses"]
        return found

    def pooled(self, agents: PooledAgents) -> JudgedMembers:
        """The same on all cores."""
        return self.on_cores(agents)


def _told(
    own: Agent, others: Quadratics, row: Array, place: int, repeats: int, learner: Any, spec: TrainingSpec
) -> Message:
    """Mean losses of an agent's rows with each ratio; the weights (P,) are those of agents with these quadratics."""
    weights = relative_weights(own, spec)
    counted = np.ones(len(own)) if weights is None else weights
    learners = [replace(learner, penalty=VarianceRatio(ratio)) for ratio in RATIOS]
    rows = row[None] / row.sum() if row.sum() > 0 else np.eye(len(row))[[place]]
    total, mass, judged = np.zeros(len(RATIOS)), 0.0, np.zeros(len(own), dtype=bool)
    for aside in held_out(own, repeats, spec):
        left, held = own.rows(~aside), own.rows(aside)
        models = [one.fit_at_home(others, rows, place, left, spec) for one in learners]
        total += [counted[aside] @ _losses(one, held, spec) for one in models]
        mass += float(counted[aside].sum())
        judged |= aside
    return Message({"rows": int(judged.sum())}, {"losses": total / max(mass, 1e-300)})


def _losses(models: Models, held: Agent, spec: TrainingSpec) -> Array:
    """Squared errors, or log losses, of rows at the only model."""
    if spec.task == "regression":
        return np.asarray(np.square(models.predict(0, held.X) - own_numbers(held)))
    known: Any = models
    chances = known.predict_proba(0, held.X)[np.arange(len(held)), own_codes(held, spec)]
    return np.asarray(np.minimum(-np.log(np.maximum(chances, 1e-300)), MOST_LOSS))
