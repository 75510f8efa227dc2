r"""What collaborating would save, measured on points the weights have not seen, before any model is trained.

The unbiased risk of `Weights` and the bracket of `theory_terms` both look at the data that chose the weights or the set,
and are far too good for it. Here every agent sets aside a fold of its points; the rest A gives means :math:`\nu^A`, weights
w and the aggregate :math:`m_t = \sum_k w_k \nu^A_k`. For a held out point the paired difference

.. math::

    c_i = |m_t - \Phi_i|^2 - |\nu^A_t - \Phi_i|^2
        = |m_t - \nu^A_t|^2 + 2 \langle m_t - \nu^A_t, \nu^A_t - \Phi_i \rangle

has expectation :math:`|m_t - \mu_t|^2 - |\nu^A_t - \mu_t|^2` given A: what the aggregate changes, whatever the rule and
however it looked at A.

That is the change with the points of A. With all points the variance of every mean is smaller, so weights w change the
error by :math:`\sum_k (1_{k = t} - w_k^2) (s^A_k - s_k)` more, where :math:`s^A_k = s_k n_k / n^A_k`. The mean of both over
all points and folds, relative to :math:`s_t`, is minus the gain: without bias for weights that do not depend on the data,
and on the low side for weights that get better with more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
from numpy.typing import ArrayLike, NDArray

from kinfed.analysis.bootstrap import bootstrap_interval
from kinfed.analysis.bounds import TheoryTerms, theory_terms
from kinfed.analysis.held_out_risk import ALONE, TOGETHER, FoldRisk, HeldOutRisk, held_out_risk, ridge_rows
from kinfed.backends.pooled import PooledAgents
from kinfed.embedding import FourierFeatures
from kinfed.errors import InputError
from kinfed.markup import card, listing, table
from kinfed.plotting.analysis import PredictedGainPlots
from kinfed.progress import Progress
from kinfed.validation import Array, FloatArray, Integers, agents_points, positive_integer
from kinfed.weights import explicit_geometry, weigh

_CLEAR = 2.0  # standard errors


@dataclass(frozen=True, eq=False)
class PredictedGain:
    r"""Predicted saving in the squared error of the mean embedding, an entry per agent.

    Shares of the error :math:`\mathrm{tr}\,\Sigma_t / n_t` of the agent's own mean: 0.4 is an error 40 % smaller; below
    zero it is larger. This is not yet the test error of a model, whose excess risk is at most
    :math:`2 R\,\mathrm{MMD}` with R the largest norm of a loss in the space of the kernel.

    Attributes
    ----------
    names : tuple of str
    sizes : array of shape (B,)
    rule : str
        The rule behind `gain` and `optimistic_gain`.
    gain : array of shape (B,)
        Measured on held out points; NaN for agents with fewer than three points. The weights have seen (K - 1)/K of the
        data, so where they still get better with more of it this errs on the low side.
    standard_error : array of shape (B,)
        Of `gain`, from the spread over held out points.
    optimistic_gain : array of shape (B,)
        One minus the unbiased risk of the weights over :math:`s_t`, on the data that chose them: what these weights would
        reach if they had been fixed beforehand. Far too good, even above 1, and shown for comparison.
    mean_gain : float
        Of the federation: saved error over the error alone, both summed over agents.
    interval : tuple of float
        Confidence interval of `mean_gain`, from resampling agents; NaN with fewer than two.
    level : float
        Its confidence, and that of the intervals in `terms`.
    folds : int
        K.
    terms : TheoryTerms
        Terms of the paper's bound for the best sets of agents.
    risk : HeldOutRisk, optional
        The paper's bound on what models lose, beside what they lose; for ridge alone, and two agents or more.

    Notes
    -----
    How right this is was measured on generators of concept shift, covariate shift, equal and unrelated agents, 24 or 40
    agents with 10, 30 or 100 points, 20 to 25 federations each.

    - The similarity test: the prediction was within 0.06 of the true gain of the federation, 0.01 below it on average; the
      95 % interval held it in 70 to 100 % of the runs, 90 % on average. Agents share data and so resampling them is
      a little too sure.
    - Q-aggregation stopped early: weights of part of the points gain less, and the prediction was mostly 0.01 to 0.07 too
      low. The lower end was below the true gain in 90 to 100 % of the runs, while the whole interval held it in 25 to 72 %
      with 10 points per agent and in 68 to 100 % with 30 or more. Rely on the lower end.
    - Single agents: `gain` minus two standard errors was above the truth in 0.3 to 7 % of the cases, and in up to 17 % for
      the similarity test among agents without kin.
    - `optimistic_gain` on the same data was too high by up to 0.8.
    """

    names: tuple[str, ...]
    sizes: Integers
    rule: str
    gain: Array
    standard_error: Array
    optimistic_gain: Array
    mean_gain: float
    interval: tuple[float, float]
    level: float
    folds: int
    terms: TheoryTerms
    risk: HeldOutRisk | None = None

    def to_frame(self) -> pandas.DataFrame:
        """A row per agent: sizes, gains and the terms of the bound."""
        columns = {
            "n": self.sizes,
            "gain": self.gain,
            "standard_error": self.standard_error,
            "optimistic_gain": self.optimistic_gain,
            "bracket_gain": self.terms.gain,
            "bracket_gain_low": self.terms.gain_low,
            "bracket_gain_high": self.terms.gain_high,
        }
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="target")).join(self.terms.to_frame())

    @property
    def plot(self) -> PredictedGainPlots:
        """What can be drawn: ``plot.gains()``."""
        return PredictedGainPlots(self)

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"agent {self.names[0]} is alone: there is nobody to learn from, and nothing to predict"
        known = ~np.isnan(self.gain)
        gain, clear = self.gain[known], _CLEAR * self.standard_error[known]
        mean, (low, high) = self.mean_gain, self.interval
        change = f"save {mean:.0%}" if mean >= 0 else f"add {-mean:.0%}"
        least = f"save at least {low:.0%}" if low >= 0 else f"add at most {-low:.0%}"
        return (
            f"{self.rule} is predicted to {change} of the squared error that the mean embedding of learning alone has, and "
            f"to {least} (lower end of the {self.level:.0%} interval; the truth is often above the upper end, {high:+.0%}, "
            f"for rules that improve with more points): it saves for {np.sum(gain > 0)} of {len(gain)} agents, by more "
            f"than {_CLEAR:g} standard errors for {np.sum(gain > clear)}, and costs as much for {np.sum(-gain > clear)}\n"
            f"{self.terms}"
        )

    def _repr_html_(self) -> str:
        return card(
            "Predicted gain",
            listing(str(self).split("\n")),
            table(self.to_frame().drop(columns=self.terms.to_frame().columns), "Gain of every agent"),
        )


def predict_gain_of_points(
    points: Mapping[Any, ArrayLike] | Sequence[ArrayLike],
    rule: str = "q-aggregation",
    *,
    options: Mapping[str, Any] | None = None,
    norm_bound: float | None = None,
    kernel_bound: float | None = None,
    n_features: int | None = None,
    constant: float = 1.0,
    folds: int = 10,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
    each_fold: Callable[[list[NDArray[np.bool_]], Array], None] | None = None,
) -> PredictedGain:
    """Predict the gain of a rule over learning alone from points that are embedded already.

    Parameters
    ----------
    points : one (n_k, D) array per agent
    rule, options
        A key of `kinfed.RULES`, and what it takes.
    norm_bound : float, optional
        M of the rule; see `kinfed.explicit_geometry`.
    kernel_bound, n_features, constant, level
        M, D, C and the confidence for `kinfed.theory_terms`.
    folds : int
        K, at least 3; agents with fewer points leave one out at a time.
    seed : int
        Of the division into folds.
    progress : callable, optional
        Called as ``progress("predicted gain", folds done, folds)``.
    each_fold : callable, optional
        Called in every fold with the points that each agent sets aside, as a bool array, and the weights of the others.
    """
    names, arrays = agents_points(points)
    n_folds = positive_integer(folds, "folds")
    if n_folds < 3:
        raise InputError(f"folds must be at least 3, got {n_folds}: an agent with three points must keep two of them")
    chosen = dict(options or {})
    whole = explicit_geometry(dict(zip(names, arrays, strict=True)), norm_bound=norm_bound)
    terms = theory_terms(whole, constant=constant, n_features=n_features, norm_bound=kernel_bound, level=level)
    risk = weigh(whole, rule, **chosen).risk
    rng = np.random.default_rng(seed)
    # A fold for every point, as equal in size as can be; -1, in no fold, where two points must stay.
    fold_of = [np.full(n, -1) if n < 3 else rng.permutation(np.arange(n) % n_folds) for n in map(len, arrays)]
    changes = [np.full(len(array), np.nan) for array in arrays]
    for fold in range(n_folds):
        kept = [array[own != fold] for array, own in zip(arrays, fold_of, strict=True)]
        # The bound is the same in every fold, whatever points it holds.
        matrix = weigh(explicit_geometry(kept, norm_bound=whole.norm_bound), rule, **chosen).matrix
        means = np.array([array.mean(axis=0, dtype=np.float64) for array in kept])
        shifts = matrix @ means - means
        variances = whole.mean_variance * (whole.sizes / np.array([len(array) for array in kept]) - 1)
        still_to_come = variances - matrix**2 @ variances
        for t, (array, own) in enumerate(zip(arrays, fold_of, strict=True)):
            changes[t][own == fold] = held_out_change(shifts[t], means[t], array[own == fold]) + still_to_come[t]
        if each_fold is not None:
            each_fold([own == fold for own in fold_of], matrix)
        if progress is not None:
            progress("predicted gain", fold + 1, n_folds)

    saved = -np.array([change.mean() for change in changes])
    deviation = np.array([change.std(ddof=1) / np.sqrt(len(change)) for change in changes])
    mean_gain, interval = _over_agents(saved, whole.mean_variance, level, seed)
    return PredictedGain(
        names=names,
        sizes=whole.sizes,
        rule=rule,
        gain=_relative(saved, whole.mean_variance),
        standard_error=_relative(deviation, whole.mean_variance),
        optimistic_gain=1 - _relative(risk, whole.mean_variance, otherwise=1.0),
        mean_gain=mean_gain,
        interval=interval,
        level=level,
        folds=n_folds,
        terms=terms,
    )


def held_out_change(shift: Array, mean: Array, held_out: FloatArray) -> Array:
    r""":math:`c_i = |m - \Phi_i|^2 - |\nu - \Phi_i|^2` for :math:`m = \nu` + shift and every held out point."""
    return np.asarray(shift @ shift + 2 * (mean - held_out) @ shift)


def _relative(values: Array, scale: Array, otherwise: float = 0.0) -> Array:
    """Values / scale; where an agent's points coincide there is no error to save."""
    vanishes = scale == 0
    return np.where(vanishes, otherwise, values / np.where(vanishes, 1.0, scale))


def _over_agents(saved: Array, alone: Array, level: float, seed: int) -> tuple[float, tuple[float, float]]:
    """The ratio of sums and its interval, from the agents' first-order contributions to the ratio."""
    known = ~np.isnan(saved)
    total = float(alone[known].sum())
    if total == 0:
        return 0.0, (float("nan"), float("nan"))
    gain = float(saved[known].sum()) / total
    contributions = gain + (saved[known] - gain * alone[known]) * (int(known.sum()) / total)
    return gain, bootstrap_interval(contributions, level=level, seed=seed)


def gain_of(agents: PooledAgents, rule: str, options: Mapping[str, Any], **how: Any) -> PredictedGain:
    """The predicted gain of agents whose rows are here, under the usual way to compare them."""
    embedding = agents.embeddings[0]
    features = embedding.features
    # The bound is about the kernel behind the random features, not about the features themselves.
    kernel_bound = float(np.sqrt(features.kernel.diagonal_bound)) if isinstance(features, FourierFeatures) else None
    rows = ridge_rows(agents) if len(agents.spec.names) > 1 else None
    found: list[tuple[FoldRisk, ...]] = []
    predicted = predict_gain_of_points(
        dict(zip(agents.spec.names, agents.points(0), strict=True)),
        rule,
        options=options,
        norm_bound=embedding.norm_bound,
        kernel_bound=kernel_bound,
        n_features=None if kernel_bound is None else features.n_features,
        seed=agents.seed,
        each_fold=None if rows is None else lambda aside, weights: found.append(rows.fold(aside, weights)),
        **how,
    )
    if rows is None:
        return predicted
    folds = list(zip(*found, strict=True))
    return replace(predicted, risk=held_out_risk((ALONE, TOGETHER, rule), folds, rows))
