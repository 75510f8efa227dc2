"""Agents as sites of their own: the same models as from pooled data, and nothing that should not cross."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.backends.agents import QUESTIONS
from kinfed.backends.site import InProcess, sites_of
from kinfed.backends.spec import FederationSpec
from kinfed.backends.wire import Failure, Message, Request, payload_bytes
from kinfed.deployment.server import write_result
from kinfed.federation import Agent, Federation
from kinfed.model import keep_model, load_model
from kinfed.reporting import report_data
from score_tables import scores_in
from site_runs import B, Recording, generated, labelled, run, same_models, spec_of


@pytest.mark.parametrize(
    "learner, rule",
    [
        ("ridge", "q-aggregation"),
        ("ridge", "entropic"),
        ("ridge", "similarity-test"),
        ("ridge", "james-stein"),
        ("ridge", "clusters"),
        ("ridge", "gradient"),
        ("ridge", "gradient-clusters"),
        ("logistic", "q-aggregation"),
    ],
)
def test_sites_and_pooled_data_give_the_same_models(learner: str, rule: str) -> None:
    train, test = generated()
    if learner == "logistic":
        train, test = labelled(train), labelled(test)
    pooled = kinfed.personalize(train, learner, rule, test, seed=2)
    sites = kinfed.personalize(train, learner, rule, test, seed=2, backend="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-9)
    np.testing.assert_allclose(sites.weights.risk, pooled.weights.risk, atol=1e-9)
    np.testing.assert_allclose(sites.weights.evidence.null_quantiles, pooled.weights.evidence.null_quantiles, atol=1e-9)
    assert sites.weights.stop == pooled.weights.stop
    same_models(sites.models, pooled.models, pooled.learner, 1e-6)
    for name in ("local", "grand-mean"):
        same_models(sites.baselines[name], pooled.baselines[name], pooled.learner, 1e-6)
    pd.testing.assert_frame_equal(sites.scores, pooled.scores, atol=1e-6)
    assert sites.exchange.attendance.empty
    assert sites.choices == pooled.choices


@pytest.mark.slow
def test_calibration_gives_the_same_choice_and_models() -> None:
    train, test = generated(n_agents=5, n=130, seed=4)
    pooled = kinfed.personalize(train, "ridge", "calibrated", test, seed=1)
    sites = kinfed.personalize(train, "ridge", "calibrated", test, seed=1, backend="sites")
    ours, theirs = sites.weights.calibration, pooled.weights.calibration
    assert ours.candidates == theirs.candidates
    assert ours.chosen == theirs.chosen
    np.testing.assert_array_equal(ours.choice.shares, theirs.choice.shares)
    np.testing.assert_allclose(ours.choice.mean, theirs.choice.mean, rtol=1e-9)
    assert sites.weights.advice == pooled.weights.advice
    same_models(sites.models, pooled.models, pooled.learner, 1e-6)


def test_raw_tables_with_text_and_gaps_are_prepared_alike() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "site": np.repeat(list("abcd"), 15),
            "age": np.where(rng.random(60) < 0.1, np.nan, rng.normal(50, 10, 60)),
            "sex": rng.choice(["f", "m", None], 60),
            "ward": rng.choice(["north", "south", "east"], 60),
            "unit": 1.0,
            "y": rng.normal(size=60),
        }
    )
    train = Federation.from_table(table, target="y", agent="site")
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", train)
    sites = kinfed.personalize(train, "ridge", "q-aggregation", train, backend="sites")
    assert sites.preparation.columns == pooled.preparation.columns
    np.testing.assert_allclose(sites.preparation.scale, pooled.preparation.scale, rtol=1e-12)
    same_models(sites.models, pooled.models, pooled.learner, 1e-9)


def test_columns_in_another_order_are_put_in_order() -> None:
    train, test = generated()
    sites = sites_of(train, test, kinfed.make_learner("ridge"))
    odd = sites[2].train
    turned = Federation((Agent(odd.names[0], odd[0].X[:, ::-1], odd[0].y),), odd.columns[::-1])
    turned_test = Federation((Agent(odd.names[0], sites[2].test[0].X[:, ::-1], sites[2].test[0].y),), odd.columns[::-1])
    sites[2] = replace(sites[2], train=turned, test=turned_test)
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", test)
    found = run(InProcess(sites))
    same_models(found.models, pooled.models, pooled.learner, 1e-9)


def test_oracle_groups_reach_the_agents() -> None:
    train, test = generated()
    groups = ["a", "b"] * (B // 2)
    pooled = kinfed.personalize(train, "ridge", "oracle", test, groups=groups)
    sites = kinfed.personalize(train, "ridge", "oracle", test, groups=groups, backend="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-12)


def test_the_polynomial_kernel_has_a_bound_all_agents_share() -> None:
    train, test = generated()
    kernel = kinfed.Polynomial(degree=2)
    pooled = kinfed.personalize(train, "ridge", "q-aggregation", test, kernel=kernel)
    sites = kinfed.personalize(train, "ridge", "q-aggregation", test, kernel=kernel, backend="sites")
    np.testing.assert_allclose(sites.weights.matrix, pooled.weights.matrix, atol=1e-9)


# ---------------------------------------------------------------- what crosses


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["q-aggregation", "calibrated", "gradient"])
def test_no_row_of_data_and_no_feature_of_a_point_leaves_a_site(rule: str) -> None:
    train, test = generated(n_agents=4, n=151)
    channel = Recording(sites_of(train, test, kinfed.make_learner("ridge")))
    found = run(channel, rule=rule)
    embeddings = spec_of(found).embeddings
    prepared = spec_of(found).preparation.transform(train)
    for address, request, reply in channel.crossed:
        assert isinstance(reply, Message), reply
        task = request.question
        agent, raw = prepared[int(address)], train[int(address)]
        secrets = [*raw.X.ravel(), *agent.X.ravel(), *raw.y]
        secrets += [value for one in embeddings for value in one(agent).ravel()]
        told = np.concatenate([np.asarray(array, dtype=float).ravel() for array in reply.arrays.values()] or [[]])
        assert not np.isin(told, np.array(secrets)).any(), task
        # No array has a row per point: what leaves does not grow with n.
        assert not any(len(agent.X) in array.shape for array in reply.arrays.values()), task


@pytest.mark.torch
def test_an_agent_is_sent_only_models_whose_targets_listen_to_it() -> None:
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    train, test = generated()
    learner = TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=2, batch_size=4)
    channel = Recording(sites_of(train, test, learner))
    found = run(channel, learner, "similarity-test", baselines=False)
    listened = (found.weights.matrix > 0).sum(axis=0)
    for address, request, _ in channel.crossed:
        if request.question == "local-training":
            assert len(request.arrays["theta"]) <= listened[int(address)]
    rounds = [address for address, request, _ in channel.crossed if request.question == "local-training"]
    assert len(rounds) == 2 * (listened > 0).sum()  # one message per agent and round


def test_every_byte_is_counted(tmp_path: Path) -> None:
    train, test = generated()
    channel = Recording(sites_of(train, test, kinfed.make_learner("ridge")))
    found = run(channel, audit=tmp_path / "audit.jsonl")
    traffic = found.exchange.traffic
    sent = sum(payload_bytes(request) for _, request, _ in channel.crossed)
    received = sum(payload_bytes(reply) for _, _, reply in channel.crossed)
    assert traffic.loc[traffic.direction == "to the agent", "bytes"].sum() == sent
    assert traffic.loc[traffic.direction == "to the server", "bytes"].sum() == received
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert sum(line.get("bytes", 0) for line in log) == sent + received
    sketches = traffic.query("phase == 'sketches' and direction == 'to the server'")
    features = spec_of(found).embeddings[0].features.n_features
    assert (sketches.bytes >= 8 * (features + 1)).all()
    assert (sketches.bytes <= 8 * (features + 1) + 200).all()


def test_an_agreement_reads_back_as_it_was_written() -> None:
    train, test = generated()
    found = run(
        InProcess(sites_of(labelled(train), labelled(test), kinfed.make_learner("logistic"))),
        kinfed.make_learner("logistic"),
    )
    text = spec_of(found).to_text()
    again = FederationSpec.from_text(text)
    assert again.to_text() == text
    assert again.classes.tolist() == ["high", "low", "middle"]
    with pytest.raises(kinfed.InputError, match="cannot be read"):
        FederationSpec.from_text(text[:-20])


def test_a_site_keeps_its_model_and_can_use_it(tmp_path: Path) -> None:
    train, test = generated()
    learner = kinfed.make_learner("ridge")
    sites = [replace(site, keep_model=partial(keep_model, tmp_path / site.name)) for site in sites_of(train, test, learner)]
    found = run(InProcess(sites))
    name = train.names[2]
    kept = load_model(tmp_path / name / "model")
    prepared = spec_of(found).preparation.transform(test)
    expected = found.models.predict(2, prepared[2].X)
    np.testing.assert_allclose(kept.predict(test[2].X), expected)
    assert kept.weights[name] == pytest.approx(found.weights.matrix[2, 2])
    with pytest.raises(kinfed.InputError, match="no model"):
        load_model(tmp_path / "nowhere")


def test_the_result_is_written_in_full(tmp_path: Path) -> None:
    train, test = generated()
    found = run(InProcess(sites_of(train, test, kinfed.make_learner("ridge"))))
    write_result(found, tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "weights.csv", index_col=0).shape == (B, B)
    scores = scores_in(tmp_path / "out")
    assert list(scores) == ["floor", "local", "grand-mean", "personalized"]
    again = kinfed.load(tmp_path / "out")
    np.testing.assert_array_equal(again.models.coefficients, found.models.coefficients)
    pd.testing.assert_frame_equal(again.exchange.traffic, found.exchange.traffic)
    assert pd.read_csv(tmp_path / "out" / "traffic.csv").bytes.sum() == found.exchange.traffic.bytes.sum()
    story = report_data(found)
    assert story.diagnosis is None  # the rows are at the sites
    assert story.comparisons["local"].first_mean == pytest.approx(scores["personalized"].mean())
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"Personal models of {B} sites" in page
    assert "<h2" in page


def test_learners_that_need_pooled_data_are_refused_before_anybody_is_asked() -> None:
    from sklearn.tree import DecisionTreeRegressor

    train, test = generated()
    with pytest.raises(kinfed.InputError, match="all points in one place"):
        kinfed.personalize(train, DecisionTreeRegressor(), "q-aggregation", test, backend="sites")


def test_every_task_answers_nonsense_with_one_sentence() -> None:
    train, test = generated()
    channel = InProcess(sites_of(train, test, kinfed.make_learner("ridge")))
    for task in [*QUESTIONS, "columns", "scale", "agree", "no such task"]:
        answer = channel.ask({"0": Request(task, {"agreement": "x"})}, 1.0)["0"]
        assert isinstance(answer, Failure), task
        assert "\n" not in answer.reason
