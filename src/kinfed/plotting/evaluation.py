"""Figures of what training gives.

The scores of one method over agents, personal models against the two baselines, what calibration chose beside what else
there was, and what crossed between the server and the agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfed.errors import InputError
from kinfed.plotting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    agent_rows,
    bars,
    canvas,
    figure_of,
    height_of,
    legend,
    named_rows,
    short,
)
from kinfed.plotting.ties import TiesPlots
from kinfed.validation import Array, Integers, positive_integer

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kinfed.analysis import Scores
    from kinfed.backends.audit import Audit
    from kinfed.result import Personalization, Weighting
    from kinfed.weights import Weights
    from kinfed.weights.calibration.family import Calibration


_WORDS = {"local": "learning alone", "grand-mean": "one common model"}
_REFERENCES = {**_WORDS, "floor": "the agents' own means or class shares"}
_DIRECTIONS = {"to the server": ("from the agents", BLUE), "to the agent": ("to the agents", ORANGE)}
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
            drawn.set(xlabel=chosen, title=f"{chosen[0].upper()}{chosen[1:]} of {len(names)} agents: mean {mean:.4g}")
            return figure_of(drawn)


@dataclass(frozen=True, eq=False)
class WeightingPlots:
    """Figures of what is known before training, reached as ``result.plot``; each returns a matplotlib Figure."""

    result: Weighting

    def weights(self, axes: Axes | None = None) -> Figure:
        """Who listens to whom; see `WeightsPlots.matrix`."""
        return self._weights.plot.matrix(axes)

    def influence(self, axes: Axes | None = None) -> Figure:
        """Who speaks in whose model; see `TiesPlots.matrix`."""
        if self.result.stacking is None:
            raise InputError(f"{self._method} has no influence to show; {self._instead}")
        return self._ties.matrix(axes)

    def map(self, axes: Axes | None = None) -> Figure:
        """Agents in the plane, near where their data, or who speaks in their models, are alike; see `TiesPlots.map`."""
        return self._ties.map(axes)

    def network(self, axes: Axes | None = None) -> Figure:
        """Who counts most in everybody's model; see `TiesPlots.network`."""
        return self._ties.network(axes)

    def effective_sample_size(self, axes: Axes | None = None) -> Figure:
        """The points every agent learns from, against its own; see `WeightsPlots.effective_sample_size`."""
        return self._weights.plot.effective_sample_size(axes)

    def why(self, target: int | str, most: int = 10) -> Figure:
        """Who counts in an agent's model, and how far they are; see `TiesPlots.why`."""
        return self._ties.why(target, most)

    def calibration(self, axes: Axes | None = None) -> Figure:
        """What calibration chose; see `CalibrationPlots.scores`."""
        found = self._weights.calibration
        if found is None:
            raise InputError(f"rule {self.result.weights.rule!r} does not calibrate; use rule='calibrated'")
        return found.plot.scores(axes)

    def members(self, axes: Axes | None = None, *, most: int = 15) -> Figure:
        """Shares of the priors that are combined, the largest on top, and the loss of each alone on rows held out.

        Parameters
        ----------
        axes : Axes, optional
            Where to draw; a new figure by default.
        most : int
            How many of the priors to show.
        """
        stacking = self.result.stacking
        if stacking is None:
            raise InputError(f"{self._method} combines no priors; {self._instead}")
        table = stacking.table.head(positive_integer(most, "most"))
        shares, losses = table["share"].to_numpy(), table["out-of-fold loss"].to_numpy()
        with canvas(axes, width=6.4, height=1.2 + 0.24 * len(table)) as drawn:
            bars(drawn, shares, BLUE)
            for place, (share, loss) in enumerate(zip(shares, losses, strict=True)):
                told = f"{share:.0%}" if np.isnan(loss) else f"{share:.0%}, loss {loss:.4g}"
                drawn.annotate(told, (share, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
            named_rows(drawn, [str(name) for name in table.index], fontsize=8)
            drawn.xaxis.set_major_formatter("{x:.0%}")
            drawn.set(
                xlim=(0, 1.35 * float(shares.max())),
                xlabel="share in every model (beside it: loss on rows held out)",
                title=f"What was combined, of {len(stacking.members)} priors",
            )
            return figure_of(drawn)

    @property
    def _method(self) -> str:
        weighed = self.result.weighed
        return f"method {self.result.settings.method!r}" if weighed is None else f"rule {weighed.rule!r}"

    @property
    def _weights(self) -> Weights:
        found = self.result.weighed
        if found is None:
            shown = "" if self.result.stacking is None else "plot.influence() shows who speaks in whose model, and "
            raise InputError(f"{self._method} has no weights to show; {shown}rule='calibrated' makes weights")
        return found

    @property
    def _ties(self) -> TiesPlots:
        from kinfed.reporting import ties_of

        found = ties_of(self.result)
        if found is None:
            raise InputError(f"{self._method} tells neither weights nor influence; {self._instead}")
        return TiesPlots(found)

    @property
    def _instead(self) -> str:
        if self.result.weighed is not None:
            return "plot.weights() shows its weights"
        return "method='stacked' with ridge or logistic regression has it"


@dataclass(frozen=True, eq=False)
class PersonalizationPlots(WeightingPlots):
    """Figures of personal training, reached as ``result.plot``: those of a weighting, and what came of it."""

    result: Personalization

    def scores(self) -> Figure:
        """Every agent's personal model against learning alone, and against one common model."""
        metric = self.result.metric
        with canvas(width=8.4, height=4.2, columns=2) as both:
            for axes, (baseline, other) in zip(both, _WORDS.items(), strict=True):
                comparison = self.result.compare(baseline)
                theirs, ours = self._paired(baseline).to_numpy().T
                outcome = _outcome(ours, theirs, higher_is_better=comparison.higher_is_better)
                for sign, (words, colour, marker) in _OUTCOMES.items():
                    who = outcome == sign
                    if who.any():
                        text = f"{words} for {who.sum()}"
                        axes.scatter(theirs[who], ours[who], s=16, color=colour, marker=marker, alpha=0.75, label=text)
                ends = [min(theirs.min(), ours.min()), max(theirs.max(), ours.max())]
                side = "above" if comparison.higher_is_better else "below"
                axes.plot(ends, ends, color="black", linewidth=0.9, linestyle="--", label=f"{side} it: better")
                axes.set(xlabel=f"{metric} of {other}", ylabel=f"{metric} of the personal model", title=f"Against {other}")
                legend(axes)
            return figure_of(both[0])

    def gains(self, baseline: str = "local", axes: Axes | None = None) -> Figure:
        """What every agent gains against a baseline, sorted, with the mean and its interval.

        Parameters
        ----------
        baseline : {"local", "grand-mean", "floor"}
        axes : Axes, optional
            Where to draw; a new figure by default.
        """
        comparison = self.result.compare(baseline)
        table = self._paired(baseline)
        theirs, ours = table.to_numpy().T
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
            better, equal, worse = ((outcome == one).sum() for one in _OUTCOMES)
            drawn.set(
                xlabel=f"{what} in {comparison.metric} against {_REFERENCES[baseline]}",
                title=f"Better for {better}, equal for {equal}, worse for {worse} agents;\n{told}",
            )
            return figure_of(drawn)

    def _paired(self, baseline: str) -> pandas.DataFrame:
        """The scores of agents that have both."""
        return self.result.scores[[baseline, "personalized"]].dropna()


def _outcome(ours: Array, theirs: Array, *, higher_is_better: bool) -> Integers:
    """1 where ours is better, 0 where the two are equal, -1 where it is worse."""
    sign = np.sign(ours - theirs) * (1 if higher_is_better else -1)
    return np.where(np.isclose(ours, theirs, rtol=_TIE, atol=0.0), 0, sign).astype(np.int64)


@dataclass(frozen=True, eq=False)
class CalibrationPlots:
    """Figures of a calibration, reached as ``weights.calibration.plot``; each returns a matplotlib Figure."""

    calibration: Calibration

    def scores(self, axes: Axes | None = None, *, most: int = 15) -> Figure:
        """Scores of the best candidates on points set aside, learning alone and the best common model always among them.

        Parameters
        ----------
        axes : Axes, optional
            Where to draw; a new figure by default.
        most : int
            How many of the best candidates to show.
        """
        found, mean, error = self.calibration, self.calibration.choice.mean, self.calibration.choice.error
        unit = float(mean[found.local]) if mean[found.local] > 0 else 1.0
        ranked = [int(place) for place in np.argsort(mean, kind="stable") if np.isfinite(mean[place])]
        always = {*ranked[: positive_integer(most, "most")], found.local, found.common}
        shown = [place for place in ranked if place in always]
        kinds = {
            found.local: ("learning alone", BLUE, "s"),
            found.common: ("one common model", ORANGE, "D"),
            found.choice.chosen: ("chosen for the federation", GREEN, "o"),
        }
        with canvas(axes, width=7.2, height=1.2 + 0.22 * len(shown)) as drawn:
            for row, place in enumerate(shown):
                words, colour, marker = kinds.get(place, ("other candidates", BLACK, "."))
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
                np.arange(len(shown)), [found.candidates[place].describe(found.views) for place in shown], fontsize=8
            )
            drawn.axvline(mean[found.local] / unit, color=BLUE, linewidth=0.8, linestyle="--")
            drawn.set(
                ylim=(len(shown) - 0.5, -0.5),
                xlabel=f"{found.loss}, relative to learning alone\n"
                "(bars: standard error of the difference to the chosen one)",
                title=f"What calibration chose, of {len(found.candidates)} candidates",
            )
            once = {words: mark for mark, words in zip(*drawn.get_legend_handles_labels(), strict=True)}
            drawn.legend(once.values(), once.keys(), fontsize=8, frameon=False, loc="best")
            return figure_of(drawn)


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
            for shift, (direction, (words, colour)) in enumerate(_DIRECTIONS.items()):
                lengths = [int(total.get((phase, direction), 0)) for phase in phases]
                places = np.arange(len(phases)) + 0.38 * (shift - 0.5)
                drawn.barh(places, lengths, height=0.36, color=colour, label=f"{words}: {_size(sum(lengths))}")
            named_rows(drawn, [short(phase) for phase in phases])
            drawn.xaxis.set_major_formatter(lambda value, _: _size(value))
            drawn.set(
                xlabel="bytes of all agents",
                title=f"What crossed between the server and {table['agent'].nunique()} agents",
            )
            legend(drawn)
            return figure_of(drawn)


def _size(nbytes: float) -> str:
    if nbytes >= 1e6:
        return f"{nbytes / 1e6:g} MB" if nbytes == round(nbytes, -5) else f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e3:.3g} kB" if nbytes else "0"
