"""From raw tables to numbers: rules fitted on training data, from per-column aggregates alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from kinfed.columns import column_kind
from kinfed.data.column_encoders import (
    MOST_CATEGORIES,
    CategoryRule,
    NumericRule,
    TableSummary,
    column_of,
    fit_rule,
    summarise,
)
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.parallel import map_on_cores
from kinfed.validation import Array, positive_integer, unknown

FAR = 10.0
"""Standard deviations from the training mean beyond which a number is unlike anything a model has learned from."""


@dataclass(frozen=True)
class Preparation:
    """Rules that turn raw federations into numeric ones.

    Numeric columns have missing values replaced by the mean; columns of categories (text, booleans, pandas categoricals)
    become a column of zeros and ones per category, missing ones counting as the most frequent; constant columns are left
    out; then every column is standardised. All of it is fitted on training data, and only counts, means and sums of
    squares leave an agent for it.

    Attributes
    ----------
    source : tuple of str
        The columns it expects.
    rules : tuple of NumericRule or CategoryRule
        One per column that is kept, in the order of `source`.
    left_out : dict from str to str
        The columns that are not kept, and why.
    columns : tuple of str
        The columns it makes.
    mean, scale : tuple of float
        What standardisation takes off and divides by; 0 and 1 without it.
    standardise : bool

    Examples
    --------
    >>> import pandas as pd
    >>> from kinfed.data import Preparation
    >>> from kinfed.federation import Federation
    >>> table = pd.DataFrame({"site": list("aabb"), "age": [50, None, 60, 70], "sex": list("fmff"), "unit": 1})
    >>> train = Federation.from_frame(table, agent="site")
    >>> preparation = Preparation.fit(train, standardise=False)
    >>> preparation.describe()[:2]
    ['column age: 1 missing value replaced by the mean 60', 'column sex: one-hot encoded as f, m']
    >>> preparation.transform(train)["a"].X
    array([[50.,  1.,  0.],
           [60.,  0.,  1.]])
    """

    source: tuple[str, ...]
    rules: tuple[NumericRule | CategoryRule, ...]
    left_out: dict[str, str]
    columns: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    standardise: bool

    @classmethod
    def fit(cls, train: Federation, standardise: bool = True, *, most_categories: int = MOST_CATEGORIES) -> Preparation:
        """Fit the rules on a training federation.

        Parameters
        ----------
        train : Federation
            Raw or numeric.
        standardise : bool
            Give every column mean 0 and variance 1 over the training values of all agents that are not missing.
        most_categories : int
            A column of text with more different values than this (names, identifiers, free text) is left out.
        """
        tables = [agent.X for agent in train if isinstance(agent.X, pd.DataFrame)]
        categorical = frozenset(
            column
            for j, column in enumerate(train.columns)
            if any(column_kind(column_of(table, j)) != "numeric" for table in tables)
        )
        # Nothing leaves this place, so all values may be counted, and a mistyped one can be named.
        answers = map_on_cores(lambda agent: summarise(agent, train.columns, categorical, most_categories=None), train)
        return cls.from_summaries(
            train.columns, dict(zip(train.names, answers, strict=True)), standardise, most_categories=most_categories
        )

    @classmethod
    def from_summaries(
        cls,
        columns: Sequence[str],
        answers: Mapping[str, TableSummary],
        standardise: bool = True,
        *,
        most_categories: int = MOST_CATEGORIES,
    ) -> Preparation:
        """Fit the rules from the agents' answers alone (`kinfed.data.summarise`), given by agent name.

        Agents must not have been held to fewer categories than `most_categories`.
        """
        most = positive_integer(most_categories, "most_categories")
        total = sum(answers.values())
        if not isinstance(total, TableSummary):
            raise InputError("there are no agents to prepare by; give the answer of at least one")
        fitted = {column: fit_rule(j, column, total, answers, most) for j, column in enumerate(columns)}
        rules = tuple(rule for rule in fitted.values() if not isinstance(rule, str))
        left_out = {column: reason for column, reason in fitted.items() if isinstance(reason, str)}
        if not rules:
            reasons = ", ".join(f"{column} ({reason})" for column, reason in left_out.items())
            raise InputError(f"no column is left to learn from: {reasons}; give columns that vary in the training data")
        made = _distinct(name for rule in rules for name in rule.outputs)
        mean = tuple(value for rule in rules for value in rule.means) if standardise else (0.0,) * len(made)
        scale = tuple(value for rule in rules for value in rule.scales) if standardise else (1.0,) * len(made)
        return cls(tuple(columns), rules, left_out, made, mean, scale, bool(standardise))

    def transform(self, federation: Federation) -> Federation:
        """The federation with the rules applied: float64 arrays without missing values; y and groups stay.

        Columns are found by their names. Those that training left out, or never saw, are not looked at.
        """
        position = {column: j for j, column in enumerate(federation.columns)}
        absent = [rule.column for rule in self.rules if rule.column not in position]
        if absent:
            more = f" (and {len(absent) - 1} more: {', '.join(absent[1:6])})" if len(absent) > 1 else ""
            raise InputError(f"{unknown('column', absent[0], federation.columns)}{more}; the model was trained on it")
        encoded = map_on_cores(lambda agent: self._encode(agent, position), federation)
        agents = tuple(replace(agent, X=X) for agent, X in zip(federation, encoded, strict=True))
        return replace(federation, agents=agents, columns=self.columns)

    def rows(self, name: str, X: ArrayLike, y: ArrayLike | None = None) -> Agent:
        """Raw rows of one agent as an agent ready for a model.

        A table has its columns found by name, in any order; an array must hold all columns of the training data, in their
        order there (`source`), since nothing in it tells them apart.
        """
        return self.transform(self.alone(name, X, y))[0]

    def unusual(self, name: str, X: ArrayLike) -> list[str]:
        """What in raw rows is unlike anything in training, counted by column, in sentences.

        Categories never seen count as none of those known, and numbers more than `FAR` standard deviations from the
        training mean lie where no model has learned anything.
        """
        federation = self.alone(name, X, None)
        rows, position = federation[0], {column: j for j, column in enumerate(federation.columns)}
        found = []
        for rule in self.rules:
            values = column_of(rows.X, position[rule.column])
            if isinstance(rule, CategoryRule):
                new = rule.unseen(values)
                if new:
                    shown = ", ".join(map(repr, list(new)[:3]))
                    found.append(f"column {rule.column}: categories never seen in {sum(new.values())} rows ({shown})")
                continue
            far = int((np.abs(values.to_numpy(dtype=np.float64, na_value=np.nan) - rule.mean) > FAR * rule.scale).sum())
            if far:
                told = f"more than {FAR:g} standard deviations from the training mean {rule.mean:.4g} in {far} rows"
                found.append(f"column {rule.column}: {told}")
        return found

    def alone(self, name: str, X: ArrayLike, y: ArrayLike | None) -> Federation:
        """Raw rows as the federation of one agent."""
        if hasattr(X, "columns"):
            return Federation.from_arrays(X, y, [name] * len(X))  # type: ignore[arg-type]
        array = np.asarray(X)
        if array.ndim != 2 or array.shape[1] != len(self.source):
            raise InputError(
                f"agent {name}: rows of the {len(self.source)} columns {', '.join(self.source[:5])}"
                f"{', ...' if len(self.source) > 5 else ''} are expected in this order, got shape {array.shape}"
            )
        return Federation.from_arrays(array, y, [name] * len(array), columns=self.source)

    def describe(self) -> list[str]:
        """One sentence for each thing done, in the order of the columns."""
        by_column = {rule.column: rule.describe() for rule in self.rules}
        by_reason: dict[str, list[str]] = {}
        for column, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(column)
        for reason, columns in by_reason.items():
            if len(columns) <= 5:
                by_column |= {column: f"column {column}: {reason}, left out" for column in columns}
            else:  # an image has hundreds of constant pixels
                by_column[columns[0]] = f"{len(columns)} columns ({', '.join(columns[:3])}, ...): {reason}, left out"
        sentences = [sentence for column in self.source if (sentence := by_column.get(column)) is not None]
        if self.standardise:
            sentences.append("all columns standardised to mean 0 and variance 1 over the training values of all agents")
        return sentences

    def _encode(self, agent: Agent, position: Mapping[str, int]) -> Array:
        encoded = np.empty((len(agent), len(self.columns)))
        starts = np.cumsum([0, *(len(rule.outputs) for rule in self.rules)]).tolist()
        for start, rule in zip(starts, self.rules, strict=False):
            if isinstance(rule, CategoryRule):
                encoded[:, start : start + len(rule.counts)] = rule.encode(column_of(agent.X, position[rule.column]))
        numeric = {start: rule for start, rule in zip(starts, self.rules, strict=False) if isinstance(rule, NumericRule)}
        values = _numeric_values(agent, {rule.column: position[rule.column] for rule in numeric.values()})
        encoded[:, list(numeric)] = np.where(np.isnan(values), [rule.mean for rule in numeric.values()], values)
        encoded -= self.mean
        encoded /= self.scale
        return encoded


def _numeric_values(agent: Agent, position: Mapping[str, int]) -> Array:
    """The columns at these positions, as floats with NaN for missing; text among them is refused."""
    if isinstance(agent.X, np.ndarray):
        return agent.X[:, list(position.values())].astype(np.float64)
    numbers = np.empty((len(agent), len(position)))
    for k, (column, j) in enumerate(position.items()):
        values = column_of(agent.X, j)
        if column_kind(values) not in ("numeric", "boolean"):
            if len(text := values.dropna()):
                raise InputError(
                    f"agent {agent.name}: column {column} holds {str(text.iloc[0])!r}, but it is numeric in the training "
                    "data; correct it or leave it empty"
                )
            values = pd.Series(np.full(len(agent), np.nan))
        numbers[:, k] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names, with (2), (3) ... after those taken already: column "a=b" beside category b of column a."""
    taken: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name} ({number})"
        taken[candidate] = None
    return tuple(taken)
