"""Figures of who counts in whose model: the matrix, a map, a network, and one agent's row; of weights and of influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.style import (
    BLACK,
    BLUE,
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
from kinfed.validation import Array, Integers, one_of, positive_integer

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.analysis.kinship import Groups
    from kinfed.analysis.ties import Kind, Ties

_CELLS = 250  # rows and columns of the picture of the matrix
_FEW = 30  # agents with large marks and names on a map
_OWN_CELLS = "#ead9c0"  # of the diagonal: no shade of a weight


@dataclass(frozen=True)
class _Words:
    """How a matrix is spoken of in figures."""

    amount: str
    column: str
    title: str
    network: str
    row: str
    matrix: str


_WORDS: Mapping[Kind, _Words] = {
    "weights": _Words(
        "weight",
        "agent listened to",
        "Who listens to whom",
        "Whom {} agents listen to most: an arrow leads to the listener, the darker the heavier",
        "Whom {} listens to",
        "plot.matrix()",
    ),
    "influence": _Words(
        "influence",
        "agent that speaks in the model of the row",
        "Who speaks in whose model",
        "Who speaks most in the models of {} agents:\nan arrow leads to whose model it is, the darker the louder",
        "Who speaks in the model of {}",
        "plot.influence()",
    ),
}


@dataclass(frozen=True, eq=False)
class TiesPlots:
    """Figures of ties of all agents; each returns a matplotlib Figure."""

    ties: Ties

    def matrix(self, axes: Axes | None = None) -> Figure:
        """Who counts in whose model: a row per model, a column per agent, kin side by side; see `draw_matrix`."""
        ties, order = self.ties, self.ties.order
        shown = np.where(np.eye(len(order), dtype=bool), np.nan, ties.matrix[np.ix_(order, order)])
        names = [ties.names[k] for k in order]
        return draw_matrix(axes, shown, ties.own[order], names, names, ties.kind, f"{len(names)} agents")

    def map(self, axes: Axes | None = None) -> Figure:
        """Agents in the plane, near where they are alike; groups of those that are, and outliers by name."""
        plane, groups = self.ties.chart, self.ties.groups
        unit = "distance of who speaks" if self.ties.evidence is None else "MMD"
        with canvas(axes, width=6.2, height=4.8) as drawn:
            self._scatter(drawn, plane.coordinates, groups, alpha=0.75, linewidths=0.5)
            drawn.set(
                xlabel=f"first coordinate ({unit})",
                ylabel=f"second coordinate ({unit})",
                title=f"{_counted(len(groups.sizes), 'group')} and {_counted(len(groups.outliers), 'outlier')} among "
                f"{len(groups.labels)} agents;\nthe plane shows {plane.explained:.0%} of their squared distances",
            )
            legend_beside(drawn)
            return figure_of(drawn)

    def network(self, axes: Axes | None = None) -> Figure:
        """Agents, and an arrow to every agent from each of the three that count most in its model; for up to 200 agents."""
        from kinfed.analysis.kinship import LARGEST_NETWORK

        network = self.ties.network
        if network is None:
            raise InputError(
                f"a network of {len(self.ties.names)} agents cannot be read, only one of up to {LARGEST_NETWORK}; use "
                f"{_WORDS[self.ties.kind].matrix}"
            )
        x, y = network.coordinates.T
        with canvas(axes, width=6.4, height=5.2) as drawn:
            self._scatter(drawn, network.coordinates, self.ties.groups, zorder=2)
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
            drawn.set_title(_WORDS[self.ties.kind].network.format(len(x)))
            legend_beside(drawn)
            return figure_of(drawn)

    def why(self, target: int | str, most: int = 10) -> Figure:
        """Who counts most in one agent's model, and, where that is known, how far they are beside chance.

        Parameters
        ----------
        target : int or str
            Place or name of the agent.
        most : int
            How many agents to show.
        """
        import pandas

        ties, evidence = self.ties, self.ties.evidence
        place = ties.names.index(one_of(target, ties.names, "agent")) if isinstance(target, str) else int(target)
        row = ties.matrix[place]
        order = [k for k in np.argsort(-row, kind="stable") if row[k] > 0][: positive_integer(most, "most")]
        columns = {_WORDS[ties.kind].amount: row[order]}
        if evidence is not None:
            columns["squared MMD"] = evidence.squared_distances[place, order]
            columns["null quantile"] = evidence.null_quantiles[place, order]
            columns["differs"] = evidence.differ[place, order]
        found = pandas.DataFrame(columns, index=pandas.Index([ties.names[k] for k in order], name="agent"))
        return draw_row(found, ties.names[place], ties.kind)

    def _scatter(self, axes: Axes, coordinates: Array, groups: Groups, **options: Any) -> None:
        """Marks of the agents, whose areas grow with their points; outliers are named, and all others if they are few."""
        names, sizes = self.ties.names, self.ties.sizes
        few = len(names) <= _FEW
        # Proportional to the numbers of points within what can be seen and told apart.
        areas = np.clip(sizes / np.median(sizes), 0.3, 6.0) * (60 if few else 26)
        for who, words, colour, marker in _kinds(groups):
            x, y = coordinates[who].T
            axes.scatter(x, y, s=areas[who], color=colour, marker=marker, label=words, **options)
        outliers = groups.outliers.tolist()
        others = [k for k in range(len(names)) if few and k not in outliers]
        name_points(axes, coordinates, names, [*outliers, *others])
        axes.set_aspect("equal", adjustable="datalim")


def draw_matrix(
    axes: Axes | None,
    shown: Array,
    own: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    kind: Kind,
    told: str,
) -> Figure:
    """A matrix of who counts for whom, with an agent's own part apart, at the right, since it would drown the others.

    Of many agents, every cell of the picture is the largest entry of a block of them.

    Parameters
    ----------
    axes : Axes, optional
    shown : array of shape (T, B)
        NaN in place of own entries.
    own : array of shape (T,)
    rows, columns : sequences of str
    kind : {"weights", "influence"}
    told : str
        What the title says after the kind.
    """
    words, agents = _WORDS[kind], shown.shape[1]
    cells, block = block_maxima(shown, _CELLS), -(-max(shown.shape) // _CELLS)
    positive = shown[shown > 0]
    top = float(np.quantile(positive, 0.98)) if len(positive) else 1.0
    with canvas(axes, width=6.4, height=5.0) as drawn:
        extent = (-0.5, cells.shape[1] * block - 0.5, cells.shape[0] * block - 0.5, -0.5)
        image = drawn.imshow(cells, cmap="Blues", vmin=0.0, vmax=top, interpolation="nearest", extent=extent, aspect="auto")
        drawn.set_facecolor(_OWN_CELLS)
        drawn.set(xlim=(-0.5, agents - 0.5), xlabel=words.column, xticks=[])
        agent_rows(drawn, rows, "kin side by side")
        drawn.grid(False)
        if listed(columns):
            drawn.set_xticks(np.arange(agents), [short(name) for name in columns], rotation=90)
            drawn.tick_params(labelsize=8 if agents <= 30 else 5.5, length=0)
        beside = drawn.inset_axes((1.02, 0.0, 0.13, 1.0), sharey=drawn)
        bars(beside, own, BLUE)
        largest = float(np.nanmax(own)) or 1.0
        beside.set(xlim=(0, largest), xticks=[0, largest], xticklabels=["0", f"{largest:.2g}"])
        beside.grid(False)
        beside.tick_params(axis="y", left=False, labelleft=False)
        beside.set_xlabel(f"own {words.amount}", fontsize=7.5)
        scale = drawn.inset_axes((1.2, 0.0, 0.035, 1.0))
        figure = figure_of(drawn)
        figure.colorbar(image, cax=scale, extend="max" if positive.max(initial=0.0) > top else "neither")
        scale.grid(False)
        scale.set_ylabel(words.amount if block == 1 else f"{words.amount}, the largest of {block} x {block}")
        drawn.set_title(f"{words.title}: {told}")
        return figure


def draw_row(found: pandas.DataFrame, name: str, kind: Kind) -> Figure:
    """Who counts in one agent's model: the heaviest, and their distance beside chance where the table has it."""
    words, places = _WORDS[kind], np.arange(len(found))
    known = "squared MMD" in found
    with canvas(width=7.4 if known else 4.6, height=1.3 + 0.24 * len(found), columns=1 + known, sharey=True) as panels:
        left = panels[0] if known else panels
        bars(left, found[words.amount], np.where(found.index == name, BLACK, BLUE))
        left.xaxis.set_major_formatter("{x:.0%}")
        left.set(xlabel=f"{words.amount} (black: its own)", title=words.row.format(short(name)))
        if known:
            _distances(panels[1], found, places)
        agent_rows(left, [str(one) for one in found.index], "the heaviest on top")
        return figure_of(left)


def _distances(axes: Axes, found: pandas.DataFrame, places: Integers) -> None:
    far = found["differs"].to_numpy(dtype=bool)
    distance, chance = found["squared MMD"].to_numpy(), found["null quantile"].to_numpy()
    axes.hlines(places, 0, distance, color=GREY, linewidth=1)
    for who, colour, marker, words in (
        (~far, BLUE, "o", "no farther than chance"),
        (far, VERMILION, "X", "farther than chance"),
    ):
        if who.any():
            axes.scatter(distance[who], places[who], s=26, color=colour, marker=marker, label=words, zorder=3)
    axes.scatter(chance, places, s=90, color=ORANGE, marker="|", linewidths=2, label="95 % by chance", zorder=2)
    axes.set(xlim=(0, None), xlabel="squared distance (MMD²)", title="How far they are")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    legend_beside(axes)


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
