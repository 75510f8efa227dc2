"""Cells as people write them: read back from every way of writing, and left alone where they mean nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.cells import COMMA, POINT, numbers_of, plain_number, settled, settled_table, truths_of, years_of

amounts = st.integers(-(10**9), 10**9).map(lambda cents: cents / 100)


def written(value, group, decimal, decimals=2):
    """A number as a locale writes it, by way of Python's own grouping."""
    return f"{value:,.{decimals}f}".translate(str.maketrans({",": group, ".": decimal}))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(amounts, min_size=1, max_size=20), st.sampled_from([(",", "."), (".", ","), (" ", ","), ("'", "."), ("", ".")])
)
def test_every_way_to_write_a_number_is_read_back(values, marks):
    group, decimal = marks
    cells = pd.Series([written(one, group, decimal) for one in values])
    read = settled(cells, decimal).values
    np.testing.assert_allclose(read.to_numpy(dtype=float), np.round(values, 2), atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 999_999), min_size=3, max_size=20), st.sampled_from(["%", " %", " kg", "€", " CHF", " mg/dl"])
)
def test_a_unit_that_all_cells_share_is_taken_off(values, unit):
    read = settled(pd.Series([f"{one}{unit}" for one in values]), POINT)
    assert read.values.tolist() == values
    assert "read as" in read.told


def test_what_is_ambiguous_follows_the_column_then_the_table_then_the_separator():
    doubtful, with_point, with_comma = ["1.234", "2.500"], ["1.5", "2.25"], ["1,5", "2,25"]
    assert settled_table(pd.DataFrame({"a": doubtful}))[0]["a"].tolist() == [1.234, 2.5]
    assert settled_table(pd.DataFrame({"a": doubtful}), semicolons=True)[0]["a"].tolist() == [1234, 2500]
    assert settled_table(pd.DataFrame({"a": doubtful, "b": with_comma}))[0]["a"].tolist() == [1234, 2500]
    assert settled_table(pd.DataFrame({"a": doubtful, "b": with_point}), semicolons=True)[0]["a"].tolist() == [1.234, 2.5]
    assert settled_table(pd.DataFrame({"a": [*doubtful, "0.750"], "b": [*with_comma, "7,1"]}))[0]["a"].tolist() == [
        1.234,
        2.5,
        0.75,
    ]
    assert plain_number("1,234", COMMA) == ("1.234", "")
    assert plain_number("1,234", POINT) == ("1234", "")


@pytest.mark.parametrize(
    "text", ["", "abc", "1,23,4", "5-6", "3a", "1.2.3", "12:30", "--5", "1e", "٣", "NaN", "inf", "0x10"]
)
def test_what_is_no_number_is_none(text):
    assert plain_number(text) is None
    assert np.isnan(numbers_of(pd.Series([text]))).all()


def test_mixed_units_are_not_added_up():
    found = settled(pd.Series(["70 kg", "154 lb", "80 kg"]), POINT)
    assert found.values.tolist() == ["70 kg", "154 lb", "80 kg"]
    assert "different units (kg, lb)" in found.told


def test_percentages_beside_shares():
    assert settled(pd.Series(["0.3", "39%", "0.5"]), POINT).values.tolist() == [0.3, 0.39, 0.5]
    assert settled(pd.Series(["30", "39%", "50"]), POINT).values.tolist() == [30, 39, 50]


def test_cells_that_are_no_numbers_stay_beside_those_that_are():
    found = settled(pd.Series(["39%", "41.5%", "unknown", None]), POINT).values
    assert found.tolist()[:3] == ["39", "41.5", "unknown"]
    assert found.isna().tolist() == [False, False, False, True]


@settings(max_examples=200, deadline=None)
@given(st.dates(min_value=pd.Timestamp("1931-01-01").date(), max_value=pd.Timestamp("2030-12-31").date()))
def test_dates_in_every_order(day):
    year = day.year + (day.timetuple().tm_yday - 1) / (366 if day.year % 4 == 0 else 365)
    ways = {
        "ymd": ["%Y-%m-%d", "%Y/%m/%d", "%Y%m%d"],
        "dmy": ["%d.%m.%Y", "%d/%m/%y", "%d %b %Y"],
        "mdy": ["%m/%d/%Y", "%B %d, %Y"],
    }
    for order, formats in ways.items():
        read = years_of(pd.Series([day.strftime(one) for one in formats]), order)
        np.testing.assert_allclose(read, year, atol=1e-12)


def test_what_is_no_date_is_none():
    texts = pd.Series(["31.02.2024", "2024-13-01", "99/99/9999", "yesterday", "12.5", "1.1.1", "20241301"])
    for order in ("ymd", "dmy", "mdy"):
        assert np.isnan(years_of(texts, order)).all()


def test_words_for_yes_and_no():
    words = pd.Series(["Yes", "no", "JA", " nein ", "oui", "Non", "true", "F", "1", "0", "maybe", None])
    np.testing.assert_array_equal(truths_of(words), [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, np.nan, np.nan])
