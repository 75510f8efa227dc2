r"""What every agent may expect of joining, before any test: its gain over learning alone, with an interval, and advice.

The gain is the share of the loss of learning alone (tuned by the same folds) that the personal model saves on new rows,
:math:`g_t = D_t / (S_t + D_t)`, with :math:`S_t` the personal model's loss and :math:`D_t` what it saves. By
`kinfed.priors.own_gain`, with all of its rows the agent has the divergence q of its two models, its variance v, and the
expected excess loss of the personal model; the rows that were held out, at four fifths of the rows, say how far that
holds:

.. math:: D_t = c\, q_t + y_t, \quad y_t \sim N(0, k v_t), \qquad S_t = r_t + y_t^2 / 4 q_t .

- c, near one, is by how much losses on rows held out fell, over what was expected of the models judged there; it is
  drawn towards one, as the noise of agents demands.
- k (`kinfed.priors.own_gain.width`) is how much of the posteriors' covariance is there.
- :math:`y_t^2 / 4 q_t` is the part of :math:`S_t` that errs along the difference of the two models (for squared errors; for
  log losses it is left out), and :math:`r_t` the rest: the loss on rows held out, less what one fifth more rows saves,
  relative to what the federation expects for such an agent, and shrunk (`kinfed.weights.shrinkage`).

Everything that is judged was fitted without the judged rows: priors without the agent's group, and so the shares of the
members, for stacking and for learning alone. What single agents lose on rows held out says next to nothing of their own
gain beyond q: over generators it hardly raised the share of the variance of true gains that q explains.

Every constant was tuned on generators (concept shift and agents without structure, 12 to 100 agents, 5 to 200 rows, 5 to
20 columns), none on real data, with seeds 0 to 3, and widths once more with seed 100; see
`benchmarks.expected_gain` for others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas
from numpy.typing import NDArray
from scipy import stats

from kinfed.backends.agents import Places, TrainingSpec
from kinfed.priors.judging import repeats_of
from kinfed.priors.normal import Priors, RowMoments
from kinfed.priors.own_gain import FINAL, JUDGED, OwnGain, OwnGains, typical_rows
from kinfed.priors.own_shares import member_scales, shares_of_agents
from kinfed.priors.stacking import NOTHING, Stack, agent_weights, bagged_shares, single_shares
from kinfed.validation import Array
from kinfed.weights.calibration.family import JOIN, STAY, UNKNOWN
from kinfed.weights.shrinkage import shrunken

LEVEL = 0.9
"""Of the intervals."""
LIKELY = 0.8
"""An agent is advised to join, or to stay local, where that is so probable to be right."""
DOUBT, DOUBT_CLASSES = 0.1, 0.3
"""How far c may be from one, as a standard deviation, before anything was held out."""
ROUGH_CLASSES = 0.3
"""How far c of four fifths of the rows is from that of all, for classes: divergences are no quadratic functions there."""
ROW_NOISE = 2.0
"""By how much means of losses over few rows vary more than independent rows would: the rows share their models."""
ALIKE = 0.1
"""The part of the agents' uncertainty that they have in common: they share their priors."""
RATIO_NOISE = 5.0
"""n times the variance of the logarithm of a mean divergence over n rows, relative to typical ones (2.7 to 4.7)."""
_NODES = stats.norm.ppf((np.arange(41) + 0.5) / 41)
_LEAST = 0.1  # of a loss: no part of it is taken to be smaller
_LEAST_ALONE = 0.5  # of the personal model's: nobody is taken to lose less alone


@dataclass(frozen=True, eq=False)
class ExpectedGain:
    """What agents may expect of joining, as shares of the loss that they would have alone: 0.1 is a loss 10 % smaller.

    Attributes
    ----------
    names : tuple of str
        The B agents.
    gain, error : arrays of shape (B,)
        Posterior mean and standard deviation; NaN for agents that told nothing.
    low, high : arrays of shape (B,)
        Ends of the interval.
    level : float
        The probability that a gain is between them.
    probability : array of shape (B,)
        That the gain is above zero.
    mean : float
        Mean gain over agents.
    interval : tuple of float
        Of `mean`.
    """

    names: tuple[str, ...]
    gain: Array
    error: Array
    low: Array
    high: Array
    level: float
    probability: Array
    mean: float
    interval: tuple[float, float]

    @property
    def advice(self) -> tuple[str, ...]:
        """For every agent "join", "stay local", or that it cannot be said, by the probability alone."""
        return tuple(
            JOIN if one >= LIKELY else STAY if one <= 1 - LIKELY else UNKNOWN
            for one in self.probability  # NaN is neither
        )

    @property
    def table(self) -> pandas.DataFrame:
        """A row per agent."""
        columns = {name: getattr(self, name) for name in ("gain", "error", "low", "high", "probability", "advice")}
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="agent"))

    def __str__(self) -> str:
        if not np.isfinite(self.mean):
            return "nothing can be said of what agents gain by joining"
        low, high = self.interval
        advice = self.advice
        return (
            f"agents are expected to lose {abs(self.mean):.1%} {'less' if self.mean >= 0 else 'more'} than alone on "
            f"average ({self.level:.0%} interval of the gain {low:+.1%} to {high:+.1%}); "
            f"advice: {', '.join(f'{advice.count(word)} {word}' for word in (JOIN, STAY, UNKNOWN))}"
        )


def own_gain_question(
    spec: TrainingSpec,
    priors: Sequence[Priors],
    groups: Places,
    evidence: RowMoments,
    stack: Stack,
    kinds: Sequence[Places],
    strength: float = 0.0,
) -> OwnGain:
    """What everybody is asked once more, so that `expected_gain` can predict.

    Parameters
    ----------
    spec : TrainingSpec
    priors : sequence of Priors
        Of every group, without its agents, of all members that were judged.
    groups : array of int of shape (B,)
    evidence : RowMoments
        Of everybody.
    stack : Stack
        Shares of all members, and what was told of them.
    kinds : two arrays of int
        Places of the members that learn alone, and of those that may share in personal models.
    strength : float
        How far shares in personal models follow everybody's own rows.
    """
    quadratic = spec.task == "regression"
    of_groups = [shares_without(groups == one, stack, kinds, quadratic, spec.seed) for one in range(len(priors))]
    shares = np.array(of_groups)[groups]
    scales, _ = member_scales(stack.judged, stack.shares, spec.task)
    own = shares_of_agents(shares[:, 1], stack.judged, scales, strength)
    shares = np.concatenate([shares, own[:, None]], axis=1)
    # For classes, scores of all members are kept where the rows are.
    used = np.flatnonzero((shares > NOTHING).any(axis=(0, 1))) if quadratic else np.arange(shares.shape[2])
    shares = shares[..., used] / shares[..., used].sum(axis=2, keepdims=True)
    chosen = tuple(one.select(used) for one in priors)
    return OwnGain(chosen, groups, shares, typical_rows(evidence, spec), repeats_of(spec))


def expected_gain(told: OwnGains, spec: TrainingSpec) -> ExpectedGain:
    """The posteriors of all agents' gains, from what they told."""
    return predicted(told, spec.names, spec.task != "regression", quiet=spec.quiet)


def shares_without(aside: NDArray[np.bool_], stack: Stack, kinds: Sequence[Places], quadratic: bool, seed: int) -> Array:
    """Shares (kinds, M) of the members of each kind, from what agents told that are not `aside` (B,)."""
    judged, (local, _) = stack.judged, kinds
    weights = agent_weights(judged, local, quadratic)
    weights = weights * ~aside if (weights * ~aside).any() else weights
    found = np.zeros((len(kinds), judged.losses.shape[1]))
    for shares, places in zip(found, kinds, strict=True):
        among, at, margins = judged.of_members(places), stack.at[places], stack.margins[places]
        if quadratic:  # derivatives are known everywhere
            shares[places] = bagged_shares(replace(among, gradient=among.curvature @ at), at, weights, seed, margins)
        elif np.isclose(at.sum(), 1.0):
            shares[places] = bagged_shares(among, at, weights, seed, margins)
        else:  # derivatives were told elsewhere, but losses of single members are known
            shares[places] = single_shares(among.losses, weights, seed)
    return found


def predicted(
    told: OwnGains, names: tuple[str, ...], classes: bool = False, level: float = LEVEL, quiet: Collection[int] = ()
) -> ExpectedGain:
    """The posteriors of all agents' gains, from what they told of numbers or classes; those of quiet agents are zero."""
    judges = (told.n > 1) & (told.judged[:, : JUDGED.index("excess")] > 0).all(axis=1)
    found, spread = np.full((5, len(names)), np.nan), np.nan
    if judges.any():
        ends = (1 - level) / 2, (1 + level) / 2
        loss, doubt = _losses(told, judges)
        saving = _savings(told, judges, loss, classes)
        for k in np.flatnonzero(np.isfinite(told.final).all(axis=1)).tolist():
            likely, above = _posterior(told.final[k], saving, k, loss[k], doubt[k])
            found[:, k] = likely.mean(), likely.std(), *np.quantile(likely, ends), above
    found[:, list(quiet)] = 0.0
    gain, error = found[:2, np.isfinite(found[0])]
    mean = float(gain.mean()) if len(gain) else np.nan
    if len(gain):
        independent = float(np.square(error).sum()) / len(gain) ** 2
        spread = float(np.sqrt(ALIKE * error.mean() ** 2 + (1 - ALIKE) * independent))
    half = float(stats.norm.ppf((1 + level) / 2)) * spread
    means, errors, low, high, probability = found
    return ExpectedGain(names, means, errors, low, high, level, probability, mean, (mean - half, mean + half))


def _posterior(final: Array, saving: Saving, k: int, loss: float, doubt: float) -> tuple[Array, float]:
    """The posterior of the gain of agent k, as equally likely values, and the probability that it is above zero."""
    apart, variance, _, excess_variance = final * np.array([saving.ratio[k], saving.ratio[k] ** 2, 1.0, 1.0])
    deviation = np.sqrt(variance + (saving.error * apart) ** 2)
    move = deviation * _NODES[:, None]
    along = np.square(move) / (4 * apart) if apart > 0 and not saving.classes else np.zeros_like(move)
    rest = max(loss - float(along.mean()), _LEAST * loss)
    unknown = max(doubt, np.log1p(excess_variance / (2 * rest**2)))
    joined = rest * np.exp(np.sqrt(unknown) * _NODES - unknown / 2) + along
    mean = saving.factor * apart
    gains = 1 - joined / np.maximum(joined + mean + move, _LEAST_ALONE * joined)
    return gains, float(stats.norm.cdf(mean / deviation)) if deviation > 0 else (1 + float(np.sign(mean))) / 2


@dataclass(frozen=True, eq=False)
class Saving:
    """What rows held out say of the divergences.

    Attributes
    ----------
    ratio : array of shape (B,)
        Of divergences on own rows to those on typical ones.
    factor, error : float
        c, and its standard error.
    classes : bool
    """

    ratio: Array
    factor: float
    error: float
    classes: bool


def _losses(told: OwnGains, judges: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Losses of the personal models on new rows (B,), and variances of their logarithms.

    An agent of a mean loss b on rows held out, and an expected excess loss t there, is measured by b / (s + t), with s
    the noise of the federation.
    """
    rows, judged = told.n[judges], dict(zip(JUDGED, told.judged[judges].T, strict=True))
    loss, excess = judged["joined"], judged["excess"]
    noise = max(float(rows @ (loss - excess)), _LEAST * float(rows @ loss)) / float(rows.sum())
    relative = ROW_NOISE * float(np.mean(judged["variance"] / np.square(loss)))
    own = shrunken(np.log(loss / (noise + excess)), relative / rows)
    factors, doubt = np.full(len(judges), own.centre), np.full(len(judges), own.between + own.centre_variance)
    factors[judges], doubt[judges] = own.mean, own.variance
    factors = np.exp(factors)
    factors *= float(rows @ loss) / float(rows @ (factors[judges] * (noise + excess)))  # a mean of logarithms is too small
    return factors * (noise + told.final[:, FINAL.index("excess")]), doubt


def _savings(told: OwnGains, judges: NDArray[np.bool_], loss: Array, classes: bool) -> Saving:
    """From losses and divergences on rows held out."""
    rows, judged = told.n[judges], dict(zip(JUDGED, told.judged[judges].T, strict=True))
    apart, typical, saved = judged["apart"], judged["typically apart"], judged["alone"] - judged["joined"]
    # Own rows may be unlike typical ones.
    own = shrunken(np.log(apart / typical), RATIO_NOISE / rows)
    ratios = np.full(len(judges), own.centre)
    ratios[judges] = own.mean
    ratios = np.exp(ratios)
    unit = np.ones(len(rows)) if classes else loss[judges]  # log losses have one unit
    ratios *= float((apart / unit).sum()) / float((ratios[judges] * typical / unit).sum())
    # Variances of what is saved are taken to grow with the divergence.
    total = float((apart / unit).sum())
    factor = float((saved / unit).sum()) / total
    squares = float(np.mean(np.square(saved - factor * apart) / (apart * unit)))
    known = total / max(squares, 1e-300)
    prior = (DOUBT_CLASSES if classes else DOUBT) ** -2
    precision = known + prior
    factor = (factor * known + prior) / precision
    return Saving(ratios, factor, float(np.hypot(precision**-0.5, ROUGH_CLASSES * classes)), classes)
