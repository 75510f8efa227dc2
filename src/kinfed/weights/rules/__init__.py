"""Weight rules, one file each; `registry` names them all."""

from kinfed.weights.rules.q_aggregation import q_aggregation
from kinfed.weights.rules.registry import RULES, Rule, weigh

__all__ = ["RULES", "Rule", "q_aggregation", "weigh"]
