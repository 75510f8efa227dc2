r"""Neural networks trained where the points never meet.

"fedavg" exchanges models once a round: an agent trains what it is sent and answers how far each model moved.
"weighted-risk" exchanges gradients over all rows of an agent once an epoch. Either way the random numbers are those of
`TorchLearner.fit` on pooled data, each agent drawing its own part of them, and so are the results up to rounding. Dropout
is the exception: each agent draws its own. Batches of "weighted-risk" are refused: an agent would send gradients of single
rows, from which the rows can be read.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.federation import Agent
from kinfed.learners.base import Task
from kinfed.learners.neural.learner import TorchLearner
from kinfed.learners.neural.models import History, TorchModels
from kinfed.learners.remote.base import Arrays, Ask, Form, Memory, Monitor, Question, Terms
from kinfed.learners.remote.neural_agent import AgentSide
from kinfed.learners.remote.neural_server import train
from kinfed.learners.remote.neural_terms import known_classes, quantity, tensor_of, untried_network
from kinfed.progress import Progress

# A model that moves further than this many times its own length in one round has diverged, or is no honest answer.
_FURTHEST = 1e3


@dataclass(frozen=True, eq=False)
class RemoteTorch:
    """The remote form of `TorchLearner`, for both its methods but without early stopping or batches of "weighted-risk".

    Parameters
    ----------
    learner : TorchLearner
        The same at the server and at every agent. Its `warm_start` matters at the server only.
    """

    learner: TorchLearner
    _agents: AgentSide = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.learner.patience is not None:
            raise InputError(
                "patience stops each model on held-out points of its own agent, which never leave their site; "
                "leave patience out to train across sites"
            )
        object.__setattr__(self, "_agents", AgentSide(self.learner))

    def __reduce__(self) -> tuple[type[RemoteTorch], tuple[TorchLearner]]:
        # What is kept for agents of this process is of no use in another.
        return RemoteTorch, (self.learner,)

    @property
    def task(self) -> Task:
        """What kind of target is predicted."""
        return self.learner.task

    @property
    def asks_once(self) -> bool:
        """Answers depend on the models."""
        return False

    def fit(
        self,
        ask: Ask,
        terms: Terms,
        weights: NDArray[np.float64],
        *,
        progress: Progress | None = None,
        memory: Memory | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> TorchModels:
        """Train one model per row of `weights` (T, B); the server's side.

        A row's loss in `History` is NaN for a round in which it heard nobody. See `RemoteLearner.fit`.
        """
        return train(self.learner, ask, terms, weights, progress, memory, monitor, monitor_every)

    def answer(self, agent: Agent, place: int, terms: Terms, question: Question) -> dict[str, NDArray[Any]]:
        """How far the agent's points move the models it was sent, or their gradients; and their losses."""
        return self._agents.answer(agent, place, terms, question)

    def forms(self, place: int, terms: Terms, question: Question) -> dict[str, Form]:
        """What the answer to a question must look like."""
        theta, dtype = question.arrays["theta"], self.learner.dtype
        bound = _FURTHEST * (1 + float(np.linalg.norm(theta))) if self.learner.method == "fedavg" else np.inf
        return {quantity(self.learner): Form(theta.shape, dtype, bound), "loss": Form(theta.shape[:1], dtype)}

    def check(self, place: int, terms: Terms, question: Question, answer: Arrays) -> str | None:
        """What is wrong with an answer whose forms are right: training that diverged, or a model that moved too far."""
        name = quantity(self.learner)
        if not (np.isfinite(answer[name]).all() and np.isfinite(answer["loss"]).all()):
            return "training diverged there: lower learning_rate or standardise the data"
        if self.learner.method == "fedavg":
            moved = np.linalg.norm(answer[name], axis=1)
            if (moved > _FURTHEST * (1 + np.linalg.norm(question.arrays["theta"], axis=1))).any():
                return f"a model moved by {moved.max():.3g} in one round, which is too far"
        return None

    def pack(self, models: TorchModels, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The parameters of some rows' models, (len(rows), width)."""
        return {"parameters": models.stack.numpy()[models.lane[rows]]}

    def unpack(self, arrays: Arrays, terms: Terms) -> TorchModels:
        """Models from arrays, without a history; raise `InputError` if they do not fit."""
        network = untried_network(self.learner, terms)
        packed = arrays.get("parameters")
        width, dtype = network.layout.width, self.learner.dtype
        if packed is None or packed.ndim != 2 or packed.shape[1] != width or packed.dtype != dtype:
            given = "none" if packed is None else f"{packed.dtype} of shape {packed.shape}"
            raise InputError(
                f"the models' parameters do not fit the network: {given} came, {dtype} of shape (rows, {width}) is "
                "expected; give server and agents the same learner"
            )
        if not np.isfinite(packed).all():
            raise InputError("the models' parameters hold NaN or infinite numbers; their training diverged")
        classes = known_classes(self.learner, terms)
        return TorchModels(
            module=copy.deepcopy(network.module).eval(),
            stack=tensor_of(packed, self.learner).clone(),
            lane=np.arange(len(packed)),
            classes=classes if classes is not None else np.array([]),
            n_inputs=terms.dim,
            history=History(np.empty((0, len(packed)))),
        )
