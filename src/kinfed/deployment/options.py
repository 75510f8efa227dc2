"""Settings of a deployed run: what stands under ``[tool.flwr.app.config]``, read and checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from kinfed.errors import InputError
from kinfed.learners import Learner, make_learner
from kinfed.learners.auto import AutoLearner
from kinfed.learners.base import AUTO, is_import_path
from kinfed.settings import FLOWER, Settings, default_of, options_of, toml_value
from kinfed.weights import RULES

MakeLearner = Callable[[str, str], Any]
"""Makes a learner of its name and the task: ``make_learner("torch", "regression")``."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings in a run's configuration; a mistake is named."""
    settings = Settings.read(FLOWER, config)
    if "groups" in RULES[settings.rule].needs:
        raise InputError(f"rule {settings.rule!r} needs groups, which no site tells; choose another")
    if not 0 <= settings.test_size < 1:
        raise InputError(f"test-size must be a fraction between 0 and 1, such as 0.2, got {settings.test_size}")
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
    if make is not None:
        return make_learner(make(settings.learner, task))
    return usual_learner(settings.learner, task, **settings.learner_options)


def deployed_learner(settings: Settings, make: MakeLearner | None = None) -> Learner | AutoLearner:
    """The learner for the task of the settings; without one, what stands for it until all sites' outcomes are known."""
    if settings.learner == AUTO and settings.task == "auto":
        return AutoLearner(settings.learner_options, lambda task: site_learner_of(settings, task, make))
    return site_learner_of(settings, settings.task, make)


def server_learner_of(settings: Settings, make: MakeLearner | None = None) -> Learner | AutoLearner:
    """The learner on the server, which sees no data: the task has to be said or follow from the learner."""
    if settings.learner == AUTO:
        return deployed_learner(settings, make)
    if settings.task == "auto" and settings.learner not in ("ridge", "logistic"):
        raise InputError(
            f'learner {settings.learner!r} may predict numbers or classes: set task = "regression" or "classification"'
        )
    known = "regression" if settings.task == "auto" else settings.task
    return site_learner_of(settings, "classification" if settings.learner == "logistic" else known, make)


def usual_learner(name: str, task: str, **options: Any) -> Learner:
    """The learner of a name; a network is made for the task, "auto" is what suits it, and others have their own."""
    if is_import_path(name):  # never imported here: whoever starts a run would choose what a site executes
        raise InputError(f"learner {name} needs all points in one place; across sites use ridge, logistic or torch")
    if name == AUTO:
        known: Any = task
        return AutoLearner(options).for_task(known)
    if name == "torch" and task == "regression":
        options = {"task": task, **options}
    return make_learner(name, **options)


def config_text(given: Mapping[str, Any] | None = None) -> str:
    """The lines under ``[tool.flwr.app.config]``, every option with its comment; `given` are values by field name."""
    lines = []
    for name, one in options_of(FLOWER).items():
        value = default_of(one, FLOWER) if given is None or one.name not in given else given[one.name]
        names = one.metadata["names"]
        text = one.metadata["help"] + (f" One of {', '.join(names())}." if names is not None else "")
        lines += [f"# {line}" for line in wrap(text, 116)]
        if isinstance(value, Mapping):  # a table would end the section, so its entries stand as name.key
            lines += [f"{name}.{key} = {toml_value(part)}" for key, part in value.items()] or [f"# {name}.NAME = VALUE"]
        else:
            told = ",".join(value) if isinstance(value, tuple) else "" if value is None else value
            lines.append(f"{name} = {toml_value(told)}")
    return "\n".join(lines) + "\n"


def path_or_none(text: str | None) -> Path | None:
    """A path, with ~ for the home folder; None if there is no text."""
    return Path(text).expanduser() if text else None
