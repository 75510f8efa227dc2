"""Networks trained across sites: against training on pooled rows, and against plain loops where somebody is missing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kinfed.backends.agents import Fold
from kinfed.backends.site import question_named
from kinfed.backends.wire import Message
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners.base import Plan, SiteLearner, StepwiseLearner, common_model, fit_planned
from kinfed.learners.neural import TorchLearner, TorchModels, exchange
from kinfed.learners.neural.build import perceptron
from kinfed.learners.neural.exchange import LocalTraining
from kinfed.learners.neural.fedavg import shuffled_rows
from kinfed.learners.neural.rows import Stream, generator, pool_rows
from question_sites import Sites, fit, fits, pooled, sites

pytestmark = pytest.mark.torch

D, CLASSES, SEED = 4, 3, 5

METHODS = {
    "fedavg, batches": {"method": "fedavg", "rounds": 5, "local_epochs": 2, "batch_size": 4},
    "fedavg": {"method": "fedavg", "rounds": 5, "local_epochs": 2},
    "full batch": {"epochs": 5},
}


@pytest.fixture(autouse=True)
def one_thread():
    """The plain loops are fastest on one thread too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_federation(n_agents=6, regression=False, seed=0, labels=(0, 1, 2)) -> Federation:
    rng = np.random.default_rng(seed)
    agents = []
    for k in range(n_agents):
        X = rng.standard_normal((int(rng.integers(5, 15)), D))
        scores = X @ rng.standard_normal((D, CLASSES))
        codes = scores.argmax(axis=1)
        codes[:CLASSES] = np.arange(CLASSES)
        agents.append(Agent(f"site-{k}", X, np.sin(scores[:, 0]) if regression else np.array(labels)[codes]))
    return Federation(tuple(agents), tuple(f"x{j}" for j in range(D)))


def mixed_weights(n_agents=6, seed=1) -> np.ndarray:
    """Rows of all kinds: uniform twice, one agent alone, dense, and sparse."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(n_agents), n_agents + 1) * (rng.random((n_agents + 1, n_agents)) < 0.5)
    rows[:, 0] += rows.sum(axis=1) == 0
    rows[:4] = np.ones(n_agents), np.ones(n_agents), np.eye(n_agents)[2], rng.dirichlet(np.ones(n_agents))
    return rows / rows.sum(axis=1, keepdims=True)


def layer_norm(outputs):
    return lambda: nn.Sequential(nn.Linear(D, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, outputs))


def make_learner(regression=False, module=None, **changed) -> TorchLearner:
    task = "regression" if regression else "classification"
    return TorchLearner(**{"hidden": (6,), "module": module, "task": task, "learning_rate": 0.02, **changed})


def across(learner, federation, **options) -> Sites:
    """The agents as sites of this process."""
    return sites(federation, learner, seed=SEED, **options)


def both(learner, federation, weights):
    """Models trained on pooled rows, and across sites."""
    return fit(learner, federation, weights, seed=SEED), learner.fit(across(learner, federation), weights)


def assert_alike(pooled: TorchModels, across: TorchModels, tolerance: float) -> None:
    np.testing.assert_array_equal(across.model_of, pooled.model_of)
    np.testing.assert_array_equal(across.classes, pooled.classes)
    assert across.n_inputs == pooled.n_inputs
    assert across.module.training == pooled.module.training
    np.testing.assert_allclose(across.stack.numpy(), pooled.stack.numpy(), atol=tolerance, rtol=0)
    np.testing.assert_allclose(across.history.loss, pooled.history.loss, atol=tolerance, rtol=tolerance)


def test_it_is_a_learner_for_sites_and_step_by_step():
    assert isinstance(make_learner(), SiteLearner)
    assert isinstance(make_learner(), StepwiseLearner)
    assert question_named("local-training") is LocalTraining


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), epoch=st.integers(0, 3))
def test_an_agent_alone_shuffles_its_rows_as_in_the_pool(sizes, epoch):
    agents = tuple(Agent(f"{k}", np.zeros((n, 1)), np.zeros(n)) for k, n in enumerate(sizes))
    spec = pooled(Federation(agents, ("x",))).spec
    together, _ = shuffled_rows(generator(1, Stream.SHUFFLE, epoch, 0), pool_rows(agents, spec, "regression", "float32"))
    for k, agent in enumerate(agents):
        before = sum(sizes[:k])
        alone = pool_rows([agent], spec, "regression", "float32", rows_before=before)
        own, _ = shuffled_rows(generator(1, Stream.SHUFFLE, epoch, 0), alone)
        np.testing.assert_array_equal(own + before, together[before : before + sizes[k]])


@pytest.mark.parametrize(
    ("regression", "by_vmap", "optimiser", "dtype"),
    [
        (False, False, "adam", "float32"),
        (False, True, "sgd", "float32"),
        (True, True, "adam", "float32"),
        (True, False, "sgd", "float32"),
        (False, True, "adam", "float64"),
        (True, False, "adam", "float64"),
    ],
)
def test_fedavg_with_batches_equals_pooled_training_bit_for_bit(regression, by_vmap, optimiser, dtype):
    learner = make_learner(
        regression,
        layer_norm(1 if regression else CLASSES) if by_vmap else None,
        **METHODS["fedavg, batches"] | {"rounds": 20},
        optimiser=optimiser,
        dtype=dtype,
        weight_decay=0.01,
    )
    here, there = both(learner, make_federation(regression=regression), mixed_weights())
    assert_alike(here, there, 0.0)
    assert not np.allclose(here.history.loss[0], here.history.loss[-1], atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_steps_for_many_targets_equal_pooled_training_bit_for_bit(dtype):
    # From 16 targets of an agent on, pooled training pads its rows no more.
    learner = make_learner(method="fedavg", rounds=20, local_epochs=2, dtype=dtype)
    weights = np.random.default_rng(3).dirichlet(np.ones(18), 18)
    assert_alike(*both(learner, make_federation(18), weights), 0.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize(
    ("optimiser", "method"),
    # A fresh Adam takes the sign of a gradient: near zero, rounding decides. So not with "fedavg" on few padded rows.
    [("sgd", "fedavg"), ("sgd", "full batch"), ("adam", "full batch")],
)
@pytest.mark.parametrize(("regression", "by_vmap"), [(False, False), (True, True)])
def test_other_methods_equal_pooled_training_up_to_rounding(regression, by_vmap, optimiser, method, dtype, tolerance):
    length = {"rounds": 20} if method == "fedavg" else {"epochs": 20}
    learner = make_learner(
        regression,
        layer_norm(1 if regression else CLASSES) if by_vmap else None,
        **METHODS[method] | length,
        optimiser=optimiser,
        dtype=dtype,
        weight_decay=0.01,
    )
    here, there = both(learner, make_federation(regression=regression), mixed_weights())
    assert_alike(here, there, tolerance)
    assert not np.allclose(here.stack[0], here.stack[2], atol=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_text_labels_and_a_start_for_every_row(method):
    federation, weights = make_federation(labels=("ash", "beech", "oak")), mixed_weights()
    learner = make_learner(**METHODS[method], warm_start=make_start(len(weights)), dtype="float64", optimiser="sgd")
    here, there = both(learner, federation, weights)
    assert_alike(here, there, 1e-12)
    assert there.predict(0, federation[0].X).tolist() == here.predict(0, federation[0].X).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_agents_without_a_fold_train_as_pooled_ones(method):
    federation, weights, fold = make_federation(), mixed_weights(), Fold(0, 1, 3)
    learner = make_learner(**METHODS[method], optimiser="sgd", dtype="float64")
    whole = across(learner, federation)
    here = learner.fit(pooled(federation, learner, seed=SEED).without(fold), weights)
    assert_alike(here, learner.fit(whole.without(fold), weights), 1e-12)
    assert_alike(fit(learner, federation, weights, seed=SEED), learner.fit(whole, weights), 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_common_start_for_fewer_epochs_as_pooled(method):
    federation, weights = make_federation(), mixed_weights()
    learner = make_learner(**METHODS[method], optimiser="sgd", dtype="float64")
    found = []
    for agents in (pooled(federation, learner, seed=SEED), across(learner, federation)):
        shorter = learner.trained_for(0.4, common_model(learner, agents))
        assert shorter.length == 2
        found.append(shorter.fit(agents, weights))
    assert_alike(*found, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_own_rows_after_kin_and_a_pull_to_them_as_pooled(method):
    federation, weights = make_federation(), mixed_weights()[:6]
    learner = make_learner(**METHODS[method], optimiser="sgd", dtype="float64")
    found = [
        [fit_planned(learner, agents, weights, Plan(True, 0.4, own=0.6, pull=pull)) for pull in (0.0, 20.0)]
        for agents in (pooled(federation, learner, seed=SEED), across(learner, federation))
    ]
    for here, there in zip(*found, strict=True):
        assert_alike(here, there, 1e-12)
    free, pulled = found[1]
    kin = fit_planned(learner, across(learner, federation), weights, Plan(True, 0.4))
    away = [(one.stack[one.model_of] - kin.stack[kin.model_of]).norm().item() for one in (free, pulled)]
    assert 0 < away[1] < 0.8 * away[0]


@pytest.mark.parametrize("method", METHODS)
def test_weight_decay_of_a_plan_as_pooled(method):
    federation, weights = make_federation(), mixed_weights()[:6]
    learner = make_learner(**METHODS[method], optimiser="sgd", dtype="float64")
    plan = Plan(False, 1.0, own=0.4, decay=3.0)
    here, there = (
        fit_planned(learner, agents, weights, plan)
        for agents in (pooled(federation, learner, seed=SEED), across(learner, federation))
    )
    assert_alike(here, there, 1e-12)
    free = fit_planned(learner, across(learner, federation), weights, Plan(False, 1.0, own=0.4))
    assert there.stack.norm() < 0.9 * free.stack.norm()


@pytest.mark.parametrize("method", METHODS)
def test_agents_are_asked_in_groups_that_fit_into_memory(monkeypatch, method):
    federation, weights, learner = make_federation(), mixed_weights(), make_learner(**METHODS[method])
    expected = learner.fit(across(learner, federation, silent=absences), weights)
    monkeypatch.setattr(exchange, "IN_FLIGHT", 7 * expected.stack.shape[1] * expected.stack.element_size())
    parts = across(learner, federation, silent=lambda exchange, place: absences(parts.log[exchange][0].epoch, place))
    found = learner.fit(parts, weights)
    assert len(parts.log) >= 3 * 5
    assert all(sum(len(message.arrays["theta"]) for message in asked.values()) <= 7 for _, asked in parts.log)
    assert found.stack.numpy().tobytes() == expected.stack.numpy().tobytes()
    assert found.history.loss.tobytes() == expected.history.loss.tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_pooled_agents_answer_the_question_as_sites_do(method):
    federation, weights, learner = make_federation(), mixed_weights(), make_learner(**METHODS[method])
    (question, _), *_ = question_log(learner, federation, weights)
    here, there = (agents.ask(question) for agents in (pooled(federation, learner, seed=SEED), across(learner, federation)))
    assert here.total.abs().max() > 0
    assert torch.equal(here.total, there.total)
    assert torch.equal(here.loss, there.loss)


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_is_sent_each_model_that_listens_to_it_once_and_no_other(method):
    federation, weights = make_federation(), mixed_weights()[1:]
    learner = make_learner(**METHODS[method], warm_start=make_start(len(weights)))
    shown = {0: first_parameters(learner, federation, weights)}

    def look(done, models):
        shown[done] = models.stack.numpy()

    agents = across(learner, federation)
    learner.fit(agents, weights, monitor=look)
    assert len(agents.log) == 5
    for epoch, (_, asked) in enumerate(agents.log):
        assert set(asked) == set(np.flatnonzero((weights > 0).any(axis=0)).tolist())
        for place, message in asked.items():
            assert message.arrays.keys() == {"theta"}
            assert message.settings == {"epoch": epoch}
            np.testing.assert_array_equal(message.arrays["theta"], shown[epoch][weights[:, place] > 0])


def first_parameters(learner, federation, weights) -> np.ndarray:
    """What the models start from, seen as the first message of a training in which nobody is left out."""
    everybody = np.full(weights.shape, 1 / weights.shape[1])
    _, asked = question_log(replace(learner, method="fedavg", rounds=1), federation, everybody)[0]
    return asked[0].arrays["theta"]


def question_log(learner, federation, weights):
    """Questions and messages of a training in which nobody answers."""
    agents = across(learner, federation, silent=lambda exchange, place: True)
    learner.fit(agents, weights)
    return agents.log


def test_equal_rows_are_one_model():
    learner = make_learner(**METHODS["fedavg"])
    agents = across(learner, make_federation())
    models = learner.fit(agents, mixed_weights()[[0, 3, 1, 3, 3]])
    assert models.model_of.tolist() == [0, 1, 0, 1, 1]
    assert all(len(message.arrays["theta"]) == 2 for _, asked in agents.log for message in asked.values())
    assert models.history.loss.shape == (5, 5)


def make_start(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    shapes = {name: tuple(value.shape) for name, value in perceptron(D, (6,), CLASSES).named_parameters()}
    return {name: 0.5 * rng.standard_normal((rows, *shape)) for name, shape in shapes.items()}


def load(start, row) -> nn.Module:
    module = perceptron(D, (6,), CLASSES).double()
    module.load_state_dict({name: torch.tensor(value[row]) for name, value in start.items()})
    return module


def data_of(federation):
    return [(torch.tensor(agent.X), torch.tensor(agent.y)) for agent in federation.agents]


def assert_row(models: TorchModels, row: int, module: nn.Module) -> None:
    for name, value in module.named_parameters():
        np.testing.assert_allclose(models.parameters[name][row], value.detach().numpy(), atol=1e-11, rtol=0)


def absences(exchange: int, place: int) -> bool:
    """Agents 2 and 4 miss some exchanges; the row that listens to 2 alone then hears nobody."""
    return (exchange % 3 == 1 and place == 2) or (exchange in (0, 2) and place == 4)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_fedavg_with_agents_missing_equals_a_plain_loop(optimiser):
    federation, weights = make_federation(), mixed_weights()
    start, kind = make_start(len(weights)), torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    # A batch larger than every agent is a step on all its rows.
    learner = make_learner(
        method="fedavg", rounds=6, local_epochs=2, batch_size=50, optimiser=optimiser, dtype="float64", warm_start=start
    )
    models, data = learner.fit(across(learner, federation, silent=absences), weights), data_of(federation)
    for row, own in enumerate(weights):
        module = load(start, row)
        for turn in range(6):
            here = {k: w for k, w in enumerate(own) if w > 0 and not absences(turn, k)}
            assert np.isnan(models.history.loss[turn, row]) == (not here)
            before = [value.detach().clone() for value in module.parameters()]
            after = [value.clone() for value in before]
            for k, w in here.items():
                local = perceptron(D, (6,), CLASSES).double()
                local.load_state_dict(module.state_dict())
                steps = kind(local.parameters(), lr=0.02)
                X, y = data[k]
                for _ in range(2):
                    steps.zero_grad()
                    nn.functional.cross_entropy(local(X), y).backward()
                    steps.step()
                for total, old, new in zip(after, before, local.parameters(), strict=True):
                    total += w / sum(here.values()) * (new.detach() - old)
            with torch.no_grad():
                for value, new in zip(module.parameters(), after, strict=True):
                    value.copy_(new)
        assert_row(models, row, module)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_full_batches_with_agents_missing_equal_a_plain_loop(optimiser):
    federation, weights = make_federation(), mixed_weights()
    start, kind = make_start(len(weights)), torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    learner = make_learner(epochs=7, optimiser=optimiser, dtype="float64", warm_start=start, weight_decay=0.1)
    models, data = learner.fit(across(learner, federation, silent=absences), weights), data_of(federation)
    for row, own in enumerate(weights):
        module = load(start, row)
        steps = kind(module.parameters(), lr=0.02, weight_decay=0.1)
        for epoch in range(7):
            here = {k: w for k, w in enumerate(own) if w > 0 and not absences(epoch, k)}
            assert np.isnan(models.history.loss[epoch, row]) == (not here)
            if here:  # a row that hears nobody stays as it is
                steps.zero_grad()
                parts = [w * nn.functional.cross_entropy(module(data[k][0]), data[k][1]) for k, w in here.items()]
                (sum(parts) / sum(here.values())).backward()
                steps.step()
        assert_row(models, row, module)


@pytest.mark.parametrize("method", METHODS)
def test_a_spoiled_answer_is_left_out_as_a_missing_one(method):
    federation, weights, learner = make_federation(), mixed_weights(), make_learner(**METHODS[method])

    def spoil(exchange, place, answer):
        if not absences(exchange, place):
            return answer
        return Message(answer.settings, {name: np.full_like(array, np.nan) for name, array in answer.arrays.items()})

    spoiled = learner.fit(across(learner, federation, spoil=spoil), weights)
    missing = learner.fit(across(learner, federation, silent=absences), weights)
    assert spoiled.stack.numpy().tobytes() == missing.stack.numpy().tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_a_server_killed_at_any_exchange_goes_on_bit_for_bit(method, tmp_path):
    federation, weights, learner = make_federation(), mixed_weights(), make_learner(**METHODS[method])
    agents = across(learner, federation, silent=absences)
    whole = learner.fit(agents, weights)
    for killed in range(len(agents.log) + 1):

        def dying(exchange, place, killed=killed):
            if exchange == killed:
                raise ConnectionError
            return absences(exchange, place)

        def rest(exchange, place, killed=killed):
            return absences(exchange + killed, place)

        folder = tmp_path / str(killed)
        if killed < len(agents.log):
            with pytest.raises(ConnectionError):
                learner.fit(across(learner, federation, silent=dying), weights, checkpoint=folder)
        else:
            learner.fit(across(learner, federation, silent=dying), weights, checkpoint=folder)
        later = across(learner, federation, silent=rest)
        again = learner.fit(later, weights, checkpoint=folder)
        assert len(later.log) == len(agents.log) - killed
        assert again.stack.numpy().tobytes() == whole.stack.numpy().tobytes()
        assert again.history.loss.tobytes() == whole.history.loss.tobytes()


def test_a_state_of_another_training_is_refused(tmp_path):
    federation, learner = make_federation(), make_learner(**METHODS["full batch"])
    learner.fit(across(learner, federation), mixed_weights(), checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"of another run \(different: weights\)"):
        learner.fit(across(learner, federation), mixed_weights()[:3], checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"of another run \(different: data\)"):
        learner.fit(across(learner, make_federation(seed=1)), mixed_weights(), checkpoint=tmp_path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [1, 2])
def test_observers_see_what_they_see_of_pooled_training(method, every):
    federation, weights = make_federation(), mixed_weights()
    learner = make_learner(**METHODS[method], optimiser="sgd")
    seen: dict[str, list] = {"pooled": [], "across": []}

    def observers(kind):
        return {
            "progress": lambda *given: seen[kind].append(given),
            "monitor": lambda done, models: seen[kind].append((done, models)),
            "monitor_every": every,
        }

    fit(learner, federation, weights, seed=SEED, **observers("pooled"))
    learner.fit(across(learner, federation), weights, **observers("across"))
    assert [one[0] for one in seen["across"]] == [one[0] for one in seen["pooled"]]
    assert [one for one in seen["across"] if len(one) == 3] == [one for one in seen["pooled"] if len(one) == 3]
    for (_, there), (_, here) in zip(
        (one for one in seen["across"] if len(one) == 2), (one for one in seen["pooled"] if len(one) == 2), strict=True
    ):
        assert_alike(here, there, 1e-6)


def read_only(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)


@pytest.mark.parametrize("method", METHODS)
def test_answers_have_their_forms_and_depend_on_the_question_alone(method):
    federation, weights = make_federation(), mixed_weights()
    dropout = lambda: nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES))  # noqa: E731
    learner = make_learner(module=dropout, **METHODS[method])
    question, asked = question_log(learner, federation, weights)[0]
    agents = pooled(federation, learner, seed=SEED)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    for place, message in asked.items():
        site = agents.site(place)
        sent = Message(message.settings, {name: read_only(array) for name, array in message.arrays.items()})
        answer = LocalTraining.answer(site, sent)
        assert fits(answer.arrays, question.form(agents, place, message))
        assert question.fault(agents, place, message, answer) is None
        fresh = replace(site, learner=replace(learner), agent=replace(site.agent))
        same, again = LocalTraining.answer(fresh, message), LocalTraining.answer(agents.site(place), message)
        for name, array in answer.arrays.items():
            assert array.tobytes() == same.arrays[name].tobytes() == again.arrays[name].tobytes()
        later = LocalTraining.answer(site, Message({"epoch": 1}, message.arrays))
        assert later.arrays["loss"].tobytes() != answer.arrays["loss"].tobytes()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_what_is_kept_for_an_agent_is_made_once_and_serves_no_other_spec():
    federation, weights = make_federation(), mixed_weights()
    learner = make_learner(**METHODS["fedavg, batches"])
    message = question_log(learner, federation, weights)[0][1][3]
    agents = pooled(federation, learner, seed=SEED)
    site, spec = agents.site(3), agents.spec
    first = LocalTraining.answer(site, message).arrays["change"]
    pool, network = learner.site_memory.recall(site)
    assert learner.site_memory.recall(agents.site(3)) == (pool, network)
    assert learner.site_memory.recall(agents.site(4))[1] is network
    others = (
        replace(spec, seed=8),
        replace(spec, classes=np.arange(CLASSES + 1)),
        replace(spec, sizes=spec.sizes + np.array([7, 0, 0, 0, 0, 0])),
    )
    for changed in others:
        kept = LocalTraining.answer(replace(site, spec=changed), message).arrays["change"]
        fresh = LocalTraining.answer(replace(site, spec=changed, learner=replace(learner)), message).arrays["change"]
        assert kept.tobytes() == fresh.tobytes()
        assert kept.tobytes() != first.tobytes()


def test_answers_that_cannot_be_are_told_apart():
    federation, learner = make_federation(), make_learner(**METHODS["fedavg"])
    question, asked = question_log(learner, federation, mixed_weights())[0]
    agents = pooled(federation, learner, seed=SEED)
    answer = LocalTraining.answer(agents.site(0), asked[0]).arrays
    far = {**answer, "change": answer["change"].copy()}
    far["change"][1, 0] = 1e4
    assert "too far" in question.fault(agents, 0, asked[0], Message(arrays=far))
    far["change"][1, 0] = 1e8
    assert not fits(far, question.form(agents, 0, asked[0]))
    for name in answer:
        broken = {**answer, name: answer[name].copy()}
        broken[name].reshape(-1)[0] = np.nan
        assert "diverged" in question.fault(agents, 0, asked[0], Message(arrays=broken))


def test_models_can_be_sent():
    federation, weights = make_federation(labels=("ash", "beech", "oak")), mixed_weights()
    learner = make_learner(module=layer_norm(CLASSES), **METHODS["fedavg"])
    agents = across(learner, federation)
    models, spec = learner.fit(agents, weights), agents.spec
    rows = np.array([3, 1, 1])
    packed = learner.pack(models, rows)
    unpacked = learner.unpack({name: read_only(array) for name, array in packed.items()}, spec)
    assert packed["parameters"].shape == (3, models.stack.shape[1])
    for place, row in enumerate(rows):
        expected = models.predict_proba(int(row), federation[0].X)
        np.testing.assert_array_equal(unpacked.predict_proba(place, federation[0].X), expected)
        assert set(unpacked.predict(place, federation[0].X)) <= {"ash", "beech", "oak"}
    for wrong in (packed["parameters"][:, :-1], packed["parameters"].astype(np.float64), packed["parameters"][0]):
        with pytest.raises(InputError, match=r"of type float32 and shape \(models, .*\) is expected"):
            learner.unpack({"parameters": wrong}, spec)
    with pytest.raises(InputError, match="NaN or infinite"):
        learner.unpack({"parameters": np.full_like(packed["parameters"], np.nan)}, spec)
    with pytest.raises(InputError, match="have no parameters"):
        learner.unpack({}, spec)
    with pytest.raises(InputError, match="torch packs TorchModels"):
        learner.pack(object(), rows)


class Trusting(Sites):
    """A server that looks at no answer before it is used."""

    def ask(self, question):
        messages = question.messages(self)
        answers = {k: type(question).answer(self.agents.site(k), message) for k, message in messages.items()}
        return question.combine(self, answers)


def test_what_cannot_be_done_is_said():
    federation, weights, learner = make_federation(), mixed_weights(), make_learner(**METHODS["fedavg"])
    message = question_log(learner, federation, weights)[0][1][0]
    agents = pooled(federation, learner, seed=SEED)
    site, spec = agents.site(0), agents.spec
    stopping = make_learner(patience=3)
    with pytest.raises(InputError, match="leave patience out"):
        stopping.check_sites()
    with pytest.raises(InputError, match="leave patience out"):
        stopping.fit(across(stopping, federation), weights)
    with pytest.raises(InputError, match="same learner"):
        LocalTraining.answer(replace(site, learner=make_learner(**METHODS["fedavg"], hidden=(20,))), message)
    with pytest.raises(InputError, match="were agreed on"):
        LocalTraining.answer(replace(site, place=1), message)
    with pytest.raises(InputError, match="not among the 2 classes"):
        LocalTraining.answer(replace(site, spec=replace(spec, classes=np.array([0, 1]))), message)
    with pytest.raises(InputError, match="give classes in the spec"):
        learner.fit(sites(federation, learner, task="regression"), weights)
    batch_norm = make_learner(module=lambda: nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, CLASSES)))
    with pytest.raises(InputError, match="BatchNorm1d"):
        batch_norm.fit(across(batch_norm, federation), weights)
    with pytest.raises(InputError, match="row 0 of the weights is not on the simplex"):
        learner.fit(across(learner, federation), weights * 2)
    wild = make_learner(regression=True, epochs=50, optimiser="sgd", learning_rate=1e6)
    with pytest.raises(InputError, match="training diverged in epoch"):
        wild.fit(Trusting(pooled(make_federation(regression=True), wild)), weights)


def test_gradients_of_single_rows_are_refused_at_the_server_and_at_the_agents():
    federation, weights = make_federation(), mixed_weights()
    learner, message = make_learner(epochs=2, batch_size=4), Message({"epoch": 0}, {"theta": np.zeros((1, 64), "float32")})
    refused = r"gradients of single rows.*method='fedavg', or leave batch_size out"
    with pytest.raises(InputError, match=refused):
        learner.check_sites()
    with pytest.raises(InputError, match=refused):
        learner.fit(across(learner, federation), weights)
    with pytest.raises(InputError, match=refused):
        LocalTraining.answer(pooled(federation, learner, seed=SEED).site(0), message)
    for other in (make_learner(epochs=2), make_learner(method="fedavg", batch_size=4)):
        other.check_sites()
        assert LocalTraining.answer(pooled(federation, other, seed=SEED).site(0), message).arrays["loss"].shape == (1,)


def test_models_that_hear_nobody_stay_as_they_are():
    federation, weights = make_federation(), mixed_weights()
    start = make_start(len(weights))
    for method in METHODS.values():
        learner = make_learner(**method, warm_start=start, dtype="float64")
        models = learner.fit(across(learner, federation, silent=lambda exchange, place: True), weights)
        assert all((models.parameters[name] == start[name]).all() for name in start)
        assert np.isnan(models.history.loss).all()


def test_it_survives_a_pickle():
    federation, learner = make_federation(), make_learner(**METHODS["fedavg, batches"])
    message = question_log(learner, federation, mixed_weights())[0][1][0]
    site = pooled(federation, learner, seed=SEED).site(0)
    answer = LocalTraining.answer(site, message)
    again = LocalTraining.answer(replace(site, learner=pickle.loads(pickle.dumps(learner))), message)
    assert answer.arrays["change"].tobytes() == again.arrays["change"].tobytes()
    assert repr(pickle.loads(pickle.dumps(learner))) == repr(learner)
