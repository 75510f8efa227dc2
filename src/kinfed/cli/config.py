"""Options in a TOML file: ``--config FILE`` reads them, and every run writes the ones it used to ``settings.toml``.

A key is the name of an option without its dashes, DATA is ``data``, and options of the form NAME=VALUE are tables, such as
``[rule-options]``. What is typed goes before the file, the file before the defaults.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import tomli_w
import typer

import kinfed
from kinfed.errors import InputError
from kinfed.settings import Settings, toml_value

PAIR = "NAME=VALUE"
"""How an option that becomes a table in the file shows its value."""

SETTINGS = "settings.toml"
_NOT_IN_FILES = ("config", "force", "json", "help")


class SettingsError(InputError):
    """A file of options that cannot be read: exit code 2, as for a command line."""


def filled_from_file(context: typer.Context, parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """Make the file's options the defaults of the command; the callback of ``--config``."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **_defaults(path, context.command)}
    return path


def settings_text(settings: Settings, place: str) -> str:
    """A file that ``--config`` reads: every choice of a run."""
    again = f"to run it again: kinfed {place} --config {SETTINGS} --out FOLDER"
    return f"# kinfed {place} of version {kinfed.__version__}; {again}\n{tomli_w.dumps(settings.chosen(place))}"


def pair(text: str) -> tuple[str, Any]:
    """Name and value of NAME=VALUE, the value a TOML one (300, 0.1, true, [8, 8]) and anything else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"{text!r} is not an option; write it as {PAIR}, such as steps=300")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
    return name.strip(), parsed["value"] if list(parsed) == ["value"] else value.strip()


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name most like a mistyped one."""
    candidates = list(valid)
    return (difflib.get_close_matches(name, candidates, n=1, cutoff=0) or candidates)[0]


def _defaults(path: Path, command: click.Command) -> dict[str, Any]:
    """What the file says, by the name of the command's parameter."""
    try:
        loaded = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors may add a mark
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; save it again with that encoding") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; give a TOML file with --config") from None
    keys = _keys(command)
    found: dict[str, Any] = {}
    for key, value in loaded.items():
        if key not in keys:
            raise SettingsError(f"{path}: there is no key {key!r}; did you mean {nearest(key, keys)!r}?")
        found[keys[key].name or ""] = _checked(path, key, keys[key], value)
    return found


def _keys(command: click.Command) -> dict[str, click.Parameter]:
    """The command's parameters by the key they have in a file."""
    found = {}
    for parameter in command.params:
        name = max(parameter.opts, key=len).lstrip("-") if parameter.param_type_name == "option" else parameter.name or ""
        if name not in _NOT_IN_FILES:
            found[name + "s" if parameter.metavar == PAIR else name] = parameter
    return found


def _checked(path: Path, key: str, parameter: click.Parameter, value: Any) -> Any:
    """The value as the command line would have given it, or an error that names key, value and what is expected."""
    if parameter.metavar == PAIR:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{path}: {key} is {toml_value(value)}; write it as a table, [{key}]")
        return [f"{name}={toml_value(one)}" for name, one in value.items()]
    many = bool(getattr(parameter, "multiple", False))
    values = value if many and isinstance(value, list) else [value]
    for one in values:
        shown = "a table" if isinstance(one, Mapping) else toml_value(one)
        expected = _expected(parameter.type, one)
        if expected is not None:
            raise SettingsError(f"{path}: {key} is {shown}; {expected} is expected")
        try:
            parameter.type.convert(one, parameter, None)
        except click.BadParameter as error:
            raise SettingsError(f"{path}: {key} is {shown}; {error.message.rstrip('.')}") from None
    return values if many else value


def _expected(kind: click.ParamType, value: Any) -> str | None:
    """What a value of the wrong type should have been; None if the type is right."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = isinstance(value, str)
    kinds: tuple[tuple[Any, bool, str], ...] = (
        (click.types.BoolParamType, isinstance(value, bool), "true or false"),
        (click.types.IntParamType, number and isinstance(value, int), "a whole number"),
        (click.types.FloatParamType, number, "a number"),
        (click.types.StringParamType | click.Path, text and value.isprintable(), "text in quotes, on one line,"),
        (object, number or text, kind.name),
    )
    return next(None if right else words for one, right, words in kinds if isinstance(kind, one))
