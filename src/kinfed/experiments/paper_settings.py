"""What the paper's experiments share: its features, its least squares, seeds, networks that are trained, and statistics.

Networks for several weight matrices train under one protocol and are looked at on test data as they train. The paper
reports the best test value during training, which spares it a stopping rule; the value at the end is what a user gets who
trains for a fixed time. Both are kept: they answer different questions.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas

from kinfed.analysis import METRICS, score_models
from kinfed.backends.pooled import PooledAgents
from kinfed.data import SyntheticFederation
from kinfed.embedding import FourierFeatures, Gaussian
from kinfed.experiments.experiment import PartProgress
from kinfed.federation import Federation
from kinfed.files import write_whole
from kinfed.learners.regression_moments import RegressionMoments, regression_moments, squared_error, stack_moments
from kinfed.learners.ridge import ridge_coefficients
from kinfed.splitting import derived_seed
from kinfed.validation import Array, Integers
from kinfed.weights import RULES, Geometry, Weights, explicit_geometry, weigh

if TYPE_CHECKING:
    from kinfed.learners.neural import TorchLearner


PAPER, EXACT = "q-aggregation", "q-aggregation-exact"
"""The paper's rule as it is computed, and the minimum it is said to compute."""
_RESAMPLES = 1000


def repetition_seed(seed: int, repetition: int) -> int:
    """The seed of one repetition; repetitions are independent, and the same whatever their number."""
    return int(derived_seed(seed, "repetition", repetition).generate_state(1)[0])


def concept_kernel(dim: int) -> Gaussian:
    r"""The paper's kernel for concept shift, :math:`\exp(-|x - x'|^2 / (2 (d + 1)) - (y - y')^2 / 2)`.

    It is the one whose frequencies are :math:`N(0, I_d / (d + 1) \oplus 1)`, as the paper draws them.
    """
    return Gaussian((float(np.sqrt(dim + 1)),) * dim + (1.0,))


def concept_geometry(train: Federation, n_features: int, seed: int) -> Geometry:
    """Geometry of the agents of a concept shift under the paper's features."""
    features = FourierFeatures(concept_kernel(train.dim), n_features, dim=train.dim + 1, seed=seed)
    return explicit_geometry([features(one) for one in concept_points(train)], norm_bound=features.norm_bound)


def concept_points(train: Federation) -> list[Array]:
    """The points (x, y) of every agent."""
    return [np.column_stack([agent.X, np.asarray(agent.y)]) for agent in train]


def input_geometry(train: Federation, bandwidth: float, n_features: int, seed: int) -> Geometry:
    """Geometry of agents that are compared by their inputs x alone, with a Gaussian kernel."""
    features = FourierFeatures(Gaussian(bandwidth), n_features, dim=train.dim, seed=seed)
    return explicit_geometry([features(agent.X) for agent in train], norm_bound=features.norm_bound)


def weigh_by(geometry: Geometry, rule: str, groups: Sequence[Any] | None, **options: Any) -> Weights:
    """The weights of a rule, which is told the groups if it needs them."""
    known = {"groups": groups} if "groups" in RULES[rule].needs else {}
    return weigh(geometry, rule, **known, **options)


class LeastSquares:
    """Linear regression with an intercept, of least norm where points are too few, for any weights on one federation.

    The error is that on the population, in closed form, or on `test_points` fresh points per agent as in the paper.
    """

    def __init__(self, generated: SyntheticFederation, test_points: int = 0) -> None:
        self._generated = generated
        self._train = _moments(generated.train)
        self._test = _moments(generated.test(test_points)) if test_points else None

    def error(self, weights: Array, penalty: float = 0.0) -> Array:
        """Mean squared error of every agent's own model; with a penalty, of ridge regression instead."""
        coefficients = ridge_coefficients(self._train.weighted(weights), penalty)
        if self._test is None:
            return self._generated.population_mse(coefficients)
        return squared_error(self._test, coefficients)


def _moments(federation: Federation) -> RegressionMoments:
    return stack_moments([regression_moments(agent.X, np.asarray(agent.y)) for agent in federation])


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

    epochs: Integers
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
        """The mean over agents after every epoch that was scored."""
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
        seen[done] = score_models(models, test, task, targets, metrics=[metric])[metric]
        content: dict[str, Any] = {str(epoch): values for epoch, values in seen.items()}
        write_whole(kept, lambda file: np.savez(file, **content))

    models = learner.fit(
        PooledAgents(train, task, seed),
        np.vstack(list(weights.values())),
        targets=targets,
        progress=lambda _, done, total: progress(done / total),
        checkpoint=checkpoint / "training",
        monitor=look,
        monitor_every=every,
    )
    if learner.epochs not in seen:  # training was over already, and only what was seen then was lost
        look(learner.epochs, models)
    epochs = np.array(sorted(seen))
    values = np.array([seen[int(epoch)] for epoch in epochs]).reshape(len(epochs), len(weights), len(train))
    return {method: Trial(epochs, values[:, row], METRICS[metric].higher_is_better) for row, method in enumerate(weights)}


def _load(path: Path) -> dict[int, Array]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {int(name): archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}


def over_repetitions(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Mean, standard deviation and standard error over repetitions of the mean over agents, by setting and method."""
    keys = ["setting", "method", "repetition"]
    means = results[results["metric"] == metric].groupby(keys, sort=False)["value"].mean()
    table = means.groupby(["setting", "method"], sort=False).agg(["mean", "std", "count"])
    table["error"] = table["std"] / np.sqrt(table["count"])
    return table.rename(columns={"std": "deviation"})


class Level(NamedTuple):
    """Mean over agents and repetitions, and over repetitions its standard deviation and standard error."""

    mean: float
    deviation: float
    error: float

    def __format__(self, digits: str) -> str:
        return with_error(self.mean, self.error, int(digits or 2))


def level(table: pandas.DataFrame, setting: str, method: str) -> Level:
    """The row of `over_repetitions` for one setting and one method."""
    found = table[(table.index.get_level_values("setting") == setting) & (table.index.get_level_values("method") == method)]
    return Level(*(float(found[name].iloc[0]) for name in Level._fields))


def by_repetition(results: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Means over agents: a row per setting and repetition, a column per method."""
    return results[results["metric"] == metric].pivot_table(
        index=["setting", "repetition"], columns="method", values="value", aggfunc="mean", sort=False
    )


def methods_table(results: pandas.DataFrame, metric: str, digits: int = 2) -> pandas.DataFrame:
    """Mean and standard error as text: a row per setting, a column per method."""
    table = over_repetitions(results, metric)
    texts = [with_error(mean, error, digits) for mean, error in zip(table["mean"], table["error"], strict=True)]
    return (
        table.assign(text=texts)
        .reset_index()
        .pivot_table(index="setting", columns="method", values="text", aggfunc="first", sort=False)
    )


def ratio_with_error(first: Array, second: Array) -> tuple[float, float]:
    """Ratio of means over paired repetitions and its standard error to first order."""
    ratio = float(first.mean() / second.mean())
    if len(first) < 2:
        return ratio, float("nan")
    return ratio, float((first - ratio * second).std(ddof=1) / second.mean() / np.sqrt(len(first)))


def with_error(mean: float, error: float, digits: int = 2) -> str:
    """A mean and its standard error, which one repetition does not have."""
    return f"{mean:.{digits}f}" if np.isnan(error) else f"{mean:.{digits}f} ± {error:.{digits}f}"


def crossing(x: Array, difference: Array) -> float:
    """Where a curve that starts below zero first reaches it, by straight lines between the points; NaN if it never does.

    Examples
    --------
    >>> import numpy as np
    >>> crossing(np.array([0.0, 0.5, 1.0]), np.array([-2.0, -1.0, 1.0]))
    0.75
    """
    if difference[0] >= 0:
        return float(x[0])
    above = np.flatnonzero(difference >= 0)
    if not len(above):
        return float("nan")
    left, right = above[0] - 1, above[0]
    share = -difference[left] / (difference[right] - difference[left])
    return float(x[left] + share * (x[right] - x[left]))


def crossing_with_error(x: Array, differences: Array, seed: int) -> tuple[float, float]:
    """The crossing of the mean over repetitions, and its standard error over resampled repetitions.

    Parameters
    ----------
    x : array of shape (m,)
    differences : array of shape (repetitions, m)
    seed : int
    """
    rng = np.random.default_rng(seed)
    count = len(differences)
    draws = [crossing(x, differences[rng.integers(count, size=count)].mean(axis=0)) for _ in range(_RESAMPLES)]
    known = np.array(draws)[np.isfinite(draws)]
    error = float(known.std(ddof=1)) if count > 1 and len(known) > 1 else float("nan")
    return crossing(x, differences.mean(axis=0)), error
