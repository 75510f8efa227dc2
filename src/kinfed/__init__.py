"""kinfed finds each agent's kin in a federation.

Every agent keeps its data and shares one vector about it. From those vectors each agent learns whose data would help it
and how much, then trains its own model on the weighted risk.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from kinfed.collaboration import Prospect, collaboration_weights, diagnose, predict_gain, prospect
from kinfed.data import (
    Generated,
    Preparation,
    concept_shift,
    covariate_shift,
    feature_rotation,
    label_shift,
    no_structure,
    read_federation,
    read_femnist,
)
from kinfed.diagnosis import Diagnosis, ShiftTest
from kinfed.embedding import Embedding, choose_embedding
from kinfed.errors import InputError, KinfedError, MissingExtraError, SketchError
from kinfed.evaluation import PairedComparison, Scores, paired_comparison, score_models
from kinfed.features import FourierFeatures, PolynomialFeatures, Recipe, features_from_recipe
from kinfed.federation import Agent, Federation
from kinfed.kernels import Gaussian, Kernel, Laplace, Matern, Polynomial, median_bandwidth
from kinfed.learners import LEARNERS, make_learner
from kinfed.moments import effective_dimension, mmd2, operator_norm, pairwise_mmd2, trace_covariance
from kinfed.personalization import Newcomer, Personalization
from kinfed.pipeline import personalize
from kinfed.sketch import Sketch, load_sketch, sketch
from kinfed.theory import PredictedGain, TheoryTerms, predict_gain_of_points, theory_terms
from kinfed.weights import (
    RULES,
    Geometry,
    Rule,
    SecondMoments,
    Weights,
    explicit_geometry,
    kernel_geometry,
    moment_geometry,
    q_aggregation,
    second_moments,
    sketch_geometry,
    weigh,
)

if _TYPE_CHECKING:
    from kinfed.estimators import PersonalizedClassifier, PersonalizedRegressor

__version__ = _version("kinfed")

__all__ = [
    "LEARNERS",
    "RULES",
    "Agent",
    "Diagnosis",
    "Embedding",
    "Federation",
    "FourierFeatures",
    "Gaussian",
    "Generated",
    "Geometry",
    "InputError",
    "Kernel",
    "KinfedError",
    "Laplace",
    "Matern",
    "MissingExtraError",
    "Newcomer",
    "PairedComparison",
    "Personalization",
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "Polynomial",
    "PolynomialFeatures",
    "PredictedGain",
    "Preparation",
    "Prospect",
    "Recipe",
    "Rule",
    "Scores",
    "SecondMoments",
    "ShiftTest",
    "Sketch",
    "SketchError",
    "TheoryTerms",
    "Weights",
    "choose_embedding",
    "collaboration_weights",
    "concept_shift",
    "covariate_shift",
    "diagnose",
    "effective_dimension",
    "explicit_geometry",
    "feature_rotation",
    "features_from_recipe",
    "kernel_geometry",
    "label_shift",
    "load_sketch",
    "make_learner",
    "median_bandwidth",
    "mmd2",
    "moment_geometry",
    "no_structure",
    "operator_norm",
    "paired_comparison",
    "pairwise_mmd2",
    "personalize",
    "predict_gain",
    "predict_gain_of_points",
    "prospect",
    "q_aggregation",
    "read_federation",
    "read_femnist",
    "score_models",
    "second_moments",
    "sketch",
    "sketch_geometry",
    "theory_terms",
    "trace_covariance",
    "weigh",
]


def __getattr__(name: str) -> _Any:
    """The scikit-learn front, imported when it is first used: scikit-learn takes a second to import."""
    if name in ("PersonalizedClassifier", "PersonalizedRegressor"):
        from kinfed import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'kinfed' has no attribute {name!r}")
