"""What one bad site costs the others, and what clean federations pay for the protection.

    python -m benchmarks.one_bad_site harm [--sites 30] [--rows 30] [--seeds 20] [--only TEXT] [--rule calibrated]
    python -m benchmarks.one_bad_site clean [--seeds 5] [--data FOLDER] [--only TEXT] [--rule calibrated]

`harm` spoils the rows of one site, of three, or of a fifth of them, and compares the test errors of all others with those
of a federation without the bad sites. The columns are normal, skewed, mostly zero, with heavy tails, and of zeros and ones;
the outcome is linear, in two groups of sites whose coefficients differ a little from site to site. `clean` compares with
plain standardisation (``robust=False``) on generators, on sites of genuinely different scales, and on the .npz files of a
folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kinfed

Part = tuple[Any, Any]
"""Columns and outcome of one site."""

TEST_ROWS = 200
METHODS = ("personalized", "local", "grand-mean")


def draw(sites: int, rows: int, seed: int) -> tuple[list[Part], list[Part]]:
    """Training and test rows of every site."""
    rng = np.random.default_rng(seed)
    centre, scale, groups = rng.normal(5, 2, 6), np.exp(rng.normal(0, 1, 6)), rng.normal(0, 1, (2, 6))

    def columns(n: int, shift: Any) -> tuple[Any, Any]:
        z = rng.standard_normal((n, 6)) + shift
        skewed, heavy = np.exp(z[:, 2]), rng.standard_t(3, n)
        rare = np.where(rng.random(n) < 0.7, 0.0, np.exp(0.5 * z[:, 3]))
        flag = (rng.random(n) < 0.3).astype(float)
        units = [(skewed - 1.6) / 2.1, (rare - 0.35) / 0.6, heavy / 1.7, (flag - 0.3) / 0.46]
        raw = [*(centre + scale * z)[:, :2].T, scale[2] * skewed, scale[3] * rare, centre[4] + scale[4] * heavy, flag]
        return np.column_stack(raw), np.column_stack([z[:, :2], *units])

    train, test = [], []
    for k in range(sites):
        slopes, shift, level = groups[k % 2] + 0.3 * rng.normal(0, 1, 6), 0.3 * rng.standard_normal(6), rng.normal(0, 0.3)
        for found, n in ((train, rows), (test, TEST_ROWS)):
            X, units = columns(n, shift)
            found.append((X, 20 + 5 * (units @ slopes + level + rng.standard_normal(n))))
    return train, test


def column(factor: float, j: int = 0) -> Callable[..., None]:
    """One column in other units."""

    def change(X: Any, y: Any, rng: Any) -> None:
        X[:, j] *= factor

    return change


def cell(X: Any, y: Any, rng: Any) -> None:
    """A typing error."""
    X[0, 1] = 1e6


def outcome(factor: float, more: float) -> Callable[..., None]:
    """The outcome in other units, or shifted."""

    def change(X: Any, y: Any, rng: Any) -> None:
        y *= factor
        y += more

    return change


def swap(X: Any, y: Any, rng: Any) -> None:
    """Two columns exchanged."""
    X[:, [0, 1]] = X[:, [1, 0]]


def shift(X: Any, y: Any, rng: Any) -> None:
    """A column off by a hundred deviations."""
    X[:, 0] += 100 * X[:, 0].std()


def random_cells(X: Any, y: Any, rng: Any) -> None:
    """One cell in twenty is random."""
    wrong = rng.random(X.shape) < 0.05
    X[wrong] = 1000 * rng.standard_normal(wrong.sum())


def everything(X: Any, y: Any, rng: Any) -> None:
    """All columns and the outcome times fifty."""
    X *= 50
    y *= 50


CASES: dict[str, Callable[[int], list[Callable[..., None]]]] = {
    "one column x 1000": lambda sites: [column(1000.0)],
    "one column x 0.001": lambda sites: [column(0.001)],
    "one cell of 1e6": lambda sites: [cell],
    "outcome + 500": lambda sites: [outcome(1.0, 500.0)],
    "outcome x 1000": lambda sites: [outcome(1000.0, 0.0)],
    "outcome x 0.001": lambda sites: [outcome(0.001, 0.0)],
    "two columns swapped": lambda sites: [swap],
    "a column shifted by 100 deviations": lambda sites: [shift],
    "outcome shifted by 1200": lambda sites: [outcome(1.0, 1200.0)],
    "5 % of the cells random": lambda sites: [random_cells],
    "three sites with different errors": lambda sites: [column(1000.0), outcome(1.0, 500.0), cell],
    "20 % of the sites x 50": lambda sites: [everything] * (sites // 5),
    "the skewed column x 1000": lambda sites: [column(1000.0, 2)],
    "the column of many zeros x 1000": lambda sites: [column(1000.0, 3)],
    "the column of heavy tails x 1000": lambda sites: [column(1000.0, 4)],
}


def federation(parts: list[Part], places: list[int]) -> kinfed.Federation:
    """The sites at these places."""
    X, y = (np.concatenate([parts[k][i] for k in places]) for i in (0, 1))
    return kinfed.Federation.from_arrays(X, y, np.repeat([f"site {k}" for k in places], [len(parts[k][1]) for k in places]))


def harm(options: argparse.Namespace) -> None:
    """Errors of the others over those without the bad sites, a line for each case."""
    how, everybody = {"rule": options.rule}, list(range(options.sites))
    clean: dict[tuple[int, int], Any] = {}
    for name, changes_of in CASES.items():
        if options.only not in name:
            continue
        changes, ratios, named = changes_of(options.sites), [], 0
        for seed in range(options.seeds):
            train, test = draw(options.sites, options.rows, seed)
            others = everybody[len(changes) :]
            names = [f"site {k}" for k in others]
            if (seed, len(changes)) not in clean:
                alone = kinfed.personalize(federation(train, others), test=federation(test, others), **how)
                clean[seed, len(changes)] = alone.scores
            for k, change in enumerate(changes):
                change(*train[k], np.random.default_rng([seed, k]))
            found = kinfed.personalize(federation(train, everybody), test=federation(test, everybody), **how)
            spoiled = found.scores.loc[names]
            ratios.append([spoiled[one].mean() / clean[seed, len(changes)][one].mean() for one in METHODS])
            told = found.known.screening
            named += sum(bool(told.about(f"site {k}")) for k in range(len(changes)))
        mean, error = np.mean(ratios, axis=0), np.std(ratios, axis=0) / np.sqrt(options.seeds)
        shown = ", ".join(f"{one} {a:.3f} ± {b:.3f}" for one, a, b in zip(METHODS, mean, error, strict=True))
        print(f"{name}: {shown}; told of in {named / (options.seeds * len(changes)):.0%}", flush=True)


def federations(data: Path | None) -> Iterator[tuple[str, Callable[[int], tuple[Any, Any]]]]:
    """Clean federations: name, and training and test rows of a seed."""

    def ours(seed: int, widest: float = 1.0) -> tuple[Any, Any]:
        parts, rng = draw(30, 30, seed), np.random.default_rng(seed)
        for own, held in zip(*parts, strict=True):
            factors = np.exp(rng.uniform(0, np.log(widest), 6))
            own[0][:] *= factors
            held[0][:] *= factors
        return tuple(federation(part, list(range(30))) for part in parts)  # type: ignore[return-value]

    def generated(make: Callable[..., Any], **how: Any) -> Callable[[int], tuple[Any, Any]]:
        def rows(seed: int) -> tuple[Any, Any]:
            made = make(**how, seed=seed)
            return made.train, made.test(TEST_ROWS, seed=seed + 1)

        return rows

    yield "skewed, rare and heavy columns", ours
    yield "scales that differ up to twentyfold", lambda seed: ours(seed, 20.0)
    for spread in (0.0, 0.25, 0.5, 1.0):
        yield f"concept shift {spread:g}", generated(kinfed.concept_shift, n_agents=40, n=15, dim=10, spread=spread)
    yield "covariate shift", generated(kinfed.covariate_shift, sizes=(12, 12, 16), n=30)
    yield "no structure", generated(kinfed.no_structure, n_agents=30, n=20)
    for path in sorted(data.glob("*.npz")) if data is not None else ():
        if path.stem in ("femnist", "tcga_brca"):  # images, and times of survival
            continue
        whole = kinfed.read_federation(path)
        few = [name for name, n in zip(whole.names, whole.sizes, strict=True) if n < 8]
        kept = whole.without(few) if few else whole
        yield path.stem, lambda seed, kept=kept: kept.split(0.5, seed=seed)  # type: ignore[misc]


def clean(options: argparse.Namespace) -> None:
    """Errors over those with plain standardisation, a line for each federation."""
    for name, rows in federations(options.data):
        if options.only not in name:
            continue
        ratios, aside = [], 0
        for seed in range(options.seeds):
            train, test = rows(seed)
            ours, plain = (kinfed.personalize(train, test=test, rule=options.rule, robust=one) for one in (True, False))
            ratios.append([ours.scores[one].mean() / plain.scores[one].mean() for one in METHODS])
            aside += len(ours.known.screening.aside)
        mean, error = np.mean(ratios, axis=0), np.std(ratios, axis=0) / np.sqrt(options.seeds)
        shown = ", ".join(f"{one} {a:.4f} ± {b:.4f}" for one, a, b in zip(METHODS, mean, error, strict=True))
        print(f"{name}: {shown}; set aside {aside}", flush=True)


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["harm", "clean"])
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--rule", default="calibrated")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    {"harm": harm, "clean": clean}[options.what](options)


if __name__ == "__main__":
    main()
