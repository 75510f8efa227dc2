"""What a run found: all files in a folder, or none; for people a sentence or a table, for machines one mapping."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kinfed
from kinfed.analysis import (
    FLOOR,
    ExcessRisk,
    HeldOutRisk,
    PairedComparison,
    PredictedGain,
    comparisons,
    excess_risk_table,
)
from kinfed.cli.config import SETTINGS, settings_text
from kinfed.cli.options import choices_of
from kinfed.cli.terminal import Bars, made_folder, resumable, typed_command
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.methods import REFERENCES
from kinfed.predictions import MODELS, folder_of
from kinfed.priors.expectation import ExpectedGain
from kinfed.priors.result import Stacking
from kinfed.result import Personalization, Weighting
from kinfed.result_files import write_tables
from kinfed.run import personalize
from kinfed.settings import PERSONALIZE, THEORY, WEIGHTS, Settings
from kinfed.weights import Weights

REPORT = "index.html"
WEIGHT_FILES = ("weights.csv", "weights-asked.csv", "explanation.csv", "calibration.csv", REPORT, SETTINGS)
PERSONAL_FILES = (
    *WEIGHT_FILES,
    *("influence.csv", "members.csv", "expected-gain.csv"),
    *("scores.csv", "traffic.csv", "attendance.csv", "audit.jsonl", "newcomers-*.csv"),
    *("result.json", "result-*.npz", MODELS),
)
THEORY_FILES = ("theory.csv", "excess-risk.csv", "known-excess-risk.csv", SETTINGS)
_SHOWN_AGENTS = 10


@contextmanager
def complete(out: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder to write to, whose files take their place in `out` when the block ends without an error.

    Files of these `names` that an earlier run left and this one did not write are removed then, so that all belong
    together.
    """
    try:
        folder = Path(tempfile.mkdtemp(dir=made_folder(out), prefix=".writing-"))
        try:
            yield folder
            written = sorted(path.name for path in folder.iterdir())
            for old in set(files_in(out, names)) - {out / name for name in written if (out / name).is_file()}:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            for name in written:
                os.replace(folder / name, out / name)
        except InputError as error:
            raise InputError(str(error).replace(str(folder), str(out))) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"results cannot be written to {out}: {error.strerror or error}; make room, or give another folder with --out"
        ) from None


def files_in(out: Path, names: Sequence[str]) -> list[Path]:
    """The files of these names that are there."""
    return sorted(path for name in names for path in out.glob(name))


def refuse_results(out: Path, names: Sequence[str], force: bool) -> None:
    """Raise if a folder holds results of an earlier run that may not be replaced."""
    there = files_in(out, names)
    if there and not force:
        raise InputError(f"{there[0]} is of an earlier run; give another folder with --out, or --force to replace it")


@dataclass(frozen=True)
class ResultFolder:
    """Where a run keeps what it has done, so that an interrupted one goes on, and what it found in the end.

    Attributes
    ----------
    out : path
        Folder for the results.
    backend : str
    """

    out: Path
    backend: str = "pooled"

    @property
    def checkpoint(self) -> Path:
        """What is done so far; gone when the results are written."""
        return self.out / "checkpoint"

    @property
    def log(self) -> Path | None:
        """Every message between server and agents, where agents are sites of their own."""
        return None if self.backend == "pooled" else self.checkpoint / "audit.jsonl"

    def personalize(self, train: Federation, test: Federation | None, settings: Settings, bars: Bars) -> Personalization:
        """Weights, models and scores; a run that fails leaves nothing behind, an interrupted one its checkpoint."""
        had_folder, had_checkpoint = self.out.exists(), self.checkpoint.exists()
        made_folder(self.out)
        try:
            with bars.step(f"learning with {len(train)} agents"), resumable():
                kept = {"checkpoint": self.checkpoint, "audit": self.log}
                return personalize(train, test=test, progress=bars, **{**choices_of(settings), **kept})
        except Exception:
            # Kept, it would stand in the way of the same run with the mistake mended.
            if not had_checkpoint:
                shutil.rmtree(self.checkpoint, ignore_errors=True)
            if not had_folder:
                with suppress(OSError):
                    self.out.rmdir()
            raise

    def write(self, result: Personalization, title: str, bars: Bars) -> None:
        """All files at once, and a folder for every agent's model; then nothing is left to go on from."""
        settings = result.settings
        with bars.step("writing results and report"), complete(self.out, PERSONAL_FILES) as folder:
            write_tables(result, folder)
            if self.log is not None and self.log.exists():
                shutil.copy(self.log, folder / "audit.jsonl")
            (folder / SETTINGS).write_text(settings_text(settings, PERSONALIZE), encoding="utf-8", errors="replace")
            shown, command = settings.shown(PERSONALIZE), settings.command(PERSONALIZE)
            result.report(folder, title=title, settings=shown, command=command, progress=bars)
            result.save(folder, allow_rows=settings.allow_rows)
            for name in [one for one in result.known.names if one not in result.withheld]:
                result.model(name).save(folder / MODELS / folder_of(name), allow_rows=settings.allow_rows)
        shutil.rmtree(self.checkpoint, ignore_errors=True)


def gained(result: Personalization, one: str, all_of_them: str) -> str:
    """What personal models gained over learning alone, one common model and the floor, in sentences on one line."""
    found = comparisons(result.counted, REFERENCES, result.seed)
    if not found:
        return f"The {result.metric} is {result.scored['personalized'].mean():.4g}."
    first, own = next(iter(found.values())), "class shares" if result.learner.task == "classification" else "mean"
    names = {"local": f"{one} alone", "grand-mean": "one common model", FLOOR: f"its own {own}"}
    told = [
        f"{other.second_mean:.4g} for {names[name]} ({_change(other)}, better for {other.better:.0%} of "
        f"{all_of_them if other.n_agents == first.n_agents else f'the {other.n_agents} that have one'})"
        for name, other in found.items()
    ]
    rows = [f"{other.second_rows_mean:.4g}" for other in found.values()]
    words = [f"The {first.metric} is {first.first_mean:.4g}, against {_listed(told)}."]
    words += [f"Over test rows it is {first.first_rows_mean:.4g}, against {_listed(rows)}."]
    for metric in result.metrics[1:]:
        beside = comparisons(result.counted, REFERENCES, result.seed, metric=metric)
        means = _listed([f"{other.second_mean:.4g}" for other in beside.values()])
        ours = next(iter(beside.values())).first_mean
        words.append(f"The {metric} is {ours:.4g}, against {means}.")
    if first.pooling:
        words.append(f"{first.pooling}.")
    return " ".join(words)


def where_written(result: Personalization, out: Path) -> str:
    """Which files tell who counts in whose model, in one sentence, and where the report is."""
    told = [f"weights are in {out / 'weights.csv'}"] if result.weighed is not None else []
    if result.stacking is not None:
        told = [f"who speaks in whose model is in {out / 'influence.csv'}, the priors are in {out / 'members.csv'}"]
        if result.expected is not None:
            told = [f"{told[0]}, what agents may expect to gain is in {out / 'expected-gain.csv'}"]
    words = ", and ".join([*told, f"the report is {out / REPORT}"])
    return f"{words[:1].upper()}{words[1:]}."


def personal_account(result: Personalization, files: Sequence[Path], report: Path) -> dict[str, Any]:
    """Everything ``kinfed personalize --json`` prints."""
    scores = result.scores if result.scored else pandas.DataFrame(index=pandas.Index(result.known.names, name="agent"))
    compared = comparisons(result.counted, REFERENCES, result.seed)
    metrics = result.metrics if result.scored else ()
    explained = result.stacking if result.weighed is None else result.weighed
    return {
        **_run(result.settings.chosen(PERSONALIZE), files, report),
        "seed": result.seed,
        "metric": result.metric if result.scored else None,
        "metrics": metrics,
        "scores": {name: float(scores[name].mean()) for name in scores},
        "scores over rows": {name: one.rows_mean(result.metric) for name, one in result.scored.items()},
        "comparisons": _compared(compared),
        "beside": {
            metric: _compared(comparisons(result.counted, REFERENCES, result.seed, metric=metric)) for metric in metrics[1:]
        },
        "warning": result.warning,
        "weights": None if result.weighed is None else _weights(result.weighed),
        "influence": None if result.stacking is None else _influence(result.stacking),
        "stacking": None if result.stacking is None else _stacking(result.stacking),
        "expected gain": None if result.expected is None else _expected(result.expected),
        "choices": result.choices,
        "exchange": [] if result.exchange is None else result.exchange.describe(),
        "without a model": result.withheld,
        "agents": _agents(scores if explained is None else explained.explanation.join(scores)),
    }


def weights_account(found: Weighting, settings: Settings, files: Sequence[Path], report: Path) -> dict[str, Any]:
    """Everything ``kinfed weights --json`` prints."""
    return {
        **_run(settings.chosen(WEIGHTS), files, report),
        "seed": settings.seed,
        "weights": _weights(found.weights),
        "choices": list(found.choices),
        "agents": _agents(found.weights.explanation),
    }


def theory_account(
    predicted: PredictedGain, known: Mapping[str, ExcessRisk] | None, settings: Settings, files: Sequence[Path]
) -> dict[str, Any]:
    """Everything ``kinfed theory --json`` prints."""
    risk = predicted.risk
    return {
        **_run(settings.chosen(THEORY), files, None),
        "seed": settings.seed,
        "rule": predicted.rule,
        "mean gain": predicted.mean_gain,
        "interval": predicted.interval,
        "level": predicted.level,
        "folds": predicted.folds,
        "excess risk": None if risk is None else risk.to_frame().to_dict("index"),
        "known excess risk": None if known is None else excess_risk_table(known).to_dict("index"),
        "agents": _agents(predicted.to_frame()),
    }


def theory_table(predicted: PredictedGain) -> None:
    """Print the agents that would gain most and least."""
    ranked = predicted.to_frame().sort_values("gain", ascending=False, kind="stable")
    half = _SHOWN_AGENTS // 2
    rows = ranked if len(ranked) <= _SHOWN_AGENTS else pandas.concat([ranked.head(half), ranked.tail(half)])
    table = Table("agent", "points", "predicted gain", "standard error", "kin", "gain by the bracket (interval)")
    for name, row in rows.iterrows():
        table.add_row(
            escape(str(name)),
            f"{row.n:.0f}",
            f"{min(row.gain, 1.0):+.0%}",
            f"{row.standard_error:.0%}",
            f"{row.kin:.0f}",
            f"{row.bracket_gain:.0%} ({row.bracket_gain_low:.0%} to {row.bracket_gain_high:.0%})",
        )
    Console(soft_wrap=True).print(table)


def risk_table(risk: HeldOutRisk) -> None:
    """Print the corollary's bounds beside what was measured on rows set aside."""
    table = Table("weights", "bound on the excess risk", "a ball for every model", "loss", "measured gain", "looser by")
    for name, row in risk.to_frame().iterrows():
        loose = f"{row.loose_at_least:.3g} or more" if np.isinf(row.loose_at_most) else _range(row)
        table.add_row(
            escape(str(name)),
            *(_known(value) for value in (row.corollary, row.own_balls, row.loss)),
            f"{row.gain:+.4g}",
            "not known" if np.isnan(row.corollary) else loose,
        )
    Console(soft_wrap=True).print(table)


def known_risk_table(known: Mapping[str, ExcessRisk]) -> None:
    """Print the corollary's bounds, their sharper forms and the excess risk, where the truth is known."""
    table = Table("weights", "bound", "by the norms", "by the difference", "excess risk", "gain", "looser by")
    for name, row in excess_risk_table(known).iterrows():
        bounds = (row.corollary, row.by_norms, row.by_difference, row.excess_risk)
        table.add_row(escape(str(name)), *map(_known, bounds), f"{row.gain:+.4g}", f"{row.looseness:.3g}")
    Console(soft_wrap=True).print(table)


def _known(value: float) -> str:
    return "not known" if np.isnan(value) else f"{value:.4g}"


def _range(row: pandas.Series) -> str:
    return f"{row.loose_at_least:.3g} to {row.loose_at_most:.3g}"


def _compared(found: Mapping[str, PairedComparison]) -> dict[str, Any]:
    return {name: {**asdict(one), "verdict": one.verdict} for name, one in found.items()}


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _change(comparison: PairedComparison) -> str:
    if comparison.metric in ("accuracy", "balanced accuracy"):
        return f"{100 * comparison.difference:+.1f} points"
    as_share = not comparison.higher_is_better and np.isfinite(comparison.ratio)
    return f"{comparison.ratio - 1:+.1%}" if as_share else f"{comparison.difference:+.4g}"


def _run(settings: Mapping[str, Any], files: Sequence[Path], report: Path | None) -> dict[str, Any]:
    return {
        "command": typed_command(),
        "version": kinfed.__version__,
        "settings": settings,
        "files": list(files),
        "report": report,
    }


def _weights(weights: Weights) -> dict[str, Any]:
    explained = weights.explanation
    return {
        "rule": weights.rule,
        "agents": len(weights.names),
        "median self weight": float(explained["self weight"].median()),
        "median effective sample size": float(explained["effective sample size"].median()),
    }


def _influence(stacking: Stacking) -> dict[str, Any]:
    return {"agents": len(stacking.names), "median own influence": float(np.median(stacking.own))}


def _stacking(stacking: Stacking) -> list[dict[str, Any]]:
    """A mapping for every prior, the largest share first."""
    return [
        {"member": name, "share": share, "out-of-fold loss": loss}
        for name, share, loss in stacking.table.itertuples(name=None)
    ]


def _expected(expected: ExpectedGain) -> dict[str, Any]:
    return {
        "mean": expected.mean,
        "interval": expected.interval,
        "level": expected.level,
        "agents": _agents(expected.table),
    }


def _agents(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """A mapping for every row, the name first."""
    return [{"agent": name, **row} for name, row in zip(frame.index, frame.to_dict("records"), strict=True)]  # type: ignore[dict-item]
