"""The figures of the covariate-shift experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.experiments.measurements import setting_label, setting_value
from kinfed.experiments.summary import level, over_repetitions
from kinfed.plotting.style import colour, label, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def architecture_size(architecture: str) -> tuple[int, ...]:
    """Layers and width of an architecture such as 2x16, to sort by."""
    return tuple(map(int, architecture.split("x")))


def error_figure(whose: Mapping[str, pandas.DataFrame], methods: Sequence[str], titles: Mapping[str, str]) -> Figure:
    """Error by architecture and method: a row of panels per group of agents, a column per metric with its title."""
    figure, axes = panels(len(titles), len(whose), width=5.2, height=3.2, sharex=True, squeeze=False)
    for row, (who, rows) in zip(axes, whose.items(), strict=True):
        for axis, metric in zip(row, titles, strict=True):
            table = over_repetitions(rows, metric)
            names = sorted(
                {setting_value(str(name), "hidden") for name in table.index.get_level_values("setting")},
                key=architecture_size,
            )
            for shift, method in enumerate(methods):
                levels = [level(table, setting_label(hidden=name), method) for name in names]
                axis.errorbar(
                    np.arange(len(names)) + 0.12 * (shift - (len(methods) - 1) / 2),
                    [one.mean for one in levels],
                    yerr=[np.nan_to_num(one.deviation) for one in levels],
                    fmt="o",
                    markersize=4,
                    capsize=2,
                    color=colour(method),
                    label=label(method),
                )
            axis.set_xticks(np.arange(len(names)), names)
            axis.set_title(f"{who}: {titles[metric]}", fontsize=9)
            axis.set_yscale("log")
        row[0].set_ylabel("MSE, mean and standard deviation")
    for axis in axes[-1]:
        axis.set_xlabel("hidden layers x width")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def weights_figure(matrix: NDArray[np.float64], sizes: Sequence[int]) -> Figure:
    """The weight matrix, with lines between groups of agents."""
    figure, axes = panels(width=4.8, height=4.0)
    image = axes.imshow(matrix, cmap="magma_r", vmin=0, vmax=float(np.quantile(matrix, 0.995)), interpolation="nearest")
    for edge in np.cumsum(sizes)[:-1]:
        axes.axhline(edge - 0.5, color="#0072B2", linewidth=0.8)
        axes.axvline(edge - 0.5, color="#0072B2", linewidth=0.8)
    axes.grid(False)
    axes.set_xlabel("agent listened to")
    axes.set_ylabel("target")
    axes.set_title("weights of Algorithm 3, first repetition", fontsize=9)
    figure.colorbar(image, ax=axes, label="weight")
    return figure
