r"""Which points an agent embeds, and with which kernel.

Under concept shift agents differ in y given x, so the points are z = (x, y) with y weighted; under covariate shift they
differ in x alone and z = x. Everything chosen from data is chosen the federated way: each agent answers with the median
distance between its own points and with sums of its target, never with points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import Standardisation
from kinfed.errors import InputError
from kinfed.features import FeatureMap, FourierFeatures, PolynomialFeatures
from kinfed.federation import Agent, Federation
from kinfed.kernels import Gaussian, Kernel, Polynomial, median_bandwidth
from kinfed.validation import FloatArray, one_of

SHIFTS = ("auto", "concept", "covariate")

# Bandwidth of the target in units of its standard deviation (numbers), or of the distance of a class to itself (labels,
# where two classes are sqrt(2) apart). Tuned once on the concept-shift generator, where 1 did best of 0.1 to 1.
TARGET_BANDWIDTH = 1.0


@dataclass(frozen=True)
class View:
    """One way to look at the agents: how wide the Gaussian kernel is, in units of the usual bandwidths.

    Attributes
    ----------
    name : str
    scale : float
        Bandwidth for x, in units of the median distance within agents.
    target : float
        Bandwidth for y, in units of `TARGET_BANDWIDTH`; infinity leaves y out.
    """

    name: str
    scale: float = 1.0
    target: float = 1.0

    @property
    def with_target(self) -> bool:
        """Whether y is looked at."""
        return bool(np.isfinite(self.target))


USUAL = View("x and y")
X_ONLY = View("x alone", target=np.inf)
# With a tenth of the bandwidth two labels are exp(-100) alike: a kernel within every class on its own.
CLASS_CONDITIONAL = View("x within each class", target=0.1)
VIEWS = (
    USUAL,
    View("x and y, narrow", scale=0.5),
    View("x and y, wide", scale=2.0),
    View("x and y, y finer", target=0.5),
    View("x and y, y coarser", target=2.0),
    CLASS_CONDITIONAL,
    X_ONLY,
    View("x alone, narrow", scale=0.5, target=np.inf),
    View("x alone, wide", scale=2.0, target=np.inf),
)
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
        bound = self.features.norm_bound
        return bound if np.isfinite(bound) else None

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
    one_of(shift, SHIFTS, "shift")
    seen = view or (USUAL if train.has_target and shift != "covariate" else X_ONLY)
    with_target = train.has_target and seen.with_target and shift != "covariate"
    if shift == "concept" and not train.has_target:
        raise InputError("shift='concept' compares y given x, but the federation has no target; use shift='covariate'")
    target = _target_coordinates(train, labels) if with_target else None
    width = 0 if target is None else target.width
    reasons = [
        f"agents are compared by (x, y): the target may depend on x differently from agent to agent; {target}"
        if with_target
        else "agents are compared by x alone: " + ("as was asked for" if train.has_target else "there is no target")
    ]
    dim = train.dim + width
    if isinstance(kernel, str):
        one_of(kernel, ("auto",), "kernel")
        bandwidth, target_bandwidth = seen.scale * federated_median(train), seen.target * TARGET_BANDWIDTH
        chosen: Kernel = Gaussian((bandwidth,) * train.dim + (target_bandwidth,) * width)
        times = "" if seen.scale == 1 else f"{seen.scale:g} times "
        reasons.append(
            f"Gaussian kernel, bandwidth {bandwidth:.4g} for x ({times}the median over agents of the median distance "
            "within an agent)" + (f" and {target_bandwidth:g} for y (in its standard deviations)" if width else "")
        )
    else:
        chosen = kernel
        reasons.append(f"kernel {kernel!r}, as given")
    features: FeatureMap
    if isinstance(chosen, Polynomial):
        features = PolynomialFeatures(chosen, dim=dim)
        reasons.append(f"its exact map with {features.n_features} coordinates, an agent shares that many numbers")
    else:
        features = FourierFeatures(chosen, n_features, dim=dim, seed=seed, sampling=sampling)  # type: ignore[arg-type]
        reasons.append(
            f"{n_features} random Fourier features ({features.sampling}, seed {seed}): an agent shares {n_features} numbers"
        )
    return Embedding(features, target, tuple(reasons), seen if isinstance(kernel, str) else None)


def alternative_views(train: Federation, shift: str, labels: bool) -> tuple[View, ...]:
    """The views that differ for this federation, the usual one first."""
    one_of(shift, SHIFTS, "shift")
    both = train.has_target and shift != "covariate"
    alone = shift != "concept"
    views = tuple(
        view
        for view in VIEWS
        if (both if view.with_target else alone)
        and (labels or view != CLASS_CONDITIONAL)
        and (view == X_ONLY or view.with_target or not both)
    )
    return views or (USUAL,)


def federated_median(train: Federation) -> float:
    """Median over agents of the median distance between an agent's own points: each agent answers with one number."""
    answers = []
    for agent in train:
        try:
            answers.append(median_bandwidth(agent.X))
        except InputError:  # fewer than two points, or points that coincide: this agent has no say
            continue
    if not answers:
        raise InputError("no agent has two different points, so there is no median distance; give a kernel")
    return float(np.median(answers))


@dataclass(frozen=True, eq=False)
class NumericTarget:
    """A number becomes one standardised coordinate."""

    rule: Standardisation

    width = 1

    def __call__(self, y: ArrayLike) -> NDArray[np.float64]:
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
        """Number of classes."""
        return len(self.classes)

    def __call__(self, y: ArrayLike) -> NDArray[np.float64]:
        """Coordinates (n, number of classes) that stand beside x."""
        return (np.asarray(y)[:, None] == self.classes).astype(np.float64)

    def __str__(self) -> str:
        return f"y is one of {self.width} classes, one-hot encoded"


def _target_coordinates(train: Federation, labels: bool) -> NumericTarget | LabelTarget:
    if labels:
        return LabelTarget(np.unique(np.concatenate([agent.y for agent in train if agent.y is not None])))
    return NumericTarget(Standardisation.of_target(train))
