"""``kinfed demo``, ``theory``, ``weights``, ``personalize`` and ``predict``.

A real federation on a fresh machine; the gain to expect, who would help whom, a model for everyone, and what it predicts.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from kinfed.analysis import ExcessRisk, excess_risk_table
from kinfed.analysis.metrics import metric_named
from kinfed.cli import options as opt
from kinfed.cli.config import SETTINGS, settings_text
from kinfed.cli.outputs import (
    PERSONAL_FILES,
    REPORT,
    THEORY_FILES,
    WEIGHT_FILES,
    ResultFolder,
    complete,
    files_in,
    gained,
    known_risk_table,
    personal_account,
    refuse_results,
    risk_table,
    theory_account,
    theory_table,
    weights_account,
    where_written,
)
from kinfed.cli.terminal import Json, Out, Seed, check_folder, made_folder, print_json, progress_bars, say
from kinfed.data import concept_shift
from kinfed.data.catalogue import fetch, find_entry
from kinfed.data.tables import read_table
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.model import UnusualRowsWarning
from kinfed.predictions import models_in, predict_table
from kinfed.pretraining_analysis import known_excess_risk, predict_gain, weighting
from kinfed.result_files import write_tables
from kinfed.settings import PERSONALIZE, THEORY, WEIGHTS, Settings
from kinfed.validation import Integers, check_options
from kinfed.weights import RULES

_DEMO_TEST_SIZE = 0.5
_SIMULATED = 100  # agents at most


def demo(out: Out = Path("demo"), seed: Seed = 0, force: opt.Force = False, json: Json = False) -> None:
    """160 schools predict mathematics achievement: who helps whom, and what it is worth, within a minute."""
    check_folder(out)
    refuse_results(out, PERSONAL_FILES, force)
    entry, folder = find_entry("hsb82"), ResultFolder(out)
    with progress_bars(hidden=json) as bars:
        with bars.step("reading the schools"):
            data = fetch(entry, cache=made_folder(out))
            train, test = entry.read(data).split(test_size=_DEMO_TEST_SIZE, seed=seed)
        settings = Settings(
            data=str(data), target=entry.target, agent=entry.agent, test_size=_DEMO_TEST_SIZE, seed=seed, out=str(out)
        )
        result = folder.personalize(train, test, settings, bars)
        folder.write(result, entry.title, bars)
    if json:
        print_json(personal_account(result, files_in(out, PERSONAL_FILES), out / REPORT))
        return
    shared = "moments and scores" if result.weighed is None else "sketches, moments and scores"
    say(
        f"{len(train)} schools shared {shared}, found whose data help them, and trained a model of their own on "
        f"{int(train.sizes.sum())} pupils; {int(test.sizes.sum())} others tested it.",
        f"{result.warning} {gained(result, 'a school', 'the schools')}".strip(),
        f"The report is {out / REPORT}: open it in a browser.",
    )


def _theory(settings: Settings, json: bool, force: bool) -> None:
    """What collaborating would save each agent, predicted before any training: theory.csv."""
    out, rule = _ready(settings, THEORY_FILES, force), settings.rule
    if RULES[rule].trains:
        raise InputError(f"rule {rule!r} is judged by models, which theory does not train; take it to kinfed weights")
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {settings.data}"):
            federation = opt.read_data(settings)
        with bars.step("predicting gains"):
            predicted = predict_gain(federation, progress=bars, **opt.choices_of(settings))
        known = None
        if predicted.risk is not None:
            with bars.step("simulating agents whose truth is known"):
                known = _known_risk(predicted.sizes, predicted.risk.dim, settings)
    with complete(out, THEORY_FILES) as folder:
        predicted.to_frame().to_csv(folder / "theory.csv")
        if predicted.risk is not None:
            predicted.risk.to_frame().to_csv(folder / "excess-risk.csv")
        if known is not None:
            excess_risk_table(known).to_csv(folder / "known-excess-risk.csv")
        (folder / SETTINGS).write_text(settings_text(settings, THEORY), encoding="utf-8", errors="replace")
    if json:
        print_json(theory_account(predicted, known, settings, files_in(out, THEORY_FILES)))
        return
    say(
        str(predicted),
        "All of this is about whole distributions: it bounds what a model can lose, and a model that needs only a part of "
        "them, such as a linear one, may gain where it says otherwise.",
    )
    theory_table(predicted)
    if predicted.risk is not None:
        say(str(predicted.risk))
        risk_table(predicted.risk)
    if known is not None:
        simulated = len(next(iter(known.values())).excess)
        say(
            f"For {simulated} simulated agents with as many rows and columns (kinfed.concept_shift), whose truth is known, "
            f"the bound is {known[rule].looseness:.3g} times the excess risk of {rule}:"
        )
        known_risk_table(known)
    say(f"Every agent and every term of the bound are in {out / 'theory.csv'}.")


def _known_risk(sizes: Integers, dim: int, settings: Settings) -> dict[str, ExcessRisk]:
    """The corollary on agents that are as many, up to a limit, and as large, and whose truth is known."""
    generated = concept_shift(min(len(sizes), _SIMULATED), max(3, int(np.median(sizes))), dim, seed=settings.seed)
    same = ("rule", "kernel", "bandwidth", "kernel_options", "shift", "n_features", "sampling", "seed")
    # Groups are those of the simulated agents.
    options = {name: value for name, value in settings.options.items() if name != "groups"}
    return known_excess_risk(generated, options=options, **{name: getattr(settings, name) for name in same})


def _weights(settings: Settings, json: bool, force: bool) -> None:
    """Who would help whom, and why, before any training: weights.csv, explanation.csv and the report index.html."""
    out = _ready(settings, WEIGHT_FILES, force)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {settings.data}"):
            federation = opt.read_data(settings)
        with bars.step(f"weighing {len(federation)} agents"):
            found = weighting(federation, progress=bars, **opt.choices_of(settings))
        with bars.step("writing results and report"), complete(out, WEIGHT_FILES) as folder:
            write_tables(found, folder)
            (folder / SETTINGS).write_text(settings_text(settings, WEIGHTS), encoding="utf-8", errors="replace")
            shown, command = settings.shown(WEIGHTS), settings.command(WEIGHTS)
            found.report(folder, title=_title(federation, settings), settings=shown, command=command, progress=bars)
    if json:
        print_json(weights_account(found, settings, files_in(out, WEIGHT_FILES), out / REPORT))
        return
    told = [] if found.weights.calibration is None else found.weights.calibration.describe()
    say(
        repr(found.weights),
        *found.known.screening.describe(),
        *told,
        f"The weights are in {out / 'weights.csv'}, why in {out / 'explanation.csv'}, and the report is {out / REPORT}.",
    )


def _personalize(settings: Settings, json: bool, force: bool) -> None:
    """A model for every agent, beside learning alone and one common model: models, scores.csv and a report.

    Who speaks in whose model is in influence.csv, the priors that are combined are in members.csv, and what agents may
    expect to gain is in expected-gain.csv; where a rule is asked for, its weights are in weights.csv.

    An interrupted run that is started again with the same options goes on where it stopped. With --backend sites or flower
    every agent is a site of its own that answers messages: traffic.csv, attendance.csv and audit.jsonl tell what crossed.
    With --test-size 0 all rows are trained on, and nothing is tested.
    """
    out, test = _ready(settings, PERSONAL_FILES, force), None
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {settings.data}"):
            train = federation = opt.read_data(settings)
            if settings.test_size != 0:
                train, test = federation.split(test_size=settings.test_size, seed=settings.seed)
            _check_rows(federation, train, test, settings.test_size)
        folder = ResultFolder(out, settings.backend)
        result = folder.personalize(train, test, settings, bars)
        folder.write(result, _title(federation, settings), bars)
    if json:
        print_json(personal_account(result, files_in(out, PERSONAL_FILES), out / REPORT))
        return
    tested = ["Nothing was tested: all rows were trained on."]
    expected = [] if result.expected is None else [str(result.expected)]
    if result.scored:
        said = (result.warning, *result.choices, *expected)
        compared = [one for one in str(result).split("\n") if one not in said]
        tested = [*compared, gained(result, "an agent", "the agents"), f"Scores are in {out / 'scores.csv'}."]
    say(
        *([result.warning] if result.warning else []),
        *result.choices,
        *([] if result.exchange is None else result.exchange.describe()),
        *expected,
        *tested,
        f"A model for every agent is in {out / 'models'}; kinfed predict uses them.",
        where_written(result, out),
    )


theory = opt.settings_command(THEORY, _theory)
weights = opt.settings_command(WEIGHTS, _weights)
personalize = opt.settings_command(PERSONALIZE, _personalize)


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a model, or of a run with models in it.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="Table of the rows to predict for.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV file for the predictions.", show_default=False)],
    agent: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that tells whose rows they are; needed with many models.")
    ] = None,
    trusted: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Type that a scikit-learn model may be made of. May be given several times."),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="LEVEL", help="Confidence of an interval for each prediction, such as 0.9; for numbers."),
    ] = None,
    force: opt.Force = False,
    json: Json = False,
) -> None:
    """Predictions of one agent's model, or of every agent's for its own rows: a CSV file, a row for each row."""
    if out.exists() and not force:
        raise InputError(f"{out} exists already; give another file with --out, or --force to replace it")
    check_folder(out.parent)
    models = models_in(model, tuple(trusted or ()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnusualRowsWarning)
        found = predict_table(models, read_table(data, agent), agent, interval)
    with complete(out.parent, ()) as folder:
        found.to_csv(folder / out.name)
    unusual = [str(one.message) for one in caught if issubclass(one.category, UnusualRowsWarning)]
    if json:
        print_json({"rows": len(found), "models": sorted(models), "warnings": unusual, "files": [out]})
        return
    say(f"Predictions for {len(found)} rows by {len(models)} models are in {out}.", *unusual)


def _ready(settings: Settings, files: tuple[str, ...], force: bool) -> Path:
    """The folder for the results, once what can be known before any reading is right."""
    out = Path(settings.out)
    check_folder(out)
    refuse_results(out, files, force)
    check_options(settings.rule, RULES[settings.rule].weigh, settings.options, given=1)
    for name in settings.metric:
        metric_named(name)
    return out


def _check_rows(federation: Federation, train: Federation, test: Federation | None, test_size: float) -> None:
    """Every agent needs two rows to learn from, some agent one to test on, and the target two values."""
    few = [agent.name for agent in federation if len(agent) < 2]
    if few:
        others = f" (so have {len(few) - 1} others: {', '.join(few[1:6])})" if len(few) > 1 else ""
        raise InputError(f"agent {few[0]} has one point{others}, and two are needed to take part; leave its row out")
    answers = [agent.y for agent in federation if agent.y is not None]
    if answers and len(np.unique(np.concatenate(answers))) == 1:
        raise InputError(f"the target is {answers[0][0]} in every row of every agent; there is nothing to learn")
    left = [agent.name for agent in train if len(agent) < 2]
    if left:
        raise InputError(f"--test-size {test_size:g} leaves agent {left[0]} a single row to learn from; give a smaller one")
    if test is not None and not test.sizes.any():
        raise InputError(f"no agent has enough rows to test on {test_size:.1%} of them; give a larger --test-size")


def _title(federation: Federation, settings: Settings) -> str:
    predicted = f": predicting {federation.target}" if federation.target else ""
    return f"{Path(settings.data).name or settings.data}, {len(federation)} agents{predicted}"
