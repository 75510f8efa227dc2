"""Figures of a federation: how much data each agent holds, and how its target is distributed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.agents import agent_rows, bars, height_of, listed, short
from kinfed.plotting.style import BLUE, GREY, PALETTE, canvas, figure_of, legend, legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.federation import Agent, Federation

_WIDE_RANGE = 50.0  # ratio of sizes from which they are shown on a logarithmic axis


@dataclass(frozen=True, eq=False)
class FederationPlots:
    """Figures of a federation, reached as ``federation.plot``; each returns a matplotlib Figure."""

    federation: Federation

    def sizes(self, axes: Axes | None = None) -> Figure:
        """How many points every agent holds, the largest on top."""
        names, sizes = self.federation.names, self.federation.sizes
        order = np.argsort(-sizes, kind="stable")
        middle = float(np.median(sizes))
        with canvas(axes, width=5.6, height=height_of(names)) as drawn:
            bars(drawn, sizes[order], BLUE)
            agent_rows(drawn, [names[k] for k in order], "the largest on top")
            drawn.axvline(middle, color="black", linewidth=0.8, linestyle="--")
            drawn.annotate(
                f"median {middle:g}",
                (middle, 1.0),
                (3, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=8,
            )
            if sizes.min() > 0 and sizes.max() / sizes.min() > _WIDE_RANGE:
                drawn.set_xscale("log")
            drawn.set_xlabel("points")
            drawn.set_title(f"{sizes.sum():,} points of {len(names)} agents", pad=16)
            return figure_of(drawn)

    def targets(self, axes: Axes | None = None) -> Figure:
        """How the target is distributed at every agent.

        Numbers: a box per agent, or for many agents bands between quantiles, in the order of the medians. Classes: their
        shares, in the order of the share of the most frequent one.
        """
        if not self.federation.has_target:
            raise InputError("the federation has no target to show; name its column when reading it, as target=...")
        agents = [agent for agent in self.federation if len(agent)]
        if not agents:
            raise InputError("no agent of the federation has a point; there is no target to show")
        name = self.federation.target or "y"
        with canvas(axes, width=5.6, height=height_of([agent.name for agent in agents]) + 0.3) as drawn:
            if all(_values(agent).dtype.kind == "f" for agent in agents):
                _numbers(drawn, agents, name)
            else:
                _classes(drawn, agents, name)
            return figure_of(drawn)


def _values(agent: Agent) -> NDArray[Any]:
    assert agent.y is not None
    return agent.y


def _numbers(axes: Axes, agents: Sequence[Agent], target: str) -> None:
    """Boxes of few agents; quantile bands of many."""
    ordered = sorted(agents, key=lambda agent: -float(np.median(_values(agent))))
    values = [_values(agent) for agent in ordered]
    places = np.arange(len(ordered))
    if listed(ordered):
        axes.boxplot(
            values,
            positions=places,
            orientation="horizontal",
            widths=0.65,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": BLUE, "alpha": 0.35, "linewidth": 0.6},
            medianprops={"color": "black", "linewidth": 1.4},
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": GREY, "markeredgecolor": GREY},
        )
    else:
        low, lower, middle, upper, high = np.array([np.quantile(one, (0.05, 0.25, 0.5, 0.75, 0.95)) for one in values]).T
        axes.fill_betweenx(places, low, high, color=BLUE, alpha=0.18, linewidth=0, label="5 to 95 % of points")
        axes.fill_betweenx(places, lower, upper, color=BLUE, alpha=0.4, linewidth=0, label="25 to 75 %")
        axes.plot(middle, places, color="black", linewidth=1.2, label="median")
        legend(axes)
    agent_rows(axes, [agent.name for agent in ordered], "by their median")
    axes.set_xlabel(target)
    axes.set_title(f"Target {short(target)} of {len(ordered)} agents")


def _classes(axes: Axes, agents: Sequence[Agent], target: str) -> None:
    """Shares of the classes, stacked; rare classes together."""
    counts = [Counter(_values(agent).tolist()) for agent in agents]
    total = sum(counts, Counter[Any]())
    frequent = [label for label, _ in total.most_common(len(PALETTE))]
    sizes = np.array([one.total() for one in counts])
    shares = np.array([[one[label] for label in frequent] for one in counts]) / sizes[:, None]
    order = np.argsort(-shares[:, 0], kind="stable")
    left = np.zeros(len(agents))
    for place, label in enumerate(frequent):
        bars(axes, shares[order, place], PALETTE[place], left, label=short(str(label)))
        left = left + shares[order, place]
    if len(total) > len(frequent):
        bars(axes, 1 - left, GREY, left, label=f"{len(total) - len(frequent)} others")
    agent_rows(axes, [agents[k].name for k in order], f"by their share of {short(str(frequent[0]))}")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("share of points")
    axes.set_title(f"Classes of {short(target)} at {len(agents)} agents")
    legend_beside(axes)
