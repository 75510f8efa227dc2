"""The experiments as users run them: equal seeds give equal bytes, interruptions cost nothing, verdicts have numbers."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

import kinfed
from cli_runs import in_this_process
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.experiment import (
    COLUMNS,
    Measurement,
    PartFindings,
    load_findings,
    save_findings,
    setting_label,
    setting_value,
)
from kinfed.experiments.paper_settings import (
    LeastSquares,
    by_repetition,
    concept_kernel,
    crossing,
    crossing_with_error,
    over_repetitions,
    repetition_seed,
)
from kinfed.experiments.runner import means_table

pytestmark = pytest.mark.slow

TINY = {
    "concept-shift": {"agents": 8, "points": 6, "dim": 3, "features": 40, "steps": 30, "spreads": (0.0, 0.5, 1.0)},
    "covariate-shift": {
        "group_sizes": (3, 3, 4), "points": 8, "features": 40, "hidden_layers": (1, 2), "widths": (4,), "epochs": 20,
        "batch": 16, "test_points": 30, "look_every": 5,
    },
    "early-stop": {"agents": 8, "points": 6, "dim": 3, "features": 40, "steps": 1000, "spreads": (0.0, 1.0)},
    "feature-count": {"agents": 8, "points": 6, "dim": 3, "features": (10, 40)},
    "femnist": {"epochs": 6, "features": 30, "hidden": 4, "batch": 8, "look_every": 2},
    "identical-agents": {
        "agents": 8, "kin": (1, 3), "points": (6, 12), "fixed_kin": 3, "fixed_points": 6, "dims": (2, 4), "features": 40,
    },
}  # fmt: skip


def few_images(folder):
    """Five writers of twelve noisy images of three characters, as an archive."""
    path = folder / "few.npz"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 2, (3, 784)) * 200
    y = np.tile([0, 1, 2], 20)
    X = np.clip(255 - shapes[y] * (rng.random((60, 784)) < 0.3), 0, 255).astype(np.uint8)
    np.savez(path, X=X, y=y, agent=np.repeat(np.arange(5), 12))
    return path


def tiny(name, folder, **changes):
    needed = {"data": few_images(folder)} if name == "femnist" else {}
    return EXPERIMENTS[name](**{**TINY[name], **needed, "repetitions": 3, **changes})


def kinfed_command(*arguments, cwd):
    command = [sys.executable, "-c", "from kinfed.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def first_part(name, folder):
    """What the first part finds; called in a process of its own."""
    experiment = tiny(name, folder)
    part = experiment.parts()[0]
    save_findings(folder / f"{name}.npz", experiment.run(part, lambda share: None, folder))
    return part.name


@pytest.fixture(scope="module")
def another_process():
    """A process that shares nothing with this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


TORCH = ("covariate-shift", "femnist")


def each(names):
    return [pytest.param(name, marks=pytest.mark.torch) if name in TORCH else name for name in names]


@pytest.mark.slow
@pytest.mark.xdist_group("experiments")
@pytest.mark.parametrize("name", each(TINY))
def test_every_experiment_keeps_its_promises(name, tmp_path, another_process):
    seen = []
    summary = run_experiment(
        tiny(name, tmp_path),
        tmp_path / "a",
        command="kinfed reproduce",
        workers=1,
        progress=lambda *args: seen.append(args),
    )
    assert seen[0] == (name, 0, seen[-1][2])
    assert seen[-1][1] == seen[-1][2]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)

    results = pd.read_csv(tmp_path / "a" / "results.csv")
    assert tuple(results.columns) == COLUMNS
    assert set(results["experiment"]) == {name}
    assert set(results["repetition"]) == {0, 1, 2}
    assert results["value"].notna().all()
    assert not results.duplicated(["setting", "method", "repetition", "agent", "metric"]).any()

    text = summary.read_text()
    claims = [line for line in text.split("## Claims")[1].split("## Figures")[0].splitlines() if line.startswith("| ")][1:]
    assert claims
    for line in claims:
        claim, measured, verdict, setting = re.split(r" (?<!\\)\| ", line.strip("| "))
        assert verdict in ("holds", "holds in part", "does not hold")
        assert re.search(r"\d", measured), claim
        assert setting
    figures = re.findall(r"!\[.*\]\((.*\.png)\)", text)
    assert figures
    for figure in figures:
        assert (tmp_path / "a" / figure).stat().st_size > 5000
        assert (tmp_path / "a" / figure).with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    for words in ("`kinfed reproduce`", "numpy", "| seed | 0 |"):
        assert words in text

    # The same seed in another process: the same numbers.
    part = another_process.submit(first_part, name, tmp_path).result()
    there, here = tmp_path / f"{name}.npz", next((tmp_path / "a" / "parts").glob(f"{part}-*.npz"))
    with np.load(there) as first, np.load(here) as second:
        assert first.files == second.files
        assert all(first[key].tobytes() == second[key].tobytes() for key in first.files)

    # The parts in another order, one of them damaged and one lost: the same bytes.
    shutil.copytree(tmp_path / "a" / "parts", tmp_path / "b" / "parts")
    first, *_, last = sorted((tmp_path / "b" / "parts").glob("*.npz"))
    first.write_bytes(b"not whole")
    last.unlink()
    run_experiment(tiny(name, tmp_path), tmp_path / "b", workers=1)
    for table in ("results.csv", "means.csv"):
        assert (tmp_path / "b" / table).read_bytes() == (tmp_path / "a" / table).read_bytes()


@pytest.mark.slow
def test_another_seed_in_the_same_folder_is_another_run(tmp_path):
    run_experiment(tiny("concept-shift", tmp_path), tmp_path, workers=1)
    first = pd.read_csv(tmp_path / "results.csv")["value"]
    run_experiment(tiny("concept-shift", tmp_path, seed=1), tmp_path, workers=1)
    assert not np.allclose(first, pd.read_csv(tmp_path / "results.csv")["value"])


LONG = ["reproduce", "concept-shift", "--agents", "40", "--repetitions", "8", "--seed", "3"]
LONG += ["--spreads", "0", "--spreads", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupts, all in this process."""
    folder = tmp_path_factory.mktemp("whole")
    assert in_this_process(*LONG, "--workers", "1", "--out", folder, cwd=folder).returncode == 0
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("experiments")
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(kill, tmp_path, whole):
    """It begins in two processes and goes on in one."""
    run = kinfed_command(*LONG, "--workers", "2", "--out", "cut", cwd=tmp_path)
    parts = tmp_path / "cut" / "parts"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(run.pid, kill)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == (130 if kill == signal.SIGINT else -kill)
    assert "Traceback" not in errors
    kept = len(list(parts.glob("*.npz")))
    assert 0 < kept < 8
    resumed = in_this_process(*LONG, "--workers", "1", "--out", "cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "the transition is at sigma_c^2 = 0.5" in resumed.stdout
    assert (tmp_path / "cut" / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()


@pytest.mark.torch
def test_networks_cut_off_mid_training_end_with_the_same_values(tmp_path):
    pytest.importorskip("torch")
    from kinfed.experiments.paper_settings import train_and_test
    from kinfed.learners.neural import TorchLearner

    generated = kinfed.covariate_shift((2, 2, 2), n=8, seed=0)
    learner = TorchLearner(hidden=(4,), task="regression", epochs=40, batch_size=8, steps_per_epoch=1)

    def trial(folder, progress):
        return train_and_test(
            learner,
            {"local": np.eye(6)},
            generated.train,
            generated.test(20),
            seed=0,
            every=7,
            progress=progress,
            checkpoint=folder,
        )["local"]

    def cut(share):
        if share >= 0.6:
            raise KeyboardInterrupt

    whole = trial(tmp_path / "whole", lambda share: None)
    with pytest.raises(KeyboardInterrupt):
        trial(tmp_path / "cut", cut)
    resumed = trial(tmp_path / "cut", lambda share: None)
    np.testing.assert_array_equal(resumed.epochs, whole.epochs)
    np.testing.assert_array_equal(resumed.values, whole.values)
    assert (whole.best <= whole.final).all()
    np.testing.assert_allclose(whole.curve, whole.values.mean(axis=1))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["concept-shift", "--methods", "clairvoyant"], "--methods 'clairvoyant' is not known; choose one of local"),
        (["concept-shift", "--repetitions", "0"], "--repetitions must be at least 1, got 0"),
        (["concept-shift", "--workers", "0"], "--workers must be at least 1"),
        (["concept-shift", "--spreads", "1.5", "--repetitions", "1"], "spread must be"),
        (["femnist", "--data", "nowhere.npz"], "nowhere.npz does not exist"),
        (["femnist", "--data", "nowhere.npz", "--pixels", "red"], "--pixels 'red' is not known"),
        (["concept-shift", "--spreads", "0", "--spreads", "0"], "--spreads has a value twice"),
        (["identical-agents", "--methods", "clairvoyant"], "--methods 'clairvoyant' is not known"),
        (["identical-agents", "--kin", "100"], "--kin must be at most the number of agents, 64, got 100"),
        (["covariate-shift", "--learning-rate", "-1"], "--learning-rate must be a number of at least 0"),
    ],
)
def test_mistakes_are_one_line(arguments, words, tmp_path):
    run = in_this_process("reproduce", *arguments, "--out", "out", cwd=tmp_path)
    assert run.returncode == 1
    assert words in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


def test_an_out_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    run = in_this_process("reproduce", "concept-shift", "--quick", "--out", "file/here", cwd=tmp_path)
    assert run.returncode == 1
    assert "cannot be made" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


def test_quick_runs_are_smaller():
    for experiment in EXPERIMENTS.values():
        full = {field.name: field.default for field in fields(experiment)}
        for name, value in experiment.quick.items():
            if name != "look_every" and not isinstance(value, str):  # the shorter a run, the closer the looks
                larger = len(full[name]) > len(value) if isinstance(value, tuple) else full[name] > value
                assert larger, f"{experiment.name}: {name}"


@pytest.mark.parametrize(
    "name, changes",
    [
        ("concept-shift", {"spreads": (1.0, 0.0)}),
        ("concept-shift", {"spreads": (0.3, 0.4)}),
        ("concept-shift", {"spreads": (0.3,), "methods": ("grand-mean",)}),
        ("concept-shift", {"test_points": 50}),
        pytest.param("covariate-shift", {"methods": ("local",), "batch": 0}, marks=pytest.mark.torch),
        ("early-stop", {"steps": 5, "factors": (0.5,)}),
        ("feature-count", {"features": (10,), "samplings": ("sobol",)}),
        pytest.param("femnist", {"methods": ("entropic",), "pixels": "ink", "bandwidth": 20.0}, marks=pytest.mark.torch),
        ("identical-agents", {"kin": (1,), "methods": ("local", "oracle", "q-aggregation")}),
    ],
)
def test_unusual_settings_and_single_repetitions_are_concluded(name, changes, tmp_path):
    summary = run_experiment(tiny(name, tmp_path, repetitions=1, **changes), tmp_path / "out", workers=1).read_text()
    assert "nan" not in summary
    assert "± 0.00" not in summary
    for line in summary.split("## Claims")[1].split("## Figures")[0].splitlines():
        assert "|  |" not in line


def test_the_order_of_the_spreads_does_not_matter(tmp_path):
    claims = []
    for spreads in ((0.0, 0.5, 1.0), (1.0, 0.0, 0.5)):
        experiment = tiny("concept-shift", tmp_path, spreads=spreads)
        summary = run_experiment(experiment, tmp_path / str(spreads[0]), workers=1).read_text()
        claims.append(summary.split("## Claims")[1].split("## Figures")[0])
    assert claims[0] == claims[1]


def test_a_changed_folder_of_data_is_another_run(tmp_path):
    from kinfed.experiments.runner import _identity

    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.json").write_text("1")
    before = _identity(tmp_path / "data")
    (tmp_path / "data" / "deep" / "a.json").write_text("12")
    assert _identity(tmp_path / "data") != before


def test_crossings():
    x = np.linspace(0, 1, 11)
    assert crossing(x, x - 0.33) == pytest.approx(0.33)
    assert np.isnan(crossing(x, x - 2))
    assert crossing(x, x + 1) == 0.0
    # Lines x - c with c drawn around 0.4 cross at the mean of the c, with standard error sd / sqrt(n).
    c = 0.4 + 0.1 * np.random.default_rng(0).standard_normal(200)
    at, error = crossing_with_error(x, x - c[:, None], seed=0)
    assert at == pytest.approx(c.mean())
    assert error == pytest.approx(c.std(ddof=1) / np.sqrt(200), rel=0.15)


def test_findings_survive_the_file_and_damage_is_noticed(tmp_path):
    found = PartFindings(
        (Measurement(setting_label(a=1, b="x"), "local", 3, "accuracy", np.array([0.5, np.pi]), ("é", "β")),),
        {"weights": np.eye(2)},
    )
    path = tmp_path / "part.npz"
    save_findings(path, found)
    again = load_findings(path)
    assert again.measurements[0].agents == ("é", "β")
    np.testing.assert_array_equal(again.measurements[0].values, found.measurements[0].values)
    np.testing.assert_array_equal(again.arrays["weights"], np.eye(2))
    assert setting_value(again.measurements[0].setting, "b") == "x"
    path.write_bytes(path.read_bytes()[:-30])
    assert load_findings(path) is None
    assert load_findings(tmp_path / "nothing.npz") is None


def test_tables_of_repetitions_against_a_loop():
    rng = np.random.default_rng(0)
    rows = [
        ("e", s, m, r, a, "mse", rng.normal()) for s in ("x", "y") for m in ("p", "q") for r in range(4) for a in range(5)
    ]
    results = pd.DataFrame(rows, columns=list(COLUMNS))
    table, wide = over_repetitions(results, "mse"), by_repetition(results, "mse")
    for s in ("x", "y"):
        for m in ("p", "q"):
            means = [np.mean([row[-1] for row in rows if row[1:4] == (s, m, r)]) for r in range(4)]
            assert table.loc[(s, m), "mean"] == pytest.approx(np.mean(means))
            assert table.loc[(s, m), "error"] == pytest.approx(np.std(means, ddof=1) / 2)
            np.testing.assert_allclose(wide.loc[s, m], means)
    assert len(means_table(results)) == 16


def test_least_squares_on_the_population_and_on_test_points_agree():
    generated = kinfed.concept_shift(n_agents=6, n=30, dim=4, seed=0)
    exact, sampled = LeastSquares(generated), LeastSquares(generated, test_points=40_000)
    # A mean over 40,000 squared errors has a relative standard error near sqrt(2 / 40,000) = 0.7 %.
    np.testing.assert_allclose(sampled.error(np.eye(6)), exact.error(np.eye(6)), rtol=0.04)


def test_the_papers_kernel_is_the_one_of_its_frequencies():
    rng = np.random.default_rng(0)
    z, other = rng.standard_normal((2, 3, 21))
    apart = z - other
    expected = np.exp(-(apart[:, :20] ** 2).sum(axis=1) / 42 - apart[:, 20] ** 2 / 2)
    np.testing.assert_allclose(np.diag(concept_kernel(20)(z, other)), expected)
    assert len({repetition_seed(0, r) for r in range(1000)}) == 1000
