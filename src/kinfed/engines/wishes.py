"""What is asked of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kinfed.collaboration import Comparison
from kinfed.engines.agreement import Agreement, learner_text
from kinfed.errors import InputError
from kinfed.learners import Learner
from kinfed.weights import RULES


@dataclass(frozen=True)
class Wishes:
    """What is asked of a federation.

    Attributes
    ----------
    rule : str
        A key of `kinfed.RULES`.
    options : mapping
        Options of the rule; group labels are given by agent name.
    comparison : Comparison
        How agents are compared; it holds the seed.
    standardise : bool
    baselines : bool
        Train learning alone and one common model beside the personal ones. Their models cross the wire too.
    """

    rule: str = "calibrated"
    options: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison = field(default_factory=Comparison)
    standardise: bool = True
    baselines: bool = True

    def settings(self, learner: Learner) -> dict[str, Any]:
        """All of it, as values that tell two runs apart."""
        return {
            "rule": self.rule,
            "options": repr(sorted((name, _plain(value)) for name, value in self.options.items())),
            "comparison": repr(self.comparison),
            "standardise": self.standardise,
            "baselines": self.baselines,
            "learner": learner_text(learner),
        }

    @property
    def shown_options(self) -> dict[str, Any]:
        """The rule's options without the labels of groups, of which there is one for every agent."""
        return {name: value for name, value in self.options.items() if name != "groups"}

    def rule_options(self, agreement: Agreement) -> dict[str, Any]:
        """The rule's options, with group labels in the agents' order."""
        options = dict(self.options)
        if "groups" not in RULES[self.rule].needs:
            return options
        groups = options.get("groups")
        if groups is None:
            raise InputError(f"rule {self.rule!r} needs groups; give a label for every agent")
        for name in agreement.names:
            if name not in groups:
                raise InputError(f"groups has no label for agent {name}; give one per agent")
        return {**options, "groups": [groups[name] for name in agreement.names]}


def _plain(value: Any) -> Any:
    """Arrays as lists: long ones print shortened, and could not be told apart."""
    return value.tolist() if isinstance(value, np.ndarray) else value
