"""``kinfed``: all commands, in the order a newcomer needs them, the way in, and the way out.

Every mistake is one line on standard error and an exit code, never a traceback.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Annotated

import click
import typer
from typer.core import TyperGroup

import kinfed
from kinfed.cli import commands, research, sites, sketch
from kinfed.cli.config import SettingsError, nearest
from kinfed.errors import KinfedError
from kinfed.settings import PERSONALIZE, options_of

DONE, MISTAKE, UNREADABLE, BUG, INTERRUPTED = 0, 1, 2, 70, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 a mistake in data or options that one line on standard error names; 2 a command line or "
    "settings file that cannot be read; 70 a bug in kinfed; 130 interrupted."
)
TRACEBACK = "KINFED_TRACEBACK"

_OPTIONS = {one.name: f"--{name}" for name, one in options_of(PERSONALIZE).items()} | {
    "groups": "--groups",
    "options": "--rule-option",
    "kernel_options": "--kernel-option",
    "learner_options": "--learner-option",
}
_ARGUMENT = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\.\.\.|'([\w-]+)')")
_NAME = re.compile(rf"(?<![\w'\"/.-])({'|'.join(name for name in _OPTIONS if '_' in name)})(?![\w'\"/.-])")
_ORDER = (
    "demo",
    "theory",
    "weights",
    "personalize",
    "predict",
    "data",
    "sketch",
    "flower",
    "reproduce",
    "leaderboard",
    "bench",
)


def ended(command: Callable[[], click.Command], arguments: Sequence[str]) -> int:
    """Run a command line to its end and return the exit code."""
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:  # a library's warnings speak to programmers, who ask for them with -W
                warnings.simplefilter("ignore")
            _invoke(command(), arguments)
            sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UNREADABLE
    except click.UsageError as error:
        return _told(_usage(error), UNREADABLE)
    except click.ClickException as error:
        return _told(error.format_message(), MISTAKE)
    except SettingsError as error:
        return _told(str(error), UNREADABLE)
    except KinfedError as error:
        return _told(_from_settings(as_options(str(error), arguments), arguments), MISTAKE)
    except (KeyboardInterrupt, click.Abort) as error:
        return _told("; ".join(["interrupted", *map(str, error.args)]), INTERRUPTED)
    except BrokenPipeError:  # nobody reads the output any more, as in `kinfed ... | head -1`; the files are written
        _close(sys.stdout)
        return DONE
    except SystemExit as end:  # rich leaves so where nobody reads a table any more
        return DONE if isinstance(end.__context__, BrokenPipeError) else int(end.code or DONE)
    except MemoryError:
        return _told("there is not enough memory; use fewer agents, rows or --features, or a larger machine", MISTAKE)
    except OSError as error:
        return _told(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", MISTAKE)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _told(f"internal error: {what}; run again with {TRACEBACK}=1 and report it", BUG)
    return DONE


def as_options(message: str, typed: Sequence[str] = ()) -> str:
    """A message of the library, whose arguments are options here: ``agent=...`` becomes ``--agent``, unless so typed."""

    def option(found: re.Match[str]) -> str:
        if any(one.startswith(f"{found[1]}=") for one in typed):
            return found[0]
        flag = _OPTIONS[found[1]]
        return f"{flag} {found[3]}" if found.re is _ARGUMENT and found[3] else flag

    return _NAME.sub(option, _ARGUMENT.sub(option, message))


def _from_settings(message: str, typed: Sequence[str]) -> str:
    """The message, with the settings file where an option it names was set, unless that was typed."""
    words = [part for one in typed for part in one.split("=", 1)]
    named = re.search(r"(?<!\w)--[a-z][a-z-]*", message)
    if "--config" not in words[:-1] or named is None or named[0] in words:
        return message
    return f"{words[words.index('--config') + 1]}: {message}"


def _invoke(command: click.Command, arguments: Sequence[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name the terminal cannot show must not end a run
            stream.reconfigure(errors="replace")
    if "_KINFED_COMPLETE" in os.environ:
        try:
            command.main(list(arguments), prog_name="kinfed")
        except SystemExit as end:
            raise click.exceptions.Exit(end.code if isinstance(end.code, int) else DONE) from None
    with command.make_context("kinfed", list(arguments)) as context:
        command.invoke(context)


def _usage(error: click.UsageError) -> str:
    """A command line that cannot be read, in one sentence with the nearest option."""
    message, context = error.format_message().strip().rstrip("."), error.ctx
    message = f"{message[:1].lower()}{message[1:]}"
    if context is None:
        return message
    unknown_command = re.match("no such command '(.+?)'", message)
    if isinstance(error, click.NoSuchOption):
        options = [opt for parameter in context.command.params for opt in parameter.opts if opt.startswith("--")]
        meant = nearest(error.option_name, [*options, "--help"])
        return f"there is no option {error.option_name}; did you mean {meant}? See {context.command_path} --help"
    if unknown_command and isinstance(context.command, click.Group):
        meant = nearest(unknown_command[1], context.command.list_commands(context))
        return f"there is no command {unknown_command[1]!r}; did you mean {meant!r}? See {context.command_path} --help"
    plain = message.replace("not a valid integer range", "not a whole number").replace("not a valid float", "not a number")
    return f"{plain}; see {context.command_path} --help"


def _told(message: str, code: int) -> int:
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(message.split()))
    try:
        sys.stderr.write(f"kinfed: {line}\n")
        sys.stderr.flush()
    except OSError:  # there is nobody to tell
        _close(sys.stderr)
    return code


def _close(stream: IO[str]) -> None:
    """Let the rest of a stream go nowhere, so that Python does not complain at its end."""
    with suppress(OSError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


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


for _command in (commands.demo, commands.theory, commands.weights, commands.personalize, commands.predict):
    app.command(rich_help_panel="Learn with kin")(_command)
for _name, _group in (("data", sites.data_app), ("sketch", sketch.app), ("flower", sites.flower_app)):
    app.add_typer(_group, name=_name, rich_help_panel="Data and sites")
app.add_typer(research.app, name="reproduce", rich_help_panel="Research")
app.command(name="leaderboard", rich_help_panel="Research")(research.leaderboard)
app.command(name="bench", rich_help_panel="Research")(research.bench)
