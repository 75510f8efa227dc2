"""How agents that have never met come to an agreement: who they are, their columns, their scale, one recipe for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfed.collaboration import Comparison
from kinfed.data import ColumnSums, Preparation
from kinfed.data.rules import MOST_CATEGORIES, TableSummary
from kinfed.embedding import LabelTarget, OwnScale, common_scale
from kinfed.engines.agreement import PROTOCOL, Agreement, learner_text, preparation_settings, read_labels
from kinfed.engines.audit import Absence
from kinfed.engines.conversation import Conversation, fits, short_text, whole_number
from kinfed.engines.messages import Reply, Request
from kinfed.errors import InputError
from kinfed.learners import Learner, Task
from kinfed.learners.remote import Form

NUMBERS = "fiub"


@dataclass(frozen=True)
class Introduction:
    """What an agent says of itself."""

    name: str
    place: int
    rows: int
    test_rows: int
    columns: tuple[str, ...]
    text_columns: frozenset[str]
    target: str

    @classmethod
    def read(cls, settings: Mapping[str, Any], learner: Learner) -> Introduction | str:
        """The introduction, or why the agent cannot take part."""
        try:
            if settings["protocol"] != PROTOCOL:
                return f"it speaks version {settings['protocol']} of the messages, this server version {PROTOCOL}"
            if settings["learner"] != learner_text(learner):
                return f"it would train {settings['learner']}, but this federation trains {learner_text(learner)}"
            found = cls(
                name=short_text(settings["name"]),
                place=whole_number(settings["place"]),
                rows=whole_number(settings["rows"]),
                test_rows=whole_number(settings["test rows"]),
                columns=tuple(short_text(column) for column in settings["columns"]),
                text_columns=frozenset(short_text(column) for column in settings["text columns"]),
                target=short_text(settings["target"]),
            )
            if len(set(found.columns)) < len(found.columns) or not found.text_columns <= set(found.columns):
                return "its columns contradict each other"
        except (KeyError, TypeError, ValueError) as error:
            return f"its introduction cannot be read ({type(error).__name__}: {error})"
        if found.rows < 2:
            return f"it has {found.rows} rows to train on, and two are needed to be compared"
        return found


def introductions(conversation: Conversation, learner: Learner) -> dict[str, Introduction]:
    """Who is there: agents by name, in order; their addresses are known from now on."""
    found: dict[str, Introduction] = {}
    for address, reply in sorted(conversation.introduce(conversation.strangers(), "introduction").items()):
        one = Introduction.read(reply.settings, learner)
        if isinstance(one, Introduction) and one.name in conversation.addresses:
            one = f"an agent of the name {one.name!r} is there already"
        if isinstance(one, str):
            conversation.refused.add(address)
            conversation.audit.missed(Absence(str(reply.settings.get("name", address)), "introduction", one))
            continue
        found[one.name] = one
        conversation.addresses[one.name] = address
        conversation.audit.note(f"agent {one.name} is at {address}")
    return dict(sorted(found.items(), key=lambda item: (item[1].place, item[0])))


def agree_on_recipe(
    conversation: Conversation,
    agents: Mapping[str, Introduction],
    learner: Learner,
    comparison: Comparison,
    rule: str,
    standardise: bool,
) -> Agreement:
    """The agreement of all agents that answer."""
    alike = _alike(conversation, agents, learner)
    columns = next(iter(alike.values())).columns
    categorical = frozenset().union(*(one.text_columns for one in alike.values()))
    summaries = _summaries(conversation, alike, columns, categorical)
    preparation = Preparation.from_summaries(columns, summaries, standardise)
    scales = _scales(conversation, {name: alike[name] for name in summaries}, preparation, learner.task)
    embeddings = comparison.embeddings_at(scale := common_scale(len(preparation.columns), list(scales.values())), rule)
    return Agreement(
        names=tuple(scales),
        sizes=np.array([alike[name].rows for name in scales], dtype=np.int64),
        preparation=preparation,
        embeddings=embeddings,
        task=learner.task,
        learner=learner_text(learner),
        classes=scale.target.classes if isinstance(scale.target, LabelTarget) else None,
        seed=comparison.seed,
    )


def _alike(conversation: Conversation, agents: Mapping[str, Introduction], learner: Learner) -> dict[str, Introduction]:
    """The agents with the columns and the kind of target that most have."""
    if not agents:
        raise InputError("no agent answered; start the agents first, and see the audit log for those that were refused")
    by_columns = Counter(frozenset(one.columns) for one in agents.values())
    usual = by_columns.most_common(1)[0][0]
    kind = Counter(_target_kind(one) for one in agents.values()).most_common(1)[0][0]
    if learner.task != "unsupervised" and kind == "no target":
        raise InputError('the agents have no target to learn; name its column, as target = "..."')
    if learner.task == "regression" and kind == "text":
        raise InputError("the target is not a number; for labels use learner 'logistic'")
    found = {}
    for name, one in agents.items():
        wrong = None
        if frozenset(one.columns) != usual:
            odd = sorted(usual ^ frozenset(one.columns))
            wrong = f"its columns differ from those of most agents in {', '.join(odd[:5])}"
        elif _target_kind(one) != kind:
            wrong = f"its target is {_target_kind(one)}, that of most agents is {kind}"
        if wrong is None:
            found[name] = one
        else:
            conversation.refused.add(conversation.addresses.pop(name))
            conversation.audit.missed(Absence(name, "introduction", wrong))
    return found


def _target_kind(one: Introduction) -> str:
    return "no target" if one.target == "none" else "numbers" if one.target in NUMBERS else "text"


def _summaries(
    conversation: Conversation,
    agents: Mapping[str, Introduction],
    columns: tuple[str, ...],
    categorical: frozenset[str],
) -> dict[str, TableSummary]:
    d = len(columns)
    forms = {
        "missing": Form((d,), "int64"),
        "count": Form((d,), "int64"),
        "mean": Form((d,), "float64"),
        "squares": Form((d,), "float64"),
    }

    def check(name: str, reply: Reply) -> str | None:
        wrong = fits(reply.arrays, forms)
        if wrong:
            return wrong
        counts, crowded = reply.settings["counts"], frozenset(reply.settings["crowded"])
        if counts.keys() != categorical or any(len(kinds) > MOST_CATEGORIES for kinds in counts.values()):
            return "it does not count the columns of categories"
        if not crowded <= categorical or any(counts[column] for column in crowded):
            return "it counts a crowded column"
        whole = {
            column: sum(whole_number(count) for count in kinds.values() if isinstance(kinds, dict))
            for column, kinds in counts.items()
        }
        if (reply.arrays["missing"] < 0).any() or (reply.arrays["count"] < 0).any():
            return "it counts less than nothing"
        for j, column in enumerate(columns):
            if column in crowded and 0 <= int(reply.arrays["missing"][j]) <= agents[name].rows:
                continue  # its values are not counted
            present = whole[column] if column in whole else int(reply.arrays["count"][j])
            if present + int(reply.arrays["missing"][j]) != agents[name].rows or present < 0:
                return f"column {column} does not add up to {agents[name].rows} rows"
        return "a sum of squares is negative" if (reply.arrays["squares"] < 0).any() else None

    request = Request("columns", {"columns": list(columns), "categorical": sorted(categorical)})
    replies = conversation.ask("columns", dict.fromkeys(agents, request), check)
    return {
        name: TableSummary(
            reply.arrays["missing"],
            ColumnSums(reply.arrays["count"], reply.arrays["mean"], reply.arrays["squares"]),
            {column: Counter(kinds) for column, kinds in reply.settings["counts"].items()},
            frozenset(reply.settings["crowded"]),
        )
        for name, reply in replies.items()
    }


def _scales(
    conversation: Conversation, agents: Mapping[str, Introduction], preparation: Preparation, task: Task
) -> dict[str, OwnScale]:
    def check(name: str, reply: Reply) -> str | None:
        median = reply.settings["median"]
        if median is not None and (type(median) is not float or not 0 < median < np.inf):
            return f"its median distance is {median!r}"
        if task == "classification":
            labels = reply.settings["classes"]
            kind = "text" if _target_kind(agents[name]) == "text" else "numbers"
            if (labels["type"] == "text") != (kind == "text") or len(read_labels(labels)) > agents[name].rows:
                return "its classes do not fit its target"
            return fits(reply.arrays, {})
        if _target_kind(agents[name]) != "numbers":
            return fits(reply.arrays, {})
        forms = {"count": Form((1,), "int64"), "mean": Form((1,), "float64"), "squares": Form((1,), "float64")}
        wrong = fits(reply.arrays, forms)
        if wrong is None and (reply.arrays["count"][0] != agents[name].rows or reply.arrays["squares"][0] < 0):
            return "the sums of its target do not add up"
        return wrong

    request = Request("scale", {"preparation": preparation_settings(preparation)})
    replies = conversation.ask("scale", dict.fromkeys(agents, request), check)
    return {name: _own_scale(reply) for name, reply in replies.items()}


def _own_scale(reply: Reply) -> OwnScale:
    median = float("nan") if reply.settings["median"] is None else float(reply.settings["median"])
    if "classes" in reply.settings:
        return OwnScale(median, read_labels(reply.settings["classes"]))
    if not reply.arrays:
        return OwnScale(median, None)
    return OwnScale(median, ColumnSums(reply.arrays["count"], reply.arrays["mean"], reply.arrays["squares"]))
