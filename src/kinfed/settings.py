"""Every choice a user has, once: a record whose fields carry their help text.

The command line's options, the keys of a settings file, the options of a run on Flower, the keyword arguments of
`kinfed.personalize` and the settings a report shows are all read off the fields of `Settings`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

import tomli_w

from kinfed.analysis.metrics import METRICS, metric_named
from kinfed.backends.spec import learner_text
from kinfed.columns import Roles
from kinfed.embedding import KERNELS, MEDIAN, SAMPLINGS, SHIFTS, Kernel
from kinfed.errors import InputError
from kinfed.learners import LEARNERS, Learner
from kinfed.learners.base import AUTO
from kinfed.methods import METHODS
from kinfed.registry import is_known
from kinfed.validation import unknown
from kinfed.weights import RULES

BACKENDS = ("pooled", "sites", "flower")
TASKS = ("auto", "regression", "classification")

THEORY, WEIGHTS, PERSONALIZE, FLOWER = "theory", "weights", "personalize", "flower"
"""Where choices are made: three commands, and the configuration of a run on Flower."""

_TABLES = frozenset({THEORY, WEIGHTS, PERSONALIZE})
_TRAINED = frozenset({PERSONALIZE, FLOWER})
_FITTED = frozenset({WEIGHTS, PERSONALIZE, FLOWER})
_ALL = _TABLES | {FLOWER}

_DATA, _COMPARISON, _TRAINING, _OUTPUT, _SITES = "Data", "Comparison", "Training", "Output", "Sites"


def choice(
    default: Any,
    text: str,
    panel: str = _TRAINING,
    on: Collection[str] = _ALL,
    *,
    option: str | None = None,
    names: Callable[[], Collection[str]] | None = None,
    least: int | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> Any:
    """A field of `Settings`.

    Parameters
    ----------
    default : any
        A mapping stands for options by name.
    text : str
        Help, in a sentence or two.
    panel : str
        The part of a help page it stands in.
    on : collection of str
        Where it can be chosen.
    option : str, optional
        Its name there, where it is not that of the field with dashes.
    names : callable, optional
        The names that are valid, asked for whenever one is checked.
    least : int, optional
        The smallest value of a number.
    otherwise : mapping from a place to another default, optional
    """
    told = {
        "help": text,
        "panel": panel,
        "on": frozenset(on),
        "option": option,
        "names": names,
        "least": least,
        "otherwise": dict(otherwise or {}),
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=told)
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Settings:
    """Every choice of a run.

    A field ``test_size`` is the option ``--test-size`` of a command and the key ``test-size`` of a settings file and of a
    configuration of Flower, where empty text means none.
    """

    data: str = choice(
        "", "A table, a folder of tables, LEAF JSON, or .npz. Deployed sites name their own data instead.", _DATA
    )
    target: str | None = choice(None, "Column to predict.", _DATA)
    agent: str | None = choice(None, "Column that tells agents apart; none where every agent has a file of its own.", _DATA)
    groups_column: str | None = choice(
        None,
        "Column with a known group, the same in all rows of an agent; it is no feature.",
        _DATA,
        _TABLES,
        option="groups",
    )
    leave_out: tuple[str, ...] = choice((), "Column not to use, such as an identifier.", _DATA)
    columns: Mapping[str, str] = choice(
        {}, "What a column is, where kinfed finds something else: name=number, category, date, boolean or ignore.", _DATA
    )
    encoding: str = choice(
        "auto", "How a text file is written, such as latin-1; auto: UTF-8, else Windows-1252, which is said.", _DATA
    )
    group_by: str | None = choice(
        None,
        "Column of labels, such as patients, whose rows stay on one side of every split; it is no feature.",
        _DATA,
        _FITTED,
    )
    time: str | None = choice(
        None,
        "Column of times, numbers or dates: the latest rows of every agent are tested on; it is no feature.",
        _DATA,
        _TRAINED,
    )
    sample_weight: str | None = choice(
        None, "Column that tells how much a row counts in training, above zero; it is no feature.", _DATA, _FITTED
    )
    test_size: float = choice(0.2, "Share of every agent's rows to test on; 0 trains on all of them.", _DATA, _TRAINED)
    standardise: bool = choice(True, "Give every column mean 0 and variance 1 over all agents.", _DATA, _FITTED)
    robust: bool = choice(
        True,
        "Scales that one agent cannot move, bounded influence of far cells, and agents in other units set aside; without "
        "it columns are standardised plainly, and everybody is taken as it is.",
        _DATA,
        _FITTED,
    )
    trust: tuple[str, ...] = choice((), "Agent to take in as it is, whatever is found about it.", _DATA, _FITTED)
    task: str = choice(
        "auto",
        "What the outcome is; auto: what those of all sites together are. Say it if the learner is torch, or if some "
        "site may by chance hold whole numbers only and the learner is named.",
        _DATA,
        {FLOWER},
        names=lambda: TASKS,
    )
    rule: str = choice(
        AUTO,
        "How agents are weighed.",
        _COMPARISON,
        names=lambda: RULES,
        otherwise={THEORY: "q-aggregation"},
    )
    options: Mapping[str, Any] = choice({}, "Option of the rule, such as steps=300.", _COMPARISON, option="rule-options")
    shift: str = choice(
        "auto",
        "What agents are compared by: (x, y) with concept, x with covariate; auto takes (x, y) where there is a target.",
        _COMPARISON,
        names=lambda: SHIFTS,
    )
    kernel: Kernel | str = choice(  # noqa: RUF009 (the default is a text)
        "auto", "What makes points alike.", _COMPARISON, names=lambda: ("auto", *KERNELS)
    )
    bandwidth: float | str = choice(
        MEDIAN, "Width of a kernel that is named: a number, or the median distance within agents.", _COMPARISON
    )
    kernel_options: Mapping[str, Any] = choice(
        {}, "Option of the kernel: nu=2.5 of matern, offset=0 of polynomial.", _COMPARISON
    )
    n_features: int = choice(
        500, "Random Fourier features, the numbers an agent shares.", _COMPARISON, option="features", least=1
    )
    sampling: str = choice("iid", "How features are drawn.", _COMPARISON, names=lambda: SAMPLINGS)
    constant: float = choice(1.0, "The unknown absolute constant of the bound.", _COMPARISON, {THEORY})
    folds: int = choice(10, "Every agent sets one such part of its rows aside at a time.", _COMPARISON, {THEORY}, least=3)
    level: float = choice(0.95, "Confidence of the intervals.", _COMPARISON, {THEORY})
    method: str = choice(
        AUTO,
        "The way to personal models (auto: weighted if a rule is given, else stacked).",
        on=_TRAINED,
        names=lambda: METHODS,
    )
    learner: str = choice(
        AUTO,
        "What is trained (auto: by the outcome), or the import path of a scikit-learn estimator where rows are pooled.",
        names=lambda: (AUTO, *LEARNERS),
    )
    learner_options: Mapping[str, Any] = choice({}, "Option of the learner, such as penalty=0.1.", on=_FITTED)
    baselines: bool = choice(True, "Train learning alone and one common model too, to compare with.", on=_TRAINED)
    metric: tuple[str, ...] = choice((), "Metric of the headline; the first leads.", on=_TRAINED, names=lambda: METRICS)
    repeats: int = choice(
        1,
        "Splits, weights and trainings; scores are means over them, models are those of the first.",
        on={PERSONALIZE},
        least=1,
    )
    backend: str = choice("pooled", "Where the rows are.", on={PERSONALIZE}, names=lambda: BACKENDS)
    seed: int = choice(0, "Equal seeds give equal results.", least=0)
    agents: int = choice(1, "How many sites to wait for, as long as a phase may take.", _SITES, {FLOWER}, least=1)
    seconds: float = choice(600.0, "Time limit of every phase and round; whoever is late is left out.", _SITES, {FLOWER})
    quorum: float = choice(0.5, "Share of all sites that must still be there, else the run fails.", _SITES, {FLOWER})
    out: str = choice(
        "results", "Folder for the results; on the server, if relative, where the SuperLink was started.", _OUTPUT
    )
    allow_rows: bool = choice(
        False,
        "Write models even if they remember rows, as nearest neighbours and trees of small leaves do.",
        _OUTPUT,
        {PERSONALIZE},
    )
    checkpoint: str | None = choice(
        None,
        "Folder for checkpoints, on the server: a run that was killed goes on from it.",
        _OUTPUT,
        {FLOWER},
    )

    def __post_init__(self) -> None:
        # What a choice that was left open means is the same everywhere, so it is settled here.
        if self.method == AUTO:
            object.__setattr__(self, "method", "stacked" if self.rule == AUTO and not self.options else "weighted")
        if self.rule == AUTO:
            object.__setattr__(self, "rule", "calibrated")

    @property
    def roles(self) -> Roles:
        """Which columns of a table are no features."""
        return Roles(self.agent, self.target, self.group_by, self.time, self.sample_weight)

    @property
    def shown_options(self) -> dict[str, Any]:
        """The rule's options without the labels of groups, of which there is one for every agent."""
        return {name: value for name, value in self.options.items() if name != "groups"}

    def telling(self, learner: Learner) -> dict[str, str]:
        """What tells two runs apart, as texts."""
        apart = {
            "metric",
            "repeats",
            "data",
            "agents",
            "seconds",
            "quorum",
            "out",
            "checkpoint",
            "learner",
            "learner_options",
            "options",
        }
        apart.add("allow_rows")  # it says what is written, not what is found
        told = {one.name: repr(getattr(self, one.name)) for one in fields(self) if one.name not in apart}
        options = {name: getattr(value, "tolist", lambda value=value: value)() for name, value in self.options.items()}
        return {**told, "options": repr(sorted(options.items())), "learner": learner_text(learner)}

    def chosen(self, place: str) -> dict[str, Any]:
        """What was chosen, by the names options have there, in types TOML has; what is unset is not there."""
        found = {}
        for name, one in options_of(place).items():
            value = getattr(self, one.name)
            if isinstance(value, Mapping):
                value = {key: _plain(part) for key, part in value.items() if key != "groups"}
            if value not in (None, "", (), {}):
                found[name] = _plain(value)
        return found

    def shown(self, place: str) -> dict[str, str]:
        """The same as texts, for people."""
        flat: dict[str, str] = {}
        for name, value in self.chosen(place).items():
            parts = {f"{name}, {key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
            flat |= {key: one if isinstance(one, str) else toml_value(one) for key, one in parts.items()}
        return flat

    def command(self, place: str) -> str:
        """The command that repeats the run, with every choice that is not the usual one."""
        usual, words = type(self)().chosen(place), ["kinfed", place]
        for name, value in self.chosen(place).items():
            if name == "data":
                words.insert(2, value)
            elif isinstance(value, dict):
                words += [part for key, one in value.items() for part in (f"--{name[:-1]}", f"{key}={toml_value(one)}")]
            elif isinstance(value, bool):
                words += [] if value == usual.get(name) else [f"--{'' if value else 'no-'}{name}"]
            elif value != usual.get(name) or name == "out":
                words += [
                    part for one in (value if isinstance(value, list) else [value]) for part in (f"--{name}", str(one))
                ]
        return shlex.join(words)

    @classmethod
    def read(cls, place: str, given: Mapping[str, Any]) -> Self:
        """Settings from options by their names there, as a file or a configuration holds them; a mistake is named."""
        known = options_of(place)
        found: dict[str, Any] = {}
        for name, value in given.items():
            # Flower flattens a table of options into names with a point.
            table, _, key = name.partition(".")
            if key and table in known:
                found.setdefault(known[table].name, {})[key] = value
                continue
            if name not in known:
                raise unknown("option", name, known)
            found[known[name].name] = checked_value(name, known[name], value)
        return cls(**found)


def options_of(place: str) -> dict[str, Field[Any]]:
    """The fields of `Settings` that can be chosen there, by the names they have."""
    return {
        one.metadata["option"] or one.name.replace("_", "-"): one for one in fields(Settings) if place in one.metadata["on"]
    }


def default_of(one: Field[Any], place: str) -> Any:
    """What a field is there unless it is chosen."""
    usual = one.default if one.default is not MISSING else {}
    return one.metadata["otherwise"].get(place, usual)


def checked_value(name: str, one: Field[Any], value: Any) -> Any:
    """A value as its field takes it; raise if it has another type, or is a name nobody knows."""
    usual, names = default_of(one, ""), one.metadata["names"]
    if isinstance(usual, tuple):
        parts = value.split(",") if isinstance(value, str) else value
        found = tuple(str(part).strip() for part in parts if str(part).strip())
        return tuple(metric_named(part).name for part in found) if one.name == "metric" else found
    if value == "" and usual is None:
        return None
    wanted: Any = str if usual is None else Mapping if isinstance(usual, dict) else type(usual)
    if (wanted is float and type(value) is int) or one.name == "bandwidth":
        return value
    if isinstance(value, bool) != (wanted is bool) or not isinstance(value, wanted):
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Mapping: "a table"}
        raise InputError(f"option {name} must be {words[wanted]}, got {value!r}")
    # An app may make learners of names of its own.
    if names is not None and one.name != "learner" and value != usual and not is_known(value, names()):
        raise InputError(f"{unknown(name, value, names())} (one of {', '.join(names())})")
    least = one.metadata["least"]
    if least is not None and value < least:
        raise InputError(f"option {name} must be at least {least}, got {value!r}")
    return value


def toml_value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def _plain(value: Any) -> Any:
    """A value in a type that TOML has; a kernel or a learner as it prints."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    plain = value.item() if hasattr(value, "item") else value
    return plain if isinstance(plain, bool | int | float | str | dict) else repr(plain)
