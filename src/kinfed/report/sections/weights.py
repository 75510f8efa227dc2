"""Who listens to whom: the weight matrix in kin order, and the network of the heaviest weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinfed.kinship import LARGEST_NETWORK
from kinfed.report.elements import Cell, Column, Html, Section, agent_link, details, joined, paragraph, table
from kinfed.report.findings import Findings
from kinfed.report.shapes import Labels, agent_node, agent_readout, fitted, interactive, layers, marker
from kinfed.report.text import counted, listed, percent, shortened, weight

_HEAVIEST = 5
_NAMED_UP_TO = 60  # agents whose names fit between the arrows


def who_listens(findings: Findings) -> Section:
    """The section of the weights."""
    return Section("weights", "Who listens to whom", joined(_matrix(findings), _network(findings)))


def _matrix(findings: Findings) -> Html:
    agents = len(findings.names)
    extent = f"{agents} by {counted(agents, 'agent')}"
    told = (
        "Every row is an agent that listens, every column an agent that is heard; the stronger its colour, the more "
        "the row's model is made of the column's data. A row sums to 100\u00a0%. Agents that listen to each other "
        "stand side by side. The diagonal, in another colour, is the weight an agent keeps for its own data."
    )
    spread = ""
    if findings.others.max(initial=0.0) <= 0:
        spread = " Here nobody listens to anybody else: only the diagonal has weight."
    keys = "Arrow keys move from cell to cell, Home and End to the ends of a row, Enter opens the agent that listens."
    drawing = (
        '<noscript><p class="muted">The matrix is drawn with JavaScript; the table below holds its heaviest weights.</p>'
        '</noscript><div class="matrix-frame" hidden><p class="axis-name">heard</p>'
        '<canvas id="matrix" tabindex="0" role="application" aria-roledescription="weight matrix" '
        f'aria-label="Weights of {extent}. {keys}" aria-describedby="matrix-readout"></canvas>'
        '<p class="axis-name side" aria-hidden="true">listens</p><div class="legend">'
        f"{_ramp('legend-others', '', 'weight on another agent')}{_ramp('legend-own', percent(1.0, 0), 'weight on itself')}"
        '</div></div><p id="matrix-readout" class="readout" aria-live="polite" hidden>Point at a cell, or move with the '
        "arrow keys; Enter or a double click opens the agent that listens.</p>"
    )
    behind = table(
        f"Whom each agent listens to: its own weight and its {_HEAVIEST} heaviest others",
        [Column("Agent", "text"), Column("Itself"), Column("Listens most to", "text")],
        _heaviest(findings),
    )
    return joined(
        '<h3 id="matrix-heading">The weights</h3>',
        paragraph(told + spread),
        f'<figure aria-labelledby="matrix-heading">{drawing}</figure>',
        details("The weights as a table", behind),
    )


def _ramp(anchor: str, top: str, name: str) -> str:
    """A key of colours, which are filled in where they are drawn."""
    return (
        f'<div><span id="{anchor}" class="ramp"></span><span class="ends"><span>0</span>'
        f'<span id="{anchor}-top">{top}</span></span><span class="name">{name}</span></div>'
    )


def _heaviest(findings: Findings) -> Iterator[list[str | Cell]]:
    others, own = findings.others, findings.own
    best = np.argsort(-others, axis=1, kind="stable")[:, :_HEAVIEST]
    for agent in findings.order.tolist():
        heard = [k for k in best[agent].tolist() if others[agent, k] > 0]
        told = ", ".join(f"{agent_link(k, findings.names[k])} ({weight(others[agent, k])})" for k in heard)
        yield [agent_link(agent, findings.names[agent]), weight(own[agent]), told or "nobody else"]


def _network(findings: Findings) -> Html:
    heading = "<h3>The network</h3>"
    network = findings.network
    if network is None:
        told = f"The network is drawn for up to {LARGEST_NETWORK} agents; with more the arrows would cover each other."
        return joined(heading, paragraph(told))
    if not len(network.weight):
        return joined(heading, paragraph("No agent prefers some of the others: there is no arrow to draw."))
    told = (
        "An arrow points to the agent that listens, from an agent it listens to more than to most; up to three for each. "
        "The thicker, the heavier. Larger marks have more rows; colour and shape are the groups of the map below."
    )
    edges = table(
        "Arrows of the network, the heaviest first",
        [Column("Listens", "text"), Column("To", "text"), Column("Weight")],
        (
            [
                agent_link(int(network.target[e]), findings.names[network.target[e]]),
                agent_link(int(network.source[e]), findings.names[network.source[e]]),
                weight(network.weight[e]),
            ]
            for e in np.argsort(-network.weight, kind="stable")
        ),
    )
    readout = agent_readout("network-readout")
    return joined(
        heading,
        paragraph(told),
        f"<figure>{_network_drawing(findings)}{readout}</figure>",
        details(f"The network as a table ({counted(len(network.weight), 'arrow')})", edges),
    )


def _network_drawing(findings: Findings) -> Html:
    network = findings.network
    assert network is not None
    weights = findings.story.weights
    radii = _radii(weights.sizes, len(findings.names))
    plane = fitted(network.coordinates)
    places = plane.places
    top = float(network.weight.max())
    arrows = []
    for source, target, value in zip(
        network.source.tolist(), network.target.tolist(), network.weight.tolist(), strict=True
    ):
        start, end = places[source], places[target]
        apart = end - start
        length = max(float(np.hypot(*apart)), 1e-6)
        # The arrow ends at the edge of the marker, not under it.
        tip = end - apart / length * min(radii[target] + 2.5, length / 2)
        bend = (start + tip) / 2 + np.array([-apart[1], apart[0]]) * 0.08
        share = value / top
        arrows.append(
            f'<path class="edge" data-source="{source}" data-target="{target}" stroke-width="{0.6 + 2.4 * share:.1f}" '
            f'd="M{start[0]:.1f} {start[1]:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {tip[0]:.1f} {tip[1]:.1f}" '
            'marker-end="url(#arrow)"/>'
        )
    nodes, names = [], []
    labels = Labels(plane.width, plane.height, places, float(np.median(radii)))
    for rank, agent in enumerate(findings.order.tolist()):
        x, y = places[agent]
        told = node_text(findings, agent)
        nodes.append(agent_node(agent, told, marker(x, y, radii[agent], int(findings.kin.labels[agent])), first=rank == 0))
        if len(findings.names) <= _NAMED_UP_TO:
            names.append(labels.place(x, y, radii[agent], shortened(findings.names[agent])))
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="tip" d="M0 0.8L7.5 4L0 7.2z"/></marker></defs>'
    )
    summary = (
        f"{counted(len(findings.names), 'agent')} and {counted(len(network.weight), 'arrow')}; the table below holds them."
    )
    return interactive(
        "network",
        plane.width,
        plane.height,
        "Network of agents",
        summary,
        f'{arrow}<g class="edges">{"".join(arrows)}</g>{layers(nodes, names)}',
    )


def node_text(findings: Findings, agent: int) -> str:
    """What a mark tells of its agent."""
    weights = findings.story.weights
    row = findings.others[agent]
    heard = [k for k in np.argsort(-row, kind="stable")[:3].tolist() if row[k] > 0]
    listens = listed([f"{findings.names[k]} ({weight(row[k])})" for k in heard])
    return (
        f"{findings.names[agent]}: {counted(int(weights.sizes[agent]), 'row')}, {findings.group_name(agent)}, weight on "
        f"itself {percent(findings.own[agent])}, learns as if from "
        f"{counted(round(findings.effective[agent]), 'row')}; "
        f"{f'listens most to {listens}' if listens else 'listens to nobody else'}"
    )


def _radii(sizes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], agents: int) -> list[float]:
    """Radii that grow with the root of the rows, smaller where there are many agents."""
    root = np.sqrt(sizes / max(int(sizes.max()), 1))
    largest = float(np.clip(130 / np.sqrt(max(agents, 1)), 7, 18))
    return list(np.maximum(largest * root, 0.3 * largest))
