"""Predictions for a table by the models that a run left in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas

from kinfed.columns import agent_labels
from kinfed.errors import InputError
from kinfed.model import KIND, PersonalModel, load_model
from kinfed.validation import unknown

MODELS = "models"
"""Folder, in that of a run, with a folder for every agent's model."""

_LONGEST = 100


def folder_of(agent: str) -> str:
    """A name for an agent's folder that any file system takes: signs that some do not take are written as %2F."""
    safe = quote(agent, safe=" ").replace(".", "%2E") or "%"
    if len(safe) <= _LONGEST and safe == safe.strip():
        return safe
    return f"{safe.strip()[:_LONGEST]}-{hashlib.sha256(agent.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def models_in(folder: str | Path, trusted: Sequence[str] = ()) -> dict[str, PersonalModel]:
    """The models in a folder by agent: of one, of many, or of a run that has them in its folder ``models``."""
    place = Path(folder)
    for home in (place, place / MODELS):
        homes = [home] if (home / f"{KIND}.json").exists() else sorted(path.parent for path in home.glob(f"*/{KIND}.json"))
        if homes:
            found = [load_model(one, trusted=trusted) for one in homes]
            return {one.agent: one for one in found}
    raise InputError(f"there is no model in {place}; give a folder that kinfed personalize or PersonalModel.save wrote")


def predict_table(
    models: Mapping[str, PersonalModel], rows: pandas.DataFrame, agent: str | None = None, interval: float | None = None
) -> pandas.DataFrame:
    """Predictions for every row of a table, and probabilities where models have them.

    Parameters
    ----------
    models : mapping from agent to PersonalModel
    rows : DataFrame
    agent : str, optional
        The column that tells whose rows they are; without it there must be one model, which predicts for all of them.
    interval : float, optional
        A confidence: columns ``low`` and ``high`` are added, between which an outcome lies with this probability.
    """
    if agent is None:
        if len(models) > 1:
            raise InputError(f"there are {len(models)} models; say which column tells whose rows they are, as agent=...")
        names = pandas.Series(next(iter(models)), index=rows.index)
    elif agent not in rows.columns:
        raise unknown("column", agent, map(str, rows.columns))
    else:
        names = pandas.Series(agent_labels(rows[agent]), index=rows.index)
    strangers = sorted(set(names) - set(models))
    if strangers:
        more = f" and {len(strangers) - 1} others" if len(strangers) > 1 else ""
        raise InputError(f"there is no model of agent {strangers[0]}{more}, but of {', '.join(list(models)[:5])}")
    parts = []
    for name in dict.fromkeys(names):
        mine, model = rows[names == name], models[name]
        table = mine.drop(columns=[agent]) if agent is not None else mine
        told = model.predict(table, interval)
        predicted = {"prediction": told} if interval is None else dict(told)
        found = pandas.DataFrame(
            {"agent": name, **{key: np.asarray(one) for key, one in predicted.items()}}, index=mine.index
        )
        if model.spec.classes is not None and getattr(model.models, "has_probabilities", True):
            shares = model.predict_proba(table).set_axis(mine.index)
            found = found.join(shares.add_prefix("probability of "))
        parts.append(found)
    joined = pandas.concat(parts).loc[rows.index] if parts else pandas.DataFrame(columns=["agent", "prediction"])
    return joined.set_axis(pandas.RangeIndex(1, len(joined) + 1, name="row"))
