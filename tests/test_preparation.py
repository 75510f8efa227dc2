"""Standardisation and preparation: equal to the pooled computation, fitted on training data, told in sentences."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kinfed.data import CategoryRule, NumericRule, Preparation, Standardisation, column_sums, summarise
from kinfed.data.column_types import CATEGORY, NUMBER, ColumnReading, readings_of, table_counts
from kinfed.errors import InputError
from kinfed.federation import Agent, Federation

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def table(**columns):
    frame = pd.DataFrame(columns)
    return Federation.from_table(frame.assign(site=["a", "b"] * (len(frame) // 2) + ["c"] * (len(frame) % 2)), agent="site")


# --- sums of columns ---------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=numbers | st.just(np.nan)), st.data())
def test_merged_sums_equal_the_exact_pooled_ones(X, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(X)), max_size=4)))
    merged = sum(column_sums(part) for part in np.split(X, cuts))
    for j in range(X.shape[1]):
        values = [Fraction(float(value)) for value in X[:, j] if not np.isnan(value)]  # exact rational arithmetic
        assert merged.count[j] == len(values)
        if values:
            mean = sum(values) / len(values)
            squares = sum((value - mean) ** 2 for value in values)
            size = max(abs(float(value)) for value in values)
            assert merged.mean[j] == pytest.approx(float(mean), rel=1e-12, abs=1e-13 * size)
            assert merged.squares[j] == pytest.approx(float(squares), rel=1e-9, abs=1e-20 * size**2)
        else:
            assert merged.mean[j] == merged.squares[j] == 0


def test_sums_do_not_cancel_beside_a_large_mean():
    rng = np.random.default_rng(0)
    parts = [1e9 + rng.standard_normal((n, 1)) for n in (3, 1000, 1)]
    merged = sum(column_sums(part) for part in parts)
    exact = np.std(np.concatenate(parts) - 1e9)
    assert merged.scale[0] == pytest.approx(exact, rel=1e-7)
    naive = np.mean(np.concatenate(parts) ** 2) - np.mean(np.concatenate(parts)) ** 2
    assert abs(naive - exact**2) > 0.5  # what sums of raw squares would have given


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e12 / 7, 1e-30])
def test_a_constant_column_is_seen_as_constant(value):
    merged = sum(column_sums(np.full((n, 1), value)) for n in (1, 7, 100))
    assert merged.is_constant.tolist() == [True]
    assert merged.scale.tolist() == [1.0]
    varied = merged + column_sums([[value + max(abs(value), 1e-3) * 1e-6]])
    assert varied.is_constant.tolist() == [False]


def test_only_aggregates_of_fixed_size_leave_an_agent():
    for n in (5, 500):
        answer = column_sums(np.random.default_rng(0).standard_normal((n, 3)))
        assert [getattr(answer, name).shape for name in ("count", "mean", "squares")] == [(3,)] * 3


def test_standardisation_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    X = rng.normal([5, -3, 0.1], [1, 10, 0.01], (60, 3))
    X[:, 2] = 4.0
    fed = Federation.from_arrays(X, rng.normal(100, 7, 60), rng.integers(5, size=60))
    rule, reference = Standardisation.from_sums(sum(column_sums(agent.X) for agent in fed)), StandardScaler().fit(X)
    np.testing.assert_allclose(rule.transform(X), reference.transform(X), atol=1e-10)
    np.testing.assert_allclose(rule.inverse(rule.transform(X)), X)
    target = Standardisation.from_sums(sum(column_sums(agent.y) for agent in fed))
    y = fed.pooled()[1]
    np.testing.assert_allclose(target.transform(y), (y - y.mean()) / y.std())
    np.testing.assert_allclose(target.inverse(target.transform(y)), y)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: column_sums(np.ones((2, 2))) + column_sums(np.ones((2, 3))), "2 and about 3 columns"),
        (lambda: Standardisation.from_sums(sum([])), "no agents"),
        (
            lambda: Standardisation(np.zeros(2), np.ones(2)).transform(np.ones((4, 3))),
            "for 2 columns, but the values have 3",
        ),
        (lambda: Preparation.fit(table(u=[1, 1], v=["k", "k"])), r"no column is left.*u \(constant\), v \(constant\)"),
        (lambda: Preparation.fit(table(u=[None, None])), r"u \(no values\)"),
        (lambda: Preparation.fit(table(u=[1e300, -1e300])), "column u holds values too large"),
        (lambda: Preparation.fit(table(u=[1, 2]), most_categories=0), "most_categories"),
        (lambda: Preparation.from_summaries([ColumnReading("u", NUMBER)], {}), "no agents"),
        (lambda: Preparation.fit(table(u=[1, 2])).transform(table(v=[1, 2])), "no column 'u'; the nearest is 'v'"),
        (lambda: Preparation.fit(table(u=[1, 2]), chosen={"w": "number"}), "no column 'w'; the nearest is 'u'"),
        (
            lambda: Preparation.fit(table(u=[1, 2]), chosen={"u": "numbr"}),
            "column u: there is no type 'numbr'; the nearest",
        ),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- preparation -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(numbers | st.none(), st.sampled_from(["u", "v", "w w", "é", None]), st.booleans(), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_preparation_equals_the_pooled_pipeline_of_scikit_learn(rows):
    frame = pd.DataFrame(
        [(1.5, "u", True, 0), (-2.0, "v", False, 1), *rows], columns=["number", "kind", "flag", "site"]
    ).astype({"number": float})
    fed = Federation.from_table(frame, agent="site")
    made = Preparation.fit(fed, robust=False).transform(fed)
    X, _, _ = made.pooled()
    raw, _, _ = fed.pooled()
    # Mean imputation first, as scikit-learn's scaler sees it: the scale of our rule is that of the observed values.
    observed = raw["number"].dropna()
    number = (raw["number"].fillna(observed.mean()) - observed.mean()) / observed.std(ddof=0)
    kind = raw["kind"].astype(object).where(raw["kind"].notna(), None)
    text = make_pipeline(
        SimpleImputer(missing_values=None, strategy="most_frequent"), OneHotEncoder(sparse_output=False), StandardScaler()
    )
    expected = np.column_stack(
        [
            number,
            text.fit_transform(kind.to_frame()),
            StandardScaler().fit_transform(raw["flag"].astype(float).to_numpy()[:, None]),
        ]
    )
    np.testing.assert_allclose(X, expected, atol=1e-8)
    assert made.is_numeric
    assert made[0].X.dtype == np.float64
    assert made.names == fed.names


def test_rules_come_from_training_data_alone():
    train = table(x=[1.0, 3.0, np.nan, 2.0], kind=["u", "v", "v", None])
    other = table(x=[1000.0, np.nan], kind=["new", None])
    preparation = Preparation.fit(train, standardise=False)
    made = preparation.transform(other)
    assert made.columns == ("x", "kind=u", "kind=v")
    np.testing.assert_array_equal(made["a"].X, [[1000, 0, 0]])  # an unseen category is all zeros
    np.testing.assert_array_equal(made["b"].X, [[2, 0, 1]])  # the training mean, the most frequent category
    assert preparation == Preparation.fit(train, standardise=False)


def test_sentences_for_the_user():
    fed = table(
        ses=[0.13, None, 0.13001, 0.12999],
        sector=["public", "private", None, "public"],
        k=[3, 3, 3, 3],
        nothing=[None, None, None, None],
        plain=[1, 2, 3, 4],
    )
    assert Preparation.fit(fed).describe() == [
        "column ses: 1 missing value replaced by the mean 0.13",
        "column sector: one-hot encoded as private, public; 1 missing value replaced by the most frequent, public",
        "column k: constant, left out",
        "column nothing: no values, left out",
        "all columns standardised to mean 0 and variance 1 over the training values of all agents",
    ]
    assert Preparation.fit(fed).left_out == {"k": "constant", "nothing": "no values"}
    assert Preparation.fit(table(x=[1, 2]), standardise=False).describe() == []


def test_many_constant_columns_are_one_sentence():
    fed = Federation.from_arrays(np.column_stack([np.ones((4, 9)), np.arange(4)]), None, list("aabb"))
    assert Preparation.fit(fed).describe()[0] == "9 columns (x0, x1, x2, ...): constant, left out"


def readings(fed, chosen=None):
    counts = {agent.name: table_counts(agent, fed.columns, fed.is_table) for agent in fed}
    return readings_of(fed.columns, counts, fed.sizes.tolist(), chosen or {})


def answered(fed, most_categories=100, chosen=None):
    return {agent.name: summarise(agent, readings(fed, chosen), None, most_categories) for agent in fed}


def test_a_text_with_many_values_is_left_out():
    fed = table(name=[f"patient {i % 25}" for i in range(150)], x=np.arange(150) / 8)
    preparation = Preparation.fit(fed, most_categories=20)
    assert preparation.columns == ("x",)
    assert preparation.left_out == {"name": "more than 20 different text values"}
    assert len(Preparation.fit(fed).columns) == 26


def test_an_agent_names_no_value_of_a_column_with_many():
    fed = table(name=[f"patient {i // 4}" for i in range(404)] + [None], ward=["u", "v"] * 202 + ["u"], x=range(405))
    answers = answered(fed)
    for name in ("a", "b"):  # of 101 patients each
        assert answers[name].crowded == {"name"}
        assert "patient" not in repr(answers[name])
        assert answers[name].counts["name"] == {}
        assert sum(answers[name].counts["ward"].values()) == 202
    assert answers["c"].crowded == frozenset()
    preparation = Preparation.from_summaries(readings(fed), answers)
    assert preparation.columns == Preparation.fit(fed).columns
    assert preparation.left_out["name"].startswith("more than 100 different text values")


def without_limits(preparation):
    """Limits follow from a second answer of the agents."""
    return preparation.with_limits([replace(rule, limit=None) for rule in preparation.measured])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*"uvwxyz", None]), st.integers(0, 3)), min_size=2, max_size=15), st.integers(1, 5)
)
def test_crowded_answers_give_the_rules_of_pooled_data(rows, most):
    frame = pd.DataFrame([("u", 0), *rows], columns=["kind", "site"]).astype({"kind": object})
    fed = Federation.from_table(frame.assign(number=range(len(frame))), agent="site")
    answers = answered(fed, most, {"kind": "category"})
    for agent, answer in zip(fed, answers.values(), strict=True):
        different = set(agent.X["kind"].dropna())
        assert answer.crowded == ({"kind"} if len(different) > most else set())
        assert set(answer.counts["kind"]) == (set() if answer.crowded else different)
    apart = Preparation.from_summaries(readings(fed, {"kind": "category"}), answers, most_categories=most)
    whole = Preparation.fit(fed, most_categories=most, chosen={"kind": "category"})
    assert (apart.rules, apart.columns, apart.mean) == (without_limits(whole).rules, whole.columns, whole.mean)
    assert apart.left_out.keys() == whole.left_out.keys()


def test_numbers_are_not_counted_one_by_one_because_they_are_text_elsewhere():
    reading = ColumnReading("ward", CATEGORY)
    for values in (np.arange(11.0), [1.0, 2.5]):
        told = summarise(Agent("b", np.array(values)[:, None]), [reading])
        assert told.crowded == {"ward"}
        assert told.counts["ward"] == {}
    codes = summarise(Agent("c", np.array([[1.0], [2.0], [np.nan], [9.0]])), [reading])
    assert codes.counts["ward"] == {"1": 1, "2": 1, "9": 1}


def test_numbers_with_slips_stay_numbers():
    fed = table(age=[*map(str, range(20, 43)), "12,3", "n/a", "old"])
    preparation = Preparation.fit(fed, standardise=False)
    assert preparation.columns == ("age",)
    assert preparation.readings[0].unreadable == 2  # a comma can only be decimal in 12,3
    assert preparation.notes(fed) == (
        "column age: 1 cell such as '12,3' read as 12.3",
        "column age: 'n/a', 'old' cannot be read as number (a 1, b 1)",
    )
    assert Preparation.fit(table(age=["1,5", "2,5", "3", "4,25"])).columns == ("age",)
    levels = table(level=["1", "2", "3a", "1", "2", "2"])  # few numbers: categories
    assert Preparation.fit(levels).columns == ("level=1", "level=2", "level=3a")


def test_categories_that_look_like_numbers_are_found_again():
    train = table(level=["1", "2", "3a", "1"])
    later = table(level=[1, 2])  # a file that holds only numbers in this column
    preparation = Preparation.fit(train, standardise=False)
    np.testing.assert_array_equal(preparation.transform(later).pooled()[0], [[1, 0, 0], [0, 1, 0]])


def test_columns_are_matched_by_name():
    train, swapped = table(u=[1.0, 2, 3, 5], k=list("vwvw")), table(k=list("vwvw"), u=[1.0, 2, 3, 5])
    preparation = Preparation.fit(train)
    np.testing.assert_array_equal(preparation.transform(train).pooled()[0], preparation.transform(swapped).pooled()[0])


def test_made_columns_never_share_a_name():
    fed = table(a=["b", "c"], **{"a=b": [1, 2], "a=b (2)": [2, 1]})
    assert Preparation.fit(fed).columns == ("a=b", "a=c", "a=b (2)", "a=b (2) (2)")


def test_odd_names_and_values():
    fed = table(**{"": [1, 2], "naïve 列\n": ["🧬", "日本"], "x" * 300: [1.5, 2.5]})
    made = Preparation.fit(fed).transform(fed)
    assert made.dim == 4
    assert made.is_numeric


def test_transform_keeps_targets_groups_and_empty_agents():
    frame = pd.DataFrame({"k": list("uvuvu"), "x": [1.0, 2, 3, 4, 5], "y": [0, 1, 0, 1, 1], "site": list("aaaab")})
    train, test = Federation.from_table(frame, target="y", agent="site").split(0.25)
    made = Preparation.fit(train).transform(test)
    assert made.sizes.tolist() == [1, 0]
    assert made[1].X.shape == (0, 3)
    assert made.target == "y"
    np.testing.assert_array_equal(made[0].y, test[0].y)
    grouped = Federation.from_arrays([[1.0], [2.0]], None, ["a", "b"], groups=["g", "h"])
    assert Preparation.fit(grouped).transform(grouped).groups == ("g", "h")


def test_arrays_and_tables_are_prepared_alike():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    X[rng.random((30, 3)) < 0.2] = np.nan
    agent = rng.integers(3, size=30)
    array = Federation.from_arrays(X, None, agent, columns=list("uvw"))
    raw = Federation.from_arrays(pd.DataFrame(X, columns=list("uvw")).assign(k="one"), None, agent)
    made = Preparation.fit(array).transform(array)
    np.testing.assert_allclose(made.pooled()[0], Preparation.fit(raw).transform(raw).pooled()[0])
    narrow = Federation.from_arrays(X.astype(np.float32), None, agent)
    np.testing.assert_allclose(Preparation.fit(narrow).transform(narrow).pooled()[0], made.pooled()[0], atol=1e-5)
    assert np.isnan(array[0].X).any()  # the input is left as it was


def test_answers_of_agents_are_enough():
    fed = table(x=[1.0, np.nan, 3.0, 7.0, 2.0], k=["u", "v", None, "u", "v"])
    answers = answered(fed)
    assert Preparation.from_summaries(readings(fed), answers) == without_limits(Preparation.fit(fed))
    assert answers["a"].counts == {"k": {"u": 1}}
    assert answers["a"].missing.tolist() == [0, 1]


def test_a_column_may_be_numeric_at_an_agent_that_has_no_value_of_it():
    empty = pd.DataFrame({"k": [np.nan, np.nan], "x": [1.0, 2.0]})
    full = pd.DataFrame({"k": ["u", "v"], "x": [3.0, 4.0]})
    fed = Federation((Agent("a", empty), Agent("b", full)), ("k", "x"))
    preparation = Preparation.fit(fed, standardise=False)
    np.testing.assert_array_equal(preparation.transform(fed)["a"].X, [[1, 0, 1], [1, 0, 2]])


def test_numeric_columns_may_come_back_as_empty_text_or_booleans():
    preparation = Preparation.fit(table(x=[1.0, 3.0]), standardise=False)
    blank = pd.DataFrame({"x": pd.Series([None, None], dtype="str"), "site": ["a", "b"]})
    np.testing.assert_array_equal(preparation.transform(Federation.from_table(blank, agent="site")).pooled()[0], [[2], [2]])
    flags = table(x=[True, False])
    np.testing.assert_array_equal(preparation.transform(flags).pooled()[0], [[1], [0]])


def test_an_all_missing_text_column_is_left_out():
    fed = table(k=pd.Series([None, None], dtype="str"), x=[1, 2])
    assert Preparation.fit(fed).left_out == {"k": "no values"}


@pytest.mark.parametrize(
    "answer", [column_sums([[1.0]]), summarise(Agent("a", np.ones((1, 1))), [ColumnReading("x", NUMBER)])]
)
def test_answers_only_add_up_with_answers(answer):
    with pytest.raises(TypeError):
        answer + 1
    with pytest.raises(TypeError):
        1 + answer


def test_rules_are_records():
    assert NumericRule("x", 1.0, 2.0, 0).describe() is None
    rule = CategoryRule("k", {"u": 2, "v": 2}, 4)
    assert rule.most_frequent == "u"  # the first of equals
    assert rule.means == (0.75, 0.25)
