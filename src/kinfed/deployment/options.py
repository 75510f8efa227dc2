"""Settings of a deployed run: what stands under ``[tool.flwr.app.config]``, read and checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from kinfed.errors import InputError
from kinfed.learners import Learner, make_learner
from kinfed.methods import METHODS
from kinfed.settings import TASKS, Settings
from kinfed.validation import one_of
from kinfed.weights import RULES

MakeLearner = Callable[[str, str], Any]
"""Makes a learner of its name and the task: ``make_learner("torch", "regression")``."""


def deployed_fields() -> dict[str, Field[Any]]:
    """The fields of `Settings` that stand in a run's configuration, by the name they have there."""
    return {one.name.replace("_", "-"): one for one in fields(Settings) if one.metadata["deployed"]}


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings in a run's configuration; a mistake is named."""
    known = deployed_fields()
    for name in config:
        if name not in known:
            raise InputError(f"there is no option {name!r} in a run's configuration; there are {', '.join(known)}")
    settings = Settings(**{known[name].name: _value(name, known[name], value) for name, value in config.items()})
    one_of(settings.task, TASKS, "task")
    METHODS[settings.method]  # an unknown name is named
    if "groups" in RULES[settings.rule].needs:
        raise InputError(f"rule {settings.rule!r} needs groups, which no site tells; choose another")
    if not 0 <= settings.test_size < 1:
        raise InputError(f"test-size must be a fraction between 0 and 1, such as 0.2, got {settings.test_size}")
    if settings.agents < 1:
        raise InputError(f"agents, how many to wait for, must be at least 1, got {settings.agents}")
    return settings


def site_learner_of(settings: Settings, task: str, make: MakeLearner | None = None) -> Learner:
    """The learner for a task.

    Parameters
    ----------
    task : str
        "regression", "classification" or "unsupervised".
    make : callable, optional
        The app's own way to make one; by default by name.
    """
    return make_learner(usual_learner(settings.learner, task) if make is None else make(settings.learner, task))


def server_learner_of(settings: Settings, make: MakeLearner | None = None) -> Learner:
    """The learner on the server, which sees no data: the task has to be said or follow from the learner."""
    if settings.task == "auto" and settings.learner not in ("ridge", "logistic"):
        raise InputError(
            f'learner {settings.learner!r} may predict numbers or classes: set task = "regression" or "classification"'
        )
    known = "regression" if settings.task == "auto" else settings.task
    return site_learner_of(settings, "classification" if settings.learner == "logistic" else known, make)


def usual_learner(name: str, task: str) -> Learner:
    """The learner of a name; a network is made for the task, others have their own."""
    return make_learner("torch", task=task) if name == "torch" and task == "regression" else make_learner(name)


def config_text(given: Mapping[str, Any] | None = None) -> str:
    """The lines under ``[tool.flwr.app.config]``, every option with its comment; `given` are values by field name."""
    lines = []
    for name, one in deployed_fields().items():
        value = one.default if given is None or one.name not in given else given[one.name]
        lines += [f"# {line}" for line in one.metadata["help"].splitlines()]
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def path_or_none(text: str) -> Path | None:
    """A path, with ~ for the home folder; None if the text is empty."""
    return Path(text).expanduser() if text else None


def _value(name: str, one: Field[Any], value: Any) -> Any:
    wanted = type(one.default)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise InputError(f"option {name} of a run must be {words[wanted]}, got {value!r}")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in escaped):
            raise InputError(f"{value!r} holds a control character and cannot stand in a configuration")
        return f'"{escaped}"'
    return repr(value)
