r"""The learner: any torch module, trained for every row of a weight matrix at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.backends.agents import Agents, AgentsLostError, TrainingSpec
from kinfed.backends.wire import Arrays
from kinfed.checkpoint import Store, digest
from kinfed.errors import InputError
from kinfed.learners.base import Monitor
from kinfed.learners.inputs import check_class_weight, check_models, simplex_rows, unique_rows, unpacked, without_lost
from kinfed.learners.neural.build import (
    OPTIMISERS,
    TYPES,
    ModuleFactory,
    Pull,
    build_network,
    make_optimiser,
    torch_threads,
    trial_rows,
)
from kinfed.learners.neural.exchange import SiteExchange, SiteMemory, refuse_batches
from kinfed.learners.neural.fedavg import FederatedAveraging
from kinfed.learners.neural.model_stack import RowLoss, StackedModule, check_loss
from kinfed.learners.neural.models import History, TorchModels, distinct_models, own_agents, start_parameters
from kinfed.learners.neural.rows import Pool, known_classes, pool_rows
from kinfed.learners.neural.training import EarlyStopping, StackedProblem, Training, TrainingMethod
from kinfed.learners.neural.weighted_risk import FullBatch, MiniBatch
from kinfed.progress import Progress
from kinfed.validation import nonnegative, one_of, positive, positive_integer, whole_number


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
    proximal : float
        :math:`\mu` of a pull back to where training starts, :math:`(\mu / 2) |\theta - \theta_0|^2` beside the risk. On own
        rows alone, from a common model, that is Ditto.
    method : {"weighted-risk", "fedavg"}
        "fedavg": in each of `rounds` rounds every agent trains each target's model it has a weight for, for `local_epochs`
        epochs on its own rows with a fresh optimiser, and the targets average:
        :math:`\theta_t \leftarrow \theta_t + \sum_k w_{tk} (\theta_{tk} - \theta_t)`.
    rounds, local_epochs : int
        Of "fedavg". A local epoch passes once over the agent's shuffled rows.
    class_weight : "balanced", or mapping from class to weight, optional
        What rows of each class count in a classification. "balanced" is :math:`n / (C n_c)` over the whole federation.
    dtype : {"float32", "float64"}
    threads : int
        Threads torch may use during `fit`. One is best for networks this small, and far better on a busy machine; more pay
        for wide networks on idle cores.

    Examples
    --------
    >>> learner = TorchLearner(hidden=(16,), epochs=20, batch_size=10)
    >>> models = learner.fit(agents, weights.matrix)  # doctest: +SKIP
    >>> models.predict(3, X)  # doctest: +SKIP
    """

    module: ModuleFactory | None = None
    hidden: tuple[int, ...] = (32,)
    task: Literal["classification", "regression"] = "classification"
    loss: RowLoss | None = field(default=None, metadata={"predicts": False})
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    epochs: int = 100
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    weight_decay: float = 0.0
    patience: int | None = None
    validation_share: float = 0.2
    warm_start: Mapping[str, Any] | TorchModels | None = field(default=None, metadata={"predicts": False})
    proximal: float = 0.0
    method: Literal["weighted-risk", "fedavg"] = "weighted-risk"
    rounds: int = 20
    local_epochs: int = 1
    class_weight: str | Mapping[Any, float] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    threads: int = 1
    name: ClassVar[str] = "torch"
    site_memory: SiteMemory = field(default_factory=SiteMemory, init=False, repr=False)

    def __post_init__(self) -> None:
        one_of(self.task, ("classification", "regression"), "task")
        one_of(self.optimiser, OPTIMISERS, "optimiser")
        one_of(self.method, ("weighted-risk", "fedavg"), "method")
        one_of(self.dtype, TYPES, "dtype")
        check_class_weight(self.class_weight)
        if self.class_weight is not None and self.task == "regression":
            raise InputError("class_weight is for a classification; leave it out, or weigh rows by sample_weight")
        positive(self.learning_rate, "learning_rate")
        nonnegative(self.weight_decay, "weight_decay")
        nonnegative(self.proximal, "proximal")
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

    def check_sites(self) -> None:
        """Refuse early stopping and batches of "weighted-risk" across sites."""
        if self.patience is not None:
            raise InputError(
                "patience stops each model on held-out points of its own agent, which never leave their site; "
                "leave patience out to train across sites"
            )
        refuse_batches(self)

    @property
    def length(self) -> int:
        """Epochs, or rounds of "fedavg", of a whole training."""
        return self.rounds if self.method == "fedavg" else self.epochs

    def trained_for(
        self, share: float, start: TorchModels | None = None, pull: float = 0.0, decay: float = 0.0
    ) -> TorchLearner:
        """The same learner for a share of its epochs (rounds), from and pulled to other models, without `patience`."""
        how: dict[str, Any] = {"rounds" if self.method == "fedavg" else "epochs": max(1, round(share * self.length))}
        how |= {"proximal": pull or self.proximal, "weight_decay": max(decay, self.weight_decay)}
        return replace(self, **how, warm_start=self.warm_start if start is None else start, patience=None)

    def fit(
        self,
        agents: Agents,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> TorchModels:
        """Train one model per row of `weights` (T, B).

        Where agents are sites, a model that hears nobody in an epoch (round) stays as it is, and its loss in `History` is
        NaN. Where `AgentsLostError` says that agents are lost, training goes on with the rows of weights it gives. Neither
        early stopping nor batches of "weighted-risk" are possible there.

        Parameters
        ----------
        agents : Agents
            Standardised columns train best. Equal seeds give equal bytes, and neither torch's generator nor its threads are
            changed for anyone else. A model does not depend on the other rows, save for dropout and for rounding in full
            batches.
        weights : array of shape (T, B)
            Rows on the simplex; the rows of an agent of weight zero are never looked at for that model.
        targets : array of shape (T,), optional
            The agent each row is for; early stopping needs it. Default: row t is for agent t, if there are B rows.
        progress : callable, optional
            Called as ``progress("training", done, total)`` after each epoch or round.
        checkpoint : path, optional
            A folder. The state is written there every few seconds, and after every exchange with sites; the same call with
            the same folder goes on from it and ends with the same bytes. A checkpoint of other settings, data, weights or
            seed is refused.
        monitor : callable, optional
            Called as ``monitor(epochs_done, models)`` every `monitor_every` epochs (rounds) and after the last, to record
            test scores for instance. A resumed run calls it for the epochs still to come.
        monitor_every : int

        Returns
        -------
        TorchModels
        """
        every, spec, rows = positive_integer(monitor_every, "monitor_every"), agents.spec, agents.rows
        whole_number(spec.seed, "seed")
        if rows is None:
            self.check_sites()
        # Trainings across sites take turns within a process, so none may hold what belongs to all of it.
        with nullcontext() if rows is None else torch_threads(self.threads):
            share = self.validation_share if self.patience is not None else 0.0
            pool = None if rows is None else pool_rows(rows.agents, spec, self.task, self.dtype, held_out_share=share)
            matrix = simplex_rows(weights, spec)
            stacked, classes = build_network(self, spec, pool), known_classes(spec, self.task)
            start = start_parameters(self.warm_start, stacked, len(matrix), classes)
            stopping = None if self.patience is None or pool is None else EarlyStopping(self.patience, pool)
            own = own_agents(targets, len(matrix), spec.names, None if stopping is None else stopping.held_out)
            model_of, first = distinct_models(matrix, start, own)

            def begin() -> Tensor:
                return start[first] if len(start) > 1 else start.expand(len(first), -1)

            def parts() -> tuple[StackedProblem, TrainingMethod, Store]:
                pull = Pull(float(self.proximal), begin()) if self.proximal else None
                problem = StackedProblem(stacked, spec.names, matrix[first], own[first], spec.seed, pull)
                rows_of = (matrix, own[first], model_of)
                made_with = {} if checkpoint is None else self._made_with(agents, pool, stacked, start, rows_of)
                return problem, self._method(problem, pool, agents), Store(without_lost(checkpoint, agents), made_with)

            problem, method, store = parts()
            training = Training(problem, method, begin(), self.length, store, stopping)
            finished = copy.deepcopy(stacked.module).eval()

            def models() -> TorchModels:
                return TorchModels(finished, training.parameters, model_of, classes, spec.dim, training.history(model_of))

            while not training.is_over:
                try:
                    for done in training.run():
                        if progress is not None:
                            progress("training", done, self.length)
                        if monitor is not None and (done % every == 0 or training.is_over):
                            monitor(done, models())
                except AgentsLostError as error:  # of a round that was not finished
                    matrix, before = simplex_rows(error.rows(matrix), spec), model_of
                    _, model_of = unique_rows(np.column_stack([matrix, before]))
                    first = np.unique(model_of, return_index=True)[1]
                    training = training.taken_up(before[first], *parts())
            if progress is not None and training.done < self.length:
                progress("training", self.length, self.length)
            return models()

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Parameters of some rows' models, of shape (rows, width)."""
        check_models(models, TorchModels, "torch")
        return {"parameters": models.stack.numpy()[models.model_of[rows]]}

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> TorchModels:
        """Models from their parameters, without a history."""
        stacked, classes = build_network(self, spec), known_classes(spec, self.task)
        stack = torch.tensor(unpacked(arrays, "parameters", (stacked.layout.width,), self.dtype))
        history = History(np.empty((0, len(stack))))
        return TorchModels(stacked.module.eval(), stack, np.arange(len(stack)), classes, spec.dim, history)

    def _method(self, problem: StackedProblem, pool: Pool | None, agents: Agents) -> TrainingMethod:
        optimiser = make_optimiser(self)
        if pool is None:
            return SiteExchange(problem, agents, optimiser, self.method)
        if self.method == "fedavg":
            return FederatedAveraging(problem, pool, optimiser, self.local_epochs, self.batch_size)
        if self.batch_size is None:
            return FullBatch(problem, pool, optimiser)
        # ceil of the mean number of rows over the batch size, in whole numbers
        default = -(-len(pool.agents) // (len(pool.sizes) * self.batch_size))
        return MiniBatch(problem, pool, optimiser, self.batch_size, self.steps_per_epoch or default)

    def _made_with(
        self, agents: Agents, pool: Pool | None, stacked: StackedModule, start: Tensor, rows: tuple[NDArray[Any], ...]
    ) -> dict[str, str]:
        """What a checkpoint depends on."""
        elsewhere = {"module", "loss", "warm_start", "hidden", "site_memory"}
        settings = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.name not in elsewhere]
        # A function has no digest of its own; what it makes of the first rows has.
        losses = check_loss(stacked, *trial_rows(self, agents.spec, pool)).numpy()
        constant = [value.detach().numpy() for value in stacked.module.state_dict().values()]
        return {
            "settings": digest(*settings, losses),
            "module": digest(repr(stacked.module), *constant),
            "start": digest(start.numpy()),
            "data": agents.digest,
            "weights": digest(*rows),
            "seed": str(agents.spec.seed),
        }
