"""A federation's columns and outcome as people look at them before they use them: what is read, what is done, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kinfed.data.column_encoders import CategoryRule
from kinfed.data.column_types import BOOLEAN, DATE, column_of
from kinfed.data.preparation import NoColumnLeftError, Preparation
from kinfed.data.screening import NO_SCREENING, Screening
from kinfed.federation import Federation

MOST_CLASSES = 12
"""Classes whose shares are shown."""


class Description(NamedTuple):
    """What there is to know of a federation before anything is learned.

    Attributes
    ----------
    columns : DataFrame
        A row per column; see `columns_table`.
    missing : DataFrame
        Share of missing and unreadable cells, a row per agent and a column per column that has any.
    classes : DataFrame or None
        Share of every class, a row per agent; None where the outcome is a number or there is none.
    notes : tuple of str
        What was done when the data were read, in sentences.
    trouble : str
        Why nothing could be learned from these columns; empty if something can.
    screening : Screening
        Agents that are unlike all others in a column, and cells that are too far from everybody's.
    """

    columns: pd.DataFrame
    missing: pd.DataFrame
    classes: pd.DataFrame | None
    notes: tuple[str, ...]
    trouble: str = ""
    screening: Screening = NO_SCREENING


def described(federation: Federation, chosen: Mapping[str, str], labels: bool | None) -> Description:
    """Look at a federation as `Preparation.fit` does.

    Parameters
    ----------
    federation : Federation
        Raw.
    chosen : mapping from column to str
        What columns are, by hand.
    labels : bool, optional
        Whether the outcome are classes; None without one.
    """
    classes = _class_shares(federation) if labels else None
    try:
        preparation, screening = Preparation.fit_screened(federation, chosen=chosen, labels=labels)
    except NoColumnLeftError as error:
        return Description(pd.DataFrame(), pd.DataFrame(), classes, federation.notes, str(error))
    missing = _missing(federation, preparation)
    table, notes = columns_table(preparation, missing), preparation.notes(federation)
    return Description(table, missing, classes, notes, screening=screening)


def columns_table(preparation: Preparation, missing: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row per column: what it is, its gaps and different values, what is done with it, and why.

    Parameters
    ----------
    preparation : Preparation
    missing : DataFrame, optional
        Shares of missing cells by agent and column, to say where they are.
    """
    rules = {rule.column: rule for rule in preparation.rules}
    rows = []
    for reading in preparation.readings:
        rule, cells = rules.get(reading.column), reading.present + reading.missing
        if rule is None:
            done = "left out"
        elif isinstance(rule, CategoryRule):
            done = f"one column for each of {len(rule.counts)} categories"
        else:
            done = {BOOLEAN: "used as 1 and 0", DATE: "used as years"}.get(reading.kind, "used as a number")
        gaps = reading.missing + (reading.unreadable if reading.is_numeric else 0)
        worst = "" if missing is None or reading.column not in missing else _worst(missing[reading.column])
        rows.append(
            {
                "column": reading.column,
                "read as": reading.kind,
                "missing": gaps / cells if cells else 0.0,
                "missing most at": worst,
                "different values": reading.distinct,
                "agents without it": reading.absent,
                "what is done": done,
                "why": preparation.left_out.get(reading.column, reading.why),
            }
        )
    return pd.DataFrame(rows).set_index("column")


def _missing(federation: Federation, preparation: Preparation) -> pd.DataFrame:
    shares: dict[str, Any] = {}
    readings = {one.column: one for one in preparation.readings}
    for j, column in enumerate(federation.columns):
        reading = readings[column]
        cells = [column_of(agent.X, j) for agent in federation]
        gaps = [np.isnan(reading.numbers(one)) if reading.is_numeric else one.isna().to_numpy() for one in cells]
        found = [float(one.mean()) if len(one) else 0.0 for one in gaps]
        if any(found):
            shares[column] = found
    return pd.DataFrame(shares, index=pd.Index(federation.names, name="agent"))


def _worst(shares: pd.Series[Any], most: int = 2) -> str:
    ranked = shares.sort_values(ascending=False, kind="stable")
    return ", ".join(f"{name} {share:.0%}" for name, share in ranked[ranked > 0].head(most).items())


def _class_shares(federation: Federation) -> pd.DataFrame | None:
    counts = [pd.Series(agent.y).value_counts(normalize=True) for agent in federation if agent.y is not None]
    table = pd.DataFrame(counts, index=pd.Index(federation.names, name="agent")).fillna(0.0)
    return table[sorted(table.columns, key=str)] if 0 < table.shape[1] <= MOST_CLASSES else None
