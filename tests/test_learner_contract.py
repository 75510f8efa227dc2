"""What every learner promises, tried on each of them."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as ScikitRidge
from sklearn.neighbors import KernelDensity
from sklearn.tree import DecisionTreeRegressor

from kinfed.errors import InputError
from kinfed.federation import Agent, Federation
from kinfed.learners import Logistic, Ridge
from kinfed.learners import pooled_risk as pooled_risk_module
from kinfed.learners import ridge as ridge_module
from kinfed.learners.scikit import ScikitLearner
from question_sites import fit

LEARNERS = {
    "ridge": Ridge(),
    "ridge without penalty": Ridge(penalty=0, intercept=False),
    "logistic": Logistic(penalty=0.05),
    "logistic l-bfgs": Logistic(penalty=0.05, solver="l-bfgs", intercept=False),
    "logistic three classes": Logistic(penalty=0.05, tolerance=1e-10),
    "scikit regressor": ScikitLearner(ScikitRidge()),
    "scikit tree": ScikitLearner(DecisionTreeRegressor(max_depth=3)),
    "scikit classifier": ScikitLearner(LogisticRegression(tol=1e-10, max_iter=1000)),
    "scikit density": ScikitLearner(KernelDensity(bandwidth=0.7)),
}
SIZES = np.array([14, 20, 11, 17, 25])
FRESH = np.random.default_rng(99).normal(size=(23, 3))

each_learner = pytest.mark.parametrize("name", LEARNERS)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several parts even in a small federation, so that an interruption falls between them."""
    monkeypatch.setattr(ridge_module, "_TARGET_BLOCK", 2 * 16)
    monkeypatch.setattr(pooled_risk_module, "_GATHERED_POINTS", 100)
    monkeypatch.setattr(pooled_risk_module, "_SHARED_ROWS", 2)


def make_federation(name, seed=0):
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.normal(size=(len(agent), 3))
    y = np.einsum("id,id->i", X, rng.normal(1, 0.5, size=(len(SIZES), 3))[agent]) + 0.5 * rng.normal(size=len(agent))
    if LEARNERS[name].task == "classification":
        y = np.digitize(y, [-0.5, 0.5]) if "three" in name else (y > 0).astype(int)
    return Federation.from_arrays(X, y, agent)


def weight_rows(seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(len(SIZES)), size=7)
    rows[3:5, 1] = 0.0  # a support that two rows share
    rows[5, [0, 4]] = 0.0
    rows[6, [1, 2]] = 0.0
    return rows / rows.sum(axis=1, keepdims=True)


def answers(models, row):
    """What can be seen of a model: probabilities, predictions or densities."""
    if hasattr(models, "predict_proba"):
        return models.predict_proba(row, FRESH)
    if hasattr(models, "estimators") and isinstance(models.estimators[row], KernelDensity):
        return models.estimators[row].score_samples(FRESH)
    return models.predict(row, FRESH)


def all_answers(models):
    return np.array([answers(models, row) for row in range(len(models))])


def edit(federation, k, **changes):
    agents = list(federation.agents)
    agents[k] = replace(agents[k], **changes)
    return Federation(tuple(agents), federation.columns)


@each_learner
def test_one_hot_rows_train_on_one_agent(name):
    learner, federation = LEARNERS[name], make_federation(name)
    together = fit(learner, federation, np.eye(len(SIZES)))
    assert len(together) == len(SIZES)
    for k in range(len(SIZES)):
        alone = fit(learner, federation.select([k]), np.ones((1, 1)))
        np.testing.assert_allclose(answers(together, k), answers(alone, 0), atol=1e-7)


@each_learner
def test_agents_of_weight_zero_never_matter(name):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    before = all_answers(fit(learner, federation, weights))
    rng = np.random.default_rng(7)
    for k in (1, 4):
        far = edit(federation, k, X=rng.normal(5, 30, size=(SIZES[k], 3)), y=rng.permutation(federation[k].y))
        after = all_answers(fit(learner, far, weights))
        untouched = weights[:, k] == 0
        np.testing.assert_array_equal(after[untouched], before[untouched])
        assert (after[~untouched] != before[~untouched]).any()


@each_learner
def test_permuting_agents_permutes_nothing_else(name):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    if "tree" in name:
        pytest.skip("a tree breaks ties between equal splits by the order of its rows")
    order = np.random.default_rng(3).permutation(len(SIZES))
    permuted = fit(learner, federation.select(order.tolist()), weights[:, order])
    np.testing.assert_allclose(all_answers(permuted), all_answers(fit(learner, federation, weights)), atol=1e-7)


@each_learner
def test_rows_do_not_depend_on_their_company(name):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    together = fit(learner, federation, weights)
    for row in range(len(weights)):
        alone = fit(learner, federation, weights[row : row + 1])
        assert len(alone) == 1
        np.testing.assert_allclose(answers(alone, 0), answers(together, row), atol=1e-7)


@each_learner
def test_equal_seeds_give_equal_models_to_the_bit(name):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    first, second = (fit(learner, federation, weights, seed=5) for _ in range(2))
    np.testing.assert_array_equal(all_answers(first), all_answers(second))


class Interruption(Exception):  # noqa: N818
    """Somebody pulls the plug."""


@each_learner
def test_an_interrupted_run_goes_on_and_ends_the_same(name, tmp_path):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    folder = tmp_path / "deep" / "checkpoint"
    expected = all_answers(fit(learner, federation, weights))

    def stop(what, done, total):
        if done >= total / 2:
            raise Interruption

    with pytest.raises(Interruption):
        fit(learner, federation, weights, checkpoint=folder, progress=stop)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert kept
    seen = []
    resumed = fit(learner, federation, weights, checkpoint=folder, progress=lambda *report: seen.append(report))
    np.testing.assert_array_equal(all_answers(resumed), expected)
    assert {path: (folder / path).stat().st_mtime_ns for path in kept} == kept
    assert seen[-1][1:] == (len(weights), len(weights))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert not list(folder.glob(".writing-*"))
    finished = fit(learner, federation, weights, checkpoint=folder)
    np.testing.assert_array_equal(all_answers(finished), expected)


@each_learner
def test_the_checkpoint_of_another_run_is_refused(name, tmp_path):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    fit(learner, federation, weights, checkpoint=tmp_path)
    moved = edit(federation, 0, X=federation[0].X + 1e-9)
    relabelled = edit(federation, 1, y=federation[1].y[::-1])
    other = {
        "ridge": Ridge(penalty=0.5),
        "logistic": Logistic(penalty=0.5),
        "scikit": ScikitLearner(ScikitRidge(alpha=0.3)),
    }[name.split()[0]]
    runs = [(learner, moved, weights), (learner, federation, weights[::-1])]
    if learner.task != "unsupervised":
        runs.append((learner, relabelled, weights))
        if other.task == learner.task:
            runs.append((other, federation, weights))
    for changed, data, rows in runs:
        with pytest.raises(InputError, match=str(tmp_path)):
            fit(changed, data, rows, checkpoint=tmp_path)


@each_learner
def test_a_damaged_checkpoint_is_told(name, tmp_path):
    learner, federation, weights = LEARNERS[name], make_federation(name), weight_rows()
    fit(learner, federation, weights, checkpoint=tmp_path)
    part = sorted(tmp_path.glob("part-*"))[0]
    part.write_bytes(part.read_bytes()[:20])
    with pytest.raises(InputError, match=f"{part.name}.* is damaged"):
        fit(learner, federation, weights, checkpoint=tmp_path)
    (tmp_path / "checkpoint.json").unlink()
    with pytest.raises(InputError, match=r"lost its checkpoint\.json"):
        fit(learner, federation, weights, checkpoint=tmp_path)


@each_learner
def test_what_is_kept_is_no_pickle(name, tmp_path):
    fit(LEARNERS[name], make_federation(name), weight_rows(), checkpoint=tmp_path)
    kept = list(tmp_path.glob("part-*"))
    assert {path.suffix for path in kept} == {".npz"}
    for path in kept:
        with np.load(path, allow_pickle=False) as stored:
            assert all(array.dtype.kind in "fiub" for array in stored.values())


def test_agents_are_kept_as_they_were_given():
    federation = make_federation("ridge")
    before = [agent.X.copy() for agent in federation]
    for name in LEARNERS:
        fit(LEARNERS[name], make_federation(name), weight_rows())
    fit(Ridge(), federation, weight_rows())
    assert all((agent.X == X).all() for agent, X in zip(federation, before, strict=True))
    assert isinstance(federation[0], Agent)
