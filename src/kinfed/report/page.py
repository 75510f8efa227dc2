"""The page: its frame, the numbers it draws from (matrices in kin order, packed small), and the file."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfed.errors import InputError
from kinfed.files import write_whole
from kinfed.markup import Html, escape
from kinfed.report.agents import agents_one_by_one, how_agents_differ
from kinfed.report.choices import choices_and_why
from kinfed.report.columns import the_columns
from kinfed.report.context import ReportContext, ReportData, context_of
from kinfed.report.elements import Section, joined
from kinfed.report.headline import headline
from kinfed.report.kin import map_of_agents, who_counts
from kinfed.report.run import settings_and_versions, what_was_shared
from kinfed.report.screening import agents_apart
from kinfed.validation import Array, Integers

if TYPE_CHECKING:
    from kinfed.weights.result import Evidence

FILE_NAME = "index.html"

_SECTIONS: tuple[Callable[[ReportContext], Section | None], ...] = (
    headline,
    who_counts,
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
_TOP = 65535


def write_report(data: ReportData, folder: Path) -> Path:
    """Write the report.

    Parameters
    ----------
    data : ReportData
    folder : path
        Made if it does not exist.

    Returns
    -------
    Path
        Of the file: one that needs no other and no network.
    """
    path = Path(folder) / FILE_NAME
    content = page(data).encode("utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {path}: {error.strerror or error}; name another folder"
        ) from None
    return path


def page(data: ReportData) -> Html:
    """The whole report as HTML."""
    context = context_of(data)
    sections = [found for section in _SECTIONS if (found := section(context)) is not None]
    opening = joined(agents_apart(data), the_columns(data))
    body = "".join(
        f'<section id="{one.anchor}" aria-labelledby="{one.anchor}-heading"><h2 id="{one.anchor}-heading">'
        f"{escape(one.heading)}</h2>{one.body}</section>"
        for one in sections
    )
    script = _asset("report.js")
    items = "".join(f'<li><a href="#{one.anchor}">{escape(one.heading)}</a></li>' for one in sections)
    return Html(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light '
        'dark">'
        f'<title>{escape(data.title)} \N{MIDDLE DOT} kinfed</title><link rel="icon" href="{_ICON}">'
        f"<style>{_asset('report.css')}</style></head><body>"
        '<a class="skip" href="#content">Skip to the report</a>'
        '<header class="top"><div><p class="eyebrow">Who helps whom, and what it is '
        f"worth</p><h1>{escape(data.title)}</h1></div>"
        '<button type="button" id="scheme" hidden>Colours: auto</button></header>'
        f'<nav class="contents" aria-label="Contents"><ol>{items}</ol></nav>'
        f'<main id="content" tabindex="-1">{opening}{body}</main>'
        "<footer><p>Made by kinfed. The file needs no network and sends nothing.</p></footer>"
        '<div id="tip" aria-hidden="true" '
        f"hidden></div>{embedded_data(context)}<script>{script}</script></body></html>"
    )


def _policy(script: str) -> str:
    """What the page may do: run this one script, which it names by its digest, and fetch nothing."""
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _asset(name: str) -> str:
    return files("kinfed.report").joinpath("assets", name).read_text(encoding="utf-8")


def embedded_data(context: ReportContext) -> Html:
    """Names, the matrix, distances and what chance explains of them, as JSON that no name can break out of."""
    ties, words = context.ties, context.words
    content: dict[str, Any] = {"names": list(context.names)}
    if ties is not None and words is not None:
        order = ties.order
        others = ties.others[np.ix_(order, order)]
        top = float(others.max(initial=0.0))
        content = {
            "names": [ties.names[k] for k in order],
            "agents": order.tolist(),
            "groups": ties.groups.labels[order].tolist(),
            "own": [round(float(value), 7) for value in np.nan_to_num(ties.own[order])],
            "top": top,
            "matrix": packed(np.rint(others / top * _TOP) if top > 0 else others),
            "cell": words.cell,
            "ownCell": words.own_cell,
            "distances": None if ties.evidence is None else _packed_distances(ties.evidence, order),
        }
    return Html(
        f'<script type="application/json" id="data">{harmless(json.dumps(content, separators=(",", ":")))}</script>'
    )


def _packed_distances(evidence: Evidence, order: Integers) -> dict[str, Any]:
    """Squared distances, and those that chance explains, on one logarithmic scale; and who is not known."""
    grid = np.ix_(order, order)
    # Nobody knows how far an agent is that gave no answer: its row is empty, and so is its column in all other rows.
    others_known = np.isfinite(evidence.squared_distances[grid]) & ~np.eye(len(order), dtype=bool)
    distances, quantiles = (np.nan_to_num(one[grid]) for one in (evidence.squared_distances, evidence.null_quantiles))
    low, high = _range(distances, quantiles)
    far, chance = logarithmic(distances, low, high), logarithmic(quantiles, low, high)
    # Rounding must not turn a difference into none, nor the other way round.
    chance = np.where(distances > quantiles, np.minimum(chance, far - 1), np.maximum(chance, far))
    silent = np.flatnonzero(~others_known.any(axis=1)).tolist()
    return {"silent": silent, "low": low, "high": high, "far": packed(far), "chance": packed(chance)}


def logarithmic(values: Array, low: float, high: float) -> Array:
    """Whole numbers from 1 for `low` to 65535 for `high`, equal steps being equal factors; 0 for what is below."""
    share = np.log(np.maximum(values, low) / low) / np.log(high / low)
    return np.where(values < low, 0.0, 1.0 + np.rint(np.clip(share, 0.0, 1.0) * (_TOP - 1)))


def _range(*matrices: Array) -> tuple[float, float]:
    """Ends of the positive values, at most 16 decades apart: what is smaller is rounding."""
    high = max(float(matrix.max(initial=0.0)) for matrix in matrices)
    if high <= 0:
        return 1.0, 2.0
    least = min(float(matrix.min(where=matrix > 1e-16 * high, initial=high)) for matrix in matrices)
    return least, high if high > least else 2 * least


def packed(values: Array) -> str:
    """Whole numbers below 65536 as little-endian pairs of bytes in base64."""
    return b64encode(np.clip(values, 0, _TOP).astype("<u2").tobytes()).decode("ascii")


def harmless(content: str) -> str:
    """JSON without the characters that could end a script element."""
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return content
