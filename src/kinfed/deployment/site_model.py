"""The model a site keeps when a federation has trained it: three small files, and a way to use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.spec import FederationSpec, learner_text
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.learners import Learner, Models, make_learner
from kinfed.methods import METHODS


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
        return self.models.predict(0, self.preparation.rows(self.name, X).X)


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
        agreement = FederationSpec.from_text((source / "agreement.json").read_text())
        told = json.loads((source / "weights.json").read_text())
        with np.load(source / "model.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"there is no model of a site in {source} ({error})") from None
    trained = make_learner(learner)
    if learner_text(trained) != agreement.learner:
        raise InputError(f"the model in {source} was trained by {agreement.learner}, not by {trained!r}; pass that learner")
    models = METHODS[told["method"]].restore(arrays, trained, agreement.training())
    return SiteModel(str(told["agent"]), dict(told["weights"]), models, agreement.preparation)
