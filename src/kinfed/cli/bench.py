"""``kinfed bench``: how fast kinfed is on this machine."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from kinfed.bench import Bench, Sizes, run_bench
from kinfed.cli.terminal import Json, made_folder, print_json, progress_bars, say

QUICK = Sizes(agents=30, points=20, dim=10, features=200, steps=300)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes, in a few seconds.")] = False,
    agents: Annotated[int | None, typer.Option(help="B, agents. [100]", show_default=False)] = None,
    points: Annotated[int | None, typer.Option(help="n, points of each. [50]", show_default=False)] = None,
    dim: Annotated[int | None, typer.Option(help="d, columns. [20]", show_default=False)] = None,
    features: Annotated[int | None, typer.Option(help="D, random Fourier features. [500]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(help="T, steps of Algorithm 3. [1000]", show_default=False)] = None,
    repeats: Annotated[int | None, typer.Option(help="Runs a median is taken of. [3]", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for bench.csv and bench.json.", show_default=False, rich_help_panel="Output")
    ] = None,
    json: Json = False,
) -> None:
    """How fast kinfed is on this machine: every task beside a matrix product of the same arithmetic."""
    usual = QUICK if quick else Sizes()
    sizes = Sizes(
        agents=usual.agents if agents is None else agents,
        points=usual.points if points is None else points,
        dim=usual.dim if dim is None else dim,
        features=usual.features if features is None else features,
        steps=usual.steps if steps is None else steps,
        repeats=usual.repeats if repeats is None else repeats,
    )
    with progress_bars(hidden=json) as progress:
        found = run_bench(sizes, progress=progress)
    if out is not None:
        found.to_frame().to_csv(made_folder(out) / "bench.csv", index=False)
        (out / "bench.json").write_text(json_text.dumps(found.facts(), indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(found.facts())
        return
    _print(found)
    if out is not None:
        say(f"The table is in {out / 'bench.csv'}.")


def _print(found: Bench) -> None:
    sizes, machine = found.sizes, found.machine
    say(
        f"{sizes.agents} agents of {sizes.points} points, {sizes.dim} columns, {sizes.features} features, {sizes.steps} "
        f"steps; medians of {sizes.repeats}. {machine['linear algebra']} with at most {machine['threads']} threads on "
        f"{machine['cores']} cores."
    )
    table = Table("task", "seconds", "limit", "ratio", box=box.SIMPLE)
    for one in found.timings:
        table.add_row(one.task, f"{one.seconds:.3g}", f"{one.limit_seconds:.3g}", f"{one.ratio:.1f}")
    Console().print(table)
    for one in found.timings:
        say(f"Limit of {one.task}: {one.limit}.")
