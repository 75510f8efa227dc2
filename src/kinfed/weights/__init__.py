"""Collaboration weights: geometry, objective, solvers and rules.

Reading order is the method's: `geometry` (what is known of the agents), `objective` (the problem), `exponential_gradient`
and `active_set` (its two solvers), `rules` (all ways to weights), `calibration` (which of them to take), `registry` (their
names), `result` (what comes out).
"""

from kinfed.weights.geometry import Geometry, explicit_geometry, kernel_geometry, sketch_geometry
from kinfed.weights.moment_geometry import SecondMoments, moment_geometry, second_moments
from kinfed.weights.registry import GEOMETRIC_RULES, RULES, Rule, weigh
from kinfed.weights.result import Weights
from kinfed.weights.rules.q_aggregation import q_aggregation

__all__ = [
    "GEOMETRIC_RULES",
    "RULES",
    "Geometry",
    "Rule",
    "SecondMoments",
    "Weights",
    "explicit_geometry",
    "kernel_geometry",
    "moment_geometry",
    "q_aggregation",
    "second_moments",
    "sketch_geometry",
    "weigh",
]
