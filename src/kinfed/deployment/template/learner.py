"""What is trained, the same at every site and on the server. This file is yours to change."""

from typing import Any

from kinfed.deployment.options import usual_learner


def make_learner(name: str, task: str) -> Any:
    """Make the learner of a run.

    Parameters
    ----------
    name : str
        ``learner`` in the run's configuration.
    task : str
        "regression", "classification" or "unsupervised".

    Returns
    -------
    Learner
        To train something of your own, return it here, such as ``kinfed.make_learner("ridge", penalty=0.1)``.
    """
    return usual_learner(name, task)
