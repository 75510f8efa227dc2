"""Learners: minimise a weighted risk for many targets at once.

`kinfed.learners.scikit` and `kinfed.learners.neural` are imported when they are first used: so are scikit-learn and torch.
"""

from kinfed.learners.base import ClassifierModels, Extent, Learner, Models, Task, UnsupervisedModels
from kinfed.learners.logistic import Logistic, LogisticModels
from kinfed.learners.registry import LEARNERS, make_learner
from kinfed.learners.regression_moments import RegressionMoments, regression_moments, squared_error, stack_moments
from kinfed.learners.ridge import Ridge, RidgeModels, ridge_coefficients

__all__ = [
    "LEARNERS",
    "ClassifierModels",
    "Extent",
    "Learner",
    "Logistic",
    "LogisticModels",
    "Models",
    "RegressionMoments",
    "Ridge",
    "RidgeModels",
    "Task",
    "UnsupervisedModels",
    "make_learner",
    "regression_moments",
    "ridge_coefficients",
    "squared_error",
    "stack_moments",
]
