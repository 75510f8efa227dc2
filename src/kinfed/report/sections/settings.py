"""How to repeat it: settings, versions, seed, command, and what to cite."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from kinfed.markup import escape
from kinfed.report.elements import Column, Html, Section, joined, paragraph, table, text
from kinfed.report.findings import Findings

_ALWAYS = ("kinfed", "numpy", "scipy", "scikit-learn")
_IF_LOADED = ("torch", "flwr")


def settings_and_versions(findings: Findings) -> Section:
    """The section that lets others repeat the run."""
    story = findings.story
    asked = {**story.settings, "seed": str(story.seed)}
    settings = table(
        "What was asked for",
        [Column("Setting", "text"), Column("Value", "text")],
        ([text(key), text(value)] for key, value in asked.items()),
    )
    versions = table(
        "Versions",
        [Column("Package", "text"), Column("Version", "text")],
        ([text(name), text(number)] for name, number in _versions().items()),
    )
    command = Html("")
    if story.command:
        command = Html(
            '<h3>The command to repeat it</h3><div class="command"><pre tabindex="0" id="command"><code>'
            f'{escape(story.command)}</code></pre><button type="button" id="copy" hidden>Copy</button></div>'
        )
    written = paragraph(f"Written on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC.", "muted")
    return Section(
        "settings",
        "Settings",
        joined(f'<div class="columns">{settings}{versions}</div>', command, written, "<h3>How to cite</h3>", _CITATION),
    )


_CITATION = Html(
    "<p>Fermanian, Le Bars and Bellet: <cite>Adaptive Personalized Federated Learning via Multi-task Averaging of Kernel "
    'Mean Embeddings</cite>, arXiv <a href="https://arxiv.org/abs/2603.02233" rel="noreferrer">2603.02233</a>. Name kinfed '
    "and its version as the software.</p>"
)


def _versions() -> dict[str, str]:
    """Of Python and the packages that made the numbers."""
    found = {"Python": platform.python_version()}
    for name in (*_ALWAYS, *(name for name in _IF_LOADED if name in sys.modules)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
