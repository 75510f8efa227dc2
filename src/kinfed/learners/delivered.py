"""Which models are delivered: those that were trained on rows of their own agent, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.learners.base import Models

_BY_ROW = ("predict_proba", "score", "linear", "last_inputs", "module_for")
_OF_ALL = ("classes", "has_probabilities")


@dataclass(frozen=True, eq=False)
class DeliveredModels:
    """Models of agents of whom some have none; the row of an agent is its place, as ever.

    Attributes
    ----------
    models : Models
        Of those that have one, in their order.
    names : tuple of str
        Of all agents.
    withheld : mapping from place to str
        Agents without a model, and what happened to them.
    """

    models: Models
    names: tuple[str, ...]
    withheld: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.names)

    def row(self, place: int) -> int:
        """Where an agent's model is among those that were delivered; an `InputError` names an agent that has none."""
        if place in self.withheld:
            raise InputError(
                f"there is no model of agent {self.names[place]}: it {self.withheld[place]}, so its rows had no part in "
                "the training; train again when it is back"
            )
        return int(place) - sum(other < place for other in self.withheld)

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of the model of the agent at that place."""
        return self.models.predict(self.row(row), X)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ALL:
            return getattr(self.models, name)
        if name in _BY_ROW:
            method = getattr(self.models, name)
            return lambda row, *given: method(self.row(row), *given)
        raise AttributeError(name)


def withheld_of(models: Models) -> Mapping[int, str]:
    """Agents without a model, by place, and what happened to them."""
    return models.withheld if isinstance(models, DeliveredModels) else {}


def model_and_row(models: Models, place: int) -> tuple[Models, int]:
    """Models as their learner knows them, and which of them is that of an agent."""
    return (models.models, models.row(place)) if isinstance(models, DeliveredModels) else (models, place)
