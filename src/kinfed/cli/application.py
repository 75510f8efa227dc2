"""``kinfed``: all commands, in the order a newcomer needs them, and the way in."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

import kinfed
from kinfed.cli import bench, commands, data, demo, flower, leaderboard, reproduce, sketch
from kinfed.cli.mistakes import EXIT_CODES, ended

_ORDER = ("demo", "theory", "weights", "personalize", "data", "sketch", "flower", "reproduce", "leaderboard", "bench")


class _InOrder(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    cls=_InOrder,
    help="Find each agent's kin in a federation: whose data help whom, how much, and a model for everyone.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(ended(lambda: typer.main.get_command(app), sys.argv[1:]))


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kinfed {kinfed.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    pass


_LEARN, _SITES, _RESEARCH = "Learn with kin", "Data and sites", "Research"
app.command(rich_help_panel=_LEARN)(demo.demo)
app.command(rich_help_panel=_LEARN)(commands.theory)
app.command(rich_help_panel=_LEARN)(commands.weights)
app.command(rich_help_panel=_LEARN)(commands.personalize)
app.add_typer(data.app, name="data", rich_help_panel=_SITES)
app.add_typer(sketch.app, name="sketch", rich_help_panel=_SITES)
app.add_typer(flower.app, name="flower", rich_help_panel=_SITES)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=_RESEARCH)
app.command(name="leaderboard", rich_help_panel=_RESEARCH)(leaderboard.leaderboard)
app.command(name="bench", rich_help_panel=_RESEARCH)(bench.bench)
