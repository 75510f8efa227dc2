"""What all agents agree on before anything is compared: the recipe of this federation, as a text any site can check.

It holds who takes part, how raw tables become numbers, how agents are compared and what is trained. Its digest stands in
every later message, so an agent that follows another recipe is found out at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Fold, Task, TrainingSpec
from kinfed.backends.wire import encode_settings
from kinfed.data import Preparation, Standardisation
from kinfed.data.column_encoders import CategoryRule, NumericRule
from kinfed.data.column_types import ColumnReading
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.embedding import Embedding, LabelTarget, NumericTarget, Recipe, View, features_from_recipe
from kinfed.errors import InputError, KinfedError
from kinfed.splitting import FOLDS, fold_counts

PROTOCOL = 5
"""Version of the messages; raised whenever an older agent could not answer."""


@dataclass(frozen=True, eq=False)
class FederationSpec:
    """The recipe of a federation.

    Attributes
    ----------
    names : tuple of str
        The B agents, in order.
    sizes : array of int of shape (B,)
        Their numbers of training rows.
    least : tuple of int
        Rows each of them sets aside at least in a fold, or none.
    preparation : Preparation
    embeddings : tuple of Embedding
        Ways to compare the agents, the usual one first.
    task : {"regression", "classification", "unsupervised"}
    learner : str
        What is trained, as it prints.
    classes : array, or None
        The sorted labels of the federation, for a classifier.
    seed : int
    class_weights : tuple of float, or None
        What a row of each class counts in training, where that differs.
    aside : tuple of tuple of int or None
        Rows each of them sets aside in each of `FOLDS` folds, where it deals whole groups: its size does not tell then.
    run : str
        Tells apart runs of one recipe, of which a site keeps different things.
    screening : Screening
        What was found when agents were looked at beside each other.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    least: tuple[int, ...]
    preparation: Preparation
    embeddings: tuple[Embedding, ...]
    task: Task
    learner: str
    classes: NDArray[Any] | None
    seed: int
    class_weights: tuple[float, ...] | None = None
    aside: tuple[tuple[int, ...] | None, ...] = ()
    run: str = ""
    screening: Screening = NO_SCREENING

    def training(self, fold: Fold | None = None, classes: Sequence[int] | None = None) -> TrainingSpec:
        """What training has to know: in a fold everybody sets aside as many rows as its name and size tell.

        Parameters
        ----------
        fold : Fold, optional
        classes : sequence of int, optional
            Places of the classes that are left in it; all by default.
        """
        sizes = self.sizes
        if fold is not None:
            sizes = sizes - _counts_aside(self.names, tuple(sizes.tolist()), self.least, self.seed, fold, self.aside)
        weights = None if self.class_weights is None else np.array(self.class_weights)
        known = self.classes, self.seed, self.task, self.embeddings, weights
        spec = TrainingSpec(self.names, sizes, len(self.preparation.columns), *known, self.screening)
        return spec if classes is None else spec.of_classes(classes)

    def to_text(self) -> str:
        """The recipe as a line of JSON; equal recipes give equal texts."""
        content = {
            "protocol": PROTOCOL,
            "names": list(self.names),
            "sizes": self.sizes.tolist(),
            "least": list(self.least),
            "preparation": preparation_settings(self.preparation),
            "embeddings": [_embedding_settings(one) for one in self.embeddings],
            "task": self.task,
            "learner": self.learner,
            "classes": None if self.classes is None else label_settings(self.classes),
            "seed": self.seed,
            "class weights": self.class_weights,
            "aside": self.aside,
            "run": self.run,
            "screening": self.screening.to_settings(),
        }
        return encode_settings(content).decode()

    @classmethod
    def from_text(cls, text: str) -> FederationSpec:
        """Read what `to_text` wrote; anything else is an `InputError`."""
        try:
            content = json.loads(text)
            if content["protocol"] != PROTOCOL:
                raise ValueError(f"it has version {content['protocol']}, this kinfed speaks version {PROTOCOL}")
            classes = content["classes"]
            return cls(
                names=tuple(content["names"]),
                sizes=np.array(content["sizes"], dtype=np.int64),
                least=tuple(int(one) for one in content["least"]),
                preparation=read_preparation(content["preparation"]),
                embeddings=tuple(_read_embedding(one) for one in content["embeddings"]),
                task=content["task"],
                learner=str(content["learner"]),
                classes=None if classes is None else read_labels(classes),
                seed=int(content["seed"]),
                class_weights=None if content["class weights"] is None else tuple(content["class weights"]),
                aside=tuple(None if one is None else tuple(one) for one in content["aside"]),
                run=str(content["run"]),
                screening=Screening.from_settings(content["screening"]),
            )
        except (ValueError, KeyError, TypeError, KinfedError) as error:
            raise InputError(f"the agreement cannot be read ({error}); use the same kinfed at every site") from None


@lru_cache(maxsize=64)
def _counts_aside(
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    least: tuple[int, ...],
    seed: int,
    fold: Fold,
    told: tuple[tuple[int, ...] | None, ...],
) -> NDArray[np.int64]:
    """How many rows everybody sets aside in a fold: worked out once by all sites of a process."""
    grouped = any(one is not None for one in told)
    if grouped and (fold.repeat, fold.folds) != (0, FOLDS):
        raise InputError(f"agents that deal groups of rows tell the sizes of {FOLDS} folds, dealt once; ask for no others")
    counts = [
        fold_counts(name, n, fold.folds, seed, fold.repeat, part)[fold.fold] if own is None else own[fold.fold]
        for name, n, part, own in zip(names, sizes, least, told or (None,) * len(names), strict=True)
    ]
    return np.array(counts, dtype=np.int64)


def learner_text(learner: Any) -> str:
    """What is trained, as it prints; a function in it is known by its name, not by where it lies in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(learner))


def digest_of(text: str) -> str:
    """A short name for an agreement: different texts have different ones."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def preparation_settings(preparation: Preparation) -> dict[str, Any]:
    """A preparation as values that fit into JSON."""
    content = asdict(preparation)
    content["rules"] = [
        {"kind": "category" if isinstance(rule, CategoryRule) else "numeric", **asdict(rule)} for rule in preparation.rules
    ]
    return content


def read_preparation(content: Mapping[str, Any]) -> Preparation:
    """The preparation that `preparation_settings` wrote down."""
    kinds = {"category": CategoryRule, "numeric": NumericRule}
    rules = tuple(
        kinds[rule["kind"]](**{name: value for name, value in rule.items() if name != "kind"}) for rule in content["rules"]
    )
    lists = {name: tuple(content[name]) for name in ("source", "columns", "mean", "scale")}
    readings = tuple(ColumnReading(**one) for one in content["readings"])
    standardise, left_out = bool(content["standardise"]), dict(content["left_out"])
    told = content["outcome"]
    return Preparation(
        rules=rules,
        left_out=left_out,
        standardise=standardise,
        readings=readings,
        outcome=None if told is None else NumericRule(**told),
        robust=bool(content["robust"]),
        **lists,
    )


def label_settings(labels: NDArray[Any]) -> dict[str, Any]:
    """Class labels, and their type, as values that fit into JSON."""
    return {"type": "text" if labels.dtype.kind == "U" else labels.dtype.str, "labels": labels.tolist()}


def read_labels(content: Mapping[str, Any]) -> NDArray[Any]:
    """The classes that `label_settings` wrote down, in the type they had."""
    given = list(content["labels"])
    if content["type"] == "text":
        if not all(isinstance(label, str) for label in given):
            raise ValueError("a label is not text")
        return np.array(given, dtype=np.str_)
    kind = np.dtype(content["type"])
    if kind.kind not in "fiub" or not all(isinstance(label, bool | int | float) for label in given):
        raise ValueError("a label is neither text nor a number")
    return np.array(given, dtype=kind)


def _embedding_settings(embedding: Embedding) -> dict[str, Any]:
    target: dict[str, Any] | None = None
    if isinstance(embedding.target, NumericTarget):
        target = {"mean": embedding.target.rule.mean.tolist(), "scale": embedding.target.rule.scale.tolist()}
    elif isinstance(embedding.target, LabelTarget):
        target = label_settings(embedding.target.classes)
    return {
        "features": embedding.features.recipe.to_json(),
        "target": target,
        "reasons": list(embedding.reasons),
        "view": None if embedding.view is None else asdict(embedding.view),
    }


def _read_embedding(content: Mapping[str, Any]) -> Embedding:
    target: NumericTarget | LabelTarget | None = None
    if content["target"] is not None and "labels" in content["target"]:
        target = LabelTarget(read_labels(content["target"]))
    elif content["target"] is not None:
        rule = Standardisation(np.array(content["target"]["mean"]), np.array(content["target"]["scale"]))
        target = NumericTarget(rule)
    return Embedding(
        features=features_from_recipe(Recipe.from_json(content["features"])),
        target=target,
        reasons=tuple(content["reasons"]),
        view=None if content["view"] is None else View(**content["view"]),
    )
