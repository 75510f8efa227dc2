"""Calibration: folds, the family, scores, the choice and its resamples, successive halving, and what people are told."""

from dataclasses import replace

import numpy as np
import pytest

import kinfed
from kinfed.backends.agents import Fold
from kinfed.embedding import CLASS_CONDITIONAL, USUAL, X_ONLY, alternative_views, common_scale, own_scale
from kinfed.learners import make_learner
from kinfed.learners.base import USUAL_PLAN, Plan, common_model, fit_planned
from kinfed.run_setup import pooled_agents
from kinfed.settings import Settings
from kinfed.splitting import SMALLEST, deal_rows, fold_counts
from kinfed.weights.calibration.bases import base_matrices, geometric_bases
from kinfed.weights.calibration.choice import AgentScores, agent_scales, bootstrap_shares, choose, symmetric_root
from kinfed.weights.calibration.family import (
    GRAND_MEAN,
    LOCAL,
    BaseRule,
    Calibration,
    Candidate,
    budgeted_family,
    family,
    neighbours,
)
from kinfed.weights.calibration.losses import KeptLosses, point_losses
from kinfed.weights.result import evidence_of
from kinfed.weights.weighing import weigh_agents
from question_sites import fit, pooled


def classes_of(sizes, seed=0, n_classes=2):
    rng = np.random.default_rng(seed)
    X, y, agent = [], [], []
    for k, n in enumerate(sizes):
        X.append(rng.standard_normal((n, 2)))
        y.append((X[-1][:, 0] * (1 if k % 2 else -1) > 0).astype(int) + (X[-1][:, 1] > 0.5) * (n_classes - 2))
        agent.append(np.full(n, k))
    return kinfed.Federation.from_arrays(np.vstack(X), np.concatenate(y), np.concatenate(agent))


def deal_folds(federation, folds, seed, repeat=0):
    return [deal_rows(agent.name, len(agent), agent.y, folds, seed, repeat) for agent in federation]


# Folds


def test_every_point_is_set_aside_once_and_small_agents_keep_theirs():
    federation = classes_of((23, SMALLEST - 1, 5, 40))
    dealt = deal_folds(federation, 5, seed=0)
    assert [len(mine) for mine in dealt] == [23, 4, 5, 40]
    assert (dealt[1] == -1).all()
    assert sorted(dealt[2]) == [0, 1, 2, 3, 4]
    counts = np.bincount(dealt[0], minlength=5)
    assert counts.max() - counts.min() <= 1
    for t in (0, 3):
        for label in np.unique(federation[t].y):
            mine = np.bincount(dealt[t][federation[t].y == label], minlength=5)
            assert mine.max() - mine.min() <= 2  # classes are spread over the folds
    agents = pooled(federation, task="classification")
    kept = [agents.without(Fold(0, fold, 5)).rows for fold in range(5)]
    assert sum(23 - one.sizes[0] for one in kept) == 23
    assert all(one.sizes[1] == 4 for one in kept)
    again = deal_folds(federation, 5, seed=0)
    assert all((one == other).all() for one, other in zip(dealt, again, strict=True))
    assert any((one != other).any() for one, other in zip(dealt, deal_folds(federation, 5, 0, repeat=1), strict=True))


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_how_many_points_are_set_aside_is_known_without_them(folds):
    federation = classes_of((23, SMALLEST - 1, 5, 40, 6))
    for repeat in range(3):
        for agent, mine in zip(federation, deal_folds(federation, folds, 3, repeat), strict=True):
            expected = np.bincount(mine[mine >= 0], minlength=folds)
            np.testing.assert_array_equal(fold_counts(agent.name, len(agent), folds, 3, repeat), expected)


# The family


def test_too_few_rows_to_set_aside_are_kept():
    assert (deal_rows("a", 49, None, 5, 0, least=10) == -1).all()
    assert not fold_counts("a", 49, 5, 0, least=10).any()
    assert sorted(np.bincount(deal_rows("a", 52, None, 5, 0, least=10))) == [10, 10, 10, 11, 11]
    np.testing.assert_array_equal(fold_counts("a", 52, 5, 0, least=10), np.bincount(deal_rows("a", 52, None, 5, 0)))


def test_members_mix_own_data_by_size():
    sizes = np.array([5, 10, 30])
    base = np.full((3, 3), 1 / 3)
    candidate = Candidate(GRAND_MEAN, own=0.4)
    mixed = candidate.matrix(base, np.arange(3), sizes)
    np.testing.assert_allclose(mixed.sum(axis=1), 1.0)
    share = 1 - 3 * mixed[[0, 1, 2], [1, 2, 0]]
    odds = share / (1 - share)
    np.testing.assert_allclose(odds / sizes, odds[0] / sizes[0])
    average = candidate.matrix(base, np.arange(3), np.array([9, 9, 9]))
    np.testing.assert_allclose(1 - 3 * average[0, 1], 0.4)


def test_every_base_has_the_weights_of_its_rule():
    train = kinfed.concept_shift(n_agents=8, n=8, dim=3, spread=0.0, seed=0).train
    points = [np.column_stack([agent.X, agent.y]) for agent in train]
    geometry = kinfed.explicit_geometry(points)
    learner = make_learner("ridge")
    wanted = [
        LOCAL,
        GRAND_MEAN,
        BaseRule("q-aggregation", 100, 0),
        BaseRule("q-aggregation", 300, 0),
        BaseRule("entropic", 1.0, 0),
        BaseRule("similarity-test", 1.0, 0),
        BaseRule("clusters", 3, 0),
        BaseRule("gradient", 4.0),
        BaseRule("gradient-clusters", 2),
    ]
    everyone = np.arange(8)
    found = geometric_bases(wanted, {0: geometry}, everyone, train.sizes)
    assert not any(base.learns for base in found)
    agents = pooled(train, learner, embeddings=[kinfed.choose_embedding(train, n_features=20)])
    learned = [base for base in wanted if base.learns]
    found |= base_matrices(agents, learner, learned, everyone, budgeted=False)
    # Candidates are solved to a gap of 1e-4, so that is what the rules are asked for.
    expected = {
        LOCAL: kinfed.weigh(geometry, "local"),
        GRAND_MEAN: kinfed.weigh(geometry, "grand-mean"),
        BaseRule("q-aggregation", 100, 0): kinfed.weigh(geometry, "q-aggregation", steps=100),
        BaseRule("q-aggregation", 300, 0): kinfed.weigh(geometry, "q-aggregation", steps=300),
        BaseRule("entropic", 1.0, 0): kinfed.weigh(geometry, "entropic", strength=1.0, relative_gap=1e-4),
        BaseRule("similarity-test", 1.0, 0): kinfed.weigh(geometry, "similarity-test"),
        BaseRule("clusters", 3, 0): kinfed.weigh(geometry, "clusters", count=3),
        BaseRule("gradient", 4.0): weigh_agents(agents, "gradient", learner, {"relative_gap": 1e-4}),
        BaseRule("gradient-clusters", 2): weigh_agents(agents, "gradient-clusters", learner),
    }
    for base in wanted:
        np.testing.assert_allclose(found[base], expected[base].matrix, atol=1e-12, err_msg=base.rule)
    for t in (0, 5):  # an agent that weighs for itself
        own = kinfed.explicit_geometry(points, targets=[t])
        rows = geometric_bases(wanted, {0: own}, np.array([t]), train.sizes)
        for base, row in rows.items():
            np.testing.assert_allclose(row, expected[base].matrix[[t]], atol=1e-6, err_msg=base.rule)


def test_agents_may_move_to_other_shares_to_local_and_to_the_common_model():
    candidates = family(1, [0], gradients=False)
    assert candidates[0] == Candidate(LOCAL)
    assert len(set(candidates)) == len(candidates)
    moves = neighbours(candidates)
    place = candidates.index(Candidate(BaseRule("entropic", 1.0, 0), 0.4))
    reached = {candidates[other] for other in moves[place]}
    assert {Candidate(LOCAL), Candidate(GRAND_MEAN), Candidate(BaseRule("entropic", 1.0, 0))} <= reached
    assert Candidate(BaseRule("entropic", 0.1, 0)) not in reached
    assert not any(base.learns for base in (candidate.base for candidate in candidates))
    planned = [Candidate(LOCAL), Candidate(LOCAL, plan=Plan(True, 0.1)), Candidate(GRAND_MEAN, plan=Plan(True, 0.1))]
    assert neighbours(planned) == [[0], [1, 2], [1, 2]]


def test_views_follow_what_is_there_to_see():
    train = kinfed.concept_shift(n_agents=3, n=6, dim=2, seed=0).train
    numbers, classes = (common_scale(2, [own_scale(agent, labels) for agent in train]) for labels in (False, True))
    assert alternative_views(numbers, "auto")[0] == USUAL
    assert X_ONLY in alternative_views(numbers, "auto")
    assert CLASS_CONDITIONAL not in alternative_views(numbers, "auto")
    assert CLASS_CONDITIONAL in alternative_views(classes, "auto")
    assert X_ONLY not in alternative_views(numbers, "concept")
    assert not any(view.with_target for view in alternative_views(numbers, "covariate"))


def test_the_class_conditional_view_compares_within_classes():
    """Its kernel is that of x where labels agree and nothing where they differ."""
    train = classes_of((40, 40))
    embedding = kinfed.choose_embedding(train, labels=True, view=CLASS_CONDITIONAL)
    kernel = embedding.features.kernel
    z = embedding.raw_points(train[0])
    gram, same = kernel(z, z), train[0].y[:, None] == train[0].y
    on_x = kinfed.choose_embedding(train, shift="covariate").features.kernel
    by_x = on_x(train[0].X, train[0].X)
    np.testing.assert_allclose(gram, np.where(same, by_x, 0.0), atol=1e-12)


# Scores


def test_a_sure_mistake_costs_two_and_a_class_never_seen_one_more_than_nothing():
    train = classes_of((30, 30))
    models = fit(make_learner("logistic"), train, np.eye(2))
    losses = point_losses(models, [0, 1], train[0].X, train[0].y, "classification")
    assert losses.shape == (30, 2)
    assert (losses <= 2).all()
    np.testing.assert_allclose(losses[:, 1], 2 * (models.predict_proba(1, train[0].X)[:, 1] - train[0].y) ** 2)
    unseen = point_losses(models, [0], train[0].X, np.full(30, 7), "classification")
    assert (unseen >= 1).all()


def test_scores_are_moments_of_losses():
    losses = np.random.default_rng(0).gamma(2.0, size=(7, 4))
    scores = AgentScores.of_losses(losses)
    np.testing.assert_allclose(scores.mean, losses.mean(axis=0))
    np.testing.assert_allclose(scores.covariance, np.cov(losses.T, bias=True))
    np.testing.assert_allclose(scores.spread(1, 3), np.var(losses[:, 1] - losses[:, 3], ddof=1))
    nearly = AgentScores.of_losses(np.column_stack([losses[:, 0], losses[:, 0] * (1 + 1e-15)]))
    assert nearly.spread(0, 1) == 0
    losses[:, 2] = np.nan
    some = AgentScores.of_losses(losses)
    np.testing.assert_array_equal(np.isnan(some.mean), [False, False, True, False])
    np.testing.assert_array_equal(np.isnan(some.covariance), np.isnan(some.mean)[:, None] | np.isnan(some.mean))
    others = np.ix_([0, 1, 3], [0, 1, 3])
    np.testing.assert_allclose(some.covariance[others], scores.covariance[others])
    one, none = AgentScores.of_losses(losses[:1]), AgentScores.of_losses(losses[:0])
    assert (one.n, none.n) == (1, 0)
    np.testing.assert_array_equal(one.mean, losses[0])
    assert np.isnan(one.spread(0, 1))
    assert np.isnan(none.mean).all()


def test_losses_are_kept_by_point_and_averaged_over_repeats():
    rng = np.random.default_rng(0)
    first, second = rng.random((4, 3)), rng.random((4, 3))
    aside = np.array([True, False, True, False])
    kept = KeptLosses.nothing(4).keep(0, aside, [0, 1, 2], first[aside]).keep(1, aside, [0, 1, 2], second[aside])
    np.testing.assert_allclose(kept.scores([2, 0]).mean, ((first + second)[aside] / 2).mean(axis=0)[[2, 0]])
    assert kept.scores([0]).n == 2  # two points, judged twice each
    more = kept.keep(0, ~aside, [0, 1, 2], first[~aside])
    losses = np.where(aside[:, None], (first + second) / 2, first)
    np.testing.assert_allclose(more.scores([0, 1, 2]).covariance, np.cov(losses.T, bias=True))
    again = more.keep(0, ~aside, [1], np.zeros((2, 1)))  # what is judged again replaces what was kept
    losses[~aside, 1] = 0
    np.testing.assert_allclose(again.scores([0, 1, 2]).mean, losses.mean(axis=0))
    later = again.keep(0, aside, [4], np.ones((2, 1)))
    np.testing.assert_array_equal(np.isnan(later.scores([0, 3, 4, 9]).mean), [False, True, True, True])
    assert KeptLosses.nothing(4).scores([0, 1]).n == 0


# The choice


def losses_of(means, noise, n=40, agents=30, seed=0):
    """Losses of `agents` agents with those mean losses (M,) or (agents, M), and independent noise."""
    rng = np.random.default_rng(seed)
    means = np.broadcast_to(means, (agents, np.shape(means)[-1]))
    return [mine + noise * rng.standard_normal((n, means.shape[1])) for mine in means]


def told(losses):
    return [AgentScores.of_losses(mine) for mine in losses]


def scores_of(*args, **more):
    return told(losses_of(*args, **more))


def test_one_held_out_point_is_enough_to_take_part():
    losses = losses_of([2.0, 1.0], 0.3, agents=12)
    losses[4] = losses[4][:1]
    choice = choose(told(losses), 0, [[0, 1]] * 2, [True, False])
    assert np.isfinite(choice.versus_local).all()
    assert np.isfinite(choice.versus_local_error).all()


def test_the_best_on_average_is_chosen_for_all():
    choice = choose(scores_of([2.0, 1.0, 1.5], 0.3), 0, [[0, 1, 2]] * 3, [True, False, False])
    assert choice.chosen == 1
    np.testing.assert_allclose(choice.mean, [1.0, 0.5, 0.75], atol=0.02)
    assert choice.shares[1] > 0.999
    assert choice.error[1] == 0 < choice.error[2]
    assert (choice.versus_local < 0).all()


def test_chance_alone_moves_few_agents():
    """With no true differences between agents nobody should differ; the rule allows about one in six to be fooled."""
    moved = []
    for seed in range(20):
        choice = choose(scores_of([1.0, 1.0, 1.0, 1.1], 1.0, n=10, seed=seed), 0, [[0, 1, 2, 3]] * 4, [False] * 4)
        moved.append((choice.personal != choice.chosen).mean())
    assert np.mean(moved) < 0.16


def test_agents_that_truly_differ_go_their_own_way():
    means = np.tile([2.0, 1.0], (30, 1))
    means[:5] = [1.0, 2.0]
    choice = choose(scores_of(means, 0.3), 0, [[0, 1]] * 2, [True, False])
    assert choice.chosen == 1
    np.testing.assert_array_equal(choice.personal, [0] * 5 + [1] * 25)


def test_agents_without_scores_follow_and_nobody_means_local():
    losses = losses_of([2.0, 1.0], 0.1, agents=4)
    losses[2] = np.zeros((0, 2))
    choice = choose(told(losses), 0, [[0, 1]] * 2, [True, False])
    assert choice.personal[2] == choice.chosen == 1
    assert np.isnan(choice.versus_local[2])
    nobody = choose(told([np.zeros((0, 2))] * 3), 0, [[0, 1]] * 2, [True, False])
    assert nobody.chosen == 0
    np.testing.assert_array_equal(nobody.shares, [1.0, 0.0])


def test_candidates_that_were_given_up_are_not_chosen():
    losses = losses_of([2.0, 0.1, 1.0], 0.1, agents=6)
    for mine in losses[:3]:
        mine[:, 1] = np.nan
    choice = choose(told(losses), 0, [[0, 1, 2]] * 3, [True, False, False])
    assert choice.chosen == 2
    assert choice.shares[1] == 0
    assert np.isnan(choice.mean[1])


def test_what_cannot_be_told_apart_shares():
    losses = losses_of([1.0, 1.0, 1.05, 3.0, 1.0], 0.5)
    allowed = np.array([True] * 4 + [False])
    shares = bootstrap_shares(told(losses), np.ones(30), np.zeros(5), allowed, seed=0)
    np.testing.assert_allclose(shares.sum(), 1.0)
    assert min(shares[:2]) > 0.1
    assert shares[3] == shares[4] == 0
    sure = bootstrap_shares(scores_of([1.0, 2.0], 0.1), np.ones(30), np.zeros(2), np.array([True, True]), seed=0)
    np.testing.assert_array_equal(sure, [1.0, 0.0])
    with_margin = bootstrap_shares(
        scores_of([1.0, 1.01], 0.01), np.ones(30), np.array([0.03, 0.0]), np.array([True, True]), seed=0
    )
    np.testing.assert_array_equal(with_margin, [0.0, 1.0])
    alone = choose(scores_of([1.0, 0.99], 0.5), 0, [[0, 1]] * 2, [True, False], shared=False)
    assert alone.shares.max() == 1.0
    plans = ["a", "b", "b"]
    choice = choose(scores_of([1.0, 1.0, 1.0], 1.0, n=5), 0, [[0], [1, 2], [1, 2]], [True, False, False], plans)
    assert all(plans[place] == plans[choice.chosen] for place in np.flatnonzero(choice.shares))


def test_resamples_are_those_of_points_reweighted_at_random():
    """Shares of the Bayesian bootstrap over agents and points; both sides are frequencies of 4000 draws."""
    means = 1 + np.array([0.0, 0.02, 0.04, 0.1]) + 0.1 * np.random.default_rng(1).standard_normal((12, 4))
    losses = losses_of(means, 0.3, n=15, agents=12, seed=2)
    rng, unit = np.random.default_rng(5), np.linspace(1, 2, 12)
    agents, total = rng.dirichlet(np.ones(12), 4000), np.zeros((4000, 4))
    for t, mine in enumerate(losses):
        total += agents[:, [t]] / unit[t] * (rng.dirichlet(np.ones(15), 4000) @ mine)
    expected = np.bincount(total.argmin(axis=1), minlength=4) / 4000
    assert (expected > 0.01).all()
    found = np.mean(
        [bootstrap_shares(told(losses), unit, np.zeros(4), np.ones(4, dtype=bool), seed) for seed in range(10)], axis=0
    )
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(2 * 0.25 / 4000))


def test_rounding_and_turned_points_do_not_change_the_shares():
    losses = losses_of([1.0, 1.0, 1.02, 1.05, 1.1], 0.5, n=4)  # fewer points than candidates: no full rank
    scale, margin, allowed = np.ones(30), np.zeros(5), np.ones(5, dtype=bool)
    shares = bootstrap_shares(told(losses), scale, margin, allowed, seed=0)
    assert (shares > 0).sum() > 2
    rng = np.random.default_rng(0)
    turned = []
    for mine in losses:
        # Turning the points about their mean keeps means and covariances, up to rounding, and nothing else.
        basis, _ = np.linalg.qr(np.column_stack([np.ones(4), rng.standard_normal((4, 3))]))
        turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        turned.append(mine.mean(axis=0) + basis[:, 1:] @ turn @ basis[:, 1:].T @ mine)
    assert not np.allclose(turned[0], losses[0], atol=0.1)
    np.testing.assert_array_equal(bootstrap_shares(told(turned), scale, margin, allowed, seed=0), shares)


def test_the_first_of_equal_members_wins():
    losses = [np.column_stack([mine, mine * (1 + 1e-14)]) for mine in losses_of([1.0, 1.0], 0.5)]
    shares = bootstrap_shares(told(losses), np.ones(30), np.zeros(4), np.ones(4, dtype=bool), seed=0)
    assert (shares[:2] > 0.1).all()
    assert (shares[2:] == 0).all()
    choice = choose(told([mine[:, ::-1] for mine in losses]), 0, [range(4)] * 4, [False] * 4)
    assert choice.chosen in (0, 1)
    assert set(choice.personal) <= {0, 1}


def test_the_root_squared_is_the_covariance():
    rows = np.random.default_rng(0).standard_normal((3, 6))
    directions, lengths = symmetric_root(rows.T @ rows)
    assert directions.shape == (6, 3)
    root = directions * lengths @ directions.T
    np.testing.assert_allclose(root @ root, rows.T @ rows, atol=1e-12)
    assert symmetric_root(np.zeros((2, 2))).lengths.shape == (0,)


def test_no_agent_decides_alone():
    np.testing.assert_allclose(agent_scales(np.array([1.0, 2.0, 30.0]), np.ones(3)), [1.5, 2.0, 16.0])
    np.testing.assert_allclose(agent_scales(np.array([-1.0, 2.0, 3.0]), np.array([1.0, 2.0, 9.0])), [2.0] * 3)
    np.testing.assert_allclose(agent_scales(np.array([0.0, 0.0, 3.0]), np.ones(3)), [0.5, 0.5, 2.0])
    huge = losses_of([2.0, 1.0], 0.1, agents=9)
    huge[0] = 1000 * huge[0][:, ::-1]
    assert choose(told(huge), 0, [[0, 1]] * 2, [True, False]).chosen == 1


# The rule


@pytest.fixture(scope="module")
def grouped():
    return kinfed.concept_shift(n_agents=20, n=12, dim=3, spread=0.0, noise_variance=0.5, seed=2)


@pytest.fixture(scope="module")
def weighed(grouped):
    return kinfed.collaboration_weights(grouped.train, n_features=100)


@pytest.mark.slow
def test_kin_share_and_strangers_do_not(grouped, weighed):
    groups = np.array(grouped.train.groups)
    assert weighed.matrix[groups[:, None] == groups].sum() / 20 > 0.9
    assert weighed.rule == "calibrated"
    np.testing.assert_allclose(weighed.matrix.sum(axis=1), 1.0)
    assert weighed.plan == USUAL_PLAN
    strangers = kinfed.no_structure(n_agents=12, n=20, dim=3, agents="unrelated", noise_variance=0.1, seed=0)
    result = kinfed.personalize(strangers.train, test=strangers.test(300, seed=1), n_features=100)
    assert result.scores["personalized"].mean() < 1.05 * result.scores["local"].mean()


def test_every_choice_is_explained(grouped, weighed):
    found = weighed.calibration
    table = found.table
    assert list(table.columns) == ["score", "standard error", "share", "own choice of"]
    assert table["score"].is_monotonic_increasing
    assert table.index[0] == found.chosen
    assert table["score"].iloc[0] < 0.9 < table["score"].iloc[-1]
    assert table["share"].sum() == pytest.approx(1.0)
    sentences = "\n".join(found.describe())
    for words in ("chosen for the federation", "learning alone instead would cost +", "one common model instead", "join"):
        assert words in sentences
    assert "an agent shared" in sentences
    assert " of 100 numbers" in sentences
    assert (
        "its loss as a quadratic, of all its points, and then means and covariances of the candidates' losses" in sentences
    )
    price, error = found.price(found.local)
    assert price > 3 * error > 0
    assert weighed.advice.count("join") >= 0.9 * len(weighed.advice)
    assert "stay local" not in weighed.advice
    why = weighed.why("3", most=4)
    assert list(why.columns) == ["weight", "squared MMD", "null quantile", "differs"]
    assert why["weight"].is_monotonic_decreasing
    assert len(why) <= 4
    explanation = weighed.explanation
    assert list(explanation["advice"]) == list(weighed.advice)
    assert explanation.loc["3", "listens to"].split(" (")[0] in grouped.train.names
    with pytest.raises(kinfed.InputError, match="agent 'nobody' is not known"):
        weighed.why("nobody")


def test_the_record_repeats_itself_for_newcomers(grouped, weighed):
    learner = make_learner("ridge")
    agents = pooled_agents(grouped.train, None, learner, Settings(n_features=100))
    again = weigh_agents(agents, "calibrated", learner, targets=[4, 7], known=weighed.calibration)
    same = [t for t in (4, 7) if weighed.calibration.choice.personal[t] == weighed.calibration.choice.chosen]
    assert same
    for t in same:
        np.testing.assert_allclose(again.matrix[[4, 7].index(t)], weighed.matrix[t], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(12,), (12, 15), (3, 4), (30, 2, 30, 4, 30), (40, 40, 40)])
def test_small_federations_have_an_answer(sizes):
    federation = classes_of(sizes)
    weights = kinfed.collaboration_weights(federation, learner="logistic", n_features=50)
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0)
    if max(sizes) < SMALLEST or len(sizes) == 1:
        np.testing.assert_array_equal(weights.matrix, np.eye(len(sizes)))
    for t, n in enumerate(sizes):
        if n < SMALLEST:
            assert weights.advice[t] == "no clear difference"
            assert weights.calibration.personal(t) == "as the federation"


@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_agents_too_small_for_successive_halving_learn_alone(backend):
    """A fifth of nine rows is one row, which is never set aside where sums over the others leave."""
    pytest.importorskip("torch")
    train = kinfed.concept_shift(n_agents=4, n=9, dim=2, spread=0.1, seed=0).train
    network = kinfed.make_learner("torch", task="regression", method="fedavg", rounds=2, hidden=(2,))
    found = kinfed.personalize(train, network, backend=backend, n_features=20)
    np.testing.assert_array_equal(found.weights.matrix, np.eye(4))
    assert not found.weights.calibration.judged
    assert found.weights.calibration.describe()[0] == "nothing could be judged, so every agent learns alone"
    assert set(found.weights.advice) == {"no clear difference"}


@pytest.mark.slow
def test_a_class_an_agent_has_once_is_no_obstacle():
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((60, 2)), np.arange(60) % 3
    y = np.zeros(60, dtype=int)
    y[[0, 1]] = 1  # two of the three agents have the class, once each
    weights = kinfed.collaboration_weights(kinfed.Federation.from_arrays(X, y, agent), learner="logistic", n_features=50)
    assert np.isfinite(weights.matrix).all()


# Evidence


def test_the_null_quantile_keeps_its_level():
    """Two agents of one law, points in few directions: the test may reject one pair in twenty, 200 pairs were drawn."""
    rng = np.random.default_rng(0)
    scales = np.array([3.0, 1.0, 1.0, 0.5, 0.2])
    rejected = []
    for _ in range(200):
        geometry = kinfed.explicit_geometry([rng.standard_normal((25, 5)) * scales for _ in range(2)])
        rejected += evidence_of(geometry).differ[[0, 1], [1, 0]].tolist()
    assert np.mean(rejected) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    apart = kinfed.explicit_geometry([rng.standard_normal((25, 5)) * scales + shift for shift in (0.0, 3.0)])
    assert evidence_of(apart).differ[0, 1]


# Learners that are slow to train


class Counted:
    """Ridge without its speed: counts the different models it trains."""

    task = "regression"

    def __init__(self):
        self.models = 0

    def fit(self, agents, weights, *, targets=None, progress=None, checkpoint=None):
        self.models += len(np.unique(np.round(weights, 12), axis=0))
        return make_learner("ridge").fit(agents, weights)


@pytest.mark.parametrize("n_agents", [6, 30])
def test_halving_over_agents_costs_about_five_trainings(n_agents):
    generated = kinfed.concept_shift(n_agents=n_agents, n=15, dim=3, spread=0.0, noise_variance=0.5, seed=5)
    learner = Counted()
    weights = kinfed.collaboration_weights(generated.train, learner=learner, n_features=60)
    assert learner.models <= 6 * n_agents
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0)
    assert np.isfinite(weights.calibration.choice.mean[weights.calibration.local])
    groups = np.array(generated.train.groups)
    if n_agents == 30:
        assert weights.matrix[groups[:, None] == groups].sum() / 30 > 0.8


@pytest.mark.slow
def test_networks_are_halved_over_starts_and_lengths_within_their_budget():
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    trained = []

    class Watched(TorchLearner):
        def fit(self, agents, weights, **more):
            seen = more.pop("monitor", None)
            models, done = len(np.unique(weights, axis=0)), [0]

            def watch(epochs, models):
                done[0] = epochs
                if seen is not None and epochs % every == 0:
                    seen(epochs, models)

            every = more.pop("monitor_every", 1)
            try:
                return super().fit(agents, weights, monitor=watch, **more)
            finally:
                trained.append(models * done[0])  # also what was given up half-way

    generated = kinfed.covariate_shift(sizes=(6, 6, 8), n=20, seed=1)
    learner = Watched(hidden=(8,), task="regression", epochs=200, batch_size=20, steps_per_epoch=1)
    weights = kinfed.collaboration_weights(generated.train, learner=learner, n_features=60)
    # Clusters and the common model are few models each, but with 20 agents not negligible.
    # Weight decay takes one or two trainings more.
    assert sum(trained) <= 8.5 * 20 * 200
    plans = {candidate.plan for candidate in weights.calibration.candidates}
    assert {plan.warm for plan in plans} == {True, False}
    assert len({plan.share for plan in plans}) > 4
    again = kinfed.collaboration_weights(generated.train, learner=learner, n_features=60)
    assert again.matrix.tobytes() == weights.matrix.tobytes()
    result = kinfed.personalize(generated.train, learner, test=generated.test(100, seed=2), n_features=60)
    assert result.weights.plan == weights.plan
    least = min(result.scores["local"].mean(), result.scores["grand-mean"].mean())
    assert result.scores["personalized"].mean() < 1.1 * least


def test_a_plan_is_a_start_and_a_length():
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    generated = kinfed.covariate_shift(sizes=(2, 2, 2), n=10, seed=1)
    learner = TorchLearner(hidden=(4,), task="regression", epochs=40)
    agents = pooled(generated.train, learner, seed=3)
    start = common_model(learner, agents)
    shorter = TorchLearner(hidden=(4,), task="regression", epochs=10, warm_start=start)
    expected = shorter.fit(agents, np.eye(6))
    planned = fit_planned(learner, agents, np.eye(6), Plan(True, 0.25))
    X = generated.train[0].X
    np.testing.assert_array_equal(planned.predict(2, X), expected.predict(2, X))
    decayed = TorchLearner(hidden=(4,), task="regression", epochs=10, weight_decay=0.5).fit(agents, np.eye(6))
    planned = fit_planned(learner, agents, np.eye(6), Plan(False, 0.25, decay=0.5))
    np.testing.assert_array_equal(planned.predict(2, X), decayed.predict(2, X))
    assert learner.trained_for(1.0, decay=0.5).trained_for(1.0, decay=0.1).weight_decay == 0.5  # its own is more
    usual = fit_planned(learner, agents, np.eye(6), USUAL_PLAN)
    np.testing.assert_array_equal(usual.predict(1, X), learner.fit(agents, np.eye(6)).predict(1, X))
    rounds = TorchLearner(hidden=(4,), task="regression", method="fedavg", rounds=8).trained_for(0.5)
    assert (rounds.length, rounds.rounds) == (4, 4)
    with pytest.raises(kinfed.InputError, match="has no steps to share out"):
        fit_planned(make_learner("ridge"), agents, np.eye(6), Plan(True, 0.1))


def test_a_plan_may_go_on_with_own_rows():
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    generated = kinfed.covariate_shift(sizes=(2, 2, 2), n=10, seed=1)
    learner = TorchLearner(hidden=(4,), task="regression", epochs=40)
    agents, own = pooled(generated.train, learner, seed=3), np.array([4, 1])
    weights = np.full((2, 6), 1 / 6)
    kin = learner.trained_for(0.5).fit(agents, weights)
    X = generated.train[0].X
    for pull in (0.0, 3.0):
        tuned = TorchLearner(hidden=(4,), task="regression", epochs=10, warm_start=kin, proximal=pull)
        expected = tuned.fit(agents, np.eye(6)[own])
        found = fit_planned(learner, agents, weights, Plan(False, 0.5, own=0.25, pull=pull), targets=own)
        for row in range(2):
            np.testing.assert_array_equal(found.predict(row, X), expected.predict(row, X))
    assert str(Plan(True, 0.1, 0.02, 0.1)) == (
        "from a common model, 10% of the steps, then 2% on own rows, pulled back by 0.1"
    )
    assert str(Plan(decay=0.01)) == "from scratch, 100% of the steps, weight decay 0.01"


def test_networks_that_differ_go_on_with_own_rows():
    """Agents of one common slope with large deviations of their own: kin help, and own rows help after them."""
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    rng = np.random.default_rng(0)
    agents, slopes = np.repeat(np.arange(8), 40), 2 * rng.standard_normal((8, 3)) + 3
    X = rng.standard_normal((320, 3))
    y = (X * slopes[agents]).sum(axis=1) + 0.1 * rng.standard_normal(320)
    train = kinfed.Federation.from_arrays(X, y, agents)
    learner = TorchLearner(hidden=(8,), task="regression", epochs=100, learning_rate=0.01)
    calibration = kinfed.collaboration_weights(train, learner=learner, n_features=30).calibration
    scores = dict(zip(calibration.candidates, calibration.choice.mean, strict=True))
    tuned = {one: score for one, score in scores.items() if one.plan.own}
    assert {one.plan.pull for one in tuned} == {0.0, 0.1, 1.0}
    (kin,) = {replace(one, plan=replace(one.plan, own=0.0, pull=0.0)) for one in tuned}
    assert min(tuned.values()) < 0.9 * scores[kin]
    # One common model that goes on with own rows is none any more.
    assert calibration.common is None or not calibration.candidates[calibration.common].plan.own


def test_candidates_are_trained_as_long_as_they_were_scored():
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    generated = kinfed.covariate_shift(sizes=(2, 2, 3), n=15, seed=1)
    learner = TorchLearner(hidden=(3,), task="regression", epochs=33, patience=5)
    weights = kinfed.collaboration_weights(generated.train, learner=learner, n_features=30)
    for candidate in weights.calibration.candidates:
        assert learner.trained_for(candidate.plan.share).length == max(1, round(candidate.plan.share * 33))
    assert np.isfinite(weights.calibration.choice.mean).all()
    rounds = TorchLearner(hidden=(3,), task="regression", method="fedavg", rounds=7)
    assert np.isfinite(kinfed.collaboration_weights(generated.train, learner=rounds, n_features=30).matrix).all()


def test_slow_learners_without_judges_learn_alone():
    from sklearn.tree import DecisionTreeRegressor

    train = kinfed.concept_shift(n_agents=3, n=4, dim=2, seed=0).train
    weights = kinfed.collaboration_weights(train, learner=DecisionTreeRegressor(max_depth=1))
    np.testing.assert_array_equal(weights.matrix, np.eye(3))
    assert weights.calibration.describe()


def test_densities_are_calibrated_too():
    from sklearn.neighbors import KernelDensity

    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(3 * (k % 2), 1, (15, 2)) for k in range(8)])
    federation = kinfed.Federation.from_arrays(X, None, np.repeat(np.arange(8), 15))
    weights = kinfed.collaboration_weights(federation, learner=KernelDensity(), n_features=40)
    assert np.isfinite(weights.calibration.table["score"].iloc[0])
    assert weights.matrix[::2, ::2].sum() > 0.9 * 4


@pytest.mark.slow
def test_a_target_that_never_varies_is_no_obstacle():
    X, _, agent = kinfed.concept_shift(n_agents=4, n=10, dim=2, seed=0).train.pooled()
    weights = kinfed.collaboration_weights(kinfed.Federation.from_arrays(X, np.zeros(40), agent), n_features=30)
    assert weights.calibration.chosen == "local"
    assert not any("inf" in sentence or "nan" in sentence for sentence in weights.calibration.describe())


def test_fine_tuning_is_not_staying_local():
    losses = losses_of([1.0, 0.3], 0.05, agents=6)
    candidates = (Candidate(LOCAL), Candidate(LOCAL, plan=Plan(True, 0.1)))
    choice = choose(told(losses), 0, neighbours(candidates), [True, False], [one.plan for one in candidates])
    record = Calibration(candidates, ("x",), choice, "squared error", 0, ())
    assert {record.advice(t) for t in range(6)} == {"join"}


def test_one_judge_is_not_certain():
    losses = [np.zeros((0, 2)), losses_of([1.0, 0.9], 1.0, agents=1)[0]]
    assert choose(told(losses), 0, [[0, 1]] * 2, [True, False]).error.max() > 0.05


def test_the_budgeted_family_starts_with_what_costs_least():
    candidates = budgeted_family([0, 1], gradients=True)
    assert candidates[:2] == (Candidate(LOCAL), Candidate(GRAND_MEAN))
    assert len(set(candidates)) == len(candidates)
    assert {"clusters", "entropic", "gradient", "q-aggregation"} <= {candidate.base.rule for candidate in candidates}


def test_predictions_of_gain_are_for_rules_that_train_nothing():
    train = kinfed.concept_shift(n_agents=4, n=8, dim=2, seed=0).train
    with pytest.raises(kinfed.InputError, match="rule 'calibrated' is judged by models"):
        kinfed.predict_gain(train, "calibrated")
