r"""Scales that one agent, or one cell, cannot move, and how far from them a cell is too far to be believed.

Many columns hold one value most of the time: no visits, no ink, not measured. Their median deviation is zero, and what
varies is the rest. So each agent tells, of a numeric column, its *base*, the value of more than half of the cells (0 where
there is none, and in columns of zeros and one other value), how many cells are equal to it, and count, mean and sum of
squared deviations of the rest: of all, and of its *core*, the half nearest to its median, which wild cells have no part in
(`column_shapes`).

Over agents, locations are means of the agents' means, none of them farther from the median than two usual deviations, and
squared scales are means of their mean squared deviations from there, none above four usual ones: what is usual, nine in ten
agents stay below (`AgentScales.common`). Agents' votes count by their cells, up to four times those of the median agent,
and those whose column cannot be meant (`kinfed.data.plausibility`) have none. On agents that are alike these are mean and
variance of the column, to the last digit those of plain standardisation. Medians of deviations would be zero, or a
hundredth of these, for columns that vary in a few rows or at a few agents, such as pixels.

So the cells that are not the base :math:`a` have a centre :math:`c` and a unit :math:`u`, and with their share :math:`p`

.. math:: \mu = a + p (c - a), \qquad \sigma^2 = p u^2 + p (1 - p) (c - a)^2

standardise the column; for zeros and ones this is :math:`p` and :math:`p (1 - p)`, as ever. How far a cell is from the
others is measured on those that are not the base, in units from the centre. Agents count their cells beyond each edge of a
public `GRID`; the limit of a column is the first edge beyond which hardly any agent has a cell (`far_limits`), so
that a column with heavy tails has a wide one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.standardisation import ColumnSums, column_sums
from kinfed.validation import Array, Integers

CAP, USUAL = 4.0, 0.9
"""Times the mean square of that share of the agents above which no agent's counts."""

LOUDEST = 4.0
"""Times the cells of the median agent above which more cells give an agent no more votes."""

GRID: tuple[float, ...] = tuple(2.0**power for power in range(2, 21))
"""Units from the centre of a column beyond which agents count their cells."""

SOME, MOST = 0.1, 0.25
"""Shares of agents: so many with a few cells beyond an edge, or so many with any, and the edge is no limit."""

A_FEW = 0.2
"""Share of an agent's cells up to which those far from the others are a tail, or slips, and not what its column is like."""

HOPELESS = 2.0
"""Limits from the centre beyond which a cell tells nothing at all, and stands for a usual one."""

FEWEST_IN_CORE = 5
"""Cells that are not the base before their core is told."""

SUMS = ("count", "mean", "squares")
"""The fields of `ColumnSums`."""

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class ColumnShapes:
    """What one agent tells of the scale of its columns.

    Attributes
    ----------
    base : array of shape (d,)
        The value of more than half of the cells; 0 where there is none.
    at_base : array of int of shape (d,)
        Cells equal to it.
    rest, core : ColumnSums
        Of the cells that are not, nor missing; and of the half of them that is nearest to their median.
    """

    base: Array
    at_base: Integers
    rest: ColumnSums
    core: ColumnSums

    @property
    def count(self) -> Integers:
        """Cells that are not missing."""
        return self.at_base + self.rest.count

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays by name, to be sent."""
        parts = {f"{part} {what}": getattr(getattr(self, part), what) for part in ("rest", "core") for what in SUMS}
        return {"base": self.base, "at base": self.at_base, **parts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ColumnShapes:
        """What `arrays` made."""
        rest, core = (ColumnSums(*(arrays[f"{part} {what}"] for what in SUMS)) for part in ("rest", "core"))
        return cls(arrays["base"], arrays["at base"], rest, core)

    def select(self, columns: slice) -> ColumnShapes:
        """Of some of the columns."""
        return ColumnShapes.from_arrays({name: array[columns] for name, array in self.arrays.items()})

    def beside(self, other: ColumnShapes) -> ColumnShapes:
        """These columns and others."""
        there = other.arrays
        return ColumnShapes.from_arrays({name: np.concatenate([mine, there[name]]) for name, mine in self.arrays.items()})

    @cached_property
    def sums(self) -> ColumnSums:
        """Of all cells."""
        return ColumnSums(self.at_base, np.where(self.at_base > 0, self.base, 0.0), np.zeros(len(self.base))) + self.rest


def column_shapes(X: ArrayLike) -> ColumnShapes:
    """One agent's answer about (n, d) `X`, NaN left out; a vector counts as one column."""
    values = np.asarray(X, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if not len(values):
        nothing = column_sums(values)
        return ColumnShapes(nothing.mean, nothing.count, nothing, nothing)
    known = ~np.isnan(values)
    median = column_medians(values)
    equal, cells = (values == median).sum(axis=0), known.sum(axis=0)
    largest = np.nanmax(np.abs(np.where(known, values, 0.0)), axis=0)
    flags = ((values == 0) | (np.abs(values) == largest) | ~known).all(axis=0) & (equal < cells)
    base = np.where((2 * equal > cells) & (equal > 1) & ~flags, median, 0.0)
    at_base = values == base
    rest = np.where(at_base, np.nan, values)
    with np.errstate(over="ignore", invalid="ignore"):
        distance = np.abs(rest - column_medians(rest))
    inner = (distance <= column_medians(distance)) & ((~np.isnan(rest)).sum(axis=0) >= FEWEST_IN_CORE)
    core = np.where(inner, rest, np.nan)
    return ColumnShapes(base, at_base.sum(axis=0, dtype=np.int64), column_sums(rest), column_sums(core))


@dataclass(frozen=True, eq=False)
class CommonScales:
    r"""The scales of the columns of a federation.

    Attributes
    ----------
    mean, scale : arrays of shape (d,)
        :math:`\mu` and :math:`\sigma`, which standardise a column; the scale of a constant column is 1.
    base, centre, unit : arrays of shape (d,)
        The base, :math:`c` and :math:`u`: what far is measured in.
    """

    mean: Array
    scale: Array
    base: Array
    centre: Array
    unit: Array

    @classmethod
    def plain(cls, sums: ColumnSums) -> CommonScales:
        """Mean and deviation over all rows, as they are."""
        return cls(sums.mean, sums.scale, np.zeros(len(sums.mean)), sums.mean, sums.scale)

    def of_column(self, j: int) -> dict[str, float]:
        """Those of one column, by name."""
        return {one.name: float(getattr(self, one.name)[j]) for one in fields(self)}


@dataclass(frozen=True, eq=False)
class AgentScales:
    """What agents told of their columns, as stacks (B, d).

    Attributes
    ----------
    base : array of shape (d,)
        That of most agents.
    known : array of int of shape (B, d)
        Cells that are not missing.
    rest, core : ColumnSums
        Of the cells that are not the base, and of their core; of no cells where numbers are not finite.
    """

    base: Array
    known: Integers
    rest: ColumnSums
    core: ColumnSums

    @classmethod
    def of(cls, shapes: Sequence[ColumnShapes]) -> AgentScales:
        """Of what the agents told; where an agent's base is not that of most, its cells there are cells like others."""
        known = np.array([one.count for one in shapes])
        base = _most_told(np.array([one.base for one in shapes]), known)
        rest = [one.rest + _elsewhere(one, base) for one in shapes]
        return cls(base, known, _stacked(rest), _stacked([one.core for one in shapes]))

    def without(self, odd: NDArray[np.bool_]) -> AgentScales:
        """The same without what some agents told of some columns (B, d)."""
        left = [replace(one, count=np.where(odd, 0, one.count)) for one in (self.rest, self.core)]
        return AgentScales(self.base, np.where(odd, 0, self.known), *left)

    def common(self, usual: float = USUAL) -> CommonScales:
        """The scales of the federation; see the head of the module.

        Parameters
        ----------
        usual : float
            Share of the agents that are taken to be as they should.
        """
        centre, unit = _location_and_scale(self.rest, usual)
        equal, apart = unit <= _ROUNDING * np.abs(centre), centre - self.base
        votes = np.where(equal, self.known, _votes(self.known))  # a share is bounded: zeros and ones stay as ever
        share = np.divide(self.rest.count, self.known, out=np.zeros(self.known.shape), where=self.known > 0)
        share = (votes * share).sum(axis=0) / np.maximum(votes.sum(axis=0), 1)
        with np.errstate(over="ignore"):
            scale = np.sqrt(share * unit**2 + share * (1 - share) * apart**2)
        scale = np.where(scale > _ROUNDING * np.abs(centre), scale, 1.0)
        # Where all cells but the base are equal, far is what is far from them beside their distance to it.
        size = np.where(apart != 0, np.abs(apart), np.where(centre != 0, np.abs(centre), 1.0))
        unit = np.where(equal, size, unit)
        return CommonScales(self.base + share * apart, scale, self.base, centre, unit)


def _location_and_scale(sums: ColumnSums, usual: float) -> tuple[Array, Array]:
    """The mean of agents' means (B, d), and the root of the mean of their mean squared deviations from it, both held."""
    votes = _votes(sums.count)
    voters = (votes > 0).sum(axis=0)
    middle = np.nan_to_num(weighted_quantile(sums.mean, votes, 0.5))
    total = np.maximum(votes.sum(axis=0), 1.0)
    # However few they are, the one that varies most does not decide; of two nobody can tell which is odd.
    share = np.clip(1 - 1.5 * votes.max(axis=0) / total, 0.5, usual)

    def squares(centre: Array) -> tuple[Array, Array]:
        """Mean squared deviations of agents from there, and what they are held at."""
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.where(sums.count > 0, sums.variance + (sums.mean - centre) ** 2, 0.0)
        varied = np.where(square > 0, votes, 0.0)
        number = (varied > 0).sum(axis=0)
        rare = np.nan_to_num(weighted_quantile(square, varied, 0.5, lower=True))
        rare = np.where((number > 1) & (number >= SOME * voters), rare, 0.0)
        common = np.nan_to_num(weighted_quantile(square, votes, share, lower=True))
        with np.errstate(over="ignore"):
            return square, np.where(voters < 3, np.inf, CAP * np.where(common > 0, common, rare))

    def mean(values: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((values * votes).sum(axis=0) / total)

    reach = np.sqrt(squares(middle)[1])
    location = mean(np.clip(np.where(votes > 0, sums.mean, middle), middle - reach, middle + reach))
    square, most = squares(location)
    return location, np.sqrt(mean(np.minimum(square, most)))


def _votes(count: NDArray[Any]) -> Array:
    """What each agent counts (B, d): its cells, up to `LOUDEST` times those of the median agent that has any."""
    usual = np.nan_to_num(column_medians(np.where(count > 0, count, np.nan)))
    return np.minimum(count, LOUDEST * usual)


def _stacked(sums: Sequence[ColumnSums]) -> ColumnSums:
    """The sums of agents as one stack (B, d); of no cells where they are not finite."""
    count, mean, squares = (np.array([getattr(one, what) for one in sums]) for what in SUMS)
    finite = np.isfinite(mean) & np.isfinite(squares)
    return ColumnSums(np.where(finite, count, 0), np.where(finite, mean, 0.0), np.where(finite, squares, 0.0))


def _most_told(values: Array, votes: Array) -> Array:
    """Of each column of (B, d) `values` the one that most votes are for, the smallest of equals."""
    found = np.zeros(values.shape[1])
    for j in np.flatnonzero((values != values[:1]).any(axis=0)).tolist():
        different, places = np.unique(values[:, j], return_inverse=True)
        found[j] = different[np.argmax(np.bincount(places, weights=votes[:, j]))]
    return np.where((values == values[:1]).all(axis=0), values[0], found)


def _elsewhere(shapes: ColumnShapes, base: Array) -> ColumnSums:
    """The cells at an agent's own base, where that is another than that of most."""
    count = np.where(shapes.base == base, 0, shapes.at_base)
    return ColumnSums(count, np.where(count > 0, shapes.base, 0.0), np.zeros(len(base)))


@dataclass(frozen=True, eq=False)
class Yardstick:
    r"""What far is measured in, column by column: arrays of shape (d,).

    Attributes
    ----------
    base, centre, unit : array
        A cell x that is not the base is :math:`|x - c| / u` from the centre.
    limit : array
        Distance at which cells are held; infinity where none are.
    hopeless : array
        Distance beyond which a cell tells nothing, and becomes the centre.
    """

    base: Array
    centre: Array
    unit: Array
    limit: Array
    hopeless: Array

    def distances(self, X: ArrayLike) -> Array:
        """How far every cell of (n, d) `X` is from its centre; 0 for the base and for missing cells."""
        values = np.asarray(X, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            far = np.abs(values - self.centre) / self.unit
        return np.where(np.isnan(values) | (values == self.base), 0.0, far)

    def held(self, X: Array, least: int = 1) -> Array:
        """The cells (n, d) as others may learn from them; the same array where no cell is beyond the limit.

        Parameters
        ----------
        X : array
        least : int
            Rows that differ at least, if any do, as far as cells differ at all: the farthest of the same columns are held
            too. What an agent tells of these rows, and of the same as they are for its own model, must not give away one.
        """
        far = self.distances(X)
        beyond = far > self.limit
        if not beyond.any():
            return X
        level = np.where(beyond.any(axis=0), self.limit, np.inf)
        if beyond.any(axis=1).sum() < least:
            level = np.minimum(level, np.where(beyond.any(axis=0), np.sort(far, axis=0)[max(-least - 1, -len(X))], np.inf))
        moved = self.centre + np.sign(X - self.centre) * np.where(np.isfinite(level), level, 0.0) * self.unit
        kept = np.where(far > level, moved, X)
        return np.where(far > self.hopeless, np.broadcast_to(self.centre, X.shape), kept)


def far_counts(far: Array) -> Integers:
    """How many cells of each column are beyond each edge of `GRID`, of shape (d, edges), from their distances (n, d)."""
    return np.stack([(far > edge).sum(axis=0, dtype=np.int64) for edge in GRID], axis=1)


def far_limits(counts: NDArray[np.int64], rows: NDArray[np.int64]) -> Array:
    """The limit of every column, in units.

    It is the first edge that no more than `MOST` of the agents have cells beyond, and no more than `SOME` of them, or
    a single one, a few.

    Parameters
    ----------
    counts : array of shape (B, d, edges)
        What agents told; see `far_counts`.
    rows : array of shape (B, d)
        Their cells that are not missing.
    """
    share = counts / np.maximum(rows, 1)[:, :, None]
    told = np.maximum((rows > 0).sum(axis=0), 1)[:, None]
    any_beyond = (share > 0).sum(axis=0)
    few_beyond = ((share > 0) & (share[:, :, :1] <= A_FEW)).sum(axis=0)
    usual = (any_beyond > MOST * told) | ((few_beyond > 1) & (few_beyond >= SOME * told))
    # The first edge after the last that cells usually go beyond.
    first = np.where(usual.any(axis=1), usual.shape[1] - np.argmax(usual[:, ::-1], axis=1), 0)
    return np.array([*GRID, np.inf])[first]


def voices(counts: NDArray[np.int64], rows: NDArray[np.int64], limit: float) -> Array:
    r"""How much the outcomes of agents count for others: 1, and less where most of them are beyond the limit :math:`L`.

    There it is the mean of :math:`\min(1, L / r_i)^3` over the rows, :math:`r_i` the distance of a row's outcome from the
    centre, as far as the grid tells: the farther off an agent is as a whole, the less it moves anybody else.

    Parameters
    ----------
    counts : array of shape (B, edges)
        Outcomes beyond each edge.
    rows : array of shape (B,)
        Rows of the agents.
    limit : float
    """
    edges = np.array(GRID)
    within = np.diff(counts[:, ::-1], axis=1, prepend=0)[:, ::-1]  # beyond an edge but not the next
    middle = np.minimum(1.0, limit / (np.sqrt(2) * edges)) ** 3
    near = rows - counts[:, 0]
    mean = (near + (within * middle).sum(axis=1)) / np.maximum(rows, 1)
    beyond = counts[:, edges >= limit][:, :1].sum(axis=1) if (edges >= limit).any() else np.zeros(len(rows))
    return np.where(2 * beyond > rows, mean, 1.0)


def column_medians(values: Array) -> Array:
    """Medians of columns, NaN left out; NaN where nothing is left."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = (~np.isnan(ordered)).sum(axis=0)
    columns = np.arange(ordered.shape[1])
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, max(len(ordered) - 1, 0))
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)


def weighted_quantile(values: Array, weights: Array, share: float | Array, lower: bool = False) -> Array:
    """Quantiles of the columns of (B, d) `values`; those of weight zero do not count, and NaN is what nobody has.

    Where the share is reached exactly between two values it is their mean, so that equal weights give the usual median; or
    the lower one.
    """
    order = np.argsort(np.where(weights > 0, values, np.inf), axis=0, kind="stable")
    ordered, mass = np.take_along_axis(values, order, axis=0), np.take_along_axis(weights, order, axis=0).cumsum(axis=0)
    total, columns = mass[-1], np.arange(values.shape[1])
    aim, slack = share * total, 1e-9 * total
    low = np.argmax(mass >= aim - slack, axis=0)
    high = np.where(total > aim + slack, np.argmax(mass > aim + slack, axis=0), low)
    found = (ordered[low, columns] + ordered[low if lower else high, columns]) / 2
    return np.where(total > 0, found, np.nan)
