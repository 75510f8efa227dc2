"""Sites lost in training: no model without its own agent's rows, and the others go on as if the lost had not been there.

The others' models are compared with what pooled training makes of their rows and of weights solved without the lost ones,
from the round on in which they were lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.backends.site import Site, sites_of
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import Request
from kinfed.deployment.server import sentences, write_result
from kinfed.federation import Federation
from kinfed.learners.base import site_learner
from kinfed.model import LAST_RUN, keep_model
from kinfed.result import Personalization
from question_sites import pooled
from score_tables import scores_in
from site_runs import Answer, KilledError, Unruly, generated, labelled, methods_of, parts_of, run, spec_of

TRAINING = {"moments", "derivatives", "local-training"}
KINDS = ("ridge", "logistic", pytest.param("torch", marks=pytest.mark.torch))
ROUNDS = 5
SOON = TimeoutPolicy(seconds=0.4)


class Leaving(Unruly):
    """Some agents die when a round of training begins; they come back, anew, at another round or question, or never.

    With `after`, they are back that many seconds after they died. The server may die, too, at an exchange.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        dying: Sequence[int],
        dies: int,
        returns: int | str | None = None,
        after: float = np.inf,
        server_dies: int = 0,
    ) -> None:
        super().__init__(sites, {})
        self._dying, self._dies, self._returns, self._after = [str(k) for k in dying], dies, returns, after
        self._server_dies, self.exchanges = server_dies, 0
        self.round, self._died = 0, np.inf

    def reachable(self) -> tuple[str, ...]:
        if time.monotonic() > self._died + self._after:
            self._revive()
        return super().reachable()

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        self.exchanges += 1
        if self.exchanges == self._server_dies:
            raise KilledError
        questions = {part.question for request in requests.values() for part in parts_of(request)}
        if questions & TRAINING:
            self.round += 1
            if self.round == self._dies:
                self.gone.update(self._dying)
                self._died = time.monotonic()
            elif self.round == self._returns:
                self._revive()
        if self._returns in questions:
            self._revive()
        return super().ask(requests, seconds)

    def _revive(self) -> None:
        """Back at the same address, having forgotten everything."""
        for address in self.gone:
            self._notes[address] = {}
        self.gone.clear()


def prepared(kind: str, n_agents: int = 4) -> tuple[Federation, Federation, Any]:
    train, test = generated(n_agents=n_agents, n=20)
    if kind == "ridge":
        return train, test, kinfed.make_learner("ridge", penalty=0.01)
    if kind == "logistic":
        return labelled(train), labelled(test), kinfed.make_learner("logistic", penalty=0.01)
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    how = {"method": "fedavg", "rounds": ROUNDS, "local_epochs": 2, "dtype": "float64", "learning_rate": 0.02}
    return train, test, TorchLearner(hidden=(4,), task="regression", **how)


def weights_of(found: Personalization, train: Federation, places: Sequence[int]) -> dict[str, np.ndarray]:
    """The rows of every method among some agents alone, from their points."""
    embedding = spec_of(found).embeddings[0]
    rows = spec_of(found).preparation.transform(train)
    points = [embedding(rows[k]) for k in places]
    solved = kinfed.weigh(kinfed.explicit_geometry(points, norm_bound=embedding.norm_bound), "q-aggregation").matrix
    sizes = train.sizes[list(places)]
    shares = np.tile(sizes / sizes.sum(), (len(places), 1))
    return {"local": np.eye(len(places)), "grand-mean": shares, "personalized": solved}


def expected(found: Personalization, train: Federation, learner: Any, lost: Sequence[int], since: int) -> dict[str, Any]:
    """Models of those left, by pooled training without the lost ones from round `since` on."""
    everybody = range(len(train))
    left = [k for k in everybody if k not in lost]
    rows = spec_of(found).preparation.transform(train)
    models = {}
    for name, after in weights_of(found, train, left).items():
        chosen = learner
        if getattr(learner, "name", "") == "torch":
            before = weights_of(found, train, everybody)[name]
            first = replace(learner, rounds=since - 1).fit(pooled(rows, learner), before)
            begun = {part: array[left] for part, array in first.parameters.items()}
            chosen = replace(learner, rounds=ROUNDS - since + 1, warm_start=begun)
        models[name] = chosen.fit(pooled(rows.select(left), learner), after)
    return models


def parameters(learner: Any, models: Any, rows: Sequence[int]) -> np.ndarray:
    return next(iter(site_learner(learner).pack(models, np.asarray(rows)).values()))


def check(found: Personalization, train: Federation, learner: Any, lost: Sequence[int], since: int) -> None:
    """Nobody has a model without its own rows; the others' are those of a run without the lost from that round on."""
    left = [k for k in range(len(train)) if k not in lost]
    names = [train.names[k] for k in lost]
    assert list(found.withheld) == names
    wanted = expected(found, train, learner, lost, since)
    for name, models in methods_of(found).items():
        ours = parameters(learner, models.models, range(len(left)))
        np.testing.assert_allclose(ours, parameters(learner, wanted[name], range(len(left))), atol=1e-6, rtol=0)
        with pytest.raises(kinfed.KinfedError, match=f"no model of agent {names[0]}: it was lost in training"):
            models.predict(lost[0], train[0].X)
    with pytest.raises(kinfed.KinfedError, match=f"no model of agent {names[0]}"):
        found.model(names[0])
    used, asked = found.weights.matrix, found.asked.matrix
    np.testing.assert_allclose(used[np.ix_(left, left)], weights_of(found, train, left)["personalized"], atol=1e-9)
    assert not used[list(lost)].any()
    assert not used[:, list(lost)].any()
    np.testing.assert_allclose(asked, weights_of(found, train, range(len(train)))["personalized"], atol=1e-9)
    assert found.scores.loc[names].isna().all(axis=None)
    there = found.scores.drop(index=names)
    assert there.notna().all(axis=None)
    assert found.compare("local").n_agents == len(left)
    assert found.compare("local").first_mean == pytest.approx(there["personalized"].mean())
    told = found.exchange.attendance.set_index("agent").loc[names, "what follows"].iloc[0]
    assert "no model in this run" in told


def last_round(kind: str) -> int | str:
    """When agents come back that take part in the tests again, after or in the last exchange before these."""
    return {"ridge": "own-weights", "logistic": 4, "torch": ROUNDS + 1}[kind]


def round_of(kind: str) -> int:
    """When agents die: moments are asked for once."""
    return 1 if kind == "ridge" else 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_lost_for_good(kind: str) -> None:
    train, test, learner = prepared(kind)
    channel = Leaving(sites_of(train, test, learner), [1], round_of(kind))
    check(run(channel, learner, timeouts=SOON), train, learner, [1], round_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_two_of_four_lost(kind: str) -> None:
    train, test, learner = prepared(kind)
    channel = Leaving(sites_of(train, test, learner), [0, 2], round_of(kind))
    check(run(channel, learner, timeouts=SOON), train, learner, [0, 2], round_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_one_lost_that_is_back_in_a_later_round_stays_out_of_the_training(kind: str) -> None:
    train, test, learner = prepared(kind)
    when = round_of(kind)
    channel = Leaving(sites_of(train, test, learner), [1], when, returns=when + 1)
    found = run(channel, learner, timeouts=SOON)
    check(found, train, learner, [1], when)
    asked = [question for address, question in channel.asked if address == "1"]
    later = asked[[place for place, one in enumerate(asked) if one in TRAINING][-1] + 1 :]
    assert not set(later) & TRAINING
    assert kind == "ridge" or "evaluation" in later


def home(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_one_lost_that_is_back_for_the_tests_keeps_the_model_it_had(kind: str, tmp_path: Path) -> None:
    train, test, learner = prepared(kind)
    sites = [replace(one, keep_model=partial(keep_model, tmp_path / one.name)) for one in sites_of(train, test, learner)]
    run(Unruly(sites, {}), learner)
    mine = tmp_path / train.names[1]
    before = home(mine)
    assert "A model was delivered" in before.pop(LAST_RUN).decode()
    found = run(Leaving(sites, [1], round_of(kind), last_round(kind)), learner, timeouts=SOON)
    check(found, train, learner, [1], round_of(kind))
    after = home(mine)
    told = after.pop(LAST_RUN).decode()
    assert after == before
    assert f"No model was delivered: agent {train.names[1]} was lost in training" in told
    others = (tmp_path / train.names[0] / LAST_RUN).read_text()
    trained, asked = (next(line for line in others.splitlines() if line.startswith(start)) for start in ("It was", "Asked"))
    assert f"{train.names[1]} " not in trained.removeprefix("It was trained on: ").replace("%", "")
    assert asked != trained
    kept = kinfed.load_model(tmp_path / train.names[0] / "model", learner=learner)
    assert kept.weights == pytest.approx(found.model(0).weights)
    assert train.names[1] not in kept.weights


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_back_in_time_is_asked_again_in_the_same_round(kind: str) -> None:
    train, test, learner = prepared(kind)
    sites = sites_of(train, test, learner)
    channel = Leaving(sites, [1], round_of(kind), after=0.1)
    found = run(channel, learner, timeouts=TimeoutPolicy(seconds=20))
    whole = run(Unruly(sites, {}), learner)
    assert found.withheld == {}
    assert found.asked is None
    assert found.exchange.attendance.empty
    for name, models in methods_of(whole).items():
        rows = range(len(train))
        np.testing.assert_array_equal(parameters(learner, methods_of(found)[name], rows), parameters(learner, models, rows))


def test_one_that_is_back_at_another_address_is_asked_again_in_the_same_round() -> None:
    train, test, learner = prepared("ridge")
    sites = sites_of(train, test, learner)

    class Moving(Leaving):
        def _revive(self) -> None:
            if self.gone == {"1"}:
                self._sites["moved"], self._notes["moved"] = self._sites["1"], {}

    channel = Moving(sites, [1], 1, after=0.1)
    found = run(channel, learner, timeouts=TimeoutPolicy(seconds=20))
    assert ("moved", "moments") in channel.asked
    assert found.withheld == {}
    np.testing.assert_array_equal(found.models.coefficients, run(Unruly(sites, {}), learner).models.coefficients)


def test_moments_that_are_there_are_used_whatever_becomes_of_their_agent() -> None:
    train, test, learner = prepared("ridge")

    class AfterMoments(Unruly):
        def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
            answers = super().ask(requests, seconds)
            if any(part.question == "moments" for one in requests.values() for part in parts_of(one)):
                self.gone.add("1")
            return answers

    sites = sites_of(train, test, learner)
    found, whole = run(AfterMoments(sites, {}), learner, timeouts=SOON), run(Unruly(sites, {}), learner)
    assert found.withheld == {}
    np.testing.assert_array_equal(found.models.coefficients, whole.models.coefficients)
    assert found.scores.loc[train.names[1]].isna().all()
    (absence,) = found.exchange.absences
    assert (absence.phase, absence.follows) == ("evaluation", "its models are not scored, and it keeps the model it had")


@pytest.mark.parametrize("kind", ["ridge", pytest.param("torch", marks=pytest.mark.torch)])
def test_what_was_asked_and_used_and_what_follows_is_written(kind: str, tmp_path: Path) -> None:
    train, test, learner = prepared(kind)
    channel = Leaving(sites_of(train, test, learner), [1], round_of(kind), last_round(kind))
    found = run(channel, learner, timeouts=SOON)
    write_result(found, tmp_path)
    lost = train.names[1]
    used, asked = (pd.read_csv(tmp_path / f"{name}.csv", index_col=0) for name in ("weights", "weights-asked"))
    np.testing.assert_allclose(used.to_numpy(), found.weights.matrix)
    np.testing.assert_allclose(asked.to_numpy(), found.asked.matrix)
    missed = pd.read_csv(tmp_path / "attendance.csv")
    assert list(missed.columns) == ["agent", "phase", "reason", "what follows"]
    assert missed["what follows"].str.contains("no model in this run").all()
    assert scores_in(tmp_path).loc[int(lost)].isna().all()
    again = kinfed.load(tmp_path, learner=learner)
    assert again.withheld == found.withheld
    np.testing.assert_array_equal(again.asked.matrix, found.asked.matrix)
    for name in train.names:
        if name != lost:
            np.testing.assert_array_equal(again.predict(name, test[name].X), found.predict(name, test[name].X))
    with pytest.raises(kinfed.KinfedError, match=f"no model of agent {lost}: it was lost in training"):
        again.model(lost)
    page = (tmp_path / "index.html").read_text()
    assert "no model in this run" in page
    assert f"agent {lost} has no model: it was lost in training" in " ".join(sentences(found))
    assert f"agent {lost} has no model" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_goes_on_without_those_that_were_lost(kind: str, tmp_path: Path) -> None:
    train, test, learner = prepared(kind)
    sites = sites_of(train, test, learner)
    whole = Leaving(sites, [1], round_of(kind))
    found = run(whole, learner, timeouts=SOON)
    for dies in range(2, whole.exchanges + 1):
        folder = tmp_path / str(dies)
        channel = Leaving(sites, [1], round_of(kind), server_dies=dies)
        with pytest.raises(KilledError):
            run(channel, learner, timeouts=SOON, folder=folder)
        if "1" not in channel.gone:
            continue  # it dies when the run goes on
        again = run(Unruly(sites, {}), learner, timeouts=SOON, folder=folder)  # it is back
        if not again.withheld:
            continue  # nobody had noticed yet
        for name, models in methods_of(found).items():
            ours, theirs = (parameters(learner, one.models, range(3)) for one in (methods_of(again)[name], models))
            np.testing.assert_allclose(ours, theirs, atol=1e-6 if kind == "logistic" else 1e-12, rtol=0)


@pytest.mark.slow
def test_a_calibration_keeps_its_choice_when_an_agent_is_lost() -> None:
    train, test = generated(n_agents=5, n=130)
    ridge = kinfed.make_learner("ridge", penalty=0.01)
    sites = sites_of(train, test, ridge)

    class AtTheEnd(Unruly):
        """It dies when the models are trained, after calibration."""

        def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
            parts = [part for one in requests.values() for part in parts_of(one)]
            if any(one.question == "moments" and "fold" not in one.settings for one in parts):
                self.gone.add("1")
            return super().ask(requests, seconds)

    found = run(AtTheEnd(sites, {}), ridge, "calibrated", timeouts=SOON)
    assert list(found.withheld) == [train.names[1]]
    assert found.weights.calibration.describe() == found.asked.calibration.describe()
    left = [0, 2, 3, 4]
    assert not found.weights.matrix[:, 1].any()
    np.testing.assert_allclose(found.weights.matrix[left].sum(axis=1), 1.0)
    assert found.asked.matrix[left, 1].any()


def test_a_newcomer_whose_rows_have_no_part_gets_no_model() -> None:
    train, test, learner = prepared("ridge")
    sites = sites_of(train, test, learner)

    class Late(Unruly):
        """The last agent comes late, and is gone when its model is trained."""

        def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
            answers = super().ask(requests, seconds)
            for address, request in requests.items():
                if address == "3" and request.question in ("columns", "moments"):
                    answers[address] = kinfed.backends.wire.Failure("it is busy")
            return answers

    found = run(Late(sites, {}), learner, timeouts=SOON)
    assert found.joined == {}
    (told,) = [one.reason for one in found.exchange.absences if one.phase == "onboarding"]
    assert "so it gets no model" in told
