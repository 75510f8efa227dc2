"""Figures of what theory says before training: predicted gains, and the terms of the bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError
from kinfed.plotting.agents import agent_rows, bars, height_of
from kinfed.plotting.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, canvas, figure_of, legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.theory import PredictedGain, TheoryTerms

_CLEAR = 2.0  # standard errors
_FAR_BELOW = -3.0  # a loss of three times the error alone; beyond it the axis is logarithmic


@dataclass(frozen=True, eq=False)
class PredictedGainPlots:
    """Figures of a predicted gain, reached as ``prediction.plot``; each returns a matplotlib Figure."""

    prediction: PredictedGain

    def gains(self, axes: Axes | None = None) -> Figure:
        """What every agent of three points or more is predicted to save, with two standard errors, sorted."""
        found = self.prediction
        order = np.array([k for k in np.argsort(-found.gain, kind="stable") if not np.isnan(found.gain[k])], dtype=np.int64)
        if not len(order):
            raise InputError("no agent has the three points that a predicted gain needs; there is nothing to show")
        gain, reach = found.gain[order], _CLEAR * found.standard_error[order]
        names = [found.names[k] for k in order]
        places = np.arange(len(order))
        low, high = found.interval
        with canvas(axes, width=6.0, height=height_of(names)) as drawn:
            kinds = (
                (gain > reach, GREEN, "o", "saves"),
                (np.abs(gain) <= reach, GREY, "s", "too noisy to say"),
                (-gain > reach, VERMILION, "X", "costs"),
            )
            for who, colour, marker, words in kinds:
                if who.any():
                    drawn.hlines(
                        places[who], (gain - reach)[who], (gain + reach)[who], color=colour, linewidth=1, alpha=0.7
                    )
                    text = f"{words} ({who.sum()})"
                    drawn.scatter(gain[who], places[who], s=14, color=colour, marker=marker, label=text, zorder=3)
            drawn.axvline(0, color=BLACK, linewidth=0.8)
            drawn.axvline(found.mean_gain, color=BLUE, linewidth=1.2, label=f"federation: {found.mean_gain:+.0%}")
            if np.isfinite(low):
                drawn.axvspan(low, high, color=BLUE, alpha=0.18, linewidth=0, label=f"{found.level:.0%} interval")
            agent_rows(drawn, names, "the one that saves most on top")
            if float((gain - reach).min()) < _FAR_BELOW:
                drawn.set_xscale("symlog", linthresh=1.0)
            else:
                drawn.locator_params(axis="x", nbins=6)
            drawn.xaxis.set_major_formatter("{x:.0%}")
            drawn.set_xlabel("predicted saving in the error of the mean embedding\n(bars: two standard errors)")
            drawn.set_title(f"Predicted saving of {found.rule} against learning alone")
            legend_beside(drawn)
            return figure_of(drawn)


@dataclass(frozen=True, eq=False)
class TheoryTermsPlots:
    """Figures of the terms of the bound, reached as ``terms.plot``; each returns a matplotlib Figure."""

    theory: TheoryTerms

    def terms(self) -> Figure:
        """The terms of the bound of every agent beside its error alone.

        Left the bracket: the bias and the variance of averaging over the best agents. Right the whole bound, whose
        remainder holds a constant nobody knows.
        """
        found = self.theory
        order = np.argsort(-found.alone, kind="stable")
        names = [found.names[k] for k in order]
        bias = found.delta[order] ** 2
        bracket, remainder = found.bracket[order], found.remainder[order]
        pictures = (
            {"bias Δ²": (bias, VERMILION), "variance": (bracket - bias, SKY)},
            {
                "bracket": (bracket, BLUE),
                "remainder": (remainder, ORANGE),
                "random features": (np.full(len(order), found.feature_error), PINK),
            },
        )
        titles = ("Averaging over the best agents", "The whole bound (its constant is unknown)")
        with canvas(width=8.8, height=height_of(names) + 0.2, columns=2, sharey=True) as both:
            for axes, stacked, title in zip(both, pictures, titles, strict=True):
                left = np.zeros(len(order))
                for words, (lengths, colour) in stacked.items():
                    bars(axes, lengths, colour, left, label=words)
                    left = left + lengths
                axes.plot(found.alone[order], np.arange(len(order)), "|", color=BLACK, markersize=7, label="learning alone")
                axes.set_xlabel("squared error of the mean embedding (MMD²)")
                axes.set_title(title)
                axes.grid(False, axis="y")
                axes.tick_params(axis="y", length=0)
            agent_rows(both[0], names, "the largest error alone on top")
            figure = figure_of(both[0])
            named = {words: mark for axes in both for mark, words in zip(*axes.get_legend_handles_labels(), strict=True)}
            figure.legend(
                named.values(), named.keys(), loc="outside lower center", ncols=len(named), fontsize=8, frameon=False
            )
            return figure
