"""Pages as programs: what README, CONTRIBUTING and docs show is run as it stands, in the order of the page."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli_runs import in_this_process

ROOT = Path(__file__).parents[1]
PROGRAMS = ("kinfed", "make", "pip", "flwr", "flower-superlink", "flower-supernode", "source", "export", "python", "git")

_FENCE = re.compile(
    r"^(?P<fence>```+|:::+)(?P<kind>[\w{}-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?%?")
_DRAWN = re.compile(r"[\u2500-\u257f]+")


@dataclass(frozen=True)
class Step:
    """A block of a page: its kind ("sh", "python", "text", "toml", ...), its text, and the line it stands in."""

    kind: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page that people read, results apart: those are written by the commands they name."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def steps(page: Path) -> list[Step]:
    """The fenced blocks of a page, and indented commands as blocks of their own."""
    text = page.read_text()
    found = [Step(match["kind"], match["text"], text[: match.start()].count("\n") + 1) for match in _FENCE.finditer(text)]
    outside = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(outside.splitlines(), start=1):
        if re.match(rf"    (?:{'|'.join(PROGRAMS)}) ", line):
            found.append(Step("sh", line.strip() + "\n", number))
    return sorted(found, key=lambda step: step.line)


def commands(block: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments left out."""
    joined = re.sub(r"\s*\\\n\s*", " ", block)
    lines = (re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def inline_commands(page: Path) -> list[str]:
    """Commands of kinfed and make that are named within the text of a page, between backticks."""
    outside = _FENCE.sub("", page.read_text())
    return re.findall(r"`((?:kinfed|make) [^`\n]+)`", outside)


class Stage:
    """A folder in which a page is played: a shell whose exports stay, and one Python session."""

    def __init__(self, folder: Path, names: Mapping[str, object]) -> None:
        self.folder = folder
        self.names = dict(names)
        self.exports: list[str] = []
        self.printed = ""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KINFED"))}
        self.environment = {**kept, "PATH": path, "HOME": str(folder), **plain}

    def shell(self, command: str) -> None:
        """Run one command; what a page exports holds for all commands after it."""
        if command.startswith("export "):
            self.exports.append(command)
        elif command.startswith("kinfed ") and not self.exports and not re.search(r"[$|&;<>*?`\\]", command):
            done = in_this_process(*shlex.split(command)[1:], cwd=self.folder, env=self.environment)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            self.printed += done.stdout
            return
        script = "\n".join(["set -e", *self.exports[: -1 if command.startswith("export ") else None], command])
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        self.printed += done.stdout

    def python(self, block: str, place: str) -> None:
        """Run a block in the page's Python session."""
        before = Path.cwd()
        out = io.StringIO()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(block, place, "exec"), self.names)
        finally:
            os.chdir(before)
        self.printed += out.getvalue()


def differences(shown: str, printed: str) -> str | None:
    """Why a shown output is not what was printed, or None.

    ``...`` stands for anything, runs of blanks and lines of boxes for one blank. Numbers may be off by a tenth, and those
    with decimals or percent signs by one in their last shown digit, since other machines round otherwise.
    """
    wanted, found = (" ".join(_DRAWN.sub(" ", text).split()) for text in (shown, printed))
    pattern = "".join(
        ".*?" if piece == "..." else "(" + _NUMBER.pattern + ")" if _NUMBER.fullmatch(piece) else re.escape(piece)
        for piece in re.split(rf"(\.\.\.|(?<![\w.])(?:{_NUMBER.pattern})(?![\w]))", wanted)
        if piece is not None
    )
    match = re.search(pattern, found)
    if match is None:
        return f"shown:\n{wanted}\nprinted:\n{found}"
    numbers = re.findall(rf"(?<![\w.]){_NUMBER.pattern}(?![\w])", wanted.replace("...", " "))
    for expected, got in zip(numbers, match.groups(), strict=True):
        first, second = (float(number.rstrip("%")) for number in (expected, got))
        decimals = len(expected.rstrip("%").partition(".")[2])
        last = 1.01 * 10.0**-decimals if decimals or expected.endswith("%") else 0.0
        if abs(first - second) > max(0.1 * abs(first), last):
            return f"shown {expected}, printed {got} in:\n{found}"
    return None
