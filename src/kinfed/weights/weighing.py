"""From agents to weights: the one list of rules, and how a target solves its own row from sketches and its own points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kinfed.backends.agents import Agents, Places, Question, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.sketches import Sketches, SketchStack
from kinfed.backends.wire import ArraySpec, Message
from kinfed.checkpoint import NOWHERE, Store
from kinfed.errors import InputError
from kinfed.learners.base import Learner
from kinfed.learners.inputs import renormalised
from kinfed.progress import Progress
from kinfed.registry import Registry
from kinfed.validation import Array, check_options, short_text
from kinfed.weights.calibration.family import Calibration
from kinfed.weights.geometry import Geometry, geometry_at, pooled_geometry, sketch_messages
from kinfed.weights.result import CLOSED_FORM, Evidence, Weights, weights_of

LEARNS_ALONE = "unlike all others: it learns alone"

# A solved row is on the simplex up to rounding.
_SIMPLEX = 1e-6


@dataclass(frozen=True)
class Rule:
    """A weight rule: its function, what it needs beyond a geometry, and when to use it.

    Attributes
    ----------
    weigh : callable
        From a `Geometry`, or from a `RuleContext` if it needs a learner, and options by name, to `Weights`.
    needs : frozenset of str
        "groups": a label for each agent, as the option ``groups``. "learner": it trains models, and asks agents for what it
        wants to know. "embeddings": it compares agents in several ways.
    summary : str
    """

    weigh: Callable[..., Weights]
    needs: frozenset[str]
    summary: str

    @property
    def trains(self) -> bool:
        """Whether models are trained to find the weights."""
        return "learner" in self.needs


RULES: Registry[Rule] = Registry("rule")
"""Weight rules by name (`kinfed.weights` has the list), read whenever one is asked for."""


def geometric_rules() -> tuple[str, ...]:
    """Names of the rules that need no more than a geometry, and groups: those that train nothing."""
    return tuple(name for name, rule in RULES.items() if not rule.trains)


def weigh(geometry: Geometry, rule: str = "q-aggregation", **options: Any) -> Weights:
    """Weights of every target of `geometry` by the rule of that name.

    Parameters
    ----------
    geometry : Geometry
        From `explicit_geometry`, `kernel_geometry`, `moment_geometry` or `sketch_geometry`.
    rule : str
        A key of `RULES` that trains nothing.
    **options
        The rule's own options, and what it needs, such as ``groups`` for "oracle".

    Examples
    --------
    >>> import numpy as np, kinfed
    >>> rng = np.random.default_rng(0)
    >>> points = [rng.standard_normal((30, 5)) + 3 * (k % 2) for k in range(6)]
    >>> geometry = kinfed.explicit_geometry(points)
    >>> kinfed.weigh(geometry, "similarity-test").matrix.round(2)[0]
    array([0.33, 0.  , 0.33, 0.  , 0.33, 0.  ])
    """
    if not isinstance(geometry, Geometry):
        raise InputError(f"weigh needs a Geometry, such as explicit_geometry(points), got {type(geometry).__name__}")
    chosen = RULES[rule]
    if chosen.trains:
        raise InputError(f"rule {rule!r} trains models, and a geometry has no rows to train on; use collaboration_weights")
    check_rule_options(rule, options)
    # A rule goes by the name it is registered under, whatever its function calls itself.
    return replace(chosen.weigh(geometry, **options), rule=rule)


def check_rule_options(rule: str, options: dict[str, Any]) -> None:
    """Raise unless the rule takes these options, and all it needs is among them."""
    chosen = RULES[rule]
    if "groups" in chosen.needs and options.get("groups") is None:
        raise InputError(f"rule {rule!r} needs groups; pass groups=...")
    check_options(rule, chosen.weigh, options, given=1)


def weigh_agents(
    agents: Agents,
    rule: str,
    learner: Learner,
    options: Mapping[str, Any] | None = None,
    *,
    targets: Places | None = None,
    progress: Progress | None = None,
    known: Calibration | None = None,
    store: Store = NOWHERE,
) -> Weights:
    """Weights of the targets, all agents by default, by a rule of `RULES`.

    Quiet agents (`TrainingSpec.quiet`) are as if they were not there: they keep to themselves, and nobody listens to them.

    Parameters
    ----------
    agents : Agents
    rule : str
    learner : Learner
        What will be trained; rules that judge models train it.
    options : mapping, optional
        Of the rule; ``groups`` has a label for every agent, in order.
    targets : array of shape (T,), optional
    progress : callable, optional
    known : Calibration, optional
        What the federation chose before: nothing is judged again.
    store : Store
        For a rule that trains.
    """
    given = dict(options or {})
    check_rule_options(rule, given)
    spec = agents.spec
    wanted = np.arange(len(spec.names)) if targets is None else np.asarray(targets, dtype=np.int64)
    if not spec.quiet:
        found = _weighed(RuleContext(rule, agents, learner, wanted, progress, known, store), given)
        return replace(found, matrix=spec.heard(found.matrix, wanted))
    others, places = agents.setting_aside(spec.quiet)
    asking = np.flatnonzero(np.isin(places, np.setdiff1d(wanted, list(spec.quiet))))
    if "groups" in given:
        labels = list(given["groups"])
        given["groups"] = [labels[k] for k in places]
    solved = None
    if len(asking):
        chosen = None if known is None else known.among(places)
        solved = _weighed(RuleContext(rule, others, learner, asking, progress, chosen, store), given)
    found = beside_quiet(solved, rule, spec, wanted, places)
    return replace(found, matrix=spec.heard(found.matrix, wanted))


def _weighed(context: RuleContext, options: Mapping[str, Any]) -> Weights:
    """Weights of the targets by a rule whose options were checked."""
    if RULES[context.rule].trains:
        return RULES[context.rule].weigh(context, **options)
    return context.agents.ask(OwnWeights(context.rule, options, context.targets, usual_sketches(context.agents)))


def beside_quiet(solved: Weights | None, rule: str, spec: TrainingSpec, targets: Places, places: Places) -> Weights:
    """Weights of all targets: quiet ones keep to themselves, and nobody listens to them.

    Parameters
    ----------
    solved : Weights, optional
        Of the other targets, among agents that have these `places` among all.
    rule : str
    spec : TrainingSpec
        Of all agents.
    targets : array of shape (T,)
    places : array of int
    """
    count, calibration = len(spec.names), None
    matrix, distances = np.eye(count)[targets], np.full((len(targets), count), np.nan)
    nulls, numbers, stop = distances.copy(), np.full((len(targets), 4), np.nan), [LEARNS_ALONE] * len(targets)
    if solved is not None:
        row_of = {t: row for row, t in enumerate(targets.tolist())}
        rows = np.array([row_of[int(places[t])] for t in solved.targets])
        matrix[np.ix_(rows, places)] = solved.matrix
        distances[np.ix_(rows, places)] = solved.evidence.squared_distances
        nulls[np.ix_(rows, places)] = solved.evidence.null_means
        told = solved.risk, solved.objective, solved.gap, solved.evidence.effective_dimension
        numbers[rows] = np.column_stack(told)
        for row, why in zip(rows.tolist(), solved.stop, strict=True):
            stop[row] = why
        calibration = solved.calibration
        if calibration is not None and len(places) < count:
            calibration = calibration.beside(places, count)
    evidence = Evidence(distances, nulls, numbers[:, 3])
    known = (spec.names, spec.sizes, *numbers[:, :3].T, tuple(stop), evidence, calibration)
    return Weights(matrix, rule, targets, *known)


def without_agents(weights: Weights, lost: Mapping[int, str]) -> Weights:
    """No weight on agents that are lost, whatever the rule gave them; a row that has none left stays with its target."""
    if not lost:
        return weights
    heard = renormalised(weights.matrix, ~np.isin(np.arange(len(weights.names)), list(lost)))
    own = np.eye(len(weights.names))[weights.targets]
    return replace(weights, matrix=np.where(heard.any(axis=1, keepdims=True), heard, own))


@dataclass(frozen=True, eq=False)
class RuleContext:
    """What a rule that trains models is given.

    Attributes
    ----------
    rule : str
        The name it goes by.
    agents : Agents
        Whom it asks, with the ways to compare them; the seed is theirs.
    learner : Learner
        What will be trained with the weights.
    targets : array of shape (T,)
        The agents weights are wanted for.
    progress : callable, optional
    known : Calibration, optional
        What the federation chose before, for an agent that comes later.
    store : Store
        Where finished pieces are kept, for a run that is killed and started again.
    """

    rule: str
    agents: Agents
    learner: Learner
    targets: Places
    progress: Progress | None = None
    known: Calibration | None = None
    store: Store = NOWHERE

    def report(self, what: str, done: int, total: int) -> None:
        """Tell how far the work is."""
        if self.progress is not None:
            self.progress(what, done, total)

    def weights(
        self,
        matrix: Array,
        objective: Array | None = None,
        gap: Array | None = None,
        stop: Sequence[str] | None = None,
        calibration: Calibration | None = None,
    ) -> Weights:
        """The result of the rule: its matrix (T, B), with the unbiased risk and the evidence of the usual view."""
        nothing = np.full(len(self.targets), np.nan)
        found = SolvedRows(
            matrix,
            nothing if objective is None else objective,
            nothing.copy() if gap is None else gap,
            (CLOSED_FORM,) * len(matrix) if stop is None else tuple(stop),
            calibration,
        )
        return self.agents.ask(OwnWeights(self.rule, {}, self.targets, usual_sketches(self.agents), found))


def usual_sketches(agents: Agents) -> SketchStack | None:
    """Everybody's sketches, where rows are at sites; where they are here, points are compared themselves."""
    return agents.ask(Sketches()) if agents.rows is None else None


class SolvedRows(NamedTuple):
    """Rows of weights (T, B) that were found already, and how."""

    matrix: Array
    objective: Array
    gap: Array
    stop: tuple[str, ...]
    calibration: Calibration | None


@dataclass(frozen=True, eq=False)
class OwnWeights(Question[Weights]):
    """Weights of some targets by a rule that needs no more than a geometry, and groups; or the evidence for rows found.

    A target that does not answer keeps to itself.

    Attributes
    ----------
    rule : str
    options : mapping
    targets : array of shape (T,)
    stack : SketchStack, optional
        Everybody's sketches, where rows are at sites.
    found : SolvedRows, optional
        Rows of a rule that trains; targets are asked how far everybody is, which is told with any row.
    """

    rule: str
    options: Mapping[str, Any]
    targets: Places
    stack: SketchStack | None = None
    found: SolvedRows | None = None

    name = "own-weights"
    phase = "weights"
    follows = "it learns alone"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        """The rule, and everybody's sketches in the usual view."""
        stack, options = self._stack, dict(self.options)
        if "groups" in options:
            labels = list(options["groups"])
            options["groups"] = [labels[k] for k in stack.present]
        # Learning alone costs nothing to weigh.
        asked = {"rule": self.rule if self.found is None else "local", "options": options}
        return sketch_messages(spec, stack, self.targets, [0], asked)

    @property
    def _stack(self) -> SketchStack:
        if self.stack is None:
            raise AssertionError("sites weigh everybody's sketches: ask for them first")
        return self.stack

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        """The own row, how it was found, and how far everybody is."""
        found = weigh(geometry_at(site, asked, 0), asked.settings["rule"], **asked.settings["options"])
        numbers = [found.risk[0], found.objective[0], found.gap[0], found.evidence.effective_dimension[0]]
        arrays = {"row": found.matrix[0], "squared distances": found.evidence.squared_distances[0]}
        return Message({"stop": found.stop[0]}, {**arrays, "numbers": np.array(numbers)})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        """A weight and a distance for every agent, and four numbers."""
        row = ArraySpec((len(spec.names) - len(asked.settings["absent"]),))
        return {"row": row, "squared distances": row, "numbers": ArraySpec((4,), gaps=True)}

    def fault(self, spec: TrainingSpec, place: int, asked: Message, answer: Message) -> str | None:
        """The row must be on the simplex, and the effective dimension one that points can have."""
        short_text(answer.settings["stop"])
        dimension, most = answer.arrays["numbers"][3], spec.embeddings[0].features.n_features
        if not 1 <= dimension <= most:
            return f"its effective dimension is {dimension:g}, outside 1 to {most}"
        return off_simplex(answer.arrays["row"])

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> Weights:
        """One row below the other."""
        stack, targets = self._stack, self.targets
        matrix = np.eye(len(spec.names))[targets]
        numbers, distances = np.full((len(targets), 4), np.nan), np.full(matrix.shape, np.nan)
        stop = ["no answer: it keeps to itself"] * len(targets)
        for row, t in enumerate(targets.tolist()):
            if t in answers:
                told = answers[t]
                matrix[row] = 0.0
                matrix[row, stack.present] = told.arrays["row"]
                distances[row, stack.present] = told.arrays["squared distances"]
                numbers[row], stop[row] = told.arrays["numbers"], str(told.settings["stop"])
        variance = stack.mean_variance(spec.sizes)
        solved, risk = SolvedRows(matrix, numbers[:, 1], numbers[:, 2], tuple(stop), None), numbers[:, 0]
        if self.found is not None:
            solved = self.found
            apart = solved.matrix[:, stack.present] @ stack.means[0] - stack.mean_of(targets)
            own = solved.matrix[np.arange(len(targets)), targets]
            risk = np.square(apart).sum(axis=1) + (2 * own - 1) * variance[targets]
        evidence = Evidence(distances, variance[targets][:, None] + variance, numbers[:, 3])
        return Weights(
            rule=self.rule,
            targets=targets,
            names=spec.names,
            sizes=spec.sizes,
            risk=risk,
            evidence=evidence,
            **solved._asdict(),
        )

    def pooled(self, agents: PooledAgents) -> Weights:
        """All targets at once, from the points themselves."""
        geometry = pooled_geometry(agents, 0, self.targets)
        if self.found is not None:
            return weights_of(geometry, self.rule, *self.found)
        return weigh(geometry, self.rule, **self.options)


def off_simplex(rows: Array) -> str | None:
    """Weights must be no less than zero and sum to one."""
    bad = (rows < -_SIMPLEX).any() or (np.abs(rows.sum(axis=-1) - 1) > _SIMPLEX).any()
    return "its weights are not on the simplex" if bad else None
