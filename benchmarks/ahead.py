"""How kinfed's methods compare with what a statistician or a researcher of federated learning would pick.

    python -m benchmarks.ahead run --out FILE.csv [--cases concept,groups,sizes,real] [--repetitions 20]
                                   [--methods all|peers|kinfed|NAME,NAME] [--data FOLDER] [--only TEXT]
    python -m benchmarks.ahead table FILE.csv [--method NAME]

All rows are here, models are linear, and losses are mean squared errors or log losses on test rows, in the units of the
outcome. Every peer (`benchmarks.peers`) is tuned by five folds of every agent's training rows, one choice for the whole
federation. `run` adds a line for each case, method and repetition that the file does not have yet. In `table` the best peer
of a case is the one with the least mean loss over its repetitions, known only afterwards: nobody could have picked it.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy import stats

import kinfed
from benchmarks import peers
from kinfed.data.catalogue import CATALOGUE
from kinfed.experiments.leaderboard_data import PACKAGED, contests, with_target
from kinfed.run_setup import chosen_settings, pooled_agents

TEST_ROWS, MOST_TEST_ROWS, FEW = 200, 500, 20
KINDS = ("concept", "groups", "sizes", "real")
NOT_LINEAR = ("tcga_brca", "femnist")
"""Archives that are no task for linear models: times of survival, and images."""
SAME_DATA = {"hsb82": "hsb82_schools"}
"""Names of the catalogue, and the archives that hold the same rows: they count once."""
PAPER, CALIBRATED = "q-aggregation", "calibrated weights, tuned"
PEERS = (*peers.PEERS, PAPER, CALIBRATED)
OURS: dict[str, dict[str, Any]] = {
    "kinfed stacked": {"method": "stacked"},
    "kinfed calibrated": {"method": "weighted", "rule": "calibrated"},
}
LEARNER_PENALTIES = (0.001, 0.01, 0.1, 1.0)
COLUMNS = ("case", "method", "repetition", "value", "choice", "seconds")

Parts = tuple[kinfed.Federation, kinfed.Federation]


@dataclass(frozen=True)
class Case:
    """A task: its name, its kind, its learner, and training and test rows of a repetition."""

    name: str
    kind: str
    learner: str
    parts: Callable[[int], Parts]


def kinfed_models(train: kinfed.Federation, test: kinfed.Federation, learner: Any, seed: int, **choices: Any) -> np.ndarray:
    """Test losses of all agents under kinfed's models: mean squared errors or log losses."""
    result = kinfed.personalize(train, test=test, learner=learner, seed=seed, baselines=False, **choices)
    scores = result.scored["personalized"]
    return np.asarray(scores["mean squared error" if scores.task == "regression" else "log loss"], dtype=float)


# The cases.


def generated_cases() -> Iterator[Case]:
    """Generators, with their usual sizes but for what the name tells."""

    def parts(make: Callable[..., Any], how: dict[str, Any], repetition: int) -> Parts:
        made = make(**how, seed=repetition)
        return made.train, made.test(TEST_ROWS, repetition)

    shift, plain = kinfed.concept_shift, kinfed.no_structure
    listed: list[tuple[str, str, Callable[..., Any], dict[str, Any]]] = []
    listed += [("concept", f"spread {s:g}", shift, {"spread": s}) for s in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)]
    for groups in (3, 5):
        listed += [("groups", f"{groups} groups, spread {s:g}", shift, {"groups": groups, "spread": s}) for s in (0.1, 0.5)]
    listed += [("groups", f"all {agents}", plain, {"agents": agents}) for agents in ("same", "unrelated")]
    listed += [("sizes", f"{n} rows each", shift, {"n": n, "spread": 0.25}) for n in (5, 20, 50, 200)]
    listed += [("sizes", f"{d} columns", shift, {"dim": d, "spread": 0.25}) for d in (5, 50)]
    for kind, name, make, how in listed:
        yield Case(name, kind, "ridge", partial(parts, make, how))


def real_cases(folder: Path | None) -> Iterator[Case]:
    """Archives of a folder and federations of the catalogue: with few training rows of every agent, and with half."""
    archives = sorted(folder.glob("*.npz")) if folder is not None else []
    given = [str(path) for path in archives if path.stem not in NOT_LINEAR]
    given += [name for name in PACKAGED if SAME_DATA.get(name) not in {path.stem for path in archives}]
    for contest in contests(given)[0]:
        federation, classes = contest.read()
        if classes and contest.name in CATALOGUE and CATALOGUE[contest.name].task == "regression":  # a few whole numbers
            federation, classes = with_target(federation, classes=False), False
        for most, name in ((FEW, f"{FEW} rows"), (None, "half")):
            parts = partial(divided, federation, most)
            yield Case(f"{contest.name}, {name}", "real", "logistic" if classes else "ridge", parts)


def divided(federation: kinfed.Federation, most: int | None, seed: int) -> Parts:
    """At most so many rows of each agent to train on, never above half, and at most `MOST_TEST_ROWS` to test on.

    Rows are dealt without a look at the outcome: with classes in proportion a test row would be known to have the shares of
    classes that the training rows of its agent have, and models with an intercept of their own would seem too good.
    """
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for n in federation.sizes]
    rows = [n // 2 if most is None else min(most, n // 2) for n in federation.sizes]
    train = [np.sort(order[:n]) for order, n in zip(orders, rows, strict=True)]
    test = [np.sort(order[n : n + MOST_TEST_ROWS]) for order, n in zip(orders, rows, strict=True)]
    return federation.rows(train), federation.rows(test)


# The methods on one repetition of a case.


@dataclass(frozen=True, eq=False)
class Round:
    """One repetition of a case: raw rows, and the same rows as numbers.

    Rows are in kinfed's order, so that folds of the numbers are folds of the raw rows too.
    """

    train: kinfed.Federation
    test: kinfed.Federation
    learner: str
    seed: int
    rows: peers.Rows
    test_rows: peers.Rows
    unit_of_loss: float
    folds: np.ndarray
    units: np.ndarray

    @classmethod
    def of(cls, case: Case, repetition: int) -> Round:
        """Columns are standardised as kinfed does it, numbers to predict by the training rows of all agents."""
        train, test = (part.in_order() for part in case.parts(repetition))
        settings, learner, train = chosen_settings(train, case.learner, None, {"seed": repetition})
        prepared = pooled_agents(train, test, learner, settings)
        own, held = prepared.own or prepared.whole, prepared.test
        (X, y, agent), (X_test, y_test, agent_test) = own.pooled(), held.pooled()  # type: ignore[union-attr]
        scale, classes = 1.0, 0
        if case.learner == "logistic":
            labels = np.unique(np.concatenate([y, y_test]))
            y, y_test, classes = np.searchsorted(labels, y), np.searchsorted(labels, y_test), len(labels)
        else:
            centre, scale = y.mean(), y.std()
            y, y_test = (y - centre) / scale, (y_test - centre) / scale
        more = len(train), classes
        rows = peers.Rows(np.column_stack([X, np.ones(len(X))]), y, agent, *more)
        test_rows = peers.Rows(np.column_stack([X_test, np.ones(len(X_test))]), y_test, agent_test, *more)
        folds = peers.deal(rows, np.random.default_rng(repetition))
        units = peers.units(rows, folds, np.random.default_rng(repetition))
        return cls(train, test, case.learner, repetition, rows, test_rows, float(scale**2), folds, units)

    def raw_split(self, fold: int) -> Parts:
        """Raw rows to train on and rows that are held out."""
        kept = np.split(self.folds != fold, np.cumsum(self.train.sizes)[:-1])
        return self.train.rows(kept), self.train.rows([~mine for mine in kept])

    def losses(self, method: str) -> tuple[np.ndarray, Any]:
        """Test losses of all agents, and what was chosen."""
        if method in OURS:
            return kinfed_models(self.train, self.test, self.learner, self.seed, **OURS[method]), ""
        if method == CALIBRATED:
            return self._calibrated()
        found, choice = self._paper() if method == PAPER else self._tuned(method)
        return found * self.unit_of_loss, choice

    def _tuned(self, method: str) -> tuple[np.ndarray, Any]:
        return peers.tuned(method, self.rows, self.test_rows, self.folds, self.units, self.seed)

    def _paper(self) -> tuple[np.ndarray, Any]:
        """The paper's weights, found anew without each fold."""

        def weights(train: kinfed.Federation) -> np.ndarray:
            return kinfed.collaboration_weights(train, rule=PAPER, learner=self.learner, seed=self.seed).matrix

        scores = [
            peers.weighted(own, held, peers.PENALTIES, weights(self.raw_split(fold)[0]))
            for fold, (own, held) in enumerate(peers.splits(self.rows, self.folds))
        ]
        kappa = peers.PENALTIES[peers.chosen(scores, self.rows, self.units)]
        return peers.weighted(self.rows, self.test_rows, [kappa], weights(self.train))[0] / self.test_rows.sizes, kappa

    def _calibrated(self) -> tuple[np.ndarray, Any]:
        """Calibrated weights; the learner's penalty is chosen by the first fold alone, as each takes a calibration."""
        learners = [kinfed.make_learner(self.learner, penalty=penalty) for penalty in LEARNER_PENALTIES]
        own, held = self.raw_split(0)
        how = {"method": "weighted", "rule": "calibrated"}
        tried = [np.nanmean(kinfed_models(own, held, one, self.seed, **how) / self.units) for one in learners]
        best = int(np.argmin(tried))
        return kinfed_models(self.train, self.test, learners[best], self.seed, **how), LEARNER_PENALTIES[best]


def run(options: argparse.Namespace) -> None:
    """Add to the file what it does not have."""
    path: Path = options.out
    columns = ["case", "method", "repetition"]
    there = set(pandas.read_csv(path)[columns].itertuples(index=False, name=None)) if path.exists() else set()
    kinds = options.cases.split(",")
    cases = [case for case in generated_cases() if case.kind in kinds]
    cases += list(real_cases(options.data)) if "real" in kinds else []
    methods = chosen_methods(options.methods)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(COLUMNS)
        for repetition in range(options.repetitions):
            for case in cases:
                missing = [one for one in methods if (case.name, one, repetition) not in there]
                if options.only not in case.name or not missing:
                    continue
                this = Round.of(case, repetition)
                for method in missing:
                    start = time.perf_counter()
                    losses, choice = this.losses(method)
                    value, seconds = float(np.nanmean(losses)), time.perf_counter() - start
                    writer.writerow((case.name, method, repetition, repr(value), choice, f"{seconds:.2f}"))
                    file.flush()
                    print(f"{case.name} | {repetition} | {method}: {value:.5g} ({choice}; {seconds:.1f} s)", flush=True)


def chosen_methods(given: str) -> list[str]:
    """Names of methods; those of kinfed that this version does not have are left out of "all" and "kinfed"."""
    ours = [name for name, how in OURS.items() if how["method"] in kinfed.METHODS]
    sets = {"all": [*PEERS, *ours], "peers": [one for one in PEERS if one != CALIBRATED], "kinfed": ours}
    if given in sets:
        return sets[given]
    names = [name.strip() for name in given.split(";")]
    unknown = [name for name in names if name not in (*PEERS, *OURS)]
    if unknown:
        raise SystemExit(f"no method {unknown[0]!r}; there are {'; '.join((*PEERS, *OURS))}")
    return names


# What was found.


def table(options: argparse.Namespace) -> None:
    """Mean losses of all methods and how they compare with the best peer, as markdown."""
    found = pandas.read_csv(options.file).drop_duplicates(["case", "method", "repetition"], keep="last")
    values = found.pivot(index=["case", "repetition"], columns="method", values="value")
    cases = list(dict.fromkeys(found["case"]))
    known = [name for name in (*PEERS, *OURS) if name in values]
    ours = options.method or next((name for name in (*OURS, CALIBRATED) if name in values), None)
    means = pandas.DataFrame({case: values.loc[case][known].mean() for case in cases}).T
    rivals = [name for name in known if name in PEERS and name != ours]
    best = means[rivals].idxmin(axis=1)
    print(line(["case", "repetitions", *known, "best peer", *([f"{ours} / best peer"] if ours else [])]))
    print(line(["---"] * (3 + len(known) + bool(ours))))
    for case in cases:
        told = [f"{value:.4g}" for value in means.loc[case]]
        ratio = [interval(values.loc[case], ours, best[case])] if ours else []
        print(line([case, str(len(values.loc[case])), *told, best[case], *ratio]))
    generated = {case.name for case in generated_cases()}
    real = [case for case in cases if case not in generated]
    for name, some in (("generated", [case for case in cases if case in generated]), ("real", real)):
        if some:
            over = means.loc[some].div(means[rivals].min(axis=1)[some], axis=0)
            shown = ", ".join(
                f"{method} {value:.4f}" for method, value in np.exp(np.log(over).mean()).sort_values().items()
            )
            print(
                f"\nGeometric mean over {len(some)} {name} cases of the loss over that of each case's best peer: {shown}."
            )


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def interval(values: pandas.DataFrame, ours: str, peer: str) -> str:
    """Ratio of losses, from the mean of its logarithm over repetitions, and 95 % by Student's distribution."""
    logs = np.log(values[ours] / values[peer]).dropna()
    if len(logs) < 2:
        return f"{np.exp(logs.mean()):.3f}" if len(logs) else "-"
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return f"{np.exp(logs.mean()):.3f} [{np.exp(logs.mean() - half):.3f}, {np.exp(logs.mean() + half):.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="add what a file does not have yet")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--cases", default=",".join(KINDS), help="kinds, with commas between")
    running.add_argument("--repetitions", type=int, default=20)
    running.add_argument("--methods", default="all", help="all, peers, kinfed, or names with semicolons between")
    running.add_argument("--data", type=Path, help="a folder of .npz archives")
    running.add_argument("--only", default="", help="a part of the names of cases")
    running.set_defaults(do=run)
    showing = commands.add_parser("table", help="show what was found, as markdown")
    showing.add_argument("file", type=Path)
    showing.add_argument("--method", help="of kinfed, to compare with the best peer")
    showing.set_defaults(do=table)
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options.do(options)


if __name__ == "__main__":
    main()
