"""Scales that one agent cannot move: plain on clean data, bounded otherwise; far cells; agents in other units."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinfed.data.plausibility import FEWEST_AGENTS, implausible
from kinfed.data.scales import (
    GRID,
    AgentScales,
    ColumnShapes,
    Yardstick,
    column_shapes,
    far_counts,
    far_limits,
    voices,
    weighted_quantile,
)

AGENTS, COLUMNS = 30, ("normal", "positive", "skewed", "heavy", "flags", "visits")


def columns(rng, n):
    """Cells of one agent: normal, positive, skewed, with heavy tails, of zeros and ones, and mostly zero."""
    shift = 0.2 * rng.standard_normal(6)
    z = rng.standard_normal((n, 6)) + shift
    visits = np.where(rng.random(n) < 0.7, 0.0, np.ceil(np.exp(z[:, 5])))
    heavy = rng.standard_t(3, n) + shift[3]
    return np.column_stack([z[:, 0], 10 + z[:, 1], np.exp(z[:, 2]), heavy, rng.random(n) < 0.3, visits])


def draw(seed, agents=AGENTS, n=30):
    rng = np.random.default_rng(seed)
    return [columns(rng, n) for _ in range(agents)]


def common(parts, believed=True):
    shapes = [column_shapes(part) for part in parts]
    scales = AgentScales.of(shapes)
    if believed:
        scales = scales.without(implausible(shapes, names(parts), COLUMNS)[1])
    return scales.common()


def names(parts):
    return [f"a{k}" for k in range(len(parts))]


def found(parts, called=COLUMNS, **how):
    return implausible([column_shapes(part) for part in parts], names(parts), called, **how)[0]


@given(arrays(np.float64, (12, 3), elements=st.sampled_from([0.0, 1.0, 2.5, -3.0, 7.0, np.nan])))
def test_what_an_agent_tells_adds_up_to_its_cells(X):
    shapes = column_shapes(X)
    assert (shapes.count == (~np.isnan(X)).sum(axis=0)).all()
    assert (shapes.core.count <= shapes.rest.count).all()
    for j in range(3):
        cells = [Fraction(value) for value in X[:, j] if not np.isnan(value)]
        if cells:
            mean = sum(cells) / len(cells)
            assert shapes.sums.mean[j] == pytest.approx(float(mean))
            assert shapes.sums.squares[j] == pytest.approx(float(sum((one - mean) ** 2 for one in cells)), abs=1e-9)
    again = ColumnShapes.from_arrays(shapes.arrays)
    assert all(np.array_equal(array, again.arrays[name]) for name, array in shapes.arrays.items())


@pytest.mark.parametrize("seed", range(5))
def test_on_agents_that_are_alike_scales_are_those_of_all_rows(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(5, 2, (n, 2)) for n in rng.integers(20, 50, 25)]
    parts = [np.column_stack([part, rng.random(len(part)) < 0.2, rng.poisson(0.5, len(part))]) for part in parts]
    scales, rows = common(parts), np.concatenate(parts)
    np.testing.assert_allclose(scales.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scales.scale, rows.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1e-3, 50.0, 1e3, 1e8])
@pytest.mark.parametrize("odd", [1, 6])
def test_agents_in_other_units_hardly_move_scales(seed, factor, odd):
    parts = draw(seed)
    clean = common(parts[odd:])
    for part in parts[:odd]:
        part *= factor
    moved = common(parts)
    np.testing.assert_allclose(moved.scale / clean.scale, 1.0, atol=0.3)
    assert (np.abs(moved.mean - clean.mean) < 0.3 * clean.scale).all()


def test_one_cell_hardly_moves_scales():
    parts = draw(0)
    clean = common(parts)
    parts[3][4] = 1e6
    moved = common(parts)
    np.testing.assert_allclose(moved.scale / clean.scale, 1.0, atol=0.2)


def test_scales_do_not_depend_on_units_or_on_a_large_agent():
    parts = draw(1)
    scales, other = common(parts), common([part * 3.0 for part in parts])
    np.testing.assert_allclose(other.scale, 3 * scales.scale)
    np.testing.assert_allclose(other.unit, 3 * scales.unit)
    rng = np.random.default_rng(9)
    large = common([*parts, columns(rng, 20_000) * 3])
    np.testing.assert_allclose(large.scale / scales.scale, 1.0, atol=0.35)


def test_a_column_that_varies_at_few_agents_keeps_its_scale():
    rng = np.random.default_rng(0)
    parts = [np.full((40, 1), 255.0) for _ in range(40)]
    for part in parts[:8]:
        part[:3, 0] = rng.uniform(0, 255, 3)
    scales = common(parts)
    assert scales.base == 255
    assert 0.3 < scales.scale[0] / np.concatenate(parts).std() < 3


def test_limits_follow_the_tails_that_most_agents_have():
    rng = np.random.default_rng(0)
    parts = [np.column_stack([rng.standard_normal(50), rng.standard_cauchy(50)]) for _ in range(40)]
    parts[0][0] = 1e6
    scales = AgentScales.of([column_shapes(part) for part in parts]).common()
    bare = Yardstick(scales.base, scales.centre, scales.unit, np.ones(2), np.ones(2))
    counts = np.array([far_counts(bare.distances(part)) for part in parts])
    normal, heavy = far_limits(counts, np.full((40, 2), 50))
    assert normal == 4
    assert heavy >= 16
    assert {normal, heavy} <= set(GRID)


@settings(deadline=None)
@given(arrays(np.float64, (20, 2), elements=st.floats(-100, 100)), st.integers(1, 6))
def test_held_cells_stay_within_the_limit_and_never_are_a_single_row(X, least):
    stick = Yardstick(np.zeros(2), np.zeros(2), np.ones(2), np.full(2, 8.0), np.full(2, 16.0))
    held = stick.held(X, least)
    assert (np.abs(held) <= 8).all()
    near = np.abs(X) <= 8
    rows = (held != X).any(axis=1).sum()
    if near.all():
        assert held is X
    elif (np.unique(np.abs(X), axis=0).shape[0] == 20) and (np.sort(np.abs(X), axis=0)[-least - 2] > 0).all():
        assert rows >= min(least, (np.abs(X) > 0).any(axis=1).sum())
    far = np.abs(X) > 16
    assert (held[far] == 0).all()  # that far a cell tells nothing
    assert (np.sign(held) * np.sign(X) >= 0).all()


def test_voices_fall_with_the_distance_of_most_outcomes():
    def counts(distances):
        return far_counts(np.asarray(distances, dtype=float)[:, None])[0]

    near, some, off, away = np.full(20, 1.0), np.r_[np.full(18, 1.0), 99, 99], np.full(20, 30.0), np.full(20, 300.0)
    told = voices(np.array([counts(one) for one in (near, some, off, away)]), np.full(4, 20), 8.0)
    assert told[0] == told[1] == 1
    assert 0 < told[3] < told[2] < 0.05


@given(arrays(np.float64, 9, elements=st.floats(-5, 5), unique=True), st.floats(0.05, 0.95))
def test_quantiles_of_equal_weights_are_the_usual_ones(values, share):
    found = weighted_quantile(values[:, None], np.ones((9, 1)), share, lower=True)[0]
    assert found == np.sort(values)[int(np.ceil(share * 9 - 1e-9)) - 1]
    assert weighted_quantile(values[:, None], np.ones((9, 1)), 0.5)[0] == np.median(values)


# Of 60 federations of 30 agents and 6 columns none may be suspected: a rate of 1 in 1000 would show one in 17 such tests.
def test_agents_that_are_alike_are_hardly_ever_suspected():
    assert sum(len(found(draw(seed))) for seed in range(60)) <= 1


def test_agents_of_scales_that_differ_twentyfold_are_not_suspected():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        parts = [part * np.exp(rng.uniform(0, np.log(20), 6)) for part in draw(seed)]
        assert not [one for one in found(parts) if one.aside]


@pytest.mark.parametrize("agents", [12, 30, 100])
@pytest.mark.parametrize("factor", [1e3, 1e-3])
@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_another_unit_is_named(agents, factor, column):
    hits = []
    for seed in range(5):
        parts = draw(seed, agents)
        parts[2][:, column] *= factor
        hits.append([one for one in found(parts) if one.agent == "a2" and one.column == COLUMNS[column] and one.aside])
        assert {one.agent for one in found(parts) if one.aside} <= {"a2"}
    assert sum(map(bool, hits)) >= 4
    told = next(filter(None, hits))[0]
    assert told.factor == pytest.approx(factor)
    assert "1000" in str(told)


def test_what_people_mix_up_is_named():
    rng = np.random.default_rng(0)
    parts = [np.column_stack([rng.normal(70, 10, 40), rng.normal(37, 0.5, 40), rng.normal(170, 8, 40)]) for _ in range(20)]
    called = ("weight", "temperature", "height")

    def told(change):
        odd = [part.copy() for part in parts]
        change(odd[5])
        return [str(one) for one in found(odd, called) if one.aside]

    def grams(part):
        part[:, 0] *= 1000

    def fahrenheit(part):
        part[:, 1] = 1.8 * part[:, 1] + 32

    def exchanged(part):
        part[:, [0, 2]] = part[:, [2, 0]]

    def negative(part):
        part[:, 2] *= -1

    def inches(part):
        part[:, 2] /= 2.54

    assert told(grams) == ["a5: weight is 1000 times that of the others: grams for kilograms?"]
    assert "Fahrenheit for Celsius" in told(fahrenheit)[0]
    assert "exchanged" in told(exchanged)[0]
    assert "sign" in told(negative)[0]
    assert "inches for centimetres" in told(inches)[0]
    assert told(lambda part: None) == []


def test_nobody_is_set_aside_among_few_or_where_two_units_are_in_use_or_if_trusted():
    parts = draw(0)
    parts[2][:, 0] *= 1000
    few = found(parts[: FEWEST_AGENTS - 1])
    assert [one.agent for one in few] == ["a2"]
    assert not few[0].aside
    assert not [one for one in found(parts, trusted=["a2"]) if one.aside]
    for part in parts[:9]:
        part[:, 1] *= 1000
    assert not [one for one in found(parts) if one.aside and one.column == "positive"]


def test_what_nothing_explains_is_a_warning():
    parts = draw(0)
    parts[4][:, 0] += 100
    (told,) = found(parts)
    assert (told.agent, told.column, told.aside, told.cause) == ("a4", "normal", False, "")
    assert "deviations above" in told.what


def test_zero_throughout_is_told():
    parts = draw(0)
    parts[7][:, 1] = 0
    (told,) = found(parts)
    assert str(told) == "a7: positive is 0 in 100% of its rows, hardly ever at most others: zero for missing?"
    assert not told.aside
