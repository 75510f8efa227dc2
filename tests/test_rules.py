"""One contract for every rule, and each rule against its formula."""

import numpy as np
import pytest

import kinfed
from conftest import embedded_agents
from kinfed.weights.objective import q_aggregation_problem
from kinfed.weights.weighing import geometric_rules

GROUPS = [0, 1, 2, 0, 1, 2, 0, 1, 2]


def options(rule, n_agents):
    return {"groups": (GROUPS * n_agents)[:n_agents]} if "groups" in kinfed.RULES[rule].needs else {}


@pytest.fixture(params=sorted(geometric_rules()))
def rule(request):
    return request.param


def unequal_agents(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 6)) / 3 + 0.4 * (k % 3) for k, n in enumerate((4, 9, 2, 30, 7, 12, 5, 3, 8))]


def test_rows_are_on_the_simplex(rule, kind):
    points = embedded_agents(kind, 12, 8, 4)
    weights = kinfed.weigh(kinfed.explicit_geometry(points), rule, **options(rule, 12))
    assert weights.matrix.shape == (12, 12)
    assert weights.matrix.dtype == np.float64
    assert (weights.matrix >= 0).all()
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0, rtol=1e-12)
    assert weights.rule == rule
    assert len(weights.stop) == 12
    np.testing.assert_array_equal(weights.self_weight, np.diag(weights.matrix))
    assert (weights.effective_sample_size >= weights.sizes.min() * (1 - 1e-9)).all()
    assert (weights.effective_sample_size <= weights.sizes.sum() * (1 + 1e-9)).all()


def test_agents_have_no_order(rule):
    points = unequal_agents()
    order = np.random.default_rng(1).permutation(9)
    straight = kinfed.weigh(kinfed.explicit_geometry(points), rule, **options(rule, 9))
    chosen = {name: [labels[k] for k in order] for name, labels in options(rule, 9).items()}
    permuted = kinfed.weigh(kinfed.explicit_geometry([points[k] for k in order]), rule, **chosen)
    np.testing.assert_allclose(permuted.matrix, straight.matrix[np.ix_(order, order)], atol=1e-7)


def test_some_targets_are_rows_of_all_targets(rule):
    points = unequal_agents()
    everyone = kinfed.weigh(kinfed.explicit_geometry(points), rule, **options(rule, 9))
    some = kinfed.weigh(kinfed.explicit_geometry(points, targets=[5, 0]), rule, **options(rule, 9))
    np.testing.assert_allclose(some.matrix, everyone.matrix[[5, 0]], atol=1e-9)
    np.testing.assert_allclose(some.risk, everyone.risk[[5, 0]], atol=1e-9)


def test_a_duplicated_agent_does_not_break_it(rule):
    points = unequal_agents()
    weights = kinfed.weigh(kinfed.explicit_geometry([*points, points[3]]), rule, **options(rule, 10))
    assert np.isfinite(weights.matrix).all()
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0, rtol=1e-12)
    if rule not in ("local", "oracle"):  # those two know an agent's identity, all others only its data
        embedding = np.array([Z.mean(axis=0) for Z in [*points, points[3]]])
        np.testing.assert_allclose((weights.matrix @ embedding)[3], (weights.matrix @ embedding)[9], atol=1e-6)


def test_copies_in_another_order_do_not_break_it(rule):
    """Means that differ by rounding alone."""
    base = unequal_agents()[0]
    points = [base[np.random.default_rng(k).permutation(len(base))] for k in range(5)]
    weights = kinfed.weigh(kinfed.explicit_geometry(points), rule, **options(rule, 5))
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1.0, rtol=1e-9)


def test_one_agent_listens_to_itself(rule):
    weights = kinfed.weigh(kinfed.explicit_geometry(unequal_agents()[:1]), rule, **options(rule, 1))
    np.testing.assert_allclose(weights.matrix, [[1.0]])


def test_scaling_all_points_changes_no_weights(rule):
    """Distances have no unit: only their ratio to the spread counts."""
    points = unequal_agents()
    small = kinfed.weigh(kinfed.explicit_geometry(points), rule, **options(rule, 9))
    large = kinfed.weigh(kinfed.explicit_geometry([1000 * Z for Z in points]), rule, **options(rule, 9))
    np.testing.assert_allclose(small.matrix, large.matrix, atol=1e-7)


def test_local_grand_mean_and_oracle():
    geometry = kinfed.explicit_geometry(unequal_agents())
    sizes = geometry.sizes
    np.testing.assert_array_equal(kinfed.weigh(geometry, "local").matrix, np.eye(9))
    np.testing.assert_allclose(kinfed.weigh(geometry, "grand-mean").matrix, np.tile(sizes / sizes.sum(), (9, 1)))
    oracle = kinfed.weigh(geometry, "oracle", groups=GROUPS).matrix
    kin = np.array(GROUPS) == 1
    np.testing.assert_allclose(oracle[1], kin * sizes / sizes[kin].sum())


def test_similarity_test_follows_its_formula():
    points = unequal_agents()
    matrix = kinfed.weigh(kinfed.explicit_geometry(points), "similarity-test", zeta=0.5, extra_self=0.25).matrix
    for t, target in enumerate(points):
        s_t = np.var(target, axis=0, ddof=1).sum() / len(target)
        kin = [k == t or kinfed.mmd2(target, Z) <= 0.5 * s_t for k, Z in enumerate(points)]
        expected = 0.75 * np.array(kin) * [len(Z) for Z in points]
        expected = expected / expected.sum() * 0.75
        expected[t] += 0.25
        np.testing.assert_allclose(matrix[t], expected)


def test_james_stein_follows_its_formula():
    points = unequal_agents()
    matrix = kinfed.weigh(kinfed.explicit_geometry(points), "james-stein").matrix
    means = np.array([Z.mean(axis=0) for Z in points])
    for t, target in enumerate(points):
        s_t = np.var(target, axis=0, ddof=1).sum() / len(target)
        dimension = kinfed.effective_dimension(target)
        shrink = s_t * max(0.0, 1 - 2 / dimension) / np.sum((means[t] - means.mean(axis=0)) ** 2)
        kept = max(0.0, 1 - shrink)
        np.testing.assert_allclose(matrix[t], kept * np.eye(9)[t] + (1 - kept) / 9)


def test_multi_task_averaging_follows_its_formula():
    points = unequal_agents()
    matrix = kinfed.weigh(kinfed.explicit_geometry(points), "multi-task-averaging").matrix
    means = np.array([Z.mean(axis=0) for Z in points])
    mean_variance = np.array([np.var(Z, axis=0, ddof=1).sum() / len(Z) for Z in points])
    distances = [np.sum((a - b) ** 2) for k, a in enumerate(means) for other, b in enumerate(means) if k != other]
    similarity = 2 / np.mean(distances)
    laplacian = 9 * np.eye(9) - np.ones((9, 9))
    np.testing.assert_allclose(matrix, np.linalg.inv(np.eye(9) + similarity / 9 * np.diag(mean_variance) @ laplacian))


def test_multi_task_averaging_of_equal_means_weighs_by_precision():
    wide, narrow = np.array([[-2.0], [2.0]]), np.array([[-1.0], [1.0]])
    matrix = kinfed.weigh(kinfed.explicit_geometry([wide, narrow]), "multi-task-averaging").matrix
    np.testing.assert_allclose(matrix, [[0.2, 0.8], [0.2, 0.8]])


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 100.0])
def test_entropic_weights_are_optimal(strength):
    geometry = kinfed.explicit_geometry(unequal_agents())
    weights = kinfed.weigh(geometry, "entropic", strength=strength, c_q=0.5, c_p=0.1)
    problem = q_aggregation_problem(geometry, 0.5, 0.1)
    prior, pull = geometry.sizes / geometry.sizes.sum(), strength * geometry.mean_variance

    def value(matrix):
        return problem.value(matrix) + pull * np.sum(matrix * np.log(matrix / prior), axis=1)

    np.testing.assert_allclose(weights.objective, value(weights.matrix), rtol=1e-9)
    assert (weights.gap <= 1e-8 * problem.alone).all()
    rng = np.random.default_rng(0)
    for concentration in (0.5, 5.0):
        for _ in range(20):
            other = rng.dirichlet(concentration * 9 * prior + 1e-3, 9) * 0.999 + 0.001 * prior
            mixed = 0.9 * weights.matrix + 0.1 * other
            assert (value(mixed) >= weights.objective - weights.gap - 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("strength", [1e-6, 1e9])
def test_entropic_weights_stop_by_themselves_at_any_strength(strength):
    weights = kinfed.weigh(kinfed.explicit_geometry(unequal_agents()), "entropic", strength=strength)
    assert not any("stopped after" in reason for reason in weights.stop)


def test_entropic_weights_run_from_the_grand_mean_to_the_exact_minimum():
    geometry = kinfed.explicit_geometry(unequal_agents())
    strong = kinfed.weigh(geometry, "entropic", strength=1e6).matrix
    np.testing.assert_allclose(strong, kinfed.weigh(geometry, "grand-mean").matrix, atol=1e-4)
    weak = kinfed.weigh(geometry, "entropic", strength=1e-4, c_q=0.5, c_p=0.1)
    exact = kinfed.weigh(geometry, "q-aggregation-exact", c_q=0.5, c_p=0.1)
    problem = q_aggregation_problem(geometry, 0.5, 0.1)
    np.testing.assert_allclose(problem.value(weak.matrix), exact.objective, rtol=2e-3)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda g: kinfed.weigh(g, "clairvoyant"), "rule 'clairvoyant' is not known; choose one of local"),
        (lambda g: kinfed.weigh(g, "oracle"), "rule 'oracle' needs groups"),
        (lambda g: kinfed.weigh(g, "oracle", groups=[1, 2]), "one label for each of the 9 agents"),
        (lambda g: kinfed.weigh(g, "oracle", groups=[np.nan] * 9), "group of agent 0 is missing"),
        (lambda g: kinfed.weigh([np.zeros((3, 2))], "local"), "weigh needs a Geometry"),
        (lambda g: kinfed.weigh(g, "gradient"), "rule 'gradient' trains models, and a geometry has no rows to train on"),
        (lambda g: kinfed.weigh(g, "local", zeta=1.0), "no local option; leave 'zeta' out"),
        (lambda g: kinfed.weigh(g, "similarity-test", zeta=-1.0), "zeta must not be negative"),
        (lambda g: kinfed.weigh(g, "entropic", strength=0.0), "strength must be positive"),
        (lambda g: kinfed.weigh(g, "q-aggregation", c_q=-1.0), "c_q must not be negative"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(kinfed.InputError, match=words):
        call(kinfed.explicit_geometry(unequal_agents()))


def test_a_result_reads_well():
    weights = kinfed.q_aggregation(unequal_agents())
    assert repr(weights).startswith("Weights(q-aggregation: 9 targets, 9 agents, median self weight ")
