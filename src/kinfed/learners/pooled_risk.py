"""The weighted log losses of many targets where all points are in one place: rows in parts that are trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinfed.backends.agents import Places
from kinfed.learners.softmax import (
    SoftmaxRisk,
    coefficient_penalties,
    coefficient_rows,
    frequency_start,
)
from kinfed.validation import Array

_CHEAP_HESSIAN = 64  # coefficients of a model up to which Newton's method is the faster one
_SHARED_ROWS = 64  # coefficient rows moved together by one matrix product
_SHARED_WEIGHTS = 2**24  # point weights held for one part (128 MB)
_GATHERED_POINTS = 2**18  # elements of the points gathered for one part (2 MB: they should stay in cache)


@dataclass(frozen=True, eq=False)
class PooledRisk(SoftmaxRisk):
    """Penalised log losses of the models of one part; `kinfed.learners.distributed_risk` has the same across sites.

    Attributes
    ----------
    centres : array of shape (1, d) or (T, d)
        What x is measured from; zero without intercepts.
    best : array of shape (T, K, p)
        Where a descent starts.
    """

    centres: Array
    best: Array

    @property
    def hessians(self) -> Literal["cheap", "dear"]:
        """Cheap for small models of points of their own: models that share points move together by matrix products."""
        count, rows, columns = self.shape
        return "cheap" if len(self.points) == count and rows * columns <= _CHEAP_HESSIAN else "dear"

    @property
    def stranded(self) -> NDArray[np.bool_]:
        """Which models have nobody left to listen to: none where all rows are here."""
        return np.zeros(len(self.best), dtype=bool)


class PooledPoints:
    """All agents' points in one table, and the weight rows in parts that are trained together.

    Rows of one support share its points; rows of different supports gather their own, padded to a common length. Either
    way an agent of weight zero has no part in a row's model. A row of one class is in no part: its model is a constant.

    Parameters
    ----------
    columns : sequence of arrays of shape (n_k, d)
    codes : sequence of int arrays of shape (n_k,)
        Labels as places among the classes of the federation.
    rows : array of shape (T, B)
        The weights.
    n_classes : int
    weights : array of shape (N,), optional
        What rows count, with mean one for every agent; all the same by default.

    Attributes
    ----------
    present : array of bool of shape (T, C)
        The classes each model knows.
    parts : list of int arrays
        Rows that are trained together.
    """

    def __init__(
        self,
        columns: Sequence[Array],
        codes: Sequence[Places],
        rows: Array,
        n_classes: int,
        weights: Array | None = None,
    ) -> None:
        self._columns, self._codes = np.vstack(columns), np.concatenate(codes)
        self._sizes = np.array([len(table) for table in columns])
        self._agent = np.repeat(np.arange(len(columns)), self._sizes)
        self._rows = rows
        self._shares = rows / np.maximum(self._sizes, 1)
        counts = np.array([np.bincount(one, minlength=n_classes) for one in codes])
        self._counted = weights
        masses = np.zeros(counts.shape)
        np.add.at(masses, (self._agent, self._codes), 1.0 if weights is None else weights)
        self._masses = self._shares @ masses
        self.present = (rows > 0) @ (counts > 0)
        self.parts = self._split(np.flatnonzero(self.present.sum(axis=1) > 1))

    def risk(self, part: Places, penalty: Array, intercept: bool) -> PooledRisk:
        """The weighted risks of a part's rows, each with the penalty of its slopes."""
        places, starts, weights = self._gather(part)
        if self._counted is not None:
            starts, weights = starts[:0], weights * self._counted[places]
        points, codes = self._columns[places], self._codes[places]
        present, dim = self.present[part], points.shape[2]
        centres = np.zeros((len(places), dim))
        if intercept:
            # x is measured from the middle of the points in use: large offsets would cost digits.
            inside = weights.max(axis=0, keepdims=True) > 0 if len(places) == 1 else weights > 0
            centres = np.einsum("tn,tnd->td", inside / inside.sum(axis=1, keepdims=True), points)
            points -= centres[:, None, :]
            points = np.concatenate([points, np.ones((*points.shape[:2], 1))], axis=2)
        best = frequency_start(self._masses[part], present, dim, intercept)
        labels = [1] if best.shape[1] == 1 else range(best.shape[1])
        linear = np.hstack([(weights * (codes == label))[:, None, :] @ points for label in labels])
        penalties = coefficient_penalties(penalty, present, dim, points.shape[2])
        return PooledRisk(points, starts, weights, linear, present, penalties, centres, best)

    def _split(self, rows: Places) -> list[Places]:
        """Rows of equal support in parts of their own; the others by the length of their support."""
        supports: dict[bytes, list[int]] = {}
        for place in rows.tolist():
            supports.setdefault((self._rows[place] > 0).tobytes(), []).append(place)
        models = _SHARED_ROWS // coefficient_rows(self.present.shape[1])
        together = max(1, min(models, _SHARED_WEIGHTS // len(self._columns)))
        parts = [
            np.array(places[start : start + together])
            for places in supports.values()
            if len(places) > 1
            for start in range(0, len(places), together)
        ]
        lengths = (self._rows > 0) @ self._sizes
        lonely = sorted(
            (places[0] for places in supports.values() if len(places) == 1), key=lambda place: -int(lengths[place])
        )
        while lonely:
            step = max(1, _GATHERED_POINTS // (int(lengths[lonely[0]]) * (self._columns.shape[1] + 1)))
            parts.append(np.array(lonely[:step]))
            lonely = lonely[step:]
        return parts

    def _gather(self, part: Places) -> tuple[Places, Places, Array]:
        """Places (1 or T, N) of the points in use, where each agent's start, and the weights (T, N) of those points."""
        supports = self._rows[part] > 0
        if (supports == supports[0]).all():
            places = np.flatnonzero(supports[0][self._agent])
            starts = np.concatenate([[0], np.cumsum(self._sizes[supports[0]])[:-1]])
            return places[None], starts, self._shares[part][:, self._agent[places]]
        own = [np.flatnonzero(support[self._agent]) for support in supports]
        longest = max(len(one) for one in own)
        places = np.array([np.pad(one, (0, longest - len(one)), mode="edge") for one in own])
        weights = self._shares[part[:, None], self._agent[places]]
        weights[np.arange(longest) >= np.array([len(one) for one in own])[:, None]] = 0.0
        return places, np.zeros(1, dtype=np.int64), weights
