r"""The one vector an agent shares: the mean of its features.

A sketch is made where the data are, by streaming over batches, and travels with the recipe of its features so that
sketches of different maps cannot be mixed up.

File format, version 1: a NumPy ``.npz`` archive without pickles, readable with ``numpy.load(path, allow_pickle=False)``,
holding ``format`` ("kinfed-sketch"), ``version`` (1), ``recipe`` (JSON text, see `kinfed.Recipe`), ``n`` (int64),
``mean`` (float64, D values) and ``trace`` (float64, the trace of the covariance, NaN if n = 1). Nothing else is accepted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.embedding.recipe import RECIPE_VERSION, FeatureMap, Recipe
from kinfed.errors import InputError, SketchError
from kinfed.files import write_whole
from kinfed.parallel import map_on_cores
from kinfed.validation import Array, Integers, points_array, without_rounding

SKETCH_FORMAT = "kinfed-sketch"
SKETCH_VERSION = 1
FEW_ROWS = 300
"""Rows below which a sketch is to be treated as the rows themselves: fewer could be found again from it."""

_PARTS = 16
# A mean of features may pass its bound by rounding alone, but by no more than this share of it.
_BOUND_SLACK = 1e-6


@dataclass(frozen=True, eq=False)
class Sketch:
    r"""Mean embedding of one agent's data.

    Attributes
    ----------
    mean : array of shape (D,)
        :math:`\nu_k = n_k^{-1} \sum_i \Phi_i^{(k)}`, float64.
    n : int
        Number of points behind it.
    trace : float
        :math:`\mathrm{tr}\, \Sigma_k` with divisor n - 1; NaN if n = 1.
    recipe : Recipe
        The features it was made with.
    """

    mean: Array
    n: int
    trace: float
    recipe: Recipe

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sketch to `path`; an existing file is replaced only once the new one is whole."""
        destination = Path(path)
        if not destination.name:
            raise SketchError(f"{destination} is not the name of a file")
        content: dict[str, Any] = {
            "format": np.array(SKETCH_FORMAT),
            "version": np.array(SKETCH_VERSION),
            "recipe": np.array(self.recipe.to_json()),
            "n": np.array(self.n, dtype=np.int64),
            "mean": self.mean,
            "trace": np.array(self.trace),
        }
        try:
            write_whole(destination, lambda file: np.savez(file, **content))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SketchError(f"the sketch cannot be written to {destination}: {reason}") from None
        return destination


def sketch(Z: ArrayLike | Iterable[ArrayLike], features: FeatureMap) -> Sketch:
    """Mean embedding of points, in one pass and in memory that does not grow with n.

    Parameters
    ----------
    Z : array of shape (n, d), or an iterable of such arrays
        The points, or batches of them: a generator that reads a file piece by piece is never held in full.
    features : FourierFeatures or PolynomialFeatures
        The map all agents agreed on.

    Returns
    -------
    Sketch
        Float32 points are embedded in single precision; sums are float64 always.

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=100, dim=2)
    >>> Z = np.random.default_rng(0).standard_normal((50, 2))
    >>> whole, in_batches = kinfed.sketch(Z, features), kinfed.sketch(iter([Z[:20], Z[20:]]), features)
    >>> bool(np.allclose(whole.mean, in_batches.mean)), in_batches.n
    (True, 50)
    """
    if not isinstance(features, FeatureMap):
        raise InputError(f"features must be a feature map such as FourierFeatures(...), got {type(features).__name__}")
    total, squares, n = np.zeros(features.n_features), 0.0, 0
    for number, batch in enumerate(_batches(Z)):
        points = points_array(batch, f"batch {number}", features.dim)
        operations = float(len(points)) * features.n_features * (2 * features.dim + 30)
        # Several parts for each core, so that none is idle while another finishes; their number must not depend on the
        # machine, or the order of additions and with it the last digit of the sums would.
        parts = np.array_split(points, _PARTS) if len(points) > _PARTS else [points]
        for block_sum, block_squares in map_on_cores(features.totals, parts, operations):
            total += block_sum
            squares += block_squares
        n += len(points)
    if n == 0:
        raise InputError("there are no points to sketch; an agent without data cannot take part")
    mean = total / n
    # tr Sigma = (sum |Phi|^2 - n |nu|^2) / (n - 1); what rounding leaves of points that coincide is not a spread.
    trace = math.nan if n == 1 else without_rounding((squares - n * float(mean @ mean)) / (n - 1), squares / n)
    mean.flags.writeable = False
    return Sketch(mean, n, trace, features.recipe)


def load_sketch(path: str | os.PathLike[str]) -> Sketch:
    """Read a sketch file and check all it claims; raise `SketchError` naming the file otherwise."""
    source = Path(path)
    try:
        with open(source, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise SketchError("it is not a sketch but a single array")
            with archive:
                return check_sketch(_from_content({name: np.asarray(archive[name]) for name in archive.files}))
    except SketchError as error:
        raise SketchError(f"{source}: {error}") from None
    except FileNotFoundError:
        raise SketchError(f"{source} does not exist") from None
    except Exception as error:  # damage can surface anywhere: in the archive, its compression, or an array's header
        raise SketchError(f"{source} is not a sketch or is damaged ({error}); ask its agent to send it again") from None


def check_sketch(candidate: Sketch) -> Sketch:
    """Return the sketch if its numbers are possible under its recipe; raise `SketchError` otherwise."""
    recipe, mean, allowed = candidate.recipe, candidate.mean, 1 + _BOUND_SLACK
    if recipe.version != RECIPE_VERSION:
        raise SketchError(f"its features have version {recipe.version}, this kinfed draws version {RECIPE_VERSION}")
    if mean.shape != (recipe.n_features,):
        raise SketchError(f"the mean has shape {mean.shape}, its recipe says ({recipe.n_features},)")
    if not np.isfinite(mean).all():
        raise SketchError("the mean holds NaN or an infinite value")
    if candidate.n < 1:
        raise SketchError(f"it claims {candidate.n} points")
    norm, largest = float(np.linalg.norm(mean)), float(np.abs(mean).max())
    if norm > recipe.norm_bound * allowed:
        raise SketchError(f"the mean has norm {norm:.6g}, but its features allow at most {recipe.norm_bound:.6g}")
    if largest > recipe.coordinate_bound * allowed:
        raise SketchError(
            f"one coordinate of the mean is {largest:.6g}, but its features allow at most {recipe.coordinate_bound:.6g}"
        )
    if candidate.n > 1:
        most = candidate.n / (candidate.n - 1) * recipe.norm_bound**2
        if not 0 <= candidate.trace <= most * allowed:
            raise SketchError(f"the trace of the covariance is {candidate.trace:.6g}, outside 0 to {most:.6g}")
    return candidate


def check_stacked(recipe: Recipe, means: Array, sizes: Integers, traces: Array, names: Sequence[str]) -> None:
    """Check many sketches of one recipe at once: means (B, D), sizes and traces (B,); the error names the first agent."""
    allowed = 1 + _BOUND_SLACK
    if means.shape[1:] == (recipe.n_features,) and recipe.version == RECIPE_VERSION:
        sound = np.isfinite(means).all(axis=1) & (sizes >= 1)
        with np.errstate(invalid="ignore", over="ignore"):
            sound &= np.linalg.norm(means, axis=1) <= recipe.norm_bound * allowed
            sound &= np.abs(means).max(axis=1, initial=0.0) <= recipe.coordinate_bound * allowed
            most = sizes / np.maximum(sizes - 1, 1) * recipe.norm_bound**2
            sound &= (sizes == 1) | ((traces >= 0) & (traces <= most * allowed))
        if sound.all():
            return
    for name, mean, n, trace in zip(names, means, sizes, traces, strict=True):
        try:
            check_sketch(Sketch(mean, int(n), float(trace), recipe))
        except SketchError as error:
            raise SketchError(f"the sketch of agent {name}: {error}") from None


def common_recipe(sketches: Sequence[Sketch], names: Sequence[str] | None = None) -> Recipe:
    """The recipe all sketches share; raise `SketchError` naming the first agent whose recipe differs."""
    if not sketches:
        raise InputError("there are no sketches: give one per agent")
    labels = names if names is not None else [str(k) for k in range(len(sketches))]
    first = sketches[0].recipe
    for label, other in zip(labels, sketches, strict=True):
        if other.recipe != first:
            raise SketchError(
                f"the sketch of agent {label} was made with other features than that of agent {labels[0]} "
                f"({first.difference(other.recipe)}); all agents must use one recipe"
            )
    return first


def _from_content(content: dict[str, NDArray[Any]]) -> Sketch:
    if set(content) != {"format", "version", "recipe", "n", "mean", "trace"} or str(content["format"]) != SKETCH_FORMAT:
        raise SketchError("it is not a kinfed sketch")
    if content["version"].shape != () or int(content["version"]) != SKETCH_VERSION:
        raise SketchError(f"it has format version {content['version']}, this kinfed reads version {SKETCH_VERSION}")
    scalars = {"n": np.int64, "trace": np.float64}
    if any(content[name].shape != () or content[name].dtype != kind for name, kind in scalars.items()):
        raise SketchError("n or trace is not a single number of the right type")
    if content["mean"].dtype != np.float64:
        raise SketchError(f"the mean has type {content['mean'].dtype}, not float64")
    return Sketch(content["mean"], int(content["n"]), float(content["trace"]), Recipe.from_json(str(content["recipe"])))


def _batches(Z: ArrayLike | Iterable[ArrayLike]) -> Iterator[ArrayLike]:
    is_array = hasattr(Z, "__array__") or np.isscalar(Z)
    is_rows = isinstance(Z, list | tuple) and len(Z) > 0 and np.ndim(Z[0]) < 2
    if is_array or is_rows:
        yield Z  # type: ignore[misc]
    elif isinstance(Z, Iterable):
        yield from Z
    else:
        raise InputError(f"points must be a table or an iterable of tables, got {type(Z).__name__}")
