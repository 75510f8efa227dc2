"""The paper's experiments: independent parts, verdicts on its claims, figures."""

from kinfed.experiments.registry import EXPERIMENTS
from kinfed.experiments.runner import run_experiment

__all__ = ["EXPERIMENTS", "run_experiment"]
