"""Methods: whole ways to personal models, written once against `Agents`; and how their models are tested."""

from kinfed.methods.base import Method, MethodContext
from kinfed.methods.evaluation import Evaluation, delivered
from kinfed.methods.registry import BASELINES, METHODS, REFERENCES
from kinfed.methods.weighted import GrandMean, Local, Weighted

__all__ = [
    "BASELINES",
    "METHODS",
    "REFERENCES",
    "Evaluation",
    "GrandMean",
    "Local",
    "Method",
    "MethodContext",
    "Weighted",
    "delivered",
]
