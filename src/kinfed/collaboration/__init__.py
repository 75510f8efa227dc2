"""Whose data would help each agent, how agents differ, and what joining is worth, all before any training."""

from kinfed.collaboration.foresight import diagnose, predict_gain
from kinfed.collaboration.prospects import Prospect, choices_of, collaboration_weights, grouped, prospect
from kinfed.collaboration.weighing import Comparison, check_target, learner_for, rule_options, weigh_federation

__all__ = [
    "Comparison",
    "Prospect",
    "check_target",
    "choices_of",
    "collaboration_weights",
    "diagnose",
    "grouped",
    "learner_for",
    "predict_gain",
    "prospect",
    "rule_options",
    "weigh_federation",
]
