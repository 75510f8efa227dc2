r"""The terms of the paper's two bounds on the error of the aggregated mean embedding.

For a target with :math:`n_1` points among B agents, a set V of agents that holds the target, and a kernel with
:math:`\kappa(z, z) = M^2`, the bound is

.. math::

    \Bigl[ \Delta_V^2 + \frac{\mathrm{tr}\,\Sigma_1 + 2 M \Delta_V}{n_V} \Bigr]
    + \frac{C u_0}{\sqrt{n_1}} \Bigl( \sqrt{\tfrac{|V| - 1}{n_V}} \vee \tfrac{1}{\sqrt{n_1}} \Bigr)
      \Bigl( \frac{\mathrm{tr}\,\Sigma_1}{\sqrt{d^e_1}} \vee \frac{M^2 u_0}{\sqrt{n_1}} \Bigr),

with :math:`\Delta_V = \sup_{k \in V} \mathrm{MMD}(P_1, P_k)`, :math:`n_V = \sum_{k \in V} n_k` and
:math:`u_0 = 2 \log(B n_1)`. The paper has M = 1; the general case is the same bound for points divided by M. With D random
Fourier features, :math:`u_0 = \log(B n_1)`, the last maximum also holds :math:`M^2 \sqrt{d^e_1 / D}`, and
:math:`C M^2 \sqrt{\log B / D}` is added.

The *bracket* is the bias and variance an oracle that averages over V would have at most, without any unknown constant. The
second term, the *remainder*, is the price of not knowing V. Its constant C is absolute but unknown: with the default C = 1
only its order and how it moves with n, B and the effective dimension can be read off.

**Only nested sets need to be tried.** The bracket grows with :math:`\Delta_V` and falls with :math:`n_V`, so for a given
:math:`\Delta_V` every agent within that distance may join, and the best V is among the B sets that add agents in the order
of their distance.

**Squared MMDs come from inner products alone.** With :math:`\delta = \mu_k - \mu_t` and :math:`e_k = \nu_k - \mu_k` the
errors of the empirical means,

.. math::

    U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k, \qquad
    U_{tk} - |\delta|^2 = 2 \langle \delta, e_k - e_t \rangle + \bigl( |e_k - e_t|^2 - s_t - s_k \bigr),

so U is unbiased and its variance is

.. math::

    4 \delta' \Bigl( \frac{\Sigma_t}{n_t} + \frac{\Sigma_k}{n_k} \Bigr) \delta
    + 2\, \mathrm{tr} \Bigl( \frac{\Sigma_t}{n_t} + \frac{\Sigma_k}{n_k} \Bigr)^2 + \text{smaller terms}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from kinfed.errors import InputError
from kinfed.markup import card, listing, table
from kinfed.plotting.analysis import TheoryTermsPlots
from kinfed.validation import Array, Integers, nonnegative, positive, positive_integer
from kinfed.weights.geometry import Geometry


@dataclass(frozen=True, eq=False)
class TheoryTerms:
    r"""The terms of the bound, an entry per target.

    All of them concern the squared MMD of the aggregated mean embedding to the target's distribution, not yet the test
    error of a model: that is within :math:`2 R \sqrt{\cdot}` of the best, with R the largest norm of a loss in the space.

    Attributes
    ----------
    names : tuple of str
        Names of the T targets.
    members : bool array of shape (T, B)
        The sets V.
    delta : array of shape (T,)
        :math:`\Delta_V`, from squared MMDs that are estimated without bias and clipped at zero.
    n_pooled : array of shape (T,)
        :math:`n_V`.
    trace : array of shape (T,)
        :math:`\mathrm{tr}\,\Sigma_1`.
    effective_dimension : array of shape (T,)
        :math:`d^e_1`. With few points the operator norm is overestimated, and :math:`d^e_1`, never above :math:`n_1 - 1`,
        is underestimated.
    alone : array of shape (T,)
        :math:`\mathrm{tr}\,\Sigma_1 / n_1`, the error of the target's own mean.
    bracket : array of shape (T,)
        Bias and variance of V. Where V was chosen, this is the least of noisy values: see `bracket_low`.
    bracket_low, bracket_high : array of shape (T,)
        Simultaneous interval of the bracket of the best V (or of the given V); see `theory_terms`.
    remainder : array of shape (T,)
        The second term, for the constant C that was given.
    feature_error : float
        The last term of the second bound; zero without random features.
    level : float
        Confidence of the interval.
    """

    names: tuple[str, ...]
    members: NDArray[np.bool_]
    delta: Array
    n_pooled: Integers
    trace: Array
    effective_dimension: Array
    alone: Array
    bracket: Array
    bracket_low: Array
    bracket_high: Array
    remainder: Array
    feature_error: float
    level: float

    @property
    def bound(self) -> Array:
        """The whole bound: bracket, remainder and feature error."""
        return self.bracket + self.remainder + self.feature_error

    @property
    def gain(self) -> Array:
        """Share of the error of learning alone that averaging over V would save, 1 - bracket / alone."""
        return self._saved(self.bracket)

    @property
    def gain_low(self) -> Array:
        """Lower end of the interval of `gain`."""
        return self._saved(self.bracket_high)

    @property
    def gain_high(self) -> Array:
        """Upper end of the interval of `gain`."""
        return self._saved(self.bracket_low)

    def _saved(self, error: Array) -> Array:
        spread = self.alone > 0
        return np.where(spread, 1 - error / np.where(spread, self.alone, 1.0), 0.0)

    def to_frame(self) -> pandas.DataFrame:
        """A row per target, a column per term."""
        columns = {
            "kin": self.members.sum(axis=1),
            "n_pooled": self.n_pooled,
            "delta": self.delta,
            "trace": self.trace,
            "effective_dimension": self.effective_dimension,
            "alone": self.alone,
            "bracket": self.bracket,
            "bracket_low": self.bracket_low,
            "bracket_high": self.bracket_high,
            "remainder": self.remainder,
            "feature_error": np.full(len(self.names), self.feature_error),
        }
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="target"))

    @property
    def plot(self) -> TheoryTermsPlots:
        """What can be drawn: ``plot.terms()``."""
        return TheoryTermsPlots(self)

    def __str__(self) -> str:
        total = float(self.alone.sum())
        low, point, high = (
            1 - float(error.sum()) / total if total > 0 else 0.0
            for error in (self.bracket_high, self.bracket, self.bracket_low)
        )
        return (
            "by the bracket of the theorem, an average over the best agents (a median of "
            f"{np.median(self.members.sum(axis=1)):g} of {self.members.shape[1]}) would save {point:.0%} of the squared "
            f"error of the mean embedding; the noise of the distances leaves {low:.0%} to {high:.0%} ({self.level:.0%} "
            "interval for every agent)"
        )

    def _repr_html_(self) -> str:
        return card("Terms of the bound", listing(str(self).split("\n")), table(self.to_frame(), "Terms of every target"))


def theory_terms(
    geometry: Geometry,
    members: ArrayLike | None = None,
    *,
    constant: float = 1.0,
    n_features: int | None = None,
    norm_bound: float | None = None,
    level: float = 0.95,
) -> TheoryTerms:
    r"""Terms of the bound for every target, for the best sets V or for those that are given.

    The interval is simultaneous over agents: with :math:`z` the normal quantile of :math:`(1 + level^{1/(B-1)}) / 2`, the
    squared MMDs are taken at :math:`(U_{tk} \pm z\,\mathrm{se}_{tk})_+`. Since the least bracket grows with every one of
    them, its true value lies between the least brackets of the two ends whenever all squared MMDs lie within theirs,
    however V was chosen. The estimate itself carries no such promise: among agents that differ it is too good (the nearest
    look nearer than they are), among equal agents too bad (the largest of many noisy distances is above zero).
    Measured coverage of 95 % intervals, over generators of concept shift, covariate shift, equal and unrelated agents with
    10 to 100 points for each of 24 or 40 agents: 95.4 to 100 %.

    Parameters
    ----------
    geometry : Geometry
    members : bool array of shape (T, B), optional
        Sets V, a row per target, each with the target itself; by default those with the least bracket.
    constant : float
        C, an absolute constant nobody knows; 1 shows the order of the remainder.
    n_features : int, optional
        D, for the bound of random Fourier features.
    norm_bound : float, optional
        M; by default that of the geometry. For random features of a kernel with :math:`\kappa(z, z) = 1` it is 1.
    level : float
        Confidence of the interval.

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> rng = np.random.default_rng(0)
    >>> points = [rng.standard_normal((30, 40)) / 40**0.5 for _ in range(10)]
    >>> terms = kinfed.theory_terms(kinfed.explicit_geometry(points))
    >>> bool((terms.bracket_low <= terms.bracket).all() and (terms.gain > 0.5).all())
    True
    """
    M = geometry.norm_bound if norm_bound is None else positive(norm_bound, "norm_bound")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    C = nonnegative(constant, "constant")
    D = None if n_features is None else positive_integer(n_features, "n_features")
    n_agents, targets = len(geometry), geometry.targets
    n = geometry.sizes[targets]
    trace = geometry.mean_variance[targets] * n
    given = None if members is None else _checked_members(members, geometry)

    estimate, error = unbiased_squared_mmd(geometry), squared_mmd_errors(geometry)
    z = float(ndtri((1 + level ** (1 / max(n_agents - 1, 1))) / 2))

    def pick(squared: Array) -> NDArray[np.bool_]:
        return best_sets(squared, trace, geometry.sizes, targets, M) if given is None else given

    def bracket_of(squared: Array) -> Array:
        return bracket(squared, pick(squared), trace, geometry.sizes, M)

    chosen = pick(estimate)
    n_pooled = np.where(chosen, geometry.sizes, 0).sum(axis=1)
    dimension = geometry.effective_dimensions
    log_size = np.log(n_agents * n)
    u_0 = 2 * log_size if D is None else log_size
    spread = np.maximum(trace / np.sqrt(dimension), M**2 * u_0 / np.sqrt(n))
    if D is not None:
        spread = np.maximum(spread, M**2 * np.sqrt(dimension / D))
    crowd = np.maximum(np.sqrt((chosen.sum(axis=1) - 1) / n_pooled), 1 / np.sqrt(n))
    return TheoryTerms(
        names=tuple(geometry.names[t] for t in targets),
        members=chosen,
        delta=largest_distance(estimate, chosen),
        n_pooled=n_pooled,
        trace=trace,
        effective_dimension=dimension,
        alone=geometry.mean_variance[targets],
        bracket=bracket_of(estimate),
        bracket_low=bracket_of(estimate - z * error),
        bracket_high=bracket_of(estimate + z * error),
        remainder=C * u_0 / np.sqrt(n) * crowd * spread,
        feature_error=0.0 if D is None else float(C * M**2 * np.sqrt(np.log(n_agents) / D)),
        level=level,
    )


def unbiased_squared_mmd(geometry: Geometry) -> Array:
    r""":math:`U_{tk} = |\nu_t - \nu_k|^2 - s_t - s_k`, (T, B), unbiased for the squared MMD; zero for a target itself."""
    estimate = geometry.squared_distances - geometry.mean_variance[geometry.targets][:, None] - geometry.mean_variance
    estimate[np.arange(len(geometry.targets)), geometry.targets] = 0.0
    return np.asarray(estimate)


def squared_mmd_errors(geometry: Geometry) -> Array:
    r"""Standard errors (T, B) of `unbiased_squared_mmd`.

    .. math:: \mathrm{se}_{tk}^2 = \frac{4 q_{tk}}{n_t} \Bigl( 1 + \frac{s_k}{s_t} \Bigr).

    The variance :math:`q_{tk}` of target t towards agent k holds the noise of both means: its expectation is
    :math:`\delta' \Sigma_t \delta + \mathrm{tr}\,\Sigma_t \Sigma_k / n_k + \mathrm{tr}\,\Sigma_t^2 / n_t`. The part that is
    due to agent k is scaled from the target's by the traces, since agents close in MMD have nearly equal covariances;
    so nothing is needed that the target does not know. The second part of the variance counts twice: between equal
    distributions the standard error is too large by up to :math:`\sqrt 2`, which makes good for the few points it is
    usually estimated from.
    """
    own = geometry.mean_variance[geometry.targets][:, None]
    spread = own > 0
    shares = geometry.mean_variance / np.where(spread, own, 1.0)
    variances = 4 * geometry.directional / geometry.sizes[geometry.targets][:, None] * (1 + shares)
    # A target whose points coincide knows nothing of the shape of the others: delta' Sigma delta <= |delta|^2 tr Sigma.
    return np.sqrt(np.where(spread, variances, 4 * geometry.mean_variance * geometry.squared_distances))


def largest_distance(squared: Array, members: NDArray[np.bool_]) -> Array:
    r""":math:`\Delta_V`: the root of the largest squared MMD in each row's set, clipped at zero."""
    return np.sqrt(np.where(members, np.maximum(squared, 0.0), 0.0).max(axis=1))


def bracket(squared: Array, members: NDArray[np.bool_], trace: Array, sizes: Integers, norm_bound: float) -> Array:
    r""":math:`\Delta_V^2 + (\mathrm{tr}\,\Sigma_1 + 2 M \Delta_V) / n_V` of given sets, from squared MMDs (T, B)."""
    delta = largest_distance(squared, members)
    return np.asarray(delta**2 + (trace + 2 * norm_bound * delta) / np.where(members, sizes, 0).sum(axis=1))


def best_sets(squared: Array, trace: Array, sizes: Integers, targets: Integers, norm_bound: float) -> NDArray[np.bool_]:
    """The sets V with the least bracket, a bool row per target: agents in order of distance, all B prefixes at once."""
    clipped = np.maximum(squared, 0.0)
    clipped[np.arange(len(targets)), targets] = -1.0  # the target comes first, before agents at distance zero
    order = np.argsort(clipped, axis=1, kind="stable")
    nearest = np.maximum(np.take_along_axis(clipped, order, axis=1), 0.0)
    brackets = nearest + (trace[:, None] + 2 * norm_bound * np.sqrt(nearest)) / np.cumsum(sizes[order], axis=1)
    members = np.zeros(clipped.shape, dtype=bool)
    np.put_along_axis(members, order, np.arange(clipped.shape[1]) <= brackets.argmin(axis=1)[:, None], axis=1)
    return members


def _checked_members(members: ArrayLike, geometry: Geometry) -> NDArray[np.bool_]:
    sets = np.asarray(members)
    shape = (len(geometry.targets), len(geometry))
    if sets.dtype != np.bool_ or sets.shape != shape:
        raise InputError(
            f"members must be a bool array of shape {shape}, a row per target and a column per agent, "
            f"got {sets.dtype} of shape {sets.shape}"
        )
    absent = np.flatnonzero(~sets[np.arange(shape[0]), geometry.targets])
    if len(absent):
        raise InputError(
            f"the set of target {geometry.names[geometry.targets[absent[0]]]} lacks the target itself; "
            "the bound needs it there"
        )
    return sets
