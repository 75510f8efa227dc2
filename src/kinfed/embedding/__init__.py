"""From an agent's rows to the one vector it shares: the mean of its points in a kernel's space.

`kernels` are similarities of two points; `fourier` and `polynomial` hold explicit maps whose inner products are a kernel,
and `recipe` is the record from which every site rebuilds the same map; `choice` says which points an agent embeds with
which kernel, `sketch` is the mean that leaves a site, and `moments` measures how means spread and differ.
"""

from kinfed.embedding.choice import (
    CLASS_CONDITIONAL,
    SHIFTS,
    TARGET_BANDWIDTH,
    USUAL,
    X_ONLY,
    Embedding,
    LabelTarget,
    NumericTarget,
    OwnScale,
    Scale,
    View,
    alternative_views,
    choose_embedding,
    chosen_embeddings,
    common_scale,
    federated_median,
    own_scale,
    scaled_embedding,
)
from kinfed.embedding.fourier import SAMPLINGS, FourierFeatures
from kinfed.embedding.kernels import (
    Gaussian,
    Kernel,
    Laplace,
    Matern,
    Polynomial,
    check_kernel,
    largest_eigenvalue,
    median_bandwidth,
    operator_norm,
    squared_distances,
)
from kinfed.embedding.moments import effective_dimension, mmd2, pairwise_mmd2, trace_covariance
from kinfed.embedding.polynomial import PolynomialFeatures
from kinfed.embedding.recipe import FeatureMap, Recipe, features_from_recipe
from kinfed.embedding.sketch import FEW_ROWS, Sketch, check_sketch, check_stacked, common_recipe, load_sketch

__all__ = [
    "CLASS_CONDITIONAL",
    "FEW_ROWS",
    "SAMPLINGS",
    "SHIFTS",
    "TARGET_BANDWIDTH",
    "USUAL",
    "X_ONLY",
    "Embedding",
    "FeatureMap",
    "FourierFeatures",
    "Gaussian",
    "Kernel",
    "LabelTarget",
    "Laplace",
    "Matern",
    "NumericTarget",
    "OwnScale",
    "Polynomial",
    "PolynomialFeatures",
    "Recipe",
    "Scale",
    "Sketch",
    "View",
    "alternative_views",
    "check_kernel",
    "check_sketch",
    "check_stacked",
    "choose_embedding",
    "chosen_embeddings",
    "common_recipe",
    "common_scale",
    "effective_dimension",
    "features_from_recipe",
    "federated_median",
    "largest_eigenvalue",
    "load_sketch",
    "median_bandwidth",
    "mmd2",
    "operator_norm",
    "own_scale",
    "pairwise_mmd2",
    "scaled_embedding",
    "squared_distances",
    "trace_covariance",
]
