"""What a learner's settings stand for in torch: the network that every target trains, its optimiser, its threads.

The network is made once and checked once, and all targets start from the same parameters.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

from kinfed.backends.agents import TrainingSpec
from kinfed.errors import InputError
from kinfed.learners.neural.model_stack import StackedModule, check_loss, check_stacking, cross_entropy, squared_error
from kinfed.learners.neural.rows import Pool, Stream, known_classes, torch_seed

if TYPE_CHECKING:
    from kinfed.learners.neural.learner import TorchLearner

ModuleFactory = Callable[[], nn.Module]

TYPES = {"float32": torch.float32, "float64": torch.float64}

# How far two evaluations of one row may differ by rounding alone.
_ROUNDING = 1e-3


def build_network(learner: TorchLearner, spec: TrainingSpec, pool: Pool | None = None) -> StackedModule:
    """The learner's network, drawn from the seed and tried on a few rows; see `trial_rows`."""
    X, y = trial_rows(learner, spec, pool)
    outputs = len(known_classes(spec, learner.task)) or None
    factory = learner.module or (lambda: perceptron(spec.dim, learner.hidden, outputs or 1))
    module = make_module(factory, torch_seed(spec.seed, Stream.START), TYPES[learner.dtype])
    check_module(module, X, outputs)
    loss = learner.loss or (squared_error if outputs is None else cross_entropy)
    stacked = StackedModule(module, loss, scalar=outputs is None, activations=activations_per_row(module, X))
    check_stacking(stacked, X)
    check_loss(stacked, X, y)
    return stacked


def trial_rows(learner: TorchLearner, spec: TrainingSpec, pool: Pool | None) -> tuple[Tensor, Tensor]:
    """A few rows to try a network on; zeros, which are valid for any, where there are no rows."""
    if pool is not None:
        return pool.X[:3], pool.y[:3]
    X = torch.zeros(3, spec.dim, dtype=TYPES[learner.dtype])
    return X, torch.zeros(3, dtype=X.dtype if learner.task == "regression" else torch.int64)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads, and give it back what it had afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Seed torch's own generator for initialisation and dropout, and give its state back afterwards."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield


def perceptron(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with a ReLU after each but the last; no hidden layer gives a linear model."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def make_module(factory: ModuleFactory, seed: int, dtype: torch.dtype) -> nn.Module:
    """One module in training mode, initialised from `seed` whatever was drawn before."""
    with seeded_layers(seed):
        module = factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"module must make a torch.nn.Module when called, it made a {type(module).__name__}")
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in module.parameters()):
        raise InputError("the module has lazy layers, whose shapes are not known yet; give them their input widths")
    # A copy, so that a factory which returns the same object twice never sees it change.
    module = copy.deepcopy(module).to(device="cpu", dtype=dtype).train()
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError("the module has no parameters to train; give it at least one layer with requires_grad")
    return module


def check_module(module: nn.Module, X: Tensor, outputs: int | None) -> None:
    """Raise `InputError` if the module cannot be trained for many targets at once.

    Parameters
    ----------
    module : nn.Module
        In training mode.
    X : tensor of shape (n, d)
        A few rows to try it on.
    outputs : int or None
        The number of classes; None for one number per row.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"layer {name or 'one'} is a {type(layer).__name__}, whose statistics mix the rows of a batch "
                "and cannot be kept apart for many targets; use GroupNorm or LayerNorm"
            )
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        tried = _try(module, X, seed=0)
        fitting = [(len(X), outputs)] if outputs else [(len(X), 1), (len(X),)]
        if tuple(tried.shape) not in fitting:
            what = f"a score for each of the {outputs} classes" if outputs else "one number for each row"
            raise InputError(
                f"the module turns {len(X)} rows into shape {tuple(tried.shape)}; "
                f"{' or '.join(map(str, fitting))} is expected, {what}"
            )
        again = _try(module, X, seed=1)
        alone = _try(module, X[:1], seed=0)
    for name, buffer in module.named_buffers():
        if not torch.equal(before[name], buffer):
            raise InputError(
                f"buffer {name} of the module changes while training and cannot be kept apart for many targets; "
                "use layers without running statistics, such as GroupNorm or LayerNorm"
            )
    is_random = not torch.equal(tried, again)
    if not is_random and not torch.allclose(tried[:1], alone, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
        raise InputError(
            "the module's output for one row depends on the other rows of its batch; each row must stand alone"
        )


def activations_per_row(module: nn.Module, X: Tensor) -> int:
    """How many numbers one row of one target keeps in memory between forward and backward, its input included."""

    def kept(rows: int) -> int:
        sizes = []

        def count(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            _try(module, X[:1].expand(rows, -1), seed=0)
        return sum(sizes)

    few, more = 1, 5
    return X.shape[1] + max(0, kept(more) - kept(few)) // (more - few)


def _try(module: nn.Module, X: Tensor, seed: int) -> Tensor:
    with seeded_layers(seed):
        try:
            return module(X)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(f"the module cannot be applied to rows of {X.shape[1]} columns: {error}") from None


@dataclass(frozen=True, eq=False)
class Pull:
    r"""A proximal pull: it adds :math:`(\mu / 2) |\theta_l - a_l|^2` to the risk of model l.

    Attributes
    ----------
    strength : float
        :math:`\mu`.
    anchors : tensor of shape (L, width)
        The :math:`a_l`.
    """

    strength: float
    anchors: Tensor

    def on(self, models: NDArray[Any] | slice) -> Pull:
        """The pull on some of the models."""
        return Pull(self.strength, self.anchors[models if isinstance(models, slice) else torch.from_numpy(models)])


@dataclass(frozen=True)
class Optimiser(ABC):
    """Moves stacked parameters along a gradient, in place; elementwise, so models never mix.

    Of each parameter it keeps `moments` running averages.
    """

    learning_rate: float
    weight_decay: float = 0.0
    moments: ClassVar[int] = 0

    def step(
        self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int, pull: Pull | None = None
    ) -> None:
        """Take step `number`, counted from one; `gradient` may be overwritten."""
        if pull is not None:
            gradient.add_(parameters - pull.anchors, alpha=pull.strength)
        self._move(parameters, gradient, moments, number)

    @abstractmethod
    def _move(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        """The step itself."""


@dataclass(frozen=True)
class GradientDescent(Optimiser):
    r""":math:`\theta \leftarrow \theta - \eta (g + \lambda \theta)`, as `torch.optim.SGD` does it."""

    def _move(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        parameters.add_(gradient, alpha=-self.learning_rate)


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam with the defaults of `torch.optim.Adam`; `weight_decay` is the L2 term in the gradient, as there."""

    moments: ClassVar[int] = 2

    def _move(self, parameters: Tensor, gradient: Tensor, moments: Sequence[Tensor], number: int) -> None:
        mean, square = moments
        # The fused kernel passes over the memory once; it adds one to the count it is given.
        adam(
            [parameters],
            [gradient],
            [mean],
            [square],
            [],
            [torch.tensor(float(number - 1))],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


OPTIMISERS: dict[str, type[Optimiser]] = {"adam": Adam, "sgd": GradientDescent}


def make_optimiser(learner: TorchLearner) -> Optimiser:
    """The optimiser that the learner names, with its learning rate and decay."""
    return OPTIMISERS[learner.optimiser](float(learner.learning_rate), float(learner.weight_decay))
