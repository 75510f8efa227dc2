"""How kinfed's default compares, for networks, with fine-tuning, Ditto, learning alone and one common model, all tuned.

    python -m benchmarks.network_peers run --out FILE.csv [--cases covariate,femnist] [--femnist FILE.npz] [--repetitions 5]
                                           [--methods all|NAME;NAME] [--quick] [--checkpoint FOLDER]
    python -m benchmarks.network_peers table FILE.csv

All methods have the same rows, standardised alike, the same network, optimiser, batches and number of steps. Peers are
tuned on one fifth of every agent's training rows, as kinfed's default is: each trains on the other four fifths, is looked
at on the way, ends when two looks have brought nothing better, and is trained anew on all training rows with the length,
pull and weight decay that were best on average over agents, by the very metric that is reported. `run` adds a line for each
case, method, repetition and agent that the file does not have yet.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy import stats

import kinfed
from kinfed.analysis import score_models
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation, covariate_shift, read_femnist
from kinfed.experiments.femnist import split_writers
from kinfed.experiments.paper_settings import repetition_seed
from kinfed.learners.base import common_model
from kinfed.learners.neural import TorchLearner

GROUPS, POINTS, DIM, TEST_POINTS = (30, 30, 40), 20, 4, 1000
ARCHITECTURES = ((16,), (32, 32))
WRITERS, HIDDEN, EPOCHS, BATCH, TEST_SHARE = 192, 32, 1000, 64, 0.2
VALIDATION = 0.2
LOOKS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.5, 1.0)
"""Shares of the whole length at which peers are looked at."""
DECAYS = (0.0, 1e-3, 1e-2)
PULLS = (0.01, 0.1, 1.0)
PATIENT_LOOKS = 2
COLUMNS = ("case", "method", "repetition", "agent", "value", "choice", "seconds")

Parts = tuple[kinfed.Federation, kinfed.Federation]


@dataclass(frozen=True)
class Case:
    """A task: its name, its network, its metric, and training and test rows of a repetition."""

    name: str
    learner: TorchLearner
    metric: str
    parts: Callable[[int], Parts]

    @property
    def sign(self) -> int:
        """1 where less is better, -1 where more is."""
        return 1 if self.learner.task == "regression" else -1


@dataclass(frozen=True)
class Peer:
    """A way to personal models.

    Attributes
    ----------
    weights : str
        "own" rows, those of "all" agents, or of the true "groups".
    warm : bool
        Whether it starts from a common model.
    decays, pulls : tuple of float
        What it is tuned over, beside its length.
    """

    weights: str = "own"
    warm: bool = False
    decays: tuple[float, ...] = (0.0,)
    pulls: tuple[float, ...] = (0.0,)


OURS = "kinfed"
PEERS = {
    "fine-tuning": Peer(warm=True),
    "Ditto": Peer(warm=True, pulls=PULLS),
    "grand mean": Peer("all", decays=DECAYS),
    "oracle groups": Peer("groups", decays=DECAYS),
    "local": Peer(decays=DECAYS),
}
METHODS = (OURS, *PEERS)


def covariate_cases(quick: bool) -> Iterator[Case]:
    """One regression function seen at three places, as in the experiment `calibrated-networks`."""
    sizes = (10, 10, 12) if quick else GROUPS

    def parts(repetition: int) -> Parts:
        seed = repetition_seed(0, repetition)
        generated = covariate_shift(sizes, POINTS, DIM, seed=seed)
        return generated.train, generated.test(TEST_POINTS)

    for hidden in ARCHITECTURES:
        learner = TorchLearner(
            hidden=hidden, task="regression", epochs=300 if quick else 2000, batch_size=60, steps_per_epoch=1
        )
        name = f"covariate shift, {len(hidden)}x{hidden[0]}"
        yield Case(name, learner, "mean squared error", parts)


def femnist_case(data: Path, quick: bool) -> Case:
    """Handwritten characters, an agent per writer, as in the experiment `calibrated-femnist`."""
    read = partial(read_femnist, data, writers=24 if quick else WRITERS, seed=0)
    learner = TorchLearner(hidden=(HIDDEN,), epochs=60 if quick else EPOCHS, batch_size=BATCH)
    return Case("FEMNIST", learner, "accuracy", lambda r: split_writers(read(), TEST_SHARE, repetition_seed(0, r)))


# The methods on one repetition of a case.


@dataclass(frozen=True, eq=False)
class Round:
    """One repetition of a case: raw rows, and the same rows as numbers."""

    case: Case
    seed: int
    raw: Parts
    train: kinfed.Federation
    test: kinfed.Federation
    checkpoint: Path | None

    @classmethod
    def of(cls, case: Case, repetition: int, checkpoint: Path | None) -> Round:
        """The rows of a repetition."""
        raw, raw_test = case.parts(repetition)
        preparation = Preparation.fit(raw)
        seed, folder = repetition_seed(0, repetition), checkpoint and checkpoint / f"{case.name}, {repetition}"
        return cls(case, seed, (raw, raw_test), preparation.transform(raw), preparation.transform(raw_test), folder)

    @cached_property
    def tuning(self) -> tuple[Trained, kinfed.Federation]:
        """Four fifths of the training rows, and the fifth that peers are tuned on."""
        kept, aside = self.train.split(VALIDATION, self.seed)
        return Trained(self.case.learner, kept, self.seed), aside

    @cached_property
    def whole(self) -> Trained:
        """All training rows."""
        return Trained(self.case.learner, self.train, self.seed)

    def values(self, method: str) -> tuple[np.ndarray, str]:
        """What every agent's model is worth on its test rows, and what was chosen."""
        if method == OURS:
            train, test = self.raw
            how: dict[str, Any] = {"baselines": False, "method": "stacked", "checkpoint": self.checkpoint}
            result = kinfed.personalize(train, self.case.learner, test=test, seed=self.seed, **how)
            chosen = result.weights.calibration.chosen  # type: ignore[union-attr]
            return np.asarray(result.scored["personalized"][self.case.metric], dtype=float), chosen
        peer = PEERS[method]
        decay, pull, share = self.choice(peer)
        models = self.whole.fit(peer, decay, pull, share)
        return self.score(models, self.test), f"length {share:g}, weight decay {decay:g}, pull {pull:g}"

    def choice(self, peer: Peer) -> tuple[float, float, float]:
        """Weight decay, pull and length that are best on the rows set aside."""
        rows, aside = self.tuning
        looks = {max(1, round(look * self.case.learner.length)): look for look in LOOKS}
        found: dict[tuple[float, float, float], float] = {}

        def look(decay: float, pull: float, losses: list[float], done: int, models: Any) -> None:
            if done in looks:
                losses.append(self.case.sign * float(np.nanmean(self.score(models, aside))))
                found[decay, pull, looks[done]] = losses[-1]
                if len(losses) - 1 - int(np.argmin(losses)) >= PATIENT_LOOKS:
                    raise _EnoughSeenError

        for decay, pull in product(peer.decays, peer.pulls):
            with suppress(_EnoughSeenError):
                seen = partial(look, decay, pull, [])
                rows.fit(peer, decay, pull, 1.0, monitor=seen, monitor_every=gcd(*looks))
        return min(found, key=lambda one: found[one])

    def score(self, models: Any, rows: kinfed.Federation) -> np.ndarray:
        """The metric of the case at every agent."""
        found = score_models(models, rows, self.case.learner.task, metrics=[self.case.metric])
        return np.asarray(found[self.case.metric], dtype=float)


class _EnoughSeenError(Exception):
    """Raised out of a training that brings nothing better any more."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Rows to train peers on."""

    learner: TorchLearner
    rows: kinfed.Federation
    seed: int

    @cached_property
    def agents(self) -> PooledAgents:
        return PooledAgents(self.rows, self.learner.task, self.seed)

    @cached_property
    def common(self) -> Any:
        """The model that fine-tuning and Ditto start from."""
        return common_model(self.learner, self.agents)

    def fit(self, peer: Peer, decay: float, pull: float, share: float, **how: Any) -> Any:
        """One model per agent."""
        learner = self.learner.trained_for(share, self.common if peer.warm else None, pull)
        return replace(learner, weight_decay=decay).fit(self.agents, self.weights(peer), **how)

    def weights(self, peer: Peer) -> np.ndarray:
        """Whom a peer listens to: a row per agent."""
        sizes, count = self.rows.sizes, len(self.rows)
        if peer.weights == "own":
            return np.eye(count)
        groups = np.zeros(count) if peer.weights == "all" else np.asarray(self.rows.groups)
        kin = (groups[:, None] == groups) * sizes
        return np.asarray(kin / kin.sum(axis=1, keepdims=True))


def run(options: argparse.Namespace) -> None:
    """Add to the file what it does not have."""
    path: Path = options.out
    columns = ["case", "method", "repetition"]
    there = set(pandas.read_csv(path)[columns].itertuples(index=False, name=None)) if path.exists() else set()
    cases = list(covariate_cases(options.quick)) if "covariate" in options.cases else []
    if "femnist" in options.cases:
        if options.femnist is None:
            raise SystemExit("FEMNIST needs --femnist FILE.npz")
        cases.append(femnist_case(options.femnist, options.quick))
    methods = METHODS if options.methods == "all" else tuple(options.methods.split(";"))
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise SystemExit(f"no method {unknown[0]!r}; there are {'; '.join(METHODS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(COLUMNS)
        for repetition in range(options.repetitions):
            for case in cases:
                missing = [one for one in methods if (case.name, one, repetition) not in there]
                if not missing:
                    continue
                this = Round.of(case, repetition, options.checkpoint)
                for method in missing:
                    if PEERS.get(method, Peer()).weights == "groups" and this.train.groups is None:
                        continue
                    start = time.perf_counter()
                    values, choice = this.values(method)
                    seconds = f"{time.perf_counter() - start:.1f}"
                    key = (case.name, method, repetition)
                    lines = zip(this.train.names, values.tolist(), strict=True)
                    writer.writerows([(*key, agent, repr(value), choice, seconds) for agent, value in lines])
                    file.flush()
                    print(f"{' | '.join(map(str, key))}: {np.nanmean(values):.5g} ({choice}; {seconds} s)", flush=True)


# What was found.


def table(options: argparse.Namespace) -> None:
    """Means of all methods, and kinfed's against each of them, as markdown."""
    found = pandas.read_csv(options.file, dtype={"agent": str})
    found = found.drop_duplicates(["case", "method", "repetition", "agent"], keep="last")
    for case in dict.fromkeys(found["case"]):
        rows = found[found["case"] == case]
        values = rows.pivot(index=["repetition", "agent"], columns="method", values="value")
        known = [method for method in METHODS if method in values]
        ratio = "covariate" in case
        against = "ratio of errors" if ratio else "points above it"
        print(f"\n{case}\n")
        print(line(["method", "repetitions", "mean", f"kinfed's: {against}", "agents where kinfed's is at least as good"]))
        print(line(["---"] * 5))
        for method in known:
            both = values[[OURS, method]].dropna() if OURS in known and method != OURS else None
            told = ["", ""]
            if both is not None and len(both):
                better = both[OURS] <= both[method] if ratio else both[OURS] >= both[method]
                told = [ratios(both, method) if ratio else differences(both, method), f"{better.mean():.1%}"]
            mine = values[method].dropna()
            count = mine.index.get_level_values("repetition").nunique()
            mean = f"{mine.mean():.4g}" if ratio else f"{100 * mine.mean():.2f} %"
            print(line([method, str(count), mean, *told]))
        chosen = rows.groupby(["method", "choice"], sort=False)["repetition"].nunique()
        print("\nChosen: " + "; ".join(f"{name}: {choice} ({n})" for (name, choice), n in chosen.items()))


def differences(both: pandas.DataFrame, peer: str) -> str:
    """Points above a peer, agents' means over repetitions, with the bounds of 95 % by Student's distribution."""
    gain = 100 * (both[OURS] - both[peer]).groupby("agent").mean()
    half = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain))
    return f"{gain.mean():.2f} [{gain.mean() - half:.2f}, {gain.mean() + half:.2f}]"


def ratios(both: pandas.DataFrame, peer: str) -> str:
    """Mean error over a peer's, from the logarithms over repetitions, with the bounds of 95 %."""
    means = both.groupby("repetition").mean()
    logs = np.log(means[OURS] / means[peer])
    if len(logs) < 2:
        return f"{np.exp(logs.mean()):.3f}"
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return f"{np.exp(logs.mean()):.3f} [{np.exp(logs.mean() - half):.3f}, {np.exp(logs.mean() + half):.3f}]"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="add what a file does not have yet")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--cases", default="covariate", help="covariate, femnist, or both with a comma between")
    running.add_argument("--femnist", type=Path, help="an archive as kinfed.read_federation takes it")
    running.add_argument("--repetitions", type=int, default=5)
    running.add_argument("--methods", default="all", help="all, or names with semicolons between")
    running.add_argument("--quick", action="store_true", help="few agents and short trainings, to try it out")
    running.add_argument("--checkpoint", type=Path, help="a folder in which kinfed's own runs are kept, to go on from")
    running.set_defaults(do=run)
    showing = commands.add_parser("table", help="show what was found, as markdown")
    showing.add_argument("file", type=Path)
    showing.set_defaults(do=table)
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options.do(options)


if __name__ == "__main__":
    main()
