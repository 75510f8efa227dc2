"""``kinfed demo``: a real federation on a fresh machine."""

from __future__ import annotations

from pathlib import Path

from kinfed.cli.accounts import gained, personal_account
from kinfed.cli.outputs import PERSONAL_FILES, REPORT, files_in
from kinfed.cli.runs import Run
from kinfed.cli.terminal import Json, Out, Seed, check_folder, made_folder, print_json, progress_bars, say
from kinfed.data.catalogue import fetch, find_entry

_TEST_SIZE = 0.5


def demo(out: Out = Path("demo"), seed: Seed = 0, json: Json = False) -> None:
    """160 schools predict mathematics achievement: who helps whom, and what it is worth, within a minute."""
    check_folder(out)
    entry, run = find_entry("hsb82"), Run(out)
    with progress_bars(hidden=json) as bars:
        with bars.step("reading the schools"):
            data = fetch(entry, cache=made_folder(out))
            train, test = entry.read(data).split(test_size=_TEST_SIZE, seed=seed)
        settings = {
            "data": str(data),
            "target": entry.target,
            "agent": entry.agent,
            "test-size": _TEST_SIZE,
            "seed": seed,
            "out": str(out),
        }
        result = run.personalize(train, test, bars, seed=seed)
        run.write(result, entry.title, settings, bars, "kinfed personalize")
    if json:
        print_json(personal_account(result, settings, files_in(out, PERSONAL_FILES), out / REPORT))
        return
    say(
        f"{len(train)} schools shared sketches and scores, found whose data help them, and trained a model of their own on "
        f"{int(train.sizes.sum())} pupils; {int(test.sizes.sum())} others tested it."
    )
    say(gained(result, "a school", "the schools"))
    say(f"The report is {out / REPORT}: open it in a browser.")
