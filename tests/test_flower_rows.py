"""The apps of a deployment in one process, where every message is answered from the file as it is then."""

import pandas as pd
import pytest
from flwr.app import Message

from flower_federation import AGENTS, NAMES, SEED, expected, same, write_tables
from kinfed.backends.flower.channel import server_app
from kinfed.backends.flower.nodes import InProcessGrid, client_app
from kinfed.deployment.server import run_federation
from kinfed.deployment.site import site_from_context


class Anew(InProcessGrid):
    """Nodes that start a process for every message, as deployed ones do: nothing is left of it but their state."""

    def __init__(self, folder, before, **options):
        configs = [{"data": str(folder / f"{name}.csv"), "out": str(folder / "kept" / name)} for name in NAMES]
        super().__init__(client_app(site_from_context), configs, options)
        self._before, self.answered = before, 0

    def _answer(self, message: Message) -> Message:
        self._before(self.answered)
        self.answered += 1
        self._app = client_app(site_from_context)
        return super()._answer(message)


def deployed(folder, before, name="out"):
    """A run over the tables of a folder, with `before(number)` called before every message; and how many came."""
    out = folder / name
    options = {"target": "y", "task": "regression", "rule": "q-aggregation", "seed": SEED, "test-size": 0.25}
    with Anew(folder, before, **options, out=str(out), agents=AGENTS, quorum=0.25) as grid:
        server_app(run_federation)(grid, grid.server_context())
    return out, grid.answered


def edit(table):
    table.loc[5, "dose"] += 1e-6
    return table


CHANGES = {
    "edited": (edit, "24 rows as before, but not the same"),
    "appended": (lambda table: pd.concat([table, table[:1]]), "24 rows then, 25 now"),
    "shortened": (lambda table: table[1:], "24 rows then, 23 now"),
}


def test_files_that_are_sorted_anew_before_every_message_change_nothing(tmp_path):
    write_tables(tmp_path)
    _, _, pooled = expected(tmp_path, "ridge")
    still, _ = deployed(tmp_path, lambda number: None, "still")

    def shuffle(number):
        for name in NAMES:
            path = tmp_path / f"{name}.csv"
            pd.read_csv(path).sample(frac=1.0, random_state=number).to_csv(path, index=False)

    moved, _ = deployed(tmp_path, shuffle, "moved")
    assert pd.read_csv(moved / "attendance.csv").empty
    same(moved, pooled, "ridge")
    for name in ("weights.csv", "scores.csv"):
        assert (moved / name).read_bytes() == (still / name).read_bytes()


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_changed_is_noticed_at_the_next_message(tmp_path, change):
    write_tables(tmp_path)
    path, (apply, told) = tmp_path / "south.csv", CHANGES[change]
    whole = pd.read_csv(path)
    _, count = deployed(tmp_path, lambda number: None)
    for at in (AGENTS, count // 2):  # after the introductions, and in the midst of the run

        def before(number, at=at):
            if number == at:
                apply(whole.copy()).to_csv(path, index=False)

        out, _ = deployed(tmp_path, before, f"at {at}")
        whole.to_csv(path, index=False)
        missed = pd.read_csv(out / "attendance.csv")
        assert set(missed.agent) == {"south"}
        assert missed["reason"][0] == (
            f"agent south: its data have changed since this run began ({told}), so it takes no further part; "
            "put them back, or start the run again"
        )
        assert {"north", "west"} <= set(pd.read_csv(out / "scores.csv").dropna(subset="value").agent)
