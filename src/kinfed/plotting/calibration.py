"""The figure of a calibration: what was chosen, beside what else there was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.plotting.style import BLACK, BLUE, GREEN, ORANGE, canvas, figure_of
from kinfed.validation import positive_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.weights.calibration.record import Calibration


@dataclass(frozen=True, eq=False)
class CalibrationPlots:
    """Figures of a calibration, reached as ``weights.calibration.plot``; each returns a matplotlib Figure."""

    calibration: Calibration

    def scores(self, axes: Axes | None = None, *, most: int = 15) -> Figure:
        """Scores of the best members on points set aside, with learning alone and the best common model always among them.

        Parameters
        ----------
        axes : Axes, optional
            Where to draw; a new figure by default.
        most : int
            How many of the best members to show.
        """
        found, mean, error = self.calibration, self.calibration.choice.mean, self.calibration.choice.error
        unit = float(mean[found.local]) if mean[found.local] > 0 else 1.0
        ranked = [int(place) for place in np.argsort(mean, kind="stable") if np.isfinite(mean[place])]
        simple = [place for place in (found.local, found.common) if place is not None]
        shown = [place for place in ranked if place in ranked[: positive_integer(most, "most")] or place in simple]
        kinds = {found.local: ("learning alone", BLUE, "s"), found.common: ("one common model", ORANGE, "D")}
        kinds[found.choice.chosen] = ("chosen for the federation", GREEN, "o")
        with canvas(axes, width=7.2, height=1.2 + 0.22 * len(shown)) as drawn:
            for row, place in enumerate(shown):
                words, colour, marker = kinds.get(place, ("other members", BLACK, "."))
                drawn.errorbar(
                    mean[place] / unit,
                    row,
                    xerr=error[place] / unit,
                    fmt=marker,
                    color=colour,
                    markersize=6,
                    elinewidth=1,
                    capsize=2,
                    label=words,
                )
            drawn.set_yticks(
                np.arange(len(shown)), [found.members[place].describe(found.views) for place in shown], fontsize=8
            )
            drawn.set_ylim(len(shown) - 0.5, -0.5)
            drawn.axvline(mean[found.local] / unit, color=BLUE, linewidth=0.8, linestyle="--")
            drawn.set_xlabel(
                f"{found.loss}, relative to learning alone\n(bars: standard error of the difference to the chosen one)"
            )
            drawn.set_title(f"What calibration chose, of {len(found.members)} members")
            handles, labels = drawn.get_legend_handles_labels()
            once = dict(zip(labels, handles, strict=True))
            drawn.legend(once.values(), once.keys(), fontsize=8, frameon=False, loc="best")
            return figure_of(drawn)
