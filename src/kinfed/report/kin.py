"""Who listens to whom, and who is alike.

The weight matrix in kin order and the network of the heaviest weights; the map, agents in the plane, near where their data
look alike, with groups and outliers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinfed.analysis.kinship import LARGEST_NETWORK
from kinfed.markup import Html, escape, paragraph
from kinfed.report.context import ReportContext
from kinfed.report.elements import (
    Cell,
    Column,
    Fitted,
    Labels,
    Section,
    agent_link,
    agent_node,
    agent_readout,
    details,
    fitted,
    interactive,
    joined,
    label,
    layers,
    marker,
    table,
    ticks,
)
from kinfed.report.text import count, counted, figures, listed, number, percent, shortened, weight
from kinfed.validation import Integers

_HEAVIEST = 5
_NAMED_UP_TO = 60  # agents whose names fit between the arrows
_IN_LEGEND = 8
_NAMED = 10  # outliers in a sentence
_MUST_BE_NAMED = 20  # outliers on the map; of more, those whose names fit


def who_listens(context: ReportContext) -> Section:
    """The section of the weights."""
    return Section("weights", "Who listens to whom", joined(_matrix(context), _network(context)))


def _matrix(context: ReportContext) -> Html:
    agents = len(context.names)
    told = (
        "Every row is an agent that listens, every column an agent that is heard; the stronger its colour, the more "
        "the row's model is made of the column's data. A row sums to 100\u00a0%. Agents that listen to each other "
        "stand side by side. The diagonal, in another colour, is the weight an agent keeps for its own data."
    )
    nobody = " Here nobody listens to anybody else: only the diagonal has weight."
    keys = "Arrow keys move from cell to cell, Home and End to the ends of a row, Enter opens the agent that listens."
    drawing = (
        '<noscript><p class="muted">The matrix is drawn with JavaScript; the table below holds its heaviest weights.</p>'
        '</noscript><div class="matrix-frame" hidden><p class="axis-name">heard</p>'
        '<canvas id="matrix" tabindex="0" role="application" aria-roledescription="weight matrix" '
        f'aria-label="Weights of {agents} by {counted(agents, "agent")}. {keys}" '
        'aria-describedby="matrix-readout"></canvas>'
        '<p class="axis-name side" aria-hidden="true">listens</p><div class="legend">'
        f"{_ramp('legend-others', '', 'weight on another agent')}{_ramp('legend-own', percent(1.0, 0), 'weight on itself')}"
        '</div></div><p id="matrix-readout" class="readout" aria-live="polite" hidden>Point at a cell, or move with the '
        "arrow keys; Enter or a double click opens the agent that listens.</p>"
    )
    behind = table(
        f"Whom each agent listens to: its own weight and its {_HEAVIEST} heaviest others",
        [Column("Agent", "text"), Column("Itself"), Column("Listens most to", "text")],
        _heaviest(context),
    )
    return joined(
        '<h3 id="matrix-heading">The weights</h3>',
        paragraph(told + (nobody if context.others.max(initial=0.0) <= 0 else "")),
        f'<figure aria-labelledby="matrix-heading">{drawing}</figure>',
        details("The weights as a table", behind),
    )


def _ramp(anchor: str, top: str, name: str) -> str:
    """A key of colours, which are filled in where they are drawn."""
    return (
        f'<div><span id="{anchor}" class="ramp"></span><span class="ends"><span>0</span>'
        f'<span id="{anchor}-top">{top}</span></span><span class="name">{name}</span></div>'
    )


def _heaviest(context: ReportContext) -> Iterator[list[str | Cell]]:
    for agent in context.order.tolist():
        heard = context.heard(agent, _HEAVIEST)
        told = ", ".join(f"{agent_link(k, context.names[k])} ({weight(context.others[agent, k])})" for k in heard)
        yield [agent_link(agent, context.names[agent]), weight(context.own[agent]), told or "nobody else"]


def _network(context: ReportContext) -> Html:
    heading = "<h3>The network</h3>"
    network = context.network
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
                agent_link(int(network.target[e]), context.names[network.target[e]]),
                agent_link(int(network.source[e]), context.names[network.source[e]]),
                weight(network.weight[e]),
            ]
            for e in np.argsort(-network.weight, kind="stable")
        ),
    )
    return joined(
        heading,
        paragraph(told),
        f"<figure>{_network_drawing(context)}{agent_readout('network-readout')}</figure>",
        details(f"The network as a table ({counted(len(network.weight), 'arrow')})", edges),
    )


def _network_drawing(context: ReportContext) -> Html:
    network = context.network
    assert network is not None
    radii = _radii(context.data.weights.sizes)
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
        arrows.append(
            f'<path class="edge" data-source="{source}" data-target="{target}" '
            f'stroke-width="{0.6 + 2.4 * value / top:.1f}" '
            f'd="M{start[0]:.1f} {start[1]:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {tip[0]:.1f} {tip[1]:.1f}" '
            'marker-end="url(#arrow)"/>'
        )
    nodes, names = [], []
    labels = Labels(plane.width, plane.height, places, float(np.median(radii)))
    for rank, agent in enumerate(context.order.tolist()):
        x, y = places[agent]
        drawn = marker(x, y, radii[agent], int(context.kin.labels[agent]))
        nodes.append(agent_node(agent, node_text(context, agent), drawn, first=rank == 0))
        if len(context.names) <= _NAMED_UP_TO:
            names.append(labels.place(x, y, radii[agent], shortened(context.names[agent])))
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="tip" d="M0 0.8L7.5 4L0 7.2z"/></marker></defs>'
    )
    return interactive(
        "network",
        plane.width,
        plane.height,
        "Network of agents",
        f"{counted(len(context.names), 'agent')} and {counted(len(network.weight), 'arrow')}; the table below holds them.",
        f'{arrow}<g class="edges">{"".join(arrows)}</g>{layers(nodes, names)}',
    )


def node_text(context: ReportContext, agent: int) -> str:
    """What a mark tells of its agent."""
    listens = listed([f"{context.names[k]} ({weight(context.others[agent, k])})" for k in context.heard(agent, 3)])
    named = f"{context.names[agent]}: {counted(int(context.data.weights.sizes[agent]), 'row')}, {context.group_name(agent)}"
    if context.names[agent] in context.data.withheld:
        return f"{named}, no model was delivered"
    return (
        f"{named}, weight on itself {percent(context.own[agent])}, learns as if from "
        f"{counted(round(context.effective[agent]), 'row')}; "
        f"{f'listens most to {listens}' if listens else 'listens to nobody else'}"
    )


def _radii(sizes: Integers) -> list[float]:
    """Radii that grow with the root of the rows, smaller where there are many agents."""
    root = np.sqrt(sizes / max(int(sizes.max()), 1))
    largest = float(np.clip(130 / np.sqrt(len(sizes)), 7, 18))
    return list(np.maximum(largest * root, 0.3 * largest))


def map_of_agents(context: ReportContext) -> Section:
    """The section of the map."""
    if len(context.names) < 2:
        return Section("map", "Map of agents", paragraph("There is one agent: there is nothing to compare it with."))
    told = (
        "Agents whose data look alike are near. The distance is the MMD of their data, as near as a plane can show it: "
        f"this one shows {percent(context.chart.explained, 0)} of the squared distances."
    )
    known = context.data.groups
    columns = [
        Column("Agent", "text"),
        Column("Group", "text"),
        Column("Across"),
        Column("Up"),
        Column("Rows"),
        *([] if known is None else [Column("Known group", "text")]),
    ]
    rows = [
        [
            agent_link(agent, context.names[agent]),
            context.group_name(agent),
            *map(figures, context.chart.coordinates[agent]),
            count(float(context.data.weights.sizes[agent])),
            *([] if known is None else [escape(known[agent])]),
        ]
        for agent in context.order.tolist()
    ]
    return Section(
        "map",
        "Map of agents",
        joined(
            paragraph(_groups_in_words(context)),
            paragraph(told, "muted"),
            f"<figure>{_drawing(context)}{_legend(context)}{agent_readout('map-readout')}</figure>",
            details("The map as a table", table("Agents on the map", columns, rows)),
        ),
    )


def _groups_in_words(context: ReportContext) -> str:
    sizes, outliers = context.kin.sizes, context.kin.outliers
    agents = len(context.names)
    if not sizes:
        told = f"All {count(agents)} agents differ from each other by more than chance explains: there are no groups."
    elif sizes == (agents,):
        told = f"All {count(agents)} agents form one group: they differ no more than chance explains."
    else:
        kinds = f"{'is' if len(sizes) == 1 else 'are'} {counted(len(sizes), 'group')}"
        which = "" if len(sizes) <= 3 else "the largest "
        told = f"There {kinds} of agents that look alike, {which}of {listed([count(size) for size in sizes[:3]])} agents"
        alone = listed([context.names[k] for k in outliers], _NAMED)
        unlike = "differs" if len(outliers) == 1 else "differ"
        others = f"{counted(len(outliers), 'outlier')} that {unlike} from the agents around by more than chance explains"
        told += f", and {others}: {alone}." if len(outliers) else ", and no outliers."
    return f"{told} {_known_groups(context)}".strip()


def _known_groups(context: ReportContext) -> str:
    """How the groups that were found agree with those that were known."""
    known = context.data.groups
    if known is None:
        return ""
    kinds = np.unique(np.asarray(known), return_inverse=True)[1]
    told = f"The agents came with {counted(int(kinds.max()) + 1, 'known group')}."
    found = context.kin.labels
    pairs = np.triu(np.ones((len(found), len(found)), dtype=bool), 1)
    together = pairs & (found[:, None] == found) & (found[:, None] >= 0)
    same = kinds[:, None] == kinds
    if not together.any():
        return told
    return (
        f"{told} Of the pairs that were found to be kin {percent(float(same[together].mean()), 0)} are in one known group, "
        f"of all pairs {percent(float(same[pairs].mean()), 0)}."
    )


def _drawing(context: ReportContext) -> Html:
    plane = fitted(context.chart.coordinates)
    places = plane.places
    radius = float(np.clip(70 / np.sqrt(len(context.names)), 3.2, 8))
    labels = Labels(plane.width, plane.height, places, radius)
    outliers = set(context.kin.outliers.tolist())
    few = len(outliers) <= _MUST_BE_NAMED
    nodes, names = [], []
    for rank, agent in enumerate(context.order.tolist()):
        x, y = places[agent]
        drawn = marker(x, y, radius, int(context.kin.labels[agent]))
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{radius + 3.5:.1f}"/>' if agent in outliers else ""
        nodes.append(agent_node(agent, node_text(context, agent), drawn + ring, first=rank == 0))
    # Outliers first: their names are the ones that must be seen.
    for agent in [
        *sorted(outliers),
        *(k for k in context.order.tolist() if k not in outliers and context.network is not None),
    ]:
        x, y = places[agent]
        out = agent in outliers
        gap = radius + (3.5 if out else 0.0)
        names.append(labels.place(x, y, gap, shortened(context.names[agent]), "outlier" if out else "", needed=out and few))
    summary = f"{_groups_in_words(context)} The table below holds the places."
    content = _scale_bar(plane) + layers(nodes, names)
    return interactive("map-drawing", plane.width, plane.height, "Map of agents", summary, content)


def _scale_bar(plane: Fitted) -> str:
    """How long a round distance is on the map."""
    if plane.unit <= 0:
        return ""
    longest = ticks(0.0, 0.25 * plane.width / plane.unit, 2)[-1]
    length, height = longest * plane.unit, plane.height
    return f'<path class="scale" d="M12 {height - 16:.1f}v5h{length:.1f}v-5"/>' + label(
        12 + length / 2, height - 18, f"MMD {number(longest)}"
    )


def _legend(context: ReportContext) -> Html:
    def key(group: int, words: str, ring: str = "") -> str:
        drawn = f'<svg viewBox="0 0 16 16" aria-hidden="true">{marker(8, 8, 4 if ring else 5, group)}{ring}</svg>'
        return f"<li>{drawn}{escape(words)}</li>"

    sizes = context.kin.sizes
    keys = [key(group, f"group {group + 1}: {counted(size, 'agent')}") for group, size in enumerate(sizes[:_IN_LEGEND])]
    if len(sizes) > _IN_LEGEND:
        keys.append(f"<li>{counted(len(sizes) - _IN_LEGEND, 'smaller group')}, in other colours and shapes</li>")
    if len(context.kin.outliers):
        words = counted(len(context.kin.outliers), "outlier")
        keys.append(key(-1, words, '<circle class="ring" cx="8" cy="8" r="7"/>'))
    elif not sizes:
        keys.append(key(-1, "in no group"))
    return Html(f'<ul class="legend keys" aria-label="Groups">{"".join(keys)}</ul>')
