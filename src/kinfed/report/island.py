"""The numbers the page draws from: matrices in kin order, packed small."""

from __future__ import annotations

import json
from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

from kinfed.report.elements import Html
from kinfed.report.findings import Findings

Array = NDArray[np.float64]

_TOP = 65535


def island(findings: Findings) -> Html:
    """Names, weights, distances and what chance explains of them, as JSON that no name can break out of."""
    order = findings.order
    grid = np.ix_(order, order)
    evidence = findings.story.weights.evidence
    others = findings.others[grid]
    top = float(others.max(initial=0.0))
    # Nobody knows how far an agent is that gave no answer: its row is empty, and so is its column in all other rows.
    others_known = np.isfinite(evidence.squared_distances[grid]) & ~np.eye(len(order), dtype=bool)
    silent = ~others_known.any(axis=1)
    distances, quantiles = (np.nan_to_num(one[grid]) for one in (evidence.squared_distances, evidence.null_quantiles))
    low, high = _range(distances, quantiles)
    far = logarithmic(distances, low, high)
    chance = logarithmic(quantiles, low, high)
    # Rounding must not turn a difference into none, nor the other way round.
    differ = distances > quantiles
    chance = np.where(differ, np.minimum(chance, far - 1), np.maximum(chance, far))
    content = {
        "names": [findings.names[k] for k in order],
        "agents": order.tolist(),
        "groups": findings.kin.labels[order].tolist(),
        "own": [round(float(value), 7) for value in findings.own[order]],
        "top": top,
        "weights": packed(np.rint(others / top * _TOP) if top > 0 else others),
        "silent": np.flatnonzero(silent).tolist(),
        "low": low,
        "high": high,
        "distances": packed(far),
        "chance": packed(chance),
    }
    return Html(
        f'<script type="application/json" id="data">{harmless(json.dumps(content, separators=(",", ":")))}</script>'
    )


def logarithmic(values: Array, low: float, high: float) -> Array:
    """Whole numbers from 1 for `low` to 65535 for `high`, equal steps being equal factors; 0 for what is below."""
    share = np.log(np.maximum(values, low) / low) / np.log(high / low)
    return np.where(values < low, 0.0, 1.0 + np.rint(np.clip(share, 0.0, 1.0) * (_TOP - 1)))


def _range(*matrices: Array) -> tuple[float, float]:
    """Ends of the positive values, at most 16 decades apart: what is smaller is rounding."""
    high = max(float(matrix.max(initial=0.0)) for matrix in matrices)
    if high <= 0:
        return 1.0, 2.0
    least = min(
        (float(matrix[matrix > 1e-16 * high].min()) for matrix in matrices if (matrix > 1e-16 * high).any()), default=high
    )
    return least, high if high > least else 2 * least


def packed(values: Array) -> str:
    """Whole numbers below 65536 as little-endian pairs of bytes in base64."""
    return b64encode(np.clip(values, 0, _TOP).astype("<u2").tobytes()).decode("ascii")


def harmless(content: str) -> str:
    """JSON without the characters that could end a script element."""
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return content
