"""What a run found, for people in a sentence or a table, and for machines as one mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kinfed
from kinfed.cli.terminal import typed_command
from kinfed.collaboration import Prospect
from kinfed.evaluation import PairedComparison
from kinfed.personalization import BASELINES, Personalization
from kinfed.theory import PredictedGain
from kinfed.weights import Weights

_SHOWN_AGENTS = 10


def gained(result: Personalization, one: str, all_of_them: str) -> str:
    """What personal models gained over learning alone and over one common model, in a sentence."""
    alone, common = result.compare("local"), result.compare("grand-mean")
    return (
        f"The {alone.metric} is {alone.first_mean:.4g}, against {alone.second_mean:.4g} for {one} alone "
        f"({_change(alone)}, better for {alone.better:.0%} of {all_of_them}) and {common.second_mean:.4g} for one common "
        f"model ({_change(common)}, better for {common.better:.0%})."
    )


def personal_account(
    result: Personalization, settings: Mapping[str, Any], files: Sequence[Path], report: Path
) -> dict[str, Any]:
    """Everything ``kinfed personalize --json`` prints."""
    scores = result.scores
    return {
        **_run(settings, files, report),
        "seed": result.seed,
        "metric": result.metric,
        "scores": {name: float(scores[name].mean()) for name in scores},
        "comparisons": {name: _comparison(result.compare(name)) for name in BASELINES},
        "weights": _weights(result.weights),
        "choices": result.choices,
        "exchange": [] if result.exchange is None else result.exchange.describe(),
        "agents": _records(result.weights.explanation.join(scores), "agent"),
    }


def weights_account(found: Prospect, settings: Mapping[str, Any], files: Sequence[Path], report: Path) -> dict[str, Any]:
    """Everything ``kinfed weights --json`` prints."""
    return {
        **_run(settings, files, report),
        "seed": settings["seed"],
        "weights": _weights(found.weights),
        "choices": list(found.choices),
        "agents": _records(found.weights.explanation, "agent"),
    }


def theory_account(predicted: PredictedGain, settings: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Everything ``kinfed theory --json`` prints."""
    return {
        **_run(settings, files, None),
        "seed": settings["seed"],
        "rule": predicted.rule,
        "mean gain": predicted.mean_gain,
        "interval": predicted.interval,
        "level": predicted.level,
        "folds": predicted.folds,
        "agents": _records(predicted.to_frame(), "agent"),
    }


def theory_table(predicted: PredictedGain) -> None:
    """Print the agents that would gain most and least."""
    ranked = predicted.to_frame().sort_values("gain", ascending=False, kind="stable")
    half = _SHOWN_AGENTS // 2
    rows = ranked if len(ranked) <= _SHOWN_AGENTS else pandas.concat([ranked.head(half), ranked.tail(half)])
    table = Table("agent", "points", "predicted gain", "standard error", "kin", "gain by the bracket (interval)")
    for name, row in rows.iterrows():
        bracket = f"{row.bracket_gain:.0%} ({row.bracket_gain_low:.0%} to {row.bracket_gain_high:.0%})"
        gain = f"{min(row.gain, 1.0):+.0%}"
        table.add_row(escape(str(name)), f"{row.n:.0f}", gain, f"{row.standard_error:.0%}", f"{row.kin:.0f}", bracket)
    Console(soft_wrap=True).print(table)


def _change(comparison: PairedComparison) -> str:
    if comparison.higher_is_better:
        return (
            f"{100 * comparison.difference:+.1f} points"
            if comparison.metric == "accuracy"
            else f"{comparison.difference:+.4g}"
        )
    return f"{comparison.ratio - 1:+.1%}" if np.isfinite(comparison.ratio) else f"{comparison.difference:+.4g}"


def _run(settings: Mapping[str, Any], files: Sequence[Path], report: Path | None) -> dict[str, Any]:
    return {
        "command": typed_command(),
        "version": kinfed.__version__,
        "settings": settings,
        "files": list(files),
        "report": report,
    }


def _comparison(comparison: PairedComparison) -> dict[str, Any]:
    return {**asdict(comparison), "verdict": comparison.verdict}


def _weights(weights: Weights) -> dict[str, Any]:
    explained = weights.explanation
    return {
        "rule": weights.rule,
        "agents": len(weights.names),
        "median self weight": float(explained["self weight"].median()),
        "median effective sample size": float(explained["effective sample size"].median()),
    }


def _records(frame: pandas.DataFrame, index: str) -> list[dict[str, Any]]:
    """A mapping for every row, the index first."""
    return [{index: name, **row} for name, row in zip(frame.index, frame.to_dict("records"), strict=True)]  # type: ignore[dict-item]
