"""Figures of weights: who listens to whom, who is kin, and what that adds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError
from kinfed.plotting.style import BLACK, BLUE, GREEN, GREY, VERMILION, canvas, figure_of, legend_beside
from kinfed.plotting.ties import TiesPlots, draw_matrix, draw_row
from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.analysis.ties import Ties
    from kinfed.weights import Weights


_ADVICE = {"join": (GREEN, "o"), "stay local": (BLUE, "s"), "no clear difference": (GREY, "^")}


@dataclass(frozen=True, eq=False)
class WeightsPlots:
    """Figures of weights, reached as ``weights.plot``; each returns a matplotlib Figure."""

    weights: Weights

    def matrix(self, axes: Axes | None = None) -> Figure:
        """Who listens to whom: a row per target, a column per agent, kin side by side.

        Self weights are drawn apart, at the right, since they would drown the others. Of many agents, every cell of the
        picture is the largest weight of a block of them.
        """
        weights = self.weights
        rows, columns = self._order()
        count, agents = weights.matrix.shape
        who = f"{agents} agents" if self._complete else f"{count} of {agents} agents"
        return draw_matrix(
            axes,
            self._others(rows, columns),
            weights.self_weight[rows],
            [weights.names[weights.targets[row]] for row in rows],
            [weights.names[k] for k in columns],
            "weights",
            f"{weights.rule}, {who}",
        )

    def weights_of_others(self) -> Array:
        """The numbers of `matrix`: the weights with kin side by side, NaN in place of self weights."""
        return self._others(*self._order())

    def map(self, axes: Axes | None = None) -> Figure:
        """Agents in the plane, near where their data are alike; groups of those that look alike, and outliers by name."""
        return TiesPlots(self._ties("a map")).map(axes)

    def network(self, axes: Axes | None = None) -> Figure:
        """Agents, and an arrow to every agent from each of the three it listens to most; for up to 200 agents."""
        return TiesPlots(self._ties("a network")).network(axes)

    def effective_sample_size(self, axes: Axes | None = None) -> Figure:
        """The points every target learns from as good as has, against the points it holds."""
        weights = self.weights
        own, effective = weights.sizes[weights.targets], weights.effective_sample_size
        with canvas(axes, width=5.6, height=4.2) as drawn:
            if weights.advice:
                for words, (colour, marker) in _ADVICE.items():
                    who = np.array(weights.advice) == words
                    if who.any():
                        text = f"{words} ({who.sum()})"
                        drawn.scatter(own[who], effective[who], s=18, color=colour, marker=marker, alpha=0.75, label=text)
            else:
                drawn.scatter(own, effective, s=18, color=BLUE, alpha=0.75, label="agent")
            ends = np.array([own.min() * 0.9, own.max() * 1.1])
            drawn.plot(ends, ends, color=BLACK, linewidth=0.9, linestyle="--", label="learning alone")
            drawn.axhline(weights.sizes.sum(), color=VERMILION, linewidth=0.9, linestyle=":", label="all points")
            drawn.set(
                xscale="log",
                yscale="log",
                xlabel="own points",
                ylabel="effective sample size, points",
                title=f"Points that count: a median of {np.nanmedian(effective / own):.1f} times the own ones",
            )
            _plain_ticks(drawn)
            legend_beside(drawn)
            return figure_of(drawn)

    def why(self, target: int | str, most: int = 10) -> Figure:
        """Whom a target listens to, and why: the weight of the heaviest agents, and their distance beside chance.

        Parameters
        ----------
        target : int or str
            Place or name of the agent.
        most : int
            How many agents to show.
        """
        name = target if isinstance(target, str) else self.weights.names[target]
        return draw_row(self.weights.why(target, most), name, "weights")

    def _others(self, rows: Integers, columns: Integers) -> Array:
        others = self.weights.matrix.copy()
        others[np.arange(len(others)), self.weights.targets] = np.nan
        return others[np.ix_(rows, columns)]

    def _order(self) -> tuple[Integers, Integers]:
        """Rows and columns in kin order; as they are, where some agents are no targets."""
        if not self._complete:
            return np.arange(len(self.weights.targets)), np.arange(len(self.weights.names))
        columns = self._ties("an order").order
        return np.argsort(self.weights.targets)[columns], columns

    @property
    def _complete(self) -> bool:
        return bool(np.array_equal(np.sort(self.weights.targets), np.arange(len(self.weights.names))))

    def _ties(self, what: str) -> Ties:
        """Weights and distances, a row and a column per agent, in order."""
        from kinfed.analysis.ties import Ties

        if not self._complete:
            raise InputError(
                f"{what} needs weights for all {len(self.weights.names)} agents, but only "
                f"{len(self.weights.targets)} were asked for; leave out targets="
            )
        weights, evidence, rows = self.weights, self.weights.evidence, np.argsort(self.weights.targets)
        ordered = {one.name: getattr(evidence, one.name)[rows] for one in fields(evidence)}
        return Ties("weights", weights.names, weights.sizes, weights.matrix[rows], replace(evidence, **ordered))


def _plain_ticks(axes: Axes) -> None:
    """Numbers such as 50 on logarithmic axes, where a power of ten may not even be in sight."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
