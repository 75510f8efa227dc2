r"""What a learner is: something that minimises weighted risks for many targets at once.

Row t of a weight matrix asks for the model that minimises :math:`\sum_k w_{tk} \hat R_k(\theta)`, where :math:`\hat R_k` is
the mean loss over the points of agent k.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.progress import Progress

if TYPE_CHECKING:
    from kinfed.federation import Federation

Task = Literal["regression", "classification", "unsupervised"]


@dataclass(frozen=True)
class Extent:
    """How much data there is to learn from; a learner's ``model_operations`` says from it what one model costs.

    Attributes
    ----------
    dim : int
        Columns of X.
    n_agents : int
    n_points : int
        Of all agents together.
    n_classes : int
        Different labels; 0 where the target is a number or there is none.
    """

    dim: int
    n_agents: int
    n_points: int
    n_classes: int = 0


class Models(Protocol):
    """One trained model per row of the weight matrix."""

    def __len__(self) -> int: ...

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of the model of that row: numbers, or labels for a classifier."""
        ...


class ClassifierModels(Models, Protocol):
    """Models that also give probabilities."""

    @property
    def classes(self) -> NDArray[Any]:
        """The classes, sorted."""
        ...

    def predict_proba(self, row: int, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities (n, number of classes) in the order of `classes`."""
        ...


class UnsupervisedModels(Models, Protocol):
    """Models without a target, judged by how well they describe points."""

    def score(self, row: int, X: ArrayLike) -> float:
        """Mean score per point of the model of that row; higher is better."""
        ...


class Learner(Protocol):
    """Minimises weighted risks for many targets at once."""

    @property
    def task(self) -> Task:
        """What kind of target the learner predicts."""
        ...

    def fit(
        self,
        federation: Federation,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> Models:
        """Train one model per row of `weights` (T, B).

        Parameters
        ----------
        federation : Federation
            Numeric training data of the B agents.
        weights : array of shape (T, B)
            Rows on the simplex; an agent of weight zero has no part in that row's model.
        targets : array of shape (T,), optional
            The agent each row is for, where a learner uses it (early stopping on the target's own data).
        seed : int
            Equal seeds give equal models.
        progress : callable, optional
        checkpoint : path, optional
            A directory: work done is kept there, and a run that was interrupted goes on from it.
        """
        ...
