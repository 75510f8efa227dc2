"""Networks for 100 targets: kinfed's batched learner, a plain torch loop over targets, and pfl.

Run with ``python -m benchmarks.neural``; ``--repeats N`` repeats all of it (default 5) and medians are reported.

What is compared, on 100 agents of 100 rows, a 60-20-10 ReLU perceptron, batches of 10, 20 epochs:

1. *A personal model for each of 100 targets*, dense weights: 100 x 200 steps. kinfed is timed from the federation to the
   models: checks, pooling, drawing of batches and all. The loop (``nn.Sequential`` and ``torch.optim``, one target after
   the other) gets the very same rows for free and starts from the same parameters. It runs with the best of its settings,
   one thread or all cores, fused optimiser or not, found on one target first. Its models must agree with kinfed's to 1e-5,
   save for a few: a unit within rounding of zero may fall on the other side of its ReLU, as it does between two runs of the
   loop with different settings.
2. *One global model by federated averaging*: 20 rounds, 100 users, one local epoch of 10 steps each: again 20,000 steps.
   kinfed runs ``method="fedavg"`` on the grand mean; pfl runs its own FederatedAveraging with its metrics switched off and
   the best number of threads. kinfed's 100 personal models take as many steps, so their time stands beside it.

Times are wall-clock; processor seconds are shown too, because on a busy machine they are the steadier number.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from kinfed.backends.pooled import PooledAgents
from kinfed.federation import Agent, Federation
from kinfed.learners.neural import TorchLearner, TorchModels
from kinfed.learners.neural.build import perceptron
from kinfed.learners.neural.rows import Stream, generator, pool_rows
from kinfed.learners.neural.weighted_risk import mixture_rows, stratified_uniforms

AGENTS, ROWS, INPUTS, HIDDEN, CLASSES, BATCH, EPOCHS = 100, 100, 60, 20, 10, 10, 20
STEPS = ROWS // BATCH
RATES = {"sgd": 0.1, "adam": 1e-3}
LOCAL_RATE = 0.1


@dataclass(frozen=True)
class Measured:
    wall: float
    processor: float


def make_agents() -> PooledAgents:
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((INPUTS, CLASSES))
    agents = []
    for k in range(AGENTS):
        X = rng.standard_normal((ROWS, INPUTS)).astype(np.float32)
        y = (X @ (shared + 0.5 * rng.standard_normal((INPUTS, CLASSES)))).argmax(axis=1)
        agents.append(Agent(str(k), X, y))
    return PooledAgents(Federation(tuple(agents), tuple(f"x{j}" for j in range(INPUTS))), "classification")


def measure(work: Callable[[], object]) -> tuple[Measured, object]:
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return Measured(time.perf_counter() - wall, time.process_time() - processor), result


def start_of(agents: PooledAgents) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    module = perceptron(INPUTS, (HIDDEN,), CLASSES)
    return {name: value.detach().numpy()[None].copy() for name, value in module.named_parameters()}


def personal(agents: PooledAgents, weights: np.ndarray, optimiser: str, start: dict[str, np.ndarray]) -> TorchModels:
    learner = TorchLearner(
        hidden=(HIDDEN,),
        optimiser=optimiser,
        learning_rate=RATES[optimiser],
        epochs=EPOCHS,
        batch_size=BATCH,
        warm_start=start,
    )
    return learner.fit(agents, weights)


def rows_of(agents: PooledAgents, weights: np.ndarray) -> torch.Tensor:
    """The rows kinfed draws, (targets, epochs * steps, batch), in the order of the pooled agents."""
    pool = pool_rows(agents.rows.agents, agents.spec, "classification", "float32")
    own, matrix = torch.full((len(weights),), -1), torch.from_numpy(weights)
    drawn = []
    for epoch in range(EPOCHS):
        uniforms = torch.from_numpy(stratified_uniforms(generator(0, Stream.MIXTURE, epoch), STEPS * BATCH))
        drawn.append(mixture_rows(uniforms, matrix, own, pool).view(len(weights), STEPS, BATCH))
    return torch.cat(drawn, dim=1)


def loop(
    agents: PooledAgents, rows: torch.Tensor, optimiser: str, start: dict[str, np.ndarray], fused: bool
) -> list[nn.Sequential]:
    """One target after the other, as one would write it."""
    X = torch.from_numpy(np.concatenate([agent.X for agent in agents.rows]))
    y = torch.from_numpy(np.concatenate([agent.y for agent in agents.rows]))
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    modules = []
    for batches in rows:
        module = perceptron(INPUTS, (HIDDEN,), CLASSES)
        module.load_state_dict({name: torch.from_numpy(value[0]) for name, value in start.items()})
        steps = kind(module.parameters(), lr=RATES[optimiser], fused=fused)
        loss = nn.CrossEntropyLoss()
        for chosen in batches:
            steps.zero_grad()
            loss(module(X[chosen]), y[chosen]).backward()
            steps.step()
        modules.append(module)
    return modules


def fedavg(agents: PooledAgents, start: dict[str, np.ndarray]) -> TorchModels:
    learner = TorchLearner(
        hidden=(HIDDEN,),
        method="fedavg",
        rounds=EPOCHS,
        local_epochs=1,
        optimiser="sgd",
        learning_rate=LOCAL_RATE,
        batch_size=BATCH,
        warm_start=start,
    )
    return learner.fit(agents, np.full((1, AGENTS), 1 / AGENTS))


def pfl_fedavg(agents: PooledAgents, rounds: int) -> nn.Module:
    """The same with pfl."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron(INPUTS, (HIDDEN,), CLASSES)

        def forward(self, X):
            return self.layers(X)

        def loss(self, X, y, eval=False):
            return nn.functional.cross_entropy(self(X), y)

        def metrics(self, X, y):
            return {}

    torch.manual_seed(0)
    module = Perceptron()
    users = {k: Dataset([torch.from_numpy(agent.X), torch.from_numpy(agent.y)]) for k, agent in enumerate(agents.rows)}
    data = FederatedDataset(lambda user: users[user], get_user_sampler("minimize_reuse", list(users)))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=AGENTS, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LOCAL_RATE),
        model_eval_params=None,
        callbacks=[],
        send_metrics_to_platform=False,
    )
    return module


def pfl_is_installed() -> bool:
    try:
        import pfl  # noqa: F401
    except ImportError:
        return False
    return True


def best_setting(settings: list[tuple], work: Callable[..., object]) -> tuple:
    """The setting with the smallest time; each is tried twice after a warm-up."""
    times = {}
    for setting in settings:
        torch.set_num_threads(setting[0])
        work(*setting)
        times[setting] = min(measure(lambda setting=setting: work(*setting))[0].wall for _ in range(2))
    return min(times, key=times.__getitem__)


def check_same_work(models: TorchModels, modules: list[nn.Sequential]) -> None:
    parameters = models.parameters
    differences = [
        max(
            float(np.abs(parameters[name][row] - value.detach().numpy()).max()) for name, value in module.named_parameters()
        )
        for row, module in enumerate(modules)
    ]
    if sum(difference > 1e-5 for difference in differences) > len(modules) // 20:
        raise SystemExit(f"the loop and kinfed differ by up to {max(differences):.2g}: not the same work")


def show(title: str, results: dict[str, list[Measured]], reference: str) -> None:
    print(f"\n{title}")
    print(f"{'':44s}{'wall s':>10s}{'ratio':>8s}{'cpu s':>10s}{'ratio':>8s}")
    middle = {
        name: (statistics.median(m.wall for m in values), statistics.median(m.processor for m in values))
        for name, values in results.items()
    }
    for name, (wall, processor) in middle.items():
        of_wall, of_processor = wall / middle[reference][0], processor / middle[reference][1]
        print(f"{name:44s}{wall:10.3f}{of_wall:7.1f}x{processor:10.3f}{of_processor:7.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the batched neural learner against a plain loop and pfl.")
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    agents, start = make_agents(), start_of(make_agents())
    weights = np.random.default_rng(1).dirichlet(np.ones(AGENTS), AGENTS)
    rows = rows_of(agents, weights)
    threads = [1, *([cores] if (cores := os.cpu_count() or 1) > 1 else [])]
    with_pfl = pfl_is_installed()

    loop_settings = {
        optimiser: best_setting(
            [(count, fused) for count in threads for fused in (False, True)],
            lambda count, fused, optimiser=optimiser: loop(agents, rows[:1], optimiser, start, fused),
        )
        for optimiser in RATES
    }
    pfl_threads = best_setting([(count,) for count in threads], lambda count: pfl_fedavg(agents, 1)) if with_pfl else (1,)
    print(f"kinfed runs on one thread; the loop with {loop_settings} (threads, fused); pfl with {pfl_threads[0]} thread(s)")

    results: dict[str, dict[str, list[Measured]]] = {"sgd": {}, "adam": {}, "fedavg": {}}
    for repeat in range(repeats):
        for optimiser, timed in ((name, results[name]) for name in RATES):
            count, fused = loop_settings[optimiser]
            ours, models = measure(lambda o=optimiser: personal(agents, weights, o, start))
            torch.set_num_threads(count)
            theirs, modules = measure(lambda o=optimiser, f=fused: loop(agents, rows, o, start, f))
            timed.setdefault("kinfed, all targets at once", []).append(ours)
            timed.setdefault("plain torch, a loop over targets", []).append(theirs)
            check_same_work(models, modules)
        averaged = results["fedavg"]
        averaged.setdefault("kinfed, method='fedavg'", []).append(measure(lambda: fedavg(agents, start))[0])
        if with_pfl:
            torch.set_num_threads(pfl_threads[0])
            averaged.setdefault("pfl, FederatedAveraging", []).append(measure(lambda: pfl_fedavg(agents, EPOCHS))[0])
        print(f"repeat {repeat + 1} of {repeats} done", flush=True)

    for optimiser in RATES:
        title = f"100 personal models, 100 x 200 steps of {optimiser}; medians of {repeats}"
        show(title, results[optimiser], "kinfed, all targets at once")
    results["fedavg"]["kinfed, 100 personal models, from above"] = results["sgd"]["kinfed, all targets at once"]
    show(
        f"One global model, 20 rounds of 100 users with 10 local steps of sgd; medians of {repeats}",
        results["fedavg"],
        "kinfed, method='fedavg'",
    )
    if not with_pfl:
        print("pfl is not installed, so it was left out: pip install torch==2.13.0, then pip install pfl")


if __name__ == "__main__":
    main()
