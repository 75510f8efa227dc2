"""The page "What leaves a site" against what really crosses: sizes, settings, phases, and the warnings it gives."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

import kinfed
from kinfed.backends.agents import QUESTIONS
from kinfed.backends.handshake import HANDSHAKE
from kinfed.backends.site import InProcess, sites_of
from kinfed.backends.transport import NO_SPEC
from kinfed.backends.wire import ENVELOPE, Failure, Message, Request, encode_settings
from kinfed.federation import Federation
from kinfed.result import Personalization
from site_runs import KilledError, answers_in, parts_of, spec_of
from site_runs import Recording as Crossing
from site_runs import run as run_sites

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[1] / "docs" / "what-leaves-a-site.md"
ARRAYS = ("phase", "question", "case", "way", "what it is", "how often", "bytes")
SETTINGS = ("question", "way", "holds", "bytes at most")
LEAVES, COMES = "leaves", "comes"
HIDDEN = 5

Key = tuple[str, str, str]
"""Task, case and way."""


# ---------------------------------------------------------------- reading the page

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def evaluated(formula: str, symbols: Mapping[str, int]) -> float:
    """A formula of whole numbers, symbols, + - * / // and brackets; nothing else is understood."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return symbols[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return float(OPERATORS[type(op)](value(left), value(right)))
            case _:
                raise ValueError(f"{formula!r} is not a formula")

    return value(ast.parse(formula, mode="eval").body)


def table(header: Sequence[str]) -> list[dict[str, str]]:
    """The rows of the page's table with that header."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    start = cells.index(list(header)) + 2
    rows = []
    for line, row in zip(lines[start:], cells[start:], strict=True):
        if not line.startswith("|"):
            break
        rows.append(dict(zip(header, row, strict=True)))
    return rows


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def sizes_on_the_page() -> dict[Key, str]:
    found = {}
    for row in table(ARRAYS):
        (task,), (formula,) = quoted(row["question"]), quoted(row["bytes"])
        assert row["way"] in (LEAVES, COMES)
        key = task, row["case"], row["way"]
        assert key not in found, f"two rows about {key}"
        found[key] = formula
    return found


# ---------------------------------------------------------------- runs


class Recording(Crossing):
    """Every question with its answer; those that travel together, one by one."""

    @property
    def talks(self) -> list[tuple[int, Request, Message]]:
        found = []
        for address, request, answer in self.crossed:
            if isinstance(answer, Failure) and answer.reason == NO_SPEC:
                continue  # it is told again
            assert isinstance(answer, Message), answer
            found += [(int(address), *talk) for talk in separated(request, answer)]
        return found


def separated(request: Request, reply: Message) -> list[tuple[Request, Message]]:
    """The questions and answers in an envelope, which must hold nothing else; any other message as it is."""
    talks = list(zip(parts_of(request), answers_in(request, reply), strict=True))
    if request.question == ENVELOPE:
        assert request.settings.keys() == reply.settings.keys() == {"parts"}
        assert all(part.keys() == {"question", "settings"} for part in request.settings["parts"])
        assert all(part.question in QUESTIONS for part, _ in talks)
        for whole, parts in ((request, [part for part, _ in talks]), (reply, [told for _, told in talks])):
            assert sum(map(len, (part.arrays for part in parts))) == len(whole.arrays)
    return talks


@dataclass(frozen=True)
class Kind:
    """A kind of federation: rows of its agents, numeric columns, and whether a text and a constant column stand by."""

    sizes: tuple[int, ...]
    numeric: int
    mixed: bool
    features: int

    def rows(self, sizes: Sequence[int], labels: int, seed: int) -> Federation:
        rng = np.random.default_rng(seed)
        tables = []
        for place, n in enumerate(sizes):
            one = pd.DataFrame(rng.normal(size=(n, self.numeric)), columns=[f"x{j}" for j in range(self.numeric)])
            outcome = one["x0"] * (1 if place % 2 else -1) + 0.3 * rng.normal(size=n)
            if self.mixed:
                one["ward"], one["unit"] = rng.permutation(np.resize(["east", "north", "south"], n)), 1.0
            one["y"] = (
                outcome if not labels else np.array(["high", "low", "odd", "so-so"])[rng.permutation(np.arange(n) % labels)]
            )
            one["site"] = f"site {place}"
            tables.append(one)
        return Federation.from_table(pd.concat(tables), target="y", agent="site")

    def symbols(self, labels: int) -> dict[str, int]:
        """What is known of it without running anything."""
        columns, numbers = (self.numeric + 2, self.numeric + 3) if self.mixed else (self.numeric, self.numeric)
        scores = 6 if labels else 3
        return {
            "B": len(self.sizes),
            "c": columns,
            "d": numbers,
            "C": labels,
            "D": self.features,
            "S": scores,
            "N": self.numeric,
        }


FIRST = Kind((9, 14, 11), 2, mixed=True, features=20)
SECOND = Kind((12, 8, 10, 15), 3, mixed=False, features=26)
WIDE = Kind((9, 8, 7), 257, mixed=False, features=20)


@dataclass(frozen=True, eq=False)
class Run:
    """One run, and the symbols of the page as this test counts them."""

    name: str
    learner: Any
    rule: str
    talks: list[tuple[int, Request, Message]]
    found: Personalization
    symbols: dict[str, int]

    @property
    def halves(self) -> bool:
        return self.rule == "calibrated" and self.name.startswith("network")

    def crossings(self) -> Iterator[tuple[Key, dict[str, int], Request | Message]]:
        """Every message, with its place on the page and the values of the symbols."""
        for _, request, reply in self.talks:
            symbols = {**self.symbols, **self._counts(request)}
            yield (request.question, self._case(request, COMES), COMES), symbols, request
            yield (request.question, self._case(request, LEAVES), LEAVES), symbols, reply

    def _counts(self, request: Request) -> dict[str, int]:
        match request.question:
            case "sketches":
                return {"V": 1 if self.rule != "calibrated" else 3 if self.symbols["C"] else 2}
            case "base-rows":
                bases = request.settings["asked"]["bases"]
                return {"G": len(bases), "V": len({view for _, _, view in bases})}
            case "derivatives" | "local-training":
                return {"T": len(request.arrays["theta"])}
            case "mean-gradients":
                return {"T": 1 if self.halves else self.symbols["B"]}
            case "losses":
                return {"M": len(request.settings["asked"]["columns"])}
            case "home-scores":
                members = [array for name, array in request.arrays.items() if name.endswith(" members")]
                views = len(request.settings["asked"]["norm bounds"])
                asked = len(request.settings["asked"]["candidates"])
                return {"M": asked, "V": views, "L": len(members), "E": sum(map(len, members))}
            case "out-of-fold" | "own-shares" | "own-posterior" | "own-gain":
                members, components, _ = request.arrays["centres"].shape
                return {"F": members, "H": components, "r": request.arrays["factors"].shape[2]}
            case "evaluation":
                parts = sum(array.shape[1] for name, array in request.arrays.items() if name.endswith("shares"))
                return {"P": sum(name.endswith("covariance") for name in request.arrays), "U": parts}
            case "own-penalties":
                return {"T": len(request.arrays["row"])}
            case "recall" | "tally":
                calibration = self.found.weights.calibration
                assert calibration is not None
                return {"M": len(calibration.candidates)}
        return {}

    def _case(self, request: Request, way: str) -> str:
        match request.question:
            case "evaluation" | "own-gain" if way == COMES:
                return "classes" if self.symbols["C"] else "numbers"
            case "columns" | "scale" | "own-posterior" if way == LEAVES:
                return "classes" if self.symbols["C"] else "numbers"
            case "local-training":
                pulled = way != LEAVES and "anchors" in request.arrays
                return self.name.split(", ")[1] + (", pulled back" if pulled else "")
            case "class-moments" if way == LEAVES and self.name.endswith("wide"):
                return "wide"
            case "derivatives" if way == LEAVES:
                return self.name.split(", ")[1]
            case "derivatives":
                return "two classes" if self.symbols["C"] == 2 else "more classes"
        return "any"


def run(
    name: str,
    kind: Kind,
    learner: Any,
    rule: str = "q-aggregation",
    *,
    labels: int = 0,
    rows: int = 0,
    baselines: bool = True,
    folder: Path | None = None,
    **options: Any,
) -> Run:
    """A run of sites; `rows` gives all of them about that many. With a folder, one that goes on after it was killed."""
    sizes = tuple(rows + size % 5 for size in kind.sizes) if rows else kind.sizes
    train, test = kind.rows(sizes, labels, seed=0), kind.rows([3 + labels] * len(sizes), labels, seed=1)
    how = {"options": options, "n_features": kind.features, "baselines": baselines}
    sites = sites_of(train, test, learner, None if folder is None else folder / "sites")
    if folder is not None:
        with pytest.raises(KilledError):
            run_sites(Dying(sites), learner, rule, folder=folder / "checkpoint", **how)
    channel = Recording(sites)
    found = run_sites(channel, learner, rule, folder=None if folder is None else folder / "checkpoint", **how)
    symbols = {**kind.symbols(labels), "A": 3 if baselines else 1}
    d, logits = symbols["d"], 1 if labels == 2 else labels
    p, q, b, extra = (d + 1, d + 1, 8, 0) if name == "ridge" else (logits * (d + 1), logits * (d + 1), 8, labels)
    if name.startswith("network"):  # d -> HIDDEN -> 1, with biases, filled up to a multiple of 16
        p, q, b, extra = -(-(d * HIDDEN + HIDDEN + HIDDEN + 1) // 16) * 16, HIDDEN + 1, np.dtype(learner.dtype).itemsize, 0
    return Run(name, learner, rule, channel.talks, found, {**symbols, "p": p, "q": q, "b": b, "m": b * p + extra})


class Dying(Recording):
    """Its server is killed before the tally."""

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Any]:
        if any(request.question == "tally" for request in requests.values()):
            raise KilledError
        return super().ask(requests, seconds)


class Late(Recording):
    """One site cannot be reached until the others have their models."""

    def __init__(self, sites: Sequence[Any], last: int) -> None:
        super().__init__(sites)
        self.last = str(last)

    def reachable(self) -> tuple[str, ...]:
        there = super().reachable()
        done = any(request.question == "evaluation" for _, request, _ in self.crossed)
        return there if done else tuple(one for one in there if one != self.last)


def network(**options: Any) -> Any:
    from kinfed.learners.neural import TorchLearner

    return TorchLearner(hidden=(HIDDEN,), task="regression", **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    ridge, newton = kinfed.make_learner("ridge"), kinfed.make_learner("logistic")
    steps = kinfed.make_learner("logistic", solver="l-bfgs")
    averaging = network(method="fedavg", rounds=3, batch_size=4)
    found = [run("ridge", kind, ridge, rule) for kind in (FIRST, SECOND) for rule in ("q-aggregation", "gradient")]
    found += [run("ridge", kind, ridge, "auto") for kind in (FIRST, SECOND)]
    found += [run("logistic, Newton", kind, newton, "auto", labels=labels) for kind, labels in ((FIRST, 3), (SECOND, 2))]
    found += [run("ridge", kind, ridge, "calibrated", rows=30, folds=2) for kind in (FIRST, SECOND)]
    found += [run("logistic, Newton", FIRST, newton, "calibrated", labels=labels, rows=30, folds=2) for labels in (2, 3)]
    found += [run("logistic, Newton", FIRST, newton, labels=3), run("logistic, Newton", SECOND, newton, labels=2)]
    found += [run("logistic, L-BFGS", FIRST, steps, labels=2), run("logistic, L-BFGS", SECOND, steps, labels=4)]
    found += [run("logistic, L-BFGS, wide", WIDE, steps, labels=2)]
    found += [run("network, FedAvg", kind, averaging) for kind in (FIRST, SECOND)]
    found += [run("network, weighted risk", FIRST, network(epochs=2), baselines=False)]
    found += [run("network, weighted risk", SECOND, network(epochs=2, dtype="float64"))]
    found += [run("network, FedAvg", SECOND, network(method="fedavg", rounds=2, dtype="float64"))]
    found += [run("network, FedAvg", SECOND, averaging, "calibrated")]
    return [*found, run("network, FedAvg", SECOND, averaging, "calibrated", folder=tmp_path_factory.mktemp("killed"))]


# ---------------------------------------------------------------- sizes


def test_every_array_that_crosses_has_the_size_on_the_page(runs: list[Run]) -> None:
    page, seen = sizes_on_the_page(), set()
    for one in runs:
        for key, symbols, message in one.crossings():
            assert key in page, f"{key} crosses, and the page does not tell"
            crossed = sum(array.nbytes for array in message.arrays.values())
            assert crossed == evaluated(page[key], symbols), (one.name, one.rule, key, page[key], symbols)
            seen.add(key)
    assert page.keys() == seen, "the page tells of what never crosses"


def test_the_page_knows_every_task() -> None:
    assert {task for task, _, _ in sizes_on_the_page()} == {*HANDSHAKE, "agree", *QUESTIONS}
    assert f"`{ENVELOPE}`" in PAGE.read_text(encoding="utf-8")


def test_no_size_on_the_page_depends_on_the_number_of_rows() -> None:
    letters = set("BcdCDVpbmqTMGASLENFHrPU")
    for formula in sizes_on_the_page().values():
        names = {node.id for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Name)}
        assert names <= letters, formula
        with pytest.raises(KeyError):
            evaluated(f"{formula}+n", dict.fromkeys(letters, 1))


@pytest.mark.parametrize("formula", ["__import__('os')", "2**9", "B.real", "[1]", "-B", "1.5", "B if B else 1"])
def test_a_formula_is_arithmetic_and_nothing_else(formula: str) -> None:
    with pytest.raises(ValueError, match="not a formula"):
        evaluated(formula, {"B": 1})


def test_an_agent_trains_one_model_for_each_different_row_that_listens_to_it(runs: list[Run]) -> None:
    """Method by method: alone, in common, and by the weights."""
    for one in runs:
        if one.name != "network, FedAvg" or one.halves:
            continue
        sizes, weights = spec_of(one.found).sizes, one.found.weights.matrix
        methods = [np.eye(len(sizes)), np.array([sizes / sizes.sum()]), np.unique(weights, axis=0)]
        for place in range(len(sizes)):
            expected = Counter(int((rows[:, place] > 0).sum()) for rows in methods if (rows[:, place] > 0).any())
            asked = [request for k, request, _ in one.talks if k == place and request.question == "local-training"]
            for epoch in range(one.learner.rounds):
                of_round = [request for request in asked if request.settings["asked"]["epoch"] == epoch]
                assert Counter(len(request.arrays["theta"]) for request in of_round) == expected


def test_messages_are_as_many_as_the_page_says(runs: list[Run]) -> None:
    for one in runs:
        told = Counter(request.question for place, request, _ in one.talks if place == 0)
        if told["recall"]:  # it was killed before the tally
            assert (told["losses"], told["tally"]) == (0, 1)
            continue
        assert all(told[task] == 1 for task in ("describe", "columns", "scale", "agree", "evaluation"))
        assert told["own-weights"] == (one.rule != "auto")
        if one.rule == "auto":  # learning alone, one common model, and all priors; a common model is sent to nobody to find
            assert (told["own-posterior"], told["sketches"]) == (2, 0)
            assert told["out-of-fold"] == 3 if one.name == "ridge" else 3 <= told["out-of-fold"] <= 3 * 5
            assert told["expansions-under-prior"] == (0 if one.name == "ridge" else 3)
            assert told["moments" if one.name == "ridge" else "expansions"] == 1
        elif one.name == "ridge" and one.rule == "gradient":
            assert (told["sketches"], told["mean-gradients"], told["gradient-rows"], told["moments"]) == (1, 4, 4, 1)
        elif one.rule == "calibrated" and not one.halves:  # whatever the folds are
            once = "moments" if one.name == "ridge" else "expansions"
            assert (told["sketches"], told[once], told["home-scores"], told["losses"]) == (1, 1, 1, 0)
            assert told["base-rows"] <= 1
            assert told["mean-gradients"] == told["gradient-rows"] <= 5
        elif one.halves:
            assert (told["sketches"], told["tally"]) == (1 + 1, 1)
            assert 1 <= told["mean-gradients"] == told["gradient-rows"] <= 2
        elif one.name == "ridge":
            assert (told["sketches"], told["moments"]) == (1, 1)
        elif one.name.startswith("logistic"):
            assert told["class-counts"] + told["class-moments"] == 1
        elif one.name == "network, FedAvg":
            rounds = Counter(
                (request.settings["asked"]["epoch"])
                for place, request, _ in one.talks
                if place == 0 and request.question == "local-training"
            )
            assert list(rounds) == list(range(one.learner.rounds))


# ---------------------------------------------------------------- settings


def names_in(settings: Mapping[str, Any]) -> set[str]:
    inner = {f"{part}.{name}" for part in ("asked", "answer") for name in settings.get(part, {})}
    return set(settings) | inner


def test_settings_hold_what_the_page_says(runs: list[Run]) -> None:
    always: dict[tuple[str, str], set[str]] = {}
    sometimes: dict[tuple[str, str], set[str]] = {}
    bounds: dict[tuple[str, str], str] = {}
    for row in table(SETTINGS):
        usual, _, rare = row["holds"].partition("sometimes")
        for task in quoted(row["question"]):
            key = task, row["way"]
            assert key not in always
            always[key], sometimes[key] = set(quoted(usual)), set(quoted(rare))
            if formulas := quoted(row["bytes at most"]):
                (bounds[key],) = formulas
    seen: dict[tuple[str, str], set[str]] = {key: set() for key in always}
    for one in runs:
        for (task, _, way), symbols, message in one.crossings():
            names = names_in(message.settings)
            assert names <= always[task, way] | sometimes[task, way], (task, way)
            seen[task, way] |= names
            if (task, way) in bounds:
                most = evaluated(bounds[task, way], symbols)
                assert len(encode_settings(message.settings)) <= most, (task, way, message.settings)
    for key, names in always.items():
        assert names <= seen[key], key


# ---------------------------------------------------------------- the audit log


def test_the_page_names_every_phase(runs: list[Run]) -> None:
    phases = {phase.strip() for row in table(ARRAYS) for phase in row["phase"].split(",")}
    for one in runs:
        # Questions of different phases may share an envelope.
        met = {re.sub(r"[ \d]+$", "", part) for phase in one.found.exchange.traffic["phase"] for part in phase.split(", ")}
        assert met <= phases


def test_the_lines_of_the_audit_log_look_as_on_the_page(tmp_path: Path) -> None:
    shown = [json.loads(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith('{"time"')]
    learner = kinfed.make_learner("ridge")
    run_sites(InProcess(sites_of(FIRST.rows(FIRST.sizes, 0, 0), None, learner)), learner, audit=tmp_path / "audit.jsonl")
    written = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    real = {(line.get("phase", ""), line.get("direction", "")): line for line in written}
    assert len(shown) >= 3
    for line in shown:
        if "missed" in line or "run" in line:  # a line of a site: tests/test_flower_words.py
            continue
        twin = real[line.get("phase", ""), line.get("direction", "")]
        assert line.keys() == twin.keys()
        assert line.get("arrays") == twin.get("arrays")
    # The page shows a sketch of the usual 500 features.
    (sketched,) = [line for line in shown if line.get("phase") == "sketches" and "bytes" in line]
    assert abs(sketched["bytes"] - real["sketches", "to the server"]["bytes"]) <= 3


# ---------------------------------------------------------------- the warnings: what sizes alone do not tell


def answers_of(
    train: Federation, place: int, learner: Any, least_rows: int = 2
) -> tuple[InProcess, Personalization, dict[str, Any]]:
    """A site under an agreement, to be asked further; and what its questions must carry."""
    sites = [replace(one, least_rows=least_rows) for one in sites_of(train, None, learner)]
    found = run_sites(InProcess(sites), learner)
    channel, text = InProcess(sites), spec_of(found).to_text()
    signed = asked(channel, place, Request("agree", {"text": text})).settings["agreement"]
    return channel, found, {"agreement": signed, "asked": {}}


def asked(channel: InProcess, place: int, request: Request) -> Message:
    answer = channel.ask({str(place): request}, 1.0)[str(place)]
    assert isinstance(answer, Message), answer
    return answer


def points_of(outcome: Personalization, train: Federation, place: int) -> NDArray[np.float64]:
    """The site's rows (x, y) as the server may compute them: columns as numbers, the target as it is."""
    agent = spec_of(outcome).preparation.transform(train)[place]
    return np.column_stack([agent.X, np.asarray(agent.y, dtype=float)])


def furthest(secret: NDArray[np.float64], guess: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each secret row is from the nearest guessed one."""
    return np.asarray(np.abs(secret[:, None] - guess[None]).max(axis=2).min(axis=1))


def test_two_rows_follow_from_their_moments() -> None:
    train = FIRST.rows((8, 2, 9), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"))
    moments = asked(channel, 1, Request("moments", common)).arrays
    values, vectors = np.linalg.eigh(moments["comoment"])
    apart = np.sqrt(values[-1]) * vectors[:, -1]
    assert furthest(points_of(outcome, train, 1), moments["mean"] + np.array([apart, -apart])).max() < 1e-12


def sums_of(talks: Sequence[tuple[int, Request, Message]], place: int) -> dict[tuple[Any, ...], list[NDArray[np.float64]]]:
    """What a site sent, as equations: by the function that was summed over rows, the sums, each with its number of rows.

    Two answers about the same function are sums over the same rows, or their difference is a sum over the others.
    """
    found: dict[tuple[Any, ...], list[NDArray[np.float64]]] = {}
    for k, request, reply in talks:
        if k != place or request.question not in QUESTIONS:
            continue
        asked = tuple((name, array.tobytes()) for name, array in sorted(request.arrays.items()))
        told = {name: array.astype(np.float64).ravel() for name, array in sorted(reply.arrays.items())}
        settings = json.dumps(request.settings.get("asked"), sort_keys=True)
        for name, values in told.items():
            found.setdefault((request.question, settings, asked, name), []).append(values)
    return found


def parts_that_follow(sums: Mapping[tuple[Any, ...], Sequence[NDArray[np.float64]]]) -> int:
    """How many functions have been summed over different rows: each pair of sums gives one over fewer."""
    return sum(
        not all(np.allclose(one, values[0], rtol=1e-9, atol=1e-12, equal_nan=True) for one in values)
        for values in sums.values()
    )


def combinations(sums: Sequence[NDArray[np.float64]], single: NDArray[np.float64]) -> int:
    """How many of single rows' terms (n, p) are linear combinations of sums (p,)."""
    basis = np.array(sums).T
    solved = basis @ np.linalg.lstsq(basis, single.T, rcond=None)[0]
    return int((np.abs(solved - single.T).max(axis=0) < 1e-6).sum())


def rows_that_follow(
    found: Personalization, train: Federation, talks: Sequence[tuple[int, Request, Message]], place: int
) -> int:
    """How many rows have their features, or their zz', among the combinations of the sums that were sent."""
    spec = spec_of(found)
    agent = spec.preparation.transform(train)[place]
    told = [(request.question, reply.arrays) for k, request, reply in talks if k == place]
    follow = 0
    for view, embedding in enumerate(spec.embeddings):
        sketches = [arrays[f"mean {view}"] for question, arrays in told if question == "sketches"]
        if sketches:  # stacked priors need none
            follow += combinations(sketches, np.asarray(embedding(agent), dtype=np.float64))
    sums = []
    for one in (arrays for question, arrays in told if question == "moments"):
        extended = np.append(one["mean"], 1.0)
        moments = np.outer(extended, extended)
        moments[:-1, :-1] += one["comoment"]
        sums.append(one["n"] * moments.ravel())
    if sums:
        extended = np.column_stack([points_of(found, train, place), np.ones(len(agent))])
        follow += combinations(sums, (extended[:, :, None] * extended[:, None, :]).reshape(len(agent), -1))
    return follow


LEAST_ROWS = 10


@pytest.mark.parametrize("name", ["ridge", "logistic"])
@pytest.mark.parametrize("rule", [*sorted(kinfed.RULES), "auto"])
def test_no_row_follows_by_algebra_from_what_a_site_sent(name: str, rule: str) -> None:
    """Everything of a whole run, a newcomer included: no part of a site's rows, and no row, can be solved for."""
    labels, learner = (2 if name == "logistic" else 0), kinfed.make_learner(name)
    sizes = (LEAST_ROWS, LEAST_ROWS + 1, LEAST_ROWS + 2, 13, LEAST_ROWS)
    train, test = FIRST.rows(sizes, labels, seed=3), FIRST.rows([4] * 5, labels, seed=4)
    channel = Late(sites_of(train, test, learner), last=4)
    groups = {"options": {"groups": {name: name[-1] in "02" for name in train.names}}} if rule == "oracle" else {}
    found = run_sites(channel, learner, rule, n_features=FIRST.features, **groups)
    first = {request.question for k, request, _ in channel.talks if k == 4}
    assert first & {"sketches", "own-weights", "own-posterior"}, "nobody came late"
    assert not any("fold" in request.settings for _, request, _ in channel.talks)
    for place in range(4):
        sums = sums_of(channel.talks, place)
        assert sums
        assert parts_that_follow(sums) == 0
        assert rows_that_follow(found, train, channel.talks, place) == 0


@pytest.mark.parametrize("rule", ["q-aggregation", "calibrated"])
@pytest.mark.parametrize("n, judges", [(4 * LEAST_ROWS, False), (5 * LEAST_ROWS, True)])
def test_of_networks_no_part_of_fewer_than_the_least_rows_follows(rule: str, n: int, judges: bool) -> None:
    """What is made of some of the rows may leave, but the others are as many as the site has asked for."""
    learner = network(method="fedavg", rounds=2)
    train = FIRST.rows([n, n + 1, n + 2], 0, seed=3)
    sites = [replace(one, least_rows=LEAST_ROWS) for one in sites_of(train, None, learner)]
    channel = Recording(sites)
    run_sites(channel, learner, rule, n_features=FIRST.features)
    split = [(k, told.settings["answer"]["rows"]) for k, asked, told in channel.talks if asked.question == "sketches"]
    aside = {int(train.sizes[k] - rows) for k, rows in split} - {0}
    assert bool(aside) == (judges and rule == "calibrated")
    assert all(count >= LEAST_ROWS for count in aside)
    assert len({tuple(asked.settings["fold"]) for _, asked, _ in channel.talks if "fold" in asked.settings}) <= 1


@pytest.mark.parametrize("n, alone", [(5, 5), (7, 3), (9, 1), (10, 0)])
def test_the_algebra_finds_rows_where_a_part_of_them_is_told_apart(n: int, alone: int) -> None:
    """The test above can fail: with moments of all rows and of all but a fold, folds of one row are rows."""
    train = FIRST.rows((12, n, 9), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"), least_rows=1)
    requests = [Request("moments", common), *(Request("moments", {**common, "fold": [0, fold, 5]}) for fold in range(5))]
    talks = [(1, request, asked(channel, 1, request)) for request in requests]
    assert parts_that_follow(sums_of(talks, 1)) == 3
    sketched = [
        (1, request, asked(channel, 1, request)) for request in (Request("sketches", one.settings) for one in requests)
    ]
    assert rows_that_follow(outcome, train, [*talks, *sketched], 1) == 2 * alone


def test_rows_of_a_small_site_follow_from_its_sketch() -> None:
    train = SECOND.rows((12, 6, 9, 10), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"))
    sketch = asked(channel, 1, Request("sketches", common)).arrays["mean 0"]
    embedding = spec_of(outcome).embeddings[0]
    width, rng = embedding.features.dim, np.random.default_rng(0)

    def miss(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(embedding.features(numbers.reshape(-1, width)).mean(axis=0) - sketch)

    tries = (least_squares(miss, rng.normal(size=6 * width), max_nfev=100) for _ in range(10))
    found = next(one for one in tries if one.cost < 1e-16)
    secret = np.asarray(embedding.raw_points(spec_of(outcome).preparation.transform(train)[1]), dtype=np.float64)
    assert furthest(secret, found.x.reshape(-1, width)).max() < 1e-4
