"""How good models are, agent by agent, and whether one method is better than another.

Agents are the unit: a comparison is paired over agents, and its interval comes from resampling agents.
"""

from kinfed.evaluation.comparison import PairedComparison, bootstrap_interval, paired_comparison
from kinfed.evaluation.scores import HIGHER_IS_BETTER, METRICS, Scores, score_models, worst_decile

__all__ = [
    "HIGHER_IS_BETTER",
    "METRICS",
    "PairedComparison",
    "Scores",
    "bootstrap_interval",
    "paired_comparison",
    "score_models",
    "worst_decile",
]
