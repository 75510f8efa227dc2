"""Neural networks for all targets at once: many sets of parameters trained as one tensor.

Only this room and the neural modules of `kinfed.learners.remote` import torch.
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
