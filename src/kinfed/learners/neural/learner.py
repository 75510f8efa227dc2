r"""The learner: any torch module, trained for every row of a weight matrix at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.learners.inputs import simplex_rows
from kinfed.learners.neural.blocks import Size
from kinfed.learners.neural.checkpoint import CheckpointFolder, digest
from kinfed.learners.neural.fedavg import FederatedAveraging
from kinfed.learners.neural.lanes import distinct_lanes, start_parameters
from kinfed.learners.neural.methods import Method, Problem
from kinfed.learners.neural.models import TorchModels
from kinfed.learners.neural.modules import ModuleFactory, activations_per_row
from kinfed.learners.neural.optimisers import OPTIMISERS
from kinfed.learners.neural.pool import pool_federation
from kinfed.learners.neural.sampling import Stream, generator
from kinfed.learners.neural.setting import TYPES, make_optimiser, stacked_module, torch_threads
from kinfed.learners.neural.stacked import RowLoss, check_loss
from kinfed.learners.neural.training import Training
from kinfed.learners.neural.weighted_risk import FullBatch, MiniBatch
from kinfed.validation import nonnegative, one_of, positive, positive_integer

if TYPE_CHECKING:
    from kinfed.federation import Federation
    from kinfed.progress import Progress

Monitor = Callable[[int, TorchModels], None]
"""Called as ``monitor(epochs_done, models)`` during training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchLearner:
    r"""Neural networks that minimise :math:`\sum_k w_{tk} \hat R_k(\theta_t)` for all rows t of the weights together.

    The parameters of all rows form one tensor and every step moves all of them. Rows of equal weights are one problem and
    get one model. All rows start from the same parameters, drawn from the seed, unless `warm_start` says otherwise.

    Parameters
    ----------
    module : callable, optional
        Makes the network: a function without arguments that returns an ``nn.Module``, which turns rows (n, d) into scores
        (n, classes), or into (n, 1) or (n,) for a regression. Layers that keep running statistics (BatchNorm) are refused;
        parameters with ``requires_grad=False`` stay as they are. Default: a perceptron of `hidden`.
    hidden : tuple of int
        Widths of the default perceptron's hidden layers, each followed by a ReLU; ``()`` is a linear model.
    task : {"classification", "regression"}
    loss : callable, optional
        ``loss(outputs, y)`` with outputs (m, classes), or (m,) for a regression, and y (m,) gives the m losses of single
        rows; y holds places in the sorted classes. Default: cross-entropy, or the squared error.
    optimiser : {"adam", "sgd"}
    learning_rate, weight_decay : float
        As in ``torch.optim``; `weight_decay` adds :math:`\lambda |\theta|^2 / 2` to the risk.
    epochs : int
        Epochs of ``method="weighted-risk"``.
    batch_size : int, optional
        Rows per step and target. None takes all: an epoch is then one step on the whole weighted risk. Otherwise each
        target draws its rows from its own mixture: agent k with probability :math:`w_{tk}`, then one of its rows.
    steps_per_epoch : int, optional
        Steps of a mini-batch epoch. The default, :math:`\lceil \bar n / \mathrm{batch} \rceil` with :math:`\bar n` the mean
        number of rows of an agent, is the same for every target and for all weights, so that local, grand-mean and
        personal weights are given the same budget, and B targets together draw as many rows as the federation has.
    patience : int, optional
        Early stopping: hold out `validation_share` of the target's own rows, stop a target after this many epochs (rounds)
        without a smaller loss on them, and return its best parameters, the start included.
    validation_share : float
        Share of its rows that a target holds out for `patience`.
    warm_start : mapping or TorchModels, optional
        Parameters to start from: arrays by name as in `TorchModels.parameters`, stacked with one row or one per row of the
        weights; or models with as many rows.
    method : {"weighted-risk", "fedavg"}
        "fedavg": in each of `rounds` rounds every agent trains each target's model it has a weight for, for `local_epochs`
        epochs on its own rows with a fresh optimiser, and the targets average:
        :math:`\theta_t \leftarrow \theta_t + \sum_k w_{tk} (\theta_{tk} - \theta_t)`.
    rounds, local_epochs : int
        Of "fedavg". A local epoch passes once over the agent's shuffled rows.
    dtype : {"float32", "float64"}
    threads : int
        Threads torch may use during `fit`. One is best for networks this small, and far better on a busy machine; more pay
        for wide networks on idle cores.

    Examples
    --------
    >>> learner = TorchLearner(hidden=(16,), epochs=20, batch_size=10)
    >>> models = learner.fit(federation, weights.matrix, seed=0)  # doctest: +SKIP
    >>> models.predict(3, X)  # doctest: +SKIP
    """

    module: ModuleFactory | None = None
    hidden: tuple[int, ...] = (32,)
    task: Literal["classification", "regression"] = "classification"
    loss: RowLoss | None = None
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    epochs: int = 100
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    weight_decay: float = 0.0
    patience: int | None = None
    validation_share: float = 0.2
    warm_start: Mapping[str, Any] | TorchModels | None = None
    method: Literal["weighted-risk", "fedavg"] = "weighted-risk"
    rounds: int = 20
    local_epochs: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        one_of(self.task, ("classification", "regression"), "task")
        one_of(self.optimiser, OPTIMISERS, "optimiser")
        one_of(self.method, ("weighted-risk", "fedavg"), "method")
        one_of(self.dtype, TYPES, "dtype")
        positive(self.learning_rate, "learning_rate")
        nonnegative(self.weight_decay, "weight_decay")
        for name in ("epochs", "rounds", "local_epochs", "threads"):
            positive_integer(getattr(self, name), name)
        for name in ("batch_size", "steps_per_epoch", "patience"):
            if getattr(self, name) is not None:
                positive_integer(getattr(self, name), name)
        for width in self.hidden:
            positive_integer(width, "a hidden width")
        if not 0 < positive(self.validation_share, "validation_share") < 1:
            raise InputError(f"validation_share must lie between 0 and 1, got {self.validation_share:g}")
        if self.steps_per_epoch is not None and (self.batch_size is None or self.method == "fedavg"):
            raise InputError("steps_per_epoch applies to method 'weighted-risk' with a batch_size only; leave it out")
        for name in ("module", "loss"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InputError(f"{name} must be a function, got a {type(getattr(self, name)).__name__}")

    @property
    def length(self) -> int:
        """Epochs, or rounds of "fedavg", of a whole training."""
        return self.rounds if self.method == "fedavg" else self.epochs

    def trained_for(self, share: float, start: TorchModels | None = None) -> TorchLearner:
        """The same learner for a share of its epochs (rounds), from the parameters of other models, without `patience`."""
        length = max(1, round(share * self.length))
        begin = self.warm_start if start is None else start
        if self.method == "fedavg":
            return replace(self, rounds=length, warm_start=begin, patience=None)
        return replace(self, epochs=length, warm_start=begin, patience=None)

    def fit(
        self,
        federation: Federation,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> TorchModels:
        """Train one model per row of `weights` (T, B).

        Parameters
        ----------
        federation : Federation
            Numeric training data of the B agents; standardised columns train best.
        weights : array of shape (T, B)
            Rows on the simplex; the rows of an agent of weight zero are never looked at for that model.
        targets : array of shape (T,), optional
            The agent each row is for; early stopping needs it. Default: row t is for agent t, if there are B rows.
        seed : int
            Equal seeds give equal bytes, and neither torch's generator nor its threads are changed for anyone else. A model
            does not depend on the other rows, save for dropout and for rounding in full batches.
        progress : callable, optional
            Called as ``progress("training", done, total)`` after each epoch or round.
        checkpoint : path, optional
            A folder. The state is written there every few seconds; the same call with the same folder goes on from it and
            ends with the same bytes. A checkpoint of other settings, data, weights or seed is refused.
        monitor : callable, optional
            Called as ``monitor(epochs_done, models)`` every `monitor_every` epochs (rounds) and after the last, to record
            test scores for instance. A resumed run calls it for the epochs still to come.
        monitor_every : int

        Returns
        -------
        TorchModels
        """
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed must be a whole number of at least zero, got {seed!r}")
        every = positive_integer(monitor_every, "monitor_every")
        with torch_threads(self.threads):
            share = self.validation_share if self.patience is not None else 0.0
            rng = generator(int(seed), Stream.HOLD_OUT)
            pool = pool_federation(federation, self.task, TYPES[self.dtype], rng, share)
            matrix = simplex_rows(weights, pool.names, pool.sizes.tolist())
            outputs = len(pool.classes) if pool.classes is not None else None
            stacked = stacked_module(self, pool.X[:3], pool.y[:3], outputs, int(seed))
            start = start_parameters(self.warm_start, stacked, len(matrix), pool.classes)
            lane, lanes, own = distinct_lanes(matrix, start, targets, pool, needs_target=self.patience is not None)
            size = Size(stacked.layout.width, activations_per_row(stacked.module, pool.X))
            problem = Problem(stacked, pool, matrix[lanes], own, size, int(seed))
            folder = None
            if checkpoint is not None:
                made_with = self._digests(problem, matrix, lane, start)
                folder = CheckpointFolder(Path(checkpoint), made_with)
            total = self.length
            begin = start[lanes] if len(start) > 1 else start.expand(len(lanes), -1)
            training = Training(problem, self._method(problem), begin, total, self.patience, folder)
            finished = copy.deepcopy(stacked.module).eval()
            labels = pool.classes if pool.classes is not None else np.array([])

            def models() -> TorchModels:
                return TorchModels(finished, training.parameters, lane, labels, pool.X.shape[1], training.history(lane))

            def observe(done: int, _: Training) -> None:
                if progress is not None:
                    progress("training", done, total)
                if monitor is not None and (done % every == 0 or training.is_over):
                    monitor(done, models())

            training.run([observe])
            if progress is not None and training.done < total:
                progress("training", total, total)
            return models()

    def _method(self, problem: Problem) -> Method:
        optimiser = make_optimiser(self)
        if self.method == "fedavg":
            return FederatedAveraging(problem, optimiser, self.local_epochs, self.batch_size)
        if self.batch_size is None:
            return FullBatch(problem, optimiser)
        # ceil of the mean number of rows over the batch size, in whole numbers
        default = -(-len(problem.pool.agents) // (len(problem.pool.names) * self.batch_size))
        return MiniBatch(problem, optimiser, self.batch_size, self.steps_per_epoch or default)

    def _digests(
        self, problem: Problem, matrix: NDArray[np.float64], lane: NDArray[np.int64], start: torch.Tensor
    ) -> dict[str, str]:
        stacked, pool = problem.stacked, problem.pool
        elsewhere = {"module", "loss", "warm_start", "hidden"}
        settings = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.name not in elsewhere]
        constant = [value.detach().numpy() for value in stacked.module.state_dict().values()]
        # A function has no digest of its own; what it makes of the first rows has.
        losses = check_loss(stacked, pool.X[:3], pool.y[:3]).numpy()
        return {
            "settings": digest(*settings, losses),
            "module": digest(repr(stacked.module), *constant),
            "start": digest(start.numpy()),
            "data": digest(
                pool.X.numpy(), pool.y.numpy(), pool.sizes.numpy(), pool.classes if pool.classes is not None else ""
            ),
            "weights": digest(matrix, problem.own, lane),
            "seed": digest(str(problem.seed)),
        }
