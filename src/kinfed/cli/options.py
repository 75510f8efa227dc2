"""The options of the commands: their types, their help, what completes them, and which names they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from kinfed.cli.config import PAIR, filled_from_file
from kinfed.columns import unknown
from kinfed.embedding import SHIFTS
from kinfed.errors import InputError
from kinfed.features import SAMPLINGS
from kinfed.kernels import Gaussian, Laplace, Matern, Polynomial
from kinfed.learners import LEARNERS
from kinfed.pipeline import ENGINES
from kinfed.weights import GEOMETRIC_RULES, RULES

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


def completes(names: Iterable[str], meaning: Callable[[str], str] | None = None) -> Callable[[str], list[tuple[str, str]]]:
    """What a shell offers after the first letters of a name."""

    def offer(incomplete: str) -> list[tuple[str, str]]:
        return [(name, meaning(name) if meaning else "") for name in names if name.startswith(incomplete)]

    return offer


def known(kind: str, names: Iterable[str]) -> Callable[..., str]:
    """A check that a name is one of these; the message offers the nearest and says if it came from a file."""
    valid = tuple(names)

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
    names: Iterable[str],
    meaning: Callable[[str], str] | None = None,
    offered: Iterable[str] | None = None,
) -> Any:
    """An option that takes one of a few names, of which a shell may offer some."""
    valid = tuple(names)
    return typer.Option(
        flag,
        help=text,
        metavar="NAME",
        rich_help_panel=panel,
        callback=known(flag.strip("-"), valid),
        autocompletion=completes(tuple(offered or valid), meaning),
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
Data = Annotated[
    Path,
    typer.Argument(help="A table, a folder of tables, LEAF JSON, or .npz.", show_default=False),
]
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
        f"How agents are weighed: {', '.join(GEOMETRIC_RULES)}.",
        COMPARISON,
        RULES,
        lambda name: RULES[name].summary,
        GEOMETRIC_RULES,
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
EngineName = Annotated[str, _option("--engine", f"Where agents compute: {', '.join(ENGINES)}.", TRAINING, ENGINES)]
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
