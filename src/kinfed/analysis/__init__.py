"""What the numbers say: whether collaboration should help, which kind of difference there is, how good models are.

`bounds` and `predicted_gain` are the paper's theory as software: the terms of its bounds, and the gain to expect before any
training; `excess_risk` and `held_out_risk` take it on to the loss of a model. `shifts` asks whether agents differ in
their inputs, their answers, or the answers to equal inputs (see docs/diagnosis.md); `diagnosis` records what was found.
`metrics`, `scores` and `comparison` measure models agent by agent: agents are the unit, a comparison is paired over them,
and its interval comes from resampling them (`bootstrap`). `kinship` arranges agents for the eye.
"""

from kinfed.analysis.agent_scores import OwnScores, federation_scores, mean_scores, own_scores
from kinfed.analysis.bootstrap import bootstrap_interval
from kinfed.analysis.bounds import TheoryTerms, theory_terms
from kinfed.analysis.comparison import (
    PairedComparison,
    compare_scores,
    comparisons,
    paired_comparison,
)
from kinfed.analysis.diagnosis import Diagnosis, ShiftTest
from kinfed.analysis.excess_risk import (
    ExcessRisk,
    augmented_moments,
    compared_excess_risks,
    excess_risk_of,
    excess_risk_table,
)
from kinfed.analysis.held_out_risk import HeldOutRisk
from kinfed.analysis.metrics import METRICS, headline_metrics, metrics_of
from kinfed.analysis.predicted_gain import PredictedGain, gain_of, predict_gain_of_points
from kinfed.analysis.scores import (
    FLOOR,
    LEAST_TEST_ROWS,
    Scores,
    long_table,
    score_models,
    worst_decile,
)
from kinfed.analysis.shifts import diagnosis_of, shift_tests

__all__ = [
    "FLOOR",
    "LEAST_TEST_ROWS",
    "METRICS",
    "Diagnosis",
    "ExcessRisk",
    "HeldOutRisk",
    "OwnScores",
    "PairedComparison",
    "PredictedGain",
    "Scores",
    "ShiftTest",
    "TheoryTerms",
    "augmented_moments",
    "bootstrap_interval",
    "compare_scores",
    "compared_excess_risks",
    "comparisons",
    "diagnosis_of",
    "excess_risk_of",
    "excess_risk_table",
    "federation_scores",
    "gain_of",
    "headline_metrics",
    "long_table",
    "mean_scores",
    "metrics_of",
    "own_scores",
    "paired_comparison",
    "predict_gain_of_points",
    "score_models",
    "shift_tests",
    "theory_terms",
    "worst_decile",
]
