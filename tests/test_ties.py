"""Who counts in whose model, for the eye: overlaps, groups and maps of influence, and members in words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinfed
from kinfed.analysis.ties import Ties, overlap_groups, overlaps
from kinfed.priors.family import FAMILY, KIN, Member
from report_samples import weights_of


def drawn(count, seed, sparse=0.3):
    """Rows on the simplex, some entries zero; some agents hear nobody."""
    rng = np.random.default_rng(seed)
    matrix = rng.gamma(0.5, size=(count, count)) * (rng.random((count, count)) > sparse) + np.eye(count) * 0.1
    matrix[rng.random(count) < 0.2] = 0.0
    np.fill_diagonal(matrix, np.diagonal(matrix) + 0.1)
    return matrix / matrix.sum(axis=1, keepdims=True)


def blocks(sizes, own):
    """Agents that hear those of their block alike, and nobody else."""
    kind = np.repeat(np.arange(len(sizes)), sizes)
    others = (kind[:, None] == kind) * (1.0 - np.eye(len(kind)))
    counted = np.maximum(others.sum(axis=1, keepdims=True), 1.0)
    matrix = (1 - own) * others / counted + own * np.eye(len(kind))
    return matrix / matrix.sum(axis=1, keepdims=True), kind


@given(st.integers(1, 12), st.integers(0, 1000))
def test_overlaps_are_those_of_the_formula_and_their_distances_are_euclidean(count, seed):
    matrix = drawn(count, seed)
    found = overlaps(matrix)
    rows = []
    for t in range(count):
        others = [matrix[t, j] for j in range(count) if j != t]
        row = [max(others, default=0.0) or 1.0 if j == t else matrix[t, j] for j in range(count)]
        rows.append([value / sum(row) for value in row])
    for t in range(count):
        for k in range(count):
            assert found[t, k] == pytest.approx(sum(np.sqrt(a * b) for a, b in zip(rows[t], rows[k], strict=True)))
    centred = np.eye(count) - 1 / count
    assert np.linalg.eigvalsh(-centred @ (1 - found) @ centred / 2)[0] > -1e-9


@given(st.integers(2, 10), st.integers(0, 1000))
def test_groups_do_not_depend_on_the_order_of_agents(count, seed):
    matrix = drawn(count, seed)
    order = np.random.default_rng(seed).permutation(count)
    one, two = overlap_groups(matrix).labels[order], overlap_groups(matrix[np.ix_(order, order)]).labels
    together = (one[:, None] == one) & (one[:, None] >= 0)
    np.testing.assert_array_equal(together, (two[:, None] == two) & (two[:, None] >= 0))


@pytest.mark.parametrize("own", [0.05, 0.5, 0.95])
def test_agents_that_hear_each_other_are_a_group_however_much_they_hear_themselves(own):
    matrix, kind = blocks([5, 3, 1, 4], own)
    found = overlap_groups(matrix)
    assert found.sizes == (5, 4, 3)
    assert found.outliers.tolist() == [8]
    assert all(len(set(found.labels[kind == one].tolist())) == 1 for one in range(4))
    ties = Ties("influence", tuple(map(str, range(13))), np.full(13, 10), matrix)
    assert (np.abs(np.diff(kind[ties.order])) > 0).sum() == 3  # blocks stand together
    distance = np.linalg.norm(ties.chart.coordinates[:, None] - ties.chart.coordinates, axis=2)
    same = kind[:, None] == kind
    assert distance[same & ~np.eye(13, dtype=bool)].max() < 0.35


def test_ties_of_weights_are_those_of_all_agents_in_order():
    weights = weights_of(9, "similarity-test")
    ties = Ties.of_weights(weights)
    np.testing.assert_array_equal(ties.matrix, weights.matrix)
    np.testing.assert_array_equal(ties.own, weights.self_weight)
    np.testing.assert_array_equal(ties.squared_distances, weights.evidence.squared_distances)
    rng = np.random.default_rng(0)
    geometry = kinfed.explicit_geometry([rng.standard_normal((4, 2)) for _ in range(3)], targets=[2, 0, 1])
    with pytest.raises(kinfed.InputError, match="all agents in order"):
        Ties.of_weights(kinfed.weigh(geometry, "local"))


def test_an_agent_without_a_model_hears_nobody_and_has_no_own_part():
    matrix, _ = blocks([3, 2], 0.5)
    ties = Ties("influence", tuple("abcde"), np.full(5, 10), matrix).without(np.array([1]))
    assert np.isnan(ties.own).tolist() == [False, True, False, False, False]
    assert ties.heard(1, 5) == []
    assert ties.heard(0, 5) == [1, 2]


# Members in words


def test_members_have_names_of_their_own_in_words():
    words = [str(one) for one in (*FAMILY, *KIN)]
    assert len(set(words)) == len(words)
    kinds = {"learning alone", "one common model", "pulled to the common model", "random coefficients"}
    kinds.add("near single others")
    for member, told in zip((*FAMILY, *KIN), words, strict=True):
        kind = told.partition(",")[0]
        clusters = member.kind == "alike" or (member.kind == "random" and member.strength > 1)
        assert kind == f"{member.strength:g} clusters" if clusters else kind in kinds


@pytest.mark.parametrize(
    "member, words",
    [
        (Member("local", 0.3), "learning alone, penalty 0.3"),
        (Member("pull", 10.0), "pulled to the common model, strength 10"),
        (Member("random", 1, "full"), "random coefficients, correlated"),
        (Member("random", 3), "3 clusters, random coefficients within"),
        (Member("random", 3, "full"), "3 clusters, random coefficients within, correlated"),
        (Member("alike", 5), "5 clusters, one model each"),
        (Member("of one's own", 2.0), "of one's own, 2"),
    ],
)
def test_words_of_a_member(member, words):
    assert member.describe() == words
