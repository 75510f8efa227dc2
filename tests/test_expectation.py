"""What agents may expect to gain: shrinkage, what agents tell, the posterior of the gain, whole runs, and advice."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.expected_gain import Case, compared, interval_score, pure_noise
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

import kinfed
from kinfed.federation import Agent
from kinfed.learners import make_learner
from kinfed.learners.linear import class_losses
from kinfed.priors.expectation import LIKELY, ExpectedGain, predicted, shares_without
from kinfed.priors.judging import JudgedMembers
from kinfed.priors.normal import RowMoments
from kinfed.priors.own_gain import OwnGain, OwnGains, _of_classes, _of_squares, divergences, mixed, typical_rows
from kinfed.priors.stacking import Stack
from kinfed.weights.calibration.choice import AgentScores, choose
from kinfed.weights.calibration.family import JOIN, STAY, UNKNOWN
from kinfed.weights.shrinkage import shrunken
from question_sites import pooled
from site_runs import generated


def two_classes(federation):
    return replace(federation, agents=tuple(Agent(one.name, one.X, (one.y > 0).astype(int)) for one in federation))


# ---------------------------------------------------------------- shrinkage


def test_the_spread_between_agents_has_the_largest_restricted_likelihood():
    """By another solver, from the joint normal law of contrasts; and posteriors by conditioning it."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.2, 2.0, 40)
    found = 1.0 + rng.standard_normal(40) + np.sqrt(noise) * rng.standard_normal(40)
    contrasts = np.linalg.svd(np.ones((1, 40)))[2][1:]

    def unlikely(logarithm):
        covariance = contrasts @ np.diag(noise + np.exp(logarithm)) @ contrasts.T
        return -stats.multivariate_normal(np.zeros(39), covariance).logpdf(contrasts @ found)

    best = np.exp(optimize.minimize_scalar(unlikely, bounds=(-8, 4), method="bounded").x)
    got = shrunken(found, noise)
    assert got.between == pytest.approx(best, rel=0.15)  # a grid, twelve steps to a factor of ten
    wide = 1e4  # a flat prior of the mean
    prior = wide + got.between * np.eye(40)
    gain = prior @ np.linalg.inv(prior + np.diag(noise))
    np.testing.assert_allclose(got.mean, gain @ found, rtol=1e-3)
    np.testing.assert_allclose(got.variance, np.diag(prior - gain @ prior), rtol=1e-3)


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=12), st.integers(0, 100))
def test_whoever_knows_more_is_never_less_sure(noise, seed):
    found = np.random.default_rng(seed).standard_normal(len(noise))
    got = shrunken(found, np.array(noise))
    order = np.argsort(noise)
    # On the way to the mean the deviation may pass that of the mean, never that of the noise.
    assert (got.variance <= np.array(noise) + 1e-12).all()
    kept = got.between / (got.between + np.array(noise))
    assert (np.diff((kept * np.array(noise))[order]) >= -1e-12).all()


def test_agents_that_agree_or_are_alone_are_told_so():
    same = shrunken(np.full(6, 0.3), np.array([0.01, 0.1, 1.0, 1.0, 1.0, 5.0]))
    assert same.between == 0
    np.testing.assert_allclose(same.mean, 0.3)
    assert np.ptp(same.variance) == pytest.approx(0.0)
    one = shrunken(np.array([2.0]), np.array([0.5]))
    assert (one.mean[0], one.variance[0]) == pytest.approx((2.0, 0.5))


# ---------------------------------------------------------------- what agents tell


def spec_of(learner, dim=3):
    train = kinfed.concept_shift(4, 12, dim, seed=0).train
    return pooled(train if learner == "ridge" else two_classes(train), make_learner(learner)).spec


def test_divergences_are_squares_or_those_of_kullback_and_leibler():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 7, 1))
    np.testing.assert_allclose(divergences(first, second, spec_of("ridge")), (first - second)[:, 0] ** 2)
    probabilities = [np.column_stack([1 / (1 + np.exp(one)), 1 / (1 + np.exp(-one))]) for one in (first, second)]
    entropy = stats.entropy(*probabilities, axis=1)
    np.testing.assert_allclose(divergences(*map(class_losses, (first, second)), spec_of("logistic")), entropy, rtol=1e-9)
    members, share = np.stack([first, second], axis=1), np.array([0.3, 0.7])
    predicted = [mixed(members, one, spec_of("logistic")) for one in (share, share[::-1])]
    mixtures = [0.3 * probabilities[0] + 0.7 * probabilities[1], 0.7 * probabilities[0] + 0.3 * probabilities[1]]
    entropy = stats.entropy(*mixtures, axis=1)
    np.testing.assert_allclose(divergences(*predicted, spec_of("logistic")), entropy, rtol=1e-9)
    np.testing.assert_allclose(mixed(members, share, spec_of("ridge")), 0.3 * first + 0.7 * second)


def test_typical_rows_have_everybodys_second_moments():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.standard_normal((5, 40, 3)) * [1.0, 2.0, 0.5] + 0.3, np.ones((5, 40, 1))], axis=2)
    moments = X.swapaxes(1, 2) @ X
    mean = moments.sum(axis=0) / 200
    evidence = RowMoments.of(np.full(5, 40.0), moments, np.zeros((5, 4)), np.zeros(5))
    rows = typical_rows(evidence, spec_of("ridge"))
    np.testing.assert_allclose(rows.T @ rows / len(rows), mean, atol=1e-12)
    halved = RowMoments.of(np.full(5, 40.0), moments * 0.2, np.zeros((5, 4)), np.full(5, np.nan))
    drawn = typical_rows(halved, spec_of("logistic"))
    np.testing.assert_array_equal(drawn[:, -1], 1.0)
    np.testing.assert_allclose(drawn.mean(axis=0), mean[-1], atol=1e-12)  # rows are drawn in opposite pairs
    np.testing.assert_allclose(drawn.T @ drawn / len(drawn), mean, atol=0.25 * np.trace(mean) / 3)


def test_what_squares_expect_is_what_truths_drawn_from_the_posterior_have():
    """Moments of 20 000 draws are within five standard errors: 3e-6 to fail by chance."""
    rng = np.random.default_rng(0)
    typical, joined, alone = rng.standard_normal((6, 4)), rng.standard_normal(4), rng.standard_normal(4)
    root = rng.standard_normal((4, 4)) / 2
    truth = joined + rng.standard_normal((20000, 4)) @ root.T

    def loss(theta):
        return np.square((truth - theta) @ typical.T).mean(axis=1)

    apart, variance, excess, excess_variance = _of_squares(joined, alone, root @ root.T, typical)
    saved = loss(alone) - loss(joined)
    assert apart == pytest.approx(saved.mean(), abs=5 * saved.std() / 20000**0.5)
    assert variance == pytest.approx(saved.var(), rel=5 * (2 / 20000) ** 0.5)
    assert excess == pytest.approx(loss(joined).mean(), abs=5 * loss(joined).std() / 20000**0.5)
    assert excess_variance == pytest.approx(loss(joined).var(), rel=0.2)


def test_what_log_losses_expect_is_what_truths_drawn_from_the_posterior_have():
    """64 draws against 20 000: means within five standard errors, variances within a factor of three."""
    rng = np.random.default_rng(1)
    typical = np.column_stack([rng.standard_normal((50, 3)), np.ones(50)])
    each, root = rng.standard_normal((3, 4)), rng.standard_normal((4, 4)) / 2
    shares = np.array([[0.0, 0.0, 1.0], [0.4, 0.6, 0.0]])
    within = np.tile(root @ root.T, (3, 1, 1)) * np.array([1.0, 0.5, 0.0])[:, None, None]
    apart, variance, excess, excess_variance = _of_classes(each, shares, within, typical, 0)
    member = rng.choice(3, 20000, p=shares[1])
    moves = np.sqrt(np.array([1.0, 0.5, 0.0]))[member, None] * (rng.standard_normal((20000, 4)) @ root.T)
    likely = 1 / (1 + np.exp(-(each[member] + moves) @ typical.T))
    alone, joined = shares @ (1 / (1 + np.exp(-each @ typical.T)))

    def loss(given):
        return -(likely * np.log(given) + (1 - likely) * np.log(1 - given)).mean(axis=1)

    saved = loss(alone) - loss(joined)
    more = loss(joined) - loss(likely)
    assert 1 / 3 < variance / saved.var() < 3
    assert excess == pytest.approx(more.mean(), abs=5 * more.std() / 8)
    assert 1 / 3 < excess_variance / more.var() < 3
    both = [np.column_stack([1 - one, one]) for one in (joined, alone)]
    assert apart == pytest.approx(stats.entropy(*both, axis=1).mean())


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_agents_tell_ten_numbers_however_many_rows_they_have(learner):
    asked = []

    def recording(cls, site, message):
        answer = original(site, message)
        asked.append((len(site.own), sum(array.size for array in answer.arrays.values())))
        return answer

    original = OwnGain.answer
    train = kinfed.concept_shift(6, (3, 40), 2, seed=2).train
    train = train if learner == "ridge" else two_classes(train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnGain, "answer", classmethod(recording))
        kinfed.expected_gain(train, learner)
    assert len({rows for rows, _ in asked}) > 3
    assert {size for _, size in asked} == {10}


@pytest.mark.parametrize("quadratic", [True, False])
def test_shares_do_not_follow_whom_they_are_for(quadratic):
    rng = np.random.default_rng(0)

    def judged(seed):
        own = np.random.default_rng(seed).standard_normal((2, 30, 5))  # agents 4 and 5
        errors = np.concatenate([others, own * 3])
        second = 2 * errors.swapaxes(1, 2) @ errors / 30
        return JudgedMembers(np.full(6, 30.0), np.diagonal(second, axis1=1, axis2=2) / 2, second @ at, second)

    others, at = rng.standard_normal((4, 30, 5)), np.full(5, 0.2)
    aside = np.arange(6) >= 4
    kinds = np.array([0, 1]), np.arange(5)
    # Everybody's scale has the median of all in it; agents that are aside leave only that.
    found = [shares_without(aside, Stack(at, judged(seed), at, np.zeros(5)), kinds, False, 0) for seed in (1, 2)]
    np.testing.assert_allclose(found[0], found[1])
    shares = shares_without(aside, Stack(at, judged(1), at, np.zeros(5)), kinds, quadratic, 0)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(shares[0, 2:], 0.0)


# ---------------------------------------------------------------- the posterior of the gain


def tellings(count=12, seed=0, saved=1.0, n=20):
    """What agents of equal size would tell, of squared errors about two."""
    rng = np.random.default_rng(seed)
    joined = 2.0 + 0.2 * rng.standard_normal(count)
    apart = rng.uniform(0.5, 1.5, count)
    judged = np.column_stack([joined + saved * apart, joined, apart, apart, np.full(count, 8.0), np.full(count, 0.5)])
    final = np.column_stack([apart, 0.3 * apart, np.full(count, 0.4), np.full(count, 0.1)])
    return OwnGains(np.full(count, float(n)), judged, final)


def names(count):
    return tuple(f"agent {k}" for k in range(count))


def test_equal_evidence_is_equal_advice_whatever_the_size():
    """The largest agent is not told that nothing is clear where the smallest, on the same numbers, is told to join."""
    for level in np.linspace(0.0, 1.0, 9):
        told = tellings()
        told.judged[:] = told.judged[:1]
        told.final[:] = told.final[:1] * [level, 1.0, 1.0, 1.0]
        told = replace(told, n=np.geomspace(5, 5000, 12).round())
        found = predicted(told, names(12))
        assert len(set(found.advice)) == 1
        np.testing.assert_allclose(found.probability, found.probability[0])
        assert (np.diff(found.error) <= 1e-9).all()  # the more rows, the surer


def test_advice_follows_from_the_probability_alone():
    levels = np.array([0.0, 0.19, 0.21, 0.5, 0.79, 0.81, 1.0, np.nan])
    blank = np.zeros(8)
    found = ExpectedGain(names(8), blank, blank, blank, blank, 0.9, levels, 0.0, (0.0, 0.0))
    assert found.advice == (STAY, STAY, UNKNOWN, UNKNOWN, UNKNOWN, JOIN, JOIN, UNKNOWN)
    assert LIKELY == 0.8
    assert list(found.table["advice"]) == list(found.advice)
    assert "too little" not in " ".join(found.advice)


def test_the_posterior_is_that_of_draws():
    """Quantiles and mean of one agent against 200 000 draws of the model that the module states."""
    told = tellings(30)
    found = predicted(told, names(30))
    assert (found.low < found.gain).all()
    assert (found.gain < found.high).all()
    rng = np.random.default_rng(0)
    apart, variance, _, spread = told.final[3]
    loss = 2.0 - 0.1  # four fifths of the rows have a larger excess, by 0.1
    move = np.sqrt(variance) * rng.standard_normal(200000)
    rest = loss - variance / 4 / apart
    unknown = np.log1p(spread / 2 / rest**2)
    joined = rest * np.exp(np.sqrt(unknown) * rng.standard_normal(200000) - unknown / 2) + move**2 / 4 / apart
    gains = 1 - joined / (joined + apart + move)
    assert found.gain[3] == pytest.approx(gains.mean(), abs=0.02)
    assert found.low[3] == pytest.approx(np.quantile(gains, 0.05), abs=0.03)
    assert found.high[3] == pytest.approx(np.quantile(gains, 0.95), abs=0.03)
    assert found.probability[3] == pytest.approx((gains > 0).mean(), abs=0.01)


def test_rows_held_out_that_saved_less_than_expected_lower_the_gain():
    gains = [predicted(tellings(60, saved=saved), names(60)).mean for saved in (0.5, 1.0, 1.5)]
    assert gains == sorted(gains)
    assert gains[0] < gains[1] - 0.01


def test_who_tells_nothing_judges_nothing_or_is_not_heard():
    told = tellings()
    told.final[0] = np.nan
    told.judged[[0, 1]] = np.nan
    told.n[[0, 1]] = 0
    found = predicted(told, names(12), quiet=(2,))
    assert np.isnan(found.gain[0])
    assert found.advice[0] == UNKNOWN
    assert np.isfinite(found.gain[1])  # as the others are that have such models
    assert (found.gain[2], found.low[2], found.high[2], found.advice[2]) == (0.0, 0.0, 0.0, STAY)
    assert np.isfinite(found.mean)
    nobody = predicted(OwnGains(np.zeros(2), np.full((2, 6), np.nan), np.full((2, 4), np.nan)), names(2))
    assert "nothing can be said" in str(nobody)
    assert set(nobody.advice) == {UNKNOWN}


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
@pytest.mark.parametrize("method", ["stacked", "random-coefficients"])
def test_expectations_are_the_same_pooled_on_sites_before_training_and_from_a_file(learner, method, tmp_path):
    train, _ = generated()
    train = train if learner == "ridge" else two_classes(train)
    here, there = (kinfed.personalize(train, learner, method=method, backend=one) for one in ("pooled", "sites"))
    before = kinfed.expected_gain(train, learner, method)
    here.save(tmp_path / "run")
    read = kinfed.load(tmp_path / "run").expected
    for other in (there.expected, before, read):
        np.testing.assert_allclose(other.table.iloc[:, :5], here.expected.table.iloc[:, :5], atol=1e-6)
        assert other.advice == here.expected.advice
        assert (other.names, other.level) == (here.expected.names, 0.9)
        assert other.mean == pytest.approx(here.expected.mean, abs=1e-6)
    assert here.expected is here.stacking.expected
    assert str(here.expected.advice.count(JOIN)) in str(here.expected)


@pytest.mark.parametrize("learner, method", [("ridge", "weighted"), ("ridge", "local"), ("torch", "stacked")])
def test_methods_without_priors_expect_nothing(learner, method):
    options = {}
    if learner == "torch":
        pytest.importorskip("torch")
        options = {"task": "regression"}
    with pytest.raises(kinfed.InputError, match="makes no prediction"):
        kinfed.expected_gain(generated()[0], make_learner(learner, **options), method)


def test_who_is_alone_expects_nothing():
    train = generated(n_agents=1)[0]
    assert kinfed.personalize(train, "ridge", method="stacked").expected is None


def found_in(cases, learner="ridge"):
    """What agents of several federations were told, and their true gains."""
    tables = []
    for case in cases:
        for seed in range(3):
            expected, true = compared(case.generated(seed), learner, seed)
            tables.append(expected.table.assign(true=true, mean=expected.mean, end=expected.interval[1], case=case.name))
    return tables


@pytest.mark.slow
def test_intervals_cover_and_advice_is_right():
    """Nine federations of 40 agents.

    Bounds are loose: over 24 federations of 12 to 40 agents, on which constants were tuned, coverage was about 0.9 with a
    standard deviation of 0.08, so that a mean of nine is below 0.8 with a probability of about 1e-4.
    """
    shift = kinfed.concept_shift
    cases = [
        Case("groups", shift, {"n_agents": 40, "n": 15, "dim": 8, "spread": 0.1}),
        Case("sizes", shift, {"n_agents": 40, "n": (5, 100), "dim": 8, "spread": 0.25}),
        Case("unrelated", kinfed.no_structure, {"n_agents": 40, "n": 15, "dim": 8, "agents": "unrelated"}),
    ]
    tables = found_in(cases)
    covered = np.mean([((one["low"] <= one["true"]) & (one["true"] <= one["high"])).mean() for one in tables])
    assert 0.8 < covered < 0.99
    scores, constant = [], []
    for one in tables:
        scores.append(interval_score(one["low"], one["high"], one["true"]).mean())
        constant.append(interval_score(*np.quantile(one["true"], [0.05, 0.95]), one["true"]).mean())
    assert np.mean(scores) < np.mean(constant)
    true = np.concatenate([one["true"] for one in tables])
    join = np.concatenate([one["advice"] == JOIN for one in tables])
    assert (true[join] > 0).mean() > LIKELY  # what advice promises
    assert join[true > 0].mean() > 0.3


@pytest.mark.parametrize("learner", ["ridge", "logistic"])
def test_noise_is_expected_to_bring_what_a_common_mean_does(learner):
    """Outcomes that have nothing to do with the inputs: all that can be gained is a mean of more rows, 1/n of the loss.

    No error rate was measured for these bounds.
    """
    tables = found_in([Case("noise", pure_noise, {"n_agents": 20, "n": 40, "dim": 3})], learner)
    for one in tables:
        assert abs(one["gain"].mean() - one["true"].mean()) < 0.03
        assert abs(one["gain"].mean()) < 0.06
        assert STAY not in set(one["advice"])


# ---------------------------------------------------------------- advice of calibrated weights


def test_a_large_agent_that_knows_its_gain_is_told_to_join():
    """The federation's mean is uncertain, but this agent need not rely on it."""
    rng = np.random.default_rng(0)
    losses = []
    for t in range(13):
        n, gain = (20000, 0.03) if t == 12 else (8, rng.normal(0.3, 0.5))
        alone = 1.0 + 0.1 * rng.standard_normal(n)
        losses.append(np.column_stack([alone, alone - gain + 0.3 * rng.standard_normal(n)]))
    choice = choose([AgentScores.of_losses(mine) for mine in losses], 0, [[0, 1]] * 2, [True, False])
    assert choice.versus_local[12] < -5 * choice.versus_local_error[12]
    assert choice.versus_local_error[12] < np.median(choice.versus_local_error)


def test_equal_scores_are_equal_advice_whatever_the_size():
    rng = np.random.default_rng(0)
    losses = []
    for n in (5, 10, 50, 600):
        noise = rng.standard_normal((n, 2))
        noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)
        losses.append([1.0, 0.8] + 0.3 * noise)
    choice = choose([AgentScores.of_losses(mine) for mine in losses], 0, [[0, 1]] * 2, [True, False])
    np.testing.assert_allclose(choice.versus_local, -0.2, atol=1e-9)
    assert np.ptp(choice.versus_local_error) == pytest.approx(0.0, abs=1e-9)
