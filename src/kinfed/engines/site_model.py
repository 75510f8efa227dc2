"""The model a site keeps when a federation has trained it: three small files, and a way to use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import Preparation
from kinfed.engines.agreement import Agreement, learner_text
from kinfed.engines.messages import Arrays
from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.learners import Learner, Models, make_learner
from kinfed.learners.remote import remote_learner
from kinfed.personalization import prepared_rows


@dataclass(frozen=True, eq=False)
class SiteModel:
    """One agent's personal model, ready for raw rows.

    Attributes
    ----------
    name : str
        The agent.
    weights : mapping from agent to weight
        Whom it was trained on.
    models : Models
        The model, as the only row.
    preparation : Preparation
    """

    name: str
    weights: Mapping[str, float]
    models: Models
    preparation: Preparation

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predictions for raw rows of the agent's columns."""
        return self.models.predict(0, prepared_rows(self.preparation, self.name, X, None).X)


def write_site_model(folder: Path, name: str, agreement: str, arrays: Arrays, weights: Mapping[str, float]) -> None:
    """Write a model into a folder; files of an earlier run are replaced once the new ones are whole."""
    named: dict[str, Any] = dict(arrays)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "model.npz", lambda file: np.savez(file, **named))
        write_whole(folder / "agreement.json", lambda file: file.write(agreement.encode()))
        content = json.dumps({"agent": name, "weights": dict(weights)}, indent=1).encode()
        write_whole(folder / "weights.json", lambda file: file.write(content))
    except OSError as error:
        raise InputError(f"the model of agent {name} cannot be written to {folder}: {error.strerror or error}") from None


def load_site_model(folder: str | Path, learner: str | Learner = "ridge") -> SiteModel:
    """Read the model a site keeps.

    Parameters
    ----------
    folder : path
        Where the site was told to keep it.
    learner : str or Learner
        What the federation trained.
    """
    source = Path(folder)
    try:
        agreement = Agreement.from_text((source / "agreement.json").read_text())
        told = json.loads((source / "weights.json").read_text())
        with np.load(source / "model.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"there is no model of a site in {source} ({error})") from None
    trained = make_learner(learner)
    if learner_text(trained) != agreement.learner:
        raise InputError(f"the model in {source} was trained by {agreement.learner}, not by {trained!r}; pass that learner")
    models = remote_learner(trained).unpack(arrays, agreement.terms)
    return SiteModel(str(told["agent"]), dict(told["weights"]), models, agreement.preparation)
