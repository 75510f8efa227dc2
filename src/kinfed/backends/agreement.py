"""How agents that have never met come to an agreement: what the server makes of their answers, one recipe for all.

What a column is, and which task the outcome asks for, it decides for everybody from what all of them told (`handshake`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import ChooseEmbeddings, Task, UndecidedLearner, learner_for_task
from kinfed.backends.audit import Absence
from kinfed.backends.spec import (
    PROTOCOL,
    FederationSpec,
    learner_text,
    preparation_settings,
    read_labels,
)
from kinfed.backends.transport import Transport
from kinfed.backends.wire import ArraySpec, Message, Request, form_fault
from kinfed.data import Preparation, TableSummary
from kinfed.data.column_encoders import MOST_CATEGORIES
from kinfed.data.column_types import CATEGORY, COUNTS, ColumnReading, counts_fault, readings_of
from kinfed.data.scales import GRID, ColumnShapes
from kinfed.data.screening import screened
from kinfed.embedding import LabelTarget, OwnScale, common_scale
from kinfed.errors import InputError
from kinfed.outcomes import OUTCOME_KINDS, class_weights, label_codes
from kinfed.splitting import FOLDS
from kinfed.validation import short_text, whole_number

NUMBERS = "fiub"


@dataclass(frozen=True)
class Introduction:
    """What an agent says of itself."""

    name: str
    place: int
    rows: int
    test_rows: int
    least_rows: int
    columns: tuple[str, ...]
    counts: NDArray[np.int64]
    target: str
    outcome: str

    @classmethod
    def read(cls, reply: Message, learner: Any) -> Introduction | str:
        """The introduction, or why the agent cannot take part."""
        settings = reply.settings
        try:
            if settings["protocol"] != PROTOCOL:
                return f"it speaks version {settings['protocol']} of the messages, this server version {PROTOCOL}"
            if settings["learner"] != learner_text(learner):
                return f"it would train {settings['learner']}, but this federation trains {learner_text(learner)}"
            found = cls(
                name=short_text(settings["name"]),
                place=whole_number(settings["place"], "place"),
                rows=whole_number(settings["rows"], "rows"),
                test_rows=whole_number(settings["test rows"], "test rows"),
                least_rows=whole_number(settings["least rows"], "least rows"),
                columns=tuple(short_text(column) for column in settings["columns"]),
                counts=reply.arrays["counts"],
                target=short_text(settings["target"]),
                outcome=str(settings.get("outcome", OUTCOME_KINDS[0])),
            )
            if found.outcome not in OUTCOME_KINDS:
                return "its outcome is of no known kind"
            wrong = form_fault(reply.arrays, {"counts": ArraySpec((len(found.columns), len(COUNTS)), "int64")})
            if len(set(found.columns)) < len(found.columns) or wrong is not None:
                return wrong or "its columns contradict each other"
            if (wrong := counts_fault(found.counts, found.rows)) is not None:
                return wrong
        except (KeyError, TypeError, ValueError) as error:
            return f"its introduction cannot be read ({type(error).__name__}: {error})"
        if found.rows < 2:
            return f"it has {found.rows} rows to train on, and two are needed to be compared"
        return found


def introductions(transport: Transport, learner: Any) -> dict[str, Introduction]:
    """Who is there: agents by name, in order; their addresses are known from now on."""
    found: dict[str, Introduction] = {}
    for address, reply in sorted(transport.introduce(transport.strangers(), "introduction").items()):
        one = Introduction.read(reply, learner)
        there = transport.channel.reachable()
        if isinstance(one, Introduction) and transport.addresses.get(one.name) in there:
            one = f"an agent of the name {one.name!r} is there already"
        if isinstance(one, str):
            transport.refused.add(address)
            transport.audit.missed(Absence(str(reply.settings.get("name", address)), "introduction", one))
            continue
        found[one.name] = one
        transport.addresses[one.name] = address
        transport.audit.note(f"agent {one.name} is at {address}")
    return dict(sorted(found.items(), key=lambda item: (item[1].place, item[0])))


def agree_on_spec(
    transport: Transport,
    agents: Mapping[str, Introduction],
    learner: Any,
    choose: ChooseEmbeddings,
    standardise: bool,
    seed: int,
    chosen: Mapping[str, str],
    robust: bool,
    trust: Collection[str],
) -> FederationSpec:
    """The recipe of all agents that answer."""
    alike = _alike(transport, agents, learner)
    task = _agreed_task(list(alike.values()), learner)
    learner = learner_for_task(learner, task)
    columns = tuple(dict.fromkeys(column for one in alike.values() for column in one.columns))
    counts = {name: _counts_of(one, columns) for name, one in alike.items()}
    readings = readings_of(columns, counts, [one.rows for one in alike.values()], chosen)
    summaries = _summaries(transport, alike, readings, task)
    labels = None if task == "unsupervised" else task == "classification"
    preparation = Preparation.from_summaries(readings, summaries, standardise, labels=labels, robust=robust)
    told = _scales(transport, {name: alike[name] for name in summaries}, preparation, task, seed)
    scales = {name: _own_scale(reply) for name, reply in told.items()}
    far = {name: reply.arrays["far"] for name, reply in told.items()} if robust else {}
    preparation, screening = screened(preparation, {name: summaries[name] for name in told}, far, trust)
    scale = common_scale(len(preparation.columns), list(scales.values()), preparation.outcome)
    classes = scale.target.classes if isinstance(scale.target, LabelTarget) else None
    return FederationSpec(
        names=tuple(scales),
        sizes=np.array([alike[name].rows for name in scales], dtype=np.int64),
        least=tuple(alike[name].least_rows for name in scales),
        preparation=preparation,
        embeddings=choose(scale),
        task=task,
        learner=learner_text(learner),
        classes=classes,
        seed=seed,
        class_weights=None if classes is None else _class_weights(learner, classes, told),
        aside=tuple(tuple(one.settings["aside"]) if "aside" in one.settings else None for one in told.values()),
        screening=screening,
    )


def _class_weights(learner: Any, classes: NDArray[Any], told: Mapping[str, Message]) -> tuple[float, ...] | None:
    """What rows of each class count, from what everybody told of them."""
    wanted = getattr(learner, "class_weight", None)
    if wanted is None:
        return None
    counts = np.zeros(len(classes), dtype=np.int64)
    for name, reply in told.items():
        if "counts" in reply.settings:
            counts[label_codes(read_labels(reply.settings["classes"]), classes, name)] += reply.settings["counts"]
    return tuple(class_weights(wanted, classes, counts).tolist())


def _alike(transport: Transport, agents: Mapping[str, Introduction], learner: Any) -> dict[str, Introduction]:
    """The agents with the kind of target that most have, and with most of the columns."""
    if not agents:
        reasons = "; ".join(f"{one.agent}: {one.reason}" for one in transport.audit.absences[:3])
        raise InputError(f"no agent can take part ({reasons})" if reasons else "no agent is there; start the sites first")
    held = Counter(column for one in agents.values() for column in one.columns)
    usual = {column for column, count in held.items() if 2 * count >= len(agents)}
    kind = Counter(_target_kind(one) for one in agents.values()).most_common(1)[0][0]
    task = None if isinstance(learner, UndecidedLearner) else learner.task
    if task != "unsupervised" and kind == "no target":
        raise InputError('the agents have no target to learn; name its column, as target = "..."')
    if task == "regression" and kind == "text":
        raise InputError("the target is not a number; for labels use learner 'logistic'")
    found = {}
    for name, one in agents.items():
        wrong = None
        if 2 * len(usual & set(one.columns)) < len(usual):
            odd = sorted(usual - set(one.columns))
            wrong = f"it lacks most of the columns that others have, such as {', '.join(odd[:5])}"
        elif _target_kind(one) != kind:
            wrong = f"its target is {_target_kind(one)}, that of most agents is {kind}"
        if wrong is None:
            found[name] = one
        else:
            transport.refused.add(transport.addresses.pop(name))
            transport.audit.missed(Absence(name, "introduction", wrong))
    return found


def _agreed_task(agents: list[Introduction], learner: Any) -> Task:
    """What is learned: the learner's task, or for one that is not decided on what all outcomes together are."""
    if not isinstance(learner, UndecidedLearner):
        task: Task = learner.task
        return task
    outcomes = {one.outcome for one in agents}
    if outcomes <= {"text", "boolean", "zero-one"}:
        return "classification"
    if outcomes <= {"boolean", "zero-one", "two numbers"}:
        raise InputError(
            "every site holds at most two whole numbers as target, which may be classes or numbers: "
            'set task = "classification" or "regression"'
        )
    return "regression"


def _target_kind(one: Introduction) -> str:
    return "no target" if one.target == "none" else "numbers" if one.target in NUMBERS else "text"


def _counts_of(one: Introduction, columns: tuple[str, ...]) -> NDArray[np.int64]:
    """The counts of the columns of all, of which an agent may not have every one."""
    counts = np.zeros((len(columns), len(COUNTS)), dtype=np.int64)
    counts[[columns.index(column) for column in one.columns]] = one.counts
    return counts


def _summaries(
    transport: Transport, agents: Mapping[str, Introduction], readings: tuple[ColumnReading, ...], task: Task
) -> dict[str, TableSummary]:
    d, categorical = len(readings), {one.column for one in readings if one.kind == CATEGORY}
    several = (d + (task == "regression"),)
    forms = {
        "missing": ArraySpec((d,), "int64"),
        "base": ArraySpec(several, "float64"),
        "at base": ArraySpec(several, "int64"),
        **{f"{part} count": ArraySpec(several, "int64") for part in ("rest", "core")},
        **{f"{part} {what}": ArraySpec(several, "float64") for part in ("rest", "core") for what in ("mean", "squares")},
        "errors": ArraySpec((d,), "float64"),
        "error without": ArraySpec((1,), "float64"),
    }

    def check(name: str, reply: Message) -> str | None:
        wrong = form_fault(reply.arrays, forms)
        if wrong:
            return wrong
        counts, crowded = reply.settings["counts"], frozenset(reply.settings["crowded"])
        if counts.keys() != categorical or any(len(kinds) > MOST_CATEGORIES for kinds in counts.values()):
            return "it does not count the columns of categories"
        if not crowded <= categorical or any(counts[column] for column in crowded):
            return "it counts a crowded column"
        whole = {
            column: sum(whole_number(count, "a count") for count in kinds.values() if isinstance(kinds, dict))
            for column, kinds in counts.items()
        }
        shapes, rows = ColumnShapes.from_arrays(reply.arrays), agents[name].rows
        if min(reply.arrays["missing"].min(), shapes.at_base.min(), shapes.rest.count.min(), shapes.core.count.min()) < 0:
            return "it counts less than nothing"
        if (shapes.core.count > shapes.rest.count).any() or (task == "regression" and shapes.count[-1] != rows):
            return "its counts contradict each other"
        for j, reading in enumerate(readings):
            column = reading.column
            if (column in crowded or not reading.is_used) and 0 <= int(reply.arrays["missing"][j]) <= agents[name].rows:
                continue  # its values are not counted
            present = whole[column] if column in whole else int(shapes.count[j])
            if present + int(reply.arrays["missing"][j]) != agents[name].rows or present < 0:
                return f"column {column} does not add up to {agents[name].rows} rows"
        if (reply.arrays["errors"] < 0).any() or reply.arrays["error without"][0] < 0:
            return "an error is negative"
        return "a sum of squares is negative" if min(shapes.rest.squares.min(), shapes.core.squares.min()) < 0 else None

    request = Request("columns", {"readings": [asdict(one) for one in readings], "task": task})
    replies = transport.ask("columns", dict.fromkeys(agents, request), check)
    told = {name: ColumnShapes.from_arrays(reply.arrays) for name, reply in replies.items()}
    return {
        name: TableSummary(
            reply.arrays["missing"],
            told[name].select(slice(d)).sums,
            told[name],
            {column: Counter(kinds) for column, kinds in reply.settings["counts"].items()},
            frozenset(reply.settings["crowded"]),
            reply.arrays["errors"],
            float(reply.arrays["error without"][0]),
        )
        for name, reply in replies.items()
    }


def _scales(
    transport: Transport, agents: Mapping[str, Introduction], preparation: Preparation, task: Task, seed: int
) -> dict[str, Message]:
    def check(name: str, reply: Message) -> str | None:
        median = reply.settings["median"]
        if median is not None and (type(median) is not float or not 0 < median < np.inf):
            return f"its median distance is {median!r}"
        aside = [whole_number(one, "rows of a fold") for one in reply.settings.get("aside", [0] * FOLDS)]
        if len(aside) != FOLDS or min(aside) < 0 or sum(aside) > agents[name].rows:
            return "the sizes of its folds do not add up"
        if task == "classification":
            labels = reply.settings["classes"]
            kind = "text" if _target_kind(agents[name]) == "text" else "numbers"
            if (labels["type"] == "text") != (kind == "text") or len(read_labels(labels)) > agents[name].rows:
                return "its classes do not fit its target"
            counts = [whole_number(one, "rows of a class") for one in reply.settings.get("counts", ())]
            if counts and (len(counts) != len(read_labels(labels)) or sum(counts) != agents[name].rows):
                return "the rows of its classes do not add up"
        if not preparation.robust:
            return form_fault(reply.arrays, {})
        wrong = form_fault(reply.arrays, {"far": ArraySpec((len(preparation.measured), len(GRID)), "int64")})
        if wrong is not None:
            return wrong
        far = reply.arrays["far"]
        impossible = (far < 0).any() or (far > agents[name].rows).any() or (np.diff(far, axis=1) > 0).any()
        return "its counts of far cells contradict each other" if impossible else None

    request = Request("scale", {"preparation": preparation_settings(preparation), "seed": seed, "task": task})
    return transport.ask("scale", dict.fromkeys(agents, request), check)


def _own_scale(reply: Message) -> OwnScale:
    median = float("nan") if reply.settings["median"] is None else float(reply.settings["median"])
    return OwnScale(median, read_labels(reply.settings["classes"]) if "classes" in reply.settings else None)
