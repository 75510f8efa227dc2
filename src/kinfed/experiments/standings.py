"""Standings of many methods over many settings: ranks, errors over that of one method, wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas

from kinfed.experiments.measurements import setting_value
from kinfed.experiments.summary import by_repetition, ratio_with_error, with_error
from kinfed.plotting.style import label, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TIE = 1e-9  # relative difference below which two errors are equal


def losses(results: pandas.DataFrame, metrics: Sequence[str]) -> pandas.DataFrame:
    """Mean over agents of the metric of `metrics` a setting has: a row per setting and repetition, a column per method."""
    return by_repetition(results[results["metric"].isin(metrics)].assign(metric="loss"), "loss")


def ratios(table: pandas.DataFrame, against: str) -> dict[str, dict[str, tuple[float, float]]]:
    """By setting and method, the ratio of means over repetitions to that of `against`, with its standard error."""
    return {
        setting: {method: ratio_with_error(rows[method].to_numpy(), rows[against].to_numpy()) for method in table.columns}
        for setting, rows in ((one, table.loc[one]) for one in table.index.unique("setting"))
    }


def ratios_table(table: pandas.DataFrame, against: str) -> pandas.DataFrame:
    """`ratios` as text, a row per method and a column per federation."""
    texts = {
        setting_value(setting, "federation"): {one: with_error(value, error, 3) for one, (value, error) in found.items()}
        for setting, found in ratios(table, against).items()
    }
    return pandas.DataFrame(texts)


def by_federation(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table with a row per setting turned over: a column per federation."""
    return table.rename(index=lambda setting: setting_value(setting, "federation")).T


def standings(table: pandas.DataFrame, against: str) -> pandas.DataFrame:
    r"""A row per method, the best mean rank first.

    "mean rank" is over settings, ties shared; the error over that of `against` is :math:`\exp` of the mean over settings of
    :math:`\log(e_m / e)`, with its standard error over repetitions; "wins" counts settings where no method has a smaller
    mean error; "worst" is the largest mean error over that of the best method of the setting.
    """
    means = table.groupby(level="setting", sort=False).mean()
    best = means.min(axis=1)
    logs = table.div(table[against], axis=0).transform(np.log).groupby(level="repetition").mean()
    value = np.exp(logs.mean())
    error = value * logs.std(ddof=1) / np.sqrt(len(logs))
    # Rules that come to the same weights differ by rounding alone.
    ranked = means.div(best, axis=0).round(9).rank(axis=1).mean()
    frame = pandas.DataFrame(
        {
            "mean rank": ranked.map("{:.1f}".format),
            f"error over that of {against}": [with_error(value[one], error[one], 3) for one in table.columns],
            "wins": [int((means[one] <= best * (1 + _TIE)).sum()) for one in table.columns],
            "worst": means.div(best, axis=0).max().map("{:.3f}".format),
        },
        index=table.columns,
    )
    return frame.loc[sorted(frame.index, key=lambda method: (ranked[method], value[method]))]


def heat_map(table: pandas.DataFrame, against: str) -> Figure:
    """Percent by which every method's error differs from that of `against`: a row per method, a column per setting."""
    shown = standings(table, against).index
    settings = list(table.index.unique("setting"))
    found = ratios(table, against)
    values = 100 * (np.array([[found[one][method][0] for one in settings] for method in shown]) - 1)
    figure, axes = panels(width=2.6 + 0.85 * len(settings), height=1.4 + 0.32 * len(shown))
    # A method that goes wrong by far must not take the colours from the others.
    limit = float(np.clip(np.quantile(np.abs(values), 0.95), 1.0, 50.0))
    axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        strong = abs(value) > 0.7 * limit
        least = value <= values[:, column].min() + 1e-7
        axes.text(
            column,
            row,
            f"{value:+.1f}",
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if least else "normal",
            color="white" if strong else "black",
        )
    axes.set_xticks(range(len(settings)), [setting_value(one, "federation") for one in settings], rotation=30, ha="right")
    axes.set_yticks(range(len(shown)), [label(method) for method in shown])
    axes.grid(False)
    axes.set_title(f"error against {label(against)}, in percent (blue: smaller; bold: least)", fontsize=9)
    return figure
