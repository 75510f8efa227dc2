"""Learners: minimise a weighted risk for many targets at once.

`kinfed.learners.scikit` and `kinfed.learners.neural` are imported when they are first used: so are scikit-learn and torch.
"""

from typing import Any as _Any

from kinfed.learners.base import (
    LEARNERS,
    Extent,
    Learner,
    Models,
    make_learner,
)
from kinfed.learners.logistic import Logistic, LogisticModels
from kinfed.learners.regression_moments import RegressionMoments, squared_error, stack_moments
from kinfed.learners.ridge import Ridge, RidgeModels, ridge_coefficients

__all__ = [
    "LEARNERS",
    "Extent",
    "Learner",
    "Logistic",
    "LogisticModels",
    "Models",
    "RegressionMoments",
    "Ridge",
    "RidgeModels",
    "make_learner",
    "ridge_coefficients",
    "squared_error",
    "stack_moments",
]


def _torch(**options: _Any) -> Learner:
    """Networks; torch is imported only now."""
    from kinfed.learners.neural import TorchLearner  # says what to install where there is no torch
    from kinfed.validation import check_options

    check_options("torch", TorchLearner, options)
    return TorchLearner(**options)


LEARNERS |= {"ridge": Ridge, "logistic": Logistic, "torch": _torch}
