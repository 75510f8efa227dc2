"""Every command and every block of Python that README, CONTRIBUTING and docs show is run, in the order of its page.

A command that cannot be run here stands in `ELSEWHERE`, with the reason and the test that runs it in another form.
Everything else on a page is run, so a command that does not work fails.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import kinfed
from kinfed.backends.agents import QUESTIONS
from kinfed.backends.site import InProcess, sites_of
from kinfed.cli.application import app
from kinfed.model import keep_model
from kinfed.priors.family import MEMBERS
from pages import ROOT, Stage, commands, differences, inline_commands, pages, steps
from site_runs import run

SELF = "tests/test_documents.py::"
DEPLOYED = "tests/test_flower_runs.py::test_deployed"
DEMO = "tests/test_cli.py::test_demo_ends_with_three_sentences_and_its_files"
SET_UP = "it sets up an environment from a package index"

ELSEWHERE = {  # the beginning of a command: why it is not run here, and which test runs it in another form
    "make ": ("it sets up an environment first", SELF + "test_every_make_target_exists"),
    "source .venv/bin/activate": ("the environment is active already", SELF + "test_the_program_is_beside_python"),
    "sha256sum ": ("it needs the wheel", "tests/test_wheel.py::test_the_checksum_is_checked_as_the_pages_show"),
    "pip install ": (SET_UP, SELF + "test_every_extra_and_version_that_is_named_exists"),
    "umask ": ("it is for the SuperLink", "tests/test_flower_deployment.py::test_the_database_is_for_its_owner_alone"),
    "flower-superlink ": ("it never ends, and listens to the network", DEPLOYED),
    "flower-supernode ": ("it never ends", DEPLOYED),
    "flwr supernode register ": ("it needs a SuperLink", DEPLOYED),
    "flwr run ": ("it needs a SuperLink, or Ray", DEPLOYED),
    "kinfed demo": ("half a minute", DEMO),
    "kinfed personalize schools.csv ": ("half a minute: it is what the demo does", DEMO),
    "kinfed leaderboard ": ("minutes", "tests/test_leaderboard.py::test_a_run_from_end_to_end_and_again"),
    "kinfed reproduce ": ("minutes to hours", "tests/test_experiments.py::test_every_experiment_keeps_its_promises"),
}


def hospitals(folder: Path) -> dict[str, object]:
    """The table of patients that pages speak of: five hospitals, in every other one the age acts the other way."""
    rng = np.random.default_rng(0)
    hospital = np.arange(200) % 5
    X = rng.standard_normal((200, 2))
    y = X[:, 0] * np.where(hospital % 2, 1, -1) + 0.1 * rng.standard_normal(200)
    table = pd.DataFrame({"hospital": hospital, "age": X[:, 0], "dose": X[:, 1], "outcome": y})
    table.to_csv(folder / "patients.csv", index=False)
    return {"X_new": X[hospital == 1], "y_new": y[hospital == 1], "X": X, "y": y, "hospital": hospital, "rows": X[:3]}


def model_of_a_site(folder: Path) -> None:
    """What a run across sites leaves at one of them, in data/model."""
    federation = kinfed.read_federation(folder / "patients.csv", target="outcome", agent="hospital")
    learner = kinfed.make_learner("ridge")
    first, *others = sites_of(federation, None, learner)
    sites = [replace(first, keep_model=partial(keep_model, folder / "data" / "kinfed")), *others]
    run(InProcess(sites), learner)


def stage_of(page: Path, folder: Path) -> Stage:
    """The folder a page may rely on: a table of patients, and at a site its model."""
    names = hospitals(folder)
    if page.name == "flower.md":
        model_of_a_site(folder)
    return Stage(folder, names)


def where(command: str) -> str | None:
    """The test that runs the command in another form, if it is not run here."""
    return next((test for start, (_, test) in ELSEWHERE.items() if f"{command} ".startswith(start)), None)


@pytest.fixture
def names_stay():
    """A page may give a rule, a method, a question or a prior of its own a name; other tests must not see it."""
    registries = (kinfed.RULES, kinfed.METHODS, QUESTIONS, MEMBERS)
    before = [set(one) for one in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry) - known:
            del registry[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(page, tmp_path, names_stay):
    stage = stage_of(page, tmp_path)
    own = {"/absolute/path/to": str(tmp_path), '"/data/': f'"{tmp_path}/data/'}  # places on the reader's machine
    ran = ""
    for step in steps(page):
        place = f"{page.name}, line {step.line}"
        text = step.text
        for shown, here in own.items():
            text = text.replace(shown, here)
        if step.kind in ("sh", "bash", "shell", "console", "python"):
            ran = stage.printed = ""
        if step.kind == "python":
            stage.python(text, place)
            ran = place
        elif step.kind in ("sh", "bash", "shell", "console"):
            for command in commands(text):
                if where(command) is None:
                    stage.shell(command)
                    ran = place
        elif step.kind == "toml" and (name := re.match(r"# (\S+\.toml)\b", text)):
            (tmp_path / name[1]).write_text(text)
        elif step.kind == "text":
            assert ran, f"{place}: output is shown of a command that is not run here"
            wrong = differences(text, stage.printed)
            assert wrong is None, f"{place}: {wrong}"


def test_every_exception_has_a_test_and_is_needed():
    shown = [
        command
        for page in pages()
        for step in steps(page)
        if step.kind in ("sh", "bash", "shell", "console")
        for command in commands(step.text)
    ]
    for start, (reason, test) in ELSEWHERE.items():
        file, name = test.split("::")
        assert reason
        assert f"def {name}(" in (ROOT / file).read_text(), test
        assert start == "kinfed demo" or any(f"{command} ".startswith(start) for command in shown), start


def would_make(*targets):
    """What make would do, also where make itself has started this test."""
    command = ["make", "--no-print-directory", "-n", *targets]
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=60)


def test_every_make_target_exists():
    """``make -n`` says what would be done, and knows no target that does not exist."""
    named = {line for page in pages() for line in inline_commands(page) if line.startswith("make ")}
    named |= {
        command
        for page in pages()
        for step in steps(page)
        if step.kind == "sh"
        for command in commands(step.text)
        if command.startswith("make ")
    }
    assert {"make demo", "make test", "make docs"} <= named
    for command in sorted(named):
        done = would_make(*shlex.split(command)[1:])
        assert done.returncode == 0, (command, done.stderr)
    assert would_make("demo").stdout.splitlines()[-1].endswith("kinfed demo --out demo --force")


def test_the_program_is_beside_python():
    assert Path(sys.executable).with_name("kinfed").exists()


def test_every_extra_and_version_that_is_named_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert not [one for extra in extras.values() for one in extra if "==" in one]  # ranges here, pins in the constraints
    pinned = set((ROOT / "constraints.txt").read_text().splitlines())
    named = set()
    for page in pages():
        text = page.read_text()
        named |= {extra for group in re.findall(r"(?:kinfed|\.|\.whl)\[([a-z,]+)\]", text) for extra in group.split(",")}
        for requirement in re.findall(r"pip install '?((?:torch|flwr)[^\s'`]*)", text):
            assert re.sub(r"\[.*\]", "", requirement) in pinned, (page.name, requirement)
    assert {"flower", "plots"} <= named <= extras.keys()
    table = dict(re.findall(r"^\| `([a-z]+)` \| (.*) \|$", (ROOT / "docs/installation.md").read_text(), flags=re.MULTILINE))
    assert table.keys() | {"benchmarks"} == extras.keys()


@pytest.mark.server
@pytest.mark.parametrize("program, page", [("flower-superlink", "flower.md"), ("flower-supernode", "flower.md")])
def test_flower_knows_the_options_that_are_shown(program, page):
    """The deployment itself is tested elsewhere, with the same options; here that Flower has all that the page names."""
    text = subprocess.run(
        [Path(sys.executable).with_name(program), "--help"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    for step in steps(ROOT / "docs" / page):
        for command in commands(step.text) if step.kind == "sh" else []:
            if command.startswith(program):
                for option in re.findall(r"(?<=\s)--[a-z-]+", command):
                    assert option in text, option


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_commands_named_in_the_text_exist(page):
    """Names and options of commands between backticks, such as `kinfed data list`, are those of the program."""
    for line in inline_commands(page):
        first, *words = shlex.split(line)
        if first != "kinfed":
            continue
        command = typer.main.get_command(app)
        for word in words:
            if word.startswith("--"):
                known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
                completion = {"--help", "--install-completion", "--show-completion"}
                assert word.split("=")[0] in known | completion, (line, word)
            elif hasattr(command, "commands"):
                if re.fullmatch(r"[A-Z.]+", word):
                    break  # a name to be put in
                assert word in command.commands, (line, word)
                command = command.commands[word]


def test_every_rule_and_learner_is_named_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for name in (*kinfed.RULES, *kinfed.LEARNERS):
        assert f"`{name}`" in readme


def test_shown_output_is_compared_by_words_and_numbers():
    assert differences("saves 12.5% of ... for 30 agents", "It saves 12.6% of the error for 30 agents.") is None
    assert differences("saves 12.5% of it", "saves 15.2% of it") is not None
    assert differences("for 3 agents", "for 4 agents") is not None
    assert differences("saves", "costs") is not None
    assert differences("│ a │ 1.0 │\n", "┃ a ┃   1.1 ┃") is None
    assert differences("file v2.npz", "file v3.npz") is not None


def test_indented_and_fenced_commands_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# T\n\n    kinfed demo  # c\n\n```sh\nkinfed a \\\n  --b c   # d\n```\n\n```text\nout\n```\n")
    assert [(step.kind, step.line) for step in steps(page)] == [("sh", 3), ("sh", 5), ("text", 10)]
    assert commands(steps(page)[0].text) == ["kinfed demo"]
    assert commands(steps(page)[1].text) == ["kinfed a --b c"]


def test_messages_of_the_page_of_errors_are_those_of_the_code():
    source = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # sentences that go over several lines
    rows = re.findall(r"^\| (`.+?`(?:, `.+?`)*)[^|]*\|", (ROOT / "docs/troubleshooting.md").read_text(), flags=re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 8
    for message in messages:
        for piece in re.split(r"\.\.\.|'\w*\[", message):
            words = piece.strip(" ;?:'\"]")
            assert words in joined, (message, words)
