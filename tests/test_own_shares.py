"""Shares of an agent's own: folds in folds against plain loops, what they bring, and that they are the same everywhere."""

import numpy as np
import pytest
from scipy.special import softmax

import kinfed
from kinfed.backends.wire import Message
from kinfed.federation import Federation
from kinfed.learners import make_learner
from kinfed.methods.base import KeptAnswers
from kinfed.methods.crosswise import Crosswise
from kinfed.priors.family import CLUSTERED, RANDOM, Member
from kinfed.priors.judging import FOLDS, JudgedMembers
from kinfed.priors.own_shares import (
    STRENGTHS,
    OwnShares,
    StrengthLosses,
    member_scales,
    shares_of_agents,
    strength_losses,
)
from kinfed.splitting import deal_rows
from question_sites import pooled
from site_runs import same_models

MEMBERS = (*RANDOM, *CLUSTERED[:1], Member("local", 3.0), Member("common", 1.0))


def half_alike(seed, n_agents=40, rows=(10, 20), dim=8, classes=False):
    """Training and test rows of agents the first half of which are alike, while the others are like nobody."""
    rng = np.random.default_rng(seed)
    common = 1.2 * rng.standard_normal(dim) / np.sqrt(dim)
    parts = [[], []]
    for k in range(n_agents):
        own = 1.2 * rng.standard_normal(dim) / np.sqrt(dim)
        theta = common if k < n_agents // 2 else own
        for part, n in zip(parts, (rng.integers(*rows), 200), strict=True):
            X = rng.standard_normal((n, dim))
            mean = X @ theta
            y = (2 * mean + rng.logistic(size=n) > 0).astype(int) if classes else mean + 0.7 * rng.standard_normal(n)
            part.append((X, y))
    return [
        Federation.from_arrays(
            np.concatenate([X for X, _ in part]),
            np.concatenate([y for _, y in part]),
            np.repeat(np.arange(n_agents), [len(y) for _, y in part]),
        )
        for part in parts
    ]


@pytest.fixture(scope="module")
def fitted():
    """An agent, the priors of its group, and what is known of everybody."""
    train, _ = half_alike(0, n_agents=18)
    train = kinfed.Preparation.fit(train).transform(train)
    learner = make_learner("ridge")
    agents = pooled(train, learner)
    crosswise = Crosswise.asked(agents, learner, KeptAnswers(agents, None))
    group = int(crosswise.groups[3])
    return train[3], crosswise.fitted(MEMBERS, 0)[group].priors, learner, agents.spec


def posterior_mean(X, y, priors, member):
    """By the textbook: a mixture of conjugate posteriors, each solved with the inverse of the spread."""
    X = np.column_stack([X, np.ones(len(X))])
    spread, noise = priors.spread[member], priors.noise[member]
    logs, means = [], []
    for share, centre in zip(priors.shares[member], priors.centres[member], strict=True):
        covariance = noise * (np.eye(len(y)) + X @ spread @ X.T)
        left = y - X @ centre
        means.append(centre + spread @ X.T @ np.linalg.solve(covariance / noise, left))
        logs.append(np.log(share) if share else -np.inf)
        logs[-1] -= (np.linalg.slogdet(covariance)[1] + left @ np.linalg.solve(covariance, left)) / 2
    return softmax(logs) @ np.array(means)


def test_folds_in_folds_are_those_of_plain_loops(fitted):
    own, priors, learner, spec = fitted
    shares, typical = np.full(len(priors), 1 / len(priors)), 0.8
    found = strength_losses(own, priors, shares, typical, learner, spec)
    dealt = deal_rows(own.name, len(own), None, FOLDS, spec.seed, 0)
    points = np.column_stack([own.X, np.ones(len(own))])

    def errors(fold, *without):
        kept = ~np.isin(dealt, without)
        theta = np.array([posterior_mean(own.X[kept], own.y[kept], priors, m) for m in range(len(priors))])
        return points[dealt == fold] @ theta.T - own.y[dealt == fold, None]

    here = [errors(fold, fold) for fold in range(FOLDS)]
    scale = np.mean(np.concatenate([(one @ shares) ** 2 for one in here])) + typical
    told = []
    for strength in STRENGTHS:
        squares = 0.0
        for fold in range(FOLDS):
            seen = sum((errors(g, fold, g) ** 2).sum(axis=0) for g in range(FOLDS) if g != fold)
            squares += ((here[fold] @ softmax(np.log(shares) - strength * seen / scale)) ** 2).sum()
        told.append(2 * squares / scale / len(own))
    np.testing.assert_allclose(found, told, rtol=1e-8)


def test_shares_are_tempered_posterior_probabilities():
    rng = np.random.default_rng(1)
    losses, n, shares = rng.random((3, 4)), np.array([10.0, 0.0, 30.0]), rng.dirichlet(np.ones(4))
    judged = JudgedMembers(n, losses, np.zeros((3, 4)), np.zeros((3, 4, 4)))
    found = shares_of_agents(shares, judged, np.full(3, 2.0), 0.5)
    np.testing.assert_allclose(found[0], softmax(np.log(shares) - 0.5 * 10 * losses[0] / 2.0))
    np.testing.assert_allclose(found[1], shares)  # it judged nothing
    np.testing.assert_allclose(shares_of_agents(shares, judged, np.ones(3), 0.0), np.tile(shares, (3, 1)))
    assert member_scales(judged, shares, "classification")[0].tolist() == [1.0] * 3


def test_a_strength_has_to_be_better_than_none_for_sure():
    order = np.arange(30)
    noise = 0.2 * np.random.default_rng(0).standard_normal((30, 1))
    worse = 1 + noise * np.array(STRENGTHS) + 0.01 * np.array(STRENGTHS)
    better = 1 + noise * np.array(STRENGTHS) - 0.2 * np.array(STRENGTHS)
    assert StrengthLosses(np.full(30, 9.0), worse).strength(order) == 0.0
    assert StrengthLosses(np.full(30, 9.0), better).strength(order) == STRENGTHS[-1]
    assert StrengthLosses(np.full(30, 9.0), better).strength(order[::-1]) == STRENGTHS[-1]
    assert StrengthLosses(np.r_[9.0, 9.0, np.zeros(28)], better).strength(order) == 0.0  # two agents are too few


def test_without_structure_hardly_any_strength_is_chosen():
    """If c brought nothing, the least bound would be below zero in some 16 % of federations for each strength alone."""
    chosen = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        slope = rng.standard_normal((60, 1))  # strengths rise together
        chosen.append(StrengthLosses(np.full(60, 9.0), 1 + slope * np.array(STRENGTHS)).strength(np.arange(60)) > 0)
    assert np.mean(chosen) < 0.16 + 3 * np.sqrt(0.16 * 0.84 / 200)


@pytest.mark.slow
def test_where_half_are_alike_each_half_has_a_combination_of_its_own(monkeypatch):
    """The loss is that of one combination for all, and more; the half that is like nobody keeps to its own rows more."""
    ratios, apart = [], []
    for seed in range(4):
        train, test = half_alike(seed, n_agents=60)
        found = kinfed.personalize(train, "ridge", test=test, seed=seed, baselines=False)
        with monkeypatch.context() as patch:
            patch.setattr("kinfed.priors.own_shares.STRENGTHS", (0.0,))
            same = kinfed.personalize(train, "ridge", test=test, seed=seed, baselines=False)
        np.testing.assert_allclose(same.stacking.own_shares, np.tile(same.stacking.shares, (60, 1)))
        ratios.append(found.scores["personalized"].mean() / same.scores["personalized"].mean())
        alone = np.array([name.startswith("learning alone") for name in found.stacking.members])
        own = found.stacking.own_shares[:, alone].sum(axis=1)
        apart.append(own[30:].mean() - own[:30].mean())
    assert np.mean(ratios) < 0.99
    assert np.mean(apart) > 0.02


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_own_shares_are_the_same_wherever_rows_are_and_are_kept(learner, tmp_path, monkeypatch):
    monkeypatch.setattr(StrengthLosses, "strength", lambda self, order: 0.6)
    train, test = half_alike(3, n_agents=6, classes=learner == "logistic")
    found, apart = (
        kinfed.personalize(train, learner, test=test, seed=1, baselines=False, backend=backend)
        for backend in ("pooled", "sites")
    )
    own = found.stacking.own_shares
    assert np.abs(own - found.stacking.shares).max() > 0.01
    np.testing.assert_allclose(own.sum(axis=1), 1.0)
    np.testing.assert_allclose(apart.stacking.own_shares, own, atol=1e-6)
    same_models(apart.models, found.models, found.learner, 1e-6)
    found.save(tmp_path / "kept")
    np.testing.assert_allclose(kinfed.load(tmp_path / "kept").stacking.own_shares, own)


def test_impossible_answers_are_refused(fitted):
    _, priors, _, spec = fitted
    asked = OwnShares((priors,), np.zeros(18, dtype=int), np.full(len(priors), 1 / len(priors)), 1.0)
    good = np.ones(len(STRENGTHS))
    fault = [
        asked.fault(spec, 0, Message(), Message({"rows": rows}, {"losses": losses}))
        for rows, losses in ((5, good), (10**6, good), (5, good - 2))
    ]
    assert fault[0] is None
    assert "rows" in fault[1]
    assert "losses" in fault[2]
