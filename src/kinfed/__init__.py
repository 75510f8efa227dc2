"""kinfed finds each agent's kin in a federation.

Every agent keeps its data and shares one vector about it. From those vectors each agent learns whose data would help it
and how much, then trains its own model on the weighted risk.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from kinfed.analysis import (
    Diagnosis,
    ExcessRisk,
    HeldOutRisk,
    PairedComparison,
    PredictedGain,
    Scores,
    ShiftTest,
    TheoryTerms,
    paired_comparison,
    predict_gain_of_points,
    score_models,
    theory_terms,
)
from kinfed.data import (
    Preparation,
    SyntheticFederation,
    concept_shift,
    covariate_shift,
    feature_rotation,
    label_shift,
    no_structure,
    read_federation,
    read_femnist,
)
from kinfed.embedding import (
    Embedding,
    FourierFeatures,
    Gaussian,
    Kernel,
    Laplace,
    Matern,
    Polynomial,
    PolynomialFeatures,
    Recipe,
    Sketch,
    choose_embedding,
    effective_dimension,
    features_from_recipe,
    load_sketch,
    median_bandwidth,
    mmd2,
    operator_norm,
    pairwise_mmd2,
    trace_covariance,
)
from kinfed.embedding.sketch import sketch
from kinfed.errors import InputError, KinfedError, MissingExtraError, SketchError
from kinfed.federation import Agent, Federation
from kinfed.learners import LEARNERS, make_learner
from kinfed.methods import METHODS
from kinfed.model import PersonalModel, UnusualRowsWarning, load_model
from kinfed.onboarding import Newcomer
from kinfed.pretraining_analysis import (
    collaboration_weights,
    diagnose,
    expected_gain,
    known_excess_risk,
    predict_gain,
    weighting,
)
from kinfed.priors.expectation import ExpectedGain
from kinfed.result import Personalization, Weighting
from kinfed.result_files import load
from kinfed.run import personalize
from kinfed.weights import (
    RULES,
    Geometry,
    Rule,
    SecondMoments,
    Weights,
    explicit_geometry,
    moment_geometry,
    q_aggregation,
    second_moments,
    sketch_geometry,
    weigh,
)
from kinfed.weights.kernel_geometry import kernel_geometry

if _TYPE_CHECKING:
    from kinfed.estimators import PersonalizedClassifier, PersonalizedRegressor

__version__ = _version("kinfed")

__all__ = [
    "LEARNERS",
    "METHODS",
    "RULES",
    "Agent",
    "Diagnosis",
    "Embedding",
    "ExcessRisk",
    "ExpectedGain",
    "Federation",
    "FourierFeatures",
    "Gaussian",
    "Geometry",
    "HeldOutRisk",
    "InputError",
    "Kernel",
    "KinfedError",
    "Laplace",
    "Matern",
    "MissingExtraError",
    "Newcomer",
    "PairedComparison",
    "PersonalModel",
    "Personalization",
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "Polynomial",
    "PolynomialFeatures",
    "PredictedGain",
    "Preparation",
    "Recipe",
    "Rule",
    "Scores",
    "SecondMoments",
    "ShiftTest",
    "Sketch",
    "SketchError",
    "SyntheticFederation",
    "TheoryTerms",
    "UnusualRowsWarning",
    "Weighting",
    "Weights",
    "choose_embedding",
    "collaboration_weights",
    "concept_shift",
    "covariate_shift",
    "diagnose",
    "effective_dimension",
    "expected_gain",
    "explicit_geometry",
    "feature_rotation",
    "features_from_recipe",
    "kernel_geometry",
    "known_excess_risk",
    "label_shift",
    "load",
    "load_model",
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
    "weighting",
]


def __getattr__(name: str) -> _Any:
    """The scikit-learn front, imported when it is first used: scikit-learn takes a second to import."""
    if name in ("PersonalizedClassifier", "PersonalizedRegressor"):
        from kinfed import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'kinfed' has no attribute {name!r}")
