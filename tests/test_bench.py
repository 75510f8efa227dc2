"""The bench runs on tiny federations and says what it timed; how long anything takes is not tested."""

import json

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from kinfed.bench import TASKS, Sizes, median_seconds, median_seconds_beside, run_bench, tasks
from kinfed.cli.research import bench
from kinfed.errors import InputError

pytestmark = pytest.mark.slow

TINY = Sizes(agents=4, points=8, dim=2, features=10, steps=5, repeats=1)
OPTIONS = ("--agents", 4, "--points", 8, "--dim", 2, "--features", 10, "--steps", 5, "--repeats", 1)


def run(*arguments):
    app = typer.Typer()
    app.command()(bench)
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.fixture(scope="module")
def timed():
    """A bench, and what it told of its progress."""
    seen = []
    return run_bench(TINY, progress=lambda *one: seen.append(one)), seen


def test_every_task_is_timed_beside_its_limit(timed):
    found, seen = timed
    assert len(found.timings) == len({one.task for one in found.timings}) == TASKS
    for one in found.timings:
        assert one.seconds > 0
        assert one.limit_seconds > 0
        assert one.ratio == pytest.approx(one.seconds / one.limit_seconds)
    assert [done for _, done, _ in seen] == list(range(TASKS + 1))
    assert found.machine["threads"] >= 1


def test_limits_do_the_arithmetic_they_name():
    limits = {task.name: task for task in tasks(TINY)}
    assert limits["features of all points"].product().shape == (4 * 8, 10)
    assert limits["geometry of all agents"].product().shape == (4 * 8, 4)
    assert limits["weights by Algorithm 3"].product().shape == (4, 4)
    assert limits["weights by Algorithm 3"].times() == 2 * 5
    assert limits["logistic regression for all agents"].product().shape == (4, 3 * 3)
    whole = limits["personalize, calibrated, end to end"]
    whole.work()
    assert whole.times() % 5 == 0
    assert whole.times() > 5


def test_medians_are_medians_of_calls_in_turn(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr("kinfed.bench.time.perf_counter", lambda: now[0])

    def takes(name, *durations):
        left = list(durations)

        def work():
            calls.append(name)
            now[0] += left.pop(0)

        return work

    assert median_seconds(takes("a", 5.0, 1.0, 2.0), 3) == 2.0
    calls.clear()
    assert median_seconds_beside(takes("a", 4.0, 6.0), takes("b", *[1.0] * 9, *[3.0] * 9), 2) == (5.0, 2.0)
    assert calls == ["a", *["b"] * 9] * 2


def test_the_command_prints_and_writes_the_same_numbers(tmp_path, timed, monkeypatch):
    asked = []
    monkeypatch.setattr("kinfed.cli.research.run_bench", lambda sizes, progress: asked.append(sizes) or timed[0])
    found = json.loads(run(*OPTIONS, "--json", "--out", tmp_path / "out"))
    assert found["sizes"] == {"agents": 4, "points": 8, "dim": 2, "features": 10, "steps": 5, "repeats": 1}
    assert found == json.loads((tmp_path / "out" / "bench.json").read_text())
    table = pd.read_csv(tmp_path / "out" / "bench.csv")
    assert table["seconds"].tolist() == pytest.approx([one["seconds"] for one in found["tasks"]])
    shown = run(*OPTIONS)
    assert asked == [TINY, TINY]
    assert "threads" in shown
    assert all(one["task"] in shown for one in found["tasks"])


@pytest.mark.parametrize("option", ["agents", "points", "dim", "features", "steps", "repeats"])
def test_sizes_that_cannot_be_timed_are_named(option):
    with pytest.raises(InputError, match=f"--{option} must be at least"):
        run("--quick", f"--{option}", 0)
