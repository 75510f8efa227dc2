"""From a federation to weights: how agents are compared, what a rule is given, and what must be checked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfed.embedding import Embedding, Scale, alternative_views, common_scale, own_scale, scaled_embedding
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner, Task, make_learner
from kinfed.progress import Progress
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights, explicit_geometry, weigh


@dataclass(frozen=True)
class Comparison:
    """How agents are to be compared, as a user asks for it; see `kinfed.choose_embedding`."""

    kernel: Kernel | str = "auto"
    shift: str = "auto"
    n_features: int = 500
    sampling: str = "iid"
    seed: int = 0

    def embeddings(self, prepared: Federation, task: Task, rule: str) -> tuple[Embedding, ...]:
        """The embedding of numeric data, and for a rule that chooses among several, all of them, the usual one first."""
        answers = [own_scale(agent, labels=task == "classification") for agent in prepared]
        return self.embeddings_at(common_scale(prepared.dim, answers), rule)

    def embeddings_at(self, scale: Scale, rule: str) -> tuple[Embedding, ...]:
        """The same, from the agents' answers alone."""
        several = "embeddings" in RULES[one_of(rule, RULES, "rule")].needs and isinstance(self.kernel, str)
        views = alternative_views(scale, self.shift) if several else (None,)
        return tuple(
            scaled_embedding(
                scale,
                kernel=self.kernel,
                shift=self.shift,
                n_features=self.n_features,
                sampling=self.sampling,
                seed=self.seed,
                view=view,
            )
            for view in views
        )


def weigh_federation(
    prepared: Federation,
    embeddings: Sequence[Embedding],
    rule: str,
    learner: Learner,
    options: Mapping[str, Any] | None = None,
    groups: ArrayLike | None = None,
    targets: list[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weights:
    """Weights of numeric data under embeddings that are chosen already; see `collaboration_weights`."""
    first = embeddings[0]
    points = {agent.name: first(agent) for agent in prepared}
    geometry = explicit_geometry(points, norm_bound=first.norm_bound, targets=targets)
    chosen = rule_options(prepared, rule, options, groups)
    # What a rule asks for beyond the geometry; its own options come from the user.
    context = {"federation": prepared, "learner": learner, "embeddings": embeddings, "seed": seed, "progress": progress}
    asked = signature(RULES[rule].weigh).parameters
    return weigh(geometry, rule, **{name: value for name, value in context.items() if name in asked} | chosen)


def learner_for(train: Federation, learner: str | Learner | Any) -> Learner:
    """The learner; a network asked for by name predicts numbers where the target is floating point, else classes."""
    y = train[0].y
    if isinstance(learner, str) and learner == "torch" and y is not None and y.dtype.kind == "f":
        return make_learner("torch", task="regression")
    return make_learner(learner)


def check_target(train: Federation, task: Task) -> None:
    """A regression needs numbers and a classification classes, and says so before anything is computed."""
    for agent in train:
        if agent.y is None:
            continue
        kind = agent.y.dtype.kind
        if task == "regression" and kind not in "fiub":
            raise InputError(f"the target of agent {agent.name} is not a number; for labels use learner 'logistic'")
        if task == "classification" and kind == "f" and (broken := agent.y[agent.y != np.round(agent.y)]).size:
            raise InputError(
                f"the target of agent {agent.name} holds {broken[0]:g}, which is no class; for numbers use learner 'ridge'"
            )


def rule_options(
    prepared: Federation, rule: str, options: Mapping[str, Any] | None, groups: ArrayLike | None = None
) -> dict[str, Any]:
    """The options of a rule, and the group labels if it needs them."""
    chosen = dict(options or {})
    if "groups" in RULES[one_of(rule, RULES, "rule")].needs:
        known = prepared.groups if groups is None else groups
        if known is None:
            raise InputError(f"rule {rule!r} needs groups; pass groups=... or give the federation groups")
        chosen["groups"] = known
    return chosen
