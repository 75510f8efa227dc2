"""Who counts in whose model, and who is alike.

The matrix in kin order and the network of its heaviest entries; the map, agents in the plane, near where they are alike,
with groups and outliers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinfed.analysis.kinship import LARGEST_NETWORK, Network
from kinfed.analysis.ties import SAME_SPEAKERS, Ties
from kinfed.markup import Html, escape, paragraph
from kinfed.report.context import ReportContext, group_name
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
from kinfed.report.text import count, counted, figures, listed, number, percent, sentence, shortened, weight
from kinfed.report.ties import WORDS, Words
from kinfed.validation import Integers

_HEAVIEST = 5
_NAMED_UP_TO = 60  # agents whose names fit between the arrows
_IN_LEGEND = 8
_NAMED = 10  # outliers in a sentence
_MUST_BE_NAMED = 20  # outliers on the map; of more, those whose names fit


def who_counts(context: ReportContext) -> Section | None:
    """The section of weights or influence."""
    ties, words = context.ties, context.words
    if ties is None or words is None:
        return None
    return Section(ties.kind, words.heading, joined(_matrix(ties, words), _network(context, ties, words)))


def _matrix(ties: Ties, words: Words) -> Html:
    agents = len(ties.names)
    keys = f"Arrow keys move from cell to cell, Home and End to the ends of a row, Enter opens {words.opens}."
    drawing = (
        '<noscript><p class="muted">The matrix is drawn with JavaScript; the table below holds its heaviest entries.</p>'
        f'</noscript><div class="matrix-frame" hidden><p class="axis-name">{words.column}</p>'
        f'<canvas id="matrix" tabindex="0" role="application" aria-roledescription="{words.amount} matrix" '
        f'aria-label="{sentence(words.amount)[:-1]} of {agents} by {counted(agents, "agent")}. {keys}" '
        'aria-describedby="matrix-readout"></canvas>'
        f'<p class="axis-name side" aria-hidden="true">{words.row}</p><div class="legend">'
        f"{_ramp('legend-others', '', f'{words.amount} of another agent')}{_ramp('legend-own', percent(1.0, 0), words.own)}"
        '</div></div><p id="matrix-readout" class="readout" aria-live="polite" hidden>Point at a cell, or move with the '
        f"arrow keys; Enter or a double click opens {words.opens}.</p>"
    )
    behind = table(
        words.heaviest.format(most=_HEAVIEST),
        [Column("Agent", "text"), Column("Itself"), Column(words.others, "text")],
        _heaviest(ties),
    )
    return joined(
        f'<h3 id="matrix-heading">{words.title}</h3>',
        paragraph(words.matrix + (f" {words.nobody}" if ties.others.max(initial=0.0) <= 0 else "")),
        f'<figure aria-labelledby="matrix-heading">{drawing}</figure>',
        details(f"{words.title} as a table", behind),
    )


def _ramp(anchor: str, top: str, name: str) -> str:
    """A key of colours, which are filled in where they are drawn."""
    return (
        f'<div><span id="{anchor}" class="ramp"></span><span class="ends"><span>0</span>'
        f'<span id="{anchor}-top">{top}</span></span><span class="name">{name}</span></div>'
    )


def _heaviest(ties: Ties) -> Iterator[list[str | Cell]]:
    for agent in ties.order.tolist():
        told = ", ".join(
            f"{agent_link(k, ties.names[k])} ({weight(ties.others[agent, k])})" for k in ties.heard(agent, _HEAVIEST)
        )
        yield [agent_link(agent, ties.names[agent]), weight(ties.own[agent]), told or "nobody else"]


def _network(context: ReportContext, ties: Ties, words: Words) -> Html:
    heading = "<h3>The network</h3>"
    network = ties.network
    if network is None:
        told = f"The network is drawn for up to {LARGEST_NETWORK} agents; with more the arrows would cover each other."
        return joined(heading, paragraph(told))
    if not len(network.weight):
        return joined(heading, paragraph("Nobody stands out among the others: there is no arrow to draw."))
    told = (
        f"{words.arrows} "
        "The thicker, the heavier. Larger marks have more rows; colour and shape are the groups of the map below."
    )
    edges = table(
        "Arrows of the network, the heaviest first",
        [Column(words.listener, "text"), Column(words.others, "text"), Column(words.amount.capitalize())],
        (
            [
                agent_link(int(network.target[e]), ties.names[network.target[e]]),
                agent_link(int(network.source[e]), ties.names[network.source[e]]),
                weight(network.weight[e]),
            ]
            for e in np.argsort(-network.weight, kind="stable")
        ),
    )
    return joined(
        heading,
        paragraph(told),
        f"<figure>{_network_drawing(context, ties, network)}{agent_readout('network-readout')}</figure>",
        details(f"The network as a table ({counted(len(network.weight), 'arrow')})", edges),
    )


def _network_drawing(context: ReportContext, ties: Ties, network: Network) -> Html:
    radii = _radii(ties.sizes)
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
    for rank, agent in enumerate(ties.order.tolist()):
        x, y = places[agent]
        drawn = marker(x, y, radii[agent], int(ties.groups.labels[agent]))
        nodes.append(agent_node(agent, node_text(context, ties, agent), drawn, first=rank == 0))
        if len(ties.names) <= _NAMED_UP_TO:
            names.append(labels.place(x, y, radii[agent], shortened(ties.names[agent])))
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="tip" d="M0 0.8L7.5 4L0 7.2z"/></marker></defs>'
    )
    return interactive(
        "network",
        plane.width,
        plane.height,
        "Network of agents",
        f"{counted(len(ties.names), 'agent')} and {counted(len(network.weight), 'arrow')}; the table below holds them.",
        f'{arrow}<g class="edges">{"".join(arrows)}</g>{layers(nodes, names)}',
    )


def node_text(context: ReportContext, ties: Ties, agent: int) -> str:
    """What a mark tells of its agent."""
    words, own, rows = WORDS[ties.kind], percent(ties.own[agent]), counted(int(ties.sizes[agent]), "row")
    named = f"{ties.names[agent]}: {rows}, {group_name(ties, agent)}"
    if ties.names[agent] in context.data.withheld:
        return f"{named}, no model was delivered"
    heaviest = listed([f"{ties.names[k]} ({weight(ties.others[agent, k])})" for k in ties.heard(agent, 3)])
    learns = "" if ties.effective is None else f", learns as if from {counted(round(ties.effective[agent]), 'row')}"
    return f"{named}, {words.own} {own}{learns}; {words.most.format(others=heaviest) if heaviest else words.nobody_else}"


def _radii(sizes: Integers) -> list[float]:
    """Radii that grow with the root of the rows, smaller where there are many agents."""
    root = np.sqrt(sizes / max(int(sizes.max()), 1))
    largest = float(np.clip(130 / np.sqrt(len(sizes)), 7, 18))
    return list(np.maximum(largest * root, 0.3 * largest))


def map_of_agents(context: ReportContext) -> Section | None:
    """The section of the map."""
    ties = context.ties
    if ties is None:
        return None
    if len(ties.names) < 2:
        return Section("map", "Map of agents", paragraph("There is one agent: there is nothing to compare it with."))
    shown = f"as near as a plane can show it: this one shows {percent(ties.chart.explained, 0)} of the squared distances."
    told = (
        "Agents whose data look alike are near. The distance is the MMD of their data, 0 for rows of one distribution, "
        f"{shown}"
        if ties.evidence is not None
        else "Agents in whose models the same others speak are near, or in one place. Their overlap is 1 where the same "
        f"agents speak in both models, and 0 where nobody does; the squared distance is 1 less the overlap, {shown}"
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
            agent_link(agent, ties.names[agent]),
            group_name(ties, agent),
            *map(figures, ties.chart.coordinates[agent]),
            count(float(ties.sizes[agent])),
            *([] if known is None else [escape(known[agent])]),
        ]
        for agent in ties.order.tolist()
    ]
    return Section(
        "map",
        "Map of agents",
        joined(
            paragraph(_groups_in_words(ties, known)),
            paragraph(told, "muted"),
            f"<figure>{_drawing(context, ties)}{_legend(ties)}{agent_readout('map-readout')}</figure>",
            details("The map as a table", table("Agents on the map", columns, rows)),
        ),
    )


def _groups_in_words(ties: Ties, known: tuple[str, ...] | None) -> str:
    sizes, outliers, agents = ties.groups.sizes, ties.groups.outliers, len(ties.names)
    by_data = ties.evidence is not None
    half = f"an overlap of less than {percent(SAME_SPEAKERS, 0)}"
    if not sizes:
        differ = "differ from each other by more than chance explains" if by_data else f"have {half} with each other"
        told = f"All {count(agents)} agents {differ}: there are no groups."
    elif sizes == (agents,):
        alike = "they differ no more than chance explains" if by_data else "much the same agents speak in all their models"
        told = f"All {count(agents)} agents form one group: {alike}."
    else:
        kinds = f"{'is' if len(sizes) == 1 else 'are'} {counted(len(sizes), 'group')}"
        which = "" if len(sizes) <= 3 else "the largest "
        alike = "that look alike" if by_data else "in whose models much the same others speak"
        told = f"There {kinds} of agents {alike}, {which}of {listed([count(size) for size in sizes[:3]])} agents"
        alone = listed([ties.names[k] for k in outliers], _NAMED)
        unlike, has = ("differs", "has") if len(outliers) == 1 else ("differ", "have")
        apart = f"{unlike} from the agents around by more than chance explains" if by_data else f"{has} {half} with others"
        told += (
            f", and {counted(len(outliers), 'outlier')} that {apart}: {alone}." if len(outliers) else ", and no outliers."
        )
    return f"{told} {_known_groups(ties, known)}".strip()


def _known_groups(ties: Ties, known: tuple[str, ...] | None) -> str:
    """How the groups that were found agree with those that were known."""
    if known is None:
        return ""
    kinds = np.unique(np.asarray(known), return_inverse=True)[1]
    told = f"The agents came with {counted(int(kinds.max()) + 1, 'known group')}."
    found = ties.groups.labels
    pairs = np.triu(np.ones((len(found), len(found)), dtype=bool), 1)
    together = pairs & (found[:, None] == found) & (found[:, None] >= 0)
    same = kinds[:, None] == kinds
    if not together.any():
        return told
    return (
        f"{told} Of the pairs that were found to be kin {percent(float(same[together].mean()), 0)} are in one known group, "
        f"of all pairs {percent(float(same[pairs].mean()), 0)}."
    )


def _drawing(context: ReportContext, ties: Ties) -> Html:
    plane = fitted(ties.chart.coordinates)
    places = plane.places
    radius = float(np.clip(70 / np.sqrt(len(ties.names)), 3.2, 8))
    labels = Labels(plane.width, plane.height, places, radius)
    outliers = set(ties.groups.outliers.tolist())
    few = len(outliers) <= _MUST_BE_NAMED
    nodes, names = [], []
    for rank, agent in enumerate(ties.order.tolist()):
        x, y = places[agent]
        drawn = marker(x, y, radius, int(ties.groups.labels[agent]))
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{radius + 3.5:.1f}"/>' if agent in outliers else ""
        nodes.append(agent_node(agent, node_text(context, ties, agent), drawn + ring, first=rank == 0))
    # Outliers first: their names are the ones that must be seen.
    for agent in [
        *sorted(outliers),
        *(k for k in ties.order.tolist() if k not in outliers and len(ties.names) <= LARGEST_NETWORK),
    ]:
        x, y = places[agent]
        out = agent in outliers
        gap = radius + (3.5 if out else 0.0)
        names.append(labels.place(x, y, gap, shortened(ties.names[agent]), "outlier" if out else "", needed=out and few))
    summary = f"{_groups_in_words(ties, context.data.groups)} The table below holds the places."
    unit = "distance" if ties.evidence is None else "MMD"
    content = _scale_bar(plane, unit) + layers(nodes, names)
    return interactive("map-drawing", plane.width, plane.height, "Map of agents", summary, content)


def _scale_bar(plane: Fitted, unit: str) -> str:
    """How long a round distance is on the map."""
    if plane.unit <= 0:
        return ""
    longest = ticks(0.0, 0.25 * plane.width / plane.unit, 2)[-1]
    length, height = longest * plane.unit, plane.height
    return f'<path class="scale" d="M12 {height - 16:.1f}v5h{length:.1f}v-5"/>' + label(
        12 + length / 2, height - 18, f"{unit} {number(longest)}"
    )


def _legend(ties: Ties) -> Html:
    def key(group: int, words: str, ring: str = "") -> str:
        drawn = f'<svg viewBox="0 0 16 16" aria-hidden="true">{marker(8, 8, 4 if ring else 5, group)}{ring}</svg>'
        return f"<li>{drawn}{escape(words)}</li>"

    sizes = ties.groups.sizes
    keys = [key(group, f"group {group + 1}: {counted(size, 'agent')}") for group, size in enumerate(sizes[:_IN_LEGEND])]
    if len(sizes) > _IN_LEGEND:
        keys.append(f"<li>{counted(len(sizes) - _IN_LEGEND, 'smaller group')}, in other colours and shapes</li>")
    if len(ties.groups.outliers):
        words = counted(len(ties.groups.outliers), "outlier")
        keys.append(key(-1, words, '<circle class="ring" cx="8" cy="8" r="7"/>'))
    elif not sizes:
        keys.append(key(-1, "in no group"))
    return Html(f'<ul class="legend keys" aria-label="Groups">{"".join(keys)}</ul>')
