"""Networks for several weight matrices under one protocol, looked at on test data as they train.

The paper reports the best test value during training, which spares it a stopping rule; the value at the end is what a user
gets who trains for a fixed time. Both are kept: they answer different questions.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.evaluation import HIGHER_IS_BETTER, score_models
from kinfed.experiments.experiment import PartProgress
from kinfed.files import write_whole

if TYPE_CHECKING:
    from kinfed.federation import Federation
    from kinfed.learners.neural import TorchLearner

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trial:
    """Test values of one method during training.

    Attributes
    ----------
    epochs : array of shape (m,)
        When test data were looked at.
    values : array of shape (m, agents)
    higher_is_better : bool
    """

    epochs: NDArray[np.int64]
    values: Array
    higher_is_better: bool

    @property
    def final(self) -> Array:
        """Of every agent at the end of training."""
        return self.values[-1]

    @property
    def best(self) -> Array:
        """Of every agent, the best during training."""
        return np.asarray(self.values.max(axis=0) if self.higher_is_better else self.values.min(axis=0))

    @property
    def curve(self) -> Array:
        """Means over agents."""
        return np.asarray(self.values.mean(axis=1))


def train_and_test(
    learner: TorchLearner,
    weights: Mapping[str, Array],
    train: Federation,
    test: Federation,
    *,
    seed: int,
    every: int,
    progress: PartProgress,
    checkpoint: Path,
) -> dict[str, Trial]:
    """Train a model for every agent under the weights (B, B) of every method, and test all of them every `every` epochs.

    The methods train side by side as rows of one problem: a model does not depend on the rows beside it. What was seen is
    kept beside the state of the training, so that a resumed run ends with the same values.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    kept = checkpoint / "seen.npz"
    seen = _load(kept)
    task = learner.task
    metric = "accuracy" if task == "classification" else "mean squared error"
    targets = np.tile(np.arange(len(train)), len(weights))

    def look(done: int, models: Any) -> None:
        seen[done] = score_models(models, test, task, targets)[metric]
        _save(kept, seen)

    models = learner.fit(
        train,
        np.vstack(list(weights.values())),
        targets=targets,
        seed=seed,
        progress=lambda _, done, total: progress(done / total),
        checkpoint=checkpoint / "training",
        monitor=look,
        monitor_every=every,
    )
    if learner.epochs not in seen:  # training was over already, and only what was seen then was lost
        look(learner.epochs, models)
    epochs = np.array(sorted(seen))
    values = np.array([seen[int(epoch)] for epoch in epochs]).reshape(len(epochs), len(weights), len(train))
    return {method: Trial(epochs, values[:, row], HIGHER_IS_BETTER[metric]) for row, method in enumerate(weights)}


def _load(path: Path) -> dict[int, Array]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {int(name): archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}


def _save(path: Path, seen: dict[int, Array]) -> None:
    content: dict[str, Any] = {str(epoch): values for epoch, values in seen.items()}
    write_whole(path, lambda file: np.savez(file, **content))
