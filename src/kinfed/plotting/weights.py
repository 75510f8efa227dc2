"""Figures of weights: who listens to whom, who is kin, and what that adds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.agents import agent_rows, bars, listed, name_points, short
from kinfed.plotting.pooling import block_maxima
from kinfed.plotting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PALETTE,
    VERMILION,
    canvas,
    figure_of,
    legend_beside,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.kinship import Groups
    from kinfed.weights import Weights
    from kinfed.weights.evidence import Evidence

Array = NDArray[np.float64]

_CELLS = 250  # rows and columns of the picture of the matrix
_FEW = 30  # agents with large marks and names on a map
_OWN_CELLS = "#ead9c0"  # of the diagonal: no shade of a weight
_ADVICE = {"join": (GREEN, "o"), "stay local": (BLUE, "s"), "too little data to say": (GREY, "^")}


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
        shown = self._others(rows, columns)
        count, agents = shown.shape
        cells = block_maxima(shown, _CELLS)
        block = -(-max(shown.shape) // _CELLS)
        positive = shown[shown > 0]
        top = float(np.quantile(positive, 0.98)) if len(positive) else 1.0
        with canvas(axes, width=6.4, height=5.0) as drawn:
            extent = (-0.5, cells.shape[1] * block - 0.5, cells.shape[0] * block - 0.5, -0.5)
            image = drawn.imshow(
                cells, cmap="Blues", vmin=0.0, vmax=top, interpolation="nearest", extent=extent, aspect="auto"
            )
            drawn.set_facecolor(_OWN_CELLS)
            names = [short(name) for name in weights.names]
            drawn.set_xlim(-0.5, agents - 0.5)
            agent_rows(drawn, [weights.names[weights.targets[row]] for row in rows], "kin side by side")
            drawn.grid(False)
            if listed(names):
                drawn.set_xticks(np.arange(agents), [names[k] for k in columns], rotation=90)
                drawn.tick_params(labelsize=8 if agents <= 30 else 5.5, length=0)
            else:
                drawn.set_xticks([])
            drawn.set_xlabel("agent listened to")
            own = drawn.inset_axes((1.02, 0.0, 0.13, 1.0), sharey=drawn)
            bars(own, weights.self_weight[rows], BLUE)
            largest = float(weights.self_weight.max()) or 1.0
            own.set_xlim(0, largest)
            own.set_xticks([0, largest], ["0", f"{largest:.2g}"])
            own.grid(False)
            own.tick_params(axis="y", left=False, labelleft=False)
            own.set_xlabel("own weight", fontsize=7.5)
            scale = drawn.inset_axes((1.2, 0.0, 0.035, 1.0))
            figure = figure_of(drawn)
            heaviest = float(positive.max(initial=0.0))
            figure.colorbar(image, cax=scale, extend="max" if heaviest > top else "neither")
            scale.grid(False)
            scale.set_ylabel("weight" if block == 1 else f"weight, the largest of {block} x {block}")
            who = f"{agents} agents" if self._complete else f"{count} of {agents} agents"
            drawn.set_title(f"Who listens to whom: {weights.rule}, {who}")
            return figure

    def weights_of_others(self) -> Array:
        """The numbers of `matrix`: the weights with kin side by side, NaN in place of self weights."""
        return self._others(*self._order())

    def map(self, axes: Axes | None = None) -> Figure:
        """Agents in the plane, near where their data are alike; groups of those that look alike, and outliers by name."""
        from kinfed.kinship import agent_map, kin_groups

        _, evidence = self._of_all("a map")
        plane, groups = agent_map(evidence.squared_distances), kin_groups(evidence)
        x, y = plane.coordinates.T
        with canvas(axes, width=6.2, height=4.8) as drawn:
            sizes = _areas(self.weights.sizes)
            for who, words, colour, marker in _kinds(groups):
                drawn.scatter(
                    x[who], y[who], s=sizes[who], color=colour, marker=marker, alpha=0.75, linewidths=0.5, label=words
                )
            name_points(drawn, plane.coordinates, self.weights.names, self._named(groups))
            drawn.set_aspect("equal", adjustable="datalim")
            drawn.set_xlabel("first coordinate (MMD)")
            drawn.set_ylabel("second coordinate (MMD)")
            drawn.set_title(
                f"{_counted(len(groups.sizes), 'group')} and {_counted(len(groups.outliers), 'outlier')} among {len(x)} "
                f"agents;\nthe plane shows {plane.explained:.0%} of their squared distances"
            )
            legend_beside(drawn)
            return figure_of(drawn)

    def network(self, axes: Axes | None = None) -> Figure:
        """Agents, and an arrow to every agent from each of the three it listens to most; for up to 200 agents."""
        from kinfed.kinship import LARGEST_NETWORK, agent_map, kin_groups, kin_network

        matrix, evidence = self._of_all("a network")
        if len(matrix) > LARGEST_NETWORK:
            raise InputError(
                f"a network of {len(matrix)} agents cannot be read, only one of up to {LARGEST_NETWORK}; use plot.matrix()"
            )
        network = kin_network(matrix, agent_map(evidence.squared_distances).coordinates)
        groups = kin_groups(evidence)
        x, y = network.coordinates.T
        areas = _areas(self.weights.sizes)
        with canvas(axes, width=6.4, height=5.2) as drawn:
            for who, words, colour, marker in _kinds(groups):
                drawn.scatter(x[who], y[who], s=areas[who], color=colour, marker=marker, label=words, zorder=2)
            along = np.column_stack((x[network.target] - x[network.source], y[network.target] - y[network.source]))
            length = np.maximum(np.linalg.norm(along, axis=1), 1e-9)
            # Arrows end before the listener's mark, which would cover their heads.
            kept = np.maximum(1 - 0.018 / length, 0.5)
            arrows = drawn.quiver(
                x[network.source],
                y[network.source],
                *(along * kept[:, None]).T,
                network.weight,
                angles="xy",
                scale_units="xy",
                scale=1,
                width=0.0022,
                headwidth=5,
                cmap="Greys",
                zorder=1,
            )
            strongest = float(network.weight.max(initial=0.0))
            arrows.set_clim(-0.4 * strongest, max(strongest, 1e-12))  # the weakest arrow is grey, not white
            name_points(drawn, network.coordinates, self.weights.names, self._named(groups))
            drawn.set_aspect("equal", adjustable="datalim")
            drawn.set_axis_off()
            drawn.set_title(f"Whom {len(x)} agents listen to most: an arrow leads to the listener, the darker the heavier")
            legend_beside(drawn)
            return figure_of(drawn)

    def effective_sample_size(self, axes: Axes | None = None) -> Figure:
        """The points every target learns from as good as has, against the points it holds."""
        weights = self.weights
        own, effective = weights.sizes[weights.targets], weights.effective_sample_size
        with canvas(axes, width=5.6, height=4.2) as drawn:
            if weights.advice:
                advice = np.array(weights.advice)
                for words, (colour, marker) in _ADVICE.items():
                    who = advice == words
                    if who.any():
                        text = f"{words} ({who.sum()})"
                        drawn.scatter(own[who], effective[who], s=18, color=colour, marker=marker, alpha=0.75, label=text)
            else:
                drawn.scatter(own, effective, s=18, color=BLUE, alpha=0.75, label="agent")
            ends = np.array([own.min() * 0.9, own.max() * 1.1])
            drawn.plot(ends, ends, color=BLACK, linewidth=0.9, linestyle="--", label="learning alone")
            drawn.axhline(weights.sizes.sum(), color=VERMILION, linewidth=0.9, linestyle=":", label="all points")
            drawn.set_xscale("log")
            drawn.set_yscale("log")
            drawn.set_xlabel("own points")
            drawn.set_ylabel("effective sample size, points")
            drawn.set_title(f"Points that count: a median of {np.median(effective / own):.1f} times the own ones")
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
        table = self.weights.why(target, most)
        name = target if isinstance(target, str) else self.weights.names[target]
        places = np.arange(len(table))
        own = table.index == name
        with canvas(width=7.4, height=1.3 + 0.24 * len(table), columns=2, sharey=True) as (left, right):
            bars(left, table["weight"], np.where(own, BLACK, BLUE))
            left.xaxis.set_major_formatter("{x:.0%}")
            left.set_xlabel("weight (black: its own data)")
            left.set_title(f"Whom {short(name)} listens to")
            far = table["differs"].to_numpy(dtype=bool)
            distance, chance = table["squared MMD"].to_numpy(), table["null quantile"].to_numpy()
            right.hlines(places, 0, distance, color=GREY, linewidth=1)
            for who, colour, marker, words in (
                (~far, BLUE, "o", "no farther than chance"),
                (far, VERMILION, "X", "farther than chance"),
            ):
                if who.any():
                    right.scatter(distance[who], places[who], s=26, color=colour, marker=marker, label=words, zorder=3)
            right.scatter(chance, places, s=90, color=ORANGE, marker="|", linewidths=2, label="95 % by chance", zorder=2)
            right.set_xlim(left=0)
            right.set_xlabel("squared distance (MMD²)")
            right.set_title("How far they are")
            right.grid(False, axis="y")
            right.tick_params(axis="y", length=0)
            agent_rows(left, [str(one) for one in table.index], "the heaviest on top")
            legend_beside(right)
            return figure_of(left)

    def _others(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
        others = self.weights.matrix.copy()
        others[np.arange(len(others)), self.weights.targets] = np.nan
        return others[np.ix_(rows, columns)]

    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns in kin order; as they are, where some agents are no targets."""
        from kinfed.kinship import kin_order

        if not self._complete:
            return np.arange(len(self.weights.targets)), np.arange(len(self.weights.names))
        matrix, evidence = self._of_all("an order")
        columns = kin_order(matrix, evidence.squared_distances)
        return np.argsort(self.weights.targets)[columns], columns

    def _named(self, groups: Groups) -> list[int]:
        """Agents to name: outliers, and all the others where they are few."""
        outliers = groups.outliers.tolist()
        others = range(len(self.weights.names)) if len(self.weights.names) <= _FEW else range(0)
        return [*outliers, *(k for k in others if k not in outliers)]

    @property
    def _complete(self) -> bool:
        return bool(np.array_equal(np.sort(self.weights.targets), np.arange(len(self.weights.names))))

    def _of_all(self, what: str) -> tuple[Array, Evidence]:
        """Weights and distances, a row and a column per agent."""
        if not self._complete:
            raise InputError(
                f"{what} needs weights for all {len(self.weights.names)} agents, but only "
                f"{len(self.weights.targets)} were asked for; leave out targets="
            )
        rows, evidence = np.argsort(self.weights.targets), self.weights.evidence
        ordered = {one.name: getattr(evidence, one.name)[rows] for one in fields(evidence)}
        return self.weights.matrix[rows], replace(evidence, **ordered)


def _kinds(groups: Groups) -> list[tuple[NDArray[np.bool_], str, str, str]]:
    """Who is drawn alike: the members, what the legend says, colour and marker."""
    kinds = [
        (groups.labels == place, f"group {place + 1} ({size} agents)", PALETTE[place], MARKERS[place])
        for place, size in enumerate(groups.sizes[: len(PALETTE)])
    ]
    smaller = groups.labels >= len(PALETTE)
    if smaller.any():
        words = f"{len(groups.sizes) - len(PALETTE)} smaller groups ({smaller.sum()} agents)"
        kinds.append((smaller, words, GREY, "."))
    alone = groups.labels < 0
    if alone.any():
        kinds.append((alone, f"outlier ({alone.sum()})" if groups.sizes else "agent", BLACK, "*"))
    return kinds


def _areas(sizes: NDArray[np.int64]) -> Array:
    """Areas of marks, proportional to the numbers of points within what can be seen and told apart."""
    share = sizes / np.median(sizes)
    return np.asarray(np.clip(share, 0.3, 6.0) * (60 if len(sizes) <= _FEW else 26))


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _plain_ticks(axes: Axes) -> None:
    """Numbers such as 50 on logarithmic axes, where a power of ten may not even be in sight."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
