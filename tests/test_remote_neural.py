"""Neural training across sites: against pooled training, and against plain loops where somebody is missing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kinfed import Agent, Federation, InputError
from kinfed.learners.neural import TorchLearner, TorchModels
from kinfed.learners.neural.modules import perceptron
from kinfed.learners.neural.pool import pool_agent, pool_federation
from kinfed.learners.neural.sampling import Stream, generator, shuffled_rows
from kinfed.learners.remote.base import Question, RemoteLearner, Terms
from kinfed.learners.remote.neural import RemoteTorch
from kinfed.learners.remote.neural_agent import AgentSide

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


def terms_of(federation: Federation, regression=False) -> Terms:
    classes = None if regression else np.unique(np.concatenate([agent.y for agent in federation.agents]))
    return Terms(federation.names, federation.sizes, D, classes, SEED)


def ask_of(remote, federation, terms, absent=lambda exchange, place: False, log=None):
    """An exchange within the process; `log` gets the questions of every exchange."""
    seen = [] if log is None else log

    def ask(questions):
        seen.append(questions)
        here = {place: one for place, one in questions.items() if not absent(len(seen) - 1, place)}
        # As from a message: fresh memory that must not be written to.
        return {
            place: {name: read_only(array) for name, array in remote.answer(federation[place], place, terms, one).items()}
            for place, one in here.items()
        }

    return ask


def read_only(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)


def layer_norm(outputs):
    return lambda: nn.Sequential(nn.Linear(D, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, outputs))


def make_learner(regression=False, module=None, **changed) -> TorchLearner:
    task = "regression" if regression else "classification"
    return TorchLearner(**{"hidden": (6,), "module": module, "task": task, "learning_rate": 0.02, **changed})


def both(learner, federation, weights):
    """Models trained on pooled data, and across sites."""
    terms, remote = terms_of(federation, learner.task == "regression"), RemoteTorch(learner)
    across = remote.fit(ask_of(remote, federation, terms), terms, weights)
    return learner.fit(federation, weights, seed=SEED), across


def assert_alike(pooled: TorchModels, across: TorchModels, tolerance: float) -> None:
    np.testing.assert_array_equal(across.lane, pooled.lane)
    np.testing.assert_array_equal(across.classes, pooled.classes)
    assert across.n_inputs == pooled.n_inputs
    assert across.module.training == pooled.module.training
    np.testing.assert_allclose(across.stack.numpy(), pooled.stack.numpy(), atol=tolerance, rtol=0)
    np.testing.assert_allclose(across.history.loss, pooled.history.loss, atol=tolerance, rtol=tolerance)


class InMind:
    """A memory that keeps the last state."""

    def __init__(self):
        self.state = None

    def load(self):
        return self.state

    def save(self, state):
        self.state = dict(state)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), epoch=st.integers(0, 3))
def test_an_agent_alone_shuffles_its_rows_as_in_the_pool(sizes, epoch):
    agents = tuple(Agent(f"{k}", np.zeros((n, 1)), np.zeros(n)) for k, n in enumerate(sizes))
    pool = pool_federation(Federation(agents, ("x",)), "regression", torch.float32, np.random.default_rng(0))
    pooled, _ = shuffled_rows(generator(1, Stream.SHUFFLE, epoch, 0), pool)
    for k, agent in enumerate(agents):
        before = sum(sizes[:k])
        own, _ = shuffled_rows(
            generator(1, Stream.SHUFFLE, epoch, 0), pool_agent(agent, "regression", torch.float32, 1, None, before)
        )
        np.testing.assert_array_equal(own + before, pooled[before : before + sizes[k]])


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
    pooled, across = both(learner, make_federation(regression=regression), mixed_weights())
    assert_alike(pooled, across, 0.0)
    assert not np.allclose(pooled.history.loss[0], pooled.history.loss[-1], atol=0.01)


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
    pooled, across = both(learner, make_federation(regression=regression), mixed_weights())
    assert_alike(pooled, across, tolerance)
    assert not np.allclose(pooled.stack[0], pooled.stack[2], atol=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_text_labels_and_a_start_for_every_row(method):
    federation, weights = make_federation(labels=("ash", "beech", "oak")), mixed_weights()
    learner = make_learner(**METHODS[method], warm_start=make_start(len(weights)), dtype="float64", optimiser="sgd")
    pooled, across = both(learner, federation, weights)
    assert_alike(pooled, across, 1e-12)
    assert across.predict(0, federation[0].X).tolist() == pooled.predict(0, federation[0].X).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_is_sent_each_model_that_listens_to_it_once_and_no_other(method):
    federation, log = make_federation(), []
    weights = mixed_weights()[1:]
    terms, learner = terms_of(federation), make_learner(**METHODS[method], warm_start=make_start(len(weights)))
    remote = RemoteTorch(learner)
    shown = {0: first_parameters(learner, federation, weights)}

    def look(done, models):
        shown[done] = models.stack.numpy()

    remote.fit(ask_of(remote, federation, terms, log=log), terms, weights, monitor=look)
    assert len(log) == 5
    for epoch, questions in enumerate(log):
        assert set(questions) == set(np.flatnonzero((weights > 0).any(axis=0)).tolist())
        for place, question in questions.items():
            assert question.arrays.keys() == {"theta"}
            np.testing.assert_array_equal(question.arrays["theta"], shown[epoch][weights[:, place] > 0])


def first_parameters(learner, federation, weights) -> np.ndarray:
    """What the models start from, seen as the first question of a training in which nobody is left out."""
    log, everybody = [], np.full(weights.shape, 1 / weights.shape[1])
    alone, terms = replace(learner, method="fedavg", rounds=1), terms_of(federation)
    remote = RemoteTorch(alone)
    remote.fit(ask_of(remote, federation, terms, log=log), terms, everybody)
    return log[0][0].arrays["theta"]


def test_equal_rows_are_one_model():
    federation, log = make_federation(), []
    weights = mixed_weights()[[0, 3, 1, 3, 3]]
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS["fedavg"]))
    models = remote.fit(ask_of(remote, federation, terms, log=log), terms, weights)
    assert models.lane.tolist() == [0, 1, 0, 1, 1]
    assert all(len(question.arrays["theta"]) == 2 for questions in log for question in questions.values())
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


def fit_with_absences(learner, federation, weights):
    terms, remote = terms_of(federation), RemoteTorch(learner)
    return remote.fit(ask_of(remote, federation, terms, absences), terms, weights)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_fedavg_with_agents_missing_equals_a_plain_loop(optimiser):
    federation, weights = make_federation(), mixed_weights()
    start, kind = make_start(len(weights)), torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    # A batch larger than every agent is a step on all its rows.
    learner = make_learner(
        method="fedavg", rounds=6, local_epochs=2, batch_size=50, optimiser=optimiser, dtype="float64", warm_start=start
    )
    models, data = fit_with_absences(learner, federation, weights), data_of(federation)
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
    models, data = fit_with_absences(learner, federation, weights), data_of(federation)
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
def test_a_server_killed_at_any_exchange_goes_on_bit_for_bit(method):
    federation, weights = make_federation(), mixed_weights()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS[method]))
    log: list = []
    whole = remote.fit(ask_of(remote, federation, terms, absences, log), terms, weights)
    for killed in range(len(log) + 1):
        memory, answer, count = InMind(), ask_of(remote, federation, terms, absences), [0]

        def dying(questions, answer=answer, count=count, killed=killed):
            if count[0] == killed:
                raise ConnectionError
            count[0] += 1
            return answer(questions)

        if killed < len(log):
            with pytest.raises(ConnectionError):
                remote.fit(dying, terms, weights, memory=memory)
        else:
            remote.fit(dying, terms, weights, memory=memory)
        later: list = []

        def rest(exchange, place, killed=killed):
            return absences(exchange + killed, place)

        again = remote.fit(ask_of(remote, federation, terms, rest, later), terms, weights, memory=memory)
        assert len(later) == len(log) - killed
        assert again.stack.numpy().tobytes() == whole.stack.numpy().tobytes()
        assert again.history.loss.tobytes() == whole.history.loss.tobytes()


def test_a_state_of_another_training_is_refused():
    federation, memory = make_federation(), InMind()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS["full batch"]))
    remote.fit(ask_of(remote, federation, terms), terms, mixed_weights(), memory=memory)
    with pytest.raises(InputError, match="of another training"):
        remote.fit(ask_of(remote, federation, terms), terms, mixed_weights()[:3], memory=memory)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [1, 2])
def test_observers_see_what_they_see_of_pooled_training(method, every):
    federation, weights = make_federation(), mixed_weights()
    terms, learner = terms_of(federation), make_learner(**METHODS[method], optimiser="sgd")
    remote = RemoteTorch(learner)
    seen: dict[str, list] = {"pooled": [], "across": []}

    def observers(kind):
        return {
            "progress": lambda *given: seen[kind].append(given),
            "monitor": lambda done, models: seen[kind].append((done, models)),
            "monitor_every": every,
        }

    learner.fit(federation, weights, seed=SEED, **observers("pooled"))
    remote.fit(ask_of(remote, federation, terms), terms, weights, **observers("across"))
    assert [one[0] for one in seen["across"]] == [one[0] for one in seen["pooled"]]
    assert [one for one in seen["across"] if len(one) == 3] == [one for one in seen["pooled"] if len(one) == 3]
    for (_, across), (_, pooled) in zip(
        (one for one in seen["across"] if len(one) == 2), (one for one in seen["pooled"] if len(one) == 2), strict=True
    ):
        assert_alike(pooled, across, 1e-6)


def first_question(remote, federation, terms, weights) -> dict[int, Question]:
    class Enough(Exception):  # noqa: N818
        pass

    found: list = []

    def ask(questions):
        found.append(questions)
        raise Enough

    with pytest.raises(Enough):
        remote.fit(ask, terms, weights)
    return found[0]


@pytest.mark.parametrize("method", METHODS)
def test_answers_have_their_forms_and_depend_on_the_question_alone(method):
    federation, weights = make_federation(), mixed_weights()
    dropout = lambda: nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES))  # noqa: E731
    terms, learner = terms_of(federation), make_learner(module=dropout, **METHODS[method])
    remote: RemoteLearner = RemoteTorch(learner)
    questions = first_question(remote, federation, terms, weights)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    for place, question in questions.items():
        sent = {name: read_only(array) for name, array in question.arrays.items()}
        answer = remote.answer(federation[place], place, terms, Question(question.settings, sent))
        forms = remote.forms(place, terms, question)
        assert set(answer) == set(forms)
        for name, form in forms.items():
            assert answer[name].shape == form.shape
            assert answer[name].dtype.name == form.dtype
            assert np.linalg.norm(answer[name]) <= form.bound
        assert remote.check(place, terms, question, answer) is None
        same = RemoteTorch(learner).answer(replace(federation[place]), place, terms, question)
        again = remote.answer(federation[place], place, terms, question)
        assert all(answer[name].tobytes() == same[name].tobytes() == again[name].tobytes() for name in answer)
        later = remote.answer(federation[place], place, terms, Question({**question.settings, "epoch": 1}, question.arrays))
        assert later["loss"].tobytes() != answer["loss"].tobytes()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_a_kept_desk_serves_no_other_terms():
    federation, weights = make_federation(), mixed_weights()
    terms, learner = terms_of(federation), make_learner(**METHODS["fedavg, batches"])
    remote = RemoteTorch(learner)
    question = first_question(remote, federation, terms, weights)[3]
    others = (
        (replace(terms, seed=8), 3),
        (replace(terms, classes=np.arange(CLASSES)[[1, 0, 2]]), 3),
        (replace(terms, sizes=terms.sizes + np.array([7, 0, 0, 0, 0, 0])), 3),
    )
    first = remote.answer(federation[3], 3, terms, question)
    for changed, place in others:
        kept = remote.answer(federation[3], place, changed, question)
        fresh = RemoteTorch(learner).answer(federation[3], place, changed, question)
        assert kept["change"].tobytes() == fresh["change"].tobytes()
        assert kept["change"].tobytes() != first["change"].tobytes()


def test_answers_that_cannot_be_are_told_apart():
    federation, weights = make_federation(), mixed_weights()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS["fedavg"]))
    question = first_question(remote, federation, terms, weights)[0]
    answer = remote.answer(federation[0], 0, terms, question)
    far = {**answer, "change": answer["change"].copy()}
    far["change"][1, 0] = 1e4
    assert "too far" in remote.check(0, terms, question, far)
    for name in answer:
        broken = {**answer, name: answer[name].copy()}
        broken[name].reshape(-1)[0] = np.nan
        assert "diverged" in remote.check(0, terms, question, broken)


def test_models_can_be_sent():
    federation, weights = make_federation(labels=("ash", "beech", "oak")), mixed_weights()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(module=layer_norm(CLASSES), **METHODS["fedavg"]))
    models = remote.fit(ask_of(remote, federation, terms), terms, weights)
    rows = np.array([3, 1, 1])
    packed = remote.pack(models, rows)
    unpacked = remote.unpack({name: read_only(array) for name, array in packed.items()}, terms)
    assert packed["parameters"].shape == (3, models.stack.shape[1])
    for place, row in enumerate(rows):
        expected = models.predict_proba(int(row), federation[0].X)
        np.testing.assert_array_equal(unpacked.predict_proba(place, federation[0].X), expected)
        assert set(unpacked.predict(place, federation[0].X)) <= {"ash", "beech", "oak"}
    for wrong in (packed["parameters"][:, :-1], packed["parameters"].astype(np.float64), packed["parameters"][0]):
        with pytest.raises(InputError, match="do not fit the network"):
            remote.unpack({"parameters": wrong}, terms)
    with pytest.raises(InputError, match="NaN or infinite"):
        remote.unpack({"parameters": np.full_like(packed["parameters"], np.nan)}, terms)
    with pytest.raises(InputError, match="do not fit the network: none came"):
        remote.unpack({}, terms)


def test_what_cannot_be_done_is_said():
    federation, weights = make_federation(), mixed_weights()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS["fedavg"]))
    question = first_question(remote, federation, terms, weights)[0]
    with pytest.raises(InputError, match="leave patience out"):
        RemoteTorch(make_learner(patience=3))
    with pytest.raises(InputError, match="same learner"):
        RemoteTorch(make_learner(**METHODS["fedavg"], hidden=(20,))).answer(federation[0], 0, terms, question)
    with pytest.raises(InputError, match="were agreed on"):
        remote.answer(federation[0], 1, terms, question)
    with pytest.raises(InputError, match="not among the 2 classes"):
        remote.answer(federation[0], 0, replace(terms, classes=np.array([0, 1])), question)
    with pytest.raises(InputError, match="give classes in the terms"):
        remote.fit(ask_of(remote, federation, terms), replace(terms, classes=None), weights)
    batch_norm = make_learner(module=lambda: nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, CLASSES)))
    with pytest.raises(InputError, match="BatchNorm1d"):
        RemoteTorch(batch_norm).fit(lambda questions: {}, terms, weights)
    with pytest.raises(InputError, match="row 0 of the weights is not on the simplex"):
        remote.fit(ask_of(remote, federation, terms), terms, weights * 2)
    wild = RemoteTorch(make_learner(regression=True, epochs=50, optimiser="sgd", learning_rate=1e6))
    regression = make_federation(regression=True)
    with pytest.raises(InputError, match="training diverged in epoch"):
        wild.fit(ask_of(wild, regression, terms_of(regression, True)), terms_of(regression, True), weights)


@pytest.mark.parametrize("made", [RemoteTorch, AgentSide])
def test_gradients_of_single_rows_are_refused_at_the_server_and_at_the_agents(made):
    with pytest.raises(InputError, match=r"gradients of single rows.*method='fedavg', or leave batch_size out"):
        made(make_learner(epochs=2, batch_size=4))
    made(make_learner(epochs=2))
    made(make_learner(method="fedavg", batch_size=4))


def test_models_that_hear_nobody_stay_as_they_are():
    federation, weights = make_federation(), mixed_weights()
    start = make_start(len(weights))
    for method in METHODS.values():
        remote = RemoteTorch(make_learner(**method, warm_start=start, dtype="float64"))
        models = remote.fit(lambda questions: {}, terms_of(federation), weights)
        assert all((models.parameters[name] == start[name]).all() for name in start)
        assert np.isnan(models.history.loss).all()


def test_it_survives_a_pickle():
    federation, weights = make_federation(), mixed_weights()
    terms, remote = terms_of(federation), RemoteTorch(make_learner(**METHODS["fedavg, batches"]))
    question = first_question(remote, federation, terms, weights)[0]
    answer = remote.answer(federation[0], 0, terms, question)
    again = pickle.loads(pickle.dumps(remote)).answer(federation[0], 0, terms, question)
    assert answer["change"].tobytes() == again["change"].tobytes()
