r"""Training where the points never meet: the server holds the models, agents answer questions about them.

A learner's remote form has two sides. On the server `RemoteLearner.fit` minimises all weighted risks
:math:`\sum_k w_{tk} \hat R_k(\theta_t)`, and whenever it needs to know something of the agents' data it asks: moments for
ridge, derivatives for logistic regression, trained parameters for FedAvg. At the agent `RemoteLearner.answer` gives that
answer from the agent's own points. The result is that of `Learner.fit` on pooled data, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinfed.federation import Agent
from kinfed.learners.base import Models, Task
from kinfed.progress import Progress

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Terms:
    """What everybody knows of the training data before training.

    Attributes
    ----------
    names : tuple of str
        The B agents, in order.
    sizes : array of int of shape (B,)
        How many points each of them trains on.
    dim : int
        Number of columns of X.
    classes : array, or None
        The sorted labels of the whole federation, for a classifier.
    seed : int
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    dim: int
    classes: NDArray[Any] | None
    seed: int


@dataclass(frozen=True, eq=False)
class Question:
    """What one agent is asked in one exchange.

    Attributes
    ----------
    settings : mapping
        Values that fit into JSON, such as the number of the round.
    arrays : mapping from name to array
        Models of the targets that listen to the agent, and of no others.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """What an answer must look like to be used: its shape, its type, and how large it may be.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As in ``array.dtype.name``.
    bound : float
        The largest norm of the whole array; infinite where none is known.
    """

    shape: tuple[int, ...]
    dtype: str
    bound: float = np.inf


Ask = Callable[[Mapping[int, Question]], Mapping[int, Arrays]]
"""One exchange: questions by the agents' places; the answers of those who gave one that can be used, by place."""

Monitor = Callable[[int, Any], None]
"""Called as ``monitor(epochs_done, models)``; may end the training by an error of its own."""


class Memory(Protocol):
    """Where a training keeps its state after every exchange, so that a server that was killed goes on."""

    def load(self) -> dict[str, NDArray[Any]] | None:
        """The state that was kept, or None."""
        ...

    def save(self, state: Arrays) -> None:
        """Keep this state in place of the last one."""
        ...


class RemoteLearner(Protocol):
    """Both sides of training where the points never meet."""

    @property
    def task(self) -> Task:
        """What kind of target is predicted."""
        ...

    @property
    def asks_once(self) -> bool:
        """Whether questions are about the data alone: what one training was told then serves every other."""
        ...

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
    ) -> Models:
        """Train one model per row of `weights` (T, B); the server's side.

        Rows that are equal are one model. An agent is asked only about models whose row gives it a weight above zero, all
        of them in one question. Whoever does not answer an exchange is left out of it: the weights of every row are divided
        by their sum over those who answered; a row that heard nobody stays as it is.
        """
        ...

    def answer(self, agent: Agent, place: int, terms: Terms, question: Question) -> dict[str, NDArray[Any]]:
        """The agent's side: a pure function of its prepared training data, its place among all, and the question."""
        ...

    def forms(self, place: int, terms: Terms, question: Question) -> dict[str, Form]:
        """What the answer to a question must look like."""
        ...

    def check(self, place: int, terms: Terms, question: Question, answer: Arrays) -> str | None:
        """What is wrong with an answer whose forms are right, in a few words; None if nothing is."""
        ...

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Models of some rows as arrays, to be sent to an agent."""
        ...

    def unpack(self, arrays: Arrays, terms: Terms) -> Models:
        """Models from arrays; raise `InputError` if they do not fit."""
        ...
