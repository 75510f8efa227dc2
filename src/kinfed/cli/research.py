"""``kinfed reproduce NAME``, ``leaderboard`` and ``bench``.

Every experiment is a command whose options are the fields of the experiment; the leaderboard has a name of its own besides.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from dataclasses import MISSING, Field, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

import kinfed
from kinfed.bench import Sizes, run_bench
from kinfed.cli.terminal import Json, made_folder, print_json, print_table, progress_bars, resumable, say, typed_command
from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.experiment import Experiment
from kinfed.experiments.leaderboard import Leaderboard

app = typer.Typer(
    help="The paper's experiments: results.csv, figures, and a verdict for every claim in summary.md.", no_args_is_help=True
)
_QUICK = Sizes(agents=30, points=20, dim=10, features=200, steps=300)
_COMMON = {
    "out": (
        Annotated[
            Path,
            typer.Option(
                metavar="FOLDER",
                help="Folder for results, figures and summary; an interrupted run goes on.",
                rich_help_panel="Output",
            ),
        ],
        ...,
    ),
    "quick": (Annotated[bool, typer.Option("--quick", help="A smaller run of a few minutes.")], False),
    "json": (Json, False),
    "workers": (Annotated[int | None, typer.Option(help="Parts run at once; by default one per core.")], None),
}


def experiment_command(experiment: type[Experiment]) -> Callable[..., None]:
    """The command of an experiment, an option for every setting."""

    def run(out: Path, quick: bool, json: bool, workers: int | None, **given: Any) -> None:
        asked = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value not in (None, [])
        }
        chosen = experiment(**{**(experiment.quick if quick else {}), **asked})
        if workers is not None and workers < 1:
            raise InputError(f"--workers must be at least 1, got {workers}")
        with progress_bars(hidden=json) as bars, resumable():
            summary = run_experiment(chosen, out, command=typed_command(), progress=bars, workers=workers)
        text = summary.read_text(encoding="utf-8")
        if json:
            print_json(
                {
                    "command": typed_command(),
                    "version": kinfed.__version__,
                    "experiment": chosen.name,
                    "settings": chosen.chosen,
                    "files": sorted(path for path in out.iterdir() if path.is_file() and not path.name.startswith(".")),
                    "summary": text,
                }
            )
            return
        say(text.split("## Figures")[0], f"Results, figures and the whole summary are in {out}.")

    hints = get_type_hints(experiment)
    common = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, annotation=annotation, default=Parameter.empty if default is ... else default
        )
        for name, (annotation, default) in _COMMON.items()
    ]
    own = [_option(one, hints[one.name]) for one in experiment.options() if "help" in one.metadata]
    run.__signature__ = Signature([*common, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*common, *own]}
    return run


def _option(one: Field[Any], hint: Any) -> Parameter:
    """A field as an option; what is not given keeps the default, which the help shows."""
    many = getattr(hint, "__origin__", None) is tuple
    kind: Any = list[get_args(hint)[0]] if many else hint  # type: ignore[misc]
    text = f"{one.metadata['help']}{' May be given several times.' if many else ''}"
    name = "--" + one.name.replace("_", "-")
    if one.default is MISSING:
        return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, typer.Option(name, help=text)])
    default = " ".join(map(str, one.default)) if isinstance(one.default, tuple) else str(one.default)
    shown = typer.Option(name, help=f"{text} [{default}]" if default else text, show_default=False)
    return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind | None, shown], default=None)


for _name, _experiment in EXPERIMENTS.items():
    app.command(name=_name, help=_experiment.__doc__)(experiment_command(_experiment))
leaderboard = experiment_command(Leaderboard)
leaderboard.__doc__ = Leaderboard.__doc__


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
    given = {"agents": agents, "points": points, "dim": dim, "features": features, "steps": steps, "repeats": repeats}
    sizes = replace(_QUICK if quick else Sizes(), **{name: value for name, value in given.items() if value is not None})
    with progress_bars(hidden=json) as progress:
        found = run_bench(sizes, progress=progress)
    if out is not None:
        found.to_frame().to_csv(made_folder(out) / "bench.csv", index=False)
        (out / "bench.json").write_text(json_text.dumps(found.facts(), indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(found.facts())
        return
    machine = found.machine
    say(
        f"{sizes.agents} agents of {sizes.points} points, {sizes.dim} columns, {sizes.features} features, {sizes.steps} "
        f"steps; medians of {sizes.repeats}. {machine['linear algebra']} with at most {machine['threads']} threads on "
        f"{machine['cores']} cores."
    )
    rows = [(one.task, f"{one.seconds:.3g}", f"{one.limit_seconds:.3g}", f"{one.ratio:.1f}") for one in found.timings]
    print_table(("task", "seconds", "limit", "ratio"), rows)
    say(*(f"Limit of {one.task}: {one.limit}." for one in found.timings))
    if out is not None:
        say(f"The table is in {out / 'bench.csv'}.")
