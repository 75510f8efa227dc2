"""The figure of a diagnosis: how much differs between agents, and whether chance explains it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError
from kinfed.plotting.style import GREY, VERMILION, canvas, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.diagnosis import Diagnosis


@dataclass(frozen=True, eq=False)
class DiagnosisPlots:
    """Figures of a diagnosis, reached as ``diagnosis.plot``; each returns a matplotlib Figure."""

    diagnosis: Diagnosis

    def tests(self, axes: Axes | None = None) -> Figure:
        """A bar per question: the share of the variance that lies between agents, and the p-value beside it."""
        tests = self.diagnosis.tests
        if not tests:
            raise InputError("the diagnosis made no test, so there is nothing to show; its notes say why")
        sizes = np.array([test.size for test in tests])
        differs = [test.differs for test in tests]
        with canvas(axes, width=7.6, height=1.1 + 0.6 * len(tests)) as drawn:
            places = np.arange(len(tests))
            drawn.barh(places, sizes, height=0.5, color=[VERMILION if found else GREY for found in differs])
            for place, test in zip(places, tests, strict=True):
                words = "differs" if test.differs else "no difference found"
                drawn.annotate(
                    f"{test.size:.1%}, p = {test.p_value:.3g}: {words}",
                    (test.size, place),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
            drawn.set_yticks(places, ["\n".join((test.name, *wrap(test.question, 42))) for test in tests], fontsize=8)
            drawn.set_ylim(len(tests) - 0.5, -0.5)
            drawn.set_xlim(0, max(float(sizes.max()) * 2.1, 0.05))
            drawn.tick_params(axis="y", length=0)
            drawn.grid(False, axis="y")
            drawn.xaxis.set_major_formatter("{x:.0%}")
            drawn.set_xlabel("share of the variance that lies between agents")
            drawn.set_title(f"What differs between agents (tests at level {self.diagnosis.level:g})")
            return figure_of(drawn)
