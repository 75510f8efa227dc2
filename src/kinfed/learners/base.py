r"""What a learner is: something that minimises weighted risks for many targets at once.

Row t of a weight matrix asks for the model that minimises :math:`\sum_k w_{tk} \hat R_k(\theta)`, where :math:`\hat R_k` is
the mean loss over the rows of agent k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.backends.agents import Agents, Task, TrainingSpec
from kinfed.backends.spec import learner_text
from kinfed.backends.wire import Arrays
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.progress import Progress
from kinfed.registry import Registry
from kinfed.validation import check_options

Monitor = Callable[[int, Any], None]
"""Called as ``monitor(steps_done, models)``; may end the training by an error of its own, which leaves `fit`."""


@dataclass(frozen=True)
class Extent:
    """How much data there is to learn from; a learner's ``model_operations`` says from it what one model costs.

    Attributes
    ----------
    dim : int
        Columns of X.
    n_agents : int
    n_points : int
        Of all agents together.
    n_classes : int
        Different labels; 0 where the outcome is a number or there is none.
    """

    dim: int
    n_agents: int
    n_points: int
    n_classes: int = 0

    @classmethod
    def of(cls, spec: TrainingSpec) -> Extent:
        """The extent of these agents' rows."""
        classes = 0 if spec.classes is None else len(spec.classes)
        return cls(spec.dim, int((spec.sizes > 0).sum()), int(spec.sizes.sum()), classes)


class Models(Protocol):
    """One trained model per row of the weight matrix.

    Those of a classifier also have `classes`, sorted, and ``predict_proba(row, X)``, probabilities (n, number of classes)
    in that order; those without an outcome have ``score(row, X)``, the mean score per point, higher being better.
    """

    def __len__(self) -> int: ...

    def predict(self, row: int, X: ArrayLike) -> NDArray[Any]:
        """Predictions of the model of that row: numbers, or labels for a classifier."""


class Learner(Protocol):
    """Minimises weighted risks for many targets at once."""

    @property
    def task(self) -> Task:
        """What kind of outcome the learner predicts."""

    def fit(
        self,
        agents: Agents,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> Models:
        """Train one model per row of `weights` (T, B).

        Parameters
        ----------
        agents : Agents
            The B agents; the seed is theirs, and equal seeds give equal models.
        weights : array of shape (T, B)
            Rows on the simplex; an agent of weight zero has no part in that row's model, and is not asked about it. Where
            agents are sites, whoever does not answer is left out: a row is divided by its sum over those who did.
        targets : array of shape (T,), optional
            The agent each row is for, where a learner uses it (early stopping on the target's own rows).
        progress : callable, optional
        checkpoint : path, optional
            A folder: work done is kept there, and a run that was interrupted goes on from it.
        """


@runtime_checkable
class SiteLearner(Learner, Protocol):
    """A learner that also trains where every agent is a site of its own: its models can be sent."""

    def check_sites(self) -> None:
        """Raise `InputError` if, as it is set, it cannot be trained across sites."""

    def pack(self, models: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Models of some rows as arrays, to be sent to an agent or written to a file."""

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> Models:
        """Models from arrays; raise `InputError` if they do not fit."""


@runtime_checkable
class StepwiseLearner(Learner, Protocol):
    """A learner that approaches its minimum step by step, so that start and length of training are choices too."""

    @property
    def length(self) -> int:
        """Epochs, or rounds, of a whole training."""

    def trained_for(
        self, share: float, start: Models | None = None, pull: float = 0.0, decay: float = 0.0
    ) -> StepwiseLearner:
        """The same learner for a share of its length, from other parameters, and never shorter than that.

        `pull` is the strength with which models are pulled back to these parameters, and `decay` that with which they are
        drawn to zero, unless the learner draws them with more.
        """

    def fit(
        self,
        agents: Agents,
        weights: NDArray[np.float64],
        *,
        targets: NDArray[np.int64] | None = None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 1,
    ) -> Models:
        """Train; `monitor` is shown the models every so many epochs, and may end the training by an error of its own."""


def site_learner(learner: Learner) -> SiteLearner:
    """The learner, if it can be trained where every agent is a site of its own; an `InputError` says that it cannot."""
    if not isinstance(learner, SiteLearner):
        raise needs_rows(learner)
    learner.check_sites()
    return learner


def packed(learner: Learner, models: Models, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Models of some rows as arrays; an `InputError` if the learner has no way to write them."""
    if not isinstance(learner, SiteLearner):
        raise InputError(f"models of {type(learner).__name__} cannot be written to a file; it needs pack and unpack")
    return learner.pack(models, rows)


def rows_here(learner: Learner, agents: Agents) -> Federation:
    """All rows, for a learner that needs them in one place; an `InputError` where they are not."""
    if agents.rows is None:
        raise needs_rows(learner)
    return agents.rows


def needs_rows(learner: Learner) -> InputError:
    """What is said where such a learner is to be trained across sites."""
    return InputError(f"{type(learner).__name__} needs all points in one place; across sites use ridge, logistic or torch")


def learner_settings(learner: Learner) -> dict[str, Any]:
    """The learner as values that fit into JSON: its name, the options that differ from the usual, and how it prints.

    Options that are functions or arrays do not fit; whoever reads a model that needs one has to give the learner again.
    """
    options: dict[str, Any] = {}
    code: list[str] = []
    record: Any = learner
    for one in fields(record) if is_dataclass(record) else ():
        value = getattr(record, one.name)
        if not one.init or value is None or one.metadata.get("predicts") is False:
            continue
        if isinstance(value, Mapping) and all(isinstance(part, int | float) for part in value.values()):
            options[one.name] = {str(key): part for key, part in value.items()}
        elif not isinstance(value, bool | int | float | str | tuple):
            code.append(one.name)
        elif value != one.default:
            options[one.name] = list(value) if isinstance(value, tuple) else value
    return {"name": getattr(learner, "name", None), "text": learner_text(learner), "options": options, "code": code}


def read_learner(told: Mapping[str, Any], arrays: Arrays, given: Learner | None, trusted: Sequence[str]) -> Learner:
    """The learner that `learner_settings` told of, or the one that is given in its place.

    Parameters
    ----------
    told : mapping
    arrays : mapping from name to array
        Of its models; those of a scikit-learn estimator hold the estimator itself.
    given : Learner, optional
    trusted : sequence of str
        Types of other packages that a scikit-learn estimator may be made of.
    """
    if given is not None:
        return given
    if told["name"] == "scikit-learn":
        from kinfed.learners.scikit import ScikitLearner

        return ScikitLearner.restored(arrays, trusted)
    if told["name"] not in LEARNERS or told["code"]:
        why = f"{' and '.join(told['code'])} of it cannot be read from a file" if told["code"] else "it has no name here"
        raise InputError(f"the model was trained by {told['text']}, and {why}; pass that learner as learner=...")
    options = {name: tuple(one) if isinstance(one, list) else one for name, one in told["options"].items()}
    return make_learner(told["name"], **options)


@dataclass(frozen=True)
class Plan:
    r"""How a learner is put to work, for those that leave a choice.

    Attributes
    ----------
    warm : bool
        Start from one common model, trained on everybody's rows first, instead of from scratch.
    share : float
        Share of the learner's own number of steps.
    own : float
        Share of that number which follows on the target's own rows alone: fine-tuning.
    pull : float
        :math:`\mu` of a pull :math:`(\mu / 2) |\theta - \theta_0|^2` back to the model that fine-tuning started from.
    decay : float
        :math:`\lambda` of the weight decay :math:`(\lambda / 2) |\theta|^2`, unless the learner's own is more; common
        models have the learner's.
    """

    warm: bool = False
    share: float = 1.0
    own: float = 0.0
    pull: float = 0.0
    decay: float = 0.0

    def __str__(self) -> str:
        begun = f"from {'a common model' if self.warm else 'scratch'}, {self.share:.0%} of the steps"
        after = f", then {self.own:.0%} on own rows" if self.own else ""
        pulled = f", pulled back by {self.pull:g}" if self.pull else ""
        return begun + after + pulled + (f", weight decay {self.decay:g}" if self.decay else "")


USUAL_PLAN = Plan()


def fit_planned(
    learner: Learner,
    agents: Agents,
    weights: NDArray[np.float64],
    plan: Plan,
    *,
    targets: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> Models:
    """Train one model per row of `weights` as planned; see `Learner.fit`."""
    if plan == USUAL_PLAN:
        return fit_for_targets(learner, agents, weights, targets, progress=progress, checkpoint=checkpoint)
    if not isinstance(learner, StepwiseLearner):
        raise InputError(f"{learner!r} has no steps to share out; train it without a plan")

    def kept(name: str) -> Path | None:
        return None if checkpoint is None else checkpoint / name

    start = common_model(learner, agents, checkpoint=kept("common")) if plan.warm else None
    first = learner.trained_for(plan.share, start, decay=plan.decay)
    if not plan.own:
        return fit_for_targets(first, agents, weights, targets, progress=progress, checkpoint=kept("personal"))
    length = learner.trained_for(plan.own).length
    told = (None, None) if progress is None else (_part(progress, 0, length), _part(progress, first.length, 0))
    models = fit_for_targets(first, agents, weights, targets, progress=told[0], checkpoint=kept("personal"))
    # Whoever is lost by now had its part in the models, and others do not hear it any more.
    alone, own = agents.labelled("training on own rows"), np.arange(len(weights)) if targets is None else targets
    last = learner.trained_for(plan.own, models, plan.pull, plan.decay)
    rows = np.eye(len(agents.spec.names))[own]
    return fit_for_targets(last, alone, rows, own, progress=told[1], checkpoint=kept("own"))


def _part(progress: Progress, before: int, after: int) -> Progress:
    """Reports of a part of a training, as reports of the whole."""
    return lambda what, done, total: progress(what, before + done, before + total + after)


def fit_for_targets(
    learner: Learner, agents: Agents, weights: NDArray[np.float64], targets: NDArray[np.int64] | None, **how: Any
) -> Models:
    """Train one model per row of `weights` (T, B), each from the rows of its own target as they are.

    Others learn from an agent's rows with cells held that are too far from everybody's; in its own model nothing is. So an
    agent that has such cells is there twice: once for others, and once for itself.
    """
    spec = agents.spec
    own = [] if targets is None else [int(k) for k in np.unique(targets) if spec.names[k] in spec.screening.held]
    if targets is None or not own:
        return learner.fit(agents, weights, targets=targets, **how)
    count, rows_of = len(spec.names), targets

    def widen(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        wide = np.hstack([rows, np.zeros((len(rows), len(own)))])
        for place, k in enumerate(own):
            mine = np.flatnonzero(rows_of == k)
            wide[mine, count + place], wide[mine, k] = rows[mine, k], 0.0
        return wide

    return learner.fit(agents.with_own_rows(own, widen), widen(weights), targets=targets, **how)


def common_model(learner: Learner, agents: Agents, *, checkpoint: Path | None = None) -> Models:
    """One model of everybody's rows, agents weighted by their size."""
    # A common model belongs to nobody, so nobody's rows can tell when to stop.
    whole = learner.trained_for(1.0) if isinstance(learner, StepwiseLearner) else learner
    shares = agents.spec.heard(agents.spec.sizes[None] / agents.spec.sizes.sum())
    return whole.fit(agents.labelled("common model"), shares, checkpoint=checkpoint)


AUTO = "auto"
"""The name that leaves the learner to the outcome (`kinfed.learners.auto`)."""

LEARNERS: Registry[Callable[..., Learner]] = Registry("learner")
"""Constructors of the learners that have a name (`kinfed.learners` has the list); their arguments are their options."""


def make_learner(learner: str | Learner | Any, **options: Any) -> Learner:
    """Make a learner of a name, of a scikit-learn estimator, or return the learner that is given.

    Parameters
    ----------
    learner : {"ridge", "logistic", "torch"}, Learner, scikit-learn estimator, or import path of one
        An estimator becomes a `ScikitLearner`, and so does one that is made of a path such as
        "sklearn.ensemble.RandomForestClassifier".
    **options
        Options of the constructor.

    Examples
    --------
    >>> make_learner("ridge", penalty=0.1)
    Ridge(penalty=0.1, intercept=True)
    """
    if isinstance(learner, str) and learner == AUTO:
        raise InputError("learner 'auto' follows from the outcome of a federation; name 'ridge' or 'logistic' here")
    if isinstance(learner, str) and is_import_path(learner):
        return make_learner(_imported(learner, options))
    if isinstance(learner, str):
        constructor = LEARNERS[learner]
        check_options(learner, constructor, options)
        return constructor(**options)
    if isinstance(learner, type):
        raise InputError(f"{learner.__name__} is a class; give an instance, {learner.__name__}(...)")
    if hasattr(learner, "fit") and hasattr(learner, "task"):
        if options:
            raise InputError(f"{learner!r} is made already and takes no options, got {', '.join(options)}")
        return learner
    if hasattr(learner, "fit") and hasattr(learner, "get_params"):
        from kinfed.learners.scikit import ScikitLearner  # with scikit-learn, which takes a second to import

        check_options("scikit-learn", ScikitLearner, options, given=1)
        return ScikitLearner(learner, **options)
    raise InputError(
        f"{learner!r} is not a learner; choose one of {', '.join(LEARNERS)}, or give a learner or a scikit-learn estimator"
    )


def is_import_path(name: str) -> bool:
    """Whether a learner is asked for by the import path of an estimator."""
    return "." in name and name not in LEARNERS


def _imported(path: str, options: Mapping[str, Any]) -> Any:
    """The scikit-learn estimator of an import path, made with these options."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"the learner {path} cannot be imported ({error}); give the path of a scikit-learn estimator, such as "
            f"sklearn.ensemble.RandomForestRegressor, or one of {AUTO}, {', '.join(LEARNERS)}"
        ) from None
    if not isinstance(found, type) or not all(callable(getattr(found, one, None)) for one in ("fit", "get_params")):
        raise InputError(f"the learner {path} is no scikit-learn estimator: it is not a class with fit and get_params")
    check_options(name, found, options)
    try:
        return found(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"the learner {path} cannot be made ({error}); give its options as --learner-option") from None
