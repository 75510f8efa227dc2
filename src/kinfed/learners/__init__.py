"""Learners: minimise a weighted risk for many targets at once."""

from kinfed.learners.base import ClassifierModels, Learner, Models, Progress, Task, UnsupervisedModels
from kinfed.learners.logistic import Logistic, LogisticModels
from kinfed.learners.registry import LEARNERS, make_learner
from kinfed.learners.regression_moments import RegressionMoments, regression_moments, squared_error, stack_moments
from kinfed.learners.ridge import Ridge, RidgeModels, ridge_coefficients
from kinfed.learners.scikit import ScikitClassifierModels, ScikitLearner, ScikitModels

__all__ = [
    "LEARNERS",
    "ClassifierModels",
    "Learner",
    "Logistic",
    "LogisticModels",
    "Models",
    "Progress",
    "RegressionMoments",
    "Ridge",
    "RidgeModels",
    "ScikitClassifierModels",
    "ScikitLearner",
    "ScikitModels",
    "Task",
    "UnsupervisedModels",
    "make_learner",
    "regression_moments",
    "ridge_coefficients",
    "squared_error",
    "stack_moments",
]
