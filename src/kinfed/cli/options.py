"""The options of the commands: the fields of `Settings` as a command line shows, completes and checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import click
import pandas
import typer
from click.core import ParameterSource

from kinfed.cli.config import PAIR, filled_from_file, pair
from kinfed.cli.terminal import Json
from kinfed.data import read_federation
from kinfed.embedding import MEDIAN
from kinfed.errors import InputError, naming
from kinfed.federation import Federation
from kinfed.learners.base import is_import_path
from kinfed.registry import is_known
from kinfed.settings import Settings, default_of, options_of
from kinfed.validation import unknown
from kinfed.weights import RULES

_SHIFTS = {"auto": "(x, y) where there is a target", "concept": "(x, y)", "covariate": "x alone"}

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with any of these options; what is typed here goes before it.",
        metavar="FILE",
        is_eager=True,
        callback=filled_from_file,
        rich_help_panel="Data",
        show_default=False,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace results of an earlier run.", rich_help_panel="Output", show_default=False)
]

Command = Callable[[Settings, bool, bool], None]
"""Called as ``command(settings, json, force)``."""


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


def settings_command(place: str, command: Command) -> Callable[..., None]:
    """The command whose options are those of `Settings` that can be chosen there."""

    def run(**given: Any) -> None:
        command(settings_from(given), given["json"], given["force"])

    parameters = [
        Parameter("config", Parameter.KEYWORD_ONLY, annotation=Config, default=None),
        *(_parameter(name, one, place) for name, one in options_of(place).items()),
        Parameter("force", Parameter.KEYWORD_ONLY, annotation=Force, default=False),
        Parameter("json", Parameter.KEYWORD_ONLY, annotation=Json, default=False),
    ]
    # A command line wants its argument first.
    parameters.sort(key=lambda one: one.name != "data")
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__, run.__name__ = command.__doc__, place
    return run


def settings_from(given: Mapping[str, Any]) -> Settings:
    """The settings that a command line gave."""
    found: dict[str, Any] = {}
    for one in fields(Settings):
        if one.name not in given:
            continue
        value, usual = given[one.name], default_of(one, "")
        if isinstance(usual, dict):
            value = pairs(value)
        elif isinstance(usual, tuple):
            value = tuple(value or ())
        elif isinstance(value, Path):
            value = str(value)
        found[one.name] = value
    return Settings(**found)


def _parameter(name: str, one: Field[Any], place: str) -> Parameter:
    """A field as an option, or as the argument DATA."""
    told, usual, names = one.metadata, default_of(one, place), one.metadata["names"]
    text, flag = told["help"], f"--{name}"
    if one.name == "data":
        shown = typer.Argument(help=text, show_default=False)
        return Parameter("data", Parameter.KEYWORD_ONLY, annotation=Annotated[Path, shown])
    kind: Any = str | None if usual is None else type(usual)
    how: dict[str, Any] = {"rich_help_panel": told["panel"], "metavar": "NUMBER"}
    if one.name == "bandwidth":
        kind, how["click_type"] = Any, BandwidthType()
    elif names is not None and not isinstance(usual, tuple):
        text = f"{text.rstrip('.')}: {', '.join(names())}."
        how |= {"metavar": "NAME", "callback": _known(name, names, usual), "autocompletion": _completes(name, names)}
    elif isinstance(usual, bool):
        flag, how["metavar"] = f"--{name}/--no-{name}", None
    elif isinstance(usual, dict | tuple):
        text = text if names is None else f"{text.rstrip('.')}: {', '.join(names())}."
        kind, text = list[str] | None, f"{text} May be given several times."
        how["metavar"] = PAIR if isinstance(usual, dict) else "COLUMN" if names is None else "NAME"
        flag, usual = flag.removesuffix("s") if isinstance(usual, dict) else flag, None
    elif one.name == "out":
        kind, usual, how["metavar"] = Path, Parameter.empty, "FOLDER"
    elif usual is None:
        how |= {"metavar": "COLUMN", "show_default": False}
    if told["least"] is not None:
        how["min"] = told["least"]
    annotation = Annotated[kind, typer.Option(flag, help=text, **how)]
    return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=annotation, default=usual)


def _known(kind: str, names: Callable[[], Any], usual: str) -> Callable[..., str]:
    """A check that a name is one of these, or the usual; the message offers the nearest and says if it came from a file."""

    def check(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
        valid = names()
        if value == usual or is_known(value, valid) or (kind == "learner" and is_import_path(value)):
            return value
        from_file = context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT_MAP
        place = f"{context.params.get('config')}: " if from_file else ""
        raise InputError(f"{place}{unknown(kind, value, valid)} (one of {', '.join(valid)})")

    return check


def _completes(kind: str, names: Callable[[], Any]) -> Callable[[str], list[tuple[str, str]]]:
    """What a shell offers after the first letters of a name, with what it means where that is known."""

    def meaning(name: str) -> str:
        return RULES[name].summary if kind == "rule" else _SHIFTS[name] if kind == "shift" else ""

    def offer(incomplete: str) -> list[tuple[str, str]]:
        return [(name, meaning(name)) for name in names() if name.startswith(incomplete)]

    return offer


def read_data(settings: Settings) -> Federation:
    """The federation in a file or folder, its known groups taken from a column."""
    roles, groups, skipped = settings.roles, settings.groups_column, settings.leave_out
    for what, column in asdict(roles).items():
        option = f"--{what.replace('_', '-')}"
        if column is not None and column in skipped:
            raise InputError(f"column {column!r} is needed as {option} and cannot be left out; take it off --leave-out")
    if groups is not None and groups in (*roles.columns, *skipped):
        raise InputError(f"column {groups!r} cannot be the groups and something else too; give --groups another column")
    how = {"leave_out": skipped, "encoding": settings.encoding}
    federation = read_federation(Path(settings.data), **asdict(roles), **how)  # type: ignore[arg-type]
    few = [agent.name for agent in federation if len(agent) < 2]
    if few and len(few) < len(federation):
        told = f"agents with a single row left out, since two are needed to take part: {', '.join(few[:10])}"
        more = f" and {len(few) - 10} more" if len(few) > 10 else ""
        federation = replace(federation.without(few), notes=(*federation.notes, told + more))
    with naming(settings.data):
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
        agents.append(replace(agent, X=X))
    columns = tuple(federation.columns[j] for j in kept)
    return replace(federation, agents=tuple(agents), columns=columns, groups=tuple(labels))


def choices_of(settings: Settings) -> dict[str, Any]:
    """The settings as `kinfed.personalize` and its kin take them, by name."""
    # A list is what a command line can write for a tuple, such as the widths of layers.
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.learner_options.items()}
    return {one.name: getattr(settings, one.name) for one in fields(Settings)} | {"learner_options": options}


def pairs(given: Sequence[str] | None) -> dict[str, Any]:
    """All of NAME=VALUE, where no name may come twice."""
    found: dict[str, Any] = {}
    for name, value in map(pair, given or ()):
        if name in found:
            raise InputError(f"option {name!r} is given twice; give it once")
        found[name] = value
    return found
