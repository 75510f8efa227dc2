"""``kinfed reproduce NAME``: one command per experiment, whose options are the fields of the experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

import kinfed
from kinfed.cli.terminal import Json, print_json, progress_bars, say, typed_command
from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.experiment import Experiment

app = typer.Typer(
    help="The paper's experiments: results.csv, figures, and a verdict for every claim in summary.md.", no_args_is_help=True
)

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
        asked = {name: _as_field(value) for name, value in given.items() if value is not None and value != []}
        chosen = experiment(**{**(experiment.quick() if quick else {}), **asked})
        if workers is not None and workers < 1:
            raise InputError(f"--workers must be at least 1, got {workers}")
        with progress_bars(hidden=json) as bars:
            try:
                summary = run_experiment(chosen, out, command=typed_command(), progress=bars, workers=workers)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("start the same command again to go on") from None
        text = summary.read_text(encoding="utf-8")
        if json:
            print_json(_account(chosen, out, text))
            return
        say(text.split("## Figures")[0])
        say(f"Results, figures and the whole summary are in {out}.")

    hints = get_type_hints(experiment)
    common = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, annotation=annotation, default=Parameter.empty if default is ... else default
        )
        for name, (annotation, default) in _COMMON.items()
    ]
    own = [_option(one, hints[one.name]) for one in fields(experiment) if "help" in one.metadata]  # type: ignore[arg-type]
    run.__signature__ = Signature([*common, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*common, *own]}
    return run


def _account(experiment: Experiment, out: Path, summary: str) -> dict[str, Any]:
    """Everything ``--json`` prints."""
    return {
        "command": typed_command(),
        "version": kinfed.__version__,
        "experiment": experiment.name,
        "settings": asdict(experiment),  # type: ignore[call-overload]
        "files": sorted(path for path in out.iterdir() if path.is_file() and not path.name.startswith(".")),
        "summary": summary,
    }


def _option(one: Field[Any], hint: Any) -> Parameter:
    """A field as an option; what is not given keeps the default, which the help shows."""
    many = getattr(hint, "__origin__", None) is tuple
    kind: Any = list[get_args(hint)[0]] if many else hint  # type: ignore[misc]
    default = "" if one.default is MISSING else _shown(one.default)
    text = (
        f"{one.metadata['help']}" + (" May be given several times." if many else "") + (f" [{default}]" if default else "")
    )
    name = "--" + one.name.replace("_", "-")
    if one.default is MISSING:
        return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, typer.Option(name, help=text)])
    optional = Annotated[kind | None, typer.Option(name, help=text, show_default=False)]
    return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=optional, default=None)


def _shown(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _as_field(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


for _name, _experiment in EXPERIMENTS.items():
    app.command(name=_name, help=_experiment.__doc__)(experiment_command(_experiment))
