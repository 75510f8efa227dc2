"""Whether what agents are told to expect comes true, on generators where the truth is known.

    python -m benchmarks.expected_gain run --out FILE.csv [--learners ridge,logistic] [--repetitions 10] [--only TEXT]
    python -m benchmarks.expected_gain table FILE.csv

The true gain of an agent is the share of the loss of its model alone, tuned by the same folds, that its stacked model
saves. Squared errors of linear models are known in closed form. For two classes, the outcome above its median over all
agents or not, log losses are means over 10 000 new inputs of each agent, with the known probability of either class.
`run` writes a line for each agent; `table` shows, for each case and over all:

- coverage: the share of agents whose gain is in its 90 % interval;
- interval score: the mean width of the intervals, plus 20 times by how much a gain is outside (the smaller the better),
  beside that of one constant interval, the 5 % and 95 % quantiles of the true gains of that case, known only afterwards;
- mean predicted and mean true gain;
- how many are advised to join, how many of those gain, and how many of those who gain are advised to.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy import stats

import kinfed
from kinfed.data.distributions import GaussianLinear, draw_federation
from kinfed.federation import Agent
from kinfed.methods import METHODS
from kinfed.priors.expectation import LEVEL, ExpectedGain
from kinfed.run_setup import chosen_settings, method_context, pooled_agents
from kinfed.weights.calibration.family import JOIN

NEW_INPUTS = 10_000
COLUMNS = ("learner", "case", "repetition", "agent", "n", "gain", "error", "low", "high", "probability", "advice", "true")


@dataclass(frozen=True)
class Case:
    """A generator and its arguments."""

    name: str
    make: Callable[..., kinfed.SyntheticFederation]
    arguments: dict[str, Any]

    def generated(self, repetition: int) -> kinfed.SyntheticFederation:
        return self.make(**self.arguments, seed=repetition)


def pure_noise(n_agents: int, n: int | tuple[int, int], dim: int, seed: int) -> kinfed.SyntheticFederation:
    """Outcomes that have nothing to do with the inputs."""
    made = kinfed.no_structure(n_agents, n, dim, seed=seed)
    law = GaussianLinear(np.ones((n_agents, dim)), np.zeros((n_agents, dim)), 1.0)
    return kinfed.SyntheticFederation(draw_federation(law, made.train.sizes, None, seed, "train"), law, seed)


def cases() -> Iterator[Case]:
    """Concept shift, groups, sizes, few agents, agents without structure, and no signal at all."""
    shift, plain = kinfed.concept_shift, kinfed.no_structure
    for spread in (0.0, 0.1, 0.25, 0.5, 1.0):
        yield Case(f"spread {spread:g}", shift, {"spread": spread})
    for groups in (3, 5):
        yield Case(f"{groups} groups", shift, {"groups": groups, "spread": 0.1, "n": 20})
    for agents in ("same", "unrelated"):
        yield Case(f"all {agents}", plain, {"agents": agents})
    for spread in (0.1, 0.5):
        yield Case(f"5 to 200 rows, spread {spread:g}", shift, {"spread": spread, "n": (5, 200)})
    yield Case("5 to 200 rows, 5 columns", shift, {"spread": 0.25, "n": (5, 200), "dim": 5})
    yield Case("50 rows", shift, {"spread": 0.25, "n": 50})
    yield Case("12 agents", shift, {"spread": 0.25, "n": (10, 100), "n_agents": 12, "dim": 5})
    yield Case("30 agents", shift, {"spread": 0.25, "n": (10, 100), "n_agents": 30, "dim": 10})
    yield Case("pure noise, 20 rows", pure_noise, {"n_agents": 50, "n": 20, "dim": 5})
    yield Case("pure noise, 100 rows", pure_noise, {"n_agents": 50, "n": 100, "dim": 5})


def compared(generated: kinfed.SyntheticFederation, learner: str, seed: int) -> tuple[ExpectedGain, np.ndarray]:
    """What agents are told, and their true gains."""
    cut = float(np.median(np.concatenate([one.y for one in generated.train])))
    train = generated.train
    if learner == "logistic":
        train = replace(train, agents=tuple(Agent(one.name, one.X, (one.y > cut).astype(int)) for one in train))
    own = kinfed.make_learner(learner, penalty="auto")
    settings, chosen, train = chosen_settings(train, own, None, {"seed": seed, "method": "stacked"})
    agents = pooled_agents(train, None, chosen, settings)
    losses, found = {}, {}
    for method in ("stacked", "local"):
        context = method_context(agents, chosen, settings, None)
        models: Any = METHODS[method].train(context, None)
        places = [generated.train.names.index(name) for name in agents.spec.names]
        truth = generated.distribution
        law = GaussianLinear(truth.mean[places], truth.beta[places], truth.noise_variance)  # type: ignore[attr-defined]
        if learner == "ridge":
            losses[method] = law.population_mse(raw_coefficients(models.coefficients, agents.preparation))
        else:
            losses[method] = log_losses_of(law, models, agents.preparation, cut, seed)
        found[method] = context.found["stacking"]
    return found["stacked"].expected, 1 - losses["stacked"] / losses["local"]


def raw_coefficients(prepared: np.ndarray, preparation: Any) -> np.ndarray:
    """Coefficients (B, d + 1) of raw columns, the intercept last."""
    slopes = prepared[:, :-1] / np.array(preparation.scale)
    return np.column_stack([slopes, prepared[:, -1] - slopes @ np.array(preparation.mean)])


def log_losses_of(law: GaussianLinear, models: Any, preparation: Any, cut: float, seed: int) -> np.ndarray:
    """Mean log losses of every agent, over new inputs."""
    rng = np.random.default_rng([seed, 1])
    found = []
    for row, (mean, beta) in enumerate(zip(law.mean, law.beta, strict=True)):
        X = mean + rng.standard_normal((NEW_INPUTS, len(mean)))
        likely = stats.norm.cdf((X @ beta - cut) / np.sqrt(law.noise_variance))
        given = models.predict_proba(row, (X - np.array(preparation.mean)) / np.array(preparation.scale))
        zero, one = -np.log(np.maximum(given, 1e-6)).T
        found.append(np.mean((1 - likely) * zero + likely * one))
    return np.array(found)


def run(options: argparse.Namespace) -> None:
    """Add to the file what it does not have."""
    path: Path = options.out
    keys = ["learner", "case", "repetition"]
    there = set(pandas.read_csv(path)[keys].itertuples(index=False, name=None)) if path.exists() else set()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(COLUMNS)
        for repetition in range(options.first, options.first + options.repetitions):
            for learner in options.learners.split(","):
                for case in cases():
                    if options.only not in case.name or (learner, case.name, repetition) in there:
                        continue
                    generated = case.generated(repetition)
                    expected, true = compared(generated, learner, repetition)
                    told = expected.table.assign(true=true)
                    sizes = dict(zip(generated.train.names, generated.train.sizes.tolist(), strict=True))
                    for agent, row in told.iterrows():
                        known = (row[name] for name in COLUMNS[5:])
                        writer.writerow((learner, case.name, repetition, agent, sizes[str(agent)], *known))
                    file.flush()
                    print(learner, case.name, repetition, line_of(told), flush=True)


def interval_score(low: Any, high: Any, true: Any) -> Any:
    """Winkler's score of intervals that are to hold the truth with probability `LEVEL`."""
    outside = np.maximum(low - true, 0) + np.maximum(true - high, 0)
    return high - low + 2 / (1 - LEVEL) * outside


def line_of(told: pandas.DataFrame) -> dict[str, float]:
    """What `table` shows of some agents."""
    true, join = told["true"], told["advice"] == JOIN
    ends = np.quantile(true, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    found = {
        "agents": len(told),
        "coverage": ((told["low"] <= true) & (true <= told["high"])).mean(),
        "interval score": interval_score(told["low"], told["high"], true).mean(),
        "of a constant": interval_score(*ends, true).mean(),
        "predicted": told["gain"].mean(),
        "true": true.mean(),
        "gain": (true > 0).mean(),
        "join": join.mean(),
        "of those gain": (true[join] > 0).mean() if join.any() else np.nan,
        "of who gain join": join[true > 0].mean() if (true > 0).any() else np.nan,
    }
    return {name: round(float(value), 3) for name, value in found.items()}


def table(options: argparse.Namespace) -> None:
    """Cases and all of them together, as markdown."""
    found = pandas.read_csv(options.file)
    lines = {}
    for learner, some in found.groupby("learner", sort=False):
        for case, told in some.groupby("case", sort=False):
            lines[learner, case] = line_of(told)
        lines[learner, "all"] = line_of(some)
    shown = pandas.DataFrame(lines).T.rename_axis(["learner", "case"]).reset_index()
    print("| " + " | ".join(shown.columns) + " |\n|" + "---|" * len(shown.columns))
    for row in shown.itertuples(index=False):
        print("| " + " | ".join(one if isinstance(one, str) else f"{one:g}" for one in row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="add what a file does not have yet")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--learners", default="ridge,logistic")
    running.add_argument("--repetitions", type=int, default=10)
    running.add_argument("--first", type=int, default=0, help="the first repetition")
    running.add_argument("--only", default="", help="a part of the names of cases")
    running.set_defaults(do=run)
    showing = commands.add_parser("table", help="show what was found, as markdown")
    showing.add_argument("file", type=Path)
    showing.set_defaults(do=table)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
