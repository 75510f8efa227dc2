"""Which members of the family of priors earn their place: families of several sizes on the same out-of-fold scores.

    python -m benchmarks.family [--repetitions 10] [--only TEXT] [--peers]
    python -m benchmarks.family --own-shares [--repetitions 10] [--only TEXT]

Every case is a generator, with seeds from 1000 on, which no other benchmark uses: what was chosen by this table was not
chosen on what is judged. The members of the largest family are fitted and judged once for each repetition; every smaller
family is then stacked from the same scores. Values are mean test losses over agents, squared errors or log losses, relative
to those of the largest family; the last line is their geometric mean. With `--own-shares` the family is the default one,
and values are losses where agents depart from its shares, for each strength and for the one that is chosen, relative to
those where they do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas

import kinfed
from benchmarks import ahead, peers
from kinfed.backends.agents import TrainingSpec
from kinfed.federation import Federation
from kinfed.learners.inputs import own_codes
from kinfed.learners.linear import coefficient_count, design, mixed_losses
from kinfed.methods.base import KeptAnswers
from kinfed.methods.crosswise import Crosswise
from kinfed.priors.family import ALIKE, CLUSTERED, COMMON, FAMILY, KIN, LOCAL, PULLS, RANDOM, Member, margins
from kinfed.priors.judging import JudgedMembers, OutOfFold, out_of_fold_scores, posterior_coefficients, repeats_of, told
from kinfed.priors.normal import Priors
from kinfed.priors.own_shares import STRENGTHS, StrengthLosses, member_scales, shares_of_agents, strength_losses
from kinfed.priors.stacking import NOTHING, stacked_shares
from kinfed.run_setup import chosen_settings, pooled_agents

FIRST_SEED, TEST_ROWS = 1000, 200
LARGEST = (*LOCAL, *COMMON, *PULLS, *RANDOM, *CLUSTERED, *ALIKE, *KIN)
FAMILIES: dict[str, tuple[Member, ...]] = {
    "largest": LARGEST,
    "default": FAMILY,
    "without local": tuple(one for one in LARGEST if one not in LOCAL),
    "without common": tuple(one for one in LARGEST if one not in COMMON),
    "without pulls": tuple(one for one in LARGEST if one not in PULLS),
    "without random": tuple(one for one in LARGEST if one not in RANDOM),
    "without clustered": tuple(one for one in LARGEST if one not in CLUSTERED),
    "without alike": tuple(one for one in LARGEST if one not in ALIKE),
    "without kin": tuple(one for one in LARGEST if one not in KIN),
}


# Generators.


def mixed(
    n_agents: int = 60,
    sizes: tuple[int, int] = (5, 30),
    dim: int = 6,
    slopes: float = 0.1,
    intercepts: float = 0.5,
    signal: float = 0.7,
    groups: int = 1,
    factors: int = 0,
    noise: tuple[float, float] = (1.0, 1.0),
    classes: int = 0,
    rare: float = 0.0,
    alike: float = 0.0,
    *,
    repetition: int,
) -> ahead.Parts:
    r"""Training and test rows of random coefficients, with intercepts of their own.

    .. math:: \theta_k = \mu_{g(k)} + \text{slopes} \cdot u_k , \quad |\mu_g| = \text{signal} , \quad a_k \sim N(0,
        \text{intercepts}^2) , \quad y = x'\theta_k + a_k + \text{noise}_k \, \epsilon .

    With `alike`, that share of the agents has the coefficients of the first group, and the others have nothing in common.
    Columns are standard normal, or, with `factors`, mostly so many common factors. With `classes` the outcome is a class
    whose logit has twice these coefficients, less `rare` for two classes.
    """
    rng = np.random.default_rng(FIRST_SEED + repetition)
    outputs = classes if classes > 2 else 1
    rows = np.exp(rng.uniform(*np.log(np.array(sizes) + 0.5), n_agents)).round().astype(int)
    centre = rng.standard_normal((groups, dim, outputs)) * signal / np.sqrt(dim)
    theta = centre[rng.integers(groups, size=n_agents)] + slopes * rng.standard_normal((n_agents, dim, outputs)) / np.sqrt(
        dim
    )
    if alike:
        apart = np.arange(n_agents) >= alike * n_agents
        theta = np.where(apart[:, None, None], signal * rng.standard_normal(theta.shape) / np.sqrt(dim), centre[0])
    own = intercepts * rng.standard_normal((n_agents, outputs))
    deviation = np.exp(rng.uniform(*np.log(noise), n_agents))
    loading = rng.standard_normal((factors, dim)) / np.sqrt(max(factors, 1))
    parts: list[list[Any]] = [[], []]
    for k in range(n_agents):
        for part, n in zip(parts, (rows[k], TEST_ROWS), strict=True):
            X = rng.standard_normal((n, dim))
            X = X if not factors else 0.5 * X + rng.standard_normal((n, factors)) @ loading
            mean = X @ theta[k] + own[k]
            if classes:
                logits = np.column_stack([np.zeros(n), 2 * mean - rare]) if outputs == 1 else 2 * mean
                y: Any = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
            else:
                y = mean[:, 0] + deviation[k] * rng.standard_normal(n)
            part.append((X, y))
    return tuple(  # type: ignore[return-value]
        Federation.from_arrays(
            np.concatenate([X for X, _ in part]),
            np.concatenate([y for _, y in part]),
            np.repeat(np.arange(n_agents), [len(y) for _, y in part]),
        )
        for part in parts
    )


def generated(make: Any, how: dict[str, Any], repetition: int) -> ahead.Parts:
    """Of one of kinfed's generators."""
    made = make(**how, seed=FIRST_SEED + repetition)
    return made.train, made.test(TEST_ROWS, FIRST_SEED + repetition)


def cases() -> Iterator[ahead.Case]:
    """All generators."""
    shift, plain = kinfed.concept_shift, kinfed.no_structure
    for s in (0.0, 0.1, 0.25, 0.5, 1.0):
        yield ahead.Case(f"concept shift {s:g}", "", "ridge", partial(generated, shift, {"spread": s}))
    for name, make, how in (
        ("four groups", shift, {"groups": 4, "spread": 0.25}),
        ("same", plain, {"agents": "same"}),
        ("unrelated", plain, {"agents": "unrelated"}),
        ("80 rows", shift, {"n": 80, "spread": 0.25}),
    ):
        yield ahead.Case(name, "", "ridge", partial(generated, make, how))
    listed: list[tuple[str, dict[str, Any]]] = [
        ("schools", {"signal": 0.4, "intercepts": 0.4}),
        ("slopes", {"slopes": 0.6, "n_agents": 120}),
        ("few agents", {"n_agents": 6, "sizes": (20, 40)}),
        ("few unlike", {"n_agents": 5, "sizes": (15, 30), "dim": 10, "slopes": 1.0, "intercepts": 1.5}),
        ("wide", {"n_agents": 35, "sizes": (4, 20), "dim": 60, "factors": 5, "signal": 0.5}),
        ("own noise", {"noise": (0.4, 2.0), "sizes": (5, 100), "slopes": 0.4, "groups": 2}),
        ("classes, few agents", {"classes": 2, "n_agents": 4, "sizes": (20, 20), "dim": 12, "slopes": 0.4}),
        (
            "classes, few unlike",
            {"classes": 2, "n_agents": 4, "sizes": (20, 20), "dim": 12, "slopes": 0.7, "intercepts": 0.8},
        ),
        ("classes, rare", {"classes": 2, "n_agents": 29, "sizes": (20, 20), "dim": 9, "slopes": 0.4, "rare": 3.5}),
        ("classes, intercepts", {"classes": 2, "signal": 0.3, "intercepts": 0.3, "dim": 4}),
        ("classes, groups", {"classes": 2, "signal": 1.5, "groups": 2, "slopes": 0.3, "sizes": (10, 40)}),
        ("half alike", {"alike": 0.5, "sizes": (10, 20), "dim": 8, "signal": 1.7}),
        ("80 % alike", {"alike": 0.8, "sizes": (10, 20), "dim": 8, "signal": 1.7}),
        ("half alike, 40 to 80 rows", {"alike": 0.5, "sizes": (40, 80), "dim": 8, "signal": 1.7}),
        ("classes, half alike", {"classes": 2, "alike": 0.5, "sizes": (20, 60), "dim": 8, "signal": 1.2}),
        ("three classes", {"classes": 3, "n_agents": 30, "sizes": (10, 40), "dim": 4, "slopes": 0.3}),
    ]
    for name, how in listed:
        yield ahead.Case(name, "", "logistic" if "classes" in how else "ridge", partial(_mixed, how))


def _mixed(how: dict[str, Any], repetition: int) -> ahead.Parts:
    return mixed(**how, repetition=repetition)


# Members once, families many times.


@dataclass(frozen=True, eq=False)
class Scored:
    """Linear scores of all members on one repetition of a case.

    Attributes
    ----------
    spec : TrainingSpec
    own, test : Federation
        Prepared rows.
    rows : list of arrays (N,)
        Places of the rows that were judged, for each agent.
    scores, tested : lists of arrays (N, M, K)
        Out of fold, and of test rows.
    learner : PriorLearner
    priors : list of Priors
        Of each agent, made without its group.
    """

    spec: TrainingSpec
    own: Federation
    test: Federation
    rows: list[np.ndarray]
    scores: list[np.ndarray]
    tested: list[np.ndarray]
    learner: Any
    priors: list[Priors]

    @classmethod
    def of(cls, case: ahead.Case, repetition: int, members: Sequence[Member]) -> Scored:
        """Fit and judge all members."""
        train, test = (part.in_order() for part in case.parts(repetition))
        settings, learner, train = chosen_settings(train, case.learner, None, {"seed": repetition})
        agents = pooled_agents(train, test, learner, settings)
        spec, own, held = agents.spec, agents.own or agents.whole, agents.test
        crosswise = Crosswise.asked(agents, learner, KeptAnswers(agents, None))
        fitted = crosswise.fitted(tuple(members), spec.seed)
        rows, scores, tested = [], [], []
        for k in range(len(spec.names)):
            mine = out_of_fold_scores(own[k], fitted[crosswise.groups[k]].priors, repeats_of(spec), learner, spec)
            rows.append(mine[:, 0].astype(int))
            scores.append(mine[:, 1:].reshape(len(mine), len(members), (mine.shape[1] - 1) // len(members)))
            final = fitted[crosswise.groups[k] if crosswise.alone else -1].priors
            theta = posterior_coefficients([own[k]], final, learner, spec)[0]
            points = design(held[k], learner, spec)
            tested.append(np.einsum("np,mkp->nmk", points, theta.reshape(len(members), -1, points.shape[1])))
        priors = [fitted[group].priors for group in crosswise.groups]
        return cls(spec, own, held, rows, scores, tested, learner, priors)

    def ask(self, chosen: np.ndarray, shares: np.ndarray) -> JudgedMembers:
        """What agents tell of some members."""
        count = len(self.spec.names)
        answers = {k: told(self.own[k], self.rows[k], self.scores[k][:, chosen], shares, self.spec) for k in range(count)}
        return OutOfFold((), np.zeros(count, dtype=int), shares, 1).combine(self.spec, answers)

    def shares(self, chosen: np.ndarray, members: Sequence[Member]) -> np.ndarray:
        """Of some members."""
        spec, count = self.spec, len(chosen)
        places = np.flatnonzero([members[place].kind == "local" for place in chosen])
        places = places if len(places) else np.arange(count)
        some, ask = [members[place] for place in chosen], partial(self.ask, chosen)
        extra = margins(some, len(spec.names), int(spec.sizes.sum()), coefficient_count(spec))
        return stacked_shares(ask, count, places, spec.task == "regression", spec.seed, extra).shares

    def losses(self, chosen: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Mean test losses (B,), with shares of all (M,) or of each agent (B, M)."""
        found = []
        for k, (scores, own) in enumerate(
            zip(self.tested, np.broadcast_to(shares, (len(self.own), len(chosen))), strict=True)
        ):
            if self.spec.task == "regression":
                found.append(np.mean((scores[:, chosen, 0] @ own - np.asarray(self.test[k].y, dtype=float)) ** 2))
            else:
                mixed = mixed_losses(scores[:, chosen], own)
                found.append(np.mean(mixed[np.arange(len(mixed)), own_codes(self.test[k], self.spec)]))
        return np.array(found)

    def own_shares(self, members: Sequence[Member]) -> dict[str, float]:
        """Mean test losses where agents depart from the shares of these members."""
        every = np.arange(len(members))
        shares = self.shares(every, members)
        used = np.flatnonzero(shares > NOTHING)
        shares = shares[used] / shares[used].sum()
        judged = self.ask(used, shares)
        scales, typical = member_scales(judged, shares, self.spec.task)
        told = [
            strength_losses(own, priors.select(used), shares, typical, self.learner, self.spec)
            for own, priors in zip(self.own, self.priors, strict=True)
        ]
        counted = np.array([0 if one is None else len(own) for one, own in zip(told, self.own, strict=True)])
        nothing = np.zeros(len(STRENGTHS))
        kept = StrengthLosses(counted, np.array([nothing if one is None else one for one in told]))
        chosen = kept.strength(np.arange(len(told)))
        found = {f"{c:g}": float(self.losses(used, shares_of_agents(shares, judged, scales, c)).mean()) for c in STRENGTHS}
        return {**found, "chosen": found[f"{chosen:g}"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--peers", action="store_true", help="the best tuned peer of each case too")
    parser.add_argument("--own-shares", action="store_true", help="the default family, with shares of everybody's own")
    options = parser.parse_args()
    if options.own_shares:
        print(ahead.line(["case", *(f"{c:g}" for c in STRENGTHS), "chosen"]))
        for case in cases():
            if options.only in case.name:
                found = pandas.DataFrame(
                    [Scored.of(case, r, FAMILY).own_shares(FAMILY) for r in range(options.repetitions)]
                )
                means = found.mean() / found["0"].mean()
                print(ahead.line([case.name, *(f"{one:.4f}" for one in means)]), flush=True)
        return
    places = {name: np.array([LARGEST.index(one) for one in some]) for name, some in FAMILIES.items()}
    table = {}
    for case in cases():
        if options.only not in case.name:
            continue
        values: dict[str, list[float]] = {}
        for repetition in range(options.repetitions):
            scored = Scored.of(case, repetition, LARGEST)
            for name, chosen in places.items():
                loss = scored.losses(chosen, scored.shares(chosen, LARGEST)).mean()
                values.setdefault(name, []).append(float(loss))
            if options.peers:
                this = ahead.Round.of(case, repetition)
                for name in peers.PEERS:
                    values.setdefault(name, []).append(float(np.mean(this.losses(name)[0])))
        means = {name: np.mean(some) for name, some in values.items()}
        row = {name: means[name] / means["largest"] for name in FAMILIES}
        if options.peers:
            best = min(peers.PEERS, key=lambda name: means[name])
            row["best peer"] = means[best] / means["largest"]
            row["peer"] = best
        table[case.name] = row
        print(case.name, row, flush=True)
    found = pandas.DataFrame(table).T
    numbers = found.drop(columns="peer", errors="ignore").astype(float)
    print(ahead.line(["case", *found.columns]))
    print(ahead.line(["---"] * (1 + len(found.columns))))
    for name, row in found.iterrows():
        print(ahead.line([str(name), *(one if isinstance(one, str) else f"{one:.4f}" for one in row)]))
    print(ahead.line(["geometric mean", *(f"{one:.4f}" for one in np.exp(np.log(numbers).mean()))]))


if __name__ == "__main__":
    main()
