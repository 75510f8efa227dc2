"""``kinfed theory``, ``weights`` and ``personalize``: the gain to expect, who would help whom, and a model for everyone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import typer

import kinfed
from kinfed.cli import options as opt
from kinfed.cli.accounts import gained, personal_account, theory_account, theory_table, weights_account
from kinfed.cli.config import used_settings
from kinfed.cli.outputs import (
    PERSONAL_FILES,
    REPORT,
    THEORY_FILES,
    WEIGHT_FILES,
    complete,
    files_in,
    shown,
    write_settings,
    write_weights,
)
from kinfed.cli.request import chosen_kernel, chosen_learner, chosen_rule_options, pairs, read_data
from kinfed.cli.runs import Run
from kinfed.cli.terminal import Json, Out, Seed, check_folder, print_json, progress_bars, say, typed_command
from kinfed.collaboration import predict_gain, prospect
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.weights import GEOMETRIC_RULES


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
    if rule not in GEOMETRIC_RULES:
        raise InputError(f"rule {rule!r} is judged by models, which theory does not train; take it to kinfed weights")
    rule_options = chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = read_data(data, target, agent, groups, leave_out)
        with bars.step("predicting gains"):
            minimiser = chosen_learner(federation, learner, None)
            similarity = chosen_kernel(federation, minimiser, kernel, bandwidth, pairs(kernel_option), shift, True)
            predicted = predict_gain(
                federation,
                rule,
                similarity,
                minimiser,
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
        write_settings(context.command_path, kinfed.__version__, settings, folder)
    if json:
        print_json(theory_account(predicted, settings, files_in(out, THEORY_FILES)))
        return
    say(str(predicted))
    say(
        "All of this is about whole distributions: it bounds what a model can lose, and a model that needs only a part of "
        "them, such as a linear one, may gain where it says otherwise."
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
    rule_options = chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = read_data(data, target, agent, groups, leave_out)
            minimiser = chosen_learner(federation, learner, learner_option)
            similarity = chosen_kernel(federation, minimiser, kernel, bandwidth, pairs(kernel_option), shift, standardise)
        with bars.step(f"weighing {len(federation)} agents"):
            found = prospect(
                federation,
                rule,
                similarity,
                minimiser,
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
            write_weights(found.weights, folder)
            write_settings(context.command_path, kinfed.__version__, settings, folder)
            found.report(
                folder, title=_title(data, federation), settings=shown(settings), command=typed_command(), progress=bars
            )
    if json:
        print_json(weights_account(found, settings, files_in(out, WEIGHT_FILES), out / REPORT))
        return
    told = [] if found.weights.calibration is None else found.weights.calibration.describe()
    for sentence in (repr(found.weights), *told):
        say(sentence)
    say(f"The weights are in {out / 'weights.csv'}, why in {out / 'explanation.csv'}, and the report is {out / REPORT}.")


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
    engine: opt.EngineName = "in-process",
    seed: Seed = 0,
    out: Out,
    json: Json = False,
) -> None:
    """A model for every agent, beside learning alone and one common model: scores.csv, weights.csv and a report.

    An interrupted run that is started again with the same options goes on where it stopped. With --engine sites or flower
    every agent is a site of its own that answers messages: traffic.csv, attendance.csv and audit.jsonl tell what crossed.
    """
    check_folder(out)
    rule_options = chosen_rule_options(rule, rule_option)
    with progress_bars(hidden=json) as bars:
        with bars.step(f"reading {data}"):
            federation = read_data(data, target, agent, groups, leave_out)
            train, test = federation.split(test_size=test_size, seed=seed)
            _check_rows(federation, train, test, test_size)
            minimiser = chosen_learner(train, learner, learner_option)
            similarity = chosen_kernel(train, minimiser, kernel, bandwidth, pairs(kernel_option), shift, standardise)
        run = Run(out, engine)
        result = run.personalize(
            train,
            test,
            bars,
            learner=minimiser,
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
    for sentence in (*result.choices, *exchanged, str(result), gained(result, "an agent", "the agents")):
        say(sentence)
    say(f"Scores and weights are in {out / 'scores.csv'} and {out / 'weights.csv'}, and the report is {out / REPORT}.")


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
