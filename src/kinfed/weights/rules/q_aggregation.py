"""Q-aggregation (Algorithm 1 of the paper): by its early-stopped solver, by an exact one, and with a pull."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from kinfed.embedding import Kernel
from kinfed.validation import one_of
from kinfed.weights.active_set import active_set
from kinfed.weights.geometry import Geometry, explicit_geometry
from kinfed.weights.kernel_geometry import kernel_geometry
from kinfed.weights.mirror_descent import entropic_minimum, exponential_gradient
from kinfed.weights.objective import duality_gap, q_aggregation_problem
from kinfed.weights.result import Weights, weights_of

SOLVERS = ("exponential-gradient", "exact")


def q_aggregation_paper(
    geometry: Geometry,
    c_q: float | None = None,
    c_p: float | None = None,
    steps: int = 1000,
    step_scale: float = 0.5,
) -> Weights:
    """The paper's weights: Algorithm 3 from the uniform start, stopped after `steps` steps."""
    problem = q_aggregation_problem(geometry, c_q, c_p)
    matrix, _ = exponential_gradient(problem, steps, step_scale)
    gap = duality_gap(problem.gradient(matrix), matrix)
    stop = f"stopped after {steps} steps, as asked: the early stop is part of the estimator"
    return weights_of(geometry, "q-aggregation", matrix, problem.value(matrix), gap, [stop] * len(matrix))


def q_aggregation_exact(geometry: Geometry, c_q: float | None = None, c_p: float | None = None) -> Weights:
    """The minimum of the paper's objective, certified by the duality gap."""
    problem = q_aggregation_problem(geometry, c_q, c_p)
    matrix, gap, stop = active_set(problem)
    return weights_of(geometry, "q-aggregation-exact", matrix, problem.value(matrix), gap, stop)


def entropic(
    geometry: Geometry, strength: float = 0.1, c_q: float = 1.0, c_p: float = 0.0, relative_gap: float = 1e-8
) -> Weights:
    r"""Minimise :math:`f_t(w) + \tau s_t \mathrm{KL}(w \| p)` with :math:`p_k = n_k / \sum_l n_l`.

    The pull keeps every agent in play with a weight that fades as it grows unlike the target: :math:`\tau \to \infty` gives
    the grand mean, :math:`\tau \to 0` the exact minimum of :math:`f_t`. The certificate is the gap to the minimum of the
    linearised problem, which has a closed form.

    Parameters
    ----------
    strength : float
        :math:`\tau`, in units of the target's own error :math:`s_t`.
    c_q, c_p : float
        Constants of :math:`f_t`. The pull already guards against chance, so they are smaller than the paper's.
    relative_gap : float
        Accuracy: the certified gap, relative to the value of being alone.
    """
    return weights_of(geometry, "entropic", *entropic_minimum(geometry, strength, c_q, c_p, relative_gap))


def q_aggregation(
    points: Mapping[Any, ArrayLike] | Sequence[ArrayLike],
    kernel: Kernel | None = None,
    c_q: float | None = None,
    c_p: float | None = None,
    norm_bound: float | None = None,
    solver: str = "exponential-gradient",
    steps: int = 1000,
    step_scale: float = 0.5,
    targets: int | Iterable[int] | None = None,
) -> Weights:
    r"""Collaboration weights by Q-aggregation, for one, some or all targets.

    Minimises, over the simplex and for each target t,

    .. math::

        |\textstyle\sum_k w_k \nu_k - \nu_t|^2 + 2 w_t \frac{\mathrm{tr}\,\Sigma_t}{n_t}
        + \sum_{k \ne t} w_k \Bigl( C_Q \sqrt{q_{tk} / n_t} + C_P \tfrac{M}{n_t} |\nu_k - \nu_t| \Bigr),

    an unbiased risk and two penalties for its uncertainty (symbols as in `kinfed.Geometry`).

    Parameters
    ----------
    points : sequence or mapping of arrays
        One (n_k, D) array per agent: already embedded, or raw when `kernel` is given. A mapping names the agents.
    kernel : Kernel, optional
        Embed raw points exactly, through Gram blocks.
    c_q, c_p : float, optional
        :math:`C_Q` and :math:`C_P`; by default :math:`C_Q^2 = C_P = \log B`.
    norm_bound : float, optional
        M. By default what the kernel guarantees, else the largest norm among the points; pass
        ``features.norm_bound`` for points embedded with features.
    solver : {"exponential-gradient", "exact"}
        The paper's Algorithm 3, whose early stop is part of the estimator, or the certified minimum.
    steps, step_scale : int, float
        T and c of Algorithm 3.
    targets : int or iterable of int, optional
        Agents weights are wanted for; all by default.

    Returns
    -------
    Weights

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> rng = np.random.default_rng(0)
    >>> points = [rng.standard_normal((50, 20)) / 5 + (k % 2) for k in range(8)]
    >>> weights = kinfed.q_aggregation(points, c_q=0.1, c_p=0.0, solver="exact", targets=0)
    >>> bool(weights.matrix[0, 1::2].sum() == 0.0), bool(weights.gap[0] < 1e-12)
    (True, True)
    """
    one_of(solver, SOLVERS, "solver")
    if kernel is None:
        geometry = explicit_geometry(points, norm_bound=norm_bound, targets=targets)
    else:
        geometry = kernel_geometry(points, kernel, norm_bound=norm_bound, targets=targets)
    if solver == "exact":
        return q_aggregation_exact(geometry, c_q, c_p)
    return q_aggregation_paper(geometry, c_q, c_p, steps, step_scale)
