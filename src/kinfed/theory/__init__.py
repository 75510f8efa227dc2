"""The paper's theory as software: the terms of its bounds, and the gain to expect before any training."""

from kinfed.theory.prediction import PredictedGain, predict_gain_of_points
from kinfed.theory.terms import TheoryTerms, theory_terms

__all__ = ["PredictedGain", "TheoryTerms", "predict_gain_of_points", "theory_terms"]
