"""kinfed finds each agent's kin in a federation.

Every agent keeps its data and shares one vector about it. From those vectors each agent learns whose data would help it
and how much, then trains its own model on the weighted risk.
"""

from importlib.metadata import version as _version

from kinfed.errors import InputError, KinfedError, MissingExtraError, SketchError
from kinfed.features import FourierFeatures, PolynomialFeatures, Recipe, features_from_recipe
from kinfed.kernels import Gaussian, Kernel, Laplace, Matern, Polynomial, median_bandwidth
from kinfed.moments import effective_dimension, mmd2, operator_norm, pairwise_mmd2, trace_covariance
from kinfed.sketch import Sketch, load_sketch, sketch
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

__version__ = _version("kinfed")

__all__ = [
    "RULES",
    "FourierFeatures",
    "Gaussian",
    "Geometry",
    "InputError",
    "Kernel",
    "KinfedError",
    "Laplace",
    "Matern",
    "MissingExtraError",
    "Polynomial",
    "PolynomialFeatures",
    "Recipe",
    "Rule",
    "SecondMoments",
    "Sketch",
    "SketchError",
    "Weights",
    "effective_dimension",
    "explicit_geometry",
    "features_from_recipe",
    "kernel_geometry",
    "load_sketch",
    "median_bandwidth",
    "mmd2",
    "moment_geometry",
    "operator_norm",
    "pairwise_mmd2",
    "q_aggregation",
    "second_moments",
    "sketch",
    "sketch_geometry",
    "trace_covariance",
    "weigh",
]
