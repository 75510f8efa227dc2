"""Options of a run on Flower: what stands under ``[tool.flwr.app.config]``, read and checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from kinfed.errors import InputError
from kinfed.learners import LEARNERS, Learner, make_learner
from kinfed.validation import one_of
from kinfed.weights import RULES

TASKS = ("auto", "regression", "classification")

# A run's configuration has no place for group labels.
_RULES = tuple(name for name, rule in RULES.items() if "groups" not in rule.needs)

MakeLearner = Callable[[str, str], Any]
"""Makes a learner of its name and the task: ``make_learner("torch", "regression")``."""


def _option(default: Any, comment: str) -> Any:
    return field(default=default, metadata={"comment": comment})


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for; a field ``test_size`` is the option ``test-size``, and empty text means none."""

    data: str = _option("", "In a simulation: the file or folder with all agents. Deployed nodes name their own data.")
    target: str = _option("", "Column to predict.")
    agent: str = _option("", "Column that tells agents apart; empty where every agent has a file of its own.")
    leave_out: str = _option("", "Columns not to use, separated by commas: identifiers, say.")
    task: str = _option(
        "auto",
        "regression, classification, or auto: numbers with decimals are a regression. Say it if the learner is torch,\n"
        "or if some site may by chance hold whole numbers only.",
    )
    learner: str = _option("ridge", f"What is trained: {', '.join(LEARNERS)}; or what learner.py makes of the name.")
    rule: str = _option("calibrated", f"How agents are weighed: {', '.join(_RULES)}.")
    shift: str = _option("auto", "Compare agents by (x, y): concept; by x: covariate; or auto.")
    n_features: int = _option(500, "Random features, the numbers an agent shares about its data.")
    sampling: str = _option("iid", "How random features are drawn: iid or orthogonal.")
    standardise: bool = _option(True, "Give every column mean 0 and variance 1 over all agents.")
    baselines: bool = _option(True, "Train learning alone and one common model too, to compare with.")
    test_size: float = _option(
        0.2, "Share of every agent's rows to test on, 0 for none; a node may name a test file instead."
    )
    seed: int = _option(0, "Equal seeds give equal results.")
    agents: int = _option(1, "How many agents to wait for, as long as a phase may take.")
    seconds: float = _option(600.0, "Time limit of every phase and round; whoever is late is left out of it.")
    quorum: float = _option(0.5, "Share of the agents asked that must answer, else the run fails.")
    out: str = _option("results", "Folder for the results, on the server; relative to where the SuperLink was started.")
    checkpoint: str = _option(
        "", "Folder for checkpoints, on the server; a killed run that is started again goes on from it."
    )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunOptions:
        """The options in a run's configuration; a mistake is named."""
        known = {option_name(one): one for one in fields(cls)}
        for name in config:
            if name not in known:
                raise InputError(f"there is no option {name!r} in a run's configuration; there are {', '.join(known)}")
        options = cls(**{known[name].name: _value(known[name], value) for name, value in config.items()})
        one_of(options.task, TASKS, "task")
        one_of(options.rule, _RULES, "rule")
        if not 0 <= options.test_size < 1:
            raise InputError(f"test-size must be a fraction between 0 and 1, such as 0.2, got {options.test_size}")
        if options.agents < 1:
            raise InputError(f"agents, how many to wait for, must be at least 1, got {options.agents}")
        return options

    @property
    def unused_columns(self) -> tuple[str, ...]:
        """Columns that are left out."""
        return tuple(name.strip() for name in self.leave_out.split(",") if name.strip())

    def make_learner(self, task: str, make: MakeLearner | None = None) -> Learner:
        """The learner for a task.

        Parameters
        ----------
        task : str
            "regression", "classification" or "unsupervised".
        make : callable, optional
            The app's own way to make one; by default by name.
        """
        return make_learner(usual_learner(self.learner, task) if make is None else make(self.learner, task))

    def server_learner(self, make: MakeLearner | None = None) -> Learner:
        """The learner on the server, which sees no data: the task has to be said or follow from the learner."""
        if self.task == "auto" and self.learner not in ("ridge", "logistic"):
            raise InputError(
                f'learner {self.learner!r} may predict numbers or classes: set task = "regression" or "classification"'
            )
        return self.make_learner("classification" if self.learner == "logistic" else _known(self.task), make)


def usual_learner(name: str, task: str) -> Learner:
    """The learner of a name; a network is made for the task, others have their own."""
    return make_learner("torch", task=task) if name == "torch" and task == "regression" else make_learner(name)


def option_name(one: Field[Any]) -> str:
    """How a field is called in the configuration."""
    return one.name.replace("_", "-")


def config_text(given: Mapping[str, Any] | None = None) -> str:
    """The lines under ``[tool.flwr.app.config]``, every option with its comment; `given` are values by field name."""
    lines = []
    for one in fields(RunOptions):
        value = one.default if given is None or one.name not in given else given[one.name]
        lines += [f"# {line}" for line in one.metadata["comment"].splitlines()]
        lines.append(f"{option_name(one)} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def path_or_none(text: str) -> Path | None:
    """A path, with ~ for the home folder; None if the text is empty."""
    return Path(text).expanduser() if text else None


def _known(task: str) -> str:
    return "regression" if task == "auto" else task


def _value(one: Field[Any], value: Any) -> Any:
    wanted = type(one.default) if one.default is not MISSING else str
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise InputError(f"option {option_name(one)} of a run must be {words[wanted]}, got {value!r}")
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
