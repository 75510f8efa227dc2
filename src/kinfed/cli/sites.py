"""``kinfed data`` and ``kinfed flower``: what a run starts from.

Real federations to be had, what a federation looks like, and a checked file of each; the app and the keys of a deployment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas
import typer

from kinfed.cli.config import PAIR
from kinfed.cli.options import pairs, read_data
from kinfed.cli.terminal import Json, made_folder, print_facts, print_json, print_table, progress_bars, say
from kinfed.data.catalogue import CATALOGUE, cache_folder, fetch, find_entry
from kinfed.data.description import described
from kinfed.errors import InputError
from kinfed.federation import Federation
from kinfed.learners.auto import auto_task
from kinfed.run import require_flower
from kinfed.settings import Settings

_MOST_COLUMNS = 60  # listed in a terminal

data_app = typer.Typer(help="Real federations: list, describe, fetch.", no_args_is_help=True)
flower_app = typer.Typer(help="Run a federation across machines, on Flower.", no_args_is_help=True)

Cache = Annotated[
    Path | None,
    typer.Option(
        help="Folder for fetched files; by default $KINFED_CACHE, or kinfed in the cache folder of the user.",
        show_default=False,
        rich_help_panel="Output",
    ),
]


@data_app.command(name="list")
def list_command(json: Json = False) -> None:
    """The real federations to be had, and what is predicted in each."""
    if json:
        print_json({"federations": [dict(entry.facts()) for entry in CATALOGUE.values()]})
        return
    rows = [(one.name, str(one.agents), str(one.rows), one.target, one.title) for one in CATALOGUE.values()]
    print_table(("name", "agents", "rows", "target", "what it is"), rows)
    say("kinfed data describe NAME tells more; kinfed data fetch NAME writes a file and shows what to do with it.")


@data_app.command()
def describe(
    what: Annotated[str, typer.Argument(metavar="NAME-OR-PATH", help="A name of kinfed data list, or a file or folder.")],
    target: Annotated[str | None, typer.Option(help="Column to predict, for a path.")] = None,
    agent: Annotated[str | None, typer.Option(help="Column that tells agents apart, for a path.")] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="Column not to use. May be given several times.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar=PAIR,
            help="What a column is: name=number, category, date, boolean or ignore. May be given several times.",
        ),
    ] = None,
    group_by: Annotated[str | None, typer.Option(help="Column of labels, such as patients, that is no feature.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times that is no feature.")] = None,
    sample_weight: Annotated[str | None, typer.Option(help="Column of row weights that is no feature.")] = None,
    encoding: Annotated[str, typer.Option(help="How a text file is written, such as latin-1.")] = "auto",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """What is in a federation: its columns, what would be done with them and why; agents, outcome, gaps, leaks."""
    entry, federation = None, None
    if Path(what).expanduser().exists():
        roles = {"target": target, "agent": agent, "group_by": group_by, "time": time, "sample_weight": sample_weight}
        federation = read_data(Settings(data=what, leave_out=tuple(leave_out or ()), encoding=encoding, **roles))  # type: ignore[arg-type]
    else:
        if what not in CATALOGUE and ("/" in what or "." in what):
            raise InputError(f"{what} does not exist; give a path, or a name of kinfed data list")
        if target or agent or leave_out:
            raise InputError(f"{what} is a name of the catalogue, which knows its columns; leave --target and --agent out")
        entry = find_entry(what)
        # A federation that has to be got first is not shown.
        if entry.source.at_hand or ((cache or cache_folder()) / entry.file).is_file():
            federation = entry.read(fetch(entry, cache=cache))
    facts = {} if entry is None else dict(entry.facts())
    summary = {} if federation is None else summarised(federation)
    found = None
    if federation is not None:
        labels = auto_task(federation) == "classification" if federation.has_target else None
        found = described(federation, pairs(column), labels)
    if json:
        agents = [] if federation is None else federation.describe().to_dict("records")
        columns = [] if found is None else found.columns.reset_index().to_dict("records")
        print_json(
            {
                **facts,
                **({"path": what} if entry is None else {}),
                "summary": summary or None,
                "notes": [] if found is None else found.notes,
                "per column": columns,
                "per agent": agents,
                "class shares": None if found is None or found.classes is None else found.classes.to_dict("index"),
                "missing": None if found is None else found.missing.to_dict("index"),
                "screening": None if found is None else found.screening.to_settings(),
            }
        )
        return
    print_facts({name: _in_words(name, value) for name, value in {**facts, **summary}.items() if value is not None})
    if federation is None or found is None:
        say(f"{what} is not here yet, so its agents cannot be shown.")
        return
    _print_columns(found.columns)
    _print_agents(federation.describe())
    if found.classes is not None:
        _print_classes(found.classes)
    if found.trouble:
        say(found.trouble)
    if told := found.screening.describe():
        say("Agents and cells unlike all others:", *(f"- {sentence}" for sentence in told))
    if found.notes:
        say("What was done when the data were read:", *(f"- {note}" for note in found.notes))


@data_app.command(name="fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A name of kinfed data list.", autocompletion=lambda: list(CATALOGUE))],
    out: Annotated[
        Path | None, typer.Option(help="File to write besides the one in the cache.", rich_help_panel="Output")
    ] = None,
    cache: Cache = None,
    given: Annotated[
        str | None, typer.Option("--from", metavar="PATH-OR-URL", help="Where the original files are, if not in a package.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a federation to a file, checked, and show what to do with it; a second call finds it in the cache."""
    entry = find_entry(name)
    with progress_bars(hidden=json) as progress, progress.step(f"fetching {name}"):
        path = fetch(entry, out=out, cache=cache, given=given, progress=progress)
    if json:
        print_json({**entry.facts(), "path": path, "bytes": path.stat().st_size, "command": entry.command(path)})
        return
    checked = "its checksum is right" if entry.sha256 else "it has no checksum, for forms of these data differ"
    say(
        f"{entry.title}: {entry.agents} agents, {entry.rows} rows; {checked}. Cite {entry.citation}.",
        str(path),
        entry.command(path),
    )


def summarised(federation: Federation) -> dict[str, Any]:
    """A federation in a few numbers."""
    table, sizes = federation.describe(), federation.sizes
    weights = sizes / max(int(sizes.sum()), 1)
    found: dict[str, Any] = {
        "agents": len(federation),
        "rows": int(sizes.sum()),
        "rows per agent": {
            "least": int(sizes.min()),
            "median": float(pandas.Series(sizes).median()),
            "most": int(sizes.max()),
        },
        "columns": list(federation.columns),
        "target": federation.target if federation.has_target else None,
        "missing values": float((table["missing"] * weights).sum()),
    }
    if "target mean" in table:
        found["target means of agents"] = {
            "least": float(table["target mean"].min()),
            "most": float(table["target mean"].max()),
        }
    if "classes" in table:
        found["classes"] = len({label for agent in federation if agent.y is not None for label in agent.y.tolist()})
    return found


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one:g}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(value[:12]) + (f" and {len(value) - 12} more" if len(value) > 12 else "")
    return f"{value:.1%}" if name == "missing values" else str(value)


def _print_columns(table: pandas.DataFrame) -> None:
    """What every column is and what is done with it; those that are like numbers from the start are counted."""
    if table.empty:
        return
    shown = table if len(table) <= _MOST_COLUMNS else table[table["why"] != "numbers"].head(_MOST_COLUMNS)
    names = ("column", "read as", "missing", "different values", "what is done", "why")
    rows = [
        (
            str(name),
            str(row["read as"]),
            f"{row['missing']:.1%}" + (f" ({row['missing most at']})" if row["missing most at"] else ""),
            str(row["different values"]) if row["different values"] else "",
            str(row["what is done"]),
            str(row["why"]),
        )
        for name, row in shown.iterrows()
    ]
    print_table(names, rows)
    if len(shown) < len(table):
        say(f"The other {len(table) - len(shown)} columns are numbers; --json gives all.")


def _print_classes(shares: pandas.DataFrame) -> None:
    """Shares of the classes at the agents, and over all of them the least and the largest."""
    rows = [
        (str(label), f"{one.mean():.1%}", f"{one.min():.1%} ({one.idxmin()})", f"{one.max():.1%} ({one.idxmax()})")
        for label, one in shares.items()
    ]
    print_table(("class", "mean share", "least", "most"), rows)


def _print_agents(table: pandas.DataFrame) -> None:
    """The table of agents, its largest and smallest if there are many."""
    few = len(table) <= 12
    shown = table if few else table.sort_values("n", ascending=False, kind="stable").iloc[[*range(6), *range(-6, 0)]]
    rows = (
        [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in shown.itertuples(index=False)
    )
    print_table(list(map(str, shown.columns)), rows)
    if not few:
        say("The six largest and the six smallest agents; --json gives all.")


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the app; it is made if it is not there.")],
    target: Annotated[str, typer.Option(help="Column to predict.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Column that tells agents apart.")] = "",
    data: Annotated[str, typer.Option(help="For a simulation: the file or folder with all agents.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of an earlier app.")] = False,
) -> None:
    """Write a ready Flower app, with every option of a run in its pyproject.toml."""
    require_flower()
    from kinfed.deployment.folder import write_app

    write_app(folder, {"target": target, "agent": agent, "data": data}, force)
    say(f"The app is in {folder}; its options are in {folder / 'pyproject.toml'}. Run it with: flwr run {folder}")


@flower_app.command()
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
    from kinfed.deployment.certificates import write_certificates

    made = write_certificates(made_folder(folder), host or [], nodes, days)
    say(
        f"For the server: {made.server_certificate} and {made.server_key}. For everybody: {made.authority}.",
        f"For the nodes: {', '.join(map(str, made.node_keys))}; register their .pub files at the server.",
    )
