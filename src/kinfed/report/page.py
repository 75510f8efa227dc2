"""The page: its frame, and the file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import IO

from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.markup import escape
from kinfed.report.elements import Html, Section
from kinfed.report.findings import findings_of
from kinfed.report.island import island
from kinfed.report.sections.agents import agents_one_by_one
from kinfed.report.sections.choices import choices_and_why
from kinfed.report.sections.diagnosis import how_agents_differ
from kinfed.report.sections.headline import headline
from kinfed.report.sections.map import map_of_agents
from kinfed.report.sections.settings import settings_and_versions
from kinfed.report.sections.shared import what_was_shared
from kinfed.report.sections.weights import who_listens
from kinfed.report.story import Story

FILE_NAME = "index.html"

_SECTIONS = (
    headline,
    who_listens,
    map_of_agents,
    agents_one_by_one,
    how_agents_differ,
    choices_and_why,
    what_was_shared,
    settings_and_versions,
)

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cg fill='%230f6674'%3E"
    "%3Ccircle cx='4' cy='11' r='3'/%3E%3Ccircle cx='12' cy='11' r='3'/%3E%3Ccircle cx='8' cy='4.5' "
    "r='3'/%3E%3C/g%3E%3C/svg%3E"
)


def write_report(story: Story, folder: Path) -> Path:
    """Write the report of a story.

    Parameters
    ----------
    story : Story
    folder : path
        Made if it does not exist.

    Returns
    -------
    Path
        Of the file: one that needs no other and no network.
    """
    path = Path(folder) / FILE_NAME
    content = page(story).encode("utf-8")

    def fill(file: IO[bytes]) -> None:
        file.write(content)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, fill)
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {path}: {error.strerror or error}; name another folder"
        ) from None
    return path


def page(story: Story) -> Html:
    """The whole report as HTML."""
    findings = findings_of(story)
    sections = [section(findings) for section in _SECTIONS]
    body = "".join(
        f'<section id="{one.anchor}" aria-labelledby="{one.anchor}-heading"><h2 id="{one.anchor}-heading">'
        f"{escape(one.heading)}</h2>{one.body}</section>"
        for one in sections
    )
    script = _asset("report.js")
    return Html(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light '
        'dark">'
        f'<title>{escape(story.title)} \N{MIDDLE DOT} kinfed</title><link rel="icon" href="{_ICON}">'
        f"<style>{_asset('report.css')}</style></head><body>"
        '<a class="skip" href="#content">Skip to the report</a>'
        f"{_header(story)}{_contents(sections)}"
        f'<main id="content" tabindex="-1">{body}</main>'
        "<footer><p>Made by kinfed. The file needs no network and sends nothing.</p></footer>"
        '<div id="tip" aria-hidden="true" '
        f"hidden></div>{island(findings)}<script>{script}</script></body></html>"
    )


def _policy(script: str) -> str:
    """What the page may do: run this one script, which it names by its digest, and fetch nothing."""
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _header(story: Story) -> str:
    return (
        '<header class="top"><div><p class="eyebrow">Who helps whom, and what it is '
        f"worth</p><h1>{escape(story.title)}</h1></div>"
        '<button type="button" id="scheme" hidden>Colours: auto</button></header>'
    )


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(f'<li><a href="#{one.anchor}">{escape(one.heading)}</a></li>' for one in sections)
    return f'<nav class="contents" aria-label="Contents"><ol>{items}</ol></nav>'


def _asset(name: str) -> str:
    return files("kinfed.report").joinpath("assets", name).read_text(encoding="utf-8")
