r"""What an agent does when asked: pure functions of its data, the question, and the notes it made earlier.

Every engine runs these very functions. What an answer may hold is written here and nowhere else: counts, means and sums of
columns, the mean of random features, a row of weights, moments, parameters and derivatives of models, mean gradients, means
and covariances of losses, test scores; no rows, no features or losses of single points, no cells in errors. Of few rows
an aggregate can be as good as the rows, so a site of fewer than its own limit answers nothing.

Notes are arrays an agent keeps for itself between two questions of one run: the agreement, and losses it will be asked to
sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.agreement import digest_of
from kinfed.engines.discretion import discreet, nameless
from kinfed.engines.messages import Reply, Request, arrays_of
from kinfed.engines.opening import BEFORE_AGREEMENT
from kinfed.engines.site import Desk, Site
from kinfed.engines.site_model import write_site_model
from kinfed.errors import InputError, KinfedError
from kinfed.evaluation import METRICS, score_models
from kinfed.learners.remote import Question, Terms
from kinfed.sketch import sketch
from kinfed.weights import Weights, weigh
from kinfed.weights.calibration.family import Base, geometric_bases, used_views
from kinfed.weights.calibration.scores import KeptLosses, point_losses
from kinfed.weights.calibration.trials import Split
from kinfed.weights.geometry import Geometry, stacked_geometry
from kinfed.weights.rules.gradient_agents import gradient_answer, own_gradient_row, own_gradients, projection_of

Notes = Mapping[str, NDArray[Any]]
Done = tuple[Reply, dict[str, NDArray[Any]]]
"""An answer, and what to add to the notes."""

NO_AGREEMENT = "the agreement is not known here"
"""How an agent says that it lost its notes, as one that was started anew does; it is then told again."""


def answer(site: Site, request: Request, notes: Notes) -> tuple[Reply, Notes]:
    """Answer a question, or raise an error that the server may hear; the notes are returned as they are to be kept.

    Parameters
    ----------
    site : Site
        The agent's data.
    request : Request
    notes : mapping from name to array
        What this function returned as notes last time in this run; empty at first.
    """
    try:
        if len(site.train[0]) < site.least_rows:
            raise InputError(
                f"this site has fewer than {site.least_rows} rows to train on, too few to answer; "
                "set least-rows in its node config to change that"
            )
        return _answer(site, request, notes)
    except KinfedError as error:
        raise discreet(error, (site.name, *site.train.columns), [str(site.out or "")]) from error
    except Exception as error:
        raise nameless(error, f"the task {request.task}") from error


def _answer(site: Site, request: Request, notes: Notes) -> tuple[Reply, Notes]:
    if request.task in BEFORE_AGREEMENT:
        return BEFORE_AGREEMENT[request.task](site, request), notes
    if request.task == "agree":
        return _agree(site, request, notes)
    if request.task == "together":
        return _together(site, request, notes)
    if request.task not in TASKS:
        raise InputError(f"there is no task {request.task}; use the same kinfed at every site")
    if "agreement" not in notes or digest_of(_text(notes)) != request.settings["agreement"]:
        raise InputError(NO_AGREEMENT)
    reply, more = TASKS[request.task](site.desk(_text(notes)), request, notes)
    signed = Reply({"agreement": request.settings["agreement"], **reply.settings}, reply.arrays)
    return signed, {**notes, **more} if more else notes


def _agree(site: Site, request: Request, notes: Notes) -> tuple[Reply, Notes]:
    """Take the agreement, if the data here fit it."""
    text = str(request.settings["text"])
    site.desk(text)
    kept = {"agreement": np.frombuffer(text.encode(), dtype=np.uint8)}
    return Reply({"agreement": digest_of(text)}), kept


def _together(site: Site, request: Request, notes: Notes) -> tuple[Reply, Notes]:
    """Answer several questions that came as one, in their order."""
    told: list[Mapping[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for number, part in enumerate(request.settings["parts"]):
        own = Request(part["task"], part["settings"], arrays_of(request.arrays, number))
        reply, notes = _answer(site, own, notes)
        told.append(reply.settings)
        arrays |= {f"{number}/{name}": array for name, array in reply.arrays.items()}
    return Reply({"parts": told}, arrays), notes


def sketches(desk: Desk, request: Request, notes: Notes) -> Done:
    """The one vector an agent shares, once for every way to compare agents."""
    own, _ = desk.parts(_split(request))
    settings: dict[str, Any] = {"rows": len(own), "norms": {}}
    arrays: dict[str, NDArray[Any]] = {}
    for view in request.settings["views"]:
        embedding = desk.agreement.embeddings[view]
        points = embedding.raw_points(own)
        made = sketch(points, embedding.features)
        arrays[f"mean {view}"], arrays[f"trace {view}"] = made.mean, np.array(made.trace)
        if embedding.norm_bound is None:  # a map without a bound of its own: the largest norm among all agents will do
            settings["norms"][str(view)] = float(np.linalg.norm(embedding.features(points), axis=1).max())
    if desk.agreement.classes is not None and own.y is not None:
        settings["classes"] = np.flatnonzero(np.isin(desk.agreement.classes, own.y)).tolist()
    return Reply(settings, arrays), {}


def weights(desk: Desk, request: Request, notes: Notes) -> Done:
    """Own row of weights by a rule, from everybody's sketches and own points."""
    geometry = _geometry(desk, request, 0)
    found = weigh(geometry, request.settings["rule"], **request.settings["options"])
    return Reply({"stop": found.stop[0]}, _row_arrays(found)), {}


def base_rows(desk: Desk, request: Request, notes: Notes) -> Done:
    """Own rows of weights by many rules, for calibration."""
    bases = [Base(rule, strength, view) for rule, strength, view in request.settings["bases"]]
    geometries = {view: _geometry(desk, request, view) for view in used_views(bases)}
    present = _present(desk, request)
    own = np.array([present.index(desk.place)])
    rows = geometric_bases(bases, geometries, own, _sizes(desk, request)[present])
    return Reply(arrays={"rows": np.array([rows[base][0] for base in bases])}), {}


def train(desk: Desk, request: Request, notes: Notes) -> Done:
    """What a learner asks: moments (ridge), derivatives (logistic), parameters after local epochs (FedAvg)."""
    own, _ = desk.parts(_split(request))
    question = Question(request.settings["question"], request.arrays)
    return Reply(arrays=desk.remote.answer(own, desk.place, _terms(desk, request), question)), {}


def gradients(desk: Desk, request: Request, notes: Notes) -> Done:
    """Mean loss gradient, and the expected error of that mean, at every model that is sent."""
    X, y = _labelled(desk, request)
    models = desk.remote.unpack(request.arrays, _terms(desk, request))
    task = desk.agreement.task
    projection = projection_of(models, X, y, task, request.settings["features"], desk.agreement.seed)
    found = [gradient_answer(models, row, X, y, task, projection) for row in range(len(models))]
    return Reply(arrays={"means": np.array([one[0] for one in found]), "scatter": np.array([one[1] for one in found])}), {}


def gradient_weights(desk: Desk, request: Request, notes: Notes) -> Done:
    """Own row of weights by the gradient rule, from everybody's mean gradients at the own model."""
    X, y = _labelled(desk, request)
    model = {name: array for name, array in request.arrays.items() if name not in ("means", "scatter")}
    models = desk.remote.unpack(model, _terms(desk, request))
    task, settings, present = desk.agreement.task, request.settings, _present(desk, request)
    projection = projection_of(models, X, y, task, settings["features"], desk.agreement.seed)
    found = own_gradient_row(
        request.arrays["means"],
        request.arrays["scatter"],
        own_gradients(models, 0, X, y, task, projection),
        _sizes(desk, request)[present],
        present.index(desk.place),
        c_q=settings["c_q"],
        strength=settings["strength"],
        relative_gap=settings["relative gap"],
    )
    numbers = np.array([found.value[0], found.gap[0]])
    return Reply({"stop": found.stop[0]}, {"row": found.weights[0], "numbers": numbers}), {}


def score(desk: Desk, request: Request, notes: Notes) -> Done:
    """Judge candidate models on own points; their losses are noted for `tally`, and their means told where asked for."""
    split = _split(request)
    if split is None:
        raise InputError("candidates are scored on points that were set aside; name the split")
    _, aside = desk.parts(split)
    models = desk.remote.unpack(request.arrays, _terms(desk, request))
    losses = point_losses(models, range(len(models)), aside.X, aside.y, desk.agreement.task)
    kept = _kept(desk, notes).keep(split.repeat, desk.aside(split), request.settings["columns"], losses)
    told = {"mean": losses.mean(axis=0)} if request.settings["tell"] else {}
    return Reply(arrays=told), {"losses": kept.values}


def tally(desk: Desk, request: Request, notes: Notes) -> Done:
    """Mean and covariance, over own points, of the losses at candidates that were scored."""
    found = _kept(desk, notes).scores(request.settings["columns"])
    upper = np.triu_indices(len(found.mean))
    return Reply({"rows": found.n}, {"mean": found.mean, "covariance": found.covariance[upper]}), {}


def evaluate(desk: Desk, request: Request, notes: Notes) -> Done:
    """Scores of models sent here on own test data; the last model is the agent's own, and is kept if a folder is set."""
    models = desk.remote.unpack(request.arrays, desk.agreement.terms)
    task = desk.agreement.task
    values = np.full((len(models), len(METRICS[task])), np.nan)
    if desk.test is not None:
        repeated = desk.test.select([0])
        for row in range(len(models)):
            scored = score_models(_One(models, row), repeated, task)
            values[row] = [scored[metric][0] for metric in METRICS[task]]
    if desk.site.out is not None:
        own = {name: array[-1:] for name, array in request.arrays.items()}
        write_site_model(desk.site.out, desk.site.name, _text(notes), own, request.settings["weights"])
    return Reply({"rows": 0 if desk.test is None else len(desk.test[0])}, {"values": values}), {}


class _One:
    """One of several models, as the models of one agent."""

    def __init__(self, models: Any, row: int) -> None:
        self._models, self._row = models, row

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._models, name)
        return (lambda row, *given: found(self._row, *given)) if callable(found) else found


TASKS: Mapping[str, Callable[[Desk, Request, Notes], Done]] = MappingProxyType(
    {
        "sketch": sketches,
        "weights": weights,
        "base-rows": base_rows,
        "train": train,
        "gradients": gradients,
        "gradient-weights": gradient_weights,
        "score": score,
        "tally": tally,
        "evaluate": evaluate,
    }
)
"""Tasks under an agreement."""


def _geometry(desk: Desk, request: Request, view: int) -> Geometry:
    """How the agents lie to each other, as this one sees it."""
    embedding, present = desk.agreement.embeddings[view], _present(desk, request)
    own, _ = desk.parts(_split(request))
    return stacked_geometry(
        embedding.features,
        request.arrays[f"mean {view}"],
        _sizes(desk, request)[present],
        request.arrays[f"trace {view}"],
        tuple(desk.agreement.names[k] for k in present),
        {present.index(desk.place): embedding.raw_points(own)},
        norm_bound=request.settings["norm bounds"][str(view)],
    )


def _row_arrays(found: Weights) -> dict[str, NDArray[Any]]:
    return {
        "row": found.matrix[0],
        "numbers": np.array([found.risk[0], found.objective[0], found.gap[0], found.evidence.freedom[0]]),
        "squared distances": found.evidence.squared_distances[0],
    }


def _labelled(desk: Desk, request: Request) -> tuple[NDArray[Any], NDArray[Any]]:
    own, _ = desk.parts(_split(request))
    if own.y is None:
        raise InputError(f"agent {own.name} has no target, so its points have no loss gradients")
    return own.X, own.y


def _kept(desk: Desk, notes: Notes) -> KeptLosses:
    return KeptLosses(notes["losses"]) if "losses" in notes else KeptLosses.nothing(len(desk.agent))


def _text(notes: Notes) -> str:
    return notes["agreement"].tobytes().decode()


def _split(request: Request) -> Split | None:
    given = request.settings.get("split")
    return None if given is None else Split(*given)


def _terms(desk: Desk, request: Request) -> Terms:
    return desk.terms(_split(request), request.settings.get("classes"))


def _sizes(desk: Desk, request: Request) -> NDArray[np.int64]:
    return desk.terms(_split(request)).sizes


def _present(desk: Desk, request: Request) -> list[int]:
    """The agents whose sketches or gradients are in the request."""
    absent = set(request.settings["absent"])
    return [k for k in range(len(desk.agreement.names)) if k not in absent]
