r"""One convex combination of the members for the whole federation.

With :math:`L_t(w)` the mean out-of-fold loss of agent t when the members' predictions are mixed with shares w,
numbers or probabilities of classes, the shares are

.. math:: \min_{w \in \Delta} \frac1T \sum_t \frac{L_t(w)}{s_t} ,

where :math:`s_t` is the agent's own scale: the mean of its loss alone and of the median of these, so that nobody counts
more than twice what a typical agent does. For squared errors it is a quadratic problem of M variables; for log losses,
:math:`-\log \sum_m w_m p_m`, which are convex in the shares, two or three such problems, each with gradient and curvature
at the last shares. Mixtures of linear models are linear models, so in the end every agent has one vector of coefficients;
for classes it has one of every member. Mixing logits instead would give one vector there too, but logits of few rows are
too sure, and their mixture is as well (docs/stacking.md).

Agents are few, and the best combination of many members follows their noise. So agents are resampled (Bayesian
bootstrap), and the shares are half the mean of the best combinations, half the frequencies with which each single member
is the best. And members that are not simple have to be better than the others by a margin :math:`h_m` relative to the
loss (`kinfed.priors.family.margins`), which is large where agents are few: :math:`h'w` times the least loss is added.
docs/stacking.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kinfed.backends.agents import Places
from kinfed.priors.judging import JudgedMembers
from kinfed.splitting import derived_seed
from kinfed.validation import Array

MOST_STEPS = 4
RESAMPLINGS = 40
NOTHING = 1e-3
"""Members of a smaller share are left out."""
_STILL = 1e-4
_FLAT = 1e-8  # of the mean eigenvalue


@dataclass(frozen=True, eq=False)
class Stack:
    """The shares of the members (M,), what was told at the last ones that were asked for, those, and the margins."""

    shares: Array
    judged: JudgedMembers
    at: Array
    margins: Array

    @property
    def used(self) -> Places:
        """Places of the members that have a share."""
        return np.flatnonzero(self.shares > NOTHING)


def agent_scales(judged: JudgedMembers, local: Places) -> Array:
    """What an agent's loss is measured in, (B,); `local` are the places of the members that learn alone."""
    seen = judged.n > 0
    alone = judged.losses[:, local]
    best = alone[:, np.argmin(alone[seen].mean(axis=0))]
    typical = np.median(best[seen])
    return np.asarray(np.where(seen & (best + typical > 0), (best + typical) / 2, np.inf))


def stacked_shares(
    ask: Callable[[Array], JudgedMembers],
    count: int,
    local: Places,
    quadratic: bool,
    seed: int,
    margins: Array | None = None,
) -> Stack:
    """Shares of the members of a family.

    Parameters
    ----------
    ask : callable
        What agents tell at shares (M,).
    count : int
        M.
    local : array of int
        Places of the members that learn alone; all of them where there are none.
    quadratic : bool
        Whether losses are quadratic in the shares, so that agents are asked once.
    seed : int
    margins : array of shape (M,), optional
        By which share of the loss each member has to be better than others.
    """
    shares, apart = np.full(count, 1.0 / count), np.zeros(count) if margins is None else margins
    judged = ask(shares)
    if count > 1 and (judged.n > 0).any():
        for _ in range(MOST_STEPS if not quadratic else 0):
            new = simplex_minimum(*_problem(judged, shares, _even(judged)))
            moved = float(np.abs(new - shares).max())
            shares, judged = new, ask(new)
            if moved < _STILL:
                break
        weights = agent_weights(judged, local, quadratic)
        return Stack(bagged_shares(judged, shares, weights, seed, apart), judged, shares, apart)
    return Stack(shares, judged, shares, apart)


def agent_weights(judged: JudgedMembers, local: Places, quadratic: bool) -> Array:
    """What agents count (B,): squared errors by their scales, log losses all the same."""
    return 1.0 / agent_scales(judged, local) if quadratic else _even(judged)


def single_shares(losses: Array, weights: Array, seed: int) -> Array:
    """How often each member is the best one by losses (B, M), over resampled agents."""
    rng = np.random.default_rng(derived_seed(seed, "stacking"))
    drawn = weights * rng.exponential(size=(RESAMPLINGS, len(weights)))
    return np.bincount(np.argmin(drawn @ losses, axis=1), minlength=losses.shape[1]) / RESAMPLINGS


def bagged_shares(judged: JudgedMembers, at: Array, weights: Array, seed: int, margins: Array | None = None) -> Array:
    """Half the mean of the best combinations, and half how often each member is the best one, over resampled agents.

    `at` are the shares at which derivatives were told, and `weights` (B,) what agents count.
    """
    rng = np.random.default_rng(derived_seed(seed, "stacking"))
    found = np.zeros(len(at))
    for _ in range(RESAMPLINGS):
        drawn = weights * rng.exponential(size=len(weights))
        curvature, slope = _problem(judged, at, drawn)
        losses = drawn @ judged.losses
        handicap = 0.0 if margins is None else margins * losses.min()
        found += simplex_minimum(curvature, slope + handicap) / 2
        found[np.argmin(losses + handicap)] += 0.5
    return np.asarray(found / found.sum())


def _problem(judged: JudgedMembers, at: Array, weights: Array) -> tuple[Array, Array]:
    """Curvature and slope of the weighted loss as a function of the shares."""
    curvature = np.einsum("t,tij->ij", weights, judged.curvature)
    return curvature, weights @ judged.gradient - curvature @ at


def _even(judged: JudgedMembers) -> Array:
    return np.asarray((judged.n > 0) / max(int((judged.n > 0).sum()), 1))


def simplex_minimum(curvature: Array, slope: Array) -> Array:
    r"""The w on the simplex that minimises :math:`\tfrac12 w'Hw + g'w`.

    Parameters
    ----------
    curvature : array of shape (M, M)
        H, positive semidefinite.
    slope : array of shape (M,)
        g.
    """
    count = len(slope)
    # Members are alike; what they differ in by less than this does not count, and keeps the root well conditioned.
    scale = max(float(np.trace(curvature)) / count, 1e-300)
    values, vectors = np.linalg.eigh(curvature)
    root = np.sqrt(np.maximum(values, _FLAT * scale))[:, None] * vectors.T
    # On the simplex a constant may be added to the slope.
    goal = -np.linalg.solve(root.T, slope - slope.mean())
    heavy = 1e4 * (np.sqrt(scale) + float(np.abs(goal).max()))
    found, _ = nnls(np.vstack([root, np.full((1, count), heavy)]), np.append(goal, heavy), maxiter=100 * count)
    return np.asarray(found / found.sum())
