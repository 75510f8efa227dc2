"""``kinfed demo``, ``theory``, ``weights`` and ``personalize``.

A real federation on a fresh machine; the gain to expect, who would help whom, and a model for everyone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import typer

from kinfed.cli import options as opt
from kinfed.cli.config import used_settings
from kinfed.cli.outputs import (
    PERSONAL_FILES,
    REPORT,
    THEORY_FILES,
    WEIGHT_FILES,
    Run,
    complete,
    files_in,
    gained,
    personal_account,
    shown,
    theory_account,
    theory_table,
    weights_account,
    write_settings,
)
from kinfed.cli.terminal import Json, Out, Seed, check_folder, made_folder, print_json, progress_bars, say, typed_command
from kinfed.data.catalogue import fetch, find_entry
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.pretraining_analysis import predict_gain, weighting
from kinfed.result_files import write_tables
from kinfed.weights import geometric_rules

_DEMO_TEST_SIZE = 0.5


def demo(out: Out = Path("demo"), seed: Seed = 0, json: Json = False) -> None:
    """160 schools predict mathematics achievement: who helps whom, and what it is worth, within a minute."""
    check_folder(out)
    entry, run = find_entry("hsb82"), Run(out)
    with progress_bars(hidden=json) as bars:
        with bars.step("reading the schools"):
            data = fetch(entry, cache=made_folder(out))
            train, test = entry.read(data).split(test_size=_DEMO_TEST_SIZE, seed=seed)
        settings = {
            "data": str(data),
            "target": entry.target,
            "agent": entry.agent,
            "test-size": _DEMO_TEST_SIZE,
            "seed": seed,
            "out": str(out),
        }
        result = run.personalize(train, test, bars, seed=seed)
        run.write(result, entry.title, settings, bars, "kinfed personalize")
    if json:
        print_json(personal_account(result, settings, files_in(out, PERSONAL_FILES), out / REPORT))
        return
    say(
        f"{len(train)} schools shared sketches and scores, found whose data help them, and trained a model of their own on "
        f"{int(train.sizes.sum())} pupils; {int(test.sizes.sum())} others tested it.",
        gained(result, "a school", "the schools"),
        f"The report is {out / REPORT}: open it in a browser.",
    )


def theory(
    context: typer.Context,
    data: opt.Data,
    *,
    config: opt.Config = None,
    target: opt.Target = None,
    agent: opt.AgentColumn = None,
    groups: opt.Groups = None,
    leave_out: opt.LeaveOut = None,
    rule: opt.GeometricRuleName = "q-aggregation",
    rule_option: opt.RuleOptions = None,
    shift: opt.ShiftName = "auto",
    kernel: opt.KernelName = "auto",
    bandwidth: opt.Bandwidth = opt.MEDIAN,
    kernel_option: opt.KernelOptions = None,
    features: opt.Features = 500,
    sampling: opt.SamplingName = "iid",
    constant: opt.Constant = 1.0,
    folds: opt.Folds = 10,
    level: opt.Level = 0.95,
    learner: opt.LearnerName = "ridge",
    seed: Seed = 0,
    out: Out,
    json: Json = False,
) -> None:
    """What collaborating would save each agent, predicted before any training: theory.csv."""
    check_folder(out)
    if rule not in geometric_rules():
        raise InputError(f"rule {rule!r} is judged by models, which theory does not train; take it to kinfed weights")
    rule_options = opt.chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = opt.read_data(data, target, agent, groups, leave_out)
        with bars.step("predicting gains"):
            trained = opt.chosen_learner(federation, learner, None)
            similarity = opt.chosen_kernel(federation, trained, kernel, bandwidth, opt.pairs(kernel_option), shift, True)
            predicted = predict_gain(
                federation,
                rule,
                similarity,
                trained,
                seed,
                shift=shift,
                n_features=features,
                sampling=sampling,
                options=rule_options,
                constant=constant,
                folds=folds,
                level=level,
                progress=bars,
            )
    settings = used_settings(context)
    with complete(out, THEORY_FILES) as folder:
        predicted.to_frame().to_csv(folder / "theory.csv")
        write_settings(context.command_path, settings, folder)
    if json:
        print_json(theory_account(predicted, settings, files_in(out, THEORY_FILES)))
        return
    say(
        str(predicted),
        "All of this is about whole distributions: it bounds what a model can lose, and a model that needs only a part of "
        "them, such as a linear one, may gain where it says otherwise.",
    )
    theory_table(predicted)
    say(f"Every agent and every term of the bound are in {out / 'theory.csv'}.")


def weights(
    context: typer.Context,
    data: opt.Data,
    *,
    config: opt.Config = None,
    target: opt.Target = None,
    agent: opt.AgentColumn = None,
    groups: opt.Groups = None,
    leave_out: opt.LeaveOut = None,
    standardise: opt.Standardise = True,
    rule: opt.RuleName = "calibrated",
    rule_option: opt.RuleOptions = None,
    shift: opt.ShiftName = "auto",
    kernel: opt.KernelName = "auto",
    bandwidth: opt.Bandwidth = opt.MEDIAN,
    kernel_option: opt.KernelOptions = None,
    features: opt.Features = 500,
    sampling: opt.SamplingName = "iid",
    learner: opt.LearnerName = "ridge",
    learner_option: opt.LearnerOptions = None,
    seed: Seed = 0,
    out: Out,
    json: Json = False,
) -> None:
    """Who would help whom, and why, before any training: weights.csv, explanation.csv and the report index.html."""
    check_folder(out)
    rule_options = opt.chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = opt.read_data(data, target, agent, groups, leave_out)
            trained = opt.chosen_learner(federation, learner, learner_option)
            similarity = opt.chosen_kernel(
                federation, trained, kernel, bandwidth, opt.pairs(kernel_option), shift, standardise
            )
        with bars.step(f"weighing {len(federation)} agents"):
            found = weighting(
                federation,
                rule,
                similarity,
                trained,
                seed,
                shift=shift,
                n_features=features,
                sampling=sampling,
                options=rule_options,
                standardise=standardise,
                progress=bars,
            )
        settings = used_settings(context)
        with bars.step("writing results and report"), complete(out, WEIGHT_FILES) as folder:
            write_tables(found, folder)
            write_settings(context.command_path, settings, folder)
            found.report(
                folder, title=_title(data, federation), settings=shown(settings), command=typed_command(), progress=bars
            )
    if json:
        print_json(weights_account(found, settings, files_in(out, WEIGHT_FILES), out / REPORT))
        return
    told = [] if found.weights.calibration is None else found.weights.calibration.describe()
    say(
        repr(found.weights),
        *told,
        f"The weights are in {out / 'weights.csv'}, why in {out / 'explanation.csv'}, and the report is {out / REPORT}.",
    )


def personalize(
    context: typer.Context,
    data: opt.Data,
    *,
    config: opt.Config = None,
    target: opt.Target = None,
    agent: opt.AgentColumn = None,
    groups: opt.Groups = None,
    leave_out: opt.LeaveOut = None,
    test_size: opt.TestSize = 0.2,
    standardise: opt.Standardise = True,
    rule: opt.RuleName = "calibrated",
    rule_option: opt.RuleOptions = None,
    shift: opt.ShiftName = "auto",
    kernel: opt.KernelName = "auto",
    bandwidth: opt.Bandwidth = opt.MEDIAN,
    kernel_option: opt.KernelOptions = None,
    features: opt.Features = 500,
    sampling: opt.SamplingName = "iid",
    learner: opt.LearnerName = "ridge",
    learner_option: opt.LearnerOptions = None,
    backend: opt.BackendName = "pooled",
    seed: Seed = 0,
    out: Out,
    json: Json = False,
) -> None:
    """A model for every agent, beside learning alone and one common model: scores.csv, weights.csv and a report.

    An interrupted run that is started again with the same options goes on where it stopped. With --backend sites or flower
    every agent is a site of its own that answers messages: traffic.csv, attendance.csv and audit.jsonl tell what crossed.
    """
    check_folder(out)
    rule_options = opt.chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = opt.read_data(data, target, agent, groups, leave_out)
            train, test = federation.split(test_size=test_size, seed=seed)
            _check_rows(federation, train, test, test_size)
            trained = opt.chosen_learner(train, learner, learner_option)
            similarity = opt.chosen_kernel(train, trained, kernel, bandwidth, opt.pairs(kernel_option), shift, standardise)
        run = Run(out, backend)
        result = run.personalize(
            train,
            test,
            bars,
            learner=trained,
            rule=rule,
            seed=seed,
            kernel=similarity,
            shift=shift,
            n_features=features,
            sampling=sampling,
            options=rule_options,
            standardise=standardise,
        )
        settings = used_settings(context)
        run.write(result, _title(data, federation), settings, bars, context.command_path)
    if json:
        print_json(personal_account(result, settings, files_in(out, PERSONAL_FILES), out / REPORT))
        return
    exchanged = [] if result.exchange is None else result.exchange.describe()
    say(
        *result.choices,
        *exchanged,
        str(result),
        gained(result, "an agent", "the agents"),
        f"Scores and weights are in {out / 'scores.csv'} and {out / 'weights.csv'}, and the report is {out / REPORT}.",
    )


def _check_rows(federation: Federation, train: Federation, test: Federation, test_size: float) -> None:
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
    if not test.sizes.any():
        raise InputError(f"no agent has enough rows to test on {test_size:.1%} of them; give a larger --test-size")


def _title(data: Path, federation: Federation) -> str:
    predicted = f": predicting {federation.target}" if federation.target else ""
    return f"{data.name or data}, {len(federation)} agents{predicted}"
