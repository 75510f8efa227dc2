"""Neural networks for all targets at once: many sets of parameters trained as one tensor.

`training` is the one loop of epochs, or rounds. What an epoch does is a method: `weighted_risk` and `fedavg` where all rows
are here, `exchange` where every agent is a site. Only this room imports torch.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    from kinfed.errors import MissingExtraError

    if error.name != "torch":
        raise
    raise MissingExtraError("neural learners need PyTorch, which is not installed: pip install torch==2.13.0") from None

from kinfed.learners.neural.learner import TorchLearner
from kinfed.learners.neural.models import History, TorchModels

__all__ = ["History", "TorchLearner", "TorchModels"]
