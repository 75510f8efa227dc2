"""Learners where the points never meet: the server holds the models, agents answer questions about them."""

from kinfed.learners.remote.base import (
    Arrays,
    Ask,
    Form,
    Memory,
    Monitor,
    Question,
    RemoteLearner,
    Terms,
)
from kinfed.learners.remote.registry import remote_learner

__all__ = [
    "Arrays",
    "Ask",
    "Form",
    "Memory",
    "Monitor",
    "Question",
    "RemoteLearner",
    "Terms",
    "remote_learner",
]
