"""Figures of scores: one method's over agents, and personal models against the two baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError
from kinfed.plotting.agents import agent_rows, bars, height_of
from kinfed.plotting.style import BLUE, GREEN, GREY, VERMILION, canvas, figure_of, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.collaboration import Prospect
    from kinfed.evaluation import Scores
    from kinfed.personalization import Personalization

Array = NDArray[np.float64]

_WORDS = {"local": "learning alone", "grand-mean": "one common model"}
_OUTCOMES = {1: ("better", GREEN, "o"), 0: ("equal", GREY, "s"), -1: ("worse", VERMILION, "X")}
_TIE = 1e-9  # relative difference below which two scores are equal, as in paired comparisons


@dataclass(frozen=True, eq=False)
class ScoresPlots:
    """Figures of scores, reached as ``scores.plot``; each returns a matplotlib Figure."""

    scores: Scores

    def agents(self, axes: Axes | None = None, *, metric: str | None = None) -> Figure:
        """The score of every agent, sorted, and their mean; agents without test points are left out.

        Parameters
        ----------
        axes : Axes, optional
            Where to draw; a new figure by default.
        metric : str, optional
            The leading metric of the task by default.
        """
        chosen = metric or self.scores.metric
        values = self.scores[chosen]
        order = [int(k) for k in np.argsort(values, kind="stable") if not np.isnan(values[k])]
        if not order:
            raise InputError("no agent has test points; there is no score to show")
        names = [self.scores.names[k] for k in order]
        with canvas(axes, width=5.6, height=height_of(names)) as drawn:
            bars(drawn, values[order], BLUE)
            agent_rows(drawn, names, "sorted")
            mean = self.scores.mean(chosen)
            drawn.axvline(mean, color="black", linewidth=0.9, linestyle="--")
            drawn.set_xlabel(chosen)
            drawn.set_title(f"{chosen[0].upper()}{chosen[1:]} of {len(names)} agents: mean {mean:.4g}")
            return figure_of(drawn)


@dataclass(frozen=True, eq=False)
class ProspectPlots:
    """Figures of what is known before training, reached as ``result.plot``; each returns a matplotlib Figure."""

    result: Prospect

    def weights(self, axes: Axes | None = None) -> Figure:
        """Who listens to whom; see `WeightsPlots.matrix`."""
        return self.result.weights.plot.matrix(axes)

    def map(self, axes: Axes | None = None) -> Figure:
        """Agents in the plane, with groups and outliers; see `WeightsPlots.map`."""
        return self.result.weights.plot.map(axes)

    def network(self, axes: Axes | None = None) -> Figure:
        """Whom every agent listens to most; see `WeightsPlots.network`."""
        return self.result.weights.plot.network(axes)

    def effective_sample_size(self, axes: Axes | None = None) -> Figure:
        """The points every agent learns from, against its own; see `WeightsPlots.effective_sample_size`."""
        return self.result.weights.plot.effective_sample_size(axes)

    def why(self, target: int | str, most: int = 10) -> Figure:
        """Whom an agent listens to, and why; see `WeightsPlots.why`."""
        return self.result.weights.plot.why(target, most)

    def calibration(self, axes: Axes | None = None) -> Figure:
        """What calibration chose; see `CalibrationPlots.scores`."""
        found = self.result.weights.calibration
        if found is None:
            raise InputError(f"rule {self.result.weights.rule!r} does not calibrate; use rule='calibrated'")
        return found.plot.scores(axes)


@dataclass(frozen=True, eq=False)
class PersonalizationPlots(ProspectPlots):
    """Figures of personal training, reached as ``result.plot``: those of a prospect, and what came of it."""

    result: Personalization

    def scores(self) -> Figure:
        """Every agent's personal model against learning alone, and against one common model."""
        table, metric = self.result.scores, self.result.metric
        with canvas(width=8.4, height=4.2, columns=2) as both:
            for axes, baseline in zip(both, _WORDS, strict=True):
                comparison = self.result.compare(baseline)
                theirs, ours = _paired(table[baseline], table["personalized"])
                outcome = _outcome(ours, theirs, higher_is_better=comparison.higher_is_better)
                for sign, (words, colour, marker) in _OUTCOMES.items():
                    who = outcome == sign
                    if who.any():
                        text = f"{words} for {who.sum()}"
                        axes.scatter(theirs[who], ours[who], s=16, color=colour, marker=marker, alpha=0.75, label=text)
                ends = [min(theirs.min(), ours.min()), max(theirs.max(), ours.max())]
                side = "above" if comparison.higher_is_better else "below"
                axes.plot(ends, ends, color="black", linewidth=0.9, linestyle="--", label=f"{side} it: better")
                axes.set_xlabel(f"{metric} of {_WORDS[baseline]}")
                axes.set_ylabel(f"{metric} of the personal model")
                axes.set_title(f"Against {_WORDS[baseline]}")
                legend(axes)
            return figure_of(both[0])

    def gains(self, baseline: str = "local", axes: Axes | None = None) -> Figure:
        """What every agent gains against a baseline, sorted, with the mean and its interval.

        Parameters
        ----------
        baseline : {"local", "grand-mean"}
        axes : Axes, optional
            Where to draw; a new figure by default.
        """
        comparison = self.result.compare(baseline)
        table = self.result.scores[[baseline, "personalized"]].dropna()
        theirs, ours = table[baseline].to_numpy(), table["personalized"].to_numpy()
        sign = 1.0 if comparison.higher_is_better else -1.0
        gain = sign * (ours - theirs)
        order = np.argsort(-gain, kind="stable")
        outcome = _outcome(ours, theirs, higher_is_better=comparison.higher_is_better)[order]
        names = [str(table.index[k]) for k in order]
        with canvas(axes, width=5.8, height=height_of(names)) as drawn:
            bars(drawn, gain[order], [_OUTCOMES[int(one)][1] for one in outcome])
            agent_rows(drawn, names, "the one that gains most on top")
            drawn.axvline(0, color="black", linewidth=0.8)
            low, high = sorted(sign * end for end in comparison.interval)
            told = f"mean {sign * comparison.difference:+.3g}"
            if np.isfinite(low):
                told += f", {comparison.level:.0%} interval {low:+.3g} to {high:+.3g}"
                drawn.axvspan(low, high, color=BLUE, alpha=0.2, linewidth=0)
            drawn.axvline(sign * comparison.difference, color=BLUE, linewidth=1.2)
            what = "gain" if comparison.higher_is_better else "saving"
            drawn.set_xlabel(f"{what} in {comparison.metric} against {_WORDS[baseline]}")
            better, equal, worse = ((outcome == one).sum() for one in _OUTCOMES)
            drawn.set_title(f"Better for {better}, equal for {equal}, worse for {worse} agents;\n{told}")
            return figure_of(drawn)


def _paired(first: Any, second: Any) -> tuple[Array, Array]:
    """The values of agents that have both."""
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    both = ~(np.isnan(one) | np.isnan(two))
    return one[both], two[both]


def _outcome(ours: Array, theirs: Array, *, higher_is_better: bool) -> NDArray[np.int64]:
    """1 where ours is better, 0 where the two are equal, -1 where it is worse."""
    sign = np.sign(ours - theirs) * (1 if higher_is_better else -1)
    return np.where(np.isclose(ours, theirs, rtol=_TIE, atol=0.0), 0, sign).astype(np.int64)
