"""``kinfed flower``: what a deployment on Flower starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.terminal import made_folder, say
from kinfed.engines.flower.environment import require_flower

app = typer.Typer(help="Run a federation across machines, on Flower.", no_args_is_help=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the app; it is made if it is not there.")],
    target: Annotated[str, typer.Option(help="Column to predict.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Column that tells agents apart.")] = "",
    data: Annotated[str, typer.Option(help="For a simulation: the file or folder with all agents.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of an earlier app.")] = False,
) -> None:
    """Write a ready Flower app, with every option of a run in its pyproject.toml."""
    require_flower()
    from kinfed.engines.flower.folder import write_app

    write_app(folder, {"target": target, "agent": agent, "data": data}, force)
    say(f"The app is in {folder}; its options are in {folder / 'pyproject.toml'}. Run it with: flwr run {folder}")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; it is made if it is not there.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server beside localhost. May be given several times.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of node keys.")] = 3,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 365,
) -> None:
    """Write a certificate authority, a server certificate and node keys for a trial; nothing is overwritten."""
    require_flower()
    from kinfed.engines.flower.certificates import write_certificates

    made = write_certificates(made_folder(folder), host or [], nodes, days)
    say(f"For the server: {made.server_certificate} and {made.server_key}. For everybody: {made.authority}.")
    say(f"For the nodes: {', '.join(map(str, made.node_keys))}; register their .pub files at the server.")
