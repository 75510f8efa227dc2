"""From a federation to personal models: choices, scores, newcomers, interruption."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.reporting import report_data

pytestmark = pytest.mark.xdist_group("pipeline")


@pytest.fixture(name="generated", scope="module")
def concept_shift_of_two_groups():
    return kinfed.concept_shift(n_agents=24, n=12, dim=4, spread=0.0, seed=1)


@pytest.fixture(name="result", scope="module")
def personal_models(generated):
    learner = kinfed.make_learner("ridge", penalty=0.01)
    return kinfed.personalize(generated.train, learner, "calibrated", generated.test(300, seed=2))


def test_scores_stand_beside_both_baselines(result, generated):
    assert list(result.scores.columns) == ["floor", "local", "grand-mean", "personalized"]
    assert tuple(result.scores.index) == generated.train.names
    assert result.metric == "mean squared error"
    against_local = result.compare("local")
    assert against_local.ratio < 0.9
    assert against_local.interval[0] < against_local.difference < against_local.interval[1] < 0
    assert against_local.better + against_local.equal + against_local.worse == pytest.approx(1)
    assert result.scores["personalized"].mean() == pytest.approx(against_local.first_mean)
    assert "better for" in str(result)
    assert np.isfinite(result.scores.to_numpy()).all()


def test_personal_models_are_the_weighted_minimisers(result):
    """The model of agent 0 against weighted least squares on the pooled, prepared rows."""
    X, y, agent = result.train.pooled()
    weight = (result.weights.matrix[0] / result.train.sizes)[agent]
    penalty = result.learner.penalty
    design = np.column_stack([X, np.ones(len(X))])
    penalised = (design * weight[:, None]).T @ design + penalty * np.diag([1.0] * X.shape[1] + [0.0])
    expected = np.linalg.solve(penalised, (design * weight[:, None]).T @ y)
    np.testing.assert_allclose(result.models.coefficients[0], expected, rtol=1e-8)
    assert weight.sum() == pytest.approx(1)


def test_where_nothing_crosses_there_is_nothing_to_audit(generated, tmp_path):
    log = tmp_path / "audit.jsonl"
    with pytest.raises(kinfed.InputError, match=r"nothing crosses where all rows are here, .* use backend='sites'"):
        kinfed.personalize(generated.train, rule="local", audit=log)
    assert not log.exists()
    kinfed.personalize(generated.train, rule="local", audit=log, backend="sites")
    assert log.read_text().count("\n") > len(generated.train)


def test_it_says_what_it_chose(result):
    told = "\n".join(result.choices)
    assert "chosen for the federation" in told
    told_words = ("(x, y)", "Gaussian kernel, bandwidth", "500 random Fourier features", "rule calibrated", "Ridge")
    for words in (*told_words, "chosen for the federation"):
        assert words in told


@pytest.mark.slow
def test_weights_come_before_any_training(result, generated):
    weights = kinfed.collaboration_weights(generated.train)
    np.testing.assert_array_equal(weights.matrix, result.weights.matrix)


@pytest.mark.parametrize("rule", sorted(kinfed.RULES.keys() - {"calibrated"}))  # see `result`
def test_every_rule_goes_all_the_way(generated, rule):
    result = kinfed.personalize(generated.train, rule=rule, test=generated.test(50, seed=3))
    assert result.settings.method == "weighted"
    assert np.isfinite(result.scores.to_numpy()).all()
    if rule in ("local", "grand-mean"):
        given = kinfed.make_learner("ridge", penalty=0.01)
        scores = kinfed.personalize(generated.train, given, rule, generated.test(50, seed=3)).scores
        np.testing.assert_allclose(scores["personalized"], scores[rule], rtol=1e-9)


def test_covariate_shift_looks_at_x_alone(generated):
    train = generated.train
    other = kinfed.Federation.from_arrays(*(lambda X, y, a: (X, -3 * y + 1, a))(*train.pooled()))
    by_x = [kinfed.collaboration_weights(f, "q-aggregation", shift="covariate").matrix for f in (train, other)]
    np.testing.assert_allclose(*by_x, atol=1e-12)  # the order of rows depends on y
    generated_shift = kinfed.covariate_shift(sizes=(6, 6, 8), seed=0)
    matrix = kinfed.collaboration_weights(generated_shift.train, "q-aggregation", shift="covariate").matrix
    groups = np.array(generated_shift.train.groups)
    within = matrix[groups[:, None] == groups].sum() / len(matrix)
    assert within > 0.8


def test_a_kernel_of_ones_own_and_the_exact_polynomial_map(generated):
    by_kernel = kinfed.collaboration_weights(generated.train, "q-aggregation", kernel=kinfed.Matern(2.0, 2.5))
    assert by_kernel.matrix.shape == (24, 24)
    result = kinfed.personalize(generated.train, rule="q-aggregation", kernel=kinfed.Polynomial())
    assert result.embeddings[0].features.n_features == 1 + 5 + 15
    assert "exact map with 21 coordinates" in "\n".join(result.choices)


def test_unsupervised_data_need_no_target(generated):
    from sklearn.cluster import KMeans

    X, _, agent = generated.train.pooled()
    federation = kinfed.Federation.from_arrays(X, None, agent)
    result = kinfed.personalize(federation, learner=KMeans(2, n_init=1), test=federation)
    assert result.scores.shape == (24, 3)
    assert "there is no target" in "\n".join(result.choices)


def test_a_newcomer_leaves_the_others_as_they_are(result, generated):
    before = result.models.coefficients.copy()
    later = kinfed.concept_shift(n_agents=24, n=12, dim=4, spread=0.0, seed=1).test(12, seed=9)
    newcomer = result.onboard(later[0].X, later[0].y, name="late")
    np.testing.assert_array_equal(before, result.models.coefficients)
    assert newcomer.weights.matrix.shape == (1, 25)
    groups = np.array([*generated.train.groups, generated.train.groups[0]])
    assert newcomer.weights.matrix[0][groups == groups[0]].sum() > 0.6
    many = generated.test(2000, seed=5)[0]
    error = np.mean((newcomer.predict(many.X) - many.y) ** 2)
    assert error < result.scores["local"].mean()
    with pytest.raises(kinfed.InputError, match="already an agent"):
        result.onboard(later[0].X, later[0].y, name=generated.train.names[0])
    with pytest.raises(kinfed.InputError, match="agent newcomer has one point"):
        result.onboard(later[0].X[:1], later[0].y[:1])


def test_raw_tables_are_prepared_on_training_data_alone():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "site": np.arange(120) % 6,
            "age": np.where(rng.random(120) < 0.1, np.nan, rng.normal(50, 10, 120)),
            "ward": rng.choice(["east", "west"], 120),
            "outcome": rng.normal(size=120),
        }
    )
    train, test = kinfed.Federation.from_table(table, target="outcome", agent="site").split(0.3, seed=0)
    result = kinfed.personalize(train, rule="q-aggregation", test=test)
    told = "\n".join(result.choices)
    assert "column age:" in told
    assert "missing" in told
    assert "column ward: one-hot encoded as east, west" in told
    assert result.predict("3", test["3"].X).shape == (len(test["3"]),)


@pytest.mark.slow
def test_two_runs_are_identical_to_the_bit(result, generated):
    again = kinfed.personalize(generated.train, kinfed.make_learner("ridge", penalty=0.01), "calibrated")
    assert again.weights.matrix.tobytes() == result.weights.matrix.tobytes()
    assert again.models.coefficients.tobytes() == result.models.coefficients.tobytes()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda g: kinfed.personalize(g.train, rule="best"), "rule 'best' is not known"),
        (lambda g: kinfed.personalize(g.train, learner="forest"), "learner 'forest' is not known"),
        (lambda g: kinfed.personalize(g.train, backend="quantum"), "backend 'quantum' is not known"),
        (lambda g: kinfed.personalize(g.train, shift="label"), "shift 'label' is not known"),
        (lambda g: kinfed.personalize(g.train, test=g.train.select([1, 0])), "same agents in the same order"),
        (lambda g: kinfed.personalize(g.train, rule="local").scores, "scores needs test data"),
        (lambda g: kinfed.personalize(g.train, rule="local").compare(), "compare needs test data"),
        (lambda g: kinfed.collaboration_weights(g.train, kernel="rbf"), "kernel 'rbf' is not known"),
    ],
)
def test_mistakes_are_named(generated, call, words):
    with pytest.raises(kinfed.KinfedError, match=words):
        call(generated)


def test_a_federation_without_target_cannot_learn_one(generated):
    X, y, agent = generated.train.pooled()
    with pytest.raises(kinfed.InputError, match="no target to learn"):
        kinfed.personalize(kinfed.Federation.from_arrays(X, None, agent))
    with pytest.raises(kinfed.InputError, match="no target"):
        kinfed.collaboration_weights(kinfed.Federation.from_arrays(X, None, agent), "q-aggregation", shift="concept")
    with pytest.raises(kinfed.InputError, match="there is no target to learn; use rule 'q-aggregation'"):
        kinfed.collaboration_weights(kinfed.Federation.from_arrays(X, None, agent))
    with pytest.raises(kinfed.InputError, match="target of agent 0 is not a number; for labels use learner 'logistic'"):
        kinfed.personalize(kinfed.Federation.from_arrays(X, np.where(y > 0, "up", "down"), agent), "ridge")


SLOW_RUN = """
    import sys, time
    import numpy as np
    import kinfed
    from sklearn.ensemble import RandomForestRegressor

    train = kinfed.concept_shift(n_agents=12, n=20, dim=4, spread=0.0, seed=1).train
    learner = RandomForestRegressor(n_estimators=10, random_state=0)

    def progress(what, done, total):
        print(what, done, total, flush=True)
        time.sleep(0.5 * what.startswith("personalized"))  # long enough to be killed in

    result = kinfed.personalize(train, learner=learner, checkpoint=sys.argv[1], progress=progress)
    grid = np.linspace(-2, 2, 20)[:, None] * np.ones(4)
    predictions = np.array([result.models.predict(row, grid) for row in range(12)])
    np.save(sys.argv[2], predictions)
"""


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_numbers(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SLOW_RUN))

    def start(folder, out):
        command = [sys.executable, str(script), str(tmp_path / folder), str(tmp_path / out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed = start("checkpoint", "unused.npy")
    for line in killed.stdout:
        if line.startswith("personalized") and int(line.split()[-2]) >= 1:
            break
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert not (tmp_path / "unused.npy").exists()

    began = time.perf_counter()
    resumed = start("checkpoint", "resumed.npy")
    assert resumed.communicate()[0]
    assert resumed.returncode == 0
    straight = start("other", "straight.npy")
    straight.communicate()
    assert straight.returncode == 0
    assert time.perf_counter() - began < 300
    first, second = np.load(tmp_path / "resumed.npy"), np.load(tmp_path / "straight.npy")
    assert first.tobytes() == second.tobytes()


def test_a_report_tells_what_the_result_holds(result, tmp_path):
    page = result.report(tmp_path / "new" / "folder", title="Agents & friends", settings={"seed": "0"}, command="kinfed x")
    assert page == tmp_path / "new" / "folder" / "index.html"
    text = page.read_text()
    assert "Agents &amp; friends" in text
    assert "kinfed x" in text
    story = report_data(result)
    np.testing.assert_array_equal(story.ties.matrix, result.weights.matrix)
    assert str(story.comparisons["grand-mean"]) == str(result.compare("grand-mean"))
    assert story.choices == tuple(result.choices)
    assert story.diagnosis["covariate"].p_value == kinfed.diagnose(result.train)["covariate"].p_value


def test_a_report_before_training_predicts(generated, tmp_path):
    found = kinfed.weighting(generated.train, "similarity-test")
    assert found.report(tmp_path).exists()
    story = report_data(found)
    assert not story.scored
    expected = kinfed.predict_gain(generated.train, "similarity-test")
    assert story.predicted.mean_gain == pytest.approx(expected.mean_gain)
    assert report_data(kinfed.weighting(generated.train, "gradient")).predicted is None  # models judge it, not embeddings


@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_groups_that_are_given_stand_in_the_report(generated, backend):
    count = len(generated.train)
    labels = [f"group {k % 2}" for k in range(count)]
    result = kinfed.personalize(generated.train, rule="oracle", groups=labels, backend=backend)
    assert report_data(result).groups == tuple(labels)
    assert not any("group 1" in sentence for sentence in result.choices)


def test_classes_are_no_broken_numbers(generated):
    with pytest.raises(kinfed.InputError, match=r"holds .*, which is no class; for numbers use learner 'ridge'"):
        kinfed.personalize(generated.train, learner="logistic")
