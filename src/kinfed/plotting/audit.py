"""The figure of an audit: what crossed between the server and the agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError
from kinfed.plotting.agents import short
from kinfed.plotting.style import BLUE, ORANGE, canvas, figure_of, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.engines.audit import Audit

_COLOURS = {"to the server": BLUE, "to the agent": ORANGE}
_WORDS = {"to the server": "from the agents", "to the agent": "to the agents"}


@dataclass(frozen=True, eq=False)
class AuditPlots:
    """Figures of an audit, reached as ``result.exchange.plot``; each returns a matplotlib Figure."""

    audit: Audit

    def traffic(self, axes: Axes | None = None) -> Figure:
        """Bytes of all agents by phase and direction, in the order of the phases."""
        table = self.audit.traffic
        if not len(table):
            raise InputError("nothing crossed between server and agents; there is no traffic to show")
        phases = list(dict.fromkeys(table["phase"]))
        total = table.groupby(["phase", "direction"])["bytes"].sum()
        with canvas(axes, width=6.0, height=1.3 + 0.36 * len(phases)) as drawn:
            for shift, (direction, colour) in enumerate(_COLOURS.items()):
                lengths = [int(total.get((phase, direction), 0)) for phase in phases]
                places = np.arange(len(phases)) + 0.38 * (shift - 0.5)
                drawn.barh(places, lengths, height=0.36, color=colour, label=f"{_WORDS[direction]}: {_size(sum(lengths))}")
            drawn.set_yticks(np.arange(len(phases)), [short(phase) for phase in phases])
            drawn.set_ylim(len(phases) - 0.5, -0.5)
            drawn.tick_params(axis="y", length=0)
            drawn.grid(False, axis="y")
            drawn.xaxis.set_major_formatter(lambda value, _: _size(value))
            drawn.set_xlabel("bytes of all agents")
            drawn.set_title(f"What crossed between the server and {table['agent'].nunique()} agents")
            legend(drawn)
            return figure_of(drawn)


def _size(nbytes: float) -> str:
    if nbytes >= 1e6:
        return f"{nbytes / 1e6:g} MB" if nbytes == round(nbytes, -5) else f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e3:.3g} kB" if nbytes else "0"
