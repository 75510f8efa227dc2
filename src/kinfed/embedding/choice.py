r"""Which points an agent embeds, and with which kernel.

Under concept shift agents differ in y given x, so the points are z = (x, y) with y weighted; under covariate shift they
differ in x alone and z = x. Everything chosen from data is chosen the federated way: each agent answers with the median
distance between its own points and with sums of its target, never with points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import ColumnSums, NumericRule, Standardisation, column_sums
from kinfed.embedding.fourier import FourierFeatures
from kinfed.embedding.kernels import MEDIAN, Gaussian, Kernel, Polynomial, median_bandwidth, named_kernel
from kinfed.embedding.polynomial import PolynomialFeatures
from kinfed.embedding.recipe import FeatureMap
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.validation import Array, FloatArray, one_of

SHIFTS = ("auto", "concept", "covariate")

# Bandwidth of the target in units of its standard deviation (numbers), or of the distance of a class to itself (labels,
# where two classes are sqrt(2) apart). Tuned once on the concept-shift generator, where 1 did best of 0.1 to 1.
TARGET_BANDWIDTH = 1.0


@dataclass(frozen=True)
class View:
    """One way to look at the agents: how wide the Gaussian kernel is in y, in units of the usual bandwidth.

    Attributes
    ----------
    name : str
    target : float
        Bandwidth for y, in units of `TARGET_BANDWIDTH`; infinity leaves y out.
    """

    name: str
    target: float = 1.0

    @property
    def with_target(self) -> bool:
        """Whether y is looked at."""
        return bool(np.isfinite(self.target))


USUAL = View("x and y")
X_ONLY = View("x alone", target=np.inf)
# With a tenth of the bandwidth two labels are exp(-100) alike: a kernel within every class on its own.
CLASS_CONDITIONAL = View("x within each class", target=0.1)
VIEWS = (USUAL, CLASS_CONDITIONAL, X_ONLY)
"""The views calibration may compare, the usual one first."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """How every agent turns its rows into embedded points.

    Attributes
    ----------
    features : FourierFeatures or PolynomialFeatures
        The map all agents share.
    target : NumericTarget, LabelTarget or None
        From y to the coordinates that stand beside x; None if the points are x alone.
    reasons : tuple of str
        What was chosen, and why, in sentences.
    view : View, or None for a kernel that was given
    """

    features: FeatureMap
    target: NumericTarget | LabelTarget | None
    reasons: tuple[str, ...]
    view: View | None = None

    @property
    def norm_bound(self) -> float | None:
        """A bound on the norm of every embedded point; None where the features have none."""
        return self.features.norm_bound if np.isfinite(self.features.norm_bound) else None

    @property
    def name(self) -> str:
        """The view in a word, for tables."""
        return self.view.name if self.view is not None else "kernel as given"

    def raw_points(self, agent: Agent) -> FloatArray:
        """The points z of an agent, before the feature map."""
        X = np.asarray(agent.X, dtype=np.float64)
        if self.target is None:
            return X
        if agent.y is None:
            raise InputError(f"agent {agent.name} has no target, but the embedding compares (x, y)")
        return np.column_stack([X, self.target(agent.y)])

    def __call__(self, agent: Agent) -> FloatArray:
        """Embedded points (n, D) of an agent."""
        return self.features(self.raw_points(agent))


@dataclass(frozen=True, eq=False)
class OwnScale:
    """What one agent answers before agents can be compared: a distance, and what its target looks like.

    Attributes
    ----------
    median : float
        Median distance between its own points; NaN where it has no two different ones.
    target : ColumnSums, array of its classes, or None without a target
    """

    median: float
    target: ColumnSums | NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class Scale:
    """The agents' answers together.

    Attributes
    ----------
    dim : int
        Number of columns of x.
    median : float
        Median over agents of the median distance within an agent; NaN where no agent has one.
    target : NumericTarget, LabelTarget or None
        From y to the coordinates that may stand beside x.
    """

    dim: int
    median: float
    target: NumericTarget | LabelTarget | None


def own_scale(agent: Agent, labels: bool) -> OwnScale:
    """One agent's answer; `labels` says whether its target holds classes rather than numbers."""
    if agent.y is None or not (labels or agent.y.dtype.kind in "fiub"):
        return OwnScale(_own_median(agent), None)
    return OwnScale(_own_median(agent), np.unique(agent.y) if labels else column_sums(agent.y))


def common_scale(dim: int, answers: Sequence[OwnScale], outcome: NumericRule | None = None) -> Scale:
    """The scale of a federation, from the agents' answers alone, or with the scale of the outcome that is known already."""
    sums = [answer.target for answer in answers if isinstance(answer.target, ColumnSums)]
    classes = [answer.target for answer in answers if isinstance(answer.target, np.ndarray)]
    target: NumericTarget | LabelTarget | None = None
    if outcome is not None:
        target = NumericTarget(Standardisation(np.array([outcome.mean]), np.array([outcome.scale])))
    elif sums:
        target = NumericTarget(Standardisation.from_sums(sum(sums)))
    elif classes:
        target = LabelTarget(np.unique(np.concatenate(classes)))
    return Scale(dim, _median(answer.median for answer in answers), target)


def choose_embedding(
    train: Federation,
    *,
    kernel: Kernel | str = "auto",
    shift: str = "auto",
    labels: bool = False,
    n_features: int = 500,
    sampling: str = "iid",
    seed: int = 0,
    view: View | None = None,
) -> Embedding:
    """Choose points, kernel and features for a numeric federation.

    Parameters
    ----------
    train : Federation
        Numeric training data, columns standardised.
    kernel : Kernel or "auto"
        "auto" is a Gaussian kernel: bandwidth for x the median over agents of the median distance within an agent,
        for y one standard deviation. A kernel that is given sees z as described under `shift`.
    shift : {"auto", "concept", "covariate"}
        Embed (x, y), or x alone; "auto" embeds (x, y) where there is a target.
    labels : bool
        Whether y holds class labels, which are one-hot encoded, rather than numbers, which are standardised.
    n_features, sampling, seed
        Of `FourierFeatures`; a `Polynomial` kernel of degree 2 uses its exact map.
    view : View, optional
        Of the "auto" kernel, in place of the usual one for `shift`.
    """
    scale = common_scale(train.dim, [own_scale(agent, labels) for agent in train])
    return scaled_embedding(
        scale, kernel=kernel, shift=shift, n_features=n_features, sampling=sampling, seed=seed, view=view
    )


def scaled_embedding(
    scale: Scale,
    *,
    kernel: Kernel | str = "auto",
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    seed: int = 0,
    view: View | None = None,
) -> Embedding:
    """Choose points, kernel and features from what the agents answered; see `choose_embedding`."""
    one_of(shift, SHIFTS, "shift")
    has_target = scale.target is not None
    seen = view or (USUAL if has_target and shift != "covariate" else X_ONLY)
    if shift == "concept" and not has_target:
        raise InputError("shift='concept' compares y given x, but the federation has no target; use shift='covariate'")
    target = scale.target if seen.with_target and shift != "covariate" else None
    width = 0 if target is None else target.width
    dim = scale.dim + width
    reasons = [
        f"agents are compared by (x, y): the target may depend on x differently from agent to agent; {target}"
        if target is not None
        else "agents are compared by x alone: " + ("as was asked for" if has_target else "there is no target")
    ]
    if isinstance(kernel, str):
        one_of(kernel, ("auto",), "kernel")
        bandwidth, target_bandwidth = _known(scale.median), seen.target * TARGET_BANDWIDTH
        chosen: Kernel = Gaussian((bandwidth,) * scale.dim + (target_bandwidth,) * width)
        reasons.append(
            f"Gaussian kernel, bandwidth {bandwidth:.4g} for x (the median over agents of the median distance "
            "within an agent)" + (f" and {target_bandwidth:g} for y (in its standard deviations)" if width else "")
        )
    else:
        chosen = kernel
        reasons.append(f"kernel {kernel!r}, as given")
    if isinstance(chosen, Polynomial):
        features: FeatureMap = PolynomialFeatures(chosen, dim=dim)
        reasons.append(f"its exact map with {features.n_features} coordinates, an agent shares that many numbers")
    else:
        features = FourierFeatures(chosen, n_features, dim=dim, seed=seed, sampling=sampling)  # type: ignore[arg-type]
        reasons.append(
            f"{n_features} random Fourier features ({features.sampling}, seed {seed}): an agent shares {n_features} numbers"
        )
    return Embedding(features, target, tuple(reasons), seen if isinstance(kernel, str) else None)


def chosen_embeddings(
    scale: Scale,
    *,
    several: bool,
    kernel: Kernel | str = "auto",
    bandwidth: float | str = MEDIAN,
    kernel_options: Mapping[str, Any] | None = None,
    shift: str = "auto",
    **features: Any,
) -> tuple[Embedding, ...]:
    """The usual `scaled_embedding` and, for whoever chooses among `several`, those of all views that differ.

    A kernel may be named, and then have a bandwidth, which is that of the usual kernel for x and y by default, and options.
    """
    if isinstance(kernel, str) and kernel != "auto":
        width = 0 if scale.target is None or shift == "covariate" else scale.target.width
        usual = (scale.median,) * scale.dim + (TARGET_BANDWIDTH,) * width
        kernel = named_kernel(kernel, bandwidth, dict(kernel_options or {}), usual)
    elif bandwidth != MEDIAN or kernel_options:
        raise InputError("bandwidth=... and kernel_options=... need a kernel that is named, such as kernel='gaussian'")
    views = alternative_views(scale, shift) if several and isinstance(kernel, str) else (None,)
    return tuple(scaled_embedding(scale, kernel=kernel, shift=shift, view=view, **features) for view in views)


def alternative_views(scale: Scale, shift: str) -> tuple[View, ...]:
    """The views that differ for a federation of this scale, the usual one first."""
    both = scale.target is not None and shift != "covariate"
    return tuple(
        view
        for view in VIEWS
        if (both if view.with_target else shift != "concept")
        and (isinstance(scale.target, LabelTarget) or view != CLASS_CONDITIONAL)
        and (view == X_ONLY or view.with_target or not both)
    ) or (USUAL,)


def federated_median(train: Federation) -> float:
    """Median over agents of the median distance between an agent's own points: each agent answers with one number."""
    return _known(_median(_own_median(agent) for agent in train))


@dataclass(frozen=True, eq=False)
class NumericTarget:
    """A number becomes one standardised coordinate."""

    rule: Standardisation

    width = 1

    def __call__(self, y: ArrayLike) -> Array:
        """Coordinates (n, 1) that stand beside x."""
        return self.rule.transform(y)[:, None]

    def __str__(self) -> str:
        return f"y is standardised (mean {self.rule.mean[0]:.4g}, deviation {self.rule.scale[0]:.4g})"


@dataclass(frozen=True, eq=False)
class LabelTarget:
    """A class becomes a coordinate of its own; a label never seen in training is the origin."""

    classes: NDArray[Any]

    @property
    def width(self) -> int:
        """How many classes there are, hence coordinates of an embedded label."""
        return len(self.classes)

    def __call__(self, y: ArrayLike) -> Array:
        """Coordinates (n, number of classes) that stand beside x."""
        return (np.asarray(y)[:, None] == self.classes).astype(np.float64)

    def __str__(self) -> str:
        return f"y is one of {self.width} classes, one-hot encoded"


def _own_median(agent: Agent) -> float:
    try:
        return median_bandwidth(agent.X)
    except InputError:  # fewer than two points, or points that coincide: this agent has no say
        return float("nan")


def _median(answers: Iterable[float]) -> float:
    known = [answer for answer in answers if not np.isnan(answer)]
    return float(np.median(known)) if known else float("nan")


def _known(median: float) -> float:
    if np.isnan(median):
        raise InputError("no agent has two different points, so there is no median distance; give a kernel")
    return median
