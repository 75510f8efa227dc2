"""Collaboration weights: geometry, objective, solvers and rules.

Reading order is the method's: `geometry` and `kernel_geometry` (what is known of the agents), `objective` (the
problem), `mirror_descent` and `active_set` (its solvers), `rules` (all ways to weights), `gradient_problem` and
`gradient_rows` (agents compared by loss gradients), `result` (what comes out), `weighing` (their names, and how every
target solves its own row), `calibration` (which of them to take).
"""

from kinfed.weights.calibration.calibrated import calibrated
from kinfed.weights.geometry import Geometry, explicit_geometry, sketch_geometry
from kinfed.weights.kernel_geometry import SecondMoments, moment_geometry, second_moments
from kinfed.weights.result import Weights
from kinfed.weights.rules.closed_form import (
    clusters,
    grand_mean,
    james_stein,
    local,
    multi_task_averaging,
    oracle,
    similarity_test,
)
from kinfed.weights.rules.gradient import gradient, gradient_clusters
from kinfed.weights.rules.q_aggregation import entropic, q_aggregation, q_aggregation_exact, q_aggregation_paper
from kinfed.weights.weighing import RULES, Rule, geometric_rules, weigh

__all__ = [
    "RULES",
    "Geometry",
    "Rule",
    "SecondMoments",
    "Weights",
    "explicit_geometry",
    "geometric_rules",
    "moment_geometry",
    "q_aggregation",
    "second_moments",
    "sketch_geometry",
    "weigh",
]

_NOTHING: frozenset[str] = frozenset()
_LEARNER = frozenset({"learner"})

RULES |= {
    "local": Rule(local, _NOTHING, "every agent alone"),
    "grand-mean": Rule(grand_mean, _NOTHING, "one common model, agents weighted by their size"),
    "oracle": Rule(oracle, frozenset({"groups"}), "the true groups, where they are known"),
    "q-aggregation": Rule(q_aggregation_paper, _NOTHING, "the paper's rule: Algorithm 3 stopped after T steps"),
    "q-aggregation-exact": Rule(q_aggregation_exact, _NOTHING, "the certified minimum of the paper's objective"),
    "similarity-test": Rule(similarity_test, _NOTHING, "average over agents that pass a test of equal means"),
    "clusters": Rule(clusters, _NOTHING, "the grand mean within clusters of agents that look alike"),
    "james-stein": Rule(james_stein, _NOTHING, "shrink every agent towards the mean of all"),
    "multi-task-averaging": Rule(multi_task_averaging, _NOTHING, "one similarity for all pairs, from their distances"),
    "entropic": Rule(entropic, _NOTHING, "Q-aggregation with a pull towards the grand mean"),
    "gradient": Rule(gradient, _LEARNER, "Q-aggregation of loss gradients, retrained a few times"),
    "gradient-clusters": Rule(
        gradient_clusters, _LEARNER, "the grand mean within clusters of agents who listen to the same others by that rule"
    ),
    "calibrated": Rule(
        calibrated,
        _LEARNER | {"embeddings"},
        "the best of a family of these for the federation, judged by every agent on its own held-out points",
    ),
}
