"""Fitted scikit-learn estimators as bytes that run nothing when they are read, and whether they hold anybody's rows.

The bytes are a skops file: a description of objects of known types, and their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import skops.io
from numpy.typing import NDArray
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.neighbors import BallTree, KDTree
from sklearn.tree._tree import Tree

from kinfed.errors import InputError


class UntrustedTypesError(InputError):
    """A file would make objects of types that nobody vouched for."""


def written(estimator: Any) -> NDArray[np.uint8]:
    """The bytes of a skops file."""
    return np.frombuffer(skops.io.dumps(estimator), dtype=np.uint8)


def read(data: NDArray[Any], trusted: Sequence[str], *, of_this_run: bool = False) -> Any:
    """The estimator in the bytes of a skops file, if it is made of trusted types alone.

    Parameters
    ----------
    data : array of uint8
    trusted : sequence of str
        Types that are trusted beside those that skops trusts.
    of_this_run : bool
        Whether the file is a piece of a run that goes on. Then all types of scikit-learn are trusted, also those, such as
        trees, whose damaged arrays could crash the process.
    """
    content = data.tobytes()
    unknown = sorted(set(skops.io.get_untrusted_types(data=content)) - set(trusted))
    left = [one for one in unknown if not (of_this_run and one.startswith("sklearn."))]
    if left:
        raise UntrustedTypesError(
            f"the file would make objects of {', '.join(left)}; if you trust it, pass trusted={left!r}"
        )
    return skops.io.loads(content, trusted=[*trusted, *unknown])


LEAST_ROWS = 10
"""Rows that a leaf of a tree or a centre of clusters stands for at least; of fewer it nearly is one of them."""

_REMEMBERING = {
    "_fit_X": "the rows of nearest neighbours",
    "X_train_": "the rows of a Gaussian process",
    "X_fit_": "the rows of a kernel method",
    "support_vectors_": "support vectors, which are rows",
    "X_thresholds_": "the inputs of an isotonic fit",
    "quantiles_": "values of single rows as quantiles",
}


def rows_inside(estimator: Any) -> str | None:
    """What in a fitted estimator, or in the estimators it is made of, are rows it was trained on; None if nothing is."""
    seen: set[int] = set()
    waiting = [estimator]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple | set):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, np.ndarray):
            waiting += one.ravel().tolist() if one.dtype == object else []
        elif (smallest := _smallest_part(one)) is not None and smallest < LEAST_ROWS:
            return f"leaves or centres that stand for {smallest} rows (set min_samples_leaf, or ask for fewer clusters)"
        elif isinstance(one, KDTree | BallTree):
            return _REMEMBERING["_fit_X"]
        elif hasattr(one, "__dict__") and not isinstance(one, type):
            told = next((words for name, words in _REMEMBERING.items() if name in vars(one)), None)
            if told is not None:
                return told
            waiting += vars(one).values()
    return None


def _smallest_part(one: Any) -> int | None:
    """The fewest rows that a leaf of a tree, or a centre of clusters, stands for; None for anything else."""
    if isinstance(one, Tree):
        return int(one.n_node_samples[one.children_left == -1].min())
    if isinstance(one, TreePredictor):
        return int(one.nodes["count"][one.nodes["is_leaf"] == 1].min())
    if hasattr(one, "cluster_centers_") and hasattr(one, "labels_"):
        return int(np.bincount(one.labels_).min())
    return None
