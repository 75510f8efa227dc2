"""A rule, a learner and methods of somebody else's, registered from outside: each is written once and runs everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.backends.agents import QUESTIONS, Agents, Fold, Question, QuorumError, SiteState, SiteView, TrainingSpec
from kinfed.backends.pooled import PooledAgents
from kinfed.backends.server import connected
from kinfed.backends.site import InProcess, Site, sites_of
from kinfed.backends.wire import Arrays, ArraySpec, Failure, Message, Request
from kinfed.checkpoint import Store
from kinfed.deployment.server import sentences, write_result
from kinfed.learners.base import Models, site_learner
from kinfed.methods import METHODS, Method, MethodContext
from kinfed.model import keep_model, load_model
from kinfed.run_setup import comparing
from kinfed.settings import Settings
from kinfed.weights.geometry import Geometry
from kinfed.weights.result import Weights, weights_of
from site_runs import Answer, Slow, Unruly, generated, run

BACKENDS = ("pooled", "sites", "flower")
ROUNDS = 5


# ---------------------------------------------------------------- a rule


def nearest(geometry: Geometry, count: int = 3) -> Weights:
    """Equal weights for the `count` agents whose means are nearest, the target among them."""
    order = np.argsort(geometry.squared_distances, axis=1, kind="stable")[:, :count]
    matrix = np.zeros(geometry.squared_distances.shape)
    np.put_along_axis(matrix, order, 1 / order.shape[1], axis=1)
    return weights_of(geometry, "nearest", matrix)


# ---------------------------------------------------------------- a learner, with a question of its own


@dataclass(frozen=True)
class OutcomeMeans(Question[tuple[np.ndarray, np.ndarray]]):
    """The mean outcome of every agent, and who told it."""

    name = "outcome-means"
    about_data = True

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        return Message(arrays={"mean": np.array(site.agent.y.mean())})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        return {"mean": ArraySpec(())}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> tuple[np.ndarray, np.ndarray]:
        means, heard = np.zeros(len(spec.names)), np.zeros(len(spec.names))
        for place, answer in answers.items():
            means[place], heard[place] = answer.arrays["mean"], 1.0
        return means, heard


@dataclass(frozen=True, eq=False)
class LevelModels:
    levels: np.ndarray

    def __len__(self) -> int:
        return len(self.levels)

    def predict(self, row: int, X: Any) -> np.ndarray:
        return np.full(len(X), self.levels[row])


@dataclass(frozen=True)
class Levels:
    """One number for every target: what minimises the weighted squared error of a constant."""

    task = "regression"

    def fit(self, agents: Agents, weights: np.ndarray, **options: Any) -> LevelModels:
        means, heard = agents.ask(OutcomeMeans())
        shares = weights * heard
        return LevelModels(shares @ means / shares.sum(axis=1))

    def check_sites(self) -> None:
        """Any sites will do."""

    def pack(self, models: LevelModels, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {"levels": models.levels[rows]}

    def unpack(self, arrays: Arrays, spec: TrainingSpec) -> LevelModels:
        return LevelModels(arrays["levels"])


# ---------------------------------------------------------------- Ditto: a personal model that is kept between rounds


@dataclass(frozen=True, eq=False)
class DittoRound(Question[tuple[np.ndarray, dict[int, np.ndarray]]]):
    """Agents move a common model, and pull their own, which they keep, towards it; in the last round they tell it."""

    common: np.ndarray
    pull: float
    first: bool
    last: bool

    name = "ditto-round"

    def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
        message = Message({"pull": self.pull, "first": self.first, "last": self.last}, {"common": self.common})
        return dict.fromkeys(range(len(spec.names)), message)

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        common, pull, key = asked.arrays["common"], asked.settings["pull"], f"ditto {site.fold}"
        design = np.column_stack([site.agent.X, np.ones(len(site.agent))])
        gram, cross = design.T @ design / len(design), design.T @ site.agent.y / len(design)
        # A training starts anew, and so does a site that has lost what it kept.
        before = common if asked.settings["first"] else site.state.get(key, common)
        nearer = np.linalg.solve(gram + pull * np.eye(len(gram)), cross + pull * common)
        site.state[key] = own = (before + nearer) / 2
        moved = common + 0.3 * (cross - gram @ common)
        return Message(arrays={"common": moved, "own": own} if asked.settings["last"] else {"common": moved})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        row = ArraySpec((spec.dim + 1,))
        return {"common": row, "own": row} if self.last else {"common": row}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        if not answers:
            raise QuorumError("ditto: nobody answered")
        sizes = spec.sizes[list(answers)]
        common = sizes / sizes.sum() @ np.array([one.arrays["common"] for one in answers.values()])
        return common, {place: one.arrays["own"] for place, one in answers.items()} if self.last else {}


class Ditto(Method):
    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        agents, spec = context.agents.labelled("training"), context.agents.spec
        common, own = np.zeros(spec.dim + 1), {}
        for number in range(ROUNDS):
            asked = DittoRound(common, context.options.get("pull", 0.5), number == 0, number == ROUNDS - 1)
            common, own = agents.ask(asked)
        rows = np.array([own.get(place, common) for place in range(len(spec.names))])
        return site_learner(context.learner).unpack({"coefficients": rows}, spec)


class OwnOffset(Method):
    """One common model, which every agent shifts by the mean error on its own rows when it predicts."""

    def train(self, context: MethodContext, weights: Weights | None) -> Models:
        return METHODS["grand-mean"].train(context, weights)

    def unpack(self, arrays: Arrays, site: SiteView) -> Models:
        common = site.learner.unpack(arrays, site.spec)
        shifted = common.coefficients.copy()
        shifted[:, -1] += (site.agent.y - common.predict(0, site.agent.X)).mean()
        return site.learner.unpack({"coefficients": shifted}, site.spec)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Names of this file; other tests must not see them."""
    ours: list[tuple[Any, dict[str, Any]]] = [
        (kinfed.RULES, {"nearest": kinfed.Rule(nearest, frozenset(), "average over the nearest agents")}),
        (kinfed.LEARNERS, {"levels": Levels}),
        (METHODS, {"ditto": Ditto(), "own-offset": OwnOffset()}),
        (QUESTIONS, {"outcome-means": OutcomeMeans, "ditto-round": DittoRound}),
    ]
    for registry, values in ours:
        registry.update(values)
    yield
    for registry, values in ours:
        for name in values:
            registry.pop(name, None)


def parameters(models: Any) -> np.ndarray:
    return np.asarray(models.levels if isinstance(models, LevelModels) else models.coefficients)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize(
    "wanted",
    [
        {"rule": "nearest", "options": {"count": 2}},
        {"rule": "q-aggregation", "learner": "levels"},
        {"rule": "nearest", "learner": "levels"},
        {"method": "ditto"},
        {"method": "ditto", "options": {"pull": 3.0}},
        {"method": "own-offset"},
    ],
    ids=["rule", "learner", "rule-and-learner", "method", "method-with-options", "method-that-looks-at-rows"],
)
def test_what_is_registered_from_outside_gives_the_same_on_every_backend(wanted: dict[str, Any], backend: str) -> None:
    train, test = generated()
    pooled, found = (kinfed.personalize(train, test=test, backend=one, **wanted) for one in ("pooled", backend))
    if "rule" in wanted:
        np.testing.assert_allclose(found.weights.matrix, pooled.weights.matrix, atol=1e-12)
        assert (found.weights.matrix != np.eye(len(train))).any()
    np.testing.assert_allclose(parameters(found.models), parameters(pooled.models), atol=1e-9)
    for name, models in pooled.baselines.items():
        np.testing.assert_allclose(parameters(found.baselines[name]), parameters(models), atol=1e-9)
    pd.testing.assert_frame_equal(found.scores, pooled.scores, atol=1e-9)
    assert found.exchange.attendance.empty


def test_an_agent_keeps_its_personal_model_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = generated()
    whole = kinfed.personalize(train, test=test, method="ditto", backend="flower")
    usual = DittoRound.answer

    def forgetful(cls: type, site: SiteView, asked: Message) -> Message:
        return usual(site, Message({**asked.settings, "first": True}, asked.arrays))

    monkeypatch.setattr(DittoRound, "answer", classmethod(forgetful))
    started_anew = kinfed.personalize(train, test=test, method="ditto", backend="flower")
    assert np.abs(whole.models.coefficients - started_anew.models.coefficients).max() > 1e-3


class Forgetting(Unruly):
    """One site is started anew, with nothing in its notes, when it is asked for the n-th time."""

    def __init__(self, sites: list[Site], at: int) -> None:
        super().__init__(sites, {})
        self._at = at

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        if sum(address == "1" for address, _ in self.asked) == self._at:
            self._notes["1"] = {}
        return super().ask(requests, seconds)


def test_a_site_that_was_started_anew_goes_on() -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    whole = run(InProcess(sites_of(train, test, learner)), method="ditto", baselines=False)
    lost = run(Forgetting(sites_of(train, test, learner), at=7), method="ditto", baselines=False)
    apart = np.abs(lost.models.coefficients - whole.models.coefficients).max(axis=1)
    assert lost.exchange.attendance.empty
    assert apart[1] > 1e-3  # it has lost what it knew of its own model
    np.testing.assert_allclose(np.delete(apart, 1), 0.0, atol=1e-12)  # and nobody else did


def test_folds_that_travel_together_do_not_see_each_others_state() -> None:
    train, test = generated()
    learner, settings = kinfed.make_learner("ridge"), Settings(rule="local")

    def trained(agents: Agents) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}

        def job(fold: int) -> None:
            context = MethodContext(agents.without(Fold(0, fold, 3)), learner)
            found[fold] = METHODS["ditto"].train(context, None).coefficients

        for call in agents.side_by_side([partial(job, fold) for fold in range(3)]):
            call()
        return found

    here = trained(PooledAgents.prepared(train, test, learner, comparing(settings)))
    channel = Slow(sites_of(train, test, learner))
    with connected(channel, learner, comparing(settings), Store(None, {}), agents=len(train)) as agents:
        there = trained(agents)
    for fold, rows in here.items():
        np.testing.assert_allclose(there[fold], rows, atol=1e-12)


def test_what_an_agent_keeps_is_arrays_of_numbers_that_are_replaced_and_not_written_to() -> None:
    state = SiteState({"count": np.zeros(2)})
    assert not state.changed
    with pytest.raises(ValueError, match="read-only"):
        state["count"] += 1
    with pytest.raises(kinfed.InputError, match="arrays of numbers, but 'names' is list"):
        state["names"] = ["Smith"]
    with pytest.raises(kinfed.InputError, match="arrays of numbers"):
        state["names"] = np.array(["Smith"], dtype=object)
    state["count"] = state["count"] + 1
    assert state.changed
    assert state["count"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_writing_into_the_state_fails_alike_everywhere(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DittoRound.answer

    def careless(cls: type, site: SiteView, asked: Message) -> Message:
        found = usual(site, asked)
        site.state[f"ditto {site.fold}"] += 1.0
        return found

    monkeypatch.setattr(DittoRound, "answer", classmethod(careless))
    with pytest.raises((QuorumError, ValueError), match=r"read-only|the question ditto-round failed \(ValueError\)"):
        kinfed.personalize(generated()[0], method="ditto", backend=backend)


# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_site_refuses_a_question_it_does_not_know(backend: str) -> None:
    train, _ = generated()
    del QUESTIONS["ditto-round"]
    with pytest.raises(QuorumError, match="there is no question ditto-round; use the same kinfed, and the same extensions"):
        kinfed.personalize(train, method="ditto", backend=backend)
    answer = InProcess(sites_of(train, None, kinfed.make_learner("ridge"))).ask({"0": Request("ditto-round")}, 1.0)["0"]
    assert isinstance(answer, Failure)
    assert answer.reason.startswith("there is no question ditto-round")


def test_a_name_that_nobody_brings_is_not_known() -> None:
    train, _ = generated()
    for wanted, words in [
        ({"rule": "farthest"}, "rule 'farthest' is not known; choose one of local, "),
        ({"learner": "peaks"}, "learner 'peaks' is not known; choose one of ridge, "),
        ({"method": "ditto-2"}, "method 'ditto-2' is not known; choose one of stacked, weighted, "),
    ]:
        with pytest.raises(kinfed.InputError, match=words):
            kinfed.personalize(train, **wanted)


# ---------------------------------------------------------------- a package that is installed

PACKAGE = """
    import numpy as np

    import kinfed
    from kinfed.backends.agents import QUESTIONS, Question
    from kinfed.backends.wire import ArraySpec, Message
    from kinfed.methods import METHODS, Method


    class LargestRow(Question):
        name = "packaged-norms"

        @classmethod
        def answer(cls, site, asked):
            return Message(arrays={"norm": np.array(np.abs(site.agent.X).mean())})

        def form(self, spec, place, asked):
            return {"norm": ArraySpec(())}

        def combine(self, spec, answers):
            return {place: float(answer.arrays["norm"]) for place, answer in answers.items()}


    class Packaged(Method):
        def train(self, context, weights):
            assert len(context.agents.ask(LargestRow())) == len(context.agents.spec.names)
            return METHODS["local"].train(context, weights)


    kinfed.RULES["packaged"] = kinfed.Rule(kinfed.RULES["local"].weigh, frozenset(), "everybody alone")
    kinfed.LEARNERS["packaged"] = kinfed.LEARNERS["ridge"]
    METHODS["packaged"] = Packaged()
    QUESTIONS["packaged-norms"] = LargestRow
"""


@pytest.fixture(name="installed")
def installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package on the path whose entry points name a module of it, as pip would install it."""
    (tmp_path / "outside_kinfed.py").write_text(dedent(PACKAGE))
    about = tmp_path / "outside_kinfed-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-kinfed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kinfed]\noutside = outside_kinfed\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("outside_kinfed", None)
    for registry, name in [(kinfed.RULES, "packaged"), (kinfed.LEARNERS, "packaged"), (METHODS, "packaged")]:
        registry.pop(name, None)
    QUESTIONS.pop("packaged-norms", None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [{"rule": "packaged"}, {"learner": "packaged", "rule": "local"}, {"method": "packaged"}])
@pytest.mark.usefixtures("installed")
def test_an_installed_package_is_found_by_its_entry_point(wanted: dict[str, Any], backend: str) -> None:
    train, test = generated()
    assert "outside_kinfed" not in sys.modules
    given = {} if "method" in wanted else {"learner_options": {"penalty": 0.01}}
    found = kinfed.personalize(train, test=test, backend=backend, **{"learner": "ridge", **wanted, **given})
    np.testing.assert_array_equal(found.scores["personalized"], found.scores["local"])


@pytest.mark.usefixtures("installed")
def test_a_site_finds_the_questions_of_an_installed_package_itself() -> None:
    train, _ = generated()
    learner = kinfed.make_learner("ridge")
    channel = InProcess(sites_of(train, None, learner))
    answer = channel.ask({"0": Request("packaged-norms", {"agreement": "x"})}, 1.0)["0"]
    assert "outside_kinfed" in sys.modules
    assert answer == Failure("the agreement is not known here", train.names[0])


# ---------------------------------------------------------------- what comes of a method without weights


@pytest.mark.parametrize("method", ["ditto", "own-offset"])
def test_the_model_a_site_keeps_is_the_one_it_was_scored_with(method: str, tmp_path: Path) -> None:
    train, test = generated()
    sites = [
        replace(one, keep_model=partial(keep_model, tmp_path / one.name))
        for one in sites_of(train, test, kinfed.make_learner("ridge"))
    ]
    found = run(InProcess(sites), method=method)
    for place, name in enumerate(train.names):
        error = np.mean((load_model(tmp_path / name / "model").predict(test[place].X) - test[place].y) ** 2)
        assert error == pytest.approx(found.scores.loc[name, "personalized"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["ditto", "own-offset"])
def test_predictions_are_those_that_were_scored(method: str, backend: str) -> None:
    train, test = generated()
    found = kinfed.personalize(train, test=test, method=method, backend=backend)
    errors = [np.mean((found.predict(name, test[name].X) - test[name].y) ** 2) for name in train.names]
    np.testing.assert_allclose(errors, found.scores["personalized"])


def test_what_stays_at_a_site_is_not_predicted_with_elsewhere() -> None:
    class Head(OwnOffset):
        def unpack(self, arrays: Arrays, site: SiteView) -> Models:
            return super().unpack(arrays, site) if site.test is not None else site.state["its own head"]

    METHODS["ditto"] = Head()
    train, test = generated()
    found = kinfed.personalize(train, test=test, method="ditto", backend="sites")
    with pytest.raises(kinfed.InputError, match=r"agent 0 kept its part of the model \('its own head'\) at its site"):
        found.predict(0, test[0].X)


def test_a_result_without_weights_is_told_and_written(tmp_path: Path) -> None:
    train, test = generated()
    found = run(InProcess(sites_of(train, test, kinfed.make_learner("ridge"))), method="ditto")
    assert "method ditto" in found.choices
    assert "Personal models of 6 agents" in found._repr_html_()
    assert sentences(found)[0] == "6 agents took part"
    write_result(found, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "attendance.csv",
        next(tmp_path.glob("result-*.npz")).name,
        "result.json",
        "scores.csv",
        "traffic.csv",
    ]
    with pytest.raises(kinfed.InputError, match="method 'ditto' has no weights"):
        _ = found.weights


# ---------------------------------------------------------------- what a question may rely on


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rule_goes_by_the_name_it_is_registered_under(backend: str) -> None:
    kinfed.RULES["soft"] = kinfed.Rule(lambda geometry, count=2: nearest(geometry, count), frozenset(), "by another name")
    try:
        train, _ = generated()
        found = kinfed.personalize(train, rule="soft", backend=backend, baselines=False)
        assert found.weights.rule == "soft"
        joined = found.onboard(train[0].X + 0.1, train[0].y)
        np.testing.assert_allclose(np.sort(joined.weights.matrix[0])[-2:], 0.5)
    finally:
        del kinfed.RULES["soft"]


@dataclass(frozen=True, eq=False)
class Count(Question[dict[int, int]]):
    """How often an agent was asked; an agent may be slow to come."""

    quorum: float | None = None

    name = "count"

    @classmethod
    def answer(cls, site: SiteView, asked: Message) -> Message:
        if site.place == 0 and "refuse" in site.state:
            raise kinfed.InputError("not now")
        site.state["count"] = site.state.get("count", np.zeros(1)) + 1
        return Message(arrays={"count": site.state["count"]})

    def form(self, spec: TrainingSpec, place: int, asked: Message) -> Mapping[str, ArraySpec]:
        return {"count": ArraySpec((1,))}

    def combine(self, spec: TrainingSpec, answers: Mapping[int, Message]) -> dict[int, int]:
        return {place: int(one.arrays["count"][0]) for place, one in answers.items()}


class SlowChannel(InProcess):
    """Where questions of several jobs travel together."""

    slow = True


@pytest.fixture
def counting() -> Iterator[None]:
    QUESTIONS["count"] = Count
    yield
    del QUESTIONS["count"]


@pytest.mark.usefixtures("counting")
def test_jobs_that_travel_together_are_answered_one_by_one() -> None:
    train, _ = generated()
    learner, settings = kinfed.make_learner("ridge"), Settings(rule="local")

    def asked(agents: Agents) -> list[dict[int, int]]:
        found: list[dict[int, int]] = []
        for call in agents.side_by_side([lambda: found.append(agents.ask(Count())) for _ in range(3)]):
            call()
        return found

    here = asked(PooledAgents.prepared(train, None, learner, comparing(settings)))
    for channel in (InProcess(sites_of(train, None, learner)), SlowChannel(sites_of(train, None, learner))):
        with connected(channel, learner, comparing(settings), Store(None, {}), agents=len(train)) as agents:
            assert asked(agents) == here


@pytest.mark.usefixtures("counting")
def test_agents_go_on_after_somebody_has_joined_them() -> None:
    train, _ = generated(n_agents=7)
    learner, settings = kinfed.make_learner("ridge"), Settings(rule="local")
    sites = sites_of(train, None, learner)
    channel = Unruly(sites, {})
    late = channel._sites.pop("6")
    with connected(channel, learner, comparing(settings), Store(None, {}), agents=6) as agents:
        assert agents.ask(Count()) == dict.fromkeys(range(6), 1)
        channel._sites["6"] = late
        (newcomer,) = agents.newcomers().values()
        joined = agents.joined(newcomer)
        assert joined.ask(Count()) == {**dict.fromkeys(range(6), 2), 6: 1}
        assert agents.ask(Count()) == dict.fromkeys(range(6), 3)


def test_what_is_kept_by_its_name_sends_nothing() -> None:
    class Powers(OutcomeMeans):
        def messages(self, spec: TrainingSpec) -> Mapping[int, Message]:
            return dict.fromkeys(range(len(spec.names)), Message({"degree": 2}))

    train, _ = generated()
    learner, settings = kinfed.make_learner("ridge"), Settings(rule="local")
    channel = InProcess(sites_of(train, None, learner))
    with (
        connected(channel, learner, comparing(settings), Store(None, {}), agents=len(train)) as agents,
        pytest.raises(AssertionError, match="about rows alone"),
    ):
        agents.ask(Powers())


def test_a_method_that_takes_nobody_in_later_says_so() -> None:
    train, _ = generated()
    found = kinfed.personalize(train, method="ditto")
    with pytest.raises(kinfed.InputError, match="method 'ditto' takes nobody in later"):
        found.onboard(train[0].X, train[0].y)
