r"""Random Fourier features: explicit coordinates in which inner products approximate a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError
from kinfed.features.cosine import cosine_of_turns
from kinfed.features.draws import Bits, iid_normals, orthogonal_normals, sobol_normals
from kinfed.features.recipe import Recipe, kernel_parameters
from kinfed.kernels import Gaussian, Laplace, Matern
from kinfed.validation import FloatArray, one_of, points_array, positive_integer, whole_number

_Draw = Callable[[Bits, int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]
_DRAWS: dict[str, _Draw] = {"iid": iid_normals, "orthogonal": orthogonal_normals, "sobol": sobol_normals}
SAMPLINGS = (*_DRAWS, "auto")

# Up to this dimension a scrambled Sobol sequence had the smaller error at equal D, above it orthogonal blocks.
_SOBOL_UP_TO = 8
# Size of the blocks evaluated at once: enough rows for an efficient product, few enough to stay near the core.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FourierFeatures:
    r"""Map z to D cosines whose inner products are unbiased for a translation-invariant kernel.

    "iid" is the paper's map, :math:`\Phi(z) = \sqrt{2/D}\, (\cos(\langle w_s, z\rangle + b_s))_{s \le D}` with
    frequencies :math:`w_s` from the kernel's spectral law and phases :math:`b_s` uniform on [0, 2 pi]; its norm is at most
    :math:`\sqrt 2`. "orthogonal" and "sobol" use D/2 frequencies, coupled so that they cover the spectral law evenly, and
    both the cosine and the sine of each: every :math:`\Phi(z)` then has norm exactly 1, and inner products are closer to
    the kernel at equal D.

    Parameters
    ----------
    kernel : Gaussian, Laplace or Matern
    n_features : int
        D; even unless `sampling` is "iid".
    dim : int
        Dimension d of the points.
    seed : int
        Two maps with equal arguments are equal on every machine.
    sampling : {"iid", "orthogonal", "sobol", "auto"}
        "auto" takes "sobol" up to d = 8 and "orthogonal" above.

    Attributes
    ----------
    norm_bound : float
        M, the largest norm a point can have.
    recipe : Recipe
        What another site needs to rebuild the map.

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=2000, dim=3, sampling="sobol")
    >>> Z = np.eye(3)
    >>> bool(np.allclose(features(Z) @ features(Z).T, kinfed.Gaussian(1.0)(Z, Z), atol=0.02))
    True
    """

    kernel: Gaussian | Laplace | Matern
    n_features: int = 500
    dim: int = field(kw_only=True)
    seed: int = field(default=0, kw_only=True)
    sampling: str = field(default="iid", kw_only=True)
    frequencies: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    phases: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Gaussian | Laplace | Matern):
            raise InputError(
                f"FourierFeatures needs a Gaussian, Laplace or Matern kernel, got {type(self.kernel).__name__}; "
                "a degree-2 Polynomial has the exact map PolynomialFeatures"
            )
        n_features = positive_integer(self.n_features, "n_features")
        dim = positive_integer(self.dim, "dim")
        self.kernel.check_dimension(dim)
        seed = whole_number(self.seed, "seed")
        sampling = one_of(self.sampling, SAMPLINGS, "sampling")
        if sampling == "auto":
            sampling = "sobol" if dim <= _SOBOL_UP_TO else "orthogonal"
        if sampling != "iid" and n_features % 2:
            raise InputError(f"n_features must be even with sampling={sampling!r} (a cosine and a sine each)")

        bits = Bits(seed)
        count = n_features if sampling == "iid" else n_features // 2
        frequencies = self.kernel.frequencies(*_DRAWS[sampling](bits, count, dim)).T
        phases = 2 * math.pi * bits.uniforms(count) if sampling == "iid" else np.zeros(count)
        frequencies.flags.writeable = phases.flags.writeable = False
        for name, value in (
            ("n_features", n_features),
            ("dim", dim),
            ("seed", seed),
            ("sampling", sampling),
            ("frequencies", frequencies),
            ("phases", phases),
        ):
            object.__setattr__(self, name, value)

    @property
    def norm_bound(self) -> float:
        """sqrt(2) for cosines with phases, 1 for pairs of cosine and sine."""
        return self.recipe.norm_bound

    @property
    def recipe(self) -> Recipe:
        """Everything another site needs to rebuild this map."""
        name, parameters = kernel_parameters(self.kernel)
        return Recipe(name, parameters, self.dim, self.n_features, self.sampling, self.seed)

    def __call__(self, Z: ArrayLike) -> FloatArray:
        """Features (n, D) of the rows of `Z`, in the precision of `Z`."""
        points = points_array(Z, "features", self.dim)
        out = np.empty((len(points), self.n_features), dtype=points.dtype)
        evaluate = _BlockEvaluation(self, points.dtype)
        for start in range(0, len(points), evaluate.rows):
            evaluate(points[start : start + evaluate.rows], out[start : start + evaluate.rows])
        out *= self.recipe.coordinate_bound
        return out

    def totals(self, points: FloatArray) -> tuple[NDArray[np.float64], float]:
        """Sums in float64 over checked points: of Phi(z), and of |Phi(z)|^2."""
        total, squares = np.zeros(self.n_features), 0.0
        evaluate = _BlockEvaluation(self, points.dtype)
        cosines = np.empty((evaluate.rows, self.n_features), dtype=points.dtype)
        for start in range(0, len(points), evaluate.rows):
            block = points[start : start + evaluate.rows]
            evaluate(block, cosines[: len(block)])
            total += cosines[: len(block)].sum(axis=0, dtype=np.float64)
            if self.sampling == "iid":
                squares += float(np.einsum("ij,ij->i", cosines[: len(block)], cosines[: len(block)]).sum(dtype=np.float64))
        amplitude = self.recipe.coordinate_bound
        return amplitude * total, amplitude**2 * squares if self.sampling == "iid" else float(len(points))


class _BlockEvaluation:
    """Cosines of blocks of points, in buffers that are used again: allocation would cost as much as arithmetic.

    Angles are in turns, so that the cosine needs no reduction by multiples of pi, and a coordinate 1 beside every point
    makes the phases part of the matrix product.
    """

    def __init__(self, features: FourierFeatures, kind: np.dtype[Any]) -> None:
        self.rows = max(1, _BLOCK_BYTES // (kind.itemsize * features.n_features))
        self._paired = features.sampling != "iid"
        self._frequencies = (np.vstack([features.frequencies, features.phases]) / (2 * math.pi)).astype(kind)
        self._points = np.ones((self.rows, features.dim + 1), dtype=kind)
        self._turns = np.empty((self.rows, self._frequencies.shape[1]), dtype=kind)
        self._work = np.empty((2, self.rows, features.n_features), dtype=kind)

    def __call__(self, points: FloatArray, out: FloatArray) -> None:
        """Write the cosines (and sines) of at most `rows` points into `out`."""
        count = len(points)
        self._points[:count, :-1] = points
        if self._paired:
            turns = np.matmul(self._points[:count], self._frequencies, out=self._turns[:count])
            half = turns.shape[1]
            # Whole turns go first: beside many of them, single precision would lose the quarter turn of the sine.
            np.rint(turns, out=out[:, :half])
            np.subtract(turns, out[:, :half], out=turns)
            out[:, :half] = turns
            np.subtract(turns, turns.dtype.type(0.25), out=out[:, half:])
        else:
            np.matmul(self._points[:count], self._frequencies, out=out)
        cosine_of_turns(out, self._work[0, :count], self._work[1, :count])
