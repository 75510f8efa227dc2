"""Agents and federations: who holds which data.

A federation is a tuple of agents that share their columns. It may be raw (tables with text and missing values, on the way
to `kinfed.data.Preparation`) or numeric (float arrays without missing values, ready for the mathematics).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from kinfed.columns import (
    Place,
    Roles,
    agent_labels,
    feature_columns,
    group_labels,
    row_groups,
    row_times,
    row_weights,
    target_values,
)
from kinfed.errors import InputError
from kinfed.markup import card, paragraph, table
from kinfed.plotting.analysis import FederationPlots
from kinfed.rows import label_hashes, row_hashes
from kinfed.splitting import derived_seed, held_out, held_out_groups, latest_rows
from kinfed.tabular import SourceTable, gathered, pandas_table
from kinfed.validation import FloatArray, first_repeated, positive, unknown


@dataclass(frozen=True, eq=False)
class Agent:
    """One agent's data; ``len(agent)`` is its number of points n.

    Attributes
    ----------
    name : str
    X : float array of shape (n, d), or DataFrame
        A DataFrame only while the data are raw: see `kinfed.data.Preparation`.
    y : array of shape (n,), or None
        Numbers, or class labels; None without a target.
    group : array of str of shape (n,), or None
        Rows of one label, such as those of a patient, stay on one side of every split.
    time : float array of shape (n,), or None
        The latest rows are the ones to test on.
    weight : float array of shape (n,), or None
        How much each row counts in training, above zero.
    """

    name: str
    X: FloatArray | Any
    y: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    time: FloatArray | None = None
    weight: FloatArray | None = None

    @property
    def beside(self) -> dict[str, NDArray[Any]]:
        """What rows have beside features and outcome, by name."""
        found = {"group": self.group, "time": self.time, "weight": self.weight}
        return {name: values for name, values in found.items() if values is not None}

    def rows(self, chosen: NDArray[Any]) -> Agent:
        """The agent with some of its rows, given by a mask or by indices."""
        X = self.X.iloc[chosen].reset_index(drop=True) if isinstance(self.X, pd.DataFrame) else self.X[chosen]
        some = {name: values[chosen] for name, values in self.beside.items()}
        return replace(self, X=X, y=None if self.y is None else self.y[chosen], **some)

    def row_hashes(self, columns: Sequence[str], key: bytes) -> NDArray[np.uint64]:
        """A number for every row, of all that it holds; see `kinfed.rows`."""
        return row_hashes(self.X, self.y, columns, key, tuple(self.beside.values()))

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {len(self)} points)"


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Agents that share their columns; made by `from_arrays`, `from_table` or `kinfed.read_federation`.

    Attributes
    ----------
    agents : tuple of Agent
        In their order of first appearance in the data.
    columns : tuple of str
        Names of the d features.
    groups : tuple or None
        One label per agent where a grouping is known.
    target : str or None
        Name of the target column, where it has one.
    is_table : bool
        Whether it was read from tables, so that somebody has to find out what their columns are.
    notes : tuple of str
        What was done when they were read, in sentences. They may quote cells, and stay with the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from kinfed.federation import Federation
    >>> X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    >>> federation = Federation.from_arrays(X, y, ["b", "a", "b", "a", "b", "b"])
    >>> federation.names, federation.sizes.tolist(), federation["a"].y.tolist()
    (('b', 'a'), [4, 2], [1.0, 3.0])
    """

    agents: tuple[Agent, ...]
    columns: tuple[str, ...]
    groups: tuple[Any, ...] | None = None
    target: str | None = None
    is_table: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.agents:
            raise InputError("a federation needs at least one agent")
        repeated = first_repeated(self.names)
        if repeated is not None:
            raise InputError(f"two agents are named {repeated!r}; every agent needs a name of its own")
        first = self.agents[0]
        for agent in self.agents:
            if np.ndim(agent.X) != 2 or agent.X.shape[1] != len(self.columns):
                raise InputError(f"agent {agent.name}: X has shape {np.shape(agent.X)}, not (n, {len(self.columns)})")
            if isinstance(agent.X, pd.DataFrame) != isinstance(first.X, pd.DataFrame):
                raise InputError(f"agents {first.name} and {agent.name}: one holds a table and the other an array")
            if (agent.y is None) != (first.y is None):
                raise InputError(f"agents {first.name} and {agent.name}: one has a target y and the other has none")
            if agent.y is not None and np.shape(agent.y) != (len(agent),):
                raise InputError(f"agent {agent.name}: y has shape {np.shape(agent.y)}, not ({len(agent)},) as X asks for")
            for what in ("group", "time", "weight"):
                mine = getattr(agent, what)
                if mine is not None and np.shape(mine) != (len(agent),):
                    raise InputError(f"agent {agent.name}: {what} has shape {np.shape(mine)}, not ({len(agent)},)")
        if self.groups is not None and len(self.groups) != len(self.agents):
            raise InputError(f"there are {len(self.groups)} group labels for {len(self.agents)} agents; give one per agent")

    @classmethod
    def from_arrays(
        cls,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike | None,
        agent: ArrayLike,
        *,
        groups: Mapping[Any, Any] | Sequence[Any] | None = None,
        columns: Sequence[str] | None = None,
        group: ArrayLike | None = None,
        time: ArrayLike | None = None,
        weight: ArrayLike | None = None,
    ) -> Federation:
        """Federation of the rows of `X`, by their agent.

        Parameters
        ----------
        X : array-like of shape (n, d), or DataFrame
            NaN means missing. An array becomes float64, save that float32 stays and 8-bit integers become float32; a
            DataFrame stays a table if a column is not numeric.
        y : array-like of shape (n,), or None
            Target: numbers, or class labels as integers, booleans or text.
        agent : array-like of shape (n,)
            Label of the agent each row belongs to.
        groups : mapping from agent to label, or sequence in the agents' order, optional
        columns : sequence of d str, optional
            Names of the columns of an array; x0, x1, ... by default.
        group : array-like of shape (n,), optional
            Labels of rows that stay together in every split, such as the patient each is of.
        time : array-like of shape (n,), optional
            When each row was: numbers, or dates; the latest are tested on.
        weight : array-like of shape (n,), optional
            How much each row counts in training: numbers above zero.
        """
        labels = agent_labels(agent)
        beside = {"group": group, "time": time, "weight": weight}
        return assemble(
            X, y, labels, lambda row: f"agent {labels[row]}, row {row}", groups=groups, columns=columns, beside=beside
        )

    @classmethod
    def from_table(
        cls,
        table: Any,
        target: str | None = None,
        agent: str = "agent",
        *,
        leave_out: Collection[str] = (),
        group_by: str | None = None,
        time: str | None = None,
        sample_weight: str | None = None,
    ) -> Federation:
        """Federation of the rows of a table: column `agent` tells agents apart, `target` is y, the others are X.

        Parameters
        ----------
        table : DataFrame of pandas or Polars, Arrow table, or another that narwhals knows
            Numbers may be written as people do ("39%", "1.234,5", "12 €"); rows without an agent or without an outcome are
            left out. What was done is in `notes`.
        target, agent : str
            Without `target` there is no y.
        leave_out : collection of str
            Columns not to use.
        group_by, time, sample_weight : str, optional
            Columns of what rows have beside their features; see `from_arrays`.
        """
        part = SourceTable(pandas_table(table), None, lambda row: f"row {row}")
        return cls.from_parts([part], Roles(agent, target, group_by, time, sample_weight), leave_out)

    @classmethod
    def from_parts(cls, parts: Sequence[SourceTable], roles: Roles, leave_out: Collection[str] = ()) -> Federation:
        """Federation of the rows of several tables, as files hold them; see `kinfed.tabular`."""
        found = gathered(parts, roles, leave_out)
        how = {"target": roles.target, "beside": found.beside}
        read = assemble(found.features, found.outcome, found.labels, found.place, **how)  # type: ignore[arg-type]
        return replace(read, is_table=True, notes=found.notes)

    def __len__(self) -> int:
        return len(self.agents)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self.agents)

    def __getitem__(self, key: int | str) -> Agent:
        if isinstance(key, str):
            return self.agents[self._index(key)]
        position: Any = key
        if isinstance(position, bool) or not isinstance(position, Integral):
            raise InputError(f"{key!r} is neither an agent's index nor its name; use select(indices) for several agents")
        if not -len(self) <= key < len(self):
            raise InputError(f"there is no agent {key}: this federation has {len(self)} agents, 0 to {len(self) - 1}")
        return self.agents[key]

    def __repr__(self) -> str:
        target = "no target" if self.target is None and not self.has_target else f"target {self.target or 'y'!r}"
        return f"Federation({len(self)} agents, {self.sizes.sum()} points, {self.dim} columns, {target})"

    def _repr_html_(self) -> str:
        sizes = self.sizes
        told = f"Agents hold {sizes.min():,} to {sizes.max():,} points, {np.median(sizes):,g} in the median."
        return card(repr(self), paragraph(told), table(self.describe().set_index("agent"), "Agents and their data"))

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in the order of the agents."""
        return tuple(agent.name for agent in self.agents)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many points n_k every agent holds."""
        return np.array([len(agent) for agent in self.agents], dtype=np.int64)

    @property
    def dim(self) -> int:
        """How many columns d a point has."""
        return len(self.columns)

    @property
    def has_target(self) -> bool:
        """Whether the agents have a target y."""
        return self.agents[0].y is not None

    @cached_property
    def is_numeric(self) -> bool:
        """Whether every X is a float array without missing values, ready for the mathematics."""
        return all(
            isinstance(agent.X, np.ndarray) and agent.X.dtype.kind == "f" and bool(np.isfinite(agent.X).all())
            for agent in self.agents
        )

    @property
    def plot(self) -> FederationPlots:
        """What can be drawn: ``plot.sizes()``, ``plot.targets()``."""
        return FederationPlots(self)

    def select(self, indices: Iterable[int]) -> Federation:
        """The agents of these indices, in this order."""
        chosen = list(indices)
        if not chosen:
            raise InputError("no agents are selected; give at least one index")
        groups = self.groups
        return replace(
            self,
            agents=tuple(self[index] for index in chosen),
            groups=None if groups is None else tuple(groups[index] for index in chosen),
        )

    def without(self, names: str | Iterable[str]) -> Federation:
        """The federation without the agents of these names."""
        left_out = {self._index(name) for name in ([names] if isinstance(names, str) else names)}
        return self.select(index for index in range(len(self)) if index not in left_out)

    def pooled(self) -> tuple[FloatArray | Any, NDArray[Any] | None, NDArray[np.int64]]:
        """All rows together: X, y (or None) and the index of each row's agent."""
        index = np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)
        y = np.concatenate([agent.y for agent in self.agents if agent.y is not None]) if self.has_target else None
        if isinstance(self.agents[0].X, pd.DataFrame):
            return pd.concat([agent.X for agent in self.agents], ignore_index=True), y, index
        return np.concatenate([agent.X for agent in self.agents]), y, index

    def digest(self) -> str:
        """A short text that differs for different data, whatever the order of an agent's rows."""
        total = hashlib.sha256(repr((self.names, self.columns)).encode())
        for agent in self.agents:
            total.update(f"{len(agent)} {agent.y is None} {' '.join(agent.beside)}".encode())
            total.update(np.sort(agent.row_hashes(self.columns, b"digest")).tobytes())
        return total.hexdigest()

    def describe(self) -> pd.DataFrame:
        """One row per agent: its name, size, share of missing values, group, and what its target looks like."""
        table: dict[str, Any] = {"agent": list(self.names), "n": self.sizes}
        table["missing"] = [float(np.mean(pd.isna(agent.X))) if len(agent) else 0.0 for agent in self.agents]
        if self.groups is not None:
            table["group"] = list(self.groups)
        targets = [agent.y for agent in self.agents if agent.y is not None]
        if targets and all(y.dtype.kind == "f" for y in targets):
            table["target mean"] = [float(y.mean()) if len(y) else np.nan for y in targets]
            table["target deviation"] = [float(y.std()) if len(y) else np.nan for y in targets]
        elif targets:
            counts = [np.unique(y, return_counts=True) for y in targets]
            table["classes"] = [len(classes) for classes, _ in counts]
            table["largest class"] = [classes[count.argmax()] if len(classes) else None for classes, count in counts]
        return pd.DataFrame(table)

    def split(self, test_size: float = 0.2, seed: int = 0) -> tuple[Federation, Federation]:
        """Training and test part of every agent.

        Parameters
        ----------
        test_size : float
            Share of each agent's points to test on, between 0 and 1. An agent always keeps a point to train on; one too
            small to give any to test on stays in the test federation without rows, so that indices line up.
        seed : int
            An agent's split depends on the seed, its name and its own rows alone: never on who else takes part, nor on the
            order of its rows. Those whose contents have the smallest hashes (`kinfed.rows`) are for testing.

        Returns
        -------
        train, test : Federation
            If y is not floating point its values are classes: each has its share of the test points, rounded down or up,
            and is rounded so as to keep a point in training where the others' rounding allows.

        Notes
        -----
        Rows of one group are never parted: whole groups are held out, in the order of hashes of their labels, as long as
        that brings sizes and class counts nearer to the share; an agent of one group tests on nothing. Rows that have a
        time are held out from the latest on, and rows of the time where the share ends are for training. With both, groups
        are held out from the one on that has the latest row.
        """
        size = positive(test_size, "test_size")
        if size >= 1:
            raise InputError(f"test_size must be a fraction between 0 and 1, such as 0.2, got {test_size!r}")
        return self.split_by([size] * len(self), seed)

    def split_by(self, shares: Sequence[float], seed: int) -> tuple[Federation, Federation]:
        """As `split`, with a share of its own for every agent."""
        tests = []
        for agent, share in zip(self.agents, shares, strict=True):
            own = derived_seed(seed, "split", agent.name)
            key = own.generate_state(8).astype("<u4").tobytes()
            if agent.time is not None:
                tests.append(latest_rows(agent.time, agent.group, share))
            elif agent.group is not None:
                labels, codes = np.unique(agent.group, return_inverse=True)
                tests.append(held_out_groups(label_hashes(labels.tolist(), key), codes, agent.y, share))
            else:
                tests.append(held_out(agent.row_hashes(self.columns, key), agent.y, share, np.random.default_rng(own)))
        return self.rows([~test for test in tests]), self.rows(tests)

    def rows(self, chosen: Sequence[NDArray[Any]]) -> Federation:
        """All agents with some of their rows, given by a mask or by indices for every agent."""
        return replace(self, agents=tuple(agent.rows(mine) for agent, mine in zip(self.agents, chosen, strict=True)))

    def in_order(self) -> Federation:
        """The same agents, with the rows of each in an order that follows from what they hold.

        Sums, folds and batches depend on the order of rows. A run uses them in this one, so that it gives the same to the
        last bit however they were sorted.
        """
        return self.rows([np.argsort(agent.row_hashes(self.columns, b"order"), kind="stable") for agent in self.agents])

    def _index(self, name: str) -> int:
        try:
            return self._indices[name]
        except KeyError:
            raise unknown("agent", name, self.names) from None

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}


def assemble(
    X: ArrayLike | pd.DataFrame,
    y: ArrayLike | None,
    labels: NDArray[Any],
    place: Place,
    *,
    groups: Mapping[Any, Any] | Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    beside: Mapping[str, ArrayLike | None] | None = None,
) -> Federation:
    """Check rows that came in together, and hand them to their agents; `place` tells messages where a row came from.

    `beside` holds group, time and weight of the rows, those there are.
    """
    names, features = feature_columns(X, columns, place)
    n = len(features)
    if len(labels) != n:
        raise InputError(f"there are {len(labels)} agent labels for {n} rows of X; give one per row")
    values = None if y is None else target_values(y, n, place, target)
    readers = {"group": row_groups, "time": row_times, "weight": row_weights}
    read = {what: readers[what](given, n, place) for what, given in (beside or {}).items() if given is not None}
    codes, agents = pd.factorize(labels)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(agents)))
    features = features.iloc[order] if isinstance(features, pd.DataFrame) else features[order]
    values = None if values is None else values[order]
    read = {what: found[order] for what, found in read.items()}
    parts = []
    for name, start, end in zip(agents, [0, *ends[:-1]], ends, strict=True):
        part = features[start:end]
        if isinstance(part, pd.DataFrame):
            part = part.reset_index(drop=True)
        own = {what: found[start:end] for what, found in read.items()}
        parts.append(Agent(str(name), part, None if values is None else values[start:end], **own))
    return Federation(tuple(parts), names, group_labels(groups, [part.name for part in parts]), target)
