"""Checks at the door: arrays of finite numbers, one per agent, all of one dimension.

Everything behind these functions may assume clean float arrays, so the mathematics carries no checks of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]

_LARGEST = 1e100


def points_array(Z: ArrayLike, who: str, dim: int | None = None) -> FloatArray:
    """Return `Z` as a finite (n, d) float array; float32 stays float32, a vector becomes one column.

    With `dim` given, d must be equal to it.
    """
    try:
        array = np.asarray(Z)
        if array.dtype.kind == "c":
            raise TypeError("they are complex")
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{who}: the points are not a table of numbers ({error}); encode text columns first") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(f"{who}: points must be a table of shape (n, d), got shape {array.shape}")
    if array.shape[1] == 0:
        raise InputError(f"{who}: the points have no columns")
    if dim is not None and array.shape[1] != dim:
        raise InputError(f"{who}: points of dimension {dim} are expected, got dimension {array.shape[1]}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise InputError(f"{who}: row {row} holds NaN or an infinite value; impute or drop it")
    return array


def agents_points(points: Any) -> tuple[tuple[str, ...], list[FloatArray]]:
    """Return the agents' names and their (n_k, d) arrays; every agent has two points or more and the same d."""
    if isinstance(points, Mapping):
        names = tuple(str(name) for name in points)
        arrays = list(points.values())
    else:
        if isinstance(points, np.ndarray) and points.ndim < 3:
            raise InputError(
                f"points must hold one table per agent, got one array of shape {points.shape}; split it by agent"
            )
        try:
            arrays = list(points)
        except TypeError:
            raise InputError(f"points must hold one table per agent, got {type(points).__name__}") from None
        names = tuple(str(k) for k in range(len(arrays)))
    if not arrays:
        raise InputError("there are no agents: give one array of points per agent")
    checked: list[FloatArray] = []
    for name, array in zip(names, arrays, strict=True):
        who = f"agent {name}"
        clean = points_array(array, who)
        if len(clean) == 0:
            raise InputError(f"{who} has no points; leave it out of the federation")
        if len(clean) == 1:
            alike = [other for other, its in zip(names, arrays, strict=True) if np.shape(its)[:1] == (1,)]
            others = f" (so have {len(alike) - 1} others: {', '.join(alike[1:6])})" if len(alike) > 1 else ""
            raise InputError(
                f"{who} has one point{others}, so its covariance is undefined; give it at least two points or leave it out"
            )
        if max(-float(clean.min()), float(clean.max())) > _LARGEST:
            raise InputError(
                f"{who} has values beyond {_LARGEST:g}; rescale the points, their squares must be representable"
            )
        if checked and clean.shape[1] != checked[0].shape[1]:
            raise InputError(
                f"{who} has points of dimension {clean.shape[1]}, but agent {names[0]} has {checked[0].shape[1]}; "
                "all agents must share the same columns"
            )
        checked.append(clean)
    return names, checked


def target_indices(targets: int | Iterable[int] | None, n_agents: int) -> NDArray[np.int64]:
    """Return the target indices as an array; `None` means every agent."""
    if targets is None:
        return np.arange(n_agents)
    chosen: list[Any] = list(targets) if isinstance(targets, Iterable) and np.ndim(targets) == 1 else [targets]  # type: ignore[arg-type]
    for target in chosen:
        if isinstance(target, bool) or not isinstance(target, Integral):
            raise InputError(f"target {target!r} is not an agent's index; give integers from 0 to {n_agents - 1}")
        if not 0 <= int(target) < n_agents:
            raise InputError(f"target {target} is out of range: there are {n_agents} agents, 0 to {n_agents - 1}")
    if not chosen:
        raise InputError("targets is empty; give at least one agent's index, or None for all")
    return np.array([int(target) for target in chosen], dtype=np.int64)


def nonnegative(value: Any, name: str) -> float:
    """Return `value` as a finite float of at least zero."""
    number = _real(value, name)
    if number < 0:
        raise InputError(f"{name} must not be negative, got {number:g}")
    return number


def positive(value: Any, name: str) -> float:
    """Return `value` as a finite float above zero."""
    number = _real(value, name)
    if number <= 0:
        raise InputError(f"{name} must be positive, got {number:g}")
    return number


def positive_integer(value: Any, name: str) -> int:
    """Return `value` as an int of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise InputError(f"{name} must be a positive whole number, got {value!r}")
    return int(value)


def one_of(value: Any, choices: Iterable[str], name: str) -> str:
    """Return `value` if it is among `choices`."""
    valid = list(choices)
    if value not in valid:
        raise InputError(f"{name} {value!r} is not known; choose one of {', '.join(valid)}")
    return str(value)


def unknown(kind: str, name: object, valid: Iterable[str]) -> InputError:
    """The error for a name that is not among the valid ones; it offers the nearest."""
    by_lower_case = {candidate.lower(): candidate for candidate in valid}
    nearest = difflib.get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=0)
    return InputError(
        f"there is no {kind} {name!r}" + (f"; the nearest is {by_lower_case[nearest[0]]!r}" if nearest else "")
    )


def check_options(who: str, function: Callable[..., Any], options: Iterable[str], given: int = 0) -> None:
    """Raise unless the function takes all of these options by name, beside its first `given` arguments.

    `who` is what people call the function.
    """
    parameters = list(signature(function).parameters.values())[given:]
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        return
    names = [one.name for one in parameters]
    for option in options:
        if option not in names:
            none = InputError(f"there is no {who} option; leave {option!r} out")
            raise unknown(f"{who} option", option, names) if names else none


def _real(value: Any, name: str) -> float:
    try:
        number = np.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = np.inf
    if not np.isfinite(number):
        raise InputError(f"{name} must be a finite number, got {value!r}"[:200])
    return number


def without_rounding(trace: float, squared_norm: float) -> float:
    """Zero if a trace is no more than rounding leaves of points of that squared norm that coincide, else the trace."""
    return trace if trace > 32 * np.finfo(np.float64).eps * squared_norm else 0.0


def whole_number(value: Any, name: str) -> int:
    """Return `value` as an int of at least zero; no count is larger than 2^53."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= 2**53:
        raise InputError(f"{name} must be a whole number of at least zero, got {value!r}")
    return int(value)


def short_text(value: Any) -> str:
    """The value if it is text that can be written down; a ValueError otherwise."""
    if not isinstance(value, str) or not 0 < len(value) <= 500 or not value.isprintable():
        raise ValueError("a text is empty, too long, or cannot be printed")
    return value


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs a second time, if any."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
