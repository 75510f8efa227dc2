"""Figures of weights: who listens to whom, who is kin, and what that adds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PALETTE,
    VERMILION,
    agent_rows,
    bars,
    block_maxima,
    canvas,
    figure_of,
    legend_beside,
    listed,
    name_points,
    short,
)
from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.analysis.kinship import Groups
    from kinfed.weights import Weights
    from kinfed.weights.result import Evidence


_CELLS = 250  # rows and columns of the picture of the matrix
_FEW = 30  # agents with large marks and names on a map
_OWN_CELLS = "#ead9c0"  # of the diagonal: no shade of a weight
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
        shown = self._others(rows, columns)
        count, agents = shown.shape
        cells, block = block_maxima(shown, _CELLS), -(-max(shown.shape) // _CELLS)
        positive = shown[shown > 0]
        top = float(np.quantile(positive, 0.98)) if len(positive) else 1.0
        with canvas(axes, width=6.4, height=5.0) as drawn:
            extent = (-0.5, cells.shape[1] * block - 0.5, cells.shape[0] * block - 0.5, -0.5)
            image = drawn.imshow(
                cells, cmap="Blues", vmin=0.0, vmax=top, interpolation="nearest", extent=extent, aspect="auto"
            )
            drawn.set_facecolor(_OWN_CELLS)
            drawn.set(xlim=(-0.5, agents - 0.5), xlabel="agent listened to", xticks=[])
            agent_rows(drawn, [weights.names[weights.targets[row]] for row in rows], "kin side by side")
            drawn.grid(False)
            if listed(weights.names):
                drawn.set_xticks(np.arange(agents), [short(weights.names[k]) for k in columns], rotation=90)
                drawn.tick_params(labelsize=8 if agents <= 30 else 5.5, length=0)
            own = drawn.inset_axes((1.02, 0.0, 0.13, 1.0), sharey=drawn)
            bars(own, weights.self_weight[rows], BLUE)
            largest = float(np.nanmax(weights.self_weight)) or 1.0
            own.set(xlim=(0, largest), xticks=[0, largest], xticklabels=["0", f"{largest:.2g}"])
            own.grid(False)
            own.tick_params(axis="y", left=False, labelleft=False)
            own.set_xlabel("own weight", fontsize=7.5)
            scale = drawn.inset_axes((1.2, 0.0, 0.035, 1.0))
            figure = figure_of(drawn)
            figure.colorbar(image, cax=scale, extend="max" if positive.max(initial=0.0) > top else "neither")
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
        from kinfed.analysis.kinship import agent_map, kin_groups

        _, evidence = self._of_all("a map")
        plane, groups = agent_map(evidence.squared_distances), kin_groups(evidence)
        with canvas(axes, width=6.2, height=4.8) as drawn:
            self._scatter(drawn, plane.coordinates, groups, alpha=0.75, linewidths=0.5)
            drawn.set(
                xlabel="first coordinate (MMD)",
                ylabel="second coordinate (MMD)",
                title=f"{_counted(len(groups.sizes), 'group')} and {_counted(len(groups.outliers), 'outlier')} among "
                f"{len(groups.labels)} agents;\nthe plane shows {plane.explained:.0%} of their squared distances",
            )
            legend_beside(drawn)
            return figure_of(drawn)

    def network(self, axes: Axes | None = None) -> Figure:
        """Agents, and an arrow to every agent from each of the three it listens to most; for up to 200 agents."""
        from kinfed.analysis.kinship import LARGEST_NETWORK, agent_map, kin_groups, kin_network

        matrix, evidence = self._of_all("a network")
        if len(matrix) > LARGEST_NETWORK:
            raise InputError(
                f"a network of {len(matrix)} agents cannot be read, only one of up to {LARGEST_NETWORK}; use plot.matrix()"
            )
        network = kin_network(matrix, agent_map(evidence.squared_distances).coordinates)
        x, y = network.coordinates.T
        with canvas(axes, width=6.4, height=5.2) as drawn:
            self._scatter(drawn, network.coordinates, kin_groups(evidence), zorder=2)
            along = network.coordinates[network.target] - network.coordinates[network.source]
            length = np.maximum(np.linalg.norm(along, axis=1), 1e-9)
            arrows = drawn.quiver(
                x[network.source],
                y[network.source],
                # Arrows end before the listener's mark, which would cover their heads.
                *(along * np.maximum(1 - 0.018 / length, 0.5)[:, None]).T,
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
        table = self.weights.why(target, most)
        name = target if isinstance(target, str) else self.weights.names[target]
        places = np.arange(len(table))
        with canvas(width=7.4, height=1.3 + 0.24 * len(table), columns=2, sharey=True) as (left, right):
            bars(left, table["weight"], np.where(table.index == name, BLACK, BLUE))
            left.xaxis.set_major_formatter("{x:.0%}")
            left.set(xlabel="weight (black: its own data)", title=f"Whom {short(name)} listens to")
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
            right.set(xlim=(0, None), xlabel="squared distance (MMD²)", title="How far they are")
            right.grid(False, axis="y")
            right.tick_params(axis="y", length=0)
            agent_rows(left, [str(one) for one in table.index], "the heaviest on top")
            legend_beside(right)
            return figure_of(left)

    def _others(self, rows: Integers, columns: Integers) -> Array:
        others = self.weights.matrix.copy()
        others[np.arange(len(others)), self.weights.targets] = np.nan
        return others[np.ix_(rows, columns)]

    def _order(self) -> tuple[Integers, Integers]:
        """Rows and columns in kin order; as they are, where some agents are no targets."""
        from kinfed.analysis.kinship import kin_order

        if not self._complete:
            return np.arange(len(self.weights.targets)), np.arange(len(self.weights.names))
        matrix, evidence = self._of_all("an order")
        columns = kin_order(matrix, evidence.squared_distances)
        return np.argsort(self.weights.targets)[columns], columns

    def _scatter(self, axes: Axes, coordinates: Array, groups: Groups, **options: Any) -> None:
        """Marks of the agents, whose areas grow with their points; outliers are named, and all others if they are few."""
        few = len(self.weights.names) <= _FEW
        # Proportional to the numbers of points within what can be seen and told apart.
        areas = np.clip(self.weights.sizes / np.median(self.weights.sizes), 0.3, 6.0) * (60 if few else 26)
        for who, words, colour, marker in _kinds(groups):
            x, y = coordinates[who].T
            axes.scatter(x, y, s=areas[who], color=colour, marker=marker, label=words, **options)
        outliers = groups.outliers.tolist()
        others = [k for k in range(len(self.weights.names)) if few and k not in outliers]
        name_points(axes, coordinates, self.weights.names, [*outliers, *others])
        axes.set_aspect("equal", adjustable="datalim")

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
    """Who is drawn alike: the candidates, what the legend says, colour and marker."""
    kinds = [
        (groups.labels == place, f"group {place + 1} ({size} agents)", PALETTE[place], MARKERS[place])
        for place, size in enumerate(groups.sizes[: len(PALETTE)])
    ]
    smaller = groups.labels >= len(PALETTE)
    if smaller.any():
        kinds.append((smaller, f"{len(groups.sizes) - len(PALETTE)} smaller groups ({smaller.sum()} agents)", GREY, "."))
    alone = groups.labels < 0
    if alone.any():
        kinds.append((alone, f"outlier ({alone.sum()})" if groups.sizes else "agent", BLACK, "*"))
    return kinds


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _plain_ticks(axes: Axes) -> None:
    """Numbers such as 50 on logarithmic axes, where a power of ten may not even be in sight."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
