"""One agent's model, as it leaves: ready for raw rows, without anybody's rows in it, in two small files."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Delivery, SiteView, TrainingSpec
from kinfed.backends.spec import label_settings, preparation_settings, read_labels, read_preparation
from kinfed.checkpoint import Kept
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.files import OWNER_ONLY, private_folder, write_whole
from kinfed.learners.base import Learner, Models, learner_settings, read_learner
from kinfed.markup import card, paragraph, table
from kinfed.methods import METHODS
from kinfed.records import read_record, write_record

KIND = "model"

LAST_RUN = "last-run.txt"
"""What a site was told at the end of its last run."""

KEPT_MODELS = 3
"""Models of earlier runs that a site keeps beside its own."""


class UnusualRowsWarning(UserWarning):
    """Rows to predict for are unlike anything in training."""


class RunStamp(NamedTuple):
    """What tells a run from all others, and when it began, in UTC."""

    run: str = ""
    made: str = ""


NO_RUN = RunStamp()


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One agent's model.

    Attributes
    ----------
    agent : str
    method : str
        A key of `kinfed.METHODS`: how it was made.
    learner : Learner
        What was trained.
    models : Models
        Trained models, the agent's among them.
    row : int
        Which of them is the agent's.
    preparation : Preparation
        What makes raw rows numbers; the names of categories are part of it.
    spec : TrainingSpec
        What everybody knew before training.
    weights : mapping from agent to weight
        On whose rows it was trained; empty for a method without weights.
    stamp : RunStamp
        The run it comes from, and when that was.
    """

    agent: str
    method: str
    learner: Learner
    models: Models
    row: int
    preparation: Preparation
    spec: TrainingSpec
    weights: Mapping[str, float] = field(default_factory=dict)
    stamp: RunStamp = NO_RUN

    def predict(self, X: ArrayLike, interval: float | None = None) -> NDArray[Any] | pandas.DataFrame:
        """Predictions for raw rows: numbers, or labels.

        A table has its columns found by name; columns the model does not use may be there or not. An array must hold all
        columns of the training data, in their order there.

        Parameters
        ----------
        X : table or array
        interval : float, optional
            A confidence, such as 0.9: the answer is a table of predictions with the ends ``low`` and ``high`` between which
            an outcome lies with this probability. Of models of numbers that were found under a prior, as those of
            method "stacked" are.
        """
        rows = self._rows(X)
        found = self.models.predict(self.row, rows)
        return found if interval is None else self._with_interval(rows, found, interval)

    def _with_interval(self, rows: Any, found: NDArray[Any], level: float) -> pandas.DataFrame:
        models: Any = self.models
        covariance, noise = getattr(models, "covariance", None), getattr(models, "noise", None)
        if covariance is None or noise is None:
            raise InputError(
                f"the model of agent {self.agent} (method {self.method!r}, {self.learner!r}) knows no errors; a model of "
                "numbers by method='stacked' does"
            )
        if not 0 < level < 1:
            raise InputError(f"interval must be between 0 and 1, such as 0.9, got {level!r}")
        points = np.column_stack([np.asarray(rows, dtype=np.float64), np.ones(len(found))])
        deviation = np.sqrt(np.einsum("np,pq,nq->n", points, covariance[self.row], points) + noise[self.row])
        half = NormalDist().inv_cdf((1 + level) / 2) * deviation
        return pandas.DataFrame({"prediction": found, "low": found - half, "high": found + half})

    def predict_proba(self, X: ArrayLike) -> pandas.DataFrame:
        """Probabilities of the classes for raw rows, a column per class."""
        models: Any = self.models
        if self.spec.classes is None or not hasattr(models, "predict_proba"):
            raise InputError(f"the model of agent {self.agent} has no probabilities; use predict")
        found = models.predict_proba(self.row, self._rows(X))
        return pandas.DataFrame(found, columns=pandas.Index(models.classes, name="class"))

    @property
    def coefficients(self) -> pandas.DataFrame:
        """Slopes and intercept in the units of the raw columns: a row per column, and one for the intercept.

        There is one column, or one for each class (log odds of the second against the first where there are two). A
        category stands as ``column=category``. Models that were found under a prior, as those of method "stacked" are, have
        the standard errors of all in further columns.
        """
        models: Any = self.models
        linear = models.linear(self.row) if hasattr(models, "linear") else None
        if linear is None or linear.shape[1] != len(self.preparation.columns) + 1:
            raise InputError(
                f"the model of agent {self.agent} ({self.learner!r}) is not linear in the columns of the table"
            )
        slopes = linear[:, :-1] / np.asarray(self.preparation.scale)
        constant = linear[:, -1] - slopes @ np.asarray(self.preparation.mean)
        classes = None if self.spec.classes is None else self.spec.classes.tolist()
        if classes is None:
            titles = ["coefficient"] if len(slopes) == 1 else [f"output {place}" for place in range(len(slopes))]
        else:
            titles = [str(one) for one in (classes if len(slopes) == len(classes) else classes[1:])]
        found = pandas.DataFrame(
            np.column_stack([slopes, constant]).T,
            index=pandas.Index([*self.preparation.columns, "(intercept)"], name="column"),
            columns=titles,
        )
        if getattr(models, "covariance", None) is None:
            return found
        errors = self._standard_errors(models.covariance[self.row], len(linear))
        named = ["standard error"] if len(titles) == 1 else [f"standard error of {one}" for one in titles]
        return pandas.concat([found, pandas.DataFrame(errors.T, index=found.index, columns=named)], axis=1)

    def _standard_errors(self, covariance: NDArray[np.float64], outputs: int) -> NDArray[np.float64]:
        """Of slopes and intercept in raw units, of shape (outputs, d + 1)."""
        scale, mean = np.asarray(self.preparation.scale), np.asarray(self.preparation.mean)
        width = len(scale) + 1
        back = np.diag(np.append(1.0 / scale, 1.0))
        back[-1, :-1] = -mean / scale
        blocks = [covariance[k * width : (k + 1) * width, k * width : (k + 1) * width] for k in range(outputs)]
        return np.array([np.sqrt(np.maximum(np.diagonal(back @ one @ back.T), 0.0)) for one in blocks])

    def save(self, folder: str | Path, *, allow_rows: bool = False, overwrite: bool = False) -> Path:
        """Write the model into a folder of its own; `kinfed.load_model` reads it.

        Parameters
        ----------
        folder : path
        allow_rows : bool
            Write it even if it remembers rows it was trained on, as nearest neighbours do.
        overwrite : bool
            Replace a model that is there.
        """
        refuse_rows(self.learner, self.models, allow_rows)
        told = {
            "agent": self.agent,
            **self.stamp._asdict(),
            "method": self.method,
            "weights": dict(self.weights),
            "learner": learner_settings(self.learner),
            "task": self.spec.task,
            "classes": None if self.spec.classes is None else label_settings(self.spec.classes),
            "rows": int(self.spec.sizes.sum()),
            "preparation": preparation_settings(self.preparation),
        }
        arrays = METHODS[self.method].keep(self.learner, self.models, self.row)
        return write_record(folder, KIND, Kept(told, arrays), overwrite=overwrite)

    def _rows(self, X: ArrayLike) -> Any:
        rows = self.preparation.rows(self.agent, X).X
        found = self.preparation.unusual(self.agent, X)
        if found:
            warnings.warn(f"unlike anything in training: {'; '.join(found)}", UnusualRowsWarning, stacklevel=3)
        return rows

    def __repr__(self) -> str:
        return (
            f"PersonalModel(agent={self.agent!r}, method={self.method!r}, learner={self.learner!r}, run={self.stamp.run!r})"
        )

    def _repr_html_(self) -> str:
        heard = pandas.Series(dict(self.weights), name="weight", dtype=float).sort_values(ascending=False)
        return card(f"Model of {self.agent}", paragraph(repr(self.learner)), table(heard.to_frame(), "Trained on"))


def load_model(path: str | Path, *, learner: Learner | None = None, trusted: Sequence[str] = ()) -> PersonalModel:
    """Read a model that `PersonalModel.save`, ``kinfed personalize`` or a deployed site wrote.

    Parameters
    ----------
    path : path
        Its folder.
    learner : Learner, optional
        What was trained, where a file cannot say it: a network made by a function, or a learner of your own.
    trusted : sequence of str
        Types of scikit-learn's trees or of other packages that the file may make objects of.
    """
    kept = read_record(path, KIND)
    told = kept.settings
    try:
        preparation = read_preparation(told["preparation"])
        classes = None if told["classes"] is None else read_labels(told["classes"])
        names, sizes = (str(told["agent"]),), np.array([told["rows"]])
        spec = TrainingSpec(names, sizes, len(preparation.columns), classes, 0, told["task"])
        trained = read_learner(told["learner"], kept.arrays, learner, trusted)
        models = METHODS[told["method"]].restore(kept.arrays, trained, spec)
        return PersonalModel(
            agent=names[0],
            method=str(told["method"]),
            learner=trained,
            models=models,
            row=0,
            preparation=preparation,
            spec=spec,
            weights=dict(told["weights"]),
            stamp=RunStamp(str(told["run"]), str(told["made"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the model in {path} cannot be read ({error!r}); save it anew") from None


def keep_model(out: Path, site: SiteView, models: Models | None, method: str | None, delivery: Delivery) -> None:
    """Write a site's own model into ``out/model``, and what it was told into ``out/last-run.txt``.

    The last few models of earlier runs stay in ``out/earlier``. A site that gets no model keeps the one it had.

    Parameters
    ----------
    out : path
    site : SiteView
    models : Models, or None
        The agent's, as the only row.
    method : str, or None
    delivery : Delivery
    """
    if site.preparation is None:
        raise InputError(f"agent {site.agent.name} has no preparation to keep with its model")
    run, weights = delivery.run, delivery.weights
    stamp = RunStamp(run, datetime.now(UTC).isoformat(timespec="seconds"))
    current, earlier = out / "model", out / "earlier"
    try:
        private_folder(earlier)
        if models is not None and method is not None:
            made = PersonalModel(
                site.agent.name, method, site.learner, models, 0, site.preparation, site.spec, weights, stamp
            )
            known = load_model(current, learner=site.learner).stamp if (current / "model.json").exists() else None
            if known is not None and known.run != run:
                shutil.copytree(current, earlier / f"{known.made.replace(':', '')}-{known.run}", dirs_exist_ok=True)
                for old in sorted(earlier.iterdir())[:-KEPT_MODELS]:
                    shutil.rmtree(old)
            made.save(current, overwrite=True)
        text = "\n".join(told_at_home(site.agent.name, stamp, delivery)) + "\n"
        write_whole(out / LAST_RUN, lambda file: file.write(text.encode("utf-8", "replace")), OWNER_ONLY)
    except (OSError, InputError) as error:
        # What the server hears of it names no folder of the site.
        raise InputError(f"agent {site.agent.name} could not write its model ({type(error).__name__})") from error


def told_at_home(agent: str, stamp: RunStamp, delivery: Delivery) -> list[str]:
    """What a site reads of its last run: whether it got a model, whom that was to learn from, and from whom it did."""

    def shares(weights: Mapping[str, float]) -> str:
        ranked = sorted(weights.items(), key=lambda one: -one[1])
        return ", ".join(f"{name} {weight:.2%}" for name, weight in ranked) or "nobody"

    told = [f"Run {stamp.run}, {stamp.made}, agent {agent}"]
    if delivery.withheld:
        told += [
            f"No model was delivered: agent {agent} {delivery.withheld}, so its rows had no part in the training.",
            "The model of an earlier run, if there is one, is as it was.",
        ]
    else:
        told.append("A model was delivered; it is in the folder model.")
        if delivery.weights:
            told.append(f"It was trained on: {shares(delivery.weights)}.")
    if delivery.asked:
        told.append(f"Asked for, before agents were lost: {shares(delivery.asked)}.")
    return told


def refuse_rows(learner: Learner, models: Models, allow_rows: bool) -> None:
    """Raise if trained models hold rows of somebody and that was not allowed."""
    ask: Any = getattr(learner, "remembers_rows", None)
    inside = None if ask is None or allow_rows else ask(models)
    if inside is not None:
        raise InputError(f"the models hold {inside}; set allow_rows to write them all the same")
