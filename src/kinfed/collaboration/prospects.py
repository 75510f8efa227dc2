"""Whose data would help each agent, and everything that was found on the way: prepare, embed, weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import ArrayLike

from kinfed.collaboration.foresight import diagnosis_of, gain_of
from kinfed.collaboration.weighing import Comparison, check_target, learner_for, rule_options, weigh_federation
from kinfed.columns import group_labels
from kinfed.data import Preparation
from kinfed.embedding import Embedding
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.kernels import Kernel
from kinfed.learners import Learner
from kinfed.plotting.evaluation import ProspectPlots
from kinfed.progress import Progress
from kinfed.theory import PredictedGain
from kinfed.validation import one_of
from kinfed.weights import RULES, Weights

if TYPE_CHECKING:
    from kinfed.report import Story


def collaboration_weights(
    train: Federation,
    rule: str = "calibrated",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = "ridge",
    seed: int = 0,
    *,
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    groups: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Whose data would help each agent, and how much.

    Parameters
    ----------
    train : Federation
        Training data; raw tables are prepared first (see `kinfed.Preparation`).
    rule : str
        A key of `kinfed.RULES`.
    kernel, shift, n_features, sampling, seed
        How agents are compared; see `kinfed.choose_embedding`.
    learner : str, Learner or scikit-learn estimator
        What will be trained: rules that judge models train it, others only need to know if the target is a class.
    groups : sequence, optional
        A label per agent for rules that need it; by default those of the federation.
    options : mapping, optional
        Options of the rule, such as ``{"steps": 300}``.
    progress : callable, optional
        Called as ``progress(what, done, total)`` while long work goes on.

    Returns
    -------
    Weights

    Examples
    --------
    >>> import kinfed
    >>> train = kinfed.concept_shift(n_agents=12, n=20, dim=3, spread=0.0, seed=0).train
    >>> weights = kinfed.collaboration_weights(train)
    >>> weights.matrix.shape
    (12, 12)
    """
    return prospect(
        train,
        rule,
        kernel,
        learner,
        seed,
        shift=shift,
        n_features=n_features,
        sampling=sampling,
        groups=groups,
        options=options,
        progress=progress,
    ).weights


@dataclass(frozen=True, eq=False)
class Prospect:
    """Whose data would help each agent, and what that was found from, before any training; made by `kinfed.prospect`.

    Attributes
    ----------
    weights : Weights
        Who would listen to whom.
    learner : Learner
        What would be trained.
    train : Federation
        The prepared training data.
    preparation : Preparation
        The rules that prepared it.
    embeddings : tuple of Embedding
        How agents were compared; the usual way first.
    rule_options : mapping
        Options of the rule, as they were given.
    seed : int
    """

    weights: Weights
    learner: Learner
    train: Federation
    preparation: Preparation
    embeddings: tuple[Embedding, ...]
    rule_options: Mapping[str, Any]
    seed: int

    maker: ClassVar[str] = "prospect"

    @property
    def choices(self) -> list[str]:
        """What was done to the data, how agents were compared and which rule weighed them, in sentences."""
        return choices_of(self.weights, self.preparation, self.embeddings, self.rule_options, self.learner)

    @property
    def plot(self) -> ProspectPlots:
        """Figures: weights, map, network, effective_sample_size, why, calibration."""
        return ProspectPlots(self)

    def report(
        self,
        folder: str | Path,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write a page a person can read: ``index.html`` in `folder`, complete in itself.

        Parameters
        ----------
        folder : path
            It is made if it is not there.
        title : str, optional
        settings : mapping from str to str, optional
            What was asked for, to stand on the page.
        command : str, optional
            What repeats the run, to stand on the page.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        path of the page
        """
        from kinfed.report import write_report  # a page of a second, which not every result becomes

        return write_report(self.story(title=title, settings=settings, command=command, progress=progress), Path(folder))

    def story(
        self,
        *,
        title: str | None = None,
        settings: Mapping[str, str] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
    ) -> Story:
        """What the report tells: the weights, how agents differ, and what is predicted."""
        from kinfed.report.story import MANY_AGENTS, Story

        weights = self.weights
        judged_by_models = RULES[weights.rule].needs - {"groups"}
        # Every fold of a prediction weighs all agents again: for many that takes minutes.
        return Story(
            title=title or f"Who helps whom among {len(self.train)} agents",
            weights=weights,
            scored={},
            comparisons={},
            predicted=None if judged_by_models or len(self.train) > MANY_AGENTS else self._predicted(progress),
            diagnosis=diagnosis_of(self.train, self.learner.task, self.seed, progress=progress),
            choices=tuple(self.choices),
            sketch_sizes=tuple(one.features.n_features for one in self.embeddings),
            norm_bound=self.embeddings[0].norm_bound,
            traffic=None,
            attendance=None,
            settings=settings or self._asked,
            seed=self.seed,
            command=command or self._call,
            groups=None if self.train.groups is None else tuple(map(str, self.train.groups)),
        )

    @property
    def _call(self) -> str:
        """The call that made this, where no other command did."""
        arguments = ", ".join(f"{name}={value}" for name, value in self._asked.items())
        return f"kinfed.{self.maker}(train, {arguments})"

    @property
    def _asked(self) -> dict[str, str]:
        """What was asked for, as arguments of that call."""
        embedding = self.embeddings[0]
        recipe = embedding.features.recipe
        asked: dict[str, Any] = {"rule": self.weights.rule, "learner": self.learner, "seed": self.seed}
        if self.rule_options:
            asked["options"] = dict(self.rule_options)
        if embedding.view is None:
            asked["kernel"] = recipe.make_kernel()
        if embedding.target is None and self.train.has_target:
            asked["shift"] = "covariate"
        if recipe.seed is not None:
            asked |= {"n_features": recipe.n_features, "sampling": recipe.sampling}
        return {name: repr(value) for name, value in asked.items()}

    def _repr_html_(self) -> str:
        return self.weights._repr_html_()

    def _predicted(self, progress: Progress | None) -> PredictedGain:
        rule = self.weights.rule
        options = rule_options(self.train, rule, self.rule_options)
        return gain_of(self.train, self.embeddings[0], rule, options, self.seed, progress=progress)


def prospect(
    train: Federation,
    rule: str = "calibrated",
    kernel: Kernel | str = "auto",
    learner: str | Learner | Any = "ridge",
    seed: int = 0,
    *,
    shift: str = "auto",
    n_features: int = 500,
    sampling: str = "iid",
    groups: ArrayLike | None = None,
    options: Mapping[str, Any] | None = None,
    standardise: bool = True,
    progress: Progress | None = None,
) -> Prospect:
    """Whose data would help each agent, with everything that was found on the way.

    Parameters
    ----------
    train, rule, kernel, learner, seed, shift, n_features, sampling, groups, options, progress
        As in `collaboration_weights`.
    standardise : bool
        Give every column mean 0 and variance 1 over the training data of all agents.

    Returns
    -------
    Prospect
    """
    comparison = Comparison(kernel, shift, n_features, sampling, seed)
    minimiser = learner_for(train, learner)
    check_target(train, minimiser.task)
    if "learner" in RULES[one_of(rule, RULES, "rule")].needs and minimiser.task != "unsupervised" and not train.has_target:
        raise InputError(f"rule {rule!r} judges models, and there is no target to learn; use rule 'q-aggregation'")
    preparation = Preparation.fit(train, standardise=standardise)
    prepared = preparation.transform(grouped(train, groups))
    embeddings = comparison.embeddings(prepared, minimiser.task, rule)
    weights = weigh_federation(prepared, embeddings, rule, minimiser, options, seed=seed, progress=progress)
    return Prospect(weights, minimiser, prepared, preparation, embeddings, dict(options or {}), seed)


def grouped(train: Federation, groups: ArrayLike | None) -> Federation:
    """The federation with these group labels, where some are given."""
    return train if groups is None else replace(train, groups=group_labels(groups, train.names))  # type: ignore[arg-type]


def choices_of(
    weights: Weights,
    preparation: Preparation,
    embeddings: Sequence[Embedding],
    rule_options: Mapping[str, Any],
    learner: Learner,
) -> list[str]:
    """What was done to the data, how agents were compared and which rule weighed them, in sentences."""
    given = "".join(f", {name} {value!r}" for name, value in rule_options.items())
    return [
        *preparation.describe(),
        *embeddings[0].reasons,
        f"rule {weights.rule}{given}: {RULES[weights.rule].summary}",
        *([] if weights.calibration is None else weights.calibration.describe()),
        f"learner {learner!r}",
    ]
