"""Who is near whom, from sketches alone."""

from __future__ import annotations

import numpy as np
import pandas
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kinfed.cli.terminal import say
from kinfed.moments import squared_distances
from kinfed.sketch import Sketch

_QUANTILE = 3.841459  # of chi squared with one degree of freedom, at 0.95


def pairwise(sketches: list[Sketch], names: list[str]) -> pandas.DataFrame:
    r"""Squared distances of mean embeddings from sketches alone, a row per target and other site.

    With :math:`s_k = \mathrm{tr}\,\Sigma_k / n_k` two sites of one distribution have :math:`|\nu_t - \nu_k|^2` of mean
    :math:`s_t + s_k`; the difference of the two is unbiased for the squared distance of what the sites are drawn from.
    Site k is "near" t if that difference is at most :math:`s_t`, the squared error of being alone (the rule
    similarity-test), and "apart" if :math:`|\nu_t - \nu_k|^2` is beyond the quantile :math:`(s_t + s_k) \chi^2_{1, 0.95}`.
    Among covariances of one trace a single direction has the largest such quantile, so this is on the safe side whatever
    the covariance, which sketches do not tell. In between, "unclear".
    """
    means: NDArray[np.float64] = np.array([one.mean for one in sketches])
    centred = means - means.mean(axis=0)
    apart = squared_distances(centred @ centred.T)
    error = np.array([one.trace / one.n for one in sketches])
    chance = error[:, None] + error
    kinship = np.where(apart - chance <= error[:, None], "near", np.where(apart > _QUANTILE * chance, "apart", "unclear"))
    target, other = np.nonzero(~np.eye(len(sketches), dtype=bool))
    return pandas.DataFrame(
        {
            "site": [names[t] for t in target],
            "other": [names[k] for k in other],
            "squared mmd": apart[target, other],
            "by chance": chance[target, other],
            "difference": (apart - chance)[target, other],
            "kinship": kinship[target, other],
        }
    )


def print_pairs(pairs: pandas.DataFrame, names: list[str]) -> None:
    """Each pair once if there are few sites, then for every site who is near, and who may be."""
    if len(names) <= 8:
        table = Table("site", "other", "squared MMD", "by chance", "difference", box=box.SIMPLE)
        place = {name: number for number, name in enumerate(names)}
        for row in pairs.to_dict("records"):
            if place[row["site"]] < place[row["other"]]:
                numbers = (f"{row[key]:.5f}" for key in ("squared mmd", "by chance", "difference"))
                table.add_row(escape(row["site"]), escape(row["other"]), *numbers)
        Console().print(table)
    for name in names:
        rows = pairs[pairs["site"] == name].sort_values("difference", kind="stable")
        listed = {
            kind: _listed(rows.loc[rows["kinship"] == kind, "other"].tolist()) for kind in ("near", "unclear", "apart")
        }
        say(
            f"{name}: near enough to help {listed['near']}; unclear {listed['unclear']}; farther apart than chance "
            f"explains {listed['apart']}."
        )


def _listed(names: list[str]) -> str:
    return (", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")) or "nobody"
