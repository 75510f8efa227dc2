"""Learners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinfed.errors import InputError, MissingExtraError
from kinfed.learners.base import Learner
from kinfed.learners.logistic import Logistic
from kinfed.learners.ridge import Ridge

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


def torch_learner(**options: Any) -> Learner:
    """Make a `kinfed.learners.neural.TorchLearner`; torch is imported only now."""
    if find_spec("torch") is None:
        raise MissingExtraError("learner 'torch' needs PyTorch, which is not installed: pip install torch==2.13.0")
    constructor = import_module("kinfed.learners.neural").TorchLearner
    _check_options("torch", constructor, options)
    return constructor(**options)


LEARNERS: Mapping[str, Callable[..., Learner]] = MappingProxyType(
    {"ridge": Ridge, "logistic": Logistic, "torch": torch_learner}
)
"""Constructors of the learners that have a name. Their keyword arguments are the options of `make_learner`."""


def make_learner(learner: str | Learner | BaseEstimator, **options: Any) -> Learner:
    """Make a learner of a name, of a scikit-learn estimator, or return the learner that is given.

    Parameters
    ----------
    learner : {"ridge", "logistic", "torch"}, Learner, or scikit-learn estimator
        An estimator becomes a `ScikitLearner`.
    **options
        Options of the constructor.

    Examples
    --------
    >>> make_learner("ridge", penalty=0.1)
    Ridge(penalty=0.1, intercept=True)
    """
    if isinstance(learner, str):
        if learner not in LEARNERS:
            raise InputError(
                f"learner {learner!r} is not known; choose one of {', '.join(LEARNERS)}, or give a scikit-learn estimator"
            )
        _check_options(learner, LEARNERS[learner], options)
        return LEARNERS[learner](**options)
    if isinstance(learner, type):
        raise InputError(f"{learner.__name__} is a class; give an instance, {learner.__name__}(...)")
    if hasattr(learner, "fit") and hasattr(learner, "task"):
        if options:
            raise InputError(f"{learner!r} is made already and takes no options, got {', '.join(options)}")
        return learner
    if hasattr(learner, "fit") and hasattr(learner, "get_params"):
        from kinfed.learners.scikit import ScikitLearner  # with scikit-learn, which takes a second to import

        _check_options("scikit", ScikitLearner, options)
        return ScikitLearner(learner, **options)
    raise InputError(
        f"{learner!r} is not a learner; choose one of {', '.join(LEARNERS)}, or give a learner or a scikit-learn estimator"
    )


def _check_options(name: str, constructor: Callable[..., Learner], options: Mapping[str, Any]) -> None:
    parameters = signature(constructor).parameters
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            raise InputError(f"learner {name!r} has no option {option!r}; it has {', '.join(parameters)}")
