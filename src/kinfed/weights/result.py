r"""What every weight rule returns: the weights, and why an agent is listened to.

For two agents of one distribution the squared distance :math:`|\nu_t - \nu_k|^2` of their mean embeddings (the biased
estimate of their squared MMD) has mean :math:`s_t + s_k` and is a weighted sum of chi squares with one weight per direction
of the covariance. With :math:`d^e` equal weights it would be :math:`(s_t + s_k) \chi^2_{d} / d`; since the effective
dimension :math:`d^e = \mathrm{tr}\,\Sigma / |\Sigma|_{op}` counts the fewest directions that are
consistent with the covariance, the quantile

.. math:: (s_t + s_k) \, \chi^2_{d^e, \, 0.95} / d^e

is on the safe side: a larger distance is evidence that the two differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas
from numpy.typing import NDArray
from scipy.special import gammaincinv

from kinfed.errors import InputError
from kinfed.learners.base import USUAL_PLAN, Plan
from kinfed.markup import card, paragraph, table
from kinfed.plotting.style import thumbnail
from kinfed.plotting.weights import WeightsPlots
from kinfed.validation import Array, one_of
from kinfed.weights.calibration.family import Calibration
from kinfed.weights.geometry import Geometry
from kinfed.weights.objective import from_target

CLOSED_FORM = "closed form: nothing was iterated"

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Evidence:
    """Squared distances between mean embeddings, and what chance explains of them.

    Attributes
    ----------
    squared_distances : array of shape (T, B)
        Squared MMD of every target and agent (biased estimate).
    null_means : array of shape (T, B)
        Mean :math:`s_t + s_k` of that distance between agents of one distribution.
    effective_dimension : array of shape (T,)
        Effective dimension :math:`d^e` of every target.
    """

    squared_distances: Array
    null_means: Array
    effective_dimension: Array

    @cached_property
    def null_quantiles(self) -> Array:
        """Quantile at `LEVEL` of the distance between agents of one distribution, shape (T, B)."""
        quantiles = 2 * gammaincinv(self.effective_dimension / 2, LEVEL)  # of chi squared with that many degrees of freedom
        return np.asarray(self.null_means * (quantiles / self.effective_dimension)[:, None])

    @property
    def differ(self) -> NDArray[np.bool_]:
        """Whether a target and an agent are farther apart than chance explains."""
        return self.squared_distances > self.null_quantiles


@dataclass(frozen=True, eq=False)
class Weights:
    r"""Collaboration weights: row t says how much target t listens to every agent.

    Attributes
    ----------
    matrix : array of shape (T, B)
        Rows on the simplex; of zeros for a target that was lost in training and has no model.
    rule : str
        The rule that made them.
    targets : array of shape (T,)
        The agent behind each row.
    names : tuple of str
        Names of the B agents.
    sizes : array of shape (B,)
        :math:`n_k`.
    risk : array of shape (T,)
        Unbiased estimate of the expected :math:`|\sum_k w_k \nu_k - \mu_t|^2` of fixed weights:
        :math:`|\sum_k w_k \nu_k - \nu_t|^2 + (2 w_t - 1) s_t`. Weights chosen on the same data make it optimistic.
    objective : array of shape (T,)
        What the rule minimised, :math:`f_t(w)`; NaN for rules in closed form.
    gap : array of shape (T,)
        Certified bound on :math:`f_t(w) - \min f_t`; NaN for rules in closed form.
    stop : tuple of str
        For each target, why the solver stopped.
    evidence : Evidence
        How far every agent is from every target, and how far it would be by chance.
    calibration : Calibration, optional
        For the rule "calibrated": the scores of all candidates and what was chosen.
    """

    matrix: Array
    rule: str
    targets: NDArray[np.int64]
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    risk: Array
    objective: Array
    gap: Array
    stop: tuple[str, ...]
    evidence: Evidence
    calibration: Calibration | None = None

    @property
    def self_weight(self) -> Array:
        """The weight each target gives its own data; NaN for one without a model."""
        own = self.matrix[np.arange(len(self.targets)), self.targets]
        return np.where(self.matrix.any(axis=1), own, np.nan)

    @property
    def effective_sample_size(self) -> Array:
        r""":math:`1 / \sum_k w_k^2 / n_k`: a mean over this many points has the variance of the weighted mean.

        It is NaN for a target without a model.
        """
        variance = (self.matrix**2 / self.sizes).sum(axis=1)
        return np.divide(1.0, variance, out=np.full(len(variance), np.nan), where=variance > 0)

    def why(self, target: int | str, most: int = 10) -> pandas.DataFrame:
        """Whom a target listens to, and why: the heaviest agents, their weight, distance, and the distance chance explains.

        Parameters
        ----------
        target : int or str
            Place or name of the agent.
        most : int
            How many agents to show.

        Returns
        -------
        DataFrame
            Columns weight, squared MMD, null quantile (95 %) and differs, a row per agent, the heaviest first.
        """
        agent = self.names.index(one_of(target, self.names, "agent")) if isinstance(target, str) else target
        found = np.flatnonzero(self.targets == agent)
        if not len(found):
            raise InputError(f"there are no weights for agent {target!r}; it was not among the targets")
        row = int(found[0])
        order = [k for k in np.argsort(-self.matrix[row], kind="stable") if self.matrix[row, k] > 0][:most]
        return pandas.DataFrame(
            {
                "weight": self.matrix[row, order],
                "squared MMD": self.evidence.squared_distances[row, order],
                "null quantile": self.evidence.null_quantiles[row, order],
                "differs": self.evidence.differ[row, order],
            },
            index=pandas.Index([self.names[k] for k in order], name="agent"),
        )

    @property
    def explanation(self) -> pandas.DataFrame:
        """A row per target: its size, advice and choice, and whom it listens to most.

        Columns: n, self weight, effective sample size, unlike (share of its weight on agents that differ from it by more
        than chance), listens to (the three heaviest others), and with the rule "calibrated" advice and candidate.
        """
        others = from_target(self.targets, self.matrix)
        others[np.arange(len(self.targets)), self.targets] = 0.0
        heaviest = np.argsort(-others, axis=1, kind="stable")[:, :3]
        columns = {
            "n": self.sizes[self.targets],
            "self weight": self.self_weight,
            "effective sample size": self.effective_sample_size,
            "unlike": (others * self.evidence.differ).sum(axis=1),
            "listens to": [
                ", ".join(f"{self.names[k]} ({row[k]:.0%})" for k in chosen if row[k] > 0)
                for row, chosen in zip(others, heaviest, strict=True)
            ],
        }
        if self.calibration is not None:
            columns["advice"] = list(self.advice)
            columns["candidate"] = [self.calibration.personal(int(t)) for t in self.targets]
        return pandas.DataFrame(columns, index=pandas.Index([self.names[t] for t in self.targets], name="target"))

    @property
    def plan(self) -> Plan:
        """How models are to be trained with these weights, where calibration chose that too."""
        return USUAL_PLAN if self.calibration is None else self.calibration.candidate.plan

    @property
    def advice(self) -> tuple[str, ...]:
        """For each target "join", "stay local" or "no clear difference"; empty unless the rule is "calibrated"."""
        return () if self.calibration is None else tuple(self.calibration.advice(int(t)) for t in self.targets)

    @property
    def plot(self) -> WeightsPlots:
        """Figures: matrix, map, network, effective_sample_size, why."""
        return WeightsPlots(self)

    def to_frame(self) -> pandas.DataFrame:
        """The matrix as a table: a row per target, a column per agent."""
        rows = pandas.Index([self.names[t] for t in self.targets], name="target")
        return pandas.DataFrame(self.matrix, index=rows, columns=pandas.Index(self.names, name="agent"))

    def __repr__(self) -> str:
        count, agents = self.matrix.shape
        return (
            f"Weights({self.rule}: {count} targets, {agents} agents, "
            f"median self weight {np.nanmedian(self.self_weight):.3f}, "
            f"median effective sample size {np.nanmedian(self.effective_sample_size):.1f})"
        )

    def _repr_html_(self) -> str:
        times = np.nanmedian(self.effective_sample_size / self.sizes[self.targets])
        counts = ", ".join(f"{word}: {count}" for word, count in Counter(self.advice).most_common())
        return card(
            repr(self),
            paragraph(f"In the median a target learns from as good as {times:.1f} times its own points."),
            *([paragraph(f"Advice: {counts}.")] if counts else []),
            thumbnail(self.plot.weights_of_others(), "Weights, a row per target and a column per agent, kin side by side"),
            table(self.explanation, "Whom every target listens to"),
        )


def weights_of(
    geometry: Geometry,
    rule: str,
    matrix: Array,
    objective: Array | None = None,
    gap: Array | None = None,
    stop: Sequence[str] | None = None,
    calibration: Calibration | None = None,
) -> Weights:
    """Assemble the result of a rule; rules in closed form give the matrix alone."""
    count = len(geometry.targets)
    nothing = np.full(count, np.nan)
    if not np.isfinite(matrix).all():
        raise InputError(f"rule {rule!r} cannot weigh these points in double precision; rescale them")
    displacement = from_target(geometry.targets, matrix)
    distance = np.einsum("tk,tk->t", displacement @ geometry.gram, displacement)
    own = matrix[np.arange(count), geometry.targets]
    return Weights(
        matrix=matrix,
        rule=rule,
        targets=geometry.targets,
        names=geometry.names,
        sizes=geometry.sizes,
        risk=np.asarray(distance + (2 * own - 1) * geometry.mean_variance[geometry.targets]),
        objective=nothing if objective is None else objective,
        gap=nothing.copy() if gap is None else gap,
        stop=(CLOSED_FORM,) * count if stop is None else tuple(stop),
        evidence=evidence_of(geometry),
        calibration=calibration,
    )


def evidence_of(geometry: Geometry) -> Evidence:
    """Evidence for and against kinship of every pair of target and agent."""
    means = geometry.mean_variance[geometry.targets][:, None] + geometry.mean_variance
    return Evidence(geometry.squared_distances, means, geometry.effective_dimensions)
