"""``kinfed sketch``: the one vector a site shares, made, looked at and checked by hand before it is sent."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas
import typer

from kinfed.cli.terminal import Json, made_folder, print_facts, print_json, print_table, progress_bars, say
from kinfed.data.tables import chosen_columns, numeric_batches
from kinfed.embedding import (
    FEW_ROWS,
    KERNELS,
    SAMPLINGS,
    FourierFeatures,
    Polynomial,
    PolynomialFeatures,
    Recipe,
    Sketch,
    common_recipe,
    features_from_recipe,
    load_sketch,
    median_bandwidth,
    squared_distances,
)
from kinfed.embedding.sketch import sketch as sketch_of
from kinfed.errors import InputError, SketchError
from kinfed.files import write_whole
from kinfed.validation import Array, first_repeated, unknown

app = typer.Typer(
    help="The one vector a site shares: make it, look at it, check it before it is sent.", no_args_is_help=True
)

RecipePath = Annotated[Path, typer.Option(help="The recipe all sites agreed on.", show_default=False)]
Columns = Annotated[
    list[str] | None, typer.Option(help="Column to use, in the order all sites agreed on. May be given several times.")
]
LeaveOut = Annotated[list[str] | None, typer.Option(help="Column not to use. May be given several times.")]
_QUANTILE = 3.841459  # of chi squared with one degree of freedom, at 0.95

SketchPath = Annotated[Path, typer.Argument(help="A sketch file.", show_default=False)]


@app.command()
def recipe(
    out: Annotated[Path, typer.Option(help="File for the recipe.", show_default=False)],
    kernel: Annotated[str, typer.Option(help=f"What makes two rows alike: {', '.join(KERNELS)}.")] = "gaussian",
    bandwidth: Annotated[
        list[float] | None,
        typer.Option(help="Distance at which rows are still alike; one, or one per column.", show_default=False),
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Number of columns.", show_default=False)] = None,
    features: Annotated[int, typer.Option(help="Numbers a sketch holds.")] = 500,
    sampling: Annotated[str, typer.Option(help=f"How features are drawn: {', '.join(SAMPLINGS)}.")] = "iid",
    seed: Annotated[int, typer.Option(help="Equal seeds draw equal features at every site.")] = 0,
    like: Annotated[
        Path | None, typer.Option(help="A table whose columns and spread set dimension and bandwidths.", show_default=False)
    ] = None,
    columns: Columns = None,
    leave_out: LeaveOut = None,
) -> None:
    """Write the recipe all sites agree on: with it every site draws the same features."""
    if kernel not in KERNELS:
        raise unknown("kernel", kernel, KERNELS)
    names: tuple[str, ...] = ()
    if like is not None:
        if bandwidth or dim:
            raise InputError("--like sets the number of columns and the bandwidths; leave --dim and --bandwidth out")
        names = chosen_columns(like, columns or (), leave_out or ())
        dim, bandwidth = len(names), _bandwidths(like, names) if kernel != "polynomial" else None
    elif columns or leave_out:
        raise InputError("--columns and --leave-out choose columns of a table; give it with --like")
    if dim is None:
        raise InputError("the number of columns is not known; give --dim, or a table with --like")
    made = _features(kernel, bandwidth, dim, features, sampling, seed).recipe
    made_folder(out.parent)
    try:
        write_whole(out, lambda file: file.write(f"{made.to_json()}\n".encode()))
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); give another file with --out") from None
    say(f"{out}: {_in_words(made)}. Give this file to every site.")
    if like is not None:
        say(f"Its bandwidths come from the spread of the columns of {like}; a reader learns as much about that table.")
    chosen = [part for name in names for part in ("--columns", name)]
    say(shlex.join(["kinfed", "sketch", "make", "TABLE", "--recipe", str(out), *chosen, "--out", "site.npz"]))


@app.command()
def make(
    table: Annotated[Path, typer.Argument(help="A table of this site's rows: CSV, TSV or Parquet.", show_default=False)],
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(help="File for the sketch.", show_default=False)],
    columns: Columns = None,
    leave_out: LeaveOut = None,
    json: Json = False,
) -> None:
    """Make this site's sketch; the table is read piece by piece and never held in full."""
    agreed = _read_recipe(recipe)
    names = chosen_columns(table, columns or (), leave_out or ())
    if len(names) != agreed.dim:
        raise InputError(
            f"{table} has {len(names)} columns ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''}), but {recipe} "
            f"is for {agreed.dim}; choose with --columns or --leave-out"
        )
    with progress_bars(hidden=json) as progress:
        made = sketch_of(numeric_batches(table, names, progress=progress), features_from_recipe(agreed))
    made_folder(out.parent)
    path = made.save(out)
    if json:
        print_json({**_facts(path, made), "columns": list(names), "warning": _warning(made)})
        return
    say(
        f"{path}: {_contents(made)}, {path.stat().st_size} bytes, made of the columns {', '.join(names)}.",
        _warning(made) or "No row is in it, but it tells about all of them; what, is on the page What leaves a site.",
        shlex.join(["kinfed", "sketch", "check", str(path), "--recipe", str(recipe)]),
    )


@app.command()
def inspect(path: SketchPath, json: Json = False) -> None:
    """What is in a sketch file, every field of it."""
    facts = _facts(path, load_sketch(path))
    if json:
        print_json(facts)
        return
    known = {name: value for name, value in {**facts, **facts["recipe"], "recipe": None}.items() if value is not None}
    print_facts({name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in known.items()})


@app.command()
def check(
    path: SketchPath,
    recipe: Annotated[Path | None, typer.Option(help="The recipe it must have been made with.", show_default=False)] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(help="A sketch it must compare with. May be given several times.", show_default=False),
    ] = None,
) -> None:
    """Whether a sketch is sound and fits the others, and what would leave with it: exit code 0 if so, 1 if not."""
    found = load_sketch(path)
    if recipe is not None and (agreed := _read_recipe(recipe)) != found.recipe:
        raise SketchError(
            f"{path} was made with other features than {recipe} ({agreed.difference(found.recipe)}); make it again with it"
        )
    others = against or []
    common_recipe([found, *map(load_sketch, others)], [str(path), *map(str, others)])
    fits = ", ".join(map(str, ([recipe] if recipe else []) + others))
    few = ", and of so few rows it can be turned back into them" if found.n < FEW_ROWS else ""
    say(
        f"{path} is sound{f' and fits {fits}' if fits else ''}: {_contents(found)} would leave with it, and nothing "
        f"else{few}."
    )


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Two or more sketch files.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for distances.csv, a row per pair.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """How far sites are apart, beside what chance explains, and who is near enough to help whom."""
    if len(paths) < 2:
        raise InputError("one sketch has nothing to be compared with; give two or more")
    if (repeated := first_repeated([str(path) for path in paths])) is not None:
        raise InputError(f"{repeated} is given twice; give every sketch once")
    stems = [path.stem for path in paths]
    names = stems if first_repeated(stems) is None else [str(path) for path in paths]
    sketches = [load_sketch(path) for path in paths]
    common_recipe(sketches, names)
    for path, one in zip(paths, sketches, strict=True):
        if one.n < 2:
            raise SketchError(f"{path} was made of one row, so its error is unknown; leave it out")
    pairs = pairwise(sketches, names)
    if out is not None:
        pairs.to_csv(made_folder(out) / "distances.csv", index=False)
    if json:
        print_json({"sites": names, "rows": [one.n for one in sketches], "pairs": pairs.to_dict("records")})
        return
    print_pairs(pairs, names)
    if out is not None:
        say(f"Every pair is in {out / 'distances.csv'}.")


def _features(
    kernel: str, bandwidth: list[float] | None, dim: int, features: int, sampling: str, seed: int
) -> FourierFeatures | PolynomialFeatures:
    if kernel == "polynomial":
        return PolynomialFeatures(Polynomial(), dim=dim)
    if not bandwidth:
        raise InputError(f"a {kernel} kernel needs --bandwidth, in the units of the columns, or a table with --like")
    width: Any = bandwidth[0] if len(bandwidth) == 1 else bandwidth
    return FourierFeatures(KERNELS[kernel](width), features, dim=dim, seed=seed, sampling=sampling)


def _bandwidths(table: Path, names: tuple[str, ...]) -> list[float]:
    """One per column: its deviation times the median distance of standardised rows, so that no unit matters."""
    with progress_bars() as progress:
        Z = np.vstack(list(numeric_batches(table, names, progress=progress)))
    deviations = Z.std(axis=0)
    if not deviations.all():
        name = names[int(np.flatnonzero(deviations == 0)[0])]
        raise InputError(f"{table}: column {name!r} has one value only; use --leave-out {name}")
    return [float(f"{one:.6g}") for one in deviations * median_bandwidth(Z / deviations)]


def _read_recipe(path: Path) -> Recipe:
    try:
        found = Recipe.from_json(path.read_text(encoding="utf-8"))
        features_from_recipe(found)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"the recipe {path} cannot be read ({reason}); make one with kinfed sketch recipe") from None
    except SketchError as error:
        raise SketchError(f"{path}: {error}") from None
    return found


def _facts(path: Path, found: Sketch) -> dict[str, Any]:
    content = path.read_bytes()
    return {
        "file": str(path),
        "rows": found.n,
        "numbers": len(found.mean),
        "norm": float(np.linalg.norm(found.mean)),
        "trace": found.trace,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "recipe": asdict(found.recipe),
    }


def _contents(found: Sketch) -> str:
    return (
        f"the mean of {len(found.mean)} features of {found.n} rows, one number for their spread, the number of rows, and "
        "the recipe"
    )


def _warning(found: Sketch) -> str | None:
    if found.n >= FEW_ROWS:
        return None
    return (
        f"Caution: a sketch of few rows, and {found.n} are few, can be turned back into the rows; treat it as if it were "
        "them, and read the page What leaves a site before sending it."
    )


def _in_words(made: Recipe) -> str:
    drawn = "the exact map" if made.sampling == "exact" else f"{made.sampling} draws with seed {made.seed}"
    parameters = ", ".join(f"{name} {value}" for name, value in made.parameters.items())
    return f"{made.kernel} kernel ({parameters}), {made.dim} columns, {made.n_features} features, {drawn}"


def pairwise(sketches: list[Sketch], names: list[str]) -> pandas.DataFrame:
    r"""Squared distances of mean embeddings from sketches alone, a row per target and other site.

    With :math:`s_k = \mathrm{tr}\,\Sigma_k / n_k` two sites of one distribution have :math:`|\nu_t - \nu_k|^2` of mean
    :math:`s_t + s_k`; the difference of the two is unbiased for the squared distance of what the sites are drawn from.
    Site k is "near" t if that difference is at most :math:`s_t`, the squared error of being alone (the rule
    similarity-test), and "apart" if :math:`|\nu_t - \nu_k|^2` is beyond the quantile :math:`(s_t + s_k) \chi^2_{1, 0.95}`.
    Among covariances of one trace a single direction has the largest such quantile, so this is on the safe side whatever
    the covariance, which sketches do not tell. In between, "unclear".
    """
    means: Array = np.array([one.mean for one in sketches])
    centred = means - means.mean(axis=0)
    apart = squared_distances(centred @ centred.T)
    error = np.array([one.trace / one.n for one in sketches])
    chance = error[:, None] + error
    kinship = np.where(apart - chance <= error[:, None], "near", np.where(apart > _QUANTILE * chance, "apart", "unclear"))
    target, other = np.nonzero(~np.eye(len(sketches), dtype=bool))
    return pandas.DataFrame(
        {
            "site": [names[t] for t in target],
            "other": [names[k] for k in other],
            "squared mmd": apart[target, other],
            "by chance": chance[target, other],
            "difference": (apart - chance)[target, other],
            "kinship": kinship[target, other],
        }
    )


def print_pairs(pairs: pandas.DataFrame, names: list[str]) -> None:
    """Each pair once if there are few sites, then for every site who is near, and who may be."""
    if len(names) <= 8:
        once = (
            (row["site"], row["other"], *(f"{row[key]:.5f}" for key in ("squared mmd", "by chance", "difference")))
            for row in pairs.to_dict("records")
            if names.index(row["site"]) < names.index(row["other"])
        )
        print_table(("site", "other", "squared MMD", "by chance", "difference"), once)
    for name in names:
        rows = pairs[pairs["site"] == name].sort_values("difference", kind="stable")
        near, unclear, apart = (
            _listed(rows.loc[rows["kinship"] == kind, "other"].tolist()) for kind in ("near", "unclear", "apart")
        )
        say(f"{name}: near enough to help {near}; unclear {unclear}; farther apart than chance explains {apart}.")


def _listed(names: list[str]) -> str:
    return (", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")) or "nobody"
