"""Stacked priors: the simplex problem, who speaks in whose model, rows that were not seen, and whole runs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

import kinfed
from kinfed.federation import Agent, Federation
from kinfed.learners import make_learner
from kinfed.methods.base import MethodContext
from kinfed.methods.crosswise import Crosswise
from kinfed.methods.stacked import Stacked
from kinfed.priors.family import CLUSTERED, FAMILY, KIN, RANDOM, Member, margins
from kinfed.priors.judging import OutOfFold, agent_groups, out_of_fold_scores, told
from kinfed.priors.stacking import simplex_minimum, stacked_shares
from kinfed.splitting import deal_rows
from question_sites import pooled
from site_runs import generated, same_models

METHODS = ("stacked", "random-coefficients", "clustered-random-coefficients", "kin-prior")


def with_outcomes(federation, change):
    """The same agents with other outcomes, `change(agent)` of each."""
    return replace(federation, agents=tuple(Agent(one.name, one.X, change(one)) for one in federation))


def two_classes(federation):
    return with_outcomes(federation, lambda one: (one.y > 0).astype(int))


def federation(learner, n_agents=7, n=12, seed=0):
    """Prepared agents."""
    train = kinfed.concept_shift(n_agents, n, 3, spread=0.2, seed=seed).train
    train = train if learner == "ridge" else two_classes(train)
    return kinfed.Preparation.fit(train).transform(train)


def trained(train, members, learner="ridge", seed=0):
    """Models of a family, and what was found on the way, without a run around it."""
    chosen = make_learner(learner)
    context = MethodContext(pooled(train, chosen, seed=seed), chosen)
    return Stacked(tuple(members)).train(context, None), context.found["stacking"]


# ---------------------------------------------------------------- the simplex problem


def by_sequential_programming(curvature, slope):
    count = len(slope)
    return minimize(
        lambda w: w @ curvature @ w / 2 + slope @ w,
        np.full(count, 1 / count),
        jac=lambda w: curvature @ w + slope,
        bounds=[(0, None)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(count)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    ).x


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 1000), st.floats(-6, 6))
def test_the_minimum_on_the_simplex_is_one(count, rank, seed, magnitude):
    """By the Karush-Kuhn-Tucker conditions and by another solver; on curvatures of any rank and in any unit."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((rank, count))
    curvature, slope = 10.0**magnitude * factor.T @ factor, 10.0**magnitude * rng.standard_normal(count)
    found = simplex_minimum(curvature, slope)
    assert found.sum() == pytest.approx(1.0)
    assert found.min() >= 0.0
    gradient, scale = curvature @ found + slope, 10.0**magnitude * count
    # No direction leads down, and members with a share are level: the duality gap bounds how far the value is off.
    assert found @ gradient - gradient.min() < 1e-4 * scale
    other = by_sequential_programming(curvature / scale, slope / scale)
    value, best = (w @ curvature @ w / 2 + slope @ w for w in (found, other))
    assert value <= best + 1e-5 * scale


def test_members_that_are_nearly_alike_are_told_apart_as_far_as_it_matters():
    """Errors of a hundred rows by members that share all but a thousandth of them."""
    rng = np.random.default_rng(0)
    for step in (1e-2, 1e-4, 1e-6):
        errors = rng.standard_normal((100, 1)) + step * rng.standard_normal((100, 8))
        curvature = 2 * errors.T @ errors / 100
        found = simplex_minimum(curvature, np.zeros(8))
        best = by_sequential_programming(curvature, np.zeros(8))
        assert found @ curvature @ found <= (best @ curvature @ best) * (1 + 1e-6)
        assert found.min() >= 0


@pytest.mark.parametrize("quadratic", [True, False])
def test_a_member_that_is_best_for_everybody_has_nearly_all(quadratic):
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((10, 40, 4)) + np.array([0.0, 3.0, 3.0, 3.0])
    errors[..., 0] *= 0.1
    own = Federation.from_arrays(np.zeros((400, 1)), np.zeros(400), np.repeat(np.arange(10), 40))
    spec = pooled(own).spec
    asked = []

    def ask(shares):
        asked.append(shares)
        answers = {k: told(own[k], np.arange(40), errors[k][..., None], shares, spec) for k in range(10)}
        return OutOfFold((), np.arange(10), shares, 1).combine(spec, answers)

    stack = stacked_shares(ask, 4, np.arange(4), quadratic, 0)
    assert stack.shares[0] > 0.95
    assert stack.shares.sum() == pytest.approx(1.0)
    assert len(asked) == 1 if quadratic else len(asked) > 1


def test_members_that_are_not_simple_have_to_be_better_by_their_margin():
    """Two members whose errors are the same but for a factor: the second is 1 % better, its margin more or less."""
    rng = np.random.default_rng(0)
    errors = np.repeat(rng.standard_normal((10, 40, 1)), 2, axis=2) * np.sqrt([1.0, 0.99])
    own = Federation.from_arrays(np.zeros((400, 1)), np.zeros(400), np.repeat(np.arange(10), 40))
    spec = pooled(own).spec

    def ask(shares):
        answers = {k: told(own[k], np.arange(40), errors[k][..., None], shares, spec) for k in range(10)}
        return OutOfFold((), np.arange(10), shares, 1).combine(spec, answers)

    for margin, better in ((0.0, 1), (0.005, 1), (0.02, 0)):
        for unit in (1.0, 1e6):
            errors *= np.sqrt(unit)
            found = stacked_shares(ask, 2, np.arange(2), True, 0, np.array([0.0, margin])).shares
            assert found[better] > 0.99
            errors /= np.sqrt(unit)


def test_margins_are_of_members_that_are_not_simple_and_vanish_with_data():
    members = (*RANDOM, Member("local", 1.0), Member("alike", 2), *CLUSTERED)
    few, many = margins(members, 4, 80, 10), margins(members, 400, 8000, 10)
    np.testing.assert_allclose(few, 100 * many)
    assert (few[:3] == 0).all()
    assert (few[3:] > 0).all()
    assert (np.diff(few[5:]) > 0).all()


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_what_is_told_is_the_mean_loss_and_its_derivatives(learner):
    train = federation(learner)
    chosen = make_learner(learner)
    spec, own = pooled(train, chosen).spec, train[2]
    rng = np.random.default_rng(0)
    rows, scores, at = np.arange(12), rng.standard_normal((12, 3, 1)), rng.dirichlet(np.ones(3))

    def loss(shares):
        if learner == "ridge":
            return np.mean((scores[..., 0] @ shares - own.y) ** 2)
        likely = expit(np.where(own.y == 1, 1.0, -1.0)[:, None] * scores[..., 0])  # of the class that it is
        return -np.mean(np.log(likely @ shares))

    arrays = told(own, rows, scores, at, spec).arrays
    np.testing.assert_allclose(arrays["losses"], [loss(one) for one in np.eye(3)], rtol=1e-10)
    # Shares sum to one, so derivatives are those in the directions that keep the sum.
    along, size = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]]), 1e-4
    slopes = [(loss(at + size * one) - loss(at - size * one)) / 2 / size for one in along]
    np.testing.assert_allclose(along @ arrays["gradient"], slopes, atol=1e-6)
    for one in along:
        bend = (loss(at + size * one) - 2 * loss(at) + loss(at - size * one)) / size**2
        assert one @ arrays["curvature"] @ one == pytest.approx(bend, abs=1e-5)


# ---------------------------------------------------------------- rows that were not seen


@pytest.mark.parametrize("learner, n_agents", [("ridge", 6), ("ridge", 18), ("logistic", 6)])
def test_a_group_has_no_part_in_its_priors(learner, n_agents):
    train, chosen = federation(learner, n_agents), make_learner(learner)
    members = (*RANDOM, *CLUSTERED[:1], *KIN, Member("common", 1.0), Member("pull", 3.0))

    def crosswise(rows):
        agents = pooled(rows, chosen)
        return Crosswise.of(agents, chosen.quadratics(agents))

    def fitted(rows):
        found = crosswise(rows)
        np.testing.assert_array_equal(found.groups, groups)
        return [one.priors.arrays for one in found.fitted(members, 0)]

    groups = crosswise(train).groups
    assert sorted(groups) == sorted(agent_groups(n_agents, 0))
    rng, mine = np.random.default_rng(0), {train.names[k] for k in np.flatnonzero(groups == 2)}
    garbled = with_outcomes(train, lambda one: rng.permutation(one.y) if one.name in mine else one.y)
    before, after = fitted(train), fitted(garbled)
    for name, array in before[2].items():
        np.testing.assert_array_equal(after[2][name], array)
    for other in (0, 1, -1):
        assert any(not np.array_equal(after[other][name], array) for name, array in before[other].items())


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_the_score_of_a_row_does_not_depend_on_its_outcome(learner):
    train, chosen = federation(learner), make_learner(learner)
    agents = pooled(train, chosen)
    members = (*RANDOM, *CLUSTERED[:1], Member("local", 1.0), Member("common", 1.0))
    priors = Crosswise.of(agents, chosen.quadratics(agents)).fitted(members, 0)[0].priors
    scores = out_of_fold_scores(train[0], priors, 1, chosen, agents.spec)
    assert sorted(scores[:, 0]) == list(range(12))
    dealt = deal_rows(train[0].name, 12, None, 5, 0, 0)
    for row in (0, 5, 11):
        y = train[0].y.copy()
        y[row] = 1 - y[row] if learner == "logistic" else y[row] + 10
        again = out_of_fold_scores(Agent(train[0].name, train[0].X, y), priors, 1, chosen, agents.spec)
        np.testing.assert_array_equal(again[:, 0], scores[:, 0])
        unseen = dealt[scores[:, 0].astype(int)] == dealt[row]
        np.testing.assert_allclose(again[unseen], scores[unseen], atol=1e-10)
        assert np.abs(again[~unseen] - scores[~unseen]).max() > 1e-3


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
@pytest.mark.parametrize("method", METHODS)
def test_runs_are_the_same_wherever_rows_are_and_are_kept(learner, method, tmp_path):
    train, test = generated(n_agents=17 if method == "kin-prior" else 4, n=8)
    if learner == "logistic":
        train, test = two_classes(train), two_classes(test)
    found = kinfed.personalize(train, learner, test=test, method=method, seed=2, baselines=False)
    apart = kinfed.personalize(train, learner, test=test, method=method, seed=2, baselines=False, backend="sites")
    same_models(apart.models, found.models, found.learner, 1e-6)
    np.testing.assert_allclose(apart.influence, found.influence, atol=1e-6)
    np.testing.assert_allclose(found.influence.sum(axis=1), 1.0)
    assert found.influence.to_numpy().min() >= 0
    assert list(found.influence.index) == list(found.influence.columns) == list(train.names)
    assert found.stacking.shares.sum() == pytest.approx(1.0)
    covariance = found.models.covariance
    np.testing.assert_allclose(covariance, covariance.swapaxes(1, 2), atol=1e-12)
    assert np.linalg.eigvalsh(covariance).min() >= -1e-10 * np.abs(covariance).max()
    found.save(tmp_path / "kept")
    again = kinfed.load(tmp_path / "kept")
    for one in test:
        np.testing.assert_allclose(again.predict(one.name, one.X), found.predict(one.name, one.X), rtol=1e-12)
    np.testing.assert_allclose(again.models.covariance, covariance)
    np.testing.assert_allclose(again.influence, found.influence)


def test_few_agents_have_a_prior_of_kin():
    train, _ = generated()
    kinfed.personalize(train, "ridge", method="kin-prior")


def test_nobody_is_its_own_kin():
    """Among many agents every one begins with a prior that has no component about its own posterior mean."""
    train, chosen = federation("ridge", 18), make_learner("ridge")
    agents = pooled(train, chosen)
    crosswise = Crosswise.of(agents, chosen.quadratics(agents))
    fitted = crosswise.fitted((*KIN, *RANDOM), 0)
    priors, of = crosswise.final(fitted, np.array([0, 1]))
    np.testing.assert_array_equal(of, np.arange(18))
    component = np.argsort(crosswise.order)  # agents come by name
    for k, one in enumerate(priors):
        assert one.shares[0, component[k]] == 0
        assert one.shares[0].sum() == pytest.approx(1.0)
        np.testing.assert_array_equal(one.shares[1], fitted[-1].priors.shares[1])
    assert len(crosswise.final(fitted, np.array([1, 2]))[0]) == 1


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(lambda one: np.full(len(one), float(one.name[-1])), id="a constant of each agent"),
        pytest.param(lambda one: np.zeros(len(one)), id="zero"),
    ],
)
def test_outcomes_without_noise_are_learned(outcome):
    found = kinfed.personalize(with_outcomes(generated()[0], outcome), "ridge", method="stacked", baselines=False)
    assert np.isfinite(found.models.coefficients).all()


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_a_learner_without_intercept_has_none(learner):
    train = with_outcomes(generated()[0], lambda one: one.y + 2)
    train = train if learner == "ridge" else two_classes(train)
    found = kinfed.personalize(train, make_learner(learner, intercept=False), method="random-coefficients")
    np.testing.assert_allclose(found.models.coefficients[..., -1], 0.0, atol=1e-9)


def test_the_unit_of_the_outcome_does_not_matter():
    train = federation("ridge", 18)
    models, stacking = trained(train, FAMILY)
    scaled, same = trained(with_outcomes(train, lambda one: 1000 * one.y), FAMILY)
    np.testing.assert_allclose(scaled.coefficients, 1000 * models.coefficients, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(scaled.noise, 1e6 * models.noise, rtol=1e-6)
    np.testing.assert_allclose(scaled.covariance, 1e6 * models.covariance, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(same.influence, stacking.influence, atol=1e-6)
    assert same.members == stacking.members


@pytest.mark.xfail(strict=True, reason="rows are ordered by hashes of all they hold, so a unit deals other folds")
def test_the_unit_of_the_outcome_does_not_matter_to_a_run():
    train, _ = generated()
    scaled = with_outcomes(train, lambda one: 1000 * one.y)
    one, other = (kinfed.personalize(rows, "ridge", method="random-coefficients") for rows in (train, scaled))
    np.testing.assert_allclose(other.models.coefficients, 1000 * one.models.coefficients, rtol=1e-6, atol=1e-6)


def tuned_alone(train, test):
    """The least mean test error of learning alone with a penalty of slopes, which is chosen on the test rows."""
    errors = []
    for penalty in (0.3, 1.0, 3.0, 10.0):
        each = []
        for own, held in zip(train, test, strict=True):
            middle = own.X.mean(axis=0)
            away = own.X - middle
            slopes = np.linalg.solve(away.T @ away + penalty * np.eye(away.shape[1]), away.T @ own.y)
            each.append(np.mean((own.y.mean() + (held.X - middle) @ slopes - held.y) ** 2))
        errors.append(np.mean(each))
    return min(errors)


@pytest.mark.parametrize("setting", ["concept shift", "unrelated", "same"])
def test_stacking_is_as_good_as_what_suits_the_federation(setting):
    """Mean test errors of two federations of 40 agents with 15 rows.

    Over 36 others the error was 0.64 (standard deviation 0.04) of learning alone and 0.22 (0.10) of the grand mean under
    concept shift, 0.985 (0.014) of the best penalty of learning alone for unrelated agents, and 1.013 (0.014) of the grand
    mean for equal ones: means of two are on the wrong side with a probability below 1e-3.
    """
    errors = []
    for seed in range(2):
        if setting == "concept shift":
            generator = kinfed.concept_shift(40, 15, 8, spread=0.25, seed=seed)
        else:
            generator = kinfed.no_structure(40, 15, 8, agents=setting, seed=seed)
        test = generator.test(100)
        scores = kinfed.personalize(generator.train, "ridge", test=test, method="stacked", seed=seed).scores
        errors.append([*scores[["personalized", "local", "grand-mean"]].mean(), tuned_alone(generator.train, test)])
    stacked, local, grand_mean, tuned = np.mean(errors, axis=0)
    if setting == "concept shift":
        assert stacked < min(local, grand_mean)
    else:
        assert stacked < 1.05 * (tuned if setting == "unrelated" else grand_mean)
