"""The one list of weight rules; a new rule is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from kinfed.errors import InputError
from kinfed.validation import one_of
from kinfed.weights.calibration.calibrated import calibrated
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights
from kinfed.weights.rules.clusters import clusters
from kinfed.weights.rules.entropic import entropic
from kinfed.weights.rules.fixed import grand_mean, local, oracle
from kinfed.weights.rules.gradient import gradient, gradient_clusters
from kinfed.weights.rules.james_stein import james_stein
from kinfed.weights.rules.multi_task_averaging import multi_task_averaging
from kinfed.weights.rules.q_aggregation import q_aggregation_exact, q_aggregation_paper
from kinfed.weights.rules.similarity_test import similarity_test


@dataclass(frozen=True)
class Rule:
    """A weight rule: its function, what it needs beyond a geometry, and when to use it."""

    weigh: Callable[..., Weights]
    needs: frozenset[str]
    summary: str


RULES: dict[str, Rule] = {
    "local": Rule(local, frozenset(), "every agent alone"),
    "grand-mean": Rule(grand_mean, frozenset(), "one common model, agents weighted by their size"),
    "oracle": Rule(oracle, frozenset({"groups"}), "the true groups, where they are known"),
    "q-aggregation": Rule(q_aggregation_paper, frozenset(), "the paper's rule: Algorithm 3 stopped after T steps"),
    "q-aggregation-exact": Rule(q_aggregation_exact, frozenset(), "the certified minimum of the paper's objective"),
    "similarity-test": Rule(similarity_test, frozenset(), "average over agents that pass a test of equal means"),
    "clusters": Rule(clusters, frozenset(), "the grand mean within clusters of agents that look alike"),
    "james-stein": Rule(james_stein, frozenset(), "shrink every agent towards the mean of all"),
    "multi-task-averaging": Rule(multi_task_averaging, frozenset(), "one similarity for all pairs, from their distances"),
    "entropic": Rule(entropic, frozenset(), "Q-aggregation with a pull towards the grand mean"),
    "gradient": Rule(
        gradient, frozenset({"federation", "learner"}), "Q-aggregation of loss gradients, retrained a few times"
    ),
    "gradient-clusters": Rule(
        gradient_clusters,
        frozenset({"federation", "learner"}),
        "the grand mean within clusters of agents who listen to the same others by that rule",
    ),
    "calibrated": Rule(
        calibrated,
        frozenset({"federation", "learner", "embeddings"}),
        "the best of a family of these for the federation, judged by every agent on its own held-out points",
    ),
}


GEOMETRIC_RULES = tuple(name for name, rule in RULES.items() if rule.needs <= {"groups"})
"""Rules that need no more than a geometry, and groups: those that train nothing."""


def weigh(geometry: Geometry, rule: str = "q-aggregation", **options: Any) -> Weights:
    """Weights of every target of `geometry` by the rule of that name.

    Parameters
    ----------
    geometry : Geometry
        From `explicit_geometry`, `kernel_geometry`, `moment_geometry` or `sketch_geometry`.
    rule : str
        A key of `RULES`.
    **options
        The rule's own options, and what it needs, such as ``groups`` for "oracle".

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> rng = np.random.default_rng(0)
    >>> points = [rng.standard_normal((30, 5)) + 3 * (k % 2) for k in range(6)]
    >>> geometry = kinfed.explicit_geometry(points)
    >>> kinfed.weigh(geometry, "similarity-test").matrix.round(2)[0]
    array([0.33, 0.  , 0.33, 0.  , 0.33, 0.  ])
    """
    if not isinstance(geometry, Geometry):
        raise InputError(f"weigh needs a Geometry, such as explicit_geometry(points), got {type(geometry).__name__}")
    chosen = RULES[one_of(rule, RULES, "rule")]
    missing = sorted(chosen.needs - options.keys())
    if missing:
        raise InputError(f"rule {rule!r} needs {' and '.join(missing)}; pass {missing[0]}=...")
    try:
        signature(chosen.weigh).bind(geometry, **options)
    except TypeError as error:
        raise InputError(f"rule {rule!r} does not take these options: {error}") from None
    return chosen.weigh(geometry, **options)
