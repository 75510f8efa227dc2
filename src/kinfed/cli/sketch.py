"""``kinfed sketch``: the one vector a site shares, made, looked at and checked by hand before it is sent."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kinfed.cli.options import KERNELS
from kinfed.cli.sketch_comparison import pairwise, print_pairs
from kinfed.cli.terminal import Json, made_folder, print_json, progress_bars, say
from kinfed.columns import first_repeated, unknown
from kinfed.data.numeric_batches import chosen_columns, numeric_batches
from kinfed.errors import InputError, SketchError
from kinfed.features import SAMPLINGS, FourierFeatures, PolynomialFeatures, Recipe, features_from_recipe
from kinfed.files import write_whole
from kinfed.kernels import Polynomial, median_bandwidth
from kinfed.sketch import FEW_ROWS, Sketch, common_recipe, load_sketch
from kinfed.sketch import sketch as sketch_of

app = typer.Typer(
    help="The one vector a site shares: make it, look at it, check it before it is sent.", no_args_is_help=True
)

RecipePath = Annotated[Path, typer.Option(help="The recipe all sites agreed on.", show_default=False)]
Columns = Annotated[
    list[str] | None, typer.Option(help="Column to use, in the order all sites agreed on. May be given several times.")
]
LeaveOut = Annotated[list[str] | None, typer.Option(help="Column not to use. May be given several times.")]
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
    say(f"{path}: {_contents(made)}, {path.stat().st_size} bytes, made of the columns {', '.join(names)}.")
    say(_warning(made) or "No row is in it, but it tells about all of them; what, is on the page What leaves a site.")
    say(shlex.join(["kinfed", "sketch", "check", str(path), "--recipe", str(recipe)]))


@app.command()
def inspect(path: SketchPath, json: Json = False) -> None:
    """What is in a sketch file, every field of it."""
    facts = _facts(path, load_sketch(path))
    if json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in {**facts, **facts["recipe"], "recipe": None}.items():
        if value is not None:
            table.add_row(name, escape(f"{value:.6g}" if isinstance(value, float) else str(value)))
    Console().print(table)


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
    fits = [str(one) for one in ([recipe] if recipe else []) + others]
    sound = f"{path} is sound" + (f" and fits {', '.join(fits)}" if fits else "")
    few = ", and of so few rows it can be turned back into them" if found.n < FEW_ROWS else ""
    say(f"{sound}: {_contents(found)} would leave with it, and nothing else{few}.")


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Two or more sketch files.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for distances.csv, a row per pair.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """How far sites are apart, beside what chance explains, and who is near enough to help whom."""
    if len(paths) < 2:
        raise InputError("one sketch has nothing to be compared with; give two or more")
    repeated = first_repeated([str(path) for path in paths])
    if repeated is not None:
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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"the recipe {path} cannot be read ({reason}); make one with kinfed sketch recipe") from None
    try:
        found = Recipe.from_json(text)
        features_from_recipe(found)
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
