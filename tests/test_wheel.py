"""The wheel of ``make wheel``, installed where there is nothing else of kinfed: what people without this repository get."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import cli_runs
from cli_runs import ABOUT
from pages import ROOT, commands, steps

# One group, hence one worker and one installation.
pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.xdist_group("wheel")]

# Nothing of this environment: neither its packages nor the folders it looks for modules in; pip's own settings stay.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "PYTEST", "KINFED", "MAKE", "VIRTUAL_ENV", "COVERAGE")) and name != "MFLAGS"
}
LOADED = "import json, sys, kinfed; print(json.dumps([kinfed.__file__, kinfed.__version__, sorted(sys.modules)]))"


def done(*command, cwd):
    """Standard output of a command, which must succeed."""
    words = [str(word) for word in command]
    run = subprocess.run(words, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, f"{words}\n{run.stdout}\n{run.stderr}"
    return run.stdout


def make_wheel(folder):
    """The folder of the wheel and what ``make wheel`` prints, run in a copy of the sources."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    tools = Path(sys.executable).parent
    printed = done("make", "--no-print-directory", "-o", ".venv/.dev", "wheel", f"BIN={tools}", cwd=folder)
    return folder / "dist", printed


@dataclass(frozen=True)
class Installed:
    """A folder outside the repository with a wheel, and an environment that holds it and what it needs."""

    folder: Path
    wheel: Path

    def run(self, program, *arguments):
        return done(self.folder / "venv" / "bin" / program, *arguments, cwd=self.folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return make_wheel(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    folder = tmp_path_factory.mktemp("elsewhere")
    for file in wheel[0].iterdir():
        shutil.copy(file, folder)
    one = Installed(folder, next(folder.glob("*.whl")))
    done(sys.executable, "-m", "venv", "venv", cwd=folder)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    one.run("python", "-I", *pip, "--constraint", ROOT / "constraints.txt", one.wheel)
    cli_runs.patients().to_csv(folder / "patients.csv", index=False)
    return one


def test_file_and_checksum_are_printed_and_equal_sources_give_equal_bytes(wheel, tmp_path):
    folder, printed = wheel
    file = next(folder.glob("kinfed-*.whl"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert printed.splitlines() == [f"dist/{file.name}", f"{digest}  {file.name}"]
    assert make_wheel(tmp_path)[1] == printed


def test_the_wheel_holds_all_files_of_the_package_and_no_others(wheel):
    source = ROOT / "src"
    here = {str(path.relative_to(source)) for path in (source / "kinfed").rglob("*") if path.is_file()}
    expected = {name for name in here if "__pycache__" not in name} | {"kinfed_command.py"}
    with zipfile.ZipFile(next(wheel[0].glob("*.whl"))) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert {"kinfed/py.typed", "kinfed/deployment/template/client.py"} <= names
    assert any(name.startswith("kinfed/report/assets/") for name in names)


def test_the_checksum_is_checked_as_the_pages_show(installed):
    """The lines of the pages that check the file are run beside it; a byte more, and they fail."""
    for page in (ROOT / "README.md", ROOT / "docs" / "flower.md", ROOT / "docs" / "installation.md"):
        shown = [line for step in steps(page) if step.kind == "sh" for line in commands(step.text)]
        check = next(line for line in shown if line.startswith("sha256sum "))
        assert done("sh", "-c", check, cwd=installed.folder) == f"{installed.wheel.name}: OK\n"
        assert any(installed.wheel.name in line for line in shown if line.startswith("pip install ")), page.name
    damaged = installed.folder / "damaged"
    damaged.mkdir()
    shutil.copy(installed.folder / "SHA256SUMS", damaged)
    (damaged / installed.wheel.name).write_bytes(installed.wheel.read_bytes() + b"x")
    with pytest.raises(AssertionError, match="FAILED"):
        done("sh", "-c", check, cwd=damaged)


def test_import_loads_the_installed_package_and_nothing_heavy(installed):
    file, version, modules = json.loads(installed.run("python", "-I", "-c", LOADED))
    assert Path(file).is_relative_to(installed.folder)
    assert f"kinfed-{version}-" in installed.wheel.name
    assert not {"torch", "flwr", "matplotlib", "sklearn", "skops"} & set(modules)


def test_the_command_tells_its_version(installed):
    told = installed.run("kinfed", "--version")
    assert re.fullmatch(r"kinfed \d+\.\d+\.\d+\n", told)
    assert installed.run("python", "-I", "-m", "kinfed", "--version") == told


def test_a_table_becomes_models_scores_and_a_report(installed):
    installed.run("kinfed", "personalize", "patients.csv", *ABOUT, "--leave-out", "country", "--out", "after")
    scores = pd.read_csv(installed.folder / "after" / "scores.csv")
    assert {"local", "grand-mean", "personalized"} <= set(scores.method)
    page = (installed.folder / "after" / "index.html").read_text(encoding="utf-8")
    for asset in (ROOT / "src" / "kinfed" / "report" / "assets").iterdir():
        assert asset.read_text(encoding="utf-8").strip().splitlines()[-1].strip() in page, asset.name


def test_an_app_for_flower_is_written_from_the_package(installed):
    """What ``kinfed flower init`` writes, which itself asks for Flower first."""
    code = "from pathlib import Path; from kinfed.deployment.folder import write_app; write_app(Path('app'))"
    installed.run("python", "-I", "-c", code)
    names = {path.name for path in (installed.folder / "app").rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", "__init__.py", "client.py", "server.py", "learner.py"}


def test_an_extra_is_added_without_the_file(installed):
    """As messages say: ``pip install 'kinfed[plots]'`` finds kinfed installed, and asks no index for it."""
    report = installed.folder / "plan.json"
    pip = ("-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--dry-run", "--report", report)
    installed.run("python", "-I", *pip, "--constraint", ROOT / "constraints.txt", "kinfed[plots]")
    planned = {one["metadata"]["name"].lower() for one in json.loads(report.read_text())["install"]}
    assert "matplotlib" in planned
    assert "kinfed" not in planned
