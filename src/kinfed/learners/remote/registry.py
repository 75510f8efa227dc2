"""The remote form of a learner, by its type."""

from __future__ import annotations

from importlib import import_module

from kinfed.errors import InputError
from kinfed.learners.base import Learner
from kinfed.learners.logistic import Logistic
from kinfed.learners.remote.base import RemoteLearner
from kinfed.learners.remote.logistic import RemoteLogistic
from kinfed.learners.remote.ridge import RemoteRidge
from kinfed.learners.ridge import Ridge


def remote_learner(learner: Learner) -> RemoteLearner:
    """Make the form of a learner that trains where the points never meet.

    Parameters
    ----------
    learner : Ridge, Logistic or TorchLearner
        Any other raises `InputError`.

    Examples
    --------
    >>> from kinfed.learners import Ridge
    >>> remote_learner(Ridge(penalty=0.1))
    RemoteRidge(learner=Ridge(penalty=0.1, intercept=True))
    """
    if isinstance(learner, Ridge):
        return RemoteRidge(learner)
    if isinstance(learner, Logistic):
        return RemoteLogistic(learner)
    if _is_torch(learner):
        remote: RemoteLearner = import_module("kinfed.learners.remote.neural").RemoteTorch(learner)
        return remote
    raise InputError(f"{type(learner).__name__} needs all points in one place; across sites use ridge, logistic or torch")


def _is_torch(learner: Learner) -> bool:
    """Whether it is a `TorchLearner`, told by name: who holds one has imported torch, others need not."""
    return any(
        one.__name__ == "TorchLearner" and one.__module__.startswith("kinfed.learners.neural")
        for one in type(learner).__mro__
    )
