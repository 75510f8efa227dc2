"""The map: agents in the plane, near where their data look alike, with groups and outliers."""

from __future__ import annotations

import numpy as np

from kinfed.markup import escape
from kinfed.report.elements import Column, Html, Section, agent_link, details, joined, paragraph, table, text
from kinfed.report.findings import Findings
from kinfed.report.sections.weights import node_text
from kinfed.report.shapes import Fitted, Labels, agent_node, agent_readout, fitted, interactive, layers, marker, ticks
from kinfed.report.text import count, counted, figures, listed, number, percent, shortened

_IN_LEGEND = 8
_NAMED = 10  # outliers in a sentence
_MUST_BE_NAMED = 20  # outliers on the map; of more, those whose names fit


def map_of_agents(findings: Findings) -> Section:
    """The section of the map."""
    if len(findings.names) < 2:
        return Section("map", "Map of agents", paragraph("There is one agent: there is nothing to compare it with."))
    told = (
        "Agents whose data look alike are near. The distance is the MMD of their data, as near as a plane can show it: "
        f"this one shows {percent(findings.chart.explained, 0)} of the squared distances."
    )
    readout = agent_readout("map-readout")
    columns = [Column("Agent", "text"), Column("Group", "text"), Column("Across"), Column("Up"), Column("Rows")]
    known = findings.story.groups
    if known is not None:
        columns.append(Column("Known group", "text"))
    rows = []
    for agent in findings.order.tolist():
        across, up = findings.chart.coordinates[agent]
        row: list[str] = [
            agent_link(agent, findings.names[agent]),
            findings.group_name(agent),
            figures(across),
            figures(up),
            count(float(findings.story.weights.sizes[agent])),
        ]
        rows.append(row if known is None else [*row, text(known[agent])])
    return Section(
        "map",
        "Map of agents",
        joined(
            paragraph(_groups_in_words(findings)),
            paragraph(told, "muted"),
            f"<figure>{_drawing(findings)}{_legend(findings)}{readout}</figure>",
            details("The map as a table", table("Agents on the map", columns, rows)),
        ),
    )


def _groups_in_words(findings: Findings) -> str:
    sizes, outliers = findings.kin.sizes, findings.kin.outliers
    agents = len(findings.names)
    if not sizes:
        told = f"All {count(agents)} agents differ from each other by more than chance explains: there are no groups."
    elif sizes == (agents,):
        told = f"All {count(agents)} agents form one group: they differ no more than chance explains."
    else:
        kinds = f"{'is' if len(sizes) == 1 else 'are'} {counted(len(sizes), 'group')}"
        which = "" if len(sizes) <= 3 else "the largest "
        told = f"There {kinds} of agents that look alike, {which}of {listed([count(size) for size in sizes[:3]])} agents"
        alone = listed([findings.names[k] for k in outliers], _NAMED)
        unlike = "differs" if len(outliers) == 1 else "differ"
        others = f"{counted(len(outliers), 'outlier')} that {unlike} from the agents around by more than chance explains"
        told += f", and {others}: {alone}." if len(outliers) else ", and no outliers."
    return f"{told} {_known_groups(findings)}".strip()


def _known_groups(findings: Findings) -> str:
    """How the groups that were found agree with those that were known."""
    known = findings.story.groups
    if known is None:
        return ""
    kinds = np.unique(np.asarray(known), return_inverse=True)[1]
    told = f"The agents came with {counted(int(kinds.max()) + 1, 'known group')}."
    found = findings.kin.labels
    pairs = np.triu(np.ones((len(found), len(found)), dtype=bool), 1)
    together = pairs & (found[:, None] == found) & (found[:, None] >= 0)
    same = kinds[:, None] == kinds
    if not together.any():
        return told
    return (
        f"{told} Of the pairs that were found to be kin {percent(float(same[together].mean()), 0)} are in one known group, "
        f"of all pairs {percent(float(same[pairs].mean()), 0)}."
    )


def _drawing(findings: Findings) -> Html:
    plane = fitted(findings.chart.coordinates)
    places = plane.places
    radius = float(np.clip(70 / np.sqrt(len(findings.names)), 3.2, 8))
    labels = Labels(plane.width, plane.height, places, radius)
    outliers = set(findings.kin.outliers.tolist())
    few = len(outliers) <= _MUST_BE_NAMED
    nodes, names = [], []
    for rank, agent in enumerate(findings.order.tolist()):
        x, y = places[agent]
        drawn = marker(x, y, radius, int(findings.kin.labels[agent]))
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{radius + 3.5:.1f}"/>' if agent in outliers else ""
        nodes.append(agent_node(agent, node_text(findings, agent), drawn + ring, first=rank == 0))
    # Outliers first: their names are the ones that must be seen.
    for agent in [*sorted(outliers), *(k for k in findings.order.tolist() if k not in outliers and findings.few)]:
        x, y = places[agent]
        out = agent in outliers
        gap = radius + (3.5 if out else 0.0)
        names.append(
            labels.place(x, y, gap, shortened(findings.names[agent]), "outlier" if out else "", needed=out and few)
        )
    content = _scale_bar(plane) + layers(nodes, names)
    summary = f"{_groups_in_words(findings)} The table below holds the places."
    return interactive("map-drawing", plane.width, plane.height, "Map of agents", summary, content)


def _scale_bar(plane: Fitted) -> str:
    """How long a round distance is on the map."""
    if plane.unit <= 0:
        return ""
    longest = ticks(0.0, 0.25 * plane.width / plane.unit, 2)[-1]
    length, height = longest * plane.unit, plane.height
    return (
        f'<path class="scale" d="M12 {height - 16:.1f}v5h{length:.1f}v-5"/>'
        f'<text class="label" x="{12 + length / 2:.1f}" y="{height - 18:.1f}" text-anchor="middle">MMD '
        f"{number(longest)}</text>"
    )


def _legend(findings: Findings) -> Html:
    def key(label: int, words: str, ring: str = "") -> str:
        drawn = f'<svg viewBox="0 0 16 16" aria-hidden="true">{marker(8, 8, 4 if ring else 5, label)}{ring}</svg>'
        return f"<li>{drawn}{escape(words)}</li>"

    sizes = findings.kin.sizes
    keys = [key(label, f"group {label + 1}: {counted(size, 'agent')}") for label, size in enumerate(sizes[:_IN_LEGEND])]
    if len(sizes) > _IN_LEGEND:
        rest = len(sizes) - _IN_LEGEND
        keys.append(f"<li>{counted(rest, 'smaller group')}, in other colours and shapes</li>")
    if len(findings.kin.outliers):
        ring = '<circle class="ring" cx="8" cy="8" r="7"/>'
        keys.append(key(-1, counted(len(findings.kin.outliers), "outlier"), ring))
    elif not sizes:
        keys.append(key(-1, "in no group"))
    return Html(f'<ul class="legend keys" aria-label="Groups">{"".join(keys)}</ul>')
