r"""Where candidates are tried: what calibration asks of the agents, wherever their points are.

Calibration itself (`cross_validate`, the races, `choose`) knows nothing but a `Trials`. It says which candidates to train
and who shall judge them; weights, models and losses are made behind it. Where all points are in one place that is
`PooledTrials`; an engine lets every agent weigh and judge for itself.

What an agent tells of its judgement is an `AgentScores`: means and covariances of the candidates' losses over its points.
The losses of single points stay with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kinfed.learners.base import Extent, Learner, Models
from kinfed.validation import without_rounding
from kinfed.weights.calibration.family import Base, Member

Array = NDArray[np.float64]
Places = NDArray[np.int64]

Monitor = Callable[[int, Any], None]
"""Called as ``monitor(steps_done, models)``; may end the training by an error of its own, which leaves `Trials.fit`."""


class Split(NamedTuple):
    """Which points are set aside: those of one fold, in one dealing of all points to `folds` folds.

    None in its place means that nothing is set aside.
    """

    repeat: int
    fold: int
    folds: int


@dataclass(frozen=True, eq=False)
class AgentScores:
    """What one agent tells of the candidates it judged.

    Attributes
    ----------
    n : int
        How many points it judged; 0 for an agent that judges nothing.
    mean : array of shape (M,)
        Mean loss of every candidate; NaN where it was not tried.
    covariance : array of shape (M, M)
        Covariance of the losses over the points, divisor n; NaN where one of the two was not tried.
    """

    n: int
    mean: Array
    covariance: Array

    @classmethod
    def of_losses(cls, losses: Array) -> AgentScores:
        """Scores of losses (n, M); a candidate with a NaN among its losses was not tried."""
        n, count = losses.shape
        mean, covariance = np.full(count, np.nan), np.full((count, count), np.nan)
        if n:
            tried = ~np.isnan(losses).any(axis=0)
            mine = losses[:, tried]
            mean[tried] = mine.mean(axis=0)
            apart = mine - mean[tried]
            covariance[np.ix_(tried, tried)] = apart.T @ apart / n
        return cls(n, mean, covariance)

    def spread(self, member: int, reference: int) -> float:
        """Variance over points, divisor n - 1, of one candidate's loss minus another's; NaN for fewer than two points."""
        if self.n < 2:
            return float("nan")
        total = float(self.covariance[member, member] + self.covariance[reference, reference])
        # Candidates that agree in all digits differ by rounding here, which must not pass for a spread.
        apart = without_rounding(total - 2 * float(self.covariance[member, reference]), total)
        return apart * self.n / (self.n - 1)


class Trials(Protocol):
    """The agents of one calibration.

    Agents are named by their places 0, ..., B - 1. What was judged is remembered from `score` to `tally`, so a `Trials`
    serves one calibration.
    """

    @property
    def sizes(self) -> Places:
        """How many points each agent has, (B,)."""
        ...

    @property
    def extent(self) -> Extent:
        """The extent of all data."""
        ...

    def training_sizes(self, split: Split | None) -> Places:
        """How many points each agent trains on, (B,)."""
        ...

    def judges(self, split: Split) -> Places:
        """The agents that set points aside, in order."""
        ...

    def can_train(self, split: Split) -> bool:
        """Whether what is left can be learned from: a classifier needs two classes."""
        ...

    def each(self, splits: Sequence[Split], judge: Callable[[Split], None], progress: Callable[[int, int], None]) -> None:
        """Judge every split, one after the other or side by side."""
        ...

    def bases(
        self, split: Split | None, learner: Learner, wanted: Iterable[Base], targets: Places, *, thrifty: bool
    ) -> dict[Base, Array]:
        """Weights (T, B) of the targets by every base that is wanted, from the points left for training.

        Parameters
        ----------
        learner : Learner
            What the gradient rule trains.
        thrifty : bool
            That rule compares gradients at one common model: the learner is slow to train.
        """
        ...

    def fit(
        self,
        split: Split | None,
        learner: Learner,
        rows: Array,
        targets: Places,
        *,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train one model per weight row; only a `StepwiseLearner` is given a monitor."""
        ...

    def common(self, split: Split | None, learner: Learner) -> Models:
        """One common model, agents weighted by the points they train on; see `kinfed.learners.plan.common_model`."""
        ...

    def score(
        self, split: Split, models: Models, members: Sequence[Member], agents: Places, *, tell: bool = False
    ) -> dict[int, Array]:
        """Let agents judge models on the points they set aside; models come one member after another, agent by agent.

        Every agent keeps the losses under the member; what it judges again in the same split replaces what it kept.

        Parameters
        ----------
        tell : bool
            Whether agents answer with their mean loss of every member, (M,). A race asks, to go on with the best;
            cross-validation does not: where a single point was set aside, the mean is that point's loss.

        Returns
        -------
        dict
            By agent, what it told; empty if nobody was asked to.
        """
        ...

    def tally(self, members: Sequence[Member]) -> list[AgentScores]:
        """What every agent tells in the end: scores over all points it judged for these members.

        The losses of a point that was judged in several repeats are averaged first. An agent that judged nothing, or does
        not answer, has n = 0.
        """
        ...
