"""Figures of what is known before training.

How much data each agent holds and how its target is distributed; predicted gains, the terms of the bound, and how much
differs between agents beside what chance explains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    SKY,
    VERMILION,
    agent_rows,
    bars,
    canvas,
    figure_of,
    height_of,
    legend,
    legend_beside,
    listed,
    named_rows,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.analysis import Diagnosis, PredictedGain, TheoryTerms
    from kinfed.federation import Agent, Federation

_WIDE_RANGE = 50.0  # ratio of sizes from which they are shown on a logarithmic axis
_CLEAR = 2.0  # standard errors
_FAR_BELOW = -3.0  # a loss of three times the error alone; beyond it the axis is logarithmic


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
    values, places = [_values(agent) for agent in ordered], np.arange(len(ordered))
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
    axes.set(xlabel=target, title=f"Target {short(target)} of {len(ordered)} agents")


def _classes(axes: Axes, agents: Sequence[Agent], target: str) -> None:
    """Shares of the classes, stacked; rare classes together."""
    counts = [Counter(_values(agent).tolist()) for agent in agents]
    total = sum(counts, Counter[Any]())
    frequent = [label for label, _ in total.most_common(len(PALETTE))]
    shares = np.array([[one[label] / one.total() for label in frequent] for one in counts])
    order = np.argsort(-shares[:, 0], kind="stable")
    left = np.zeros(len(agents))
    for place, label in enumerate(frequent):
        bars(axes, shares[order, place], PALETTE[place], left, label=short(str(label)))
        left = left + shares[order, place]
    if len(total) > len(frequent):
        bars(axes, 1 - left, GREY, left, label=f"{len(total) - len(frequent)} others")
    agent_rows(axes, [agents[k].name for k in order], f"by their share of {short(str(frequent[0]))}")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set(xlim=(0, 1), xlabel="share of points", title=f"Classes of {short(target)} at {len(agents)} agents")
    legend_beside(axes)


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
        with canvas(axes, width=6.0, height=height_of(names)) as drawn:
            for who, colour, marker, words in (
                (gain > reach, GREEN, "o", "saves"),
                (np.abs(gain) <= reach, GREY, "s", "too noisy to say"),
                (-gain > reach, VERMILION, "X", "costs"),
            ):
                if who.any():
                    drawn.hlines(
                        places[who], (gain - reach)[who], (gain + reach)[who], color=colour, linewidth=1, alpha=0.7
                    )
                    drawn.scatter(
                        gain[who],
                        places[who],
                        s=14,
                        color=colour,
                        marker=marker,
                        label=f"{words} ({who.sum()})",
                        zorder=3,
                    )
            drawn.axvline(0, color=BLACK, linewidth=0.8)
            drawn.axvline(found.mean_gain, color=BLUE, linewidth=1.2, label=f"federation: {found.mean_gain:+.0%}")
            if np.isfinite(found.interval[0]):
                drawn.axvspan(*found.interval, color=BLUE, alpha=0.18, linewidth=0, label=f"{found.level:.0%} interval")
            agent_rows(drawn, names, "the one that saves most on top")
            if float((gain - reach).min()) < _FAR_BELOW:
                drawn.set_xscale("symlog", linthresh=1.0)
            else:
                drawn.locator_params(axis="x", nbins=6)
            drawn.xaxis.set_major_formatter("{x:.0%}")
            drawn.set(
                xlabel="predicted saving in the error of the mean embedding\n(bars: two standard errors)",
                title=f"Predicted saving of {found.rule} against learning alone",
            )
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
        bias, bracket = found.delta[order] ** 2, found.bracket[order]
        pictures = {
            "Averaging over the best agents": {"bias Δ²": (bias, VERMILION), "variance": (bracket - bias, SKY)},
            "The whole bound (its constant is unknown)": {
                "bracket": (bracket, BLUE),
                "remainder": (found.remainder[order], ORANGE),
                "random features": (np.full(len(order), found.feature_error), PINK),
            },
        }
        with canvas(width=8.8, height=height_of(names) + 0.2, columns=2, sharey=True) as both:
            for axes, (title, stacked) in zip(both, pictures.items(), strict=True):
                left = np.zeros(len(order))
                for words, (lengths, colour) in stacked.items():
                    bars(axes, lengths, colour, left, label=words)
                    left = left + lengths
                axes.plot(found.alone[order], np.arange(len(order)), "|", color=BLACK, markersize=7, label="learning alone")
                axes.set(xlabel="squared error of the mean embedding (MMD²)", title=title)
                axes.grid(False, axis="y")
                axes.tick_params(axis="y", length=0)
            agent_rows(both[0], names, "the largest error alone on top")
            figure = figure_of(both[0])
            named = {words: mark for axes in both for mark, words in zip(*axes.get_legend_handles_labels(), strict=True)}
            figure.legend(
                named.values(), named.keys(), loc="outside lower center", ncols=len(named), fontsize=8, frameon=False
            )
            return figure


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
        with canvas(axes, width=7.6, height=1.1 + 0.6 * len(tests)) as drawn:
            drawn.barh(
                np.arange(len(tests)), sizes, height=0.5, color=[VERMILION if test.differs else GREY for test in tests]
            )
            for place, test in enumerate(tests):
                drawn.annotate(
                    f"{test.size:.1%}, p = {test.p_value:.3g}: {'differs' if test.differs else 'no difference found'}",
                    (test.size, place),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
            named_rows(drawn, ["\n".join((test.name, *wrap(test.question, 42))) for test in tests], fontsize=8)
            drawn.xaxis.set_major_formatter("{x:.0%}")
            drawn.set(
                xlim=(0, max(float(sizes.max()) * 2.1, 0.05)),
                xlabel="share of the variance that lies between agents",
                title=f"What differs between agents (tests at level {self.diagnosis.level:g})",
            )
            return figure_of(drawn)
