"""Results in a folder: everything to predict and to report with, and nobody's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from kinfed.analysis import Diagnosis, HeldOutRisk, PredictedGain, Scores, ShiftTest, TheoryTerms, long_table
from kinfed.backends.audit import Audit
from kinfed.backends.spec import FederationSpec
from kinfed.backends.wire import arrays_of
from kinfed.checkpoint import Kept
from kinfed.errors import InputError
from kinfed.learners import Learner
from kinfed.learners.base import Plan, learner_settings, read_learner
from kinfed.learners.delivered import DeliveredModels, withheld_of
from kinfed.methods import METHODS
from kinfed.model import PersonalModel, RunStamp, refuse_rows
from kinfed.onboarding import Newcomer
from kinfed.priors.expectation import ExpectedGain
from kinfed.priors.normal import Priors
from kinfed.priors.result import Stacking
from kinfed.records import Codec, read_record, write_record
from kinfed.result import Personalization, Weighting
from kinfed.settings import Settings
from kinfed.weights import Weights
from kinfed.weights.calibration.choice import Choice
from kinfed.weights.calibration.family import BaseRule, Calibration, Candidate
from kinfed.weights.result import Evidence

KIND = "result"

RECORDS = Codec(
    *(Weights, Evidence, Calibration, Choice, Candidate, BaseRule, Plan),
    *(Stacking, Priors, ExpectedGain),
    *(Scores, Diagnosis, ShiftTest, PredictedGain, TheoryTerms, HeldOutRisk),
)
"""What results and checkpoints are made of, as files."""


def save_result(result: Weighting, folder: str | Path, *, allow_rows: bool = False, overwrite: bool = False) -> Path:
    """Write a result; see `Weighting.save`."""
    content: dict[str, Any] = {
        "weighed": result.weighed,
        "settings": {one.name: _plain(getattr(result.settings, one.name)) for one in fields(Settings)},
        "found": result.found,
    }
    told: dict[str, Any] = {
        "type": type(result).__name__,
        "spec": result.known.to_text(),
        "learner": learner_settings(result.learner),
    }
    arrays: dict[str, NDArray[Any]] = {}
    if isinstance(result, Personalization):
        trained = {name: (name, models) for name, models in result.baselines.items()}
        trained["personalized"] = result.settings.method, result.models
        trained |= {f"newcomer {name}": (one.model.method, one.model.models) for name, one in result.joined.items()}
        withheld = {name: [[place, what] for place, what in withheld_of(one).items()] for name, (_, one) in trained.items()}
        for number, (method, given) in enumerate(trained.values()):
            models = given.models if isinstance(given, DeliveredModels) else given
            refuse_rows(result.learner, models, allow_rows)
            packed = METHODS[method].pack(result.learner, models, np.arange(len(models)))
            arrays |= {f"{number}/{name}": array for name, array in packed.items()}
        joined = {name: [one.weights, one.model.weights, dict(one.scores)] for name, one in result.joined.items()}
        content |= {"scored": result.scored, "joined": joined, "asked": result.asked}
        content["exchange"] = None if result.exchange is None else [result.exchange.traffic, result.exchange.attendance]
        told |= {**result.stamp._asdict(), "models": {name: method for name, (method, _) in trained.items()}}
        told["withheld"] = {name: one for name, one in withheld.items() if one}
    kept = RECORDS.pack(content)
    named = {f"record {name}": array for name, array in kept.arrays.items()}
    return write_record(folder, KIND, Kept({**told, **kept.settings}, {**named, **arrays}), overwrite=overwrite)


def write_tables(result: Weighting, folder: Path) -> None:
    """Write weights, explanations, scores, traffic, attendance and newcomers into a folder, as far as there are any."""
    tables: dict[str, pandas.DataFrame] = {}
    if result.weighed is not None:
        tables |= {"weights": result.weighed.to_frame(), "explanation": result.weighed.explanation}
        if result.weighed.calibration is not None:
            tables["calibration"] = result.weighed.calibration.table
    if result.stacking is not None:
        tables |= {"influence": result.stacking.influence_table, "members": result.stacking.table}
    if result.expected is not None:
        tables["expected-gain"] = result.expected.table
    if isinstance(result, Personalization):
        if result.scored:
            tables["scores"] = long_table(result.scored).set_index("agent")
        if result.asked is not None:
            tables["weights-asked"] = result.asked.to_frame()
        if result.exchange is not None:
            named = {"traffic": result.exchange.traffic, "attendance": result.exchange.attendance}
            tables |= {name: one.set_index("agent") for name, one in named.items()}
        if result.joined:
            rows = [one.weights.to_frame() for one in result.joined.values() if one.weights is not None]
            tables |= {"newcomers-weights": pandas.concat(rows).fillna(0.0)} if rows else {}
            scores = {name: dict(one.scores) for name, one in result.joined.items()}
            tables["newcomers-scores"] = pandas.DataFrame.from_dict(scores, orient="index").rename_axis("agent")
    for name, one in tables.items():
        one.to_csv(folder / f"{name}.csv")


def load(folder: str | Path, *, learner: Learner | None = None, trusted: Sequence[str] = ()) -> Weighting:
    """Read a result that `Weighting.save` or ``kinfed personalize`` wrote: a `Weighting`, or a `Personalization`.

    Parameters
    ----------
    folder : path
    learner : Learner, optional
        What was trained, where a file cannot say it: a network made by a function, or a learner of your own.
    trusted : sequence of str
        Types of scikit-learn's trees or of other packages that the files may make objects of.
    """
    kept = read_record(folder, KIND)
    try:
        return _result(kept.settings, kept.arrays, learner, trusted)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the result in {folder} cannot be read ({error!r}); save it anew") from None


def _result(
    told: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], learner: Learner | None, trusted: Sequence[str]
) -> Weighting:
    prefix = "record "
    of_record = {name[len(prefix) :]: one for name, one in arrays.items() if name.startswith(prefix)}
    content = RECORDS.unpack(Kept({"record": told["record"]}, of_record))
    known, settings = FederationSpec.from_text(told["spec"]), Settings(**content["settings"])
    own = arrays_of(arrays, list(told["models"]).index("personalized")) if "models" in told else {}
    trained = read_learner(told["learner"], own, learner, trusted)
    if told["type"] == Weighting.__name__:
        return Weighting(content["weighed"], trained, settings, None, known, content["found"])
    spec, stamp = known.training(), RunStamp(told["run"], told["made"])
    models = {
        name: METHODS[method].restore(arrays_of(arrays, number), trained, spec)
        for number, (name, method) in enumerate(told["models"].items())
    }
    for name, one in told.get("withheld", {}).items():  # a folder of an earlier kinfed has none
        models[name] = DeliveredModels(models[name], known.names, {int(place): str(what) for place, what in one})
    joined = {}
    for name, (weights, heard, scores) in content["joined"].items():
        one = models.pop(f"newcomer {name}")
        model = PersonalModel(
            name, told["models"][f"newcomer {name}"], trained, one, 0, known.preparation, spec, heard, stamp
        )
        joined[name] = Newcomer(name, weights, model, scores)
    return Personalization(
        weighed=content["weighed"],
        learner=trained,
        settings=settings,
        kept=known,
        found=content["found"],
        models=models.pop("personalized"),
        baselines=models,
        scored=content["scored"],
        exchange=None if content["exchange"] is None else Audit.of_tables(*content["exchange"]),
        joined=joined,
        stamp=stamp,
        asked=content.get("asked"),
    )


def _plain(value: Any) -> Any:
    """A value of a setting as it stands in a file: a kernel or a learner as it prints."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(one) for one in value)
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if plain is None or isinstance(plain, bool | int | float | str) else repr(plain)
