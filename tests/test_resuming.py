"""Runs that are killed and started again: the same numbers, and at most one piece, round or stage done twice."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed
from kinfed.backends.site import InProcess, Site, sites_of
from kinfed.weights.calibration import calibrated, cross_fitting, successive_halving
from kinfed.weights.rules import gradient
from site_runs import KilledError, Slow, parts_of, run

pytestmark = pytest.mark.xdist_group("resuming")

MOMENTS = int(os.environ.get("KINFED_KILLS", "2"))
"""How often the process is killed, for each backend."""

GENERATED = kinfed.concept_shift(n_agents=6, n=30, dim=3, spread=0.1, seed=1)
TEST = GENERATED.test(20, seed=2)


def personal(folder: Path | None, learner: Any = "ridge", rule: str = "calibrated", backend: str = "pooled") -> Any:
    return kinfed.personalize(GENERATED.train, learner, rule, TEST, backend=backend, checkpoint=folder)


def numbers(found: Any) -> list[bytes]:
    X = np.linspace(-2, 2, 7)[:, None] * np.ones(3)
    predicted = [np.asarray(found.models.predict(row, X)).tobytes() for row in range(len(found.models))]
    return [found.weights.matrix.tobytes(), found.scores.to_numpy().tobytes(), *predicted]


class Counted:
    """A function that counts its calls, and kills the run at one of them: before its work, or after."""

    def __init__(self, work: Callable[..., Any], dies: int | None = None, after: bool = False) -> None:
        self.work, self.dies, self.after, self.calls = work, dies, after, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.dies and not self.after:
            raise KilledError
        found = self.work(*arguments, **options)
        if self.calls == self.dies:
            raise KilledError
        return found


@pytest.fixture(name="counted")
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counted]:
    """Put a `Counted` in the place of a function."""

    def place(owner: Any, name: str, dies: int | None = None, after: bool = False) -> Counted:
        usual = getattr(owner, name)
        found = Counted(usual.work if isinstance(usual, Counted) else usual, dies, after)
        method = (lambda self, *some, **options: found(self, *some, **options)) if isinstance(owner, type) else found
        monkeypatch.setattr(owner, name, method)
        return found

    return place


# ---------------------------------------------------------------- a process that is killed

SCRIPT = """
    import sys
    import numpy as np
    import kinfed
    from kinfed.weights.calibration import cross_fitting
    from kinfed.weights.rules import gradient

    generated = kinfed.concept_shift(n_agents=6, n=30, dim=3, spread=0.1, seed=1)
    folder, backend, out = sys.argv[1:]

    def telling(work, what):
        def told(*arguments):
            print("begins", what, flush=True)
            return work(*arguments)

        return told

    if backend == "pooled":  # agent by agent
        cross_fitting._CASES_AT_ONCE = 1
        cross_fitting._judge = telling(cross_fitting._judge, "judging")
    else:  # all sites at once
        cross_fitting.HomeScores.messages = telling(cross_fitting.HomeScores.messages, "judging")
    gradient.gradient_rows = telling(gradient.gradient_rows, "round")
    print("ready", flush=True)
    test = generated.test(20, seed=2)
    found = kinfed.personalize(generated.train, rule="calibrated", test=test, backend=backend, checkpoint=folder)
    arrays = {name: models.coefficients for name, models in found.baselines.items()}
    np.savez(out, weights=found.weights.matrix, personal=found.models.coefficients, scores=found.scores, **arrays)
    print("done", flush=True)
"""


class Started:
    """A process that personalizes."""

    def __init__(self, folder: Path, backend: str, name: str) -> None:
        self.out = folder / f"{name}.npz"
        command = [sys.executable, str(folder / "run.py"), str(folder / name), backend, str(self.out)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self, seconds: float | None) -> list[str]:
        """Kill it after a while, or as soon as a piece is begun; what it had begun by then."""
        first: list[str] = []
        if seconds is None:
            assert self._process.stdout is not None
            first = [next(line for line in self._process.stdout if line.startswith("begins"))]
        else:
            time.sleep(seconds)
        os.kill(self._process.pid, signal.SIGKILL)
        return first + self.end()

    def end(self) -> list[str]:
        told, _ = self._process.communicate()
        return [line for line in told.splitlines() if line.startswith("begins")]

    def arrays(self) -> dict[str, bytes]:
        with np.load(self.out) as stored:
            return {name: array.tobytes() for name, array in stored.items()}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_a_process_killed_at_any_moment_goes_on_and_repeats_one_piece_at_most(backend: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(textwrap.dedent(SCRIPT))
    straight = Started(tmp_path, backend, "straight")
    begun = time.monotonic()
    pieces = straight.end()
    lasted = time.monotonic() - begun
    assert len(pieces) >= (6 if backend == "pooled" else 1) + 4
    cut_short, told = 0, []
    shares = np.random.default_rng(0).uniform(0.0, 1.2, MOMENTS).tolist()
    # On a machine that was busier before, all of these may come too late; the first piece does not.
    for moment, share in enumerate([*shares, None]):
        before = Started(tmp_path, backend, f"killed {moment}").kill(None if share is None else share * lasted)
        again = Started(tmp_path, backend, f"killed {moment}")
        after = again.end()
        assert again.arrays() == straight.arrays()
        repeated = len(before) + len(after) - len(pieces)
        when = "as soon as a piece was begun" if share is None else f"after {share:.0%} of {lasted:.1f} s"
        told.append(f"{when}: {len(before)} of {len(pieces)} begun, {repeated} repeated")
        (tmp_path / "moments.txt").write_text("\n".join(told))
        assert 0 <= repeated <= 1
        cut_short += len(before) < len(pieces)
    assert cut_short


# ---------------------------------------------------------------- piece by piece


@pytest.mark.parametrize("after", [False, True])
def test_agents_that_have_judged_do_not_judge_again(after: bool, tmp_path: Path, counted: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cross_fitting, "_CASES_AT_ONCE", 1)
    whole = counted(cross_fitting, "_judge")
    expected = numbers(personal(None))
    dies = whole.calls // 2
    assert dies > 1
    counted(cross_fitting, "_judge", dies, after)
    with pytest.raises(KilledError):
        personal(tmp_path)
    again = counted(cross_fitting, "_judge")
    assert numbers(personal(tmp_path)) == expected
    assert again.calls == whole.calls - dies + 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sites", "flower"])
def test_sites_that_have_told_their_scores_are_not_asked_again(backend: str, tmp_path: Path, counted: Any) -> None:
    expected = numbers(personal(None, backend=backend))
    counted(calibrated, "calibrated_weights", 1)
    with pytest.raises(KilledError):
        personal(tmp_path, backend=backend)
    counted(calibrated, "calibrated_weights")
    again = counted(cross_fitting.HomeScores, "messages")
    assert numbers(personal(tmp_path, backend=backend)) == expected
    assert again.calls == 0


@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_rounds_of_the_gradient_rule_are_kept(backend: str, tmp_path: Path, counted: Any) -> None:
    expected = numbers(personal(None, rule="gradient", backend=backend))
    counted(gradient, "gradient_rows", 3)
    with pytest.raises(KilledError):
        personal(tmp_path, rule="gradient", backend=backend)
    again = counted(gradient, "gradient_rows")
    assert numbers(personal(tmp_path, rule="gradient", backend=backend)) == expected
    assert again.calls == gradient.ROUNDS - 2


def halved(kind: str) -> Any:
    """A learner that is calibrated by successive halving."""
    if kind == "tree":
        from sklearn.tree import DecisionTreeRegressor

        return DecisionTreeRegressor(max_depth=2, random_state=0)
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    if kind == "fedavg":
        return TorchLearner(hidden=(3,), task="regression", method="fedavg", rounds=10, batch_size=4)
    return TorchLearner(hidden=(3,), task="regression", epochs=40)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 5.0], ids=["epochs are kept", "stages are kept"])
@pytest.mark.parametrize(
    "kind, backend",
    [
        ("tree", "pooled"),
        pytest.param("torch", "pooled", marks=pytest.mark.torch),
        pytest.param("fedavg", "sites", marks=pytest.mark.torch),
    ],
)
def test_looks_of_successive_halving_are_kept(
    kind: str, backend: str, pause: float, tmp_path: Path, counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfed.checkpoint._SECONDS_BETWEEN", pause)
    monkeypatch.setattr("kinfed.checkpoint._LARGEST_SHARE", 1e9)
    learner = halved(kind)
    looks = counted(successive_halving.Halving, "score")
    expected = numbers(personal(None, learner, backend=backend))
    total = looks.calls
    for dies, after in [(1, True), (total // 2, False), (total // 2 + 1, True), (total, False)]:
        folder = tmp_path / f"{dies} {after}"
        looks.calls, looks.dies, looks.after = 0, dies, after
        with pytest.raises(KilledError):
            personal(folder, learner, backend=backend)
        looks.calls, looks.dies = 0, None
        assert numbers(personal(folder, learner, backend=backend)) == expected
        assert looks.calls == total - dies + 1
        assert not list(folder.glob("weighing/calibration/stage-*/training"))


# ---------------------------------------------------------------- what sites keep


class Watched(Slow):
    """Counts how often sites are asked to judge, and dies when they are asked for the tally."""

    def __init__(self, sites: list[Site], dies: bool) -> None:
        super().__init__(sites)
        self.judged, self._dies = 0, dies

    def ask(self, requests: Any, seconds: float) -> Any:
        tasks = [part.question for request in requests.values() for part in parts_of(request)]
        self.judged += tasks.count("losses")
        if self._dies and "tally" in tasks:
            raise KilledError
        return super().ask(requests, seconds)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["all", "one not", "one damaged"])
def test_a_server_that_was_killed_finds_what_sites_kept(keeps: str, tmp_path: Path) -> None:
    learner, checkpoint, kept = halved("fedavg"), tmp_path / "checkpoint", tmp_path / "sites"

    def channel(dies: bool) -> Watched:
        return Watched(sites_of(GENERATED.train, TEST, learner, kept), dies)

    expected = run(InProcess(sites_of(GENERATED.train, TEST, learner)), learner, "calibrated")
    first = channel(dies=True)
    with pytest.raises(KilledError):
        run(first, learner, "calibrated", folder=checkpoint)
    files = sorted(kept.glob("*/*/state.npz"))
    assert len(files) == len(GENERATED.train)
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    if keeps == "one not":
        files[2].unlink()
    if keeps == "one damaged":
        files[2].write_bytes(files[2].read_bytes()[:100])
    again = channel(dies=False)
    assert numbers(run(again, learner, "calibrated", folder=checkpoint)) == numbers(expected)
    assert again.judged == (0 if keeps == "all" else first.judged)
    left = {one.name for one in kept.glob("*/*/*")}
    assert left == {"checkpoint.json", "rows.npz"}  # the run is over


@pytest.mark.slow
def test_another_run_does_not_find_what_sites_kept_of_one_before(tmp_path: Path) -> None:
    learner = halved("fedavg")
    sites = sites_of(GENERATED.train, TEST, learner, tmp_path)
    with pytest.raises(KilledError):
        run(Watched(sites, dies=True), learner, "calibrated")
    before = set(tmp_path.glob("*/*"))
    with pytest.raises(KilledError):
        run(Watched(sites, dies=True), learner, "calibrated")  # the same recipe
    after = set(tmp_path.glob("*/*"))
    assert len(after) == len(before) == len(sites)
    assert not before & after


@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_a_run_that_was_over_tells_the_same_again(backend: str, tmp_path: Path) -> None:
    once, again = (personal(tmp_path, rule="q-aggregation", backend=backend) for _ in range(2))
    assert numbers(once) == numbers(again)
    assert list(once.scores) == list(again.scores) == ["floor", "local", "grand-mean", "personalized"]


# ---------------------------------------------------------------- damage


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["weighing/calibration/scores.npz", "weighing/gradient-4.npz"])
def test_a_damaged_piece_is_named_and_done_again_once_it_is_deleted(piece: str, tmp_path: Path, counted: Any) -> None:
    expected = numbers(personal(None))
    # In the end the agents' usual sketches are compared, when all is weighed.
    killed = counted(calibrated.RuleContext, "weights", 1)
    with pytest.raises(KilledError):
        personal(tmp_path)
    killed.dies = None
    damaged = tmp_path / piece
    if not damaged.exists():
        pytest.skip("the candidates chosen do not need it")
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with pytest.raises(kinfed.InputError, match=f"{damaged} is damaged .*; delete it to do that piece again"):
        personal(tmp_path)
    damaged.unlink()
    assert numbers(personal(tmp_path)) == expected


def test_the_calibration_of_another_run_is_refused(tmp_path: Path, counted: Any) -> None:
    counted(cross_fitting, "_judge", 1, after=True)
    with pytest.raises(KilledError):
        personal(tmp_path)
    with pytest.raises(kinfed.InputError, match=r"of another run \(different: seed\)"):
        kinfed.personalize(GENERATED.train, "ridge", "calibrated", TEST, seed=1, checkpoint=tmp_path)
    with pytest.raises(kinfed.InputError, match=r"of another run \(different: data\)"):
        kinfed.personalize(GENERATED.train, "ridge", "calibrated", checkpoint=tmp_path)
