"""Every mistake a user can make is one line that says what to do, and an exit code; nothing earlier is lost."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import cli_runs
from cli_runs import ABOUT, PROCESS, in_a_process
from kinfed.cli import commands
from kinfed.cli.application import as_options
from kinfed.result import Personalization

QUICK = ("--rule", "entropic", "--out", "x")


@pytest.fixture(name="room", scope="module")
def tables(tmp_path_factory):
    """A folder of tables, sound and broken."""
    folder = tmp_path_factory.mktemp("tables")
    table = cli_runs.patients()
    frames = {
        "patients": table,
        "one_row_each": table.drop_duplicates("hospital"),
        "constant": table.assign(age=1.0, ward="east", country="Italy"),
        "all_missing": table.assign(age=np.nan, ward=None, country=None),
        "one_answer": table.assign(outcome=3.0),
        "no_rows": table.head(0),
        "no_features": table[["hospital", "outcome"]],
        "huge": table.assign(age=table["age"] * 1e200),
        "mixed_target": table.assign(outcome=[f"many {k}" if k % 2 == 0 else k / 8 for k in range(len(table))]),
    }
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    (folder / "empty.csv").write_text("")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 20)
    (folder / "ragged.csv").write_text("hospital,outcome\n1,2,3\n4\n")
    (folder / "quote.csv").write_text('hospital,outcome\n"1,2\n4,5\n')
    (folder / "twice.csv").write_text("hospital,age,age\n1,2,3\n")
    (folder / "damaged.parquet").write_bytes(b"nothing")
    (folder / "damaged.npz").write_bytes(b"nothing")
    (folder / "damaged.json").write_text("{")
    (folder / "other.json").write_text("[1, 2]")
    (folder / "sheet.xlsx").write_text("")
    (folder / "nothing").mkdir()
    return folder


@pytest.fixture(name="kinfed_here")
def in_this_process(monkeypatch, capsys, room):
    monkeypatch.chdir(room)
    return cli_runs.here(monkeypatch, capsys)


def on(table, *options, command="personalize"):
    return (command, table, *ABOUT, *QUICK, *options)


NAMED = [
    # data
    (on("nowhere.csv"), "nowhere.csv does not exist"),
    (on("nothing"), "nothing holds no tables"),
    (on("empty.csv"), "empty.csv is empty"),
    (on("no_rows.csv"), "no_rows.csv has no rows"),
    (on("binary.csv"), "binary.csv is not text"),
    (on("ragged.csv"), "ragged.csv is not a regular table"),
    (on("quote.csv"), "quote.csv is not a regular table"),
    (on("twice.csv"), "two columns are named 'age'"),
    (on("damaged.parquet"), "damaged.parquet is not a Parquet file"),
    (("weights", "damaged.npz", *QUICK), "damaged.npz is not a NumPy archive"),
    (("weights", "damaged.json", *QUICK), "damaged.json is not JSON"),
    (("weights", "other.json", *QUICK), "other.json is not a LEAF file"),
    (("personalize", "damaged.npz", "--agent", "hospital", *QUICK), "leave --agent hospital out"),
    (on("sheet.xlsx"), "files of type .xlsx are not read"),
    (on("one_row_each.csv"), "agent 0 has one point (so have 7 others: 1, 2, 3, 4, 5), and two are needed"),
    (on("one_answer.csv"), "the target is 3.0 in every row of every agent; there is nothing to learn"),
    (on("one_row_each.csv", command="weights"), "no agent has two different points"),
    (on("constant.csv"), "no column is left to learn from"),
    (on("all_missing.csv"), "no column is left to learn from"),
    (on("no_features.csv"), "no_features.csv"),
    (on("huge.csv"), "column age holds values too large"),
    (on("mixed_target.csv"), "outcome 'outcome' holds 'many 0', but other rows hold numbers"),
    # columns
    (("personalize", "patients.csv", *QUICK), "with --agent (its columns are hospital, age"),
    (("personalize", "patients.csv", "--agent", "hospital", *QUICK), "as --target"),
    (("weights", "patients.csv", "--agent", "hospital", "--out", "x"), "use rule 'q-aggregation'"),
    (("weights", "patients.csv", "--agent", "hospitl", "--out", "x"), "the nearest is 'hospital'"),
    (("weights", "patients.csv", "--agent", "hospital", "--target", "outcom", "--out", "x"), "the nearest is 'outcome'"),
    (("weights", "patients.csv", "--agent", "age", "--target", "age", "--out", "x"), "both the agent and the target"),
    (
        ("personalize", "patients.csv", "--agent", "hospital", "--target", "ward", *QUICK, "--learner", "ridge"),
        "use learner 'logistic'",
    ),
    (on("patients.csv", "--leave-out", "agee"), "the nearest is 'age'"),
    (on("patients.csv", "--leave-out", "outcome"), "column 'outcome' is needed as --target and cannot be left out"),
    (on("patients.csv", "--groups", "contry"), "the nearest is 'country'"),
    (on("patients.csv", "--groups", "ward"), "agent 0 has 2 labels in the groups column 'ward'"),
    (on("patients.csv", "--groups", "hospital"), "give --groups another column"),
    (on("patients.csv", "--rule", "oracle"), "pass --groups"),
    # names
    (on("patients.csv", "--rule", "entropc"), "there is no rule 'entropc'; the nearest is 'entropic'"),
    (on("patients.csv", "--learner", "rige"), "the nearest is 'ridge'"),
    (on("patients.csv", "--backend", "flour"), "the nearest is 'flower'"),
    (on("patients.csv", "--kernel", "gausian"), "the nearest is 'gaussian'"),
    (on("patients.csv", "--shift", "concpt"), "the nearest is 'concept'"),
    (on("patients.csv", "--sampling", "sobl"), "the nearest is 'sobol'"),
    (on("patients.csv", "--rule-option", "stregth=3"), "there is no entropic option 'stregth'; the nearest is 'strength'"),
    (on("patients.csv", "--rule", "local", "--rule-option", "steps=3"), "there is no local option; leave 'steps' out"),
    (on("patients.csv", "--learner-option", "penlty=1"), "the nearest is 'penalty'"),
    (on("patients.csv", "--kernel", "matern", "--kernel-option", "mu=1.5"), "the nearest is 'nu'"),
    # values
    (on("patients.csv", "--rule-option", "strength"), "write it as NAME=VALUE"),
    (on("patients.csv", "--rule-option", "strength=strong"), "strength must be a finite number, got 'strong'"),
    (on("patients.csv", "--rule-option", "strength=1", "--rule-option", "strength=2"), "given twice"),
    (on("patients.csv", "--learner-option", "penalty=-1"), "penalty must not be negative"),
    (on("patients.csv", "--kernel", "matern", "--kernel-option", "nu=7"), "0.5, 1.5 or 2.5"),
    (on("patients.csv", "--bandwidth", "2"), "need a kernel that is named"),
    (on("patients.csv", "--kernel", "polynomial", "--bandwidth", "2"), "leave --bandwidth out"),
    (on("patients.csv", "--sampling", "sobol", "--features", "501"), "--features must be even with --sampling sobol"),
    (on("patients.csv", "--test-size", "1.5"), "--test-size must be a fraction"),
    (on("patients.csv", "--test-size", "0.99"), "--test-size 0.99 leaves agent 0 a single row to learn from"),
    (on("patients.csv", "--test-size", "0.001"), "give a larger --test-size"),
    (("theory", "patients.csv", *ABOUT, "--rule", "calibrated", "--out", "x"), "take it to kinfed weights"),
    (("theory", "patients.csv", *ABOUT, "--level", "2", "--out", "x"), "level must lie between 0 and 1"),
    (("reproduce", "concept-shift", "--workers", "0", "--out", "x"), "--workers must be at least 1"),
    (("reproduce", "femnist", "--data", "nowhere", "--out", "x"), "nowhere does not exist"),
    # where results go
    (on("patients.csv", "--out", "patients.csv"), "patients.csv is a file; give another folder with --out"),
    (on("patients.csv", "--out", "patients.csv/deeper"), "is a file"),
    (on("patients.csv", "--out", "/proc/nothing"), "/proc/nothing"),
    (("demo", "--out", "patients.csv"), "is a file"),
    (("reproduce", "concept-shift", "--out", "patients.csv"), "cannot be made"),
    (("flower", "certificates", "patients.csv"), "there is a file of that name"),
]

UNREADABLE = [
    (("wieghts",), "there is no command 'wieghts'; did you mean 'weights'? See kinfed --help"),
    (("reproduce", "concept-drift"), "did you mean 'concept-shift'? See kinfed reproduce --help"),
    (("flower", "int"), "did you mean 'init'?"),
    (("--versoin",), "there is no option --versoin; did you mean --version? See kinfed --help"),
    (
        on("patients.csv", "--targt", "x"),
        "there is no option --targt; did you mean --target? See kinfed personalize --help",
    ),
    (("personalize",), "missing argument 'DATA'; see kinfed personalize --help"),
    (("personalize", "patients.csv"), "missing option '--out'"),
    (on("patients.csv", "patients.csv"), "unexpected extra argument (patients.csv)"),
    (on("patients.csv", "--seed"), "'--seed' requires an argument"),
    (on("patients.csv", "--seed", "one"), "'one' is not a whole number"),
    (on("patients.csv", "--seed", "-1"), "-1 is not in the range x>=0"),
    (on("patients.csv", "--test-size", "half"), "'half' is not a number"),
    (on("patients.csv", "--features", "0"), "'--features'"),
    (on("patients.csv", "--kernel", "laplace", "--bandwidth", "wide"), "neither a number above zero nor 'median'"),
    (("theory", "patients.csv", *ABOUT, "--folds", "1", "--out", "x"), "'--folds'"),
]


@pytest.mark.parametrize(
    "arguments, words, expected", [(*case, 1) for case in NAMED] + [(*case, 2) for case in UNREADABLE], ids=str
)
def test_a_mistake_is_one_line(kinfed_here, room, arguments, words, expected):
    code, told, wrong = kinfed_here(*arguments)
    assert wrong.startswith("kinfed: ")
    assert wrong.count("\n") == 1
    assert words in wrong
    assert (code, told) == (expected, "")
    assert not (room / "x").exists()


@pytest.mark.parametrize("arguments", [(), ("reproduce",), ("flower",)])
def test_nothing_to_do_shows_the_help(kinfed_here, arguments):
    code, told, wrong = kinfed_here(*arguments)
    assert code == 2
    assert "Usage: kinfed" in told + wrong


@pytest.mark.parametrize(
    "error, expected, words",
    [
        (MemoryError(), 1, "there is not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "kinfed: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "somewhere"), 1, "kinfed: somewhere: Permission denied"),
        (RuntimeError("two\nlines"), 70, "internal error: RuntimeError: two lines; run again with KINFED_TRACEBACK=1"),
        (KeyboardInterrupt(), 130, "kinfed: interrupted"),
    ],
)
def test_what_nobody_can_foresee_is_one_line_too(kinfed_here, monkeypatch, error, expected, words):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(commands, "predict_gain", fails)
    code, told, wrong = kinfed_here("theory", "patients.csv", *ABOUT, "--out", "x")
    assert (code, told, wrong.count("\n")) == (expected, "", 1)
    assert words in wrong


def test_a_bug_shows_its_traceback_when_asked(kinfed_here, monkeypatch):
    monkeypatch.setenv("KINFED_TRACEBACK", "1")
    monkeypatch.setattr(commands, "predict_gain", lambda *_, **__: {}["absent"])
    code, _, wrong = kinfed_here("theory", "patients.csv", *ABOUT, "--out", "x")
    assert code == 70
    assert "Traceback" in wrong
    assert "kinfed: internal error: KeyError" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_a_run_that_fails_leaves_earlier_results_as_they_are(kinfed_here, tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)
    cli_runs.patients().to_csv("patients.csv", index=False)
    options = ("--rule", "entropic", "--backend", backend, "--out", "p")
    assert kinfed_here("personalize", "patients.csv", *ABOUT, *options)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "p").rglob("*.*")}
    code, _, wrong = kinfed_here("personalize", "patients.csv", *ABOUT, *options, "--seed", "9")
    assert code == 1
    assert "of an earlier run; give another folder with --out, or --force" in wrong

    def is_full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Personalization, "report", is_full)
        code, _, wrong = kinfed_here("personalize", "patients.csv", *ABOUT, *options, "--seed", "9", "--force")
    assert code == 1
    assert "results cannot be written to p: No space left on device" in wrong
    shutil.rmtree(tmp_path / "p" / "checkpoint")
    assert {path: path.read_bytes() for path in (tmp_path / "p").rglob("*.*")} == before
    bad = kinfed_here("personalize", "patients.csv", *ABOUT, "--rule-option", "strength=-1", "--out", "q", *options[:4])
    assert bad[0] == 1
    assert not (tmp_path / "q").exists()  # nothing is in the way of the same run, mended


def test_messages_of_the_library_name_options():
    assert as_options("say so with agent=...; n_features is odd") == "say so with --agent; --features is odd"
    assert as_options("use shift='covariate'") == "use --shift covariate"
    assert as_options("there is no column 'test_size'") == "there is no column 'test_size'"
    assert as_options("n_features must be whole", ["n_features=x"]) == "n_features must be whole"


# What follows needs real processes: limits, pipes and signals belong to them.


@pytest.mark.slow
def test_a_file_system_without_room(room, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    out = tmp_path / "full"
    done = in_a_process(
        "weights", "patients.csv", *ABOUT, "--rule", "local", "--out", out, cwd=room, preexec_fn=small_files
    )
    assert done.returncode == 1
    assert f"cannot be written to {out}" in done.stderr
    assert "File too large" in done.stderr
    assert ".writing" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("theory", "patients.csv", *ABOUT, "--out"), ("data", "list")])
def test_a_reader_that_has_gone_is_no_mistake(room, tmp_path, arguments):
    read, write = os.pipe()
    os.close(read)
    command = [*PROCESS, *arguments, *([str(tmp_path / "t")] if arguments[-1] == "--out" else [])]
    with subprocess.Popen(command, cwd=room, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        _, wrong = process.communicate(timeout=120)
    assert (process.returncode, wrong) == (0, "")
    assert (tmp_path / "t" / "theory.csv").exists() == ("theory" in arguments)


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_named(room, tmp_path):
    with open("/dev/full", "w") as full:
        command = [*PROCESS, "theory", "patients.csv", *ABOUT, "--out", str(tmp_path / "t")]
        done = subprocess.run(command, cwd=room, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "kinfed: No space left on device\n")


@pytest.mark.slow
def test_an_interrupted_run_says_so(tmp_path):
    with subprocess.Popen(
        [*PROCESS, "demo"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "demo" / "hsb82.csv").exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        told, wrong = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "")
    assert wrong == "kinfed: interrupted; start the same command again to go on\n"
    assert not (tmp_path / "demo" / "scores.csv").exists()


def test_the_exit_code_of_a_real_process(tmp_path):
    """`test_cli_terminal` has those of runs that go well and of a mistake in the data."""
    done = in_a_process("weights", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_name_is_no_mistake(tmp_path):
    cli_runs.patients().assign(hospital=lambda table: "Zürich " + table["hospital"].astype(str)).to_csv(tmp_path / "a.csv")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = ("theory", "a.csv", *ABOUT, "--rule", "similarity-test", "--out", "t")
    done = in_a_process(*arguments, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Z?rich" in done.stdout
