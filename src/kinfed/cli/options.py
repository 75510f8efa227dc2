"""The options of the commands: their types, their help, what completes them, and what the library takes for them.

The last are a federation, a kernel, a learner, options of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import pandas
import typer
from click.core import ParameterSource

from kinfed.cli.config import PAIR, filled_from_file, pair
from kinfed.data import Preparation, read_federation
from kinfed.embedding import (
    SAMPLINGS,
    SHIFTS,
    TARGET_BANDWIDTH,
    Gaussian,
    Kernel,
    Laplace,
    Matern,
    Polynomial,
    common_scale,
    federated_median,
    own_scale,
)
from kinfed.errors import InputError, naming
from kinfed.federation import Agent, Federation
from kinfed.learners import LEARNERS, Learner
from kinfed.learners.base import learner_for
from kinfed.settings import BACKENDS
from kinfed.validation import check_options, unknown
from kinfed.weights import RULES, geometric_rules

DATA, COMPARISON, TRAINING, OUTPUT = "Data", "Comparison", "Training", "Output"
MEDIAN = "median"
KERNELS: dict[str, type[Any]] = {"gaussian": Gaussian, "laplace": Laplace, "matern": Matern, "polynomial": Polynomial}
_SHIFT_MEANING = {"auto": "(x, y) where there is a target", "concept": "(x, y)", "covariate": "x alone"}


class BandwidthType(click.ParamType):
    """A number above zero, or the word median."""

    name = "a number or 'median'"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """The number, or the word."""
        if value == MEDIAN:
            return MEDIAN
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        return number if 0 < number < float("inf") else self.fail(f"{value!r} is neither a number above zero nor 'median'")


def completes(
    names: Collection[str], meaning: Callable[[str], str] | None = None
) -> Callable[[str], list[tuple[str, str]]]:
    """What a shell offers after the first letters of a name."""

    def offer(incomplete: str) -> list[tuple[str, str]]:
        return [(name, meaning(name) if meaning else "") for name in names if name.startswith(incomplete)]

    return offer


def known(kind: str, valid: Collection[str]) -> Callable[..., str]:
    """A check that a name is one of these; the message offers the nearest and says if it came from a file."""

    def check(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
        if value in valid:
            return value
        from_file = context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT_MAP
        place = f"{context.params.get('config')}: " if from_file else ""
        raise InputError(f"{place}{unknown(kind, value, valid)} (one of {', '.join(valid)})")

    return check


def _option(
    flag: str,
    text: str,
    panel: str,
    names: Collection[str],
    meaning: Callable[[str], str] | None = None,
    offered: Collection[str] | None = None,
) -> Any:
    """An option that takes one of a few names, of which a shell may offer some."""
    return typer.Option(
        flag,
        help=text,
        metavar="NAME",
        rich_help_panel=panel,
        callback=known(flag.strip("-"), names),
        autocompletion=completes(offered or names, meaning),
    )


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with any of these options; what is typed here goes before it.",
        metavar="FILE",
        is_eager=True,
        callback=filled_from_file,
        rich_help_panel=DATA,
        show_default=False,
    ),
]
Data = Annotated[Path, typer.Argument(help="A table, a folder of tables, LEAF JSON, or .npz.", show_default=False)]
Target = Annotated[
    str | None, typer.Option(help="Column to predict.", metavar="COLUMN", rich_help_panel=DATA, show_default=False)
]
AgentColumn = Annotated[
    str | None,
    typer.Option("--agent", help="Column that tells agents apart.", metavar="COLUMN", rich_help_panel=DATA),
]
Groups = Annotated[
    str | None,
    typer.Option(
        help="Column with a known group, the same in all rows of an agent; it is no feature.",
        metavar="COLUMN",
        rich_help_panel=DATA,
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(help="Column not to use. May be given several times.", metavar="COLUMN", rich_help_panel=DATA),
]
TestSize = Annotated[
    float, typer.Option(metavar="NUMBER", help="Share of every agent's rows to test on.", rich_help_panel=DATA)
]
Standardise = Annotated[
    bool,
    typer.Option("--standardise/--no-standardise", help="Give every column mean 0 and variance 1.", rich_help_panel=DATA),
]
RuleName = Annotated[
    str,
    _option("--rule", f"How agents are weighed: {', '.join(RULES)}.", COMPARISON, RULES, lambda name: RULES[name].summary),
]
GeometricRuleName = Annotated[
    str,
    _option(
        "--rule",
        f"How agents are weighed: {', '.join(geometric_rules())}.",
        COMPARISON,
        RULES,
        lambda name: RULES[name].summary,
        geometric_rules(),
    ),
]
RuleOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--rule-option",
        help="Option of the rule, such as steps=300. May be given several times.",
        metavar=PAIR,
        rich_help_panel=COMPARISON,
    ),
]
ShiftName = Annotated[
    str,
    _option(
        "--shift",
        "Compare agents by (x, y): concept; by x: covariate; or auto.",
        COMPARISON,
        SHIFTS,
        lambda name: _SHIFT_MEANING[name],
    ),
]
KernelName = Annotated[
    str, _option("--kernel", f"What makes points alike: auto, {', '.join(KERNELS)}.", COMPARISON, ("auto", *KERNELS))
]
KernelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel-option",
        help="Option of the kernel: nu=2.5 of matern, offset=0 of polynomial. May be given several times.",
        metavar=PAIR,
        rich_help_panel=COMPARISON,
    ),
]
Bandwidth = Annotated[
    Any,
    typer.Option(
        click_type=BandwidthType(),
        metavar="NUMBER",
        help="Width of a kernel that is named: a number, or the median distance within agents.",
        rich_help_panel=COMPARISON,
    ),
]
Features = Annotated[
    int,
    typer.Option(
        min=1, metavar="NUMBER", help="Random Fourier features, the numbers an agent shares.", rich_help_panel=COMPARISON
    ),
]
SamplingName = Annotated[
    str,
    _option("--sampling", f"How features are drawn: {', '.join(SAMPLINGS)}.", COMPARISON, SAMPLINGS),
]
LearnerName = Annotated[str, _option("--learner", f"What is trained: {', '.join(LEARNERS)}.", TRAINING, LEARNERS)]
LearnerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--learner-option",
        help="Option of the learner, such as penalty=0.1. May be given several times.",
        metavar=PAIR,
        rich_help_panel=TRAINING,
    ),
]
BackendName = Annotated[str, _option("--backend", f"Where the rows are: {', '.join(BACKENDS)}.", TRAINING, BACKENDS)]
Constant = Annotated[
    float, typer.Option(metavar="NUMBER", help="The unknown absolute constant of the bound.", rich_help_panel=COMPARISON)
]
Folds = Annotated[
    int,
    typer.Option(
        min=3,
        metavar="NUMBER",
        help="Every agent sets one such part of its rows aside at a time.",
        rich_help_panel=COMPARISON,
    ),
]
Level = Annotated[float, typer.Option(metavar="NUMBER", help="Confidence of the intervals.", rich_help_panel=COMPARISON)]


def read_data(
    data: Path, target: str | None, agent: str | None, groups: str | None, leave_out: Sequence[str] | None
) -> Federation:
    """The federation in a file or folder, its known groups taken from a column."""
    skipped = tuple(leave_out or ())
    for column, option in ((target, "--target"), (agent, "--agent")):
        if column is not None and column in skipped:
            raise InputError(f"column {column!r} is needed as {option} and cannot be left out; take it off --leave-out")
    if groups is not None and groups in (target, agent, *skipped):
        raise InputError(f"column {groups!r} cannot be the groups and something else too; give --groups another column")
    federation = read_federation(data, target=target, agent=agent, leave_out=skipped)
    with naming(data):
        return federation if groups is None else with_groups(federation, groups)


def with_groups(federation: Federation, column: str) -> Federation:
    """The federation with the labels of a column as groups of its agents; the column is no feature any more."""
    if column not in federation.columns:
        raise unknown("column", column, federation.columns)
    place = federation.columns.index(column)
    kept = [j for j in range(federation.dim) if j != place]
    if not kept:
        raise InputError(f"there is no column beside the groups in {column!r}; agents need at least one feature")
    agents, labels = [], []
    for agent in federation:
        values = agent.X.iloc[:, place] if isinstance(agent.X, pandas.DataFrame) else pandas.Series(agent.X[:, place])
        found = values.dropna().unique()
        if len(found) != 1 or values.isna().any():
            what = f"{len(found)} labels" if len(found) > 1 else "a missing label"
            raise InputError(
                f"agent {agent.name} has {what} in the groups column {column!r}; give all its rows the same one"
            )
        labels.append(found[0])
        X = agent.X.iloc[:, kept] if isinstance(agent.X, pandas.DataFrame) else agent.X[:, kept]
        agents.append(Agent(agent.name, X, agent.y))
    columns = tuple(federation.columns[j] for j in kept)
    return replace(federation, agents=tuple(agents), columns=columns, groups=tuple(labels))


def chosen_kernel(
    train: Federation,
    learner: Learner,
    name: str,
    bandwidth: str | float,
    options: Mapping[str, Any],
    shift: str,
    standardise: bool,
) -> Kernel | str:
    """The kernel of that name; the median bandwidth is that of the usual kernel, for x and for y.

    The median over agents of the median distance within an agent is taken of the prepared rows, so agents answer with one
    number each.
    """
    if name == "auto":
        if bandwidth != MEDIAN or options:
            raise InputError("--bandwidth and --kernel-option need a kernel that is named, such as --kernel gaussian")
        return "auto"
    constructor = KERNELS[name]
    # The bandwidth has an option of its own, and features are there for polynomials of degree 2 alone.
    check_options(f"{name} kernel", constructor, options, given=1)
    if name == "polynomial":
        if bandwidth != MEDIAN:
            raise InputError("the polynomial kernel has no bandwidth; leave --bandwidth out")
        return constructor(**options)
    if bandwidth != MEDIAN:
        return constructor(bandwidth, **options)
    prepared = Preparation.fit(train, standardise=standardise).transform(train)
    scale = common_scale(prepared.dim, [own_scale(agent, learner.task == "classification") for agent in prepared])
    width = 0 if scale.target is None or shift == "covariate" else scale.target.width
    return constructor((federated_median(prepared),) * scale.dim + (TARGET_BANDWIDTH,) * width, **options)


def chosen_learner(train: Federation, name: str, given: Sequence[str] | None) -> Learner:
    """The learner of that name with these options; a network learns what the target asks for."""
    # A list is what a command line can write for a tuple, such as the widths of layers.
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in pairs(given).items()}
    return learner_for(train[0].y, name, **options)


def chosen_rule_options(rule: str, given: Sequence[str] | None) -> dict[str, Any]:
    """Options of a rule, whose names are checked."""
    options = pairs(given)
    check_options(rule, RULES[rule].weigh, options, given=1)
    return options


def pairs(given: Sequence[str] | None) -> dict[str, Any]:
    """All of NAME=VALUE, where no name may come twice."""
    found: dict[str, Any] = {}
    for name, value in map(pair, given or ()):
        if name in found:
            raise InputError(f"option {name!r} is given twice; give it once")
        found[name] = value
    return found
