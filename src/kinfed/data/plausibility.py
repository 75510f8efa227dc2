r"""Agents whose columns cannot be meant as they are: other units, another sign, two columns exchanged.

Agent k tells mean :math:`m_k` and deviation :math:`s_k` of the core of a column, its middle half (`kinfed.data.scales`).
How far it is from the other agents is told on a log scale, with medians :math:`\bar m, \bar s` over agents,

.. math:: t_k = \operatorname{asinh} \frac{m_k}{\bar s} - \operatorname{asinh} \frac{\bar m}{\bar s}, \qquad
          r_k = \log \frac{s_k}{\bar s},

each divided by its deviation between agents (from the median distance to the median, so that the odd ones do not count)
or by what the agent's own few rows leave open. An agent is implausible in a column if one of the two is beyond the
quantile, of Student's distribution with a few degrees of freedom, that no agent and no column of a federation exceeds by
chance but in one of a thousand. Where agents differ a lot, hardly anything is implausible.

That alone is a reason to look, not to leave anybody out. Only if a change that people do make by mistake (`UNITS`, a sign,
an exchange of two columns) makes the agent a typical one, is it *set aside*: nobody else learns from it, and it learns
alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from kinfed.data.scales import AgentScales, ColumnShapes, column_medians
from kinfed.validation import Array

FEWEST_AGENTS = 8
"""With fewer agents nobody is set aside: nobody can tell who is right."""

FALSE_ALARMS = 0.001
"""Chance that any agent of a federation of alike ones is found implausible in any column."""

DEGREES = 10
"""Degrees of freedom of the distribution that positions of agents are compared with, whose tails are longer than normal."""

TYPICAL = 3.0
"""Deviations within which an agent is a typical one."""

MOST_ASIDE = 0.25
"""Share of the agents that may be set aside for one column; if more differ, agents use two units, and nobody is wrong."""

_FEWEST_CELLS = 5  # that are not the base, before anything is said of an agent's column
_LEAST_FACTOR = 1.5  # of deviations: what is smaller is nobody's mistake
_LEAST_SHIFT, _LEAST_COARSE = 1.5, 20.0  # units from the centre likewise, and in a coarse column
_MOSTLY, _SPIKY = 0.75, 4.0  # share of agents whose cores vary, and times a core's deviation, where a column is not coarse
_NORMAL_MAD = 1.4826  # deviation of a normal distribution in units of its median absolute deviation
_CORE, _CORE_ERROR = 2.647, 1.2  # and of its core's deviation; errors of a core's mean and log deviation, times sqrt(n)
_SMALL, _SURELY = 5.0, 1.5  # factors that agents may differ by, and limits beyond which they explain something all the same
_LEFT = 0.15  # share of its distance that a unit may leave of a distance far beyond the limit
_BY_CHANCE = 0.01  # that a second column of an agent is odd as well
_COLDEST, _WARMEST = -50.0, 60.0  # degrees Celsius that are usual somewhere
_THROUGHOUT, _HARDLY = 0.9, 0.25  # shares of zeros: at an agent, and at the others, where zero stands for missing


class Unit(NamedTuple):
    """How one unit becomes another: factor, offset, what people mix up, and how columns are called where they do."""

    factor: float
    offset: float
    cause: str
    named: str = ""


UNITS = (
    Unit(1000.0, 0.0, "grams for kilograms", r"weight|mass|gewicht|poids|\bkg\b|dose|birthweight"),
    Unit(1000.0, 0.0, "milli- or microunits, or thousands"),
    Unit(100.0, 0.0, "centimetres for metres", r"height|length|size|gr(ö|oe)(ß|ss)e|taille"),
    Unit(100.0, 0.0, "percent for shares, or cents"),
    Unit(10.0, 0.0, "millimetres for centimetres, or a decimal point"),
    Unit(1e6, 0.0, "micro- or millionfold units"),
    Unit(60.0, 0.0, "seconds for minutes, or minutes for hours"),
    Unit(3600.0, 0.0, "seconds for hours"),
    Unit(24.0, 0.0, "hours for days", r"hour|day|time|duration|stay|los\b|dauer|tage|stunden|age"),
    Unit(7.0, 0.0, "days for weeks", r"day|week|time|duration|stay|los\b|dauer|tage|wochen|age"),
    Unit(12.0, 0.0, "months for years", r"month|year|time|duration|dauer|monat|jahr|age|alter"),
    Unit(365.25, 0.0, "days for years", r"day|year|time|duration|dauer|tage|jahr|age|alter"),
    Unit(2.54, 0.0, "centimetres for inches"),
    Unit(1 / 0.4536, 0.0, "pounds for kilograms"),
    Unit(18.016, 0.0, "mg/dl for mmol/l of glucose", r"gluc|sugar|zucker"),
    Unit(38.67, 0.0, "mg/dl for mmol/l of cholesterol", r"chol|ldl|hdl"),
    Unit(88.42, 0.0, "micromol/l for mg/dl of creatinine", r"crea|krea"),
    Unit(7.5006, 0.0, "mmHg for kPa", r"pressure|druck|bp\b|pco2|po2"),
    Unit(1.8, 32.0, "Fahrenheit for Celsius"),
    Unit(1.0, 273.15, "Kelvin for Celsius"),
)
"""How a cell in the other unit follows from the usual one, ``factor * x + offset``; each is tried both ways.

One with names is tried for columns that are called so.
"""


@dataclass(frozen=True)
class Finding:
    """An agent that is unlike all others in a column.

    Attributes
    ----------
    agent, column : str
    what : str
        In words, without the agent: "weight is 1000 times that of the others".
    cause : str
        What may have happened; empty if nothing that is known explains it.
    factor : float, optional
        How many times the usual values its cells are, where that explains it.
    aside : bool
        Whether nobody else learns from the agent for it.
    """

    agent: str
    column: str
    what: str
    cause: str = ""
    factor: float | None = None
    aside: bool = False

    def __str__(self) -> str:
        told = f"{self.agent}: {self.what}"
        return f"{told}: {self.cause}?" if self.cause else told


@dataclass(frozen=True, eq=False)
class _Cores:
    """Means and deviations of cores, and how many cells those are the core of; of agents (B, d), or of one."""

    mean: Array
    deviation: Array
    cells: Array

    @classmethod
    def of(cls, scales: AgentScales) -> _Cores:
        there = scales.core.count > 0
        deviation = np.where(scales.core.count > 1, _CORE * np.sqrt(scales.core.variance), np.nan)
        return cls(np.where(there, scales.core.mean, np.nan), deviation, scales.rest.count.astype(np.float64))

    def of_agent(self, k: int) -> _Cores:
        """Agent k's of all columns."""
        return _Cores(self.mean[k], self.deviation[k], self.cells[k])

    def of_one(self, k: int, j: int, factor: float, offset: float) -> _Cores:
        """Agent k's of column j in other units."""
        return _Cores(factor * self.mean[k, [j]] + offset, abs(factor) * self.deviation[k, [j]], self.cells[k, [j]])


@dataclass(frozen=True, eq=False)
class _Usual:
    """What is usual in d columns: centre and unit, deviation of a core and its cells, and the spread of t and r.

    In a *coarse* column cores tell little of how it varies: most cells are equal, or those of cores, or these lie much
    closer together than the column as a whole. There r is not looked at, and t in units.
    """

    centre: Array
    unit: Array
    within: Array
    cells: Array
    coarse: NDArray[np.bool_]
    spread: tuple[Array, Array]

    @classmethod
    def of(cls, cores: _Cores, unit: Array, share: Array) -> _Usual:
        known = cores.cells >= _FEWEST_CELLS
        within = np.nan_to_num(column_medians(np.where(cores.deviation > 0, cores.deviation, np.nan)))
        varied = (known & (cores.deviation > 0)).sum(axis=0) >= _MOSTLY * np.maximum(known.sum(axis=0), 1)
        coarse = ~varied | (_SPIKY * within < unit) | (2 * share < 1)
        cells = np.nan_to_num(column_medians(np.where(cores.cells > 0, cores.cells, np.nan)))
        none, centre = np.zeros(len(unit)), np.nan_to_num(column_medians(cores.mean))
        bare = cls(centre, unit, np.where(coarse, unit, within), cells, coarse, (none, none))
        shift, ratio = (_NORMAL_MAD * np.nan_to_num(column_medians(np.abs(one))) for one in bare.positions(cores))
        return replace(bare, spread=(shift, ratio))

    def column(self, j: int) -> _Usual:
        """That of one column."""
        alone = {name: getattr(self, name)[[j]] for name in ("centre", "unit", "within", "cells", "coarse")}
        return _Usual(**alone, spread=(self.spread[0][[j]], self.spread[1][[j]]))

    def positions(self, cores: _Cores) -> tuple[Array, Array]:
        """Positions t and r (..., d) of cores; NaN where there are none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(cores.deviation / self.within)
        shift = np.arcsinh(cores.mean / self.within) - np.arcsinh(self.centre / self.within)
        return shift, np.where(np.isfinite(ratio) & ~self.coarse, ratio, np.nan)

    def distance(self, cores: _Cores) -> Array:
        """How many deviations cores (..., d) are from usual, by t or by r, whatever is more."""
        few = np.maximum(cores.cells, 2)
        # What few rows leave open at the least: the errors of cores of normal cells.
        error = _CORE_ERROR / np.sqrt(few)
        errors = error / np.hypot(1.0, self.centre / self.within), error
        fewer = np.sqrt(np.maximum(1.0, self.cells / few))
        found = [
            np.nan_to_num(np.abs(one) / np.maximum(spread * fewer, error))
            for one, spread, error in zip(self.positions(cores), self.spread, errors, strict=True)
        ]
        return np.maximum(*found)


def implausible(
    shapes: Sequence[ColumnShapes], names: Sequence[str], columns: Sequence[str], trusted: Collection[str] = ()
) -> tuple[tuple[Finding, ...], NDArray[np.bool_]]:
    """Agents that cannot be meant as they are, and why, in the order of the agents; and what is not to be believed (B, d).

    Parameters
    ----------
    shapes : sequence of B ColumnShapes
        Of all columns; the outcome may be one of them.
    names : sequence of B str
    columns : sequence of d str
    trusted : collection of str
        Agents that are not set aside, whatever is found.
    """
    scales = AgentScales.of(shapes)
    cores = _Cores.of(scales)
    shares = np.divide(scales.rest.count, scales.known, out=np.full(scales.known.shape, np.nan), where=scales.known > 0)
    usual = _Usual.of(cores, scales.common(0.5).unit, np.nan_to_num(column_medians(shares)))
    off, ratio = (cores.mean - usual.centre) / usual.unit, usual.positions(cores)[1]
    least = np.where(usual.coarse, _LEAST_COARSE, _LEAST_SHIFT)
    large = (np.abs(np.nan_to_num(off)) >= least) | (np.abs(np.nan_to_num(ratio)) >= np.log(_LEAST_FACTOR))
    chance = FALSE_ALARMS / (4 * max(off.size, 1))  # two sides of two numbers
    limit = student.isf(chance, min(DEGREES, max(len(names) // 2, DEGREES // 2)))
    odd = (usual.distance(cores) > limit) & large & (cores.cells >= _FEWEST_CELLS)
    look = _Look(cores, usual, names, columns, odd, float(limit))
    found = [finding for k in np.flatnonzero(odd.any(axis=1)).tolist() for finding in look.at(k)]
    found += _zero_throughout(shapes, names, columns)
    per_column = {column: sum(one.aside for one in found if one.column == column) for column in columns}
    many = {column for column, number in per_column.items() if number > MOST_ASIDE * len(names)}
    kept = [
        replace(one, aside=False) if one.column in many or one.agent in trusted or len(names) < FEWEST_AGENTS else one
        for one in found
    ]
    # Whoever is odd in one column may be so, unseen, in others: it has no say in what is usual, unless too many are odd.
    agents = odd.any(axis=1)
    doubted = odd | agents[:, None] if agents.mean() <= MOST_ASIDE else odd
    return tuple(sorted(kept, key=lambda one: list(names).index(one.agent))), doubted


@dataclass(frozen=True, eq=False)
class _Look:
    """What is looked at to explain why an agent is odd in some columns."""

    cores: _Cores
    usual: _Usual
    names: Sequence[str]
    columns: Sequence[str]
    odd: NDArray[np.bool_]
    limit: float

    def at(self, k: int) -> list[Finding]:
        """All that is odd about agent k."""
        odd = np.flatnonzero(self.odd[k]).tolist()
        found, exchanged = [], set[int]()
        for j in odd:
            for other in self._exchanged(k, j):
                if not {j, other} & exchanged:
                    exchanged |= {j, other}
                    told = f"{self.columns[j]} and {self.columns[other]} look like each other's"
                    found.append(Finding(self.names[k], self.columns[j], told, "two columns exchanged", aside=True))
        return found + [self._explained(k, j) for j in odd if j not in exchanged]

    def _exchanged(self, k: int, j: int) -> list[int]:
        """Columns of agent k that are far from typical, as column j is, and typical of each other with it."""
        own, every = self.cores.of_one(k, j, 1.0, 0.0), self.cores.of_agent(k)
        fits = (self.usual.distance(own) <= TYPICAL) & (self.usual.column(j).distance(every) <= TYPICAL)
        # Of many columns some are like some other by chance.
        odd = self.usual.distance(every) > student.isf(_BY_CHANCE / (2 * len(self.columns) ** 2), DEGREES)
        return [int(other) for other in np.flatnonzero(fits & odd) if other != j]

    def _distance(self, k: int, j: int, factor: float = 1.0, offset: float = 0.0) -> float:
        """How far agent k is from usual in column j, in other units."""
        return float(self.usual.column(j).distance(self.cores.of_one(k, j, factor, offset))[0])

    def _explained(self, k: int, j: int) -> Finding:
        """What explains that agent k is odd in column j; a change of units that goes with its name before others."""
        name, column = self.names[k], self.columns[j]
        tried, now = [], self._distance(k, j)
        surely = _SURELY * self.limit * max(1.0, math.log10(len(self.columns)))
        for unit in UNITS:
            called = bool(unit.named) and re.search(unit.named, column, re.IGNORECASE) is not None
            if unit.named and not called:
                continue
            for back in (False, True):
                # From the other unit to the usual one, or the other way round.
                factor, offset = (unit.factor, unit.offset) if back else (1 / unit.factor, -unit.offset / unit.factor)
                distance = self._distance(k, j, factor, offset)
                if unit.offset and not self._is_temperature(j, unit, back):
                    continue
                if unit.factor < _SMALL and not called and now <= surely:
                    continue
                if distance <= (TYPICAL if unit.factor < _SMALL else max(TYPICAL, _LEFT * now)):
                    tried.append((not called, distance, unit, back))
        if tried:
            *_, unit, back = min(tried, key=lambda one: one[:2])
            return Finding(
                name,
                column,
                _in_units(column, unit, back),
                _cause(unit, back),
                1 / unit.factor if back else unit.factor,
                True,
            )
        centre, within = self.usual.centre[j], self.usual.within[j]
        if abs(centre) > 3 * within and self._distance(k, j, -1.0) <= TYPICAL:
            return Finding(name, column, f"{column} has the sign of the others reversed", "a sign", -1.0, True)
        return Finding(name, column, self._unexplained(k, j))

    def _is_temperature(self, j: int, unit: Unit, back: bool) -> bool:
        """Whether what is usual in column j may be degrees Celsius, or would be them in the other unit."""
        usual = self.usual.centre[j]
        celsius = (usual - unit.offset) / unit.factor if back else usual
        return bool(_COLDEST <= celsius <= _WARMEST)

    def _unexplained(self, k: int, j: int) -> str:
        column, off = self.columns[j], (self.cores.mean[k, j] - self.usual.centre[j]) / self.usual.unit[j]
        if abs(off) >= _LEAST_SHIFT:
            return f"{column} is {abs(off):.3g} deviations {'above' if off > 0 else 'below'} that of the others on average"
        ratio = self.cores.deviation[k, j] / self.usual.within[j]
        return f"{column} varies {ratio:.3g} times as much as at the others"


def _in_units(column: str, unit: Unit, back: bool) -> str:
    """What the cells are beside those of the others; `back` where theirs are in the other unit."""
    if unit.factor == 1:
        return f"{column} is {unit.offset:g} {'below' if back else 'above'} that of the others"
    if unit.offset and back:
        return f"{column} is that of the others less {unit.offset:g}, divided by {unit.factor:g}"
    more = f", plus {unit.offset:g}" if unit.offset else ""
    times = f"1/{unit.factor:.4g} of" if back else f"{unit.factor:.4g} times"
    return f"{column} is {times} that of the others{more}"


def _cause(unit: Unit, back: bool) -> str:
    """What people mixed up; the other way round where the usual unit is the larger one."""
    first, joined, second = unit.cause.partition(" for ")
    return f"{second} for {first}" if back and joined and "," not in unit.cause else unit.cause


def _zero_throughout(shapes: Sequence[ColumnShapes], names: Sequence[str], columns: Sequence[str]) -> list[Finding]:
    """Agents whose column is zero where hardly any other's is: as a rule it was not measured."""
    known = np.array([one.count for one in shapes])
    zeros = np.array([np.where(one.base == 0, one.at_base, 0) for one in shapes]) / np.maximum(known, 1)
    usual = column_medians(np.where(known > 0, zeros, np.nan))
    varied = np.mean([one.rest.squares > 0 for one in shapes], axis=0) > _MOSTLY / 2  # and not a flag
    odd = (zeros >= _THROUGHOUT) & (usual <= _HARDLY) & varied & (known >= _FEWEST_CELLS)
    found = []
    for k, j in np.argwhere(odd).tolist():
        told = f"{columns[j]} is 0 in {zeros[k, j]:.0%} of its rows, hardly ever at most others"
        found.append(Finding(names[k], columns[j], told, "zero for missing"))
    return found
