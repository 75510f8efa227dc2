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
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import least_squares

import kinfed
from kinfed.collaboration import Comparison
from kinfed.engines.agreement import digest_of
from kinfed.engines.conversation import Patience
from kinfed.engines.coordinator import coordinate
from kinfed.engines.discretion import DOTS, discreet
from kinfed.engines.federations import sites_of
from kinfed.engines.in_process import InProcess
from kinfed.engines.messages import Failure, Reply, Request, encode_settings
from kinfed.engines.opening import BEFORE_AGREEMENT
from kinfed.engines.outcome import Outcome
from kinfed.engines.site import Site
from kinfed.engines.tasks import NO_AGREEMENT, TASKS
from kinfed.engines.tasks import answer as site_answer
from kinfed.engines.wishes import Wishes
from kinfed.federation import Federation

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[1] / "docs" / "what-leaves-a-site.md"
ARRAYS = ("phase", "task", "case", "way", "what it is", "how often", "bytes")
SETTINGS = ("task", "way", "holds", "bytes at most")
LEAVES, COMES = "leaves", "comes"
HIDDEN = 5
ENVELOPE = "together"

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
        (task,), (formula,) = quoted(row["task"]), quoted(row["bytes"])
        assert row["way"] in (LEAVES, COMES)
        key = task, row["case"], row["way"]
        assert key not in found, f"two rows about {key}"
        found[key] = formula
    return found


# ---------------------------------------------------------------- runs


class Recording(InProcess):
    """Keeps every question with its answer; those that travel together, one by one."""

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self.talks: list[tuple[int, Request, Reply]] = []

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Reply | Failure]:
        answers = super().ask(requests, seconds)
        for address, answer in answers.items():
            assert isinstance(answer, Reply), answer
            self.talks += [(int(address), *talk) for talk in separated(requests[address], answer)]
        return answers


def separated(request: Request, reply: Reply) -> list[tuple[Request, Reply]]:
    """The questions and answers in an envelope, which must hold nothing else; any other message as it is."""
    if request.task != ENVELOPE:
        return [(request, reply)]
    assert request.settings.keys() == reply.settings.keys() == {"parts"}
    asked, told = request.settings["parts"], reply.settings["parts"]
    assert all(part.keys() == {"task", "settings"} for part in asked)
    assert all(part["task"] in TASKS for part in asked)

    def opened(arrays: Mapping[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
        found: list[dict[str, NDArray[Any]]] = [{} for _ in asked]
        for name, array in arrays.items():
            number, _, own = name.partition("/")
            found[int(number)][own] = array
        return found

    parts = zip(asked, told, opened(request.arrays), opened(reply.arrays), strict=True)
    return [(Request(part["task"], part["settings"], sent), Reply(answer, back)) for part, answer, sent, back in parts]


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
        return Federation.from_frame(pd.concat(tables), target="y", agent="site")

    def symbols(self, labels: int) -> dict[str, int]:
        """What is known of it without running anything."""
        columns, numbers = (self.numeric + 2, self.numeric + 3) if self.mixed else (self.numeric, self.numeric)
        scores = 2 if labels else 1
        return {"B": len(self.sizes), "c": columns, "d": numbers, "C": labels, "D": self.features, "S": scores}


FIRST = Kind((9, 14, 11), 2, mixed=True, features=20)
SECOND = Kind((12, 8, 10, 15), 3, mixed=False, features=26)
WIDE = Kind((9, 8, 7), 257, mixed=False, features=20)


@dataclass(frozen=True, eq=False)
class Run:
    """One run, and the symbols of the page as this test counts them."""

    name: str
    learner: Any
    rule: str
    talks: list[tuple[int, Request, Reply]]
    outcome: Outcome
    symbols: dict[str, int]

    @property
    def races(self) -> bool:
        return self.rule == "calibrated" and self.name.startswith("network")

    def crossings(self) -> Iterator[tuple[Key, dict[str, int], Request | Reply]]:
        """Every message, with its place on the page and the values of the symbols."""
        for _, request, reply in self.talks:
            symbols = {**self.symbols, **self._counts(request)}
            yield (request.task, self._case(request, COMES), COMES), symbols, request
            yield (request.task, self._case(request, LEAVES), LEAVES), symbols, reply

    def _counts(self, request: Request) -> dict[str, int]:
        match request.task:
            case "sketch":
                return {"V": 1 if self.rule != "calibrated" else 6}
            case "base-rows":
                bases = request.settings["bases"]
                return {"G": len(bases), "V": len({view for _, _, view in bases})}
            case "train" if request.arrays:
                return {"T": len(request.arrays["theta"])}
            case "gradients":
                return {"T": 1 if self.races else self.symbols["B"]}
            case "score" if self.races:
                return {"M": len(request.settings["columns"])}
            case "score" | "tally":
                calibration = self.outcome.weights.calibration
                assert calibration is not None
                return {"M": len(calibration.members)}
        return {}

    def _case(self, request: Request, way: str) -> str:
        match request.task:
            case "scale" if way == LEAVES:
                return "classes" if self.symbols["C"] else "numbers"
            case "score" if way == LEAVES:
                return "race" if self.races else "cross-validation"
            case "train" if not self.name.startswith("logistic"):
                return self.name
            case "train":
                step, solver = request.settings["question"]["step"], self.name.split(", ")[1:]
                if way == LEAVES:
                    return ", ".join(["logistic", step, *(solver if step == "counts" else solver[:1])])
                classes = "two classes" if self.symbols["C"] == 2 else "more classes"
                return f"logistic, {step}" + (f", {classes}" if step == "derivatives" else "")
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
    **options: Any,
) -> Run:
    """A run of sites; `rows` gives all of them about that many."""
    sizes = tuple(rows + size % 5 for size in kind.sizes) if rows else kind.sizes
    train, test = kind.rows(sizes, labels, seed=0), kind.rows([3 + labels] * len(sizes), labels, seed=1)
    channel = Recording(sites_of(train, test, learner))
    wishes = Wishes(rule, options, Comparison(n_features=kind.features, seed=0), baselines=baselines)
    outcome = coordinate(channel, learner, wishes, agents=len(sizes))
    symbols = {**kind.symbols(labels), "A": 3 if baselines else 1}
    d, logits = symbols["d"], 1 if labels == 2 else labels
    p, q, b, extra = (d + 1, d + 1, 8, 0) if name == "ridge" else (logits * (d + 1), logits * (d + 1), 8, labels)
    if name.startswith("network"):  # d -> HIDDEN -> 1, with biases, filled up to a multiple of 16
        p, q, b, extra = -(-(d * HIDDEN + HIDDEN + HIDDEN + 1) // 16) * 16, HIDDEN + 1, np.dtype(learner.dtype).itemsize, 0
    return Run(name, learner, rule, channel.talks, outcome, {**symbols, "p": p, "q": q, "b": b, "m": b * p + extra})


def network(**options: Any) -> Any:
    from kinfed.learners.neural import TorchLearner

    return TorchLearner(hidden=(HIDDEN,), task="regression", **options)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    ridge, newton = kinfed.make_learner("ridge"), kinfed.make_learner("logistic")
    steps = kinfed.make_learner("logistic", solver="l-bfgs")
    averaging = network(method="fedavg", rounds=3, batch_size=4)
    found = [run("ridge", kind, ridge, rule) for kind in (FIRST, SECOND) for rule in ("q-aggregation", "gradient")]
    found += [run("ridge", kind, ridge, "calibrated", rows=210, folds=2) for kind in (FIRST, SECOND)]
    found += [run("logistic, Newton", FIRST, newton, labels=3), run("logistic, Newton", SECOND, newton, labels=2)]
    found += [run("logistic, L-BFGS", FIRST, steps, labels=2), run("logistic, L-BFGS", SECOND, steps, labels=4)]
    found += [run("logistic, L-BFGS, wide", WIDE, steps, labels=2)]
    found += [run("network, FedAvg", kind, averaging) for kind in (FIRST, SECOND)]
    found += [run("network, weighted risk", FIRST, network(epochs=2), baselines=False)]
    found += [run("network, weighted risk", SECOND, network(epochs=2, dtype="float64"))]
    found += [run("network, FedAvg", SECOND, network(method="fedavg", rounds=2, dtype="float64"))]
    return [*found, run("network, FedAvg", SECOND, averaging, "calibrated")]


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
    assert {task for task, _, _ in sizes_on_the_page()} == {*BEFORE_AGREEMENT, "agree", *TASKS}
    assert f"`{ENVELOPE}`" in PAGE.read_text(encoding="utf-8")


def test_no_size_on_the_page_depends_on_the_number_of_rows() -> None:
    letters = set("BcdCDVpbmqTMGAS")
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
    for one in runs:
        if one.name != "network, FedAvg" or one.races:
            continue
        sizes, weights = one.outcome.agreement.sizes, one.outcome.weights.matrix
        listeners = np.unique(np.vstack([np.eye(len(sizes)), [sizes / sizes.sum()], weights]), axis=0)
        for place, request, _ in one.talks:
            if request.task == "train":
                assert len(request.arrays["theta"]) == (listeners[:, place] > 0).sum()


def test_messages_are_as_many_as_the_page_says(runs: list[Run]) -> None:
    for one in runs:
        told = Counter(request.task for place, request, _ in one.talks if place == 0)
        assert all(told[task] == 1 for task in ("describe", "columns", "scale", "agree", "weights", "evaluate"))
        if one.name == "ridge" and one.rule == "gradient":
            assert (told["sketch"], told["gradients"], told["gradient-weights"]) == (1, 4, 4)
            assert 1 <= told["train"] <= 5
        elif one.name == "ridge" and one.rule == "calibrated":  # two folds, dealt once
            assert (told["sketch"], told["score"], told["tally"]) == (1 + 2, 2, 1)
            assert 2 <= told["base-rows"] <= 2 + 1
            assert 2 + 1 <= told["train"] <= 2 + 6
            assert 5 * 2 <= told["gradients"] == told["gradient-weights"] <= 5 * 2 + 5
        elif one.races:
            assert (told["sketch"], told["tally"]) == (1 + 1, 1)
            assert 1 <= told["gradients"] == told["gradient-weights"] <= 2
        elif one.name == "ridge":
            assert (told["sketch"], told["train"]) == (1, 1)
        elif one.name == "network, FedAvg":
            assert told["train"] == one.learner.rounds


# ---------------------------------------------------------------- settings


def names_in(settings: Mapping[str, Any]) -> set[str]:
    return set(settings) | {f"question.{name}" for name in settings.get("question", {})}


def test_settings_hold_what_the_page_says(runs: list[Run]) -> None:
    always: dict[tuple[str, str], set[str]] = {}
    sometimes: dict[tuple[str, str], set[str]] = {}
    bounds: dict[tuple[str, str], str] = {}
    for row in table(SETTINGS):
        usual, _, rare = row["holds"].partition("sometimes")
        for task in quoted(row["task"]):
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
        met = {re.sub(r"[ \d]+$", "", part) for phase in one.outcome.audit.traffic["phase"] for part in phase.split(", ")}
        assert met <= phases


def test_the_lines_of_the_audit_log_look_as_on_the_page(tmp_path: Path) -> None:
    shown = [json.loads(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith('{"time"')]
    learner = kinfed.make_learner("ridge")
    coordinate(
        InProcess(sites_of(FIRST.rows(FIRST.sizes, 0, 0), None, learner)),
        learner,
        Wishes("q-aggregation"),
        agents=3,
        audit=tmp_path / "audit.jsonl",
    )
    written = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    real = {(line.get("phase", ""), line.get("direction", "")): line for line in written}
    assert len(shown) >= 3
    for line in shown:
        if "missed" in line:
            continue
        twin = real[line.get("phase", ""), line.get("direction", "")]
        assert line.keys() == twin.keys()
        assert line.get("arrays") == twin.get("arrays")
    # The page shows a sketch of the usual 500 features.
    (sketched,) = [line for line in shown if line.get("phase") == "sketches" and "bytes" in line]
    assert abs(sketched["bytes"] - real["sketches", "to the server"]["bytes"]) <= 3


# ---------------------------------------------------------------- the warnings: what sizes alone do not tell


def answers_of(train: Federation, place: int, learner: Any) -> tuple[InProcess, Outcome, dict[str, Any]]:
    """A site under an agreement, to be asked further; and what its questions must carry."""
    outcome = coordinate(InProcess(sites_of(train, None, learner)), learner, Wishes("q-aggregation"), agents=len(train))
    channel, text = InProcess(sites_of(train, None, learner)), outcome.agreement.to_text()
    signed = asked(channel, place, Request("agree", {"text": text})).settings["agreement"]
    return channel, outcome, {"agreement": signed}


def asked(channel: InProcess, place: int, request: Request) -> Reply:
    answer = channel.ask({str(place): request}, 1.0)[str(place)]
    assert isinstance(answer, Reply), answer
    return answer


def points_of(outcome: Outcome, train: Federation, place: int) -> NDArray[np.float64]:
    """The site's rows (x, y) as the server may compute them: columns as numbers, the target as it is."""
    agent = outcome.agreement.preparation.transform(train)[place]
    return np.column_stack([agent.X, np.asarray(agent.y, dtype=float)])


def furthest(secret: NDArray[np.float64], guess: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each secret row is from the nearest guessed one."""
    return np.asarray(np.abs(secret[:, None] - guess[None]).max(axis=2).min(axis=1))


def test_two_rows_follow_from_their_moments() -> None:
    train = FIRST.rows((8, 2, 9), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"))
    moments = asked(channel, 1, Request("train", {**common, "question": {}})).arrays
    values, vectors = np.linalg.eigh(moments["comoment"])
    apart = np.sqrt(values[-1]) * vectors[:, -1]
    assert furthest(points_of(outcome, train, 1), moments["mean"] + np.array([apart, -apart])).max() < 1e-12


@pytest.mark.parametrize("n, alone", [(5, 5), (7, 3), (9, 1), (10, 0)])
def test_rows_of_a_small_site_follow_from_the_folds_of_calibration(n: int, alone: int) -> None:
    train = FIRST.rows((12, n, 9), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"))
    whole = asked(channel, 1, Request("train", {**common, "question": {}})).arrays
    found = []
    for fold in range(5):
        rest = asked(channel, 1, Request("train", {**common, "question": {}, "split": [0, fold, 5]})).arrays
        aside = whole["n"] - rest["n"]
        found.append((whole["n"] * whole["mean"] - rest["n"] * rest["mean"]) / aside)
    assert (furthest(points_of(outcome, train, 1), np.array(found)) < 1e-12).sum() == alone


def test_rows_of_a_small_site_follow_from_its_sketch() -> None:
    train = SECOND.rows((12, 6, 9, 10), 0, seed=3)
    channel, outcome, common = answers_of(train, 1, kinfed.make_learner("ridge"))
    sketch = asked(channel, 1, Request("sketch", {**common, "views": [0]})).arrays["mean 0"]
    embedding = outcome.agreement.embeddings[0]
    width, rng = embedding.features.dim, np.random.default_rng(0)

    def miss(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(embedding.features(numbers.reshape(-1, width)).mean(axis=0) - sketch)

    tries = (least_squares(miss, rng.normal(size=6 * width), max_nfev=100) for _ in range(10))
    found = next(one for one in tries if one.cost < 1e-16)
    secret = np.asarray(embedding.raw_points(outcome.agreement.preparation.transform(train)[1]), dtype=np.float64)
    assert furthest(secret, found.x.reshape(-1, width)).max() < 1e-4


# ---------------------------------------------------------------- what a site keeps to itself, whatever it is asked


def patients(n: int, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    return pd.DataFrame({"age": rng.normal(50, 10, n), "y": rng.normal(size=n), **columns})


def sites_with(*tables: pd.DataFrame, learner: str = "ridge", **options: Any) -> list[Site]:
    """A site of each table; the places are their names."""
    frames = [one.assign(site=f"site {place}") for place, one in enumerate(tables)]
    alone = [Federation.from_frame(frame, target="y", agent="site") for frame in frames]
    return [Site(one, None, place, kinfed.make_learner(learner), **options) for place, one in enumerate(alone)]


def failure(channel: InProcess, request: Request, place: int = 0) -> str:
    told = channel.ask({str(place): request}, 1.0)[str(place)]
    assert isinstance(told, Failure)
    return told.reason


def whole_error(site: Site, request: Request, notes: Mapping[str, NDArray[Any]]) -> str:
    """What the site's own log shows."""
    with pytest.raises(kinfed.KinfedError) as raised:
        site_answer(site, request, notes)
    return str(raised.value.__cause__)


def test_no_value_of_a_crowded_column_leaves_a_site() -> None:
    crowd = patients(110, name=[f"patient {k}" for k in range(110)], ward=["north", "south"] * 55)
    few = patients(30, name=["patient 1", "nobody"] * 15, ward=["north", "south"] * 15)
    channel = Recording(sites_with(crowd, few))
    outcome = coordinate(channel, kinfed.make_learner("ridge"), Wishes("q-aggregation"), agents=2)
    assert outcome.audit.attendance.empty
    assert outcome.agreement.preparation.left_out == {"name": "more than 100 different text values"}
    assert "ward=north" in outcome.agreement.preparation.columns
    from_the_crowd = b"".join(encode_settings(reply.settings) for place, _, reply in channel.talks if place == 0)
    assert b"north" in from_the_crowd
    assert b"patient" not in from_the_crowd


def test_a_server_cannot_have_numbers_counted() -> None:
    channel = InProcess(sites_with(patients(30), patients(30)))
    reason = failure(channel, Request("columns", {"columns": ["age"], "categorical": ["age"]}))
    assert reason.startswith("agent site 0: column age holds numbers here and text at another agent")


def test_a_mistyped_cell_is_told_without_its_text_and_the_others_go_on() -> None:
    ages = [*map(str, range(20, 44)), "Mrs O'Brien, 71"]
    sites = sites_with(patients(25).assign(age=ages), patients(25), patients(25))
    reason = failure(InProcess(sites), Request("describe"))
    assert reason == "agent site 0: column age holds ..., but most of its values are numbers; correct it or leave it empty"
    assert "Mrs O'Brien, 71" in whole_error(sites[0], Request("describe"), {})
    outcome = coordinate(InProcess(sites), kinfed.make_learner("ridge"), Wishes("q-aggregation"), agents=3)
    assert outcome.agreement.names == ("site 1", "site 2")
    assert "age" in outcome.agreement.preparation.columns


def test_a_folder_that_cannot_be_written_to_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "Mrs Smith").write_text("a file")
    out = tmp_path / "Mrs Smith" / "her models"
    sites = [replace(site, out=out) for site in sites_with(patients(20), patients(20))]
    outcome = coordinate(
        InProcess(sites),
        kinfed.make_learner("ridge"),
        Wishes("q-aggregation"),
        agents=2,
        patience=Patience(quorum=0.0),
        audit=tmp_path / "audit.jsonl",
    )
    reasons = outcome.audit.attendance["reason"].tolist()
    assert [reason.partition(": ")[0] for reason in reasons] == [
        f"the model of agent site {place} cannot be written to ..." for place in range(2)
    ]
    log = (tmp_path / "audit.jsonl").read_text()
    assert "cannot be written to ...: " in log
    assert not any(secret in log for secret in ("Smith", "her models", str(tmp_path)))


@pytest.mark.parametrize("label, odd", [("text", "O'Brien (dead)"), ("number", 37)])
def test_a_label_is_not_told_in_an_error(label: str, odd: Any) -> None:
    usual = ["low", "high"] * 10 if label == "text" else [0, 1] * 10
    sites = sites_with(patients(20).assign(y=usual), patients(20).assign(y=usual), learner="logistic")
    outcome = coordinate(InProcess(sites), kinfed.make_learner("logistic"), Wishes("q-aggregation"), agents=2)
    (other,) = sites_with(patients(20).assign(y=[*usual[:-1], odd]), learner="logistic")
    _, notes = site_answer(other, Request("agree", {"text": outcome.agreement.to_text()}), {})
    settings = {"agreement": digest_of(outcome.agreement.to_text()), "question": {"step": "counts", "second": False}}
    with pytest.raises(kinfed.InputError) as raised:
        site_answer(other, Request("train", settings), notes)
    told = r"agent site 0 has the label (np\.str_\()?\.\.\.\)?, which is not among the 2 classes .*"
    assert re.fullmatch(told, str(raised.value))
    assert str(odd) in whole_error(other, Request("train", settings), notes).replace("\\", "")


def test_of_an_unforeseen_error_the_kind_alone_is_told() -> None:
    (site,) = sites_with(patients(20, name=["Mrs Smith", "Mr Jones"] * 10))
    request = Request("columns", {"columns": ["age", "name"], "categorical": []})  # text to be summed
    told = failure(InProcess([site]), request)
    assert told == "the task columns failed (ValueError); the log of the site says more"
    assert "Mrs Smith" in whole_error(site, request, {})
    assert failure(InProcess([site]), Request("no such task")).startswith("there is no task no such task")


def test_a_lost_agreement_is_still_recognised() -> None:
    (site,) = sites_with(patients(20))
    for task in TASKS:
        assert failure(InProcess([site]), Request(task, {"agreement": "x"})) == NO_AGREEMENT


def test_a_site_of_few_rows_answers_nothing_and_the_others_go_on() -> None:
    small, large, other = sites_with(patients(9), patients(10), patients(12), least_rows=10)
    channel = InProcess([small])
    for task in [*BEFORE_AGREEMENT, "agree", ENVELOPE, *TASKS, "no such task"]:
        reason = failure(channel, Request(task, {"agreement": "x", "text": "x"}))
        assert reason == (
            "this site has fewer than 10 rows to train on, too few to answer; "
            "set least-rows in its node config to change that"
        )
    outcome = coordinate(InProcess([small, large, other]), kinfed.make_learner("ridge"), Wishes("q-aggregation"), agents=3)
    assert outcome.agreement.names == ("site 1", "site 2")
    assert "least-rows" in outcome.audit.attendance["reason"].iloc[0]


words = st.text(st.characters(codec="utf-8"), min_size=1)


@given(words, st.sampled_from(["it isn't", "the agents' data aren't", "a", "it's 'age' and"]))
def test_quoted_text_never_survives(secret: str, before: str) -> None:
    for quoted_text in (repr(secret), repr(np.array([secret])[0]), repr(secret.encode())):
        error = kinfed.InputError(f"{before} here: column age holds {quoted_text}, but it's numeric; correct it")
        told = str(discreet(error, ["age"]))
        assert re.fullmatch(rf"{before} here: column age holds (np\.str_\()?\.\.\.\)?, but it's numeric; correct it", told)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0/\n"), min_size=1), min_size=1, max_size=3))
def test_known_paths_never_survive(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    told = str(discreet(kinfed.SketchError(f"it cannot be written to {path}: no space"), (), [path]))
    assert told == f"it cannot be written to {DOTS}: no space"


@pytest.mark.parametrize(
    "whole, told",
    [
        ("/data/smith.csv, row 3: no", "..., row 3: no"),
        ("C:\\data\\smith, row 3", "..., row 3"),
        ("smith.csv.gz and a/b differ in 'age', not in 'smith'", "... and ... differ in 'age', not in ..."),
        ("agent a has 12 rows in shape (3, 4), but 10", "agent a has 12 rows in shape (3, 4), but 10"),
        ("it holds 'smith and does not end", "it holds ..."),
        ("it holds 'smith\\", "it holds ..."),
        ("column mg/l holds 'x'", "column mg/l holds ..."),
        ("label 'O'Brien' is raw", "label ... is raw"),
    ],
)
def test_sentences_stay_readable_without_what_they_quote(whole: str, told: str) -> None:
    heard = discreet(kinfed.InputError(whole), ["age", "mg/l"])
    assert (type(heard), str(heard)) == (kinfed.InputError, told)
