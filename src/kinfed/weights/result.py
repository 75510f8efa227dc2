"""What every weight rule returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.weights.geometry import Geometry
from kinfed.weights.objective import from_target

if TYPE_CHECKING:
    import pandas

Array = NDArray[np.float64]

CLOSED_FORM = "closed form: nothing was iterated"


@dataclass(frozen=True, eq=False)
class Weights:
    r"""Collaboration weights: row t says how much target t listens to every agent.

    Attributes
    ----------
    matrix : array of shape (T, B)
        Rows on the simplex.
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

    @property
    def self_weight(self) -> Array:
        """The weight each target gives its own data."""
        return self.matrix[np.arange(len(self.targets)), self.targets]

    @property
    def effective_sample_size(self) -> Array:
        r""":math:`1 / \sum_k w_k^2 / n_k`: a mean over this many points has the variance of the weighted mean."""
        return np.asarray(1.0 / (self.matrix**2 / self.sizes).sum(axis=1))

    def to_frame(self) -> pandas.DataFrame:
        """The matrix as a table: a row per target, a column per agent."""
        import pandas

        rows = pandas.Index([self.names[t] for t in self.targets], name="target")
        return pandas.DataFrame(self.matrix, index=rows, columns=pandas.Index(self.names, name="agent"))

    def __repr__(self) -> str:
        count, agents = self.matrix.shape
        return (
            f"Weights({self.rule}: {count} targets, {agents} agents, "
            f"median self weight {np.median(self.self_weight):.3f}, "
            f"median effective sample size {np.median(self.effective_sample_size):.1f})"
        )


def weights_of(
    geometry: Geometry,
    rule: str,
    matrix: Array,
    objective: Array | None = None,
    gap: Array | None = None,
    stop: Sequence[str] | None = None,
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
        risk=np.asarray(distance + (2 * own - 1) * geometry.scatter[geometry.targets]),
        objective=nothing if objective is None else objective,
        gap=nothing.copy() if gap is None else gap,
        stop=(CLOSED_FORM,) * count if stop is None else tuple(stop),
    )
