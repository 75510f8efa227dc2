"""Scores as a run writes them, and as `result.scores` shows them."""

import pandas as pd

LEADING = ("mean squared error", "log loss")


def scores_in(folder, metric=None):
    """One metric of a ``scores.csv``, by default the leading one: a row per agent, a column per method."""
    table = pd.read_csv(folder / "scores.csv")
    assert list(table) == ["agent", "method", "metric", "value", "test_rows", "standard_error"]
    chosen = metric or next(one for one in LEADING if one in set(table.metric))
    wide = table[table.metric == chosen].pivot(index="agent", columns="method", values="value")
    wide.columns.name = None
    return wide.loc[table.agent.unique(), table.method.unique()]
