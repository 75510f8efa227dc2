"""Explicit feature maps: every agent redraws the same map from one seed.

`cosine` evaluates cosines fast and alike everywhere, `draws` turns a seed into spectral samples, `fourier` and
`polynomial` hold the two maps, and `recipe` is the record that lets another site rebuild a map exactly.
"""

from kinfed.features.fourier import SAMPLINGS, FourierFeatures
from kinfed.features.polynomial import PolynomialFeatures
from kinfed.features.recipe import RECIPE_VERSION, FeatureMap, Recipe, features_from_recipe

__all__ = [
    "RECIPE_VERSION",
    "SAMPLINGS",
    "FeatureMap",
    "FourierFeatures",
    "PolynomialFeatures",
    "Recipe",
    "features_from_recipe",
]
