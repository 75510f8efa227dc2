r"""All that linear regression needs of an agent: the moments of its points z = (x, y) up to order two.

One exchange of :math:`(n_k, \bar z_k, C_k)`, with :math:`C_k = n_k^{-1} \sum_i (z_i - \bar z_k)(z_i - \bar z_k)'`, and
every weighted least squares problem of the federation can be solved exactly: these are the numbers an agent shares under
the polynomial kernel of degree 2. Each agent centres at its own mean, so a large offset costs no digits and no origin has
to be agreed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from kinfed.backends.agents import Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import ArraySpec, Message
from kinfed.errors import InputError
from kinfed.learners.inputs import (
    agents_columns,
    agents_numbers,
    comoment_fault,
    own_columns,
    own_numbers,
    relative_weights,
)
from kinfed.validation import Array, points_array

# Elements of the largest temporary array in `RegressionMoments.weighted` (8 MB).
_BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class RegressionMoments:
    r"""Moments of the points z = (x, y) of one agent, of many, or of mixtures of agents.

    Fields may carry leading axes: one agent has none, a stack of B agents has (B,), and all operations work elementwise
    over them. Moments add and subtract as the point sets (or weighted measures) behind them do, so the moments of an agent
    without a fold are ``whole - fold``.

    Attributes
    ----------
    n : array of shape (...)
        Number of points, or the total mass of a mixture. Points may have weights; they count by their number all the same.
    mean : array of shape (..., d + m)
        :math:`\bar z`.
    comoment : array of shape (..., d + m, d + m)
        :math:`C`, the second moments about the mean, divided by n.
    outputs : tuple of int
        Shape of one y: () for a number, (m,) for m outputs.

    Examples
    --------
    >>> import numpy as np
    >>> whole = regression_moments([[0.0], [1.0], [2.0]], [1.0, 3.0, 8.0])
    >>> fold = regression_moments([[2.0]], [8.0])
    >>> rest = whole - fold
    >>> float(rest.n), rest.mean.round(12).tolist(), rest.comoment.round(12).tolist()
    (2.0, [0.5, 2.0], [[0.25, 0.5], [0.5, 1.0]])
    """

    n: Array
    mean: Array
    comoment: Array
    outputs: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Number d of columns of x."""
        return int(self.mean.shape[-1] - (self.outputs[0] if self.outputs else 1))

    @property
    def mean_x(self) -> Array:
        """Mean of x, of shape (..., d)."""
        return self.mean[..., : self.dim]

    @property
    def mean_y(self) -> Array:
        """Mean of y, of shape (..., *outputs)."""
        return self._as_outputs(self.mean[..., self.dim :])

    @property
    def xx(self) -> Array:
        """Covariance of x with divisor n, of shape (..., d, d)."""
        return self.comoment[..., : self.dim, : self.dim]

    def scaled(self, mass: ArrayLike) -> RegressionMoments:
        """The same distribution with total mass `mass`."""
        return replace(self, n=np.broadcast_to(np.asarray(mass, dtype=np.float64), self.n.shape))

    def __add__(self, other: RegressionMoments) -> RegressionMoments:
        """Moments of both point sets together."""
        self._check_like(other)
        n = self.n + other.n
        share = _ratio(other.n, n)[..., None]
        apart = other.mean - self.mean
        spread = (share * (1 - share))[..., None] * _outer(apart)
        comoment = (1 - share)[..., None] * self.comoment + share[..., None] * other.comoment + spread
        return RegressionMoments(np.asarray(n), self.mean + share * apart, comoment, self.outputs)

    def __sub__(self, part: RegressionMoments) -> RegressionMoments:
        """Moments of what is left when `part`, a subset, is taken away; all zero when nothing is left."""
        self._check_like(part)
        n = self.n - part.n
        if (n < -1e-9 * self.n).any():
            raise InputError("moments of more points than there are cannot be taken away; subtract a part from its whole")
        n = np.maximum(n, 0.0)
        left = (n > 0)[..., None]
        share = _ratio(part.n, self.n)[..., None]
        mean = np.where(left, self.mean + _ratio(part.n, n)[..., None] * (self.mean - part.mean), 0.0)
        inflated = _ratio(self.n, n)[..., None, None] * (self.comoment - share[..., None] * part.comoment)
        comoment = np.where(left[..., None], inflated - share[..., None] * _outer(part.mean - mean), 0.0)
        return RegressionMoments(np.asarray(n), mean, comoment, self.outputs)

    def weighted(self, weights: Array) -> RegressionMoments:
        r"""Moments of the mixtures :math:`\sum_k w_{tk} P_k` of a stack of B agents, one for each of the T rows.

        Within and between agents, :math:`C_t = \sum_k w_{tk} C_k + \sum_k w_{tk} (\bar z_k - \bar z_t)(\bar z_k -
        \bar z_t)'`: the first sum is one matrix product for all targets, the second is taken about each target's own mean,
        so an agent of weight zero has no influence on a row, not even through rounding.
        """
        n_agents, size = self.mean.shape
        mass = weights.sum(axis=1)
        shares = weights * _ratio(np.ones_like(mass), mass)[:, None]
        means = shares @ self.mean
        comoment = (shares @ self.comoment.reshape(n_agents, -1)).reshape(-1, size, size)
        step = max(1, _BLOCK // (n_agents * size))
        for start in range(0, len(shares), step):
            rows = slice(start, start + step)
            apart = self.mean - means[rows, None, :]
            comoment[rows] += (shares[rows, :, None] * apart).swapaxes(1, 2) @ apart
        return RegressionMoments(mass, means, comoment, self.outputs)

    def _as_outputs(self, array: Array) -> Array:
        return array if self.outputs else array[..., 0]

    def _check_like(self, other: RegressionMoments) -> None:
        if self.outputs != other.outputs or self.mean.shape[-1] != other.mean.shape[-1]:
            raise InputError(
                f"moments of {self.dim} columns and outputs {self.outputs} do not combine with moments of {other.dim} "
                f"columns and outputs {other.outputs}"
            )


def regression_moments(
    X: ArrayLike, y: ArrayLike, who: str = "regression_moments", weights: Array | None = None
) -> RegressionMoments:
    """Moments of one agent's points; y has shape (n,), or (n, m) for m outputs, and weights, of mean one, (n,)."""
    columns = np.asarray(points_array(X, who), dtype=np.float64)
    targets = np.asarray(y, dtype=np.float64)
    if len(columns) == 0 or targets.shape[:1] != columns.shape[:1] or targets.ndim > 2:
        raise InputError(f"{who}: points of shape {columns.shape} do not go with targets of shape {targets.shape}")
    z = np.hstack([columns, targets.reshape(len(targets), -1)])
    mean = np.average(z, axis=0, weights=weights)
    centred = z - mean
    # The mean of large numbers is itself rounded; a second pass removes what is left.
    correction = np.average(centred, axis=0, weights=weights)
    centred -= correction
    rooted = centred if weights is None else centred * np.sqrt(weights)[:, None]
    comoment = rooted.T @ rooted / len(z)
    return RegressionMoments(np.asarray(float(len(z))), mean + correction, comoment, tuple(targets.shape[1:]))


def stack_moments(moments: Sequence[RegressionMoments]) -> RegressionMoments:
    """One stack (B,) of the moments of B agents."""
    if not moments:
        raise InputError("there are no agents: give one RegressionMoments per agent")
    for one in moments:
        moments[0]._check_like(one)
    return RegressionMoments(
        np.array([one.n for one in moments]),
        np.array([one.mean for one in moments]),
        np.array([one.comoment for one in moments]),
        moments[0].outputs,
    )


def squared_error(moments: RegressionMoments, coefficients: ArrayLike) -> Array:
    r"""Mean squared error of linear models on the points behind `moments`, without the points.

    With slopes a and intercept c it is :math:`(\bar y - \bar x'a - c)^2 + C_{yy} - 2 a'C_{xy} + a'C_{xx}a`, averaged over
    the outputs.

    Parameters
    ----------
    moments : RegressionMoments
        With leading axes that broadcast against those of `coefficients`.
    coefficients : array of shape (..., d + 1), or (..., d + 1, m) for m outputs
        Slopes, then the intercept.

    Returns
    -------
    array of shape (...)
        NaN where there are no points.
    """
    theta = np.asarray(coefficients, dtype=np.float64)
    expected = (moments.dim + 1, *moments.outputs)
    if theta.shape[theta.ndim - len(expected) :] != expected:
        raise InputError(f"coefficients must end in shape {expected}, got shape {theta.shape}")
    if not moments.outputs:
        theta = theta[..., None]
    slopes, intercept = theta[..., :-1, :], theta[..., -1, :]
    d = moments.dim
    cross, variance = moments.comoment[..., :d, d:], np.diagonal(moments.comoment, axis1=-2, axis2=-1)[..., d:]
    bias = moments.mean[..., d:] - (moments.mean_x[..., None] * slopes).sum(axis=-2) - intercept
    spread = variance + (slopes * (moments.xx @ slopes - 2 * cross)).sum(axis=-2)
    return np.asarray(np.where(moments.n > 0, (bias**2 + np.maximum(spread, 0.0)).mean(axis=-1), np.nan))


def _ratio(part: Array, whole: Array) -> Array:
    """The quotient, and zero where there is nothing to divide by."""
    empty = whole <= 0
    return np.asarray(np.where(empty, 0.0, part / np.where(empty, 1.0, whole)))


def _outer(vectors: Array) -> Array:
    return np.asarray(vectors[..., :, None] * vectors[..., None, :])


@dataclass(frozen=True)
class Moments(Question[RegressionMoments]):
    """The regression moments of some agents, as a stack in the order of all; of no points where an agent has not answered.

    Attributes
    ----------
    places : tuple of int
        The agents that are asked.
    """

    places: tuple[int, ...]

    name = "moments"
    about_data = True

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """An empty message to every agent that is asked: the question says everything."""
        return dict.fromkeys(self.places, Message())

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The moments of the agent's own rows, with their number."""
        agent, spec = site.agent, site.spec
        points = own_columns(agent, spec.dim), own_numbers(agent)
        moments = regression_moments(*points, f"agent {agent.name}", relative_weights(agent, spec))
        return Message(arrays={"n": moments.n, "mean": moments.mean, "comoment": moments.comoment})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A number, d + 1 means, and their second moments."""
        size = spec.dim + 1
        return {"n": ArraySpec(()), "mean": ArraySpec((size,)), "comoment": ArraySpec((size, size))}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """Moments must be of as many points as the agent has, and could be those of points."""
        count = float(answer.arrays["n"])
        if count != spec.sizes[place]:
            return f"its moments are of {count:g} points, not of {spec.sizes[place]}"
        return comoment_fault(answer.arrays["comoment"])

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> RegressionMoments:
        """One stack, a row for each agent that is asked."""
        size = spec.dim + 1
        nothing = {"n": np.array(0.0), "mean": np.zeros(size), "comoment": np.zeros((size, size))}
        told = [answers[k].arrays if k in answers else nothing for k in self.places]
        return RegressionMoments(**{name: np.array([one[name] for one in told]) for name in nothing}, outputs=())

    def pooled(self, agents: PooledAgents) -> RegressionMoments:
        """The same from all rows; each of them may have several outcomes here."""
        made = agents.made
        if "numbers" not in made:
            made["numbers"] = agents_columns(agents.rows), agents_numbers(agents.rows)
        if self in made:
            return made[self]
        columns, numbers = made["numbers"]
        weights = [relative_weights(agents.rows[k], agents.spec) for k in self.places]
        found = stack_moments(
            [regression_moments(columns[k], numbers[k], weights=one) for k, one in zip(self.places, weights, strict=True)]
        )
        if len(self.places) == len(agents.rows):  # moments asked for block by block would not fit into memory together
            made[self] = found
        return found
