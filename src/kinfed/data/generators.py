"""Synthetic federations whose structure is known: the paper's two, and others that probe what a rule can find.

Randomness comes from the seed alone. Parameters, sizes, training and test points have streams of their own, so that
settings which differ in one number (a spread, a noise) share all the random draws that they can.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from kinfed.data.distributions import (
    CovariateShift,
    Distribution,
    GaussianLinear,
    LabelShift,
    SyntheticFederation,
    draw_federation,
)
from kinfed.errors import InputError
from kinfed.splitting import derived_seed
from kinfed.validation import Array, Integers, nonnegative, one_of, positive, positive_integer

Sizes = int | tuple[int, int]
"""Points per agent: a number, or (low, high) for unequal sizes, log-uniform between the two."""


def concept_shift(
    n_agents: int = 100,
    n: Sizes = 10,
    dim: int = 20,
    *,
    noise_variance: float = 2.0,
    spread: float = 0.1,
    groups: int = 2,
    seed: int = 0,
) -> SyntheticFederation:
    r"""Linear regressions that differ in their coefficients, the paper's first experiment.

    .. math::
        X^{(k)} \sim N(\mathbf 1, I_d), \quad Y = \beta_k'X + N(0, \sigma_Y^2), \quad
        \beta_k = I_k \sqrt{1 - \sigma_c^2}\, \beta_0 + \sigma_c \varepsilon_k, \quad \beta_0, \varepsilon_k \sim N(0, I_d),

    with :math:`I_k` uniform on {-1, 1}: the group of agent k, labelled 0 and 1. For other numbers of groups, which the
    paper does not treat, :math:`I_k \beta_0` is replaced by one of that many independent centres :math:`N(0, I_d)`.

    Parameters
    ----------
    n_agents : int
        B.
    n : int or (int, int)
        Points per agent; a pair (low, high) draws unequal sizes, log-uniform between the two.
    dim : int
        d.
    noise_variance : float
        :math:`\sigma_Y^2`.
    spread : float
        :math:`\sigma_c^2` from 0 (one regression per group) to 1 (unrelated agents). The paper runs through this range.
    groups : int
    seed : int

    Examples
    --------
    >>> from kinfed.data import concept_shift
    >>> generated = concept_shift(n_agents=4, n=(5, 50), dim=3, spread=0, seed=1)
    >>> generated.train.dim, generated.test(100).sizes.tolist()
    (3, [100, 100, 100, 100])
    """
    B, d = positive_integer(n_agents, "n_agents"), positive_integer(dim, "dim")
    sigma2 = nonnegative(spread, "spread")
    if sigma2 > 1:
        raise InputError(f"spread must be between 0 and 1, got {sigma2:g}")
    n_groups = positive_integer(groups, "groups")
    rng = np.random.default_rng(derived_seed(seed, "law"))
    group = rng.integers(n_groups, size=B)
    centres = rng.standard_normal((1 if n_groups == 2 else n_groups, d))
    if n_groups == 2:
        centres = np.concatenate([-centres, centres])
    beta = np.sqrt(1 - sigma2) * centres[group] + np.sqrt(sigma2) * rng.standard_normal((B, d))
    return _generated(GaussianLinear(np.ones((B, d)), beta, nonnegative(noise_variance, "noise_variance")), n, group, seed)


def covariate_shift(
    sizes: Sequence[int] = (30, 30, 40),
    n: Sizes = 20,
    dim: int = 4,
    *,
    sigma_1: float = 1.0,
    sigma_2: float = 1.0,
    spread_1: float = 0.01,
    spread_2: float = 0.3,
    centre: float = 2.0,
    half_width: float = 6.0,
    noise_variance: float = 0.04,
    seed: int = 0,
) -> SyntheticFederation:
    r"""One regression function seen at three places, the paper's second experiment.

    .. math::
        X^{(k)} \sim \begin{cases}
        N(\mu_k, \sigma_1^2 I_d), & \mu_k \sim N(0, v_1^2 I_d), \\
        N(\mu_k, \sigma_2^2 I_d), & \mu_k \sim N(\mu_0, v_2^2 I_d), \quad \mu_0 = (2, \dots, 2), \\
        U([-6, 6]^d), \end{cases} \qquad
        Y = \sin(3 X_1) + \tfrac12 X_2^2 + \tfrac1{10} \sum_{j \ge 3} X_j + N(0, \sigma_Y^2).

    Parameters
    ----------
    sizes : three int
        Agents in each group, in this order.
    n : int or (int, int)
        Points per agent, as in `concept_shift`.
    dim : int
        d, at least 2.
    sigma_1, sigma_2 : float
        Not given in the paper.
    spread_1, spread_2 : float
        :math:`v_1^2` and :math:`v_2^2`.
    centre : float
        Every coordinate of :math:`\mu_0`.
    half_width : float
        Of the cube of the third group.
    noise_variance : float
        :math:`\sigma_Y^2`.
    seed : int
    """
    d = _dimension_of_two(dim)
    counts = [int(nonnegative(size, "sizes")) for size in sizes]
    if len(counts) != 3 or sum(counts) == 0 or any(count != size for count, size in zip(counts, sizes, strict=True)):
        raise InputError(f"sizes must be the numbers of agents of the three groups, such as (30, 30, 40), got {sizes!r}")
    group = np.repeat([0, 1, 2], counts)
    variances = np.array([nonnegative(spread_1, "spread_1"), nonnegative(spread_2, "spread_2"), 0.0])
    deviations = np.array([positive(sigma_1, "sigma_1"), positive(sigma_2, "sigma_2"), 1.0])
    rng = np.random.default_rng(derived_seed(seed, "law"))
    offset = np.array([0.0, _finite(centre, "centre"), 0.0])[group, None]
    mu = offset + np.sqrt(variances)[group, None] * rng.standard_normal((len(group), d))
    width, noise = positive(half_width, "half_width"), nonnegative(noise_variance, "noise_variance")
    return _generated(CovariateShift(mu, deviations[group], group == 2, width, noise), n, group, seed)


def label_shift(
    n_agents: int = 40,
    n: Sizes = 50,
    dim: int = 5,
    *,
    classes: int = 5,
    separation: float = 1.0,
    concentration: float = 0.5,
    groups: int | None = None,
    seed: int = 0,
) -> SyntheticFederation:
    r"""Classes that look alike everywhere and occur with different frequencies.

    .. math::
        P(Y^{(k)} = c) = p_{kc}, \quad p_k \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha), \qquad
        X \mid Y = c \sim N(\mu_c, I_d), \quad \mu_c \sim N(0, s^2 I_d).

    Parameters
    ----------
    n_agents, n, dim
        As in `concept_shift`.
    classes : int
        Number of classes, labelled 0, 1, ...
    separation : float
        s.
    concentration : float
        :math:`\alpha`; the smaller, the fewer classes an agent sees.
    groups : int, optional
        With groups, agents of one group share their p; they are as equal in size as they can be. Without, each agent draws
        its own, and the federation has no groups.
    seed : int
    """
    B, d = positive_integer(n_agents, "n_agents"), positive_integer(dim, "dim")
    n_classes = positive_integer(classes, "classes")
    if n_classes < 2:
        raise InputError("classes must be at least 2")
    alpha = positive(concentration, "concentration")
    rng = np.random.default_rng(derived_seed(seed, "law"))
    centres = positive(separation, "separation") * rng.standard_normal((n_classes, d))
    group = np.arange(B) if groups is None else _balanced(B, groups, rng)
    shares = rng.dirichlet(np.full(n_classes, alpha), size=int(group.max()) + 1)[group]
    return _generated(LabelShift(centres, shares), n, None if groups is None else group, seed)


def feature_rotation(
    n_agents: int = 40,
    n: Sizes = 20,
    dim: int = 10,
    *,
    groups: int = 4,
    noise_variance: float = 1.0,
    seed: int = 0,
) -> SyntheticFederation:
    r"""One linear regression whose features each group sees rotated, like pictures taken at an angle.

    Group g = 0, 1, ... observes :math:`X = R_g Z` with :math:`Z \sim N(\mathbf 1, I_d)` and
    :math:`Y = \beta'Z + N(0, \sigma_Y^2)`, so that its own coefficients are :math:`R_g \beta`; :math:`R_g` turns each plane
    of coordinates (1, 2), (3, 4), ... by the angle :math:`2 \pi g / G`. Groups are as equal in size as they can be.

    Parameters
    ----------
    n_agents, n, noise_variance, seed
        As in `concept_shift`.
    dim : int
        d, at least 2.
    groups : int
        G.
    """
    B, d = positive_integer(n_agents, "n_agents"), _dimension_of_two(dim)
    n_groups = positive_integer(groups, "groups")
    rng = np.random.default_rng(derived_seed(seed, "law"))
    group = _balanced(B, n_groups, rng)
    turns = np.stack([_rotation(d, 2 * np.pi * g / n_groups) for g in range(n_groups)])
    mean, beta = (turns @ np.ones(d))[group], (turns @ rng.standard_normal(d))[group]
    return _generated(GaussianLinear(mean, beta, nonnegative(noise_variance, "noise_variance")), n, group, seed)


def no_structure(
    n_agents: int = 100,
    n: Sizes = 10,
    dim: int = 20,
    *,
    agents: str = "same",
    noise_variance: float = 2.0,
    seed: int = 0,
) -> SyntheticFederation:
    r"""Linear regressions without groups to find: all agents the same, or all unrelated.

    The two ends of `concept_shift`: with "same" every agent has one :math:`\beta \sim N(0, I_d)`, and pooling is best; with
    "unrelated" each has its own, and the others' points say nothing. The true groups are one, or one per agent.

    Parameters
    ----------
    n_agents, n, dim, noise_variance, seed
        As in `concept_shift`.
    agents : {"same", "unrelated"}
    """
    B, d = positive_integer(n_agents, "n_agents"), positive_integer(dim, "dim")
    same = one_of(agents, ("same", "unrelated"), "agents") == "same"
    rng = np.random.default_rng(derived_seed(seed, "law"))
    group = np.zeros(B, dtype=np.int64) if same else np.arange(B)
    beta = rng.standard_normal((int(group.max()) + 1, d))[group]
    return _generated(GaussianLinear(np.ones((B, d)), beta, nonnegative(noise_variance, "noise_variance")), n, group, seed)


def _generated(distribution: Distribution, n: Sizes, group: Integers | None, seed: int) -> SyntheticFederation:
    groups = None if group is None else tuple(group.tolist())
    train = draw_federation(distribution, _sizes(n, distribution.shape[0], seed), groups, seed, "train")
    return SyntheticFederation(train, distribution, seed)


def _sizes(n: Any, n_agents: int, seed: int) -> Integers:
    if not isinstance(n, tuple | list):
        return np.full(n_agents, positive_integer(n, "n"))
    if len(n) != 2:
        raise InputError(f"n must be a number of points or a pair (low, high), got {n!r}")
    low, high = positive_integer(n[0], "the lower end of n"), positive_integer(n[1], "the upper end of n")
    if low > high:
        raise InputError(f"n is a pair (low, high), but {low} is above {high}")
    logs = np.random.default_rng(derived_seed(seed, "sizes")).uniform(np.log(low), np.log(high), n_agents)
    return np.clip(np.rint(np.exp(logs)), low, high).astype(np.int64)


def _balanced(n_agents: int, groups: int, rng: np.random.Generator) -> Integers:
    """Groups of nearly equal size, in random order."""
    return rng.permutation(np.arange(n_agents) % positive_integer(groups, "groups"))


def _rotation(dim: int, angle: float) -> Array:
    turn = np.eye(dim)
    for j in range(0, dim - 1, 2):
        turn[j : j + 2, j : j + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn


def _finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _dimension_of_two(dim: Any) -> int:
    if positive_integer(dim, "dim") < 2:
        raise InputError("dim must be at least 2")
    return int(dim)
