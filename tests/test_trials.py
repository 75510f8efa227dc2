"""Calibration where points never meet: agents who weigh and judge by themselves come to the same choice."""

import numpy as np
import pytest

import kinfed
from kinfed.collaboration import Comparison
from kinfed.data import Preparation
from kinfed.federation import Federation
from kinfed.learners import Extent, make_learner
from kinfed.learners.plan import common_model
from kinfed.weights.calibration.calibrated import Views, calibrate, calibrated_weights, is_thrifty, mixed_weights
from kinfed.weights.calibration.family import geometric_bases, gradient_bases, used_views
from kinfed.weights.calibration.folds import deal_agent, fold_counts, some_points
from kinfed.weights.calibration.pooled import PooledTrials
from kinfed.weights.calibration.scores import KeptLosses, point_losses
from kinfed.weights.calibration.trials import AgentScores, Split
from kinfed.weights.geometry import geometry_of_means
from test_gradient import SeparateAgents


class Site:
    """One agent: nothing but its own points, and what it keeps between two questions."""

    def __init__(self, agent, place, embeddings, task, seed):
        self.agent, self.place, self.embeddings, self.task, self.seed = agent, place, embeddings, task, seed
        self.kept = KeptLosses.nothing(len(agent)).values

    def aside(self, split):
        if split is None:
            return np.zeros(len(self.agent), dtype=bool)
        return deal_agent(self.agent, split.folds, self.seed, split.repeat) == split.fold

    def train(self, split):
        return some_points(self.agent, ~self.aside(split))

    def sketch(self, split, view):
        points = self.embeddings[view](self.train(split)).astype(np.float64)
        return points.mean(axis=0), points.var(axis=0, ddof=1).sum() / len(points), len(points)

    def rows(self, split, wanted, sketches, names):
        """Its own weights, from everybody's sketches."""
        geometries = {}
        for view, told in sketches.items():
            means, scatter, sizes = (np.array(part) for part in zip(*told, strict=True))
            own = {self.place: self.embeddings[view](self.train(split))}
            bound = self.embeddings[view].norm_bound
            geometries[view] = geometry_of_means(names, means, scatter, sizes, own, np.array([self.place]), bound)
        sizes = np.array([n for _, _, n in next(iter(sketches.values()))])
        return geometric_bases(wanted, geometries, np.array([self.place]), sizes)

    def judge(self, split, models, rows, columns):
        aside = self.aside(split)
        y = None if self.agent.y is None else self.agent.y[aside]
        losses = point_losses(models, rows, self.agent.X[aside], y, self.task)
        self.kept = KeptLosses(self.kept).keep(split.repeat, aside, columns, losses).values
        return losses.mean(axis=0)


class SeparateTrials:
    """Trials where only training has everybody's points; a server holds what the agents tell."""

    def __init__(self, federation, embeddings, task, seed):
        self.names, self.columns, self.target = federation.names, federation.columns, federation.target
        self.task, self.seed = task, seed
        self.sites = [Site(agent, place, embeddings, task, seed) for place, agent in enumerate(federation)]
        self.sizes = federation.sizes
        self.numbers = {}

    @property
    def extent(self):
        labels = {label for site in self.sites for label in site.agent.y.tolist()} if self.task == "classification" else ()
        return Extent(len(self.columns), len(self.sizes), int(self.sizes.sum()), len(labels))

    def training_sizes(self, split):
        if split is None:
            return self.sizes
        counts = [
            fold_counts(name, int(n), split.folds, self.seed, split.repeat)[split.fold]
            for name, n in zip(self.names, self.sizes, strict=True)
        ]
        return self.sizes - np.array(counts)

    def judges(self, split):
        return np.flatnonzero(self.training_sizes(split) < self.sizes)

    def can_train(self, split):
        return self.task != "classification" or len({y for site in self.sites for y in site.train(split).y.tolist()}) > 1

    def train(self, split):
        return Federation(tuple(site.train(split) for site in self.sites), self.columns, target=self.target)

    def each(self, splits, judge, progress):
        for done, split in enumerate(splits, 1):
            judge(split)
            progress(done, len(splits))

    def bases(self, split, learner, wanted, targets, *, thrifty):
        wanted = list(dict.fromkeys(wanted))
        sketches = {view: [site.sketch(split, view) for site in self.sites] for view in used_views(wanted) or [0]}
        rows = [self.sites[t].rows(split, wanted, sketches, self.names) for t in targets.tolist()]
        found = {base: np.vstack([mine[base] for mine in rows]) for base in wanted if not base.learns}
        if any(base.learns for base in wanted):
            agents = SeparateAgents(self.train(split), learner, 500, self.seed)
            found |= gradient_bases(wanted, agents, targets, common=thrifty)
        return found

    def fit(self, split, learner, rows, targets, *, monitor=None, monitor_every=1):
        watched = {} if monitor is None else {"monitor": monitor, "monitor_every": monitor_every}
        return learner.fit(self.train(split), rows, targets=targets, seed=self.seed, **watched)

    def common(self, split, learner):
        return common_model(learner, self.train(split), seed=self.seed)

    def score(self, split, models, members, agents, *, tell=False):
        columns = [self.numbers.setdefault(member, len(self.numbers)) for member in members]
        told = {}
        for place, t in enumerate(agents.tolist()):
            rows = [number * len(agents) + place for number in range(len(members))]
            told[t] = self.sites[t].judge(split, models, rows, columns)
        return told if tell else {}

    def tally(self, members):
        return [KeptLosses(site.kept).scores([self.numbers[member] for member in members]) for site in self.sites]


def prepared(generated):
    return Preparation.fit(generated.train).transform(generated.train)


def two_classes():
    rng = np.random.default_rng(0)
    X, agent = rng.standard_normal((80, 2)), np.repeat(np.arange(5), [20, 4, 16, 20, 20])
    y = (X[:, 0] * np.where(agent % 2, 1, -1) + 0.5 * rng.standard_normal(80) > 0).astype(int)
    federation = kinfed.Federation.from_arrays(X, y, agent)
    return Preparation.fit(federation).transform(federation)


def cases(name):
    if name == "ridge":
        return prepared(kinfed.concept_shift(n_agents=8, n=(4, 15), dim=2, spread=0.1, seed=2)), make_learner("ridge")
    if name == "logistic":
        return two_classes(), make_learner("logistic")
    train = prepared(kinfed.covariate_shift(sizes=(2, 2, 2), n=15, seed=1))
    if name == "tree":
        from sklearn.tree import DecisionTreeRegressor

        return train, make_learner(DecisionTreeRegressor(max_depth=2, random_state=0))
    pytest.importorskip("torch")
    from kinfed.learners.neural import TorchLearner

    return train, TorchLearner(hidden=(3,), task="regression", epochs=40)


@pytest.mark.parametrize("name", ["ridge", "logistic", "tree", "torch"])
def test_agents_apart_choose_as_agents_in_one_place(name, monkeypatch):
    monkeypatch.setattr("kinfed.weights.calibration.scores.MOST_REPEATS", 2)
    train, learner = cases(name)
    embeddings = Comparison(n_features=40).embeddings(train, learner.task, "calibrated")[:3]
    views = Views.of(embeddings)
    everyone = np.arange(len(train))
    found, matrices = [], []
    for kind in (PooledTrials, SeparateTrials):
        trials = kind(train, embeddings, learner.task, 3)
        record = calibrate(trials, learner, views, folds=2, seed=3)
        found.append(record)
        matrices.append(calibrated_weights(trials, learner, record, everyone))
        alone = mixed_weights(trials, learner, record.mixture, np.array([1]), thrifty=record.thrifty)
        if record.choice.personal[1] == record.choice.chosen:
            np.testing.assert_allclose(alone[0], matrices[-1][1], atol=1e-9)
    pooled, separate = found
    assert pooled.thrifty == separate.thrifty == (name in ("tree", "torch"))
    assert pooled.members == separate.members
    assert pooled.choice.chosen == separate.choice.chosen
    np.testing.assert_array_equal(pooled.choice.personal, separate.choice.personal)
    np.testing.assert_allclose(pooled.choice.mean, separate.choice.mean, rtol=1e-9)
    np.testing.assert_array_equal(pooled.choice.shares, separate.choice.shares)
    np.testing.assert_allclose(matrices[0], matrices[1], atol=1e-9)
    assert pooled.describe() == separate.describe()


def test_cross_validation_asks_nobody_for_the_means_of_a_split():
    train, learner = cases("ridge")
    asked = []

    class Watched(PooledTrials):
        def score(self, split, models, members, agents, *, tell=False):
            asked.append(tell)
            told = super().score(split, models, members, agents, tell=tell)
            assert bool(told) == tell
            return told

    embeddings = Comparison(n_features=20).embeddings(train, "regression", "calibrated")[:1]
    for which in (learner, cases("tree")[1]):
        calibrate(Watched(train, embeddings, "regression"), which, Views.of(embeddings), folds=2)
        assert set(asked) == {which is not learner}
        asked.clear()


def test_an_agent_that_falls_silent_is_one_without_scores():
    train, learner = cases("ridge")

    class Silent(PooledTrials):
        def tally(self, members):
            told = super().tally(members)
            told[4] = AgentScores.of_losses(np.zeros((0, len(members))))
            return told

    embeddings = Comparison(n_features=20).embeddings(train, "regression", "calibrated")[:1]
    record = calibrate(Silent(train, embeddings, "regression"), learner, Views.of(embeddings), folds=2)
    assert np.isfinite(record.choice.mean).all()
    assert record.advice(4) == "too little data to say"
    assert record.personal(4) == "as the federation"


def test_an_extent_is_enough_to_know_what_is_quick():
    train, learner = cases("logistic")
    embeddings = Comparison(n_features=20).embeddings(train, "classification", "calibrated")[:1]
    trials, views = PooledTrials(train, embeddings, "classification"), Views.of(embeddings)
    assert trials.extent == Extent(2, 5, 80, 2)
    assert not is_thrifty(trials, learner, views, 5)
    assert is_thrifty(trials, learner, views, 10**9)
    assert learner.model_operations(Extent(2, 5, 80, 3)) == 3 * learner.model_operations(Extent(2, 5, 80, 2))
    assert is_thrifty(trials, cases("tree")[1], views, 5)
    with pytest.raises(kinfed.InputError, match="folds must be at least 2"):
        calibrate(trials, learner, views, folds=1)


def test_questions_about_any_split_in_any_order():
    train, _ = cases("ridge")
    trials = PooledTrials(train, [], "regression", 3)
    first, second = Split(0, 0, 3), Split(1, 2, 3)
    sizes = [trials.training_sizes(one).tolist() for one in (first, second, None, first)]
    assert sizes[0] == sizes[3] != sizes[1]
    assert sizes[2] == train.sizes.tolist()
    np.testing.assert_array_equal(trials.judges(second), np.flatnonzero(trials.training_sizes(second) < train.sizes))
