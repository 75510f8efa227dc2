"""Agents as sites of their own: the same models as from pooled data, whoever fails, and nothing that should not cross."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.collaboration import Comparison
from kinfed.engines.agreement import Agreement
from kinfed.engines.conversation import Patience, QuorumError
from kinfed.engines.coordinator import coordinate
from kinfed.engines.federations import sites_of
from kinfed.engines.in_process import InProcess
from kinfed.engines.messages import Failure, Reply, Request, payload_bytes
from kinfed.engines.outcome import Outcome
from kinfed.engines.site_model import load_site_model
from kinfed.engines.tasks import TASKS
from kinfed.engines.wishes import Wishes
from kinfed.federation import Agent, Federation
from kinfed.learners.remote import remote_learner

B = 6


def generated(n_agents: int = B, n: int = 12, seed: int = 0) -> tuple[Federation, Federation]:
    found = kinfed.concept_shift(n_agents=n_agents, n=n, dim=3, spread=0.1, seed=seed)
    return found.train, found.test(20, seed=1)


def labelled(federation: Federation, kind: str = "text") -> Federation:
    """Three classes by the sign and size of y."""
    names = np.array(["high", "low", "middle"])

    def classes(y: np.ndarray) -> np.ndarray:
        codes = np.where(y > 0.7, 0, np.where(y < -0.7, 1, 2))
        return names[codes] if kind == "text" else codes

    agents = tuple(Agent(one.name, one.X, classes(one.y)) for one in federation)
    return replace(federation, agents=agents)


def same_models(first: object, second: object, learner: object, tolerance: float) -> None:
    remote = remote_learner(learner)
    rows = np.arange(len(first))
    ours, theirs = remote.pack(first, rows), remote.pack(second, rows)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "learner, rule",
    [
        ("ridge", "q-aggregation"),
        ("ridge", "entropic"),
        ("ridge", "similarity-test"),
        ("ridge", "james-stein"),
        ("ridge", "clusters"),
        ("ridge", "gradient"),
        ("ridge", "gradient-clusters"),
        ("logistic", "q-aggregation"),
    ],
)
def test_sites_and_pooled_data_give_the_same_models(learner: str, rule: str) -> None:
    train, test = generated()
    if learner == "logistic":
        train, test = labelled(train), labelled(test)
    pooled = kinfed.personalize(train, learner, rule, test, seed=2)
    sites = kinfed.personalize(train, learner, rule, test, seed=2, engine="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-9)
    np.testing.assert_allclose(sites.weights.risk, pooled.weights.risk, atol=1e-9)
    np.testing.assert_allclose(sites.weights.evidence.null_quantiles, pooled.weights.evidence.null_quantiles, atol=1e-9)
    assert sites.weights.stop == pooled.weights.stop
    same_models(sites.models, pooled.models, pooled.learner, 1e-6)
    for name in ("local", "grand-mean"):
        same_models(sites.baselines[name], pooled.baselines[name], pooled.learner, 1e-6)
    pd.testing.assert_frame_equal(sites.scores, pooled.scores, atol=1e-6)
    assert sites.exchange.attendance.empty
    assert sites.choices == pooled.choices


def test_calibration_gives_the_same_choice_and_models() -> None:
    train, test = generated(n_agents=5, n=130, seed=4)
    pooled = kinfed.personalize(train, "ridge", "calibrated", test, seed=1)
    sites = kinfed.personalize(train, "ridge", "calibrated", test, seed=1, engine="sites")
    ours, theirs = sites.weights.calibration, pooled.weights.calibration
    assert ours.members == theirs.members
    assert ours.chosen == theirs.chosen
    np.testing.assert_array_equal(ours.choice.shares, theirs.choice.shares)
    np.testing.assert_allclose(ours.choice.mean, theirs.choice.mean, rtol=1e-9)
    assert sites.weights.advice == pooled.weights.advice
    same_models(sites.models, pooled.models, pooled.learner, 1e-6)


def test_raw_tables_with_text_and_gaps_are_prepared_alike() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "site": np.repeat(list("abcd"), 15),
            "age": np.where(rng.random(60) < 0.1, np.nan, rng.normal(50, 10, 60)),
            "sex": rng.choice(["f", "m", None], 60),
            "ward": rng.choice(["north", "south", "east"], 60),
            "unit": 1.0,
            "y": rng.normal(size=60),
        }
    )
    train = Federation.from_frame(table, target="y", agent="site")
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", train)
    sites = kinfed.personalize(train, "ridge", "q-aggregation", train, engine="sites")
    assert sites.preparation.columns == pooled.preparation.columns
    np.testing.assert_allclose(sites.preparation.scale, pooled.preparation.scale, rtol=1e-12)
    same_models(sites.models, pooled.models, pooled.learner, 1e-9)


def test_columns_in_another_order_are_put_in_order() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    odd = sites[2].train
    turned = Federation((Agent(odd.names[0], odd[0].X[:, ::-1], odd[0].y),), odd.columns[::-1])
    turned_test = Federation((Agent(odd.names[0], sites[2].test[0].X[:, ::-1], sites[2].test[0].y),), odd.columns[::-1])
    sites[2] = replace(sites[2], train=turned, test=turned_test)
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", test)
    found = run(InProcess(sites))
    same_models(found.methods["personalized"], pooled.models, pooled.learner, 1e-9)


def test_oracle_groups_reach_the_agents() -> None:
    train, test = generated()
    groups = ["a", "b"] * (B // 2)
    pooled = kinfed.personalize(train, "ridge", "oracle", test, groups=groups)
    sites = kinfed.personalize(train, "ridge", "oracle", test, groups=groups, engine="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-12)


def test_the_polynomial_kernel_has_a_bound_all_agents_share() -> None:
    train, test = generated()
    kernel = kinfed.Polynomial(degree=2)
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", test, kernel=kernel)
    sites = kinfed.personalize(train, "ridge", "q-aggregation", test, kernel=kernel, engine="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-9)


# ---------------------------------------------------------------- faults

Behaviour = Callable[[int, Request, "Reply | Failure"], "Reply | Failure"]


class Unruly(InProcess):
    """Sites of which some misbehave; counts what each task was asked."""

    def __init__(self, sites: list[kinfed.engines.site.Site], behaviours: Mapping[str, Behaviour]) -> None:
        super().__init__(sites)
        self.behaviours = dict(behaviours)
        self.gone: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self._times: dict[tuple[str, str], int] = {}

    def reachable(self) -> tuple[str, ...]:
        return tuple(one for one in super().reachable() if one not in self.gone)

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        there = {address: one for address, one in requests.items() if address not in self.gone}
        answers = super().ask(there, seconds)
        for address, request in requests.items():
            self.asked.append((address, request.task))
            if address in self.gone:
                answers[address] = Failure("no answer in time")
            elif address in self.behaviours:
                key = address, request.task
                self._times[key] = self._times.get(key, 0) + 1
                answers[address] = self.behaviours[address](self._times[key], request, answers[address])
        return answers


def run(channel: InProcess, learner: object = None, rule: str = "q-aggregation", **options: object) -> Outcome:
    chosen = kinfed.make_learner("ridge") if learner is None else learner
    wishes = Wishes(rule, comparison=Comparison(seed=0))
    return coordinate(channel, chosen, wishes, agents=len(channel.reachable()), **options)


def silent_in(task: str) -> Behaviour:
    return lambda time, request, answer: Failure("no answer in time") if request.task == task else answer


def corrupted(task: str, **changes: Callable[[np.ndarray], np.ndarray]) -> Behaviour:
    def behave(time: int, request: Request, answer: Reply | Failure) -> Reply | Failure:
        if request.task != task or isinstance(answer, Failure):
            return answer
        arrays = {name: changes[name](array) if name in changes else array for name, array in answer.arrays.items()}
        return Reply(answer.settings, arrays)

    return behave


def poisoned(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[0] = np.nan
    return changed


def another_recipe(time: int, request: Request, answer: Reply | Failure) -> Reply | Failure:
    if request.task != "sketch" or isinstance(answer, Failure):
        return answer
    return Reply({**answer.settings, "agreement": "0" * 32}, answer.arrays)


@pytest.mark.parametrize(
    "behaviour, reason",
    [
        (corrupted("sketch", **{"mean 0": poisoned}), "NaN"),
        (corrupted("sketch", **{"mean 0": lambda mean: mean[:-1]}), "shape"),
        (corrupted("sketch", **{"mean 0": lambda mean: mean * 1e6}), "norm"),
        (corrupted("sketch", **{"mean 0": lambda mean: mean.astype(np.float32)}), "type"),
        (corrupted("sketch", **{"trace 0": lambda trace: np.array(-1.0)}), "trace"),
        (another_recipe, "recipe"),
        (silent_in("sketch"), "in time"),
        (lambda time, request, answer: Reply({}, {}) if request.task == "sketch" else answer, "recipe"),
    ],
    ids=["nan", "shape", "norm", "type", "trace", "recipe", "silent", "empty"],
)
def test_a_bad_sketch_is_left_out_and_its_agent_named(behaviour: Behaviour, reason: str, tmp_path: Path) -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    found = run(Unruly(sites, {"2": behaviour}), audit=tmp_path / "audit.jsonl")
    (absence,) = [one for one in found.audit.absences if one.phase == "sketches"]
    assert absence.agent == train.names[2]
    assert reason in absence.reason
    others = [k for k in range(B) if k != 2]
    matrix = found.weights.matrix
    assert (matrix[others, 2] == 0).all()  # nobody listens to it
    assert matrix[2, 2] == 1  # and it keeps to itself
    # The others solve the problem without it: what pooled points under the same recipe give.
    embedding = found.agreement.embeddings[0]
    prepared = found.agreement.preparation.transform(train)
    points = [embedding(prepared[k]) for k in others]
    alone = kinfed.weigh(kinfed.explicit_geometry(points, norm_bound=embedding.norm_bound), "q-aggregation")
    np.testing.assert_allclose(matrix[np.ix_(others, others)], alone.matrix, atol=1e-9)
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert any(line.get("agent") == train.names[2] and reason in line.get("missed", "") for line in log)


@pytest.mark.parametrize("task", ["columns", "scale"])
def test_an_agent_that_misses_the_agreement_is_no_part_of_it(task: str) -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    found = run(Unruly(sites, {"1": silent_in(task)}))
    others = [k for k in range(B) if k != 1]
    assert found.agreement.names == tuple(train.names[k] for k in others)
    if task == "columns":  # it has had no influence at all, and joins as a newcomer with weights of its own
        pooled = kinfed.personalize(train.select(others), "ridge", "q-aggregation", test.select(others))
        same_models(found.methods["personalized"], pooled.models, pooled.learner, 1e-9)
    assert list(found.joined) == [train.names[1]]


def test_moments_that_do_not_come_are_left_out_and_weights_renormalised() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    found = run(Unruly(sites, {"0": silent_in("train")}))
    whole = run(InProcess(sites))
    rows = whole.weights.matrix.copy()
    rows[:, 0] = 0.0
    rows = rows[1:] / rows[1:].sum(axis=1, keepdims=True)
    prepared = whole.agreement.preparation.transform(train)
    expected = kinfed.make_learner("ridge").fit(prepared, rows)
    np.testing.assert_allclose(found.methods["personalized"].coefficients[1:], expected.coefficients, atol=1e-9)


def test_the_run_fails_only_when_the_quorum_is_lost() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    unruly = {str(k): silent_in("weights") for k in range(3)}
    run(Unruly(sites, unruly), patience=Patience(quorum=0.5))
    with pytest.raises(QuorumError, match=r"weights: 3 of 6 agents are left, 4 are needed .*no answer in time"):
        run(Unruly(sites, unruly), patience=Patience(quorum=0.6))


def test_an_agent_that_raises_is_named_with_its_own_words() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    sites[3] = replace(sites[3], learner=kinfed.make_learner("ridge", penalty=1.0))
    found = run(InProcess(sites))
    (absence,) = found.audit.absences
    assert absence.agent == train.names[3]
    assert "penalty=1.0" in absence.reason


def test_groups_stay_with_their_agents_when_one_is_left_out() -> None:
    train, test = generated(n_agents=4)
    first = Agent(train.names[0], train[0].X[:1], train[0].y[:1])  # one row: it cannot take part
    short = replace(train, agents=(first, *train.agents[1:]))
    groups = ["a", "b", "b", "a"]
    sites = kinfed.personalize(short, "ridge", "oracle", test, groups=groups, engine="sites")
    assert sites.train.names == train.names[1:]
    together = sites.weights.matrix > 0
    np.testing.assert_array_equal(together, [[True, True, False], [True, True, False], [False, False, True]])


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    first, second = generated(seed=0), generated(seed=1)
    kinfed.personalize(first[0], "ridge", "q-aggregation", first[1], engine="sites", checkpoint=tmp_path)
    with pytest.raises(kinfed.InputError, match="other settings"):
        kinfed.personalize(second[0], "ridge", "q-aggregation", second[1], engine="sites", checkpoint=tmp_path)


@pytest.mark.parametrize("failing", ["base-rows", "score", "gradients", "gradient-weights", "tally"])
def test_an_agent_that_fails_in_calibration_is_left_out_of_that_step(failing: str) -> None:
    train, test = generated(n_agents=5, n=130)
    sites = sites_of(train, test, kinfed.make_learner("ridge"))

    class Failing(InProcess):
        def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
            answers = super().ask(requests, seconds)
            parts = requests.get("1", Request("")).settings.get("parts", [])
            if "1" in requests and failing in [requests["1"].task, *(part["task"] for part in parts)]:
                answers["1"] = Failure("it is asleep")
            return answers

    found = run(Failing(sites), rule="calibrated")
    assert {one.agent for one in found.audit.absences} == {train.names[1]}
    assert np.isfinite(found.weights.matrix).all()
    np.testing.assert_allclose(found.weights.matrix.sum(axis=1), 1.0)
    assert np.isfinite(found.weights.calibration.choice.mean).all()


@pytest.mark.parametrize(
    "task, settings",
    [
        ("describe", {"rows": 1e400}),
        ("describe", {"name": "\ud800"}),
        ("describe", {"text columns": ["nope"]}),
        ("scale", {"median": -1.0}),
        ("scale", {"median": "wide"}),
        ("weights", {"stop": None}),
        ("evaluate", {"rows": 10**30}),
        ("sketch", {"rows": "many"}),
        ("sketch", {"nested": "too deeply"}),
    ],
)
def test_settings_that_cannot_be_are_refused_and_never_reach_the_server(task: str, settings: dict[str, object]) -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))

    def behave(time: int, request: Request, answer: Reply | Failure) -> Reply | Failure:
        if request.task != task or isinstance(answer, Failure):
            return answer
        return Reply({**answer.settings, **settings, **nested}, answer.arrays)

    nested: dict[str, object] = {}
    if "nested" in settings:
        for _ in range(10_000):
            nested = {"nested": nested}
    found = run(Unruly(sites, {"1": behave}))
    assert found.audit.absences
    assert np.isfinite(found.weights.matrix).all()


def test_a_newcomer_that_fails_costs_nobody_else_the_run() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))

    def behave(time: int, request: Request, answer: Reply | Failure) -> Reply | Failure:
        if request.task == "columns":
            return Failure("it comes later")
        return Reply({}, {}) if request.task == "weights" else answer

    found = run(Unruly(sites, {"5": behave}))
    assert len(found.agreement.names) == B - 1
    assert found.joined == {} or np.allclose(found.joined[train.names[5]].weights.self_weight, 1.0)
    assert train.names[5] in {one.agent for one in found.audit.absences}


def test_an_error_in_one_of_several_jobs_ends_all_of_them() -> None:
    from kinfed.engines.lockstep import Lockstep

    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    channel = InProcess(sites)
    from kinfed.engines.audit import Audit
    from kinfed.engines.conversation import Conversation

    conversation = Conversation(channel, Patience(), Audit(), {name: str(k) for k, name in enumerate(train.names)})
    together = Lockstep(conversation)
    done: list[int] = []

    def job(number: int) -> None:
        for turn in range(3):
            together.ask("describing", {train.names[0]: Request("describe")}, lambda name, reply: None)
            if number == 1 and turn == 1:
                raise KilledError
        done.append(number)

    with pytest.raises(KilledError):
        together.run([lambda number=number: job(number) for number in range(3)])
    assert done == []


def test_an_agent_of_other_columns_is_refused_and_they_are_named() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    odd = sites[4].train
    sites[4] = replace(sites[4], train=replace(odd, columns=("x0", "x1", "other")), test=None)
    (absence,) = run(InProcess(sites)).audit.absences
    assert absence.agent == train.names[4]
    assert "other, x2" in absence.reason


class Returning(Unruly):
    """One agent dies at a round of training and returns, with empty notes and at another address, some rounds later."""

    def __init__(self, sites: list[kinfed.engines.site.Site], dies: int, returns: int) -> None:
        super().__init__(sites, {})
        self._dies, self._returns, self._round = dies, returns, 0
        self._late = "returned"

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        if any(request.task == "train" for request in requests.values()):
            self._round += 1
            if self._round == self._dies:
                self.gone.add("1")
            if self._round == self._returns:
                self._sites[self._late], self._notes[self._late] = self._sites["1"], {}
        return super().ask(requests, seconds)


def test_an_agent_that_dies_and_comes_back_is_heard_again() -> None:
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    train, test = generated()
    learner = TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=6, batch_size=4)
    channel = Returning(sites_of(train, test, learner), dies=2, returns=4)
    found = run(channel, learner)
    missed = [one.phase for one in found.audit.absences if one.agent == train.names[1]]
    assert missed == ["training 2", "training 3"] or missed == ["training 2", "training 3", "training 4"]
    assert ("returned", "train") in channel.asked
    whole = kinfed.personalize(train, learner, "q-aggregation", test, seed=0)
    apart = remote_learner(learner).pack(found.methods["personalized"], np.arange(B))["parameters"]
    assert np.isfinite(apart).all()
    assert not np.array_equal(apart, remote_learner(learner).pack(whole.models, np.arange(B))["parameters"])


class KilledError(Exception):
    """The server dies."""


class Mortal(InProcess):
    """A channel whose server is killed at its n-th exchange."""

    def __init__(self, sites: list[kinfed.engines.site.Site], dies: int | None) -> None:
        super().__init__(sites)
        self.exchanges, self._dies = 0, dies

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        self.exchanges += 1
        if self.exchanges == self._dies:
            raise KilledError
        return super().ask(requests, seconds)


@pytest.mark.parametrize("kind", ["ridge", "logistic", "torch"])
def test_a_killed_server_resumes_anywhere_and_ends_with_the_same_models(kind: str, tmp_path: Path) -> None:
    train, test = generated(n_agents=4)
    learner: object = kinfed.make_learner("ridge")
    if kind == "logistic":
        train, test, learner = labelled(train), labelled(test), kinfed.make_learner("logistic")
    if kind == "torch":
        pytest.importorskip("torch")
        from kinfed.learners.neural import TorchLearner

        learner = TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=3, batch_size=4)
    sites = sites_of(train, test, learner)
    whole = Mortal(sites, None)
    expected = run(whole, learner)
    for dies in range(1, whole.exchanges + 1):
        folder = tmp_path / str(dies)
        with pytest.raises(KilledError):
            run(Mortal(sites, dies), learner, folder=folder)
        again = Mortal(sites, None)
        found = run(again, learner, folder=folder)
        np.testing.assert_array_equal(found.weights.matrix, expected.weights.matrix)
        tolerance = 1e-6 if kind == "logistic" else 0.0
        for name, models in expected.methods.items():
            same_models(found.methods[name], models, learner, tolerance)
        # The introduction is repeated and the agreement told again; what was finished is not (Newton's method on logistic
        # regression starts with one look at where it was).
        assert again.exchanges <= whole.exchanges - dies + (6 if kind == "logistic" else 4)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    run(InProcess(sites), folder=tmp_path)
    with pytest.raises(kinfed.InputError, match="other settings"):
        run(InProcess(sites), rule="entropic", folder=tmp_path)


def test_a_calibration_survives_the_checkpoint(tmp_path: Path) -> None:
    train, test = generated(n_agents=4, n=160)
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    first = run(InProcess(sites), rule="calibrated", folder=tmp_path)
    again = Mortal(sites, None)
    second = run(again, rule="calibrated", folder=tmp_path)
    assert again.exchanges <= 2  # introductions, and a look for newcomers
    assert second.weights.calibration.describe() == first.weights.calibration.describe()
    pd.testing.assert_frame_equal(second.weights.calibration.table, first.weights.calibration.table)
    assert second.weights.advice == first.weights.advice


# ---------------------------------------------------------------- newcomers


@pytest.mark.parametrize("rule", ["q-aggregation", "calibrated"])
def test_a_late_joiner_gets_weights_and_a_model_and_nobody_else_changes(rule: str, tmp_path: Path) -> None:
    train, test = generated(n_agents=6, n=122)
    learner = kinfed.make_learner("ridge")
    sites = sites_of(train, test, learner)
    before = run(InProcess(sites[:5]), rule=rule, folder=tmp_path)
    after = run(InProcess(sites), rule=rule, folder=tmp_path)
    same_models(before.methods["personalized"], after.methods["personalized"], learner, 0.0)
    (joined,) = after.joined.values()
    pooled = kinfed.personalize(train.select(range(5)), "ridge", rule, test.select(range(5)), seed=0)
    onboarded = pooled.onboard(train[5].X, train[5].y, name=train.names[5])
    np.testing.assert_allclose(joined.weights.matrix, onboarded.weights.matrix, atol=1e-9)
    same_models(joined.models, onboarded.models, learner, 1e-9)
    assert np.isfinite(joined.scores["mean squared error"])
    sent = after.audit.traffic.query("agent == @train.names[5] and direction == 'to the server' and phase == 'sketches'")
    assert sent["messages"].sum() == 1


# ---------------------------------------------------------------- what crosses


class Recording(InProcess):
    """Keeps everything that is sent to the server."""

    def __init__(self, sites: list[kinfed.engines.site.Site]) -> None:
        super().__init__(sites)
        self.replies: list[tuple[str, str, Reply]] = []
        self.requests: list[tuple[str, Request]] = []

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        answers = super().ask(requests, seconds)
        self.requests += requests.items()
        self.replies += [(address, requests[address].task, answer) for address, answer in answers.items()]
        return answers


@pytest.mark.parametrize("rule", ["q-aggregation", "calibrated", "gradient"])
def test_no_row_of_data_and_no_feature_of_a_point_leaves_a_site(rule: str) -> None:
    train, test = generated(n_agents=4, n=151)
    channel = Recording(sites_of(train, test, kinfed.make_learner("ridge")))
    found = run(channel, rule=rule)
    embeddings = found.agreement.embeddings
    prepared = found.agreement.preparation.transform(train)
    for address, task, reply in channel.replies:
        assert isinstance(reply, Reply), reply
        agent, raw = prepared[int(address)], train[int(address)]
        secrets = [*raw.X.ravel(), *agent.X.ravel(), *raw.y]
        secrets += [value for one in embeddings for value in one(agent).ravel()]
        told = np.concatenate([np.asarray(array, dtype=float).ravel() for array in reply.arrays.values()] or [[]])
        assert not np.isin(told, np.array(secrets)).any(), task
        # No array has a row per point: what leaves does not grow with n.
        assert not any(len(agent.X) in array.shape for array in reply.arrays.values()), task


def test_an_agent_is_sent_only_models_whose_targets_listen_to_it() -> None:
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    train, test = generated()
    learner = TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=2, batch_size=4)
    channel = Recording(sites_of(train, test, learner))
    found = coordinate(channel, learner, Wishes("similarity-test", baselines=False), agents=B)
    listened = (found.weights.matrix > 0).sum(axis=0)
    for address, request in channel.requests:
        if request.task == "train":
            assert len(request.arrays["theta"]) <= listened[int(address)]
    rounds = [address for address, request in channel.requests if request.task == "train"]
    assert len(rounds) == 2 * (listened > 0).sum()  # one message per agent and round


def test_every_byte_is_counted(tmp_path: Path) -> None:
    train, test = generated()
    channel = Recording(sites_of(train, test, kinfed.make_learner("ridge")))
    found = run(channel, audit=tmp_path / "audit.jsonl")
    traffic = found.audit.traffic
    sent = sum(payload_bytes(one.settings, one.arrays) for _, one in channel.requests)
    received = sum(payload_bytes(one.settings, one.arrays) for _, _, one in channel.replies)
    assert traffic.loc[traffic.direction == "to the agent", "bytes"].sum() == sent
    assert traffic.loc[traffic.direction == "to the server", "bytes"].sum() == received
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert sum(line.get("bytes", 0) for line in log) == sent + received
    sketches = traffic.query("phase == 'sketches' and direction == 'to the server'")
    features = found.agreement.embeddings[0].features.n_features
    assert (sketches.bytes >= 8 * (features + 1)).all()
    assert (sketches.bytes <= 8 * (features + 1) + 200).all()


def test_an_agreement_reads_back_as_it_was_written() -> None:
    train, test = generated()
    found = run(
        InProcess(sites_of(labelled(train), labelled(test), kinfed.make_learner("logistic"))),
        kinfed.make_learner("logistic"),
    )
    text = found.agreement.to_text()
    again = Agreement.from_text(text)
    assert again.to_text() == text
    assert again.classes.tolist() == ["high", "low", "middle"]
    with pytest.raises(kinfed.InputError, match="cannot be read"):
        Agreement.from_text(text[:-20])


def test_a_site_keeps_its_model_and_can_use_it(tmp_path: Path) -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    sites = [replace(site, out=tmp_path / site.name) for site in sites_of(train, test, learner)]
    found = run(InProcess(sites))
    name = train.names[2]
    kept = load_site_model(tmp_path / name)
    prepared = found.agreement.preparation.transform(test)
    expected = found.methods["personalized"].predict(2, prepared[2].X)
    np.testing.assert_allclose(kept.predict(test[2].X), expected)
    assert kept.weights[name] == pytest.approx(found.weights.matrix[2, 2])
    with pytest.raises(kinfed.InputError, match="no model"):
        load_site_model(tmp_path / "nowhere")


def test_the_outcome_is_written_in_full(tmp_path: Path) -> None:
    train, test = generated()
    found = run(InProcess(sites_of(train, test, kinfed.make_learner("ridge"))))
    found.write(tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "weights.csv", index_col=0).shape == (B, B)
    scores = pd.read_csv(tmp_path / "out" / "scores.csv", index_col="agent")
    assert list(scores) == ["local", "grand-mean", "personalized"]
    with np.load(tmp_path / "out" / "models.npz") as models:
        np.testing.assert_array_equal(models["personalized/coefficients"], found.methods["personalized"].coefficients)
    assert pd.read_csv(tmp_path / "out" / "traffic.csv").bytes.sum() == found.audit.traffic.bytes.sum()
    story = found.story()
    assert story.diagnosis is None  # the rows are at the sites
    assert story.comparisons["local"].first_mean == pytest.approx(scores["personalized"].mean())
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"Personal models of {B} sites" in page
    assert "<h2" in page


def test_learners_that_need_pooled_data_are_refused_before_anybody_is_asked() -> None:
    from sklearn.tree import DecisionTreeRegressor

    train, test = generated()
    with pytest.raises(kinfed.InputError, match="all points in one place"):
        kinfed.personalize(train, DecisionTreeRegressor(), "q-aggregation", test, engine="sites")


def test_every_task_answers_nonsense_with_one_sentence() -> None:
    train, test = generated()
    channel = InProcess(sites_of(train, test, kinfed.make_learner("ridge")))
    for task in [*TASKS, "columns", "scale", "agree", "no such task"]:
        answer = channel.ask({"0": Request(task, {"agreement": "x"})}, 1.0)["0"]
        assert isinstance(answer, Failure), task
        assert "\n" not in answer.reason
