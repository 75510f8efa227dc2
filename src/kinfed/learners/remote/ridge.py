r"""Ridge regression where the points never meet: one exchange of moments.

Agent k answers :math:`(n_k, \bar z_k, C_k)` of its points z = (x, y), once; from then on the model of any weight row is one
linear system on the server. Whoever keeps the memory of a training can so have the models of other rows without asking
anybody again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.federation import Agent
from kinfed.learners.base import Task
from kinfed.learners.checkpoint import Counter
from kinfed.learners.inputs import simplex_rows, unique_rows
from kinfed.learners.regression_moments import RegressionMoments, regression_moments
from kinfed.learners.remote.base import Arrays, Ask, Form, Memory, Monitor, Question, Terms
from kinfed.learners.remote.checks import (
    agent_columns,
    agent_numbers,
    check_models,
    comoment_fault,
    rows_heard,
    unpacked,
)
from kinfed.learners.ridge import Ridge, RidgeModels, ridge_coefficients
from kinfed.parallel import map_on_cores
from kinfed.progress import Progress

Array = NDArray[np.float64]

# Elements of the moments of the models solved at once on one core (32 MB).
_BLOCK = 2**22


@dataclass(frozen=True)
class RemoteRidge:
    """Both sides of ridge regression from moments.

    Parameters
    ----------
    learner : Ridge
        The models are those of its `fit` on pooled data, up to rounding.

    Notes
    -----
    A memory holds the moments of those who answered. A later `fit` with the same memory, for whatever rows, asks only
    agents that have not answered before.
    """

    learner: Ridge

    @property
    def task(self) -> Task:
        """Regression."""
        return self.learner.task

    @property
    def asks_once(self) -> bool:
        """Moments serve every weight row."""
        return True

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
    ) -> RidgeModels:
        """Train one model per row of `weights`; see `RemoteLearner.fit`.

        A row that heard nobody gets the weights of a grand mean, proportional to the sizes of those who answered. There are
        no epochs, so `monitor` is never called.
        """
        matrix = simplex_rows(weights, terms.names, terms.sizes.tolist())
        rows, inverse = unique_rows(matrix)
        asked, moments = self._recall(memory, terms)
        missing = np.flatnonzero((rows > 0).any(axis=0) & ~asked)
        if len(missing):
            answers = ask({int(place): Question() for place in missing})
            for place, answer in answers.items():
                for name, array in answer.items():
                    moments[name][place] = array
            asked[list(answers)] = True
        answered = moments["n"] > 0
        heard = rows_heard(rows, answered, terms.sizes)  # raises if nobody answered, and then nothing is remembered
        if len(missing) and memory is not None:
            memory.save({"asked": asked, **moments})
        used = np.flatnonzero((heard > 0).any(axis=0))
        stack = RegressionMoments(moments["n"][used], moments["mean"][used], moments["comoment"][used], ())
        step = max(1, _BLOCK // (terms.dim + 1) ** 2)
        counter = Counter(progress, "ridge", len(rows))

        def part(start: int) -> Array:
            chosen = heard[start : start + step, used]
            counter.add(len(chosen))
            return ridge_coefficients(stack.weighted(chosen), self.learner.penalty, intercept=self.learner.intercept)

        return RidgeModels(np.concatenate(map_on_cores(part, range(0, len(rows), step)))[inverse])

    def answer(self, agent: Agent, place: int, terms: Terms, question: Question) -> dict[str, NDArray[Any]]:
        """The agent's regression moments."""
        moments = regression_moments(agent_columns(agent, terms), agent_numbers(agent, terms), f"agent {agent.name}")
        return {"n": moments.n, "mean": moments.mean, "comoment": moments.comoment}

    def forms(self, place: int, terms: Terms, question: Question) -> dict[str, Form]:
        """A number, d + 1 means, and their second moments."""
        size = terms.dim + 1
        return {
            "n": Form((), "float64"),
            "mean": Form((size,), "float64"),
            "comoment": Form((size, size), "float64"),
        }

    def check(self, place: int, terms: Terms, question: Question, answer: Arrays) -> str | None:
        """Moments must be finite, of as many points as the agent has, and could be those of points."""
        if not all(np.isfinite(array).all() for array in answer.values()):
            return "its moments are not finite"
        if float(answer["n"]) != terms.sizes[place]:
            return f"its moments are of {float(answer['n']):g} points, not of {terms.sizes[place]}"
        return comoment_fault(answer["comoment"])

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Coefficients of some rows, of shape (rows, d + 1)."""
        check_models(models, RidgeModels, "ridge")
        return {"coefficients": models.coefficients[rows]}

    def unpack(self, arrays: Arrays, terms: Terms) -> RidgeModels:
        """Models from their coefficients."""
        return RidgeModels(unpacked(arrays, "coefficients", (terms.dim + 1,), "float64"))

    def _recall(self, memory: Memory | None, terms: Terms) -> tuple[NDArray[np.bool_], dict[str, NDArray[Any]]]:
        """Who was asked, and the moments of all agents: no points for those who have not answered."""
        count, size = len(terms.names), terms.dim + 1
        state = None if memory is None else memory.load()
        if state is not None and _fits(state, terms):
            kept = {name: np.array(array) for name, array in state.items()}
            return kept.pop("asked"), kept
        empty = {"n": np.zeros(count), "mean": np.zeros((count, size)), "comoment": np.zeros((count, size, size))}
        return np.zeros(count, dtype=bool), empty


def _fits(state: Arrays, terms: Terms) -> bool:
    """Whether a memory is of a training on these terms: else its moments would be of other points."""
    count, size = len(terms.names), terms.dim + 1
    shapes = {"asked": (count,), "n": (count,), "mean": (count, size), "comoment": (count, size, size)}
    if {name: array.shape for name, array in state.items()} != shapes:
        return False
    return bool(((state["n"] == terms.sizes) | (state["n"] == 0)).all())
