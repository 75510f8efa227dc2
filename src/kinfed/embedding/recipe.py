"""The record from which any site rebuilds the same feature map."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from kinfed.embedding.kernels import Gaussian, Kernel, Laplace, Matern, Polynomial
from kinfed.errors import InputError, KinfedError, SketchError
from kinfed.validation import Array, FloatArray

RECIPE_VERSION = 1

_KERNELS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Gaussian, Laplace, Matern, Polynomial)}


@runtime_checkable
class FeatureMap(Protocol):
    """An explicit map z -> Phi(z) in R^D that other sites can rebuild from its recipe."""

    @property
    def dim(self) -> int:
        """Dimension d of the points."""

    @property
    def n_features(self) -> int:
        """Dimension D of the features."""

    @property
    def norm_bound(self) -> float:
        """M with |Phi(z)| <= M for every z; infinite for a map without bound."""

    @property
    def recipe(self) -> Recipe:
        """Everything needed to rebuild this map."""

    def __call__(self, Z: ArrayLike) -> FloatArray:
        """Features (n, D) of the rows of `Z`."""

    def totals(self, points: FloatArray) -> tuple[Array, float]:
        """Sums in float64 over checked points, in bounded memory: of Phi(z), and of |Phi(z)|^2."""


@dataclass(frozen=True)
class Recipe:
    """How a feature map was made: two sketches compare only if their recipes are equal.

    Attributes
    ----------
    kernel : str
        Name of the kernel's class.
    parameters : dict
        The kernel's parameters.
    dim, n_features : int
        Dimension d of the points and D of the features.
    sampling : str
        "iid", "orthogonal", "sobol", or "exact" for the polynomial map.
    seed : int or None
        Seed of the draws; None for an exact map.
    version : int
        Version of the drawing code; raised when the same seed would give other features.
    """

    kernel: str
    parameters: dict[str, Any]
    dim: int
    n_features: int
    sampling: str
    seed: int | None
    version: int = RECIPE_VERSION

    @property
    def norm_bound(self) -> float:
        """M with |Phi(z)| <= M: sqrt(2) for cosines with phases, 1 for cosine and sine, none for monomials."""
        return {"iid": math.sqrt(2), "exact": math.inf}.get(self.sampling, 1.0)

    @property
    def coordinate_bound(self) -> float:
        """The largest value of one coordinate: the amplitude sqrt(2 / D) of a cosine, none for monomials."""
        return math.inf if self.sampling == "exact" else math.sqrt(2 / self.n_features)

    def to_json(self) -> str:
        """The recipe as a line of JSON, keys in order."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read what `to_json` wrote; anything else is a `SketchError`."""
        try:
            content = json.loads(text)
            if set(content) != {field.name for field in fields(cls)}:
                raise ValueError("its keys are not a recipe's")
            content["parameters"] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in content["parameters"].items()
            }
            for name in ("dim", "n_features", "version"):
                if type(content[name]) is not int or content[name] < 1:
                    raise ValueError(f"{name} is {content[name]!r}")
            if content["sampling"] not in ("iid", "orthogonal", "sobol", "exact"):
                raise ValueError(f"sampling is {content['sampling']!r}")
            exact = content["sampling"] == "exact"
            if (exact and content["seed"] is not None) or (not exact and type(content["seed"]) is not int):
                raise ValueError(f"seed is {content['seed']!r}")
            recipe = cls(**content)
            recipe.make_kernel()
            return recipe
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise SketchError(f"the recipe cannot be read: {error}") from None

    def make_kernel(self) -> Any:
        """The kernel it names; `SketchError` if there is none."""
        if self.kernel not in _KERNELS:
            raise SketchError(f"the recipe names the kernel {self.kernel!r}; known are {', '.join(_KERNELS)}")
        try:
            return _KERNELS[self.kernel](**self.parameters)
        except (KinfedError, TypeError) as error:
            raise SketchError(f"the recipe does not describe a kernel: {error}") from None

    def difference(self, other: Recipe) -> str:
        """Name the fields in which `other` differs, with both values."""
        return ", ".join(
            f"{field.name} {getattr(self, field.name)!r} and {getattr(other, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        )


def kernel_parameters(kernel: Kernel) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a kernel of this package, for a recipe."""
    name = type(kernel).__name__
    if _KERNELS.get(name) is not type(kernel):
        raise InputError(f"kernel {name} has no name other sites know; use one of {', '.join(_KERNELS)}")
    return name, {field.name: getattr(kernel, field.name) for field in fields(kernel)}  # type: ignore[arg-type]


def features_from_recipe(recipe: Recipe) -> FeatureMap:
    """Rebuild the feature map a recipe describes.

    Examples
    --------
    >>> import kinfed
    >>> features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=8, dim=2, seed=3)
    >>> kinfed.features_from_recipe(features.recipe) == features
    True
    """
    from kinfed.embedding.fourier import FourierFeatures
    from kinfed.embedding.polynomial import PolynomialFeatures

    if recipe.version != RECIPE_VERSION:
        raise SketchError(
            f"the recipe has version {recipe.version!r}, this kinfed draws version {RECIPE_VERSION}; "
            "use the same kinfed version at every site"
        )
    kernel = recipe.make_kernel()
    try:
        if isinstance(kernel, Polynomial):
            rebuilt: FeatureMap = PolynomialFeatures(kernel, dim=recipe.dim)
        else:
            rebuilt = FourierFeatures(
                kernel, recipe.n_features, dim=recipe.dim, seed=recipe.seed or 0, sampling=recipe.sampling
            )
    except (KinfedError, TypeError, ValueError) as error:
        raise SketchError(f"the recipe does not describe a feature map: {error}") from None
    if rebuilt.recipe != recipe:
        raise SketchError(f"the recipe contradicts itself: {recipe.difference(rebuilt.recipe)}")
    return rebuilt
