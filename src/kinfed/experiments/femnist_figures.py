"""The figures of the FEMNIST experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.experiments.experiment import Part
from kinfed.experiments.measurements import Findings
from kinfed.experiments.paper_settings import PAPER
from kinfed.plotting.style import colour, label, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_figure(final: pandas.DataFrame, best: pandas.DataFrame) -> Figure:
    """Accuracy of every agent by method, sorted, and box plots."""
    figure, axes = panels(2, 2, width=5.0, height=3.1, width_ratios=(2.2, 1))
    for row, (words, table) in zip(axes, (("at the end", final), ("best during training", best)), strict=True):
        ordered = table.sort_values(PAPER if PAPER in table else table.columns[-1])
        for method in ordered.columns:
            row[0].plot(
                np.arange(len(ordered)),
                100 * ordered[method].to_numpy(),
                ".",
                markersize=4,
                color=colour(str(method)),
                label=label(str(method)),
            )
        row[0].set_title(f"accuracy of every agent, {words}", fontsize=9)
        row[0].set_ylabel("percent")
        boxes = row[1].boxplot(
            [100 * table[method].to_numpy() for method in table.columns],
            tick_labels=[str(method) for method in table.columns],
            patch_artist=True,
            showmeans=True,
        )
        for box, method in zip(boxes["boxes"], table.columns, strict=True):
            box.set_facecolor(colour(str(method)))
            box.set_alpha(0.5)
        row[1].tick_params(axis="x", labelsize=7)
    axes[1, 0].set_xlabel("agents, sorted by " + label(PAPER if PAPER in final else str(final.columns[-1])))
    legend(axes[0, 0], 7)
    return figure


def training_figure(findings: Mapping[Part, Findings], methods: Sequence[str]) -> Figure:
    """Mean test accuracy during training."""
    figure, axes = panels(width=5.4, height=3.4)
    for method in methods:
        curves = [found.arrays for part, found in findings.items() if part.options[0] == method]
        mean = 100 * np.mean([one["curve"] for one in curves], axis=0)
        axes.plot(curves[0]["epochs"], mean, color=colour(method), label=label(method))
    axes.set_xlabel("epochs")
    axes.set_ylabel("mean test accuracy, percent")
    legend(axes)
    return figure


def sizes_figure(arrays: Mapping[str, NDArray[Any]]) -> Figure:
    """Images of every agent for training and test."""
    figure, axes = panels(width=6.0, height=3.0)
    order = np.argsort(arrays["train_sizes"])
    place = np.arange(len(order))
    axes.bar(place, arrays["train_sizes"][order], width=1.0, color="#0072B2", label="train")
    axes.bar(
        place, arrays["test_sizes"][order], width=1.0, bottom=arrays["train_sizes"][order], color="#E69F00", label="test"
    )
    axes.set_xlabel("agents")
    axes.set_ylabel("images")
    legend(axes)
    return figure
