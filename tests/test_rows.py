"""Rows are what they hold: a file sorted anew gives the same run to the last bit, and one that is changed is noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kinfed
from kinfed import rows
from kinfed.backends.fingerprint import Fingerprint
from kinfed.backends.site import InProcess, Site, answer, sites_of
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import Failure, Request
from kinfed.federation import Agent, Federation
from kinfed.learners.base import site_learner
from kinfed.rows import row_hashes
from site_runs import Answer, KilledError, Mortal, generated, labelled, run

KEY = b"key"


def hashes(X: Any, y: Any = None, columns: Sequence[str] | None = None, key: bytes = KEY) -> NDArray[np.uint64]:
    names = columns or (list(X.columns) if isinstance(X, pd.DataFrame) else [f"x{j}" for j in range(X.shape[1])])
    return row_hashes(X, None if y is None else np.asarray(y), names, key)


def table(n: int = 40, seed: int = 0) -> pd.DataFrame:
    """Gaps, text, truth values, numbers among text, and some rows twice."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.integers(20, 60, n)),
            "ward": np.where(rng.random(n) < 0.2, None, rng.choice(["eye", "north"], n)),
            "smokes": rng.random(n) < 0.3,
            "code": pd.Series([1, "1", "x", True, 2.0] * (n // 5), dtype=object),
            "site": np.where(np.arange(n) % 2, "b", "a"),
            "y": rng.integers(0, 3, n),
        }
    )
    return pd.concat([made, made[:4]], ignore_index=True)


def sorted_anew(federation: Federation, seed: int) -> Federation:
    """The same agents, their rows in another order."""
    rng = np.random.default_rng(seed)
    return federation.rows([rng.permutation(len(agent)) for agent in federation])


def contents(agent: Agent) -> list[tuple[str, ...]]:
    frame = pd.DataFrame(agent.X).assign(y=agent.y)
    return sorted(tuple(map(str, row)) for row in frame.itertuples(index=False))


# ---------------------------------------------------------------- what tells rows apart


def test_the_type_a_table_holds_a_cell_in_does_not_matter() -> None:
    X = np.array([[1.0, np.nan, -0.0], [2.5, 3.0, 7.0]])
    plain = hashes(X, [1, 0])
    np.testing.assert_array_equal(hashes(X.astype(np.float32), [1.0, 0.0]), plain)
    np.testing.assert_array_equal(hashes(np.asfortranarray(X), np.array([1, 0], dtype=np.int8)), plain)
    mixed = pd.DataFrame({"x0": X[:, 0], "x1": pd.Series([None, "3"], dtype=object), "x2": pd.Categorical(["0", "7"])})
    np.testing.assert_array_equal(hashes(mixed, ["1", "0"]), plain)
    np.testing.assert_array_equal(hashes(mixed[["x2", "x0", "x1"]], [1, 0]), plain)  # nor the order of columns
    np.testing.assert_array_equal(hashes(X[:, ::-1], [1, 0], ["x2", "x1", "x0"]), plain)


def test_different_rows_and_keys_have_different_hashes() -> None:
    cells = [1, 1.5, True, "True ", "1.0", "01", "x", "X", "", None, -1, 2**60, "ä", 1e300]
    found = hashes(pd.DataFrame({"a": pd.Series(cells, dtype=object)}))
    assert len(set(found.tolist())) == len(cells)
    X = np.random.default_rng(0).normal(size=(500, 2))
    both = np.concatenate([X, X[:, ::-1]])
    assert len(set(hashes(both).tolist())) == len(both)  # the column of a cell matters
    assert not set(hashes(X).tolist()) & set(hashes(X, key=b"other").tolist())
    assert not set(hashes(X).tolist()) & set(hashes(X, np.zeros(500)).tolist())


def test_hashes_are_the_same_on_every_machine() -> None:
    frame = pd.DataFrame({"a": [0.5, np.nan], "b": ["u", None], "c": [True, False]})
    assert hashes(frame, ["no", "yes"]).tolist() == [11440505725655573684, 13223469090717855456]


def test_rows_are_hashed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    whole = hashes(frame.drop(columns="y"), frame["y"])
    monkeypatch.setattr(rows, "_CELLS", 16)  # three rows at a time
    np.testing.assert_array_equal(hashes(frame.drop(columns="y"), frame["y"]), whole)
    order = np.random.default_rng(0).permutation(len(frame))
    shuffled = frame.iloc[order]
    np.testing.assert_array_equal(hashes(shuffled.drop(columns="y"), shuffled["y"]), whole[order])


# ---------------------------------------------------------------- splits


@settings(max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.05, 0.9), st.sampled_from(["classes", "numbers", "text", "none"]))
def test_a_table_sorted_anew_is_split_alike(seed: int, test_size: float, kind: str) -> None:
    frame = table(seed=seed % 7)
    kinds: Mapping[str, Callable[[Any], Any]] = {"numbers": lambda y: y + 0.5, "text": lambda y: y.map(str)}
    frame["y"] = kinds.get(kind, lambda y: y)(frame["y"])
    frame = frame.drop(columns="y") if kind == "none" else frame
    target = None if kind == "none" else "y"
    shuffled = frame.sample(frac=1.0, random_state=seed)
    first, second = (Federation.from_table(one, target, "site").split(test_size, seed) for one in (frame, shuffled))
    for ours, theirs in zip(first, second, strict=True):
        for name in ("a", "b"):
            assert contents(ours[name]) == contents(theirs[name])


def test_rows_that_are_added_move_others_by_their_rank_only() -> None:
    X = np.arange(200.0)[:, None]
    before, after = (Federation.from_arrays(X[:n], None, ["a"] * n).split(0.3, 1)[1][0].X for n in (190, 200))
    assert len(set(before.ravel()) - set(after.ravel())) <= 10
    assert len(set(before.ravel()) & set(after.ravel())) >= 47


def test_the_order_of_a_run_is_that_of_no_file_and_the_users_rows_stay_in_theirs() -> None:
    federation = Federation.from_table(table(), "y", "site")
    for one in (federation, sorted_anew(federation, 1)):
        before = [agent.X.copy() for agent in one]
        ordered = one.in_order()
        for agent, X, mine in zip(one, before, ordered, strict=True):
            pd.testing.assert_frame_equal(agent.X, X)
            assert contents(agent) == contents(mine)
            pd.testing.assert_frame_equal(mine.X, federation.in_order()[mine.name].X.astype(mine.X.dtypes))
        assert one.digest() == federation.digest()


# ---------------------------------------------------------------- runs


def learner_of(kind: str) -> Any:
    if kind != "torch":
        return kinfed.make_learner(kind)
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    return TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=3, batch_size=4, threads=1)


def numbers(found: Any, learner: Any) -> list[bytes]:
    models = [found.models, *found.baselines.values()]
    packed = [site_learner(learner).pack(one, np.arange(len(one))) for one in models]
    arrays = [array for one in packed for array in one.values()]
    return [found.weights.matrix.tobytes(), found.scores.to_numpy().tobytes(), *(array.tobytes() for array in arrays)]


@pytest.mark.parametrize("kind", ["ridge", "logistic", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("backend", ["pooled", "sites", "flower"])
def test_a_run_on_rows_sorted_anew_is_the_same_to_the_last_bit(kind: str, backend: str) -> None:
    if backend == "flower":
        pytest.importorskip("flwr")
    learner = learner_of(kind)
    whole = kinfed.concept_shift(n_agents=5, n=24, dim=3, spread=0.1, seed=0).train
    whole = labelled(whole) if kind == "logistic" else whole
    found = []
    for federation in (whole, sorted_anew(whole, 1), sorted_anew(whole, 2)):
        train, test = federation.split(0.3, 4)
        found.append(kinfed.personalize(train, learner, "q-aggregation", test, backend=backend))
    assert numbers(found[1], learner) == numbers(found[0], learner)
    assert numbers(found[2], learner) == numbers(found[0], learner)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_folds_do_not_depend_on_the_order_of_rows_either(backend: str) -> None:
    learner = kinfed.make_learner("ridge")
    train, test = generated(n=30)
    first, second = (
        kinfed.personalize(sorted_anew(train, seed), learner, "calibrated", sorted_anew(test, seed), backend=backend)
        for seed in (1, 2)
    )
    assert numbers(first, learner) == numbers(second, learner)


def test_newcomers_rows_may_be_sorted_anew_too() -> None:
    train, _ = generated(n_agents=5)
    result = kinfed.personalize(train.select(range(4)), "ridge", "q-aggregation")
    X, y = train[4].X, train[4].y
    first, second = result.onboard(X, y), result.onboard(X[::-1], y[::-1])
    assert first.weights.matrix.tobytes() == second.weights.matrix.tobytes()
    assert first.predict(X).tobytes() == second.predict(X).tobytes()
    np.testing.assert_allclose(first.predict(X[::-1]), first.predict(X)[::-1])  # predictions are in the order asked for


def test_a_table_sorted_across_agents_gives_the_same_up_to_rounding() -> None:
    frame = table(60, seed=3).assign(y=np.random.default_rng(0).normal(size=64))
    found = []
    for one in (frame, frame.sort_values(["site", "y"], ascending=False)):
        train, test = Federation.from_table(one, "y", "site").split(0.3)
        found.append(kinfed.personalize(train, "ridge", "q-aggregation", test).scores.sort_index())
    assert list(found[0].index) == ["a", "b"]
    pd.testing.assert_frame_equal(*found, rtol=1e-9)


def test_a_checkpoint_goes_on_with_a_file_sorted_anew(tmp_path: Path) -> None:
    train, test = generated()
    kinfed.personalize(train, "ridge", "q-aggregation", test, checkpoint=tmp_path)
    kinfed.personalize(sorted_anew(train, 1), "ridge", "q-aggregation", sorted_anew(test, 2), checkpoint=tmp_path)
    edited = replace(test, agents=(*test.agents[:-1], Agent(test.names[-1], test[-1].X, test[-1].y + 1)))
    with pytest.raises(kinfed.InputError, match=r"different: data"):
        kinfed.personalize(train, "ridge", "q-aggregation", edited, checkpoint=tmp_path)


# ---------------------------------------------------------------- sites whose data change


def edited(agent: Agent) -> Agent:
    y = agent.y.copy()
    y[3] += 1e-9
    return replace(agent, y=y)


def appended(agent: Agent) -> Agent:
    return replace(agent, X=np.vstack([agent.X, agent.X[:1]]), y=np.append(agent.y, agent.y[:1]))


def shortened(agent: Agent) -> Agent:
    return replace(agent, X=agent.X[1:], y=agent.y[1:])


def exchanged(agent: Agent) -> Agent:
    """One row twice and another not at all."""
    X, y = agent.X.copy(), agent.y.copy()
    X[0], y[0] = X[1], y[1]
    return replace(agent, X=X, y=y)


def sorted_backwards(agent: Agent) -> Agent:
    return replace(agent, X=agent.X[::-1], y=agent.y[::-1])


Change = Callable[[Agent], Agent]
CHANGES = [
    (edited, "32 rows as before, but not the same"),
    (appended, "32 rows then, 33 now"),
    (shortened, "32 rows then, 31 now"),
    (exchanged, "32 rows as before, but not the same"),
]


def changed(federation: Federation, change: Change) -> Federation:
    return replace(federation, agents=tuple(map(change, federation.agents)))


class Changing(InProcess):
    """Sites that read their rows anew for every message; those of one change at an exchange."""

    def __init__(self, sites: Sequence[Site], at: int, **changes: Change) -> None:
        super().__init__(sites)
        self.exchanges, self._at, self._changes = 0, at, changes
        self.since: list[Answer] = []  # of the site whose rows have changed

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        self.exchanges += bool(requests)
        for address, site in self._sites.items():
            parts = {"train": site.train, "test": site.test}
            if self.exchanges == self._at and address == "1":
                parts |= {part: changed(parts[part], change) for part, change in self._changes.items()}
            self._sites[address] = replace(site, **parts, _sessions={}, _fingerprints={})
        answers = super().ask(requests, seconds)
        self.since += [answers["1"]] if "1" in requests and self._changes and self.exchanges >= self._at else []
        return answers


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change, told", CHANGES)
def test_changed_rows_are_noticed_at_the_next_message_and_the_others_go_on(change: Change, told: str, part: str) -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    whole = Changing(sites_of(train, test, learner), 0)
    run(whole, learner)
    for at in range(2, whole.exchanges + 1):
        channel = Changing(sites_of(train, test, learner), at, **{part: change})
        found = run(channel, learner, timeouts=TimeoutPolicy(quorum=0.0))
        assert channel.since
        for one in channel.since:
            assert isinstance(one, Failure)
            assert one.reason == (
                f"agent {train.names[1]}: its data have changed since this run began ({told}), "
                "so it takes no further part; put them back, or start the run again"
            )
        assert found.exchange.absences[0].reason == channel.since[0].reason
        assert {one.agent for one in found.exchange.absences} == {train.names[1]}
        others = [place for place in range(len(found.models)) if found.known.names[place] != train.names[1]]
        X = found.preparation.transform(test)[0].X
        assert all(np.isfinite(found.models.predict(place, X)).all() for place in others)


def test_sites_whose_files_are_sorted_anew_at_every_message_notice_nothing() -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    expected = run(InProcess(sites_of(train, test, learner)), learner)
    for at in range(1, 8):
        channel = Changing(sites_of(train, test, learner), at, train=sorted_backwards, test=sorted_backwards)
        found = run(channel, learner)
        assert not found.exchange.absences
        assert numbers(found, learner) == numbers(expected, learner)


def test_rows_that_are_put_back_are_welcome_again() -> None:
    train, test = generated()
    site = sites_of(train, test, kinfed.make_learner("ridge"))[0]
    _, notes = answer(site, Request("describe"), {})
    other = replace(site, train=changed(site.train, edited), _fingerprints={})
    with pytest.raises(kinfed.InputError, match="have changed since this run began"):
        answer(other, Request("describe"), notes)
    again, kept = answer(site, Request("describe"), notes)
    assert kept is notes
    assert again.settings["name"] == site.name


def test_a_fingerprint_is_under_a_key_of_the_run() -> None:
    train, test = generated(n_agents=1)
    first, second = Fingerprint.of(train, test), Fingerprint.of(train, test)
    assert first.key != second.key
    assert first.digest != second.digest
    assert Fingerprint.from_array(first.to_array()) == first == Fingerprint.of(sorted_anew(train, 1), test, first.key)
    assert first.digest != Fingerprint.of(test, train, first.key).digest


def cut_off(train: Federation, test: Federation, folder: Path, kept: Path | None) -> Any:
    """Kill a server before its last exchange; what a run to the end finds."""
    learner = kinfed.make_learner("ridge")
    whole = Mortal(sites_of(train, test, learner), None)
    found = run(whole, learner)
    with pytest.raises(KilledError):
        run(Mortal(sites_of(train, test, learner, kept), whole.exchanges - 1), learner, folder=folder)
    return found


@pytest.mark.parametrize("kept", [True, False], ids=["a folder", "no folder"])
@pytest.mark.parametrize("change, told", CHANGES)
def test_a_run_that_goes_on_does_not_go_on_with_other_rows(change: Change, told: str, kept: bool, tmp_path: Path) -> None:
    train, test = generated()
    learner, folder = kinfed.make_learner("ridge"), tmp_path / "sites" if kept else None
    cut_off(train, test, tmp_path / "server", folder)
    now = replace(train, agents=(train[0], change(train[1]), *train.agents[2:]))
    found = run(InProcess(sites_of(now, test, learner, folder)), learner, folder=tmp_path / "server")
    reasons = [one.reason for one in found.exchange.absences if one.agent == train.names[1]]
    if kept or change in (appended, shortened):  # without a folder the number of rows is all that is known
        assert any("have changed since this run began" in one for one in reasons)
    assert {one.agent for one in found.exchange.absences} <= {train.names[1]}


def test_a_run_goes_on_with_files_sorted_anew(tmp_path: Path) -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    whole = cut_off(train, test, tmp_path / "server", tmp_path / "sites")
    sites = sites_of(sorted_anew(train, 3), sorted_anew(test, 4), learner, tmp_path / "sites")
    found = run(InProcess(sites), learner, folder=tmp_path / "server")
    assert not found.exchange.absences
    assert numbers(found, learner) == numbers(whole, learner)
