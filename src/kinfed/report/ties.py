"""What the page calls it that an agent counts in another's model: weights that it gives, or influence that it has.

A matrix of another kind needs an entry in `WORDS` and nothing else here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfed.analysis.ties import Kind
from kinfed.report.text import SPACE


@dataclass(frozen=True)
class Words:
    """How a matrix is spoken of.

    Attributes
    ----------
    heading, title : str
        Of the section, and of the matrix in it.
    learning : str
        What learning with kin means here, a sentence.
    matrix : str
        How to read the matrix, and what its numbers are.
    nobody : str
        What is said where nobody counts for anybody else.
    amount, own : str
        What a number of the matrix is called, and one of its diagonal.
    row, column : str
        What an agent does whose row, or column, it is.
    opens : str
        Whose section a cell opens.
    cell, own_cell : str
        What a cell tells, of {row}, {column} and {amount}.
    heaviest : str
        Caption of the table of the heaviest others; they are counted in {most}.
    others, listener : str
        Headings of columns of agents that count, and of those they count for.
    most, nobody_else : str
        An agent's heaviest others, {others}, in half a sentence; and where there are none.
    collaborators, alone : str
        Caption of the table of the others of one {agent}; and the sentence where there are none.
    arrows : str
        What the network shows.
    median : str
        The median of the diagonal, at the top of the page.
    reading : str
        What the columns of the table of agents mean.
    """

    heading: str
    title: str
    learning: str
    matrix: str
    nobody: str
    amount: str
    own: str
    row: str
    column: str
    opens: str
    cell: str
    own_cell: str
    heaviest: str
    others: str
    listener: str
    most: str
    nobody_else: str
    collaborators: str
    alone: str
    arrows: str
    median: str
    reading: str


WORDS: Mapping[Kind, Words] = {
    "weights": Words(
        heading="Who listens to whom",
        title="The weights",
        learning=(
            "Learning with kin means: every agent trains a model of its own, on its own data and on those of agents that "
            "resemble it, each weighted by how much it helps."
        ),
        matrix=(
            "Every row is an agent that listens, every column an agent that is heard; the stronger its colour, the more "
            f"the row's model is made of the column's data. A row sums to 100{SPACE}%. Agents that listen to each other "
            "stand side by side. The diagonal, in another colour, is the weight an agent keeps for its own data."
        ),
        nobody="Here nobody listens to anybody else: only the diagonal has weight.",
        amount="weight",
        own="weight on itself",
        row="listens",
        column="heard",
        opens="the agent that listens",
        cell="{row} listens to {column} with {amount}.",
        own_cell="{row} gives its own data {amount}.",
        heaviest="Whom each agent listens to: its own weight and its {most} heaviest others",
        others="Listens to",
        listener="Listens",
        most="listens most to {others}",
        nobody_else="listens to nobody else",
        collaborators="Collaborators of {agent}",
        alone="It listens to nobody else.",
        arrows=(
            "An arrow points to the agent that listens, from an agent it listens to more than to most; up to three for "
            "each."
        ),
        median="Weight on own data, median",
        reading=(
            "Learns as if from: how many rows of its own would give an average as steady as the weighted one has "
            "(the effective sample size, 1 / Σ w²/n); gained: that, as a multiple of the agent's own rows."
        ),
    ),
    "influence": Words(
        heading="Who speaks in whose model",
        title="Influence",
        learning=(
            "Learning with kin means: every agent fits a model of its own to its own rows, and begins from what the models "
            "of the others make likely. The fewer rows it has, the more the others speak in its model."
        ),
        matrix=(
            "Every row is an agent's model, every column an agent that speaks in it. Influence is the share of the model's "
            "fitted values, its predictions for its own rows, that follows the column's outcomes: squared sensitivities "
            f"that sum to 100{SPACE}% in a row, so that many quiet voices count little. The diagonal, in another colour, "
            "is the agent's own."
        ),
        nobody="Here nobody speaks in another's model: only the diagonal has influence.",
        amount="influence",
        own="own influence",
        row="model of",
        column="speaks",
        opens="the agent whose model it is",
        cell="In the model of {row}, {column} speaks with {amount}.",
        own_cell="In its own model {row} speaks with {amount}.",
        heaviest="Who speaks in each agent's model: the agent itself and the {most} loudest others",
        others="Who speaks in it",
        listener="Model of",
        most="others that speak most in its model: {others}",
        nobody_else="nobody else speaks in its model",
        collaborators="Others that speak in the model of {agent}",
        alone="Nobody else speaks in its model.",
        arrows=(
            "An arrow points to the agent whose model it is, from an agent that speaks in it more than most; up to three "
            "for each."
        ),
        median="Own influence, median",
        reading=(
            "Own influence: the share of the model's fitted values that follows the agent's own outcomes, in squared "
            "sensitivities."
        ),
    ),
}
"""How each kind of matrix is spoken of."""
