"""The torch learner against plain loops over targets, written with nn.Module, autograd and torch.optim."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kinfed import checkpoint
from kinfed.errors import InputError, KinfedError, MissingExtraError
from kinfed.federation import Agent, Federation
from kinfed.learners.neural import TorchLearner, TorchModels
from kinfed.learners.neural.build import perceptron
from kinfed.learners.neural.model_stack import Cost, ModelStack, StackedModule, cross_entropy
from kinfed.learners.neural.rows import Stream, generator, pool_rows
from kinfed.learners.neural.weighted_risk import mixture_rows, stratified_uniforms
from question_sites import fit, pooled

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread():
    """The plain loops are fastest on one thread too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def an_agent(X: np.ndarray, y: np.ndarray | None) -> Agent:
    return Agent("unnamed", X, y)


def federation_of(agents: list[Agent]) -> Federation:
    """The agents as site-0, site-1, ..."""
    named = tuple(replace(agent, name=f"site-{k}") for k, agent in enumerate(agents))
    return Federation(named, tuple(f"x{j}" for j in range(agents[0].X.shape[1])))


def make_federation(n_agents=5, d=4, classes=3, seed=0, low=6, high=15, regression=False) -> Federation:
    rng = np.random.default_rng(seed)
    agents = []
    for _ in range(n_agents):
        X = rng.standard_normal((int(rng.integers(low, high)), d))
        scores = X @ rng.standard_normal((d, classes)) + rng.standard_normal(classes)
        agents.append(an_agent(X, np.sin(scores[:, 0]) if regression else scores.argmax(axis=1)))
    # Every class occurs, whatever was drawn.
    if not regression:
        agents[0].y[:classes] = np.arange(classes)
    return federation_of(agents)


def sparse_weights(n_agents=5, seed=1) -> np.ndarray:
    """Rows of all kinds: local, uniform twice, sparse and dense."""
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.ones(n_agents), n_agents + 2) * (rng.random((n_agents + 2, n_agents)) < 0.6)
    matrix[0] = 1 / n_agents
    matrix[1] = 1 / n_agents
    matrix[2] = np.eye(n_agents)[2]
    matrix[3] = rng.dirichlet(np.ones(n_agents))
    matrix[matrix.sum(axis=1) == 0, 0] = 1.0
    return matrix / matrix.sum(axis=1, keepdims=True)


def pool_of(federation: Federation, held_out_share=0.0):
    spec = pooled(federation, task="classification").spec
    return pool_rows(federation.agents, spec, "classification", "float32", held_out_share=held_out_share)


def make_start(module: nn.Module, rows: int, seed=0, scale=0.5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
    return {name: scale * rng.standard_normal((rows, *shape)).astype(np.float32) for name, shape in shapes.items()}


def load(module: nn.Module, start: dict[str, np.ndarray], row: int) -> nn.Module:
    chosen = row if len(next(iter(start.values()))) > 1 else 0
    module.load_state_dict({name: torch.tensor(value[chosen]) for name, value in start.items()})
    return module


def row_losses(outputs, y, regression):
    if regression:
        return (outputs[:, 0] - y) ** 2
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def tensors(federation, regression=False):
    kind = torch.float32 if regression else torch.int64
    return [(torch.tensor(a.X, dtype=torch.float32), torch.tensor(a.y, dtype=kind)) for a in federation.agents]


def optimiser_for(name, module, learning_rate, weight_decay=0.0):
    kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
    return kind(module.parameters(), lr=learning_rate, weight_decay=weight_decay)


def parameters_of(module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in module.named_parameters()}


def assert_close(models: TorchModels, row: int, module: nn.Module, tolerance: float) -> None:
    for name, value in parameters_of(module).items():
        np.testing.assert_allclose(models.parameters[name][row], value, atol=tolerance, rtol=0)


def stack_bytes(models: TorchModels) -> bytes:
    return b"".join(value.tobytes() for value in models.parameters.values())


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("optimiser", "learning_rate"), [("adam", 0.02), ("sgd", 0.1)])
@pytest.mark.parametrize("rows_at_once", [None, 3])
def test_full_batch_equals_a_loop_over_targets(monkeypatch, optimiser, learning_rate, regression, rows_at_once):
    if rows_at_once:  # many blocks and chunks instead of one
        monkeypatch.setattr(Cost, "rows_at_once", lambda self, models: rows_at_once)
        monkeypatch.setattr(Cost, "models_at_once", lambda self, rows: 2)
    federation, weights = make_federation(regression=regression), sparse_weights()
    outputs = 1 if regression else 3
    start = make_start(perceptron(4, (6, 5), outputs), len(weights))
    models = fit(
        TorchLearner(
            hidden=(6, 5),
            task="regression" if regression else "classification",
            optimiser=optimiser,
            learning_rate=learning_rate,
            weight_decay=0.01,
            epochs=30,
            warm_start=start,
        ),
        federation,
        weights,
    )
    data = tensors(federation, regression)
    for row, own in enumerate(weights):
        module = load(perceptron(4, (6, 5), outputs), start, row)
        steps = optimiser_for(optimiser, module, learning_rate, 0.01)
        for _ in range(30):
            steps.zero_grad()
            risk = sum(
                w * row_losses(module(X), y, regression).mean() for w, (X, y) in zip(own, data, strict=True) if w > 0
            )
            risk.backward()
            steps.step()
        assert_close(models, row, module, 1e-5)
        np.testing.assert_allclose(models.history.loss[-1, row], risk.item(), rtol=1e-4)


@pytest.mark.parametrize("settings", [{"epochs": 3000}, {"method": "fedavg", "rounds": 3000}])
def test_a_pull_has_the_minimum_of_ridge_about_the_start(settings):
    federation, pull = make_federation(regression=True), 0.7
    start = make_start(perceptron(4, (), 1), 5, scale=2.0)
    shared = {"hidden": (), "task": "regression", "optimiser": "sgd", "learning_rate": 0.05, "dtype": "float64"}
    models = fit(TorchLearner(**shared, **settings, warm_start=start, proximal=pull), federation, np.eye(5))
    for k, agent in enumerate(federation.agents):
        X = np.column_stack([agent.X, np.ones(len(agent))])
        begin = np.append(start["0.weight"][k], start["0.bias"][k])
        # Twice, as the loss is the square and not half of it.
        expected = np.linalg.solve(2 * X.T @ X / len(X) + pull * np.eye(5), 2 * X.T @ agent.y / len(X) + pull * begin)
        found = np.append(models.parameters["0.weight"][k], models.parameters["0.bias"][k])
        np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_pull_equals_a_loop_with_the_term_in_its_loss(optimiser):
    federation, weights, pull = make_federation(), sparse_weights(), 0.5
    start = make_start(perceptron(4, (6,), 3), len(weights))
    how = {"optimiser": optimiser, "learning_rate": 0.02, "epochs": 30, "warm_start": start, "proximal": pull}
    models = fit(TorchLearner(hidden=(6,), **how), federation, weights)
    data = tensors(federation)
    for row, own in enumerate(weights):
        module = load(perceptron(4, (6,), 3), start, row)
        begin = [value.detach().clone() for value in module.parameters()]
        steps = optimiser_for(optimiser, module, 0.02)
        for _ in range(30):
            steps.zero_grad()
            risk = sum(w * row_losses(module(X), y, False).mean() for w, (X, y) in zip(own, data, strict=True) if w > 0)
            away = sum((now - then).square().sum() for now, then in zip(module.parameters(), begin, strict=True))
            (risk + pull / 2 * away).backward()
            steps.step()
        assert_close(models, row, module, 1e-5)


@pytest.mark.parametrize("n_models", [12, 3])
def test_full_batch_shares_the_rows_of_equal_supports(n_models):
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.ones(5), n_models)
    weights[:, 4] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    learner = TorchLearner(hidden=(6,), epochs=10, learning_rate=0.05)
    together = fit(learner, make_federation(), weights)
    for row in range(n_models):
        alone = fit(learner, make_federation(), weights[row : row + 1])
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(together.parameters[name][row], value[0], atol=1e-5)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_mini_batches_equal_a_loop_on_the_same_rows(optimiser):
    federation, weights = make_federation(), sparse_weights()
    start, batch, steps, epochs, seed = make_start(perceptron(4, (6,), 3), len(weights)), 4, 3, 6, 11
    models = fit(
        TorchLearner(
            hidden=(6,),
            optimiser=optimiser,
            learning_rate=0.05,
            epochs=epochs,
            batch_size=batch,
            steps_per_epoch=steps,
            warm_start=start,
        ),
        federation,
        weights,
        seed=seed,
    )
    data = tensors(federation)
    for row, own in enumerate(weights):
        module = load(perceptron(4, (6,), 3), start, row)
        optimise = optimiser_for(optimiser, module, 0.05)
        for epoch in range(epochs):
            uniforms = stratified_uniforms(generator(seed, Stream.MIXTURE, epoch), steps * batch)
            drawn = [draw_by_hand(u, own, federation.sizes) for u in uniforms]
            for step in range(steps):
                chosen = drawn[step * batch : (step + 1) * batch]
                X = torch.stack([data[k][0][i] for k, i in chosen])
                y = torch.stack([data[k][1][i] for k, i in chosen])
                optimise.zero_grad()
                row_losses(module(X), y, False).mean().backward()
                optimise.step()
        assert_close(models, row, module, 1e-5)


def draw_by_hand(uniform, weights, sizes):
    low = 0.0
    for agent, weight in enumerate(weights):
        if uniform < low + weight:
            return agent, int((uniform - low) / weight * sizes[agent])
        low += weight
    raise AssertionError


def test_draws_are_unbiased_and_even():
    federation, weights = make_federation(), sparse_weights()
    pool = pool_of(federation)
    own = torch.full((len(weights),), -1)
    counts, repeats, size = np.zeros((len(weights), len(pool.agents))), 400, 50
    for repeat in range(repeats):
        uniforms = torch.from_numpy(stratified_uniforms(np.random.default_rng(repeat), size))
        rows = mixture_rows(uniforms, torch.from_numpy(weights), own, pool).numpy()
        for model, drawn in enumerate(rows):
            counts[model] += np.bincount(drawn, minlength=len(pool.agents))
            of_agent = np.bincount(pool.agents.numpy()[drawn], minlength=5)
            assert (of_agent[weights[model] == 0] == 0).all()
            assert (np.abs(of_agent - size * weights[model]) < 2).all()
    expected = weights[:, pool.agents.numpy()] / federation.sizes[pool.agents.numpy()] * size * repeats
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected) + 1e-9).all()


def test_an_agent_alone_sees_each_row_once_an_epoch():
    federation = make_federation(n_agents=2, low=12, high=13)
    pool = pool_of(federation)
    uniforms = torch.from_numpy(stratified_uniforms(np.random.default_rng(0), 12))
    rows = mixture_rows(uniforms, torch.eye(2, dtype=torch.float64), torch.tensor([-1, -1]), pool)
    assert sorted(rows[0].tolist()) == list(range(12))
    assert sorted(rows[1].tolist()) == list(range(12, 24))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-13)])
def test_fedavg_with_one_whole_step_is_gradient_descent_on_the_weighted_risk(dtype, tolerance):
    federation, weights = make_federation(), sparse_weights()
    start = make_start(perceptron(4, (6,), 3), len(weights))
    shared = {"hidden": (6,), "optimiser": "sgd", "learning_rate": 0.1, "warm_start": start, "dtype": dtype}
    averaged = fit(TorchLearner(method="fedavg", rounds=15, local_epochs=1, **shared), federation, weights)
    descended = fit(TorchLearner(epochs=15, **shared), federation, weights)
    for name, value in descended.parameters.items():
        np.testing.assert_allclose(averaged.parameters[name], value, atol=tolerance, rtol=0)
    np.testing.assert_allclose(averaged.history.loss, descended.history.loss, atol=10 * tolerance)


@pytest.mark.parametrize("n_targets", [7, 20])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_fedavg_equals_a_loop_over_targets_and_agents(monkeypatch, optimiser, batch_size, n_targets):
    monkeypatch.setattr(Cost, "models_at_once", lambda self, rows: 17)
    federation = make_federation()
    weights = sparse_weights() if n_targets == 7 else np.random.default_rng(5).dirichlet(np.ones(5), n_targets)
    start, rounds, local_epochs, seed = make_start(perceptron(4, (6,), 3), 1), 3, 2, 4
    models = fit(
        TorchLearner(
            hidden=(6,),
            method="fedavg",
            optimiser=optimiser,
            learning_rate=0.05,
            rounds=rounds,
            local_epochs=local_epochs,
            batch_size=batch_size,
            warm_start=start,
        ),
        federation,
        weights,
        seed=seed,
    )
    data = tensors(federation)
    first = np.concatenate([[0], np.cumsum(federation.sizes)])
    for row, own in enumerate(weights):
        target = load(perceptron(4, (6,), 3), start, row)
        for number in range(rounds):
            change = {name: np.zeros_like(value) for name, value in parameters_of(target).items()}
            for agent in np.flatnonzero(own):
                local = perceptron(4, (6,), 3)
                local.load_state_dict(target.state_dict())
                optimise = optimiser_for(optimiser, local, 0.05)
                for epoch in range(local_epochs):
                    keys = generator(seed, Stream.SHUFFLE, number, epoch).random(first[-1])
                    order = np.argsort(keys[first[agent] : first[agent + 1]])
                    size = batch_size or len(order)
                    for begin in range(0, len(order), size):
                        chosen = torch.from_numpy(order[begin : begin + size])
                        optimise.zero_grad()
                        X, y = data[agent]
                        row_losses(local(X[chosen]), y[chosen], False).mean().backward()
                        optimise.step()
                for name, value in parameters_of(local).items():
                    change[name] += own[agent] * (value - parameters_of(target)[name])
            moved = {name: torch.tensor(value + change[name]) for name, value in parameters_of(target).items()}
            target.load_state_dict(moved)
        assert_close(models, row, target, 1e-5)


def test_gradient_of_the_weighted_risk_equals_finite_differences():
    rng = np.random.default_rng(0)
    module = perceptron(3, (4,), 3).double()
    stacked = StackedModule(module, cross_entropy, scalar=False)
    parameters = torch.from_numpy(rng.standard_normal((2, stacked.layout.width)))
    X, y = torch.from_numpy(rng.standard_normal((2, 7, 3))), torch.from_numpy(rng.integers(0, 3, (2, 7)))
    weights = torch.from_numpy(rng.dirichlet(np.ones(7), 2))
    models = ModelStack(stacked, parameters)
    models.add_gradient(X, y, weights, fresh=True)
    used = stacked.layout.spans[-1][1]
    step = 1e-6
    for model, place in itertools.product(range(2), range(used)):
        moved = []
        for sign in (1, -1):
            shifted = parameters.clone()
            shifted[model, place] += sign * step
            moved.append(ModelStack(stacked, shifted).evaluate(X, y, weights)[model].item())
        assert abs((moved[0] - moved[1]) / (2 * step) - models.gradient[model, place].item()) < 1e-7


SETTINGS = {
    "full batch": {"epochs": 12},
    "mini-batch": {"epochs": 6, "batch_size": 4},
    "sgd": {"epochs": 6, "optimiser": "sgd", "learning_rate": 0.1},
    "fedavg": {"method": "fedavg", "rounds": 5, "local_epochs": 2},
    "fedavg, batches": {"method": "fedavg", "rounds": 5, "batch_size": 4},
    "pulled back": {"epochs": 6, "batch_size": 4, "proximal": 2.0},
    "fedavg, pulled back": {"method": "fedavg", "rounds": 5, "batch_size": 4, "proximal": 2.0},
    "early stopping": {"epochs": 30, "patience": 2, "learning_rate": 0.05},
    "early stopping, batches": {"epochs": 30, "patience": 2, "batch_size": 4, "learning_rate": 0.05},
    "early stopping, fedavg": {"method": "fedavg", "rounds": 20, "patience": 2, "batch_size": 4, "learning_rate": 0.05},
    "dropout": {
        "epochs": 6,
        "batch_size": 4,
        "module": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)),
    },
    "layer norm": {
        "epochs": 6,
        "batch_size": 4,
        "module": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3)),
    },
}


@pytest.fixture(params=SETTINGS)
def settings(request):
    return {"hidden": (6,), **SETTINGS[request.param]}


def test_agents_of_weight_zero_never_touch_a_model(settings):
    clean, weights = make_federation(), sparse_weights()[:5]
    weights[:, 3] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    poisoned = federation_of([*clean.agents[:3], an_agent(1e30 * clean[3].X, clean[3].y), clean[4]])
    targets = np.array([0, 1, 2, 0, 4])
    expected = fit(TorchLearner(**settings), clean, weights, targets=targets)
    found = fit(TorchLearner(**settings), poisoned, weights, targets=targets)
    assert stack_bytes(found) == stack_bytes(expected)


def test_equal_seeds_give_equal_bytes_and_leave_torch_alone(settings):
    federation, weights = make_federation(), sparse_weights()[:5]
    torch.manual_seed(123)
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    once = fit(TorchLearner(**settings), federation, weights, seed=7)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == 2
    torch.rand(5)
    again = fit(TorchLearner(**settings), federation, weights, seed=7)
    other = fit(TorchLearner(**settings), federation, weights, seed=8)
    assert stack_bytes(once) == stack_bytes(again) != stack_bytes(other)
    assert once.history.loss.tobytes() == again.history.loss.tobytes()


def test_a_model_does_not_depend_on_the_rows_beside_it(monkeypatch, settings):
    if "module" in settings:
        pytest.skip("dropout draws for all rows together")
    federation, weights = make_federation(), sparse_weights()[:5]
    together = fit(TorchLearner(**settings), federation, weights)
    alone = fit(TorchLearner(**settings), federation, weights[3:4], targets=np.array([3]))
    monkeypatch.setattr(Cost, "models_at_once", lambda self, rows: 2)
    in_chunks = fit(TorchLearner(**settings), federation, weights)
    for name, value in together.parameters.items():
        if "batch_size" in settings:
            np.testing.assert_array_equal(alone.parameters[name][0], value[3])
            np.testing.assert_array_equal(in_chunks.parameters[name], value)
        else:  # blocks of rows are cut differently, so sums are rounded differently
            np.testing.assert_allclose(alone.parameters[name][0], value[3], atol=2e-6)
            np.testing.assert_allclose(in_chunks.parameters[name], value, atol=2e-6)


def test_rows_of_equal_weights_are_one_model():
    weights = sparse_weights()
    models = fit(TorchLearner(hidden=(6,), epochs=3, batch_size=4), make_federation(), weights)
    assert len(models) == len(weights)
    assert len(models.stack) < len(weights)
    for value in models.parameters.values():
        assert value[0].tobytes() == value[1].tobytes()


@pytest.mark.parametrize("epochs_before", [1, 3])
def test_a_resumed_run_ends_with_the_same_bytes(monkeypatch, tmp_path, settings, epochs_before):
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(checkpoint, "_LARGEST_SHARE", 1e9)
    federation, weights = make_federation(), sparse_weights()[:5]
    expected = fit(TorchLearner(**settings), federation, weights)

    def interrupt(what, done, total):
        if done == epochs_before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(TorchLearner(**settings), federation, weights, checkpoint=tmp_path, progress=interrupt)
    seen = []
    found = fit(
        TorchLearner(**settings),
        federation,
        weights,
        checkpoint=tmp_path,
        progress=lambda what, done, total: seen.append(done),
    )
    assert seen[0] == epochs_before  # whoever was told of it did not take it in, so that epoch is run again
    assert stack_bytes(found) == stack_bytes(expected)
    assert found.history.loss.tobytes() == expected.history.loss.tobytes()
    # A finished run is read back without training.
    again = fit(TorchLearner(**settings), federation, weights, checkpoint=tmp_path)
    assert stack_bytes(again) == stack_bytes(expected)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_neural import TorchLearner, checkpoint, fit, make_federation, sparse_weights
checkpoint._SECONDS_BETWEEN = 0.0
checkpoint._LARGEST_SHARE = 1e9

def report(what, done, total):
    print(done, flush=True)
    time.sleep(0.05)

learner = TorchLearner(hidden=(6,), epochs=60, batch_size=4, patience=50)
fit(learner, make_federation(), sparse_weights()[:5], checkpoint=Path({folder!r}), progress=report)
"""


def test_a_killed_process_is_resumed(tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) == 7:
                process.kill()
                break
    learner = TorchLearner(hidden=(6,), epochs=60, batch_size=4, patience=50)
    seen = []
    federation, weights = make_federation(), sparse_weights()[:5]
    found = fit(learner, federation, weights, checkpoint=tmp_path, progress=lambda what, done, total: seen.append(done))
    assert 7 <= seen[0] <= 20
    assert stack_bytes(found) == stack_bytes(fit(learner, federation, weights))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    federation, weights = make_federation(), sparse_weights()
    settings = {"hidden": (6,), "epochs": 3, "batch_size": 4}
    fit(TorchLearner(**settings), federation, weights, checkpoint=tmp_path)
    others = {
        "settings": (TorchLearner(**{**settings, "learning_rate": 0.5}), federation, weights, 0),
        "data": (TorchLearner(**settings), make_federation(seed=9), weights, 0),
        "weights": (TorchLearner(**settings), federation, weights[::-1], 0),
        "module": (TorchLearner(**{**settings, "hidden": (7,)}), federation, weights, 0),
        "seed": (TorchLearner(**settings), federation, weights, 1),
        "start": (
            TorchLearner(**settings, warm_start=make_start(perceptron(4, (6,), 3), 1)),
            federation,
            weights,
            0,
        ),
    }
    for what, (learner, data, matrix, seed) in others.items():
        with pytest.raises(InputError, match=what) as caught:
            fit(learner, data, matrix, seed=seed, checkpoint=tmp_path)
        assert str(tmp_path) in str(caught.value)
    doubled = lambda outputs, y: 2 * nn.functional.cross_entropy(outputs, y, reduction="none")  # noqa: E731
    with pytest.raises(InputError, match="settings"):
        fit(TorchLearner(**settings, loss=doubled), federation, weights, checkpoint=tmp_path)
    (tmp_path / "training.npz").write_bytes(b"PK not an archive")
    with pytest.raises(InputError, match="damaged"):
        fit(TorchLearner(**settings), federation, weights, checkpoint=tmp_path)


def test_a_checkpoint_holds_nothing_executable(tmp_path):
    fit(TorchLearner(hidden=(6,), epochs=2), make_federation(), sparse_weights(), checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.json", "training.npz"}
    with np.load(tmp_path / "training.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "fiu" for name in archive.files)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        fit(TorchLearner(epochs=2), make_federation(), sparse_weights(), checkpoint=tmp_path / "file" / "folder")


def test_early_stopping_returns_the_best_parameters_on_held_out_rows():
    federation = make_federation(low=30, high=40)
    learner = TorchLearner(hidden=(16,), epochs=400, learning_rate=0.05, patience=5, validation_share=0.3)
    models = fit(learner, federation, np.eye(5))
    history = models.history
    assert len(history.loss) < 400
    best = history.best_epoch
    assert (best == np.nanargmin(history.validation, axis=0)).all()
    for row in range(5):
        run = np.flatnonzero(np.isfinite(history.validation[:, row]))
        assert run[-1] == best[row] + 5
    # The parameters are those of the best epoch: the same run with that many epochs ends on them.
    row = int(np.argmax(best))
    shorter = fit(
        TorchLearner(hidden=(16,), epochs=int(best[row]), learning_rate=0.05, patience=400, validation_share=0.3),
        federation,
        np.eye(5),
    )
    for name, value in shorter.parameters.items():
        np.testing.assert_allclose(value[row], models.parameters[name][row], atol=1e-6)


def test_held_out_rows_train_the_models_of_others_only():
    federation = make_federation(low=30, high=40)
    pool = pool_of(federation, 0.25)
    held = pool.held_out.numpy()
    assert np.array_equal(np.bincount(pool.agents.numpy()[held]), np.round(0.25 * federation.sizes))
    uniforms = torch.from_numpy(stratified_uniforms(np.random.default_rng(0), 5000))
    rows = mixture_rows(uniforms, torch.full((1, 5), 0.2, dtype=torch.float64), torch.tensor([2]), pool)[0].numpy()
    drawn = np.bincount(rows, minlength=len(held)) > 0
    of_two = pool.agents.numpy() == 2
    assert not drawn[held & of_two].any()
    assert drawn[~(held & of_two)].all()


@pytest.mark.parametrize("n_agents", [5, 12])
def test_held_out_rows_are_left_out_by_all_methods_alike(n_agents):
    # Twelve dense models share their rows, five gather them, and federated averaging sets targets' own rows apart.
    federation = make_federation(n_agents=n_agents)
    weights = np.random.default_rng(2).dirichlet(np.ones(n_agents), n_agents)
    shared = {"hidden": (6,), "optimiser": "sgd", "learning_rate": 0.1, "patience": 1000}
    together = fit(TorchLearner(epochs=8, **shared), federation, weights)
    averaged = fit(TorchLearner(method="fedavg", rounds=8, **shared), federation, weights)
    np.testing.assert_allclose(averaged.history.validation, together.history.validation, atol=1e-5)
    for name, value in together.parameters.items():
        np.testing.assert_allclose(averaged.parameters[name], value, atol=1e-6)
    # By hand: the target's own mean runs over the rows it keeps.
    pool = pool_of(federation, 0.2)
    start = fit(TorchLearner(epochs=1, **{**shared, "learning_rate": 1e-30}), federation, weights)
    for row in range(n_agents):
        module = start.module_for(row)
        optimise = optimiser_for("sgd", module, 0.1)
        seen = [(pool.agents == k) & ~(pool.held_out & (pool.agents == row)) for k in range(n_agents)]
        for _ in range(int(together.history.best_epoch[row])):
            optimise.zero_grad()
            risks = [row_losses(module(pool.X[rows]), pool.y[rows], False).mean() for rows in seen]
            sum(w * risk for w, risk in zip(weights[row], risks, strict=True)).backward()
            optimise.step()
        assert_close(together, row, module, 1e-6)


def test_weights_too_small_for_single_precision_do_no_harm():
    weights = sparse_weights()[:5]
    weights[3] = [0.5, 1e-50, 0.5, 1e-46, 0.0]
    for settings in ({"epochs": 3}, {"epochs": 3, "batch_size": 4}, {"method": "fedavg", "rounds": 2}):
        tiny = fit(TorchLearner(hidden=(6,), **settings), make_federation(), weights)
        none = fit(TorchLearner(hidden=(6,), **settings), make_federation(), np.where(weights < 1e-40, 0, weights))
        for name, value in none.parameters.items():
            np.testing.assert_allclose(tiny.parameters[name], value, atol=1e-6)


def test_a_start_that_is_best_already_is_returned():
    federation, weights = make_federation(), np.eye(5)
    start = make_start(perceptron(4, (6,), 3), 1, scale=0.01)
    learner = TorchLearner(hidden=(6,), epochs=50, learning_rate=5.0, optimiser="sgd", patience=3, warm_start=start)
    models = fit(learner, federation, weights)
    kept = models.history.best_epoch == 0
    assert kept.any()
    for name, value in start.items():
        np.testing.assert_array_equal(models.parameters[name][kept], np.repeat(value, kept.sum(), axis=0))


def test_early_stopping_needs_targets_and_rows():
    with pytest.raises(InputError, match="targets"):
        fit(TorchLearner(patience=2), make_federation(), sparse_weights())
    federation = make_federation()
    single = federation_of([an_agent(federation[0].X[:1], federation[0].y[:1]), *federation.agents[1:]])
    with pytest.raises(InputError, match="site-0"):
        fit(TorchLearner(patience=2), single, np.eye(5))


def test_string_labels_probabilities_and_single_modules():
    federation = make_federation(low=60, high=80)
    names = np.array(["cat", "bird", "dog"])
    named = federation_of([an_agent(agent.X, names[agent.y]) for agent in federation.agents])
    models = fit(TorchLearner(hidden=(16,), epochs=150, learning_rate=0.03), named, np.eye(5))
    assert models.classes.tolist() == ["bird", "cat", "dog"]
    for row in range(5):
        predicted = models.predict(row, named[row].X)
        assert (predicted == named[row].y).mean() > 0.9
        probabilities = models.predict_proba(row, named[row].X)
        assert probabilities.shape == (len(named[row].X), 3)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-12)
        assert (models.classes[probabilities.argmax(axis=1)] == predicted).all()
        with torch.no_grad():
            outputs = models.module_for(row)(torch.tensor(named[row].X, dtype=torch.float32))
        np.testing.assert_allclose(torch.softmax(outputs, 1).numpy(), probabilities, atol=1e-6)
    again = pickle.loads(pickle.dumps(models))
    assert (again.predict(2, named[2].X) == models.predict(2, named[2].X)).all()


def test_regression_learns_and_predicts_numbers():
    federation = make_federation(low=60, high=80, regression=True)
    models = fit(TorchLearner(hidden=(16,), task="regression", epochs=300, learning_rate=0.03), federation, np.eye(5))
    for row in range(5):
        predicted = models.predict(row, federation[row].X)
        assert predicted.shape == federation[row].y.shape
        assert np.mean((predicted - federation[row].y) ** 2) < 0.3 * np.var(federation[row].y)
    with pytest.raises(InputError, match="probabilities"):
        models.predict_proba(0, federation[0].X)


def test_double_precision():
    single = federation_of([an_agent(agent.X.astype(np.float32), agent.y) for agent in make_federation().agents])
    models = fit(TorchLearner(hidden=(6,), epochs=3, dtype="float64"), single, sparse_weights())
    assert all(value.dtype == np.float64 for value in models.parameters.values())


class Residual(nn.Module):
    """A module no layer list describes, with a constant buffer and a parameter used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, X):
        X = X + torch.tanh(self.inner(X)) * self.scale
        return self.out(X + torch.tanh(self.inner(X)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.GroupNorm(1, 4), nn.ReLU(inplace=True), nn.Flatten()
        )
        self.out = nn.Linear(4, 3)

    def forward(self, X):
        return self.out(self.layers(X))


@pytest.mark.parametrize(("kind", "optimiser"), [(Residual, "adam"), (Convolution, "sgd")])
def test_any_module_equals_a_loop_over_targets(kind, optimiser):
    federation, weights = make_federation(), sparse_weights()
    start = make_start(kind(), len(weights))
    models = fit(
        TorchLearner(module=kind, optimiser=optimiser, epochs=8, learning_rate=0.02, warm_start=start), federation, weights
    )
    data = tensors(federation)
    for row, own in enumerate(weights):
        module = kind()
        module.load_state_dict({n: torch.tensor(v[row]) for n, v in start.items()}, strict=False)
        optimise = optimiser_for(optimiser, module, 0.02)
        for _ in range(8):
            optimise.zero_grad()
            sum(w * row_losses(module(X), y, False).mean() for w, (X, y) in zip(own, data, strict=True)).backward()
            optimise.step()
        assert_close(models, row, module, 1e-5)


def test_vmap_and_layers_agree():
    federation, weights = make_federation(), sparse_weights()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron(4, (6,), 3)

        def forward(self, X):
            return self.inner(X)

    start = make_start(perceptron(4, (6,), 3), 1)
    plain = fit(TorchLearner(hidden=(6,), epochs=5, warm_start=start), federation, weights)
    wrapped_start = {f"inner.{name}": value for name, value in start.items()}
    wrapped = fit(TorchLearner(module=Wrapped, epochs=5, warm_start=wrapped_start), federation, weights)
    for name, value in plain.parameters.items():
        np.testing.assert_allclose(wrapped.parameters[f"inner.{name}"], value, atol=1e-6)


def test_frozen_parameters_stay():
    def make():
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        module[0].requires_grad_(False)
        return module

    models = fit(TorchLearner(module=make, epochs=5, weight_decay=0.1), make_federation(), sparse_weights())
    assert set(models.parameters) == {"2.weight", "2.bias"}
    assert torch.equal(models.module_for(0)[0].weight, models.module_for(3)[0].weight)


def test_dropout_differs_between_targets():
    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    for wrapped in (module, nn.ModuleList([module])[0:1][0]):
        stacked = StackedModule(wrapped, cross_entropy, scalar=False)
        parameters = stacked.layout.views(stacked.layout.start(wrapped).expand(2, -1).contiguous())
        for forward in (stacked._by_layers, stacked._by_vmap):
            outputs = forward(parameters, torch.ones(2, 3, 4))
            assert not torch.equal(outputs[0], outputs[1])


class Branching(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, X):
        return super().forward(X) if self.weight.sum() > -1e9 else X


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "GroupNorm"),
        (lambda: nn.Sequential(nn.Linear(4, 5)), "3 classes"),
        (lambda: nn.Sequential(nn.Linear(7, 3)), "4 columns"),
        (lambda: nn.ReLU(), "no parameters"),
        (lambda: "network", "str"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=0)), "other rows"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 3)), "buffer"),
        (lambda: nn.LazyLinear(3), "lazy"),
        (Branching, "many targets at once"),
    ],
)
def test_modules_that_cannot_be_stacked_are_refused(module, message):
    with pytest.raises(KinfedError, match=message):
        fit(TorchLearner(module=module, epochs=1), make_federation(), sparse_weights())


def test_warm_start_from_other_models():
    federation, weights = make_federation(), sparse_weights()
    grand_mean = fit(TorchLearner(hidden=(6,), epochs=5), federation, np.full((1, 5), 0.2))
    for start in (grand_mean, grand_mean.parameters):
        learner = TorchLearner(hidden=(6,), epochs=1, optimiser="sgd", learning_rate=1e-12, warm_start=start)
        models = fit(learner, federation, weights)
        for name, value in grand_mean.parameters.items():
            np.testing.assert_allclose(models.parameters[name], np.repeat(value, len(weights), axis=0), atol=1e-7)
    with pytest.raises(InputError, match="rows"):
        fit(TorchLearner(hidden=(6,), warm_start=models), federation, np.eye(5))
    with pytest.raises(InputError, match="shape"):
        fit(TorchLearner(hidden=(8,), warm_start=grand_mean), federation, weights)
    with pytest.raises(InputError, match="parameters"):
        fit(TorchLearner(hidden=(), warm_start=grand_mean), federation, weights)
    fewer = federation_of([an_agent(agent.X, agent.y % 2) for agent in federation.agents])
    with pytest.raises(InputError, match="other classes"):
        fit(TorchLearner(hidden=(6,), warm_start=grand_mean), fewer, weights)


def test_monitor_and_progress():
    federation, weights = make_federation(), sparse_weights()
    seen, told = [], []
    models = fit(
        TorchLearner(hidden=(6,), epochs=7),
        federation,
        weights,
        monitor=lambda epoch, models: seen.append((epoch, stack_bytes(models), len(models.history.loss))),
        monitor_every=3,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert [(epoch, length) for epoch, _, length in seen] == [(3, 3), (6, 6), (7, 7)]
    assert seen[-1][1] == stack_bytes(models) != seen[0][1]
    assert told == [("training", done, 7) for done in range(1, 8)]
    shorter = fit(TorchLearner(hidden=(6,), epochs=3), federation, weights)
    assert stack_bytes(shorter) == seen[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "ranking"}, "task"),
        ({"optimiser": "lbfgs"}, "optimiser"),
        ({"method": "gossip"}, "method"),
        ({"dtype": "int8"}, "dtype"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"hidden": (0,)}, "hidden"),
        ({"validation_share": 1.0}, "validation_share"),
        ({"steps_per_epoch": 3}, "steps_per_epoch"),
        ({"module": 3}, "module"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        TorchLearner(**change)


def test_data_and_weights_that_make_no_sense_are_refused():
    federation, learner = make_federation(), TorchLearner(epochs=1)
    for weights, message in [
        (np.eye(4), "shape"),
        (np.full((2, 5), 0.5), "row 0 of the weights is not on the simplex"),
        (np.full((1, 5), np.nan), "not on the simplex"),
        (np.array([[2.0, -1, 0, 0, 0]]), "its smallest entry is -1"),
    ]:
        with pytest.raises(InputError, match=message):
            fit(learner, federation, weights)
    with pytest.raises(InputError, match="seed"):
        fit(learner, federation, np.eye(5), seed=-1)
    with pytest.raises(InputError, match="targets"):
        fit(learner, federation, np.eye(5), targets=np.array([1, 2]))
    one = federation_of([an_agent(agent.X, np.zeros(len(agent.X))) for agent in federation.agents])
    with pytest.raises(InputError, match="one class"):
        fit(learner, one, np.eye(5))
    without = federation_of([an_agent(agent.X, None) for agent in federation.agents])
    with pytest.raises(InputError, match="site-0 has no y"):
        fit(learner, without, np.eye(5))
    fractions = federation_of([an_agent(agent.X, agent.y + 0.5) for agent in federation.agents])
    with pytest.raises(InputError, match="regression"):
        fit(learner, fractions, np.eye(5))
    mixed = federation_of([an_agent(a.X, np.array(["a", *range(len(a.X) - 1)], dtype=object)) for a in federation.agents])
    with pytest.raises(InputError, match="y mixes labels that cannot be sorted"):
        fit(learner, mixed, np.eye(5))
    text = federation_of([an_agent(agent.X, agent.y.astype(str).astype(object) + "?") for agent in federation.agents])
    with pytest.raises(InputError, match="site-0: y is not numeric"):
        fit(TorchLearner(task="regression"), text, np.eye(5))
    huge = federation_of([an_agent(1e39 * agent.X, agent.y) for agent in federation.agents])
    with pytest.raises(InputError, match="rescale"):
        fit(learner, huge, np.eye(5))
    with pytest.raises(InputError, match="one loss per row"):
        fit(TorchLearner(loss=nn.functional.cross_entropy, epochs=1), federation, np.eye(5))


def test_divergence_is_said():
    federation = make_federation(regression=True)
    learner = TorchLearner(task="regression", hidden=(8,), optimiser="sgd", learning_rate=1e6, epochs=50)
    with pytest.raises(InputError, match="diverged"):
        fit(learner, federation, np.eye(5))


def test_models_refuse_rows_and_columns_they_do_not_have():
    models = fit(TorchLearner(hidden=(6,), epochs=1), make_federation(), sparse_weights())
    with pytest.raises(InputError, match="out of range"):
        models.predict(7, np.zeros((1, 4)))
    with pytest.raises(InputError, match="dimension 4"):
        models.predict(0, np.zeros((1, 3)))


def test_without_torch_the_message_says_what_to_install():
    code = textwrap.dedent(
        """
        import sys

        class WithoutTorch:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")

        sys.meta_path.insert(0, WithoutTorch())
        from kinfed.errors import MissingExtraError
        try:
            import kinfed.learners.neural
        except MissingExtraError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install torch==2.13.0" in done.stdout
    assert issubclass(MissingExtraError, KinfedError)
